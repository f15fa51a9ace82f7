//! What READs and atomics bring.

use longhaul_verbs::CompletionStatus::*;
use longhaul_verbs::Transport::ReliableConnection as RC;
use longhaul_verbs::{CompletionOperation, QueuePairState, WorkCompletion};

use super::*;

/// In these tests A reads from B's targets into `BUFFERS`, in two pieces that are not neighbours.
fn read(bench: &mut Bench, id: u64, length: usize) -> MessageNumber {
    let contents = bench.judge.next_message();
    read_of(bench, id, contents, 0, length)
}

fn local(length: usize) -> Vec<Piece> {
    let piece = |offset, length| Piece { place: Place { region: BUFFERS, offset }, length };
    vec![piece(0, 100), piece(512, length - 100)]
}

fn read_of(
    bench: &mut Bench,
    id: u64,
    contents: MessageNumber,
    contents_offset: usize,
    length: usize,
) -> MessageNumber {
    let facts = SendFacts { kind: Kind::Read, ..send(id, length) };
    let source = Some(TARGETS);
    bench.judge.posted_read(A, facts, ReadFacts { contents, contents_offset, source, local: local(length) })
}

/// Bytes `first..end` of what a READ is to bring arrive.
fn arrive(bench: &mut Bench, contents: MessageNumber, contents_offset: usize, first: usize, end: usize) {
    let whole = message_bytes(contents, contents_offset + end);
    for position in first..end {
        let offset = if position < 100 { position } else { 512 + position - 100 };
        bench.memory.0[BUFFERS.0][offset] = whole[contents_offset + position];
    }
}

fn completed(bench: &mut Bench, id: u64, operation: CompletionOperation, byte_count: u32) {
    bench.observe(Observation {
        end: A,
        completion_queue: 0,
        completion: WorkCompletion { id, operation, byte_count, ..Default::default() },
        state: QueuePairState::ReadyToSend,
        peer_state: QueuePairState::ReadyToSend,
    });
}

fn has_read(bench: &mut Bench, id: u64, length: u32) {
    completed(bench, id, CompletionOperation::Read, length);
}

#[test]
fn a_right_read_is_not_accused() {
    let mut bench = bench(RC);
    let message = read(&mut bench, 1, 700);
    bench.check();
    arrive(&mut bench, message, 0, 0, PACKET);
    bench.check();
    arrive(&mut bench, message, 0, PACKET, 700);
    has_read(&mut bench, 1, 700);
    bench.check();
    bench.assert_clean();
}

#[test]
fn a_read_completes_before_its_bytes_are_there() {
    let mut bench = bench(RC);
    let message = read(&mut bench, 1, 700);
    arrive(&mut bench, message, 0, 0, 2 * PACKET);
    has_read(&mut bench, 1, 700);
    bench.assert_broken(Rule::Read);
}

#[test]
fn a_read_brings_bytes_of_another_time() {
    let mut bench = bench(RC);
    for id in 0..2 {
        read(&mut bench, id, 300);
        arrive(&mut bench, 0, 0, 0, 300);
        has_read(&mut bench, id, 300);
    }
    // Both brought what was there for the first one.
    let rules: Vec<Rule> = bench.judge.violations().kept().iter().map(|violation| violation.rule).collect();
    assert_eq!(rules, [Rule::Read, Rule::Read], "in both pieces");
}

#[test]
fn a_read_brings_what_a_write_before_it_wrote() {
    for is_right in [true, false] {
        let mut bench = bench(RC);
        let written = bench.judge.posted_send(A, SendFacts { is_signaled: false, ..write(1, 700, 0) });
        read_of(&mut bench, 2, written, 150, 300);
        bench.place(TARGETS, 0, written, 700);
        arrive(&mut bench, written, if is_right { 150 } else { 142 }, 0, 300);
        has_read(&mut bench, 2, 300);
        assert_eq!(bench.judge.violations().is_empty(), is_right);
    }
}

#[test]
fn a_read_completes_before_the_write_before_it_is_placed() {
    let mut bench = bench(RC);
    bench.judge.posted_send(A, SendFacts { is_signaled: false, ..write(1, 700, 0) });
    let message = read(&mut bench, 2, 300);
    arrive(&mut bench, message, 0, 0, 300);
    has_read(&mut bench, 2, 300);
    bench.assert_broken(Rule::Placement);
}

