//! The end-to-end suite of reliability schemes on virtual time: every scheme, sizes from nothing to many chunks, over
//! links that lose, in bursts too, reorder and duplicate. And a scheme that is made up here, with the public trait
//! alone.

use std::sync::Arc;

use longhaul_coding::Code;
use longhaul_impair::{Loss, Profile};
use longhaul_reliable::{Erasure, ReceiveTicket, Scheme, SelectiveRepeat, SendTicket};
use longhaul_scheme_testing::end_to_end::{
    Case, Figures, Ground, GroundOptions, Suite, VirtualGround, links, run_case, schemes,
};
use longhaul_time::Duration;
use longhaul_verbs::Mtu;

/// A link of the suite.
fn link(name: &str) -> Profile {
    let link = links().into_iter().find(|link| link.name == name);
    link.and_then(|link| link.profile).expect("a link of the suite")
}

/// Every scheme over every link.
fn run_all(options: impl Fn(Profile) -> GroundOptions, cases: &[Case]) -> Figures {
    let suite = Suite { cases: cases.to_vec(), ..Suite::new(0, &[]) };
    let mut figures = Figures::default();
    suite
        .run(
            |link, scheme| {
                let options = options(link.profile.clone().unwrap_or_default());
                Ok(VirtualGround::with_scheme(&options, scheme.clone()))
            },
            |_, _, _, outcome| {
                figures.add(outcome?);
                Ok(())
            },
        )
        .unwrap_or_else(|error| panic!("{error}"));
    figures
}

#[test]
fn small_messages() {
    let sizes = [0, 1, 1023, 1024, 1025, 4096, 5000, 10_000, 65_536];
    let cases: Vec<Case> = sizes.into_iter().map(|bytes| Case::new(100, bytes)).collect();
    run_all(
        |link| GroundOptions { mtu: Mtu::Bytes1024, chunk_bytes: 4096, ..GroundOptions::new(link, 1 << 20) },
        &cases,
    );
}

#[test]
fn receives_that_are_longer_than_their_messages() {
    let sizes = [1, 4096, 5000, 100_000];
    let cases: Vec<Case> =
        sizes.into_iter().map(|bytes| Case { slack_bytes: 12_345, ..Case::new(10, bytes) }).collect();
    run_all(
        |link| GroundOptions {
            mtu: Mtu::Bytes1024,
            chunk_bytes: 4096,
            channels: 2,
            ..GroundOptions::new(link, 1 << 20)
        },
        &cases,
    );
}

#[test]
fn large_messages() {
    run_all(
        |link| GroundOptions::new(link, 4 << 20),
        &[Case::new(3, 1_000_001), Case { in_flight: 1, ..Case::new(1, 4 << 20) }],
    );
}

