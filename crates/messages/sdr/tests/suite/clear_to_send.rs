//! Nobody waits long for a clear-to-send: small messages with many receives posted ahead, over a path that loses and
//! holds back.

use crate::ends;

use std::collections::VecDeque;

use ends::raw_peer::RawPeer;
use ends::{Ends, Options};
use longhaul_impair::{Loss, Profile};
use longhaul_sdr::control::{ClearToSend, Header, Record};
use longhaul_sdr::{Receive, RoundTripTime, SendStatus, SendStream};
use longhaul_time::{Duration, Instant};

const ROUND_TRIP: Duration = Duration::from_millis(20);
const BYTES: usize = 64;
const AHEAD: usize = 256;

fn path(loss: f64) -> Profile {
    let path = Profile::default().with_propagation_delay(ROUND_TRIP / 2);
    match loss {
        0.0 => path,
        probability => path.with_loss(Loss::Independent { probability }),
    }
}

/// The longest that a message waited for its clear-to-send although its receive was posted, and the round-trip time at
/// the end. Data is not repeated; a receive is completed when its message has left.
fn longest_wait(profile: Profile, messages: usize, seed: u64) -> (Duration, RoundTripTime) {
    let options = Options { profile, seed, ..Default::default() };
    let mut ends = Ends::new(options, |attributes| {
        attributes.message_bytes_max = BYTES as u64;
        attributes.round_trip_guess = ROUND_TRIP;
    });
    let mut waiting: VecDeque<(SendStream, Receive, Instant)> = VecDeque::new();
    let (mut posted, mut longest) = (0, Duration::ZERO);
    while posted < messages || !waiting.is_empty() {
        let now = ends.world.now();
        while posted < messages && waiting.len() < AHEAD {
            let range = posted % AHEAD * BYTES..(posted % AHEAD + 1) * BYTES;
            let Ok(receive) = ends.receiver.queue_pair.post_receive(&ends.receiver.memory, range.clone()) else {
                break;
            };
            let send = ends.sender.queue_pair.post_send(&ends.sender.memory, range, None).unwrap();
            waiting.push_back((send, receive, now));
            posted += 1;
        }
        while let Some((send, ..)) = waiting.front()
            && send.status() == SendStatus::Sent
        {
            let (_, receive, since) = waiting.pop_front().unwrap();
            longest = longest.max(now - since);
            receive.complete().unwrap();
        }
        assert!(now < Instant::ZERO + Duration::from_secs(600), "hung");
        ends.step(Duration::from_micros(500));
    }
    (longest, ends.sender.queue_pair.round_trip_time())
}

#[test]
fn without_loss_a_clear_to_send_takes_no_longer_than_a_few_round_trips() {
    let (longest, _) = longest_wait(path(0.0), 10_000, 1);
    assert!(longest <= 4 * ROUND_TRIP, "{longest:?}");
}

#[test]
fn with_loss_it_takes_no_longer_than_a_second() {
    for (loss, seed) in [(0.001, 1), (0.01, 2), (0.1, 3)] {
        let (longest, _) = longest_wait(path(loss), 10_000, seed);
        assert!(longest <= Duration::from_secs(1), "{longest:?} at {loss}");
    }
}

#[test]
fn packets_that_are_held_back_make_nobody_wait() {
    let profile = path(0.0).with_reordering(0.002, Duration::from_secs(3));
    for seed in 4..6 {
        let (longest, measured) = longest_wait(profile.clone(), 10_000, seed);
        assert!(longest <= Duration::from_secs(1), "{longest:?}, seed {seed}");
        // A frame that was held back is not the newest when it comes, so it measures nothing.
        let (least, smoothed) = (measured.least.unwrap(), measured.smoothed.unwrap());
        assert!(least >= ROUND_TRIP && smoothed <= ROUND_TRIP * 5 / 4, "{measured:?}, seed {seed}");
    }
}

