//! Judging completions of receives, and the memory of receives.

use std::net::IpAddr;

use longhaul_verbs::{CompletionFlags, CompletionOperation, CompletionStatus, Transport, WorkCompletion};

use super::contents::{self, MessageNumber};
use super::facts::{EndFacts, EndNumber, Ended, Kind, Mistake, Observation, Target, header_bytes};
use super::judge::Judge;
use super::memory::ReadMemory;
use super::receive_queue::{PostedReceive, ReceiveFault};
use super::violation::Rule;

impl Judge {
    pub(super) fn receive_success(&mut self, observation: &Observation, memory: &impl ReadMemory, ended: &mut Ended) {
        let number = observation.end;
        let completion = &observation.completion;
        let index = self.completed_receives(number);
        let Some(receive) = self.take_receive(observation, ended) else {
            return;
        };
        let transport = self.ends[number.0].facts.transport;
        let header = header_bytes(transport);
        let bytes = gather(&receive, memory);
        let message = if transport == Transport::ReliableConnection {
            let peer = self.ends[number.0].peer.expect("reliable queue pairs are connected");
            self.ends[peer.0].needing_receive.get(index).copied()
        } else {
            self.identify(number, completion, &bytes, header)
        };
        let Some(message) = message else {
            return self.accuse(
                Rule::Receive,
                format!("receive {:#x} of queue pair {}", receive.id, number.0),
                "a message that was sent to it",
                format!("{completion:?} holding {}", contents::describe(bytes.get(header..).unwrap_or(&[]))),
            );
        };
        if !self.check_delivery(number, message, completion, receive.capacity()) {
            return;
        }
        if transport == Transport::UnreliableDatagram {
            self.check_route_header(number, message, &bytes[..header]);
        }
        let length = self.messages[message as usize].facts.length;
        let written = match self.messages[message as usize].facts.kind {
            Kind::Send => {
                // What fell into a null region is gone.
                let payload = &bytes[header..bytes.len().min(header + length)];
                if let Some(first) = contents::first_difference(message, 0, payload) {
                    self.accuse(
                        Rule::Receive,
                        format!("{} at its offset {first} in receive {:#x}", self.describe(message), receive.id),
                        "its bytes",
                        contents::describe(&payload[first..]),
                    );
                }
                bytes.len().min(header + length)
            }
            _ => {
                self.settle(message, "its receive completed", memory);
                0
            }
        };
        // What lies behind the message is untouched, but for a message that UC began and gave up.
        self.check_rest(number, &receive, &bytes, written, None);
        self.messages[message as usize].delivered_count += 1;
        if transport == Transport::ReliableConnection {
            let (from, position) = (self.messages[message as usize].from, self.messages[message as usize].position);
            self.settle_through(from, position, "a receive after it completed", memory);
            self.end_key(message, memory);
        } else {
            self.check_order(number, message);
        }
    }

    /// Takes the receive out of the model, if it may complete now.
    fn take_receive(&mut self, observation: &Observation, ended: &mut Ended) -> Option<PostedReceive> {
        let number = observation.end;
        let completion = &observation.completion;
        let is_flush = completion.status == CompletionStatus::FlushedError;
        let EndFacts { receive_completion_queue: expected_queue, shared_queue, .. } = self.ends[number.0].facts;
        let taken = match shared_queue {
            Some(queue) => self.take_shared_receive(number, queue, completion),
            None => self.ends[number.0].receive_queue.complete(completion.id, is_flush),
        };
        match taken {
            Ok(receive) => {
                for piece in &receive.pieces {
                    self.memory.give_back(piece.place);
                }
                if observation.completion_queue != expected_queue {
                    self.accuse(
                        Rule::Order,
                        format!("receive {:#x} of queue pair {}", completion.id, number.0),
                        format!("its completion in completion queue {expected_queue}"),
                        format!("it in {}", observation.completion_queue),
                    );
                }
                ended.receives.push((number, receive.clone()));
                Some(receive)
            }
            Err(fault) => {
                let (rule, expected) = match fault {
                    ReceiveFault::NotPosted => (Rule::ExactlyOnce, "completions of posted receives only".into()),
                    ReceiveFault::OutOfOrder { oldest } => {
                        (Rule::Order, format!("the completion of receive {oldest:#x} first"))
                    }
                    ReceiveFault::AfterFailure => (Rule::Flush, "only flushes after a flush".into()),
                };
                self.accuse(
                    rule,
                    format!("receive queue of queue pair {}", number.0),
                    expected,
                    format!("{:?} for receive {:#x}", completion.status, completion.id),
                );
                None
            }
        }
    }

