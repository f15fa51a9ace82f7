//! The control plane of SDR: the path is verified, and what a peer or a stranger says is believed only as far as it can
//! be true.

use crate::ends;

use ends::raw_peer::RawPeer;
use ends::{Ends, Options};
use longhaul_sdr::control::{self, Header};
use longhaul_sdr::info::QueuePairInfo;
use longhaul_sdr::{QueuePair, Saying};
use longhaul_time::Duration;
use longhaul_world::{Link, Way};

#[test]
fn both_ends_verify_the_path_without_a_message() {
    let mut ends = Ends::unconnected(Options::default(), |_| ());
    ends.receiver.queue_pair.connect(&ends.sender.queue_pair.info()).unwrap();
    assert!(!ends.receiver.queue_pair.is_path_verified());
    // The first probes find nobody.
    ends.run_receiver_for(Duration::from_millis(10));
    assert!(!ends.receiver.queue_pair.is_path_verified());
    ends.sender.queue_pair.connect(&ends.receiver.queue_pair.info()).unwrap();
    // The later end's probe is answered with one: three times the path of 10 us, and some steps of 5 us.
    let (sender, receiver) = (ends.sender.queue_pair.clone(), ends.receiver.queue_pair.clone());
    let is_verified = || sender.is_path_verified() && receiver.is_path_verified();
    assert!(ends.run_until(Duration::from_micros(60), is_verified));
    // Nobody asks any more.
    let sent = |ends: &Ends| [&ends.sender, &ends.receiver].map(|end| end.queue_pair.counters().2.sent);
    ends.run_for(Duration::from_millis(1));
    let before = sent(&ends);
    ends.run_for(Duration::from_millis(200));
    assert_eq!(sent(&ends), before);
    assert_eq!(ends.sender.queue_pair.next_deadline(), None);
}

#[test]
fn one_direction_is_no_verified_path_and_the_probes_go_on() {
    for way in [Way::Up, Way::Down] {
        let mut ends = Ends::new(Options::default(), |_| ());
        ends.world.cut(Link::Nic(0), way);
        let start = ends.world.now();
        while ends.world.now() - start < Duration::from_secs(5) {
            ends.step(Duration::from_millis(1));
        }
        let (sender, receiver) = (ends.sender.queue_pair.clone(), ends.receiver.queue_pair.clone());
        assert!(!sender.is_path_verified() && !receiver.is_path_verified(), "{way:?} is cut");
        // The end that hears nothing probes after 50, 100, 200, 400, 800 ms, then each second; the other answers it as
        // well.
        let (one, other) = (sender.counters().2.sent, receiver.counters().2.sent);
        assert!((8..12).contains(&one.min(other)) && one.max(other) <= 2 * one.min(other), "{one} and {other} frames");
        ends.world.restore(Link::Nic(0), way);
        let is_verified = || sender.is_path_verified() && receiver.is_path_verified();
        assert!(ends.run_until(Duration::from_millis(1010), is_verified), "{way:?} is back");
    }
}

#[test]
fn an_echo_of_what_was_never_sent_verifies_nothing() {
    let mut peer = RawPeer::new(Options::default(), |_| ());
    peer.run_for(Duration::from_millis(1));
    let heard = peer.heard();
    let (probe, _) = heard.first().expect("a probe");
    assert!(probe.wants_answer);
    let now = peer.ends.world.now().as_nanos();
    for echo in [0, probe.sent_at + 1, now + 1_000_000, u64::MAX] {
        let header = Header { echo, ..peer.header() };
        peer.say(&header, &[]);
        assert!(!peer.end().queue_pair.is_path_verified(), "{echo}");
    }
    let header = Header { echo: probe.sent_at, ..peer.header() };
    peer.say(&header, &[]);
    assert!(peer.end().queue_pair.is_path_verified());
    assert!(peer.end().queue_pair.round_trip_time().least > Some(Duration::from_micros(20)));
}

