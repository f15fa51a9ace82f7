//! A peer that speaks the protocol, knows everything that a peer knows, and lies.

use longhaul_reliable::record::{self, Ended, Offer, Refusal, Refused};
use longhaul_reliable::record_bytes;
use longhaul_sdr::control::{ClearToSend, CreditAnnouncement, CreditGrant, DataArrivals, FrameWriter, Header, Record};
use longhaul_sdr::info::QueuePairInfo;
use longhaul_world::Dice;

use super::packets::{self, Flow};
use super::plan::{ConnectionPlan, MTU};

/// Frames and writes for an end, from its peer's queue pairs.
pub(super) fn lie(
    victim: &QueuePairInfo,
    liar: &QueuePairInfo,
    plan: &ConnectionPlan,
    seed: u64,
    count: u32,
) -> Vec<Vec<u8>> {
    let mut dice = Dice::new(seed);
    let mut lies = Vec::new();
    for _ in 0..count {
        let psn = dice.within(0..=0xff_ffff) as u32;
        let flow = |port| Flow { source: liar.gid.to_ip(), source_port: port, destination: victim.gid.to_ip() };
        if dice.chance(25) {
            let lane = dice.index(victim.data.len());
            let slot = dice.index(victim.layout.slot_count().min(64) as usize) as u32;
            let immediate = victim.layout.encode(slot, dice.index(16) as u32, wild(&mut dice) as u32);
            let payload = vec![0x77; dice.pick(&[0, 1, MTU])];
            let key = (wild(&mut dice), wild(&mut dice) as u32);
            let flow = flow(source_port(liar, lane + 1));
            lies.push(packets::write(flow, victim.data[lane].0.value(), psn, key, immediate, &payload));
            continue;
        }
        let bytes = frame(&mut dice, victim, plan);
        lies.push(packets::send(flow(source_port(liar, 0)), victim.control.0.value(), psn, &bytes));
    }
    lies
}

/// The UDP source port of one of a peer's queue pairs: control, then data.
fn source_port(info: &QueuePairInfo, index: usize) -> u16 {
    info.source_ports.get(index).copied().unwrap_or(4791)
}

/// A number that is likely to do harm.
fn wild(dice: &mut Dice) -> u64 {
    match dice.within(0..=5) {
        0 => 0,
        1 => u64::MAX,
        2 => u64::MAX - dice.within(0..=70_000),
        3 => 1 << dice.within(0..=63),
        4 => dice.within(0..=1000),
        _ => dice.within(0..=u64::MAX),
    }
}

/// A number of a message, or one near it.
fn number(dice: &mut Dice, plan: &ConnectionPlan) -> u64 {
    match dice.chance(85) {
        true => plan.first_number.saturating_add(dice.within(0..=40)),
        false => wild(dice),
    }
}

fn frame(dice: &mut Dice, victim: &QueuePairInfo, plan: &ConnectionPlan) -> Vec<u8> {
    // Mostly sane but for one thing, so that lies get far.
    let is_wild = |dice: &mut Dice| dice.chance(15);
    let header = Header {
        wants_answer: dice.chance(50),
        receiver: victim.receiver,
        sent_at: if is_wild(dice) { wild(dice) } else { 1 },
        echo: if is_wild(dice) { wild(dice) } else { 0 },
        held_ns: if is_wild(dice) { wild(dice) } else { 0 },
        consumed: if is_wild(dice) { wild(dice) } else { 0 },
        window: if is_wild(dice) { wild(dice) as u32 } else { plan.receive_depth },
        cleared_through: if is_wild(dice) { number(dice, plan) } else { 0 },
        open_from: if is_wild(dice) { number(dice, plan) } else { 0 },
        sends_from: if is_wild(dice) { number(dice, plan) } else { 0 },
    };
    let mut bytes = vec![0; MTU];
    let mut writer = FrameWriter::new(&mut bytes, &header).expect("room for a header");
    for _ in 0..dice.within(0..=3) {
        if dice.chance(40) {
            let clear = ClearToSend {
                number: number(dice, plan),
                address: wild(dice),
                length: wild(dice),
                key: wild(dice) as u32,
                generation: wild(dice) as u8,
                is_over: dice.chance(20),
            };
            writer.push(&Record::ClearToSend(clear));
        } else if dice.chance(20) {
            let (immediate, generation) = (wild(dice) as u32, dice.within(0..=4) as u8);
            let (held_ns, marked) = (wild(dice), wild(dice));
            writer.push(&Record::DataArrivals(DataArrivals { immediate, generation, held_ns, marked }));
        } else if dice.chance(10) {
            let [wanted, received, uncredited, lost] = std::array::from_fn(|_| wild(dice));
            writer.push(&Record::CreditAnnouncement(CreditAnnouncement { wanted, received, uncredited, lost }));
        } else if dice.chance(10) {
            let (granted, recent) = (wild(dice), wild(dice));
            writer.push(&Record::CreditGrant(CreditGrant { granted, recent }));
        } else {
            let bytes = scheme_record(dice, plan);
            writer.push(&Record::Scheme(&bytes));
        }
    }
    let length = writer.finish();
    bytes.truncate(length);
    bytes
}

