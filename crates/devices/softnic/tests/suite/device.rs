//! The device as an object: what it does with memory that goes away, with objects of other devices, and after a panic.

use crate::two_ends;

use std::sync::mpsc;

use longhaul_softnic::{Config, Device, Received};
use longhaul_time::Duration;
use longhaul_verbs::{
    Access, PathAttributes, PostErrorKind, QueuePairAttributes, QueuePairNumber, QueuePairOptions, QueuePairState,
    ReceiveRequest, RemoteMemory, SendFlags, SendOperation, SendRequest, Transport, WriteBurst,
};
use two_ends::{End, at, pair};

const UC: Transport = Transport::UnreliableConnection;

/// Two threads take the same region back. Neither may get its bytes while the device still knows the key.
#[test]
fn nobody_gets_memory_back_before_its_key_is_gone() {
    let (one, two) = pair(UC);
    one.region.copy_in(0, &[0x55; 100]);
    one.post_write(1, 100, &two);
    let packets = one.poll(at(0));
    let End { device, region, .. } = two;
    let raw = region.raw().clone();
    let mut driver = device.nic();
    let (sender, receiver) = mpsc::channel();
    let first = std::thread::spawn(move || raw.deregister().is_ok());
    // Let the first thread arrive at the lock that the driver holds.
    std::thread::sleep(Duration::from_millis(100));
    let second = std::thread::spawn(move || sender.send(region.into_buffer().unwrap()).unwrap());
    assert!(receiver.recv_timeout(Duration::from_millis(100)).is_err(), "the device still knows the key");
    let received = Received {
        source: packets[0].route.source,
        source_port: packets[0].route.source_port,
        destination: packets[0].route.destination,
        traffic_class: 0,
        hop_limit: 1,
        datagram: &packets[0].bytes,
        elided_bytes: 0,
    };
    driver.handle(&received, at(1));
    drop(driver);
    let bytes = receiver.recv().unwrap();
    assert_eq!(bytes[..101], [vec![0x55; 100], vec![0]].concat());
    first.join().unwrap();
    second.join().unwrap();
}

#[test]
fn a_region_of_a_device_that_has_panicked_is_dropped_in_peace() {
    let (one, _two) = pair(UC);
    let device = one.device.clone();
    let panicked = std::thread::spawn(move || {
        let _driver = device.nic();
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    let region = one.region;
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || drop(region))).is_ok());
}

