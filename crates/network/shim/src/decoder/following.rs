//! One flow that is followed: what was handed on, what waits, and the sums of the block that it is in.

use longhaul_time::{Duration, Instant};
use longhaul_wire::Psn;
use longhaul_wire::repair::{Report, Subject};

use super::arrivals::Arrivals;
use super::block::{BLOCKS_MAX, Passed, Repairs, Wrong};
use super::claim::{Claim, Recent};
use super::copies::Copies;
use super::executed::Executed;
use super::shared::Shared;
use super::waiting::{Outcome, Waiting};
use crate::coded::{Coded, identity};
use crate::config::{BlockCode, Config};
use crate::packet::{Checked, Packet, SKIPPED_MAX};

/// PSNs are counted from here on without wrapping, so that there is room for earlier ones.
const ORIGIN: u64 = 1 << 40;
/// After this many waits in a row without any header, the peer has stopped repairing.
const VAIN_WAITS_MAX: u8 = 3;
/// No packet waits that is ahead by more than two blocks and this many.
const AHEAD_BASE: u64 = 64;
/// Packets in a row that may arrive late, all at once.
const LATE_MAX: u64 = 16;

/// One space of PSNs.
#[derive(Debug)]
pub(super) struct Following {
    /// The code of blocks that begin from now on.
    pub(super) code: BlockCode,
    pub(super) epoch: u16,
    /// When the last header of the epoch came.
    pub(super) heard_at: Instant,
    /// Times that packets have waited for a missing one since the last header.
    pub(super) vain_waits: u8,
    /// Whether `next` is known. Until then everything passes.
    pub(super) is_placed: bool,
    /// Whether a repair packet has agreed with packets that were handed on. Any other flow may have been invented: it gets less
    /// room, and makes room for others sooner.
    is_proven: bool,
    /// The next PSN to hand on, counted without wrapping; its low 24 bits are the PSN.
    pub(super) next: u64,
    /// PSNs from here to `next` may not exist, and none of them was handed on.
    pub(super) floor: u64,
    /// The next packet that begins a message may have any later PSN. Then no data packet waits.
    pub(super) is_open: bool,
    pub(super) recent: Option<Recent>,
    /// Whether the newest data packet was the next one, or one that waits for it.
    pub(super) is_in_sequence: bool,
    /// Data packets in a row that came elsewhere.
    pub(super) astray: u8,
    pub(super) claim: Option<Claim>,
    /// The block of `next`, if it is known where that begins.
    pub(super) passed: Option<Passed>,
    pub(super) waiting: Waiting,
    /// The next packet as it was when an acknowledgement had waited for it in vain. Others pass until it comes.
    overdue: Option<u64>,
    pub(super) repairs: Vec<Repairs>,
    pub(super) wrong: Wrong,
    /// UC executes a packet each time that it comes.
    pub(super) is_reliable: bool,
    /// Packets of UC that were restored: their originals may come late.
    pub(super) restored: Executed,
    /// Packets of UC that were far ahead and handed on at once: they must not be restored.
    passed_ahead: Executed,
    copies: Copies,
    pub(super) arrivals: Arrivals,
}

impl Following {
    /// A flow of which nothing is known but a PSN.
    pub(super) fn new(code: BlockCode, psn: Psn, now: Instant) -> Following {
        let next = ORIGIN | u64::from(psn.value());
        Following {
            code,
            epoch: 0,
            heard_at: now,
            vain_waits: 0,
            is_placed: false,
            is_proven: false,
            next,
            floor: next,
            is_open: false,
            recent: None,
            is_in_sequence: false,
            astray: 0,
            claim: None,
            passed: None,
            waiting: Waiting::default(),
            overdue: None,
            repairs: Vec::new(),
            wrong: Wrong::default(),
            is_reliable: true,
            restored: Executed::default(),
            passed_ahead: Executed::default(),
            copies: Copies::default(),
            arrivals: Arrivals::default(),
        }
    }

