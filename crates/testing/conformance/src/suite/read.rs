//! READ: the bytes of the peer's memory arrive whole, once, and nowhere else; READs keep their order with everything
//! else on the queue pair, and the peer's program notices nothing (IBTA 9.4.4, 9.7.5.1.6, 10.8.2.2).

use longhaul_verbs::{
    Access, Capabilities, CompletionOperation, CompletionStatus, QueuePairLimits, QueuePairState, RemoteMemory,
    ScatterGatherEntry, SendFlags, SendOperation, Transport, WorkCompletion,
};

use super::Test;
use super::context::Context;
use super::failure::{Failure, Outcome, equal, status};
use super::memory::{Memory, pattern};
use super::pair::{End, Form, Pair, Setup};
use super::transfer::{GAP_BYTES, MESSAGE_SIZES, PACKET_SIZES, send_with_flags};

const RC: Transport = Transport::ReliableConnection;

/// A case: its name, and the lengths of the pieces that the bytes are scattered to, given the MTU.
type Case = (&'static str, fn(usize) -> Vec<usize>);

const SCATTERED: [Case; 7] = [
    ("two-uneven-pieces", |mtu| vec![1, mtu - 1]),
    ("odd-boundaries", |_| vec![3, 5, 7, 11]),
    ("zero-length-pieces", |_| vec![0, 9, 0, 0, 30, 0]),
    ("only-zero-length-pieces", |_| vec![0, 0, 0]),
    ("across-packets", |mtu| vec![mtu - 1, mtu + 1, 1, 2 * mtu + 3]),
    ("pieces-smaller-than-packets", |mtu| vec![mtu / 3 + 1; 8]),
    ("whole-packets", |mtu| vec![mtu, 0, mtu, mtu]),
];

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for (case, size) in PACKET_SIZES.into_iter().chain(MESSAGE_SIZES) {
        tests.push(reading(&format!("read/{case}"), move |context| {
            let pair = Pair::new(context, &setup())?;
            let size = size(context.mtu());
            for from in [0, 1] {
                read_message(context, &pair, from, &[size])
                    .map_err(|failure| failure.context(format_args!("from end {from}")))?;
            }
            Ok(())
        }));
    }
    for (case, pieces) in SCATTERED {
        tests.push(reading(&format!("read/scatter-{case}"), move |context| scatter(context, &pieces(context.mtu()))));
    }
    tests.push(reading("read/no-bytes-need-no-key", no_bytes_need_no_key));
    tests.push(reading("read/edges-of-the-region", edges));
    tests.push(reading("read/several-regions", several_regions));
    tests.push(Test::new("rc/read/zero-based-region", needs() | Capabilities::ZERO_BASED, zero_based));
    tests.push(reading("read/many-in-order", many_in_order));
    tests.push(reading("read/one-after-the-other-at-depth-one", |context| outstanding(context, 1)));
    tests.push(reading("read/several-outstanding", |context| outstanding(context, 4)));
    tests.push(reading("read/as-many-outstanding-as-possible", |context| outstanding(context, u8::MAX)));
    tests.push(reading("read/overlapping-ranges", overlapping));
    tests.push(reading("read/both-directions-at-once", both_directions_at_once));
    tests.push(reading("read/many-connections", many_connections));
    tests.push(reading("read/sequence-numbers-wrap", sequence_numbers_wrap));
    tests.push(reading("read/after-write-sees-it", after_write_sees_it));
    tests.push(reading("read/mixed-with-write-and-send", mixed));
    tests.push(reading("read/sees-the-memory-of-now", sees_the_memory_of_now));
    tests.push(reading("read/unsignaled-is-silent", unsignaled_is_silent));
    tests.push(reading("read/unsignaled-makes-room", unsignaled_makes_room));
    tests.push(reading("read/signal-all", signal_all));
    tests.push(reading("read/peer-is-not-told", peer_is_not_told));
    tests.push(reading("read/needs-no-receive", needs_no_receive));
    tests.push(reading("read/answered-in-ready-to-receive", answered_in_ready_to_receive));
    tests
}

/// What a test of READs needs.
pub(super) fn needs() -> Capabilities {
    RC.capability() | Capabilities::READ
}

