//! Memory windows on two devices: what the conformance suite cannot see because it knows neither the device's configuration nor
//! objects of other devices.

use crate::two_ends;

use longhaul_softnic::{Config, Device, Type2Windows};
use longhaul_verbs::{
    Access, Capabilities, CompletionStatus, CreateError, DestroyError, MemoryRegion, MemoryWindow, PostErrorKind,
    QueuePair, QueuePairOptions, RemoteMemory, SendFlags, SendOperation, SendRequest, Transport, WindowBinding,
    WindowRequest, WindowType,
};
use two_ends::{End, Reliability, at, pair, pair_with};

const UC: Transport = Transport::UnreliableConnection;

fn binding(region: &MemoryRegion) -> WindowBinding<'_> {
    WindowBinding { region: &**region.raw(), address: region.address(), length: 64, access: Access::REMOTE_WRITE }
}

fn bindable(end: &End) -> MemoryRegion {
    end.domain.register_zeroed(64, Access::LOCAL_WRITE | Access::WINDOW_BIND).unwrap()
}

fn bind_type_2(
    queue_pair: &QueuePair,
    window: &MemoryWindow,
    key: u32,
    region: &MemoryRegion,
) -> Result<(), PostErrorKind> {
    let window = WindowRequest { window: &**window.raw(), binding: binding(region) };
    let request = SendRequest { window: Some(window), ..SendRequest::new(9, SendOperation::BindWindow(key), &[]) };
    queue_pair.post_send(&[request]).map_err(|error| error.kind)
}

/// Writes eight sevens by a window's key; whether they have arrived.
fn writes(from: &End, to: &End, region: &MemoryRegion, key: u32) -> bool {
    from.region.copy_in(0, &[7; 8]);
    region.copy_in(0, &[0; 8]);
    let entry = [from.region.entry(0..8)];
    let remote = RemoteMemory { address: region.address(), key };
    from.queue_pair.post_send(&[SendRequest::new(1, SendOperation::Write(remote), &entry)]).unwrap();
    for packet in from.poll(at(0)) {
        to.receive(&packet, at(1));
    }
    region.to_vec(0..8) == [7; 8]
}

#[test]
fn a_device_says_which_kind_its_type_2_windows_are() {
    for (kind, has, has_not) in [
        (Type2Windows::A, Capabilities::WINDOW_TYPE_2A, Capabilities::WINDOW_TYPE_2B),
        (Type2Windows::B, Capabilities::WINDOW_TYPE_2B, Capabilities::WINDOW_TYPE_2A),
    ] {
        let (one, two) = pair_with(UC, Reliability::default(), |config| config.type_2_windows = kind);
        let capabilities = two.device.verbs().attributes().unwrap().capabilities;
        assert!(capabilities.contains(has | Capabilities::WINDOW_TYPE_1) && !capabilities.intersects(has_not));
        // A window of another protection domain than queue pair and region.
        let other_domain = two.device.verbs().allocate_protection_domain().unwrap();
        let window = other_domain.allocate_memory_window(WindowType::Type2).unwrap();
        let region = bindable(&two);
        let key = window.remote_key() ^ 1;
        bind_type_2(&two.queue_pair, &window, key, &region).unwrap();
        two.poll(at(0));
        let is_bound = kind == Type2Windows::A;
        let status = if is_bound { CompletionStatus::Success } else { CompletionStatus::WindowBindError };
        assert_eq!(two.completions()[0].status, status, "{kind:?}");
        assert_eq!(writes(&one, &two, &region, key), is_bound);
        assert_eq!(window.remote_key() == key, is_bound, "the window knows its key");
    }
}

#[test]
fn objects_of_another_device_are_refused() {
    let (one, two) = pair(UC);
    let foreign = |result: Result<(), PostErrorKind>| matches!(result, Err(PostErrorKind::ForeignObject { .. }));
    let (ours, theirs) = (bindable(&two), bindable(&one));
    let type_2 = |end: &End| end.domain.allocate_memory_window(WindowType::Type2).unwrap();
    assert!(foreign(bind_type_2(&two.queue_pair, &type_2(&one), 1, &ours)));
    assert!(foreign(bind_type_2(&two.queue_pair, &type_2(&two), 1, &theirs)));
    let type_1 = two.domain.allocate_memory_window(WindowType::Type1).unwrap();
    let bind = |queue_pair, region| {
        type_1.bind(queue_pair, 1, SendFlags::SIGNALED, &binding(region)).map_err(|error| error.kind)
    };
    let key = type_1.remote_key();
    assert!(foreign(bind(&one.queue_pair, &ours)));
    assert!(foreign(bind(&two.queue_pair, &theirs)));
    assert_eq!(type_1.remote_key(), key, "a bind that was not posted changes nothing");
    assert!(bind(&two.queue_pair, &ours).is_ok());
    assert_ne!(type_1.remote_key(), key);
}