#[test]
fn the_largest_messages() {
    for scheme in schemes() {
        let name = scheme.name();
        let options = GroundOptions { receive_depth: 1 << 16, ..GroundOptions::new(link("loss-1e-2"), 64 << 20) };
        let mut ground = VirtualGround::with_scheme(&options, scheme);
        run_case(&mut ground, &Case::new(1, 64 << 20)).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn the_same_seed_sends_the_same_packets() {
    let hash = |seed| {
        let options = GroundOptions { seed, ..GroundOptions::new(link("reordering"), 1 << 20) };
        schemes().into_iter().map(move |scheme| {
            let mut ground = VirtualGround::with_scheme(&options, scheme);
            run_case(&mut ground, &Case::new(5, 100_000)).expect("all arrives");
            ground.world.trace_hash()
        })
    };
    assert!(hash(7).eq(hash(7)));
    assert!(hash(7).ne(hash(8)));
}

#[test]
fn ends_with_different_schemes_say_so_at_both_ends() {
    let schemes: [Arc<dyn Scheme>; 2] =
        [Arc::new(SelectiveRepeat::default()), Arc::new(SelectiveRepeat::with_negative_acknowledgements())];
    let mut ground = VirtualGround::new(&GroundOptions::new(link("perfect"), 1 << 20), schemes);
    let (receive, send) = post(&mut ground, 10_000, 10_000);
    settle(&mut ground, Duration::from_secs(1));
    let expected = "the ends have different schemes: sr:nack with chunks of 4096 bytes here, sr:rto with chunks of 4096 bytes at the peer; \
                    give both the same";
    assert_eq!(receive.take().expect("it has ended").expect_err("refused").to_string(), expected);
    let error = send.take().expect("it has ended").expect_err("refused").to_string();
    assert!(error.contains("sr:rto here, sr:nack with chunks of 4096 bytes at the peer"), "{error}");
}

#[test]
fn a_message_that_is_too_long_fails_at_both_ends() {
    for scheme in schemes() {
        let mut ground = VirtualGround::with_scheme(&GroundOptions::new(link("perfect"), 1 << 20), scheme);
        let (receive, send) = post(&mut ground, 10_000, 20_000);
        settle(&mut ground, Duration::from_secs(1));
        let error = receive.take().expect("it has ended").expect_err("too long").to_string();
        assert_eq!(error, "a message of 20000 bytes does not fit the receive of 10000 bytes that was posted for it");
        assert!(send.take().expect("it has ended").is_err());
        // The next one is not disturbed.
        run_case(&mut ground, &Case::new(3, 10_000)).expect("all arrives");
    }
}

#[test]
fn a_peer_that_is_gone_is_given_up() {
    for scheme in schemes() {
        let mut options = GroundOptions::new(link("perfect"), 1 << 20);
        options.connection.message_timeout = Duration::from_secs(2);
        let mut ground = VirtualGround::with_scheme(&options, scheme);
        let (receive, send) = post(&mut ground, 1 << 20, 1 << 20);
        let end = ground.now() + Duration::from_micros(600);
        ground.run_until(end).expect("the ends work");
        ground.world.set_link_profile(link("perfect").with_loss(Loss::Independent { probability: 1.0 }));
        settle(&mut ground, Duration::from_secs(5));
        for error in [receive.take().expect("it has ended").err(), send.take().expect("it has ended").err()] {
            let error = error.expect("nobody answers").to_string();
            assert_eq!(error, "the message made no progress for 2s; is the peer still there?");
        }
    }
}

/// Both ends say what happened.
#[test]
fn reports() {
    let lossy = link("loss-1e-2");
    let code = "mds:32,8".parse::<Code>().expect("a code");
    let options = GroundOptions::new(lossy, 4 << 20);
    let case = Case { in_flight: 1, ..Case::new(2, 4 << 20) };
    let mut ground = VirtualGround::with_scheme(&options, Arc::new(Erasure::new(code)));
    let outcome = run_case(&mut ground, &case).expect("all arrives");
    let (sent, received) = (outcome.sent[1], outcome.received[1]);
    assert_eq!((sent.data_packets_sent, sent.data_packets_repeated, sent.parity_packets_sent), (1024, 0, 256));
    assert!((1..40).contains(&received.chunks_recovered), "{received:?}");
    assert_eq!(received.parity_chunks_used, received.chunks_recovered);
    assert!((200..256).contains(&(received.parity_chunks_used + received.parity_chunks_wasted)), "{received:?}");
    assert_eq!((sent.fallbacks, received.fallbacks, received.message_bytes), (0, 0, 4 << 20));
    let mut ground = VirtualGround::with_scheme(&options, Arc::new(SelectiveRepeat::default()));
    let outcome = run_case(&mut ground, &case).expect("all arrives");
    let (sent, received) = (outcome.sent[1], outcome.received[1]);
    assert!((1..60).contains(&sent.data_packets_repeated) && sent.fallbacks > 0, "{sent:?}");
    assert_eq!(sent.data_packets_sent, 1024 + sent.data_packets_repeated);
    assert!(sent.feedback_records > 0 && received.feedback_records >= sent.feedback_records, "{received:?}");
    let round_trip = sent.round_trip.expect("it was measured");
    assert!((Duration::from_micros(1000)..Duration::from_micros(1100)).contains(&round_trip), "{round_trip:?}");
    assert!(sent.duration > 3 * round_trip, "{sent:?}");
}

fn post(ground: &mut VirtualGround, room: usize, length: usize) -> (ReceiveTicket, SendTicket) {
    let now = ground.now();
    let (receiver, memory) = ground.receiver();
    let receive = receiver.post_receive(memory, 0..room).expect("it fits");
    let (sender, memory) = ground.sender();
    (receive, sender.send(memory, 0..length, now).expect("it fits"))
}

fn settle(ground: &mut VirtualGround, time: Duration) {
    let end = ground.now() + time;
    ground.run_until(end).expect("the ends work");
}
