//! Memory: regions and windows.

use longhaul_verbs::{
    Access, Capabilities, CompletionOperation, CompletionStatus, DestroyError, PostErrorKind, RegisterError,
    RemoteMemory, SendFlags, SendOperation, SendRequest, Transport, WindowBinding, WindowRequest, WindowType,
};

use super::{ALL_ACCESS, BOTH_WAYS, Bench, Way, bench, pattern};

const RC: Transport = Transport::ReliableConnection;

fn has(bench: &Bench, capability: Capabilities) -> bool {
    let has = bench.device.attributes().unwrap().capabilities.intersects(capability);
    if !has {
        eprintln!("SKIPPED a part: the device has no {capability:?}");
    }
    has
}

#[test]
fn a_region_is_deregistered_once() {
    let Some(bench) = bench("a_region_is_deregistered_once") else { return };
    let region = bench.region();
    assert_eq!(region.raw().length() as usize, super::REGION_BYTES);
    region.raw().deregister().unwrap();
    assert!(matches!(region.raw().deregister(), Err(DestroyError::Gone)));
    assert_eq!(region.into_buffer().unwrap().len(), super::REGION_BYTES);
}

#[test]
fn regions_that_cannot_be_are_refused() {
    let Some(bench) = bench("regions_that_cannot_be_are_refused") else { return };
    let refused = bench.domain.register_zeroed(16, Access::REMOTE_WRITE).err();
    assert!(matches!(refused, Some(RegisterError::RemoteWriteWithoutLocalWrite)), "{refused:?}");
    let refused = bench.domain.register_zeroed(0, ALL_ACCESS).err();
    assert!(matches!(refused, Some(RegisterError::InvalidArgument { .. })), "{refused:?}");
    let mut memory = vec![0u8; 8192];
    let odd = memory.as_mut_ptr().wrapping_add(1);
    // SAFETY: refused, so that nothing is registered.
    let refused = unsafe { bench.domain.raw().register_memory(odd, 100, 0x1000, ALL_ACCESS) }.err();
    let begins_elsewhere = !(odd as usize).is_multiple_of(4096);
    assert!(!begins_elsewhere || matches!(refused, Some(RegisterError::InvalidArgument { .. })), "{refused:?}");
    // SAFETY: as above.
    let refused = unsafe { bench.domain.raw().register_memory(odd, usize::MAX, odd as u64, ALL_ACCESS) }.err();
    assert!(matches!(refused, Some(RegisterError::Wraps { .. } | RegisterError::TooLarge { .. })), "{refused:?}");
}

#[test]
fn a_region_can_begin_at_another_address() {
    let Some(bench) = bench("a_region_can_begin_at_another_address") else { return };
    let [from, _] = bench.pair(RC, Way::Calls);
    let to = bench.end(RC, Way::Calls);
    from.raw().modify(&super::QueuePairAttributes::to_state(super::QueuePairState::Reset)).unwrap();
    from.connect(&to);
    to.connect(&from);
    let mut memory = vec![0u8; 3 * 4096];
    let skip = memory.as_ptr().align_offset(4096);
    let start = memory.as_mut_ptr().wrapping_add(skip);
    // SAFETY: the memory outlives the region, which is deregistered below, and is not touched meanwhile.
    let region =
        unsafe { bench.domain.raw().register_memory(start, 4096, 0, ALL_ACCESS | Access::ZERO_BASED) }.unwrap();
    assert_eq!((region.address(), region.length()), (0, 4096));
    from.region.copy_in(0, &pattern(100, 1));
    let remote = RemoteMemory { address: 50, key: region.remote_key() };
    from.post(SendRequest::new(1, SendOperation::Write(remote), &[from.region.entry(0..100)]));
    bench.completions(1);
    region.deregister().unwrap();
    assert_eq!(memory[skip + 50..skip + 150], pattern(100, 1));
}

