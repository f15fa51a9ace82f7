//! Judging completions of sends.

use longhaul_time::Duration;
use longhaul_verbs::{CompletionStatus, QueuePairState, Transport};

use super::contents::MessageNumber;
use super::facts::{EndNumber, Ended, Kind, Mistake, Observation, Target};
use super::judge::Judge;
use super::memory::ReadMemory;
use super::send_queue::{Ending, SendFault};
use super::violation::Rule;

impl Judge {
    pub(super) fn send_completion(&mut self, observation: &Observation, memory: &impl ReadMemory, ended: &mut Ended) {
        let number = observation.end;
        let completion = &observation.completion;
        let end = &mut self.ends[number.0];
        let expected_queue = end.facts.send_completion_queue;
        let endings = match end.send_queue.complete(completion.id, completion.status) {
            Ok(endings) => endings,
            Err(fault) => return self.accuse_send(number, completion.id, completion.status, &fault),
        };
        if observation.completion_queue != expected_queue {
            self.accuse(
                Rule::Order,
                format!("send {:#x} of queue pair {}", completion.id, number.0),
                format!("its completion in completion queue {expected_queue}"),
                format!("it in {}", observation.completion_queue),
            );
        }
        for &(message, ending) in &endings {
            self.messages[message as usize].ending = Some(ending);
            match ending {
                Ending::Succeeded => self.send_success(message, memory),
                _ => self.response_is_lost(message, memory),
            }
        }
        let (message, _) = *endings.last().expect("a completion ends its own request");
        if !completion.is_success() {
            // All requests of a burst carry one id, and any of those left may be the one that failed.
            let rest = self.ends[number.0].send_queue.messages_of(completion.id);
            let suspects: Vec<_> = std::iter::once(message).chain(rest).collect();
            self.send_failure(&suspects, completion.status, observation);
        } else {
            let facts = &self.messages[message as usize].facts;
            let operation = facts.kind.completion_operation();
            let byte_count = if facts.kind.has_response() { facts.length as u32 } else { completion.byte_count };
            if completion.byte_count != byte_count {
                let got = format!("{} bytes", completion.byte_count);
                self.accuse(Rule::Status, self.describe(message), format!("{byte_count} bytes in its completion"), got);
            }
            if completion.operation != operation {
                self.accuse(
                    Rule::Status,
                    self.describe(message),
                    format!("operation {operation:?} in its completion"),
                    format!("{:?}", completion.operation),
                );
            }
        }
        ended.sends.extend(endings);
    }

    fn accuse_send(&mut self, end: EndNumber, id: u64, status: CompletionStatus, fault: &SendFault) {
        let subject = format!("send queue of queue pair {}", end.0);
        let got = format!("{status:?} for request {id:#x}");
        let (rule, expected) = match fault {
            SendFault::NotPosted => (Rule::ExactlyOnce, "completions of outstanding requests only".into()),
            SendFault::NotSignaled => (Rule::ExactlyOnce, "no completion for an unsignalled success".into()),
            SendFault::Skipped { id } => (Rule::Order, format!("the completion of request {id:#x} first")),
            SendFault::AfterFailure => (Rule::Flush, "only flushes after a failure".into()),
        };
        self.accuse(rule, subject, expected, got);
    }

    /// A request was reported done, aloud or by the completion of a later one.
    fn send_success(&mut self, number: MessageNumber, memory: &impl ReadMemory) {
        let message = &self.messages[number as usize];
        let transport = self.ends[message.from.0].facts.transport;
        let is_reliable = transport == Transport::ReliableConnection;
        let must_fail = match message.facts.mistake {
            Some(Mistake::LocalKey) => true,
            // Unreliable transports do not hear of it.
            Some(Mistake::RemoteAccess | Mistake::Alignment) => is_reliable,
            Some(Mistake::QueueKey) | None => false,
        };
        if must_fail {
            let mistake = message.facts.mistake;
            return self.accuse(
                Rule::Status,
                self.describe(number),
                format!("a failure, because of the mistake {mistake:?}"),
                "success",
            );
        }
        if is_reliable {
            let through = self.messages[number as usize].position;
            let from = self.messages[number as usize].from;
            self.settle_through(from, through, "its send completed with success", memory);
            let message = &self.messages[number as usize];
            if message.receive_index.is_some() && message.delivered_count == 0 {
                self.accuse(
                    Rule::Placement,
                    self.describe(number),
                    "the peer's receive complete when the send completes with success",
                    "no receive completion yet",
                );
            }
        }
        self.response_came(number, memory);
        if self.messages[number as usize].facts.kind != Kind::Send {
            self.end_key(number, memory);
        }
    }

