//! A receive of the program: its parts are opened one after another, and put together when they are there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use longhaul_sdr::memory::ReceivedBytes;
use longhaul_sdr::memory::WriteGuard;
use longhaul_sdr::{ReceiveError, RegisterError};
use longhaul_time::{Duration, Instant};
use longhaul_wire::record::{Offer, Refusal};

use super::{Incoming, IncomingMessage, Recovering};
use crate::bounded::{Ending, ReceiveBound, tidy};
use crate::choice::{self, MessageTerms};
use crate::ended::EndedPart;
use crate::jobs::{HANDED_OVER_BYTES_MIN, JobOf, Task};
use crate::moment::Moment;
use crate::parity_pool::ParityPool;
use crate::parts::{Cut, Part};
use crate::receives::{ExpectedChecksum, FILLED_AT_ONCE_BYTES_MAX, OpenReceive, ReceivedPart};
use crate::report::MessageReport;
use crate::terms::Terms;
use crate::ticket::{MessageError, Promise, Received};

/// Why a part could not be opened.
pub(super) enum NotOpened {
    /// That passes.
    Waits,
    Failed(MessageError),
}

impl NotOpened {
    fn of(error: ReceiveError, has_others: bool) -> Self {
        match error {
            ReceiveError::TableFull(_) => NotOpened::Waits,
            // The device's limit; others of ours give keys back when they are done.
            ReceiveError::Register(RegisterError::TooMany { .. }) if has_others => NotOpened::Waits,
            error => NotOpened::Failed(MessageError::Receive(Arc::new(error))),
        }
    }
}

impl IncomingMessage {
    /// Parts that its message takes, as far as it must be known to open the next; `None` when the sender has to tell first.
    pub(super) fn part_count(&self, part_bytes: u64, terms: &Terms) -> Option<u64> {
        match self.cut {
            Some(cut) => Some(cut.count()),
            // A longer message than this is refused.
            None if self.has_failed || self.range.len() as u64 <= part_bytes => Some(1),
            None => (self.numbers_used < terms.numbers_a_part()).then_some(1),
        }
    }

    /// Whether its sender is gone, and none of its parts is open.
    pub(super) fn is_abandoned(&self) -> bool {
        self.quiet_since.is_some() && self.open_parts == 0 && !self.has_failed
    }

    /// Use a number for nothing: the message has failed, and its sender uses that number for it too. There is nothing but a number that this
    /// could wait for, and nothing that it could fail with.
    pub(super) fn use_number(&mut self, terms: &Terms) -> Result<(), NotOpened> {
        let number = terms.queue_pair.skip_receive().ok_or(NotOpened::Waits)?;
        if self.numbers_used == 0 {
            self.first_number = number;
        }
        self.numbers_used += 1;
        Ok(())
    }

    /// The next part, if that is known, and bytes of its receive.
    fn next_part(&self, part_bytes: u64, terms: &Terms) -> (Option<Part>, u64) {
        let part = self.cut.map(|cut| cut.part(self.numbers_used / terms.numbers_a_part()));
        (part, part.map_or(part_bytes.min(self.range.len() as u64), |part| part.bytes()))
    }

    /// Memory that the next part's parity needs; none if it has no parity, or the memory already.
    pub(super) fn parity_needed(&self, part_bytes: u64, terms: &Terms) -> Option<u64> {
        let is_open = self.half_open.is_some() || self.spare.is_some();
        (!is_open).then(|| self.parity_room(self.next_part(part_bytes, terms).1, terms)).flatten()
    }

    /// Memory for the parity of a part that is not open yet.
    pub(super) fn spare_bytes(&self) -> Option<u64> {
        self.spare.as_ref().map(|memory| memory.len() as u64)
    }

