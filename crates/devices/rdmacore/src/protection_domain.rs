//! What is made in a protection domain: regions, windows, queues, address handles, queue pairs.
#![allow(unsafe_code, reason = "hands memory to a device")]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use longhaul_verbs::raw::{self, QueuePairInit};
use longhaul_verbs::{Access, CreateError, PathAttributes, RegisterError, SharedReceiveQueueAttributes, WindowType};

use crate::address_handle::AddressHandle;
use crate::domain::ProtectionDomain;
use crate::memory::MemoryRegion;
use crate::queue_pair::QueuePair;
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::windows::MemoryWindow;

impl raw::ProtectionDomain for ProtectionDomain {
    unsafe fn register_memory(
        &self,
        address: *mut u8,
        length: usize,
        first_address: u64,
        access: Access,
    ) -> Result<Arc<dyn raw::MemoryRegion>, RegisterError> {
        // SAFETY: the caller's promise.
        let region = unsafe { MemoryRegion::register(self.domain(), address, length, first_address, access) }?;
        Ok(Arc::new(region))
    }

    unsafe fn register_dma_buf(
        &self,
        descriptor: BorrowedFd<'_>,
        offset: u64,
        length: usize,
        first_address: u64,
        access: Access,
    ) -> Result<Arc<dyn raw::MemoryRegion>, RegisterError> {
        let descriptor = descriptor.as_raw_fd();
        // SAFETY: the caller's promise; the descriptor is open during the call, and the kernel keeps what it stands
        // for.
        let region = unsafe {
            MemoryRegion::register_dma_buf(self.domain(), descriptor, offset, length, first_address, access)
        }?;
        Ok(Arc::new(region))
    }

    fn allocate_null_region(&self) -> Result<Arc<dyn raw::MemoryRegion>, RegisterError> {
        Ok(Arc::new(MemoryRegion::allocate_null(self.domain())?))
    }

    fn allocate_memory_window(&self, window_type: WindowType) -> Result<Arc<dyn raw::MemoryWindow>, CreateError> {
        Ok(Arc::new(MemoryWindow::allocate(self.domain(), window_type)?))
    }

    fn create_shared_receive_queue(
        &self,
        attributes: SharedReceiveQueueAttributes,
    ) -> Result<Arc<dyn raw::SharedReceiveQueue>, CreateError> {
        Ok(Arc::new(SharedReceiveQueue::create(self.domain(), attributes)?))
    }

    fn create_address_handle(&self, path: &PathAttributes) -> Result<Arc<dyn raw::AddressHandle>, CreateError> {
        Ok(Arc::new(AddressHandle::create(self.domain(), path)?))
    }

    fn create_queue_pair(&self, init: &QueuePairInit<'_>) -> Result<Arc<dyn raw::QueuePair>, CreateError> {
        Ok(Arc::new(QueuePair::create(self.domain(), init)?))
    }
}