    /// For how long the flow must have been idle to make room for another; `None` while anything waits, and for proven flows as
    /// long as the others have their part of the table.
    pub(super) fn patience(&self, shared: &Shared) -> Option<Duration> {
        let is_empty = self.waiting.is_empty() && self.repairs.is_empty();
        match self.is_proven {
            _ if !is_empty => None,
            true => (shared.unproven_flows < shared.config.flows_max / 2).then_some(shared.config.flow_idle),
            false => Some(shared.config.timeout),
        }
    }

    /// A repair packet agrees with what was handed on.
    pub(super) fn prove(&mut self, shared: &mut Shared) {
        if !std::mem::replace(&mut self.is_proven, true) {
            shared.unproven_flows -= 1;
        }
    }

    pub(super) fn is_proven(&self) -> bool {
        self.is_proven
    }

    /// The flow makes room for another. Nothing waits.
    pub(super) fn remove(mut self, shared: &mut Shared) {
        self.forget(shared);
        self.prove(shared);
    }

    /// What is to be reported to the sender, if anything is. Flows that may have been invented are not reported on.
    pub(super) fn report(&mut self, subject: Subject, every: Duration, now: Instant) -> Option<Report> {
        self.arrivals.report(subject, self.epoch, every, now).filter(|_| self.is_proven)
    }

    /// Whether another packet of the flow may wait.
    pub(super) fn has_room(&self, shared: &Shared) -> bool {
        shared.has_room(self.held_packets(), self.is_proven)
    }

    /// Of what [`memory_bytes`](Following::memory_bytes) counts, the part that belongs to no unit and to no packet that waits, at most.
    pub(super) const BYTES_MAX: usize = BLOCKS_MAX * (size_of::<Repairs>() + Repairs::FEW_BYTES)
        + 2 * Executed::BYTES_MAX
        + Copies::BYTES_MAX
        + Arrivals::BYTES_MAX
        + Waiting::FEW_BYTES;

    /// Bytes of memory besides the flow itself, but for the packets that wait.
    pub(super) fn memory_bytes(&self) -> usize {
        self.arrivals.memory_bytes()
            + self.repairs.iter().map(Repairs::spare_bytes).sum::<usize>()
            + self.passed.as_ref().map_or(0, Passed::sum_bytes)
            + self.waiting.spare_bytes()
            + self.repairs.capacity() * size_of::<Repairs>()
            + self.restored.memory_bytes()
            + self.passed_ahead.memory_bytes()
            + self.copies.memory_bytes()
    }

    /// What is known of the current block is forgotten. Nothing waits.
    pub(super) fn forget(&mut self, shared: &mut Shared) {
        self.end_block(shared);
        self.drop_repairs(shared, |_| true);
    }

    /// How far ahead of the next packet others may wait, if there are packets between.
    pub(super) fn window(&self) -> u64 {
        AHEAD_BASE + 2 * u64::from(self.code.block_packets())
    }

    /// How many packets in a row may be missing and still come: what the repair packets of two blocks restore, and what is late.
    fn gap_max(&self) -> u64 {
        LATE_MAX + 2 * u64::from(self.code.repair_packets())
    }

    /// A PSN without wrapping: the one that is nearest to `next`.
    pub(super) fn number_of(&self, psn: Psn) -> u64 {
        let next = Psn::new((self.next & 0xff_ffff) as u32);
        self.next.saturating_add_signed(i64::from(psn.distance_from(next)))
    }

