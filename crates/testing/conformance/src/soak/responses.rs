//! Requests that are answered with data: READs and atomics, and messages that must wait for them.

use longhaul_verbs::{Capabilities, RemoteMemory, ScatterGatherEntry, SendFlags, SendOperation, SendRequest};

use super::actions::Draft;
use super::program::{MessageMemory, Program};
use super::state::WORD_BYTES;
use crate::checker::{
    Atomic, EndNumber, Kind, MessageNumber, Mistake, Piece, Place, ReadFacts, SendFacts, WordUse, message_bytes,
};

/// Words of a node that are in use at a time: few, so that queue pairs meet on them.
const WORDS_MAX: usize = 3;
/// Words begin with values that no swap puts and that additions do not overflow.
const FIRST_VALUE: u64 = 0x5a5a << 48;
/// Odd, so that different messages swap in different values, in all bytes.
const SWAP_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// A request with a response, ready to be posted.
struct ResponseRequest {
    operation: SendOperation,
    entries: Vec<ScatterGatherEntry>,
    kind: Kind,
    length: usize,
    mistake: Option<Mistake>,
}

impl Program {
    /// A READ in one of three forms.
    pub(super) fn post_some_read(&mut self, end: EndNumber) {
        match self.dice.within(0..=4) {
            0 => self.post_write_and_read(end),
            1 => self.post_read_and_fenced(end),
            _ => {
                self.post_read(end, true);
            }
        }
    }

    /// Reads memory that was just filled for this READ, and that nobody changes before it has ended.
    pub(super) fn post_read(&mut self, end: EndNumber, may_be_wrong: bool) -> Option<MessageNumber> {
        if self.free_sends(end) == 0 {
            return None;
        }
        let mut length = self.draft_length(end);
        let mut mistake = None;
        if may_be_wrong && length > 0 && self.dice.chance(self.plan.mistake_percent) {
            mistake = Some(self.dice.pick(&[Mistake::RemoteAccess, Mistake::RemoteAccess, Mistake::LocalKey]));
        }
        if mistake == Some(Mistake::RemoteAccess) {
            // A long READ may be asked for in parts, and of one that leaves its region the first ones are right.
            length = length.min(self.pair(end).mtu.byte_count() as usize);
        }
        let contents = self.judge.next_message();
        let (source, remote) = match mistake {
            Some(Mistake::RemoteAccess) => (None, self.wrong_place(self.peer(end), length)),
            _ => {
                let place = self.expose(end, contents, length);
                (Some(Piece { place, length }), self.memory.remote(place))
            }
        };
        let local = self.allocate_response(end, length);
        self.post_read_of(end, remote, mistake, source, (contents, 0), local, length, true)
    }

    /// Writes, and reads a part of it back at once: a responder carries out requests in order.
    fn post_write_and_read(&mut self, end: EndNumber) {
        if self.free_sends(end) < 2 {
            return;
        }
        let length = self.draft_length(end);
        let draft = Draft { is_signaled: self.dice.chance(50), ..Draft::plain(Kind::Write, length) };
        let Some(written) = self.post_message(end, draft) else { return };
        // The place belongs to the READ from now on, which ends later.
        let Some(target) = self.messages[written as usize].target.take() else { return };
        let first = self.dice.index(length + 1);
        let count = self.dice.index(length - first + 1);
        let local = self.allocate_response(end, count);
        let remote = self.memory.remote(Place { offset: target.place.offset + first, ..target.place });
        self.tally.count_operation("read_after_write");
        let read = self.post_read_of(end, remote, None, Some(target), (written, first), local, count, true);
        if let Some(read) = read {
            // Not to be filled anew: it is a place for writes.
            let memory = &mut self.messages[read as usize];
            memory.sources.retain(|piece| *piece != target);
            memory.target = Some(target);
        }
    }

    /// A READ that brings the bytes of the message behind it, which therefore must wait for them.
    fn post_read_and_fenced(&mut self, end: EndNumber) {
        if self.free_sends(end) < 2 {
            return;
        }
        let contents = self.judge.next_message() + 1;
        let length = self.draft_length(end);
        let place = self.expose(end, contents, length);
        let pieces = self.allocate_pieces_of_responses(end, length);
        let local = (pieces.clone(), pieces.iter().map(|piece| self.memory.entry(*piece)).collect());
        let source = Some(Piece { place, length });
        let remote = self.memory.remote(place);
        let read = self.post_read_of(end, remote, None, source, (contents, 0), local, length, false);
        if read.is_none() {
            return;
        }
        let kind = self.dice.pick(&[Kind::Send, Kind::Write]);
        let draft = Draft {
            has_immediate: self.dice.chance(40),
            is_signaled: !self.dice.chance(self.plan.unsignaled_percent),
            ..Draft::plain(kind, length)
        };
        self.post_message_from(end, draft, Some(pieces));
    }

