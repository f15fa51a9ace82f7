//! What a peer says of itself while connecting, and what of it is believed. Anyone who reaches the TCP port can send
//! anything. What it can make us allocate is bounded and small, and packets go to nobody who has not asked for them.

use std::net::{IpAddr, SocketAddr};

use longhaul_sdr::info::QueuePairInfo;
use longhaul_verbs::Gid;
use longhaul_wire::fields::{FieldError, FieldProblem};
use longhaul_wire::handshake::{Hello, Message, Path};

use crate::agreement::{CHUNK_BYTES_FROM_PEER_MAX, Meeting, known_mtu};
use crate::handshake_error::HandshakeError;
use crate::options::PeerPlace;

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
pub(crate) fn check_token<'a>(
    meeting: &Meeting,
    needs_token: bool,
    hello: &'a [u8],
) -> Result<Hello<'a>, HandshakeError> {
    let hello = match Message::parse(hello)? {
        Message::Hello(hello) => hello,
        other => return Err(other.unexpected().into()),
    };
    known_mtu(hello.mtu)?;
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
        let problem = FieldProblem::Range { found: bytes, least: MESSAGE_BYTES_FROM_PEER_MIN, most: u64::MAX };
        return Err(FieldError::Value { field: "longest message", problem }.into());
    }
    Ok(())
}

/// A peer that has shown no token is only where its TCP connection comes from: otherwise it could have us send packets
/// to somebody else.
pub(crate) fn check_paths(paths: &[Path], claim: Claim) -> Result<(), HandshakeError> {
    for path in paths {
        // RoCE's own port is one of them.
        if path.udp_port < FREE_UDP_PORT_MIN {
            let (found, least) = (path.udp_port.into(), FREE_UDP_PORT_MIN.into());
            let problem = FieldProblem::Range { found, least, most: u16::MAX.into() };
            return Err(FieldError::Value { field: "UDP port of a path", problem }.into());
        }
        let Some(seen) = claim.seen.filter(|_| !claim.has_token) else { continue };
        let claimed = socket(path).ip().to_canonical();
        // A device of libibverbs has none of the host's loopback addresses.
        let is_here = || seen.is_loopback() && !claimed.is_loopback() && own_addresses().contains(&claimed);
        if claimed != seen && !is_here() {
            return Err(HandshakeError::OtherAddress { claimed, seen });
        }
    }
    Ok(())
}

/// Where packets on a path go.
pub(crate) fn socket(path: &Path) -> SocketAddr {
    SocketAddr::new(Gid(path.gid).to_ip(), path.udp_port)
}

/// Where a peer is that packets go to on these paths. The carrier says nothing about it: it may be a tunnel.
pub(crate) fn place_of(paths: &[Path]) -> PeerPlace {
    let own = own_addresses();
    let is_here = |path: &Path| {
        let address = socket(path).ip().to_canonical();
        address.is_loopback() || own.contains(&address)
    };
    if paths.iter().all(is_here) { PeerPlace::ThisHost } else { PeerPlace::Elsewhere }
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
pub(crate) fn peer_info(bytes: &[u8], paths: &[Path], message_bytes_max: u64) -> Result<QueuePairInfo, HandshakeError> {
    let info = QueuePairInfo::from_bytes(bytes).map_err(HandshakeError::Info)?;
    let path = Path { gid: info.gid.0, udp_port: info.udp_port };
    if !paths.contains(&path) {
        return Err(contradiction("path", paths.first().map(socket), socket(&path)));
    }
    if info.message_bytes_max != message_bytes_max {
        return Err(contradiction("longest message", Some(message_bytes_max), info.message_bytes_max));
    }
    if info.window == 0 || info.window > WINDOW_FROM_PEER_MAX {
        let problem = FieldProblem::Range { found: info.window.into(), least: 1, most: WINDOW_FROM_PEER_MAX.into() };
        return Err(FieldError::Value { field: "window", problem }.into());
    }
    Ok(info)
}

pub(crate) fn contradiction<T: ToString>(what: &'static str, first: Option<T>, second: T) -> HandshakeError {
    let first = first.map_or_else(|| "none".to_owned(), |first| first.to_string());
    HandshakeError::Contradiction { what, first, second: second.to_string() }
}
