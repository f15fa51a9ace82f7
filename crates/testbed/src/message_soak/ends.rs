//! Hosts, and the ends of connections on them.

use std::ops::Range;
use std::sync::Arc;

use longhaul_reliable::{Attributes, Connection, Scheme, scheme_named};
use longhaul_sdr::info::QueuePairInfo;
use longhaul_sdr::{Context, ContextAttributes, CreateQueuePairError, Memory, QueuePair, QueuePairAttributes};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::Mtu;

use super::contents::{Label, UNTOUCHED};
use super::plan::{ConnectionPlan, MTU, MessagePlan};
use crate::world::World;

/// Bytes between the places of messages, which nobody may write.
pub(super) const GAP: usize = 24;
/// Completions that the channel of a host has room for.
const COMPLETIONS: u32 = 1 << 17;

/// Makes a queue pair; tests put mistakes into it here.
pub type MakeQueuePair = fn(&Context, &QueuePairAttributes) -> Result<QueuePair, CreateQueuePairError>;
/// Makes a connection; tests put mistakes into it here.
pub type MakeConnection = fn(QueuePair, Arc<dyn Scheme>, Attributes) -> Connection;

/// A host: what its connections share.
pub(super) struct Host {
    pub(super) context: Context,
    /// Switched off.
    pub(super) is_down: bool,
    /// How many faults keep its program from running.
    pub(super) stops: u32,
}

impl Host {
    pub(super) fn new(world: &World, node: usize) -> Self {
        let mut attributes = ContextAttributes::default();
        attributes.completions = COMPLETIONS;
        let context = Context::create(&world.device(node), &attributes).expect("a new device has room");
        Host { context, is_down: false, stops: 0 }
    }

    pub(super) fn runs(&self) -> bool {
        !self.is_down && self.stops == 0
    }
}

/// One end of a connection.
pub(super) struct End {
    pub(super) carrier: Carrier,
    pub(super) memory: Memory,
    /// Messages that were over when the program looked last.
    pub(super) seen_over: u64,
    /// It says that it can do nothing more.
    pub(super) has_failed: bool,
    /// Halves of messages that were posted here.
    pub(super) posted: u64,
}

/// What carries its messages.
pub(super) enum Carrier {
    Scheme(Box<Connection>),
    /// `sdr` alone.
    Plain(QueuePair),
}

impl Carrier {
    pub(super) fn queue_pair(&self) -> &QueuePair {
        match self {
            Carrier::Scheme(connection) => connection.queue_pair(),
            Carrier::Plain(queue_pair) => queue_pair,
        }
    }

    /// Do what is due; why it has failed, if it has.
    pub(super) fn poll(&mut self, now: Instant) -> Result<(), String> {
        match self {
            Carrier::Scheme(connection) => {
                connection.poll(now).map_err(|error| crate::error_text::with_sources(&*error))
            }
            Carrier::Plain(queue_pair) => queue_pair.poll(now).map_err(|error| crate::error_text::with_sources(&error)),
        }
    }

    pub(super) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        match self {
            Carrier::Scheme(connection) => connection.next_deadline(now),
            Carrier::Plain(queue_pair) => queue_pair.next_deadline(),
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

/// What ends are made with besides their plan.
#[derive(Clone, Copy)]
pub(super) struct Makers {
    pub(super) queue_pair: MakeQueuePair,
    pub(super) connection: MakeConnection,
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
    let ends = [0, 1].map(|end| {
        let (node, host) = (plan.nodes[end], &hosts[plan.nodes[end]]);
        let mut attributes = QueuePairAttributes::new(world.gid(node), 4791, Mtu::Bytes256);
        attributes.chunk_bytes = plan.chunk_packets * MTU as u32;
        attributes.message_bytes_max = plan.part_packets * MTU as u64;
        attributes.layout = plan.layout;
        attributes.generations = plan.generations;
        attributes.receive_depth = plan.receive_depth;
        attributes.send_depth = 64;
        attributes.rate_bits_per_second = plan.rate_bits_per_second;
        attributes.first_number = plan.first_number;
        attributes.round_trip_guess =
            if random.is_multiple_of(2) { 4 * round_trip } else { attributes.round_trip_guess };
        attributes.random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(20 + end as u32);
        let queue_pair = (makers.queue_pair)(&host.context, &attributes).expect("a host has room");
        let memory = host.context.register(vec![UNTOUCHED; places[end].memory_bytes]).expect("a host has memory");
        let carrier = match plan.schemes {
            None => Carrier::Plain(queue_pair),
            Some(names) => {
                let scheme = scheme_named(names[end].parse().expect("a scheme of ours"));
                let mut attributes = Attributes::default();
                attributes.message_timeout = plan.timeout;
                Carrier::Scheme(Box::new((makers.connection)(queue_pair, scheme, attributes)))
            }
        };
        End { carrier, memory, seen_over: 0, has_failed: false, posted: 0 }
    });
    // As bytes, as they would travel.
    let infos = ends.each_ref().map(|end| {
        let bytes = end.carrier.queue_pair().info().to_bytes();
        QueuePairInfo::from_bytes(&bytes).expect("an info is read as it was written")
    });
    for end in 0..2 {
        let info = match plan.hides_ports {
            true => without_ports(&infos[1 - end]),
            false => infos[1 - end].clone(),
        };
        ends[end].carrier.queue_pair().connect(&info).expect("both ends were made alike");
    }
    ends
}

/// The info of a device that does not show its source ports.
fn without_ports(info: &QueuePairInfo) -> QueuePairInfo {
    QueuePairInfo { source_ports: Vec::new(), ..info.clone() }
}

/// Write a message where it is sent from.
pub(super) fn fill(memory: &Memory, range: Range<usize>, label: Label) {
    label.fill(&mut memory.write(range).expect("nobody uses it yet"));
}
