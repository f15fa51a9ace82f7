//! Windows: keys for parts of regions, with rights of their own, which requests in send queues change.
//!
//! | | who binds | its key | through which queue pair peers use it |
//! |---|---|---|---|
//! | type 1 | a queue pair of its protection domain | the device's choice, another one with each bind | any of its protection domain |
//! | type 2A | any queue pair of the region's protection domain | lower byte the program's choice | the one that bound it |
//! | type 2B | a queue pair of its protection domain | as 2A | the one that bound it |
//!
//! The memory that a window leads to is the region's, so the region must allow windows and, for writing through them, local
//! writes. It cannot be deregistered while windows are bound to it.

use longhaul_verbs::{Access, DestroyError, WindowType};
use rand_core::Rng;

use super::table::{Holder, MemoryTable};
use super::{AccessDenied, Accessor, DomainId, KeyId, WindowBind};
use crate::config::Type2Windows;

/// A memory window.
pub(super) struct Window {
    window_type: WindowType,
    domain: DomainId,
    binding: Option<Binding>,
}

#[derive(Clone, Copy)]
struct Binding {
    region: KeyId,
    /// That it was bound through.
    queue_pair: u32,
    /// The first byte, as the region names it and as peers do.
    region_address: u64,
    first_address: u64,
    length: u64,
    access: Access,
}

impl Window {
    /// Whether peers may use a binding of this window through a queue pair.
    fn is_open_to(&self, binding: &Binding, who: Accessor, type_2_windows: Type2Windows) -> bool {
        let (is_its_domain, is_its_queue_pair) = (who.domain == self.domain, who.queue_pair == binding.queue_pair);
        match (self.window_type, type_2_windows) {
            (WindowType::Type1, _) => is_its_domain,
            (WindowType::Type2, Type2Windows::A) => is_its_queue_pair,
            (WindowType::Type2, Type2Windows::B) => is_its_queue_pair && is_its_domain,
        }
    }
}

impl MemoryTable {
    /// A window that is not bound: its name and its first key.
    pub(crate) fn allocate_window(
        &mut self,
        window_type: WindowType,
        domain: DomainId,
        random: &mut impl Rng,
    ) -> (KeyId, u32) {
        self.insert(Holder::Window(Window { window_type, domain, binding: None }), random)
    }

    /// Forget a window, bound or not.
    pub(crate) fn deallocate_window(&mut self, id: KeyId) -> Result<(), DestroyError> {
        self.window(id).map_err(|_| DestroyError::Gone)?;
        self.set_binding(id, None);
        self.remove(id);
        Ok(())
    }

    fn window(&self, id: KeyId) -> Result<&Window, AccessDenied> {
        match self.holder(id) {
            Some(Holder::Window(window)) => Ok(window),
            _ => Err(AccessDenied),
        }
    }

    /// Where a range is that a peer names by a window's key.
    pub(super) fn through_window(
        &self,
        window: &Window,
        who: Accessor,
        address: u64,
        length: u64,
        needed: Access,
    ) -> Result<*mut u8, AccessDenied> {
        let binding = window.binding.as_ref().ok_or(AccessDenied)?;
        let offset = address.checked_sub(binding.first_address).ok_or(AccessDenied)?;
        let end = offset.checked_add(length).ok_or(AccessDenied)?;
        let is_allowed = window.is_open_to(binding, who, self.type_2_windows) && binding.access.contains(needed);
        if !is_allowed || end > binding.length {
            return Err(AccessDenied);
        }
        // Inside of the region since the binding, unless the region has been abandoned.
        self.region(binding.region)?.locate(binding.region_address + offset, length)
    }

    /// Carry out a request that binds a window. On error everything is as before.
    pub(crate) fn bind_window(&mut self, who: Accessor, bind: &WindowBind) -> Result<(), AccessDenied> {
        let window = self.window(bind.window)?;
        let is_type_1 = window.window_type == WindowType::Type1;
        let binds_to_domain = is_type_1 || self.type_2_windows == Type2Windows::B;
        // The specification has zero-based windows of type 2 only (o10-36.2.2).
        let is_zero_based = bind.access.contains(Access::ZERO_BASED);
        if window.window_type != bind.window_type
            || bind.key >> 8 != bind.window.index
            || binds_to_domain && window.domain != who.domain
            || is_type_1 && is_zero_based
        {
            return Err(AccessDenied);
        }
        let binding = match bind.length {
            0 => None,
            length => {
                let region = self.region(bind.region)?;
                region.locate(bind.address, length)?;
                let writes = bind.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
                if region.domain != who.domain
                    || !region.access.contains(Access::WINDOW_BIND)
                    || writes && !region.access.contains(Access::LOCAL_WRITE)
                {
                    return Err(AccessDenied);
                }
                Some(Binding {
                    region: bind.region,
                    queue_pair: who.queue_pair,
                    region_address: bind.address,
                    first_address: if is_zero_based { 0 } else { bind.address },
                    length,
                    access: bind.access,
                })
            }
        };
        self.set_binding(bind.window, binding);
        self.change_key(bind.window, bind.key);
        Ok(())
    }

    /// Make the key of a type 2 window invalid, as a request of this queue pair or of its peer asks. Nothing else can be
    /// invalidated: regions and slotted regions are deregistered, and type 1 windows are bound to nothing.
    pub(crate) fn invalidate(&mut self, who: Accessor, key: u32) -> Result<(), AccessDenied> {
        let id = self.id_of(key).ok_or(AccessDenied)?;
        let window = self.window(id)?;
        let binding = window.binding.as_ref().ok_or(AccessDenied)?;
        if window.window_type != WindowType::Type2 || !window.is_open_to(binding, who, self.type_2_windows) {
            return Err(AccessDenied);
        }
        self.set_binding(id, None);
        Ok(())
    }

    /// A queue pair is gone: type 2 windows that were bound through it are not bound any more. (Its number may be given to
    /// another one.)
    pub(crate) fn forget_queue_pair(&mut self, queue_pair: u32) {
        while let Some(&(_, index)) = self.bound_through.range((queue_pair, 0)..=(queue_pair, u32::MAX)).next() {
            self.bound_through.remove(&(queue_pair, index));
            if let Some(id) = self.id_at(index) {
                self.set_binding(id, None);
            }
        }
    }

    /// Change what a window is bound to, and what is kept about it elsewhere.
    fn set_binding(&mut self, id: KeyId, binding: Option<Binding>) {
        let Some(Holder::Window(window)) = self.holder_mut(id) else { return };
        let old = std::mem::replace(&mut window.binding, binding);
        let is_type_2 = window.window_type == WindowType::Type2;
        if let Some(new) = binding {
            if let Some(Holder::Region(region)) = self.holder_mut(new.region) {
                region.windows += 1;
            }
            if is_type_2 {
                self.bound_through.insert((new.queue_pair, id.index));
            }
        }
        if let Some(old) = old {
            if is_type_2 && binding.is_none_or(|new| new.queue_pair != old.queue_pair) {
                self.bound_through.remove(&(old.queue_pair, id.index));
            }
            let mut is_last = false;
            if let Some(Holder::Region(region)) = self.holder_mut(old.region) {
                region.windows -= 1;
                is_last = region.windows == 0 && region.is_abandoned;
            }
            if is_last {
                self.remove(old.region);
            }
        }
    }
}
