//! Atomics: the old value comes back, the new one is there, and whatever happens at the same time happens before or
//! after, never in between (IBTA 9.4.5, 10.7.2.3).

use std::collections::BTreeSet;

use longhaul_verbs::{
    Access, Capabilities, CompletionOperation, CompletionStatus, PostErrorKind, ProtectionDomain, RemoteMemory,
    SendFlags, SendOperation, Transport, WorkCompletion,
};

use super::Test;
use super::context::Context;
use super::failure::{Failure, Outcome, equal, status};
use super::memory::Memory;
use super::pair::{End, Form, Pair, Setup};
use super::transfer::send_with_flags;

const RC: Transport = Transport::ReliableConnection;
/// Bytes of the word that an atomic works on.
pub(super) const WORD_BYTES: usize = 8;

pub(super) fn tests() -> Vec<Test> {
    vec![
        atomic("atomics/fetch-and-add", fetch_and_add),
        atomic("atomics/fetch-and-add-wraps", fetch_and_add_wraps),
        atomic("atomics/add-nothing-reads", add_nothing),
        atomic("atomics/compare-and-swap", compare_and_swap),
        atomic("atomics/compare-fails", compare_fails),
        atomic("atomics/bytes-around-stay", bytes_around_stay),
        atomic("atomics/edges-of-the-region", edges),
        atomic("atomics/result-in-several-entries", result_in_several_entries),
        atomic("atomics/result-of-another-length", result_of_another_length),
        atomic("atomics/many-in-order", many_in_order),
        atomic("atomics/several-queue-pairs-on-one-word", several_queue_pairs),
        atomic("atomics/swaps-of-several-queue-pairs", swaps_of_several),
        atomic("atomics/both-directions-at-once", both_directions_at_once),
        atomic("atomics/chain-on-one-word", chain),
        atomic("atomics/sequence-numbers-wrap", sequence_numbers_wrap),
        atomic("atomics/unsignaled-is-silent", unsignaled_is_silent),
        atomic("atomics/need-no-receive", need_no_receive),
        atomic("atomics/peer-is-not-told", peer_is_not_told),
        Test::new("rc/atomics/zero-based-region", needs() | Capabilities::ZERO_BASED, zero_based),
        Test::new("rc/atomics/mixed-with-everything", needs() | Capabilities::READ, mixed),
    ]
}

/// What a test of atomics needs.
pub(super) fn needs() -> Capabilities {
    RC.capability() | Capabilities::ATOMICS
}

