//! Protection domains as verbs programs see them: where everything is made that belongs together.
#![allow(unsafe_code, reason = "implements the unsafe calls of the raw verbs layer")]

use std::sync::Arc;

use longhaul_verbs::raw::{self, QueuePairInit};
use longhaul_verbs::{
    Access, CreateError, PathAttributes, QueuePairNumber, RegisterError, SharedReceiveQueueAttributes, WindowType,
};

use super::address_handle::AddressHandle;
use super::completions::CompletionQueue;
use super::memory::{MemoryRegion, SlottedRegion, allocate_null_region, check_region_count};
use super::queue_pair::QueuePair;
use super::shared::{Shared, check_count};
use super::shared_receive::SharedReceiveQueue;
use super::windows::MemoryWindow;
use crate::memory::DomainId;
use crate::nic::Nic;
use crate::queue_pair::{Identity, Limits};
use crate::resources::SharedReceiveQueueKey;

/// A protection domain.
pub(super) struct ProtectionDomain {
    pub(super) shared: Arc<Shared>,
    pub(super) id: DomainId,
}

impl raw::ProtectionDomain for ProtectionDomain {
    unsafe fn register_memory(
        &self,
        address: *mut u8,
        length: usize,
        first_address: u64,
        access: Access,
    ) -> Result<Arc<dyn raw::MemoryRegion>, RegisterError> {
        let length = length as u64;
        let remote_writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(remote_writes) && !access.contains(Access::LOCAL_WRITE) {
            return Err(RegisterError::RemoteWriteWithoutLocalWrite);
        }
        for first in [address as u64, first_address] {
            if first.checked_add(length).is_none() {
                return Err(RegisterError::Wraps { address: first, length });
            }
        }
        let mut nic = self.shared.lock();
        check_region_count(&nic)?;
        let Nic { shared, random, .. } = &mut *nic;
        // SAFETY: the caller's promise is the one that `register` asks for; `MemoryRegion` below ends it.
        let (id, key) = unsafe { shared.memory.register(address, length, first_address, self.id, access, random) };
        drop(nic);
        Ok(Arc::new(MemoryRegion { shared: self.shared.clone(), id, key, remote_key: key, first_address, length }))
    }

    fn allocate_null_region(&self) -> Result<Arc<dyn raw::MemoryRegion>, RegisterError> {
        Ok(Arc::new(allocate_null_region(&self.shared, self.id)?))
    }

    fn allocate_slotted_region(
        &self,
        slots: u32,
        slot_bytes: u64,
        access: Access,
    ) -> Result<Arc<dyn raw::SlottedRegion>, RegisterError> {
        Ok(Arc::new(SlottedRegion::allocate(&self.shared, self.id, slots, slot_bytes, access)?))
    }

    fn allocate_memory_window(&self, window_type: WindowType) -> Result<Arc<dyn raw::MemoryWindow>, CreateError> {
        Ok(Arc::new(MemoryWindow::allocate(&self.shared, self.id, window_type)?))
    }

    fn create_shared_receive_queue(
        &self,
        attributes: SharedReceiveQueueAttributes,
    ) -> Result<Arc<dyn raw::SharedReceiveQueue>, CreateError> {
        Ok(Arc::new(SharedReceiveQueue::create(&self.shared, self.id, attributes)?))
    }

    fn create_address_handle(&self, path: &PathAttributes) -> Result<Arc<dyn raw::AddressHandle>, CreateError> {
        let nic = self.shared.lock();
        let source = nic.config().addresses.get(usize::from(path.source_gid_index));
        if source.is_none_or(|source| source.is_ipv4() != path.destination.to_ip().is_ipv4()) {
            return Err(CreateError::InvalidArgument {
                what: "source GID index",
                expected: "a row of the GID table whose address is of the destination's family",
            });
        }
        if path.port != 1 {
            return Err(CreateError::InvalidArgument { what: "port", expected: "1, the only port" });
        }
        Ok(Arc::new(AddressHandle { path: *path, device_serial: nic.serial }))
    }

    fn create_queue_pair(&self, init: &QueuePairInit<'_>) -> Result<Arc<dyn raw::QueuePair>, CreateError> {
        let own_queue = |queue, what| {
            let queue = self.shared.own::<CompletionQueue>(queue).ok_or(CreateError::ForeignObject { what })?;
            Ok::<_, CreateError>(queue.key)
        };
        let send_completions = own_queue(init.send_queue, "send completion queue")?;
        let receive_completions = own_queue(init.receive_queue, "receive completion queue")?;
        let shared_receive = match init.shared_receive_queue {
            None => None,
            Some(queue) => Some(self.own_shared_receive_queue(queue)?),
        };
        let mut nic = self.shared.lock();
        let config = nic.config();
        let mut limits = init.limits;
        if shared_receive.is_some() {
            // It has no receive queue of its own.
            (limits.receive_requests, limits.receive_entries) = (0, 0);
        }
        let bounds = [
            ("send requests", limits.send_requests, config.work_requests_max),
            ("receive requests", limits.receive_requests, config.work_requests_max),
            ("send scatter-gather entries", limits.send_entries, config.scatter_gather_entries_max),
            ("receive scatter-gather entries", limits.receive_entries, config.scatter_gather_entries_max),
            ("inline bytes", limits.inline_bytes, config.inline_bytes_max),
        ];
        for (what, requested, most) in bounds {
            if requested > most {
                return Err(CreateError::TooMany { what, requested: requested.into(), most: most.into() });
            }
        }
        check_count("queue pairs", nic.queue_pairs.len() as u64, nic.config().queue_pairs_max.into())?;
        nic.shared.join_completion_queue(send_completions);
        nic.shared.join_completion_queue(receive_completions);
        if let Some(queue) = shared_receive {
            nic.shared.join_shared_receive_queue(queue);
        }
        let (key, number) = nic.insert_queue_pair(|number| Identity {
            number,
            transport: init.transport,
            domain: self.id,
            send_completions,
            receive_completions,
            shared_receive,
            limits: Limits::new(limits),
            signal_all: init.signal_all,
        });
        drop(nic);
        let number = QueuePairNumber::new(number);
        Ok(Arc::new(QueuePair { shared: self.shared.clone(), key, number, transport: init.transport }))
    }
}

impl ProtectionDomain {
    fn own_shared_receive_queue(
        &self,
        queue: &dyn raw::SharedReceiveQueue,
    ) -> Result<SharedReceiveQueueKey, CreateError> {
        let what = "shared receive queue";
        let queue = self.shared.own::<SharedReceiveQueue>(queue).ok_or(CreateError::ForeignObject { what })?;
        if queue.domain != self.id {
            return Err(CreateError::InvalidArgument { what, expected: "one of the queue pair's protection domain" });
        }
        Ok(queue.key)
    }
}
