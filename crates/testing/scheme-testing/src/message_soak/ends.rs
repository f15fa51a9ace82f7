//! Hosts, and the ends of connections on them.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;

use longhaul_reliable::{Attributes, Connection, Scheme, scheme_named};
use longhaul_runtime::{End as ConnectionEnd, Letterbox, Panicked, Shared};
use longhaul_sdr::info::QueuePairInfo;
use longhaul_sdr::{Context, ContextAttributes, CreateQueuePairError, Memory, QueuePair, QueuePairAttributes};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::Mtu;
use longhaul_world::World;

use super::contents::{Label, UNTOUCHED};
use super::driver::{VirtualClock, VirtualDriver};
use super::plan::{ConnectionPlan, MTU, MessagePlan};

/// Bytes between the places of messages, which nobody may write.
pub(super) const GAP: usize = 24;
/// Completions that the channel of a host has room for.
const COMPLETIONS: u32 = 1 << 17;
/// The UDP port of all devices.
const UDP_PORT: u16 = 4791;
/// The peer must be heard within this while something is pending. No fault takes as long, so no end may lose an honest
/// peer that is there.
const SILENCE_MAX: Duration = Duration::from_secs(25);

/// Makes a queue pair; tests put mistakes into it here.
pub type MakeQueuePair = fn(&Context, &QueuePairAttributes) -> Result<QueuePair, CreateQueuePairError>;
/// Makes a connection; tests put mistakes into it here.
pub type MakeConnection = fn(QueuePair, Arc<dyn Scheme>, Attributes) -> Connection;
/// Has a connection driven; tests put mistakes into that here.
pub type StartConnection = fn(Connection, Arc<dyn Letterbox>, Duration, SocketAddr) -> Arc<Shared>;

/// A host: what its connections share.
pub(super) struct Host {
    /// Of connections with a scheme.
    pub(super) driver: VirtualDriver,
    /// Of those without.
    pub(super) context: Context,
    /// Switched off.
    pub(super) is_down: bool,
    /// How many faults keep its program from running.
    pub(super) stops: u32,
}

impl Host {
    pub(super) fn new(world: &World, node: usize, clock: &VirtualClock) -> Self {
        let mut attributes = ContextAttributes::default();
        attributes.completions = COMPLETIONS;
        let context = Context::create(&world.device(node), &attributes).expect("a new device has room");
        Host { driver: VirtualDriver::new(world, node, clock), context, is_down: false, stops: 0 }
    }

    pub(super) fn runs(&self) -> bool {
        !self.is_down && self.stops == 0
    }
}

/// One end of a connection.
pub(super) struct End {
    pub(super) carrier: Carrier,
    /// What its peer gets.
    pub(super) info: QueuePairInfo,
    pub(super) memory: Memory,
    /// Messages that had ended when the program looked last.
    pub(super) seen_over: Option<u64>,
    /// It says that it can do nothing more.
    pub(super) has_failed: bool,
    /// Halves of messages that were posted here.
    pub(super) posted: u64,
    /// The program has closed it.
    pub(super) is_closing: bool,
}

/// What carries its messages.
pub(super) enum Carrier {
    /// A connection of the runtime.
    Scheme(Arc<Shared>),
    /// `sdr` alone.
    Plain(QueuePair),
}

/// Why an end can do nothing more.
pub(super) struct Failure {
    pub(super) text: String,
    /// Whatever the peer did, this must not happen.
    pub(super) is_panic: bool,
}

impl Carrier {
    /// Look at the queue pair; `None` when the connection has ended.
    pub(super) fn look<T>(&self, look: impl FnOnce(&QueuePair) -> T) -> Option<T> {
        match self {
            Carrier::Scheme(shared) => shared.look_at(|connection| look(connection.queue_pair())),
            Carrier::Plain(queue_pair) => Some(look(queue_pair)),
        }
    }

    /// Messages that have ended, where they are counted.
    pub(super) fn over_count(&self) -> Option<u64> {
        match self {
            Carrier::Scheme(shared) => shared.look_at(Connection::over_count),
            Carrier::Plain(_) => None,
        }
    }

    /// Do what is due, unless the host's driver does; why it has failed, if it has.
    pub(super) fn poll(&self, now: Instant, is_closing: bool) -> Result<(), Failure> {
        match self {
            Carrier::Scheme(shared) => match shared.end() {
                Some(ConnectionEnd::Failed(error)) => Err(Failure {
                    text: longhaul_runtime::with_sources(&*error),
                    is_panic: error.downcast_ref::<Panicked>().is_some(),
                }),
                Some(end) if !is_closing => {
                    Err(Failure { text: format!("it has ended, and nobody closed it: {end:?}"), is_panic: false })
                }
                _ => Ok(()),
            },
            Carrier::Plain(queue_pair) => queue_pair
                .poll(now)
                .map_err(|error| Failure { text: longhaul_runtime::with_sources(&error), is_panic: false }),
        }
    }

    /// When it must be polled, unless the host's driver knows.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match self {
            Carrier::Scheme(_) => None,
            Carrier::Plain(queue_pair) => queue_pair.next_deadline(),
        }
    }

    fn begin_close(&self) {
        if let Carrier::Scheme(shared) = self {
            shared.close(Box::new(|| {}));
        }
    }

    /// Whether it has ended, by itself or because it was closed. Without a scheme there is nothing to wait for.
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Carrier::Scheme(shared) => shared.is_let_go(),
            Carrier::Plain(_) => true,
        }
    }
}

