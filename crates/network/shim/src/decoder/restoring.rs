//! Computes the missing packets of a block, and checks them before anybody gets them.
//!
//! A repair packet that lies costs as much as all packets of its block that wait. So after a wrong block nothing of an unproven flow
//! waits any more, and a proven flow has few attempts until those packets are gone: who wants more of them must send the block anew.

use longhaul_coding::{CodeKind, can_restore, xor_group};
use longhaul_time::Instant;
use longhaul_wire::repair::digest_of;
use longhaul_wire::{Ecn, Psn};

use super::block::{Passed, Repairs, Wrong};
use super::following::Following;
use super::shared::Shared;
use crate::coded::{is_marked, read_coded, write_coded};
use crate::packet::{Checked, Packet, Summary};
use crate::units::lengthen;

/// Wrong blocks of a proven flow until the packets that wait behind what is missing are handed on.
const WRONG_MAX: u8 = 4;

impl Following {
    /// Restores the missing packets of the block that the next packet belongs to, if enough has arrived. Whether it has.
    pub(super) fn restore(&mut self, now: Instant, shared: &mut Shared, out: &mut Vec<Packet>) -> bool {
        if self.next < self.wrong.end && self.wrong.count >= WRONG_MAX {
            return false;
        }
        let mut place = 0;
        while let Some(repairs) = self.repairs.get(place) {
            let Some(missing) = self.missing(repairs) else {
                place += 1;
                continue;
            };
            let chunks = self.compute(repairs, &missing, shared);
            let restored = chunks.and_then(|chunks| self.check(repairs, &missing, &chunks, shared));
            let Some(restored) = restored else {
                shared.counters.wrong_blocks += 1;
                let wrong = self.repairs.remove(place);
                let is_over = self.note_wrong(wrong.end());
                wrong.release(shared);
                if !self.is_proven() {
                    self.leave(shared, out);
                    return false;
                }
                if is_over {
                    return false;
                }
                continue;
            };
            let base = repairs.base;
            shared.counters.restored += restored.len() as u64;
            self.arrivals.note_restored(restored.len());
            for (place, checked) in missing.iter().zip(restored) {
                let number = base + u64::from(*place);
                if !checked.summary.is_reliable {
                    self.restored.note(number, &checked);
                }
                self.waiting.put_restored(number, checked, now);
            }
            self.prove(shared);
            return true;
        }
        false
    }

    /// A block that ends here was wrong. Whether there are no more attempts.
    fn note_wrong(&mut self, end: u64) -> bool {
        if self.next >= self.wrong.end {
            self.wrong = Wrong::default();
        }
        self.wrong = Wrong { end: self.wrong.end.max(end), count: self.wrong.count.saturating_add(1) };
        self.wrong.count >= WRONG_MAX
    }

    /// The places of a block's missing packets, if the next packet is one of them and all of them can be restored.
    fn missing(&self, repairs: &Repairs) -> Option<Vec<u8>> {
        // Packets that were handed on are in the sums, or they are lost to us.
        if !repairs.covers(self.next) || repairs.base < self.next && self.passed_of(repairs).is_none() {
            return None;
        }
        let is_missing = |number: &u64| self.waiting.get(*number).is_none();
        // Each sum restores one packet at most.
        let most = repairs.sums.len();
        let places = (self.next..repairs.end()).filter(is_missing).map(|number| usize::try_from(number - repairs.base));
        let missing: Vec<usize> = places.take(most + 1).collect::<Result<_, _>>().ok()?;
        if missing.len() > most {
            return None;
        }
        let sums = repairs.groups();
        let has_sum = |row: usize| repairs.sum(row).is_some();
        can_restore(repairs.code.kind(), sums, missing.iter().copied(), has_sum)
            .then(|| missing.iter().map(|&place| place as u8).collect())
    }

    /// The packets of the block that were handed on, if all of them are known.
    fn passed_of(&self, repairs: &Repairs) -> Option<&Passed> {
        let is_of = |passed: &&Passed| {
            passed.is_whole && passed.base == repairs.base && passed.code == repairs.code && passed.end() == self.next
        };
        self.passed.as_ref().filter(is_of).filter(|_| repairs.base < self.next)
    }

