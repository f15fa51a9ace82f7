//! One run of RC over a link that loses.

use std::sync::Arc;

use longhaul_impair::{Loss, Profile};
use longhaul_shim::{Agreement, CodeChange, DecoderCounters, EncoderCounters, Fec};
use longhaul_softnic::{Layer, PayloadMode, ShimLayer};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{
    Access, CompletionQueue, MemoryRegion, Mtu, PathAttributes, QueuePair, QueuePairAttributes, QueuePairLimits,
    QueuePairOptions, SendOperation, SendRequest, Transport, WorkCompletion,
};

use crate::world::{World, WorldConfig};

use super::witness::Witness;

/// Payload of a packet, as in the paper.
const MTU: Mtu = Mtu::Bytes1024;
/// What Ethernet adds to each packet: header and check sequence, preamble and gap.
const ETHERNET_BYTES: u32 = 14 + 4 + 20;
/// The program looks at its completions this often.
const TICK: Duration = Duration::from_micros(100);
/// Products of bandwidth and delay that each connection has posted.
const POSTED_PRODUCTS: u64 = 3;
/// An acknowledgement takes at most the round trip and what packets wait in queues and in the shim.
const TIMEOUT_LEAST: Duration = Duration::from_millis(8);
/// Time-outs of a request before it is given up: go-back-N at high loss needs many.
const RETRIES: u8 = 7;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Of the link, both directions together.
    pub round_trip: Duration,
    /// Of the link.
    pub bits_per_second: u64,
    /// In both directions.
    pub loss: Loss,
    /// Queue pairs that send.
    pub connections: usize,
    /// Of each WRITE.
    pub message_bytes: usize,
    /// WRITEs of each connection that are posted at once; `None` keeps the link full.
    pub depth: Option<usize>,
    /// Forward error correction; `None` is plain RC.
    pub code: Option<Fec>,
    /// Loss from these times on, counted from the beginning.
    pub later: Vec<(Duration, Loss)>,
    /// Virtual time that does not count, after the first two round trips.
    pub settles: Duration,
    /// Virtual time that counts, after that.
    pub lasts: Duration,
    /// Everything random comes from it.
    pub seed: u64,
}

/// What a scenario has shown.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Payload of completed WRITEs, over the time that counts.
    pub goodput_bits_per_second: f64,
    /// Packets in blocks that were sent in the time that counts.
    pub protected_packets: u64,
    /// Repair packets of the same time.
    pub repair_packets: u64,
    /// Times that no acknowledgement came in time.
    pub timeouts: u64,
    /// From post to completion, of WRITEs that completed in the time that counts; in order.
    pub completion_times: Vec<Duration>,
    /// Changes of a code that follows the link.
    pub changes: Vec<CodeChange>,
    /// Payload of WRITEs that completed, for each tenth of a second of the time that counts.
    pub bytes_by_tenth: Vec<u64>,
    /// Of the sender.
    pub encoder: EncoderCounters,
    /// Of the receiver.
    pub decoder: DecoderCounters,
}

struct End {
    completions: CompletionQueue,
    queue_pairs: Vec<QueuePair>,
    region: MemoryRegion,
}

impl Outcome {
    /// Repair packets for each packet that was protected, in the time that counts.
    pub fn repair_share(&self) -> f64 {
        self.repair_packets as f64 / self.protected_packets.max(1) as f64
    }
}

impl Scenario {
    fn product_bytes(&self) -> u64 {
        (self.bits_per_second as f64 / 8.0 * self.round_trip.as_secs_f64()) as u64
    }

    fn depth(&self) -> usize {
        let full = (POSTED_PRODUCTS * self.product_bytes()).div_ceil(self.message_bytes as u64) as usize;
        self.depth.unwrap_or(full.max(4))
    }

