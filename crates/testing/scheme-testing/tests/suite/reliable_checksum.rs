//! Checksums of messages, on virtual time: what arrives is what was checksummed, or both ends report that it is not.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longhaul_impair::{Loss, Profile};
use longhaul_reliable::{
    Arrivals, MessageError, MessageReport, MessageShape, Progress, ReceiveHalf, ReceiveIo, ReceiveTicket, Scheme,
    SendHalf, SendTicket,
};
use longhaul_scheme_testing::end_to_end::{Case, Ground, GroundOptions, VirtualGround, run_case, scheme_by_name};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::Mtu;

/// The longest message of sdr here.
const PART: usize = 40 << 10;
const MEMORY: usize = 1 << 20;

fn link() -> Profile {
    Profile::default().with_propagation_delay(Duration::from_micros(500)).with_rate_bits_per_second(4_000_000_000)
}

fn lossy(probability: f64) -> Profile {
    link().with_loss(Loss::Independent { probability })
}

fn schemes() -> [Arc<dyn Scheme>; 2] {
    ["sr:nack", "ec:mds:8,2"].map(|name| scheme_by_name(name).expect("a scheme"))
}

/// Messages are cut into parts of [`PART`].
fn options(link: Profile) -> GroundOptions {
    let mut options = GroundOptions {
        mtu: Mtu::Bytes1024,
        chunk_bytes: 1024,
        message_bytes_max: Some([PART as u64; 2]),
        ..GroundOptions::new(link, MEMORY)
    };
    options.connection.checksum = true;
    options
}

fn pass(ground: &mut VirtualGround, time: Duration) {
    let end = ground.now() + time;
    ground.run_until(end).expect("the ends work");
}

fn send(ground: &mut VirtualGround, range: Range<usize>) -> SendTicket {
    let now = ground.now();
    let (sender, memory) = ground.sender();
    sender.send(memory, range, now).expect("there is room")
}

fn receive(ground: &mut VirtualGround, range: Range<usize>) -> ReceiveTicket {
    let (receiver, memory) = ground.receiver();
    receiver.post_receive(memory, range).expect("there is room")
}

fn fill(ground: &mut VirtualGround) {
    let bytes = (0..MEMORY).map(|at| (at * 7 + at / 251) as u8).collect::<Vec<_>>();
    ground.sender().1.write(0..MEMORY).expect("nobody uses it").copy_from_slice(&bytes);
}

/// Both ends report that the checksum differs. Returns where, as the receiver says.
fn assert_damaged(receive: &ReceiveTicket, send: &SendTicket, name: &str) -> Range<u64> {
    let received = receive.take().unwrap_or_else(|| panic!("{name}: the receive has not ended"));
    let sent = send.take().unwrap_or_else(|| panic!("{name}: the send has not ended"));
    assert!(matches!(sent, Err(MessageError::PeerChecksum)), "{name}: the sender reports {sent:?}");
    match received {
        Err(MessageError::Checksum { range, expected, got }) if expected != got => range,
        other => panic!("{name}: the receiver reports {other:?}"),
    }
}

/// Messages that arrive as they were sent, empty ones and ones of several parts too: all of their bytes were verified.
#[test]
fn messages_that_are_right() {
    let links = [link(), lossy(0.02), lossy(0.2).with_reordering(0.1, Duration::from_micros(200))];
    for link in links {
        for scheme in schemes() {
            let mut ground = VirtualGround::with_scheme(&options(link.clone()), scheme.clone());
            for bytes in [0, 1, 1024, PART, PART + 1, 4 * PART + 123] {
                let case = Case { in_flight: 4, slack_bytes: 2000, ..Case::new(8, bytes) };
                let outcome = run_case(&mut ground, &case);
                let outcome = outcome.unwrap_or_else(|error| panic!("{}, {bytes} bytes: {error}", scheme.name()));
                for report in outcome.sent.iter().chain(&outcome.received) {
                    assert_eq!(report.checksummed_bytes, bytes as u64, "{}", scheme.name());
                }
            }
        }
    }
}

/// A message that is longer than what is checksummed in one poll.
#[test]
fn a_message_that_takes_several_polls_to_checksum() {
    let mut options = GroundOptions::new(link().with_rate_bits_per_second(100_000_000_000), 20 << 20);
    options.connection.checksum = true;
    for scheme in schemes() {
        let mut ground = VirtualGround::with_scheme(&options, scheme.clone());
        let outcome = run_case(&mut ground, &Case { in_flight: 2, ..Case::new(2, (9 << 20) + 5) });
        let outcome = outcome.unwrap_or_else(|error| panic!("{}: {error}", scheme.name()));
        assert!(outcome.sent.iter().all(|report| report.checksummed_bytes == (9 << 20) + 5), "{}", scheme.name());
    }
}

#[test]
fn there_are_none_by_default() {
    let mut ground = VirtualGround::with_scheme(&GroundOptions::new(link(), MEMORY), schemes()[0].clone());
    let outcome = run_case(&mut ground, &Case::new(3, 5000)).expect("it works");
    assert!(outcome.sent.iter().chain(&outcome.received).all(|report| report.checksummed_bytes == 0));
}

/// Bytes change at the receiver between arriving and the program: once, in a part of a certain length.
struct Damaging {
    scheme: Arc<dyn Scheme>,
    part_bytes: u64,
    has_damaged: Arc<AtomicBool>,
}

struct DamagingHalf {
    half: Box<dyn ReceiveHalf>,
    is_victim: bool,
    has_damaged: Arc<AtomicBool>,
}

impl Scheme for Damaging {
    fn name(&self) -> String {
        self.scheme.name()
    }

