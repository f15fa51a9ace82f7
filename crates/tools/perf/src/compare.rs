//! Both ends on this host, measured next to the limit.
//!
//! The coordinator, this process, starts two ends (`end`) in two network namespaces joined by a veth (`namespace`) and
//! gives them orders (`orders`, `ends`). A round is a fraction of a second of one measurement; all take turns, again
//! and again, so that whatever else happens on the machine hits all alike. The median of the rounds counts.

mod bare_udp;
mod comparison;
mod end;
mod ends;
mod facade;
mod measurement;
mod namespace;
mod orders;
mod scheme;
mod softnic;
mod stopwatch;
mod tcp;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use longhaul::with_sources;
use longhaul_softnic_udp::{UdpConfig, path};
use longhaul_verbs::Mtu;

use self::ends::End;
use self::namespace::Kind;
use self::orders::{Link, Order, Role, Settings};
use crate::error::PerfError;

pub use self::comparison::{Bandwidth, Comparison, Environment};
pub use self::end::run_end;
pub use self::namespace::Place;
pub use self::orders::{Outcome, Subject};

/// Each end cycles through buffers of this many bytes altogether: more than a processor's cache holds.
const BUFFER_BYTES: usize = 128 << 20;
/// How long a round is, at most.
const ROUND: Duration = Duration::from_millis(250);
/// There are at least this many rounds, so that a median means something.
const ROUNDS_MIN: u32 = 3;
/// The least that a link for IPv6 must carry (RFC 8200, 5): Linux turns IPv6 off on others.
const IPV6_MTU_MIN: u32 = 1280;
/// A first round that does not count, for buffers that have never been touched.
const WARM_UP: Duration = Duration::from_millis(60);

/// What is compared.
#[derive(Clone, Debug)]
pub struct CompareRequest {
    /// Of each measurement, divided into rounds.
    pub seconds: f64,
    /// The measurements, in the order in which they take turns.
    pub subjects: Vec<Subject>,
    /// Queue pairs of the measurement with many of them.
    pub queue_pairs: Option<u32>,
    /// Over IPv6.
    pub ipv6: bool,
    /// On the loopback device, even where namespaces could be made.
    pub loopback: bool,
    /// The arguments that make this program an end, before `--place` and the place: it must call [`run_end`].
    pub end_command: &'static [&'static str],
}

/// What happens while ends are compared.
#[derive(Clone, Debug)]
pub enum CompareEvent {
    /// Something that people should know.
    Note(String),
    /// All is prepared for this many rounds.
    Prepared(u64),
    /// A round begins.
    Begun(Subject),
    /// It has ended.
    Ended,
}

impl CompareRequest {
    /// Number and length of rounds.
    fn rounds(&self) -> (u32, Duration) {
        let count = ((self.seconds / ROUND.as_secs_f64()).ceil() as u32).max(ROUNDS_MIN);
        (count, Duration::from_secs_f64(self.seconds / f64::from(count)))
    }
}

/// The two ends and what lies between them.
struct Pair {
    sender: End,
    receiver: End,
    environment: Environment,
    sender_address: IpAddr,
    receiver_address: IpAddr,
}

impl Pair {
    /// In namespaces where that works, else on the loopback device with a remark.
    fn start(request: &CompareRequest, mtu: u32, tell: &mut dyn FnMut(CompareEvent)) -> Result<Pair, PerfError> {
        if !request.loopback {
            match Pair::in_namespaces(request, mtu) {
                Ok(pair) => return Ok(pair),
                Err(why) => {
                    let why = with_sources(&why);
                    tell(CompareEvent::Note(format!(
                        "no network namespaces here, so the loopback device is used, which is no network: {why}"
                    )));
                    let remedy =
                        "(as root, or where users may make user namespaces, and with the command `ip`, they are used)";
                    tell(CompareEvent::Note(remedy.to_owned()));
                }
            }
        }
        Pair::on_loopback(request)
    }