/// A test that needs a reliable connection and atomics.
pub(super) fn atomic(name: &str, function: impl Fn(&mut Context<'_>) -> Outcome + 'static) -> Test {
    Test::new(format!("rc/{name}"), needs(), function)
}

/// A patient connection that allows atomics and WRITEs, with some atomics at a time.
pub(super) fn setup() -> Setup {
    Setup { access: Access::REMOTE_WRITE | Access::REMOTE_ATOMIC, read_atomic: 4, ..Setup::new(RC) }
}

/// Memory seen as aligned words, which are numbers of this host.
pub(super) struct Words {
    pub(super) memory: Memory,
    /// Offset of the first aligned word.
    first: usize,
}

impl Words {
    pub(super) fn new(domain: &ProtectionDomain, count: usize, rights: Access) -> Outcome<Self> {
        let memory = Memory::new(domain, (count + 1) * WORD_BYTES, rights)?;
        let first = (memory.remote(0).address.wrapping_neg() % WORD_BYTES as u64) as usize;
        Ok(Words { memory, first })
    }

    /// Words that peers may change.
    pub(super) fn shared(end: &End, count: usize) -> Outcome<Self> {
        Words::new(&end.domain, count, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC)
    }

    pub(super) fn remote(&self, index: usize) -> RemoteMemory {
        self.memory.remote(self.first + index * WORD_BYTES)
    }

    /// The program puts a value.
    pub(super) fn set(&mut self, index: usize, value: u64) {
        self.memory.fill(self.first + index * WORD_BYTES, &value.to_ne_bytes());
    }

    /// The device should have put a value.
    pub(super) fn expect(&mut self, index: usize, value: u64) {
        self.memory.expect(self.first + index * WORD_BYTES, &value.to_ne_bytes());
    }

    pub(super) fn get(&self, index: usize) -> u64 {
        word_at(&self.memory, self.first + index * WORD_BYTES)
    }
}

/// The number that lies at an offset, aligned or not.
pub(super) fn word_at(memory: &Memory, offset: usize) -> u64 {
    let mut bytes = [0; WORD_BYTES];
    bytes.copy_from_slice(&memory.bytes(offset..offset + WORD_BYTES));
    u64::from_ne_bytes(bytes)
}

/// Every field of an atomic's completion.
pub(super) fn check_atomic(
    context: &mut Context<'_>,
    completion: &WorkCompletion,
    end: &End,
    id: u64,
    operation: CompletionOperation,
) -> Outcome {
    status("requester", completion, id, CompletionStatus::Success)?;
    equal("requester's completion: operation", operation, completion.operation)?;
    equal("requester's completion: queue pair", end.number(), completion.queue_pair)?;
    // Not all devices fill it in.
    context.tolerate(equal("requester's completion: byte count", WORD_BYTES as u32, completion.byte_count))
}

/// Carries out one atomic from the first end and returns the old value.
fn run(context: &mut Context<'_>, requester: &End, operation: SendOperation) -> Outcome<u64> {
    let local = Memory::target(&requester.domain, WORD_BYTES)?;
    requester.send(5, operation, &[local.whole()])?;
    let done = context.completion("requester", &requester.send_queue)?;
    let kind = match operation {
        SendOperation::FetchAndAdd { .. } => CompletionOperation::FetchAndAdd,
        _ => CompletionOperation::CompareAndSwap,
    };
    check_atomic(context, &done, requester, 5, kind)?;
    let old = word_at(&local, 0);
    // The guards around the result are part of what is checked.
    let mut local = local;
    local.accept(0..WORD_BYTES);
    local.verify("memory of the result")?;
    Ok(old)
}

fn fetch_and_add(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    for from in [0, 1] {
        let (requester, owner) = (&pair.ends[from], &pair.ends[1 - from]);
        let mut words = Words::shared(owner, 1)?;
        words.set(0, 0x0102_0304_0506_0708);
        let remote = words.remote(0);
        let old = run(context, requester, SendOperation::FetchAndAdd { remote, add: 0x10 })?;
        equal("old value", 0x0102_0304_0506_0708, old)?;
        words.expect(0, 0x0102_0304_0506_0718);
        words.memory.verify("memory with the word")?;
        let old = run(context, requester, SendOperation::FetchAndAdd { remote, add: 0xff00_0000_0000_0000 })?;
        equal("old value", 0x0102_0304_0506_0718, old)?;
        words.expect(0, 0x0002_0304_0506_0718);
        words.memory.verify("memory with the word")?;
    }
    Ok(())
}

/// Addition is modulo 2^64; nothing is carried into the neighbouring word.
fn fetch_and_add_wraps(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    let mut words = Words::shared(&pair.ends[1], 3)?;
    for (old, add, new) in [(u64::MAX, 1, 0), (u64::MAX, u64::MAX, u64::MAX - 1), (1 << 63, 1 << 63, 0), (5, !0, 4)] {
        words.set(1, old);
        let got = run(context, &pair.ends[0], SendOperation::FetchAndAdd { remote: words.remote(1), add })?;
        equal("old value", old, got)?;
        words.expect(1, new);
        words.memory.verify("memory with the word")?;
    }
    Ok(())
}

fn add_nothing(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    let mut words = Words::shared(&pair.ends[1], 1)?;
    words.set(0, 0xfeed_beef_0000_0001);
    let old = run(context, &pair.ends[0], SendOperation::FetchAndAdd { remote: words.remote(0), add: 0 })?;
    equal("old value", 0xfeed_beef_0000_0001, old)?;
    words.memory.verify("memory with the word")
}

fn compare_and_swap(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    for from in [0, 1] {
        let (requester, owner) = (&pair.ends[from], &pair.ends[1 - from]);
        let mut words = Words::shared(owner, 1)?;
        let remote = words.remote(0);
        words.set(0, 0);
        for (compare, swap) in [(0, u64::MAX), (u64::MAX, 0x0123_4567_89ab_cdef), (0x0123_4567_89ab_cdef, 7), (7, 7)] {
            let old = run(context, requester, SendOperation::CompareAndSwap { remote, compare, swap })?;
            equal("old value", compare, old)?;
            words.expect(0, swap);
            words.memory.verify("memory with the word")?;
        }
    }
    Ok(())
}

/// A comparison that fails changes nothing, and is a success: the old value says which.
fn compare_fails(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    let mut words = Words::shared(&pair.ends[1], 1)?;
    let value = 0x0123_4567_89ab_cdef_u64;
    words.set(0, value);
    let remote = words.remote(0);
    for compare in [0, value + 1, value ^ 1 << 63, value.swap_bytes(), value & 0xffff_ffff] {
        let old = run(context, &pair.ends[0], SendOperation::CompareAndSwap { remote, compare, swap: 1 })?;
        equal("old value", value, old)?;
        words.memory.verify("memory with the word")?;
    }
    Ok(())
}

fn bytes_around_stay(context: &mut Context<'_>) -> Outcome {
    const COUNT: usize = 9;
    let pair = Pair::new(context, &setup())?;
    let mut words = Words::shared(&pair.ends[1], COUNT)?;
    for index in (0..COUNT).step_by(2) {
        let old = words.get(index);
        let operation = match index % 4 {
            0 => SendOperation::FetchAndAdd { remote: words.remote(index), add: 3 },
            _ => SendOperation::CompareAndSwap { remote: words.remote(index), compare: old, swap: old.wrapping_add(3) },
        };
        equal("old value", old, run(context, &pair.ends[0], operation)?)?;
        words.expect(index, old.wrapping_add(3));
        words.memory.verify("memory with the words")?;
    }
    Ok(())
}

/// The first and the last aligned word of a region can be used.
fn edges(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    let region = pair.ends[1].domain.register_zeroed(4096, rights)?;
    let first = (region.address().wrapping_neg() % 8) as usize;
    let last = first + (4096 - first) / 8 * 8 - 8;
    for offset in [first, last] {
        let remote = region.remote(offset as u64);
        let old = run(context, &pair.ends[0], SendOperation::FetchAndAdd { remote, add: !0 })?;
        equal("old value", 0, old)?;
        equal("word", vec![0xff; 8], region.to_vec(offset..offset + 8))?;
    }
    let count = region.to_vec(0..4096).iter().filter(|&&byte| byte != 0).count();
    equal("bytes that changed", 16, count)
}

/// Eight bytes of result may be scattered like those of a READ. Soft-RoCE and RNICs take it; a device that takes one
/// entry only says so when the request is posted.
fn result_in_several_entries(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    let [requester, owner] = &pair.ends;
    let mut words = Words::shared(owner, 1)?;
    words.set(0, 0x1122_3344_5566_7788);
    let mut local = Memory::target(&requester.domain, 30)?;
    let entries = [local.entry(0..3), local.entry(10..10), local.entry(20..25)];
    let operation = SendOperation::FetchAndAdd { remote: words.remote(0), add: 1 };
    requester.send(1, operation, &entries)?;
    let done = context.completion("requester", &requester.send_queue)?;
    check_atomic(context, &done, requester, 1, CompletionOperation::FetchAndAdd)?;
    let old = 0x1122_3344_5566_7788_u64.to_ne_bytes();
    local.expect(0, &old[..3]);
    local.expect(20, &old[3..]);
    local.verify("memory of the result")?;
    words.expect(0, 0x1122_3344_5566_7789);
    words.memory.verify("memory with the word")
}

/// A result is eight bytes, not more and not less. Some devices refuse the request when it is posted, some complete it
/// with a length error; in either case nothing has happened to the word.
fn result_of_another_length(context: &mut Context<'_>) -> Outcome {
    for length in [0, 4, 7, 9, 16] {
        let pair = Pair::new(context, &setup())?;
        let [requester, owner] = &pair.ends;
        let words = Words::shared(owner, 1)?;
        let local = Memory::target(&requester.domain, length)?;
        let entry = [local.whole()];
        let remote = words.remote(0);
        let operations = [
            SendOperation::FetchAndAdd { remote, add: 1 },
            SendOperation::CompareAndSwap { remote, compare: words.get(0), swap: 1 },
        ];
        for operation in operations {
            match requester.queue_pair.post_send(&[requester.request(1, operation, &entry)]) {
                Err(error) => {
                    let gone = matches!(error.kind, PostErrorKind::Gone | PostErrorKind::QueueFull { .. });
                    equal("refusal for another reason", false, gone)?;
                    context.no_completion("requester of a refused atomic", &requester.send_queue)?;
                    requester.is_in(longhaul_verbs::QueuePairState::ReadyToSend)?;
                }
                Ok(()) => {
                    let done = context.completion("requester", &requester.send_queue)?;
                    context.failed("requester", &done, 1, &[CompletionStatus::LocalLengthError])?;
                    break;
                }
            }
        }
        context.unchanged("memory with the word", &words.memory)?;
        local.verify("memory of the result")?;
    }
    Ok(())
}

/// Each old value is the one before plus one: none is lost, none happens twice, all in order.
fn many_in_order(context: &mut Context<'_>) -> Outcome {
    const COUNT: usize = 100;
    let pair = Pair::new(context, &setup())?;
    let [requester, owner] = &pair.ends;
    let mut words = Words::shared(owner, 1)?;
    words.set(0, 1000);
    let mut local = Memory::target(&requester.domain, COUNT * WORD_BYTES)?;
    for index in 0..COUNT {
        let operation = SendOperation::FetchAndAdd { remote: words.remote(0), add: 1 };
        let entry = [local.entry(index * WORD_BYTES..(index + 1) * WORD_BYTES)];
        requester.send(index as u64, operation, &entry)?;
        local.expect(index * WORD_BYTES, &(1000 + index as u64).to_ne_bytes());
    }
    for (id, done) in (0..).zip(context.completions("requester", &requester.send_queue, COUNT)?) {
        check_atomic(context, &done, requester, id, CompletionOperation::FetchAndAdd)?;
    }
    local.verify("memory of the results")?;
    words.expect(0, 1000 + COUNT as u64);
    words.memory.verify("memory with the word")
}

/// Connections to one word in one protection domain, which is the first pair's; `count` of them from each end's view.
fn pairs_on_one_word(context: &mut Context<'_>, count: usize) -> Outcome<(Vec<Pair>, Words)> {
    let mut pairs = vec![Pair::unconnected(context, &setup())?];
    let domain = pairs[0].ends[1].domain.clone();
    for _ in 1..count {
        let mut pair = Pair::unconnected(context, &setup())?;
        let end = &mut pair.ends[1];
        end.domain = domain.clone();
        end.queue_pair = super::pair::create(&domain, &end.send_queue, &end.receive_queue, &pair.setup)?;
        pair.meet()?;
        pairs.push(pair);
    }
    for pair in &pairs {
        for end in [0, 1] {
            pair.advance(end, longhaul_verbs::QueuePairState::ReadyToSend)?;
        }
    }
    let words = Words::shared(&pairs[0].ends[1], 1)?;
    Ok((pairs, words))
}

/// Several queue pairs add to one word at once: the sum is right, and no two saw the same value.
fn several_queue_pairs(context: &mut Context<'_>) -> Outcome {
    const PAIRS: usize = 6;
    const COUNT: usize = 50;
    let (pairs, mut words) = pairs_on_one_word(context, PAIRS)?;
    words.set(0, 0);
    let mut results = Vec::new();
    for pair in &pairs {
        results.push(Memory::target(&pair.ends[0].domain, COUNT * WORD_BYTES)?);
    }
    for index in 0..COUNT {
        for (pair, local) in pairs.iter().zip(&results) {
            let operation = SendOperation::FetchAndAdd { remote: words.remote(0), add: 1 };
            let entry = [local.entry(index * WORD_BYTES..(index + 1) * WORD_BYTES)];
            pair.ends[0].send(index as u64, operation, &entry)?;
        }
    }
    let mut seen = BTreeSet::new();
    for (pair, local) in pairs.iter().zip(&results) {
        let done = context.completions("requester", &pair.ends[0].send_queue, COUNT)?;
        let mut before = None;
        for (index, done) in done.iter().enumerate() {
            check_atomic(context, done, &pair.ends[0], index as u64, CompletionOperation::FetchAndAdd)?;
            let old = word_at(local, index * WORD_BYTES);
            equal("an old value grows along a queue pair", true, before < Some(old))?;
            before = Some(old);
            if !seen.insert(old) {
                return Err(Failure::new(format!("two atomics saw the same value {old}")));
            }
        }
    }
    equal("the largest old value", Some((PAIRS * COUNT) as u64 - 1), seen.last().copied())?;
    words.expect(0, (PAIRS * COUNT) as u64);
    words.memory.verify("memory with the word")
}

/// Of several that want to take a lock by compare-and-swap at once, one gets it.
fn swaps_of_several(context: &mut Context<'_>) -> Outcome {
    const PAIRS: usize = 6;
    let (pairs, mut words) = pairs_on_one_word(context, PAIRS)?;
    let mut results = Vec::new();
    for pair in &pairs {
        results.push(Memory::target(&pair.ends[0].domain, WORD_BYTES)?);
    }
    for round in 0..10 {
        words.set(0, 0);
        for (number, (pair, local)) in (1..).zip(pairs.iter().zip(&results)) {
            let operation = SendOperation::CompareAndSwap { remote: words.remote(0), compare: 0, swap: number };
            pair.ends[0].send(round, operation, &[local.whole()])?;
        }
        let mut winners = Vec::new();
        for (number, (pair, local)) in (1..).zip(pairs.iter().zip(&results)) {
            let done = context.completion("requester", &pair.ends[0].send_queue)?;
            check_atomic(context, &done, &pair.ends[0], round, CompletionOperation::CompareAndSwap)?;
            if word_at(local, 0) == 0 {
                winners.push(number);
            }
        }
        equal("winners", vec![words.get(0)], winners)?;
    }
    Ok(())
}

fn both_directions_at_once(context: &mut Context<'_>) -> Outcome {
    const COUNT: u64 = 30;
    let pair = Pair::new(context, &setup())?;
    let mut words = Vec::new();
    let mut results = Vec::new();
    for end in &pair.ends {
        let mut own = Words::shared(end, 1)?;
        own.set(0, 0);
        words.push(own);
        results.push(Memory::target(&end.domain, WORD_BYTES)?);
    }
    for id in 0..COUNT {
        for (number, end) in pair.ends.iter().enumerate() {
            let operation = SendOperation::FetchAndAdd { remote: words[1 - number].remote(0), add: 2 };
            end.send(id, operation, &[results[number].whole()])?;
        }
    }
    for (number, end) in pair.ends.iter().enumerate() {
        for (id, done) in (0..).zip(context.completions("requester", &end.send_queue, COUNT as usize)?) {
            check_atomic(context, &done, end, id, CompletionOperation::FetchAndAdd)?;
        }
        words[1 - number].expect(0, 2 * COUNT);
        words[1 - number].memory.verify("memory with the word")?;
    }
    Ok(())
}

/// Swaps and additions on one word, all in flight at once: each finds what the one before left.
fn chain(context: &mut Context<'_>) -> Outcome {
    const COUNT: u64 = 60;
    let pair = Pair::new(context, &setup())?;
    let [requester, owner] = &pair.ends;
    let mut words = Words::shared(owner, 1)?;
    words.set(0, 0);
    let mut local = Memory::target(&requester.domain, COUNT as usize * WORD_BYTES)?;
    let remote = words.remote(0);
    for id in 0..COUNT {
        let operation = match id % 3 {
            0 => SendOperation::CompareAndSwap { remote, compare: id, swap: id + 1 },
            1 => SendOperation::FetchAndAdd { remote, add: 1 },
            // One that must fail, and the word then has to be as it was.
            _ => SendOperation::CompareAndSwap { remote, compare: id + 7, swap: 99 },
        };
        let start = id as usize * WORD_BYTES;
        requester.send(id, operation, &[local.entry(start..start + WORD_BYTES)])?;
        local.expect(start, &id.to_ne_bytes());
        if id % 3 == 2 {
            // Make up for it, so that the next finds its own number.
            let operation = SendOperation::FetchAndAdd { remote, add: 1 };
            send_with_flags(requester, 1000, operation, &[local.entry(start..start + WORD_BYTES)], SendFlags::empty())?;
        }
    }
    for (id, done) in (0..).zip(context.completions("requester", &requester.send_queue, COUNT as usize)?) {
        status("requester", &done, id, CompletionStatus::Success)?;
    }
    context.settle("memory of the results", &local)?;
    words.expect(0, COUNT);
    context.settle("memory with the word", &words.memory)
}

fn sequence_numbers_wrap(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &Setup { first_psn: [0xff_fffe, 0xff_ffff], ..setup() })?;
    let mut words = Words::shared(&pair.ends[1], 1)?;
    words.set(0, 0);
    for expected in 0..6 {
        let operation = SendOperation::FetchAndAdd { remote: words.remote(0), add: 1 };
        equal("old value", expected, run(context, &pair.ends[0], operation)?)?;
    }
    Ok(())
}

