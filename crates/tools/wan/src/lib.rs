//! Measurements over a wide-area link on one machine.
//!
//! [`check`] measures the link itself: how many frames it moves compared with a forwarder that does nothing to them, how
//! exactly it delays, and whether it loses what was set. `quic`, with the feature of that name, sends over QUIC.

pub mod check;
mod clock;
#[cfg(feature = "quic")]
pub mod quic;
