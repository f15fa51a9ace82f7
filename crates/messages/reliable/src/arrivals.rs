//! Which chunks of a message have arrived, for a message that may be shorter than its receive and have other chunks than its bitmap.

use std::ops::Range;

use longhaul_sdr::MessageBitmap;

/// Which chunks of a message have arrived. The receive's bitmap is as long as its memory; this is as long as the message, and has its chunks. Where
/// those are the bitmap's, looking at them is cheapest.
#[derive(Clone, Copy, Debug)]
pub struct Arrivals<'a> {
    bitmap: &'a MessageBitmap,
    packet_count: u32,
    chunk_packets: u32,
    chunk_count: u32,
    /// Packets of the last chunk.
    last_packets: u32,
    /// The bitmap has bits for the message's chunks.
    has_chunk_bits: bool,
}

impl<'a> Arrivals<'a> {
    /// Of `packet_count` packets, `chunk_packets` to a chunk.
    pub(crate) fn new(bitmap: &'a MessageBitmap, packet_count: u32, chunk_packets: u32) -> Self {
        let chunk_count = packet_count.div_ceil(chunk_packets);
        let last_packets = packet_count - chunk_count.saturating_sub(1) * chunk_packets;
        let has_chunk_bits = bitmap.chunk_packets() == chunk_packets;
        Arrivals { bitmap, packet_count, chunk_packets, chunk_count, last_packets, has_chunk_bits }
    }

    /// Chunks of the message.
    pub fn chunk_count(&self) -> u32 {
        self.chunk_count
    }

    /// Packets of the message.
    pub fn packet_count(&self) -> u32 {
        self.packet_count
    }

    /// 64 packets from packet `64 · index` on, the first in the lowest bit.
    pub fn packet_word(&self, index: usize) -> u64 {
        self.bitmap.packet_word(index)
    }

    /// The first packet from `from` on that has not arrived.
    pub fn first_missing_packet(&self, from: u32) -> Option<u32> {
        self.bitmap.first_missing_packet(from).filter(|packet| *packet < self.packet_count)
    }

    /// Whether a packet has arrived.
    pub fn has_packet(&self, packet: u32) -> bool {
        packet < self.packet_count && self.packet_word((packet / 64) as usize) >> (packet % 64) & 1 == 1
    }

    /// Whether the last packet has arrived, if there is one.
    pub fn has_last_packet(&self) -> bool {
        self.packet_count.checked_sub(1).is_some_and(|last| self.has_packet(last))
    }