#[test]
fn regions_are_registered_again() {
    let Some(bench) = bench("regions_are_registered_again") else { return };
    let is_there = has(&bench, Capabilities::REREGISTER);
    let region = bench.region();
    // SAFETY: only the rights change.
    let answer = unsafe { region.raw().reregister(None, None, Some(Access::LOCAL_WRITE)) };
    match answer {
        Ok(()) => assert!(is_there),
        Err(RegisterError::NotSupported(_)) => assert!(!is_there),
        Err(error) => panic!("{error}"),
    }
    assert!(region.into_buffer().is_ok(), "whatever the result was");
}

#[test]
fn what_is_not_there_is_said() {
    let Some(bench) = bench("what_is_not_there_is_said") else { return };
    let has_null = has(&bench, Capabilities::NULL_REGION);
    match bench.domain.allocate_null_region() {
        Ok(_) => assert!(has_null),
        Err(error) => assert!(!has_null && matches!(error, RegisterError::NotSupported(_)), "{error}"),
    }
}

#[test]
fn a_window_of_type_1_leads_to_its_part() {
    let Some(bench) = bench("a_window_of_type_1_leads_to_its_part") else { return };
    if !has(&bench, Capabilities::WINDOW_TYPE_1) {
        return;
    }
    for way in BOTH_WAYS {
        let [from, to] = bench.pair(RC, way);
        let window = bench.domain.raw().allocate_memory_window(WindowType::Type1).unwrap();
        let binding = WindowBinding {
            region: &**to.region.raw(),
            address: to.region.address() + 1000,
            length: 100,
            access: Access::REMOTE_WRITE,
        };
        let before = window.remote_key();
        window.bind(to.raw(), 1, SendFlags::SIGNALED, &binding).unwrap();
        assert_ne!(window.remote_key(), before);
        assert_eq!(bench.completions(1)[0].operation, CompletionOperation::BindWindow, "{way:?}");
        from.region.copy_in(0, &pattern(100, 1));
        let remote = RemoteMemory { address: binding.address, key: window.remote_key() };
        from.post(SendRequest::new(2, SendOperation::Write(remote), &[from.region.entry(0..100)]));
        bench.completions(1);
        assert_eq!(to.region.to_vec(1000..1100), pattern(100, 1));
        // Not while a window is bound to it.
        let refused = to.region.raw().deregister();
        assert!(matches!(refused, Err(DestroyError::InUse { users: 1 })), "{refused:?}");
        window.deallocate().unwrap();
        from.post(SendRequest::new(3, SendOperation::Write(remote), &[from.region.entry(0..100)]));
        let refused = bench.next_completion();
        assert_eq!((refused.id, refused.status), (3, CompletionStatus::RemoteAccessError));
        assert!(matches!(window.deallocate(), Err(DestroyError::Gone)));
        let error = window.bind(to.raw(), 4, SendFlags::SIGNALED, &binding).unwrap_err();
        assert!(matches!(error.kind, PostErrorKind::System(_)), "{error}");
        to.region.raw().deregister().unwrap();
    }
}

#[test]
fn a_window_of_type_2_has_the_programs_key() {
    let Some(bench) = bench("a_window_of_type_2_has_the_programs_key") else { return };
    if !has(&bench, Capabilities::WINDOW_TYPE_2A | Capabilities::WINDOW_TYPE_2B) {
        return;
    }
    for way in BOTH_WAYS {
        let [from, to] = bench.pair(RC, way);
        let window = bench.domain.raw().allocate_memory_window(WindowType::Type2).unwrap();
        let binding = WindowBinding {
            region: &**to.region.raw(),
            address: to.region.address(),
            length: 100,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        };
        let key = window.remote_key() & !0xff | 0x5a;
        let bind = SendRequest {
            window: Some(WindowRequest { window: &*window, binding }),
            ..SendRequest::new(1, SendOperation::BindWindow(key), &[])
        };
        // In the middle of a batch.
        let entry = [to.region.entry(0..8)];
        let write = SendRequest::new(0, SendOperation::Write(from.region.remote(500)), &entry);
        to.try_post(&[write, bind, write]).unwrap();
        let ids: Vec<_> = bench.completions(3).iter().map(|completion| completion.id).collect();
        assert_eq!(ids, [0, 1, 0], "{way:?}");
        assert_eq!(window.remote_key(), key);
        from.region.copy_in(0, &pattern(100, 1));
        let remote = RemoteMemory { address: binding.address, key };
        from.post(SendRequest::new(2, SendOperation::Write(remote), &[from.region.entry(0..100)]));
        bench.completions(1);
        assert_eq!(to.region.to_vec(0..100), pattern(100, 1), "{way:?}");
        to.post(SendRequest::new(3, SendOperation::LocalInvalidate(key), &[]));
        assert_eq!(bench.completions(1)[0].operation, CompletionOperation::LocalInvalidate, "{way:?}");
        from.post(SendRequest::new(4, SendOperation::Write(remote), &[from.region.entry(0..100)]));
        assert_eq!(bench.next_completion().status, CompletionStatus::RemoteAccessError, "{way:?}");
        // Nothing is bound any more, whatever we counted.
        to.region.raw().deregister().unwrap();
    }
}

