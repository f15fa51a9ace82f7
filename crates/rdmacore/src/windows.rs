//! Memory windows: keys for parts of regions.
//!
//! Type 1 windows are bound by a call of libibverbs, which posts a request of its own; type 2 windows by a request of the
//! program. Either way the window is the program's word only: the device checks everything when the request's turn comes.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use longhaul_verbs::raw;
use longhaul_verbs::{
    Capabilities, CreateError, DestroyError, NotSupported, PostError, PostErrorKind, SendFlags, Transport,
    WindowBinding, WindowRequest, WindowType,
};

use crate::abi::{IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_send_wr_bind_mw};
use crate::answer::is_not_supported;
use crate::context::Context;
use crate::domain::Domain;
use crate::handle::{Handle, Owned, lock, own};
use crate::memory::{MemoryRegion, Region};
use crate::queue_pair::QueuePair;

/// A memory window.
pub(crate) struct MemoryWindow {
    domain: Arc<Domain>,
    window_type: WindowType,
    /// The key of the newest bind, whether the device has come to it or not.
    key: AtomicU32,
    allocated: Mutex<Option<Allocated>>,
}

struct Allocated {
    handle: Handle<ibv_mw>,
    /// The region of the newest bind.
    bound_to: Weak<Region>,
}

impl Allocated {
    /// Tell the regions concerned.
    fn bind_to(&mut self, region: Option<&Arc<Region>>) {
        if let Some(old) = self.bound_to.upgrade() {
            old.leave_window();
        }
        self.bound_to = region.map_or_else(Weak::new, |region| {
            region.join_window();
            Arc::downgrade(region)
        });
    }
}

impl MemoryWindow {
    /// `ibv_alloc_mw`
    pub(crate) fn allocate(domain: &Arc<Domain>, window_type: WindowType) -> Result<Self, CreateError> {
        let (number, capability) = match window_type {
            WindowType::Type1 => (IBV_MW_TYPE_1, Capabilities::WINDOW_TYPE_1),
            WindowType::Type2 => (IBV_MW_TYPE_2, Capabilities::WINDOW_TYPE_2A | Capabilities::WINDOW_TYPE_2B),
        };
        // SAFETY: the domain is alive.
        let answer = unsafe { domain.context().alloc_mw(domain.as_ptr(), number) };
        let handle = Handle::new(answer.map_err(|error| match is_not_supported(&error) {
            true => CreateError::NotSupported(NotSupported { capability }),
            false => CreateError::System(error),
        })?);
        // SAFETY: just made, and ours alone.
        let key = unsafe { (*handle.as_ptr()).rkey };
        Ok(MemoryWindow {
            domain: domain.clone(),
            window_type,
            key: key.into(),
            allocated: Mutex::new(Some(Allocated { handle, bound_to: Weak::new() })),
        })
    }

    /// Have `post` post a bind of this window, and remember it if that went well. Neither window nor region can go meanwhile.
    /// `post` gives the new key back.
    fn bind_with(
        &self,
        binding: &WindowBinding<'_>,
        post: impl FnOnce(*mut ibv_mw, ibv_mw_bind_info) -> Result<u32, PostErrorKind>,
    ) -> Result<(), PostErrorKind> {
        let region = own::<MemoryRegion>(self.domain.context(), binding.region);
        let region = region.ok_or(PostErrorKind::ForeignObject { what: "region" })?.region();
        let mut allocated = lock(&self.allocated);
        let allocated = allocated.as_mut().ok_or_else(|| stale("the memory window has been deallocated already"))?;
        let key = region.with_registered(|registered| {
            let info = ibv_mw_bind_info {
                mr: registered.as_ptr(),
                addr: binding.address,
                length: binding.length,
                mw_access_flags: binding.access.bits(),
            };
            post(allocated.handle.as_ptr(), info)
        });
        let key = key.ok_or_else(|| stale("the region has been deregistered already"))??;
        self.key.store(key, Ordering::Relaxed);
        allocated.bind_to((binding.length > 0).then_some(region));
        Ok(())
    }
}

/// Have `post` post the bind of a type 2 window under a key.
pub(crate) fn post_bind(
    context: &Arc<Context>,
    request: &WindowRequest<'_>,
    key: u32,
    post: impl FnOnce(ibv_send_wr_bind_mw) -> Result<(), PostErrorKind>,
) -> Result<(), PostErrorKind> {
    let window = own::<MemoryWindow>(context, request.window);
    let window = window.ok_or(PostErrorKind::ForeignObject { what: "memory window" })?;
    window.bind_with(&request.binding, |mw, bind_info| {
        post(ibv_send_wr_bind_mw { mw, rkey: key, bind_info })?;
        Ok(key)
    })
}

/// An object of the request is there no more. In C it would be a pointer to nothing.
fn stale(message: &'static str) -> PostErrorKind {
    PostErrorKind::System(io::Error::new(io::ErrorKind::InvalidInput, message))
}

impl Owned for MemoryWindow {
    fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }
}

impl raw::MemoryWindow for MemoryWindow {
    fn remote_key(&self) -> u32 {
        self.key.load(Ordering::Relaxed)
    }

    fn bind(
        &self,
        through: &dyn raw::QueuePair,
        id: u64,
        flags: SendFlags,
        binding: &WindowBinding<'_>,
    ) -> Result<(), PostError> {
        if self.window_type != WindowType::Type1 {
            return Err(PostErrorKind::from(NotSupported { capability: Capabilities::WINDOW_TYPE_1 }).at(0));
        }
        let context = self.domain.context();
        let through = own::<QueuePair>(context, through);
        let through = through.ok_or(PostErrorKind::ForeignObject { what: "queue pair" }.at(0))?;
        let posted = through.post_one(|queue_pair, depth| {
            if through.is_datagram() {
                return Err(PostErrorKind::WrongTransport { transport: Transport::UnreliableDatagram });
            }
            self.bind_with(binding, |mw, bind_info| {
                let send_flags = (flags - SendFlags::INLINE).bits();
                let mut bind = ibv_mw_bind { wr_id: id, send_flags, bind_info };
                // SAFETY: queue pair, window and region are of this device, and locked, so that they cannot go.
                unsafe { context.bind_mw(queue_pair, mw, &mut bind) }
                    .map_err(|error| crate::post::refusal(error, depth))?;
                // SAFETY: alive, as above; libibverbs has put the new key there.
                Ok(unsafe { (*mw).rkey })
            })
        });
        posted.map_err(|kind| kind.at(0))
    }

    fn deallocate(&self) -> Result<(), DestroyError> {
        let mut allocated = lock(&self.allocated);
        let current = allocated.as_mut().ok_or(DestroyError::Gone)?;
        // SAFETY: allocated and not yet deallocated, and the lock keeps everybody else from using it.
        unsafe { self.domain.context().dealloc_mw(current.handle.as_ptr()) }?;
        current.bind_to(None);
        *allocated = None;
        Ok(())
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        match raw::MemoryWindow::deallocate(self) {
            Ok(()) | Err(DestroyError::Gone) => {}
            Err(error) => tracing::warn!(%error, "a memory window stays until the device is closed"),
        }
    }
}
