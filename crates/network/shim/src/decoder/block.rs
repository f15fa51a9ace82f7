//! A block at the receiver: the sums of its packets that were handed on, and its repair packets.

use longhaul_coding::{CodeKind, xor_group};
use longhaul_time::{Duration, Instant};
use longhaul_wire::repair::{self, Header};

use super::shared::Shared;
use crate::coded::{Coded, is_marked};
use crate::config::BlockCode;
use crate::packet::{Checked, Envelope};
use crate::units::{add_to_all, bytes_of, lengthen};

/// Blocks of a flow that repair packets are kept of. A power of two: so much memory there is.
pub(super) const BLOCKS_MAX: usize = 8;

/// The packets of a block that were handed on, as sums.
#[derive(Debug)]
pub(super) struct Passed {
    pub(super) code: BlockCode,
    /// The number of the block's first packet.
    pub(super) base: u64,
    /// Empty, or one for each repair packet.
    pub(super) sums: Vec<Vec<u8>>,
    pub(super) digest: u32,
    /// Whether all packets from `base` on are in the sums.
    pub(super) is_whole: bool,
    pub(super) is_marked: bool,
    /// Whether the flow was proven when the block began; others may take fewer units.
    is_proven: bool,
    /// Packets in the sums: all of the block before the next, unless some were skipped.
    added: u8,
    /// When the first and the newest packet of the block were handed on. A block may begin long after the one before it ended.
    handed_on_at: Option<(Instant, Instant)>,
}

impl Passed {
    pub(super) fn new(code: BlockCode, base: u64, is_whole: bool, is_proven: bool) -> Passed {
        let (sums, digest) = (Vec::new(), 0);
        Passed { code, base, sums, digest, is_whole, is_marked: false, is_proven, added: 0, handed_on_at: None }
    }

    /// A packet of the block is handed on.
    pub(super) fn note(&mut self, now: Instant) {
        let first = self.handed_on_at.map_or(now, |(first, _)| first);
        self.handed_on_at = Some((first, now));
    }

    /// When the sums are given back: the sender has ended the block long before that.
    pub(super) fn sums_expire_at(&self, timeout: Duration) -> Option<Instant> {
        self.handed_on_at.filter(|_| !self.sums.is_empty()).map(|(first, _)| first + timeout)
    }

    /// Whether nothing was handed on for so long that the sender has ended the block, and the next packet is of another one.
    pub(super) fn has_paused(&self, timeout: Duration, now: Instant) -> bool {
        self.handed_on_at.is_some_and(|(_, newest)| now.saturating_since(newest) >= timeout)
    }

    /// Adds the packet at a place of the block, if all before it are there.
    pub(super) fn add(&mut self, place: u8, checked: &Checked, shared: &mut Shared) {
        if !self.is_whole {
            return;
        }
        if place != self.added {
            self.give_up(shared);
            return;
        }
        let count = usize::from(self.code.repair_packets());
        if self.sums.is_empty() {
            if shared.units.available_to(self.is_proven) < count {
                shared.counters.no_unit += 1;
                self.is_whole = false;
                return;
            }
            self.sums = (0..count).filter_map(|_| shared.units.take()).collect();
        }
        let datagram = &checked.packet.datagram[..];
        let bytes = Coded::byte_count(datagram);
        let fits = bytes <= shared.config.unit_bytes() && checked.summary.opcode.is_some();
        let Some(coded) = Coded::of(&checked.packet, &checked.scope).filter(|_| fits) else {
            self.give_up(shared);
            return;
        };
        let at = usize::from(place);
        match self.code.kind() {
            CodeKind::Xor => {
                let sum = &mut self.sums[xor_group(at, count)];
                lengthen(sum, bytes);
                coded.add_plain(datagram, &shared.coder, sum);
            }
            CodeKind::Mds => {
                coded.write(datagram, &mut shared.coded);
                self.sums.iter_mut().for_each(|sum| lengthen(sum, bytes));
                add_to_all(&shared.coder, at, &shared.coded, &mut self.sums);
            }
        }
        self.added += 1;
        self.digest = self.digest.wrapping_add(repair::digest_of(place, coded.icrc));
        self.is_marked |= is_marked(&checked.packet.envelope);
    }

    /// The number of the packet that its sums end before.
    pub(super) fn end(&self) -> u64 {
        self.base + u64::from(self.added)
    }

    /// Gives the units back. The block cannot be repaired any more, unless none of its packets is needed.
    pub(super) fn give_up(&mut self, shared: &mut Shared) {
        self.is_whole = false;
        std::mem::take(&mut self.sums).into_iter().for_each(|sum| shared.units.give_back(sum));
    }

    pub(super) fn sum_bytes(&self) -> usize {
        bytes_of(&self.sums)
    }
}

/// Repair packets of one block that wait until enough have arrived. All have the same header, but for the index.
#[derive(Debug)]
pub(super) struct Repairs {
    pub(super) header: Header,
    pub(super) code: BlockCode,
    /// The number of the block's first packet.
    pub(super) base: u64,
    /// By index.
    pub(super) sums: Vec<(u8, Vec<u8>)>,
    pub(super) envelope: Envelope,
    pub(super) is_marked: bool,
    pub(super) since: Instant,
    /// When the last of them came.
    pub(super) last_at: Option<Instant>,
}

impl Repairs {
    /// Memory that sums have besides their bytes when there are few of them; others are counted with what waits.
    pub(super) const FEW_BYTES: usize = 4 * size_of::<(u8, Vec<u8>)>();

    /// Bytes besides those of the sums.
    pub(super) fn spare_bytes(&self) -> usize {
        self.sums.capacity() * size_of::<(u8, Vec<u8>)>()
    }

    pub(super) fn end(&self) -> u64 {
        self.base + u64::from(self.header.count)
    }

    pub(super) fn covers(&self, number: u64) -> bool {
        self.base <= number && number < self.end()
    }

    /// How many sums the packets are dealt out to, with XOR.
    pub(super) fn groups(&self) -> usize {
        self.code.groups_of(self.header.count, self.header.has_last)
    }

    pub(super) fn sum(&self, row: usize) -> Option<&[u8]> {
        self.sums.iter().find(|(index, _)| usize::from(*index) == row).map(|(_, sum)| &sum[..])
    }

    /// Since when it is clear that no more repair packets will come for packet `next`, if it is: they are of a later block, or the last
    /// one of its block has arrived.
    pub(super) fn hopeless_since(&self, next: u64) -> Option<Instant> {
        if self.base > next { Some(self.since) } else { self.last_at }
    }

    /// Adds a repair packet.
    pub(super) fn add(&mut self, index: u8, sum: Vec<u8>, envelope: &Envelope, now: Instant) {
        self.sums.push((index, sum));
        self.is_marked |= is_marked(envelope);
        if index + 1 == self.code.sums_of(self.header.count, self.header.has_last) {
            self.last_at = Some(now);
        }
    }

    pub(super) fn is_of(&self, header: &Header, base: u64) -> bool {
        self.base == base && self.header == Header { index: self.header.index, ..*header }
    }

    pub(super) fn release(self, shared: &mut Shared) {
        self.sums.iter().for_each(|(_, sum)| shared.release_held(sum.len()));
    }
}

/// Blocks that were wrong, of late.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wrong {
    /// The end of the one that ends last.
    pub(super) end: u64,
    pub(super) count: u8,
}