#[test]
fn sends_invalidate_windows_of_the_peer() {
    let Some(bench) = bench("sends_invalidate_windows_of_the_peer") else { return };
    if !has(&bench, Capabilities::WINDOW_TYPE_2A | Capabilities::WINDOW_TYPE_2B) {
        return;
    }
    for way in BOTH_WAYS {
        let [from, to] = bench.pair(RC, way);
        let window = bench.domain.raw().allocate_memory_window(WindowType::Type2).unwrap();
        let binding = WindowBinding {
            region: &**to.region.raw(),
            address: to.region.address(),
            length: 100,
            access: Access::REMOTE_WRITE,
        };
        let key = window.remote_key() & !0xff | 0x11;
        to.post(SendRequest {
            window: Some(WindowRequest { window: &*window, binding }),
            ..SendRequest::new(1, SendOperation::BindWindow(key), &[])
        });
        bench.completions(1);
        to.receive(2, 0..64);
        from.post(SendRequest::new(3, SendOperation::SendWithInvalidate(key), &[from.region.entry(0..4)]));
        let (_, received) = bench.message(3);
        assert_eq!((received.id, received.byte_count), (2, 4), "{way:?}");
        let remote = RemoteMemory { address: binding.address, key };
        from.post(SendRequest::new(4, SendOperation::Write(remote), &[from.region.entry(0..4)]));
        assert_eq!(bench.next_completion().status, CompletionStatus::RemoteAccessError, "{way:?}");
    }
}

#[test]
fn a_region_that_goes_leaves_its_windows_bound_to_nothing() {
    let Some(bench) = bench("a_region_that_goes_leaves_its_windows_bound_to_nothing") else { return };
    if !has(&bench, Capabilities::WINDOW_TYPE_1) {
        return;
    }
    let [from, to] = bench.pair(RC, Way::Calls);
    let window = bench.domain.raw().allocate_memory_window(WindowType::Type1).unwrap();
    let bind = |region: &longhaul_verbs::MemoryRegion| {
        let (address, access) = (region.address(), Access::REMOTE_WRITE);
        let binding = WindowBinding { region: &**region.raw(), address, length: 100, access };
        window.bind(to.raw(), 1, SendFlags::SIGNALED, &binding).unwrap();
        bench.completions(1);
        RemoteMemory { address, key: window.remote_key() }
    };
    let passing = bench.region();
    let old = bind(&passing);
    assert!(matches!(passing.raw().deregister(), Err(DestroyError::InUse { users: 1 })));
    passing.raw().abandon().unwrap();
    assert!(matches!(passing.raw().deregister(), Err(DestroyError::Gone)), "the memory may be freed");
    drop(passing);
    // The window can be used again.
    let new = bind(&to.region);
    from.region.copy_in(0, &pattern(100, 7));
    from.post(SendRequest::new(2, SendOperation::Write(new), &[from.region.entry(0..100)]));
    bench.completions(1);
    assert_eq!(to.region.to_vec(0..100), pattern(100, 7));
    from.post(SendRequest::new(3, SendOperation::Write(old), &[from.region.entry(0..100)]));
    assert_eq!(bench.next_completion().status, CompletionStatus::RemoteAccessError, "the old key leads nowhere");
}
