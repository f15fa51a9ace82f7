//! What the connections of an endpoint are made of.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longhaul_sdr::{Context, ContextAttributes, ControlMemory, QueuePairAttributes};
use longhaul_verbs::{CompletionChannel, CreateError, Device, ProtectionDomain};

use crate::granter::Granter;

/// What all connections of an endpoint share: the protection domain of their memory, the memory of their control messages, the numbers
/// that name them, and who grants credit to their peers.
pub struct Assembly {
    control: ControlMemory,
    /// Of the next connection.
    id: AtomicU64,
    granter: Arc<Granter>,
}

impl Assembly {
    /// Without connections.
    pub fn new(device: &Device) -> Result<Self, CreateError> {
        let control = ControlMemory::new(&device.allocate_protection_domain()?);
        Ok(Assembly { control, id: AtomicU64::default(), granter: Arc::new(Granter::new(None)) })
    }

    /// The same, with this rate of the port for granting credit.
    #[must_use]
    pub fn with_credit_rate(self, bits_per_second: Option<u64>) -> Self {
        Assembly { granter: Arc::new(Granter::new(bits_per_second)), ..self }
    }

    /// Who grants credit to the peers of all connections; for their engines ([`crate::Engine::with_granter`]).
    pub fn granter(&self) -> &Arc<Granter> {
        &self.granter
    }

    /// The protection domain of all memory.
    pub fn domain(&self) -> &ProtectionDomain {
        self.control.domain()
    }

    /// Names the next connection.
    pub fn next_id(&self) -> u64 {
        self.id.fetch_add(1, Ordering::Relaxed)
    }

    /// The context of connection `id`, with room for the completions of one such queue pair. Its events arrive on the given channel and name
    /// the connection.
    pub fn create_context(
        &self,
        id: u64,
        events: Option<&CompletionChannel>,
        channels: usize,
        queue_pair: &QueuePairAttributes,
    ) -> Result<Context, CreateError> {
        let mut attributes = ContextAttributes::default();
        attributes.channels = channels;
        attributes.completions = queue_pair.receive_depth * u32::from(queue_pair.generations);
        Context::create_in(&self.control, events, id, &attributes)
    }
}