    pub(super) fn handle_data(&mut self, checked: Checked, now: Instant, shared: &mut Shared, out: &mut Vec<Packet>) {
        shared.counters.received += 1;
        let number = self.number_of(checked.summary.psn);
        self.is_reliable = checked.summary.is_reliable;
        self.confirm(number, now, shared, out);
        self.note(number);
        self.arrivals.note(number, &checked.summary);
        if !self.is_placed {
            out.push(checked.packet);
            return;
        }
        if (self.floor..self.next).contains(&number) && self.next - number <= self.window() {
            self.go_back(number);
        }
        self.is_in_sequence = self.is_expected(number);
        self.astray = if self.is_in_sequence { 0 } else { self.astray.saturating_add(1) };
        if number < self.next {
            self.handle_late(number, checked, shared, out);
            return;
        }
        if self.is_open && number - self.next > u64::from(SKIPPED_MAX) {
            self.pass_ahead(number, checked, now, shared, out);
            return;
        }
        let begins_message = checked.summary.position().is_start();
        if number == self.next || self.is_open && begins_message {
            self.skip_to(number);
            self.hand_on(checked, now, shared, out);
        } else {
            if self.is_open {
                self.begin_with_missing(number, shared);
            }
            if !self.hold(number, checked, now, shared, out) {
                return;
            }
        }
        if !self.waiting.is_empty() || !self.repairs.is_empty() {
            self.settle(now, shared, out);
        }
    }

    /// A packet arrives after later ones were handed on. It goes on: the transport knows what to do with it. But UC would execute
    /// it twice if it was restored before.
    fn handle_late(&mut self, number: u64, checked: Checked, shared: &mut Shared, out: &mut Vec<Packet>) {
        if self.restored.take(number, &checked) {
            shared.counters.overtaken += 1;
            return;
        }
        // Not restored later: UC would execute it twice.
        self.floor = self.floor.max(number + 1);
        shared.counters.late += 1;
        out.push(checked.packet);
    }

    /// A packet that is ahead of the next waits. `false` if it was handed on or dropped, and nothing else changed.
    fn hold(
        &mut self,
        number: u64,
        checked: Checked,
        now: Instant,
        shared: &mut Shared,
        out: &mut Vec<Packet>,
    ) -> bool {
        let end = self.waiting.end().unwrap_or(self.next);
        if number > end + self.gap_max() {
            self.pass_ahead(number, checked, now, shared, out);
            return false;
        }
        let has_room = self.has_room(shared)
            && checked.packet.datagram.len() <= shared.config.datagram_bytes_max
            && number - self.next < self.window();
        if !has_room && self.waiting.get(number).is_none() {
            shared.counters.no_room += 1;
            if number - self.next >= self.window() {
                self.note_wait();
            }
            self.waiting.hold(number, checked, now, shared);
            self.hand_on_all(shared, out);
            self.stop_if_vain(shared, out);
            return false;
        }
        match self.waiting.hold(number, checked, now, shared) {
            Outcome::Held => shared.counters.held += 1,
            Outcome::Duplicate => shared.counters.duplicates += 1,
            Outcome::Contradiction => shared.counters.contradictions += 1,
        }
        true
    }

    /// A packet that is further ahead than what can still come: it does not wait. Either somebody has invented it, and it must not be
    /// there when the flow comes so far; or so much was lost that nothing of it will be restored.
    fn pass_ahead(&mut self, number: u64, checked: Checked, now: Instant, shared: &mut Shared, out: &mut Vec<Packet>) {
        shared.counters.far_ahead += 1;
        // The packet before it came just before it: the flow is there. Further ahead only a header can say so, unless the flow may skip
        // any number.
        let is_run = self.recent.is_some_and(|recent| recent.start < number);
        if is_run && (self.is_open || number - self.next < self.window()) {
            self.hand_on_all(shared, out);
            self.skip_to(number);
            self.hand_on(checked, now, shared, out);
            return;
        }
        if !checked.summary.is_reliable {
            self.passed_ahead.note(number, &checked);
        }
        out.push(checked.packet);
    }

    pub(super) fn handle_acknowledgement(
        &mut self,
        checked: Checked,
        now: Instant,
        shared: &mut Shared,
        out: &mut Vec<Packet>,
    ) {
        let icrc = identity(&checked.packet, &checked.scope).map(|(icrc, _)| icrc);
        if icrc.is_some_and(|icrc| !self.copies.passes_original(icrc, &shared.config, now)) {
            shared.counters.overtaken += 1;
            return;
        }
        self.hand_on_acknowledgement(checked, now, shared, out);
    }

