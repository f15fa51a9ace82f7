//! How two ends agree on a connection: three messages, as bytes that any carrier takes over.
//!
//! ```text
//!   connecting end                              accepting end
//!   Connecting::new  ──── hello ────────▶  Accepting::on_hello     what it can, wants and is
//!   .on_answer       ◀─── answer ────────                          what is agreed, and how to reach its queue pairs (or a refusal)
//!                    ──── info ─────────▶  .on_info                how to reach the others
//! ```
//!
//! The accepting end decides, from what both can: the smaller MTU, number of channels and longest message, the chunk
//! size that either names. So it makes its queue pairs when it answers, and the connecting end its own when the answer
//! has come. A queue pair sends nothing before it knows the peer's address, so it does not matter which end is ready
//! first.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use longhaul_sdr::QueuePair;
use longhaul_sdr::info::QueuePairInfo;
use longhaul_verbs::{Capabilities, Mtu};
use longhaul_wire::fields::{FieldError, FieldProblem};
use longhaul_wire::handshake::{Answer, Hello, Info, Message, Path, Refusal};

use crate::agreement::{Agreement, Meeting, known_mtu};
use crate::carrier::to_bytes;
use crate::connection::{Connection, PathEnds};
use crate::device::check_fec;
use crate::endpoint::{Endpoint, UDP_PORT_ROCE};
use crate::handshake_error::HandshakeError;
use crate::options::Options;
use crate::peer_claims::{
    Claim, check_chunks, check_longest, check_paths, check_token, contradiction, peer_info, place_of, socket,
};
use crate::randomness::random;
use crate::runtime::Runtime;

/// The connecting end, between hello and answer.
pub struct Connecting {
    endpoint: Endpoint,
    options: Options,
    mtu: Mtu,
    hello: Vec<u8>,
    message_bytes_max: u64,
    claim: Claim,
}

/// The accepting end, between answer and info.
pub struct Accepting {
    endpoint: Endpoint,
    runtime: Arc<Runtime>,
    queue_pair: QueuePair,
    options: Options,
    message_bytes_max: u64,
    paths: Vec<Path>,
    claim: Claim,
}

impl Connecting {
    /// Begin; [`Connecting::hello`] goes to the other end.
    pub fn new(endpoint: &Endpoint, options: &Options, meeting: &Meeting) -> Result<Self, HandshakeError> {
        check_fec(endpoint.fec())?;
        options.check_names()?;
        let peer = meeting.addresses.map(|(_, peer)| peer);
        let mtu = own_mtu(endpoint, options, peer)?;
        let message_bytes_max = message_bytes_max(options.mtu);
        let hello = to_bytes(&Message::Hello(Hello {
            capabilities: capabilities(endpoint)?,
            mtu: mtu.byte_count(),
            paths: own_paths(endpoint)[..].into(),
            scheme: &options.scheme_names(),
            chunk_bytes: options.chunk_bytes,
            message_bytes_max,
            channels: channels(options) as u16,
            token: meeting.token,
            addresses: meeting.addresses,
        }));
        Ok(Connecting {
            endpoint: endpoint.clone(),
            options: options.clone(),
            mtu,
            hello,
            message_bytes_max,
            claim: Claim { seen: peer, has_token: meeting.token.is_some() },
        })
    }

    /// The first message.
    pub fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// The answer has come. The bytes that are returned must still go to the other end; the connection works when they
    /// have come there.
    pub fn on_answer(self, answer: &[u8]) -> Result<(Connection, Vec<u8>), HandshakeError> {
        let Connecting { endpoint, options, mtu, message_bytes_max, claim, .. } = self;
        let answer = match Message::parse(answer)? {
            Message::Answer(answer) => answer,
            Message::Refused(refusal) => return Err(refused(refusal, &options)),
            other => return Err(other.unexpected().into()),
        };
        if answer.scheme != options.scheme_names() {
            return Err(HandshakeError::OtherScheme { ours: options.scheme_names(), theirs: answer.scheme.to_owned() });
        }
        if let Some(ours) = options.chunk_bytes.filter(|ours| *ours != answer.chunk_bytes) {
            return Err(HandshakeError::OtherChunks { ours, theirs: answer.chunk_bytes });
        }
        if options.chunk_bytes.is_none() {
            check_chunks(answer.chunk_bytes)?;
        }
        let agreement = Agreement {
            mtu: known_mtu(answer.mtu)?,
            chunk_bytes: answer.chunk_bytes,
            message_bytes_max: answer.message_bytes_max,
            channels: answer.channels.into(),
        };
        // No more than this end has asked for.
        for (field, found, most) in [
            ("MTU", answer.mtu.into(), mtu.byte_count().into()),
            ("channels", answer.channels.into(), channels(&options) as u64),
            ("longest message", answer.message_bytes_max, message_bytes_max),
        ] {
            if found > most {
                let problem = FieldProblem::Range { found, least: 0, most };
                return Err(FieldError::Value { field, problem }.into());
            }
        }
        check_longest(agreement.message_bytes_max)?;
        let paths: Vec<Path> = answer.paths.iter().collect();
        check_paths(&paths, claim)?;
        let peer = peer_info(answer.queue_pair, &paths, agreement.message_bytes_max)?;
        check_reachable(&endpoint, answer.capabilities, &paths)?;
        let (runtime, queue_pair) = make_queue_pair(&endpoint, &options, &agreement, &paths)?;
        queue_pair.connect(&peer)?;
        let (paths, own) = (own_paths(&endpoint), queue_pair.info().to_bytes());
        let info = to_bytes(&Message::Info(Info { paths: paths[..].into(), queue_pair: &own }));
        let ends = path_ends(&endpoint, &peer);
        Ok((Connection::start(runtime, queue_pair, &options, ends), info))
    }
}