    /// Post the next part, with at most `parity_bytes_max` bytes for its parity, or what it needs; `has_others`: this connection holds memory that it
    /// gives back.
    #[allow(clippy::too_many_arguments, reason = "each is another thing, and all of them are the caller's")]
    pub(super) fn open_part(
        &mut self,
        own: u64,
        part_bytes: u64,
        terms: &Terms,
        pool: &mut ParityPool,
        parity_bytes_max: u64,
        has_others: bool,
        now: Instant,
    ) -> Result<OpenReceive, NotOpened> {
        if self.open_parts >= terms.attributes.parts_open_max.max(1) {
            return Err(NotOpened::Waits);
        }
        // One that was posted before the ends were connected.
        if self.bound.is_some() && self.range.len() as u64 > part_bytes {
            let (bytes, room) = (self.range.len() as u64, part_bytes);
            return Err(NotOpened::Failed(MessageError::TooLong { bytes, room }));
        }
        // Without it, it has ended.
        let Some(message_memory) = &self.memory else { return Err(NotOpened::Waits) };
        let (part, room) = self.next_part(part_bytes, terms);
        let offset = part.map_or(0, |part| part.offset()) as usize;
        let data = match self.half_open.take() {
            Some(data) => data,
            None => {
                let start = self.range.start + offset;
                let data = terms.queue_pair.post_receive(message_memory, start..start + room as usize);
                let data = data.map_err(|error| NotOpened::of(error, has_others))?;
                if self.numbers_used == 0 {
                    self.first_number = data.number();
                }
                self.numbers_used += 1;
                data
            }
        };
        let mut parity = None;
        if let Some(bytes) = self.parity_room(room, terms) {
            let bytes = bytes as usize;
            let spare =
                self.spare.take().map_or_else(|| pool.take(terms.queue_pair.context(), bytes, parity_bytes_max), Ok);
            let posted = spare.map_err(ReceiveError::from).and_then(|memory| {
                let posted = terms.queue_pair.post_receive(&memory, 0..bytes);
                if posted.is_err() {
                    self.spare = Some(memory.clone());
                }
                Ok((posted?, memory))
            });
            match posted {
                Ok(posted) => parity = Some(posted),
                Err(error) => {
                    self.half_open = Some(data);
                    return Err(NotOpened::of(error, has_others));
                }
            }
            self.numbers_used += 1;
        } else if terms.numbers_a_part() > 1
            && let Err(error) = self.use_number(terms)
        {
            self.half_open = Some(data);
            return Err(error);
        }
        self.open_parts += 1;
        // A first part has nothing before its offer; of a later one packets may come first.
        let checksum = if self.has_checksums { ExpectedChecksum::Awaited } else { ExpectedChecksum::None };
        let is_best_effort = self.terms.as_ref().is_some_and(MessageTerms::is_best_effort);
        let bound = self.bound.take().or_else(|| is_best_effort.then(ReceiveBound::best_effort));
        #[cfg(feature = "mutations")]
        let bound = bound.map(|bound| bound.mutated(terms.attributes.mutation));
        let now = self.quiet_since.map_or(now, |since| since.min(now));
        let begun = part.zip(self.terms.clone());
        let receive = OpenReceive::new(own, begun, data, parity, checksum, part.map(|_| self.begun), now);
        Ok(receive.with_bound(bound, room))
    }

    /// Room for the parity of a part of at most this many bytes; none if its sender is known to send none.
    fn parity_room(&self, bytes: u64, terms: &Terms) -> Option<u64> {
        match &self.terms {
            Some(known) => known.has_parity().then(|| known.shape_of(bytes).parity_bytes),
            None => (terms.numbers_a_part() > 1).then(|| terms.parity_room(bytes)),
        }
    }

    /// The part that an offer is about and how it is brought over, or why the message is refused.
    pub(super) fn check_offer(
        &self,
        offer: &Offer<'_>,
        index: u64,
        part_bytes: u64,
        terms: &Terms,
    ) -> Result<(Part, MessageTerms), (Refusal, MessageError)> {
        let other = |ours, theirs| Err((Refusal::OtherScheme, MessageError::OtherScheme { ours, theirs }));
        // What its sender has said once holds.
        let is_other = |known: &MessageTerms| (known.name(), known.chunk_bytes()) != (offer.scheme, offer.chunk_bytes);
        let offered = match &self.terms {
            Some(known) if is_other(known) => Err(known.describe()),
            Some(known) => Ok(known.clone()),
            None => terms.offered(offer).ok_or_else(|| terms.describe()),
        };
        let offered = match offered {
            Ok(offered) => offered,
            Err(ours) => return other(ours, choice::describe(offer.scheme, offer.chunk_bytes)),
        };
        let (bytes, room) = (offer.length, self.range.len() as u64);
        if bytes > room {
            return Err((Refusal::TooLong, MessageError::TooLong { bytes, room }));
        }
        // Connected ends agree on parts; a peer that does not must not write where it should not.
        let part = self.cut.unwrap_or(Cut::new(bytes, part_bytes)).part(index);
        let is_cut_alike = offer.part_bytes == part_bytes || part.cut.count() == 1 && bytes <= offer.part_bytes;
        if !is_cut_alike || bytes != part.cut.whole_bytes() || offer.offset != part.offset() {
            let ours = offered.describe();
            let part_of = |cut_at: u64, offset: u64, bytes: u64| {
                format!("{ours}, messages cut at {cut_at} bytes, a part at {offset} of {bytes} bytes")
            };
            let ours = part_of(part_bytes, part.offset(), part.cut.whole_bytes());
            return other(ours, part_of(offer.part_bytes, offer.offset, bytes));
        }
        // A peer of another version may lay its parity out otherwise.
        let parity_bytes = offered.shape_of(part.bytes()).parity_bytes;
        let has_room = parity_bytes <= terms.parity_room(part.bytes());
        if offer.parity_bytes != parity_bytes || !has_room {
            let ours = offered.describe();
            let with_parity = |bytes: u64| format!("{ours}, with {bytes} bytes of parity");
            let most = parity_bytes.min(terms.parity_room(part.bytes()));
            return other(with_parity(most), with_parity(offer.parity_bytes));
        }
        Ok((part, offered))
    }