/// A test that needs a reliable connection and READ.
pub(super) fn reading(name: &str, function: impl Fn(&mut Context<'_>) -> Outcome + 'static) -> Test {
    Test::new(format!("rc/{name}"), needs(), function)
}

/// A patient connection over which the peer's memory may be read and written, with some READs at a time.
pub(super) fn setup() -> Setup {
    Setup { access: Access::REMOTE_WRITE | Access::REMOTE_READ, read_atomic: 4, ..Setup::new(RC) }
}

/// The same, giving up soon.
pub(super) fn hasty_setup() -> Setup {
    let Setup { access, read_atomic, .. } = setup();
    Setup { access, read_atomic, ..Setup::hasty(RC) }
}

/// Memory that peers may read, filled with these bytes.
pub(super) fn readable(end: &End, bytes: &[u8]) -> Outcome<Memory> {
    let mut memory = Memory::new(&end.domain, bytes.len(), Access::REMOTE_READ)?;
    memory.fill(0, bytes);
    Ok(memory)
}

/// Every field of a READ's completion. Devices agree on the byte count only for some of their sizes: libibverbs
/// promises it, Soft-RoCE and others leave it out.
pub(super) fn check_read(
    context: &mut Context<'_>,
    completion: &WorkCompletion,
    end: &End,
    id: u64,
    bytes: usize,
) -> Outcome {
    status("reader", completion, id, CompletionStatus::Success)?;
    equal("reader's completion: operation", CompletionOperation::Read, completion.operation)?;
    equal("reader's completion: queue pair", end.number(), completion.queue_pair)?;
    equal("reader's completion: immediate", None, completion.immediate())?;
    context.tolerate(equal("reader's completion: byte count", bytes as u32, completion.byte_count))
}

/// Reads one message into pieces of these lengths, and checks the completion and every byte of both memories.
pub(super) fn read_message(context: &mut Context<'_>, pair: &Pair, from: usize, pieces: &[usize]) -> Outcome {
    let (reader, owner) = (&pair.ends[from], &pair.ends[1 - from]);
    let size: usize = pieces.iter().sum();
    let message = pattern(size as u64 + 5 * from as u64 + 3, size);
    let remote = readable(owner, &message)?;
    let mut local = Memory::target(&reader.domain, size + GAP_BYTES * pieces.len())?;
    let mut entries = Vec::new();
    let (mut offset, mut taken) = (0, 0);
    for &length in pieces {
        entries.push(local.entry(offset..offset + length));
        local.expect(offset, &message[taken..taken + length]);
        offset += length + GAP_BYTES;
        taken += length;
    }
    reader.send(71, SendOperation::Read(remote.remote(0)), &entries)?;
    let done = context.completion("reader", &reader.send_queue)?;
    check_read(context, &done, reader, 71, size)?;
    // The completion says that the bytes are there: no waiting.
    local.verify("memory read into")?;
    remote.verify("memory read from")?;
    for queue in [&reader.send_queue, &reader.receive_queue, &owner.send_queue, &owner.receive_queue] {
        equal("completions left", None, queue.poll_one()?)?;
    }
    Ok(())
}

fn scatter(context: &mut Context<'_>, pieces: &[usize]) -> Outcome {
    let most = context.device_attributes(0)?.max_scatter_gather_entries;
    if most < pieces.len() as u32 {
        return Err(Failure::not_applicable(format!("{} scatter-gather entries", pieces.len())));
    }
    let setup = Setup { limits: QueuePairLimits { send_entries: 8, ..Default::default() }, ..setup() };
    let pair = Pair::new(context, &setup)?;
    read_message(context, &pair, 0, pieces)
}

/// A READ of no bytes checks neither key nor address (IBTA 9.7.4.1), with entries or without.
fn no_bytes_need_no_key(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    let reader = &pair.ends[0];
    let nowhere = RemoteMemory { address: 0x10, key: 0 };
    let nothing = ScatterGatherEntry { address: 0x1000, length: 0, local_key: 0 };
    for local in [&[][..], &[nothing]] {
        reader.send(2, SendOperation::Read(nowhere), local)?;
        let done = context.completion("reader", &reader.send_queue)?;
        check_read(context, &done, reader, 2, 0)?;
    }
    read_message(context, &pair, 0, &[100])
}

/// The first and the last byte of a region may be read.
fn edges(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let length = 2 * context.mtu();
    let bytes = pattern(8, length);
    let region = owner.domain.register(bytes.clone(), Access::REMOTE_READ)?;
    let mut local = Memory::target(&reader.domain, 2)?;
    for (id, offset) in [(0, 0), (1, length - 1)] {
        let remote = region.remote(offset as u64);
        reader.send(id as u64, SendOperation::Read(remote), &[local.entry(id..id + 1)])?;
        let done = context.completion("reader", &reader.send_queue)?;
        check_read(context, &done, reader, id as u64, 1)?;
        local.expect(id, &bytes[offset..offset + 1]);
        local.verify("memory read into")?;
    }
    let mut whole = Memory::target(&reader.domain, length)?;
    reader.send(2, SendOperation::Read(region.remote(0)), &[whole.whole()])?;
    let done = context.completion("reader", &reader.send_queue)?;
    check_read(context, &done, reader, 2, length)?;
    whole.expect(0, &bytes);
    whole.verify("memory read into")
}

/// Each entry has its own key.
fn several_regions(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let length = 2 * context.mtu() + 90;
    let bytes = pattern(4, length);
    let remote = readable(owner, &bytes)?;
    let mut places = Vec::new();
    let mut taken = 0;
    for piece in [1, context.mtu() + 44, length - context.mtu() - 45] {
        let mut local = Memory::target(&reader.domain, piece)?;
        local.expect(0, &bytes[taken..taken + piece]);
        taken += piece;
        places.push(local);
    }
    reader.send(1, SendOperation::Read(remote.remote(0)), &places.iter().map(Memory::whole).collect::<Vec<_>>())?;
    let done = context.completion("reader", &reader.send_queue)?;
    check_read(context, &done, reader, 1, length)?;
    places.iter().try_for_each(|local| local.verify("memory read into"))
}

/// In a zero-based region everything, local entries and the peer's addresses, counts from 0.
fn zero_based(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let bytes = pattern(7, 3000);
    let remote = owner.domain.register(bytes.clone(), Access::REMOTE_READ | Access::ZERO_BASED)?;
    let local = reader.domain.register_zeroed(3000, Access::LOCAL_WRITE | Access::ZERO_BASED)?;
    let from = RemoteMemory { address: 10, key: remote.remote_key() };
    let entry = ScatterGatherEntry { address: 20, length: 2500, local_key: local.local_key() };
    reader.send(1, SendOperation::Read(from), &[entry])?;
    let done = context.completion("reader", &reader.send_queue)?;
    check_read(context, &done, reader, 1, 2500)?;
    equal("bytes before the target", vec![0; 20], local.to_vec(0..20))?;
    equal("bytes read", true, bytes[10..2510] == local.to_vec(20..2520))?;
    equal("bytes behind the target", vec![0; 480], local.to_vec(2520..3000))
}

/// Several hundred READs of changing size, posted as fast as the queue allows.
fn many_in_order(context: &mut Context<'_>) -> Outcome {
    const ROUNDS: usize = 5;
    const ROUND: usize = 64;
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let longest = 3 * context.mtu();
    let remote = readable(owner, &pattern(5, longest + ROUND))?;
    let mut local = Memory::target(&reader.domain, longest * ROUND)?;
    for round in 0..ROUNDS {
        let length = |index: usize| ((round * ROUND + index) * 7919) % (longest + 1);
        for index in 0..ROUND {
            let entry = [local.entry(index * longest..index * longest + length(index))];
            reader.send((round * ROUND + index) as u64, SendOperation::Read(remote.remote(index)), &entry)?;
        }
        for (index, done) in context.completions("reader", &reader.send_queue, ROUND)?.iter().enumerate() {
            check_read(context, done, reader, (round * ROUND + index) as u64, length(index))?;
            local.expect(index * longest, &remote.bytes(index..index + length(index)));
        }
        local.verify("memory read into")?;
    }
    Ok(())
}

/// More READs at once than may be outstanding: the rest waits, and all is read.
fn outstanding(context: &mut Context<'_>, depth: u8) -> Outcome {
    const COUNT: usize = 40;
    let pair = Pair::new(context, &Setup { read_atomic: depth, ..setup() })?;
    let [reader, owner] = &pair.ends;
    let slot = 5 * context.mtu() + 9;
    let remote = readable(owner, &pattern(15, slot * COUNT))?;
    let mut local = Memory::target(&reader.domain, slot * COUNT)?;
    let entries: Vec<_> = (0..COUNT).map(|index| [local.entry(index * slot..(index + 1) * slot)]).collect();
    let requests: Vec<_> = (0..COUNT)
        .map(|index| reader.request(index as u64, SendOperation::Read(remote.remote(index * slot)), &entries[index]))
        .collect();
    reader.queue_pair.post_send(&requests)?;
    for index in 0..COUNT {
        let done = context.completion("reader", &reader.send_queue)?;
        check_read(context, &done, reader, index as u64, slot)?;
        let range = index * slot..(index + 1) * slot;
        equal("bytes read when their READ completes", true, remote.bytes(range.clone()) == local.bytes(range))?;
    }
    local.expect(0, &remote.bytes(0..slot * COUNT));
    local.verify("memory read into")
}

/// READs of ranges that overlap, all in flight at once, do not disturb each other.
fn overlapping(context: &mut Context<'_>) -> Outcome {
    const COUNT: usize = 16;
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let slot = 2 * context.mtu() + 1;
    let remote = readable(owner, &pattern(16, slot + COUNT))?;
    let mut local = Memory::target(&reader.domain, slot * COUNT)?;
    for index in 0..COUNT {
        let entry = [local.entry(index * slot..(index + 1) * slot)];
        reader.send(index as u64, SendOperation::Read(remote.remote(index)), &entry)?;
        local.expect(index * slot, &remote.bytes(index..index + slot));
    }
    for (id, done) in (0..).zip(context.completions("reader", &reader.send_queue, COUNT)?) {
        check_read(context, &done, reader, id, slot)?;
    }
    local.verify("memory read into")
}

fn both_directions_at_once(context: &mut Context<'_>) -> Outcome {
    const COUNT: usize = 24;
    let pair = Pair::new(context, &setup())?;
    let slot = 3 * context.mtu() + 13;
    let mut sources = Vec::new();
    let mut targets = Vec::new();
    for (end, seed) in pair.ends.iter().zip([31, 32]) {
        sources.push(readable(end, &pattern(seed, slot * COUNT))?);
        targets.push(Memory::target(&end.domain, slot * COUNT)?);
    }
    for index in 0..COUNT {
        for (number, end) in pair.ends.iter().enumerate() {
            let entry = [targets[number].entry(index * slot..(index + 1) * slot)];
            end.send(index as u64, SendOperation::Read(sources[1 - number].remote(index * slot)), &entry)?;
        }
    }
    for (number, end) in pair.ends.iter().enumerate() {
        for (id, done) in (0..).zip(context.completions("reader", &end.send_queue, COUNT)?) {
            check_read(context, &done, end, id, slot)?;
        }
        targets[number].expect(0, &sources[1 - number].bytes(0..slot * COUNT));
        targets[number].verify("memory read into")?;
    }
    Ok(())
}

fn many_connections(context: &mut Context<'_>) -> Outcome {
    const COUNT: usize = 12;
    let size = 20 * context.mtu() + 11;
    let mut connections = Vec::new();
    for seed in 0..COUNT as u64 {
        let pair = Pair::new(context, &setup())?;
        let remote = readable(&pair.ends[1], &pattern(200 + seed, size))?;
        let mut local = Memory::target(&pair.ends[0].domain, size)?;
        local.expect(0, &remote.bytes(0..size));
        connections.push((pair, remote, local));
    }
    for (id, (pair, remote, local)) in (0..).zip(&connections) {
        pair.ends[0].send(id, SendOperation::Read(remote.remote(0)), &[local.whole()])?;
    }
    for (id, (pair, _, local)) in (0..).zip(&connections) {
        let done = context.completion("reader", &pair.ends[0].send_queue)?;
        check_read(context, &done, &pair.ends[0], id, size)?;
        local.verify("memory read into")?;
    }
    Ok(())
}

/// The responses of one READ take as many sequence numbers as they are packets, and these wrap (IBTA 9.7.2).
fn sequence_numbers_wrap(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &Setup { first_psn: [0xff_fffc, 0xff_ffff], ..setup() })?;
    let size = 9 * context.mtu() + 1;
    for from in [0, 1, 0] {
        read_message(context, &pair, from, &[size])?;
        read_message(context, &pair, from, &[1])?;
    }
    Ok(())
}

