//! Links between real interfaces of this host's kernel, with real frames.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use crate::ground::{End, in_namespace, number_of, numbered, options};
use longhaul_forward::clock::Clock;
use longhaul_impair::{Impairment, Loss, LossTrace, Profile, Verdict};
use longhaul_link::{LinkError, RunningLink, Towards};
use longhaul_time::Instant;

const QUIET: Duration = Duration::from_millis(500);

fn ends() -> [End; 2] {
    let clock = Clock::start();
    ["left", "right"].map(|name| End::open(name, clock))
}

#[test]
fn frames_pass_unchanged_in_both_directions() {
    in_namespace("frames::frames_pass_unchanged_in_both_directions", 4200, || {
        let link = RunningLink::start(&options(Profile::default(), Profile::default(), 1)).expect("a link");
        let [mut left, mut right] = ends();
        for bytes in [60, 1514, 4214] {
            let frames = numbered(0..500, bytes);
            left.send(&frames);
            let received = right.receive(500, QUIET);
            assert!(received.iter().map(|(_, frame)| frame).eq(&frames), "{} of 500 of {bytes} bytes", received.len());
            right.send(&frames);
            assert!(left.receive(500, QUIET).iter().map(|(_, frame)| frame).eq(&frames));
        }
        // A VLAN tag, which the kernel takes out of the frame, is there again.
        let mut tagged = numbered(0..1, 100).remove(0);
        tagged.splice(12..12, [0x81, 0x00, 0x20, 0x07]);
        left.send(&[tagged.clone()]);
        let received = right.receive(1, QUIET);
        assert_eq!(received.first().map(|(_, frame)| &frame[..]), Some(&tagged[..]));
        let counters = link.counters().expect("it runs");
        assert_eq!(counters.link.towards_second.impaired.packets, 1501);
        assert_eq!(counters.link.towards_first.impaired.packets, 1500);
        assert_eq!((counters.arrived[0].no_room, counters.forwarded.refused), (0, 0));
        assert!(link.end().expect("it ends well").is_none());
    });
}

#[test]
fn frames_are_delayed_as_long_as_was_set_also_while_it_changes() {
    in_namespace("frames::frames_are_delayed_as_long_as_was_set_also_while_it_changes", 1500, || {
        let far = |millis| Profile::default().with_propagation_delay(Duration::from_millis(millis));
        let link = RunningLink::start(&options(far(20), far(50), 1)).expect("a link");
        let [mut left, mut right] = ends();
        let frames = numbered(0..20, 200);
        // The median: the host may take the processor away for a moment.
        let mut delay = |is_from_left: bool| {
            let (from, to) = if is_from_left { (&mut left, &mut right) } else { (&mut right, &mut left) };
            let sent = from.clock.now();
            from.send(&frames);
            let received = to.receive(20, QUIET);
            assert!(received.iter().map(|(_, frame)| frame).eq(&frames));
            received[10].0 - sent
        };
        for (is_from_left, millis) in [(true, 20), (false, 50)] {
            let delay = delay(is_from_left);
            let most = Duration::from_millis(millis + 15);
            assert!((Duration::from_millis(millis)..most).contains(&delay), "{delay:?} of {millis} ms");
        }
        link.set_profile(Towards::Second, Arc::new(far(80))).expect("a good profile");
        assert!(delay(true) >= Duration::from_millis(80));
        assert!(delay(false) < Duration::from_millis(80));
        let bad = Profile::default().with_loss(Loss::Independent { probability: 2.0 });
        assert!(matches!(link.set_profile(Towards::First, Arc::new(bad)), Err(LinkError::Profile(_))));
    });
}

/// What arrives of frames that were sent over a link with this loss.
fn survivors(loss: Loss, seed: u64, count: u32) -> BTreeSet<u32> {
    let lossy = Profile::default().with_loss(loss);
    let link = RunningLink::start(&options(lossy, Profile::default(), seed)).expect("a link");
    let [mut left, mut right] = ends();
    let mut received = BTreeSet::new();
    // Few at a time, so that no queue but the link's can lose any.
    for first in (0..count).step_by(100) {
        left.send(&numbered(first..count.min(first + 100), 100));
        received.extend(right.receive(100, Duration::from_millis(30)).iter().map(|(_, frame)| number_of(frame)));
    }
    assert_eq!(link.counters().expect("it runs").arrived[0].no_room, 0);
    received
}

#[test]
fn the_frames_that_are_lost_are_those_of_the_seed_and_of_the_trace() {
    in_namespace("frames::the_frames_that_are_lost_are_those_of_the_seed_and_of_the_trace", 1500, || {
        let loss = Loss::bursts(0.2, 3.0);
        let mut impairment = Impairment::new(Profile::default().with_loss(loss.clone()), 9).expect("a good profile");
        let is_kept = |_: &u32| matches!(impairment.handle(100, Instant::ZERO), Verdict::Once(_));
        let expected: BTreeSet<u32> = (0..1000).filter(is_kept).collect();
        assert_eq!(survivors(loss.clone(), 9, 1000), expected);
        assert_eq!(survivors(loss, 9, 1000), expected, "once more");
        let trace: Vec<bool> = (0..50).map(|index| index % 7 == 3 || index > 47).collect();
        let replayed = Loss::Replayed(LossTrace::from_lost_flags(trace.iter().copied()));
        let expected: BTreeSet<u32> = (0..200).filter(|index| !trace[*index as usize % 50]).collect();
        assert_eq!(survivors(replayed, 1, 200), expected);
    });
}

