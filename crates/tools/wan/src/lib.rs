//! Measurements over a wide-area link on one machine.
//!
//! [`check`] measures the link itself: how many frames it moves compared with a forwarder that does nothing to them, how
//! exactly it delays, and whether it loses what was set. [`race`] compares TCP, QUIC, RC and Longhaul on one link. `quic`,
//! with the feature of that name, sends over QUIC. [`gateway_check`] measures a gateway as [`check`] measures a link.

pub mod check;
mod clock;
pub mod gateway_check;
mod meter;
#[cfg(feature = "quic")]
pub mod quic;
pub mod race;
mod witness;
