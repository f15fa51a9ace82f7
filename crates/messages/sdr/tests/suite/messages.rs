//! Messages with partial completion over software RNICs on virtual time.

use crate::ends;

use ends::{Ends, MTU, Options, pattern};
use longhaul_impair::{Loss, Profile};
use longhaul_sdr::{SendStatus, immediate::ImmediateLayout};
use longhaul_time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(5);

fn lossy(probability: f64) -> Options {
    let profile = Profile::default().with_propagation_delay(Duration::from_micros(10));
    Options { profile: profile.with_loss(Loss::Independent { probability }), ..Default::default() }
}

#[test]
fn messages_of_all_sizes_arrive_where_their_receives_are() {
    for channels in [1, 3] {
        let mut ends =
            Ends::new(Options { channels, ..Default::default() }, |attributes| attributes.chunk_bytes = 4096);
        let mut start = 0;
        for (number, length) in [0, 1, MTU - 1, MTU, MTU + 1, 4096, 100_000, 300_000].into_iter().enumerate() {
            let range = start..start + length;
            start += length + 7;
            let bytes = pattern(number as u64, length);
            ends.sender.memory.write(range.clone()).unwrap().copy_from_slice(&bytes);
            let receive = ends.receiver.queue_pair.post_receive(&ends.receiver.memory, range.clone()).unwrap();
            let immediate = 0x89ab_cdef ^ number as u32;
            let send = ends.sender.queue_pair.post_send(&ends.sender.memory, range, Some(immediate)).unwrap();
            assert_eq!((receive.number(), send.number()), (number as u64, number as u64));
            let is_there = || receive.bitmap().is_complete() && receive.user_immediate().is_some();
            assert!(ends.run_until(LONG, is_there), "{length} bytes on {channels} channels");
            assert_eq!(receive.user_immediate(), Some(immediate));
            assert!(ends.run_until(LONG, || send.status() == SendStatus::Sent));
            assert_eq!(receive.complete().unwrap().bytes(), bytes);
        }
        let (sent, received, _) = ends.sender.queue_pair.counters();
        assert_eq!(received.arrived, 0);
        assert_eq!(ends.receiver.queue_pair.counters().1.arrived, sent.writes);
        // Nothing was written outside the messages.
        assert_eq!(ends.receiver.memory.read(start..start + 100).unwrap()[..], [0; 100]);
    }
}

#[test]
fn the_bitmap_tells_what_was_lost_and_a_stream_repeats_it() {
    let mut ends = Ends::new(lossy(0.1), |attributes| attributes.chunk_bytes = 4 * MTU as u32);
    let length = 500_000;
    let chunk = 4 * MTU;
    let bytes = pattern(3, length);
    ends.sender.memory.write(0..length).unwrap().copy_from_slice(&bytes);
    let receive = ends.receiver.queue_pair.post_receive(&ends.receiver.memory, 0..length).unwrap();
    let stream = ends.sender.queue_pair.start_stream(Some(7)).unwrap();
    stream.send_at(0, &ends.sender.memory, 0..length).unwrap();
    assert_eq!(stream.status(), SendStatus::Waiting);
    let mut rounds = 0;
    while !receive.bitmap().is_complete() {
        ends.run_for(Duration::from_millis(20));
        assert_eq!(stream.status(), SendStatus::Sending);
        let missing: Vec<_> = receive.bitmap().missing().collect();
        if rounds == 0 {
            assert!(!missing.is_empty(), "one packet of ten is lost");
        }
        for chunks in missing {
            let range = chunks.start as usize * chunk..(chunks.end as usize * chunk).min(length);
            stream.send_at(range.start as u64, &ends.sender.memory, range).unwrap();
        }
        rounds += 1;
        assert!(rounds < 30);
    }
    stream.end();
    assert_eq!(stream.status(), SendStatus::Sent);
    assert_eq!(receive.user_immediate(), Some(7));
    assert_eq!(receive.complete().unwrap().bytes(), bytes);
}

