//! Two ends of an SDR connection on virtual time.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod raw_peer;

use longhaul_impair::Profile;
use longhaul_sdr::{Context, ContextAttributes, Memory, Mutation, QueuePair, QueuePairAttributes};
use longhaul_time::Duration;
use longhaul_verbs::Mtu;
use longhaul_world::{Topology, World, WorldConfig};

pub(crate) const MTU: usize = 1024;

pub(crate) struct End {
    pub(crate) context: Context,
    pub(crate) queue_pair: QueuePair,
    pub(crate) memory: Memory,
}

pub(crate) struct Ends {
    pub(crate) world: World,
    pub(crate) sender: End,
    pub(crate) receiver: End,
}

pub(crate) struct Options {
    pub(crate) profile: Profile,
    /// Two links of this kind in between, behind switches: a full queue there drops packets, while a device waits for
    /// room on its own link.
    pub(crate) bottleneck: Option<Profile>,
    pub(crate) channels: usize,
    pub(crate) memory_bytes: usize,
    pub(crate) seed: u64,
    pub(crate) mutation: Option<Mutation>,
}

impl Default for Options {
    fn default() -> Self {
        let profile = Profile::default().with_propagation_delay(Duration::from_micros(10));
        Options { profile, bottleneck: None, channels: 1, memory_bytes: 1 << 20, seed: 1, mutation: None }
    }
}

impl Ends {
    pub(crate) fn new(options: Options, change: impl Fn(&mut QueuePairAttributes)) -> Self {
        let ends = Self::unconnected(options, change);
        ends.sender.queue_pair.connect(&ends.receiver.queue_pair.info()).unwrap();
        ends.receiver.queue_pair.connect(&ends.sender.queue_pair.info()).unwrap();
        ends
    }

    pub(crate) fn unconnected(options: Options, change: impl Fn(&mut QueuePairAttributes)) -> Self {
        let topology = match options.bottleneck {
            Some(_) => Topology::Clos { leaf_count: 2, spine_count: 1 },
            None => Topology::default(),
        };
        let (link, fabric_link) = (options.profile, options.bottleneck);
        let world = World::new(WorldConfig { link, fabric_link, topology, seed: options.seed, ..Default::default() });
        let end = |node: usize, mutation: Option<Mutation>| {
            let mut context = ContextAttributes::default();
            context.channels = options.channels;
            let context = Context::create(&world.device(node), &context).unwrap();
            let mut attributes = QueuePairAttributes::new(world.gid(node), 4791, Mtu::Bytes1024);
            attributes.random = options.seed << 33 | node as u64;
            attributes.message_bytes_max = options.memory_bytes as u64;
            attributes.chunk_bytes = MTU as u32;
            change(&mut attributes);
            let queue_pair = match mutation {
                None => QueuePair::create(&context, &attributes),
                Some(mutation) => QueuePair::create_mutated(&context, &attributes, mutation),
            };
            let memory = context.register(vec![0; options.memory_bytes]).unwrap();
            End { context, queue_pair: queue_pair.unwrap(), memory }
        };
        let (sender, receiver) = (end(0, None), end(1, options.mutation));
        Ends { world, sender, receiver }
    }

    /// Let both ends do what they have to do until `done`, for at most so long. Returns whether it is done.
    pub(crate) fn run_until(&mut self, limit: Duration, done: impl FnMut() -> bool) -> bool {
        let Ends { world, sender, receiver } = self;
        run(world, &[sender, receiver], limit, Duration::from_micros(5), done)
    }

    /// The same, without the sender.
    pub(crate) fn run_receiver_for(&mut self, duration: Duration) {
        run(&mut self.world, &[&self.receiver], duration, Duration::from_micros(50), || false);
    }

    /// Let both ends do what they have to do once, then let time pass until something happens, for at most so long.
    pub(crate) fn step(&mut self, step_max: Duration) {
        self.step_ends(step_max, 2);
    }

    /// The same, without the receiver.
    pub(crate) fn step_sender(&mut self, step_max: Duration) {
        self.step_ends(step_max, 1);
    }

    fn step_ends(&mut self, step_max: Duration, count: usize) {
        let now = self.world.now();
        let mut next = now + step_max;
        for end in [&self.sender, &self.receiver].into_iter().take(count) {
            while end.context.poll().unwrap() > 0 {}
            end.queue_pair.poll(now).unwrap();
            next = end.queue_pair.next_deadline().map_or(next, |deadline| deadline.min(next));
        }
        self.world.run_some(next.max(now + Duration::from_nanos(1)), Duration::from_micros(50));
    }

    /// Let both ends do once what they have to do now.
    pub(crate) fn take_what_has_arrived(&mut self) {
        let now = self.world.now();
        for end in [&self.sender, &self.receiver] {
            while end.context.poll().unwrap() > 0 {}
            end.queue_pair.poll(now).unwrap();
        }
    }

    pub(crate) fn run_for(&mut self, duration: Duration) {
        self.run_until(duration, || false);
    }
}

fn run(
    world: &mut World,
    polled: &[&End],
    limit: Duration,
    step_max: Duration,
    mut done: impl FnMut() -> bool,
) -> bool {
    let end = world.now() + limit;
    loop {
        let now = world.now();
        for end in polled {
            while end.context.poll().unwrap() > 0 {}
            end.queue_pair.poll(now).unwrap();
        }
        if done() {
            return true;
        }
        if now >= end {
            return false;
        }
        let next = polled.iter().filter_map(|end| end.queue_pair.next_deadline()).min();
        let next = next.unwrap_or(end).clamp(now, end);
        world.run_for((next - now).clamp(Duration::from_nanos(1), step_max));
    }
}

/// Bytes that encode a message and an offset in it.
pub(crate) fn pattern(message: u64, length: usize) -> Vec<u8> {
    (0..length).map(|index| (index as u64 * 31 + (index as u64 >> 8) * 7 + message * 101 + 1) as u8).collect()
}
