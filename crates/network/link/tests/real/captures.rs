//! What each setting does, from captures of both ends of the link: frames as they enter, and as they leave.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::ground::{End, in_namespace, number_of, numbered, options};
use longhaul_forward::clock::Clock;
use longhaul_impair::{EcnMarking, Loss, Profile};
use longhaul_link::{RunningLink, Towards};
use pcap_file::pcapng::{Block, PcapNgReader};

/// A frame in a capture.
struct Seen {
    at: Duration,
    bytes: Vec<u8>,
}

/// What entered the link at one end and what left it at the other, in one direction.
struct Passed {
    entered: Vec<Seen>,
    left: Vec<Seen>,
}

/// Reads a capture: by the interface, 0 or 1, where frames entered.
fn read(path: &Path) -> [Passed; 2] {
    let file = std::fs::File::open(path).expect("the capture");
    let mut reader = PcapNgReader::new(file).expect("a capture");
    let mut passed = [(); 2].map(|()| Passed { entered: Vec::new(), left: Vec::new() });
    while let Some(block) = reader.next_block() {
        let Block::EnhancedPacket(packet) = block.expect("a block") else { continue };
        let is_received = packet.options.iter().any(
            |option| matches!(option, pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption::Flags(flags) if flags & 3 == 1),
        );
        let seen = Seen { at: packet.timestamp, bytes: packet.data.to_vec() };
        let interface = packet.interface_id as usize;
        match is_received {
            true => passed[interface].entered.push(seen),
            false => passed[1 - interface].left.push(seen),
        }
    }
    passed
}

/// Sends numbered frames from the left, and others from the right, over a link with these settings; what its capture shows.
fn pass(name: &str, forth: Profile, back: Profile, count: u32, apart: Duration, bytes: usize) -> [Passed; 2] {
    let path = std::env::temp_dir().join(format!("longhaul-link-{name}-{}.pcapng", std::process::id()));
    let mut options = options(forth, back, 3);
    options.capture = Some(path.clone());
    let link = RunningLink::start(&options).expect("a link");
    let clock = Clock::start();
    let [mut left, mut right] = ["left", "right"].map(|name| End::open(name, clock));
    for number in 0..count {
        let frame = numbered(number..number + 1, bytes);
        left.send(&frame);
        right.send(&frame);
        if !apart.is_zero() {
            std::thread::sleep(apart);
        }
    }
    right.receive(usize::MAX, Duration::from_millis(300));
    let summary = link.end().expect("it ends well").expect("there is a capture");
    assert_eq!(summary.frames_left_out, 0);
    let passed = read(&path);
    std::fs::remove_file(path).expect("it is there");
    for direction in &passed {
        assert_eq!(direction.entered.len(), count as usize, "all that was sent has entered");
    }
    passed
}

impl Passed {
    /// How long each frame took that has left, by number; the first copy.
    fn delays(&self) -> BTreeMap<u32, Duration> {
        let entered: BTreeMap<u32, Duration> =
            self.entered.iter().map(|seen| (number_of(&seen.bytes), seen.at)).collect();
        let mut delays = BTreeMap::new();
        for seen in &self.left {
            if let Some(entered) = entered.get(&number_of(&seen.bytes)) {
                delays.entry(number_of(&seen.bytes)).or_insert(seen.at.saturating_sub(*entered));
            }
        }
        delays
    }

    fn numbers(&self) -> Vec<u32> {
        self.left.iter().map(|seen| number_of(&seen.bytes)).collect()
    }
}

const MILLI: Duration = Duration::from_millis(1);

fn median(delays: &BTreeMap<u32, Duration>) -> Duration {
    let mut delays: Vec<Duration> = delays.values().copied().collect();
    delays.sort();
    delays[delays.len() / 2]
}

#[test]
fn delay_and_jitter() {
    in_namespace("captures::delay_and_jitter", 1500, || {
        let forth = Profile::default().with_propagation_delay(10 * MILLI);
        let back = forth.clone().with_jitter(8 * MILLI, true);
        let [forth, back] = pass("delay", forth, back, 300, Duration::from_micros(200), 100);
        let delays = forth.delays();
        assert!(delays.values().all(|delay| *delay >= 10 * MILLI));
        assert!(median(&delays) < 14 * MILLI, "{:?}", median(&delays));
        let delays = back.delays();
        assert!(delays.values().all(|delay| *delay >= 10 * MILLI));
        let spread = *delays.values().max().expect("some") - *delays.values().min().expect("some");
        assert!(spread > 3 * MILLI && median(&delays) > 11 * MILLI, "{spread:?}, {:?}", median(&delays));
        assert_eq!(forth.numbers(), (0..300).collect::<Vec<_>>());
        assert_eq!(back.numbers(), (0..300).collect::<Vec<_>>(), "this jitter keeps the order");
    });
}

