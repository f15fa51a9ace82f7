//! Nobody waits long for a clear-to-send, with schemes too: small messages with many receives posted ahead, over a path
//! that loses.

use std::collections::VecDeque;
use std::sync::Arc;

use longhaul_impair::{Loss, Profile};
use longhaul_reliable::{ReceiveTicket, SendTicket, scheme_named};
use longhaul_scheme_testing::end_to_end::{Ground, GroundOptions, VirtualGround};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::Mtu;

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

/// The longest time from sending a message to both ends being done with it.
fn longest_completion(scheme: &str, profile: Profile, messages: usize, seed: u64) -> Duration {
    let scheme = scheme_named(scheme.parse().unwrap());
    let options = GroundOptions {
        seed,
        mtu: Mtu::Bytes1024,
        chunk_bytes: 1024,
        message_bytes_max: Some([1 << 16; 2]),
        round_trip_guess: ROUND_TRIP,
        grain: Duration::from_micros(200),
        ..GroundOptions::new(profile, AHEAD * BYTES)
    };
    let mut ground = VirtualGround::with_scheme(&options, Arc::clone(&scheme));
    let mut waiting: VecDeque<(SendTicket, ReceiveTicket, Instant)> = VecDeque::new();
    let (mut posted, mut longest) = (0, Duration::ZERO);
    while posted < messages || !waiting.is_empty() {
        let now = ground.now();
        while posted < messages && waiting.len() < AHEAD {
            let range = posted % AHEAD * BYTES..(posted % AHEAD + 1) * BYTES;
            let (connection, memory) = ground.receiver();
            let receive = connection.post_receive(memory, range.clone()).unwrap();
            let (connection, memory) = ground.sender();
            let send = connection.send(memory, range, now).unwrap();
            waiting.push_back((send, receive, now));
            posted += 1;
        }
        while let Some((send, receive, since)) = waiting.front()
            && send.is_over()
            && receive.is_over()
        {
            longest = longest.max(now - *since);
            send.take().unwrap().unwrap();
            drop(receive.take().unwrap().unwrap());
            waiting.pop_front();
        }
        let limit = Instant::ZERO + Duration::from_secs(600);
        assert!(now < limit, "hung");
        ground.step(limit).unwrap();
    }
    longest
}

#[test]
fn messages_of_schemes_complete_within_a_few_round_trips_or_a_second() {
    for scheme in ["sr:nack", "ec:mds:32,8"] {
        let longest = longest_completion(scheme, path(0.0), 3_000, 5);
        assert!(longest <= 4 * ROUND_TRIP, "{scheme} without loss: {longest:?}");
        for loss in [0.001, 0.01] {
            let longest = longest_completion(scheme, path(loss), 4_000, 6);
            assert!(longest <= Duration::from_secs(1), "{scheme} at {loss}: {longest:?}");
        }
    }
}
