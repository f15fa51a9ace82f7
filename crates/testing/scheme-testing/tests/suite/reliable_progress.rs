//! Messages fail when nothing moves, not because others take long; and everything ends when the peer is gone.

use longhaul_impair::{Loss, Profile};
use longhaul_reliable::{MessageError, ReceiveTicket, SendTicket};
use longhaul_scheme_testing::end_to_end::{Ground, GroundOptions, VirtualGround, scheme_by_name};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::Mtu;

const SCHEMES: [&str; 3] = ["sr:rto", "sr:nack", "ec:mds:32,8"];
const MESSAGES: usize = 64;
const MESSAGE_BYTES: usize = 320 << 10;
/// All messages take eight seconds at this rate, each an eighth of one.
const BITS_PER_SECOND: u64 = 20_000_000;
const TIMEOUT: Duration = Duration::from_secs(1);

fn slow_link() -> Profile {
    Profile::default()
        .with_propagation_delay(Duration::from_millis(10))
        .with_rate_bits_per_second(BITS_PER_SECOND * 5 / 4)
}

fn ground(scheme: &str, deadline: Option<Duration>) -> VirtualGround {
    let mut options = GroundOptions {
        mtu: Mtu::Bytes1024,
        chunk_bytes: 1024,
        rate_bits_per_second: Some(BITS_PER_SECOND),
        grain: Duration::from_micros(500),
        ..GroundOptions::new(slow_link(), MESSAGES * MESSAGE_BYTES)
    };
    options.connection.message_timeout = TIMEOUT;
    options.connection.message_deadline = deadline;
    VirtualGround::with_scheme(&options, scheme_by_name(scheme).expect("a scheme"))
}

fn post(ground: &mut VirtualGround, count: usize) -> (Vec<ReceiveTicket>, Vec<SendTicket>) {
    let now = ground.now();
    let range = |index: usize| index * MESSAGE_BYTES..(index + 1) * MESSAGE_BYTES;
    let (receiver, memory) = ground.receiver();
    let receives =
        (0..count).map(|index| receiver.post_receive(memory, range(index)).expect("there is room")).collect();
    let (sender, memory) = ground.sender();
    let sends = (0..count).map(|index| sender.send(memory, range(index), now).expect("there is room")).collect();
    (receives, sends)
}

fn run_until(ground: &mut VirtualGround, limit: Duration, mut done: impl FnMut(Instant) -> bool) {
    let end = ground.now() + limit;
    while ground.now() < end && !done(ground.now()) {
        let next = (ground.now() + Duration::from_millis(5)).min(end);
        ground.run_until(next).expect("the ends work");
    }
}

#[test]
fn messages_that_wait_for_others_do_not_time_out() {
    for scheme in SCHEMES {
        let mut ground = ground(scheme, None);
        let (receives, sends) = post(&mut ground, MESSAGES);
        run_until(&mut ground, Duration::from_secs(30), |_| sends.iter().all(SendTicket::is_over));
        for (receive, send) in receives.iter().zip(&sends) {
            send.take().expect("it has ended").unwrap_or_else(|error| panic!("{scheme}: {error}"));
            receive.take().expect("it has ended").unwrap_or_else(|error| panic!("{scheme}: {error}"));
        }
        assert!(ground.now() > Instant::ZERO + 8 * TIMEOUT, "{scheme}: it took many times the timeout");
    }
}

#[test]
fn a_silent_peer_fails_everything_that_has_begun_within_the_timeout_and_little_more() {
    for scheme in SCHEMES {
        let mut ground = ground(scheme, None);
        let (receives, sends) = post(&mut ground, MESSAGES);
        run_until(&mut ground, Duration::from_secs(1), |_| false);
        ground.world.set_link_profile(slow_link().with_loss(Loss::Independent { probability: 1.0 }));
        let cut = ground.now();
        // Another one, whose receive the sender does not know of.
        let (sender, memory) = ground.sender();
        let late = sender.send(memory, 0..100, cut).expect("there is room");
        let mut ended = Vec::new();
        run_until(&mut ground, 3 * TIMEOUT, |now| {
            let open = sends.iter().filter(|send| !send.is_over()).count()
                + receives.iter().filter(|receive| !receive.is_over()).count()
                + usize::from(!late.is_over());
            ended.push((now, open));
            open == 0
        });
        let (last, open) = ended.last().copied().expect("it was looked at");
        assert_eq!(open, 0, "{scheme}: they wait for a peer that is gone");
        assert!(last - cut < TIMEOUT * 3 / 2, "{scheme}: after {:?}", last - cut);
        let failed = sends.iter().filter_map(SendTicket::take).filter(Result::is_err).count();
        assert!(failed > MESSAGES / 2, "{scheme}: {failed} sends failed");
        assert!(matches!(late.take(), Some(Err(MessageError::TimedOut(_)))));
    }
}

#[test]
fn a_deadline_ends_a_message_whatever_its_progress() {
    let deadline = Duration::from_secs(3);
    for scheme in SCHEMES {
        let mut ground = ground(scheme, Some(deadline));
        let (_receives, sends) = post(&mut ground, MESSAGES);
        let begun = ground.now();
        run_until(&mut ground, Duration::from_secs(30), |_| sends.iter().all(SendTicket::is_over));
        assert!(ground.now() - begun < deadline + TIMEOUT / 2, "{scheme}: {:?}", ground.now() - begun);
        let outcomes: Vec<_> = sends.iter().filter_map(SendTicket::take).collect();
        let failed = outcomes.iter().filter(|outcome| {
            matches!(outcome, Err(MessageError::Deadline(_) | MessageError::PeerTimedOut | MessageError::Withdrawn))
        });
        let (succeeded, failed) = (outcomes.iter().filter(|outcome| outcome.is_ok()).count(), failed.count());
        assert!(succeeded > 10 && failed > 10, "{scheme}: {succeeded} succeeded, {failed} failed");
        assert_eq!(succeeded + failed, MESSAGES, "{scheme}");
    }
}