#[test]
fn a_message_that_is_completed_early_has_exactly_the_bytes_that_its_bitmap_says() {
    let mut ends = Ends::new(lossy(0.2), |_| ());
    let length = 200_000;
    let bytes = pattern(9, length);
    ends.sender.memory.write(0..length).unwrap().copy_from_slice(&bytes);
    let receive = ends.receiver.queue_pair.post_receive(&ends.receiver.memory, 0..length).unwrap();
    let send = ends.sender.queue_pair.post_send(&ends.sender.memory, 0..length, None).unwrap();
    ends.run_for(Duration::from_millis(20));
    let message = receive.complete().unwrap();
    let mut whole = 0;
    for (index, chunk) in message.bytes().chunks(MTU).enumerate() {
        match message.bitmap().is_whole(index as u32) {
            true => assert_eq!(chunk, &bytes[index * MTU..][..chunk.len()]),
            false => assert!(chunk.iter().all(|byte| *byte == 0)),
        }
        whole += u32::from(message.bitmap().is_whole(index as u32));
    }
    assert!((100..190).contains(&whole), "{whole} of 196 chunks arrived");
    assert!(ends.run_until(LONG, || matches!(send.status(), SendStatus::Sent | SendStatus::Over)));
}

#[test]
fn what_is_missing_is_told_packet_by_packet_although_chunks_are_longer() {
    for chunk_packets in [1, 4, 65] {
        let mut ends = Ends::new(lossy(0.2), |attributes| attributes.chunk_bytes = chunk_packets * MTU as u32);
        let length = 200_001;
        ends.sender.memory.write(0..length).unwrap().fill(0x77);
        let receive = ends.receiver.queue_pair.post_receive(&ends.receiver.memory, 0..length).unwrap();
        ends.sender.queue_pair.post_send(&ends.sender.memory, 0..length, None).unwrap();
        ends.run_for(Duration::from_millis(20));
        let while_open: Vec<_> = receive.missing_bytes(length as u64).collect();
        let message = receive.complete().unwrap();
        let missing: Vec<_> = message.missing_bytes(length as u64).collect();
        assert_eq!(missing, while_open);
        // What has not arrived is zero, and nothing else is.
        let mut is_missing = vec![false; length];
        missing.into_iter().flatten().for_each(|byte| is_missing[byte as usize] = true);
        assert!(message.bytes().iter().zip(&is_missing).all(|(byte, is_missing)| (*byte == 0) == *is_missing));
        let lost = is_missing.iter().filter(|is_missing| **is_missing).count() as f64 / length as f64;
        assert!((0.1..0.3).contains(&lost), "{lost} is missing");
    }
}

#[test]
fn a_thousand_messages_are_in_flight_and_control_messages_are_lost() {
    let mut ends = Ends::new(lossy(0.3), |attributes| attributes.message_bytes_max = MTU as u64);
    let count = ImmediateLayout::default().slot_count() as usize;
    assert_eq!(count, 1024);
    let receives: Vec<_> = (0..count)
        .map(|index| {
            ends.receiver.queue_pair.post_receive(&ends.receiver.memory, index * MTU..(index + 1) * MTU).unwrap()
        })
        .collect();
    let full = ends.receiver.queue_pair.post_receive(&ends.receiver.memory, 0..0);
    assert_eq!(
        full.err().unwrap().to_string(),
        "the message table is full: message 0 has to be completed first, here and at the sender"
    );
    for index in 0..count {
        let range = index * MTU..(index + 1) * MTU;
        ends.sender.memory.write(range.clone()).unwrap().copy_from_slice(&pattern(index as u64, MTU));
    }
    let mut sends: Vec<_> = (0..count)
        .map(|index| {
            let stream = ends.sender.queue_pair.start_stream(None).unwrap();
            stream.send_at(0, &ends.sender.memory, index * MTU..(index + 1) * MTU).unwrap();
            Some(stream)
        })
        .collect();
    assert!(ends.sender.queue_pair.start_stream(None).is_err());
    for _ in 0..60 {
        ends.run_for(Duration::from_millis(10));
        for (index, receive) in receives.iter().enumerate() {
            match receive.bitmap().is_complete() {
                true => sends[index] = None,
                false => {
                    let stream = sends[index].as_ref().unwrap();
                    if stream.status() == SendStatus::Sending {
                        stream.send_at(0, &ends.sender.memory, index * MTU..(index + 1) * MTU).unwrap();
                    }
                }
            }
        }
    }
    for (index, receive) in receives.into_iter().enumerate() {
        assert!(receive.bitmap().is_complete(), "message {index}");
        assert_eq!(receive.complete().unwrap().bytes(), pattern(index as u64, MTU), "message {index}");
    }
}