    fn hand_on_acknowledgement(&mut self, checked: Checked, now: Instant, shared: &mut Shared, out: &mut Vec<Packet>) {
        let number = self.number_of(checked.summary.psn);
        // It would say that the responses before it are lost. Where only headers say that there are any, nothing waits for them.
        let must_wait = self.is_placed
            && (self.is_proven || self.is_in_sequence)
            && !self.is_open
            && self.overdue != Some(self.next)
            && (self.next..self.next + (1 << 22)).contains(&number);
        if must_wait && self.has_room(shared) {
            self.waiting.hold_acknowledgement(number, checked, now, shared);
        } else {
            out.push(checked.packet);
        }
    }

    /// A copy of an acknowledgement arrives.
    pub(super) fn handle_copy(
        &mut self,
        checked: Checked,
        coded: Coded,
        now: Instant,
        shared: &mut Shared,
        out: &mut Vec<Packet>,
    ) {
        if self.copies.passes_copy(coded.icrc, &shared.config, now) {
            shared.counters.restored_acknowledgements += 1;
            self.hand_on_acknowledgement(checked, now, shared, out);
        }
    }

    /// When [`poll`](Following::poll) is wanted.
    pub(super) fn deadline(&mut self, config: &Config) -> Option<Instant> {
        let sums_at = self.passed.as_ref().and_then(|passed| passed.sums_expire_at(config.timeout));
        let acknowledgements_at = self.waiting.oldest_acknowledgement().map(|oldest| oldest + config.timeout);
        Instant::earlier_of(Instant::earlier_of(sums_at, acknowledgements_at), self.patience_ends_at(config))
    }

    /// When the next packet is not waited for any more, if data or repair packets wait for it.
    fn patience_ends_at(&mut self, config: &Config) -> Option<Instant> {
        let waiting = self.waiting.oldest().map(|oldest| oldest + config.timeout);
        let next = self.next;
        let repairs = self.repairs.iter().map(|repairs| match repairs.hopeless_since(next) {
            // Nothing more will come, but for packets that were overtaken.
            Some(since) => since + config.reordering,
            None => repairs.since + config.timeout,
        });
        Instant::earlier_of(waiting, repairs.min())
    }

    pub(super) fn poll(&mut self, now: Instant, shared: &mut Shared, out: &mut Vec<Packet>) {
        if let Some(passed) = &mut self.passed
            && passed.sums_expire_at(shared.config.timeout).is_some_and(|at| at <= now)
        {
            passed.give_up(shared);
        }
        // Acknowledgements say nothing about the block: it may go on.
        if self.waiting.oldest_acknowledgement().is_some_and(|oldest| oldest + shared.config.timeout <= now) {
            shared.counters.given_up += 1;
            self.waiting.hand_on_acknowledgements(None, shared, out);
            self.overdue = Some(self.next);
        }
        if self.patience_ends_at(&shared.config).is_some_and(|at| at <= now) {
            self.note_wait();
        }
        while self.patience_ends_at(&shared.config).is_some_and(|at| at <= now) {
            shared.counters.given_up += 1;
            self.give_up(shared, out);
            self.settle(now, shared, out);
        }
        self.stop_if_vain(shared, out);
    }

    /// Packets have waited for one that did not come: in vain if there was no header meanwhile.
    fn note_wait(&mut self) {
        let heard_at = self.heard_at;
        if self.waiting.oldest().is_some_and(|oldest| heard_at <= oldest) {
            self.vain_waits = self.vain_waits.saturating_add(1);
        }
    }

    /// A peer that has stopped repairing is not waited for: everything passes until its next header.
    fn stop_if_vain(&mut self, shared: &mut Shared, out: &mut Vec<Packet>) {
        if self.vain_waits >= VAIN_WAITS_MAX {
            self.leave(shared, out);
        }
    }

