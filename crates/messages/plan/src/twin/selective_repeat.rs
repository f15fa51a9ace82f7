//! Selective repeat, played through: a queue of what is to be repeated, in the order in which it becomes due, behind
//! one wire.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::channel::Channel;
use crate::selective_repeat::SelectiveRepeat;

pub(super) fn sample(message: &SelectiveRepeat, channel: &mut Channel) -> f64 {
    let SelectiveRepeat { packets, packet_seconds, delays, round_trip, .. } = *message;
    let end = packets as f64 * packet_seconds;
    let (late, late_delay) = delays.last.unwrap_or((0, 0.0));
    let early = packets.saturating_sub(late);
    // When each lost packet is due: times are positive numbers, and so ordered as their bits are. Those that are due at
    // one time leave in the order in which they were lost.
    let mut due: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
    channel.send(packets, |packet| {
        let at = if packet < early { (packet + 1) as f64 * packet_seconds + delays.first } else { end + late_delay };
        due.push(Reverse((at.to_bits(), packet)));
        true
    });
    let mut free = end;
    let mut all_there = end;
    while let Some(Reverse((at, packet))) = due.pop() {
        let begins = f64::from_bits(at).max(free);
        channel.idle(begins - free);
        free = begins + packet_seconds;
        match channel.is_packet_lost() {
            false => all_there = all_there.max(free),
            true => due.push(Reverse(((free + delays.later).to_bits(), packet))),
        }
    }
    all_there + round_trip + channel.done_delay()
}