/// A READ sees what WRITEs before it on the queue pair have written, without waiting for them. Each round has a place
/// of its own: a WRITE behind a READ may overtake it where no fence is (IBTA table 79).
fn after_write_sees_it(context: &mut Context<'_>) -> Outcome {
    const ROUNDS: usize = 20;
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let size = 3 * context.mtu() + 5;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let remote = Memory::new(&owner.domain, size * ROUNDS, rights)?;
    let source = Memory::source(&reader.domain, &pattern(61, size + ROUNDS))?;
    let mut local = Memory::target(&reader.domain, size * ROUNDS)?;
    for round in 0..ROUNDS {
        let (id, place) = (2 * round as u64, round * size);
        reader.send(id, SendOperation::Write(remote.remote(place)), &[source.entry(round..round + size)])?;
        reader.send(id + 1, SendOperation::Read(remote.remote(place)), &[local.entry(place..place + size)])?;
        local.expect(place, &source.bytes(round..round + size));
    }
    for (id, done) in (0..).zip(context.completions("reader", &reader.send_queue, 2 * ROUNDS)?) {
        match id % 2 {
            0 => Form::Write.check_sent(&done, reader, id)?,
            _ => check_read(context, &done, reader, id, size)?,
        }
    }
    local.verify("memory read into")
}

