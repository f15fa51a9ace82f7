//! One flow that is followed: what was handed on, what waits, and the sums of the block that it is in.

use std::collections::BTreeMap;

use longhaul_coding::{CodeKind, xor_group};
use longhaul_time::Instant;
use longhaul_wire::repair::{self, Header};
use longhaul_wire::{Opcode, Psn};

use super::shared::Shared;
use crate::coded::{Coded, is_marked, write_coded};
use crate::config::BlockCode;
use crate::encoder::add_to_all;
use crate::packet::{Envelope, Packet, Summary};
use crate::units::lengthen;

/// PSNs are counted from here on without wrapping, so that there is room for earlier ones.
const ORIGIN: u64 = 1 << 40;
/// Acknowledgements whose copies are recognized.
const RECENT_MAX: usize = 8;
/// Blocks that begin further ahead than this are nobody's.
const AHEAD_MAX: u64 = 4096;
/// An epoch that is behind the current one by up to this much is old; any other is new.
const OLD_EPOCHS: u16 = 64;

/// One space of PSNs.
#[derive(Debug)]
pub(super) struct Following {
    pub(super) code: BlockCode,
    epoch: u16,
    state: State,
    /// The next PSN to hand on, counted without wrapping; its low 24 bits are the PSN.
    pub(super) next: u64,
    /// The next packet that begins a message may have any later PSN.
    is_open: bool,
    /// Where the block of `next` begins, if that is known.
    pub(super) base: Option<u64>,
    pub(super) prefix: Prefix,
    /// Packets that wait: by PSN, data before acknowledgements, those in order of arrival.
    pub(super) held: BTreeMap<(u64, u32), Held>,
    pub(super) repairs: Vec<StoredRepair>,
    deadline: Option<Instant>,
    acknowledgements: u32,
    /// The ICRCs of acknowledgements that have passed.
    recent: [u32; RECENT_MAX],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Where blocks begin is not known: everything passes. The last PSN that has.
    Passing { highest: u64 },
    /// Everything before `next` was handed on.
    InOrder,
    /// A block could not be repaired: everything passes until its first missing packet arrives, or a new epoch does.
    Stopped { missing: u64, until: Instant },
}

/// The packets of the current block that were handed on, as sums.
#[derive(Debug, Default)]
pub(super) struct Prefix {
    pub(super) sums: Vec<Vec<u8>>,
    pub(super) digest: u32,
    /// Whether all of them are in the sums.
    pub(super) is_broken: bool,
    pub(super) is_marked: bool,
}

/// A packet that waits.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) packet: Packet,
    summary: Summary,
    since: Instant,
    /// Restored ones do not count towards the bound: they are handed on at once.
    is_restored: bool,
}

/// A repair packet that waits until enough have arrived.
#[derive(Debug)]
pub(super) struct StoredRepair {
    pub(super) header: Header,
    pub(super) base: u64,
    pub(super) body: Vec<u8>,
    pub(super) envelope: Envelope,
}

impl Held {
    fn release(&self, shared: &mut Shared) {
        if !self.is_restored {
            shared.release_held(self.packet.datagram.len());
        }
    }
}

impl StoredRepair {
    pub(super) fn end(&self) -> u64 {
        self.base + u64::from(self.header.count)
    }
}

impl Following {
    pub(super) fn new(code: BlockCode, epoch: u16, psn: Psn) -> Following {
        Following {
            code,
            epoch,
            state: State::Passing { highest: 0 },
            next: ORIGIN | u64::from(psn.value()),
            is_open: false,
            base: None,
            prefix: Prefix::default(),
            held: BTreeMap::new(),
            repairs: Vec::new(),
            deadline: None,
            acknowledgements: 0,
            recent: [0; RECENT_MAX],
        }
    }

