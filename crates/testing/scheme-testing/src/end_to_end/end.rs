//! One end of a connection: a device, memory, and what is made of them.

use std::sync::Arc;

use longhaul_conformance::DeviceEnd;
use longhaul_impair::Profile;
use longhaul_reliable::{Attributes, Connection, Scheme};
use longhaul_sdr::immediate::ImmediateLayout;
use longhaul_sdr::{Context, ContextAttributes, Memory, QueuePair, QueuePairAttributes};
use longhaul_softnic::PayloadMode;
use longhaul_time::Duration;
use longhaul_verbs::{Mtu, PathAttributes};
use longhaul_world::EGRESS_LIMIT_BYTES;

use super::case::CaseError;

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
    /// The longest message of each end's queue pair; enough for all of the memory if not given.
    pub message_bytes_max: Option<[u64; 2]>,
    /// Packets that may be in flight.
    pub receive_depth: u32,
    /// How the immediate is divided, and with it how many messages are open at a time.
    pub layout: ImmediateLayout,
    /// Generations of internal queue pairs, each with that many receives.
    pub generations: u8,
    /// Channels of each end.
    pub channels: usize,
    /// The driver polls this often when much happens.
    pub grain: Duration,
    /// What each device may have waiting in front of the wire.
    pub egress_limit_bytes: u64,
    /// Whether packets carry payload; SENDs must, or the ends cannot talk to each other.
    pub payload: PayloadMode,
    /// Of both connections.
    pub connection: Attributes,
    /// Schemes that messages may have, next to that of the ground.
    pub other_schemes: Vec<Arc<dyn Scheme>>,
    /// What each end paces its data at, where its device can; as fast as the device takes it if not given.
    pub rate_bits_per_second: Option<u64>,
    /// Taken for the round-trip time until it has been measured.
    pub round_trip_guess: Duration,
}

impl GroundOptions {
    /// A link, and memory for messages.
    pub fn new(link: Profile, memory_bytes: usize) -> Self {
        GroundOptions {
            link,
            seed: 1,
            mtu: Mtu::Bytes4096,
            chunk_bytes: longhaul_sdr::default_chunk_bytes(Mtu::Bytes4096),
            memory_bytes,
            message_bytes_max: None,
            receive_depth: 4096,
            layout: ImmediateLayout::default(),
            generations: 4,
            channels: 1,
            grain: Duration::from_micros(5),
            egress_limit_bytes: EGRESS_LIMIT_BYTES,
            payload: PayloadMode::Carried,
            connection: Attributes::default(),
            other_schemes: Vec::new(),
            rate_bits_per_second: None,
            round_trip_guess: Duration::from_millis(50),
        }
    }
}

/// A connection, and memory for its messages.
pub(super) struct End {
    pub(super) context: Context,
    pub(super) connection: Connection,
    pub(super) memory: Memory,
}

impl End {
    /// Make it on a device, as the first or the second of two. `random` is different for every end.
    pub(super) fn create(
        at: &DeviceEnd,
        options: &GroundOptions,
        which: usize,
        random: u64,
        scheme: Arc<dyn Scheme>,
    ) -> Result<End, CaseError> {
        let gid = at.device.gid(at.port, at.gid_index.into()).map_err(CaseError::of_ground)?.gid;
        let mut attributes = QueuePairAttributes::new(gid, at.udp_port, options.mtu);
        attributes.path = PathAttributes { source_gid_index: at.gid_index, port: at.port, ..attributes.path };
        attributes.random = random;
        attributes.chunk_bytes = options.chunk_bytes;
        let enough = options.memory_bytes.max(options.chunk_bytes as usize * 1024) as u64;
        attributes.message_bytes_max = options.message_bytes_max.map_or(enough, |most| most[which]);
        attributes.layout = options.layout;
        attributes.generations = options.generations;
        attributes.receive_depth = options.receive_depth;
        attributes.rate_bits_per_second = options.rate_bits_per_second;
        attributes.round_trip_guess = options.round_trip_guess;
        let mut context = ContextAttributes::default();
        context.channels = options.channels;
        context.completions = options.receive_depth * u32::from(attributes.generations);
        context.events = false;
        let context = Context::create(&at.device, &context).map_err(CaseError::of_ground)?;
        let queue_pair = QueuePair::create(&context, &attributes).map_err(CaseError::of_ground)?;
        let memory = context.register(vec![0; options.memory_bytes]).map_err(CaseError::of_ground)?;
        let connection = Connection::new(queue_pair, scheme, options.connection);
        Ok(End { context, connection: connection.with_others(options.other_schemes.iter().cloned()), memory })
    }

    /// Connect two ends of one process.
    pub(super) fn connect(ends: &[End; 2]) -> Result<(), CaseError> {
        let [one, other] = ends.each_ref().map(|end| end.connection.queue_pair());
        one.connect(&other.info()).map_err(CaseError::of_ground)?;
        other.connect(&one.info()).map_err(CaseError::of_ground)
    }
}