    pub(super) fn begin(&mut self, cut: Cut, terms: &MessageTerms, has_checksums: bool, moment: &Moment) {
        if self.cut.is_none() {
            (self.cut, self.has_checksums, self.begun) = (Some(cut), has_checksums, moment.now);
            self.terms = Some(terms.clone());
        }
    }

    /// A part is there. Returns whether the message is, and the program has it.
    pub(super) fn take_part(
        &mut self,
        index: u64,
        received: ReceivedPart,
        moment: &Moment,
        pool: &mut ParityPool,
    ) -> bool {
        let Some(cut) = self.cut else { return false };
        received.parity.into_iter().for_each(|memory| pool.put_back(memory));
        let offset = cut.part(index).offset();
        let shifted = received.missing.iter().map(|range| range.start + offset..range.end + offset);
        self.missing.extend(shifted);
        self.report.add_part(&received.report);
        self.ending = self.ending.max(received.ending);
        self.open_parts -= 1;
        self.parts_done += 1;
        self.keep(received.bytes);
        if self.parts_done < cut.count() {
            return false;
        }
        let (Some((_, bytes)), Some(promise)) = (self.pieces.pop_first(), self.promise.take()) else { return false };
        self.memory = None;
        let missing = tidy(std::mem::take(&mut self.missing));
        if !missing.is_empty() && !self.may_miss {
            // Its program would take what it gets for the message. The bytes are free before it hears that there are none for it.
            drop(bytes);
            promise.keep(Err(MessageError::Incomplete { missing }));
            return true;
        }
        let report = MessageReport { duration: moment.now - self.begun, ..self.report };
        promise.keep(Ok(Received::new(bytes, cut.whole_bytes(), missing, self.ending, report)));
        true
    }

    /// Its deadline has come before its part was open: it has ended, and its program gets what [`Expired`] says. It keeps nothing but its numbers.
    pub(super) fn end_early(&mut self, now: Instant, packet_bytes: u32) -> Option<(Promise<Received>, Expired)> {
        let bound = self.bound.take()?;
        // The key of a part that is half open goes before the program gets the memory.
        (self.half_open, self.spare, self.has_failed) = (None, None, true);
        let (promise, memory) = (self.promise.take()?, self.memory.take()?);
        let bytes = self.range.len() as u64;
        let missing: Vec<_> = (bytes > 0).then_some(0..bytes).into_iter().collect();
        self.ended_early = Some(EndedPart::new(Ending::Deadline, bytes, &missing, packet_bytes, 1));
        let memory = match memory.write_owned(self.range.clone()) {
            Ok(memory) => memory,
            Err(error) => {
                promise.keep(Err(MessageError::Receive(Arc::new(error.into()))));
                return None;
            }
        };
        let duration = now - self.posted.unwrap_or(now);
        let late = bound.deadline.map_or(Duration::ZERO, |deadline| now.saturating_since(deadline));
        let report = MessageReport { message_bytes: bytes, missing_bytes: bytes, duration, late, ..Default::default() };
        Some((promise, Expired { memory, bound, missing, report }))
    }

    /// Keep what was received, in one piece with its neighbours.
    fn keep(&mut self, mut bytes: ReceivedBytes) {
        const SIDE_BY_SIDE: &str = "parts of a receive lie side by side in its memory";
        let range = bytes.range();
        if let Some(next) = self.pieces.remove(&range.end) {
            bytes = bytes.join(next).map_err(|_| ()).expect(SIDE_BY_SIDE);
        }
        let before = self.pieces.range(..range.start).next_back().map(|(start, before)| (*start, before.range().end));
        if let Some((start, end)) = before
            && end == range.start
            && let Some(before) = self.pieces.remove(&start)
        {
            bytes = before.join(bytes).map_err(|_| ()).expect(SIDE_BY_SIDE);
        }
        self.pieces.insert(bytes.range().start, bytes);
    }
}

