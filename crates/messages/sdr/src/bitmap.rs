//! Which packets of a message have arrived, and which chunks are whole.
//!
//! Threads that poll different channels record packets of the same message at the same time, so everything is atomic. A
//! chunk's packets have words of their own: the thread that sets a bit sees from the word's old value whether the word
//! is full now, and exactly one thread does. It, or where a chunk has several words the one that fills the last of
//! them, sets the chunk's bit. So the common case is one atomic operation for a packet, and two more for a chunk.

use std::ops::Range;

use longhaul_wire::immediate_layout::ImmediateLayout;

use crate::fragments::Fragments;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

const WORD_BITS: u32 = 64;

/// The bitmaps of one message.
#[derive(Debug)]
pub struct MessageBitmap {
    packet_count: u32,
    chunk_packets: u32,
    /// How far to shift a packet's number for its chunk's, where chunks have a power of two of packets: a division takes longer than the rest.
    chunk_shift: Option<u32>,
    /// Words of packets, `words_per_chunk` for each chunk; none when a packet is a chunk.
    packets: Box<[AtomicU64]>,
    words_per_chunk: u32,
    /// Full words of each chunk; only where a chunk has several.
    full_words: Box<[AtomicU32]>,
    chunks: Box<[AtomicU64]>,
    whole_chunks: AtomicU32,
    duplicates: AtomicU32,
    fragments: AtomicU64,
    /// The last word of packets (of chunks, where a packet is one) that is not empty.
    last_word: AtomicU32,
    /// The message has left its slot.
    over: AtomicBool,
}

/// What a packet did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// It was there already.
    Duplicate,
    /// It is new.
    New,
    /// It is new, and its chunk is whole now.
    ChunkWhole,
    /// The message has no such packet.
    Beyond,
}

