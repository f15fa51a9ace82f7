//! What a seed is about: drawn once, before anything runs.
//!
//! Each seed switches some features off altogether (swarm testing): a run without losses can be held to stricter rules,
//! and a run without mistakes keeps its connections long enough to wrap queues around.

use longhaul_impair::{EcnMarking, Loss, Profile};
use longhaul_shim::BlockCode;
use longhaul_softnic::Config;
use longhaul_time::Duration;
use longhaul_verbs::{Mtu, QueuePairLimits, Transport};
use longhaul_world::{Dice, Topology};

use super::fault_plan::{FaultPlan, hop_count};
use crate::checker::NetworkFacts;

/// Who has completion queues of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompletionQueueSharing {
    /// One for everything on a node.
    Node,
    /// One for sends and one for receives on each node.
    NodeAndDirection,
    /// Two for each queue pair.
    QueuePair,
}

/// Two queue pairs that are connected, or two that send each other datagrams.
#[derive(Clone, Debug)]
pub(super) struct PairPlan {
    pub(super) transport: Transport,
    pub(super) nodes: [usize; 2],
    pub(super) mtu: Mtu,
    pub(super) limits: QueuePairLimits,
    pub(super) signals_all: bool,
    /// RC: 4.096 µs · 2^n.
    pub(super) timeout: u8,
    pub(super) retry_count: u8,
    pub(super) receiver_not_ready_retry: u8,
    pub(super) receiver_not_ready_timer: u8,
    /// RC: READs and atomics in flight, in each direction.
    pub(super) read_atomic_max: u8,
    pub(super) first_psn: [u32; 2],
    /// Row of the GID tables: IPv4 or IPv6.
    pub(super) gid_index: u8,
}

/// The plan of one seed.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) node_count: usize,
    pub(super) topology: Topology,
    pub(super) faults: FaultPlan,
    pub(super) link: Profile,
    pub(super) network: NetworkFacts,
    pub(super) pairs: Vec<PairPlan>,
    pub(super) sharing: CompletionQueueSharing,
    /// The longest message in bytes.
    pub(super) message_bytes_max: usize,
    /// Receives are posted late.
    pub(super) has_late_receives: bool,
    /// Percent of requests with a mistake.
    pub(super) mistake_percent: u32,
    /// Percent of steps that revoke a key.
    pub(super) revocation_percent: u32,
    /// Percent of steps that break a connection and make it anew.
    pub(super) reconnect_percent: u32,
    /// Reliable queue pairs of a node share their receives.
    pub(super) has_shared_receives: bool,
    /// Windows are bound, used and ended.
    pub(super) has_windows: bool,
    /// Slots are bound, used and unbound.
    pub(super) has_slots: bool,
    /// Percent of requests without a completion.
    pub(super) unsignaled_percent: u32,
    /// The longest time between two steps.
    pub(super) pause_max: Duration,
    /// From one end to the other, at worst, as far as the profile says.
    pub(super) transit_max: Duration,
    /// Of the forward error correction that protects connections.
    pub(super) code: Option<BlockCode>,
    window_packets_max: u32,
    acknowledge_packets: u32,
    turn_packets: u32,
}

