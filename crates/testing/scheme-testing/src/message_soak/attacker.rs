//! An attacker on another node: it knows addresses and queue pair numbers, and no key, no receiver id and no source
//! port.

use longhaul_sdr::control::{self, FrameWriter, Header};
use longhaul_sdr::immediate::ImmediateLayout;
use longhaul_sdr::info::QueuePairInfo;
use longhaul_verbs::Gid;
use longhaul_world::Dice;

use super::packets::{self, Flow};
use super::plan::MTU;

/// A burst of forged packets for an end, as if from its peer.
pub(super) fn forge(victim: &QueuePairInfo, peer: Gid, seed: u64, count: u32) -> Vec<Vec<u8>> {
    let mut dice = Dice::new(seed);
    let flow =
        Flow { source: peer.to_ip(), source_port: dice.within(1024..=0xffff) as u16, destination: victim.gid.to_ip() };
    let mut forged = Vec::new();
    for _ in 0..count {
        let psn = dice.within(0..=0xff_ffff) as u32;
        let data = victim.data[dice.index(victim.data.len())].0.value();
        let control = victim.control.0.value();
        match dice.within(0..=6) {
            0..=1 => forged.extend(empty_writes(&mut dice, flow, data, victim.layout)),
            2 => {
                let immediate = immediate(&mut dice, victim.layout);
                let key = (dice.within(0..=u64::MAX), dice.within(0..=u64::from(u32::MAX)) as u32);
                let payload = vec![0x66; dice.index(MTU + 1)];
                forged.push(packets::write(flow, data, psn, key, immediate, &payload));
            }
            3 => {
                // Another version of control messages, of any length.
                let mut bytes = vec![0; dice.index(100) + 1];
                bytes[0] = dice.within(0..=255) as u8;
                forged.push(packets::send(flow, control, psn, &bytes));
            }
            4 => {
                let length = dice.pick(&[0, 1, 4, control::HEADER_BYTES - 1]);
                let mut bytes = vec![0; length];
                if let Some(first) = bytes.first_mut() {
                    *first = control::VERSION;
                }
                forged.push(packets::send(flow, control, psn, &bytes));
            }
            5 => {
                // A SEND where only writes are expected.
                forged.push(packets::send(flow, data, psn, &[]));
            }
            _ => forged.push(packets::send(flow, control, psn, &wild_frame(&mut dice))),
        }
    }
    forged
}

/// All fragments of a message's length, in writes of nothing: those need no key.
fn empty_writes(dice: &mut Dice, flow: Flow, queue_pair: u32, layout: ImmediateLayout) -> Vec<Vec<u8>> {
    let slot = dice.index(layout.slot_count().min(64) as usize) as u32;
    let length = dice.pick(&[1, 64, MTU as u32, 4 * MTU as u32, u32::MAX]);
    let psn = dice.within(0..=0xff_ffff) as u32;
    let write = |packet| {
        let immediate = layout.encode(slot, packet, length);
        packets::write(flow, queue_pair, (psn + packet) & 0xff_ffff, (0, 0), immediate, &[])
    };
    (0..layout.fragment_count()).map(write).collect()
}

fn immediate(dice: &mut Dice, layout: ImmediateLayout) -> u32 {
    let slot = dice.index(layout.slot_count().min(64) as usize) as u32;
    layout.encode(slot, dice.index(32) as u32, dice.within(0..=u64::from(u32::MAX)) as u32)
}

/// A frame of the right version for somebody else, with every number as large as it can be.
fn wild_frame(dice: &mut Dice) -> Vec<u8> {
    let header = Header {
        wants_answer: true,
        receiver: dice.within(0..=u64::from(u32::MAX)) as u32,
        sent_at: u64::MAX,
        echo: 1,
        consumed: u64::MAX,
        window: 0,
        cleared_through: u64::MAX,
        open_from: u64::MAX,
        sends_from: u64::MAX,
        ..Default::default()
    };
    let mut bytes = vec![0; MTU];
    let length = FrameWriter::new(&mut bytes, &header).expect("room for a header").finish();
    bytes.truncate(length);
    bytes
}