    pub(super) fn can_go(&self) -> bool {
        self.held.is_empty() && self.repairs.is_empty()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    pub(super) fn sum_bytes(&self) -> usize {
        self.prefix.sums.iter().map(Vec::capacity).sum()
    }

    /// The flow makes room for another, or begins anew.
    pub(super) fn forget(&mut self, shared: &mut Shared) {
        self.reset_prefix(shared);
        self.drop_repairs(shared, |_| true);
        self.base = None;
        self.deadline = None;
    }

    pub(super) fn handle_data(
        &mut self,
        summary: Summary,
        packet: Packet,
        now: Instant,
        shared: &mut Shared,
        out: &mut Vec<Packet>,
    ) {
        shared.counters.received += 1;
        let number = self.number_of(summary.psn);
        match &mut self.state {
            State::Passing { highest } => {
                *highest = number.max(*highest);
                self.next = self.next.max(number + 1);
                out.push(packet);
                return;
            }
            State::Stopped { missing, until } => {
                self.next = self.next.max(number + 1);
                if number == *missing || now >= *until {
                    self.state = State::Passing { highest: self.next - 1 };
                }
                out.push(packet);
                return;
            }
            State::InOrder => {}
        }
        if number < self.next {
            shared.counters.late += 1;
            out.push(packet);
            return;
        }
        if number == self.next || self.is_expected(number, summary.opcode) {
            self.next = number;
            self.hand_on(summary, packet, shared, out);
            self.settle(now, shared, out);
            return;
        }
        if self.held.contains_key(&(number, 0)) {
            shared.counters.duplicates += 1;
            return;
        }
        shared.counters.held += 1;
        let is_reliable = summary.is_reliable();
        let held = Held { packet, summary, since: now, is_restored: false };
        if self.hold((number, 0), held, shared) {
            self.deadline.get_or_insert(now + shared.config.timeout);
            self.settle(now, shared, out);
        } else {
            shared.counters.no_room += 1;
            self.release(is_reliable, now, shared, out);
        }
    }

    pub(super) fn handle_acknowledgement(
        &mut self,
        summary: Summary,
        packet: Packet,
        now: Instant,
        shared: &mut Shared,
        out: &mut Vec<Packet>,
    ) {
        let mut coded = std::mem::take(&mut shared.coded);
        if let Some(coded) = write_coded(&packet, &mut coded) {
            self.remember(coded);
        }
        shared.coded = coded;
        let number = self.number_of(summary.psn);
        let is_behind = (!self.held.is_empty() || !self.is_open) && number >= self.next;
        if self.state != State::InOrder || !is_behind {
            out.push(packet);
            return;
        }
        // It would say that the responses before it are lost.
        self.acknowledgements = self.acknowledgements.wrapping_add(1).max(1);
        let key = (number, self.acknowledgements);
        let held = Held { packet, summary, since: now, is_restored: false };
        if self.hold(key, held, shared) {
            self.deadline.get_or_insert(now + shared.config.timeout);
            self.settle(now, shared, out);
        } else {
            shared.counters.no_room += 1;
            self.release(summary.is_reliable(), now, shared, out);
        }
    }

    /// An acknowledgement has passed: its copy is not needed.
    pub(super) fn remember(&mut self, coded: Coded) {
        self.recent.rotate_right(1);
        self.recent[0] = coded.icrc;
    }

    pub(super) fn handle_copy(
        &mut self,
        summary: Summary,
        packet: Packet,
        coded: Coded,
        now: Instant,
        shared: &mut Shared,
        out: &mut Vec<Packet>,
    ) {
        if !self.recent.contains(&coded.icrc) {
            shared.counters.restored_acknowledgements += 1;
            self.handle_acknowledgement(summary, packet, now, shared, out);
        }
    }

    /// A repair packet or an announcement.
    #[expect(clippy::too_many_arguments, reason = "a packet in its parts, and what it works on")]
    pub(super) fn handle_header(
        &mut self,
        header: &Header,
        code: BlockCode,
        body: &[u8],
        envelope: &Envelope,
        now: Instant,
        shared: &mut Shared,
        out: &mut Vec<Packet>,
    ) {
        if header.epoch != self.epoch && !(shared.ignores_epoch() && self.state == State::InOrder) {
            if self.epoch.wrapping_sub(header.epoch) <= OLD_EPOCHS {
                shared.counters.stale += 1;
                return;
            }
            // The sender has gone back. What waits belongs to its earlier attempt.
            self.hand_on_all(shared, out);
            self.epoch = header.epoch;
            self.state = State::Passing { highest: 0 };
        }
        if code != self.code {
            self.code = code;
            self.break_prefix(shared);
        }
        let base = self.number_of(header.base_psn);
        let end = base + u64::from(header.count);
        match self.state {
            State::Stopped { until, .. } if now < until => {}
            State::Stopped { .. } | State::Passing { .. } => {
                let begins_at = if header.is_announcement { base } else { end };
                let has_passed = matches!(self.state, State::Passing { highest } if highest >= begins_at);
                if !has_passed {
                    self.follow_from(begins_at, shared);
                }
            }
            State::InOrder if header.is_announcement => {}
            State::InOrder if base > self.next + AHEAD_MAX => shared.counters.malformed += 1,
            State::InOrder if end <= self.next => self.align(end, shared),
            State::InOrder => {
                let is_stored = self.store(header, base, body, envelope, shared);
                if self.is_open && base >= self.next {
                    self.is_open = false;
                    self.next = base;
                    self.reset_prefix(shared);
                    self.base = Some(base);
                }
                self.deadline.get_or_insert(now + shared.config.timeout);
                self.settle(now, shared, out);
                let is_last = header.index + 1 == code.sums_of(header.count);
                if self.next < end && (is_last || base > self.next || !is_stored) {
                    // Nothing more will come, but for packets that were overtaken.
                    let soon = now + shared.config.reordering;
                    self.deadline = self.deadline.map(|deadline| deadline.min(soon));
                }
            }
        }
    }

    pub(super) fn poll(&mut self, now: Instant, shared: &mut Shared, out: &mut Vec<Packet>) {
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            shared.counters.given_up += 1;
            self.give_up(now, shared, out);
        }
    }

