//! Slotted regions, SDR's root key: one key over many messages, each in its slot. What peers reach through it, while
//! slots stay as they are; how bindings change is in `slotted_binding`.

use longhaul_verbs::{
    Access, Capabilities, CompletionStatus, ProtectionDomain, RemoteMemory, SendOperation, SlottedRegion, Transport,
    WriteBurst,
};

use super::Test;
use super::attempts::{Attempt, every_right, is_let, is_refused, is_refused_with, open_setup, pair_in_domain};
use super::context::{Context, prefix};
use super::failure::{Outcome, equal, status};
use super::memory::{Memory, pattern};
use super::pair::{Form, Pair};
use super::transfer::CONNECTED;

pub(super) const SLOTS: u32 = 8;
/// Numbers that are live at first.
pub(super) const NUMBERS: u64 = SLOTS as u64;
pub(super) const SLOT_BYTES: usize = 4096;
/// Rights of a region behind a slot.
const WRITABLE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);

/// A pair whose second end has a slotted region, and a region for each of its slots.
pub(super) struct Slotted {
    pub(super) pair: Pair,
    pub(super) slotted: SlottedRegion,
    pub(super) memories: Vec<Memory>,
}

impl Slotted {
    /// With every slot bound to nothing.
    pub(super) fn unbound(context: &mut Context<'_>, transport: Transport) -> Outcome<Self> {
        let setup = open_setup(context, transport)?;
        let rights = every_right(context)?;
        let pair = Pair::new(context, &setup)?;
        let domain = &pair.ends[1].domain;
        let slotted = new_slotted(domain, rights)?;
        let mut memories = Vec::new();
        for _ in 0..SLOTS {
            memories.push(Memory::new(domain, SLOT_BYTES, WRITABLE | rights)?);
        }
        Ok(Slotted { pair, slotted, memories })
    }

    /// With every slot bound to its region.
    pub(super) fn new(context: &mut Context<'_>, transport: Transport) -> Outcome<Self> {
        let slotted = Slotted::unbound(context, transport)?;
        for slot in 0..NUMBERS {
            slotted.bind(slot, slot as usize)?;
        }
        Ok(slotted)
    }

    /// Binds a slot to a region.
    pub(super) fn bind(&self, slot: u64, memory: usize) -> Outcome {
        bind(&self.slotted, slot, &self.memories[memory], 0..SLOT_BYTES)
    }

    /// A WRITE into a slot arrives in this region.
    pub(super) fn takes_writes(&mut self, context: &mut Context<'_>, slot: u64, memory: usize) -> Outcome {
        let remote = self.slotted.remote(slot, 100);
        is_let(context, &self.pair, Attempt::Write, remote, &mut self.memories[memory], 100..1100)
            .map_err(|failure| failure.context(format_args!("slot {slot}")))
    }

    /// No region has changed but as the tests know.
    pub(super) fn verify(&self, what: &str) -> Outcome {
        self.memories.iter().try_for_each(|memory| memory.verify(what))
    }

    /// A message is refused by the slot; nothing is written anywhere.
    pub(super) fn refuses(
        &self,
        context: &mut Context<'_>,
        attempt: Attempt,
        remote: RemoteMemory,
        length: usize,
    ) -> Outcome {
        is_refused(context, &self.pair, attempt, remote, length, &self.memories[0])?;
        self.verify("a region behind a slot")
    }
}

pub(super) fn new_slotted(domain: &ProtectionDomain, rights: Access) -> Outcome<SlottedRegion> {
    Ok(domain.allocate_slotted_region(SLOTS, SLOT_BYTES as u64, rights | Access::LOCAL_WRITE)?)
}

/// Binds a slot to a part of a region's usable bytes.
pub(super) fn bind(slotted: &SlottedRegion, slot: u64, memory: &Memory, range: std::ops::Range<usize>) -> Outcome {
    // In the region the usable bytes stand behind a guard.
    let guard = (memory.remote(0).address - memory.region_start()) as usize;
    Ok(slotted.bind(slot, memory.region(), range.start + guard..range.end + guard)?)
}

