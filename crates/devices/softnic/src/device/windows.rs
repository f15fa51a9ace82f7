//! Memory windows as verbs programs see them.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use longhaul_verbs::raw;
use longhaul_verbs::{
    Capabilities, CreateError, DestroyError, NotSupported, PostError, PostErrorKind, SendFlags, WindowBinding,
    WindowRequest, WindowType,
};

use super::memory::MemoryRegion;
use super::queue_pair::QueuePair;
use super::shared::{Shared, check_count};
use crate::memory::{DomainId, KeyId, WindowBind};
use crate::nic::Nic;

/// A memory window.
pub(super) struct MemoryWindow {
    shared: Arc<Shared>,
    id: KeyId,
    window_type: WindowType,
    /// Type 1: the key that was given out last. It is the window's once the bind has been carried out. Changed while the
    /// device is locked.
    newest_key: AtomicU32,
}

impl MemoryWindow {
    pub(super) fn allocate(
        shared: &Arc<Shared>,
        domain: DomainId,
        window_type: WindowType,
    ) -> Result<Self, CreateError> {
        let mut nic = shared.lock();
        let Nic { shared: resources, random, .. } = &mut *nic;
        let most = resources.config.memory_windows_max;
        check_count("memory windows", resources.memory.window_count().into(), most.into())?;
        let (id, key) = resources.memory.allocate_window(window_type, domain, random);
        Ok(MemoryWindow { shared: shared.clone(), id, window_type, newest_key: AtomicU32::new(key) })
    }
}

impl raw::MemoryWindow for MemoryWindow {
    fn remote_key(&self) -> u32 {
        let newest = || self.newest_key.load(Ordering::Relaxed);
        match self.window_type {
            WindowType::Type1 => newest(),
            // The program has chosen it; before the first bind there is only the part that it may not choose.
            WindowType::Type2 => self.shared.lock().shared.memory.key_of(self.id).unwrap_or_else(newest),
        }
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
        let through = self.shared.own::<QueuePair>(through);
        let through = through.ok_or(PostErrorKind::ForeignObject { what: "queue pair" }.at(0))?.key;
        self.shared.with(|nic| {
            // The lower byte goes round: a key comes back as late as possible.
            let old = self.newest_key.load(Ordering::Relaxed);
            let key = old & !0xff | old.wrapping_add(1) & 0xff;
            let bind = bind_request(nic.serial, self, WindowType::Type1, binding, key).map_err(|kind| kind.at(0))?;
            nic.post_window_bind(through, id, flags, bind)?;
            self.newest_key.store(key, Ordering::Relaxed);
            Ok(())
        })
    }

    fn deallocate(&self) -> Result<(), DestroyError> {
        self.shared.lock().shared.memory.deallocate_window(self.id)
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        self.shared.tidy(|nic| nic.shared.memory.deallocate_window(self.id));
    }
}

/// What a request to bind a type 2 window under a key asks of the device with this serial number.
pub(crate) fn window_bind(
    device_serial: u64,
    request: &WindowRequest<'_>,
    key: u32,
) -> Result<WindowBind, PostErrorKind> {
    let window = (request.window as &dyn Any).downcast_ref::<MemoryWindow>();
    let window = window.ok_or(PostErrorKind::ForeignObject { what: "memory window" })?;
    bind_request(device_serial, window, WindowType::Type2, &request.binding, key)
}

fn bind_request(
    device_serial: u64,
    window: &MemoryWindow,
    window_type: WindowType,
    binding: &WindowBinding<'_>,
    key: u32,
) -> Result<WindowBind, PostErrorKind> {
    if window.shared.serial != device_serial {
        return Err(PostErrorKind::ForeignObject { what: "memory window" });
    }
    let region = (binding.region as &dyn Any).downcast_ref::<MemoryRegion>();
    let region = region
        .filter(|region| region.shared.serial == device_serial)
        .ok_or(PostErrorKind::ForeignObject { what: "region" })?;
    Ok(WindowBind {
        window: window.id,
        window_type,
        key,
        region: region.id,
        address: binding.address,
        length: binding.length,
        access: binding.access,
    })
}