    /// Hands on all that waits, as it is.
    pub(super) fn give_up(&mut self, now: Instant, shared: &mut Shared, out: &mut Vec<Packet>) {
        let is_reliable = self.held.values().next().is_none_or(|held| held.summary.is_reliable());
        self.release(is_reliable, now, shared, out);
    }

    fn release(&mut self, is_reliable: bool, now: Instant, shared: &mut Shared, out: &mut Vec<Packet>) {
        if self.state != State::InOrder {
            return;
        }
        let missing = self.next;
        self.hand_on_all(shared, out);
        self.state = match is_reliable {
            true => State::Stopped { missing, until: now + shared.config.stopped_max },
            // Nobody repeats these.
            false => State::Passing { highest: self.next.saturating_sub(1) },
        };
    }

    /// Empties the flow: packets go on in order, repair packets are dropped.
    fn hand_on_all(&mut self, shared: &mut Shared, out: &mut Vec<Packet>) {
        for ((number, _), held) in std::mem::take(&mut self.held) {
            held.release(shared);
            self.next = self.next.max(number + 1);
            out.push(held.packet);
        }
        self.forget(shared);
    }

    /// Hands on whatever is next, and restores what can be restored, until nothing changes.
    pub(super) fn settle(&mut self, now: Instant, shared: &mut Shared, out: &mut Vec<Packet>) {
        loop {
            self.drain(shared, out);
            if self.repairs.is_empty() || !self.restore(now, shared) {
                break;
            }
        }
        let next = self.next;
        self.drop_repairs(shared, |repair| repair.end() <= next);
        let oldest = self.held.values().next().map(|held| held.since);
        match oldest {
            None if self.repairs.is_empty() => self.deadline = None,
            None => {
                self.deadline.get_or_insert(now + shared.config.timeout);
            }
            // A later packet is missing now; it has its own time.
            Some(since) => {
                let deadline = since + shared.config.timeout;
                if self.deadline.is_none_or(|earlier| earlier < now) {
                    self.deadline = Some(deadline);
                }
            }
        }
    }

    fn drain(&mut self, shared: &mut Shared, out: &mut Vec<Packet>) {
        while let Some(entry) = self.held.first_entry() {
            let (number, acknowledgement) = *entry.key();
            let is_next = match acknowledgement {
                0 => {
                    number <= self.next || {
                        let opcode = entry.get().summary.opcode;
                        self.is_open && opcode.position().is_start()
                    }
                }
                _ => number < self.next || self.is_open,
            };
            if !is_next {
                break;
            }
            let held = entry.remove();
            held.release(shared);
            match acknowledgement {
                0 if number >= self.next => {
                    self.next = number;
                    self.hand_on(held.summary, held.packet, shared, out);
                    // There is another gap, if there is one.
                    self.deadline = None;
                }
                _ => out.push(held.packet),
            }
        }
    }

    /// Hands on the packet with number `next`, and adds it to the sums of its block unless it ends it.
    fn hand_on(&mut self, summary: Summary, packet: Packet, shared: &mut Shared, out: &mut Vec<Packet>) {
        let position = summary.opcode.position();
        let block_packets = u64::from(self.code.block_packets());
        let is_full = self.base.is_some_and(|base| self.next - base >= block_packets);
        if position.is_start() || is_full || self.repairs.iter().any(|repair| repair.end() == self.next) {
            self.reset_prefix(shared);
            self.base = Some(self.next);
        }
        let place = self.base.map(|base| self.next - base);
        let ends_block = position.is_end() || place == Some(block_packets - 1);
        if let (Some(place), false) = (place, ends_block || self.prefix.is_broken) {
            self.add_to_prefix(place as u8, &packet, shared);
        }
        out.push(packet);
        self.next += 1;
        self.is_open = summary.leaves_next_open();
        if ends_block {
            self.reset_prefix(shared);
            self.base = Some(self.next);
        }
    }

