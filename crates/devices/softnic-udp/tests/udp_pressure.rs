//! More than somebody can take: receivers that stop polling or stop altogether, receive queues that run out, socket buffers
//! that are full.

mod udp_ends;
mod udp_forger;
mod udp_processes;

use std::time::{Duration, Instant};

use longhaul_softnic_udp::UdpConfig;
use longhaul_verbs::{
    Access, CompletionOperation, CompletionStatus, Gid, Mtu, PathAttributes, QueuePairAttributes, ReceiveRequest,
    SendFlags, SendOperation, SendRequest, Transport,
};
use longhaul_wire::{Headers, Opcode, Psn};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use udp_ends::{End, device, device_with, pair, pair_on, pattern};
use udp_processes::{Introduction, Process, open, threads_time};

const MESSAGE_BYTES: usize = 3000;
/// 4.096 µs · 2^16 = 268 ms.
const TIMEOUT: u8 = 16;
const RETRIES: u8 = 7;

#[test]
fn child() {
    udp_processes::child_main();
}

fn slot(index: u64) -> std::ops::Range<usize> {
    let start = index as usize * MESSAGE_BYTES;
    start..start + MESSAGE_BYTES
}

/// Receive the message `index` into its own place.
fn post_receive_slot(end: &End, index: u64) {
    let entry = [end.region.entry(slot(index))];
    end.queue_pair.post_receive(&[ReceiveRequest { id: index, local: &entry }]).unwrap();
}

fn post_send_slot(end: &End, index: u64) {
    let entry = [end.region.entry(slot(index))];
    end.queue_pair.post_send(&[SendRequest::new(index, SendOperation::Send, &entry)]).unwrap();
}

fn driver_time(address: &str) -> Duration {
    let name: String = format!("{address} driver").chars().take(15).collect();
    threads_time(std::process::id(), |thread| thread == name)
}

#[test]
fn a_receiver_that_stops_polling_gets_everything_once_and_in_order_when_it_polls_again() {
    const MESSAGES: u64 = 120;
    const POSTED: u64 = 16;
    let region_bytes = MESSAGES as usize * MESSAGE_BYTES;
    let (one, two) = pair_on(&device("127.0.12.1"), &device("127.0.12.2"), Transport::ReliableConnection, region_bytes);
    let bytes = pattern(3, region_bytes);
    one.region.copy_in(0, &bytes);
    (0..POSTED).for_each(|index| post_receive_slot(&two, index));
    (0..MESSAGES).for_each(|index| post_send_slot(&one, index));
    // Nobody polls the receiver; its background thread takes what there are receives for.
    for index in 0..POSTED {
        let completion = one.wait();
        assert_eq!((completion.id, completion.status), (index, CompletionStatus::Success));
    }
    let before = (driver_time("127.0.12.1"), driver_time("127.0.12.2"));
    assert!(one.wait_for(Duration::from_millis(500)).is_none(), "there is no receive for message {POSTED}");
    std::thread::sleep(Duration::from_millis(500));
    let ran = (driver_time("127.0.12.1") - before.0, driver_time("127.0.12.2") - before.1);
    // It is asked again every 0.64 ms. What a question costs depends on the build; spinning would take the whole second.
    let is_sanitized = std::env::var_os("ASAN_OPTIONS").is_some();
    let limit = Duration::from_millis(if is_sanitized { 700 } else { 300 });
    assert!(ran.0 + ran.1 < limit, "waiting for a receive keeps {ran:?} of a second busy");
    assert!(two.counter("send_rnr_err") > 10, "it says that it is not ready");
    assert!(one.counter("rcvd_rnr_err") > 10, "and is heard");
    assert_eq!(one.counter("retry_rnr_exceeded_err"), 0);
    for index in 0..MESSAGES {
        let completion = two.wait();
        assert_eq!((completion.id, completion.status), (index, CompletionStatus::Success));
        assert_eq!(completion.byte_count as usize, MESSAGE_BYTES);
        assert!(two.region.to_vec(slot(index)) == bytes[slot(index)], "contents of message {index}");
        if index + POSTED < MESSAGES {
            post_receive_slot(&two, index + POSTED);
        }
    }
    for index in POSTED..MESSAGES {
        let completion = one.wait();
        assert_eq!((completion.id, completion.status), (index, CompletionStatus::Success));
    }
    assert!(two.completions.poll_one().unwrap().is_none());
    assert_eq!(two.counter("cq_overrun"), 0);
}

