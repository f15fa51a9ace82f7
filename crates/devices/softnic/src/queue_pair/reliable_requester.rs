//! What the sending half of a reliable connection knows.

use std::collections::VecDeque;
use std::time::Duration;

use longhaul_time::Instant;
use longhaul_verbs::CompletionStatus;
use longhaul_wire::Psn;

/// What go-back-N needs to know beyond the cursor.
pub(crate) struct ReliableRequester {
    oldest_unacknowledged: Psn,
    /// What all requests that were ever started took of the window towards the peer.
    next_charge_bytes: u64,
    /// One beyond the highest sequence number that was ever sent or asked for.
    sent_end: Psn,
    /// One beyond the highest that asked for an acknowledgement. Only those can be waited for.
    asked_end: Psn,
    /// The last packet that was sent asked for an acknowledgement.
    has_asked_last: bool,
    /// A loss of this packet has been acted on. Copies of the news say nothing new: a peer names a gap once.
    went_back_to: Option<Psn>,
    /// Time-outs and sequence errors since the last progress.
    retries: u8,
    /// Times that the receiver was not ready since the last progress.
    not_ready_retries: u8,
    /// The request at the cursor cannot be sent for a local reason; it fails so once those before it are done.
    stall: Option<CompletionStatus>,
    /// Silence until then is a time-out.
    acknowledge_deadline: Instant,
    /// The receiver is not ready; nothing is sent until then.
    not_ready_until: Instant,
    /// Parts of READs, and atomics, that were asked for and not answered: one beyond the last packet of each answer. What is
    /// repeated is cut in the same places. Never more than the peer keeps resources for.
    questions: VecDeque<Psn>,
    /// How many of them, from the front, are before the cursor.
    questions_sent: usize,
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
        self.stall = None;
        self.questions.clear();
        self.questions_sent = 0;
    }

    #[inline]
    pub(crate) fn oldest_unacknowledged(&self) -> Psn {
        self.oldest_unacknowledged
    }

    /// One beyond the highest sequence number that was ever sent or asked for.
    #[inline]
    pub(crate) fn sent_end(&self) -> Psn {
        self.sent_end
    }

    /// What all requests that were ever started took of the window towards the peer.
    pub(crate) fn next_charge_bytes(&self) -> u64 {
        self.next_charge_bytes
    }

    /// A request is started that takes so much of the window. What all before it took.
    pub(crate) fn take_charge(&mut self, bytes: u64) -> u64 {
        let before = self.next_charge_bytes;
        self.next_charge_bytes += bytes;
        before
    }

    /// Whether the last packet that was sent asked for an acknowledgement.
    #[inline]
    pub(crate) fn has_asked_last(&self) -> bool {
        self.has_asked_last
    }

    /// Packets that are in flight before this one.
    #[inline]
    pub(crate) fn in_flight_before(&self, psn: Psn) -> u32 {
        psn.distance_from(self.oldest_unacknowledged) as u32
    }

    /// Packets that have arrived of the request that begins at `first` and is at the front of the send queue.
    pub(crate) fn acknowledged_packets(&self, first: Psn) -> u32 {
        self.oldest_unacknowledged.distance_from(first).max(0) as u32
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.acknowledge_deadline.min(self.not_ready_until)
    }

    #[inline]
    pub(crate) fn is_waiting_for_receiver(&self) -> bool {
        self.not_ready_until != Instant::FAR_FUTURE
    }

    /// Why the request at the cursor cannot be sent, if that is so.
    #[inline]
    pub(crate) fn stall(&self) -> Option<CompletionStatus> {
        self.stall
    }

    /// The request at the cursor cannot be sent, and fails so once those before it are done.
    pub(crate) fn set_stall(&mut self, status: CompletionStatus) {
        self.stall = Some(status);
    }

    /// Whether an answer of the peer's is outstanding.
    #[inline]
    pub(crate) fn has_questions(&self) -> bool {
        !self.questions.is_empty()
    }

    /// How many questions the cursor has passed that are not answered.
    #[inline]
    pub(crate) fn questions_sent(&self) -> usize {
        self.questions_sent
    }

    /// Where a question that was asked before, and of which `psn` is a packet, ends.
    pub(crate) fn question_end(&self, psn: Psn) -> Option<Psn> {
        self.questions.iter().copied().find(|end| end.distance_from(psn) > 0)
    }

    /// Packets have left. Whether they have for the first time.
    #[inline]
    pub(crate) fn note_sent(&mut self, sent: &SentPackets, now: Instant, encoded_timeout: u8) -> bool {
        let SentPackets { first, end, asks, is_question } = *sent;
        self.has_asked_last = asks;
        let is_new = first.distance_from(self.sent_end) >= 0;
        if end.distance_from(self.sent_end) > 0 {
            self.sent_end = end;
        }
        if is_question {
            self.note_question(end);
        }
        if asks {
            if end.distance_from(self.asked_end) > 0 {
                self.asked_end = end;
            }
            if self.acknowledge_deadline == Instant::FAR_FUTURE {
                self.restart_timer(now, encoded_timeout);
            }
        }
        is_new
    }

    /// The cursor has passed a question that ends at `end`.
    fn note_question(&mut self, end: Psn) {
        if self.questions.back().is_none_or(|last| end.distance_from(*last) > 0) {
            self.questions.push_back(end);
        }
        self.questions_sent += 1;
    }

    /// Everything before `end` is done. How many packets that is; `None` when that is nothing new.
    pub(crate) fn advance(&mut self, end: Psn) -> Option<u32> {
        let packets =
            u32::try_from(end.distance_from(self.oldest_unacknowledged)).ok().filter(|packets| *packets > 0)?;
        self.oldest_unacknowledged = end;
        self.retries = 0;
        self.not_ready_retries = 0;
        self.went_back_to = None;
        self.not_ready_until = Instant::FAR_FUTURE;
        self.settle_questions();
        Some(packets)
    }

    /// Forget questions that have been answered.
    fn settle_questions(&mut self) {
        while let Some(end) = self.questions.front()
            && end.distance_from(self.oldest_unacknowledged) <= 0
        {
            self.questions.pop_front();
            self.questions_sent = self.questions_sent.saturating_sub(1);
        }
    }

    /// After progress: silence is measured anew, if anything was asked for that has not been answered.
    pub(crate) fn settle_timer(&mut self, now: Instant, encoded_timeout: u8) {
        if self.asked_end.distance_from(self.oldest_unacknowledged) > 0 {
            self.restart_timer(now, encoded_timeout);
        } else {
            self.acknowledge_deadline = Instant::FAR_FUTURE;
        }
    }

    fn restart_timer(&mut self, now: Instant, encoded_timeout: u8) {
        self.acknowledge_deadline = match acknowledge_timeout(encoded_timeout) {
            Some(timeout) => now + timeout,
            None => Instant::FAR_FUTURE,
        };
    }

    /// Whether there was silence for too long.
    pub(crate) fn is_timed_out(&self, now: Instant) -> bool {
        self.acknowledge_deadline <= now
    }

    /// A deadline may have come. Whether it is a time-out: silence for too long.
    pub(crate) fn handle_deadline(&mut self, now: Instant) -> bool {
        if self.not_ready_until <= now {
            self.not_ready_until = Instant::FAR_FUTURE;
        }
        let is_time_out = self.is_timed_out(now);
        if is_time_out {
            self.acknowledge_deadline = Instant::FAR_FUTURE;
            self.went_back_to = None;
        }
        is_time_out
    }

    /// The receiver is not ready: send nothing until then. `false` when it was not often enough, `allowed` times; `None` is for
    /// ever.
    pub(crate) fn wait_for_receiver(&mut self, until: Instant, allowed: Option<u8>) -> bool {
        if allowed.is_some_and(|allowed| self.not_ready_retries >= allowed) {
            return false;
        }
        self.not_ready_retries = self.not_ready_retries.saturating_add(1);
        self.not_ready_until = until;
        self.acknowledge_deadline = Instant::FAR_FUTURE;
        true
    }

    /// Try once more, unless that was done often enough. The time-out begins when something has really been sent: until then
    /// silence says nothing about the peer.
    pub(crate) fn retry(&mut self, allowed: u8) -> bool {
        let is_allowed = self.retries < allowed;
        if is_allowed {
            self.retries += 1;
            self.acknowledge_deadline = Instant::FAR_FUTURE;
        }
        is_allowed
    }

    /// The cursor goes back to the oldest packet that was not acknowledged.
    pub(crate) fn go_back(&mut self) {
        self.stall = None;
        self.questions_sent = 0;
    }

    /// Whether the loss of this packet has been acted on.
    pub(crate) fn went_back_to(&self, psn: Psn) -> bool {
        self.went_back_to == Some(psn)
    }

    pub(crate) fn note_went_back_to(&mut self, psn: Psn) {
        self.went_back_to = Some(psn);
    }
}

/// Packets that have left.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentPackets {
    pub(crate) first: Psn,
    pub(crate) end: Psn,
    /// They ask for an acknowledgement.
    pub(crate) asks: bool,
    /// They are those of an answer that was asked for.
    pub(crate) is_question: bool,
}

/// 4.096 µs · 2^n (IBTA 9.7.6.1.3); 0 is never.
pub(crate) fn acknowledge_timeout(encoded: u8) -> Option<Duration> {
    (encoded > 0).then(|| Duration::from_nanos(4096 << encoded.min(31)))
}
