//! Slots that change while packets arrive: when a binding has been changed, not a byte goes where it led before. So a
//! message that is complete is taken away from its late packets, without a word to the sender.

use longhaul_verbs::{
    Access, Capabilities, CompletionStatus, DestroyError, RegisterError, SendFlags, SendOperation, SlotBinding,
    Transport, WriteBurst,
};

use super::Test;
use super::attempts::{Attempt, is_let};
use super::context::Context;
use super::failure::{Failure, Outcome, ensure, refusal, status};
use super::memory::{Memory, pattern};
use super::pair::Form;
use super::slotted::{NUMBERS, SLOT_BYTES, SLOTS, Slotted, bind, slotted_test};
use super::transfer::CONNECTED;

pub(super) fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    let none = Capabilities::empty();
    for transport in CONNECTED {
        let mut add = |name: &str, function: fn(&mut Context<'_>, Transport) -> Outcome| {
            tests.push(slotted_test(transport, name, none, move |context| function(context, transport)));
        };
        add("binding/changed-between-messages", changed_between_messages);
        add("binding/taken-away-between-packets", taken_away_between_packets);
        add("binding/changed-between-packets", changed_between_packets);
        add("binding/late-packets-of-a-complete-message", late_packets_of_a_complete_message);
        add("binding/many-messages-through-few-slots", many_messages_through_few_slots);
        add("binding/only-the-number-that-has-the-slot", only_the_number_that_has_the_slot);
        add("binding/region-deregistered", region_deregistered);
        add("binding/region-deregistered-between-packets", region_deregistered_between_packets);
        add("key-revoked", key_revoked);
        add("key-revoked-between-packets", key_revoked_between_packets);
    }
    let mut alone = |name: &str, function: fn(&mut Context<'_>) -> Outcome| {
        tests.push(Test::new(format!("slotted/{name}"), Capabilities::SLOTTED_REGION, function));
    };
    alone("made-of-nothing-is-refused", made_of_nothing_is_refused);
    alone("binding/no-such-number", no_such_number);
    alone("binding/part-does-not-fit", part_does_not_fit);
    alone("binding/region-of-another-domain", region_of_another_domain);
    alone("binding/region-gone", region_gone);
    alone("binding/null-region", null_region);
    alone("binding/key-gone", key_gone);
    tests
}

fn changed_between_messages(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let mut slotted = Slotted::new(context, transport)?;
    for (slot, memory) in [(0, 5), (0, 0), (3, 4), (0, 7), (4, 3)] {
        slotted.bind(slot, memory)?;
        slotted.takes_writes(context, slot, memory)?;
    }
    slotted.verify("a region that a slot led to before")
}

/// Bytes of the messages that are interrupted.
const LONG_BYTES: usize = 1 << 20;

/// A pair with one slot of a mebibyte, bound to the first of two regions, and a message in flight into it.
struct Interrupted {
    slotted: Slotted,
    long: longhaul_verbs::SlottedRegion,
    memories: [Memory; 2],
    source: Memory,
}

impl Interrupted {
    /// After this many steps of the environment.
    fn new(context: &mut Context<'_>, transport: Transport, steps: u32) -> Outcome<Self> {
        let slotted = Slotted::unbound(context, transport)?;
        let [sender, receiver] = &slotted.pair.ends;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let long = receiver.domain.allocate_slotted_region(2, LONG_BYTES as u64, rights)?;
        let memories = [Memory::target(&receiver.domain, LONG_BYTES)?, Memory::target(&receiver.domain, LONG_BYTES)?];
        bind(&long, 1, &memories[0], 0..LONG_BYTES)?;
        let source = Memory::source(&sender.domain, &pattern(12, LONG_BYTES))?;
        sender.send(1, SendOperation::Write(long.remote(1, 0)), &[source.whole()])?;
        for _ in 0..steps {
            context.progress();
        }
        Ok(Interrupted { slotted, long, memories, source })
    }

    /// What was in the first region when the binding changed is there for ever.
    fn stays(&mut self, context: &mut Context<'_>) -> Outcome {
        self.memories[0].accept(0..LONG_BYTES);
        context.rest();
        self.memories[0].verify("the region that the slot led to before")
    }

    fn is_done(&self, context: &mut Context<'_>) -> Outcome {
        let sender = &self.slotted.pair.ends[0];
        let sent = context.completion("sender", &sender.send_queue)?;
        status("sender", &sent, 1, CompletionStatus::Success)
    }
}

/// In the middle of a message its slot is bound to nothing: the region stays as it is from then on, and the sender
/// notices nothing.
fn taken_away_between_packets(context: &mut Context<'_>, transport: Transport) -> Outcome {
    for steps in [0, 1, 2, 5] {
        let mut interrupted = Interrupted::new(context, transport, steps)?;
        interrupted.long.unbind(1)?;
        interrupted.stays(context).map_err(|failure| failure.context(format_args!("after {steps} steps")))?;
        interrupted.is_done(context)?;
        interrupted.memories[1].verify("a region that no slot leads to")?;
    }
    Ok(())
}

