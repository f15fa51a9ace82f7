//! Windows: keys for parts of regions, with rights of their own, which requests in send queues change.
//!
//! | | who binds | its key | through which queue pair peers use it |
//! |---|---|---|---|
//! | type 1 | a queue pair of its protection domain | the device's choice, another one with each bind | any of its protection domain |
//! | type 2A | any queue pair of the region's protection domain, while it is bound only the one that did | lower byte the program's choice | the one that bound it |
//! | type 2B | a queue pair of its protection domain, as 2A | as 2A | the one that bound it |
//!
//! The memory that a window leads to is the region's, so the region must allow windows and, for writing through them, local
//! writes. It cannot be deregistered while windows are bound to it.

use longhaul_verbs::{Access, DestroyError, WindowType};
use rand_core::Rng;

use super::keys::{AccessDenied, Accessor, DomainId, KeyId, WindowBind};
use super::table::{Holder, MemoryTable};
use crate::config::Type2Windows;

/// A memory window.
#[derive(Clone)]
pub(super) struct Window {
    window_type: WindowType,
    domain: DomainId,
    binding: Option<Binding>,
    /// The same, or what it was bound to before it was invalidated.
    #[cfg(feature = "mutations")]
    last_binding: Option<Binding>,
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
        let window = Window {
            window_type,
            domain,
            binding: None,
            #[cfg(feature = "mutations")]
            last_binding: None,
        };
        self.insert(Holder::Window(window), random)
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
            // Nobody takes a type 2 window away from the queue pair that bound it.
            || !is_type_1 && window.binding.is_some_and(|old| !window.is_open_to(&old, who, self.type_2_windows))
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
        #[cfg(feature = "mutations")]
        if let (Some(key), mut old) = (self.key_of(bind.window), self.window(bind.window)?.clone()) {
            old.binding = old.last_binding;
            self.retire(crate::config::Mutation::WindowAfterRebind, key, Holder::Window(old));
        }
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
        self.binding_count += 1;
        let Some(Holder::Window(window)) = self.holder_mut(id) else { return };
        let old = std::mem::replace(&mut window.binding, binding);
        #[cfg(feature = "mutations")]
        if binding.is_some() {
            window.last_binding = binding;
        }
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

#[cfg(test)]
mod tests {
    use super::super::copy::Payload;
    use super::super::region::fixture::{DOMAIN, FULL, Fixture, OTHER_DOMAIN, REMOTE, TestRegion, WHO};
    use super::*;

    const BYTES: Payload<'static> = Payload::Carried(&[200; 8]);

    /// Through another queue pair of the same protection domain.
    const NEIGHBOUR: Accessor = Accessor { queue_pair: WHO.queue_pair + 1, ..WHO };
    const STRANGER: Accessor = Accessor { domain: OTHER_DOMAIN, queue_pair: WHO.queue_pair + 2 };

    fn window(fixture: &mut Fixture, window_type: WindowType) -> (KeyId, u32) {
        fixture.table.allocate_window(window_type, DOMAIN, &mut fixture.random)
    }

    /// Bytes 16 to 48 of a region.
    fn bind(window: (KeyId, u32), window_type: WindowType, region: TestRegion, access: Access) -> WindowBind {
        let (address, length) = (region.address + 16, 32);
        WindowBind { window: window.0, window_type, key: window.1 ^ 1, region: region.id, address, length, access }
    }

    fn writes(fixture: &Fixture, who: Accessor, key: u32, address: u64) -> bool {
        let write = fixture.table.remote_write(who, key, address, BYTES).is_ok();
        let finds = fixture.table.find_remote_write(who, key, address, 8).is_ok();
        let checks = fixture.table.check_remote(who, key, address, 8, Access::REMOTE_WRITE).is_ok();
        assert_eq!((write, write), (finds, checks), "all ways give the same answer");
        write
    }

    #[test]
    fn a_window_allows_what_it_says_and_not_what_its_region_says() {
        let rights = [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];
        for window_type in [WindowType::Type1, WindowType::Type2] {
            // Regions with no remote right, and with all of them: it makes no difference.
            for region_access in [Access::LOCAL_WRITE | Access::WINDOW_BIND, FULL] {
                for set in 0..8u32 {
                    let access =
                        (0..3).filter(|bit| set & 1 << bit != 0).fold(Access::empty(), |all, bit| all | rights[bit]);
                    let mut fixture = Fixture::new();
                    let region = fixture.region(64, DOMAIN, region_access);
                    let window = window(&mut fixture, window_type);
                    let bind = bind(window, window_type, region, access);
                    fixture.table.bind_window(WHO, &bind).unwrap();
                    let (table, address) = (&fixture.table, region.address + 16);
                    assert_eq!(table.remote_read(WHO, bind.key, address, 32).is_ok(), access.contains(rights[0]));
                    assert_eq!(table.remote_write(WHO, bind.key, address, BYTES).is_ok(), access.contains(rights[1]));
                    let atomic = table.remote_atomic(WHO, bind.key, address, |old| old);
                    assert_eq!(atomic.is_ok(), access.contains(rights[2]));
                }
            }
        }
    }

