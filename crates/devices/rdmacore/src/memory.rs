//! Memory regions: of this process's memory, of dma-buf descriptors, and null regions.
//!
//! What keeps memory safe here: bytes may be freed only after `ibv_dereg_mr` has answered 0. So `deregister` says `Ok`
//! only then, `Gone` only when somebody else has heard that `Ok` before (the lock makes the second wait for the first),
//! and everything else means that the device may still use them.
#![allow(unsafe_code, reason = "calls libibverbs; hands memory to a device")]

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use longhaul_verbs::raw;
use longhaul_verbs::{Access, Capabilities, DestroyError, NotSupported, RegisterError};
use nix::libc::{EBUSY, EINVAL};

use crate::answer::{check, check_pointer, is_not_supported};
use crate::context::Context;
use crate::domain::{Domain, ProtectionDomain};
use crate::handle::{Handle, Owned, lock, own};
use crate::windows::Window;
use longhaul_verbs_abi::{
    IBV_ACCESS_OPTIONAL_RANGE, IBV_REREG_MR_CHANGE_ACCESS, IBV_REREG_MR_CHANGE_PD, IBV_REREG_MR_CHANGE_TRANSLATION,
    IBV_REREG_MR_ERR_DO_FORK_OLD, IBV_REREG_MR_ERR_DONT_FORK_NEW, IBV_REREG_MR_ERR_INPUT, ibv_mr,
};

/// A region as verbs programs see it.
pub(crate) struct MemoryRegion {
    region: Arc<Region>,
}

/// The region itself. Windows that are bound to it know it too, but do not keep it.
pub(crate) struct Region {
    /// Its own, because `reregister` can move it to another one.
    context: Arc<Context>,
    registered: RwLock<Option<Registered>>,
    local_key: AtomicU32,
    remote_key: AtomicU32,
    first_address: AtomicU64,
    length: AtomicU64,
    /// Windows that were bound to it and, as far as we know, still are: a peer can invalidate one without our hearing
    /// of it.
    windows: Mutex<Vec<Weak<Window>>>,
}

/// While it is registered.
pub(crate) struct Registered {
    handle: Handle<ibv_mr>,
    domain: Arc<Domain>,
}

impl Registered {
    pub(crate) fn as_ptr(&self) -> *mut ibv_mr {
        self.handle.as_ptr()
    }
}

impl MemoryRegion {
    /// `ibv_reg_mr_iova2`
    ///
    /// # Safety
    ///
    /// As for [`raw::ProtectionDomain::register_memory`].
    pub(crate) unsafe fn register(
        domain: &Arc<Domain>,
        address: *mut u8,
        length: usize,
        first_address: u64,
        access: Access,
    ) -> Result<Self, RegisterError> {
        check_access(access)?;
        check_length(domain, length)?;
        for first in [address as u64, first_address] {
            if first.checked_add(length as u64).is_none() {
                return Err(RegisterError::Wraps { address: first, length: length as u64 });
            }
        }
        let page = page_bytes();
        if address as u64 % page != first_address % page {
            return Err(RegisterError::InvalidArgument {
                what: "first address",
                expected: "the same place within a page as the memory has (a zero-based region begins on a page)",
            });
        }
        let bits = registration_bits(access);
        let library = domain.context().library();
        let (domain_pointer, memory) = (domain.as_ptr(), address.cast::<c_void>());
        // Old libraries know neither flags that may be ignored nor, before that, a first address.
        let required_bits = (bits & !IBV_ACCESS_OPTIONAL_RANGE) as c_int;
        let answer = if let Some(register) = library.ibv_reg_mr_iova2 {
            // SAFETY: the domain is alive, and the memory is what the caller promises it to be.
            unsafe { register(domain_pointer, memory, length, first_address, bits) }
        } else if let Some(register) = library.ibv_reg_mr_iova {
            // SAFETY: as above.
            unsafe { register(domain_pointer, memory, length, first_address, required_bits) }
        } else if first_address == address as u64 {
            // SAFETY: as above.
            unsafe { (library.ibv_reg_mr)(domain_pointer, memory, length, required_bits) }
        } else {
            return Err(NotSupported { capability: Capabilities::ZERO_BASED }.into());
        };
        Ok(Self::new(domain, Handle::new(check_pointer(answer)?), first_address, length as u64))
    }

    /// `ibv_reg_dmabuf_mr`
    ///
    /// # Safety
    ///
    /// As for [`raw::ProtectionDomain::register_dma_buf`].
    pub(crate) unsafe fn register_dma_buf(
        domain: &Arc<Domain>,
        descriptor: RawFd,
        offset: u64,
        length: usize,
        first_address: u64,
        access: Access,
    ) -> Result<Self, RegisterError> {
        let unsupported = NotSupported { capability: Capabilities::DMA_BUF };
        let register = domain.context().library().ibv_reg_dmabuf_mr.ok_or(unsupported)?;
        check_access(access)?;
        check_length(domain, length)?;
        if first_address.checked_add(length as u64).is_none() {
            return Err(RegisterError::Wraps { address: first_address, length: length as u64 });
        }
        let bits = registration_bits(access) as c_int;
        // SAFETY: the domain is alive, and the memory is what the caller promises it to be.
        let answer = unsafe { register(domain.as_ptr(), offset, length, first_address, descriptor, bits) };
        let handle = check_pointer(answer).map_err(|error| refusal(error, unsupported))?;
        Ok(Self::new(domain, Handle::new(handle), first_address, length as u64))
    }