#[test]
fn an_address_handle_of_another_device_is_refused() {
    let addresses = vec!["10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()];
    let other = Device::new(Config::new("other", addresses, [1; 32]), || ()).verbs();
    let path =
        PathAttributes { source_gid_index: 1, ..PathAttributes::to(std::net::Ipv4Addr::new(10, 0, 0, 9).into()) };
    let handle = other.allocate_protection_domain().unwrap().create_address_handle(&path).unwrap();
    let device = Device::new(Config::new("ours", vec!["10.0.0.3".parse().unwrap()], [2; 32]), || ()).verbs();
    let domain = device.allocate_protection_domain().unwrap();
    let completions = device.create_completion_queue(8).unwrap();
    let options = QueuePairOptions::default();
    let queue_pair =
        domain.create_queue_pair(Transport::UnreliableDatagram, &completions, &completions, &options).unwrap();
    queue_pair.modify(&QueuePairAttributes::init_datagram(7)).unwrap();
    queue_pair.modify(&QueuePairAttributes::to_state(QueuePairState::ReadyToReceive)).unwrap();
    queue_pair.modify(&QueuePairAttributes::ready_to_send(0)).unwrap();
    let request = SendRequest::new(1, SendOperation::Send, &[]).to(handle.destination(QueuePairNumber::new(5), 7));
    let error = queue_pair.post_send(&[request]).unwrap_err();
    assert!(matches!(error.kind, PostErrorKind::ForeignObject { .. }), "{error}");
}

#[test]
fn a_burst_to_the_end_of_the_address_space_is_the_peers_to_refuse() {
    let (one, _two) = pair(UC);
    let burst = WriteBurst {
        id: 1,
        local: one.region.entry(0..512),
        remote: RemoteMemory { address: u64::MAX - 10, key: 5 },
        stride: 256,
        immediates: &[1, 2],
        flags: SendFlags::SIGNALED,
    };
    one.queue_pair.post_write_burst(&burst).unwrap();
    assert_eq!(one.poll(at(0)).len(), 2);
}

#[test]
fn a_completion_queue_takes_its_events_with_it() {
    let (_one, two) = pair(UC);
    let verbs = two.device.verbs();
    let channel = verbs.create_completion_channel().unwrap();
    let completions = verbs.create_completion_queue_on(4, &channel, 42).unwrap();
    let queue_pair =
        two.domain.create_queue_pair(UC, &completions, &completions, &QueuePairOptions::default()).unwrap();
    completions.request_notification(false).unwrap();
    queue_pair.modify(&QueuePairAttributes::init_connected(Access::empty())).unwrap();
    queue_pair.modify(&QueuePairAttributes::to_state(QueuePairState::Error)).unwrap();
    queue_pair.post_receive(&[ReceiveRequest { id: 1, local: &[] }]).unwrap();
    drop((queue_pair, completions));
    assert_eq!(channel.next_event().unwrap(), None);
}

/// Tokens are the program's, and need not differ.
#[test]
fn a_completion_queue_that_goes_takes_no_event_of_another_with_it() {
    let device = Device::new(Config::new("events", vec!["10.0.0.1".parse().unwrap()], [3; 32]), || ()).verbs();
    let domain = device.allocate_protection_domain().unwrap();
    let channel = device.create_completion_channel().unwrap();
    let queue = |token| device.create_completion_queue_on(8, &channel, token).unwrap();
    let (one, two) = (queue(7), queue(7));
    let queue_pair = domain.create_queue_pair(UC, &two, &two, &QueuePairOptions::default()).unwrap();
    queue_pair.modify(&QueuePairAttributes::init_connected(Access::empty())).unwrap();
    queue_pair.post_receive(&[ReceiveRequest { id: 1, local: &[] }]).unwrap();
    two.request_notification(false).unwrap();
    queue_pair.modify(&QueuePairAttributes::to_state(QueuePairState::Error)).unwrap();
    drop(one);
    assert_eq!(channel.next_event().unwrap(), Some(7));
    assert_eq!(channel.next_event().unwrap(), None);
}

#[test]
fn queue_pairs_have_their_numbers_where_the_configuration_says() {
    for (numbers, pairs) in [(0..1 << 24, 64), (0x24_0000..0x28_0000, 64), (0xfc_0000..1 << 24, 64), (0..16, 8)] {
        let mut config = Config::new("numbers", vec!["192.0.2.1".parse().unwrap()], [5; 32]);
        (config.queue_pair_numbers, config.queue_pairs_max) = (numbers.clone(), pairs);
        let verbs = Device::new(config, || ()).verbs();
        let domain = verbs.allocate_protection_domain().unwrap();
        let completions = verbs.create_completion_queue(1).unwrap();
        let create = || domain.create_queue_pair(UC, &completions, &completions, &QueuePairOptions::default());
        let made: Vec<_> = (0..pairs).map(|_| create().unwrap()).collect();
        let mut drawn: Vec<u32> = made.iter().map(|pair| pair.number().value()).collect();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), pairs as usize, "each has its own");
        assert!(drawn.iter().all(|number| numbers.contains(number) && *number >= 2 && *number != 0xff_ffff));
        assert!(create().is_err(), "no more than there may be");
    }
}

#[test]
#[should_panic(expected = "an aligned power of two")]
fn numbers_that_are_no_part_are_refused() {
    let mut config = Config::new("numbers", vec!["192.0.2.1".parse().unwrap()], [5; 32]);
    config.queue_pair_numbers = 0x10..0x28;
    Device::new(config, || ());
}
