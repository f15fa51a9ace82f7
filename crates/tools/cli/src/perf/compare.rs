//! `longhaul perf compare`: both ends on this host, measured next to the limit.
//!
//! The coordinator, this process, starts two ends (`end`) in two network namespaces joined by a veth (`namespace`) and
//! gives them orders (`orders`, `ends`). A round is a fraction of a second of one measurement; all take turns, again
//! and again, so that whatever else happens on the machine hits all alike. The median of the rounds counts.

mod bare_udp;
mod end;
mod ends;
mod facade;
mod namespace;
mod orders;
mod report;
mod scheme;
mod softnic;
mod stopwatch;
mod tcp;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use longhaul_softnic_udp::{UdpConfig, path};
use longhaul_verbs::Mtu;

use self::ends::End;
use self::namespace::{Kind, Place};
use self::orders::{Link, Order, Outcome, Role, Settings, Subject};
use self::report::{Comparison, Environment};
use crate::stop::Stop;

pub(crate) use self::end::{EndArguments, run_end};

/// Bytes of a message.
const MESSAGE_BYTES: usize = 1 << 20;
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

/// Run both ends on this host and compare with bare UDP and TCP
///
/// The ends are two processes in two network namespaces joined by a veth; without root, in user namespaces; where
/// neither is allowed, on the loopback device, and the report says so. Throughput: bare UDP with segmentation offload
/// (the limit: same packet size, socket buffers and bytes per call, counted as payload that arrived), kernel TCP, UC
/// and RC WRITEs of 1 MiB through the software RNIC, and messages of 16 MiB through the library with selective repeat
/// (sdr-sr) and erasure coding (sdr-ec: parity on its own threads; sdr-ec-inline: on the threads that send and
/// receive). One-way latency: bare UDP datagrams, RC SENDs of 2 bytes and messages of 64 bytes through the library
/// (facade), polling, and both again with sleeping threads (rc_send_events, facade_sleeping). Each end cycles through
/// 128 MiB of buffers; UC and the schemes keep 3 MiB in flight. The measurements are interleaved in short rounds, and
/// the median round counts.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Seconds per measurement, divided into rounds
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0, value_parser = longhaul_units::seconds_within(0.1..=3600.0))]
    seconds: f64,

    /// MTU of the link in bytes; several, separated by commas, run one after another
    #[arg(long, value_name = "BYTES", default_value = "4200", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(576..=65_535))]
    mtu: Vec<u32>,

    /// Run only these measurements
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_enum)]
    only: Vec<Only>,

    /// Also measure RC WRITEs of 64 KiB on this many queue pairs at the same time
    #[arg(short, long = "qp", visible_alias = "qps", value_name = "NUMBER",
          value_parser = clap::value_parser!(u32).range(2..=1 << 18))]
    queue_pairs: Option<u32>,

    /// Use IPv6
    #[arg(long)]
    ipv6: bool,

    /// Use the loopback device, even where namespaces could be made
    #[arg(long)]
    loopback: bool,

    /// Also print what each end spends on a packet and on a byte
    #[arg(long)]
    costs: bool,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// What `--only` can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Only {
    BareUdp,
    Tcp,
    UcWrite,
    RcWrite,
    /// RC READs of 1 MiB; only when named
    RcRead,
    /// Messages of 16 MiB with selective repeat
    SdrSr,
    /// Messages of 16 MiB with erasure coding
    SdrEc,
    /// The same, coded on the threads that drive the connection
    SdrEcInline,
    Latency,
}

impl Arguments {
    fn subjects(&self) -> Vec<Subject> {
        let is_wanted = |subject: &Subject| {
            let name = match subject {
                Subject::BareUdp => Only::BareUdp,
                Subject::Tcp => Only::Tcp,
                Subject::UcWrite => Only::UcWrite,
                Subject::RcWrite => Only::RcWrite,
                Subject::RcWriteMany => return self.queue_pairs.is_some(),
                Subject::RcRead => return self.only.contains(&Only::RcRead),
                Subject::SdrSelectiveRepeat => Only::SdrSr,
                Subject::SdrErasure => Only::SdrEc,
                Subject::SdrErasureInline => Only::SdrEcInline,
                Subject::BareUdpPingPong
                | Subject::RcSendPingPong
                | Subject::RcSendEvents
                | Subject::FacadePingPong
                | Subject::FacadeSleeping => Only::Latency,
            };
            self.only.is_empty() || self.only.contains(&name)
        };
        Subject::BANDWIDTH.into_iter().chain(Subject::LATENCY).filter(is_wanted).collect()
    }