    /// All that waits is handed on, and everything passes until a header says anew where the flow is.
    pub(super) fn leave(&mut self, shared: &mut Shared, out: &mut Vec<Packet>) {
        self.hand_on_all(shared, out);
        (self.is_placed, self.vain_waits) = (false, 0);
    }

    /// Stops waiting for the next packet.
    fn give_up(&mut self, shared: &mut Shared, out: &mut Vec<Packet>) {
        let next = self.next;
        let covering = self.repairs.iter().filter(|repairs| repairs.covers(next)).max_by_key(|repairs| repairs.end());
        if let Some((end, has_last)) = covering.map(|repairs| (repairs.end(), repairs.header.has_last)) {
            // Nothing of the block can be restored: its packets go on as they are.
            while self.next < end {
                let held = self.waiting.take(self.next, shared);
                out.extend(held.map(|checked| checked.packet));
                self.next += 1;
            }
            self.floor = end;
            self.is_open = has_last;
            self.begin_block(end, true, shared);
            return;
        }
        self.drop_repairs(shared, |repairs| repairs.end() <= next);
        let repaired = self.repairs.iter().map(|repairs| repairs.base).min();
        let Some(number) = self.waiting.first().into_iter().chain(repaired).min() else { return };
        self.skip_to(number);
        self.floor = self.floor.max(number);
        match repaired == Some(number) {
            true => self.begin_block(number, true, shared),
            false => self.end_block(shared),
        }
    }

    /// Hands on all that waits, in order; repair packets are dropped.
    pub(super) fn hand_on_all(&mut self, shared: &mut Shared, out: &mut Vec<Packet>) {
        while let Some(number) = self.waiting.first() {
            self.next = number + 1;
            if let Some(checked) = self.waiting.take(number, shared) {
                self.waiting.hand_on_acknowledgements(Some(number), shared, out);
                self.is_open = checked.summary.leaves_next_open();
                out.push(checked.packet);
            }
        }
        self.waiting.hand_on_acknowledgements(None, shared, out);
        self.floor = self.next;
        self.forget(shared);
    }

    /// Hands on whatever is next, and restores what can be restored, until nothing changes.
    pub(super) fn settle(&mut self, now: Instant, shared: &mut Shared, out: &mut Vec<Packet>) {
        loop {
            self.drain(now, shared, out);
            if self.repairs.is_empty() || !self.restore(now, shared, out) {
                break;
            }
        }
        let next = self.next;
        if self.repairs.iter().any(|repairs| repairs.end() == next) {
            // The block may have ended before it was full.
            self.align(next, shared);
        }
        self.drop_repairs(shared, |repairs| repairs.end() <= next);
    }

    fn drain(&mut self, now: Instant, shared: &mut Shared, out: &mut Vec<Packet>) {
        loop {
            if self.waiting.has_acknowledgements() {
                let is_complete = self.is_open && !self.waiting.has_data();
                self.waiting.hand_on_acknowledgements((!is_complete).then_some(self.next), shared, out);
            }
            let Some(number) = self.waiting.first() else { return };
            if number > self.next {
                if !self.is_open {
                    return;
                }
                let begins_message =
                    self.waiting.get(number).is_some_and(|held| held.checked.summary.position().is_start());
                if !begins_message {
                    self.begin_with_missing(number, shared);
                    return;
                }
                self.skip_to(number);
            }
            let Some(checked) = self.waiting.take(number, shared) else { return };
            self.hand_on_taken(checked, now, shared, out);
        }
    }

    /// Hands on the packet with number `next`, which did not wait.
    fn hand_on(&mut self, checked: Checked, now: Instant, shared: &mut Shared, out: &mut Vec<Packet>) {
        debug_assert!(self.waiting.get(self.next).is_none(), "what is next does not wait");
        self.hand_on_taken(checked, now, shared, out);
    }