    #[test]
    fn an_access_stays_inside_the_window() {
        let mut fixture = Fixture::new();
        let region = fixture.region(64, DOMAIN, FULL);
        let window = window(&mut fixture, WindowType::Type2);
        let bind = bind(window, WindowType::Type2, region, REMOTE);
        fixture.table.bind_window(WHO, &bind).unwrap();
        assert!(!writes(&fixture, WHO, bind.key, region.address + 15));
        assert!(writes(&fixture, WHO, bind.key, region.address + 16));
        assert!(writes(&fixture, WHO, bind.key, region.address + 40));
        assert!(!writes(&fixture, WHO, bind.key, region.address + 41));
        assert!(!writes(&fixture, WHO, bind.key, u64::MAX - 2));
        assert_eq!(region.bytes(15..17), [15, 200]);
        assert_eq!(region.bytes(47..49), [200, 48]);
    }

    #[test]
    fn a_zero_based_window_counts_from_zero() {
        let mut fixture = Fixture::new();
        let region = fixture.region(64, DOMAIN, FULL);
        let window = window(&mut fixture, WindowType::Type2);
        let bind = bind(window, WindowType::Type2, region, REMOTE | Access::ZERO_BASED);
        fixture.table.bind_window(WHO, &bind).unwrap();
        assert!(writes(&fixture, WHO, bind.key, 24));
        assert!(!writes(&fixture, WHO, bind.key, 25));
        assert!(!writes(&fixture, WHO, bind.key, region.address + 16));
        assert_eq!(region.bytes(38..42), [38, 39, 200, 200]);
    }

    #[test]
    fn who_may_use_a_window() {
        // Type 1, 2A, 2B: through the queue pair that bound it, a neighbour, a stranger.
        let cases = [
            (WindowType::Type1, Type2Windows::B, [true, true, false]),
            (WindowType::Type2, Type2Windows::A, [true, false, false]),
            (WindowType::Type2, Type2Windows::B, [true, false, false]),
        ];
        for (window_type, kind, expected) in cases {
            let mut fixture = Fixture::with_windows(kind);
            let region = fixture.region(64, DOMAIN, FULL);
            let window = window(&mut fixture, window_type);
            let bind = bind(window, window_type, region, REMOTE);
            fixture.table.bind_window(WHO, &bind).unwrap();
            let seen = [WHO, NEIGHBOUR, STRANGER].map(|who| writes(&fixture, who, bind.key, bind.address));
            assert_eq!(seen, expected, "{window_type:?} {kind:?}");
        }
    }

    #[test]
    fn the_protection_domain_counts_for_2b_and_not_for_2a() {
        for kind in [Type2Windows::A, Type2Windows::B] {
            let mut fixture = Fixture::with_windows(kind);
            let region = fixture.region(64, OTHER_DOMAIN, FULL);
            let window = window(&mut fixture, WindowType::Type2);
            let bind = bind(window, WindowType::Type2, region, REMOTE);
            // The window is of another domain than region and queue pair.
            assert_eq!(fixture.table.bind_window(STRANGER, &bind).is_ok(), kind == Type2Windows::A);
            assert_eq!(writes(&fixture, STRANGER, bind.key, bind.address), kind == Type2Windows::A);
            // A queue pair never gives away memory of another domain.
            assert_eq!(fixture.table.bind_window(WHO, &bind), Err(AccessDenied));
        }
    }