#[test]
fn a_stream_tells_what_has_left_and_can_be_abandoned() {
    let mut ends = Ends::new(Options::default(), |_| ());
    let stream = ends.sender.queue_pair.start_stream(None).unwrap();
    stream.send_at(0, &ends.sender.memory, 0..10 * MTU).unwrap();
    ends.run_for(Duration::from_micros(100));
    assert_eq!((stream.is_cleared(), stream.left_bytes()), (false, 0));
    let _receive = ends.receiver.queue_pair.post_receive(&ends.receiver.memory, 0..10 * MTU).unwrap();
    assert!(ends.run_until(LONG, || stream.left_bytes() == 10 * MTU as u64));
    assert!(stream.is_cleared());
    stream.send_at(0, &ends.sender.memory, 0..MTU).unwrap();
    stream.abandon();
    ends.run_for(Duration::from_micros(100));
    assert_eq!((stream.left_bytes(), stream.status()), (10 * MTU as u64, SendStatus::Over));
}

/// Short messages in long receives: the immediate comes in writes of its own, which set no bit and change no byte
/// behind the message.
#[test]
fn the_immediate_of_a_short_message_in_a_long_receive() {
    let mut ends = Ends::new(Options::default(), |_| ());
    for (number, length) in [0, 1, MTU, 3 * MTU + 1].into_iter().enumerate() {
        let bytes = pattern(number as u64, length);
        ends.sender.memory.write(0..length).unwrap().copy_from_slice(&bytes);
        let range = number * 100_000..(number + 1) * 100_000;
        ends.receiver.memory.write(range.clone()).unwrap().fill(0);
        let receive = ends.receiver.queue_pair.post_receive(&ends.receiver.memory, range).unwrap();
        let immediate = 0x8000_0000 | length as u32;
        let _send = ends.sender.queue_pair.post_send(&ends.sender.memory, 0..length, Some(immediate)).unwrap();
        assert!(ends.run_until(LONG, || receive.user_immediate().is_some()), "{length} bytes");
        ends.run_for(Duration::from_millis(1));
        assert_eq!(receive.user_immediate(), Some(immediate));
        let message = receive.complete().unwrap();
        let packets = length.div_ceil(MTU);
        assert_eq!((0..98).filter(|packet| message.bitmap().is_whole(*packet)).count(), packets);
        assert_eq!(message.bytes()[..length], bytes);
        assert!(message.bytes()[length..].iter().all(|byte| *byte == 0));
    }
    assert_eq!(ends.receiver.queue_pair.counters().1.stray, 0);
}

/// A stream can send it again, as long as it has the message's first byte.
#[test]
fn a_stream_repeats_its_immediate() {
    let mut ends = Ends::new(lossy(0.5), |_| ());
    let receive = ends.receiver.queue_pair.post_receive(&ends.receiver.memory, 0..100).unwrap();
    let stream = ends.sender.queue_pair.start_stream(Some(77)).unwrap();
    for _ in 0..40 {
        stream.send_immediate(&ends.sender.memory, 0).unwrap();
        ends.run_for(Duration::from_millis(5));
    }
    assert_eq!((receive.user_immediate(), receive.bitmap().is_complete()), (Some(77), false));
    assert!(stream.send_immediate(&ends.sender.memory, 1 << 20).is_err(), "not a byte of the memory");
}

