//! Datagrams: address handles, groups.

use longhaul_verbs::{
    DatagramDestination, Gid, MulticastError, PathAttributes, PostErrorKind, QueuePairNumber, SendOperation,
    SendRequest, Transport,
};

use super::{BOTH_WAYS, QUEUE_KEY, Way, bench, pattern};

const UD: Transport = Transport::UnreliableDatagram;
/// In front of every datagram.
const ROUTE_HEADER: usize = 40;

#[test]
fn datagrams_arrive_and_say_who_sent_them() {
    let Some(bench) = bench("datagrams_arrive_and_say_who_sent_them") else { return };
    for way in BOTH_WAYS {
        let [from, to] = bench.pair(UD, way);
        for (round, length) in [0, 1, 1024].into_iter().enumerate() {
            let data = pattern(length, round as u8);
            from.region.copy_in(0, &data);
            to.receive(1, 0..2048);
            let entry = [from.region.entry(0..length)];
            let handle = bench.domain.raw().create_address_handle(&bench.path).unwrap();
            assert_eq!(handle.path(), bench.path);
            let destination =
                DatagramDestination { address_handle: &*handle, queue_pair: to.raw().number(), queue_key: QUEUE_KEY };
            from.post(SendRequest::new(2, SendOperation::SendWithImmediate(9), &entry).to(destination));
            // The datagram may still be in the queue; the queue pair keeps what it needs.
            drop(handle);
            let (_, received) = bench.message(2);
            assert_eq!(received.byte_count as usize, ROUTE_HEADER + length, "{way:?}");
            assert_eq!(received.source_queue_pair, from.raw().number());
            assert_eq!(received.immediate(), Some(9));
            assert_eq!(to.region.to_vec(ROUTE_HEADER..ROUTE_HEADER + length), data, "{way:?}");
        }
    }
}

#[test]
fn address_handles_of_queued_datagrams_may_go() {
    let Some(bench) = bench("address_handles_of_queued_datagrams_may_go") else { return };
    for way in BOTH_WAYS {
        let [from, to] = bench.pair(UD, way);
        let entry = [from.region.entry(0..16)];
        for id in 0..100 {
            to.receive(id, 0..256);
        }
        for _ in 0..10 {
            let handle = bench.domain.raw().create_address_handle(&bench.path).unwrap();
            let destination =
                DatagramDestination { address_handle: &*handle, queue_pair: to.raw().number(), queue_key: QUEUE_KEY };
            from.try_post(&[SendRequest::new(1000, SendOperation::Send, &entry).to(destination); 10]).unwrap();
        }
        let completions = bench.completions(200);
        assert_eq!(completions.iter().filter(|completion| completion.id == 1000).count(), 100, "{way:?}");
    }
}

#[test]
fn datagrams_without_a_destination_are_refused() {
    let Some(bench) = bench("datagrams_without_a_destination_are_refused") else { return };
    let [from, _to] = bench.pair(UD, Way::Calls);
    let entry = [from.region.entry(0..16)];
    let error = from.try_post(&[SendRequest::new(1, SendOperation::Send, &entry)]).unwrap_err();
    assert!(matches!(error.kind, PostErrorKind::Destination), "{error}");
    // Of the same device, opened again: C would follow the pointer.
    let other = super::Bench::open(bench.device.name());
    let foreign = other.domain.raw().create_address_handle(&bench.path).unwrap();
    let destination =
        DatagramDestination { address_handle: &*foreign, queue_pair: QueuePairNumber::new(5), queue_key: QUEUE_KEY };
    let error = from.try_post(&[SendRequest::new(1, SendOperation::Send, &entry).to(destination)]).unwrap_err();
    assert!(matches!(error.kind, PostErrorKind::ForeignObject { what: "address handle" }), "{error}");
}

#[test]
fn paths_that_lead_nowhere_are_refused() {
    let Some(bench) = bench("paths_that_lead_nowhere_are_refused") else { return };
    let version_6 = PathAttributes { destination: Gid::from_ip("fd00::1".parse().unwrap()), ..bench.path };
    let bad = [
        version_6,
        PathAttributes { source_gid_index: 200, ..bench.path },
        PathAttributes { port: 0, ..bench.path },
        PathAttributes { port: 9, ..bench.path },
        PathAttributes { udp_port: 9999, ..bench.path },
    ];
    for path in bad {
        assert!(bench.domain.raw().create_address_handle(&path).is_err(), "{path:?}");
    }
}

#[test]
fn groups_are_joined_left_and_forgotten() {
    let Some(bench) = bench("groups_are_joined_left_and_forgotten") else { return };
    let group = Gid::from_ip("239.1.2.3".parse().unwrap());
    let [from, to] = bench.pair(UD, Way::Calls);
    assert!(matches!(to.raw().detach_multicast(group, 0), Err(MulticastError::NotAttached)));
    assert!(matches!(to.raw().attach_multicast(bench.path.destination, 0), Err(MulticastError::NotAGroup)));
    match to.raw().attach_multicast(group, 0) {
        Err(MulticastError::NotSupported(_)) => return eprintln!("SKIPPED groups: the device has none"),
        result => result.unwrap(),
    }
    to.raw().attach_multicast(group, 0).unwrap();
    to.raw().detach_multicast(group, 0).unwrap();
    assert!(matches!(to.raw().detach_multicast(group, 0), Err(MulticastError::NotAttached)));
    // A member can be destroyed.
    to.raw().attach_multicast(group, 0).unwrap();
    to.raw().destroy().unwrap();
    assert!(matches!(to.raw().attach_multicast(group, 0), Err(MulticastError::Gone)));
    drop(from);
}