/// A test of slotted regions over one transport.
pub(super) fn slotted_test(
    transport: Transport,
    name: &str,
    needs: Capabilities,
    function: impl Fn(&mut Context<'_>) -> Outcome + 'static,
) -> Test {
    let needs = transport.capability() | Capabilities::SLOTTED_REGION | needs;
    Test::new(format!("{}/slotted/{name}", prefix(transport)), needs, function)
}

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    let none = Capabilities::empty();
    for transport in CONNECTED {
        let mut add = |name: &str, function: fn(&mut Context<'_>, Transport) -> Outcome| {
            tests.push(slotted_test(transport, name, none, move |context| function(context, transport)));
        };
        add("each-slot-its-region", each_slot_its_region);
        add("whole-slots", whole_slots);
        add("over-several-slots", over_several_slots);
        add("beyond-the-last-slot", beyond_the_last_slot);
        add("slot-bound-to-nothing", slot_bound_to_nothing);
        add("part-shorter-than-the-slot", part_shorter_than_the_slot);
        add("other-domain", other_domain);
        add("not-for-local-use", not_for_local_use);
        add("parts-of-one-region", parts_of_one_region);
        add("packets-with-immediate", packets_with_immediate);
        for attempt in Attempt::ALL.into_iter().filter(|attempt| attempt.is_on(transport)) {
            let name = format!("rights/{}", attempt.name());
            tests.push(slotted_test(transport, &name, attempt.needs(), move |context| {
                rights(context, transport, attempt)
            }));
        }
    }
    let rc = Transport::ReliableConnection;
    tests.push(slotted_test(rc, "nothing-reads-as-zeros", Capabilities::READ, nothing_reads_as_zeros));
    tests.push(slotted_test(rc, "read-over-several-slots", Capabilities::READ, read_over_several_slots));
    tests.push(slotted_test(rc, "atomic-in-a-slot", Capabilities::ATOMICS, atomic_in_a_slot));
    tests.push(slotted_test(rc, "zero-based-region", Capabilities::ZERO_BASED, zero_based_region));
    tests
}

/// Number `i` begins at `i` times the size of a slot, and leads to its region and no other.
fn each_slot_its_region(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let mut slotted = Slotted::new(context, transport)?;
    equal("slots", SLOTS, slotted.slotted.raw().slots())?;
    equal("bytes of a slot", SLOT_BYTES as u64, slotted.slotted.raw().slot_bytes())?;
    for slot in (0..NUMBERS).rev() {
        let address = slot * SLOT_BYTES as u64;
        equal("first address of a slot", address, slotted.slotted.remote(slot, 0).address)?;
        slotted.takes_writes(context, slot, slot as usize)?;
    }
    slotted.verify("a region behind a slot")
}

/// From the first to the last byte, in several packets where the MTU is small.
fn whole_slots(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let mut slotted = Slotted::new(context, transport)?;
    for slot in 0..SLOTS as usize {
        let remote = slotted.slotted.remote(slot as u64, 0);
        is_let(context, &slotted.pair, Attempt::Write, remote, &mut slotted.memories[slot], 0..SLOT_BYTES)?;
    }
    slotted.verify("a region behind a slot")
}

/// Slots are one address space: a message that leaves one goes on in the next, also over one that is bound to nothing.
fn over_several_slots(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let mut slotted = Slotted::new(context, transport)?;
    slotted.slotted.unbind(2)?;
    let sender = &slotted.pair.ends[0];
    let (first, last) = (SLOT_BYTES - 1000, 700);
    let length = 1000 + 2 * SLOT_BYTES + last;
    let message = pattern(8, length);
    let source = Memory::source(&sender.domain, &message)?;
    sender.send(1, SendOperation::Write(slotted.slotted.remote(0, first as u64)), &[source.whole()])?;
    let sent = context.completion("sender", &sender.send_queue)?;
    status("sender", &sent, 1, CompletionStatus::Success)?;
    slotted.memories[0].expect(first, &message[..1000]);
    slotted.memories[1].expect(0, &message[1000..1000 + SLOT_BYTES]);
    slotted.memories[3].expect(0, &message[1000 + 2 * SLOT_BYTES..]);
    for memory in &slotted.memories {
        context.settle("a region behind a slot", memory)?;
    }
    context.rest();
    slotted.verify("a region behind a slot")
}

