//! Protection domains: where everything is made that belongs together.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use longhaul_verbs::raw::{self, QueuePairInit};
use longhaul_verbs::{Access, CreateError, PathAttributes, RegisterError, SharedReceiveQueueAttributes, WindowType};

use crate::abi::{ibv_device_attr, ibv_pd};
use crate::address_handle::AddressHandle;
use crate::answer::{check, check_pointer};
use crate::context::Context;
use crate::handle::{Handle, Owned};
use crate::memory::MemoryRegion;
use crate::queue_pair::QueuePair;
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::windows::MemoryWindow;

/// A protection domain as verbs programs see it.
pub(crate) struct ProtectionDomain {
    domain: Arc<Domain>,
}

/// The protection domain itself; everything that is made in it holds it.
pub(crate) struct Domain {
    context: Arc<Context>,
    handle: Handle<ibv_pd>,
    /// What the device said when the domain was made; its limits do not change.
    attributes: ibv_device_attr,
}

impl ProtectionDomain {
    /// A new one (`ibv_alloc_pd`).
    pub(crate) fn allocate(context: &Arc<Context>) -> Result<Self, CreateError> {
        let attributes = context.query_device()?.orig_attr;
        // SAFETY: the device is open.
        let handle = check_pointer(unsafe { (context.library().ibv_alloc_pd)(context.as_ptr()) })?;
        Ok(ProtectionDomain {
            domain: Arc::new(Domain { context: context.clone(), handle: Handle::new(handle), attributes }),
        })
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }
}

impl Owned for ProtectionDomain {
    fn context(&self) -> &Arc<Context> {
        &self.domain.context
    }
}

impl Domain {
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_pd {
        self.handle.as_ptr()
    }

    /// Sizes and abilities of the device.
    pub(crate) fn attributes(&self) -> &ibv_device_attr {
        &self.attributes
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: allocated in `allocate`, and nothing of it is left: each object made in it holds it.
        let answer = unsafe { (self.context.library().ibv_dealloc_pd)(self.handle.as_ptr()) };
        if let Err(error) = check(answer) {
            // Something of it could not be destroyed either, and has said so; closing the device ends both.
            tracing::debug!(%error, "a protection domain stays until the device is closed");
        }
    }
}

impl raw::ProtectionDomain for ProtectionDomain {
    unsafe fn register_memory(
        &self,
        address: *mut u8,
        length: usize,
        first_address: u64,
        access: Access,
    ) -> Result<Arc<dyn raw::MemoryRegion>, RegisterError> {
        // SAFETY: the caller's promise.
        let region = unsafe { MemoryRegion::register(&self.domain, address, length, first_address, access) }?;
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
        let region =
            unsafe { MemoryRegion::register_dma_buf(&self.domain, descriptor, offset, length, first_address, access) }?;
        Ok(Arc::new(region))
    }

    fn allocate_null_region(&self) -> Result<Arc<dyn raw::MemoryRegion>, RegisterError> {
        Ok(Arc::new(MemoryRegion::allocate_null(&self.domain)?))
    }

    fn allocate_memory_window(&self, window_type: WindowType) -> Result<Arc<dyn raw::MemoryWindow>, CreateError> {
        Ok(Arc::new(MemoryWindow::allocate(&self.domain, window_type)?))
    }

    fn create_shared_receive_queue(
        &self,
        attributes: SharedReceiveQueueAttributes,
    ) -> Result<Arc<dyn raw::SharedReceiveQueue>, CreateError> {
        Ok(Arc::new(SharedReceiveQueue::create(&self.domain, attributes)?))
    }

    fn create_address_handle(&self, path: &PathAttributes) -> Result<Arc<dyn raw::AddressHandle>, CreateError> {
        Ok(Arc::new(AddressHandle::create(&self.domain, path)?))
    }

    fn create_queue_pair(&self, init: &QueuePairInit<'_>) -> Result<Arc<dyn raw::QueuePair>, CreateError> {
        Ok(Arc::new(QueuePair::create(&self.domain, init)?))
    }
}

/// Refuse what is more than the device allows, with the names that all devices use.
pub(crate) fn check_bounds(bounds: &[(&'static str, u32, u32)]) -> Result<(), CreateError> {
    for &(what, requested, most) in bounds {
        if requested > most {
            return Err(CreateError::TooMany { what, requested: requested.into(), most: most.into() });
        }
    }
    Ok(())
}