    fn parity_bytes(&self, message_bytes: u64, chunk_bytes: u32) -> u64 {
        self.scheme.parity_bytes(message_bytes, chunk_bytes)
    }

    fn sender(&self, shape: &MessageShape) -> Box<dyn SendHalf> {
        self.scheme.sender(shape)
    }

    fn receiver(&self, shape: &MessageShape) -> Box<dyn ReceiveHalf> {
        Box::new(DamagingHalf {
            half: self.scheme.receiver(shape),
            is_victim: shape.message_bytes == self.part_bytes,
            has_damaged: self.has_damaged.clone(),
        })
    }
}

impl ReceiveHalf for DamagingHalf {
    fn poll(&mut self, io: &mut ReceiveIo<'_>) -> Progress {
        self.half.poll(io)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.half.next_deadline()
    }

    fn recover(
        &mut self,
        data: &mut [u8],
        arrived: Arrivals<'_>,
        parity: Option<(&[u8], Arrivals<'_>)>,
        report: &mut MessageReport,
        is_wanted: &dyn Fn() -> bool,
    ) -> Vec<Range<u32>> {
        let missing = self.half.recover(data, arrived, parity, report, is_wanted);
        if self.is_victim && !self.has_damaged.swap(true, Ordering::Relaxed) {
            data[data.len() / 2] ^= 0x10;
        }
        missing
    }
}

/// One bit is wrong at the receiver: in a message of one part, in any of several and in the last of several. The
/// message after it is not disturbed.
#[test]
fn bytes_that_are_damaged_at_the_receiver() {
    const NEXT: Range<usize> = 400_000..400_777;
    for (length, part_bytes) in [(5000, 5000), (3 * PART, PART), (3 * PART + 100, 100)] {
        for link in [link(), lossy(0.3)] {
            for scheme in schemes() {
                let name = format!("{}, a part of {part_bytes} of {length} bytes", scheme.name());
                let (inner, has_damaged) = (scheme.clone(), Arc::default());
                let damaging = Arc::new(Damaging { scheme: inner, part_bytes: part_bytes as u64, has_damaged });
                let mut ground = VirtualGround::new(&options(link.clone()), [scheme, damaging]);
                fill(&mut ground);
                let (received, next_received) = (receive(&mut ground, 0..length), receive(&mut ground, NEXT));
                let (sent, next_sent) = (send(&mut ground, 0..length), send(&mut ground, NEXT));
                pass(&mut ground, Duration::from_secs(20));
                let range = assert_damaged(&received, &sent, &name);
                assert_eq!((range.end - range.start, range.start % PART as u64), (part_bytes as u64, 0), "{name}");
                let received = next_received.take().unwrap_or_else(|| panic!("{name}: the next has not ended"));
                let received = received.unwrap_or_else(|error| panic!("{name}: {error}"));
                let memory = ground.sender().1.clone();
                assert_eq!(received.bytes(), &*memory.read(NEXT).expect("nobody writes"), "{name}");
                assert!(next_sent.take().is_some_and(|sent| sent.is_ok()), "{name}");
            }
        }
    }
}

/// A program that changes its buffer before the send has ended. Selective repeat lends all bytes to the device at once,
/// and the change is refused; coding does so little by little. Without a checksum the wrong bytes are a success at both
/// ends.
#[test]
fn a_buffer_that_is_changed_during_the_send() {
    for checksum in [true, false] {
        let mut options = GroundOptions { message_bytes_max: None, ..options(link()) };
        options.connection.checksum = checksum;
        let mut ground = VirtualGround::with_scheme(&options, scheme_by_name("ec:mds:8,2").expect("a scheme"));
        fill(&mut ground);
        let sent = send(&mut ground, 0..MEMORY);
        pass(&mut ground, Duration::from_millis(5));
        let memory = ground.sender().1.clone();
        memory.write(MEMORY - 1..MEMORY).expect("it has not been queued yet")[0] ^= 1;
        let received = receive(&mut ground, 0..MEMORY);
        pass(&mut ground, Duration::from_secs(5));
        if checksum {
            assert_eq!(assert_damaged(&received, &sent, "ec:mds:8,2"), 0..MEMORY as u64);
        } else {
            assert!(received.take().is_some_and(|received| received.is_ok()));
            assert!(sent.take().is_some_and(|sent| sent.is_ok()));
        }
    }
}

/// Bytes that cannot be read when the message's turn comes are waited for; if they never can, both ends report it.
#[test]
fn a_buffer_that_is_in_use() {
    for scheme in schemes() {
        for is_released in [true, false] {
            let name = format!("{}, released {is_released}", scheme.name());
            let mut options = options(link());
            options.connection.message_timeout = Duration::from_secs(1);
            let mut ground = VirtualGround::with_scheme(&options, scheme.clone());
            let (received, sent) = (receive(&mut ground, 0..3 * PART), send(&mut ground, 0..3 * PART));
            let memory = ground.sender().1.clone();
            let mut held = Some(memory.write(2 * PART + 5..2 * PART + 6).expect("nothing has been queued yet"));
            pass(&mut ground, Duration::from_millis(100));
            held.take_if(|_| is_released);
            pass(&mut ground, Duration::from_secs(5));
            let (received, sent) = (received.take().expect("it has ended"), sent.take().expect("it has ended"));
            if is_released {
                assert!(received.is_ok() && sent.is_ok(), "{name}: {received:?}, {sent:?}");
            } else {
                let ends = (received.expect_err("it was not sent"), sent.expect_err("it was not sent"));
                assert!(matches!(ends, (MessageError::Withdrawn | MessageError::TimedOut(_), _)), "{name}: {}", ends.0);
                assert!(matches!(ends, (_, MessageError::Send(_) | MessageError::PeerTimedOut)), "{name}: {}", ends.1);
            }
        }
    }
}