fn beyond_the_last_slot(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let cases: [(u64, u64, usize); 4] = [
        (NUMBERS, 0, 1),
        (NUMBERS - 1, SLOT_BYTES as u64 - 1, 2),
        (NUMBERS - 1, 0, SLOT_BYTES + 1),
        (NUMBERS + 100, 0, 8),
    ];
    for (slot, offset, length) in cases {
        for is_bound in [true, false] {
            let slotted = match is_bound {
                true => Slotted::new(context, transport)?,
                false => Slotted::unbound(context, transport)?,
            };
            let remote = slotted.slotted.remote(slot, offset);
            slotted.refuses(context, Attempt::Write, remote, length)?;
        }
    }
    let slotted = Slotted::new(context, transport)?;
    let wrapping = RemoteMemory { address: u64::MAX - 3, ..slotted.slotted.remote(0, 0) };
    slotted.refuses(context, Attempt::Write, wrapping, 8)
}

/// A slot bound to nothing takes messages as any other, completions included, and keeps nothing.
fn slot_bound_to_nothing(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let slotted = Slotted::unbound(context, transport)?;
    slotted.bind(1, 1)?;
    slotted.slotted.unbind(1)?;
    let [sender, receiver] = &slotted.pair.ends;
    let source = Memory::source(&sender.domain, &pattern(9, SLOT_BYTES))?;
    for slot in [0, 1, NUMBERS - 1] {
        for form in [Form::Write, Form::WriteWithImmediate] {
            if form.consumes_receive() {
                receiver.receive(1, &[])?;
            }
            sender.send(2, form.operation(slotted.slotted.remote(slot, 0), slot as u32), &[source.whole()])?;
            let sent = context.completion("sender", &sender.send_queue)?;
            form.check_sent(&sent, sender, 2)?;
            if form.consumes_receive() {
                let received = context.completion("receiver", &receiver.receive_queue)?;
                form.check_received(&received, (sender, receiver), 1, SLOT_BYTES, slot as u32)?;
            }
        }
    }
    context.rest();
    slotted.verify("a region that no slot leads to")
}

/// Behind the part that a slot is bound to there is nothing, not even the null region.
fn part_shorter_than_the_slot(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let part = 200..1200;
    let mut slotted = Slotted::unbound(context, transport)?;
    bind(&slotted.slotted, 3, &slotted.memories[3], part.clone())?;
    let remote = slotted.slotted.remote(3, 0);
    is_let(context, &slotted.pair, Attempt::Write, remote, &mut slotted.memories[3], part.clone())?;
    let last = slotted.slotted.remote(3, 999);
    is_let(context, &slotted.pair, Attempt::Write, last, &mut slotted.memories[3], part.end - 1..part.end)?;
    let outside =
        [(3, 0, 1001), (3, 999, 2), (3, 1000, 1), (3, SLOT_BYTES as u64 - 1, 1), (2, SLOT_BYTES as u64 - 8, 1009)];
    for (slot, offset, length) in outside {
        let slotted = Slotted::unbound(context, transport)?;
        bind(&slotted.slotted, 3, &slotted.memories[3], part.clone())?;
        let remote = slotted.slotted.remote(slot, offset);
        slotted.refuses(context, Attempt::Write, remote, length)?;
    }
    Ok(())
}

fn other_domain(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let mut slotted = Slotted::new(context, transport)?;
    let other = Pair::new(context, &slotted.pair.setup)?;
    let remote = slotted.slotted.remote(0, 100);
    is_refused(context, &other, Attempt::Write, remote, 100, &slotted.memories[0])?;
    // Any queue pair of its own domain may.
    let own = pair_in_domain(context, &slotted.pair.setup, &slotted.pair.ends[1].domain)?;
    is_let(context, &own, Attempt::Write, remote, &mut slotted.memories[0], 100..200)?;
    slotted.takes_writes(context, 1, 1)
}

/// The key is for peers.
fn not_for_local_use(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let slotted = Slotted::new(context, transport)?;
    let [peer, owner] = &slotted.pair.ends;
    peer.receive(1, &[])?;
    let local = longhaul_verbs::ScatterGatherEntry { address: 0, length: 10, local_key: slotted.slotted.remote_key() };
    owner.send(2, SendOperation::Send, &[local])?;
    let sent = context.completion("sender from a slot", &owner.send_queue)?;
    status("sender from a slot", &sent, 2, CompletionStatus::LocalProtectionError)
}