    fn in_namespaces(request: &CompareRequest, mtu: u32) -> Result<Pair, PerfError> {
        let mut receiver = End::start("receiver", request.end_command, Place::Own)?;
        let mut sender = End::start("sender", request.end_command, Place::NextTo(receiver.process))?;
        // Set aside for measurements (RFC 2544, RFC 5180); in namespaces of their own they disturb nobody anyway.
        let address = |last: u16| match request.ipv6 {
            true => IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, last)),
            false => IpAddr::V4(Ipv4Addr::new(198, 18, 0, last as u8)),
        };
        let (sender_address, receiver_address) = (address(1), address(2));
        let create_towards = Some(sender.process);
        receiver.have_done(&Order::Network(Link { create_towards, address: receiver_address, mtu }))?;
        sender.have_done(&Order::Network(Link { create_towards: None, address: sender_address, mtu }))?;
        let environment = match receiver.namespace {
            Kind::UserNetwork => Environment::UserNamespaces,
            _ => Environment::Namespaces,
        };
        Ok(Pair { sender, receiver, environment, sender_address, receiver_address })
    }

    fn on_loopback(request: &CompareRequest) -> Result<Pair, PerfError> {
        let receiver = End::start("receiver", request.end_command, Place::Host)?;
        let sender = End::start("sender", request.end_command, Place::Host)?;
        let (sender_address, receiver_address) = match request.ipv6 {
            true => (IpAddr::V6(Ipv6Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)),
            false => (IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2))),
        };
        Ok(Pair { sender, receiver, environment: Environment::Loopback, sender_address, receiver_address })
    }

    fn settings(&self, role: Role, payload: Mtu, queue_pairs: u32) -> Settings {
        let (address, peer) = match role {
            Role::Sender => (self.sender_address, self.receiver_address),
            Role::Receiver => (self.receiver_address, self.sender_address),
        };
        // What the software RNIC asks for by default.
        let udp = UdpConfig::default();
        Settings {
            role,
            address,
            peer,
            payload_bytes: payload.byte_count(),
            queue_pairs,
            buffer_bytes: BUFFER_BYTES,
            receive_buffer_bytes: udp.receive_buffer_bytes,
            send_buffer_bytes: udp.send_buffer_bytes,
        }
    }

    /// The receiver first: a sender connects to somebody who is there.
    fn prepare(&mut self, subject: Subject, payload: Mtu, queue_pairs: u32) -> Result<(), PerfError> {
        let settings = self.settings(Role::Receiver, payload, queue_pairs);
        let receiver = self.receiver.prepare(&Order::Prepare(subject, settings))?;
        let settings = self.settings(Role::Sender, payload, queue_pairs);
        let sender = self.sender.prepare(&Order::Prepare(subject, settings))?;
        self.sender.have_done(&Order::Connect(subject, receiver))?;
        self.receiver.have_done(&Order::Connect(subject, sender))
    }

    /// What the sender and the receiver saw.
    fn round(&mut self, subject: Subject, duration: Duration) -> Result<(Outcome, Outcome), PerfError> {
        let milliseconds = duration.as_millis() as u64;
        self.receiver.order(&Order::Run { subject, milliseconds })?;
        self.receiver.running()?;
        self.sender.order(&Order::Run { subject, milliseconds })?;
        let sent = self.sender.outcome()?;
        self.receiver.order(&Order::Stop)?;
        Ok((sent, self.receiver.outcome()?))
    }
}

/// Compares at one MTU of the link.
pub fn compare(
    request: &CompareRequest,
    mtu: u32,
    tell: &mut dyn FnMut(CompareEvent),
) -> Result<Comparison, PerfError> {
    let payload = path::largest_mtu(mtu, request.ipv6).ok_or_else(|| {
        let least = 256 + path::header_bytes_max(request.ipv6);
        PerfError::Request(format!("--mtu {mtu} is too small for RoCE: use at least {least}"))
    })?;
    if request.ipv6 && mtu < IPV6_MTU_MIN {
        return Err(PerfError::Request(format!("--mtu {mtu} is too small for IPv6: use at least {IPV6_MTU_MIN}")));
    }
    let mut pair = Pair::start(request, mtu, tell)?;
    for &subject in &request.subjects {
        pair.prepare(subject, payload, request.queue_pairs.unwrap_or(1))?;
        pair.round(subject, WARM_UP)?;
    }
    let (rounds, duration) = request.rounds();
    let mut comparison = Comparison::new(pair.environment, mtu, payload.byte_count(), request.seconds, rounds);
    comparison.queue_pairs = request.queue_pairs;
    tell(CompareEvent::Prepared(u64::from(rounds) * request.subjects.len() as u64));
    for _ in 0..rounds {
        for &subject in &request.subjects {
            tell(CompareEvent::Begun(subject));
            let (sent, received) = pair.round(subject, duration)?;
            comparison.add(subject, sent, received);
            tell(CompareEvent::Ended);
        }
    }
    Ok(comparison)
}