    /// Everything that a reliable queue pair sent, up to this position, must be in its place.
    pub(super) fn settle_through(&mut self, from: EndNumber, position: usize, because: &str, memory: &impl ReadMemory) {
        while self.ends[from.0].settled_count <= position {
            let number = self.ends[from.0].sent[self.ends[from.0].settled_count];
            self.ends[from.0].settled_count += 1;
            self.settle(number, because, memory);
        }
    }

    /// This write must be in its place.
    pub(super) fn settle(&mut self, number: MessageNumber, because: &str, memory: &impl ReadMemory) {
        match self.messages[number as usize].target {
            Target::None | Target::Settled => {}
            Target::Open(place) => {
                self.messages[number as usize].target = Target::Settled;
                if let Err(difference) = self.memory.settle(place, memory) {
                    self.accuse(
                        Rule::Placement,
                        format!(
                            "{} at region {} offset {} when {because}",
                            self.describe(number),
                            place.region.0,
                            difference.place.offset
                        ),
                        difference.expected,
                        difference.got,
                    );
                }
            }
            // What a READ brings is read when the answer leaves, and what was posted behind the READ may be placed before that.
            Target::Revoked { .. } if self.messages[number as usize].facts.kind == Kind::Read => {}
            Target::Revoked { was_whole } => {
                if !was_whole {
                    self.accuse(
                        Rule::RevokedKey,
                        format!("{} when {because}", self.describe(number)),
                        "no success: its key was revoked before all of it was placed",
                        "success",
                    );
                }
                self.messages[number as usize].target = Target::Settled;
            }
        }
    }

    /// One of these failed: a request, or one of a burst.
    fn send_failure(&mut self, suspects: &[MessageNumber], status: CompletionStatus, observation: &Observation) {
        let from = observation.end;
        let is_reliable = self.ends[from.0].facts.transport == Transport::ReliableConnection;
        if status == CompletionStatus::FlushedError {
            let end = &self.ends[from.0];
            let has_cause = end.send_queue.has_failed() && (end.has_error_cause || end.has_send_error_cause)
                || self.may_be_in_error(from);
            self.check_flush(from, "send", has_cause, observation.state, !is_reliable);
            return;
        }
        let explained: Vec<_> =
            suspects.iter().copied().filter(|suspect| self.failure_is_legal(*suspect, status)).collect();
        if explained.is_empty() {
            self.accuse(
                Rule::Status,
                self.describe_suspects(suspects),
                "success, a flush, or a failure that something explains",
                format!("{status:?}"),
            );
        }
        // A request is tried for some time before it is given up; that it was posted is when this began at the
        // earliest.
        let has_tried = |suspect: &MessageNumber| {
            self.now - self.messages[*suspect as usize].posted_at >= self.shortest_trial(*suspect, status)
        };
        if let Some(first) = explained.first()
            && !explained.iter().any(has_tried)
        {
            self.accuse(
                Rule::Status,
                self.describe_suspects(suspects),
                format!("{:?} of trying before {status:?}", self.shortest_trial(*first, status)),
                format!("the end {:?} after it was posted", self.now - self.messages[*first as usize].posted_at),
            );
        }
        let has_peer_failed = matches!(
            status,
            CompletionStatus::RemoteAccessError
                | CompletionStatus::RemoteInvalidRequestError
                | CompletionStatus::RemoteOperationError
        );
        // A responder that refuses a request has failed itself (9.9.3, responder classes A and C).
        if has_peer_failed && observation.peer_state != QueuePairState::Error {
            self.accuse(
                Rule::Status,
                format!("the peer of {}", self.describe_suspects(suspects)),
                format!("state ERR, as it refused the message with {status:?}"),
                format!("state {:?}", observation.peer_state),
            );
        }
        let refused = has_peer_failed || status == CompletionStatus::LocalProtectionError;
        let is_taken = |suspect: &MessageNumber| {
            let message = &self.messages[*suspect as usize];
            // "Not ready" of an earlier try may come late and use up the retries of a message that was taken meanwhile.
            let is_late = message.network.reorders || message.network.duplicates || message.network.is_slow;
            let is_not_ready = status == CompletionStatus::ReceiverNotReadyRetryExceededError && !is_late;
            (refused || is_not_ready) && message.delivered_count > 0
        };
        // Of a burst, one that was not delivered must be there to be blamed.
        let blamed = if explained.is_empty() { suspects } else { &explained };
        if is_reliable && blamed.iter().all(is_taken) {
            self.accuse(
                Rule::Receive,
                self.describe_suspects(suspects),
                "a refused message not delivered",
                format!("a receive completion for it, and {status:?} at its sender"),
            );
        }
        self.note_send_failure(from);
    }

