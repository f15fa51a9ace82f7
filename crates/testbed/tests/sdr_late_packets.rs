//! Late packets: a message table of two slots that wraps constantly, packets that the network keeps for several rounds of it, receives that
//! are completed at random moments. No byte of memory that was handed back ever changes, and no bit is ever set for the wrong message. Mistakes
//! that are planted are found.

mod sdr_ends;

use longhaul_impair::{Loss, Profile};
use longhaul_sdr::immediate::ImmediateLayout;
use longhaul_sdr::{Mutation, Receive, ReceivedMessage, SendStream};
use longhaul_time::{Duration, Instant};
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use sdr_ends::{Ends, MTU, Options, pattern};

const SLOTS: usize = 2;
const GENERATIONS: u8 = 8;
/// A message's memory; places are used in turn, so that a message that was handed back is looked at for a while.
const PACKETS: usize = 8;
const PLACES: usize = 24;
const LENGTH: usize = PACKETS * MTU;
/// Receives are posted at least this far apart, so that all slots and generations take 16 times as long.
const PACE: Duration = Duration::from_micros(20);
/// What the network keeps a packet for at most, beside its delay: nearly four rounds of the table, and less than half of what all generations take.
const KEPT_MAX: Duration = Duration::from_micros(150);
/// Memory before anything arrives.
const UNTOUCHED: u8 = 0xa5;

struct Run {
    ends: Ends,
    random: ChaCha12Rng,
    receives: Vec<(Receive, Instant)>,
    sends: Vec<SendStream>,
    handed_back: Vec<(ReceivedMessage, Vec<u8>)>,
    completed: u64,
    whole: u64,
}

/// What is wrong, if anything; and how many messages were completed, how many of them whole, and how many packets came late.
fn run(seed: u64, mutation: Option<Mutation>) -> (Result<(), String>, [u64; 3]) {
    let profile = Profile::default()
        .with_propagation_delay(Duration::from_micros(5))
        .with_jitter(KEPT_MAX, false)
        .with_duplication(0.3)
        .with_loss(Loss::Independent { probability: 0.05 });
    let options = Options { profile, seed, mutation, memory_bytes: PLACES * LENGTH, ..Default::default() };
    let ends = Ends::new(options, |attributes| {
        attributes.layout = ImmediateLayout::new(1, 27, 4).unwrap();
        attributes.generations = GENERATIONS;
        attributes.message_bytes_max = LENGTH as u64;
        attributes.round_trip_guess = Duration::from_micros(200);
        attributes.receive_depth = 256;
    });
    let random = ChaCha12Rng::seed_from_u64(seed);
    let (receives, sends, handed_back) = (Vec::new(), Vec::new(), Vec::new());
    let mut run = Run { ends, random, receives, sends, handed_back, completed: 0, whole: 0 };
    let mut posted_at = Instant::ZERO;
    let result = (0..3000).try_for_each(|_| {
        if run.ends.world.now() >= posted_at + PACE {
            posted_at = run.ends.world.now();
            run.post();
        }
        run.send();
        run.ends.run_for(Duration::from_micros(u64::from(run.random.next_u32() % 10) + 1));
        run.complete()?;
        run.check_handed_back()
    });
    let late = run.ends.receiver.queue_pair.counters().1.late;
    (result, [run.completed, run.whole, late])
}

impl Run {
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
            let patience = Duration::from_micros(u64::from(self.random.next_u32() % 400));
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
    let mut totals = [0; 3];
    for seed in 1..=40 {
        let (result, counts) = run(seed, None);
        assert_eq!(result, Ok(()), "seed {seed}");
        totals.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
    }
    // All of it happens often enough to mean something.
    let [completed, whole, late] = totals;
    assert!(
        completed > 5000 && whole > 300 && late > 10_000,
        "{whole} of {completed} are whole, {late} packets were late"
    );
}

/// The first seed at which a mistake is found, and what is said of it.
fn found(mutation: Mutation) -> (u64, String) {
    let failure = |seed| run(seed, Some(mutation)).0.err().map(|message| (seed, message));
    (1..=40).find_map(failure).unwrap_or_else(|| panic!("{mutation:?} is not found"))
}

#[test]
fn a_bit_for_the_wrong_message_is_found() {
    let (seed, message) = found(Mutation::SkipGenerationCheck);
    assert!(message.contains("the bit of packet"), "seed {seed}: {message}");
}

#[test]
fn a_key_that_stays_valid_is_found() {
    let (seed, message) = found(Mutation::SkipKeyChange);
    assert!(message.contains("was handed back, and its memory changed"), "seed {seed}: {message}");
}

#[test]
fn slots_that_generations_share_are_found() {
    let (seed, message) = found(Mutation::ShareSlots);
    assert!(
        message.contains("its bytes are others") || message.contains("bytes of another one"),
        "seed {seed}: {message}"
    );
}
