//! The judge's knowledge: ends, messages and memory; and its input from the program.

use longhaul_time::Instant;
use longhaul_verbs::{QueuePairNumber, Transport};

use super::contents::{self, MessageNumber};
use super::facts::{
    EndFacts, EndNumber, Ended, Key, KeyNumber, Kind, Message, Mistake, NetworkFacts, Observation, Response, SendFacts,
    Target, Word, header_bytes,
};
use super::memory::{Arrival, Difference, Place, ReadMemory, RegionNumber, ShadowMemory};
use super::receive_queue::{PostedReceive, ReceiveQueue, SharedQueue};
use super::send_queue::{Ending, SendQueue};
use super::violation::{Rule, Violation, Violations};

pub(super) struct End {
    pub(super) facts: EndFacts,
    pub(super) send_queue: SendQueue,
    pub(super) receive_queue: ReceiveQueue,
    /// The peer of a connection.
    pub(super) peer: Option<EndNumber>,
    /// Messages sent since the last reset.
    pub(super) sent: Vec<MessageNumber>,
    /// Those of them that need a receive.
    pub(super) needing_receive: Vec<MessageNumber>,
    /// How many of `sent` are known to be placed (RC).
    pub(super) settled_count: usize,
    /// Messages ever sent to it: what a stale packet may belong to.
    pub(super) addressed: Vec<MessageNumber>,
    /// Something has happened that leads to the state ERR.
    pub(super) has_error_cause: bool,
    /// Something has happened that stops its send queue (SQE).
    pub(super) has_send_error_cause: bool,
    /// For each sender: the latest message delivered on a network that keeps order.
    pub(super) last_in_order: Vec<(EndNumber, MessageNumber)>,
    /// Messages received from a shared queue since the last reset, and whether a receive of it was flushed.
    pub(super) shared_completed_count: usize,
    pub(super) has_flushed_shared: bool,
    /// How often it was reset: requests of different connections are not in order.
    pub(super) reset_count: u64,
}

/// Watches a program of verbs operations and says which observations the specification does not allow.
///
/// The program reports what it posts and does, and hands over completions as it polls them: all that arrived with one
/// step of time together (see [`Judge::observe`]).
pub struct Judge {
    pub(super) ends: Vec<End>,
    pub(super) messages: Vec<Message>,
    pub(super) memory: ShadowMemory,
    pub(super) words: Vec<Word>,
    pub(super) keys: Vec<Key>,
    pub(super) shared_queues: Vec<SharedQueue>,
    /// Since the last report to the program.
    pub(super) dead_keys: Vec<KeyNumber>,
    pub(super) network: NetworkFacts,
    posting_count: u64,
    pub(super) now: Instant,
    violations: Violations,
}

impl Judge {
    /// A judge who has seen nothing, of a program on this network.
    pub fn new(network: NetworkFacts) -> Self {
        Judge {
            ends: Vec::new(),
            messages: Vec::new(),
            memory: ShadowMemory::default(),
            words: Vec::new(),
            keys: Vec::new(),
            shared_queues: Vec::new(),
            dead_keys: Vec::new(),
            network,
            posting_count: 0,
            now: Instant::ZERO,
            violations: Violations::default(),
        }
    }

    /// The time of what follows.
    pub fn set_now(&mut self, now: Instant) {
        self.now = now;
    }

    /// The network is different for what is posted from now on.
    pub fn set_network(&mut self, network: NetworkFacts) {
        self.network = network;
    }

    /// The network changes now: what is sent later may overtake what is in flight.
    pub fn network_changes(&mut self) {
        self.network.reorders = true;
        for message in &mut self.messages {
            message.network.reorders |= message.delivered_count == 0;
        }
    }

    /// The devices receive packets where they guess them to belong. A guess is made only for a write whose first packet
    /// was carried out, and never for its last one; between those two anything may be in memory until the write is
    /// complete.
    pub fn expect_guesses(&mut self) {
        self.memory.expect_guesses();
    }

    /// What was found.
    pub fn violations(&self) -> &Violations {
        &self.violations
    }

    /// Notes a broken rule; the program uses this for what only it can see (a refusal, a lack of progress).
    pub fn accuse(
        &mut self,
        rule: Rule,
        subject: impl Into<String>,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) {
        self.violations.add(Violation {
            rule,
            at: self.now,
            subject: subject.into(),
            expected: expected.into(),
            got: got.into(),
        });
    }

