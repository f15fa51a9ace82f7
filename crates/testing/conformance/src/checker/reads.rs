//! Judging what READs bring.

use super::contents::MessageNumber;
use super::facts::{EndNumber, ReadFacts, Response, SendFacts, Target};
use super::judge::Judge;
use super::memory::{Arrival, Place, ReadMemory, RegionNumber};
use super::violation::Rule;

impl Judge {
    /// A READ was posted; it is the message that [`Judge::next_message`] returned.
    pub fn posted_read(&mut self, from: EndNumber, facts: SendFacts, read: ReadFacts) -> MessageNumber {
        let packet_bytes = self.ends[from.0].facts.packet_bytes;
        let mut position = 0;
        for piece in &read.local {
            self.memory.open(
                piece.place,
                Arrival {
                    contents: read.contents,
                    contents_offset: read.contents_offset + position,
                    length: piece.length,
                    packet_bytes,
                    packet_phase: position,
                    is_read: true,
                },
            );
            position += piece.length;
        }
        let response = Response::Read { source: read.source, local: read.local };
        self.posted(from, facts, response)
    }

    /// The keys of memory that READs may be reading were revoked: those that had no answer yet may be refused.
    pub(super) fn revoked_source(&mut self, region: RegionNumber) {
        for end in &self.ends {
            for message in &end.sent {
                let message = &mut self.messages[*message as usize];
                let reads = matches!(message.response, Response::Read { source: Some(source), .. } if source == region);
                if reads && message.ending.is_none() {
                    message.target = Target::Revoked { was_whole: true };
                }
            }
        }
    }

    /// A request succeeded: what it was to bring is there.
    pub(super) fn response_came(&mut self, number: MessageNumber, memory: &impl ReadMemory) {
        match std::mem::replace(&mut self.messages[number as usize].response, Response::None) {
            Response::None => {}
            Response::Read { local, source } => {
                self.messages[number as usize].response = Response::Read { source, local: Vec::new() };
                for piece in local {
                    if let Err(difference) = self.memory.settle(piece.place, memory) {
                        let Place { region, offset } = difference.place;
                        self.accuse(
                            Rule::Read,
                            format!("{} in region {} offset {offset}", self.describe(number), region.0),
                            difference.expected,
                            difference.got,
                        );
                    }
                }
            }
            Response::Atomic { operation, result } => self.atomic_came(number, operation, &result, memory),
        }
    }

    /// A request failed or was forgotten: some packets of what it was to bring may be there, and no more will come.
    pub(super) fn response_is_lost(&mut self, number: MessageNumber, memory: &impl ReadMemory) {
        match std::mem::replace(&mut self.messages[number as usize].response, Response::None) {
            Response::None => {}
            Response::Read { local, .. } => {
                for piece in local {
                    if let Err(difference) = self.memory.close(piece.place, memory) {
                        let what = format!("memory of {}, which failed", self.describe(number));
                        self.accuse_memory(&difference, &what);
                    }
                }
            }
            // Later values of the word show whether it has happened.
            Response::Atomic { operation, result } => self.atomic_is_lost(number, operation, &result, memory),
        }
    }
}
