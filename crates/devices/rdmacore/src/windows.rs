//! Memory windows: keys for parts of regions.
//!
//! Type 1 windows are bound by a call of libibverbs, which posts a request of its own; type 2 windows by a request of
//! the program. Either way the window is the program's word only: the device checks everything when the request's turn
//! comes.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use longhaul_verbs::raw;
use longhaul_verbs::{
    Capabilities, CreateError, DestroyError, NotSupported, PostError, PostErrorKind, SendFlags, Transport,
    WindowBinding, WindowRequest, WindowType,
};

use crate::answer::{is_not_supported, refusal};
use crate::context::Context;
use crate::domain::Domain;
use crate::handle::{Handle, Owned, lock, own};
use crate::memory::{MemoryRegion, Region};
use crate::queue_pair::QueuePair;
use longhaul_verbs_abi::{IBV_MW_TYPE_1, IBV_MW_TYPE_2, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_send_wr_bind_mw};

/// A memory window as verbs programs see it.
pub(crate) struct MemoryWindow {
    window: Arc<Window>,
}

/// The window itself. The region that it is bound to knows it, but does not keep it.
pub(crate) struct Window {
    /// Itself, for that region.
    this: Weak<Window>,
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

impl MemoryWindow {
    /// `ibv_alloc_mw`
    pub(crate) fn allocate(domain: &Arc<Domain>, window_type: WindowType) -> Result<Self, CreateError> {
        let capability = match window_type {
            WindowType::Type1 => Capabilities::WINDOW_TYPE_1,
            WindowType::Type2 => Capabilities::WINDOW_TYPE_2A | Capabilities::WINDOW_TYPE_2B,
        };
        let (handle, key) = allocate(domain, window_type).map_err(|error| match is_not_supported(&error) {
            true => CreateError::NotSupported(NotSupported { capability }),
            false => CreateError::System(error),
        })?;
        let window = Arc::new_cyclic(|this| Window {
            this: this.clone(),
            domain: domain.clone(),
            window_type,
            key: key.into(),
            allocated: Mutex::new(Some(Allocated { handle, bound_to: Weak::new() })),
        });
        Ok(MemoryWindow { window })
    }
}

/// A window, bound to nothing, and its key.
fn allocate(domain: &Domain, window_type: WindowType) -> io::Result<(Handle<ibv_mw>, u32)> {
    let number = match window_type {
        WindowType::Type1 => IBV_MW_TYPE_1,
        WindowType::Type2 => IBV_MW_TYPE_2,
    };
    // SAFETY: the domain is alive.
    let handle = Handle::new(unsafe { domain.context().alloc_mw(domain.as_ptr(), number) }?);
    // SAFETY: just made, and ours alone.
    Ok((handle, unsafe { (*handle.as_ptr()).rkey }))
}

impl Window {
    /// Record in the regions concerned what it is bound to now.
    fn set_bound(&self, allocated: &mut Allocated, region: Option<&Arc<Region>>) {
        if let Some(old) = allocated.bound_to.upgrade() {
            old.leave(&self.this);
        }
        allocated.bound_to = region.map_or_else(Weak::new, |region| {
            region.join(&self.this);
            Arc::downgrade(region)
        });
    }

    /// If it is bound to this region, which is about to go: put a new window, bound to nothing, in its place. The old
    /// one's key leads nowhere from now on.
    pub(crate) fn replace_if_bound_to(&self, region: &Region) {
        let mut guard = lock(&self.allocated);
        let Some(allocated) = guard.as_mut().filter(|allocated| std::ptr::eq(allocated.bound_to.as_ptr(), region))
        else {
            return;
        };
        // SAFETY: allocated and not yet deallocated, and the lock keeps everybody else from using it.
        if let Err(error) = unsafe { self.domain.context().dealloc_mw(allocated.handle.as_ptr()) } {
            tracing::debug!(%error, "a window stays bound to a region that is not needed any more");
            return;
        }
        *guard = match allocate(&self.domain, self.window_type) {
            Ok((handle, key)) => {
                self.key.store(key, Ordering::Relaxed);
                Some(Allocated { handle, bound_to: Weak::new() })
            }
            // Then it is gone, as if it had been deallocated.
            Err(_) => None,
        };
    }

    fn deallocate(&self) -> Result<(), DestroyError> {
        let mut allocated = lock(&self.allocated);
        let current = allocated.as_mut().ok_or(DestroyError::Gone)?;
        // SAFETY: allocated and not yet deallocated, and the lock keeps everybody else from using it.
        unsafe { self.domain.context().dealloc_mw(current.handle.as_ptr()) }?;
        self.set_bound(current, None);
        *allocated = None;
        Ok(())
    }

    /// Have `post` post a bind of this window, and remember it if that went well. Neither window nor region can go
    /// meanwhile. `post` gives the new key back.
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
        self.set_bound(allocated, (binding.length > 0).then_some(region));
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
    window.window.bind_with(&request.binding, |mw, bind_info| {
        post(ibv_send_wr_bind_mw { mw, rkey: key, bind_info })?;
        // Of a type 2 window this is the program's to do: the next bind names the window by the key that it has by
        // then. SAFETY: allocated, and nobody else looks at it: `bind_with` holds the lock.
        unsafe { (&raw mut (*mw).rkey).write(key) };
        Ok(key)
    })
}

/// An object of the request is there no more. In C it would be a pointer to nothing.
fn stale(message: &'static str) -> PostErrorKind {
    PostErrorKind::System(io::Error::new(io::ErrorKind::InvalidInput, message))
}

impl Owned for MemoryWindow {
    fn context(&self) -> &Arc<Context> {
        self.window.domain.context()
    }
}

impl raw::MemoryWindow for MemoryWindow {
    fn remote_key(&self) -> u32 {
        self.window.key.load(Ordering::Relaxed)
    }

    fn bind(
        &self,
        through: &dyn raw::QueuePair,
        id: u64,
        flags: SendFlags,
        binding: &WindowBinding<'_>,
    ) -> Result<(), PostError> {
        if self.window.window_type != WindowType::Type1 {
            return Err(PostErrorKind::from(NotSupported { capability: Capabilities::WINDOW_TYPE_1 }).at(0));
        }
        let context = self.window.domain.context();
        let through = own::<QueuePair>(context, through);
        let through = through.ok_or(PostErrorKind::ForeignObject { what: "queue pair" }.at(0))?;
        let posted = through.post_one(|queue_pair, depth| {
            if through.is_datagram() {
                return Err(PostErrorKind::WrongTransport { transport: Transport::UnreliableDatagram });
            }
            self.window.bind_with(binding, |mw, bind_info| {
                let send_flags = (flags - SendFlags::INLINE).bits();
                let mut bind = ibv_mw_bind { wr_id: id, send_flags, bind_info };
                // SAFETY: queue pair, window and region are of this device, and locked, so that they cannot go.
                unsafe { context.bind_mw(queue_pair, mw, &mut bind) }.map_err(|error| refusal(error, depth))?;
                // SAFETY: alive, as above; libibverbs has put the new key there.
                Ok(unsafe { (*mw).rkey })
            })
        });
        posted.map_err(|kind| kind.at(0))
    }

    fn deallocate(&self) -> Result<(), DestroyError> {
        self.window.deallocate()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        match self.deallocate() {
            Ok(()) | Err(DestroyError::Gone) => {}
            Err(error) => tracing::warn!(%error, "a memory window stays until the device is closed"),
        }
    }
}
