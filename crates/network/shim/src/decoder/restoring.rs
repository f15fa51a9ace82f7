//! Computes the missing packets of a block, and checks them before anybody gets them.

use longhaul_coding::{CodeKind, can_restore, xor_group};
use longhaul_time::Instant;
use longhaul_wire::repair::{Header, digest_of};
use longhaul_wire::{Ecn, Psn};

use super::following::{Following, StoredRepair};
use super::shared::Shared;
use crate::coded::{is_marked, read_coded, write_coded};
use crate::packet::{Packet, Summary};
use crate::units::lengthen;

impl Following {
    /// Restores the missing packets of the block that the next packet belongs to, if enough has arrived. Whether it has.
    pub(super) fn restore(&mut self, now: Instant, shared: &mut Shared) -> bool {
        let next = self.next;
        let Some(first) = self.repairs.iter().find(|repair| repair.base <= next && next < repair.end()) else {
            return false;
        };
        let (header, base, end) = (first.header, first.base, first.end());
        // Packets that were handed on are in the sums, or they are lost to us.
        let needs_prefix = base < next;
        if needs_prefix && (self.base != Some(base) || self.prefix.is_broken) {
            return false;
        }
        let place_of = |number: u64| (number - base) as u8;
        let missing: Vec<u8> =
            (next..end).filter(|number| !self.held.contains_key(&(*number, 0))).map(place_of).collect();
        let sums = usize::from(self.code.repair_packets());
        let lost = missing.iter().map(|&place| usize::from(place));
        let is_there = |row: usize| self.repair(&header, base, row).is_some();
        if !can_restore(self.code.kind(), sums, lost, is_there) {
            return false;
        }
        let restored = self.compute(&header, base, &missing, shared);
        let restored = restored.and_then(|chunks| self.check(&header, base, &missing, &chunks, shared));
        let Some(restored) = restored else {
            shared.counters.wrong_blocks += 1;
            self.drop_repairs(shared, |repair| repair.base == base);
            return false;
        };
        shared.counters.restored += restored.len() as u64;
        for (place, (packet, summary)) in missing.iter().zip(restored) {
            self.put_restored(base + u64::from(*place), packet, summary, now);
        }
        true
    }

    /// The stored repair packet of a block, for one of its sums.
    fn repair(&self, like: &Header, base: u64, row: usize) -> Option<&StoredRepair> {
        self.repairs.iter().find(|repair| {
            let Header { count, digest, is_mds, block_packets, repair_packets, epoch, .. } = repair.header;
            repair.base == base
                && usize::from(repair.header.index) == row
                && (count, digest, epoch) == (like.count, like.digest, like.epoch)
                && (is_mds, block_packets, repair_packets) == (like.is_mds, like.block_packets, like.repair_packets)
        })
    }