impl End {
    /// Close it, as a program does that has no more use for it.
    pub(super) fn close(&mut self) {
        if !std::mem::replace(&mut self.is_closing, true) {
            self.carrier.begin_close();
        }
    }
}

/// Where each message lies in the memory of an end.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    pub(super) ranges: Vec<Option<Range<usize>>>,
    pub(super) memory_bytes: usize,
}

impl Places {
    /// Of the messages that end `end` of a connection sends or receives.
    pub(super) fn new(messages: &[MessagePlan], connection: usize, end: usize) -> Self {
        let mut start = GAP;
        let place = |message: &MessagePlan| {
            let length = if message.from == end { message.bytes } else { message.room };
            let range = start..start + length;
            start += length + GAP;
            range
        };
        let own = messages.iter();
        let mut place = place;
        let ranges = own.map(|message| (message.connection == connection).then(|| place(message))).collect();
        Places { ranges, memory_bytes: start }
    }

    /// What lies between messages.
    pub(super) fn gaps(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.ranges.iter().flatten().map(|range| range.start - GAP..range.start)
    }
}

/// What ends are made with in addition to their plan.
#[derive(Clone, Copy)]
pub(super) struct Makers {
    pub(super) queue_pair: MakeQueuePair,
    pub(super) connection: MakeConnection,
    pub(super) start: StartConnection,
}

/// A life of a connection: both ends, connected.
pub(super) fn connect(
    world: &World,
    hosts: &[Host],
    plan: &ConnectionPlan,
    places: &[Places; 2],
    random: u64,
    round_trip: Duration,
    makers: &Makers,
) -> [End; 2] {
    let queue_pairs = [0, 1].map(|end| {
        let (node, host) = (plan.nodes[end], &hosts[plan.nodes[end]]);
        let mut attributes = QueuePairAttributes::new(world.gid(node), UDP_PORT, Mtu::Bytes256);
        attributes.chunk_bytes = plan.chunk_packets * MTU as u32;
        attributes.message_bytes_max = plan.part_packets * MTU as u64;
        attributes.layout = plan.layout;
        attributes.generations = plan.generations;
        attributes.receive_depth = plan.receive_depth;
        // Whatever liars announce then reaches who grants; without a scheme there is nobody.
        attributes.grants_credit = plan.schemes.is_some();
        let is_credited = plan.schemes.is_some() && random.is_multiple_of(5);
        attributes.congestion = is_credited.then(|| "credit".parse().expect("a controller"));
        attributes.send_depth = 64;
        attributes.rate_bits_per_second = plan.rate_bits_per_second;
        attributes.first_number = plan.first_number;
        attributes.round_trip_guess =
            if random.is_multiple_of(2) { 4 * round_trip } else { attributes.round_trip_guess };
        attributes.random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20 + end as u32);
        let VirtualDriver { assembly, events, .. } = &host.driver;
        let context = match plan.schemes {
            None => host.context.clone(),
            Some(_) => {
                assembly.create_context(assembly.next_id(), Some(events), 1, &attributes).expect("a host has room")
            }
        };
        (makers.queue_pair)(&context, &attributes).expect("a host has room")
    });
    // As bytes, as they would travel.
    let infos = queue_pairs.each_ref().map(|queue_pair| {
        let bytes = queue_pair.info().to_bytes();
        QueuePairInfo::from_bytes(&bytes).expect("an info is read as it was written")
    });
    let mut end = 0;
    queue_pairs.map(|queue_pair| {
        let (own, peer, host) = (infos[end].clone(), &infos[1 - end], &hosts[plan.nodes[end]]);
        let shown = if plan.hides_ports { without_ports(peer) } else { peer.clone() };
        queue_pair.connect(&shown).expect("both ends were made alike");
        let memory = queue_pair.context().register(vec![UNTOUCHED; places[end].memory_bytes]);
        let carrier = match plan.schemes {
            None => Carrier::Plain(queue_pair),
            Some(names) => {
                let scheme = scheme_named(names[end].parse().expect("a scheme of ours"));
                let mut attributes = Attributes::default();
                attributes.message_timeout = plan.timeout;
                let connection = (makers.connection)(queue_pair, scheme, attributes);
                let peer = SocketAddr::new(peer.gid.to_ip(), peer.udp_port);
                Carrier::Scheme((makers.start)(connection, host.driver.mailbox.clone(), SILENCE_MAX, peer))
            }
        };
        end += 1;
        let memory = memory.expect("a host has memory");
        End { carrier, info: own, memory, seen_over: None, has_failed: false, posted: 0, is_closing: false }
    })
}

/// The info of a device that does not show its source ports.
fn without_ports(info: &QueuePairInfo) -> QueuePairInfo {
    QueuePairInfo { source_ports: Vec::new(), ..info.clone() }
}

/// Write a message where it is sent from.
pub(super) fn fill(memory: &Memory, range: Range<usize>, label: Label) {
    label.fill(&mut memory.write(range).expect("nobody uses it yet"));
}