    /// About the seconds that a run takes: more on a full link than on an idle one, and with more sums to add to.
    pub fn cost_seconds(&self) -> f64 {
        const PACKETS_PER_SECOND: f64 = 800_000.0;
        const TICKS_PER_SECOND: f64 = 5_000_000.0;
        let full = self.bits_per_second as f64 / 8.0 / f64::from(MTU.byte_count() + 82);
        let posted = self.depth.map_or(f64::INFINITY, |depth| (depth * self.connections * self.message_bytes) as f64);
        let packets = full.min(posted / f64::from(MTU.byte_count()) / self.round_trip.as_secs_f64());
        let sums = self.code.map(|fec| fec.first_code()).map_or(1.0, |code| match code.kind() {
            longhaul_shim::CodeKind::Mds => 1.5 + 0.4 * f64::from(code.repair_packets()),
            _ => 1.7,
        });
        let ticks = 1.0 / TICK.as_secs_f64() / TICKS_PER_SECOND;
        (self.lasts + self.settles + 2 * self.round_trip).as_secs_f64() * (packets * sums / PACKETS_PER_SECOND + ticks)
    }

    /// Runs it.
    pub fn run(&self) -> Outcome {
        self.run_in(&mut self.world(false))
    }

    pub(super) fn run_in(&self, world: &mut World) -> Outcome {
        let ends = [0, 1].map(|node| self.open(world, node));
        for (own, peer) in [(0, 1), (1, 0)] {
            self.connect(world, own, &ends[own], peer, &ends[peer]);
        }
        let [sender, receiver] = &ends;
        let entry = [sender.region.entry(0..self.message_bytes)];
        let operation = SendOperation::Write(receiver.region.remote(0));
        let mut posted_at = vec![std::collections::VecDeque::new(); self.connections];
        let post = |connection: usize, posted: &mut std::collections::VecDeque<Instant>, now: Instant| {
            let request = SendRequest::new(connection as u64, operation, &entry);
            sender.queue_pairs[connection].post_send(&[request]).expect("room for what was completed");
            posted.push_back(now);
        };
        for (connection, posted) in posted_at.iter_mut().enumerate() {
            (0..self.depth()).for_each(|_| post(connection, posted, Instant::ZERO));
        }
        let mut room = vec![WorkCompletion::default(); 256];
        // Until what is posted first has filled the link.
        let begins = Instant::ZERO + 2 * self.round_trip + self.settles;
        let ends_at = begins + self.lasts;
        let (mut completion_times, mut bytes_by_tenth) = (Vec::new(), Vec::new());
        let mut later = self.later.iter().peekable();
        let mut before = None;
        while world.now() < ends_at {
            if before.is_none() && world.now() >= begins {
                before = Some(shim_counters(world, 0).0);
            }
            if let Some((_, loss)) = later.next_if(|(at, _)| Instant::ZERO + *at <= world.now()) {
                world.set_link_profile(self.link(loss));
            }
            world.run_for(TICK);
            let now = world.now();
            loop {
                let taken = sender.completions.poll(&mut room).expect("the queue is large enough");
                for completion in &room[..taken] {
                    assert!(completion.is_success(), "{completion:?}: no peer is given up");
                    let connection = completion.id as usize;
                    let posted = posted_at[connection].pop_front().expect("it was posted");
                    if now >= begins {
                        let tenth = ((now - begins).as_millis() / 100) as usize;
                        bytes_by_tenth.resize(bytes_by_tenth.len().max(tenth + 1), 0);
                        bytes_by_tenth[tenth] += self.message_bytes as u64;
                        completion_times.push(now - posted);
                    }
                    post(connection, &mut posted_at[connection], now);
                }
                if taken < room.len() {
                    break;
                }
            }
        }
        completion_times.sort_unstable();
        let completed_bytes: u64 = bytes_by_tenth.iter().sum();
        let paths = world.with_layers(0, |stack| stack.layers_mut::<ShimLayer>().next().map(|layer| layer.paths()));
        let changes = paths.into_iter().flatten().flat_map(|path| path.changes).collect();
        let (encoder, decoder) = (shim_counters(world, 0).0, shim_counters(world, 1).1);
        let before = before.unwrap_or_default();
        Outcome {
            goodput_bits_per_second: completed_bytes as f64 * 8.0 / (world.now() - begins).as_secs_f64(),
            protected_packets: encoder.protected - before.protected,
            repair_packets: encoder.repairs - before.repairs,
            timeouts: world.softnic(0).nic().counters().local_ack_timeout_err,
            completion_times,
            changes,
            bytes_by_tenth,
            encoder,
            decoder,
        }
    }