#[test]
fn a_sender_whose_patience_is_bounded_gives_up_and_says_why() {
    let (one, two) = (device("127.0.12.3"), device("127.0.12.4"));
    let (one, two) =
        (End::new(&one, Transport::ReliableConnection, 4096), End::new(&two, Transport::ReliableConnection, 4096));
    two.connect(&one, Mtu::Bytes4096);
    let mut path = PathAttributes::to(Gid::from_ip(two.address));
    path.udp_port = two.device.udp_port();
    let receive = QueuePairAttributes::ready_to_receive(path, Mtu::Bytes4096, two.queue_pair.number(), udp_ends::PSN);
    // Three times.
    let send = QueuePairAttributes::ready_to_send(udp_ends::PSN).reliable_send(14, 7, 3, 0);
    one.queue_pair.modify(&QueuePairAttributes::init_connected(Access::empty())).unwrap();
    one.queue_pair.modify(&receive.reliable_receive(0, 12)).unwrap();
    one.queue_pair.modify(&send).unwrap();
    one.post_send(1, 100);
    one.post_send(2, 100);
    assert_eq!(one.wait().status, CompletionStatus::ReceiverNotReadyRetryExceededError);
    assert_eq!(one.wait().status, CompletionStatus::FlushedError);
    assert_eq!(one.counter("retry_rnr_exceeded_err"), 1);
}

#[test]
fn unreliable_messages_without_a_receive_are_dropped_and_counted() {
    let (one, two) = pair(Transport::UnreliableConnection, 100 * MESSAGE_BYTES);
    let bytes = pattern(4, 10 * MESSAGE_BYTES);
    one.region.copy_in(0, &bytes);
    (0..4).for_each(|index| post_receive_slot(&two, index));
    (0..10).for_each(|index| post_send_slot(&one, index));
    for _ in 0..10 {
        assert_eq!(one.wait().status, CompletionStatus::Success);
    }
    for index in 0..4 {
        let completion = two.wait();
        assert_eq!((completion.id, completion.status), (index, CompletionStatus::Success));
        assert!(two.region.to_vec(slot(index)) == bytes[slot(index)], "contents of message {index}");
    }
    assert!(two.wait_for(Duration::from_millis(50)).is_none());
    assert_eq!(two.counter("out_of_buffer"), 6);
    assert_eq!(two.counter("dropped_messages"), 6);
    // The next one that there is a receive for arrives.
    post_receive_slot(&two, 50);
    post_send_slot(&one, 9);
    assert_eq!(two.wait().id, 50);
    assert!(two.region.to_vec(slot(50)) == bytes[slot(9)]);
}

#[test]
fn datagrams_without_a_receive_are_dropped_and_counted() {
    const QUEUE_KEY: u32 = 0x1111;
    let (from, to) = (device("127.0.12.5"), device("127.0.12.6"));
    let one = End::new(&from, Transport::UnreliableDatagram, 4096);
    let two = End::new(&to, Transport::UnreliableDatagram, 4096);
    for end in [&one, &two] {
        end.queue_pair.modify(&QueuePairAttributes::init_datagram(QUEUE_KEY)).unwrap();
        end.queue_pair.modify(&QueuePairAttributes::to_state(longhaul_verbs::QueuePairState::ReadyToReceive)).unwrap();
        end.queue_pair.modify(&QueuePairAttributes::ready_to_send(1)).unwrap();
    }
    let mut path = PathAttributes::to(Gid::from_ip(two.address));
    path.udp_port = to.udp_port();
    let handle = one.domain.create_address_handle(&path).unwrap();
    (0..3).for_each(|id| two.post_receive(id, 1040));
    for id in 0..10 {
        let entry = [one.region.entry(0..1000)];
        let request = SendRequest::new(id, SendOperation::Send, &entry)
            .with_flags(SendFlags::SIGNALED)
            .to(handle.destination(two.queue_pair.number(), QUEUE_KEY));
        one.queue_pair.post_send(&[request]).unwrap();
        assert_eq!(one.wait().status, CompletionStatus::Success);
    }
    for id in 0..3 {
        let completion = two.wait();
        assert_eq!((completion.id, completion.status), (id, CompletionStatus::Success));
        assert_eq!(completion.operation, CompletionOperation::Receive);
    }
    assert!(two.wait_for(Duration::from_millis(50)).is_none());
    assert_eq!(two.counter("out_of_buffer"), 7);
}

