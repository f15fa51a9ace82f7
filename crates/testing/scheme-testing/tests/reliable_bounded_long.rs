//! Bounded and best-effort receives that meet messages of several parts, on virtual time.

use std::ops::Range;

use longhaul_impair::Profile;
use longhaul_reliable::{Bound, Deadline, Ending, Fill, MessageError, ReceiveTicket};
use longhaul_scheme_testing::end_to_end::{Ground, GroundOptions, VirtualGround, scheme_by_name};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::Mtu;

const PACKET: usize = 1024;
const PART: usize = 40 * PACKET;

fn link() -> Profile {
    Profile::default().with_propagation_delay(Duration::from_millis(1)).with_rate_bits_per_second(4_000_000_000)
}

fn ground(scheme: &str) -> VirtualGround {
    let options = GroundOptions {
        mtu: Mtu::Bytes1024,
        chunk_bytes: PACKET as u32,
        message_bytes_max: Some([PART as u64; 2]),
        ..GroundOptions::new(link(), 4 << 20)
    };
    VirtualGround::with_scheme(&options, scheme_by_name(scheme).expect("a scheme"))
}

/// Until that has ended, and when.
fn run_until(ground: &mut VirtualGround, limit: Duration, mut is_over: impl FnMut() -> bool) -> Instant {
    let end = ground.now() + limit;
    while !is_over() {
        assert!(ground.now() < end, "it does not end");
        ground.step(end).expect("the ends work");
    }
    ground.now()
}

fn pass(ground: &mut VirtualGround, time: Duration) {
    let end = ground.now() + time;
    ground.run_until(end).expect("the ends work");
}

fn only(bytes: usize) -> Vec<Range<u64>> {
    std::iter::once(0..bytes as u64).collect()
}

fn fill(ground: &mut VirtualGround, range: Range<usize>, value: u8) {
    ground.sender().1.write(range).expect("nobody uses it").fill(value);
}

fn receive_bounded(ground: &mut VirtualGround, range: Range<usize>, after: Duration) -> ReceiveTicket {
    let now = ground.now();
    let bound = Bound { deadline: Deadline::After(after), fill: Fill::Zero };
    let (connection, memory) = ground.receiver();
    connection.receive_bounded(memory, range, bound, now).expect("there is room")
}

/// A bounded receive has one number, whatever the message that comes for it would have taken: the next message is the next receive's.
#[test]
fn a_long_message_whose_bounded_receive_has_expired_takes_one_number() {
    for scheme in ["be", "sr:nack", "ec:mds:8,4", "be+ec:mds:8,4"] {
        // The sender begins when it has heard of the receive, when that is over, and when it knows that it is.
        for millis in [4, 6, 50] {
            let mut ground = ground(scheme);
            let expired = receive_bounded(&mut ground, 0..1000, Duration::from_millis(5));
            pass(&mut ground, Duration::from_millis(millis));
            let next = receive_bounded(&mut ground, PART..PART + 5000, Duration::from_secs(5));
            let long = 0..3 * PART + 100;
            fill(&mut ground, long.clone(), 1);
            let now = ground.now();
            let (connection, memory) = ground.sender();
            let send = connection.send(memory, long.clone(), now).expect("there is room");
            let short = 4 * PART..4 * PART + 5000;
            fill(&mut ground, short.clone(), 2);
            let (connection, memory) = ground.sender();
            let second = connection.send(memory, short, now).expect("there is room");
            run_until(&mut ground, Duration::from_secs(20), || {
                expired.is_over() && next.is_over() && send.is_over() && second.is_over()
            });
            match send.take().expect("it has ended") {
                Err(MessageError::Incomplete { missing }) => assert_eq!(missing, only(long.end), "{scheme}, {millis}"),
                Err(MessageError::TooLong { .. } | MessageError::TooLongForPeer(_)) => {}
                other => panic!("{scheme}, {millis}: {other:?}"),
            }
            let received = next.take().expect("it has ended").expect("it has not failed");
            assert_eq!(received.ending(), Ending::Whole, "{scheme}, {millis}");
            assert!(received.bytes().iter().all(|byte| *byte == 2), "{scheme}, {millis}: another message's bytes");
            second.take().expect("it has ended").expect("all of it has arrived");
        }
    }
}
