//! What the sending half of a reliable connection knows.

use std::collections::VecDeque;
use std::time::Duration;

use longhaul_time::Instant;
use longhaul_verbs::CompletionStatus;
use longhaul_wire::Psn;

/// What go-back-N needs to know beyond the cursor.
pub(crate) struct ReliableRequester {
    pub(crate) oldest_unacknowledged: Psn,
    /// What all requests that were ever started took of the window towards the peer.
    pub(crate) next_charge_bytes: u64,
    /// One beyond the highest sequence number that was ever sent or asked for.
    pub(crate) sent_end: Psn,
    /// One beyond the highest that asked for an acknowledgement. Only those can be waited for.
    pub(crate) asked_end: Psn,
    /// The last packet that was sent asked for an acknowledgement.
    pub(crate) has_asked_last: bool,
    /// A loss of this packet has been acted on. Copies of the news say nothing new: a peer names a gap once.
    pub(crate) went_back_to: Option<Psn>,
    /// Time-outs and sequence errors since the last progress.
    pub(crate) retries: u8,
    /// Times that the receiver was not ready since the last progress.
    pub(crate) not_ready_retries: u8,
    /// The request at the cursor cannot be sent for a local reason; it fails so once those before it are done.
    pub(crate) stall: Option<CompletionStatus>,
    /// Silence until then is a time-out.
    pub(crate) acknowledge_deadline: Instant,
    /// The receiver is not ready; nothing is sent until then.
    pub(crate) not_ready_until: Instant,
    /// A packet whose round trip is being measured. Dropped when anything is sent twice (Karn's rule).
    pub(crate) round_trip_probe: Option<(Psn, Instant)>,
    /// Parts of READs, and atomics, that were asked for and not answered: one beyond the last packet of each answer. What is
    /// repeated is cut in the same places. Never more than the peer keeps resources for.
    pub(crate) questions: VecDeque<Psn>,
    /// How many of them, from the front, are before the cursor.
    pub(crate) questions_sent: usize,
}

impl Default for ReliableRequester {
    fn default() -> Self {
        ReliableRequester::NEW
    }
}

impl ReliableRequester {
    pub(crate) const NEW: Self = ReliableRequester {
        oldest_unacknowledged: Psn::new(0),
        next_charge_bytes: 0,
        sent_end: Psn::new(0),
        asked_end: Psn::new(0),
        has_asked_last: false,
        went_back_to: None,
        retries: 0,
        not_ready_retries: 0,
        stall: None,
        acknowledge_deadline: Instant::FAR_FUTURE,
        not_ready_until: Instant::FAR_FUTURE,
        round_trip_probe: None,
        questions: VecDeque::new(),
        questions_sent: 0,
    };

    /// Begin at this sequence number.
    pub(crate) fn start(&mut self, first: Psn) {
        *self = ReliableRequester { oldest_unacknowledged: first, sent_end: first, asked_end: first, ..Self::NEW };
    }

    /// Nothing is in flight any more.
    pub(crate) fn stop(&mut self) {
        self.went_back_to = None;
        self.acknowledge_deadline = Instant::FAR_FUTURE;
        self.not_ready_until = Instant::FAR_FUTURE;
        self.round_trip_probe = None;
        self.stall = None;
        self.questions.clear();
        self.questions_sent = 0;
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.acknowledge_deadline.min(self.not_ready_until)
    }

    /// Packets that have arrived of the request that begins at `first` and is at the front of the send queue.
    pub(crate) fn acknowledged_packets(&self, first: Psn) -> u32 {
        self.oldest_unacknowledged.distance_from(first).max(0) as u32
    }

    pub(crate) fn has_asked(&self) -> bool {
        self.asked_end.distance_from(self.oldest_unacknowledged) > 0
    }

    pub(crate) fn restart_timer(&mut self, now: Instant, encoded_timeout: u8) {
        self.acknowledge_deadline = match acknowledge_timeout(encoded_timeout) {
            Some(timeout) => now + timeout,
            None => Instant::FAR_FUTURE,
        };
    }

    pub(crate) fn is_waiting_for_receiver(&self) -> bool {
        self.not_ready_until != Instant::FAR_FUTURE
    }

    /// Whether an answer of the peer's is outstanding.
    pub(crate) fn has_questions(&self) -> bool {
        !self.questions.is_empty()
    }

    /// Forget questions that have been answered.
    pub(crate) fn settle_questions(&mut self) {
        while let Some(end) = self.questions.front()
            && end.distance_from(self.oldest_unacknowledged) <= 0
        {
            self.questions.pop_front();
            self.questions_sent = self.questions_sent.saturating_sub(1);
        }
    }

    /// Where a question that was asked before, and of which `psn` is a packet, ends.
    pub(crate) fn question_end(&self, psn: Psn) -> Option<Psn> {
        self.questions.iter().copied().find(|end| end.distance_from(psn) > 0)
    }

    /// The cursor has passed a question that ends at `end`.
    pub(crate) fn note_question(&mut self, end: Psn) {
        if self.questions.back().is_none_or(|last| end.distance_from(*last) > 0) {
            self.questions.push_back(end);
        }
        self.questions_sent += 1;
    }
}

/// 4.096 µs · 2^n (IBTA 9.7.6.1.3); 0 is never.
pub(crate) fn acknowledge_timeout(encoded: u8) -> Option<Duration> {
    (encoded > 0).then(|| Duration::from_nanos(4096 << encoded.min(31)))
}