    fn link(&self, loss: &Loss) -> Profile {
        Profile::default()
            .with_propagation_delay(self.round_trip / 2)
            .with_rate_bits_per_second(self.bits_per_second)
            .with_loss(loss.clone())
            .with_overhead_bytes_per_packet(ETHERNET_BYTES)
    }

    /// With a witness on either side of what the receiver restores, if wanted.
    pub(super) fn world(&self, has_witnesses: bool) -> World {
        let mut config = WorldConfig { seed: self.seed, link: self.link(&self.loss), ..Default::default() };
        config.nic.payload = PayloadMode::Elided;
        config.nic.congestion = None;
        config.nic.peer_window_bytes = None;
        let packets = 2 * self.product_bytes() / u64::from(MTU.byte_count());
        config.nic.window_packets_max = (packets as u32).clamp(1 << 10, (1 << 23) - 1);
        config.nic.work_requests_max = config.nic.work_requests_max.max(self.depth() as u32);
        let (seed, fec) = (self.seed << 8, self.code);
        config.layers = Some(Arc::new(move |node| {
            let shim = |fec: Fec| {
                let layer = ShimLayer::new(longhaul_shim::Config::of(&fec), seed | node as u64);
                Box::new(layer.expect("a code that fits the defaults")) as Box<dyn Layer>
            };
            let witness = || (has_witnesses && node == 1).then(|| Box::new(Witness::default()) as Box<dyn Layer>);
            [witness(), fec.map(shim), witness()].into_iter().flatten().collect()
        }));
        World::new(config)
    }

    fn open(&self, world: &World, node: usize) -> End {
        let device = world.device(node);
        let domain = device.allocate_protection_domain().expect("a new device has room");
        let depth = self.depth() as u32;
        let completions = depth.saturating_mul(self.connections as u32).saturating_add(1);
        let completions = device.create_completion_queue(completions).expect("a new device has room");
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = domain.register_zeroed(self.message_bytes, access).expect("a new device has room");
        let limits = QueuePairLimits { send_requests: depth, ..Default::default() };
        let options = QueuePairOptions { limits, ..Default::default() };
        let create = |_| {
            let transport = Transport::ReliableConnection;
            let pair = domain.create_queue_pair(transport, &completions, &completions, &options);
            let pair = pair.expect("a new device has room");
            pair.modify(&QueuePairAttributes::init_connected(access)).expect("INIT follows RESET");
            pair
        };
        let queue_pairs = (0..self.connections).map(create).collect();
        End { completions, queue_pairs, region }
    }

    fn connect(&self, world: &mut World, node: usize, end: &End, peer_node: usize, peer: &End) {
        let path = PathAttributes::to(world.gid(peer_node));
        for (ours, theirs) in end.queue_pairs.iter().zip(&peer.queue_pairs) {
            let receive = QueuePairAttributes::ready_to_receive(path, MTU, theirs.number(), 0);
            ours.modify(&receive.reliable_receive(0, 12)).expect("RTR follows INIT");
            let send = QueuePairAttributes::ready_to_send(0).reliable_send(self.timeout_exponent(), RETRIES, 7, 0);
            ours.modify(&send).expect("RTS follows RTR");
            if let Some(code) = self.code.map(|fec| fec.first_code()) {
                let [ours, theirs] = [ours, theirs].map(|pair| pair.number().value());
                let agreement = Agreement { peer: world.gid(peer_node).to_ip(), ours, theirs, code };
                let agreed =
                    world.with_layers(node, |stack| Some(stack.layers_mut::<ShimLayer>().next()?.agree(&agreement)));
                agreed.expect("the layer is there").expect("a code that fits the defaults");
            }
        }
    }

    /// The first of 4.096 µs · 2^n that is one and a half round trips: the time in a queue of one's own packets counts too.
    fn timeout_exponent(&self) -> u8 {
        let wanted = self.round_trip.mul_f64(1.5).max(TIMEOUT_LEAST);
        (0..31).find(|exponent| Duration::from_nanos(4096 << exponent) >= wanted).unwrap_or(31)
    }
}

/// What the shim of a node has counted, as sender and as receiver.
fn shim_counters(world: &mut World, node: usize) -> (EncoderCounters, DecoderCounters) {
    let of = |layer: &mut ShimLayer| layer.counters();
    world.with_layers(node, |stack| stack.layers_mut::<ShimLayer>().next().map(of)).unwrap_or_default()
}
