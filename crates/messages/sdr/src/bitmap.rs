//! Which packets of a message have arrived, and which chunks are whole.
//!
//! Threads that poll different channels record packets of the same message at the same time, so everything is atomic. A
//! chunk's packets have words of their own: the thread that sets a bit sees from the word's old value whether the word
//! is full now, and exactly one thread does. It, or where a chunk has several words the one that fills the last of
//! them, sets the chunk's bit. So the common case is one atomic operation for a packet, and two more for a chunk. The count of
//! all packets is one word for all threads, so each thread adds what it has recorded when it is done with a batch.

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
    fragments: AtomicU64,
    /// The message has left its slot.
    over: AtomicBool,
    whole_chunks: OwnLine<AtomicU32>,
    /// Packets that have arrived, each once; only where a chunk has several. Counted, because a connection asks at each poll, and
    /// looking at all words would take time in proportion to the message.
    arrived: OwnLine<AtomicU32>,
    /// The last word of packets (of chunks, where a packet is one) that is not empty.
    last_word: OwnLine<AtomicU32>,
    duplicates: AtomicU32,
}

/// A value that threads keep changing, on a cache line of its own (two, because processors fetch them in pairs). Otherwise each change
/// would take the line away from threads that only read what lies next to it, at each packet: 2 threads were half as fast as one.
#[derive(Debug)]
#[repr(align(128))]
struct OwnLine<T>(T);

impl<T> std::ops::Deref for OwnLine<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
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

impl Recorded {
    #[inline]
    pub(crate) fn is_news(self) -> bool {
        matches!(self, Recorded::New | Recorded::ChunkWhole)
    }
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
            fragments: AtomicU64::new(0),
            over: AtomicBool::new(false),
            whole_chunks: OwnLine(AtomicU32::new(0)),
            arrived: OwnLine(AtomicU32::new(0)),
            last_word: OwnLine(AtomicU32::new(0)),
            duplicates: AtomicU32::new(0),
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
        let recorded = self.record_uncounted(packet);
        if recorded.is_news() {
            self.count_arrived(1);
        }
        recorded
    }

    /// Counts packets whose bits are already set, including those of their chunks. The order and Release ensure that a thread that sees the
    /// count sees the bits.
    #[inline]
    pub(crate) fn count_arrived(&self, packets: u32) {
        if self.chunk_packets > 1 {
            self.arrived.fetch_add(packets, Ordering::Release);
        }
    }

    /// Like [`record`](Self::record), but leaves the packet to be counted by [`count_arrived`](Self::count_arrived). All threads share
    /// the count, so a thread that adds many packets at once does not take the cache line away from the others at each packet.
    #[inline]
    pub(crate) fn record_uncounted(&self, packet: u32) -> Recorded {
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

    /// Several packets have arrived in one write. Returns how many of them are new.
    pub fn record_run(&self, first: u32, count: u32) -> u32 {
        let news = self.record_run_uncounted(first, count);
        if news > 0 {
            self.count_arrived(news);
        }
        news
    }

    /// Like [`record_run`](Self::record_run), but leaves the packets to be counted.
    pub(crate) fn record_run_uncounted(&self, first: u32, count: u32) -> u32 {
        let packets = first..first.saturating_add(count);
        packets.filter(|packet| self.record_uncounted(*packet).is_news()).count() as u32
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

    /// Packets that have arrived, each counted once.
    pub fn arrived_packets(&self) -> u32 {
        match self.chunk_packets {
            1 => self.whole_chunks(),
            _ => self.arrived.load(Ordering::Acquire),
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
mod tests;

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