/// How long each frame takes that fits a queue of this many bytes in front of a wire of this rate, from when it entered.
fn leave_the_wire(passed: &Passed, rate_bits_per_second: u64, queue_bytes: u64) -> BTreeMap<u32, Duration> {
    let span = |bytes: u64| Duration::from_nanos(bytes * 8_000_000_000 / rate_bits_per_second);
    let mut idle_at = Duration::ZERO;
    let mut spans = BTreeMap::new();
    for seen in &passed.entered {
        let left_at = idle_at.max(seen.at) + span(seen.bytes.len() as u64);
        if left_at - seen.at <= span(queue_bytes) {
            idle_at = left_at;
            spans.insert(number_of(&seen.bytes), left_at - seen.at);
        }
    }
    spans
}

#[test]
fn rate_queue_and_marks() {
    in_namespace("captures::rate_queue_and_marks", 1500, || {
        // 1,000 bytes take a millisecond, and ten of them fit the queue.
        let limited = Profile::default().with_rate_bits_per_second(8_000_000).with_queue_limit_bytes(10_000);
        let marking = Profile::default()
            .with_rate_bits_per_second(8_000_000)
            .with_ecn(EcnMarking::Step { threshold_bytes: 4_500 });
        let [forth, back] = pass("rate", limited, marking, 40, Duration::ZERO, 1000);
        let expected = leave_the_wire(&forth, 8_000_000, 10_000);
        let delays = forth.delays();
        assert!((10..40).contains(&expected.len()), "{} of 40 fit the queue: the sender was stopped", expected.len());
        assert!(delays.keys().eq(expected.keys()), "{:?}, not {:?}", delays.keys(), expected.keys());
        let lateness = delays.iter().map(|(number, delay)| (*number, delay.saturating_sub(expected[number]))).collect();
        assert!(delays.iter().all(|(number, delay)| *delay + MILLI / 100 >= expected[number]), "none leaves too early");
        assert!(median(&lateness) < 4 * MILLI, "{:?} later than the rate says", median(&lateness));
        // Frames without IP cannot be marked; they pass as they are.
        assert_eq!(back.left.len(), 40);
    });
}