    /// A queue pair was made.
    pub fn add_end(&mut self, facts: EndFacts) -> EndNumber {
        self.ends.push(End {
            facts,
            send_queue: SendQueue::default(),
            receive_queue: ReceiveQueue::default(),
            peer: None,
            sent: Vec::new(),
            needing_receive: Vec::new(),
            settled_count: 0,
            addressed: Vec::new(),
            has_error_cause: false,
            has_send_error_cause: false,
            last_in_order: Vec::new(),
            shared_completed_count: 0,
            has_flushed_shared: false,
            reset_count: 0,
        });
        EndNumber(self.ends.len() - 1)
    }

    /// The two are connected with each other.
    pub fn connect(&mut self, one: EndNumber, other: EndNumber) {
        self.ends[one.0].peer = Some(other);
        self.ends[other.0].peer = Some(one);
    }

    /// The queue pair has another number (it was destroyed and made again).
    pub fn set_queue_pair(&mut self, end: EndNumber, queue_pair: QueuePairNumber) {
        self.ends[end.0].facts.queue_pair = queue_pair;
    }

    /// Memory was registered.
    pub fn register(&mut self, contents: Vec<u8>) -> RegionNumber {
        self.memory.register(contents)
    }

    /// The program itself wrote into its memory.
    pub fn program_wrote(&mut self, place: Place, bytes: &[u8]) {
        self.memory.set_known(place, bytes);
    }

    /// Keys were revoked: deregistration has returned. `bytes` are the memory's as the program got it back.
    pub fn revoked(&mut self, region: RegionNumber, bytes: &[u8]) {
        if let Err(difference) = self.memory.check(region, bytes) {
            self.accuse_memory(&difference, "memory that was just deregistered");
        }
        for (message, was_whole) in self.memory.revoke(region, bytes) {
            self.messages[message as usize].target = Target::Revoked { was_whole };
        }
        self.revoked_source(region);
        self.retire_words(region, bytes);
    }

    /// The number that the next message will have.
    pub fn next_message(&self) -> MessageNumber {
        self.messages.len() as MessageNumber
    }

    /// A send was posted; it is the message that [`Judge::next_message`] returned.
    pub fn posted_send(&mut self, from: EndNumber, facts: SendFacts) -> MessageNumber {
        self.posted(from, facts, Response::None)
    }

    pub(super) fn posted(&mut self, from: EndNumber, facts: SendFacts, response: Response) -> MessageNumber {
        let number = self.next_message();
        self.posting_count += 1;
        let packet_bytes = self.ends[from.0].facts.packet_bytes;
        let target = match facts.target {
            // With a wrong local key the packets before the one that needs it may have been sent.
            Some(place) if matches!(facts.mistake, None | Some(Mistake::LocalKey)) && facts.length > 0 => {
                self.memory.open(place, Arrival::write(number, facts.length, packet_bytes));
                Target::Open(place)
            }
            _ => Target::None,
        };
        let end = &mut self.ends[from.0];
        let needs_receive = facts.kind == Kind::Send || facts.has_immediate;
        self.messages.push(Message {
            facts,
            from,
            network: self.network,
            position: end.sent.len(),
            receive_index: needs_receive.then_some(end.needing_receive.len()),
            posting: self.posting_count,
            posted_at: self.now,
            target,
            delivered_count: 0,
            ending: None,
            response,
        });
        end.sent.push(number);
        if needs_receive {
            end.needing_receive.push(number);
        }
        let is_signaled = facts.is_signaled || end.facts.signals_all;
        end.send_queue.post(facts.id, number, is_signaled);
        self.ends[facts.to.0].addressed.push(number);
        self.note_keys(number);
        number
    }

    /// A receive was posted. Its memory holds what the program put there.
    pub fn posted_receive(&mut self, end: EndNumber, receive: PostedReceive) {
        self.posting_count += 1;
        for piece in &receive.pieces {
            self.memory.lend(piece.place, piece.length);
        }
        let posting = self.posting_count;
        self.ends[end.0].receive_queue.post(PostedReceive { posting, ..receive });
    }

    /// The program moved the queue pair to ERR.
    pub fn moved_to_error(&mut self, end: EndNumber) {
        self.ends[end.0].has_error_cause = true;
    }

    /// The program moved the queue pair from SQE back to RTS.
    pub fn resumed(&mut self, end: EndNumber) {
        self.ends[end.0].has_send_error_cause = false;
        self.ends[end.0].send_queue.resume();
    }