fn unsignaled_is_silent(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    let [requester, owner] = &pair.ends;
    let mut words = Words::shared(owner, 1)?;
    words.set(0, 0);
    let local = Memory::target(&requester.domain, WORD_BYTES)?;
    let operation = SendOperation::FetchAndAdd { remote: words.remote(0), add: 1 };
    for id in 0..5 {
        send_with_flags(requester, id, operation, &[local.whole()], SendFlags::empty())?;
    }
    context.no_completion("requester of unsignalled atomics", &requester.send_queue)?;
    equal("old value", 5, run(context, requester, operation)?)?;
    context.no_completion("requester, after the signalled one", &requester.send_queue)
}

fn need_no_receive(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &Setup { receiver_not_ready_retry: 0, ..setup() })?;
    let mut words = Words::shared(&pair.ends[1], 1)?;
    words.set(0, 8);
    let operation = SendOperation::FetchAndAdd { remote: words.remote(0), add: 1 };
    equal("old value", 8, run(context, &pair.ends[0], operation)?)
}

fn peer_is_not_told(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    let owner = &pair.ends[1];
    owner.receive(1, &[])?;
    let mut words = Words::shared(owner, 1)?;
    words.set(0, 8);
    let operation = SendOperation::CompareAndSwap { remote: words.remote(0), compare: 8, swap: 1 };
    equal("old value", 8, run(context, &pair.ends[0], operation)?)?;
    context.no_completion("owner of the word", &owner.receive_queue)?;
    context.no_completion("owner of the word", &owner.send_queue)
}