    /// Memory of the peer's that holds the bytes of a message.
    fn expose(&mut self, end: EndNumber, contents: MessageNumber, length: usize) -> Place {
        let peer = self.peer(end);
        let place = self.ends[peer.0].exposed.allocate(&mut self.memory, &mut self.judge, &mut self.dice, length);
        self.memory.write(&mut self.judge, place, &message_bytes(contents, length));
        place
    }

    fn allocate_pieces_of_responses(&mut self, end: EndNumber, length: usize) -> Vec<Piece> {
        let piece_count = self.dice.within(1..=u64::from(self.pair(end).limits.send_entries)) as usize;
        let arena = &mut self.ends[end.0].responses;
        arena.allocate_pieces(&mut self.memory, &mut self.judge, &mut self.dice, length, piece_count)
    }

    /// Memory for a response, and the entries that name it. Now and then its end falls into a null region.
    fn allocate_response(&mut self, end: EndNumber, length: usize) -> (Vec<Piece>, Vec<ScatterGatherEntry>) {
        let null_length = match self.has(Capabilities::NULL_REGION) && self.dice.chance(10) {
            true => self.dice.index(length + 1),
            false => 0,
        };
        let mut pieces = self.allocate_pieces_of_responses(end, length - null_length);
        let mut entries: Vec<_> = pieces.iter().map(|piece| self.memory.entry(*piece)).collect();
        if null_length > 0 {
            if entries.len() == self.pair(end).limits.send_entries as usize {
                // No entry is left for it: it takes the place of the last one.
                let last = pieces.pop().expect("there are as many as entries, at least one");
                let entry = entries.pop().expect("one for each piece");
                self.memory.release(last);
                entries.push(self.null_entry(end, entry.length + null_length as u32));
            } else {
                entries.push(self.null_entry(end, null_length as u32));
            }
            self.tally.count_operation("null_region_read");
        }
        (pieces, entries)
    }

    #[expect(clippy::too_many_arguments, reason = "all of it says what to read and where to")]
    fn post_read_of(
        &mut self,
        end: EndNumber,
        remote: RemoteMemory,
        mistake: Option<Mistake>,
        source: Option<Piece>,
        (contents, contents_offset): (MessageNumber, usize),
        (local, mut entries): (Vec<Piece>, Vec<ScatterGatherEntry>),
        length: usize,
        owns_local: bool,
    ) -> Option<MessageNumber> {
        if mistake == Some(Mistake::LocalKey) {
            let index = self.dice.index(entries.len());
            entries[index].local_key ^= 0x0033_0011;
        }
        let operation = SendOperation::Read(remote);
        let request = ResponseRequest { operation, entries, kind: Kind::Read, length, mistake };
        let facts = self.post_response_request(end, &request)?;
        self.tally.count_operation("read");
        let mut sources: Vec<Piece> = source.into_iter().collect();
        if owns_local {
            sources.extend(&local);
        }
        self.messages.push(MessageMemory { sources, target: None, is_reliable: true });
        let read = ReadFacts { contents, contents_offset, source: source.map(|piece| piece.place.region), local };
        Some(self.judge.posted_read(end, facts, read))
    }

