//! Two ends of an SDR connection on virtual time.
#![allow(dead_code, reason = "each test file uses a part of it")]

use longhaul_impair::Profile;
use longhaul_sdr::{Context, ContextAttributes, Memory, Mutation, QueuePair, QueuePairAttributes};
use longhaul_testbed::world::{World, WorldConfig};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::Mtu;

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
    pub(crate) channels: usize,
    pub(crate) memory_bytes: usize,
    pub(crate) seed: u64,
    pub(crate) mutation: Option<Mutation>,
}

impl Default for Options {
    fn default() -> Self {
        let profile = Profile::default().with_propagation_delay(Duration::from_micros(10));
        Options { profile, channels: 1, memory_bytes: 1 << 20, seed: 1, mutation: None }
    }
}

impl Ends {
    pub(crate) fn new(options: Options, change: impl Fn(&mut QueuePairAttributes)) -> Self {
        let world = World::new(WorldConfig { link: options.profile, seed: options.seed, ..Default::default() });
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
        sender.queue_pair.connect(&receiver.queue_pair.info()).unwrap();
        receiver.queue_pair.connect(&sender.queue_pair.info()).unwrap();
        Ends { world, sender, receiver }
    }

    /// Let both ends do what they have to do until `done`, for at most so long. Returns whether it is done.
    pub(crate) fn run_until(&mut self, limit: Duration, mut done: impl FnMut() -> bool) -> bool {
        let end = self.world.now() + limit;
        loop {
            let now = self.world.now();
            for end in [&self.sender, &self.receiver] {
                while end.context.poll().unwrap() > 0 {}
                end.queue_pair.poll(now).unwrap();
            }
            if done() {
                return true;
            }
            if now >= end {
                return false;
            }
            let deadlines = [&self.sender, &self.receiver].map(|end| end.queue_pair.next_deadline());
            let next = Instant::earlier_of(deadlines[0], deadlines[1]).unwrap_or(end).max(now);
            let step = (next - now).clamp(Duration::from_nanos(1), Duration::from_micros(5));
            self.world.run_for(step);
        }
    }

    pub(crate) fn run_for(&mut self, duration: Duration) {
        self.run_until(duration, || false);
    }
}

/// Bytes that tell a message and a place in it.
pub(crate) fn pattern(message: u64, length: usize) -> Vec<u8> {
    (0..length).map(|index| (index as u64 * 31 + (index as u64 >> 8) * 7 + message * 101 + 1) as u8).collect()
}
