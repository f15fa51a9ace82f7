//! Late packets: a message table of two slots that wraps constantly, packets that the network keeps for several rounds
//! of it or for seconds, threads that take completions late, receives that are completed at random moments. No byte of
//! memory that was handed back ever changes, and no bit is ever set for the wrong message. Mistakes that are planted
//! are found.

use crate::ends;

use ends::{Ends, MTU, Options, pattern};
use longhaul_impair::{Loss, Profile};
use longhaul_sdr::immediate::ImmediateLayout;
use longhaul_sdr::{Mutation, Receive, ReceivedMessage, SendStream};
use longhaul_time::{Duration, Instant};
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};

const SLOTS: usize = 2;
const GENERATIONS: u8 = 8;
/// A message's memory; places are used in turn, so that a message that was handed back is looked at for a while.
const PACKETS: usize = 8;
const PLACES: usize = 24;
const LENGTH: usize = PACKETS * MTU;
/// Memory before anything arrives.
const UNTOUCHED: u8 = 0xa5;

/// A network, and how fast the program goes on it.
struct Scenario {
    profile: Profile,
    /// A step of the program takes up to ten times as long. Receives are posted at least 20 of these apart, so that all
    /// slots and generations take at least 320, and are completed after up to 400.
    beat: Duration,
    steps: u32,
}

impl Scenario {
    /// Every packet is kept for a while: up to nearly four rounds of the table.
    fn jitter() -> Self {
        let profile = network().with_jitter(Duration::from_micros(150), false);
        Scenario { profile, beat: Duration::from_micros(1), steps: 3000 }
    }

    /// A few packets are kept for so long that all slots and generations have been used several times.
    fn kept(seconds: u64) -> Self {
        let profile = network().with_reordering(0.05, Duration::from_secs(seconds));
        let beat = Duration::from_micros(500);
        // Twice as long as packets are kept.
        Scenario { profile, beat, steps: (2_000_000 * seconds / 2750) as u32 }
    }
}

fn network() -> Profile {
    Profile::default()
        .with_propagation_delay(Duration::from_micros(5))
        .with_duplication(0.3)
        .with_loss(Loss::Independent { probability: 0.05 })
}

struct Run {
    beat: Duration,
    ends: Ends,
    random: ChaCha12Rng,
    receives: Vec<(Receive, Instant)>,
    sends: Vec<SendStream>,
    handed_back: Vec<(ReceivedMessage, Vec<u8>)>,
    completed: u64,
    whole: u64,
}

/// What is wrong, if anything; and how many messages were completed, how many of them whole, how many packets were
/// late, and how many so late that the device refused them.
fn run(seed: u64, scenario: &Scenario, mutation: Option<Mutation>) -> (Result<(), String>, [u64; 4]) {
    let Scenario { profile, beat, steps } = scenario;
    let (profile, beat) = (profile.clone(), *beat);
    let options = Options { profile, seed, mutation, memory_bytes: PLACES * LENGTH, ..Default::default() };
    let ends = Ends::new(options, |attributes| {
        attributes.layout = ImmediateLayout::new(1, 27, 4).unwrap();
        attributes.generations = GENERATIONS;
        attributes.message_bytes_max = LENGTH as u64;
        attributes.round_trip_guess = beat * 200;
        attributes.receive_depth = 256;
    });
    let random = ChaCha12Rng::seed_from_u64(seed);
    let (receives, sends, handed_back) = (Vec::new(), Vec::new(), Vec::new());
    let mut run = Run { beat, ends, random, receives, sends, handed_back, completed: 0, whole: 0 };
    let mut posted_at = Instant::ZERO;
    let result = (0..*steps).try_for_each(|_| {
        if run.ends.world.now() >= posted_at + beat * 20 {
            posted_at = run.ends.world.now();
            run.post();
        }
        run.send();
        run.wait();
        run.complete()?;
        run.check_handed_back()
    });
    let late = run.ends.receiver.queue_pair.counters().1.late;
    let counters = run.ends.world.device(1).counters();
    let refused = counters.iter().find(|counter| counter.name == "resp_remote_access_errors");
    let refused = refused.map_or(0, |counter| counter.value);
    (result, [run.completed, run.whole, late, refused])
}