    #[test]
    fn what_cannot_be_bound() {
        for window_type in [WindowType::Type1, WindowType::Type2] {
            let mut fixture = Fixture::new();
            let region = fixture.region(64, DOMAIN, FULL);
            let unbindable = fixture.region(64, DOMAIN, FULL - Access::WINDOW_BIND);
            let read_only = fixture.region(64, DOMAIN, Access::WINDOW_BIND);
            let foreign = fixture.region(64, OTHER_DOMAIN, FULL);
            let (null, _) = fixture.table.allocate_null_region(DOMAIN, &mut fixture.random);
            let window = window(&mut fixture, window_type);
            let good = bind(window, window_type, region, REMOTE);
            let other_type = if window_type == WindowType::Type1 { WindowType::Type2 } else { WindowType::Type1 };
            let bad = [
                WindowBind { region: unbindable.id, ..good },
                WindowBind { region: read_only.id, ..good },
                WindowBind { region: read_only.id, access: Access::REMOTE_ATOMIC, ..good },
                WindowBind { region: foreign.id, ..good },
                WindowBind { region: null, ..good },
                WindowBind { region: window.0, ..good },
                WindowBind { window: region.id, ..good },
                WindowBind { window_type: other_type, ..good },
                WindowBind { key: good.key ^ 0x100, ..good },
                WindowBind { address: region.address - 1, ..good },
                WindowBind { address: region.address + 33, ..good },
                WindowBind { address: u64::MAX - 2, ..good },
                WindowBind { length: u64::MAX, ..good },
            ];
            for (index, bad) in bad.iter().enumerate() {
                assert_eq!(fixture.table.bind_window(WHO, bad), Err(AccessDenied), "case {index}");
                assert!(!writes(&fixture, WHO, bad.key, bad.address));
            }
            assert_eq!(fixture.table.bind_window(STRANGER, &good), Err(AccessDenied));
            let zero_based = WindowBind { access: REMOTE | Access::ZERO_BASED, ..good };
            assert_eq!(fixture.table.bind_window(WHO, &zero_based).is_ok(), window_type == WindowType::Type2);
            let readable = WindowBind { region: read_only.id, access: Access::REMOTE_READ, ..good };
            assert_eq!(fixture.table.bind_window(WHO, &readable), Ok(()));
            assert_eq!(fixture.table.bind_window(WHO, &good), Ok(()));
            // A bind that fails changes nothing.
            assert_eq!(fixture.table.bind_window(WHO, &bad[0]), Err(AccessDenied));
            assert!(writes(&fixture, WHO, good.key, good.address));
            assert!(fixture.table.deregister(unbindable.id).is_ok());
            assert!(fixture.table.deregister(read_only.id).is_ok());
        }
    }

    #[test]
    fn the_old_key_is_dead_after_the_next_bind() {
        for window_type in [WindowType::Type1, WindowType::Type2] {
            let mut fixture = Fixture::new();
            let region = fixture.region(64, DOMAIN, FULL);
            let window = window(&mut fixture, window_type);
            let first = bind(window, window_type, region, REMOTE);
            let second = WindowBind { key: first.key ^ 0x40, ..first };
            assert!(!writes(&fixture, WHO, window.1, first.address), "a window that was never bound");
            fixture.table.bind_window(WHO, &first).unwrap();
            assert_eq!(fixture.table.key_of(window.0), Some(first.key));
            assert!(!writes(&fixture, WHO, second.key, first.address), "a key that will be");
            fixture.table.bind_window(WHO, &second).unwrap();
            assert!(!writes(&fixture, WHO, first.key, first.address), "a key that was");
            assert!(writes(&fixture, WHO, second.key, first.address));
            let unbound = WindowBind { length: 0, key: first.key, ..first };
            fixture.table.bind_window(WHO, &unbound).unwrap();
            for key in [first.key, second.key] {
                assert!(!writes(&fixture, WHO, key, first.address), "bound to nothing");
            }
            assert!(fixture.table.deregister(region.id).is_ok());
        }
    }

    #[test]
    fn only_type_2_windows_are_invalidated_and_only_by_those_who_may_use_them() {
        let mut fixture = Fixture::new();
        let region = fixture.region(64, DOMAIN, FULL);
        let (_, null) = fixture.table.allocate_null_region(DOMAIN, &mut fixture.random);
        let slotted = fixture.table.allocate_slotted_region(1, 8, DOMAIN, REMOTE, 9, &mut fixture.random).unwrap();
        let type_1 = window(&mut fixture, WindowType::Type1);
        let bound_1 = bind(type_1, WindowType::Type1, region, REMOTE);
        let type_2 = window(&mut fixture, WindowType::Type2);
        let bound_2 = bind(type_2, WindowType::Type2, region, REMOTE);
        assert_eq!(fixture.table.invalidate(WHO, type_2.1), Err(AccessDenied), "never bound");
        fixture.table.bind_window(WHO, &bound_1).unwrap();
        fixture.table.bind_window(WHO, &bound_2).unwrap();
        for key in [region.key, null, slotted.1, bound_1.key, type_2.1, bound_2.key ^ 0x100] {
            assert_eq!(fixture.table.invalidate(WHO, key), Err(AccessDenied));
        }
        for who in [NEIGHBOUR, STRANGER] {
            assert_eq!(fixture.table.invalidate(who, bound_2.key), Err(AccessDenied));
        }
        assert!(writes(&fixture, WHO, bound_2.key, bound_2.address));
        assert_eq!(fixture.table.invalidate(WHO, bound_2.key), Ok(()));
        assert!(!writes(&fixture, WHO, bound_2.key, bound_2.address));
        assert_eq!(fixture.table.invalidate(WHO, bound_2.key), Err(AccessDenied), "a second time");
        assert!(writes(&fixture, WHO, bound_1.key, bound_1.address));
        assert!(writes(&fixture, WHO, region.key, region.address));
        // It can be bound again.
        fixture.table.bind_window(NEIGHBOUR, &WindowBind { key: bound_2.key ^ 2, ..bound_2 }).unwrap();
        assert!(writes(&fixture, NEIGHBOUR, bound_2.key ^ 2, bound_2.address));
    }

