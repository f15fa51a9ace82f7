//! The enemy of failover, on virtual time: the lemmas of "SHIFT: Exploring the Boundary of RDMA Network Fault
//! Tolerance" (§3.1 and appendix C) as tests.
//!
//! A host whose NIC fails can go on with another one. But the sender cannot know whether its last requests were carried
//! out before the NIC failed, and the new NIC at the other end has not seen them, so it takes a request that is
//! repeated for a new one. Each test lets a naive failover ([`NaiveFailover`]) repeat what failed, shows the wrong
//! outcome **as the expected one**, and next to it the control: the same without a failure, or without the one
//! circumstance that does the harm. A failover that is worth its name takes the place of the naive one and must turn
//! these outcomes round, or refuse.

mod shift_hosts;

use longhaul_time::Duration;
use longhaul_verbs::{CompletionStatus, QueuePairState};
use shift_hosts::{Hosts, NaiveFailover, NaiveReceives, Operation, PATIENCE, Policy, Request, SenderView};

/// A word of the receiver's memory that requests change.
const TARGET: usize = 7;
/// A word of the sender's memory that is sent, or takes the answer.
const LOCAL: usize = 3;

/// How the receiver's NIC 0 ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// It does not.
    None,
    /// Trace 1 of the paper: it is gone before the request comes. Nothing was carried out.
    PacketLost,
    /// Trace 2: it carries the request out, and is gone before its acknowledgement gets through.
    AcknowledgementLost,
}

/// Post the request while the receiver's NIC 0 fails in this way, and go on until it has. The sender has noticed
/// nothing yet.
fn post_during(hosts: &mut Hosts, sender: &mut NaiveFailover, failure: Failure, request: Request) {
    if failure == Failure::PacketLost {
        hosts.kill_receiver(0);
    }
    sender.post(request);
    if failure != Failure::PacketLost {
        hosts.run_until_executed(0);
    }
    if failure == Failure::AcknowledgementLost {
        hosts.kill_receiver(0);
    }
}

fn begin(policy: Policy) -> (Hosts, NaiveFailover) {
    let hosts = Hosts::new();
    let sender = NaiveFailover::new(&hosts.sender, &hosts.receiver, policy);
    (hosts, sender)
}

fn request(id: u64, operation: Operation) -> Request {
    Request { id, operation, local: LOCAL }
}

/// The program saw its only request succeed, on this NIC.
#[track_caller]
fn assert_succeeded(sender: &NaiveFailover, rail: usize) {
    let [finished] = sender.finished[..] else {
        panic!("one request, but ended have {:?}", sender.finished);
    };
    assert_eq!((finished.status, finished.rail), (CompletionStatus::Success, rail));
}

// --- Lemma 3.1, Theorem C.1: indistinguishability ----------------------------------------------------------------------

/// A WRITE of `VALUE` while NIC 0 fails. What the sender has seen, up to the moment when it must decide, and what lies
/// in the receiver's memory.
fn view_of(failure: Failure) -> (SenderView, u64) {
    const VALUE: u64 = 0x1111;
    let (mut hosts, mut sender) = begin(Policy::GiveUp);
    hosts.sender.words.set(LOCAL, VALUE);
    post_during(&mut hosts, &mut sender, failure, request(1, Operation::Write { to: TARGET }));
    hosts.finish(&mut sender);
    // Whatever could still come has come.
    hosts.run_for(PATIENCE);
    (hosts.sender_view(&sender), hosts.receiver.words.get(TARGET))
}

/// **Lemma 3.1 (Indistinguishability), Theorem C.1: σ(T1) = σ(T2).** "There exist two traces indistinguishable yet
/// conflicting without receiver NIC state." T1, packet lost: the operation was never executed. T2, acknowledgement
/// lost: it was executed before the NIC failed. To the sender both are [Sent, Timeout].
///
/// Here the sender's view is everything that a host has: completions with their order and status, the queue pair's
/// attributes, asynchronous events, the device's counters, and a capture of all packets at its port with their times.
/// It is the same to the last bit, while the receiver's memory differs.
#[test]
fn lemma_3_1_a_lost_packet_and_a_lost_acknowledgement_look_the_same() {
    let (packet_lost, memory_one) = view_of(Failure::PacketLost);
    let (acknowledgement_lost, memory_two) = view_of(Failure::AcknowledgementLost);
    assert_eq!(packet_lost, acknowledgement_lost);
    assert_eq!((memory_one, memory_two), (0, 0x1111), "not executed, and executed");
    // [Sent, Timeout]: the request and its three repetitions went out, and no answer arrived.
    let statuses: Vec<_> = packet_lost.finished.iter().map(|finished| finished.status).collect();
    assert_eq!(statuses, [CompletionStatus::RetryExceededError]);
    assert_eq!((packet_lost.counters.sent_pkts, packet_lost.counters.rcvd_pkts), (4, 0));
    assert_eq!(packet_lost.queue_pair.state, Some(QueuePairState::Error));
    // The control: the view does show what reaches the sender.
    let (nothing_lost, memory_three) = view_of(Failure::None);
    assert_ne!(nothing_lost, packet_lost);
    assert_ne!(nothing_lost.packets, packet_lost.packets);
    assert_eq!(memory_three, 0x1111);
}