impl MessageBitmap {
    /// Nothing has arrived of `packet_count` packets, `chunk_packets` to a chunk.
    pub fn new(packet_count: u32, chunk_packets: u32) -> Self {
        assert!(chunk_packets > 0, "a chunk has packets");
        let chunk_count = packet_count.div_ceil(chunk_packets);
        let words_per_chunk = chunk_packets.div_ceil(WORD_BITS);
        let packet_words = if chunk_packets == 1 { 0 } else { chunk_count * words_per_chunk };
        let counted_chunks = if words_per_chunk == 1 { 0 } else { chunk_count };
        MessageBitmap {
            packet_count,
            chunk_packets,
            chunk_shift: chunk_packets.is_power_of_two().then_some(chunk_packets.trailing_zeros()),
            packets: (0..packet_words).map(|_| AtomicU64::new(0)).collect(),
            words_per_chunk,
            full_words: (0..counted_chunks).map(|_| AtomicU32::new(0)).collect(),
            chunks: (0..chunk_count.div_ceil(WORD_BITS)).map(|_| AtomicU64::new(0)).collect(),
            whole_chunks: AtomicU32::new(0),
            duplicates: AtomicU32::new(0),
            fragments: AtomicU64::new(0),
            last_word: AtomicU32::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// The message has left its slot: what comes for it now is late.
    pub(crate) fn set_over(&self) {
        self.over.store(true, Ordering::Release);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Packets of the message.
    pub fn packet_count(&self) -> u32 {
        self.packet_count
    }

    /// Packets of a chunk, as the bitmap counts them.
    pub fn chunk_packets(&self) -> u32 {
        self.chunk_packets
    }

    /// Chunks of the message.
    pub fn chunk_count(&self) -> u32 {
        self.packet_count.div_ceil(self.chunk_packets)
    }

    /// A packet has arrived: its bytes are in memory.
    #[inline]
    pub fn record(&self, packet: u32) -> Recorded {
        if packet >= self.packet_count {
            return Recorded::Beyond;
        }
        if self.chunk_packets == 1 {
            return self.record_chunk(packet);
        }
        let chunk = self.chunk_shift.map_or_else(|| packet / self.chunk_packets, |shift| packet >> shift);
        let within = packet - chunk * self.chunk_packets;
        let (word, bit) = (within / WORD_BITS, 1 << (within % WORD_BITS));
        // Release, so that who acquires the last packet's bit sees what was placed before all others; Acquire for that one.
        let index = chunk * self.words_per_chunk + word;
        let before = self.packets[index as usize].fetch_or(bit, Ordering::AcqRel);
        if before == 0 {
            self.last_word.fetch_max(index, Ordering::Relaxed);
        }
        if before & bit != 0 {
            self.duplicates.fetch_add(1, Ordering::Relaxed);
            return Recorded::Duplicate;
        }
        if before | bit != self.full_word(chunk, word) {
            return Recorded::New;
        }
        if self.words_per_chunk > 1 {
            let full = 1 + self.full_words[chunk as usize].fetch_add(1, Ordering::AcqRel);
            if full < self.packets_of(chunk).div_ceil(WORD_BITS) {
                return Recorded::New;
            }
        }
        self.record_chunk(chunk)
    }

    /// Several packets have arrived in one write. Returns whether any of them was new.
    pub fn record_run(&self, first: u32, count: u32) -> bool {
        let mut is_news = false;
        for packet in first..first.saturating_add(count) {
            is_news |= matches!(self.record(packet), Recorded::New | Recorded::ChunkWhole);
        }
        is_news
    }

    #[inline]
    fn record_chunk(&self, chunk: u32) -> Recorded {
        let bit = 1 << (chunk % WORD_BITS);
        let before = self.chunks[(chunk / WORD_BITS) as usize].fetch_or(bit, Ordering::AcqRel);
        if before & bit != 0 {
            self.duplicates.fetch_add(1, Ordering::Relaxed);
            return Recorded::Duplicate;
        }
        if before == 0 && self.chunk_packets == 1 {
            self.last_word.fetch_max(chunk / WORD_BITS, Ordering::Relaxed);
        }
        self.whole_chunks.fetch_add(1, Ordering::Release);
        Recorded::ChunkWhole
    }

    /// Packets of a chunk; the last one may have fewer.
    fn packets_of(&self, chunk: u32) -> u32 {
        (self.packet_count - chunk * self.chunk_packets).min(self.chunk_packets)
    }

    /// What a word of a chunk is when all its packets are there.
    #[inline]
    fn full_word(&self, chunk: u32, word: u32) -> u64 {
        match self.packets_of(chunk) - word * WORD_BITS {
            WORD_BITS.. => u64::MAX,
            left => (1 << left) - 1,
        }
    }

    /// Adds the fragment of the user's immediate that a packet carries.
    #[inline]
    pub(crate) fn record_fragment(&self, fragment: Fragments) {
        // Nearly always it is there already, and looking is cheaper.
        if !Fragments(self.fragments.load(Ordering::Relaxed)).contains(fragment) {
            self.fragments.fetch_or(fragment.0, Ordering::Relaxed);
        }
    }

    /// The user's immediate, once all its fragments have arrived.
    pub fn user_immediate(&self, layout: ImmediateLayout) -> Option<u32> {
        Fragments(self.fragments.load(Ordering::Relaxed)).value(layout)
    }

    /// Chunks that are whole.
    pub fn whole_chunks(&self) -> u32 {
        self.whole_chunks.load(Ordering::Acquire)
    }

    /// 64 packets from packet `64 · index` on, the first of them in the lowest bit. Bits beyond the last packet are 0.
    pub fn packet_word(&self, index: usize) -> u64 {
        let packets = |index: usize| self.packets.get(index).map_or(0, |word| word.load(Ordering::Acquire));
        let (chunk_packets, word_bits) = (self.chunk_packets as usize, WORD_BITS as usize);
        match chunk_packets {
            1 => self.word(index),
            _ if chunk_packets.is_multiple_of(word_bits) => packets(index),
            // A chunk has a word, or several of which the last is not full.
            _ => (0..word_bits).fold(0, |all, bit| {
                let packet = index * word_bits + bit;
                let (chunk, within) = (packet / chunk_packets, packet % chunk_packets);
                let word = packets(chunk * self.words_per_chunk as usize + within / word_bits);
                all | (word >> (within % word_bits) & 1) << bit
            }),
        }
    }

    /// The last packet that has arrived. (For a moment it may be an earlier one, while another thread records a later one.)
    pub fn last_packet(&self) -> Option<u32> {
        let index = self.last_word.load(Ordering::Relaxed);
        let word = match self.chunk_packets {
            1 => self.word(index as usize),
            _ => self.packets.get(index as usize)?.load(Ordering::Acquire),
        };
        let last = WORD_BITS.checked_sub(1 + word.leading_zeros())?;
        Some(match self.chunk_packets {
            1 => index * WORD_BITS + last,
            _ => index / self.words_per_chunk * self.chunk_packets + index % self.words_per_chunk * WORD_BITS + last,
        })
    }

    /// The first packet from `from` on that has not arrived.
    pub fn first_missing_packet(&self, from: u32) -> Option<u32> {
        self.find_packet(from, |word| !word)
    }

    /// The first packet from `from` on that has arrived.
    pub fn first_arrived_packet(&self, from: u32) -> Option<u32> {
        self.find_packet(from, |word| word)
    }

    /// The first packet from `from` on whose bit is set in what `of` makes of its word.
    fn find_packet(&self, from: u32, of: impl Fn(u64) -> u64) -> Option<u32> {
        let mut ahead = !0 << (from % WORD_BITS);
        for index in from / WORD_BITS..self.packet_count.div_ceil(WORD_BITS) {
            let word = of(self.packet_word(index as usize)) & ahead;
            if word != 0 {
                let packet = index * WORD_BITS + word.trailing_zeros();
                return (packet < self.packet_count).then_some(packet);
            }
            ahead = !0;
        }
        None
    }

    /// Whether all of these packets have arrived. Looks at no others, so that going through all chunks of a message is one pass.
    pub fn has_packets(&self, packets: Range<u32>) -> bool {
        if packets.end > self.packet_count {
            return false;
        }
        let is_multiple_of_words = self.chunk_packets == 1 || self.chunk_packets.is_multiple_of(WORD_BITS);
        if !is_multiple_of_words {
            return packets.clone().all(|packet| {
                let (chunk, within) = (packet / self.chunk_packets, packet % self.chunk_packets);
                let word = &self.packets[(chunk * self.words_per_chunk + within / WORD_BITS) as usize];
                word.load(Ordering::Acquire) >> (within % WORD_BITS) & 1 == 1
            });
        }
        (packets.start / WORD_BITS..packets.end.div_ceil(WORD_BITS)).all(|index| {
            let first = index * WORD_BITS;
            let from: u64 = !0 << packets.start.saturating_sub(first);
            let until = match packets.end - first {
                WORD_BITS.. => !0,
                left => (1 << left) - 1,
            };
            !self.packet_word(index as usize) & from & until == 0
        })
    }

    /// Runs of packets that have not arrived, as they are found: exact to the packet, whatever a chunk is.
    pub fn missing_packets(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let start = self.first_missing_packet(from)?;
            let end = self.first_arrived_packet(start).unwrap_or(self.packet_count);
            from = end;
            Some(start..end)
        })
    }

    /// The same as bytes, in order and never side by side, of a message of `message_bytes` bytes in packets of `packet_bytes`.
    /// (The message may be shorter than its receive.)
    pub fn missing_bytes(&self, message_bytes: u64, packet_bytes: u32) -> impl Iterator<Item = Range<u64>> + '_ {
        let at = move |packet: u32| (u64::from(packet) * u64::from(packet_bytes)).min(message_bytes);
        let ranges = self.missing_packets().map(move |packets| at(packets.start)..at(packets.end));
        ranges.take_while(|bytes| !bytes.is_empty())
    }