    /// Number and length of rounds.
    fn rounds(&self) -> (u32, Duration) {
        let count = ((self.seconds / ROUND.as_secs_f64()).ceil() as u32).max(ROUNDS_MIN);
        (count, Duration::from_secs_f64(self.seconds / f64::from(count)))
    }
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let mut comparisons = Vec::new();
    for &mtu in &arguments.mtu {
        let comparison = compare(arguments, mtu)?;
        if !arguments.json {
            let separator = if comparisons.is_empty() { "" } else { "\n" };
            print!("{separator}{}", report::to_table(&comparison, arguments.costs));
        }
        comparisons.push(comparison);
    }
    if arguments.json {
        println!("{}", report::to_json(&comparisons));
    }
    Ok(())
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
    fn start(arguments: &Arguments, mtu: u32) -> Result<Pair, Stop> {
        if !arguments.loopback {
            match Pair::in_namespaces(arguments.ipv6, mtu) {
                Ok(pair) => return Ok(pair),
                Err(why) => {
                    eprintln!("no network namespaces here, so the loopback device is used, which is no network: {why}");
                    eprintln!(
                        "(as root, or where users may make user namespaces, and with the command `ip`, they are used)"
                    );
                }
            }
        }
        Pair::on_loopback(arguments.ipv6)
    }

    fn in_namespaces(ipv6: bool, mtu: u32) -> Result<Pair, Stop> {
        let mut receiver = End::start("receiver", Place::Own)?;
        let mut sender = End::start("sender", Place::Beside(receiver.process))?;
        // Set aside for measurements (RFC 2544, RFC 5180); in namespaces of their own they disturb nobody anyway.
        let address = |last: u16| match ipv6 {
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

    fn on_loopback(ipv6: bool) -> Result<Pair, Stop> {
        let receiver = End::start("receiver", Place::Host)?;
        let sender = End::start("sender", Place::Host)?;
        let (sender_address, receiver_address) = match ipv6 {
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
    fn prepare(&mut self, subject: Subject, payload: Mtu, queue_pairs: u32) -> Result<(), Stop> {
        let settings = self.settings(Role::Receiver, payload, queue_pairs);
        let receiver = self.receiver.prepare(&Order::Prepare(subject, settings))?;
        let settings = self.settings(Role::Sender, payload, queue_pairs);
        let sender = self.sender.prepare(&Order::Prepare(subject, settings))?;
        self.sender.have_done(&Order::Connect(subject, receiver))?;
        self.receiver.have_done(&Order::Connect(subject, sender))
    }

    /// What the sender and the receiver saw.
    fn round(&mut self, subject: Subject, duration: Duration) -> Result<(Outcome, Outcome), Stop> {
        let milliseconds = duration.as_millis() as u64;
        self.receiver.order(&Order::Run { subject, milliseconds })?;
        self.receiver.running()?;
        self.sender.order(&Order::Run { subject, milliseconds })?;
        let sent = self.sender.outcome()?;
        self.receiver.order(&Order::Stop)?;
        Ok((sent, self.receiver.outcome()?))
    }
}

fn compare(arguments: &Arguments, mtu: u32) -> Result<Comparison, Stop> {
    let payload = path::largest_mtu(mtu, arguments.ipv6).ok_or_else(|| {
        let least = 256 + path::header_bytes_max(arguments.ipv6);
        Stop::Usage(format!("--mtu {mtu} is too small for RoCE: use at least {least}"))
    })?;
    if arguments.ipv6 && mtu < IPV6_MTU_MIN {
        return Err(Stop::Usage(format!("--mtu {mtu} is too small for IPv6: use at least {IPV6_MTU_MIN}")));
    }
    let mut pair = Pair::start(arguments, mtu)?;
    let subjects = arguments.subjects();
    for &subject in &subjects {
        pair.prepare(subject, payload, arguments.queue_pairs.unwrap_or(1))?;
        pair.round(subject, WARM_UP)?;
    }
    let (rounds, duration) = arguments.rounds();
    let mut comparison = Comparison::new(pair.environment, mtu, payload.byte_count(), arguments.seconds, rounds);
    comparison.queue_pairs = arguments.queue_pairs;
    // On standard error, and only when that is a terminal.
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} rounds, {msg}").expect("a valid template");
    let progress = ProgressBar::new(u64::from(rounds) * subjects.len() as u64).with_style(style);
    for _ in 0..rounds {
        for &subject in &subjects {
            progress.set_message(format!("{} at MTU {mtu}", subject.name()));
            let (sent, received) = pair.round(subject, duration)?;
            comparison.add(subject, sent, received);
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    Ok(comparison)
}
