//! Reliable connections where two things meet: answers and memory that is gone, answers and a pace, overruns and acknowledgements.

use crate::two_ends;

use std::time::Duration;

use longhaul_congestion::ControllerName;
use longhaul_time::Instant;
use longhaul_verbs::{
    Access, CompletionStatus, MemoryRegion, QueuePairState, SendFlags, SendOperation, SendRequest, Transport,
};
use longhaul_wire::Opcode;
use two_ends::{Datagram, End, Reliability, at, pair, pair_with};

const RC: Transport = Transport::ReliableConnection;

/// Entries of the completion queues of `two_ends`.
const COMPLETIONS: u64 = 1024;

fn exchange(one: &End, two: &End, micros: u64) {
    for packet in one.poll(at(micros)) {
        two.receive(&packet, at(micros));
    }
    for packet in two.poll(at(micros)) {
        one.receive(&packet, at(micros));
    }
}

fn post_read_of(one: &End, lent: &MemoryRegion) {
    let entry = [one.region.entry(0..1280)];
    one.queue_pair.post_send(&[SendRequest::new(1, SendOperation::Read(lent.remote(0)), &entry)]).unwrap();
}

/// Answers that come later than the time-out are asked for again. When they have come, the program that lent the memory is told
/// so and takes it back, while the second answer still waits for its pace: nobody has done anything wrong.
#[test]
fn memory_may_go_while_an_answer_is_repeated() {
    let (one, two) =
        pair_with(RC, Reliability::default(), |config| config.congestion = Some(ControllerName::Fixed(100_000_000)));
    let lent = two.domain.register_zeroed(4096, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    two.post_receive(7, 64);
    post_read_of(&one, &lent);
    let mut lent = Some(lent);
    let mut wire: Vec<(Instant, &End, Datagram)> = Vec::new();
    for micros in 0..20_000 {
        let now = at(micros);
        let (due, later): (Vec<_>, Vec<_>) = wire.drain(..).partition(|(when, ..)| *when <= now);
        wire = later;
        for (_, end, packet) in due {
            end.receive(&packet, now);
        }
        // The way takes 0.6 ms, the time-out is 1 ms.
        let arrival = now + Duration::from_micros(600);
        wire.extend(one.poll(now).into_iter().map(|packet| (arrival, &two, packet)));
        wire.extend(two.poll(now).into_iter().map(|packet| (arrival, &one, packet)));
        for done in one.completions() {
            assert_eq!(done.status, CompletionStatus::Success, "request {}", done.id);
            if done.id == 1 {
                one.post_send(2, 8);
            }
        }
        if !two.completions().is_empty() {
            lent = None;
        }
    }
    assert!(lent.is_none(), "the peer said that it was done");
    assert_eq!(two.queue_pair.state(), QueuePairState::ReadyToSend);
}

/// Both halves of a queue pair go at one pace. A peer that always has READs outstanding does not keep it from sending.
#[test]
fn requests_get_their_turn_between_answers() {
    let (one, two) =
        pair_with(RC, Reliability::default(), |config| config.congestion = Some(ControllerName::Fixed(1_000_000_000)));
    let (mut now, mut posted, mut done) = (at(0), 0, 0);
    two.post_write(1000, 256, &one);
    for _ in 0..200 {
        while posted < done + 4 {
            posted += 1;
            one.post_read(posted, 0, 2560, &two);
        }
        for packet in one.poll(now) {
            two.receive(&packet, now);
        }
        for packet in two.poll(now) {
            if packet.opcode() == Opcode::RcWriteOnly {
                return;
            }
            one.receive(&packet, now);
        }
        done += one.completions().len() as u64;
        now = one.next_deadline().into_iter().chain(two.next_deadline()).min().map_or(now, |next| next.max(now));
    }
    panic!("after {done} READs the WRITE has not left");
}

/// A fence is about what came before, not about the parts of the READ itself.
#[test]
fn a_fenced_read_is_asked_for_in_parts_at_once() {
    let (one, two) = pair_with(RC, Reliability::default(), |config| config.read_packets_max = 2);
    let entry = [one.region.entry(0..1280)];
    let request = SendRequest::new(1, SendOperation::Read(two.region.remote(0)), &entry);
    one.queue_pair.post_send(&[request.with_flags(SendFlags::SIGNALED | SendFlags::FENCE)]).unwrap();
    assert_eq!(one.poll(at(0)).len(), 3);
}

/// What the receiver cannot be told of is not acknowledged.
#[test]
fn a_receive_whose_completion_is_lost_fails_at_the_sender() {
    let (one, two) = pair(RC);
    let mut endings = Vec::new();
    for id in 0..=COMPLETIONS {
        two.post_receive(id, 16);
        one.post_send(id, 8);
        exchange(&one, &two, id);
        endings.extend(one.completions().iter().map(|done| done.status));
    }
    let (last, before) = endings.split_last().unwrap();
    assert!(before.len() as u64 == COMPLETIONS && before.iter().all(|status| *status == CompletionStatus::Success));
    assert_eq!(*last, CompletionStatus::RemoteOperationError);
    assert_eq!(two.queue_pair.state(), QueuePairState::Error);
}

/// A queue pair that failed because its completion found no room waits for nothing any more.
#[test]
fn no_timer_runs_after_an_overrun() {
    let (one, two) = pair(RC);
    for id in 0..COMPLETIONS {
        one.post_write(id, 8, &two);
        exchange(&one, &two, id);
    }
    one.post_write(2000, 8, &two);
    for packet in one.poll(at(2000)) {
        two.receive(&packet, at(2000));
    }
    let acknowledgement = two.poll(at(2000));
    one.post_write(2001, 8, &two);
    one.poll(at(2001));
    one.receive(&acknowledgement[0], at(2002));
    assert_eq!(one.queue_pair.state(), QueuePairState::Error);
    one.poll(at(100_000));
    assert_eq!(one.counters().local_ack_timeout_err, 0);
}