    /// Which message an unreliable queue pair delivered: its immediate or its bytes say so.
    fn identify(
        &self,
        end: EndNumber,
        completion: &WorkCompletion,
        bytes: &[u8],
        header: usize,
    ) -> Option<MessageNumber> {
        if let Some(immediate) = completion.immediate() {
            let message = contents::message_of_immediate(immediate);
            let known = self.messages.get(message as usize)?;
            return (known.facts.to == end).then_some(message);
        }
        let payload = bytes.get(header..completion.byte_count as usize)?;
        if let Some((message, 0)) = self.stamped(end, payload) {
            return Some(message);
        }
        // Too short to carry a whole word: any message with these bytes will do, rather one not delivered yet.
        let fits = |message: &&MessageNumber| {
            let facts = &self.messages[**message as usize].facts;
            facts.kind == Kind::Send
                && !facts.has_immediate
                && facts.mistake.is_none()
                && facts.length == payload.len()
                && contents::matches(**message, 0, payload)
        };
        let addressed = &self.ends[end.0].addressed;
        let fresh = |message: &&MessageNumber| self.messages[**message as usize].delivered_count == 0;
        let first_fresh = addressed.iter().filter(fits).find(fresh);
        first_fresh.or_else(|| addressed.iter().find(fits)).copied()
    }

    /// Whether this message can be what the completion speaks of. Only then its bytes are looked at.
    fn check_delivery(
        &mut self,
        end: EndNumber,
        number: MessageNumber,
        completion: &WorkCompletion,
        capacity: usize,
    ) -> bool {
        let message = &self.messages[number as usize];
        let facts = message.facts;
        let transport = self.ends[end.0].facts.transport;
        let header = header_bytes(transport);
        let is_datagram = transport == Transport::UnreliableDatagram;
        let operation = match facts.kind {
            Kind::Send => CompletionOperation::Receive,
            _ => CompletionOperation::ReceiveWriteWithImmediate,
        };
        let immediate = facts.has_immediate.then(|| contents::immediate(number));
        let sender = self.ends[message.from.0].facts.queue_pair;
        let too_long = facts.kind == Kind::Send && facts.length + header > capacity;
        let mut wrong: Vec<(String, String)> = Vec::new();
        if let Some(mistake) = facts.mistake {
            wrong.push((format!("never delivered, because of the mistake {mistake:?}"), "delivered".into()));
        }
        if too_long {
            wrong.push((format!("not delivered into a receive of {capacity} bytes"), "delivered".into()));
        }
        if completion.operation != operation {
            wrong.push((format!("operation {operation:?}"), format!("{:?}", completion.operation)));
        }
        if completion.byte_count as usize != facts.length + header {
            wrong.push((format!("{} bytes", facts.length + header), completion.byte_count.to_string()));
        }
        if completion.immediate() != immediate {
            wrong.push((format!("immediate {immediate:x?}"), format!("{:x?}", completion.immediate())));
        }
        let ended_key = self.ended_key_value(number);
        if completion.invalidated_key() != ended_key {
            wrong.push((format!("invalidated key {ended_key:x?}"), format!("{:x?}", completion.invalidated_key())));
        }
        if completion.flags.contains(CompletionFlags::GLOBAL_ROUTE_HEADER) != is_datagram {
            wrong.push((format!("a GRH: {is_datagram}"), format!("flags {:?}", completion.flags)));
        }
        if is_datagram && completion.source_queue_pair != sender {
            wrong.push((format!("sender {sender:?}"), format!("{:?}", completion.source_queue_pair)));
        }
        let repeated = message.delivered_count > 0 && !message.network.duplicates && message.is_unmistakable();
        if repeated && transport != Transport::ReliableConnection {
            wrong.push(("delivery once, as this network does not duplicate".into(), "another one".into()));
        }
        let is_right = wrong.is_empty();
        for (expected, got) in wrong {
            self.accuse(Rule::Receive, self.describe(number), expected, got);
        }
        is_right
    }

