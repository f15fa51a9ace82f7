//! The two halves of a case: what its sender does, and what its receiver does. In one process or in two.

use longhaul_reliable::{Connection, MessageReport, ReceiveTicket, SendTicket};
use longhaul_sdr::Memory;
use longhaul_time::Instant;

use super::case::{Case, CaseError};
use longhaul_runtime::with_sources;

/// Half of a case: messages that are in flight, each in a place of memory of its own, and what was said of those that
/// are done.
pub struct CaseHalf<Ticket> {
    case: Case,
    /// What is in each place.
    places: Vec<Option<(usize, Ticket)>>,
    next: usize,
    done: usize,
    reports: Vec<Option<MessageReport>>,
}

/// What the sender of a case does.
pub type CaseSender = CaseHalf<SendTicket>;
/// What the receiver of a case does.
pub type CaseReceiver = CaseHalf<ReceiveTicket>;

impl<Ticket> CaseHalf<Ticket> {
    /// With a memory of this many bytes, which nobody else uses meanwhile.
    pub fn new(case: &Case, memory_bytes: usize) -> Self {
        let place_bytes = case.message_bytes + case.slack_bytes;
        let places = memory_bytes.checked_div(place_bytes).unwrap_or(case.in_flight).clamp(1, case.in_flight);
        CaseHalf {
            case: *case,
            places: std::iter::repeat_with(|| None).take(places).collect(),
            next: 0,
            done: 0,
            reports: vec![None; case.messages],
        }
    }

    /// What is sent.
    pub(super) fn case(&self) -> &Case {
        &self.case
    }

    /// The message that was begun first of those that have not ended.
    pub(super) fn oldest(&mut self) -> Option<&mut Ticket> {
        let oldest = self.places.iter_mut().flatten().min_by_key(|(message, _)| *message);
        oldest.map(|(_, ticket)| ticket)
    }

    /// Take out what `look` has a report of, and begin others in the places that are free.
    pub(super) fn turn(
        &mut self,
        look: impl Fn(usize, &mut Ticket) -> Result<Option<MessageReport>, CaseError>,
        mut begin: impl FnMut(usize, usize) -> Result<Ticket, CaseError>,
    ) -> Result<(), CaseError> {
        let place_bytes = self.case.message_bytes + self.case.slack_bytes;
        for (index, place) in self.places.iter_mut().enumerate() {
            if let Some((message, ticket)) = place
                && let Some(report) = look(*message, ticket)?
            {
                self.reports[*message] = Some(report);
                self.done += 1;
                *place = None;
            }
            if place.is_none() && self.next < self.case.messages {
                *place = Some((self.next, begin(self.next, index * place_bytes)?));
                self.next += 1;
            }
        }
        Ok(())
    }

    /// Whether every message has arrived, as far as this end knows.
    pub fn is_done(&self) -> bool {
        self.done == self.case.messages
    }

    /// Messages that have.
    pub fn done_count(&self) -> usize {
        self.done
    }

    /// What was said of each message.
    pub fn into_reports(self) -> Vec<MessageReport> {
        self.reports.into_iter().flatten().collect()
    }
}

impl CaseSender {
    /// Send what can be sent, and look what is done.
    pub fn poll(&mut self, connection: &mut Connection, memory: &Memory, now: Instant) -> Result<(), CaseError> {
        let length = self.case.message_bytes;
        let look =
            |message, ticket: &mut SendTicket| ticket.take().transpose().map_err(|error| failed(message, &error));
        self.turn(look, |message, at| {
            let range = at..at + length;
            fill(&mut memory.write(range.clone()).map_err(|error| failed(message, &error))?, message as u64);
            connection.send(memory, range, now).map_err(|error| failed(message, &error))
        })
    }
}

impl CaseReceiver {
    /// Post what can be posted, and verify what has come.
    pub fn poll(&mut self, connection: &mut Connection, memory: &Memory) -> Result<(), CaseError> {
        let (length, slack) = (self.case.message_bytes, self.case.slack_bytes);
        self.turn(
            |message, ticket| {
                let Some(result) = ticket.take() else { return Ok(None) };
                let received = result.map_err(|error| failed(message, &error))?;
                verify(message, received.bytes(), received.missing().len(), length)?;
                Ok(Some(*received.report()))
            },
            |message, at| {
                let room = at..at + length + slack;
                memory.write(room.clone()).map_err(|error| failed(message, &error))?.fill(0);
                connection.post_receive(memory, room).map_err(|error| failed(message, &error))
            },
        )
    }
}

pub(super) fn failed(message: usize, error: &dyn std::error::Error) -> CaseError {
    CaseError::Failed { message, why: with_sources(error) }
}

/// Whether a message arrived as it was sent.
pub(super) fn verify(message: usize, bytes: &[u8], missing: usize, length: usize) -> Result<(), CaseError> {
    if bytes.len() != length || missing > 0 {
        return Err(CaseError::Incomplete { message, sent: length, received: bytes.len(), missing });
    }
    match first_wrong(bytes, message as u64) {
        Some(place) => Err(CaseError::Contents { message, place }),
        None => Ok(()),
    }
}

/// Eight bytes that encode a message and an offset in it.
fn word(message: u64, index: usize) -> [u8; 8] {
    (message.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (index as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93)).to_le_bytes()
}

/// What a message is made of.
pub(super) fn fill(bytes: &mut [u8], message: u64) {
    for (index, bytes) in bytes.chunks_mut(8).enumerate() {
        bytes.copy_from_slice(&word(message, index)[..bytes.len()]);
    }
}

fn first_wrong(bytes: &[u8], message: u64) -> Option<usize> {
    let is_wrong = |(index, bytes): &(usize, &[u8])| *bytes != &word(message, *index)[..bytes.len()];
    bytes.chunks(8).enumerate().find(is_wrong).map(|(index, _)| index * 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_byte_is_found() {
        let mut bytes = vec![0; 1001];
        fill(&mut bytes, 7);
        assert_eq!(first_wrong(&bytes, 7), None);
        assert_eq!(first_wrong(&bytes, 8), Some(0), "another message");
        for place in [0, 500, 1000] {
            bytes[place] ^= 1;
            assert_eq!(first_wrong(&bytes, 7), Some(place / 8 * 8));
            bytes[place] ^= 1;
        }
        bytes.copy_within(0..500, 8);
        assert_eq!(first_wrong(&bytes, 7), Some(8), "another place");
    }
}