impl Plan {
    pub(super) fn draw(seed: u64) -> Plan {
        let dice = &mut Dice::new(seed ^ 0x706c_616e);
        let node_count = dice.pick(&[2, 2, 2, 3, 4]);
        let link = draw_link(dice);
        // Most runs have the simplest network, in which more gets done.
        let topology = match dice.within(0..=9) {
            0..=5 => Topology::PairOrStar,
            6 => Topology::Star,
            7..=8 => Topology::Clos { leaf_count: 2, spine_count: dice.within(1..=3) as usize },
            _ => Topology::FatTree { arity: 4 },
        };
        let faults = FaultPlan::draw(dice, topology);
        let transit_max = transit_max(&link, hop_count(topology));
        let mut network = NetworkFacts {
            loses: link.loss != Loss::None || link.corruption.probability > 0.0 || link.rate_bits_per_second.is_some(),
            reorders: link.reordering.probability > 0.0
                || link.jitter.delay_max > Duration::ZERO && !link.jitter.keeps_order,
            duplicates: link.duplication_probability > 0.0,
            is_slow: false,
        };
        // Sequence errors count as retries, so a network that reorders can use them up.
        network.loses |= network.reorders;
        faults.add_to(&mut network);
        let pair_count = dice.within(1..=5) as usize;
        let pairs = (0..pair_count).map(|index| draw_pair(dice, index, node_count, transit_max)).collect();
        let has_failures = dice.chance(60);
        Plan {
            node_count,
            topology,
            faults,
            network,
            pairs,
            sharing: dice.pick(&[
                CompletionQueueSharing::Node,
                CompletionQueueSharing::NodeAndDirection,
                CompletionQueueSharing::QueuePair,
            ]),
            message_bytes_max: dice.pick(&[512, 4096, 16 << 10, 32 << 10]),
            has_late_receives: dice.chance(40),
            mistake_percent: if has_failures { dice.pick(&[0, 2, 5]) } else { 0 },
            revocation_percent: if has_failures { dice.pick(&[0, 2, 5]) } else { 0 },
            reconnect_percent: if has_failures { dice.pick(&[0, 1, 2]) } else { 0 },
            has_shared_receives: dice.chance(25),
            has_windows: dice.chance(40),
            has_slots: dice.chance(40),
            unsignaled_percent: dice.pick(&[0, 30, 80]),
            pause_max: (transit_max / dice.pick(&[1, 4, 16])).max(Duration::from_micros(2)),
            transit_max,
            code: None,
            window_packets_max: dice.pick(&[4, 32, 1 << 16]),
            acknowledge_packets: dice.pick(&[1, 4, 64]),
            turn_packets: dice.pick(&[1, 4, 16]),
            link,
        }
    }

    /// The same with forward error correction, for which packets wait at both ends.
    pub(super) fn protected(mut self, shim: &longhaul_shim::Config) -> Plan {
        self.code = Some(shim.code);
        self.transit_max += shim.timeout;
        let safe_timeout = safe_timeout(self.transit_max);
        self.pairs.iter_mut().for_each(|pair| pair.timeout = pair.timeout.max(safe_timeout));
        self
    }

    /// The same for real time, which is not to be had for nothing: short delays, and time-outs that a busy host keeps.
    pub(super) fn on_real_time(mut self, address_count: usize) -> Plan {
        let delay_max = Duration::from_micros(200);
        let link = &mut self.link;
        link.propagation_delay = link.propagation_delay.min(delay_max);
        link.jitter.delay_max = link.jitter.delay_max.min(delay_max);
        link.reordering.extra_delay = link.reordering.extra_delay.min(4 * delay_max);
        link.queue_limit_bytes = link.queue_limit_bytes.min(256 << 10);
        self.transit_max = transit_max(link, 2);
        self.faults = FaultPlan::default();
        self.pause_max = self.pause_max.min(2 * delay_max);
        // A socket's buffer may be full, and nobody promises to run a thread in time.
        self.network.loses = true;
        self.network.is_slow = true;
        let has_shared_receives = self.has_shared_receives;
        for pair in &mut self.pairs {
            if has_shared_receives {
                // Others may take what was posted for it, and nobody promises to post more in time.
                pair.receiver_not_ready_retry = 7;
            }
            // 17 to 67 ms.
            pair.timeout = 12 + pair.timeout % 3;
            pair.gid_index %= address_count as u8;
        }
        self
    }

    /// A link without faults, for the second phase.
    pub(super) fn healed_link(&self) -> Profile {
        Profile::default().with_propagation_delay(self.link.propagation_delay.min(Duration::from_micros(100)))
    }

    /// The devices' own choices: small windows and sparse acknowledgements reach more of their code.
    pub(super) fn configure(&self, nic: &mut Config) {
        nic.window_packets_max = self.window_packets_max;
        nic.acknowledge_packets = self.acknowledge_packets;
        nic.turn_packets = self.turn_packets;
    }

    /// The longest acknowledgement time-out.
    pub(super) fn timeout_max(&self) -> Duration {
        self.pairs.iter().map(PairPlan::acknowledge_timeout).max().unwrap_or(Duration::ZERO)
    }
}

