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
        assert_eq!((bitmap.last_packet(), bitmap.arrived_packets()), (Some(449), 385), "{chunk_packets} to a chunk");
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
    assert_eq!((bitmap.record_run(2, 2), bitmap.record_run(2, 2)), (2, 0));
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