    fn add_to_prefix(&mut self, place: u8, packet: &Packet, shared: &mut Shared) {
        let sums = usize::from(self.code.repair_packets());
        if self.prefix.sums.is_empty() {
            if shared.units.available() < sums {
                shared.counters.no_unit += 1;
                self.prefix.is_broken = true;
                return;
            }
            self.prefix.sums = (0..sums).filter_map(|_| shared.units.take()).collect();
        }
        let mut bytes = std::mem::take(&mut shared.coded);
        match write_coded(packet, &mut bytes).filter(|_| bytes.len() <= shared.config.unit_bytes()) {
            Some(coded) => {
                let place_index = usize::from(place);
                match self.code.kind() {
                    CodeKind::Xor => {
                        let sum = &mut self.prefix.sums[xor_group(place_index, sums)];
                        lengthen(sum, bytes.len());
                        shared.coder.add_plain(&bytes, sum);
                    }
                    CodeKind::Mds => {
                        self.prefix.sums.iter_mut().for_each(|sum| lengthen(sum, bytes.len()));
                        add_to_all(&shared.coder, place_index, &bytes, &mut self.prefix.sums);
                    }
                }
                self.prefix.digest = self.prefix.digest.wrapping_add(repair::digest_of(place, coded.icrc));
                self.prefix.is_marked |= is_marked(&packet.envelope);
            }
            None => self.prefix.is_broken = true,
        }
        shared.coded = bytes;
    }

    /// A block ends at `end`, and all of it was handed on.
    fn align(&mut self, end: u64, shared: &mut Shared) {
        if end == self.next {
            self.reset_prefix(shared);
            self.base = Some(end);
        } else if self.base.is_some_and(|base| base < end) {
            // It ended earlier than we thought, and we went on adding.
            self.reset_prefix(shared);
            self.base = None;
        }
    }

    fn follow_from(&mut self, number: u64, shared: &mut Shared) {
        self.reset_prefix(shared);
        self.state = State::InOrder;
        self.next = number;
        self.is_open = false;
        self.base = Some(number);
    }

    pub(super) fn reset_prefix(&mut self, shared: &mut Shared) {
        let prefix = std::mem::take(&mut self.prefix);
        prefix.sums.into_iter().for_each(|sum| shared.units.give_back(sum));
    }

    /// The sums are of another code than the block is.
    fn break_prefix(&mut self, shared: &mut Shared) {
        self.reset_prefix(shared);
        self.prefix.is_broken = self.base.is_some_and(|base| base < self.next);
    }

    /// Whether there was room for another packet to wait.
    fn hold(&mut self, key: (u64, u32), held: Held, shared: &mut Shared) -> bool {
        let has_room = shared.held_packets < shared.config.held_packets_max
            && held.packet.datagram.len() <= shared.config.datagram_bytes_max;
        shared.count_held(held.packet.datagram.len());
        self.held.insert(key, held);
        has_room
    }

    /// Puts a restored packet where it belongs.
    pub(super) fn put_restored(&mut self, number: u64, packet: Packet, summary: Summary, now: Instant) {
        self.held.insert((number, 0), Held { packet, summary, since: now, is_restored: true });
    }

    fn store(&mut self, header: &Header, base: u64, body: &[u8], envelope: &Envelope, shared: &mut Shared) -> bool {
        let is_known = |stored: &StoredRepair| stored.base == base && stored.header.index == header.index;
        if self.repairs.iter().any(is_known) {
            return true;
        }
        if shared.held_packets >= shared.config.held_packets_max {
            return false;
        }
        shared.count_held(body.len());
        self.repairs.push(StoredRepair { header: *header, base, body: body.to_vec(), envelope: *envelope });
        true
    }

    pub(super) fn drop_repairs(&mut self, shared: &mut Shared, is_done: impl Fn(&StoredRepair) -> bool) {
        self.repairs.retain(|repair| {
            let stays = !is_done(repair);
            if !stays {
                shared.release_held(repair.body.len());
            }
            stays
        });
    }

    /// A PSN without wrapping: the one that is nearest to `next`.
    fn number_of(&self, psn: Psn) -> u64 {
        let next = Psn::new((self.next & 0xff_ffff) as u32);
        self.next.saturating_add_signed(i64::from(psn.distance_from(next)))
    }

    /// Whether a packet is next although PSNs were skipped.
    fn is_expected(&self, number: u64, opcode: Opcode) -> bool {
        let is_first = self.held.first_key_value().is_none_or(|((first, _), _)| number < *first);
        self.is_open && opcode.position().is_start() && is_first
    }
}