    /// The packets of a block that wait, with their places.
    fn held<'a>(&'a self, repairs: &'a Repairs) -> impl Iterator<Item = (u8, &'a Checked)> {
        (self.next..repairs.end()).filter_map(move |number| {
            let held = self.waiting.get(number)?;
            Some(((number - repairs.base) as u8, &held.checked))
        })
    }

    /// The missing packets in their coded form. `None` when the parts do not fit together.
    fn compute(&self, repairs: &Repairs, missing: &[u8], shared: &mut Shared) -> Option<Vec<Vec<u8>>> {
        let kind = repairs.code.kind();
        let sums = repairs.groups();
        let rows: Vec<usize> = match kind {
            CodeKind::Xor => missing.iter().map(|&place| xor_group(usize::from(place), sums)).collect(),
            CodeKind::Mds => (0..sums).filter(|&row| repairs.sum(row).is_some()).take(missing.len()).collect(),
        };
        let mut left = Vec::with_capacity(rows.len());
        for &row in &rows {
            let mut sum = repairs.sum(row)?.to_vec();
            // With fewer groups than sums, each group has the packets of several.
            let passed = self.passed_of(repairs).map_or(&[][..], |passed| &passed.sums[..]);
            for passed in passed.iter().skip(row).step_by(sums) {
                shared.coder.add_plain(passed, sum.get_mut(..passed.len())?);
            }
            left.push(sum);
        }
        let longest = left.iter().map(Vec::len).max()?;
        let mut bytes = std::mem::take(&mut shared.coded);
        let fits = self.held(repairs).all(|(place, checked)| {
            let place = usize::from(place);
            let is_part = |row: usize| kind == CodeKind::Mds || xor_group(place, sums) == row;
            let is_written = write_coded(&checked.packet, &checked.scope, &mut bytes).is_some();
            let mut parts = left.iter_mut().zip(&rows).filter(|(_, row)| is_part(**row));
            is_written
                && parts.all(|(sum, &row)| {
                    let fits = bytes.len() <= sum.len();
                    match kind {
                        _ if !fits => {}
                        CodeKind::Xor => shared.coder.add_plain(&bytes, sum),
                        CodeKind::Mds => shared.coder.add_mds(place, &bytes, row, &mut [sum]),
                    }
                    fits
                })
        });
        shared.coded = bytes;
        if !fits || kind == CodeKind::Xor {
            return fits.then_some(left);
        }
        left.iter_mut().for_each(|sum| lengthen(sum, longest));
        let rows: Vec<u8> = rows.iter().map(|&row| row as u8).collect();
        let sums: Vec<&[u8]> = left.iter().map(|sum| &sum[..]).collect();
        let mut chunks = vec![vec![0; longest]; missing.len()];
        let mut outputs: Vec<&mut [u8]> = chunks.iter_mut().map(|chunk| &mut chunk[..]).collect();
        shared.coder.solve_mds(missing, &rows, &sums, &mut outputs);
        Some(chunks)
    }

    /// The restored packets, if all of them are what they must be: right ICRC, queue pair, PSN and
    /// place in the message, and together with the others the digest of their block.
    fn check(
        &self,
        repairs: &Repairs,
        missing: &[u8],
        chunks: &[Vec<u8>],
        shared: &mut Shared,
    ) -> Option<Vec<Checked>> {
        let header = &repairs.header;
        let passed = self.passed_of(repairs);
        let mut met_congestion = repairs.is_marked || passed.is_some_and(|passed| passed.is_marked);
        met_congestion |= self.held(repairs).any(|(_, checked)| is_marked(&checked.packet.envelope));
        let mut envelope = repairs.envelope;
        if met_congestion {
            envelope.traffic_class = Ecn::CongestionExperienced.apply_to(envelope.traffic_class);
        }
        let mut digest = passed.map_or(0, |passed| passed.digest);
        let mut restored = Vec::with_capacity(missing.len());
        for (&place, chunk) in missing.iter().zip(chunks) {
            let (packet, coded) = read_coded(chunk, &envelope, shared.checks_icrc())?;
            let summary = Summary::of(&packet.datagram)?;
            let number = repairs.base + u64::from(place);
            let position = summary.position();
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
            let scope = packet.envelope.icrc_scope;
            restored.push(Checked { packet, summary, scope });
        }
        let mut bytes = std::mem::take(&mut shared.coded);
        for (place, checked) in self.held(repairs) {
            if let Some(coded) = write_coded(&checked.packet, &checked.scope, &mut bytes) {
                digest = digest.wrapping_add(digest_of(place, coded.icrc));
            }
        }
        shared.coded = bytes;
        (digest == header.digest || shared.ignores_epoch()).then_some(restored)
    }
}