/// Each write of an immediate once counted as everything that was posted with it: bytes were reported to have left that
/// the device still had to read, and it was given more writes than its queue holds.
#[test]
fn writes_of_an_immediate_do_not_count_as_others() {
    // The device holds most of what it is given.
    let profile = Options::default().profile.with_rate_bits_per_second(10_000_000);
    let mut ends = Ends::new(Options { profile, ..Default::default() }, |attributes| attributes.send_depth = 64);
    let (piece, pieces) = (50 * MTU, 8);
    let receive = ends.receiver.queue_pair.post_receive(&ends.receiver.memory, 0..piece).unwrap();
    let stream = ends.sender.queue_pair.start_stream(Some(77)).unwrap();
    for _ in 0..pieces {
        stream.send_at(0, &ends.sender.memory, 0..piece).unwrap();
    }
    stream.end();
    let mut was_ahead = false;
    while stream.left_bytes() < (pieces * piece) as u64 {
        stream.send_immediate(&ends.sender.memory, 0).unwrap();
        ends.step(Duration::from_millis(1));
        let (left, sent) = (stream.left_bytes(), ends.world.softnic(0).nic().counters().sent_bytes);
        assert!(left <= sent, "{left} bytes are said to have left, and the device has sent {sent}");
        was_ahead |= ends.sender.queue_pair.counters().0.bytes > sent + 32 * MTU as u64;
        assert!(ends.world.now() < Instant::ZERO + LONG);
    }
    assert!(was_ahead, "the device never had a backlog");
    assert!(ends.run_until(LONG, || stream.status() == SendStatus::Sent));
    assert_eq!((stream.left_bytes(), receive.user_immediate()), ((pieces * piece) as u64, Some(77)));
}

#[test]
fn numbers_start_where_both_ends_say_and_pass_the_ends_of_their_spaces() {
    let layout = ImmediateLayout::new(2, 26, 4).unwrap();
    // Slots and generations wrap after 4 and 16 messages; addresses of a root key would wrap at 2^64 / 1 MiB.
    for first in [14, (1 << 44) - 3, 1 << 63] {
        let mut ends = Ends::new(Options::default(), |attributes| {
            (attributes.layout, attributes.first_number) = (layout, first);
        });
        for number in first..first + 24 {
            let bytes = pattern(number % 251, 3000);
            ends.sender.memory.write(0..3000).unwrap().copy_from_slice(&bytes);
            let receive = ends.receiver.queue_pair.post_receive(&ends.receiver.memory, 0..3000).unwrap();
            let send = ends.sender.queue_pair.post_send(&ends.sender.memory, 0..3000, Some(7)).unwrap();
            assert_eq!((receive.number(), send.number()), (number, number));
            assert!(ends.run_until(LONG, || receive.bitmap().is_complete() && send.status() == SendStatus::Sent));
            assert_eq!(receive.complete().unwrap().bytes(), bytes);
        }
    }
}

#[test]
fn ends_with_different_first_numbers_do_not_connect() {
    let ends = Ends::new(Options::default(), |_| ());
    let mut attributes = ends.sender.queue_pair.attributes().clone();
    attributes.first_number = 5;
    let other = longhaul_sdr::QueuePair::create(&ends.sender.context, &attributes).unwrap();
    let error = other.connect(&ends.receiver.queue_pair.info()).unwrap_err().to_string();
    assert!(error.contains("the number of the first message is 5 here and 0 at the peer"), "{error}");
    attributes.first_number = u64::MAX;
    assert!(longhaul_sdr::QueuePair::create(&ends.sender.context, &attributes).is_err());
}
