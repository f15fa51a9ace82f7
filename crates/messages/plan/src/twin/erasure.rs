//! Erasure coding, played through: every submessage with a loss is looked at, and what cannot be computed is asked for.

use longhaul_scheme::{Code, CodeKind};

use super::channel::Channel;
use crate::erasure::Erasure;

/// A submessage with losses.
struct Damaged {
    /// Data chunks that are missing: their number in it, and how many packets of each the receiver lacks.
    missing: Vec<(u32, u64)>,
    /// Parity chunks that were lost.
    parity_lost: Vec<u32>,
}

impl Damaged {
    fn is_computable(&self, code: Code) -> bool {
        match code.kind() {
            CodeKind::Mds => self.missing.len() + self.parity_lost.len() <= code.parity_chunks(),
            CodeKind::Xor => {
                let groups = code.parity_chunks() as u32;
                let mut lost: Vec<u32> = self.missing.iter().map(|(chunk, _)| chunk % groups).collect();
                lost.sort_unstable();
                let is_double = lost.windows(2).any(|pair| pair[0] == pair[1]);
                !is_double && lost.iter().all(|group| !self.parity_lost.contains(group))
            }
        }
    }

    /// How many parity chunks must have been sent before it is computable, if it is with all.
    fn parity_needed(&self, code: Code) -> u32 {
        match code.kind() {
            CodeKind::Mds => {
                let mut needed = self.missing.len() as u32;
                let mut sent = 0;
                while needed > 0 {
                    needed -= u32::from(!self.parity_lost.contains(&sent));
                    sent += 1;
                }
                sent
            }
            CodeKind::Xor => {
                let groups = code.parity_chunks() as u32;
                self.missing.iter().map(|(chunk, _)| chunk % groups + 1).max().unwrap_or(0)
            }
        }
    }
}

pub(super) fn sample(message: &Erasure, channel: &mut Channel) -> f64 {
    let Erasure { code, chunks, parity_seconds, packet_seconds, timers, .. } = *message;
    let submessages = message.submessages();
    let (data_chunks, parity_chunks) = (code.data_chunks() as u32, code.parity_chunks() as u32);
    let sent = u64::from(data_chunks + parity_chunks);
    let all = chunks + submessages * u64::from(parity_chunks);
    let packets = channel.packets_per_chunk;
    let last_data = (chunks - (submessages - 1) * u64::from(data_chunks)) as u32;
    let mut damaged: Vec<(u64, Damaged)> = Vec::new();
    let mut last_chunk = u64::MAX;
    channel.send(all * packets, |at| {
        let chunk = at / packets;
        let (submessage, place) = (chunk / sent, (chunk % sent) as u32);
        if damaged.last().is_none_or(|last| last.0 != submessage) {
            damaged.push((submessage, Damaged { missing: Vec::new(), parity_lost: Vec::new() }));
        }
        let data = if submessage + 1 == submessages { last_data } else { data_chunks };
        let is_new = chunk != last_chunk;
        last_chunk = chunk;
        if let Some((_, last)) = damaged.last_mut() {
            match (place < data, is_new) {
                (true, true) => last.missing.push((place, 1)),
                (true, false) => last.missing.last_mut().expect("this chunk's").1 += 1,
                (false, true) => last.parity_lost.push(place - data),
                (false, false) => (),
            }
        }
        true
    });
    let end = message.end();
    let last_needs = match damaged.last() {
        Some((submessage, last)) if submessage + 1 == submessages && last.is_computable(code) => {
            last.parity_needed(code)
        }
        _ => 0,
    };
    let mut failed: Vec<Damaged> =
        damaged.into_iter().map(|(_, damaged)| damaged).filter(|damaged| !damaged.is_computable(code)).collect();
    if failed.is_empty() {
        let unneeded = f64::from(parity_chunks - last_needs) * parity_seconds;
        return end - unneeded + timers.round_trip + channel.done_delay();
    }
    let mut asked_at = end + timers.round_trip / 2.0 + timers.fallback;
    let mut free = end;
    loop {
        if channel.is_control_lost() {
            asked_at += timers.round_trip + timers.fallback;
            continue;
        }
        let begins = asked_at + timers.round_trip / 2.0;
        channel.idle(begins - free);
        free = begins;
        let mut computable_at = free;
        let mut still_failed = Vec::new();
        for mut submessage in std::mem::take(&mut failed) {
            let mut is_computable = false;
            for (chunk, lacking) in submessage.missing.clone() {
                // The packets that are lacking, and not the chunk.
                free += lacking as f64 * packet_seconds;
                match channel.count_lost(lacking) {
                    0 => submessage.missing.retain(|missing| missing.0 != chunk),
                    still_lacking => {
                        let missing = submessage.missing.iter_mut().find(|missing| missing.0 == chunk);
                        missing.expect("it has not come").1 = still_lacking;
                        continue;
                    }
                }
                if !is_computable && submessage.is_computable(code) {
                    (is_computable, computable_at) = (true, free);
                }
            }
            if !is_computable {
                still_failed.push(submessage);
            }
        }
        if still_failed.is_empty() {
            return computable_at + timers.round_trip + channel.done_delay();
        }
        failed = still_failed;
        asked_at = free + timers.round_trip / 2.0 + timers.fallback;
    }
}