/// **Theorem 3.3 (Impossibility).** A failover that knows nothing of the receiver's NIC and copies nothing "cannot
/// simultaneously preserve safety and liveness for systems with non-idempotent operations": by Lemma 3.1 it decides the
/// same in both traces, and whichever it decides is wrong in one of them. Exactly once is on neither row:
///
/// | | packet lost | acknowledgement lost |
/// |---|---|---|
/// | send again | once | **twice** |
/// | give up | **never** | once |
#[test]
fn theorem_3_3_either_decision_is_wrong_in_one_of_the_two() {
    let executions = |policy, failure| {
        let (mut hosts, mut sender) = begin(policy);
        post_during(&mut hosts, &mut sender, failure, request(1, Operation::FetchAndAdd { at: TARGET, add: 1 }));
        hosts.finish(&mut sender);
        hosts.receiver.words.get(TARGET)
    };
    let row = |policy| [Failure::PacketLost, Failure::AcknowledgementLost].map(|failure| executions(policy, failure));
    assert_eq!(row(Policy::SendAgain), [1, 2], "not safe");
    assert_eq!(row(Policy::GiveUp), [0, 1], "not live");
    // The control: without a failure both decisions are right, because none is needed.
    for policy in [Policy::SendAgain, Policy::GiveUp] {
        assert_eq!(executions(policy, Failure::None), 1);
    }
}

// --- Lemma 3.2: non-idempotency ------------------------------------------------------------------------------------------

/// **Lemma C.2 (FADD Non-Idempotency).** "For any δ ≠ 0, FADD(a, δ) is not idempotent": retried after the NIC was
/// replaced, it adds 2δ. And the answer that the program gets is that of the second.
#[test]
fn lemma_c_2_fetch_and_add_adds_twice() {
    const BEFORE: u64 = 1000;
    const DELTA: u64 = 5;
    let run = |failure| {
        let (mut hosts, mut sender) = begin(Policy::SendAgain);
        hosts.receiver.words.set(TARGET, BEFORE);
        post_during(&mut hosts, &mut sender, failure, request(1, Operation::FetchAndAdd { at: TARGET, add: DELTA }));
        hosts.finish(&mut sender);
        assert_succeeded(&sender, usize::from(failure != Failure::None));
        (hosts.receiver.words.get(TARGET), hosts.sender.words.get(LOCAL))
    };
    assert_eq!(run(Failure::AcknowledgementLost), (BEFORE + 2 * DELTA, BEFORE + DELTA), "twice");
    // The controls: without a failure, and with one before the request, it adds once.
    assert_eq!(run(Failure::None), (BEFORE + DELTA, BEFORE));
    assert_eq!(run(Failure::PacketLost), (BEFORE + DELTA, BEFORE));
}

/// What a lock is: 0 is free, 1 is taken.
const FREE: u64 = 0;
const TAKEN: u64 = 1;

/// Take the lock at the receiver while NIC 0 fails; `reset` says whether the program there frees it before the sender's
/// time-out. The value that the sender got back, and the value in memory at the end.
fn take_lock(failure: Failure, reset: bool) -> (u64, u64) {
    let (mut hosts, mut sender) = begin(Policy::SendAgain);
    // Neither of the two, so that an answer is seen.
    hosts.sender.words.set(LOCAL, u64::MAX);
    let swap = Operation::CompareAndSwap { at: TARGET, compare: FREE, swap: TAKEN };
    post_during(&mut hosts, &mut sender, failure, request(1, swap));
    if failure != Failure::PacketLost {
        assert_eq!(hosts.receiver.words.get(TARGET), TAKEN, "the first has succeeded");
    }
    if reset {
        hosts.receiver.words.set(TARGET, FREE);
    }
    hosts.finish(&mut sender);
    assert_succeeded(&sender, usize::from(failure != Failure::None));
    (hosts.sender.words.get(LOCAL), hosts.receiver.words.get(TARGET))
}

/// **Lemma C.3 (CAS Double Success / ABA).** "Under concurrent modification, a CAS retry can succeed even after the
/// original succeeded": CAS(0 → 1) takes a lock, the receiver's program frees it (1 → 0), and the retry takes it once
/// more. One request, two successes; the lock is taken, and nobody knows that he has to free it.
#[test]
fn lemma_c_3_compare_and_swap_succeeds_twice() {
    assert_eq!(take_lock(Failure::AcknowledgementLost, true), (FREE, TAKEN), "success, for the second time");
    // The control: without a failure it succeeds once, and what was freed stays free.
    assert_eq!(take_lock(Failure::None, true), (FREE, FREE));
    assert_eq!(take_lock(Failure::PacketLost, false), (FREE, TAKEN));
    // Without the concurrent change memory is right, and yet the answer is wrong: the sender holds the lock and is
    // informed that it was taken already.
    assert_eq!(take_lock(Failure::AcknowledgementLost, false), (TAKEN, TAKEN));
    assert_eq!(take_lock(Failure::None, false), (FREE, TAKEN));
}