/// It is bound to another region: every packet is in one of the two, those that arrived later in the second. What a
/// message has not written yet when it loses the first one may hold anything there. On an unreliable connection packets
/// may be lost, too.
fn changed_between_packets(context: &mut Context<'_>, transport: Transport) -> Outcome {
    for steps in [0, 1, 2, 5] {
        let mut interrupted = Interrupted::new(context, transport, steps)?;
        let before = interrupted.memories[1].bytes(0..LONG_BYTES);
        bind(&interrupted.long, 1, &interrupted.memories[1], 0..LONG_BYTES)?;
        interrupted.stays(context).map_err(|failure| failure.context(format_args!("after {steps} steps")))?;
        interrupted.is_done(context)?;
        context.rest();
        interrupted.memories[1].accept(0..LONG_BYTES);
        interrupted.memories[1].verify("the guards of the region that the slot leads to now")?;
        if transport != Transport::ReliableConnection {
            continue;
        }
        let sent = interrupted.source.bytes(0..LONG_BYTES);
        let [old, new] = interrupted.memories.each_ref().map(|memory| memory.bytes(0..LONG_BYTES));
        for at in (0..LONG_BYTES).step_by(context.mtu()) {
            let packet = at..at + context.mtu();
            let is_in = |memory: &[u8]| memory[packet.clone()] == sent[packet.clone()];
            ensure(is_in(&new) || is_in(&old) && new[packet.clone()] == before[packet.clone()], || {
                format!("after {steps} steps: expected bytes {packet:?} in one of the two regions, got others")
            })?;
        }
    }
    Ok(())
}

/// A burst of packets into a slot, each with its immediate.
fn packets(context: &mut Context<'_>, slotted: &Slotted, slot: u64, message: &[u8], first: u32) -> Outcome {
    let [sender, receiver] = &slotted.pair.ends;
    let stride = context.mtu().min(SLOT_BYTES);
    let count = message.len().div_ceil(stride) as u32;
    let source = Memory::source(&sender.domain, message)?;
    for id in 0..count {
        receiver.receive(id.into(), &[])?;
    }
    let immediates: Vec<u32> = (first..first + count).collect();
    sender.queue_pair.post_write_burst(&WriteBurst {
        id: 7,
        local: source.whole(),
        remote: slotted.slotted.remote(slot, 0),
        stride: stride as u32,
        immediates: &immediates,
        flags: SendFlags::SIGNALED,
    })?;
    let received = context.completions("receiver", &receiver.receive_queue, count as usize)?;
    for (packet, received) in received.iter().enumerate() {
        let bytes = (message.len() - packet * stride).min(stride);
        let form = Form::WriteWithImmediate;
        form.check_received(received, (sender, receiver), packet as u64, bytes, immediates[packet])?;
    }
    let sent = context.completion("sender", &sender.send_queue)?;
    status("sender", &sent, 7, CompletionStatus::Success)
}

/// SDR's own case: a message is complete, its slot is bound to nothing, its buffer goes back to the program; then its
/// repeated packets arrive. They complete like any packet, and are placed nowhere.
fn late_packets_of_a_complete_message(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let mut slotted = Slotted::new(context, transport)?;
    let message = pattern(30, SLOT_BYTES);
    packets(context, &slotted, 2, &message, 0)?;
    slotted.memories[2].expect(0, &message);
    slotted.verify("a region behind a slot")?;
    slotted.slotted.unbind(2)?;
    let of_the_program = pattern(31, SLOT_BYTES);
    slotted.memories[2].fill(0, &of_the_program);
    packets(context, &slotted, 2, &message, 100)?;
    context.rest();
    slotted.verify("a buffer that its program has back")?;
    // The next message in the same slot is where it belongs.
    slotted.bind(2, 2)?;
    let next = pattern(32, SLOT_BYTES);
    packets(context, &slotted, 2, &next, 200)?;
    slotted.memories[2].expect(0, &next);
    slotted.verify("a region behind a slot")
}

/// Slots and regions used again and again, as by a long connection.
fn many_messages_through_few_slots(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let mut slotted = Slotted::unbound(context, transport)?;
    for message in 0..60_u32 {
        // Each has a number of its own, far beyond the slots.
        let (slot, memory) = (u64::from(message) * 3, (message * 5 % SLOTS) as usize);
        slotted.bind(slot, memory)?;
        let bytes = pattern(u64::from(message) + 100, 1 + (message as usize * 997) % SLOT_BYTES);
        packets(context, &slotted, slot, &bytes, message << 10)?;
        slotted.memories[memory].expect(0, &bytes);
        slotted.slotted.unbind(slot)?;
        slotted
            .verify("a region behind a slot")
            .map_err(|failure| failure.context(format_args!("message {message}")))?;
    }
    Ok(())
}