#[test]
fn unfinished_frames_are_refused_with_the_command_that_helps() {
    in_namespace("frames::unfinished_frames_are_refused_with_the_command_that_helps", 1500, || {
        let link = RunningLink::start(&options(Profile::default(), Profile::default(), 1)).expect("a link");
        for arguments in
            ["address add 198.18.0.1/24 dev left", "neighbor add 198.18.0.2 lladdr 02:00:00:00:00:02 dev left"]
        {
            assert!(std::process::Command::new("ip").args(arguments.split(' ')).status().expect("ip").success());
        }
        let socket = UdpSocket::bind("198.18.0.1:0").expect("a socket");
        socket.send_to(&[0; 1000], "198.18.0.2:9").expect("it is sent");
        let begun = std::time::Instant::now();
        while !link.has_ended() {
            assert!(begun.elapsed() < Duration::from_secs(5), "it goes on with frames that have no checksum");
            std::thread::sleep(Duration::from_millis(5));
        }
        let error = link.end().expect_err("it has failed").to_string();
        assert!(error.contains("left-in") && error.contains("ethtool -K"), "{error}");
    });
}

#[test]
fn a_link_ends_with_its_interface_and_says_so() {
    in_namespace("frames::a_link_ends_with_its_interface_and_says_so", 1500, || {
        let same = options(Profile::default(), Profile::default(), 1);
        let none = longhaul_link::LinkOptions {
            ports: longhaul_link::Ports::Interfaces(["left-in".to_owned(), "nowhere".to_owned()]),
            ..same.clone()
        };
        let error = RunningLink::start(&none).err().expect("no such interface").to_string();
        assert!(error.contains("nowhere") && error.contains("ip link"), "{error}");
        let link = RunningLink::start(&same).expect("a link");
        crate::ground::delete("right");
        let begun = std::time::Instant::now();
        while !link.has_ended() {
            assert!(begun.elapsed() < Duration::from_secs(5), "it has not noticed");
            std::thread::sleep(Duration::from_millis(5));
        }
        let error = link.end().expect_err("it has failed").to_string();
        assert!(error.contains("right-in is gone"), "{error}");
    });
}

#[test]
fn a_link_whose_interface_goes_down_first_ends_too_when_it_is_deleted() {
    in_namespace("frames::a_link_whose_interface_goes_down_first_ends_too_when_it_is_deleted", 1500, || {
        let link = RunningLink::start(&options(Profile::default(), Profile::default(), 1)).expect("a link");
        crate::ground::set_down("right-in");
        std::thread::sleep(Duration::from_millis(50));
        assert!(!link.has_ended(), "it may come back");
        crate::ground::delete("right");
        let begun = std::time::Instant::now();
        while !link.has_ended() {
            assert!(begun.elapsed() < Duration::from_secs(5), "it has not noticed");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(link.end().expect_err("it has failed").to_string().contains("right-in is gone"));
    });
}

#[test]
fn both_ends_of_one_pair_are_refused() {
    in_namespace("frames::both_ends_of_one_pair_are_refused", 1500, || {
        let mut pair = options(Profile::default(), Profile::default(), 1);
        pair.ports = longhaul_link::Ports::Interfaces(["left".to_owned(), "left-in".to_owned()]);
        assert!(matches!(RunningLink::start(&pair), Err(LinkError::Pair(_))));
    });
}

#[test]
fn taps_are_ends_too() {
    in_namespace("frames::taps_are_ends_too", 1500, || {
        if !std::path::Path::new("/dev/net/tun").exists() {
            eprintln!("SKIPPED: there is no /dev/net/tun here");
            return;
        }
        let mut taps = options(Profile::default(), Profile::default(), 1);
        taps.ports = longhaul_link::Ports::Taps(["tap-one".to_owned(), "tap-two".to_owned()]);
        let link = RunningLink::start(&taps).expect("a link");
        crate::ground::set_up_interface("tap-one");
        crate::ground::set_up_interface("tap-two");
        let clock = Clock::start();
        let [mut one, mut two] = ["tap-one", "tap-two"].map(|name| End::open(name, clock));
        let frames = numbered(0..100, 300);
        one.send(&frames);
        assert!(two.receive(100, QUIET).iter().map(|(_, frame)| frame).eq(&frames));
        two.send(&frames);
        assert!(one.receive(100, QUIET).iter().map(|(_, frame)| frame).eq(&frames));
        assert_eq!(link.counters().expect("it runs").forwarded.sent, 200);
    });
}