    /// A datagram's IP header: IPv6 fills the 40 bytes, IPv4 takes the last 20 of them (A17.4.5.2).
    fn check_route_header(&mut self, end: EndNumber, number: MessageNumber, header: &[u8]) {
        let source = self.ends[self.messages[number as usize].from.0].facts.address;
        let destination = self.ends[end.0].facts.address;
        let is_right = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                header[20] >> 4 == 4 && header[32..36] == source.octets() && header[36..40] == destination.octets()
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                header[0] >> 4 == 6 && header[8..24] == source.octets() && header[24..40] == destination.octets()
            }
            _ => false,
        };
        if !is_right {
            self.accuse(
                Rule::Receive,
                self.describe(number),
                format!("a route header from {source} to {destination}"),
                format!("{header:02x?}"),
            );
        }
    }

    /// UC and UD on a network that neither reorders nor duplicates: later messages come later.
    fn check_order(&mut self, end: EndNumber, number: MessageNumber) {
        let message = &self.messages[number as usize];
        if message.network.reorders || message.network.duplicates || !message.is_unmistakable() {
            return;
        }
        let from = message.from;
        let latest = &mut self.ends[end.0].last_in_order;
        let Some(entry) = latest.iter_mut().find(|(sender, _)| *sender == from) else {
            latest.push((from, number));
            return;
        };
        let before = entry.1;
        entry.1 = before.max(number);
        if number < before {
            self.accuse(
                Rule::Order,
                self.describe(number),
                format!("delivery before message {before}, on a network that keeps order"),
                "delivery after it",
            );
        }
    }

    pub(super) fn receive_failure(&mut self, observation: &Observation, memory: &impl ReadMemory, ended: &mut Ended) {
        let number = observation.end;
        let status = observation.completion.status;
        let completed_count = self.completed_receives(number);
        let Some(receive) = self.take_receive(observation, ended) else {
            return;
        };
        if status == CompletionStatus::FlushedError {
            let has_cause = self.may_be_in_error(number);
            self.check_flush(number, "receive", has_cause, observation.state, false);
        } else {
            if !self.receive_failure_is_legal(number, &receive, status) {
                self.accuse(
                    Rule::Status,
                    format!("receive {:#x} of {} bytes", receive.id, receive.capacity()),
                    "a message, a flush, or a failure that something explains",
                    format!("{status:?}"),
                );
            }
            self.ends[number.0].has_error_cause = true;
            if self.ends[number.0].facts.transport == Transport::UnreliableDatagram {
                // A datagram that failed half way has left its GRH and some bytes; what they are is nobody's promise.
                return;
            }
        }
        self.check_ended_receive(number, &receive, completed_count, memory);
    }

    fn receive_failure_is_legal(&self, number: EndNumber, receive: &PostedReceive, status: CompletionStatus) -> bool {
        let end = &self.ends[number.0];
        let header = header_bytes(end.facts.transport);
        match status {
            CompletionStatus::LocalLengthError => {
                let is_too_long = |message: &MessageNumber| {
                    let facts = &self.messages[*message as usize].facts;
                    facts.kind == Kind::Send
                        && facts.mistake.is_none_or(|mistake| mistake == Mistake::LocalKey)
                        && facts.length + header > receive.capacity()
                };
                match (end.facts.transport, end.peer) {
                    (Transport::ReliableConnection, Some(peer)) => {
                        self.ends[peer.0].needing_receive.get(receive.index).is_some_and(is_too_long)
                    }
                    _ => end.addressed.iter().any(is_too_long),
                }
            }
            CompletionStatus::LocalProtectionError
            | CompletionStatus::LocalQueuePairError
            | CompletionStatus::LocalAccessError => receive.is_broken,
            _ => false,
        }
    }

    /// A receive that took no message: flushed, failed or forgotten. At most the message that was next may have begun.
    pub(super) fn check_ended_receive(
        &mut self,
        end: EndNumber,
        receive: &PostedReceive,
        completed_count: usize,
        memory: &impl ReadMemory,
    ) {
        for piece in &receive.pieces {
            self.memory.give_back(piece.place);
        }
        let bytes = gather(receive, memory);
        self.check_rest(end, receive, &bytes, 0, Some(completed_count));
    }

    /// Judges the memory of all posted receives of one end.
    pub(super) fn check_posted_receives(&mut self, end: EndNumber, memory: &impl ReadMemory) {
        let posted: Vec<_> = self.ends[end.0].receive_queue.posted().cloned().collect();
        let completed_count = self.ends[end.0].receive_queue.completed_count();
        for receive in posted {
            let bytes = gather(&receive, memory);
            self.check_rest(end, &receive, &bytes, 0, Some(completed_count));
        }
    }

    /// Everything in a receive's memory from `start` on must be untouched, or belong to a message that began there:
    /// with RC the next one (only while it has not completed: `completed_count` is then given), with UC any that was
    /// sent on the connection, with UD none. Only the receive that is next can have been touched.
    fn check_rest(
        &mut self,
        end: EndNumber,
        receive: &PostedReceive,
        bytes: &[u8],
        start: usize,
        completed_count: Option<usize>,
    ) {
        let known = self.known_of(receive);
        if known[start..] == bytes[start..] {
            return;
        }
        let may_have_begun = completed_count.is_none_or(|count| receive.index == count);
        let transport = self.ends[end.0].facts.transport;
        let mut position = start;
        while let Some(step) = known[position..].iter().zip(&bytes[position..]).position(|(known, got)| known != got) {
            position += step;
            let explained = match (may_have_begun, transport, completed_count, self.ends[end.0].peer) {
                (true, Transport::ReliableConnection, Some(_), Some(peer)) => {
                    let next = self.ends[peer.0].needing_receive.get(receive.index).copied();
                    next.map_or(0, |message| self.begun_bytes(message, position, bytes))
                }
                (true, Transport::UnreliableConnection, _, _) => self.begun_by_any(end, position, bytes),
                _ => 0,
            };
            if explained == 0 {
                return self.accuse(
                    Rule::Memory,
                    format!("receive {:#x} of queue pair {}, its byte {position}", receive.id, end.0),
                    format!("no change: {}", contents::describe(&known[position..])),
                    contents::describe(&bytes[position..]),
                );
            }
            position += explained;
        }
    }

    /// What is known to be in a receive's memory, in the order in which a message fills it.
    pub(super) fn known_of(&self, receive: &PostedReceive) -> Vec<u8> {
        // Piece by piece: byte by byte it took more than half of a soak's time.
        let pieces: Vec<&[u8]> =
            receive.pieces.iter().map(|piece| self.memory.known(piece.place, piece.length)).collect();
        pieces.concat()
    }

    /// How many bytes from `position` on are the message's.
    pub(super) fn begun_bytes(&self, number: MessageNumber, position: usize, bytes: &[u8]) -> usize {
        let message = &self.messages[number as usize];
        let is_send = message.facts.kind == Kind::Send && message.facts.mistake != Some(Mistake::QueueKey);
        if !is_send || matches!(message.target, Target::Open(_)) {
            return 0;
        }
        let end = message.facts.length.min(bytes.len());
        if position >= end {
            return 0;
        }
        contents::first_difference(number, position, &bytes[position..end]).unwrap_or(end - position)
    }

    fn begun_by_any(&self, end: EndNumber, position: usize, bytes: &[u8]) -> usize {
        let word_start = position / 8 * 8;
        if let Some((message, offset)) = self.stamped(end, &bytes[word_start..])
            && offset == word_start
            // A message that ends in this word may be completed by a byte of another one, which happens to be right.
            && let begun @ 1.. = self.begun_bytes(message, position, bytes)
        {
            return begun;
        }
        // The last bytes of a message, less than a word.
        let addressed = self.ends[end.0].addressed.iter();
        addressed.map(|message| self.begun_bytes(*message, position, bytes)).max().unwrap_or(0)
    }
}

/// The bytes of a receive, in the order in which a message fills them.
pub(super) fn gather(receive: &PostedReceive, memory: &impl ReadMemory) -> Vec<u8> {
    let mut bytes = vec![0; receive.capacity() - receive.null_bytes];
    let mut position = 0;
    for piece in &receive.pieces {
        memory.read(piece.place, &mut bytes[position..position + piece.length]);
        position += piece.length;
    }
    bytes
}