    /// Hands on the packet with number `next`, and adds it to the sums of its block unless it ends it.
    fn hand_on_taken(&mut self, checked: Checked, now: Instant, shared: &mut Shared, out: &mut Vec<Packet>) {
        let number = self.next;
        let was_passed = self.passed_ahead.take(number, &checked);
        let position = checked.summary.position();
        let is_full = |passed: &Passed| number.saturating_sub(passed.base) >= u64::from(passed.code.block_packets());
        if self.passed.as_ref().is_some_and(|passed| passed.base > number) {
            // It was one of those that may not exist, and a header had told of a later block.
            self.end_block(shared);
        }
        let timeout = shared.config.timeout;
        if position.is_start()
            || self.passed.as_ref().is_some_and(|passed| is_full(passed) || passed.has_paused(timeout, now))
            || self.repairs.iter().any(|repairs| repairs.end() == number)
        {
            self.begin_block(number, true, shared);
        }
        let mut ends_block = position.is_end();
        if let Some(passed) = &mut self.passed {
            let place = number - passed.base;
            ends_block |= place + 1 == u64::from(passed.code.block_packets());
            if !ends_block {
                passed.note(now);
                passed.add(place as u8, &checked, shared);
            }
        }
        self.next += 1;
        self.floor = self.next;
        self.is_open = checked.summary.leaves_next_open();
        if ends_block {
            self.begin_block(number + 1, true, shared);
        }
        if was_passed {
            shared.counters.overtaken += 1;
        } else {
            out.push(checked.packet);
        }
    }

    /// Packets that wait, repair packets among them.
    pub(super) fn held_packets(&self) -> usize {
        self.waiting.count() + self.repairs.iter().map(|repairs| repairs.sums.len()).sum::<usize>()
    }

    /// The next packet has a later number. What is between may not exist.
    pub(super) fn skip_to(&mut self, number: u64) {
        debug_assert!(self.waiting.first().is_none_or(|first| first >= number), "a packet that waits is not skipped");
        self.next = self.next.max(number);
    }

    /// The message that a packet belongs to has begun with one that is missing: at least the one before it, or all from where a block
    /// begins that a header has told of.
    fn begin_with_missing(&mut self, number: u64, shared: &mut Shared) {
        let told =
            self.repairs.iter().map(|repairs| repairs.base).filter(|base| (self.next..number).contains(base)).min();
        self.skip_to(told.unwrap_or(number - 1));
        self.is_open = false;
        if let Some(base) = told.filter(|base| self.passed.as_ref().is_none_or(|passed| passed.base != *base)) {
            self.begin_block(base, true, shared);
        }
    }

    /// The next packet has an earlier number, of those that were skipped.
    pub(super) fn go_back(&mut self, number: u64) {
        self.next = number;
    }

    /// A block begins; whether all of its packets up to the next are in the sums.
    pub(super) fn begin_block(&mut self, base: u64, is_whole: bool, shared: &mut Shared) {
        self.end_block(shared);
        // The flow may go back to its floor.
        let floor = self.floor.min(self.next);
        self.passed_ahead.retain(|number| number >= floor);
        // A header may have told of a newer code already, while its own says what this block was sent with.
        let known = self.repairs.iter().find(|repairs| repairs.base == base);
        let code = known.map_or(self.code, |repairs| repairs.code);
        self.passed = Some(Passed::new(code, base, is_whole, self.is_proven));
    }

    /// Where the next block begins is not known.
    pub(super) fn end_block(&mut self, shared: &mut Shared) {
        if let Some(mut passed) = self.passed.take() {
            passed.give_up(shared);
        }
    }

    pub(super) fn drop_repairs(&mut self, shared: &mut Shared, is_done: impl Fn(&Repairs) -> bool) {
        let (done, rest) = std::mem::take(&mut self.repairs).into_iter().partition(is_done);
        self.repairs = rest;
        let done: Vec<Repairs> = done;
        done.into_iter().for_each(|repairs| repairs.release(shared));
    }
}