impl Accepting {
    /// A hello has come. The bytes that are returned go to the other end; on an error [`HandshakeError::to_refusal`]
    /// should. `meeting` is what this end of the carrier sees, and the token of its handle, if it has one;
    /// `needs_token` refuses a hello without it.
    pub fn on_hello(
        endpoint: &Endpoint,
        options: &Options,
        meeting: &Meeting,
        needs_token: bool,
        hello: &[u8],
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        let hello = check_token(meeting, needs_token, hello)?;
        check_fec(endpoint.fec())?;
        options.check_names()?;
        let ours = options.scheme_names();
        if hello.scheme != ours {
            return Err(HandshakeError::OtherScheme { ours, theirs: hello.scheme.to_owned() });
        }
        check_addresses(meeting.addresses, hello.addresses)?;
        let chunk_bytes = match (options.chunk_bytes, hello.chunk_bytes) {
            (Some(ours), Some(theirs)) if ours != theirs => {
                return Err(HandshakeError::OtherChunks { ours, theirs });
            }
            (None, Some(theirs)) => {
                check_chunks(theirs)?;
                Some(theirs)
            }
            (ours, _) => ours,
        };
        let claim = Claim { seen: meeting.addresses.map(|(_, peer)| peer), has_token: hello.token.is_some() };
        let paths: Vec<Path> = hello.paths.iter().collect();
        check_paths(&paths, claim)?;
        check_reachable(endpoint, hello.capabilities, &paths)?;
        let peer = paths.first().map(|path| socket(path).ip());
        let mtu = own_mtu(endpoint, options, peer)?.min(known_mtu(hello.mtu)?);
        let agreement = Agreement {
            mtu,
            chunk_bytes: chunk_bytes.unwrap_or_else(|| longhaul_sdr::default_chunk_bytes(mtu)),
            message_bytes_max: message_bytes_max(mtu).min(hello.message_bytes_max),
            channels: channels(options).min(hello.channels.into()),
        };
        check_longest(agreement.message_bytes_max)?;
        let (runtime, queue_pair) = make_queue_pair(endpoint, options, &agreement, &paths)?;
        let answer = to_bytes(&Message::Answer(Answer {
            capabilities: capabilities(endpoint)?,
            mtu: mtu.byte_count(),
            paths: own_paths(endpoint)[..].into(),
            scheme: &ours,
            chunk_bytes: agreement.chunk_bytes,
            message_bytes_max: agreement.message_bytes_max,
            channels: agreement.channels as u16,
            queue_pair: &queue_pair.info().to_bytes(),
        }));
        let accepting = Accepting {
            endpoint: endpoint.clone(),
            runtime,
            queue_pair,
            options: options.clone(),
            message_bytes_max: agreement.message_bytes_max,
            paths,
            claim,
        };
        Ok((accepting, answer))
    }

    /// Whether the hello had the token, which then was the right one.
    pub fn has_token(&self) -> bool {
        self.claim.has_token
    }

    /// The info has come: the connection works.
    pub fn on_info(self, info: &[u8]) -> Result<Connection, HandshakeError> {
        let info = match Message::parse(info)? {
            Message::Info(info) => info,
            other => return Err(other.unexpected().into()),
        };
        let paths: Vec<Path> = info.paths.iter().collect();
        check_paths(&paths, self.claim)?;
        // A path that the hello did not have was not looked at.
        if let Some(other) = paths.iter().find(|path| !self.paths.contains(path)) {
            return Err(contradiction("path", self.paths.first().map(socket), socket(other)));
        }
        let peer = peer_info(info.queue_pair, &paths, self.message_bytes_max)?;
        self.queue_pair.connect(&peer)?;
        let ends = path_ends(&self.endpoint, &peer);
        Ok(Connection::start(self.runtime, self.queue_pair, &self.options, ends))
    }
}

