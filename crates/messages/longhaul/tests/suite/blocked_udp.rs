//! TCP passes and UDP does not: nothing hangs, and the errors say where packets are lost.

use crate::ends;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use ends::raw_handshake::{self as raw, path_bytes, with_field, with_sdr_field};
use ends::{device, impaired_device, pair_of, pattern};
use longhaul::{ConnectError, Connection, DeviceChoice, Listener, LostDirection, Options, PathError, connect};
use longhaul_impair::{Loss, LossTrace, Profile};

/// A device that no packet leaves or reaches.
fn mute() -> DeviceChoice {
    impaired_device(Profile { loss: Loss::Independent { probability: 1.0 }, ..Profile::default() }, 1)
}

/// One that no packet leaves or reaches any more after the first ones.
fn mute_after(packets: usize) -> DeviceChoice {
    let trace = LossTrace::from_lost_flags((0..packets + 10_000_000).map(|index| index >= packets));
    impaired_device(Profile { loss: Loss::Replayed(trace), ..Profile::default() }, 1)
}

fn hasty() -> Options {
    let mut options = Options::default();
    options.connect_timeout = Duration::from_millis(1500);
    options.message_timeout = Duration::from_secs(2);
    options
}

/// Which end's packets go to a port where nobody is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lost {
    Nobodys,
    Connecting,
    Accepting,
}

/// What connecting says when the devices of the connecting and the accepting end are these.
fn failure(connecting: DeviceChoice, accepting: DeviceChoice, lost: Lost) -> PathError {
    let options = hasty();
    let listener = Listener::bind("127.0.0.1:0", accepting, &options).expect("it listens");
    let nobody = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let nowhere = nobody.local_addr().expect("an address");
    let address = raw::relay(listener.local_address(), move |message| {
        let elsewhere = path_bytes(nowhere);
        match (raw::kind(&message), lost) {
            (1, Lost::Accepting) => with_field(&message, raw::PATH, &elsewhere),
            (2, Lost::Connecting) | (3, Lost::Accepting) => {
                with_sdr_field(&with_field(&message, raw::PATH, &elsewhere), raw::SDR_ADDRESS, &elsewhere)
            }
            _ => message,
        }
    });
    let begun = Instant::now();
    let accepted = listener.accept();
    let failure = connect(address, connecting, &options).wait().expect_err("UDP is blocked");
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    let accepted = accepted.wait_for(Duration::from_millis(500));
    assert!(accepted.is_err(), "the accepting end has no connection either");
    assert_eq!(listener.refused_count(), 1);
    let text = failure.to_string();
    let ConnectError::Path(failure) = failure else { panic!("{text}") };
    assert!(text.contains("firewall") && text.contains("UDP"), "{text}");
    assert!(text.contains(&failure.peer.to_string()) && text.contains(&failure.local.to_string()), "{text}");
    failure
}

#[test]
fn connecting_fails_when_nothing_passes() {
    assert_eq!(failure(mute(), device(), Lost::Nobodys).direction, LostDirection::Both);
    assert_eq!(failure(device(), mute(), Lost::Nobodys).direction, LostDirection::Both);
}

#[test]
fn connecting_says_in_which_direction_packets_are_lost() {
    assert_eq!(failure(device(), device(), Lost::Connecting).direction, LostDirection::ToPeer);
    assert_eq!(failure(device(), device(), Lost::Accepting).direction, LostDirection::FromPeer);
}

/// Whatever is pending at either end has ended in time after the devices stop.
fn all_ends(devices: [DeviceChoice; 2]) {
    let options = hasty();
    let (one, other) = pair_of(devices, &options);
    let begun = Instant::now();
    let receives = [one.receive(8 << 20), other.receive(8 << 20)];
    let writes = [one.write(pattern(8 << 20, 1)), other.write(pattern(8 << 20, 2))];
    let unheard = [one.receive(1000), other.receive(1000)];
    for pending in writes {
        let ended = pending.wait_for(Duration::from_secs(8));
        assert!(matches!(ended, Ok(Err(_))), "a write has not failed after {:?}: {ended:?}", begun.elapsed());
    }
    for pending in receives.into_iter().chain(unheard) {
        let ended = pending.wait_for(Duration::from_secs(8));
        assert!(matches!(ended, Ok(Err(_))), "a receive has not failed after {:?}: {ended:?}", begun.elapsed());
    }
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[test]
fn what_is_pending_ends_when_udp_stops_at_both_ends() {
    all_ends([mute_after(50), mute_after(50)]);
}

#[test]
fn what_is_pending_ends_when_udp_stops_at_one_end() {
    all_ends([mute_after(50), device()]);
    all_ends([device(), mute_after(50)]);
}

fn exchange(one: &Connection, other: &Connection) {
    let receiving = other.receive(1000);
    one.write("hello").wait().expect("it is written");
    assert_eq!(receiving.wait().expect("it comes").bytes(), b"hello");
}

#[test]
fn a_receive_waits_for_a_silent_peer_that_is_there() {
    let mut options = hasty();
    options.message_timeout = Duration::from_millis(400);
    let (one, other) = pair_of([device(), device()], &options);
    exchange(&one, &other);
    // Much longer than the peer may be silent when it is asked.
    let waiting = other.receive(1000);
    let waiting = waiting.wait_for(Duration::from_secs(4)).expect_err("nothing is sent");
    one.write("at last").wait().expect("it is written");
    assert_eq!(waiting.wait().expect("it comes").bytes(), b"at last");
}

#[test]
fn a_write_waits_for_a_receive_that_a_living_peer_posts_late() {
    // A peer is asked about once a second, so this is not much longer.
    let options = hasty();
    let (one, other) = pair_of([device(), device()], &options);
    exchange(&one, &other);
    let writing = one.write("early").wait_for(Duration::from_secs(6)).expect_err("nobody receives it");
    assert_eq!(other.receive(1000).wait().expect("it comes").bytes(), b"early");
    writing.wait().expect("it is written");
}