/// WRITE, READ, SEND, over and over, all in flight at once: completions in the order of posting, each of its kind.
fn mixed(context: &mut Context<'_>) -> Outcome {
    const COUNT: usize = 45;
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let slot = 2 * context.mtu() + 1;
    let source = Memory::source(&reader.domain, &pattern(71, slot * COUNT))?;
    let remote = readable(owner, &pattern(72, slot * COUNT))?;
    let mut local = Memory::target(&reader.domain, slot * COUNT)?;
    let mut target = Memory::target(&owner.domain, slot * COUNT)?;
    let place = |index: usize| index * slot..index * slot + slot - index % 5;
    for index in (2..COUNT).step_by(3) {
        owner.receive(index as u64, &[target.entry(place(index))])?;
    }
    for index in 0..COUNT {
        let start = place(index).start;
        let (operation, entry) = match index % 3 {
            0 => (SendOperation::Write(target.remote(start)), source.entry(place(index))),
            1 => (SendOperation::Read(remote.remote(start)), local.entry(place(index))),
            _ => (SendOperation::SendWithImmediate(index as u32), source.entry(place(index))),
        };
        reader.send(index as u64, operation, &[entry])?;
        match index % 3 {
            1 => local.expect(start, &remote.bytes(place(index))),
            _ => target.expect(start, &source.bytes(place(index))),
        }
    }
    for (index, done) in context.completions("reader", &reader.send_queue, COUNT)?.iter().enumerate() {
        match index % 3 {
            0 => Form::Write.check_sent(done, reader, index as u64)?,
            1 => check_read(context, done, reader, index as u64, place(index).len())?,
            _ => Form::SendWithImmediate.check_sent(done, reader, index as u64)?,
        }
    }
    for index in (2..COUNT).step_by(3) {
        let received = context.completion("receiver", &owner.receive_queue)?;
        let length = place(index).len();
        Form::SendWithImmediate.check_received(&received, (reader, owner), index as u64, length, index as u32)?;
    }
    local.verify("memory read into")?;
    context.settle("memory written to", &target)
}