    /// The missing packets in their coded form. `None` when the parts do not fit together.
    fn compute(&self, header: &Header, base: u64, missing: &[u8], shared: &mut Shared) -> Option<Vec<Vec<u8>>> {
        let sums = usize::from(self.code.repair_packets());
        let all_rows = (0..sums).filter(|&row| self.repair(header, base, row).is_some());
        let rows: Vec<usize> = match self.code.kind() {
            CodeKind::Xor => missing.iter().map(|&place| xor_group(usize::from(place), sums)).collect(),
            CodeKind::Mds => all_rows.take(missing.len()).collect(),
        };
        let mut left = Vec::with_capacity(rows.len());
        for &row in &rows {
            let mut sum = self.repair(header, base, row)?.body.clone();
            if let Some(prefix) = self.prefix.sums.get(row).filter(|_| base < self.next) {
                shared.coder.add_plain(prefix, sum.get_mut(..prefix.len())?);
            }
            left.push(sum);
        }
        let longest = left.iter().map(Vec::len).max()?;
        let mut bytes = std::mem::take(&mut shared.coded);
        let held = self.held.range((self.next, 0)..(base + u64::from(header.count), 0));
        let mut fits = true;
        for ((number, acknowledgement), held) in held {
            if *acknowledgement != 0 {
                continue;
            }
            let place = usize::try_from(number - base).ok()?;
            fits &= write_coded(&held.packet, &mut bytes).is_some();
            for (sum, &row) in left.iter_mut().zip(&rows) {
                let is_part = self.code.kind() == CodeKind::Mds || xor_group(place, sums) == row;
                if is_part && bytes.len() > sum.len() {
                    fits = false;
                } else if is_part {
                    match self.code.kind() {
                        CodeKind::Xor => shared.coder.add_plain(&bytes, sum),
                        CodeKind::Mds => shared.coder.add_mds(place, &bytes, row, &mut [sum]),
                    }
                }
            }
        }
        shared.coded = bytes;
        if !fits {
            return None;
        }
        if self.code.kind() == CodeKind::Xor {
            return Some(left);
        }
        left.iter_mut().for_each(|sum| lengthen(sum, longest));
        let rows: Vec<u8> = rows.iter().map(|&row| row as u8).collect();
        let sums: Vec<&[u8]> = left.iter().map(|sum| &sum[..]).collect();
        let mut chunks = vec![vec![0; longest]; missing.len()];
        let mut outputs: Vec<&mut [u8]> = chunks.iter_mut().map(|chunk| &mut chunk[..]).collect();
        shared.coder.solve_mds(missing, &rows, &sums, &mut outputs);
        Some(chunks)
    }

    /// The restored packets, if all of them are what they must be: right ICRC, queue pair, PSN and place in the message, and
    /// together with the others the digest of their block.
    fn check(
        &self,
        header: &Header,
        base: u64,
        missing: &[u8],
        chunks: &[Vec<u8>],
        shared: &mut Shared,
    ) -> Option<Vec<(Packet, Summary)>> {
        let repairs = self.repairs.iter().filter(|repair| repair.base == base);
        let held =
            self.held.range((self.next, 0)..(base + u64::from(header.count), 0)).map(|(_, held)| &held.packet.envelope);
        let has_prefix = base < self.next;
        let mut met_congestion = has_prefix && self.prefix.is_marked;
        met_congestion |= repairs.clone().map(|repair| &repair.envelope).chain(held).any(is_marked);
        let mut envelope = repairs.clone().next()?.envelope;
        if met_congestion {
            envelope.traffic_class = Ecn::CongestionExperienced.apply_to(envelope.traffic_class);
        }
        let mut digest = if has_prefix { self.prefix.digest } else { 0 };
        let mut restored = Vec::with_capacity(missing.len());
        for (&place, chunk) in missing.iter().zip(chunks) {
            let (packet, coded) = read_coded(chunk, &envelope, shared.checks_icrc())?;
            let summary = Summary::of(&packet.datagram)?;
            let number = base + u64::from(place);
            let position = summary.opcode.position();
            let is_last = place + 1 == header.count;
            let is_in_place = summary.subject == header.subject
                && summary.psn == Psn::new((number & 0xff_ffff) as u32)
                && !summary.is_acknowledgement()
                && position.is_start() == (place == 0 && header.has_first)
                && position.is_end() == (is_last && header.has_last)
                && (!is_last || !header.has_last || coded.length == header.last_length);
            if !is_in_place {
                return None;
            }
            digest = digest.wrapping_add(digest_of(place, coded.icrc));
            restored.push((packet, summary));
        }
        let mut bytes = std::mem::take(&mut shared.coded);
        for ((number, acknowledgement), held) in self.held.range((self.next, 0)..(base + u64::from(header.count), 0)) {
            if let (0, Some(coded)) = (*acknowledgement, write_coded(&held.packet, &mut bytes)) {
                digest = digest.wrapping_add(digest_of((number - base) as u8, coded.icrc));
            }
        }
        shared.coded = bytes;
        (digest == header.digest || shared.ignores_epoch()).then_some(restored)
    }
}
