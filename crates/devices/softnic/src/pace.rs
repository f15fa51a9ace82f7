//! When a packet may leave: the pace of its queue pair, deadlines, and the window towards its peer.

mod pacing;
mod peer;
mod timer;

pub(crate) use pacing::{PACKET_HEADER_BYTES, Pacing};
pub use peer::PeerWindow;
pub(crate) use peer::{Allowance, PeerKey, PeerShare, Peers, Probe, charge_bytes, message_charge_bytes};
pub(crate) use timer::{Scheduled, Timers};