    fn describe_suspects(&self, suspects: &[MessageNumber]) -> String {
        match suspects {
            [] => "no message".into(),
            [only] => self.describe(*only),
            [first, rest @ ..] => format!("{} or one of {} after it in its burst", self.describe(*first), rest.len()),
        }
    }

    fn note_send_failure(&mut self, from: EndNumber) {
        // RC goes to ERR; UC and UD stop the send queue only (10.3.1.7, SQE).
        let end = &mut self.ends[from.0];
        match end.facts.transport {
            Transport::ReliableConnection => end.has_error_cause = true,
            _ => end.has_send_error_cause = true,
        }
    }

    /// How long a request is tried at least before it ends like this.
    fn shortest_trial(&self, number: MessageNumber, status: CompletionStatus) -> Duration {
        let message = &self.messages[number as usize];
        let facts = &self.ends[message.from.0].facts;
        match status {
            // A gap in the answers is seen at once, and the request repeated.
            CompletionStatus::RetryExceededError if message.facts.kind.has_response() => Duration::ZERO,
            // Where packets overtake each other or come twice, one gap may be named many times, and each counts.
            CompletionStatus::RetryExceededError if message.network.reorders || message.network.duplicates => {
                Duration::ZERO
            }
            // A late answer to a try that has timed out already counts as well.
            CompletionStatus::RetryExceededError if message.network.is_slow => {
                facts.acknowledge_timeout * u32::from(facts.retry_count / 2)
            }
            // Else it is named once: all tries but one end in a time-out.
            CompletionStatus::RetryExceededError => facts.acknowledge_timeout * u32::from(facts.retry_count),
            CompletionStatus::ReceiverNotReadyRetryExceededError => {
                let peer = &self.ends[message.facts.to.0].facts;
                peer.receiver_not_ready_delay * u32::from(facts.receiver_not_ready_retry)
            }
            _ => Duration::ZERO,
        }
    }

    fn failure_is_legal(&self, number: MessageNumber, status: CompletionStatus) -> bool {
        let message = &self.messages[number as usize];
        let mistake = message.facts.mistake;
        if status == CompletionStatus::LocalProtectionError {
            return mistake == Some(Mistake::LocalKey);
        }
        let end = &self.ends[message.from.0];
        if end.facts.transport != Transport::ReliableConnection {
            return false;
        }
        let peer = &self.ends[message.facts.to.0];
        let receive = message.receive_index.and_then(|index| peer.receive_queue.for_message(index));
        match status {
            CompletionStatus::RetryExceededError => message.network.loses || self.may_be_in_error(message.facts.to),
            CompletionStatus::RemoteAccessError => {
                mistake == Some(Mistake::RemoteAccess) || self.may_have_lost_its_key(message)
            }
            CompletionStatus::RemoteInvalidRequestError => {
                mistake == Some(Mistake::Alignment)
                    || message.facts.kind == Kind::Send
                        && receive.is_some_and(|receive| receive.capacity < message.facts.length)
            }
            CompletionStatus::RemoteOperationError => receive.is_some_and(|receive| receive.is_broken),
            CompletionStatus::ReceiverNotReadyRetryExceededError => {
                end.facts.receiver_not_ready_retry < 7
                    && message.receive_index.is_some()
                    && receive.is_none_or(|receive| receive.posting > message.posting)
            }
            _ => false,
        }
    }

    /// A flush needs a reason, and a queue pair in the state for it.
    pub(super) fn check_flush(
        &mut self,
        end: EndNumber,
        what: &str,
        has_cause: bool,
        state: QueuePairState,
        may_be_send_error: bool,
    ) {
        if !has_cause {
            self.accuse(
                Rule::Flush,
                format!("a {what} of queue pair {}", end.0),
                "no flush: nothing has failed and nobody moved the queue pair to ERR",
                "a flush",
            );
        }
        let is_error = state == QueuePairState::Error || may_be_send_error && state == QueuePairState::SendQueueError;
        if !is_error {
            self.accuse(
                Rule::Flush,
                format!("a {what} of queue pair {}", end.0),
                "a queue pair that flushes to be in ERR (or SQE for sends of UC and UD)",
                format!("state {state:?}"),
            );
        }
    }
}