/// A READ is of the memory as it is when it is carried out, not as it was when registered or read before.
fn sees_the_memory_of_now(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let mut remote = readable(owner, &[0; 700])?;
    let mut local = Memory::target(&reader.domain, 700)?;
    for id in 0..8 {
        remote.fill(0, &pattern(81 + id, 700));
        reader.send(id, SendOperation::Read(remote.remote(0)), &[local.whole()])?;
        let done = context.completion("reader", &reader.send_queue)?;
        check_read(context, &done, reader, id, 700)?;
        local.expect(0, &remote.bytes(0..700));
        local.verify("memory read into")?;
    }
    Ok(())
}

fn unsignaled_is_silent(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    let remote = readable(owner, &pattern(17, 800))?;
    let mut local = Memory::target(&reader.domain, 800)?;
    for index in 0..7 {
        let entry = [local.entry(index * 100..(index + 1) * 100)];
        let operation = SendOperation::Read(remote.remote(index * 100));
        send_with_flags(reader, index as u64, operation, &entry, SendFlags::empty())?;
    }
    context.no_completion("reader of unsignalled READs", &reader.send_queue)?;
    reader.send(7, SendOperation::Read(remote.remote(700)), &[local.entry(700..800)])?;
    let done = context.completion("reader", &reader.send_queue)?;
    check_read(context, &done, reader, 7, 100)?;
    local.expect(0, &remote.bytes(0..800));
    local.verify("memory read into")?;
    context.no_completion("reader, after the signalled one", &reader.send_queue)
}