#[test]
fn a_failed_read_leaves_whole_packets_and_nothing_later() {
    let lossy = NetworkFacts { loses: true, ..Default::default() };
    let mut bench = bench_on(RC, lossy);
    let message = read(&mut bench, 1, 700);
    arrive(&mut bench, message, 0, 0, PACKET);
    bench.failed(A, 1, RetryExceededError, QueuePairState::Error);
    bench.check();
    bench.assert_clean();
    arrive(&mut bench, message, 0, PACKET, 2 * PACKET);
    bench.check();
    bench.assert_broken(Rule::Memory);

    let mut half = bench_on(RC, lossy);
    let message = read(&mut half, 1, 700);
    arrive(&mut half, message, 0, 0, 50);
    half.failed(A, 1, RetryExceededError, QueuePairState::Error);
    half.assert_broken(Rule::Memory);
}

#[test]
fn a_read_that_must_be_refused_succeeds() {
    let mut bench = bench(RC);
    let facts = SendFacts { kind: Kind::Read, mistake: Some(Mistake::RemoteAccess), ..send(1, 300) };
    bench.judge.posted_read(A, facts, ReadFacts { contents: 0, contents_offset: 0, source: None, local: local(300) });
    has_read(&mut bench, 1, 300);
    bench.assert_broken(Rule::Status);
}

#[test]
fn a_read_of_revoked_memory_may_be_refused_but_not_changed() {
    let mut bench = bench(RC);
    let message = read(&mut bench, 1, 300);
    // The second one's bytes go to a null region.
    let facts = SendFacts { kind: Kind::Read, ..send(2, 300) };
    let source = Some(TARGETS);
    bench.judge.posted_read(A, facts, ReadFacts { contents: 1, contents_offset: 0, source, local: Vec::new() });
    let last = bench.memory.0[TARGETS.0].clone();
    bench.judge.revoked(TARGETS, &last);
    bench.memory.0[TARGETS.0].clear();
    arrive(&mut bench, message, 0, 0, 300);
    has_read(&mut bench, 1, 300);
    bench.failed(A, 2, RemoteAccessError, QueuePairState::Error);
    bench.assert_clean();
}

#[test]
fn a_read_of_revoked_memory_may_be_refused_after_a_later_message_has_arrived() {
    let mut bench = bench(RC);
    read(&mut bench, 1, 300);
    bench.receive(4, 500);
    let later = bench.judge.posted_send(A, send(2, 400));
    let last = bench.memory.0[TARGETS.0].clone();
    bench.judge.revoked(TARGETS, &last);
    bench.memory.0[TARGETS.0].clear();
    bench.place(BUFFERS, 4096, later, 400);
    let completion = bench.received(4, later, send(2, 400));
    bench.deliver(completion);
    bench.failed(A, 1, RemoteAccessError, QueuePairState::Error);
    bench.assert_clean();
}

#[test]
fn a_read_says_how_many_bytes_it_brought() {
    let mut bench = bench(RC);
    let message = read(&mut bench, 1, 300);
    arrive(&mut bench, message, 0, 0, 300);
    has_read(&mut bench, 1, 299);
    bench.assert_broken(Rule::Status);
}

const START: u64 = 7 << 40;
const RESULT: usize = 4096;

fn word(bench: &mut Bench, word_use: WordUse) -> WordNumber {
    bench.memory.0[TARGETS.0][..8].copy_from_slice(&START.to_ne_bytes());
    let place = Place { region: TARGETS, offset: 0 };
    bench.judge.program_wrote(place, &START.to_ne_bytes());
    bench.judge.add_word(place, word_use, START)
}

fn add(bench: &mut Bench, id: u64, word: WordNumber) -> u64 {
    let add = bench.judge.next_addend(word);
    let facts = SendFacts { kind: Kind::FetchAndAdd, ..send(id, 8) };
    let result = Piece { place: Place { region: BUFFERS, offset: RESULT + 16 * id as usize }, length: 8 };
    bench.judge.posted_atomic(A, facts, Some((word, Atomic::FetchAndAdd { add })), vec![result]);
    add
}

fn has_added(bench: &mut Bench, id: u64, old: u64) {
    bench.memory.0[BUFFERS.0][RESULT + 16 * id as usize..][..8].copy_from_slice(&old.to_ne_bytes());
    completed(bench, id, CompletionOperation::FetchAndAdd, 8);
}

fn holds(bench: &mut Bench, value: u64) {
    bench.memory.0[TARGETS.0][..8].copy_from_slice(&value.to_ne_bytes());
    bench.check();
}

#[test]
fn right_atomics_are_not_accused() {
    let mut bench = bench(RC);
    let word = word(&mut bench, WordUse::Add);
    let first = add(&mut bench, 0, word);
    let second = add(&mut bench, 1, word);
    holds(&mut bench, START + first);
    has_added(&mut bench, 0, START);
    holds(&mut bench, START + first + second);
    has_added(&mut bench, 1, START + first);
    bench.check();
    bench.assert_clean();
}

