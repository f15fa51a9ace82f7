//! What a peer says of itself while connecting, and what of it is believed.
//!
//! Whoever reaches the TCP port can say anything. What it can make us allocate is bounded and small, and packets go to
//! nobody who has not asked for them.

use std::net::IpAddr;

use longhaul_sdr::info::QueuePairInfo;

use crate::endpoint::UDP_PORT_ROCE;
use crate::fields::FieldError;
use crate::handshake::{HandshakeError, Meeting};
use crate::handshake_bytes::{Hello, PathInfo};

/// Chunks of at most this size are taken from the peer; larger ones only if both ends are set so.
pub(crate) const CHUNK_BYTES_FROM_PEER_MAX: u32 = 64 << 10;
/// The longest message of a peer is at least this.
const MESSAGE_BYTES_FROM_PEER_MIN: u64 = 1 << 20;
/// More than half of all sequence numbers cannot be in flight.
const WINDOW_FROM_PEER_MAX: u32 = 1 << 23;
/// Free ports, which a system gives to programs, begin here at the lowest.
const FREE_UDP_PORT_MIN: u16 = 1024;

/// What the peer's word for its own address is worth.
#[derive(Clone, Copy)]
pub(crate) struct Claim {
    /// Where it is, as the carrier has it.
    pub(crate) seen: Option<IpAddr>,
    /// It was given the handle, or we were given its.
    pub(crate) has_token: bool,
}

/// Read a hello, and refuse it unless its token is as it must be. This needs nothing but the bytes.
pub(crate) fn check_token(meeting: &Meeting, needs_token: bool, hello: &[u8]) -> Result<Hello, HandshakeError> {
    let hello = Hello::from_bytes(hello)?;
    match hello.token {
        None if needs_token => Err(HandshakeError::NoToken),
        // One that was given a handle was given ours, or is wrong here.
        Some(token) if !is_same(Some(token), meeting.token) => Err(HandshakeError::WrongToken),
        _ => Ok(hello),
    }
}

/// In a time that does not depend on where they differ.
fn is_same(one: Option<[u8; 16]>, other: Option<[u8; 16]>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return false };
    one.iter().zip(other).fold(0, |difference, (one, other)| difference | (one ^ other)) == 0
}

/// Each message takes memory for at least a chunk, and for a chunk's parity: that is not for the peer to choose.
pub(crate) fn check_chunks(bytes: u32) -> Result<(), HandshakeError> {
    if bytes > CHUNK_BYTES_FROM_PEER_MAX {
        return Err(HandshakeError::ChunksTooLarge { bytes });
    }
    Ok(())
}

/// Longer messages are cut into parts of this length: tiny ones would be work without end.
pub(crate) fn check_longest(bytes: u64) -> Result<(), HandshakeError> {
    if bytes < MESSAGE_BYTES_FROM_PEER_MIN {
        let message = format!("{bytes} bytes, expected at least {MESSAGE_BYTES_FROM_PEER_MIN}");
        return Err(FieldError::Value { field: "longest message", message }.into());
    }
    Ok(())
}

/// A peer that has shown no token is only where its TCP connection comes from: otherwise it could have us send packets
/// to somebody else.
pub(crate) fn check_paths(paths: &[PathInfo], claim: Claim) -> Result<(), HandshakeError> {
    for path in paths {
        let port = path.udp_port;
        if port != UDP_PORT_ROCE && port < FREE_UDP_PORT_MIN {
            let message = format!("UDP port {port}, expected {UDP_PORT_ROCE} or at least {FREE_UDP_PORT_MIN}");
            return Err(FieldError::Value { field: "path", message }.into());
        }
        let Some(seen) = claim.seen.filter(|_| !claim.has_token) else { continue };
        let claimed = path.gid.to_ip().to_canonical();
        // A device of libibverbs has none of the host's loopback addresses.
        let is_here = || seen.is_loopback() && !claimed.is_loopback() && own_addresses().contains(&claimed);
        if claimed != seen && !is_here() {
            return Err(HandshakeError::OtherAddress { claimed, seen });
        }
    }
    Ok(())
}

/// The addresses of this host.
pub(crate) fn own_addresses() -> Vec<IpAddr> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let address_of = |interface: nix::ifaddrs::InterfaceAddress| {
        let storage = interface.address?;
        let v4 = storage.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    };
    interfaces.filter_map(address_of).collect()
}

/// The queue pair's part of an answer or info, which must fit the rest of it. (That both ends have the same MTU,
/// channels, generations and division of the immediate is seen when they are connected.)
pub(crate) fn peer_info(
    bytes: &[u8],
    paths: &[PathInfo],
    message_bytes_max: u64,
) -> Result<QueuePairInfo, HandshakeError> {
    let info = QueuePairInfo::from_bytes(bytes)?;
    let path = PathInfo { gid: info.gid, udp_port: info.udp_port };
    if !paths.contains(&path) {
        return Err(contradiction("path", paths.first().map(PathInfo::socket), path.socket()));
    }
    if info.message_bytes_max != message_bytes_max {
        return Err(contradiction("longest message", Some(message_bytes_max), info.message_bytes_max));
    }
    if info.window == 0 || info.window > WINDOW_FROM_PEER_MAX {
        let message = format!("{} packets, expected 1 to {WINDOW_FROM_PEER_MAX}", info.window);
        return Err(FieldError::Value { field: "window", message }.into());
    }
    Ok(info)
}

pub(crate) fn contradiction<T: ToString>(what: &'static str, first: Option<T>, second: T) -> HandshakeError {
    let first = first.map_or_else(|| "none".to_owned(), |first| first.to_string());
    HandshakeError::Contradiction { what, first, second: second.to_string() }
}