/// Addresses are used once. A packet for a number whose slot has another one now, or that has not had it yet, is
/// refused: nothing is written and, on an unreliable connection, nobody is notified.
fn only_the_number_that_has_the_slot(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let mut slotted = Slotted::new(context, transport)?;
    let last = slotted.slotted.number_count() - 1;
    for number in [2 + NUMBERS, 2 + 1000 * NUMBERS, last] {
        slotted.bind(number, 5)?;
        slotted.takes_writes(context, number, 5)?;
        for stale in [number - NUMBERS, number + NUMBERS].into_iter().filter(|stale| *stale <= last) {
            let remote = slotted.slotted.remote(stale, 0);
            slotted
                .refuses(context, Attempt::Write, remote, 100)
                .map_err(|failure| failure.context(format_args!("number {stale}, {number} is live")))?;
            match transport {
                Transport::ReliableConnection => slotted.pair.reconnect()?,
                _ => is_not_told(context, &slotted, stale, number)?,
            }
        }
        // It was no harm to the live one.
        slotted.takes_writes(context, number, 5)?;
    }
    Ok(())
}

/// Of two WRITEs with immediate, only the second, to the live number, consumes a receive.
fn is_not_told(context: &mut Context<'_>, slotted: &Slotted, stale: u64, live: u64) -> Outcome {
    let [sender, receiver] = &slotted.pair.ends;
    // What the memory holds there already, as far as the test knows.
    let source = Memory::source(&sender.domain, &slotted.memories[5].bytes(0..100))?;
    receiver.receive(1, &[])?;
    for (number, immediate) in [(stale, 11), (live, 12)] {
        let operation = SendOperation::WriteWithImmediate(slotted.slotted.remote(number, 0), immediate);
        sender.send(2, operation, &[source.whole()])?;
        let sent = context.completion("sender", &sender.send_queue)?;
        status("sender", &sent, 2, CompletionStatus::Success)?;
    }
    let received = context.completion("receiver", &receiver.receive_queue)?;
    Form::WriteWithImmediate.check_received(&received, (sender, receiver), 1, 100, 12)?;
    slotted.verify("a region behind a slot")
}

/// A slot does not keep its region: one that is gone is refused, and the other slots live on.
fn region_deregistered(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let mut slotted = Slotted::new(context, transport)?;
    slotted.memories[1].region().raw().deregister()?;
    slotted.takes_writes(context, 0, 0)?;
    slotted.takes_writes(context, 2, 2)?;
    let remote = slotted.slotted.remote(1, 0);
    slotted.refuses(context, Attempt::Write, remote, 100)?;
    slotted.memories[1].verify("a region that has been deregistered")?;
    if transport == Transport::ReliableConnection {
        slotted.pair.reconnect()?;
    }
    // Bound to something else, it is as good as new.
    slotted.bind(1, 7)?;
    slotted.takes_writes(context, 1, 7)
}

fn region_deregistered_between_packets(context: &mut Context<'_>, transport: Transport) -> Outcome {
    for steps in [0, 1, 3] {
        let mut interrupted = Interrupted::new(context, transport, steps)?;
        interrupted.memories[0].region().raw().deregister()?;
        interrupted.stays(context).map_err(|failure| failure.context(format_args!("after {steps} steps")))?;
        let sender = &interrupted.slotted.pair.ends[0];
        let sent = context.completion("sender", &sender.send_queue)?;
        let is_known = sent.is_success() || sent.status == CompletionStatus::RemoteAccessError;
        ensure(is_known, || format!("sender: expected success or RemoteAccessError, got {:?}", sent.status))?;
    }
    Ok(())
}

fn key_revoked(context: &mut Context<'_>, transport: Transport) -> Outcome {
    let mut slotted = Slotted::new(context, transport)?;
    slotted.takes_writes(context, 0, 0)?;
    slotted.slotted.deregister()?;
    let error = refusal("a second deregistration", slotted.slotted.deregister())?;
    ensure(matches!(error, DestroyError::Gone), || format!("expected Gone, got {error}"))?;
    let remote = slotted.slotted.remote(0, 0);
    slotted.refuses(context, Attempt::Write, remote, 100)?;
    // The regions have keys of their own.
    if transport == Transport::ReliableConnection {
        slotted.pair.reconnect()?;
    }
    let own = slotted.memories[0].remote(0);
    is_let(context, &slotted.pair, Attempt::Write, own, &mut slotted.memories[0], 0..100)
}

