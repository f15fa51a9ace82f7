//! Go-back-N, played through from loss to loss, alone and over the shim.

use super::channel::Channel;
use crate::go_back_n::GoBackN;

pub(super) fn sample(message: &GoBackN, channel: &mut Channel) -> f64 {
    let GoBackN { packets, packet_seconds, round_trip, timeout, .. } = *message;
    // Packet `next` begins to leave at `begins`, and all before it have arrived in order.
    let (mut next, mut begins) = (0, 0.0);
    while next < packets {
        let Some(kept) = channel.first_lost(packets - next) else {
            begins += (packets - next) as f64 * packet_seconds;
            break;
        };
        (next, begins) = (next + kept, begins + kept as f64 * packet_seconds);
        // The next packet that arrives shows it.
        let mut behind = 1;
        while next + behind < packets && channel.is_packet_lost() {
            behind += 1;
        }
        let is_told = next + behind < packets && !channel.is_control_lost();
        let wait = if is_told { (behind + 1) as f64 * packet_seconds + round_trip } else { timeout };
        channel.idle(wait - (behind + 1) as f64 * packet_seconds);
        begins += wait;
        // It is reported once; a repetition that is lost waits for the timeout.
        while channel.is_packet_lost() {
            channel.idle(timeout);
            begins += timeout;
        }
        (next, begins) = (next + 1, begins + packet_seconds);
    }
    finish(begins, message, channel)
}

/// The last packet has arrived; its acknowledgement may be lost, and then what is sent again.
fn finish(mut ended: f64, message: &GoBackN, channel: &mut Channel) -> f64 {
    while channel.is_control_lost() {
        ended += message.timeout;
        channel.idle(message.timeout);
        while channel.is_packet_lost() {
            ended += message.timeout;
        }
    }
    ended + message.round_trip
}

pub(super) fn sample_with_shim(message: &GoBackN, channel: &mut Channel) -> f64 {
    let GoBackN { packets, packet_seconds, round_trip, timeout, .. } = *message;
    let Some(code) = message.shim else { return sample(message, channel) };
    let (size, repair) = (code.data_chunks() as u64, code.parity_chunks() as u64);
    let (mut next, mut begins) = (0, 0.0);
    // The packet that a sequence error was reported for, if it has not arrived since.
    let mut told_for = None;
    let mut end = 0.0;
    while next < packets {
        // Blocks in which nothing is lost: whole ones, from `next` on.
        let (whole, rest) = ((packets - next) / size, (packets - next) % size);
        let rest_repair = rest.min(repair);
        let all = whole * (size + repair) + rest + rest_repair;
        let Some(first) = channel.first_lost(all) else {
            end = begins + (all - if rest > 0 { rest_repair } else { repair }) as f64 * packet_seconds;
            break;
        };
        let block = (first / (size + repair)).min(whole);
        if block > 0 {
            told_for = None;
        }
        next += block * size;
        begins += (block * (size + repair)) as f64 * packet_seconds;
        let data = if block < whole { size } else { rest };
        let groups = repair.min(data);
        let mut lost = vec![first - block * (size + repair)];
        let after = lost[0] + 1;
        channel.send(data + groups - after, |at| {
            lost.push(after + at);
            true
        });
        let is_lost = |place: u64| lost.contains(&place);
        let fails = |group: u64| {
            let missing = lost.iter().filter(|place| **place < data && *place % groups == group).count();
            missing > usize::from(!is_lost(data + group))
        };
        let unrecovered = lost.iter().copied().find(|place| *place < data && fails(place % groups));
        let block_seconds = (data + groups) as f64 * packet_seconds;
        let Some(unrecovered) = unrecovered else {
            let is_end_lost = lost.iter().any(|place| *place < data);
            end = begins + if is_end_lost { block_seconds } else { data as f64 * packet_seconds };
            (next, begins) = (next + data, begins + block_seconds);
            told_for = None;
            continue;
        };
        let packet = next + unrecovered;
        let is_last = packet + 1 == packets;
        let is_told = told_for != Some(packet) && !is_last && !channel.is_control_lost();
        told_for = Some(packet);
        let left = begins + unrecovered as f64 * packet_seconds;
        let again = if is_told { begins + block_seconds + round_trip } else { left + timeout };
        channel.idle(again - begins - block_seconds);
        (next, begins) = (packet, again);
    }
    finish(end, message, channel)
}
