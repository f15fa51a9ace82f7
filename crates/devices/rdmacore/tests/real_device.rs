//! A real device of libibverbs: what it reports, completion queues and channels, asynchronous events, destruction.
//!
//! Runs on the device that `LONGHAUL_RDMA_DEVICE` names, for example `rxe0` in the lab's guest, and skips without one.
//! What the other objects do, the conformance suite checks.

mod rdma_device;

use std::error::Error;
use std::time::Duration;

use longhaul_rdmacore::{RdmaDevice, devices};
use longhaul_verbs::{
    AsyncEventKind, Capabilities, CompletionOperation, CreateError, EventSource, GidChoiceError, LinkState, QueryError,
    QueuePairLimits, QueuePairOptions, ReceiveRequest, SendFlags, SendOperation, SendRequest,
    SharedReceiveQueueAttributes, SharedReceiveQueueChange, Transport, WorkCompletion,
};
use rdma_device::{Loop, PATIENCE, completion, device, is_readable, own_address};

#[test]
fn the_list_and_the_device_tell_the_same() {
    let Some(device) = device() else { return };
    let verbs = device.verbs();
    let listed = devices().unwrap().into_iter().find(|listed| listed.name == verbs.name()).expect("it is listed");
    let attributes = verbs.attributes().unwrap();
    println!("{listed:?}\n{attributes:#?}");
    assert_eq!(listed.node_guid, attributes.node_guid);
    assert_eq!(listed.driver, device.driver());
    assert!(listed.kernel_device.starts_with("uverbs"), "{listed:?}");
    assert!(listed.interface.is_some(), "{listed:?}");
    assert!(
        attributes.port_count >= 1 && attributes.max_queue_pairs > 0 && attributes.max_completion_queue_entries > 0
    );
}

/// What Linux Soft-RoCE can do is in docs/DEVICES.md; this is what it reports and what trying found. Newer kernels may
/// add to it.
#[test]
fn soft_roce_has_what_it_is_known_to_have() {
    let Some(device) = device() else { return };
    if device.driver().as_deref() != Some("rxe") {
        eprintln!("SKIPPED: the device's driver is {:?}, not rxe", device.driver());
        return;
    }
    let capabilities = device.verbs().attributes().unwrap().capabilities;
    println!("{capabilities:?}");
    let expected = Capabilities::RELIABLE_CONNECTION
        | Capabilities::UNRELIABLE_CONNECTION
        | Capabilities::UNRELIABLE_DATAGRAM
        | Capabilities::READ
        | Capabilities::ATOMICS
        | Capabilities::INVALIDATE
        | Capabilities::SHARED_RECEIVE_QUEUE
        | Capabilities::WINDOW_TYPE_1
        | Capabilities::WINDOW_TYPE_2B
        | Capabilities::MULTICAST
        | Capabilities::COMPLETION_CHANNEL
        | Capabilities::EVENT_DESCRIPTORS
        | Capabilities::RESIZE_COMPLETION_QUEUE
        | Capabilities::SEND_QUEUE_DRAIN;
    assert!(capabilities.contains(expected), "missing: {:?}", expected - capabilities);
    let never = Capabilities::ZERO_BASED
        | Capabilities::NULL_REGION
        | Capabilities::COMPLETION_MODERATION
        | Capabilities::SLOTTED_REGION;
    assert!(!capabilities.intersects(never), "{:?}", capabilities & never);
}

#[test]
fn ports_gids_and_keys_are_read_within_their_tables() {
    let Some(device) = device() else { return };
    let device = device.verbs();
    let ports = device.attributes().unwrap().port_count;
    let port = device.port_attributes(1).unwrap();
    println!("{port:?}");
    assert_eq!(port.state, LinkState::Active);
    for wrong in [0, ports + 1] {
        let error = device.port_attributes(wrong).unwrap_err();
        assert_eq!(error.to_string(), format!("there is no port {wrong}; there are {ports}"));
        assert!(matches!(device.gid(wrong, 0), Err(QueryError::NoSuch { what: "port", .. })));
        assert!(matches!(device.partition_key(wrong, 0), Err(QueryError::NoSuch { what: "port", .. })));
    }
    let beyond = device.gid(1, port.gid_table_length);
    assert!(matches!(beyond, Err(QueryError::NoSuch { what: "GID", .. })), "{beyond:?}");
    // The last row is empty unless the host has a thousand addresses.
    let last = device.gid(1, port.gid_table_length - 1).unwrap();
    assert_eq!(last.gid.0, [0; 16]);
    assert_eq!(device.partition_key(1, 0).unwrap(), 0xffff);
    let beyond = device.partition_key(1, port.partition_key_table_length);
    assert!(matches!(beyond, Err(QueryError::NoSuch { what: "partition key", .. })), "{beyond:?}");
}