/// A receive that has ended before it had a number: all of its bytes are missing.
pub(super) struct Expired {
    memory: WriteGuard<'static>,
    bound: ReceiveBound,
    missing: Vec<Range<u64>>,
    report: MessageReport,
}

impl Expired {
    /// Bytes to fill.
    pub(super) fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Fill them, on any thread.
    pub(super) fn fill(self) -> Received {
        let Expired { mut memory, bound, missing, report } = self;
        bound.fill(&mut memory, &missing);
        Received::of_nothing(memory, missing, report)
    }
}

/// One that has ended, and whose memory is being filled.
pub(super) struct Filling {
    /// Dropped first: it gives the memory back before the program hears that its message is over.
    task: Task<Received>,
    promise: Promise<Received>,
}

impl Incoming {
    /// Bounded receives that wait for a number, or for memory for parity, end by their deadlines, too: with nothing. They take their numbers all the
    /// same, so that each message finds the receive that was meant for it. Returns the messages that are over.
    pub(crate) fn expire_waiting(&mut self, now: Instant, terms: &Terms) -> u64 {
        let due: Vec<u64> = self.waiting_deadlines.due(now).collect();
        let mut over = 0;
        for own in due {
            self.waiting_deadlines.set(own, None);
            let Some(message) = self.messages.get_mut(&own) else { continue };
            let was_open = message.promise.is_some();
            let Some((promise, expired)) = message.end_early(now, terms.packet_bytes()) else {
                over += u64::from(was_open && message.promise.is_none());
                continue;
            };
            // As with others: only one at a time, and not much. Thousands may share a deadline, so small ones are handed over too.
            let bytes = expired.bytes();
            let is_at_once = self.filled_at != now && bytes as u64 <= FILLED_AT_ONCE_BYTES_MAX;
            self.filled_at = if is_at_once { now } else { self.filled_at };
            let bytes = if is_at_once { 0 } else { bytes.max(HANDED_OVER_BYTES_MIN) };
            let task = terms.jobs.start(JobOf::Expired(own), bytes, move |_| expired.fill());
            self.filling.insert(own, Filling { task, promise });
            over += self.on_filled(own);
        }
        over
    }

    /// The memory of a receive may have been filled. Returns the messages that are over.
    pub(crate) fn on_filled(&mut self, own: u64) -> u64 {
        let Some(received) = self.filling.get_mut(&own).and_then(|filling| filling.task.take()) else { return 0 };
        if let Some(filling) = self.filling.remove(&own) {
            filling.promise.keep(Ok(received));
        }
        1
    }

    /// Everything has failed.
    pub(super) fn fail_filling(&mut self, error: &MessageError) {
        for Filling { task, promise } in std::mem::take(&mut self.filling).into_values() {
            drop(task);
            promise.keep(Err(error.clone()));
        }
    }
}

/// Parts that may have memory whatever the bound: one can arrive while the one before is completed.
const HOLDERS_MIN: usize = 2;

/// Memory of each part that has some: it is open, or being completed.
fn held(open: &BTreeMap<u64, Box<OpenReceive>>, recovering: &BTreeMap<u64, Recovering>) -> impl Iterator<Item = u64> {
    let open = open.values().filter_map(|receive| receive.parity_memory_bytes());
    open.chain(recovering.values().filter_map(|part| part.parity_bytes))
}

/// Bytes that the next part's parity may have; `None` if it needs more than that, and has to wait for those before.
pub(super) fn parity_left(
    open: &BTreeMap<u64, Box<OpenReceive>>,
    recovering: &BTreeMap<u64, Recovering>,
    needed: Option<u64>,
    terms: &Terms,
) -> Option<u64> {
    let Some(needed) = needed else { return Some(0) };
    let (holders, bytes) = held(open, recovering).fold((0, 0), |(holders, all), bytes| (holders + 1, all + bytes));
    let left = terms.attributes.parity_bytes_max.saturating_sub(bytes);
    (holders < HOLDERS_MIN || needed <= left).then_some(left)
}

impl Incoming {
    /// Memory for the parity of all that is received.
    pub(crate) fn parity_bytes(&self) -> u64 {
        let spare = self.messages.get(&self.opening).and_then(|message| message.spare_bytes());
        held(&self.open, &self.recovering).chain(spare).sum()
    }
}