    #[test]
    fn a_region_stays_while_windows_are_bound_to_it() {
        let mut fixture = Fixture::new();
        let region = fixture.region(64, DOMAIN, FULL);
        let windows = [WindowType::Type1, WindowType::Type2, WindowType::Type2].map(|window_type| {
            let window = window(&mut fixture, window_type);
            let bind = bind(window, window_type, region, REMOTE);
            // Twice: it counts once.
            fixture.table.bind_window(WHO, &bind).unwrap();
            fixture.table.bind_window(WHO, &bind).unwrap();
            bind
        });
        let users = |fixture: &mut Fixture| match fixture.table.deregister(region.id) {
            Err(DestroyError::InUse { users }) => users,
            result => panic!("{result:?}"),
        };
        assert_eq!(users(&mut fixture), 3);
        assert!(writes(&fixture, WHO, region.key, region.address), "the refusal has changed nothing");
        fixture.table.bind_window(WHO, &WindowBind { length: 0, ..windows[0] }).unwrap();
        assert_eq!(users(&mut fixture), 2);
        fixture.table.invalidate(WHO, windows[1].key).unwrap();
        assert_eq!(users(&mut fixture), 1);
        assert_eq!(fixture.table.window_count(), 3);
        fixture.table.deallocate_window(windows[2].window).unwrap();
        assert!(matches!(fixture.table.deallocate_window(windows[2].window), Err(DestroyError::Gone)));
        assert_eq!(fixture.table.window_count(), 2);
        assert!(fixture.table.deregister(region.id).is_ok());
        assert_eq!(fixture.table.bind_window(WHO, &windows[0]), Err(AccessDenied), "the region is gone");
        assert_eq!(fixture.table.bind_window(WHO, &windows[2]), Err(AccessDenied), "the window is gone");
    }

    #[test]
    fn an_abandoned_region_is_out_of_reach_for_its_windows() {
        let mut fixture = Fixture::new();
        let region = fixture.region(64, DOMAIN, FULL);
        let window = window(&mut fixture, WindowType::Type1);
        let bind = bind(window, WindowType::Type1, region, REMOTE);
        fixture.table.bind_window(WHO, &bind).unwrap();
        fixture.table.abandon_region(region.id).unwrap();
        assert!(!writes(&fixture, WHO, bind.key, bind.address));
        assert!(!writes(&fixture, WHO, region.key, region.address));
        assert_eq!(fixture.table.bind_window(WHO, &bind), Err(AccessDenied));
        fixture.table.deallocate_window(window.0).unwrap();
        assert_eq!((fixture.table.region_count(), fixture.table.window_count()), (0, 0));
    }

    #[test]
    fn windows_of_a_queue_pair_that_is_gone_are_not_bound() {
        let mut fixture = Fixture::new();
        let region = fixture.region(64, DOMAIN, FULL);
        let windows = [(WHO, WindowType::Type1), (WHO, WindowType::Type2), (NEIGHBOUR, WindowType::Type2)];
        let [type_1, type_2, neighbours] = windows.map(|(who, window_type)| {
            let window = window(&mut fixture, window_type);
            let bind = bind(window, window_type, region, REMOTE);
            fixture.table.bind_window(who, &bind).unwrap();
            bind
        });
        // One that has moved to the neighbour is the neighbour's.
        let moved = window(&mut fixture, WindowType::Type2);
        let moved = bind(moved, WindowType::Type2, region, REMOTE);
        fixture.table.bind_window(WHO, &moved).unwrap();
        assert_eq!(fixture.table.bind_window(NEIGHBOUR, &moved), Err(AccessDenied), "it is bound by another");
        fixture.table.invalidate(WHO, moved.key).unwrap();
        fixture.table.bind_window(NEIGHBOUR, &moved).unwrap();
        fixture.table.forget_queue_pair(WHO.queue_pair);
        // Another queue pair may be given the same number.
        assert!(!writes(&fixture, WHO, type_2.key, type_2.address));
        assert!(writes(&fixture, NEIGHBOUR, neighbours.key, neighbours.address));
        assert!(writes(&fixture, NEIGHBOUR, moved.key, moved.address));
        assert!(writes(&fixture, WHO, type_1.key, type_1.address));
        fixture.table.forget_queue_pair(NEIGHBOUR.queue_pair);
        fixture.table.deallocate_window(type_1.window).unwrap();
        assert!(fixture.table.deregister(region.id).is_ok());
    }
}