    /// Packets that have arrived, each counted once. Cheap where a packet is a chunk; elsewhere all words are looked at.
    pub fn arrived_packets(&self) -> u32 {
        match self.chunk_packets {
            1 => self.whole_chunks(),
            _ => self.packets.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum(),
        }
    }

    /// Whether everything has arrived.
    pub fn is_complete(&self) -> bool {
        self.whole_chunks() == self.chunk_count()
    }

    /// Packets that came more than once.
    pub fn duplicates(&self) -> u32 {
        self.duplicates.load(Ordering::Relaxed)
    }

    /// Whether a chunk is whole.
    pub fn is_whole(&self, chunk: u32) -> bool {
        let word = self.chunks[(chunk / WORD_BITS) as usize].load(Ordering::Acquire);
        word >> (chunk % WORD_BITS) & 1 == 1
    }

    /// Whether the first packets of a chunk have arrived: all there is of it when the message is shorter than its receive.
    pub fn has_first_packets(&self, chunk: u32, count: u32) -> bool {
        if count == 0 || self.is_whole(chunk) {
            return true;
        }
        if self.chunk_packets == 1 || count >= self.packets_of(chunk) {
            return false;
        }
        let words = &self.packets[(chunk * self.words_per_chunk) as usize..];
        (0..count.div_ceil(WORD_BITS)).zip(words).all(|(index, word)| {
            let wanted = match count - index * WORD_BITS {
                WORD_BITS.. => u64::MAX,
                left => (1 << left) - 1,
            };
            word.load(Ordering::Acquire) & wanted == wanted
        })
    }

