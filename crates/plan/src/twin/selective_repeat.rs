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
    // When each lost chunk is due: times are positive numbers, and so ordered as their bits are.
    let mut due: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    // The packets that the receiver lacks of each.
    let mut lacking: Vec<Vec<u32>> = Vec::new();
    let (packets, mut last) = (channel.packets_per_chunk, u64::MAX);
    channel.send(chunks * packets, |at| {
        let (chunk, packet) = (at / packets, (at % packets) as u32);
        if chunk != last {
            last = chunk;
            let at = if chunk < early { (chunk + 1) as f64 * chunk_seconds + delays.first } else { end + late_delay };
            due.push(Reverse((at.to_bits(), lacking.len())));
            lacking.push(Vec::new());
        }
        lacking.last_mut().expect("of the chunk just pushed").push(packet);
        true
    });
    let mut free = end;
    let mut all_there = end;
    while let Some(Reverse((at, chunk))) = due.pop() {
        let begins = f64::from_bits(at).max(free);
        channel.idle(begins - free);
        free = begins + chunk_seconds;
        channel.repeat_chunk(&mut lacking[chunk]);
        match lacking[chunk].is_empty() {
            true => all_there = all_there.max(free),
            false => due.push(Reverse(((free + delays.later).to_bits(), chunk))),
        }
    }
    all_there + round_trip + channel.done_delay()
}
