//! The receiver's message table: from a completion to a bit.
//!
//! Message `n` has slot `n mod slots` and generation `n / slots mod generations`. A completion says which slot it is for (its
//! immediate) and of which generation it is (the queue pair that it came on). Only if the message that now has the slot is of that
//! generation is its bit set; otherwise the packet is late, and counted.
//!
//! Every message has bitmaps of its own. A thread that looked up a message keeps its bitmaps, and asks them at each packet whether the message
//! still has its slot; so a bit can never be set for another one, whatever happens between the look and the bit. Only open messages take
//! room: an endpoint may have thousands of tables that rest.
//!
//! Only a write of at least one byte proves anything: the device checked its key and its range. A write of nothing needs no key, so
//! anybody who knows a queue pair's number can send one; it is counted and otherwise ignored.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use longhaul_verbs::{CompletionFlags, CompletionStatus, WorkCompletion};
use longhaul_wire::immediate_layout::ImmediateLayout;

use crate::bitmap::MessageBitmap;
use crate::fragments::Fragments;
use crate::shape::PACKET_OVERHEAD_BYTES;
use crate::sync::{AtomicU64, Ordering};

/// What data packets did that did not become a new bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveCounters {
    /// Data packets, or writes of several, that arrived.
    pub arrived: u64,
    /// Of messages that were complete, or of an earlier generation.
    pub late: u64,
    /// Beyond the end of their message, without bytes (so that no key was checked), or not a write with immediate.
    pub stray: u64,
}

/// What has arrived at a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivedData {
    /// Packets that have arrived since the beginning.
    pub(crate) count: u64,
    /// Generation and immediate of the packet that arrived last.
    pub(crate) newest: Option<(u8, u32)>,
    /// Packets with a mark of congestion since the beginning, from devices that show marks.
    pub(crate) marked: u64,
    /// Bytes on the wire since the beginning, headers included.
    pub(crate) wire_bytes: u64,
}

/// The message table of the receiving half of a queue pair.
#[derive(Debug)]
pub struct ReceiveTable {
    layout: ImmediateLayout,
    generations: u32,
    packet_bytes: u32,
    /// By slot.
    open: Mutex<HashMap<u32, Open>>,
    arrived: AtomicU64,
    /// Generation and immediate of what arrived last.
    newest: AtomicU64,
    marked: AtomicU64,
    wire_bytes: AtomicU64,
    late: AtomicU64,
    stray: AtomicU64,
    /// Why no more data can arrive.
    failure: OnceLock<CompletionStatus>,
    #[cfg(feature = "mutations")]
    mutation: Option<crate::mutation::Mutation>,
}

/// The message that has a slot.
#[derive(Clone, Debug)]
struct Open {
    number: u64,
    bitmap: Arc<MessageBitmap>,
}

/// What a thread has looked up. Packets come in runs, of a few messages at a time: a message is kept until another one needs its place.
#[derive(Debug, Default)]
pub struct Lookups(Box<[Option<LookedUp>]>);

/// Messages that a thread keeps.
const LOOKUPS: usize = 16;

#[derive(Debug)]
struct LookedUp {
    slot: u32,
    open: Open,
    /// Packets that this thread has recorded and not yet counted.
    uncounted: u32,
}

impl LookedUp {
    #[inline]
    fn count(&mut self) {
        if self.uncounted > 0 {
            self.open.bitmap.count_arrived(std::mem::take(&mut self.uncounted));
        }
    }
}

impl Lookups {
    /// Counts what has been recorded. Looks at all places, which is cheaper than remembering which ones were used.
    #[inline]
    fn count(&mut self) {
        self.0.iter_mut().flatten().for_each(LookedUp::count);
    }
}