/// **Lemma C.4 (Two-Sided Consumption).** "An RDMA Send operation is non-idempotent with respect to the receiver's Work
/// Queue": the retry "matches this request against the next available buffer b2. […] A single logical send has consumed
/// two physical buffers and corrupted the memory location b2, which was intended for a subsequent application message."
#[test]
fn lemma_c_4_a_send_consumes_two_receives() {
    const BUFFERS: [usize; 3] = [20, 21, 22];
    let run = |failure| {
        let (mut hosts, mut sender) = begin(Policy::SendAgain);
        let mut receives = NaiveReceives::new(&hosts.receiver, BUFFERS);
        hosts.sender.words.set(LOCAL, 1);
        post_during(&mut hosts, &mut sender, failure, request(1, Operation::Send));
        if failure != Failure::None {
            receives.fail_over();
        }
        hosts.finish(&mut sender);
        assert_succeeded(&sender, usize::from(failure != Failure::None));
        hosts.sender.words.set(LOCAL, 2);
        sender.post(request(2, Operation::Send));
        hosts.finish(&mut sender);
        receives.poll();
        receives.received
    };
    let [one, two, three] = BUFFERS;
    assert_eq!(run(Failure::AcknowledgementLost), [(one, 1), (two, 1), (three, 2)], "the first message arrived twice");
    // The controls.
    assert_eq!(run(Failure::None), [(one, 1), (two, 2)]);
    assert_eq!(run(Failure::PacketLost), [(one, 1), (two, 2)]);
}

/// Data and flag packed into one word, as NCCL's LL protocol does it: four bytes each.
const fn packed(data: u32, flag: u32) -> u64 {
    (data as u64) << 32 | flag as u64
}

/// **Lemma C.5 (Write-After-Reuse / NCCL LL).** "For protocols that pack data and control flags in a single atomic
/// write, a retry after a lost ACK violates memory safety under application reuse." The receiver's program sees the
/// flag, takes the data and uses the memory for something else; the retry overwrites it.
#[test]
fn lemma_c_5_a_write_overwrites_memory_that_was_used_again() {
    const WRITTEN: u64 = packed(0xaaaa, 1);
    const REUSED: u64 = packed(0xbbbb, 2);
    let run = |failure, reuses: bool| {
        let (mut hosts, mut sender) = begin(Policy::SendAgain);
        hosts.sender.words.set(LOCAL, WRITTEN);
        post_during(&mut hosts, &mut sender, failure, request(1, Operation::Write { to: TARGET }));
        if reuses {
            assert_eq!(hosts.receiver.words.get(TARGET), WRITTEN, "the program has seen the flag");
            hosts.receiver.words.set(TARGET, REUSED);
        }
        hosts.finish(&mut sender);
        assert_succeeded(&sender, usize::from(failure != Failure::None));
        hosts.receiver.words.get(TARGET)
    };
    assert_eq!(run(Failure::AcknowledgementLost, true), WRITTEN, "silent corruption");
    // The control: without a failure the program keeps what it wrote.
    assert_eq!(run(Failure::None, true), REUSED);
    // And the opportunity (§3.2): memory that nobody has taken up yet may be written twice.
    assert_eq!(run(Failure::AcknowledgementLost, false), WRITTEN);
    assert_eq!(run(Failure::PacketLost, false), WRITTEN);
}

// --- Theorem 3.4, Theorem C.6: consensus -----------------------------------------------------------------------------------

/// **Theorem C.6 (Consensus Hierarchy Barrier)** speaks of a "Ghost" (state pending in the network) and a "Backup"
/// (recovery attempt): "if the Backup recovers first, it must block the Ghost." Nothing blocks it: a request that a
/// slow network holds back longer than the sender's patience arrives after its own retry was carried out, at a NIC that
/// was never dead.
#[test]
fn theorem_c_6_a_ghost_arrives_after_its_backup() {
    const HELD_BACK: Duration = Duration::from_millis(100);
    let run = |delay: Option<Duration>| {
        let (mut hosts, mut sender) = begin(Policy::SendAgain);
        if let Some(delay) = delay {
            hosts.hold_back(0, delay);
        }
        sender.post(request(1, Operation::FetchAndAdd { at: TARGET, add: 1 }));
        hosts.finish(&mut sender);
        assert_succeeded(&sender, usize::from(delay.is_some()));
        let when_finished = hosts.receiver.words.get(TARGET);
        hosts.run_for(2 * HELD_BACK);
        (when_finished, hosts.receiver.words.get(TARGET), hosts.duplicates_at(0))
    };
    // The ghost's own repetitions are distinguished from it: within one NIC there is memory of what was done.
    assert_eq!(run(Some(HELD_BACK)), (1, 2, 3), "the sender has its answer, and then it is carried out once more");
    assert_eq!(run(None), (1, 1, 0));
}