#[test]
fn a_gid_is_chosen_by_address() {
    let Some(device) = device() else { return };
    let device = device.verbs();
    let address = own_address(&device);
    let choice = device.choose_gid(Some(address), address).unwrap();
    assert_eq!(choice.address, address);
    assert_eq!(device.gid(choice.port, choice.index).unwrap().gid, choice.gid);
    let elsewhere = device.choose_gid(Some("127.0.0.77".parse().unwrap()), "127.0.0.1".parse().unwrap());
    let error = elsewhere.unwrap_err();
    assert!(matches!(error, GidChoiceError::NotLocal { .. }), "{error}");
    println!("{error}");
}

#[test]
fn counters_have_the_kernels_names_and_count() {
    let Some(device) = device() else { return };
    let is_rxe = device.driver().as_deref() == Some("rxe");
    let device = device.verbs();
    let sent =
        || device.counters().into_iter().find(|counter| counter.name == "sent_pkts").map(|counter| counter.value);
    let before = sent();
    let queue = device.create_completion_queue(16).unwrap();
    let ends = Loop::new(&device, [&queue, &queue], &QueuePairOptions::default());
    write(&ends, 7);
    assert_eq!(completion(&queue).id, 7);
    println!("sent_pkts was {before:?}, is {:?}", sent());
    assert!(!is_rxe || sent() > before, "rxe counts what it sends");
}

fn write(ends: &Loop, id: u64) {
    let local = [ends.memory.entry(0..64)];
    let request = SendRequest::new(id, SendOperation::Write(ends.memory.remote(4096)), &local);
    ends.ends[0].post_send(&[request]).unwrap();
}

#[test]
fn an_end_sleeps_until_its_channel_wakes_it() {
    let Some(device) = device() else { return };
    let device = device.verbs();
    let channel = device.create_completion_channel().unwrap();
    let descriptor = channel.descriptor().expect("channels have descriptors");
    let sends = device.create_completion_queue(16).unwrap();
    let token = 0xfeed_face_0bad_cafe;
    let receives = device.create_completion_queue_on(16, &channel, token).unwrap();
    let ends = Loop::new(&device, [&sends, &receives], &QueuePairOptions::default());
    ends.memory.copy_in(0, b"wake up");
    let entry = [ends.memory.entry(4096..4196)];
    let receive = |id| ends.ends[1].post_receive(&[ReceiveRequest { id, local: &entry }]).unwrap();
    let send = |operation, flags| {
        let entry = [ends.memory.entry(0..7)];
        ends.ends[0].post_send(&[SendRequest::new(1, operation, &entry).with_flags(flags)]).unwrap();
        assert!(completion(&sends).is_success());
    };

    assert_eq!(channel.next_event().unwrap(), None, "nothing has happened, and nobody waits");
    receives.request_notification(false).unwrap();
    assert!(!is_readable(descriptor, Duration::from_millis(20)));
    receive(11);
    send(SendOperation::SendWithImmediate(0x0102_0304), SendFlags::SIGNALED);
    assert!(is_readable(descriptor, PATIENCE));
    assert_eq!(channel.next_event().unwrap(), Some(token));
    assert_eq!(channel.next_event().unwrap(), None, "one event for each request for a notification");
    let received = receives.poll_one().unwrap().expect("it is the reason for the event");
    assert_eq!((received.id, received.byte_count, received.immediate()), (11, 7, Some(0x0102_0304)));
    assert_eq!(received.operation, CompletionOperation::Receive);
    assert_eq!(received.queue_pair, ends.ends[1].number());
    let mut bytes = [0; 7];
    ends.memory.copy_out(4096, &mut bytes);
    assert_eq!(&bytes, b"wake up");

    // Not armed: no event. Armed for solicited ones: only those.
    receive(12);
    send(SendOperation::Send, SendFlags::SIGNALED);
    assert_eq!(completion(&receives).id, 12);
    assert_eq!(channel.next_event().unwrap(), None);
    receives.request_notification(true).unwrap();
    receive(13);
    send(SendOperation::Send, SendFlags::SIGNALED);
    assert_eq!(completion(&receives).id, 13);
    assert!(!is_readable(descriptor, Duration::from_millis(20)));
    receive(14);
    send(SendOperation::Send, SendFlags::SIGNALED | SendFlags::SOLICITED);
    assert!(is_readable(descriptor, PATIENCE));
    assert_eq!(channel.next_event().unwrap(), Some(token));
    assert_eq!(completion(&receives).id, 14);
}

