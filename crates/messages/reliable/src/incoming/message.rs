//! A receive of the program: its parts are opened one after another, and put together when they are there.

use std::collections::BTreeMap;
use std::sync::Arc;

use longhaul_sdr::memory::ReceivedBytes;
use longhaul_sdr::{ReceiveError, RegisterError};
use longhaul_time::{Duration, Instant};
use longhaul_wire::record::{Offer, Refusal};

use super::IncomingMessage;
use crate::bounded::{Ending, ReceiveBound, tidy};
use crate::choice::{self, MessageTerms};
use crate::ended::EndedPart;
use crate::moment::Moment;
use crate::parity_pool::ParityPool;
use crate::parts::{Cut, Part};
use crate::receives::{ExpectedChecksum, OpenReceive, ReceivedPart};
use crate::report::MessageReport;
use crate::terms::Terms;
use crate::ticket::{MessageError, Received};

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

    /// Use a number for nothing: the message has failed, and its sender uses that number for it too.
    pub(super) fn use_number(&mut self, terms: &Terms) -> Result<(), NotOpened> {
        // Nothing needs neither memory nor a key: only the table can be full.
        let nothing = terms.queue_pair.post_receive(&self.memory, 0..0).map_err(|_| NotOpened::Waits)?;
        if self.numbers_used == 0 {
            self.first_number = nothing.number();
        }
        self.numbers_used += 1;
        Ok(())
    }

    /// Post the next part; `has_others`: this connection holds memory that it gives back.
    pub(super) fn open_part(
        &mut self,
        own: u64,
        part_bytes: u64,
        terms: &Terms,
        pool: &mut ParityPool,
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
        let part = self.cut.map(|cut| cut.part(self.numbers_used / terms.numbers_a_part()));
        let offset = part.map_or(0, |part| part.offset()) as usize;
        let room = part.map_or(part_bytes.min(self.range.len() as u64), |part| part.bytes());
        let data = match self.half_open.take() {
            Some(data) => data,
            None => {
                let start = self.range.start + offset;
                let data = terms.queue_pair.post_receive(&self.memory, start..start + room as usize);
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
            let spare = self.spare.take().map_or_else(|| pool.take(terms.queue_pair.context(), bytes), Ok);
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

    /// Whether its parity may have memory before it is known whether there is any.
    pub(super) fn has_room_ahead(
        &self,
        part_bytes: u64,
        terms: &Terms,
        open: &BTreeMap<u64, Box<OpenReceive>>,
    ) -> bool {
        if self.terms.is_some() || self.half_open.is_some() || terms.numbers_a_part() == 1 {
            return true;
        }
        let ahead: u64 = open.values().map(|receive| receive.parity_ahead_bytes()).sum();
        let own = terms.parity_room(part_bytes.min(self.range.len() as u64));
        ahead == 0 || ahead + own <= terms.attributes.parity_ahead_bytes_max
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
        let missing = tidy(std::mem::take(&mut self.missing));
        let report = MessageReport { duration: moment.now - self.begun, ..self.report };
        promise.keep(Ok(Received::new(bytes, cut.whole_bytes(), missing, self.ending, report)));
        true
    }

    /// Its deadline has come before its part was open. Returns whether it has ended now for the program.
    pub(super) fn end_early(&mut self, now: Instant, packet_bytes: u32) -> bool {
        let (Some(promise), Some(bound)) = (self.promise.take(), self.bound.take()) else { return false };
        (self.half_open, self.spare, self.has_failed) = (None, None, true);
        let bytes = self.range.len() as u64;
        let missing: Vec<_> = (bytes > 0).then_some(0..bytes).into_iter().collect();
        self.ended_early = Some(EndedPart::new(Ending::Deadline, bytes, &missing, packet_bytes, 1));
        let outcome = self.memory.write_owned(self.range.clone()).map(|mut guard| {
            bound.fill(&mut guard, &missing);
            let duration = now - self.posted.unwrap_or(now);
            let late = bound.deadline.map_or(Duration::ZERO, |deadline| now.saturating_since(deadline));
            let report =
                MessageReport { message_bytes: bytes, missing_bytes: bytes, duration, late, ..Default::default() };
            Received::of_nothing(guard, missing, report)
        });
        promise.keep(outcome.map_err(|error| MessageError::Receive(Arc::new(error.into()))));
        true
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