/// The call is for type 1, the work request for type 2.
#[test]
fn each_type_is_bound_in_its_own_way() {
    let (_one, two) = pair(UC);
    let region = bindable(&two);
    let type_2 = two.domain.allocate_memory_window(WindowType::Type2).unwrap();
    let error = type_2.bind(&two.queue_pair, 1, SendFlags::SIGNALED, &binding(&region)).unwrap_err();
    assert!(matches!(error.kind, PostErrorKind::NotSupported(_)), "{error}");
    let type_1 = two.domain.allocate_memory_window(WindowType::Type1).unwrap();
    bind_type_2(&two.queue_pair, &type_1, type_1.remote_key(), &region).unwrap();
    two.poll(at(0));
    assert_eq!(two.completions()[0].status, CompletionStatus::WindowBindError);
}

/// A region that goes with windows bound to it is out of their reach, and its bytes are freed.
#[test]
fn a_region_dropped_under_a_window() {
    let (one, two) = pair(UC);
    let region = bindable(&two);
    let address = region.address();
    let window = two.domain.allocate_memory_window(WindowType::Type1).unwrap();
    window.bind(&two.queue_pair, 1, SendFlags::SIGNALED, &binding(&region)).unwrap();
    two.poll(at(0));
    assert!(writes(&one, &two, &region, window.remote_key()));
    assert!(matches!(region.raw().deregister(), Err(DestroyError::InUse { users: 1 })));
    drop(region);
    let entry = [one.region.entry(0..8)];
    let remote = RemoteMemory { address, key: window.remote_key() };
    one.queue_pair.post_send(&[SendRequest::new(1, SendOperation::Write(remote), &entry)]).unwrap();
    let before = two.counters();
    for packet in one.poll(at(2)) {
        two.receive(&packet, at(3));
    }
    assert_eq!(two.counters().rcvd_pkts, before.rcvd_pkts + 1);
    assert!(window.deallocate().is_ok());
    assert!(matches!(window.deallocate(), Err(DestroyError::Gone)));
}

#[test]
fn windows_are_limited() {
    let mut config = Config::new("windows", vec!["10.0.0.1".parse().unwrap()], [3; 32]);
    config.memory_windows_max = 2;
    let device = Device::new(config, || ()).verbs();
    assert_eq!(device.attributes().unwrap().max_memory_windows, 2);
    let domain = device.allocate_protection_domain().unwrap();
    let first = domain.allocate_memory_window(WindowType::Type1).unwrap();
    let _second = domain.allocate_memory_window(WindowType::Type2).unwrap();
    let third = || domain.allocate_memory_window(WindowType::Type2);
    assert!(matches!(third(), Err(CreateError::TooMany { requested: 3, most: 2, .. })));
    drop(first);
    assert!(third().is_ok());
    // Regions do not count.
    assert!(domain.register_zeroed(8, Access::empty()).is_ok());
}

#[test]
fn shared_receive_queues_are_limited_and_of_one_device() {
    let mut config = Config::new("shared", vec!["10.0.0.1".parse().unwrap()], [3; 32]);
    config.shared_receive_queues_max = 1;
    let device = Device::new(config, || ()).verbs();
    let domain = device.allocate_protection_domain().unwrap();
    let attributes = longhaul_verbs::SharedReceiveQueueAttributes { requests: 4, entries: 1, limit: 0 };
    let queue = domain.create_shared_receive_queue(attributes).unwrap();
    assert!(matches!(domain.create_shared_receive_queue(attributes), Err(CreateError::TooMany { .. })));
    let (one, _two) = pair(UC);
    let options = QueuePairOptions { shared_receive_queue: Some(queue), ..Default::default() };
    let made = one.domain.create_queue_pair(UC, &one.completions, &one.completions, &options);
    assert!(matches!(made.err(), Some(CreateError::ForeignObject { .. })));
}