#[test]
fn a_frame_of_another_version_is_counted_and_ignored() {
    let mut peer = RawPeer::new(Options::default(), |_| ());
    // A stranger's four bytes; bytes without a receiver id; another version for somebody else, and for this end.
    let id = peer.info.receiver.to_be_bytes();
    let mut for_this_end = vec![77, 0, 0, 0];
    for_this_end.extend(id);
    let for_another = [77, 0, 0, 0, !id[0], id[1], id[2], id[3]];
    for bytes in [&[0xff, 0, 0, 0][..], &[], &for_another, &for_this_end] {
        peer.send(bytes);
        peer.end().queue_pair.poll(peer.ends.world.now()).expect("the connection goes on");
    }
    let counters = peer.end().queue_pair.counters().2;
    assert_eq!((counters.ignored, counters.other_version, counters.received), (3, 1, 0));
}

#[test]
fn ends_that_speak_different_versions_are_not_connected() {
    let ends = Ends::unconnected(Options::default(), |_| ());
    let theirs = QueuePairInfo { control_version: control::VERSION + 1, ..ends.sender.queue_pair.info() };
    let refused = ends.receiver.queue_pair.connect(&theirs).unwrap_err().to_string();
    let expected = "the ends do not fit: the version of control messages is 4 here and 5 at the peer";
    assert!(refused.starts_with(expected), "{refused}");
}

#[test]
fn a_frame_that_may_have_come_after_the_poll_s_time_measures_nothing() {
    let mut peer = RawPeer::new(Options::default(), |_| ());
    let queue_pair = peer.end().queue_pair.clone();
    peer.run_for(Duration::from_millis(1));
    let probe = peer.heard()[0].0;
    // A poll; then the answer comes; then a poll with the same time, because the caller has not read the clock again.
    let now = peer.ends.world.now();
    queue_pair.poll(now).unwrap();
    let header = Header { echo: probe.sent_at, ..peer.header() };
    peer.say_unpolled(&header, &[]);
    peer.ends.world.run_for(Duration::from_millis(8));
    queue_pair.poll(now).unwrap();
    assert!(queue_pair.is_path_verified(), "it proves the path all the same");
    assert_eq!(queue_pair.round_trip_time().least, None);
}

/// A program that is about to post something lets what may wait for that wait, but not for long.
#[test]
fn what_may_wait_is_said_with_what_may_not_or_25_us_later() {
    let mut ends = Ends::new(Options::default(), |_| ());
    ends.run_for(Duration::from_millis(1));
    let (sender, receiver) = (ends.sender.queue_pair.clone(), ends.receiver.queue_pair.clone());
    let sent = |queue_pair: &QueuePair| queue_pair.counters().2.sent;
    let memory = ends.receiver.memory.clone();

    // A clear-to-send waits while others are said, and goes at once if nothing may wait.
    let before = sent(&receiver);
    let _receives = [0..100, 100..200].map(|range| receiver.post_receive(&memory, range).unwrap());
    let posted = ends.world.now();
    receiver.poll_saying(posted, Saying::Urgent).unwrap();
    assert_eq!(sent(&receiver), before);
    receiver.advance(posted, Saying::ExceptAnswers).unwrap();
    assert_eq!(sent(&receiver), before + 1, "both in one frame");

    // The answer to it waits for 25 us, and the caller gets that deadline.
    ends.world.run_for(Duration::from_micros(15));
    let (heard, before) = (ends.world.now(), sent(&sender));
    sender.poll_saying(heard, Saying::ExceptAnswers).unwrap();
    assert_eq!(sent(&sender), before);
    let due = sender.next_deadline().expect("something is to be said");
    assert_eq!(due - heard, Duration::from_micros(25));
    sender.advance(heard + Duration::from_micros(24), Saying::Urgent).unwrap();
    assert_eq!(sent(&sender), before);
    sender.advance(due, Saying::Urgent).unwrap();
    assert_eq!(sent(&sender), before + 1);
    assert_eq!(sender.next_deadline(), None);

    // A question does not wait, and takes along what does.
    receiver.poll_saying(due, Saying::Urgent).unwrap();
    let before = sent(&receiver);
    let _receive = receiver.post_receive(&memory, 200..300).unwrap();
    receiver.ask_peer();
    receiver.poll_saying(due, Saying::Urgent).unwrap();
    assert_eq!(sent(&receiver), before + 1);
    receiver.poll_saying(due, Saying::All).unwrap();
    assert_eq!(sent(&receiver), before + 1, "nothing is left to be said");
}