impl Run {
    /// Let time pass. One time in four nobody takes what has arrived before the program goes on.
    fn wait(&mut self) {
        let duration = self.beat * (self.random.next_u32() % 10 + 1);
        if self.random.next_u32().is_multiple_of(4) {
            self.ends.world.run_for(duration);
            return;
        }
        let step = (duration / 4).max(Duration::from_nanos(1));
        let end = self.ends.world.now() + duration;
        while self.ends.world.now() < end {
            self.ends.world.run_for(step);
            self.ends.take_what_has_arrived();
        }
    }

    /// Post a receive at the next place, if the table has room.
    fn post(&mut self) {
        let place = (self.completed as usize + self.receives.len()) % PLACES;
        let range = place * LENGTH..(place + 1) * LENGTH;
        // The program takes its memory to use it again.
        self.handed_back.retain(|(message, _)| message.number() as usize % PLACES != place);
        let memory = &self.ends.receiver.memory;
        let Ok(mut bytes) = memory.write(range.clone()) else { return };
        bytes.fill(UNTOUCHED);
        drop(bytes);
        if let Ok(receive) = self.ends.receiver.queue_pair.post_receive(memory, range) {
            let patience = self.beat * (self.random.next_u32() % 400);
            self.receives.push((receive, self.ends.world.now() + patience));
        }
    }

    /// The sender sends every message, and parts of it again at random.
    fn send(&mut self) {
        let queue_pair = &self.ends.sender.queue_pair;
        let memory = &self.ends.sender.memory;
        if self.sends.len() < SLOTS
            && let Ok(stream) = queue_pair.start_stream(None)
        {
            let place = stream.number() as usize % PLACES * LENGTH;
            // Still being sent for an earlier message: then it is not sent at all, which may happen too.
            if let Ok(mut bytes) = memory.write(place..place + LENGTH) {
                bytes.copy_from_slice(&pattern(stream.number(), LENGTH));
                drop(bytes);
                stream.send_at(0, memory, place..place + LENGTH).unwrap();
                self.sends.push(stream);
            }
        }
        for stream in &self.sends {
            let packet = self.random.next_u32() as usize % PACKETS;
            let place = stream.number() as usize % PLACES * LENGTH + packet * MTU;
            stream.send_at((packet * MTU) as u64, memory, place..place + MTU).unwrap();
        }
        let random = &mut self.random;
        self.sends.retain(|_| !random.next_u32().is_multiple_of(40));
    }

    /// Complete receives whose time is up, whole or not.
    fn complete(&mut self) -> Result<(), String> {
        let now = self.ends.world.now();
        while let Some(index) = self.receives.iter().position(|(_, end)| *end <= now) {
            let (receive, _) = self.receives.remove(index);
            let message = receive.complete().unwrap();
            self.completed += 1;
            self.whole += u64::from(message.bitmap().is_complete());
            let expected = pattern(message.number(), LENGTH);
            for (packet, bytes) in message.bytes().chunks(MTU).enumerate() {
                let is_right = bytes == &expected[packet * MTU..(packet + 1) * MTU];
                let is_untouched = bytes.iter().all(|byte| *byte == UNTOUCHED);
                match message.bitmap().is_whole(packet as u32) {
                    true if !is_right => {
                        return Err(format!(
                            "message {}: the bit of packet {packet} is set, its bytes are others",
                            message.number()
                        ));
                    }
                    // A packet may have been placed whose completion nobody has taken yet.
                    false if !is_right && !is_untouched => {
                        return Err(format!("message {}: packet {packet} has bytes of another one", message.number()));
                    }
                    _ => {}
                }
            }
            let bytes = message.bytes().to_vec();
            self.handed_back.push((message, bytes));
        }
        Ok(())
    }

    fn check_handed_back(&self) -> Result<(), String> {
        match self.handed_back.iter().find(|(message, bytes)| message.bytes() != bytes) {
            Some((message, _)) => Err(format!("message {} was handed back, and its memory changed", message.number())),
            None => Ok(()),
        }
    }
}

#[test]
fn late_packets_do_no_harm() {
    let [completed, whole, late, refused] = totals(1..=40, &Scenario::jitter());
    // All of it happens often enough to mean something.
    assert!(
        completed > 5000 && whole > 300 && late > 5000 && refused > 5000,
        "{whole} of {completed} are whole, {late} packets were late, {refused} refused"
    );
}

#[test]
fn packets_that_come_seconds_late_do_no_harm() {
    for seconds in [3, 10] {
        let [completed, whole, _, refused] = totals(1..=4, &Scenario::kept(seconds));
        assert!(
            completed > 200 && whole > 100 && refused > 200,
            "{seconds} s: {whole} of {completed} are whole, {refused} packets were refused"
        );
    }
}

