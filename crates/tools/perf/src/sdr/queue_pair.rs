//! The SDR queue pair that `longhaul perf sdr` measures, below all schemes.

use longhaul::with_sources;
use longhaul_sdr::{Context, ContextAttributes, QueuePair, QueuePairAttributes};
use longhaul_verbs::Gid;

use crate::device::OpenedDevice;
use crate::error::PerfError;
use crate::randomness::random_number;

/// Packets that may be in flight, in bytes: well below what a socket buffer holds, as for UC.
const WINDOW_BYTES: u32 = 3 << 20;
/// But no more packets than this: devices have room for that many completions.
const WINDOW_PACKETS_MAX: u32 = 4096;

/// Creates an SDR queue pair, with a context of its own.
pub(super) fn create_queue_pair(
    device: &OpenedDevice,
    chunk_bytes: u32,
    message_bytes_max: u64,
) -> Result<(Context, QueuePair), PerfError> {
    let mtu = device.mtu()?;
    let mut attributes = QueuePairAttributes::new(device.gid, device.udp_port, mtu);
    attributes.path = device.path_to(Gid::default(), device.udp_port);
    // Messages that are longer than an immediate can count are cut.
    let most = attributes.layout.message_bytes_max(mtu.byte_count());
    attributes.message_bytes_max = attributes.message_bytes_max.max(message_bytes_max).min(most);
    attributes.chunk_bytes = chunk_bytes;
    attributes.receive_depth = (WINDOW_BYTES / mtu.byte_count()).min(WINDOW_PACKETS_MAX);
    attributes.random = random_number()?;
    let mut context_attributes = ContextAttributes::default();
    context_attributes.completions = attributes.receive_depth * u32::from(attributes.generations);
    let cannot = |what: &str, error: &dyn std::error::Error| PerfError::failed(what, with_sources(error));
    let context = Context::create(&device.verbs(), &context_attributes);
    let context = context.map_err(|error| cannot("cannot create the queues of an SDR context", &error))?;
    let queue_pair = QueuePair::create(&context, &attributes);
    let queue_pair = queue_pair.map_err(|error| cannot("cannot create an SDR queue pair", &error))?;
    Ok((context, queue_pair))
}