    /// Posts an atomic on one of the words of the peer's node.
    pub(super) fn post_atomic(&mut self, end: EndNumber, may_be_wrong: bool) -> Option<MessageNumber> {
        if self.free_sends(end) == 0 {
            return None;
        }
        let node = self.pair(end).nodes[1 - self.ends[end.0].side];
        let index = self.some_word(node);
        let (word, word_use, place) = self.words[node].words[index];
        let mut mistake = None;
        if may_be_wrong && self.dice.chance(self.plan.mistake_percent) {
            mistake = Some(self.dice.pick(&[Mistake::RemoteAccess, Mistake::Alignment, Mistake::LocalKey]));
        }
        let mut remote = self.memory.remote(place);
        match mistake {
            // A key that does not exist, or memory that is for writes and READs only.
            Some(Mistake::RemoteAccess) if self.dice.chance(50) => remote.key ^= 0x0055_aa00,
            Some(Mistake::RemoteAccess) => {
                let peer = self.peer(end);
                let arena = &mut self.ends[peer.0].targets;
                let place = arena.allocate(&mut self.memory, &mut self.judge, &mut self.dice, 2 * WORD_BYTES);
                self.memory.release(Piece { place, length: 2 * WORD_BYTES });
                remote = self.memory.remote(Place { offset: place.offset.next_multiple_of(WORD_BYTES), ..place });
            }
            Some(Mistake::Alignment) => remote.address += self.dice.within(1..=7),
            _ => {}
        }
        let has_word = !matches!(mistake, Some(Mistake::RemoteAccess | Mistake::Alignment));
        let number = self.judge.next_message();
        let (kind, atomic, operation) = match word_use {
            WordUse::Add => {
                let add = self.judge.next_addend(word);
                (Kind::FetchAndAdd, Atomic::FetchAndAdd { add }, SendOperation::FetchAndAdd { remote, add })
            }
            WordUse::Swap => {
                let compare = match self.dice.within(0..=9) {
                    0..=5 => self.words[node].hoped[index],
                    6..=8 => self.judge.latest_value(word),
                    _ => FIRST_VALUE,
                };
                let swap = SWAP_FACTOR.wrapping_mul(u64::from(number) + 1);
                let operation = SendOperation::CompareAndSwap { remote, compare, swap };
                (Kind::CompareAndSwap, Atomic::CompareAndSwap { compare, swap }, operation)
            }
        };
        let result = self.allocate_pieces_of_responses(end, WORD_BYTES);
        let mut entries: Vec<_> = result.iter().map(|piece| self.memory.entry(*piece)).collect();
        if mistake == Some(Mistake::LocalKey) {
            let index = self.dice.index(entries.len());
            entries[index].local_key ^= 0x0033_0011;
        }
        let request = ResponseRequest { operation, entries, kind, length: WORD_BYTES, mistake };
        let facts = self.post_response_request(end, &request)?;
        self.tally.count_operation(match word_use {
            WordUse::Add => "fetch_and_add",
            WordUse::Swap => "compare_and_swap",
        });
        self.messages.push(MessageMemory { sources: result.clone(), target: None, is_reliable: true });
        if let (true, Atomic::CompareAndSwap { swap, .. }) = (has_word, atomic) {
            self.words[node].hoped[index] = swap;
        }
        Some(self.judge.posted_atomic(end, facts, has_word.then_some((word, atomic)), result))
    }

    /// A word of a node that can take another request.
    fn some_word(&mut self, node: usize) -> usize {
        let index = self.dice.index(WORDS_MAX).min(self.words[node].words.len());
        let words = &mut self.words[node];
        let is_usable = words.words.get(index).is_some_and(|(word, _, _)| self.judge.has_room(*word));
        if is_usable {
            return index;
        }
        let place = words.arena.allocate(&mut self.memory, &mut self.judge, &mut self.dice, WORD_BYTES);
        self.memory.write(&mut self.judge, place, &FIRST_VALUE.to_ne_bytes());
        let word_use = self.dice.pick(&[WordUse::Add, WordUse::Swap]);
        let fresh = (self.judge.add_word(place, word_use, FIRST_VALUE), word_use, place);
        if index == words.words.len() {
            words.words.push(fresh);
            words.hoped.push(FIRST_VALUE);
        } else {
            words.words[index] = fresh;
            words.hoped[index] = FIRST_VALUE;
        }
        index
    }

    /// Posts it; what the judge must know of it, unless it was refused.
    fn post_response_request(&mut self, end: EndNumber, request: &ResponseRequest) -> Option<SendFacts> {
        let is_signaled = !self.dice.chance(self.plan.unsignaled_percent) || self.must_signal(end, 1);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, is_signaled);
        let id = self.next_id();
        let posted = SendRequest::new(id, request.operation, &request.entries).with_flags(flags);
        if let Err(error) = self.ends[end.0].queue_pair.post_send(&[posted]) {
            self.accuse_refusal(end, "request", &error);
            return None;
        }
        Some(SendFacts {
            id,
            to: self.peer(end),
            kind: request.kind,
            length: request.length,
            has_immediate: false,
            target: None,
            mistake: request.mistake,
            is_signaled,
            through: None,
            ends_key: None,
        })
    }
}