    /// The program reset (or destroyed) these queue pairs, both ends of each connection among them; what had not
    /// completed is forgotten. Gives back the receives, whose memory is the program's again, and the sends.
    pub fn reset(&mut self, ends: &[EndNumber], memory: &impl ReadMemory) -> (Vec<PostedReceive>, Vec<MessageNumber>) {
        self.reset_shared_receives(ends, memory);
        let mut all_receives = Vec::new();
        let mut all_sends = Vec::new();
        for &number in ends {
            let completed_count = self.ends[number.0].receive_queue.completed_count();
            let receives = self.ends[number.0].receive_queue.reset();
            for receive in &receives {
                self.check_ended_receive(number, receive, completed_count, memory);
            }
            all_receives.extend(receives);
        }
        for &number in ends {
            let end = &mut self.ends[number.0];
            all_sends.extend(end.send_queue.reset());
            end.sent.clear();
            end.needing_receive.clear();
            end.settled_count = 0;
            end.reset_count += 1;
            end.has_error_cause = false;
            end.has_send_error_cause = false;
        }
        for message in &all_sends {
            self.messages[*message as usize].ending = Some(Ending::Unknown);
            self.response_is_lost(*message, memory);
        }
        self.settle_words(ends, memory);
        (all_receives, all_sends)
    }

    /// Completions that arrived with one step of time, in the order in which each completion queue gave them. Returns
    /// what ended: sends with their endings, and receives whose memory is the program's again.
    pub fn observe(&mut self, observations: &[Observation], memory: &impl ReadMemory) -> Ended {
        // Messages are delivered before their sends complete; failures of receives may follow from failures of sends.
        // Within a queue the order stays: success never follows a failure there.
        let mut ended = Ended::default();
        for pass in 0..3 {
            for observation in observations {
                let is_receive = Self::is_receive_id(observation.completion.id);
                match (is_receive, observation.completion.is_success()) {
                    (true, true) if pass == 0 => self.receive_success(observation, memory, &mut ended),
                    (false, _) if pass == 1 => self.send_completion(observation, memory, &mut ended),
                    (true, false) if pass == 2 => self.receive_failure(observation, memory, &mut ended),
                    _ => {}
                }
            }
        }
        ended.keys = std::mem::take(&mut self.dead_keys);
        ended
    }

    /// Ids of receives have their top bit set: a failed completion does not say what kind of request it was.
    pub const RECEIVE_ID: u64 = 1 << 63;

    /// Whether an id is a receive's.
    pub fn is_receive_id(id: u64) -> bool {
        id & Self::RECEIVE_ID != 0
    }

    /// Judges all memory as it is now.
    pub fn check_all_memory(&mut self, memory: &impl ReadMemory) {
        let regions: Vec<_> = self.memory.registered().collect();
        for region in regions {
            self.check_region(region, memory);
        }
        for end in 0..self.ends.len() {
            self.check_posted_receives(EndNumber(end), memory);
        }
        self.check_shared_queues(memory);
        self.check_words(memory);
    }

    /// Judges one region, except where receives are posted.
    pub fn check_region(&mut self, region: RegionNumber, memory: &impl ReadMemory) {
        let mut bytes = vec![0; self.memory.region_bytes(region)];
        memory.read(Place { region, offset: 0 }, &mut bytes);
        if let Err(difference) = self.memory.check(region, &bytes) {
            self.accuse_memory(&difference, "registered memory");
            // Report a wrong byte once.
            let end = bytes.len().min(difference.place.offset + 4096);
            self.memory.set_known(difference.place, &bytes[difference.place.offset..end]);
        }
    }

    pub(super) fn accuse_memory(&mut self, difference: &Difference, what: &str) {
        let Place { region, offset } = difference.place;
        let got = match difference.message {
            Some(message) if (message as usize) < self.messages.len() => {
                format!("{}: {}", difference.got, self.describe(message))
            }
            _ => difference.got.clone(),
        };
        let subject = format!("{what}, region {} offset {offset}", region.0);
        self.accuse(Rule::Memory, subject, &*difference.expected, got);
    }

    /// Sends that still owe a completion, of one end.
    pub fn owed_sends(&self, end: EndNumber) -> usize {
        self.ends[end.0].send_queue.owed().count()
    }

    /// Requests in the send queue, as its program must count them.
    pub fn used_sends(&self, end: EndNumber) -> usize {
        self.ends[end.0].send_queue.used()
    }

