//! Selective repeat, played through: a queue of what is to be repeated, in the order in which it becomes due, behind one wire.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::channel::Channel;
use crate::selective_repeat::SelectiveRepeat;

pub(super) fn sample(message: &SelectiveRepeat, channel: &mut Channel) -> f64 {
    let SelectiveRepeat { chunks, chunk_seconds, delays, round_trip, .. } = *message;
    let end = chunks as f64 * chunk_seconds;
    let (late, late_delay) = delays.last.unwrap_or((0, 0.0));
    let early = chunks.saturating_sub(late);
    // Due times, which are positive numbers and so ordered as their bits are.
    let mut due: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
    let (packets, mut last) = (channel.packets_per_chunk, u64::MAX);
    channel.send(chunks * packets, |at| {
        let chunk = at / packets;
        if chunk != last {
            last = chunk;
            let at = if chunk < early { (chunk + 1) as f64 * chunk_seconds + delays.first } else { end + late_delay };
            due.push(Reverse(at.to_bits()));
        }
        true
    });
    let mut free = end;
    let mut all_there = end;
    while let Some(Reverse(at)) = due.pop() {
        let begins = f64::from_bits(at).max(free);
        channel.idle(begins - free);
        free = begins + chunk_seconds;
        match channel.is_chunk_lost() {
            true => due.push(Reverse((free + delays.later).to_bits())),
            false => all_there = all_there.max(free),
        }
    }
    all_there + round_trip + channel.done_delay()
}