    /// Runs of packets that have not arrived.
    pub fn missing_packets(&self) -> impl Iterator<Item = Range<u32>> + use<'a> {
        let (bitmap, packet_count) = (self.bitmap, self.packet_count);
        let runs = bitmap.missing_packets().map(move |run| run.start.min(packet_count)..run.end.min(packet_count));
        runs.take_while(|run| !run.is_empty())
    }

    /// The last packet that has arrived.
    pub fn last_packet(&self) -> Option<u32> {
        let last = self.packet_count.checked_sub(1)?;
        self.bitmap.last_packet().map(|packet| packet.min(last))
    }

    /// The packets of a chunk that have not arrived.
    pub fn missing_packets_of(&self, chunk: u32) -> impl Iterator<Item = u32> + use<'a> {
        let arrivals = *self;
        self.packets_of(chunk)
            .filter(move |packet| arrivals.packet_word((packet / 64) as usize) >> (packet % 64) & 1 == 0)
    }

    fn packets_of(&self, chunk: u32) -> Range<u32> {
        let first = chunk.saturating_mul(self.chunk_packets).min(self.packet_count);
        first..first.saturating_add(self.chunk_packets).min(self.packet_count)
    }

    /// Whether a chunk is whole.
    pub fn is_whole(&self, chunk: u32) -> bool {
        if chunk >= self.chunk_count {
            return false;
        }
        if !self.has_chunk_bits {
            return self.bitmap.has_packets(self.packets_of(chunk));
        }
        if chunk + 1 == self.chunk_count {
            return self.bitmap.has_first_packets(chunk, self.last_packets);
        }
        self.bitmap.is_whole(chunk)
    }

    /// 64 chunks from chunk `64 · index` on, the first in the lowest bit.
    pub fn word(&self, index: usize) -> u64 {
        if !self.has_chunk_bits {
            return self.computed_word(index);
        }
        let word = self.bitmap.word(index);
        match self.chunk_count.checked_sub(1) {
            Some(last) if (last / 64) as usize == index => word | u64::from(self.is_whole(last)) << (last % 64),
            _ => word,
        }
    }

    /// The same from packets.
    fn computed_word(&self, index: usize) -> u64 {
        let first = index as u32 * 64;
        let chunks = first..first.saturating_add(64).min(self.chunk_count);
        chunks.filter(|chunk| self.is_whole(*chunk)).fold(0, |word, chunk| word | 1 << (chunk % 64))
    }

    /// Words that have chunks of the message.
    pub fn word_count(&self) -> usize {
        self.chunk_count.div_ceil(64) as usize
    }

    /// The first chunk from `from` on that has not arrived.
    pub fn first_missing(&self, from: u32) -> Option<u32> {
        if !self.has_chunk_bits {
            let packet = self.first_missing_packet(from.saturating_mul(self.chunk_packets))?;
            return Some(packet / self.chunk_packets);
        }
        let first = self.bitmap.first_missing(from).filter(|chunk| *chunk < self.chunk_count)?;
        (!self.is_whole(first)).then_some(first)
    }

    /// The last chunk that has arrived.
    pub fn last_whole(&self) -> Option<u32> {
        let words = (0..self.word_count()).rev().map(|index| (index as u32, self.word(index)));
        let (index, word) = words.into_iter().find(|(_, word)| *word != 0)?;
        Some(index * 64 + 63 - word.leading_zeros())
    }

    /// How many chunks have arrived; cheap where chunks are the bitmap's, but the last one may be missing from the count.
    pub fn whole_count(&self) -> u32 {
        if !self.has_chunk_bits {
            return (0..self.word_count()).map(|index| self.word(index).count_ones()).sum();
        }
        self.bitmap.whole_chunks()
    }

    /// How many packets of the receive have arrived.
    pub fn arrived_packets(&self) -> u32 {
        self.bitmap.arrived_packets()
    }

    /// Packets that came more than once.
    pub fn duplicates(&self) -> u32 {
        self.bitmap.duplicates()
    }

    /// Whether everything has arrived.
    pub fn is_complete(&self) -> bool {
        self.first_missing(0).is_none()
    }

    /// Runs of chunks that have not arrived.
    pub fn missing(&self) -> impl Iterator<Item = Range<u32>> + use<'a> {
        let arrivals = *self;
        let mut from = 0;
        std::iter::from_fn(move || {
            let start = arrivals.first_missing(from)?;
            let end = (start..arrivals.chunk_count).find(|chunk| arrivals.is_whole(*chunk));
            from = end.unwrap_or(arrivals.chunk_count);
            Some(start..from)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_is_shorter_than_its_receive() {
        // Room for 5 chunks of 4 packets; the message has 9 packets: 2 chunks and a packet.
        let bitmap = MessageBitmap::new(20, 4);
        let arrivals = Arrivals::new(&bitmap, 9, 4);
        assert_eq!((arrivals.chunk_count(), arrivals.word_count(), arrivals.last_whole()), (3, 1, None));
        bitmap.record_run(4, 4);
        assert_eq!(arrivals.missing().collect::<Vec<_>>(), [0..1, 2..3]);
        assert_eq!((arrivals.first_missing(0), arrivals.first_missing(1)), (Some(0), Some(2)));
        assert!(arrivals.missing_packets().eq([0..4, 8..9]));
        assert!(arrivals.has_packet(7) && !arrivals.has_packet(8));
        bitmap.record(8);
        assert!(arrivals.missing_packets().eq(std::iter::once(0..4)));
        assert_eq!((arrivals.word(0), arrivals.last_whole(), arrivals.first_missing(1)), (0b110, Some(2), None));
        bitmap.record_run(0, 4);
        assert!(arrivals.is_complete());
    }

    /// Whatever the chunks of the bitmap, those of the message are counted.
    #[test]
    fn chunks_are_the_messages() {
        for bitmap_chunk in [1, 3, 4, 16, 100] {
            for chunk_packets in [1, 2, 3, 5, 8, 64, 70, 4096] {
                let bitmap = MessageBitmap::new(300, bitmap_chunk);
                // The message is shorter.
                let packets = 277;
                let is_there = |packet: u32| packet % 7 != 3 || (64..200).contains(&packet);
                (0..packets).filter(|packet| is_there(*packet)).for_each(|packet| {
                    bitmap.record(packet);
                });
                let arrivals = Arrivals::new(&bitmap, packets, chunk_packets);
                let count = packets.div_ceil(chunk_packets);
                let whole =
                    |chunk: u32| (chunk * chunk_packets..((chunk + 1) * chunk_packets).min(packets)).all(is_there);
                let named = format!("chunks of {chunk_packets}, in the bitmap {bitmap_chunk}");
                for chunk in 0..count {
                    assert_eq!(arrivals.is_whole(chunk), whole(chunk), "{chunk} of {named}");
                    let word = arrivals.word((chunk / 64) as usize);
                    assert_eq!(word >> (chunk % 64) & 1 == 1, whole(chunk), "{chunk} of {named}");
                    let next = (chunk..count).find(|chunk| !whole(*chunk));
                    assert_eq!(arrivals.first_missing(chunk), next, "from {chunk} of {named}");
                }
                assert!(!arrivals.is_whole(count) && !arrivals.is_whole(u32::MAX), "{named}");
                assert_eq!(arrivals.last_whole(), (0..count).rev().find(|chunk| whole(*chunk)), "{named}");
                let missing: Vec<u32> = arrivals.missing().flatten().collect();
                assert!(missing.into_iter().eq((0..count).filter(|chunk| !whole(*chunk))), "{named}");
            }
        }
    }

    #[test]
    fn nothing_is_missing_of_nothing() {
        let bitmap = MessageBitmap::new(20, 4);
        let arrivals = Arrivals::new(&bitmap, 0, 4);
        assert!(arrivals.is_complete());
        assert_eq!((arrivals.missing().count(), arrivals.word_count()), (0, 0));
    }
}
