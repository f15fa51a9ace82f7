//! Forward error correction of queue pairs whose two ends agree on it, on real sockets that lose.

use crate::udp_ends;

use longhaul_impair::{Loss, Profile};
use longhaul_softnic_udp::{Agreement, FecPeer, Impair, ProtectError, Protection, UdpConfig, UdpDevice};
use longhaul_verbs::{CompletionStatus, Mtu, Transport};
use udp_ends::{End, device_with, pattern};

const BYTES: usize = 4 << 20;

fn opened(address: &str, fec: Option<&str>, loss: f64) -> UdpDevice {
    let mut udp = UdpConfig::default();
    udp.fec = fec.map(|fec| fec.parse().expect("it is one"));
    if loss > 0.0 {
        let profile = Profile::default().with_loss(Loss::Independent { probability: loss });
        udp.impair = Some(Impair { profile, seed: 5 });
    }
    device_with(address, udp)
}

fn peer(end: &End) -> FecPeer {
    FecPeer { address: end.address, queue_pair: end.queue_pair.number(), fec: end.device.fec() }
}

fn agree(one: &End, two: &End) -> [Result<Protection, ProtectError>; 2] {
    [(one, two), (two, one)].map(|(ours, theirs)| ours.device.protect_queue_pair(&ours.queue_pair, &peer(theirs)))
}

/// Writes a message over a link that loses one packet in fifty each way.
fn write_with(codes: [&str; 2]) -> [u64; 2] {
    let [one, two] = [("127.0.0.1", codes[0]), ("127.0.0.2", codes[1])].map(|(address, fec)| {
        let device = opened(address, Some(fec), 0.02);
        End::new(&device, Transport::ReliableConnection, BYTES)
    });
    let protections = agree(&one, &two).map(Result::unwrap);
    one.connect(&two, Mtu::Bytes1024);
    two.connect(&one, Mtu::Bytes1024);
    for (ours, theirs, seed) in [(&one, &two, 1), (&two, &one, 2)] {
        let bytes = pattern(seed, BYTES);
        ours.region.copy_in(0, &bytes);
        ours.post_write(seed, BYTES, theirs);
        assert_eq!(ours.wait().status, CompletionStatus::Success);
        assert!(theirs.region.to_vec(0..BYTES) == bytes, "contents differ");
    }
    drop(protections);
    [&one, &two].map(|end| end.device.fec_counters().expect("they were opened with it").1.restored)
}

#[test]
fn two_ends_that_agree_repair_what_is_lost() {
    for codes in [["lowar:mds:32,4"; 2], ["lowar:8,2", "lowar:mds:16,2"], ["auto"; 2]] {
        let restored = write_with(codes);
        assert!(restored.iter().all(|restored| *restored > 20), "{codes:?}: {restored:?}");
    }
}

#[test]
fn what_cannot_be_agreed_on_is_refused_with_the_reason() {
    let reliable = Transport::ReliableConnection;
    let end = |address, fec, transport| End::new(&opened(address, fec, 0.0), transport, 4096);
    let with = end("127.0.0.1", Some("lowar:32,1"), reliable);
    let without = end("127.0.0.2", None, reliable);
    let [here, there] = agree(&with, &without);
    assert_eq!(here.unwrap_err(), ProtectError::PeerHasNone { peer: without.address });
    assert_eq!(there.unwrap_err(), ProtectError::NotThere);

    let follows = end("127.0.0.3", Some("auto"), reliable);
    for refused in agree(&with, &follows) {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("lowar:32,1") && refused.contains("use auto at both ends"), "{refused}");
    }

    let datagrams = end("127.0.0.4", Some("lowar:32,1"), Transport::UnreliableDatagram);
    let refused = datagrams.device.protect_queue_pair(&datagrams.queue_pair, &peer(&with)).unwrap_err();
    assert_eq!(refused, ProtectError::Transport("UD"));

    let many = FecPeer { fec: Some("lowar:mds:64,40".parse().unwrap()), ..peer(&without) };
    let refused = with.device.protect_queue_pair(&with.queue_pair, &many).unwrap_err();
    assert!(matches!(refused, ProtectError::Code(_)), "{refused}");
}

#[test]
fn a_protection_that_is_dropped_makes_room_for_another() {
    let device = opened("127.0.0.1", Some("lowar:32,1"), 0.0);
    let end = End::new(&device, Transport::UnreliableConnection, 4096);
    let agreement = |number| Agreement {
        peer: "127.0.0.2".parse().unwrap(),
        ours: number,
        theirs: number,
        code: "xor:32,1".parse().unwrap(),
    };
    let agreed: Vec<Agreement> =
        (1_000_000..).map(agreement).take_while(|agreement| device.protect(agreement).is_ok()).take(10_000).collect();
    assert!((1..10_000).contains(&agreed.len()), "{}", agreed.len());
    let again = peer(&End::new(&opened("127.0.0.3", Some("lowar:8,1"), 0.0), Transport::UnreliableConnection, 4096));
    assert!(matches!(device.protect_queue_pair(&end.queue_pair, &again), Err(ProtectError::Code(_))));
    device.unprotect(&agreed[0]);
    let protection = device.protect_queue_pair(&end.queue_pair, &again).unwrap();
    assert!(device.protect(&agreed[0]).is_err());
    drop(protection);
    device.protect(&agreed[0]).unwrap();
    device.unprotect(&agreed[0]);
    let protection = device.protect_queue_pair(&end.queue_pair, &again).unwrap();
    // A device that closes first takes its agreements with it.
    drop((end, device));
    drop(protection);
}

/// Else the end of the first, which `slot = Some(protect(…)?)` drops last, would end the second.
#[test]
fn a_queue_pair_has_one_protection_at_a_time() {
    let device = opened("127.0.0.1", Some("lowar:32,1"), 0.0);
    let end = End::new(&device, Transport::ReliableConnection, 4096);
    let other = peer(&End::new(&opened("127.0.0.3", Some("lowar:8,1"), 0.0), Transport::ReliableConnection, 4096));
    let mapped = FecPeer { address: "::ffff:127.0.0.3".parse().unwrap(), ..other };
    let protection = device.protect_queue_pair(&end.queue_pair, &mapped).unwrap();
    assert_eq!(protection.agreement().peer, other.address, "packets come from the IPv4 address");
    let number = end.queue_pair.number();
    assert_eq!(
        device.clone().protect_queue_pair(&end.queue_pair, &other).unwrap_err(),
        ProtectError::AlreadyProtected(number)
    );
    // Another queue pair, connected to the same one of the peer: the end of the first protection would end its own.
    let again = End::new(&device, Transport::ReliableConnection, 4096);
    assert_eq!(
        device.protect_queue_pair(&again.queue_pair, &other).unwrap_err(),
        ProtectError::PeerAlreadyProtected { peer: other.address, queue_pair: other.queue_pair }
    );
    drop(protection);
    drop(device.protect_queue_pair(&end.queue_pair, &other).unwrap());
    device.protect_queue_pair(&again.queue_pair, &other).unwrap();
}