/// More completions than are taken over at once come out whole and in order.
#[test]
fn many_completions_are_polled_at_once() {
    let Some(device) = device() else { return };
    let device = device.verbs();
    let queue = device.create_completion_queue(128).unwrap();
    let ends = Loop::new(&device, [&queue, &queue], &QueuePairOptions::default());
    for id in 0..100 {
        write(&ends, id);
    }
    let mut taken = Vec::new();
    let mut some = [WorkCompletion::default(); 75];
    let end = std::time::Instant::now() + PATIENCE;
    while taken.len() < 100 {
        assert!(std::time::Instant::now() < end, "{} of 100 completions", taken.len());
        std::thread::sleep(Duration::from_millis(20));
        let count = queue.poll(&mut some).unwrap();
        taken.extend_from_slice(&some[..count]);
    }
    assert!(
        taken.iter().all(|completion| completion.operation == CompletionOperation::Write && completion.is_success())
    );
    assert!(taken.iter().map(|completion| completion.id).eq(0..100), "{taken:?}");
    assert_eq!(queue.poll(&mut some).unwrap(), 0);
}

#[test]
fn queues_have_the_room_that_was_asked_for() {
    let Some(device) = device() else { return };
    let device = device.verbs();
    let most = device.attributes().unwrap().max_completion_queue_entries;
    let queue = device.create_completion_queue(10).unwrap();
    assert!(queue.capacity() >= 10);
    queue.resize(1000).unwrap();
    assert!(queue.capacity() >= 1000, "{}", queue.capacity());
    assert!(matches!(queue.resize(0), Err(CreateError::InvalidArgument { .. })));
    assert!(matches!(queue.resize(most + 1), Err(CreateError::TooMany { .. })));
    assert!(matches!(device.create_completion_queue(0), Err(CreateError::InvalidArgument { .. })));
    assert!(matches!(device.create_completion_queue(most + 1), Err(CreateError::TooMany { .. })));
    assert!(queue.capacity() >= 1000);

    let queue = device.create_completion_queue(64).unwrap();
    let ends = Loop::new(&device, [&queue, &queue], &QueuePairOptions::default());
    for id in 0..40 {
        write(&ends, id);
    }
    std::thread::sleep(Duration::from_millis(300));
    let smaller = queue.resize(2).unwrap_err();
    assert_eq!(smaller.to_string(), "completion queue entries: expected at least as many as are waiting in it");
    queue.resize(500).unwrap();
    for id in 0..40 {
        assert_eq!(completion(&queue).id, id, "resizing loses nothing");
    }
}

/// The number is as large as it can be: one more is refused.
#[test]
fn a_queue_pair_takes_as_much_inline_as_the_device_says() {
    let Some(device) = device() else { return };
    let device = device.verbs();
    let most = device.attributes().unwrap().max_inline_bytes;
    println!("{most} inline bytes");
    let queue = device.create_completion_queue(8).unwrap();
    let domain = device.allocate_protection_domain().unwrap();
    let make = |inline_bytes| {
        let limits = QueuePairLimits {
            send_requests: 1,
            receive_requests: 1,
            send_entries: 1,
            receive_entries: 1,
            inline_bytes,
        };
        let options = QueuePairOptions { limits, ..Default::default() };
        domain.create_queue_pair(Transport::ReliableConnection, &queue, &queue, &options)
    };
    make(most).unwrap();
    assert!(make(most + 1).is_err());
}

#[test]
fn what_the_device_lacks_is_answered_with_the_flag() {
    let Some(device) = device() else { return };
    let device = device.verbs();
    let capabilities = device.attributes().unwrap().capabilities;
    let queue = device.create_completion_queue(10).unwrap();
    let answer = queue.moderate(4, 100);
    if capabilities.contains(Capabilities::COMPLETION_MODERATION) {
        answer.unwrap();
    } else {
        let text = answer.unwrap_err().to_string();
        assert!(text.contains("completion moderation"), "{text}");
    }
}

/// A queue can go while its event waits in the channel; the event goes with it, and the channel works on.
#[test]
fn a_queue_goes_with_events_that_nobody_has_read() {
    let Some(device) = device() else { return };
    let device = device.verbs();
    let channel = device.create_completion_channel().unwrap();
    let descriptor = channel.descriptor().unwrap();
    for round in 0..3 {
        let queue = device.create_completion_queue_on(16, &channel, round).unwrap();
        let ends = Loop::new(&device, [&queue, &queue], &QueuePairOptions::default());
        queue.request_notification(false).unwrap();
        write(&ends, round);
        assert!(is_readable(descriptor, PATIENCE));
        if round == 1 {
            assert_eq!(channel.next_event().unwrap(), Some(1));
        }
        // The queue pairs hold it: this alone destroys nothing.
        drop(queue);
        drop(ends);
        assert_eq!(channel.next_event().unwrap(), None, "round {round}");
    }
}

