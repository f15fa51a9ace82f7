//! What two ends agree on when they connect, and what they know of each other before.

use std::net::IpAddr;

use longhaul_verbs::Mtu;
use longhaul_wire::fields::{FieldError, FieldProblem};

/// Chunks of at most this size are taken from the peer; larger ones only if both ends are set so.
pub(crate) const CHUNK_BYTES_FROM_PEER_MAX: u32 = 64 << 10;

/// What both ends hold to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agreement {
    pub(crate) mtu: Mtu,
    pub(crate) chunk_bytes: u32,
    pub(crate) message_bytes_max: u64,
    pub(crate) channels: usize,
}

/// What the carrier of the handshake knows, as far as it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meeting {
    /// Our address and the peer's, as this end of the carrier sees them. The ends compare: a NAT between them shows.
    pub addresses: Option<(IpAddr, IpAddr)>,
    /// Of the listener's handle: shows that the hello is meant for it.
    pub token: Option<[u8; 16]>,
}

/// The MTU of a packet with this many bytes of payload.
pub(crate) fn known_mtu(bytes: u32) -> Result<Mtu, FieldError> {
    let problem = FieldProblem::Mtu(bytes);
    Mtu::from_byte_count(bytes).ok_or(FieldError::Value { field: "MTU", problem })
}