/// In a zero-based region the address that must be aligned is the one that counts from 0, or the one in memory: a
/// device may look at either, and here both are.
fn zero_based(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC | Access::ZERO_BASED;
    let region = pair.ends[1].domain.register_zeroed(4096, rights)?;
    let remote = RemoteMemory { address: 16, key: region.remote_key() };
    for expected in 0..3 {
        let old = run(context, &pair.ends[0], SendOperation::FetchAndAdd { remote, add: 1 })?;
        equal("old value", expected, old)?;
    }
    equal("word", 3_u64.to_ne_bytes().to_vec(), region.to_vec(16..24))
}

/// WRITE, atomic, READ, SEND, over and over: completions in the order of posting, and each sees those before it.
fn mixed(context: &mut Context<'_>) -> Outcome {
    const ROUNDS: usize = 16;
    let setup = Setup { access: setup().access | Access::REMOTE_READ, ..setup() };
    let pair = Pair::new(context, &setup)?;
    let [requester, owner] = &pair.ends;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC | Access::REMOTE_READ;
    let mut words = Words::new(&owner.domain, 1, rights)?;
    let source = Memory::source(&requester.domain, &super::memory::pattern(3, ROUNDS * WORD_BYTES))?;
    let mut local = Memory::target(&requester.domain, 2 * ROUNDS * WORD_BYTES)?;
    let target = Memory::target(&owner.domain, 64)?;
    let remote = words.remote(0);
    for round in 0..ROUNDS {
        owner.receive(round as u64, &[target.whole()])?;
        let id = 4 * round as u64;
        let from = round * WORD_BYTES;
        let value = word_at(&source, from);
        requester.send(id, SendOperation::Write(remote), &[source.entry(from..from + WORD_BYTES)])?;
        let old = [local.entry(2 * from..2 * from + WORD_BYTES)];
        requester.send(id + 1, SendOperation::FetchAndAdd { remote, add: 5 }, &old)?;
        let read = [local.entry(2 * from + WORD_BYTES..2 * from + 2 * WORD_BYTES)];
        // The READ must see what the atomic did, which without a fence is not promised (IBTA table 79).
        send_with_flags(requester, id + 2, SendOperation::Read(remote), &read, SendFlags::SIGNALED | SendFlags::FENCE)?;
        // The next round's WRITE must not overtake the READ.
        let flags = SendFlags::SIGNALED | SendFlags::FENCE;
        send_with_flags(requester, id + 3, SendOperation::Send, &[], flags)?;
        local.expect(2 * from, &value.to_ne_bytes());
        local.expect(2 * from + WORD_BYTES, &value.wrapping_add(5).to_ne_bytes());
        words.expect(0, value.wrapping_add(5));
    }
    for (id, done) in (0..).zip(context.completions("requester", &requester.send_queue, 4 * ROUNDS)?) {
        match id % 4 {
            0 => Form::Write.check_sent(&done, requester, id)?,
            1 => check_atomic(context, &done, requester, id, CompletionOperation::FetchAndAdd)?,
            2 => super::read::check_read(context, &done, requester, id, WORD_BYTES)?,
            _ => Form::Send.check_sent(&done, requester, id)?,
        }
    }
    for (id, received) in (0..).zip(context.completions("receiver", &owner.receive_queue, ROUNDS)?) {
        Form::Send.check_received(&received, (requester, owner), id, 0, 0)?;
    }
    local.verify("memory of the results")?;
    words.memory.verify("memory with the word")
}