impl PairPlan {
    /// RC: silence for so long is a time-out.
    pub(super) fn acknowledge_timeout(&self) -> Duration {
        Duration::from_nanos(4096 << self.timeout)
    }
}

fn draw_link(dice: &mut Dice) -> Profile {
    let delay_us = dice.pick(&[1, 5, 20, 100, 1000, 5000]);
    let delay = Duration::from_micros(delay_us);
    let mut link = Profile::default().with_propagation_delay(delay);
    link.loss = match dice.within(0..=9) {
        0..=2 => Loss::None,
        3..=7 => Loss::Independent { probability: dice.fraction(0.1) },
        _ => Loss::bursts(0.001 + dice.fraction(0.04), dice.within(2..=8) as f64),
    };
    if dice.chance(40) {
        let extra_us = dice.within(1..=4 * delay_us);
        link = link.with_reordering(dice.fraction(0.1), Duration::from_micros(extra_us));
    }
    if dice.chance(40) {
        link = link.with_duplication(dice.fraction(0.1));
    }
    if dice.chance(30) {
        link = link.with_corruption(dice.fraction(0.05), dice.within(1..=6) as u8);
    }
    if dice.chance(20) {
        link = link.with_jitter(Duration::from_micros(dice.within(1..=delay_us)), dice.chance(50));
    }
    if dice.chance(30) {
        let rate = dice.pick(&[1_000_000_000, 10_000_000_000, 100_000_000_000]);
        let queue_limit_bytes = dice.pick(&[16 << 10, 64 << 10, 1 << 20]);
        link = link
            .with_rate_bits_per_second(rate)
            .with_queue_limit_bytes(queue_limit_bytes)
            .with_overhead_bytes_per_packet(38);
        if dice.chance(50) {
            link = link.with_ecn(EcnMarking::Step { threshold_bytes: queue_limit_bytes / 4 });
        }
    }
    link
}

/// Over this number of links.
fn transit_max(link: &Profile, hop_count: u32) -> Duration {
    let reordering = if link.reordering.probability > 0.0 { link.reordering.extra_delay } else { Duration::ZERO };
    let queue = link
        .rate_bits_per_second
        .map_or(Duration::ZERO, |rate| Duration::from_nanos(link.queue_limit_bytes * 8 * 1_000_000_000 / rate));
    hop_count * (link.propagation_delay + link.jitter.delay_max + reordering + queue)
}

fn draw_pair(dice: &mut Dice, index: usize, node_count: usize, transit_max: Duration) -> PairPlan {
    // The first three pairs of a seed are of different transports.
    let transport = Transport::ALL[(dice.index(2) * 2 + index) % 3];
    let first = dice.index(node_count);
    let second = (first + 1 + dice.index(node_count - 1)) % node_count;
    let depth = dice.pick(&[4, 16, 64]);
    PairPlan {
        transport,
        nodes: [first, second],
        mtu: dice.pick(&Mtu::ALL),
        limits: QueuePairLimits {
            send_requests: depth,
            receive_requests: dice.pick(&[4, 16, 64]),
            send_entries: dice.within(1..=4) as u32,
            receive_entries: dice.within(1..=4) as u32,
            inline_bytes: dice.pick(&[0, 16, 64]),
        },
        signals_all: dice.chance(15),
        timeout: safe_timeout(transit_max) + dice.within(0..=2) as u8,
        retry_count: dice.pick(&[7, 7, 7, 6]),
        receiver_not_ready_retry: dice.pick(&[7, 7, 7, 6]),
        receiver_not_ready_timer: dice.within(1..=14) as u8,
        read_atomic_max: dice.pick(&[1, 2, 4, 16]),
        first_psn: [0, 1].map(|_| dice.within(0..=0xff_ffff) as u32),
        gid_index: dice.pick(&[0, 1]),
    }
}

/// The shortest time-out that a round trip never reaches, as the exponent that verbs have for it.
fn safe_timeout(transit_max: Duration) -> u8 {
    let round_trip_ns = 2 * transit_max.as_nanos() as u64 + 20_000;
    (0..=20).find(|exponent| 4096 << exponent > round_trip_ns).unwrap_or(20)
}