/// Several slots may lead into one region, also to the same bytes.
fn parts_of_one_region(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let mut slotted = Slotted::unbound(context, transport)?;
    bind(&slotted.slotted, 0, &slotted.memories[0], 0..1000)?;
    bind(&slotted.slotted, 5, &slotted.memories[0], 1000..2000)?;
    bind(&slotted.slotted, 6, &slotted.memories[0], 500..1500)?;
    for (slot, range) in [(0, 0..1000), (5, 1000..2000), (6, 500..1500)] {
        let remote = slotted.slotted.remote(slot, 0);
        is_let(context, &slotted.pair, Attempt::Write, remote, &mut slotted.memories[0], range)?;
    }
    slotted.verify("a region behind a slot")
}

/// How SDR writes: a WRITE with immediate for each packet. Every packet completes, also those to slots that are bound
/// to nothing, and each is where its slot leads.
fn packets_with_immediate(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let mut slotted = Slotted::new(context, transport)?;
    for slot in [1, 4] {
        slotted.slotted.unbind(slot)?;
    }
    let stride = context.mtu().min(SLOT_BYTES);
    let packets = SLOT_BYTES.div_ceil(stride) as u32;
    let [sender, receiver] = &slotted.pair.ends;
    for slot in 0..NUMBERS {
        let message = pattern(slot + 20, SLOT_BYTES);
        let source = Memory::source(&sender.domain, &message)?;
        for id in 0..packets {
            receiver.receive(id.into(), &[])?;
        }
        let immediates: Vec<u32> = (0..packets).map(|packet| (slot as u32) << 18 | packet).collect();
        sender.queue_pair.post_write_burst(&WriteBurst {
            id: 7,
            local: source.whole(),
            remote: slotted.slotted.remote(slot, 0),
            stride: stride as u32,
            immediates: &immediates,
            flags: longhaul_verbs::SendFlags::SIGNALED,
        })?;
        let received = context.completions("receiver", &receiver.receive_queue, packets as usize)?;
        for (packet, received) in (0..packets).zip(received) {
            let (id, immediate) = (packet.into(), immediates[packet as usize]);
            Form::WriteWithImmediate.check_received(&received, (sender, receiver), id, stride, immediate)?;
        }
        let sent = context.completion("sender", &sender.send_queue)?;
        status("sender", &sent, 7, CompletionStatus::Success)?;
        if ![1, 4].contains(&slot) {
            slotted.memories[slot as usize].expect(0, &message);
        }
    }
    slotted.verify("a region behind a slot")
}

/// A peer may do what the key allows, as with a window: the region itself may be closed to it, but where it writes the
/// program must have the right to.
fn rights(context: &mut Context<'_>, transport: Transport, attempt: Attempt) -> Outcome {
    let every = every_right(context)?;
    let right = attempt.right();
    let local = Access::LOCAL_WRITE;
    let closed = Access::empty();
    for (of_key, of_region) in [
        (every, every | local),
        (every - right, every | local),
        (every, (every - right) | local),
        (right, local),
        (right, closed),
    ] {
        let setup = open_setup(context, transport)?;
        let pair = Pair::new(context, &setup)?;
        let domain = &pair.ends[1].domain;
        let mut memory = Memory::new(domain, SLOT_BYTES, of_region)?;
        let slotted = new_slotted(domain, of_key)?;
        let at = memory.aligned(0);
        bind(&slotted, 0, &memory, at..at + 1000)?;
        let remote = slotted.remote(0, 0);
        let is_writable = right == Access::REMOTE_READ || of_region.contains(local);
        let result = match of_key.contains(right) && is_writable {
            true => is_let(context, &pair, attempt, remote, &mut memory, at..at + 8),
            false => is_refused(context, &pair, attempt, remote, 8, &memory),
        };
        result.map_err(|failure| failure.context(format_args!("key {of_key:?}, region {of_region:?}")))?;
        if of_key.contains(right) {
            continue;
        }
        let pair = Pair::new(context, &setup)?;
        let slotted = new_slotted(&pair.ends[1].domain, of_key)?;
        let nothing = slotted.remote(2, 0);
        is_refused(context, &pair, attempt, nothing, 8, &memory).map_err(|failure| failure.context("no region"))?;
    }
    let mut setup = open_setup(context, transport)?;
    setup.access -= right;
    let pair = Pair::new(context, &setup)?;
    let memory = Memory::new(&pair.ends[1].domain, SLOT_BYTES, Access::LOCAL_WRITE | every)?;
    let slotted = new_slotted(&pair.ends[1].domain, every)?;
    let allowed = [CompletionStatus::RemoteAccessError, CompletionStatus::RemoteInvalidRequestError];
    is_refused_with(context, &pair, attempt, slotted.remote(0, 0), 8, &memory, &allowed)
        .map_err(|failure| failure.context("queue pair without the right"))
}

