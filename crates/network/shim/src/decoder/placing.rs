//! Where a flow is: what headers claim, and when they are believed.
//!
//! Without a key, anybody may send a header. A header of the current epoch that is near the next packet is used at once. Any
//! other claims that the flow is elsewhere: the sender has gone back or jumped, much was lost, or it is a lie. It is believed
//! when data packets agree, those that came last or the one that comes next; a liar who does not see the flow does not know
//! their PSNs. Packets that come where the current epoch has them are no evidence for another epoch, as long as headers of the
//! current one come too. So lies cost nothing, and after anything that confuses the decoder the next true header puts it right.

use longhaul_time::Instant;
use longhaul_wire::repair::Header;

use super::block::{BLOCKS_MAX, Repairs, Wrong};
use super::claim::{Claim, Recent};
use super::following::Following;
use super::shared::Shared;
use crate::config::BlockCode;
use crate::packet::{Envelope, Packet, SKIPPED_MAX};

/// An epoch that is behind the current one by up to this much is old; any other is new.
const OLD_EPOCHS: u16 = 64;
/// After this many data packets in a row that are not where the current epoch has them, it may be the lie, and not the older one.
const ASTRAY_MAX: u8 = 4;
/// Packets further apart than this are not of one place.
const FAR: u64 = 1024;

impl Following {
    /// A data packet came.
    pub(super) fn note(&mut self, number: u64) {
        let end = number + 1;
        let Some(recent) = &mut self.recent else {
            self.recent = Some(Recent { start: number, end, went_back: false, highest_end: end });
            return;
        };
        if recent.end != number {
            (recent.start, recent.went_back) = (number, number < recent.end);
        }
        recent.end = end;
        let is_far = end.abs_diff(recent.highest_end) > FAR;
        recent.highest_end = if is_far { end } else { end.max(recent.highest_end) };
    }

