//! What a seed of bounded messages stands for.

use longhaul_impair::{Loss, Profile};
use longhaul_reliable::{Choice, Fill};
use longhaul_sdr::immediate::ImmediateLayout;
use longhaul_time::{Duration, Instant};
use longhaul_world::Dice;

/// Payload of a packet.
pub(crate) const PACKET: usize = 256;
/// The longest receive, and with it each message's own piece of memory.
const PACKETS_MAX: usize = 60;
/// A message's piece of memory.
pub(crate) const SLOT_BYTES: usize = (PACKETS_MAX + 4) * PACKET;

const SCHEMES: [&str; 9] =
    ["be", "be", "be", "be+ec:mds:4,2", "be+ec:xor:4,2", "sr:nack", "sr:rto", "ec:mds:8,4", "ec:xor:4,2"];

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// What the ends have agreed on.
    pub(crate) schemes: Vec<&'static str>,
    pub(crate) link: Profile,
    rate: Option<u64>,
    pub(crate) round_trip: Duration,
    pub(crate) chunk_packets: u32,
    /// How the immediate is divided: in some, hardly any messages have a place at a time.
    pub(crate) layout: ImmediateLayout,
    pub(crate) generations: u8,
    /// Memory for parity.
    pub(crate) parity_bytes_max: u64,
    pub(crate) messages: Vec<MessagePlan>,
    faults: Vec<(Duration, Duration, Fault)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The link is like this for a while.
    Link(Profile),
    /// The program of an end stands still: 0 is the sender.
    Pause(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct MessagePlan {
    pub(crate) bytes: usize,
    /// What its sender chooses.
    pub(crate) scheme: &'static str,
    pub(crate) choice: Choice,
    pub(crate) room: usize,
    /// Its receive is not bounded: it gets all of the message or an error, and has no deadline.
    pub(crate) is_plain: bool,
    /// When its send (0) and its receive are posted.
    pub(crate) at: [Duration; 2],
    pub(crate) deadline: [Duration; 2],
    /// The deadline is an instant, counted from when the half was to be posted.
    pub(crate) is_absolute: [bool; 2],
    pub(crate) fill: Fill,
}

/// What a message has at a place: never what missing bytes are filled with.
pub(crate) fn byte_of(message: usize, place: usize) -> u8 {
    (((message * 37 + place / PACKET * 11 + place) % 199) + 1) as u8
}

impl Plan {
    pub(crate) fn draw(seed: u64) -> Plan {
        let mut dice = Dice::new(seed ^ 0x626f_756e_6465_6421);
        let delay = Duration::from_micros(dice.pick(&[5, 50, 500, 2500, 12_000]));
        let round_trip = 2 * delay;
        let good = Profile::default().with_propagation_delay(delay);
        let mut link = good.clone().with_loss(loss(&mut dice));
        let rate = dice.chance(25).then(|| dice.pick(&[20_000_000, 200_000_000, 2_000_000_000]));
        if let Some(rate) = rate {
            link = link.with_rate_bits_per_second(rate);
        }
        if dice.chance(40) {
            let held = delay * dice.pick(&[1, 4, 40]);
            link = link.with_reordering(0.01 + dice.fraction(0.3), held);
        }
        if dice.chance(20) {
            link = link.with_duplication(dice.fraction(0.3));
        }
        // Half of the connections have one scheme, and some the same one more than once.
        let schemes: Vec<_> = (0..dice.pick(&[1, 1, 1, 2, 3, 5])).map(|_| dice.pick(&SCHEMES)).collect();
        let chunk_packets = dice.pick(&[1, 1, 2, 4, 16]);
        let count = dice.within(1..=24) as usize;
        let span = round_trip * dice.pick(&[1, 4, 20]);
        let mut at = [Duration::ZERO; 2];
        let mut messages = Vec::new();
        for _ in 0..count {
            let mut pause = |most: Duration| Duration::from_nanos(dice.within(0..=most.as_nanos() as u64));
            // Mostly both about the same time, and sometimes one long before the other.
            let together = at[0].max(at[1]) + pause(span);
            at = [together + pause(round_trip / 2), together + pause(round_trip / 2)];
            if dice.chance(10) {
                at[dice.index(2)] += span;
            }
            let packets = dice.pick(&[0, 1, 1, 3, 8, 20, PACKETS_MAX]);
            let bytes = match dice.chance(50) {
                true => packets * PACKET,
                false => packets * PACKET + dice.index(PACKET),
            };
            // Some receives are longer than their messages, and a few are shorter.
            let room = match dice.within(0..=9) {
                0..=6 => bytes,
                7..=8 => bytes + dice.index(3 * PACKET),
                _ => bytes.saturating_sub(1 + dice.index(2 * PACKET)),
            };
            let mut deadline =
                || round_trip * dice.pick(&[1, 5, 20, 60]) + Duration::from_micros(dice.pick(&[100, 5000]));
            let deadline = [deadline(), deadline()];
            let fill = dice.pick(&[Fill::Zero, Fill::Value(0xdd), Fill::Stale]);
            let is_absolute = [dice.chance(30), dice.chance(30)];
            let (scheme, choice) = choice(&mut dice, &schemes, chunk_packets);
            messages.push(MessagePlan {
                bytes,
                scheme,
                choice,
                room,
                is_plain: false,
                at,
                deadline,
                is_absolute,
                fill,
            });
        }
        let length = at[0].max(at[1]);
        let mut faults = Vec::new();
        for _ in 0..dice.pick(&[0, 0, 1, 2, 4]) {
            let begin = Duration::from_nanos(dice.within(0..=length.as_nanos() as u64));
            let lasts = round_trip * dice.pick(&[1, 3, 10]);
            let fault = match dice.within(0..=3) {
                // Silence.
                0 => Fault::Link(good.clone().with_loss(Loss::Independent { probability: 1.0 })),
                1 => Fault::Link(good.clone().with_loss(loss(&mut dice))),
                _ => Fault::Pause(dice.index(2)),
            };
            faults.push((begin, begin + lasts, fault));
        }
        // With dice of their own, so that the rest of a seed is what it is without them.
        let mut dice = Dice::new(seed ^ 0x7469_6768_7472_6f6f);
        let (message_bits, generations, parity_bytes_max) = match dice.chance(50) {
            true => (dice.pick(&[1, 1, 2, 3]), dice.pick(&[1, 2, 4]), dice.pick(&[0, 8 * PACKET as u64, 256 << 20])),
            false => (10, 4, 256 << 20),
        };
        let layout = ImmediateLayout::new(message_bits, 28 - message_bits, 4).expect("it sums up");
        if dice.chance(30) {
            messages.iter_mut().for_each(|message| message.is_plain = dice.chance(25));
        }
        Plan {
            seed,
            schemes,
            link,
            rate,
            round_trip,
            chunk_packets,
            layout,
            generations,
            parity_bytes_max,
            messages,
            faults,
        }
    }

    /// The link without anything that goes wrong.
    pub(crate) fn good_link(&self) -> Profile {
        Profile::default().with_propagation_delay(self.round_trip / 2)
    }

    /// A send that has ended waits until what was posted has left its device: packets of all messages, with parity and headers.
    pub(crate) fn leaving_max(&self) -> Duration {
        let bytes: u64 = self.messages.iter().map(|message| 4 * (message.bytes + PACKET) as u64).sum();
        let leaving = self.rate.map_or(0, |rate| 8 * bytes * 1_000_000_000 / rate);
        Duration::from_nanos(leaving) + Duration::from_millis(1)
    }

    /// When all deadlines are over, and every packet that was held back has come.
    pub(crate) fn length(&self) -> Duration {
        let ends = |message: &MessagePlan| (0..2).map(|half| message.at[half] + message.deadline[half]).max();
        let messages = self.messages.iter().filter_map(ends).max().unwrap_or_default();
        let faults = self.faults.iter().map(|(_, end, _)| *end).max().unwrap_or_default();
        messages.max(faults) + self.round_trip * 60 + self.messages.len() as u32 * Duration::from_millis(10)
    }

    /// Beginnings and ends of faults, the last one first.
    pub(crate) fn faults(&self) -> Vec<(Instant, Fault, bool)> {
        let at = |time: &Duration| Instant::ZERO + *time;
        let both = self
            .faults
            .iter()
            .flat_map(|(begin, end, fault)| [(at(begin), fault.clone(), true), (at(end), fault.clone(), false)]);
        let mut faults: Vec<_> = both.collect();
        faults.sort_by_key(|(at, ..)| std::cmp::Reverse(*at));
        faults
    }

    /// Nothing is sent twice, by the ends or by the link, and nothing is computed: what came once is there.
    pub(crate) fn is_exact(&self) -> bool {
        let is_known = |message: &MessagePlan| !message.is_plain;
        let is_once = self.schemes.iter().all(|scheme| *scheme == "be") && self.link.duplication_probability == 0.0;
        is_once && self.messages.iter().all(is_known)
    }
}

/// What a message has: a scheme and chunks, or what the connection has for those that choose nothing.
fn choice(dice: &mut Dice, schemes: &[&'static str], chunk_packets: u32) -> (&'static str, Choice) {
    let scheme = dice.pick(schemes);
    let choice = if scheme == schemes[0] && dice.chance(50) { Choice::default() } else { Choice::scheme(scheme) };
    // Parity of longer chunks may not fit the room that receivers have for it.
    let fits = |packets: &u32| *packets <= chunk_packets || !scheme.contains("ec:");
    let chunks = dice.pick(&[1, 2, 4, 16]);
    let choice = match dice.chance(50) && fits(&chunks) {
        true => choice.with_chunk_bytes(chunks * PACKET as u32),
        false => choice,
    };
    (scheme, choice)
}

fn loss(dice: &mut Dice) -> Loss {
    let probability = dice.pick(&[0.0, 0.0, 0.001, 0.01, 0.05, 0.05, 0.2, 0.2, 0.5, 0.9, 1.0]);
    match probability {
        0.0 => Loss::None,
        _ if probability < 0.3 && dice.chance(30) => Loss::bursts(probability, 4.0),
        _ => Loss::Independent { probability },
    }
}
