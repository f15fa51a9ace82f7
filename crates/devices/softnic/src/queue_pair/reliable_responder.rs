//! What the receiving half of a reliable connection knows.

use std::collections::VecDeque;

use longhaul_wire::{NakCode, Position, Psn, Syndrome};

/// "No end-to-end credits": the sender is held back by receiver-not-ready answers alone (IBTA 9.7.7.2).
pub(crate) const ACKNOWLEDGE: Syndrome = Syndrome::ACK_WITHOUT_CREDITS;

/// What the receiving half of a reliable connection knows beyond [`Responder`](super::Responder).
#[derive(Default)]
pub(crate) struct ReliableResponder {
    /// Messages carried out so far, modulo 2^24; goes into acknowledgements.
    message_sequence_number: u32,
    /// A negative acknowledgement was sent; what follows is dropped until the expected packet comes.
    is_negative_sent: bool,
    /// The highest packet that was dropped because it came too early, until it has come again.
    dropped_early: Option<Psn>,
    /// An acknowledgement that is to be sent. Later ones take its place: acknowledgements are cumulative.
    answer: Option<Syndrome>,
    /// What the acknowledgement is about, when that is neither the last packet carried out nor the next one expected.
    answer_psn: Option<Psn>,
    /// The latest READs and atomics, in order: they may have to be answered, or answered again.
    responses: VecDeque<Response>,
    /// Whether some of them are to be sent.
    has_unsent_responses: bool,
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

    #[inline]
    pub(crate) fn message_sequence_number(&self) -> u32 {
        self.message_sequence_number
    }

    #[inline]
    pub(crate) fn count_message(&mut self) {
        self.message_sequence_number = (self.message_sequence_number + 1) & 0xff_ffff;
    }

    /// Whether an acknowledgement is to be sent, positive or negative.
    #[inline]
    pub(crate) fn has_answer(&self) -> bool {
        self.answer.is_some()
    }

    /// The acknowledgement that is to be sent, and which packet it is about.
    pub(crate) fn take_answer(&mut self, expected_psn: Psn) -> Option<(Syndrome, Psn)> {
        let syndrome = self.answer.take()?;
        // A positive answer is about the last packet carried out, a negative one about the packet that is expected.
        let psn = self.answer_psn.take().unwrap_or(match syndrome {
            Syndrome::Ack { .. } => expected_psn.back(1),
            _ => expected_psn,
        });
        Some((syndrome, psn))
    }

    /// A packet has come that was carried out before.
    pub(crate) fn acknowledge_again(&mut self) {
        // A negative answer that waits is about something later, and stays.
        if matches!(self.answer, None | Some(Syndrome::Ack { .. })) {
            self.answer = Some(ACKNOWLEDGE);
        }
    }

    /// A packet has come too early, and is dropped. Whether the peer is told: once, until the expected packet comes.
    pub(crate) fn drop_early(&mut self, psn: Psn) -> bool {
        if self.dropped_early.is_none_or(|highest| psn.distance_from(highest) > 0) {
            self.dropped_early = Some(psn);
        }
        if self.is_negative_sent {
            return false;
        }
        self.is_negative_sent = true;
        self.answer = Some(Syndrome::Nak(NakCode::PsnSequenceError));
        true
    }

    /// The expected packet has come. Whether a sequence error has still to be sent.
    #[inline]
    pub(crate) fn begin_expected(&mut self) -> bool {
        self.is_negative_sent = false;
        matches!(self.answer, Some(Syndrome::Nak(NakCode::PsnSequenceError)))
    }

    /// It has been carried out. A question's answer acknowledges it, and everything before.
    #[inline]
    pub(crate) fn finish_expected(&mut self, next: Psn, has_unsent_gap: bool, is_question: bool, asks: bool) {
        self.dropped_early = self.dropped_early.filter(|highest| highest.distance_from(next) >= 0);
        if has_unsent_gap && self.dropped_early.is_some() {
            // The packet that was missing came with the next batch, but what was dropped behind it is still missing. The
            // sequence error that waits will name the packet that is expected now, and acknowledge this one.
            self.is_negative_sent = true;
        } else if is_question {
            self.answer = None;
        } else if asks || self.answer.is_some() {
            self.answer = Some(ACKNOWLEDGE);
        }
    }

    /// Tell the peer that no receive is posted; what follows is dropped.
    pub(crate) fn answer_not_ready(&mut self, timer: u8) {
        self.answer = Some(Syndrome::RnrNak { timer });
        self.is_negative_sent = true;
    }

    /// Tell the peer that its request cannot be carried out.
    pub(crate) fn refuse(&mut self, code: NakCode) {
        self.answer = Some(Syndrome::Nak(code));
    }

    /// The answer is about this packet.
    pub(crate) fn answer_about(&mut self, psn: Psn) {
        self.answer_psn = Some(psn);
    }

    /// Whether answers to READs or atomics are to be sent.
    #[inline]
    pub(crate) fn has_unsent_responses(&self) -> bool {
        self.has_unsent_responses
    }