fn refused(refusal: Refusal<'_>, options: &Options) -> HandshakeError {
    match refusal {
        Refusal::OtherScheme { theirs } => {
            HandshakeError::OtherScheme { ours: options.scheme_names(), theirs: theirs.to_owned() }
        }
        Refusal::OtherChunks { theirs } => {
            HandshakeError::OtherChunks { ours: options.chunk_bytes.unwrap_or(0), theirs }
        }
        Refusal::WrongToken => HandshakeError::WrongToken,
        Refusal::NoToken => HandshakeError::NoToken,
        Refusal::Other { number, text } => {
            HandshakeError::Refused(text.map_or_else(|| format!("for a reason numbered {number}"), str::to_owned))
        }
    }
}

fn path_ends(endpoint: &Endpoint, peer: &QueuePairInfo) -> PathEnds {
    PathEnds {
        local: SocketAddr::new(endpoint.address(), endpoint.udp_port()),
        peer: SocketAddr::new(peer.gid.to_ip(), peer.udp_port),
    }
}

fn capabilities(endpoint: &Endpoint) -> Result<u64, HandshakeError> {
    let capabilities = endpoint.capabilities()?;
    if !capabilities.contains(Capabilities::UNRELIABLE_CONNECTION) {
        return Err(HandshakeError::NoUnreliableConnection(endpoint.describe().to_owned()));
    }
    Ok(capabilities.bits())
}

fn own_paths(endpoint: &Endpoint) -> [Path; 1] {
    [Path { gid: endpoint.gid().0, udp_port: endpoint.udp_port() }]
}

/// The longest that the immediate can count; longer ones are cut.
fn message_bytes_max(mtu: Mtu) -> u64 {
    longhaul_sdr::immediate::ImmediateLayout::default().message_bytes_max(mtu.byte_count())
}

fn channels(options: &Options) -> usize {
    options.channels.clamp(1, CHANNELS_MAX)
}

/// More threads than any host has, and few enough that the info of their queue pairs fits a frame.
const CHANNELS_MAX: usize = 64;

fn own_mtu(endpoint: &Endpoint, options: &Options, peer: Option<IpAddr>) -> Result<Mtu, HandshakeError> {
    let carried = match peer {
        Some(peer) => endpoint.mtu_towards(peer)?.ok_or(HandshakeError::MtuTooSmall(peer))?,
        None => endpoint.mtu()?,
    };
    Ok(carried.min(options.mtu))
}

/// Each end must be able to send to the port at which the other's device listens.
fn check_reachable(endpoint: &Endpoint, peer_capabilities: u64, peer: &[Path]) -> Result<(), HandshakeError> {
    let any_port = Capabilities::FREE_UDP_PORT;
    let peer_capabilities = Capabilities::from_bits_truncate(peer_capabilities);
    let ports = peer.iter().map(|path| path.udp_port);
    let unreachable = if !endpoint.capabilities()?.contains(any_port) {
        ports.into_iter().find(|port| *port != UDP_PORT_ROCE)
    } else {
        None
    };
    let unreachable_here =
        (!peer_capabilities.contains(any_port) && endpoint.udp_port() != UDP_PORT_ROCE).then(|| endpoint.udp_port());
    match unreachable.or(unreachable_here) {
        Some(port) => Err(HandshakeError::UdpPort { port }),
        None => Ok(()),
    }
}

/// ICRC covers the addresses: packets whose addresses are rewritten in the network look corrupted.
fn check_addresses(seen: Option<(IpAddr, IpAddr)>, believed: Option<(IpAddr, IpAddr)>) -> Result<(), HandshakeError> {
    let (Some((our_local, our_peer)), Some((their_local, their_peer))) = (seen, believed) else { return Ok(()) };
    for (who, seen, believed) in [("connecting end", our_peer, their_local), ("accepting end", our_local, their_peer)] {
        if seen != believed {
            return Err(HandshakeError::Nat { who, believed, seen });
        }
    }
    Ok(())
}

fn make_queue_pair(
    endpoint: &Endpoint,
    options: &Options,
    agreement: &Agreement,
    paths: &[Path],
) -> Result<(Arc<Runtime>, QueuePair), HandshakeError> {
    let device = endpoint.device().attributes()?;
    let random = random().map(u64::from_le_bytes).map_err(HandshakeError::Randomness)?;
    let attributes = options.queue_pair(endpoint, &device, agreement, place_of(paths), random);
    let runtime = endpoint.runtime()?;
    let context = runtime.create_context(agreement.channels, &attributes)?;
    Ok((runtime, QueuePair::create(&context, &attributes)?))
}