#[test]
fn an_atomic_happens_twice() {
    let mut bench = bench(RC);
    let word = word(&mut bench, WordUse::Add);
    let first = add(&mut bench, 0, word);
    has_added(&mut bench, 0, START);
    bench.assert_clean();
    holds(&mut bench, START + 2 * first);
    bench.assert_broken(Rule::Atomic);
}

#[test]
fn an_atomic_that_succeeded_has_not_happened() {
    let mut bench = bench(RC);
    let word = word(&mut bench, WordUse::Add);
    add(&mut bench, 0, word);
    has_added(&mut bench, 0, START);
    bench.check();
    bench.assert_broken(Rule::Atomic);
}

#[test]
fn an_atomic_without_an_answer_happens_at_most_once_and_not_after_a_reset() {
    let lossy = NetworkFacts { loses: true, ..Default::default() };
    let mut bench = bench_on(RC, lossy);
    let word = word(&mut bench, WordUse::Add);
    let first = add(&mut bench, 0, word);
    let second = add(&mut bench, 1, word);
    bench.failed(A, 0, RetryExceededError, QueuePairState::Error);
    bench.failed(A, 1, FlushedError, QueuePairState::Error);
    holds(&mut bench, START + first);
    bench.judge.reset(&[A, B], &bench.memory);
    bench.assert_clean();
    holds(&mut bench, START + first + second);
    bench.assert_broken(Rule::Atomic);
}

#[test]
fn the_result_of_an_atomic_that_failed_changes() {
    let lossy = NetworkFacts { loses: true, ..Default::default() };
    let mut bench = bench_on(RC, lossy);
    let word = word(&mut bench, WordUse::Add);
    add(&mut bench, 0, word);
    bench.memory.0[BUFFERS.0][RESULT..][..8].copy_from_slice(&START.to_ne_bytes());
    bench.failed(A, 0, RetryExceededError, QueuePairState::Error);
    bench.assert_broken(Rule::Memory);
}

#[test]
fn a_swap_succeeds_twice() {
    let mut bench = bench(RC);
    let word = word(&mut bench, WordUse::Swap);
    for id in 0..2 {
        let facts = SendFacts { kind: Kind::CompareAndSwap, ..send(id, 8) };
        let result = Piece { place: Place { region: BUFFERS, offset: RESULT + 16 * id as usize }, length: 8 };
        let atomic = Atomic::CompareAndSwap { compare: START, swap: 100 + id };
        bench.judge.posted_atomic(A, facts, Some((word, atomic)), vec![result]);
    }
    for id in 0..2 {
        bench.assert_clean();
        bench.memory.0[BUFFERS.0][RESULT + 16 * id as usize..][..8].copy_from_slice(&START.to_ne_bytes());
        completed(&mut bench, id, CompletionOperation::CompareAndSwap, 8);
    }
    bench.assert_broken(Rule::Atomic);
}

#[test]
fn an_atomic_that_is_not_aligned() {
    for is_refused in [true, false] {
        let mut bench = bench(RC);
        let facts = SendFacts { kind: Kind::FetchAndAdd, mistake: Some(Mistake::Alignment), ..send(1, 8) };
        let result = Piece { place: Place { region: BUFFERS, offset: RESULT }, length: 8 };
        bench.judge.posted_atomic(A, facts, None, vec![result]);
        match is_refused {
            true => bench.failed(A, 1, RemoteInvalidRequestError, QueuePairState::Error),
            false => completed(&mut bench, 1, CompletionOperation::FetchAndAdd, 8),
        }
        assert_eq!(bench.judge.violations().is_empty(), is_refused);
    }
}

#[test]
fn an_atomic_that_was_forgotten_may_have_brought_its_value_silently() {
    for (is_signaled, old, is_right) in [(false, START, true), (true, START, false), (false, START + 1, false)] {
        let mut bench = bench(RC);
        let word = word(&mut bench, WordUse::Add);
        let add = bench.judge.next_addend(word);
        let facts = SendFacts { kind: Kind::FetchAndAdd, is_signaled, ..send(0, 8) };
        let result = Piece { place: Place { region: BUFFERS, offset: RESULT }, length: 8 };
        bench.judge.posted_atomic(A, facts, Some((word, Atomic::FetchAndAdd { add })), vec![result]);
        bench.memory.0[TARGETS.0][..8].copy_from_slice(&(START + add).to_ne_bytes());
        bench.memory.0[BUFFERS.0][RESULT..][..8].copy_from_slice(&old.to_ne_bytes());
        bench.judge.reset(&[A, B], &bench.memory);
        assert_eq!(bench.judge.violations().is_empty(), is_right, "{:?}", bench.judge.violations().kept());
    }
}
