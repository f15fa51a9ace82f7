//! What the receiving half of a reliable connection knows.

use std::collections::VecDeque;

use longhaul_wire::{NakCode, Psn, Syndrome};

/// "No end-to-end credits": the sender is held back by receiver-not-ready answers alone (IBTA 9.7.7.2).
pub(crate) const ACKNOWLEDGE: Syndrome = Syndrome::ACK_WITHOUT_CREDITS;

/// What the receiving half of a reliable connection knows beyond [`Responder`](crate::receive::message::Responder).
#[derive(Default)]
pub(crate) struct ReliableResponder {
    /// Messages carried out so far, modulo 2^24; goes into acknowledgements.
    pub(crate) message_sequence_number: u32,
    /// A negative acknowledgement was sent; what follows is dropped until the expected packet comes.
    pub(crate) is_negative_sent: bool,
    /// The highest packet that was dropped because it came too early, until it has come again.
    pub(crate) dropped_early: Option<Psn>,
    /// An acknowledgement that is to be sent. Later ones take its place: acknowledgements are cumulative.
    pub(crate) answer: Option<Syndrome>,
    /// What the acknowledgement is about, when that is neither the last packet carried out nor the next one expected.
    pub(crate) answer_psn: Option<Psn>,
    /// The latest READs and atomics, in order: they may have to be answered, or answered again.
    pub(crate) responses: VecDeque<Response>,
    /// Whether some of them are to be sent.
    pub(crate) has_unsent_responses: bool,
}

impl ReliableResponder {
    pub(crate) const NEW: Self = ReliableResponder {
        message_sequence_number: 0,
        is_negative_sent: false,
        dropped_early: None,
        answer: None,
        answer_psn: None,
        responses: VecDeque::new(),
        has_unsent_responses: false,
    };

    pub(crate) fn count_message(&mut self) {
        self.message_sequence_number = (self.message_sequence_number + 1) & 0xff_ffff;
    }
}

/// A READ or an atomic of the peer's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    pub(crate) first_psn: Psn,
    pub(crate) packet_count: u32,
    pub(crate) answer: Answer,
    /// Messages carried out, this one included, but none that was carried out while it waited.
    pub(crate) message_sequence_number: u32,
    /// It has been answered in full. What is repeated afterwards does not take part in the count of what is outstanding: a new
    /// request says that the oldest answer has arrived.
    pub(crate) is_answered: bool,
    /// The packet from which on it is being answered.
    pub(crate) begin: u32,
    /// The next packet to send; beyond `end` when it is answered.
    pub(crate) next: u32,
    pub(crate) end: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Read { address: u64, key: u32, length: u32 },
    Atomic { original: u64 },
}

impl Response {
    pub(crate) fn new(first_psn: Psn, packet_count: u32, answer: Answer, message_sequence_number: u32) -> Self {
        let (begin, next, end) = (0, 0, packet_count);
        Response { first_psn, packet_count, answer, message_sequence_number, is_answered: false, begin, next, end }
    }

    pub(crate) fn is_unsent(&self) -> bool {
        self.next < self.end
    }

    /// The packet's place in it, if the packet is one of its.
    pub(crate) fn index_of(&self, psn: Psn) -> Option<u32> {
        u32::try_from(psn.distance_from(self.first_psn)).ok().filter(|index| *index < self.packet_count)
    }
}

impl ReliableResponder {
    /// To be called after every change of the responses. (Asked for with every packet, so it is not looked up then.)
    pub(crate) fn note_unsent(&mut self) {
        self.has_unsent_responses = self.responses.iter().any(Response::is_unsent);
    }

    /// Answer nothing more, unless the peer is to be told why: then what came before that is answered first.
    pub(crate) fn forget_responses(&mut self) {
        let is_refusing = matches!(self.answer, Some(Syndrome::Nak(code)) if code != NakCode::PsnSequenceError);
        if !is_refusing {
            self.responses.clear();
            self.note_unsent();
        }
    }
}