/// The completion of a signalled READ frees the places of the unsignalled ones before it.
fn unsignaled_makes_room(context: &mut Context<'_>) -> Outcome {
    let limits = QueuePairLimits { send_requests: 16, ..Default::default() };
    let pair = Pair::new(context, &Setup { limits, ..setup() })?;
    let [reader, owner] = &pair.ends;
    let remote = readable(owner, &pattern(18, 64))?;
    let local = Memory::target(&reader.domain, 64)?;
    for round in 0..12 {
        for id in 0..16 {
            let flags = if id == 15 { SendFlags::SIGNALED } else { SendFlags::empty() };
            send_with_flags(reader, id, SendOperation::Read(remote.remote(0)), &[local.whole()], flags)
                .map_err(|failure| failure.context(format_args!("round {round}, request {id}")))?;
        }
        let done = context.completion("reader", &reader.send_queue)?;
        check_read(context, &done, reader, 15, 64)?;
    }
    Ok(())
}

fn signal_all(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &Setup { signal_all: true, ..setup() })?;
    let [reader, owner] = &pair.ends;
    let remote = readable(owner, &pattern(19, 64))?;
    let local = Memory::target(&reader.domain, 64)?;
    for id in 0..6 {
        send_with_flags(reader, id, SendOperation::Read(remote.remote(0)), &[local.whole()], SendFlags::empty())?;
    }
    for (id, done) in (0..).zip(context.completions("reader", &reader.send_queue, 6)?) {
        check_read(context, &done, reader, id, 64)?;
    }
    Ok(())
}

/// No receive is used up, no completion is made, no event is raised at the owner of the memory.
fn peer_is_not_told(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &setup())?;
    let [reader, owner] = &pair.ends;
    owner.receive(1, &[])?;
    let remote = readable(owner, &pattern(20, 5000))?;
    let local = Memory::target(&reader.domain, 5000)?;
    // A SEND of no bytes first, so that the connection is established on both sides.
    reader.send(2, SendOperation::Send, &[])?;
    context.completion("receiver", &owner.receive_queue)?;
    context.completion("reader", &reader.send_queue)?;
    context.forget_events()?;
    owner.receive(3, &[])?;
    reader.send(4, SendOperation::Read(remote.remote(0)), &[local.whole()])?;
    let done = context.completion("reader", &reader.send_queue)?;
    check_read(context, &done, reader, 4, 5000)?;
    context.no_completion("owner of the memory", &owner.receive_queue)?;
    context.no_completion("owner of the memory", &owner.send_queue)?;
    context.no_event("owner of the memory", 1, |_| true)?;
    reader.send(5, SendOperation::SendWithImmediate(6), &[])?;
    let received = context.completion("receiver", &owner.receive_queue)?;
    Form::SendWithImmediate.check_received(&received, (reader, owner), 3, 0, 6)
}

/// Whether receives are posted does not concern READs.
fn needs_no_receive(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::new(context, &Setup { receiver_not_ready_retry: 0, ..setup() })?;
    read_message(context, &pair, 0, &[5000])?;
    read_message(context, &pair, 1, &[1])
}

fn answered_in_ready_to_receive(context: &mut Context<'_>) -> Outcome {
    let pair = Pair::unconnected(context, &setup())?;
    pair.advance(1, QueuePairState::ReadyToReceive)?;
    pair.advance(0, QueuePairState::ReadyToSend)?;
    let size = 4 * context.mtu();
    read_message(context, &pair, 0, &[size])?;
    pair.ends[1].is_in(QueuePairState::ReadyToReceive)
}