    /// `ibv_alloc_null_mr`
    pub(crate) fn allocate_null(domain: &Arc<Domain>) -> Result<Self, RegisterError> {
        // SAFETY: the domain is alive.
        let answer = unsafe { domain.context().alloc_null_mr(domain.as_ptr()) };
        let unsupported = NotSupported { capability: Capabilities::NULL_REGION };
        let handle = answer.map_err(|error| refusal(error, unsupported))?;
        // Any address will do, and any length.
        Ok(Self::new(domain, Handle::new(handle), 0, u64::MAX))
    }

    fn new(domain: &Arc<Domain>, handle: Handle<ibv_mr>, first_address: u64, length: u64) -> Self {
        // SAFETY: just made, and ours alone.
        let (local_key, remote_key) = unsafe { ((*handle.as_ptr()).lkey, (*handle.as_ptr()).rkey) };
        let region = Region {
            context: domain.context().clone(),
            registered: RwLock::new(Some(Registered { handle, domain: domain.clone() })),
            local_key: local_key.into(),
            remote_key: remote_key.into(),
            first_address: first_address.into(),
            length: length.into(),
            windows: Mutex::new(Vec::new()),
        };
        MemoryRegion { region: Arc::new(region) }
    }

    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }
}

impl Owned for MemoryRegion {
    fn context(&self) -> &Arc<Context> {
        &self.region.context
    }
}

impl Region {
    /// Run a call that uses the region; it is not deregistered meanwhile. `None` when it already is.
    pub(crate) fn with_registered<R>(&self, call: impl FnOnce(&Registered) -> R) -> Option<R> {
        self.registered.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(call)
    }

    /// A window was bound to it.
    pub(crate) fn join(&self, window: &Weak<Window>) {
        let mut windows = lock(&self.windows);
        windows.retain(|known| !known.ptr_eq(window));
        windows.push(window.clone());
    }

    /// A window that was bound to it is bound elsewhere, or gone.
    pub(crate) fn leave(&self, window: &Weak<Window>) {
        lock(&self.windows).retain(|known| !known.ptr_eq(window));
    }

    /// Deregister it, after taking its windows from it if need be.
    fn abandon(&self) -> Result<(), DestroyError> {
        match self.deregister() {
            Err(DestroyError::InUse { .. }) => {
                // Windows are locked before regions, never after.
                let windows = std::mem::take(&mut *lock(&self.windows));
                for window in windows.iter().filter_map(Weak::upgrade) {
                    window.replace_if_bound_to(self);
                }
                self.deregister()
            }
            answer => answer,
        }
    }

    fn deregister(&self) -> Result<(), DestroyError> {
        let mut registered = self.registered.write().unwrap_or_else(PoisonError::into_inner);
        let handle = registered.as_ref().ok_or(DestroyError::Gone)?.handle;
        // SAFETY: registered and not yet deregistered, and the lock keeps everybody else from using it.
        let answer = unsafe { (self.context.library().ibv_dereg_mr)(handle.as_ptr()) };
        check(answer).map_err(|error| self.why_registered(error))?;
        *registered = None;
        Ok(())
    }

    /// Devices say "busy" when windows are bound to a region, Soft-RoCE says "invalid".
    fn why_registered(&self, error: io::Error) -> DestroyError {
        let users = lock(&self.windows).len();
        match error.raw_os_error() {
            Some(EBUSY) => DestroyError::InUse { users: users.max(1) },
            Some(EINVAL) if users > 0 => DestroyError::InUse { users },
            _ => DestroyError::System(error),
        }
    }