impl ReceiveTable {
    /// A table without messages, for packets of `packet_bytes` bytes.
    pub fn new(layout: ImmediateLayout, generations: u32, packet_bytes: u32) -> Self {
        ReceiveTable {
            layout,
            generations,
            packet_bytes,
            open: Mutex::default(),
            arrived: AtomicU64::new(0),
            newest: AtomicU64::new(0),
            marked: AtomicU64::new(0),
            wire_bytes: AtomicU64::new(0),
            late: AtomicU64::new(0),
            stray: AtomicU64::new(0),
            failure: OnceLock::new(),
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }

    #[cfg(feature = "mutations")]
    pub(crate) fn mutate(&mut self, mutation: crate::mutation::Mutation) {
        self.mutation = Some(mutation);
    }

    /// Give a message its slot. The one that had it must have left it.
    pub fn enter(&self, number: u64, bitmap: Arc<MessageBitmap>) {
        let before = self.open().insert(self.layout.slot_of(number), Open { number, bitmap });
        assert!(before.is_none(), "the slot of message {number} is in use");
    }

    /// Take a message's slot away: from now on its packets are late.
    pub fn leave(&self, number: u64) {
        if let Some(open) = self.open().remove(&self.layout.slot_of(number)) {
            open.bitmap.set_over();
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u32, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Completions of a queue pair of `generation`, in their order. Returns how many receives they have consumed; one that failed is
    /// remembered as the reason why no more data arrives.
    pub fn record(&self, completions: &[WorkCompletion], generation: u32, lookups: &mut Lookups) -> usize {
        let mut consumed = 0;
        let (mut arrived, mut wire_bytes, mut marked, mut newest) = (0, 0, 0, None);
        for completion in completions {
            if !completion.is_success() {
                self.fail(completion.status);
                continue;
            }
            consumed += 1;
            self.record_packets(completion, generation, lookups);
            // A write of nothing needs no key: the peer need not have sent it.
            if completion.byte_count > 0 {
                arrived += 1;
                wire_bytes += self.wire_bytes_of(completion.byte_count);
                marked += u64::from(completion.flags.contains(CompletionFlags::CONGESTION_MARK));
                newest = completion.immediate().or(newest);
            }
        }
        lookups.count();
        if let Some(newest) = newest {
            self.count_arrived(arrived, wire_bytes, marked, generation, newest);
        }
        consumed
    }

    /// Data has arrived on a queue pair of `generation`.
    #[inline]
    fn record_packets(&self, completion: &WorkCompletion, generation: u32, lookups: &mut Lookups) {
        if !completion.flags.contains(CompletionFlags::IMMEDIATE) {
            self.stray.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let fields = self.layout.decode(completion.immediate_or_key);
        let Some(known) = self.look_up(fields.slot, generation, lookups) else {
            self.late.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let bitmap = &*known.open.bitmap;
        #[cfg(feature = "mutations")]
        if self.mutation == Some(crate::mutation::Mutation::BelieveEmptyPackets) {
            bitmap.record_fragment(Fragments::of(self.layout, fields.packet, fields.user));
        }
        let packets = self.packets_of(completion.byte_count);
        let is_inside = fields.packet.saturating_add(packets) <= bitmap.packet_count();
        match packets {
            1 if is_inside => known.uncounted += u32::from(bitmap.record_uncounted(fields.packet).is_news()),
            // Behind the last packet of the receive: a write that only carries a fragment of the user's immediate.
            1 if self.layout.is_fragment_only(fields.packet, bitmap.packet_count()) => {}
            2.. if is_inside => known.uncounted += bitmap.record_run_uncounted(fields.packet, packets),
            _ => {
                self.stray.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
        bitmap.record_fragment(Fragments::of(self.layout, fields.packet, fields.user));
    }

    /// Packets of a write. Nearly always one, and a division takes as long as the rest.
    #[inline]
    fn packets_of(&self, byte_count: u32) -> u32 {
        if (1..=self.packet_bytes).contains(&byte_count) { 1 } else { byte_count.div_ceil(self.packet_bytes) }
    }

    /// The message that has a slot now, if it is of this generation.
    #[inline]
    fn look_up<'a>(&self, slot: u32, generation: u32, lookups: &'a mut Lookups) -> Option<&'a mut LookedUp> {
        if lookups.0.is_empty() {
            lookups.0 = (0..LOOKUPS).map(|_| None).collect();
        }
        let known = &mut lookups.0[slot as usize % LOOKUPS];
        if !matches!(known, Some(known) if known.slot == slot && !known.open.bitmap.is_over()) {
            known.iter_mut().for_each(LookedUp::count);
            *known = self.open().get(&slot).map(|open| LookedUp { slot, open: open.clone(), uncounted: 0 });
        }
        known.as_mut().filter(|known| !self.is_of_another_generation(known.open.number, generation))
    }

    #[inline]
    fn is_of_another_generation(&self, number: u64, generation: u32) -> bool {
        #[cfg(feature = "mutations")]
        if self.mutation == Some(crate::mutation::Mutation::SkipGenerationCheck) {
            return false;
        }
        self.layout.generation_of(number, self.generations) != generation
    }

    /// A receive has failed: its queue pair takes no more data.
    fn fail(&self, status: CompletionStatus) {
        // The first one has the reason; the others are flushed.
        let _ = self.failure.set(status);
    }

    /// Why no more data can arrive, if that is so.
    pub(crate) fn failure(&self) -> Option<CompletionStatus> {
        self.failure.get().copied()
    }

    /// A write with this many bytes, on the wire.
    #[inline]
    fn wire_bytes_of(&self, byte_count: u32) -> u64 {
        u64::from(byte_count) + u64::from(self.packets_of(byte_count)) * PACKET_OVERHEAD_BYTES
    }

    /// This many packets have arrived, with this many bytes on the wire, some of them by packets with a mark of congestion, the last of them on a
    /// queue pair of `generation` by a packet with this immediate.
    fn count_arrived(&self, count: u64, wire_bytes: u64, marked: u64, generation: u32, immediate: u32) {
        self.wire_bytes.fetch_add(wire_bytes, Ordering::Relaxed);
        if marked > 0 {
            self.marked.fetch_add(marked, Ordering::Relaxed);
        }
        self.newest.store(u64::from(generation) << 32 | u64::from(immediate), Ordering::Relaxed);
        self.arrived.fetch_add(count, Ordering::Relaxed);
    }

    /// What has arrived so far.
    pub(crate) fn arrived_data(&self) -> ArrivedData {
        let count = self.arrived();
        let newest = self.newest.load(Ordering::Relaxed);
        let marked = self.marked.load(Ordering::Relaxed);
        let wire_bytes = self.wire_bytes.load(Ordering::Relaxed);
        ArrivedData { count, newest: (count > 0).then_some(((newest >> 32) as u8, newest as u32)), marked, wire_bytes }
    }

    /// Packets that have arrived since the beginning.
    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    pub(crate) fn counters(&self) -> ReceiveCounters {
        ReceiveCounters {
            arrived: self.arrived(),
            late: self.late.load(Ordering::Relaxed),
            stray: self.stray.load(Ordering::Relaxed),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MTU: u32 = 1024;

    fn table(slots_bits: u8) -> ReceiveTable {
        ReceiveTable::new(ImmediateLayout::new(slots_bits, 28 - slots_bits, 4).expect("it sums up"), 2, MTU)
    }

    fn arrival(table: &ReceiveTable, slot: u32, packet: u32, byte_count: u32) -> WorkCompletion {
        WorkCompletion {
            flags: CompletionFlags::IMMEDIATE,
            byte_count,
            immediate_or_key: table.layout.encode(slot, packet, 0x1234_5678),
            ..Default::default()
        }
    }

    #[test]
    fn only_the_message_that_has_the_slot_gets_bits() {
        let table = table(1);
        let mut lookups = Lookups::default();
        let [first, third] = [4, 4].map(|packets| Arc::new(MessageBitmap::new(packets, 1)));
        table.enter(0, first.clone());
        table.record(&[arrival(&table, 0, 1, MTU)], 0, &mut lookups);
        // Nobody has slot 1.
        table.record(&[arrival(&table, 1, 1, MTU)], 0, &mut lookups);
        assert_eq!((first.word(0), table.counters().late), (0b10, 1));
        table.leave(0);
        table.record(&[arrival(&table, 0, 2, MTU)], 0, &mut lookups);
        assert_eq!((first.word(0), table.counters().late), (0b10, 2));
        // Message 2 has the same slot and the other generation.
        table.enter(2, third.clone());
        table.record(&[arrival(&table, 0, 2, MTU)], 0, &mut lookups);
        assert_eq!((third.word(0), table.counters().late), (0, 3));
        table.record(&[arrival(&table, 0, 3, MTU)], 1, &mut lookups);
        assert_eq!((first.word(0), third.word(0)), (0b10, 0b1000));
        // Message 4 has the slot and the generation of message 0, and what was looked up for that is not used.
        table.leave(2);
        let fifth = Arc::new(MessageBitmap::new(4, 1));
        table.enter(4, fifth.clone());
        table.record(&[arrival(&table, 0, 0, MTU)], 0, &mut lookups);
        assert_eq!((first.word(0), third.word(0), fifth.word(0)), (0b10, 0b1000, 1));
    }

    #[test]
    fn writes_of_several_packets_of_none_and_beyond() {
        let table = table(4);
        let mut lookups = Lookups::default();
        let bitmap = Arc::new(MessageBitmap::new(5, 1));
        table.enter(0, bitmap.clone());
        table.record(&[arrival(&table, 0, 1, 2 * MTU)], 0, &mut lookups);
        // The last packet is shorter than the others.
        table.record(&[arrival(&table, 0, 4, 1)], 0, &mut lookups);
        assert_eq!(bitmap.word(0), 0b10110);
        table.record(&[arrival(&table, 0, 4, MTU + 1)], 0, &mut lookups);
        table.record(&[arrival(&table, 0, 5 + 8, 1)], 0, &mut lookups);
        assert_eq!((bitmap.word(0), table.counters().stray), (0b10110, 2));
        table.record(&[WorkCompletion { byte_count: MTU, ..Default::default() }], 0, &mut lookups);
        assert_eq!((bitmap.word(0), table.counters().stray), (0b10110, 3));
    }

    /// Anybody can send a write of nothing. What it says is not believed, wherever it claims to belong.
    #[test]
    fn fragments_come_only_from_writes_whose_key_was_checked() {
        let table = table(4);
        let mut lookups = Lookups::default();
        let bitmap = Arc::new(MessageBitmap::new(5, 1));
        table.enter(0, bitmap.clone());
        let arrivals: Vec<_> = (0..16).map(|packet| arrival(&table, 0, packet, 0)).collect();
        table.record(&arrivals, 0, &mut lookups);
        assert_eq!((bitmap.user_immediate(table.layout), table.counters().stray), (None, 16));
        // Neither is what lies outside of the message, or runs out of it.
        let arrivals: Vec<_> = (13..40).map(|packet| arrival(&table, 0, packet, 1)).collect();
        table.record(&arrivals, 0, &mut lookups);
        let arrivals: Vec<_> = (1..9).map(|packet| arrival(&table, 0, packet, 5 * MTU)).collect();
        table.record(&arrivals, 0, &mut lookups);
        assert_eq!((bitmap.user_immediate(table.layout), table.counters().stray), (None, 16 + 27 + 8));
        // Eight writes of a byte behind the last packet carry all fragments and set no bit.
        let arrivals: Vec<_> = (5..13).map(|packet| arrival(&table, 0, packet, 1)).collect();
        table.record(&arrivals, 0, &mut lookups);
        assert_eq!(bitmap.user_immediate(table.layout), Some(0x1234_5678));
        assert_eq!((bitmap.word(0), table.counters().stray), (0, 16 + 27 + 8));
    }
}