    /// 64 chunks from chunk `64 · index` on, the first of them in the lowest bit. Bits beyond the last chunk are 0.
    pub fn word(&self, index: usize) -> u64 {
        self.chunks.get(index).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Words of the chunk bitmap.
    pub fn word_count(&self) -> usize {
        self.chunks.len()
    }

    /// The first chunk from `from` on that is not whole.
    pub fn first_missing(&self, from: u32) -> Option<u32> {
        self.find(from, |word| !word)
    }

    /// The first chunk from `from` on that is whole.
    pub fn first_whole(&self, from: u32) -> Option<u32> {
        self.find(from, |word| word)
    }

    /// The first chunk from `from` on whose bit is set in what `of` makes of its word.
    fn find(&self, from: u32, of: impl Fn(u64) -> u64) -> Option<u32> {
        if from >= self.chunk_count() {
            return None;
        }
        let mut ahead = !0 << (from % WORD_BITS);
        for index in (from / WORD_BITS) as usize..self.chunks.len() {
            let word = of(self.word(index)) & ahead;
            if word != 0 {
                let chunk = index as u32 * WORD_BITS + word.trailing_zeros();
                return (chunk < self.chunk_count()).then_some(chunk);
            }
            ahead = !0;
        }
        None
    }

    /// Runs of chunks that are not whole, as they are found.
    pub fn missing(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let start = self.first_missing(from)?;
            let end = self.first_whole(start).unwrap_or(self.chunk_count());
            from = end;
            Some(start..end)
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn packets_are_seen_whatever_a_chunk_is() {
        for chunk_packets in [1, 2, 3, 16, 48, 64, 65, 128, 200] {
            let bitmap = MessageBitmap::new(500, chunk_packets);
            assert_eq!((bitmap.last_packet(), bitmap.first_missing_packet(0)), (None, Some(0)));
            let is_there = |packet: u32| !packet.is_multiple_of(7) && packet < 450;
            (0..500).filter(|packet| is_there(*packet)).for_each(|packet| {
                bitmap.record(packet);
            });
            for packet in 0..500 {
                let bit = bitmap.packet_word(packet as usize / 64) >> (packet % 64) & 1;
                assert_eq!(bit == 1, is_there(packet), "packet {packet}, {chunk_packets} to a chunk");
                let missing = (packet..500).find(|packet| !is_there(*packet));
                assert_eq!(bitmap.first_missing_packet(packet), missing, "from {packet}, {chunk_packets} to a chunk");
                for end in [packet, packet + 1, packet + 6, packet + 70, packet + 200] {
                    let has_all = end <= 500 && (packet..end).all(is_there);
                    assert_eq!(bitmap.has_packets(packet..end), has_all, "{packet}..{end}, {chunk_packets} to a chunk");
                }
            }
            assert_eq!(
                (bitmap.last_packet(), bitmap.arrived_packets()),
                (Some(449), 385),
                "{chunk_packets} to a chunk"
            );
            assert_eq!((bitmap.packet_word(8), bitmap.first_missing_packet(500)), (0, None));
        }
    }

    #[test]
    fn a_chunk_is_whole_with_its_last_packet() {
        let bitmap = MessageBitmap::new(5, 2);
        assert_eq!(bitmap.chunk_count(), 3);
        assert_eq!(bitmap.record(0), Recorded::New);
        assert_eq!(bitmap.record(0), Recorded::Duplicate);
        assert_eq!(bitmap.record(1), Recorded::ChunkWhole);
        // The last chunk has one packet.
        assert_eq!(bitmap.record(4), Recorded::ChunkWhole);
        assert_eq!(bitmap.record(5), Recorded::Beyond);
        assert!(bitmap.missing().eq(std::iter::once(1..2)));
        assert!(!bitmap.is_complete());
        assert!(bitmap.record_run(2, 2));
        assert!(!bitmap.record_run(2, 2));
        assert!(bitmap.is_complete());
        assert_eq!(bitmap.duplicates(), 3);
        assert_eq!(bitmap.word(0), 0b111);
    }

    #[test]
    fn missing_bytes_end_with_the_message() {
        // Room for 10 packets of 100 bytes; the message has 8 and a half, of which 2 and 3 have arrived.
        let bitmap = MessageBitmap::new(10, 4);
        bitmap.record_run(2, 2);
        assert!(bitmap.missing_packets().eq([0..2, 4..10]));
        assert!(bitmap.missing_bytes(850, 100).eq([0..200, 400..850]));
        assert!(bitmap.missing_bytes(400, 100).eq(std::iter::once(0..200)), "no range of nothing");
        assert_eq!(bitmap.missing_bytes(0, 100).count(), 0);
    }

    #[test]
    fn a_message_of_nothing_is_complete() {
        let bitmap = MessageBitmap::new(0, 4);
        assert!(bitmap.is_complete());
        assert_eq!((bitmap.missing().count(), bitmap.word_count()), (0, 0));
        assert_eq!(bitmap.record(0), Recorded::Beyond);
    }

    proptest! {
        /// Missing bytes against a buffer that packets are painted into, byte by byte.
        #[test]
        fn missing_bytes_agree_with_a_painted_buffer(
            packet_count in 1..300_u32,
            chunk_packets in prop_oneof![Just(1_u32), 2..5_u32, Just(64), 65..200_u32],
            packet_bytes in 1..6_u32,
            shorter_by in 0..20_u64,
            arrivals in prop::collection::vec(0..330_u32, 0..600),
        ) {
            let bitmap = MessageBitmap::new(packet_count, chunk_packets);
            let message_bytes = (u64::from(packet_count) * u64::from(packet_bytes)).saturating_sub(shorter_by);
            let mut painted = vec![false; message_bytes as usize];
            for packet in arrivals {
                bitmap.record(packet);
                let first = packet as usize * packet_bytes as usize;
                painted.iter_mut().skip(first).take(packet_bytes as usize).for_each(|byte| *byte = true);
            }
            let ranges: Vec<_> = bitmap.missing_bytes(message_bytes, packet_bytes).collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "in order, with something between");
            prop_assert!(ranges.iter().all(|range| range.start < range.end));
            let mut reported = vec![true; message_bytes as usize];
            ranges.into_iter().flatten().for_each(|byte| reported[byte as usize] = false);
            prop_assert_eq!(reported, painted);
        }

        /// Packets in any order, some more than once, against sets.
        #[test]
        fn agrees_with_sets(
            packet_count in 1..600_u32,
            chunk_packets in prop_oneof![Just(1_u32), 2..5_u32, Just(64), 65..200_u32],
            arrivals in prop::collection::vec(0..650_u32, 0..900),
        ) {
            let bitmap = MessageBitmap::new(packet_count, chunk_packets);
            let mut packets = BTreeSet::new();
            let chunk = |index: u32| index * chunk_packets..((index + 1) * chunk_packets).min(packet_count);
            for packet in arrivals {
                let recorded = bitmap.record(packet);
                let is_new = packet < packet_count && packets.insert(packet);
                let is_whole = chunk(packet / chunk_packets).all(|packet| packets.contains(&packet));
                let expected = match (packet < packet_count, is_new, is_whole) {
                    (false, ..) => Recorded::Beyond,
                    (true, false, _) => Recorded::Duplicate,
                    (true, true, false) => Recorded::New,
                    (true, true, true) => Recorded::ChunkWhole,
                };
                prop_assert_eq!(recorded, expected);
            }
            let whole: Vec<bool> = (0..bitmap.chunk_count()).map(|index| chunk(index).all(|packet| packets.contains(&packet))).collect();
            for (index, &is_whole) in whole.iter().enumerate() {
                prop_assert_eq!(bitmap.is_whole(index as u32), is_whole);
                let mut members = chunk(index as u32);
                let there = members.position(|packet| !packets.contains(&packet));
                let there = there.map_or(chunk(index as u32).len(), |missing| missing) as u32;
                for count in 0..=chunk(index as u32).len() as u32 {
                    prop_assert_eq!(bitmap.has_first_packets(index as u32, count), count <= there);
                }
            }
            let missing: Vec<u32> = bitmap.missing().flatten().collect();
            let expected: Vec<u32> = (0..bitmap.chunk_count()).filter(|&index| !whole[index as usize]).collect();
            prop_assert_eq!(bitmap.whole_chunks() as usize, whole.len() - expected.len());
            prop_assert_eq!(missing, expected);
        }
    }
}

/// The interleavings of threads that record packets of one message, tried out by loom.
#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Each thread records its packets; then everything must be whole, and each chunk made whole by exactly one of them.
    fn check(packet_count: u32, chunk_packets: u32, threads: [Vec<u32>; 2]) {
        loom::model(move || {
            let bitmap = Arc::new(MessageBitmap::new(packet_count, chunk_packets));
            let [one, other] = threads.clone();
            let record = |packets: Vec<u32>, bitmap: Arc<MessageBitmap>| {
                packets.into_iter().filter(|&packet| bitmap.record(packet) == Recorded::ChunkWhole).count()
            };
            let thread = thread::spawn({
                let bitmap = bitmap.clone();
                move || record(one, bitmap)
            });
            let wholes = record(other, bitmap.clone()) + thread.join().expect("it does not panic");
            assert!(bitmap.is_complete());
            assert_eq!(wholes as u32, bitmap.chunk_count(), "each chunk is made whole once");
        });
    }

    #[test]
    fn two_threads_share_a_chunk() {
        check(4, 4, [vec![0, 2], vec![1, 3]]);
    }

    #[test]
    fn both_bring_the_same_packet() {
        check(2, 2, [vec![0, 1], vec![1, 0]]);
    }

    #[test]
    fn a_packet_is_a_chunk() {
        check(2, 1, [vec![0, 1], vec![1]]);
    }

    #[test]
    fn a_chunk_has_two_words() {
        // All but one packet of each word are there before the threads begin.
        loom::model(|| {
            let bitmap = Arc::new(MessageBitmap::new(128, 128));
            for packet in (0..128).filter(|packet| ![5, 100].contains(packet)) {
                assert_eq!(bitmap.record(packet), Recorded::New);
            }
            let thread = thread::spawn({
                let bitmap = bitmap.clone();
                move || bitmap.record(5)
            });
            let recorded = [bitmap.record(100), thread.join().expect("it does not panic")];
            assert_eq!(recorded.iter().filter(|recorded| **recorded == Recorded::ChunkWhole).count(), 1);
            assert!(bitmap.is_complete());
        });
    }
}