#[test]
fn marks_are_set_in_packets_that_can_carry_them() {
    in_namespace("captures::marks_are_set_in_packets_that_can_carry_them", 1500, || {
        let marking = Profile::default()
            .with_rate_bits_per_second(8_000_000)
            .with_ecn(EcnMarking::Step { threshold_bytes: 4_500 });
        let link = RunningLink::start(&options(marking, Profile::default(), 3)).expect("a link");
        let clock = Clock::start();
        let [mut left, mut right] = ["left", "right"].map(|name| End::open(name, clock));
        let packet = |number: u32| {
            let mut frame = numbered(number..number + 1, 1000).remove(0);
            frame[12..14].copy_from_slice(&[0x08, 0x00]);
            // ECT(0); the number stands behind the header.
            frame[14..34]
                .copy_from_slice(&[0x45, 0x02, 0x03, 0xda, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            frame[34..38].copy_from_slice(&number.to_be_bytes());
            frame
        };
        left.send(&(0..20).map(packet).collect::<Vec<_>>());
        let received = right.receive(20, Duration::from_millis(500));
        let marked: Vec<bool> = received.iter().map(|(_, frame)| frame[15] & 3 == 3).collect();
        assert_eq!(marked.len(), 20);
        let first = marked.iter().position(|marked| *marked).expect("the queue grows");
        assert!(first >= 3, "the first mark is at {first}: not before five frames wait");
        assert!(marked.iter().filter(|marked| **marked).count() >= 8, "the queue holds more than five: {marked:?}");
        assert_eq!(link.counters().expect("it runs").link.towards_second.not_markable, 0);
    });
}

#[test]
fn loss_bursts_duplicates_and_order() {
    in_namespace("captures::loss_bursts_duplicates_and_order", 1500, || {
        let bursts = Profile::default().with_loss(Loss::bursts(0.2, 5.0));
        let double = Profile::default().with_duplication(0.25);
        let [forth, back] = pass("loss", bursts, double, 2000, Duration::ZERO, 100);
        let kept = forth.numbers();
        let lost = 2000 - kept.len();
        assert!((250..=560).contains(&lost), "{lost} of 2000, 400 expected");
        let gaps = kept.windows(2).filter(|pair| pair[1] > pair[0] + 1).count();
        let mean = lost as f64 / gaps as f64;
        assert!((3.0..7.5).contains(&mean), "bursts of {mean}, 5 set");
        let copies = back.left.len() - 2000;
        assert!((400..=600).contains(&copies), "{copies} duplicates, 500 expected");
        let held = Profile::default().with_reordering(0.1, 3 * MILLI);
        let [forth, back] = pass("order", held, Profile::default(), 1000, Duration::from_micros(50), 100);
        // Those that others overtake: the host may stop for a moment, and then all are late.
        let numbers = forth.numbers();
        let is_overtaken = |place: &usize| numbers[..*place].iter().any(|earlier| *earlier > numbers[*place]);
        let overtaken: Vec<u32> = (0..numbers.len()).filter(is_overtaken).map(|place| numbers[place]).collect();
        let delays = forth.delays();
        assert!((60..=150).contains(&overtaken.len()), "{} held back, 100 expected", overtaken.len());
        assert!(overtaken.iter().all(|number| delays[number] >= 3 * MILLI), "they are held back for 3 ms");
        assert_eq!(back.numbers(), (0..1000).collect::<Vec<_>>());
    });
}

#[test]
fn corruption_changes_bits_behind_the_addresses() {
    in_namespace("captures::corruption_changes_bits_behind_the_addresses", 1500, || {
        let [forth, back] =
            pass("bits", Profile::default().with_corruption(0.3, 2), Profile::default(), 500, Duration::ZERO, 100);
        let mut wrong = 0;
        for (entered, left) in forth.entered.iter().zip(&forth.left) {
            let flipped: u32 = entered.bytes.iter().zip(&left.bytes).map(|(a, b)| (a ^ b).count_ones()).sum();
            assert!((flipped == 0 || flipped == 2) && entered.bytes[..14] == left.bytes[..14]);
            wrong += usize::from(flipped == 2);
        }
        assert!((100..=200).contains(&wrong), "{wrong} corrupted, 150 expected");
        assert!(back.entered.iter().zip(&back.left).all(|(entered, left)| entered.bytes == left.bytes));
    });
}

#[test]
fn settings_change_while_frames_pass() {
    in_namespace("captures::settings_change_while_frames_pass", 1500, || {
        let far = |millis| Arc::new(Profile::default().with_propagation_delay(millis * MILLI));
        let path = std::env::temp_dir().join(format!("longhaul-link-change-{}.pcapng", std::process::id()));
        let mut options = options((*far(5)).clone(), (*far(5)).clone(), 3);
        options.capture = Some(path.clone());
        let link = RunningLink::start(&options).expect("a link");
        let clock = Clock::start();
        let [mut left, mut right] = ["left", "right"].map(|name| End::open(name, clock));
        for round in 0..4 {
            link.set_profile(Towards::Second, far([5, 20, 0, 10][round as usize])).expect("a good profile");
            for number in round * 50..round * 50 + 50 {
                left.send(&numbered(number..number + 1, 100));
                std::thread::sleep(Duration::from_micros(100));
            }
            std::thread::sleep(30 * MILLI);
        }
        right.receive(usize::MAX, Duration::from_millis(100));
        link.end().expect("it ends well");
        let [forth, _] = read(&path);
        std::fs::remove_file(path).expect("it is there");
        let delays = forth.delays();
        assert_eq!(delays.len(), 200);
        for (round, millis) in [(0, 5), (1, 20), (2, 0), (3, 10)] {
            let of_round: BTreeMap<u32, Duration> =
                delays.range(round * 50..round * 50 + 50).map(|(n, d)| (*n, *d)).collect();
            assert!(of_round.values().all(|delay| *delay >= millis * MILLI), "round {round}");
            assert!(median(&of_round) < (millis + 4) * MILLI, "round {round}: {:?}", median(&of_round));
        }
    });
}