#[test]
fn a_sender_that_waits_asks_and_less_and_less_often() {
    let mut peer = RawPeer::new(Options::default(), |_| ());
    peer.run_for(Duration::from_millis(1));
    let probe = peer.heard()[0].0;
    let header = Header { echo: probe.sent_at, ..peer.header() };
    peer.say(&header, &[]);
    peer.heard();
    let end = peer.end();
    let send = end.queue_pair.post_send(&end.memory, 0..BYTES, None).unwrap();
    // The peer answers each question, and has posted no receive.
    let start = peer.ends.world.now();
    let mut asked = Vec::new();
    while peer.ends.world.now() - start < Duration::from_secs(8) {
        peer.run_for(Duration::from_millis(5));
        for (header, _) in peer.heard() {
            asked.push(header.sent_at);
            let answer = Header { echo: header.sent_at, ..peer.header() };
            peer.say(&answer, &[]);
        }
    }
    assert!((10..24).contains(&asked.len()), "{asked:?}");
    let last = asked.windows(2).map(|pair| pair[1] - pair[0]).next_back();
    assert!(last.is_some_and(|gap| (900_000_000..1_100_000_000).contains(&gap)), "{asked:?}");
    assert_eq!(send.status(), SendStatus::Waiting);
}

/// What a scheme says may fill a frame, so that nothing fits next to it. It leaves all the same, and without a flood of
/// frames that say nothing.
#[test]
fn a_hole_among_clear_to_sends_keeps_no_record_of_a_scheme_back() {
    let mut peer = RawPeer::new(Options::default(), |_| ());
    peer.run_for(Duration::from_millis(1));
    let probe = peer.heard()[0].0;
    let clear = ClearToSend { number: 3, address: 4096, length: BYTES as u64, key: 1, generation: 0, is_over: false };
    let header = Header { echo: probe.sent_at, ..peer.header() };
    peer.say(&header, &[Record::ClearToSend(clear)]);
    peer.heard();
    let most = peer.end().queue_pair.scheme_bytes_max();
    for _ in 0..3 {
        peer.end().queue_pair.send_to_peer(vec![7; most]);
    }
    peer.run_for(Duration::from_millis(1));
    let frames = peer.heard().len();
    assert_eq!(peer.scheme_bytes, 3 * most);
    assert!((3..=4).contains(&frames), "{frames} frames for 3 records");
}

/// An end that rests has few receives for control messages. After a burst it has more.
#[test]
fn receives_for_control_messages_follow_what_comes() {
    const BURST: usize = 40;
    let mut peer = RawPeer::new(Options::default(), |_| ());
    peer.run_for(Duration::from_millis(1));
    let burst = |peer: &mut RawPeer| {
        let before = peer.end().queue_pair.counters().2.received;
        let header = peer.header();
        (0..BURST).for_each(|_| peer.say_unpolled(&header, &[]));
        peer.run_for(Duration::from_millis(1));
        peer.end().queue_pair.counters().2.received - before
    };
    let first = burst(&mut peer);
    let later = (0..4).map(|_| burst(&mut peer)).last().unwrap();
    assert!(first <= later && later == BURST as u64, "{first} of {BURST} at first, {later} later");
}

#[test]
fn a_clear_to_send_with_wild_numbers_is_as_good_as_none() {
    let mut peer = RawPeer::new(Options::default(), |_| ());
    let end = peer.end();
    let send = end.queue_pair.post_send(&end.memory, 0..BYTES, None).unwrap();
    let clear = ClearToSend { number: 0, address: 4096, length: BYTES as u64, key: 1, generation: 0, is_over: false };
    let wild = [
        ClearToSend { address: u64::MAX - 10, ..clear },
        ClearToSend { length: u64::MAX, ..clear },
        ClearToSend { generation: 3, ..clear },
        ClearToSend { number: u64::MAX, ..clear },
        ClearToSend { number: 5000, is_over: true, ..clear },
    ];
    for clear in wild {
        let header = peer.header();
        peer.say(&header, &[Record::ClearToSend(clear)]);
        assert_eq!(send.status(), SendStatus::Waiting, "{clear:?}");
    }
    // Nor does a header with numbers that cannot be.
    let header = Header {
        cleared_through: u64::MAX,
        open_from: u64::MAX,
        sends_from: u64::MAX,
        consumed: u64::MAX,
        ..peer.header()
    };
    peer.say(&header, &[Record::ClearedBeyond(&[0xff; 300])]);
    assert_eq!(send.status(), SendStatus::Waiting);
    assert_eq!(peer.end().queue_pair.counters().2.ignored, wild.len() as u64);
    let header = peer.header();
    peer.say(&header, &[Record::ClearToSend(clear)]);
    assert_eq!(send.status(), SendStatus::Sent);
}