fn scheme_record(dice: &mut Dice, plan: &ConnectionPlan) -> Vec<u8> {
    let scheme = plan.schemes.map_or("sr:nack", |schemes| schemes[0]);
    let number = number(dice, plan);
    let part_bytes = plan.part_packets * MTU as u64;
    match dice.within(0..=6) {
        0..=1 => {
            let length = if dice.chance(50) { wild(dice) } else { dice.within(0..=3 * part_bytes) };
            // As many as the length says, or the record would not be one.
            let contents: Option<Vec<u8>> = dice.chance(20).then(|| vec![wild(dice) as u8; dice.index(100)]);
            let length = contents.as_ref().map_or(length, |contents| contents.len() as u64);
            let offer = Offer {
                length,
                offset: if dice.chance(30) { wild(dice) } else { 0 },
                part_bytes: if dice.chance(20) { wild(dice) } else { part_bytes },
                chunk_bytes: if dice.chance(10) { wild(dice) as u32 } else { plan.chunk_packets * MTU as u32 },
                parity_bytes: wild(dice),
                checksum: dice.chance(20).then(|| wild(dice)),
                scheme: if dice.chance(10) { "banana" } else { scheme },
                contents: contents.as_deref(),
            };
            record_bytes(number, &record::Record::Offer(offer))
        }
        2..=3 => {
            let bytes: Vec<u8> = (0..dice.index(40)).map(|_| wild(dice) as u8).collect();
            record_bytes(number, &record::Record::Feedback(&bytes))
        }
        4 => match wild(dice) % 4 {
            0 => record_bytes(number, &record::Record::Sent),
            1 => {
                let ranges: Vec<u8> = (0..dice.index(6))
                    .flat_map(|_| record::range_bytes(wild(dice) as u32, dice.within(0..=8) as u32))
                    .collect();
                let (length, first) = (wild(dice), dice.within(0..=2) as u32);
                let count = if dice.chance(50) { ranges.len() as u32 / 8 } else { wild(dice) as u32 };
                let ending = dice.pick(&record::Ending::ALL);
                let ended = Ended::new(ending, dice.chance(50), dice.chance(50), length, count, first, &ranges);
                record_bytes(number, &record::Record::Ended(ended))
            }
            _ => record_bytes(number, &record::Record::Done),
        },
        5 => {
            let reason = dice.pick(&[
                Refusal::OtherScheme,
                Refusal::TimedOut,
                Refusal::TooLong,
                Refusal::Withdrawn,
                Refusal::Checksum,
            ]);
            let refused = Refused { reason, was_accepted: dice.chance(50), scheme };
            record_bytes(number, &record::Record::Refused(refused))
        }
        _ if dice.chance(50) => record_bytes(number, &record::Record::Accepted),
        _ => record_bytes(number, &record::Record::Withdrawn(wild(dice))),
    }
}