/// The counts of runs in which nothing is wrong.
fn totals(seeds: std::ops::RangeInclusive<u64>, scenario: &Scenario) -> [u64; 4] {
    let mut totals = [0; 4];
    for seed in seeds {
        let (result, counts) = run(seed, scenario, None);
        assert_eq!(result, Ok(()), "seed {seed}");
        totals.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
    }
    totals
}

/// The first seed at which a mistake is found, and what is said of it.
fn found(mutation: Mutation, scenario: &Scenario) -> (u64, String) {
    let failure = |seed| run(seed, scenario, Some(mutation)).0.err().map(|message| (seed, message));
    (1..=40).find_map(failure).unwrap_or_else(|| panic!("{mutation:?} is not found"))
}

#[test]
fn a_bit_for_the_wrong_message_is_found() {
    let (seed, message) = found(Mutation::SkipGenerationCheck, &Scenario::jitter());
    assert!(message.contains("the bit of packet"), "seed {seed}: {message}");
}

#[test]
fn a_key_that_stays_valid_is_found() {
    let (seed, message) = found(Mutation::SkipKeyChange, &Scenario::jitter());
    assert!(message.contains("was handed back, and its memory changed"), "seed {seed}: {message}");
}

#[test]
fn addresses_that_generations_share_are_found() {
    let (seed, message) = found(Mutation::ShareSlots, &Scenario::jitter());
    assert!(
        message.contains("its bytes are others") || message.contains("bytes of another one"),
        "seed {seed}: {message}"
    );
}

#[test]
fn addresses_that_are_used_again_after_all_generations_are_found() {
    for seconds in [3, 10] {
        let (seed, message) = found(Mutation::ReuseAddresses, &Scenario::kept(seconds));
        assert!(
            message.contains("its bytes are others") || message.contains("bytes of another one"),
            "{seconds} s, seed {seed}: {message}"
        );
    }
}

/// What repeated packets of ended messages leave in a completion queue is not taken for the next messages in their
/// slots.
#[test]
fn completions_of_an_ended_message_do_not_count_for_the_next() {
    for message_bits in [1, 2] {
        let mut ends = Ends::new(Options::default(), |attributes| {
            attributes.layout = ImmediateLayout::new(message_bits, 28 - message_bits, 4).unwrap();
            attributes.generations = 1;
        });
        for round in 0..5 {
            let slots = 0..1_usize << message_bits;
            let receives: Vec<Receive> = slots.clone().map(|slot| post(&mut ends, slot)).collect();
            let arrived = |receives: &[Receive]| receives.iter().map(|one| one.bitmap().arrived_packets()).sum::<u32>();
            ends.take_what_has_arrived();
            assert_eq!(arrived(&receives), 0, "round {round}: nothing was sent yet");
            let streams = slots.map(|_| ends.sender.queue_pair.start_stream(None).unwrap()).collect::<Vec<_>>();
            let send = |ends: &Ends| {
                streams.iter().for_each(|stream| stream.send_at(0, &ends.sender.memory, 0..4 * MTU).unwrap());
            };
            send(&ends);
            let all = 4 * receives.len() as u32;
            assert!(ends.run_until(Duration::from_millis(10), || arrived(&receives) == all), "round {round}");
            // The same packets once more: they arrive when the receives have ended, and nobody takes their completions.
            send(&ends);
            ends.sender.queue_pair.poll(ends.world.now()).unwrap();
            receives.into_iter().for_each(|receive| drop(receive.complete().unwrap()));
            drop(streams);
            ends.world.run_for(Duration::from_micros(200));
        }
    }
}

/// Post a receive when the sender has reported that the last one in its slot has ended; completions of data are not
/// taken meanwhile.
fn post(ends: &mut Ends, slot: usize) -> Receive {
    for _ in 0..100 {
        let place = slot * 4 * MTU..(slot + 1) * 4 * MTU;
        if let Ok(receive) = ends.receiver.queue_pair.post_receive(&ends.receiver.memory, place) {
            return receive;
        }
        let now = ends.world.now();
        [&ends.sender, &ends.receiver].into_iter().for_each(|end| end.queue_pair.poll(now).unwrap());
        ends.world.run_for(Duration::from_micros(50));
    }
    panic!("the sender is not through with the last message in slot {slot}");
}