    /// A data packet comes: whether it is where a header said that the flow goes on.
    pub(super) fn confirm(&mut self, number: u64, now: Instant, shared: &mut Shared, out: &mut Vec<Packet>) {
        let Some(claim) = self.claim else { return };
        if now.saturating_since(claim.at) > shared.config.timeout {
            self.claim = None;
            return;
        }
        if claim.epoch != self.epoch && self.is_expected(number) && self.is_current(now, shared) {
            return;
        }
        let begins_at = if claim.is_announcement { claim.base } else { claim.end };
        if (claim.base..begins_at + u64::from(claim.code.block_packets())).contains(&number) {
            let next = if claim.is_announcement { claim.base } else { claim.end.max(number) };
            self.place(&claim, next, now, shared, out);
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
        let base = self.number_of(header.base_psn);
        let end = base + u64::from(header.count);
        let ignores_epoch = self.is_placed && shared.ignores_epoch();
        if ignores_epoch && header.is_announcement {
            return;
        }
        let is_epoch = self.is_placed && header.epoch == self.epoch || ignores_epoch;
        if !is_epoch && self.is_stale(header.epoch, now, shared) {
            shared.counters.stale += 1;
            return;
        }
        let is_ahead = self.is_open && (self.next..self.next + u64::from(SKIPPED_MAX)).contains(&base);
        let is_near = base < self.next + self.window() && end + self.window() > self.next;
        let is_followed = is_epoch && (is_near || is_ahead);
        if !is_followed {
            let claim = Claim {
                epoch: header.epoch,
                code,
                base,
                end,
                is_announcement: header.is_announcement,
                has_last: header.has_last,
                at: now,
            };
            let Some(next) = self.agrees(&claim, now, shared) else {
                self.claim = Some(claim);
                return;
            };
            self.place(&claim, next, now, shared, out);
        }
        (self.heard_at, self.vain_waits) = (now, 0);
        self.code = code;
        if self.is_open && base >= self.next || (self.floor..self.next).contains(&base) {
            match base < self.next {
                true => self.go_back(base),
                false => self.skip_to(base),
            }
            let next = self.next;
            self.drop_repairs(shared, |repairs| repairs.end() <= next);
            self.is_open = false;
            self.begin_block(base, true, shared);
        }
        let is_begun = self.passed.as_ref().is_some_and(|passed| passed.base == base && passed.code == code);
        if header.is_announcement {
            if base == self.next && !is_begun {
                self.begin_block(base, true, shared);
            }
        } else if end <= self.next {
            self.align(end, shared);
            // Headers that agree with each other prove nothing.
            let has_data = self.recent.is_some_and(|recent| recent.start < end && base < recent.end);
            if is_followed && has_data {
                self.prove(shared);
            }
        } else {
            if !self.store(header, code, base, body, envelope, now, shared) {
                shared.counters.no_room += 1;
            }
            self.settle(now, shared, out);
        }
    }

    /// Whether a header is of an earlier attempt.
    fn is_stale(&self, epoch: u16, now: Instant, shared: &Shared) -> bool {
        let age = self.epoch.wrapping_sub(epoch);
        self.is_current(now, shared) && self.astray < ASTRAY_MAX && (1..=OLD_EPOCHS).contains(&age)
    }

    /// Whether a header of the epoch came not long ago.
    fn is_current(&self, now: Instant, shared: &Shared) -> bool {
        self.is_placed && now.saturating_since(self.heard_at) < shared.config.timeout
    }

    /// Whether a data packet comes where the current epoch has it: the next one, or not far ahead of it.
    pub(super) fn is_expected(&self, number: u64) -> bool {
        (self.next..self.next + self.window()).contains(&number)
    }

    /// Where the flow goes on by what a header claims, if the data packets that came last agree.
    fn agrees(&self, claim: &Claim, now: Instant, shared: &Shared) -> Option<u64> {
        // What comes where the current epoch has it says nothing for another epoch.
        if claim.epoch != self.epoch && self.is_in_sequence && self.is_current(now, shared) {
            return None;
        }
        // An announcement and a repair packet of the block that it announced: the block's packets are all lost.
        let is_announced = |earlier: &Claim| {
            earlier.is_announcement
                && !claim.is_announcement
                && (earlier.epoch, earlier.base) == (claim.epoch, claim.base)
                && now.saturating_since(earlier.at) <= shared.config.timeout
        };
        if self.claim.as_ref().is_some_and(is_announced) {
            return Some(claim.base);
        }
        let Recent { start, end, went_back, .. } = self.recent?;
        match claim.is_announcement {
            _ if end == claim.base => Some(claim.base),
            // It was overtaken by packets that it announces.
            true => (went_back && start <= claim.base && claim.base < end).then_some(end),
            false => (claim.base < end && end <= claim.end + self.window()).then_some(end.max(claim.end)),
        }
    }

    /// A claim is believed.
    fn place(&mut self, claim: &Claim, next: u64, now: Instant, shared: &mut Shared, out: &mut Vec<Packet>) {
        // What waits belongs to an earlier attempt, or cannot be repaired.
        self.hand_on_all(shared, out);
        // What UC has executed is not restored.
        let executed = self.recent.map(|recent| recent.highest_end).filter(|_| !self.is_reliable);
        let next = executed
            .filter(|end| (claim.base..=claim.end + self.window()).contains(end))
            .map_or(next, |end| next.max(end));
        (self.claim, self.wrong) = (None, Wrong::default());
        if claim.epoch != self.epoch || !self.is_placed {
            self.arrivals.move_to(next);
        }
        self.is_placed = true;
        if claim.epoch != self.epoch {
            // A sender that goes back to them sends them anew.
            self.restored.retain(|number| number < claim.base);
        }
        (self.epoch, self.code, self.heard_at) = (claim.epoch, claim.code, now);
        (self.next, self.floor) = (next, next);
        // Whether the next message begins where this one ended is not known.
        self.is_open = !claim.is_announcement && claim.has_last && next == claim.end;
        self.astray = 0;
        self.is_in_sequence =
            self.recent.is_some_and(|recent| (claim.base..=claim.end + self.window()).contains(&recent.end));
        let base = if claim.is_announcement || next == claim.base { claim.base } else { claim.end };
        self.begin_block(base, base == next, shared);
    }

    /// A block ends at `end`, and all of it was handed on.
    pub(super) fn align(&mut self, end: u64, shared: &mut Shared) {
        if end == self.next {
            self.begin_block(end, true, shared);
        } else if self.passed.as_ref().is_some_and(|passed| passed.base < end) {
            // It ended earlier than we thought, and we went on adding.
            self.begin_block(end, false, shared);
        }
    }

    /// Keeps a repair packet. `false` if there is no room for it.
    #[expect(clippy::too_many_arguments, reason = "a packet in its parts, and what it works on")]
    fn store(
        &mut self,
        header: &Header,
        code: BlockCode,
        base: u64,
        body: &[u8],
        envelope: &Envelope,
        now: Instant,
        shared: &mut Shared,
    ) -> bool {
        let place = self.repairs.iter().position(|repairs| repairs.is_of(header, base));
        if place.is_some_and(|place| self.repairs[place].sum(usize::from(header.index)).is_some()) {
            return true;
        }
        if !self.has_room(shared) || place.is_none() && self.repairs.len() == BLOCKS_MAX {
            return false;
        }
        let place = place.unwrap_or_else(|| {
            self.repairs.push(Repairs {
                header: *header,
                code,
                base,
                sums: Vec::new(),
                envelope: *envelope,
                is_marked: false,
                since: now,
                last_at: None,
            });
            self.repairs.len() - 1
        });
        shared.count_held(body.len());
        self.repairs[place].add(header.index, body.to_vec(), envelope, now);
        true
    }
}
