//! Memory is taken back, and queue pairs end, at random moments of WRITEs that are being received in place: from the moment
//! that the call returns not a byte changes. Worth most under AddressSanitizer, where some of that memory is gone already.

use crate::udp_ends;
use crate::udp_forger;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use longhaul_softnic_udp::UdpDevice;
use longhaul_verbs::{
    Access, CompletionStatus, Mtu, QueuePairAttributes, QueuePairState, SendOperation, SendRequest, Transport,
};
use rand_core::Rng;
use udp_ends::{End, device};
use udp_forger::{contents, random};

const REGION_BYTES: usize = 1 << 20;
const ROUNDS: u32 = 200;
/// Long enough for what is in flight to arrive.
const AFTER: Duration = Duration::from_micros(700);

/// What an owner writes into memory that is his again.
const OWN: u8 = 0xa5;

/// A pair of connected ends, the first writing all the time to the second.
fn each_round(seed: u64, transport: Transport, end_it: impl Fn(u32, End) + Sync) {
    let (from, to): (UdpDevice, UdpDevice) = (device("127.0.10.1"), device("127.0.10.2"));
    let mut random = random(seed);
    let bytes = contents(seed, REGION_BYTES);
    let mut interrupted = 0;
    for round in 0..ROUNDS {
        let (one, two) = (End::new(&from, transport, REGION_BYTES), End::new(&to, transport, REGION_BYTES));
        one.region.copy_in(0, &bytes);
        one.connect(&two, Mtu::Bytes4096);
        two.connect(&one, Mtu::Bytes4096);
        let remote = two.region.remote(0);
        let is_over = AtomicBool::new(false);
        let pause = Duration::from_micros(u64::from(random.next_u32() % 2000));
        // Now and then the target's own polls receive, otherwise the background thread alone.
        let polls = random.next_u32().is_multiple_of(4);
        let failed = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let entry = [one.region.entry(0..REGION_BYTES)];
                while !is_over.load(Ordering::Relaxed) {
                    let request = SendRequest::new(1, SendOperation::Write(remote), &entry);
                    if one.queue_pair.post_send(&[request]).is_err() {
                        return true;
                    }
                    loop {
                        match one.completions.poll_one().unwrap() {
                            Some(completion) if completion.status == CompletionStatus::Success => break,
                            Some(_) => return true,
                            None if is_over.load(Ordering::Relaxed) => return false,
                            None => {}
                        }
                    }
                }
                false
            });
            let start = std::time::Instant::now();
            while start.elapsed() < pause {
                if polls {
                    assert!(two.completions.poll_one().unwrap().is_none(), "a WRITE completes nothing at its target");
                } else {
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
            end_it(round, two);
            is_over.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        interrupted += u32::from(failed);
    }
    eprintln!("{transport:?}: {interrupted} of {ROUNDS} writers were told");
}

const CONNECTED: [Transport; 2] = [Transport::ReliableConnection, Transport::UnreliableConnection];

#[test]
fn memory_that_was_taken_back_stays_as_its_owner_leaves_it() {
    for transport in CONNECTED {
        each_round(21, transport, |round, two| {
            let End { region, queue_pair, .. } = two;
            let mut buffer = region.into_buffer().unwrap();
            if round % 4 == 3 {
                // Freed at once: nothing but a sanitizer could tell, but it would.
                drop(buffer);
                std::thread::sleep(AFTER);
                return;
            }
            buffer.fill(OWN);
            std::thread::sleep(AFTER);
            assert!(buffer.iter().all(|&byte| byte == OWN), "round {round}: written after it was taken back");
            drop(queue_pair);
        });
    }
}

#[test]
fn a_queue_pair_that_was_reset_writes_no_more() {
    for transport in CONNECTED {
        each_round(22, transport, |round, two| {
            let state = if round % 2 == 0 { QueuePairState::Reset } else { QueuePairState::Error };
            two.queue_pair.modify(&QueuePairAttributes::to_state(state)).unwrap();
            two.region.copy_in(0, &[OWN; REGION_BYTES]);
            std::thread::sleep(AFTER);
            assert!(two.region.to_vec(0..REGION_BYTES).iter().all(|&byte| byte == OWN), "round {round}, {state:?}");
        });
    }
}

#[test]
fn a_queue_pair_that_was_destroyed_writes_no_more() {
    for transport in CONNECTED {
        each_round(23, transport, |round, two| {
            two.queue_pair.destroy().unwrap();
            two.region.copy_in(0, &[OWN; REGION_BYTES]);
            std::thread::sleep(AFTER);
            assert!(two.region.to_vec(0..REGION_BYTES).iter().all(|&byte| byte == OWN), "round {round}");
        });
    }
}

#[test]
fn everything_goes_at_once() {
    for transport in CONNECTED {
        each_round(24, transport, |_, two| {
            // In the order of the fields: queue pair before memory, and the completion queue before both.
            drop(two);
        });
    }
}

#[test]
fn memory_for_receives_is_taken_back_in_mid_message() {
    // SENDs are not received in place, but the rule is the same.
    let (from, to) = (device("127.0.10.3"), device("127.0.10.4"));
    let mut random = random(25);
    for round in 0..ROUNDS {
        let one = End::new(&from, Transport::ReliableConnection, REGION_BYTES);
        let two = End::new(&to, Transport::ReliableConnection, REGION_BYTES);
        one.connect(&two, Mtu::Bytes1024);
        two.connect(&one, Mtu::Bytes1024);
        two.post_receive(1, REGION_BYTES);
        one.post_send(2, REGION_BYTES);
        std::thread::sleep(Duration::from_micros(u64::from(random.next_u32() % 800)));
        let empty = two.domain.register_zeroed(1, Access::empty()).unwrap();
        let mut two = two;
        let mut buffer = std::mem::replace(&mut two.region, empty).into_buffer().unwrap();
        buffer.fill(OWN);
        let received = two.wait();
        let sent = one.wait();
        match received.status {
            CompletionStatus::Success => assert_eq!(sent.status, CompletionStatus::Success),
            status => {
                assert_eq!(status, CompletionStatus::LocalProtectionError);
                assert_eq!(sent.status, CompletionStatus::RemoteOperationError);
            }
        }
        assert!(buffer.iter().all(|&byte| byte == OWN), "round {round}: written after it was taken back");
    }
}