    /// Whether another READ or atomic would be more than `most` that wait for their answers.
    pub(crate) fn is_full(&self, most: usize) -> bool {
        let responses = &self.responses;
        most == 0 || responses.len() >= most && responses.front().is_some_and(|oldest| !oldest.is_answered)
    }

    /// A READ or an atomic has been accepted; at most `most` of them are kept.
    pub(crate) fn keep(&mut self, first_psn: Psn, packet_count: u32, answer: Answer, most: usize) {
        self.count_message();
        while self.responses.len() >= most {
            self.responses.pop_front();
        }
        self.responses.push_back(Response::new(first_psn, packet_count, answer, self.message_sequence_number));
        self.note_unsent();
    }

    /// Answer again, from the packet `psn` on up to what `end` says, which is given the answer and the packet's place in it.
    pub(crate) fn repeat(&mut self, psn: Psn, end: impl FnOnce(Answer, u32) -> Option<u32>) {
        let mut known = self.responses.iter_mut().rev();
        let Some((response, index)) = known.find_map(|known| known.index_of(psn).map(|index| (known, index))) else {
            return;
        };
        if let Some(end) = end(response.answer, index) {
            (response.begin, response.next, response.end) = (index, index, end);
            self.note_unsent();
        }
    }

    /// Change the answer of an atomic that was carried out.
    #[cfg(feature = "mutations")]
    pub(crate) fn replace_original(&mut self, psn: Psn, original: u64) {
        if let Some(response) = self.responses.iter_mut().rev().find(|known| known.first_psn == psn) {
            response.answer = Answer::Atomic { original };
        }
    }

    /// The answer that is to be sent next, and its place.
    pub(crate) fn next_unsent(&self) -> Option<(usize, Response)> {
        let place = self.responses.iter().position(Response::is_unsent)?;
        Some((place, self.responses[place]))
    }

    /// The next packet of an answer has been sent.
    pub(crate) fn note_sent(&mut self, place: usize) {
        let response = &mut self.responses[place];
        response.next += 1;
        response.is_answered |= response.next == response.packet_count;
        self.note_unsent();
    }

    /// Send nothing more of an answer.
    pub(crate) fn skip(&mut self, place: usize) {
        let response = &mut self.responses[place];
        response.next = response.end;
        self.note_unsent();
    }

    /// Answer nothing more.
    pub(crate) fn clear_responses(&mut self) {
        self.responses.clear();
        self.note_unsent();
    }

    /// Answer nothing more, unless the peer is to be told why: then what came before that is answered first.
    pub(crate) fn forget_responses(&mut self) {
        let is_refusing = matches!(self.answer, Some(Syndrome::Nak(code)) if code != NakCode::PsnSequenceError);
        if !is_refusing {
            self.clear_responses();
        }
    }

    /// To be called after every change of the responses. (Asked for with every packet, so it is not looked up then.)
    fn note_unsent(&mut self) {
        self.has_unsent_responses = self.responses.iter().any(Response::is_unsent);
    }
}

/// A READ or an atomic of the peer's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Response {
    first_psn: Psn,
    packet_count: u32,
    answer: Answer,
    /// Messages carried out, this one included, but none that was carried out while it waited.
    message_sequence_number: u32,
    /// It has been answered in full. What is repeated afterwards does not take part in the count of what is outstanding: a new
    /// request says that the oldest answer has arrived.
    is_answered: bool,
    /// The packet from which on it is being answered.
    begin: u32,
    /// The next packet to send; beyond `end` when it is answered.
    next: u32,
    end: u32,
}

/// What the answer to a READ or an atomic is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Read { address: u64, key: u32, length: u32 },
    Atomic { original: u64 },
}

impl Response {
    fn new(first_psn: Psn, packet_count: u32, answer: Answer, message_sequence_number: u32) -> Self {
        let (begin, next, end) = (0, 0, packet_count);
        Response { first_psn, packet_count, answer, message_sequence_number, is_answered: false, begin, next, end }
    }

    fn is_unsent(&self) -> bool {
        self.next < self.end
    }

    pub(crate) fn answer(&self) -> Answer {
        self.answer
    }

    pub(crate) fn message_sequence_number(&self) -> u32 {
        self.message_sequence_number
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.is_answered
    }

    /// The packet to send next: its place in the answer, and its sequence number.
    pub(crate) fn next(&self) -> (u32, Psn) {
        (self.next, self.first_psn.add(self.next))
    }

    /// Where that packet stands in what is being answered.
    pub(crate) fn next_position(&self) -> Position {
        Position::of(self.next == self.begin, self.next + 1 == self.end)
    }

    /// The packet's place in it, if the packet is one of its.
    fn index_of(&self, psn: Psn) -> Option<u32> {
        u32::try_from(psn.distance_from(self.first_psn)).ok().filter(|index| *index < self.packet_count)
    }
}