#[test]
fn writes_need_nobody_to_poll() {
    let (one, two) = pair(Transport::ReliableConnection, 8 << 20);
    let bytes = pattern(5, 8 << 20);
    one.region.copy_in(0, &bytes);
    one.post_write(1, 8 << 20, &two);
    let start = Instant::now();
    // Neither end polls.
    while two.region.to_vec((8 << 20) - 8..8 << 20) != bytes[(8 << 20) - 8..] {
        assert!(start.elapsed() < Duration::from_secs(10), "nobody carries the write");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(two.region.to_vec(0..8 << 20) == bytes, "the last bytes came before others");
    // The acknowledgement has come by then, too.
    std::thread::sleep(Duration::from_millis(100));
    let acknowledged = one.counter("rcvd_pkts");
    assert!(acknowledged > 0);
    assert_eq!(one.completions.poll_one().unwrap().expect("it waits in the queue").status, CompletionStatus::Success);
}

#[test]
fn a_socket_buffer_that_is_too_small_costs_time_only() {
    let mut small = UdpConfig::default();
    small.receive_buffer_bytes = 64 << 10;
    let (one, two) = (device("127.0.12.7"), device_with("127.0.12.8", small));
    let one = End::new(&one, Transport::ReliableConnection, 4 << 20);
    let two = End::new(&two, Transport::ReliableConnection, 4 << 20);
    one.connect_with(&two, Mtu::Bytes4096, TIMEOUT, RETRIES);
    two.connect_with(&one, Mtu::Bytes4096, TIMEOUT, RETRIES);
    for round in 0..4 {
        let bytes = pattern(round, 4 << 20);
        one.region.copy_in(0, &bytes);
        one.post_write(round, 4 << 20, &two);
        // The receiver does not read while the buffer fills.
        let completion = one.wait_for(Duration::from_secs(30)).expect("a completion within half a minute");
        assert_eq!((completion.id, completion.status), (round, CompletionStatus::Success));
        assert!(two.region.to_vec(0..4 << 20) == bytes, "contents of round {round}");
    }
}

/// It stands still until the sender has timed out once. It then has seven more time-outs, 1.9 seconds, to go on: a busy
/// machine keeps it waiting for its processor, and for the rest of this test, for a good part of a second.
#[test]
fn a_receiver_that_stood_still_for_a_while_gets_everything() {
    let end = End::new(&open("127.0.12.9"), Transport::ReliableConnection, udp_processes::REGION_BYTES);
    let mut target = Process::start("target", "127.0.12.10");
    udp_processes::connect_with(&end, &target.end, Mtu::Bytes4096, TIMEOUT, RETRIES);
    target.meet(&Introduction::of(&end));
    target.line("CONNECTED");
    let process = Pid::from_raw(target.child.id() as i32);
    for round in 0..5 {
        kill(process, Signal::SIGSTOP).unwrap();
        udp_processes::wait_until_stopped(process.as_raw());
        let (timeouts, start) = (end.counter("local_ack_timeout_err"), Instant::now());
        // More than its socket takes.
        for id in 0..8 {
            let entry = [end.region.entry(0..udp_processes::REGION_BYTES)];
            let request = SendRequest::new(round * 8 + id, SendOperation::Write(target.end.remote), &entry);
            end.queue_pair.post_send(&[request]).unwrap();
        }
        while end.counter("local_ack_timeout_err") == timeouts {
            let completion = end.wait_for(Duration::from_millis(1));
            assert!(completion.is_none(), "nobody can have acknowledged all of it: {completion:?}");
            assert!(start.elapsed() < Duration::from_secs(5), "nobody misses the acknowledgements");
        }
        kill(process, Signal::SIGCONT).unwrap();
        for id in 0..8 {
            let completion = end.wait();
            assert_eq!((completion.id, completion.status), (round * 8 + id, CompletionStatus::Success));
        }
    }
    assert!(end.counter("retransmitted_pkts") > 0);
    assert_eq!(end.counter("retry_exceeded_err"), 0);
}

#[test]
fn an_acknowledgement_is_not_lost_to_somebody_s_early_packet() {
    let end = End::new(&open("127.0.12.11"), Transport::ReliableConnection, udp_processes::REGION_BYTES);
    let mut target = Process::start("target", "127.0.12.12");
    let peer = target.end;
    let mut path = PathAttributes::to(Gid::from_ip(peer.address));
    path.udp_port = peer.udp_port;
    let number = longhaul_verbs::QueuePairNumber::new(peer.queue_pair);
    let receive = QueuePairAttributes::ready_to_receive(path, Mtu::Bytes4096, number, udp_processes::PSN);
    // 4.096 µs · 2^21 = 8.6 s: long after the test.
    let send = QueuePairAttributes::ready_to_send(udp_processes::PSN).reliable_send(21, RETRIES, 7, 0);
    end.queue_pair.modify(&QueuePairAttributes::init_connected(Access::LOCAL_WRITE)).unwrap();
    end.queue_pair.modify(&receive.reliable_receive(0, 12)).unwrap();
    end.queue_pair.modify(&send).unwrap();
    target.meet(&Introduction::of(&end));
    target.line("CONNECTED");
    let forger = udp_forger::Forger::against("127.0.12.11", (peer.address, peer.udp_port).into());
    let process = Pid::from_raw(target.child.id() as i32);
    for round in 0..5 {
        // Both are there when it looks: the one that it acknowledges, and then the one that it complains about.
        kill(process, Signal::SIGSTOP).unwrap();
        let entry = [end.region.entry(0..100)];
        end.queue_pair.post_send(&[SendRequest::new(round, SendOperation::Write(peer.remote), &entry)]).unwrap();
        let early = Psn::new(udp_processes::PSN + 1000 + round as u32);
        let headers = Headers::new(Opcode::RcWriteMiddle, peer.queue_pair, early);
        forger.send(&forger.datagram(&headers, &[udp_forger::POISON; 4096]));
        kill(process, Signal::SIGCONT).unwrap();
        let completion = end.wait();
        assert_eq!((completion.id, completion.status), (round, CompletionStatus::Success));
    }
    assert_eq!(end.counter("local_ack_timeout_err"), 0);
}
