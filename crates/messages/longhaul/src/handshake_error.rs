//! Why two ends do not come to a connection.

use std::io;
use std::net::IpAddr;

use longhaul_sdr::CreateQueuePairError;
use longhaul_verbs::{CreateError, QueryError};
use longhaul_wire::fields::FieldError;
use longhaul_wire::handshake::{Message, Refusal};
use thiserror::Error;

use crate::agreement::CHUNK_BYTES_FROM_PEER_MAX;
use crate::carrier::to_bytes;
use crate::device::FecOnMessagesError;
use crate::endpoint::UDP_PORT_ROCE;
use crate::options::SchemeNamesTooLong;
use crate::runtime::StartError;

/// Why two ends do not come to a connection.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The peer sent something that is not part of the handshake.
    #[error(
        "the peer sent no connection info that this version understands; use the same release of longhaul at both ends"
    )]
    Fields(#[from] FieldError),
    /// The queue pair's part of it is not readable.
    #[error("the peer's queue pair info cannot be used")]
    Info(#[source] FieldError),
    /// Different schemes.
    #[error("the ends have different schemes: {ours} here, {theirs} at the peer; give both the same")]
    OtherScheme {
        /// Here.
        ours: String,
        /// There.
        theirs: String,
    },
    /// Our schemes have names that are too long.
    #[error(transparent)]
    SchemeNames(#[from] SchemeNamesTooLong),
    /// Both want chunks of a size.
    #[error(
        "the ends have different chunks: {ours} bytes here, {theirs} bytes at the peer; give both the same, or only one"
    )]
    OtherChunks {
        /// Here.
        ours: u32,
        /// There.
        theirs: u32,
    },
    /// The handle leads to somebody else.
    #[error(
        "the listener refused the token: the handle is of another listener, or of this one before it was started again"
    )]
    WrongToken,
    /// The listener takes only peers that have its handle.
    #[error(
        "the listener takes peers on other hosts only with its handle: connect with Listener::handle() instead of an address, or set \
         Options::allow_without_token at the listener if everybody who reaches its port may connect"
    )]
    NoToken,
    /// The chunks that the peer wants are too large to be taken from somebody else.
    #[error(
        "the peer wants chunks of {bytes} bytes; more than {CHUNK_BYTES_FROM_PEER_MAX} must be set at both ends (Options::chunk_bytes)"
    )]
    ChunksTooLarge {
        /// What it wants.
        bytes: u32,
    },
    /// Packets would go to somebody who has not asked for them.
    #[error(
        "the peer says that its device is at {claimed}, but its TCP connection is from {seen}; a peer whose device has another address \
         must connect with the listener's handle"
    )]
    OtherAddress {
        /// By its own words.
        claimed: IpAddr,
        /// As TCP has it.
        seen: IpAddr,
    },
    /// The queue pair's part differs from the rest.
    #[error("the peer contradicts itself: its {what} is {first} in one place and {second} in another")]
    Contradiction {
        /// What.
        what: &'static str,
        /// In the handshake's fields, or as agreed.
        first: String,
        /// In the queue pair's.
        second: String,
    },
    /// Addresses are rewritten in the network.
    #[error(
        "there is a NAT between the ends: the {who} has address {believed} on the connecting side and {seen} on the accepting \
         side. RoCE packets carry a checksum over their addresses and cannot pass it; use a path without NAT, such as a tunnel"
    )]
    Nat {
        /// Which end.
        who: &'static str,
        /// On the connecting side.
        believed: IpAddr,
        /// On the accepting side.
        seen: IpAddr,
    },
    /// A port that one end's device cannot send to.
    #[error(
        "the device at UDP port {port} can only be reached from a softnic, and the other end's device is none; free port \
         {UDP_PORT_ROCE} of its host"
    )]
    UdpPort {
        /// The port.
        port: u16,
    },
    /// The device has no unreliable connections.
    #[error("the device {0} has no unreliable connections (UC), which all schemes need")]
    NoUnreliableConnection(String),
    /// The device is not for messages.
    #[error(transparent)]
    Fec(#[from] FecOnMessagesError),
    /// No packet fits.
    #[error("the MTU of the path to {0} is too small for any RoCE packet; raise it with `ip link set … mtu`")]
    MtuTooSmall(IpAddr),
    /// The other end says no, in its own words.
    #[error("the peer refuses: {0}")]
    Refused(String),
    /// The device does not report its capabilities.
    #[error("cannot query the capabilities of the device")]
    Query(#[from] QueryError),
    /// The device refused to make something.
    #[error("the device refused to make a queue")]
    Create(#[from] CreateError),
    /// The queue pair cannot be made.
    #[error("the queue pair cannot be made")]
    QueuePair(#[from] CreateQueuePairError),
    /// The queue pairs do not fit.
    #[error("the queue pairs cannot be connected")]
    Connect(#[from] longhaul_sdr::ConnectError),
    /// What all connections of the endpoint share cannot be made.
    #[error("connections cannot be driven")]
    Start(#[from] StartError),
    /// Sequence numbers must be random.
    #[error("cannot read /dev/urandom")]
    Randomness(#[source] io::Error),
}

impl HandshakeError {
    /// What an accepting end sends to the connecting one instead of an answer.
    pub fn to_refusal(&self) -> Vec<u8> {
        let text;
        let refusal = match self {
            HandshakeError::OtherScheme { ours, .. } => Refusal::OtherScheme { theirs: ours },
            HandshakeError::OtherChunks { ours, .. } => Refusal::OtherChunks { theirs: *ours },
            HandshakeError::WrongToken => Refusal::WrongToken,
            HandshakeError::NoToken => Refusal::NoToken,
            other => {
                text = longhaul_runtime::with_sources(other);
                Refusal::Other { number: Refusal::OTHER, text: Some(&text) }
            }
        };
        to_bytes(&Message::Refused(refusal))
    }
}