    /// Unsignalled requests since the last signalled one.
    pub fn unsignaled_tail(&self, end: EndNumber) -> usize {
        self.ends[end.0].send_queue.unsignaled_tail()
    }

    /// Receives posted and not completed, of its own queue.
    pub fn used_receives(&self, end: EndNumber) -> usize {
        self.ends[end.0].receive_queue.used()
    }

    /// Receives that are posted and cannot take a message of this many bytes, because they are too small or broken.
    pub fn unfit_receives(&self, end: EndNumber, message_bytes: usize) -> usize {
        let header = header_bytes(self.ends[end.0].facts.transport);
        let is_unfit = |receive: &&PostedReceive| receive.is_broken || receive.capacity() < message_bytes + header;
        self.ends[end.0].receive_queue.posted().filter(is_unfit).count()
    }

    /// Messages posted to this end of a connection since the last reset that still wait for a receive to be posted.
    pub fn missing_receives(&self, end: EndNumber) -> usize {
        if let Some(queue) = self.ends[end.0].facts.shared_queue {
            return self.missing_shared_receives(end, queue);
        }
        let Some(peer) = self.ends[end.0].peer else { return 0 };
        let needed = self.ends[peer.0].needing_receive.len();
        needed.saturating_sub(self.ends[end.0].receive_queue.summaries().len())
    }

    /// How often a message was delivered, by receive completions.
    pub fn delivered_count(&self, message: MessageNumber) -> u32 {
        self.messages[message as usize].delivered_count
    }

    /// Whether a message takes a receive of its peer's.
    pub fn takes_receive(&self, message: MessageNumber) -> bool {
        self.messages[message as usize].receive_index.is_some()
    }

    /// If this message is a write, it must be in its place by now; `because` says why.
    pub fn must_be_placed(&mut self, message: MessageNumber, because: &str, memory: &impl ReadMemory) {
        self.settle(message, because, memory);
    }

    /// How a message ended, if it has.
    pub fn ending(&self, message: MessageNumber) -> Option<Ending> {
        self.messages[message as usize].ending
    }

    /// Whether something has happened that can have stopped this end: then it does not answer its peer any more.
    pub fn may_be_in_error(&self, number: EndNumber) -> bool {
        let end = &self.ends[number.0];
        if end.has_error_cause {
            return true;
        }
        let header_bytes = header_bytes(end.facts.transport);
        let breaks = |summary: Option<super::receive_queue::ReceiveSummary>, message: &Message| {
            summary.is_some_and(|receive| receive.is_broken || receive.capacity < message.facts.length + header_bytes)
                && message.facts.kind == Kind::Send
        };
        if end.facts.transport != Transport::ReliableConnection {
            let summaries = end.receive_queue.summaries();
            let smallest = summaries.iter().map(|receive| receive.capacity).min().unwrap_or(usize::MAX);
            let largest = end.addressed.iter().map(|message| self.messages[*message as usize].facts.length).max();
            return summaries.iter().any(|receive| receive.is_broken) || largest.unwrap_or(0) + header_bytes > smallest;
        }
        let Some(peer) = end.peer else { return false };
        self.ends[peer.0].sent.iter().any(|message| {
            let message = &self.messages[*message as usize];
            matches!(message.facts.mistake, Some(Mistake::RemoteAccess | Mistake::Alignment))
                || self.may_have_lost_its_key(message)
                || message.receive_index.is_some_and(|index| breaks(end.receive_queue.for_message(index), message))
        })
    }

    pub(super) fn describe(&self, number: MessageNumber) -> String {
        let message = &self.messages[number as usize];
        let transport = self.ends[message.from.0].facts.transport.abbreviation();
        let with = if message.facts.has_immediate { " with immediate" } else { "" };
        let mistake = message.facts.mistake.map(|mistake| format!(" with a wrong {mistake:?}"));
        format!(
            "message {number} ({transport} {:?}{with} of {} bytes from queue pair {} to {}{})",
            message.facts.kind,
            message.facts.length,
            message.from.0,
            message.facts.to.0,
            mistake.unwrap_or_default(),
        )
    }

    /// Whether a word in memory belongs to a message sent to this end, by the number in the word.
    pub(super) fn stamped(&self, end: EndNumber, word: &[u8]) -> Option<(MessageNumber, usize)> {
        let (message, offset) = contents::identify(word)?;
        let known = self.messages.get(message as usize)?;
        (known.facts.to == end).then_some((message, offset))
    }
}