/// Everything can be dropped in any order: a child keeps its parents.
#[test]
fn destruction_goes_from_the_leaves_to_the_device() {
    let Some(device) = device() else { return };
    let verbs = device.verbs();
    drop(device);
    let channel = verbs.create_completion_channel().unwrap();
    let queue = verbs.create_completion_queue_on(16, &channel, 5).unwrap();
    let ends = Loop::new(&verbs, [&queue, &queue], &QueuePairOptions::default());
    let raw_queue = queue.raw().clone();
    queue.request_notification(false).unwrap();
    drop((verbs, channel, queue));
    write(&ends, 3);
    let end = std::time::Instant::now() + PATIENCE;
    let mut one = [WorkCompletion::default()];
    while raw_queue.poll(&mut one).unwrap() == 0 {
        assert!(std::time::Instant::now() < end);
    }
    assert_eq!(one[0].id, 3);
    let Loop { domain, ends, memory } = ends;
    drop(domain);
    drop(memory);
    drop(ends);
    raw_queue.request_notification(false).unwrap();
}

#[test]
fn objects_of_another_opening_are_refused() {
    let Some(device) = device() else { return };
    let other = RdmaDevice::open(device.verbs().name()).unwrap().verbs();
    let channel = other.create_completion_channel().unwrap();
    let refused = device.verbs().create_completion_queue_on(8, &channel, 0).err().expect("it is another's channel");
    assert_eq!(refused.to_string(), "the completion channel belongs to another device");
}

#[test]
fn asynchronous_events_wake_and_name_their_object() {
    let Some(device) = device() else { return };
    let device = device.verbs();
    let descriptor = device.event_descriptor().expect("devices have descriptors for events");
    assert_eq!(device.next_event().unwrap(), None);
    let queue = device.create_completion_queue(16).unwrap();
    for is_read in [true, false] {
        limit_reached(&device, &queue, is_read);
        assert_eq!(device.next_event().unwrap(), None);
        assert!(!is_readable(descriptor, Duration::ZERO));
    }
}

/// Lets a shared receive queue fall below its limit; the event is read, or goes with the queue.
fn limit_reached(device: &longhaul_verbs::Device, queue: &longhaul_verbs::CompletionQueue, is_read: bool) {
    let descriptor = device.event_descriptor().unwrap();
    let domain = device.allocate_protection_domain().unwrap();
    let sizes = SharedReceiveQueueAttributes { requests: 8, entries: 1, limit: 0 };
    let shared = domain.create_shared_receive_queue(sizes).unwrap();
    let options = QueuePairOptions { shared_receive_queue: Some(shared.clone()), ..Default::default() };
    let ends = Loop::in_domain(device, domain, [queue, queue], &options);
    let entry = [ends.memory.entry(4096..4196)];
    for id in 0..2 {
        shared.post_receive(&[ReceiveRequest { id, local: &entry }]).unwrap();
    }
    shared.modify(SharedReceiveQueueChange { limit: Some(2), ..Default::default() }).unwrap();
    let local = [ends.memory.entry(0..8)];
    ends.ends[0].post_send(&[SendRequest::new(9, SendOperation::Send, &local)]).unwrap();
    let ids = [completion(queue).id, completion(queue).id];
    assert!(ids.contains(&9) && ids.contains(&0), "{ids:?}");
    assert!(is_readable(descriptor, PATIENCE), "an event");
    if is_read {
        let event = device.next_event().unwrap().expect("it was readable");
        assert_eq!(event.kind, AsyncEventKind::SharedReceiveQueueLimitReached);
        assert_eq!(event.source, EventSource::SharedReceiveQueue(shared.handle()));
    }
}

/// A child process that is started while memory is registered does not take the device's pages away.
#[test]
fn a_child_process_leaves_the_devices_memory_alone() {
    let Some(device) = device() else { return };
    let device = device.verbs();
    let queue = device.create_completion_queue(16).unwrap();
    let ends = Loop::new(&device, [&queue, &queue], &QueuePairOptions::default());
    ends.memory.copy_in(0, &[1; 64]);
    let mut child = std::process::Command::new("sleep").arg("1").spawn().expect("every system has sleep");
    ends.memory.copy_in(0, &[2; 64]);
    write(&ends, 1);
    assert!(completion(&queue).is_success());
    let mut bytes = [0; 64];
    ends.memory.copy_out(4096, &mut bytes);
    assert_eq!(bytes, [2; 64]);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// An error that people see names its cause.
#[test]
fn errors_keep_their_sources() {
    let Some(device) = device() else { return };
    let error = RdmaDevice::open(&format!("{}x", device.verbs().name())).err().expect("there is no such device");
    assert!(error.to_string().contains(device.verbs().name()), "{error}");
    assert!(error.source().is_none(), "nothing lies beneath it");
}
