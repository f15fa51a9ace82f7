//! Two ends on virtual time.

use std::sync::Arc;

use longhaul_impair::Profile;
use longhaul_reliable::{Attributes, Connection, Scheme};
use longhaul_sdr::{Context, ContextAttributes, Memory, QueuePair, QueuePairAttributes};
use longhaul_softnic::PayloadMode;
use longhaul_time::{Duration, Instant};
use longhaul_verbs::Mtu;

use super::{CaseError, Ground};
use crate::world::{World, WorldConfig};

/// What a ground on virtual time is made from.
#[derive(Clone)]
pub struct GroundOptions {
    /// Each direction of the link.
    pub link: Profile,
    /// Everything random comes from it.
    pub seed: u64,
    /// Payload of a packet.
    pub mtu: Mtu,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Memory of each end.
    pub memory_bytes: usize,
    /// The longest message of each queue pair; enough for all of the memory if not given.
    pub message_bytes_max: Option<[u64; 2]>,
    /// Packets that may be on their way.
    pub receive_depth: u32,
    /// Generations of internal queue pairs, each with that many receives.
    pub generations: u8,
    /// Channels of each end.
    pub channels: usize,
    /// Whoever drives looks this often at what happens, when much does.
    pub grain: Duration,
    /// Whether packets carry payload; SENDs must, or the ends cannot talk to each other.
    pub payload: PayloadMode,
    /// Of both connections.
    pub connection: Attributes,
}

impl GroundOptions {
    /// A link, and memory for messages.
    pub fn new(link: Profile, memory_bytes: usize) -> Self {
        GroundOptions {
            link,
            seed: 1,
            mtu: Mtu::Bytes4096,
            chunk_bytes: 4096,
            memory_bytes,
            message_bytes_max: None,
            receive_depth: 4096,
            generations: 4,
            channels: 1,
            grain: Duration::from_micros(5),
            payload: PayloadMode::Carried,
            connection: Attributes::default(),
        }
    }
}

/// Two ends on a simulated link.
pub struct VirtualGround {
    /// The network.
    pub world: World,
    ends: [End; 2],
    grain: Duration,
}

struct End {
    context: Context,
    connection: Connection,
    memory: Memory,
}

impl VirtualGround {
    /// Two ends that are connected, each with its scheme; they have not heard of each other yet.
    pub fn new(options: &GroundOptions, schemes: [Arc<dyn Scheme>; 2]) -> Self {
        let mut config = WorldConfig { link: options.link.clone(), seed: options.seed, ..Default::default() };
        config.nic.mtu = options.mtu;
        config.nic.payload = options.payload;
        let world = World::new(config);
        let mut node = 0;
        let ends = schemes.map(|scheme| {
            let mut context = ContextAttributes::default();
            context.channels = options.channels;
            let mut attributes = QueuePairAttributes::new(world.gid(node), 4791, options.mtu);
            attributes.random = options.seed << 33 | node as u64;
            attributes.chunk_bytes = options.chunk_bytes;
            let enough = options.memory_bytes.max(options.chunk_bytes as usize * 1024) as u64;
            attributes.message_bytes_max = options.message_bytes_max.map_or(enough, |most| most[node]);
            attributes.generations = options.generations;
            attributes.receive_depth = options.receive_depth;
            context.completions = options.receive_depth * u32::from(attributes.generations);
            let context = Context::create(&world.device(node), &context).expect("a new device has room");
            let queue_pair = QueuePair::create(&context, &attributes).expect("a new device has room");
            let memory = context.register(vec![0; options.memory_bytes]).expect("a new device has room");
            node += 1;
            End { context, connection: Connection::new(queue_pair, scheme, options.connection), memory }
        });
        let [one, other] = ends.each_ref().map(|end| end.connection.queue_pair());
        one.connect(&other.info()).expect("both were made alike");
        other.connect(&one.info()).expect("both were made alike");
        VirtualGround { world, ends, grain: options.grain }
    }

    /// Two ends with the same scheme.
    pub fn with_scheme(options: &GroundOptions, scheme: Arc<dyn Scheme>) -> Self {
        VirtualGround::new(options, [scheme.clone(), scheme])
    }

    fn over_count(&self) -> u64 {
        self.ends.iter().map(|end| end.connection.over_count()).sum()
    }

    /// Let time pass.
    pub fn run_until(&mut self, end: Instant) -> Result<(), CaseError> {
        while self.now() < end {
            self.step(end)?;
        }
        Ok(())
    }
}

impl Ground for VirtualGround {
    fn now(&self) -> Instant {
        self.world.now()
    }

    fn sender(&mut self) -> (&mut Connection, &Memory) {
        (&mut self.ends[0].connection, &self.ends[0].memory)
    }

    fn receiver(&mut self) -> (&mut Connection, &Memory) {
        (&mut self.ends[1].connection, &self.ends[1].memory)
    }

    fn step(&mut self, limit: Instant) -> Result<(), CaseError> {
        let now = self.world.now();
        let mut next = Some(limit);
        let over_count = self.over_count();
        for End { context, connection, .. } in &mut self.ends {
            while context.poll().map_err(|error| CaseError::Ground(error.to_string()))? > 0 {}
            connection.poll(now).map_err(|error| CaseError::Ground(error.to_string()))?;
            next = Instant::earlier_of(next, connection.next_deadline(now));
        }
        // The program has something to do.
        if self.over_count() != over_count {
            return Ok(());
        }
        let next = next.unwrap_or(limit).max(now.saturating_add_nanos(1));
        self.world.run_some(next, self.grain);
        Ok(())
    }
}