/// READs through the slotted key, compared with what must come.
fn reads(context: &mut Context<'_>, slotted: &Slotted, remote: RemoteMemory, expected: &[u8]) -> Outcome {
    let reader = &slotted.pair.ends[0];
    let mut local = Memory::target(&reader.domain, expected.len())?;
    reader.send(1, SendOperation::Read(remote), &[local.whole()])?;
    let done = context.completion("reader", &reader.send_queue)?;
    status("reader", &done, 1, CompletionStatus::Success)?;
    local.expect(0, expected);
    local.verify("memory read into")
}

fn nothing_reads_as_zeros(context: &mut Context<'_>) -> Outcome {
    let slotted = Slotted::unbound(context, Transport::ReliableConnection)?;
    let [sender, _] = &slotted.pair.ends;
    reads(context, &slotted, slotted.slotted.remote(2, 10), &[0; 3000])?;
    // What was written there is not read back.
    let source = Memory::source(&sender.domain, &[0xee; 3000])?;
    sender.send(2, SendOperation::Write(slotted.slotted.remote(2, 0)), &[source.whole()])?;
    let sent = context.completion("sender", &sender.send_queue)?;
    status("sender", &sent, 2, CompletionStatus::Success)?;
    reads(context, &slotted, slotted.slotted.remote(2, 10), &[0; 2000])
}

fn read_over_several_slots(context: &mut Context<'_>) -> Outcome {
    let slotted = Slotted::new(context, Transport::ReliableConnection)?;
    slotted.slotted.unbind(1)?;
    let mut expected = slotted.memories[0].bytes(SLOT_BYTES - 500..SLOT_BYTES);
    expected.extend(vec![0; SLOT_BYTES]);
    expected.extend(slotted.memories[2].bytes(0..600));
    reads(context, &slotted, slotted.slotted.remote(0, SLOT_BYTES as u64 - 500), &expected)
}

/// Where there is a region, an atomic changes it; where there is none, it finds zero and leaves nothing.
fn atomic_in_a_slot(context: &mut Context<'_>) -> Outcome {
    let mut slotted = Slotted::unbound(context, Transport::ReliableConnection)?;
    let at = slotted.memories[0].aligned(0);
    bind(&slotted.slotted, 0, &slotted.memories[0], at..at + 1000)?;
    for _ in 0..3 {
        let remote = slotted.slotted.remote(0, 16);
        is_let(context, &slotted.pair, Attempt::Atomic, remote, &mut slotted.memories[0], at + 16..at + 24)?;
    }
    let requester = &slotted.pair.ends[0];
    for _ in 0..2 {
        let mut local = Memory::target(&requester.domain, 8)?;
        let operation = SendOperation::FetchAndAdd { remote: slotted.slotted.remote(1, 8), add: 3 };
        requester.send(1, operation, &[local.whole()])?;
        let done = context.completion("requester", &requester.send_queue)?;
        status("requester", &done, 1, CompletionStatus::Success)?;
        local.expect(0, &[0; 8]);
        local.verify("result of an atomic on nothing")?;
    }
    slotted.verify("a region behind a slot")
}

fn zero_based_region(context: &mut Context<'_>) -> Outcome {
    let setup = open_setup(context, Transport::ReliableConnection)?;
    let pair = Pair::new(context, &setup)?;
    let domain = &pair.ends[1].domain;
    let mut memory = Memory::new(domain, SLOT_BYTES, WRITABLE | Access::ZERO_BASED)?;
    let slotted = new_slotted(domain, Access::REMOTE_WRITE)?;
    bind(&slotted, 2, &memory, 100..1100)?;
    is_let(context, &pair, Attempt::Write, slotted.remote(2, 50), &mut memory, 150..1100)?;
    is_refused(context, &pair, Attempt::Write, slotted.remote(2, 50), 951, &memory)
}