fn key_revoked_between_packets(context: &mut Context<'_>, transport: Transport) -> Outcome {
    for steps in [0, 1, 3] {
        let mut interrupted = Interrupted::new(context, transport, steps)?;
        interrupted.long.deregister()?;
        interrupted.stays(context).map_err(|failure| failure.context(format_args!("after {steps} steps")))?;
    }
    Ok(())
}

fn made_of_nothing_is_refused(context: &mut Context<'_>) -> Outcome {
    let domain = context.device(1).allocate_protection_domain()?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    for (slots, slot_bytes) in [(0, 4096), (8, 0), (u32::MAX, u64::MAX / 2)] {
        refusal(
            &format!("{slots} slots of {slot_bytes} bytes"),
            domain.allocate_slotted_region(slots, slot_bytes, rights),
        )?;
    }
    Ok(())
}

/// A slotted region and a region, without a peer.
fn without_a_peer(context: &mut Context<'_>) -> Outcome<(longhaul_verbs::SlottedRegion, Memory)> {
    let domain = context.device(1).allocate_protection_domain()?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let slotted = domain.allocate_slotted_region(SLOTS, SLOT_BYTES as u64, rights)?;
    Ok((slotted, Memory::target(&domain, 2 * SLOT_BYTES)?))
}

fn no_such_number(context: &mut Context<'_>) -> Outcome {
    let (slotted, memory) = without_a_peer(context)?;
    let count = slotted.number_count();
    for number in [count, count + 1, u64::MAX] {
        refusal("a number without addresses", bind(&slotted, number, &memory, 0..100))?;
        let error = refusal("a number without addresses", slotted.unbind(number))?;
        let fits = matches!(error, RegisterError::InvalidArgument { .. });
        ensure(fits, || format!("number {number}: expected InvalidArgument, got {error}"))?;
    }
    bind(&slotted, count - 1, &memory, 0..100)
}

fn part_does_not_fit(context: &mut Context<'_>) -> Outcome {
    let (slotted, memory) = without_a_peer(context)?;
    let bind_slot = |address, length| {
        let region = &**memory.region().raw();
        slotted.raw().bind_slot(0, Some(SlotBinding { region, address, length, is_blank: false }))
    };
    let slot_bytes = SLOT_BYTES as u64;
    let wrong = [
        ("longer than a slot", memory.region_start(), slot_bytes + 1),
        ("before the region", memory.region_start() - 1, 10),
        ("behind the region", memory.region_end() - 9, 10),
        ("wrapping around", memory.region_start(), u64::MAX),
    ];
    for (what, address, length) in wrong {
        let error = refusal(what, bind_slot(address, length))?;
        let fits = matches!(error, RegisterError::InvalidArgument { .. } | RegisterError::Wraps { .. });
        ensure(fits, || format!("{what}: expected InvalidArgument, got {error}"))?;
    }
    Ok(bind_slot(memory.region_start(), slot_bytes)?)
}

fn region_of_another_domain(context: &mut Context<'_>) -> Outcome {
    let (slotted, _) = without_a_peer(context)?;
    let (_, foreign) = without_a_peer(context)?;
    let region = &**foreign.region().raw();
    let to = SlotBinding { region, address: foreign.region_start(), length: 10, is_blank: false };
    let error = refusal("a region of another domain", slotted.raw().bind_slot(0, Some(to)))?;
    ensure(matches!(error, RegisterError::ForeignObject { .. }), || format!("expected ForeignObject, got {error}"))
}

/// A slot without a region is bound to nothing, not to the null region, which is for local use.
fn null_region(context: &mut Context<'_>) -> Outcome {
    if !context.capabilities()?.contains(Capabilities::NULL_REGION) {
        return Err(Failure::not_applicable("NULL_REGION"));
    }
    let domain = context.device(1).allocate_protection_domain()?;
    let slotted = domain.allocate_slotted_region(SLOTS, SLOT_BYTES as u64, Access::REMOTE_READ)?;
    let null = domain.allocate_null_region()?;
    let to = SlotBinding { region: &**null.raw(), address: 0, length: 10, is_blank: false };
    refusal("the null region behind a slot", slotted.raw().bind_slot(0, Some(to))).map(drop)
}

fn region_gone(context: &mut Context<'_>) -> Outcome {
    let (slotted, memory) = without_a_peer(context)?;
    memory.region().raw().deregister()?;
    refusal("a region that has been deregistered", bind(&slotted, 0, &memory, 0..10)).map(drop)
}

fn key_gone(context: &mut Context<'_>) -> Outcome {
    let (slotted, memory) = without_a_peer(context)?;
    slotted.deregister()?;
    refusal("a slot of a revoked key", bind(&slotted, 0, &memory, 0..10))?;
    let error = refusal("a slot of a revoked key", slotted.unbind(0))?;
    ensure(matches!(error, RegisterError::Gone), || format!("expected Gone, got {error}"))
}