    unsafe fn reregister(
        &self,
        memory: Option<(*mut u8, usize)>,
        domain: Option<&Arc<Domain>>,
        access: Option<Access>,
    ) -> Result<(), RegisterError> {
        let mut guard = self.registered.write().unwrap_or_else(PoisonError::into_inner);
        let registered = guard.as_mut().ok_or(RegisterError::Gone)?;
        check_access(access.unwrap_or_default())?;
        if let Some((address, length)) = memory {
            check_length(&registered.domain, length)?;
            if (address as u64).checked_add(length as u64).is_none() {
                return Err(RegisterError::Wraps { address: address as u64, length: length as u64 });
            }
        }
        let flags = [
            (memory.is_some(), IBV_REREG_MR_CHANGE_TRANSLATION),
            (domain.is_some(), IBV_REREG_MR_CHANGE_PD),
            (access.is_some(), IBV_REREG_MR_CHANGE_ACCESS),
        ];
        let flags = flags.into_iter().filter(|(is_set, _)| *is_set).fold(0, |flags, (_, flag)| flags | flag);
        let domain_pointer = domain.unwrap_or(&registered.domain).as_ptr();
        let (address, length) = memory.unwrap_or((std::ptr::null_mut(), 0));
        let bits = access.map_or(0, registration_bits) as c_int;
        let handle = registered.handle.as_ptr();
        let library = self.context.library();
        // SAFETY: registered, and the lock keeps everybody else from using it; the domain is alive; the new memory is
        // what the caller promises it to be.
        let answer = unsafe { (library.ibv_rereg_mr)(handle, flags, domain_pointer, address.cast(), length, bits) };
        let error = io::Error::last_os_error();
        match answer {
            // What failed last is only about what a child process would see of the old memory.
            0 | IBV_REREG_MR_ERR_DO_FORK_OLD => {
                // SAFETY: registered.
                let (local_key, remote_key) = unsafe { ((*handle).lkey, (*handle).rkey) };
                self.local_key.store(local_key, Ordering::Relaxed);
                self.remote_key.store(remote_key, Ordering::Relaxed);
                if let Some(domain) = domain {
                    registered.domain = domain.clone();
                }
                if memory.is_some() {
                    self.first_address.store(address as u64, Ordering::Relaxed);
                    self.length.store(length as u64, Ordering::Relaxed);
                }
                Ok(())
            }
            IBV_REREG_MR_ERR_INPUT | IBV_REREG_MR_ERR_DONT_FORK_NEW => Err(RegisterError::System(error)),
            _ if is_not_supported(&error) => Err(NotSupported { capability: Capabilities::REREGISTER }.into()),
            _ => {
                // Which memory the device has now is not known. Have it let go of both.
                // SAFETY: registered and not yet deregistered.
                if check(unsafe { (library.ibv_dereg_mr)(handle) }).is_ok() {
                    *guard = None;
                }
                Err(RegisterError::System(error))
            }
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        match self.abandon() {
            Ok(()) | Err(DestroyError::Gone) => {}
            // The code that frees the memory has called `abandon` before, and got its answer.
            Err(error) => tracing::warn!(%error, "a region stays registered until the device is closed"),
        }
    }
}

impl raw::MemoryRegion for MemoryRegion {
    fn local_key(&self) -> u32 {
        self.region.local_key.load(Ordering::Relaxed)
    }

    fn remote_key(&self) -> u32 {
        self.region.remote_key.load(Ordering::Relaxed)
    }

    fn address(&self) -> u64 {
        self.region.first_address.load(Ordering::Relaxed)
    }

    fn length(&self) -> u64 {
        self.region.length.load(Ordering::Relaxed)
    }

    unsafe fn reregister(
        &self,
        memory: Option<(*mut u8, usize)>,
        domain: Option<&dyn raw::ProtectionDomain>,
        access: Option<Access>,
    ) -> Result<(), RegisterError> {
        let domain = match domain {
            None => None,
            Some(domain) => {
                let domain = own::<ProtectionDomain>(&self.region.context, domain);
                Some(domain.ok_or(RegisterError::ForeignObject { what: "protection domain" })?.domain())
            }
        };
        // SAFETY: the caller's promise.
        unsafe { self.region.reregister(memory, domain, access) }
    }

    fn deregister(&self) -> Result<(), DestroyError> {
        self.region.deregister()
    }

    fn abandon(&self) -> Result<(), DestroyError> {
        self.region.abandon()
    }
}

/// Where the addresses begin is an argument of its own, and not all devices know the flag.
fn registration_bits(access: Access) -> u32 {
    (access - Access::ZERO_BASED).bits()
}

fn check_access(access: Access) -> Result<(), RegisterError> {
    let remote_writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    if access.intersects(remote_writes) && !access.contains(Access::LOCAL_WRITE) {
        return Err(RegisterError::RemoteWriteWithoutLocalWrite);
    }
    Ok(())
}

fn check_length(domain: &Domain, length: usize) -> Result<(), RegisterError> {
    let most = domain.attributes().max_mr_size;
    if length as u64 > most {
        return Err(RegisterError::TooLarge { requested: length as u64, most });
    }
    if length == 0 {
        return Err(RegisterError::InvalidArgument { what: "bytes of a region", expected: "at least 1" });
    }
    Ok(())
}

fn refusal(error: io::Error, unsupported: NotSupported) -> RegisterError {
    if is_not_supported(&error) { unsupported.into() } else { error.into() }
}

fn page_bytes() -> u64 {
    // SAFETY: no argument but a name that every system knows.
    let bytes = unsafe { nix::libc::sysconf(nix::libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_access_bits_but_zero_based_go_to_the_device() {
        assert_eq!(registration_bits(Access::all()), Access::all().bits() & !(1 << 5));
        assert_eq!(registration_bits(Access::RELAXED_ORDERING), 1 << 20);
        assert_ne!(Access::RELAXED_ORDERING.bits() & IBV_ACCESS_OPTIONAL_RANGE, 0);
    }
}
