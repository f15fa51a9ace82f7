//! What the program does: post messages, bursts and receives, revoke keys, break and repair connections.

use longhaul_time::Duration;
use longhaul_verbs::{
    Capabilities, PostError, QueuePairAttributes, QueuePairState, ReceiveRequest, RemoteMemory, SendFlags,
    SendOperation, SendRequest, Transport, WriteBurst,
};

use super::ground::Ground;
use super::program::{MessageMemory, Program, QUEUE_KEY};
use crate::checker::{
    EndNumber, Ending, Judge, KeyNumber, Kind, MessageNumber, Mistake, Piece, Place, PostedReceive, Rule, SendFacts,
    immediate, message_bytes,
};

/// Most packets in a burst.
const BURST_PACKETS_MAX: usize = 12;
/// Most times that the same two queue pairs are connected again: sequence numbers move on by a quarter of their space
/// each time, so that packets of an earlier connection, still in flight, are never taken for new ones. After that other
/// queue pairs take their place.
const RECONNECT_COUNT_MAX: u32 = 3;
const PSN_STEP: u32 = 1 << 22;

/// A send request to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draft {
    pub(super) kind: Kind,
    pub(super) length: usize,
    pub(super) has_immediate: bool,
    pub(super) mistake: Option<Mistake>,
    pub(super) is_inline: bool,
    pub(super) is_signaled: bool,
    /// A write that goes somewhere else than to the peer's ordinary memory for writes.
    pub(super) way: Option<WayIn>,
    /// A SEND that invalidates a window of the peer's.
    pub(super) invalidates: Option<(KeyNumber, u32)>,
}

/// A place that is reached through a window or a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct WayIn {
    pub(super) remote: RemoteMemory,
    /// What is there; `None` where nothing is kept.
    pub(super) target: Option<Place>,
    pub(super) key: Option<KeyNumber>,
}

impl Draft {
    /// A signalled message with nothing special.
    pub(super) fn plain(kind: Kind, length: usize) -> Draft {
        Draft {
            kind,
            length,
            has_immediate: false,
            mistake: None,
            is_inline: false,
            is_signaled: true,
            way: None,
            invalidates: None,
        }
    }
}

impl Program {
    /// One random step.
    pub(super) fn step(&mut self, ground: &mut dyn Ground) {
        let end = EndNumber(self.dice.index(self.ends.len()));
        if self.is_stopped(self.node(end)) {
            return;
        }
        if self.dice.chance(self.plan.revocation_percent) {
            self.revoke_some_key(end);
        }
        if self.dice.chance(self.plan.reconnect_percent)
            && self.transport(end) != Transport::UnreliableDatagram
            && !self.is_cut_off(end)
        {
            self.reconnect(end, ground);
        }
        self.repair(end, ground);
        match self.shared_receives(end) {
            Some(_) => self.post_shared_receives(end, ground),
            None => self.post_receives(end),
        }
        let may_burst = self.transport(end) != Transport::UnreliableDatagram;
        let may_respond = self.transport(end) == Transport::ReliableConnection;
        match self.dice.within(0..=9) {
            0 if may_burst => self.post_burst(end),
            1..=2 if may_respond && self.has(Capabilities::READ) => self.post_some_read(end),
            3 if may_respond && self.has(Capabilities::ATOMICS) => {
                self.post_atomic(end, true);
            }
            4..=5 if may_respond && self.plan.has_windows => self.use_window(end),
            6 if may_burst && self.plan.has_slots && self.has(Capabilities::SLOTTED_REGION) => self.use_slot(end),
            _ => {
                let draft = self.draft(end);
                self.post_message(end, draft);
            }
        }
    }

    /// Brings a queue pair that has failed back to work, after a while.
    fn repair(&mut self, end: EndNumber, ground: &mut dyn Ground) {
        let state = self.ends[end.0].queue_pair.state();
        let has_failed = matches!(state, QueuePairState::Error | QueuePairState::SendQueueError);
        if !has_failed || self.is_cut_off(end) || !self.dice.chance(50) {
            return;
        }
        match state {
            QueuePairState::SendQueueError => self.resume(end, ground),
            _ => self.reconnect(end, ground),
        }
    }

    /// From SQE back to RTS, when all that was flushed has been polled.
    pub(super) fn resume(&mut self, end: EndNumber, ground: &mut dyn Ground) {
        self.wake_nodes(end, ground);
        let deadline = ground.now() + Duration::from_secs(1);
        if !self.advance_until(ground, deadline, |program| program.judge.owed_sends(end) == 0) {
            self.accuse_silence(end, "flushes of a send queue in SQE");
        }
        // What arrived meanwhile may have ended it altogether.
        if self.ends[end.0].queue_pair.state() != QueuePairState::SendQueueError {
            return;
        }
        self.modify(end, &QueuePairAttributes::to_state(QueuePairState::ReadyToSend));
        self.judge.resumed(end);
    }

    fn accuse_silence(&mut self, end: EndNumber, what: &str) {
        let subject = format!("queue pair {} in {:?}", end.0, self.ends[end.0].queue_pair.state());
        let sends = self.judge.owed_sends(end);
        let receives = self.judge.used_receives(end);
        let got = format!("nothing for {sends} sends and {receives} receives");
        self.judge.accuse(Rule::Progress, subject, what, got);
    }

    /// Takes a connection (or two datagram queue pairs) down and up again.
    pub(super) fn reconnect(&mut self, end: EndNumber, ground: &mut dyn Ground) {
        let ends = [end, self.peer(end)];
        self.wake_nodes(end, ground);
        self.tally.reconnections += 1;
        // Either everything is flushed first, or it is forgotten.
        let is_orderly = self.dice.chance(60);
        if is_orderly {
            for end in ends {
                self.modify(end, &QueuePairAttributes::to_state(QueuePairState::Error));
                self.judge.moved_to_error(end);
            }
            let deadline = ground.now() + Duration::from_secs(1);
            for end in ends {
                let is_flushed =
                    |program: &Program| program.judge.owed_sends(end) == 0 && program.judge.used_receives(end) == 0;
                if !self.advance_until(ground, deadline, is_flushed) {
                    self.accuse_silence(end, "a flush of everything outstanding within a second");
                }
                self.check_last_work_request(end, ground);
            }
        } else {
            // What has completed already is taken now; later there must be nothing.
            self.advance(ground, Duration::ZERO);
        }
        let is_worn = ends.iter().any(|end| self.ends[end.0].reconnect_count >= RECONNECT_COUNT_MAX);
        let is_replaced = self.dice.chance(30) || is_worn;
        for end in ends {
            if is_replaced {
                self.destroy_queue_pair(end);
            } else {
                self.modify(end, &QueuePairAttributes::to_state(QueuePairState::Reset));
            }
        }
        // On real time something may have completed in the last moment.
        self.poll_events(ground);
        self.take_last_completions(ground.now());
        let (receives, sends) = self.judge.reset(&ends, &self.memory);
        for receive in receives {
            self.end_receive(receive.pieces);
        }
        for message in sends {
            self.end_message(message, Ending::Unknown);
        }
        for end in ends {
            self.drop_window(end);
            self.drop_slots(end);
            if is_replaced {
                self.replace_queue_pair(end);
            }
            self.ends[end.0].has_last_work_request_event = false;
            let count = &mut self.ends[end.0].reconnect_count;
            *count = if is_replaced { 0 } else { *count + 1 };
            self.ends[end.0].send_psn = (self.ends[end.0].send_psn + PSN_STEP) & 0xff_ffff;
        }
        self.connect_pair(self.ends[end.0].pair, ground);
    }

    /// Deregisters memory that the peer writes to, uses it for something else at once, and keeps the old key for the
    /// peer to try.
    fn revoke_some_key(&mut self, end: EndNumber) {
        let count = self.ends[end.0].targets.regions.len();
        if count == 0 {
            return;
        }
        self.tally.revocations += 1;
        self.tally.count_operation("deregister");
        let index = self.dice.index(count);
        let region = self.ends[end.0].targets.regions[index];
        let bytes = self.memory.region_bytes(region);
        let remote = self.memory.remote(Place { region, offset: 0 });
        let buffer = self.memory.revoke(&mut self.judge, region);
        let (domain, access) = (self.ends[end.0].targets.domain.clone(), self.ends[end.0].targets.access);
        let again = self.memory.register(&mut self.judge, &domain, buffer, access);
        // Half of the time new messages go there, half of the time nothing may ever change there.
        let is_used_again = self.dice.chance(50);
        let end = &mut self.ends[end.0];
        end.revoked.push((remote, bytes));
        if is_used_again {
            end.targets.regions[index] = again;
        } else {
            end.targets.regions.swap_remove(index);
        }
    }

    /// Posts receives as far as the plan likes them.
    fn post_receives(&mut self, end: EndNumber) {
        let depth = self.pair(end).limits.receive_requests as usize;
        let free = depth - self.judge.used_receives(end);
        if free == 0 || self.plan.has_late_receives && self.dice.chance(70) {
            return;
        }
        let count = self.dice.within(1..=free as u64) as usize;
        for _ in 0..count {
            self.post_receive(end, true);
        }
    }

    /// Posts one receive; it may be a wrong one if the plan has mistakes.
    pub(super) fn post_receive(&mut self, end: EndNumber, may_be_wrong: bool) {
        if self.shared_receives(end).is_some() {
            return self.post_shared_receive(end);
        }
        let transport = self.transport(end);
        let header = if transport == Transport::UnreliableDatagram { 40 } else { 0 };
        let mut capacity = self.message_bytes_max(end) + header;
        let is_wrong = may_be_wrong && self.dice.chance(self.plan.mistake_percent) && self.dice.chance(20);
        let is_broken = is_wrong && self.dice.chance(50);
        if is_wrong && !is_broken {
            capacity = self.dice.within(header as u64..=capacity as u64) as usize;
        }
        let entries_max = self.pair(end).limits.receive_entries;
        let may_be_null = transport == Transport::ReliableConnection && entries_max > 1 && !is_wrong;
        let is_null = may_be_null && self.has(Capabilities::NULL_REGION) && self.dice.chance(5);
        let null_bytes = if is_null { self.dice.index(capacity) + 1 } else { 0 };
        capacity -= null_bytes;
        let piece_count = self.dice.within(1..=u64::from(entries_max) - u64::from(is_null)) as usize;
        let arena = &mut self.ends[end.0].receives;
        let pieces = arena.allocate_pieces(&mut self.memory, &mut self.judge, &mut self.dice, capacity, piece_count);
        let mut entries: Vec<_> = pieces.iter().map(|piece| self.memory.entry(*piece)).collect();
        if is_broken {
            let index = self.dice.index(entries.len());
            entries[index].local_key ^= 0x00ff_0055;
        }
        if is_null {
            entries.push(self.null_entry(end, null_bytes as u32));
            self.tally.count_operation("null_region_receive");
        }
        let id = self.next_id() | Judge::RECEIVE_ID;
        let request = ReceiveRequest { id, local: &entries };
        match self.ends[end.0].queue_pair.post_receive(&[request]) {
            Ok(()) => {
                let receive = PostedReceive { id, pieces, null_bytes, is_broken, posting: 0, index: 0 };
                self.judge.posted_receive(end, receive);
            }
            Err(error) => {
                self.accuse_refusal(end, "receive", &error);
                self.end_receive(pieces);
            }
        }
    }

    pub(super) fn accuse_refusal(&mut self, end: EndNumber, what: &str, error: &PostError) {
        let subject = format!("posting a {what} to queue pair {}", end.0);
        self.judge.accuse(Rule::Refusal, subject, "it to be taken", error.to_string());
    }

    pub(super) fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(super) fn message_bytes_max(&self, end: EndNumber) -> usize {
        match self.transport(end) {
            Transport::UnreliableDatagram => self.plan.message_bytes_max.min(self.pair(end).mtu.byte_count() as usize),
            _ => self.plan.message_bytes_max,
        }
    }

    /// Lengths that packets are cut at, and others.
    pub(super) fn draft_length(&mut self, end: EndNumber) -> usize {
        let packet = self.pair(end).mtu.byte_count() as usize;
        let most = self.message_bytes_max(end);
        let length = match self.dice.within(0..=9) {
            0 => 0,
            1 => self.dice.index(9),
            2 => packet - 1,
            3 => packet,
            4 => packet + 1,
            5..=7 => self.dice.index(4 * packet),
            _ => self.dice.index(most + 1),
        };
        length.min(most)
    }

    fn draft(&mut self, end: EndNumber) -> Draft {
        let transport = self.transport(end);
        let length = self.draft_length(end);
        let kind = match transport {
            Transport::UnreliableDatagram => Kind::Send,
            _ => self.dice.pick(&[Kind::Send, Kind::Write, Kind::Write]),
        };
        let mut mistake = None;
        if length > 0 && self.dice.chance(self.plan.mistake_percent) {
            mistake = Some(match (kind, transport) {
                _ if self.dice.chance(20) => Mistake::LocalKey,
                (Kind::Write, _) => Mistake::RemoteAccess,
                (_, Transport::UnreliableDatagram) => Mistake::QueueKey,
                _ => Mistake::LocalKey,
            });
        }
        let inline_bytes = self.pair(end).limits.inline_bytes as usize;
        Draft {
            has_immediate: self.dice.chance(40),
            mistake,
            is_inline: length <= inline_bytes && mistake != Some(Mistake::LocalKey) && self.dice.chance(50),
            is_signaled: !self.dice.chance(self.plan.unsignaled_percent),
            ..Draft::plain(kind, length)
        }
    }

    /// Places left in the send queue.
    pub(super) fn free_sends(&self, end: EndNumber) -> usize {
        (self.pair(end).limits.send_requests as usize).saturating_sub(self.judge.used_sends(end))
    }

    /// An unsignalled request keeps its place until a later one completes, so some must be signalled.
    pub(super) fn must_signal(&self, end: EndNumber, count: usize) -> bool {
        self.judge.unsignaled_tail(end) + count >= self.pair(end).limits.send_requests as usize / 2
    }

    /// Posts one message, if there is room for it; its number.
    pub(super) fn post_message(&mut self, end: EndNumber, draft: Draft) -> Option<MessageNumber> {
        self.post_message_from(end, draft, None)
    }

    /// The same; `read` is memory that READs before it bring its bytes to, so it must wait for them.
    pub(super) fn post_message_from(
        &mut self,
        end: EndNumber,
        draft: Draft,
        read: Option<Vec<Piece>>,
    ) -> Option<MessageNumber> {
        if self.free_sends(end) == 0 {
            return None;
        }
        let has_fence = read.is_some();
        let peer = self.peer(end);
        let number = self.judge.next_message();
        let bytes = message_bytes(number, draft.length);
        let (target, remote) = match draft.kind {
            Kind::Write if let Some(way) = draft.way => (way.target, way.remote),
            Kind::Write if draft.mistake == Some(Mistake::RemoteAccess) => (None, self.wrong_place(peer, draft.length)),
            Kind::Write => {
                let arena = &mut self.ends[peer.0].targets;
                let place = arena.allocate(&mut self.memory, &mut self.judge, &mut self.dice, draft.length);
                (Some(place), self.memory.remote(place))
            }
            _ => (None, RemoteMemory::default()),
        };
        let immediate = immediate(number);
        let operation = match (draft.kind, draft.has_immediate) {
            (Kind::Send, _) if let Some((_, key)) = draft.invalidates => SendOperation::SendWithInvalidate(key),
            (Kind::Write, false) => SendOperation::Write(remote),
            (Kind::Write, true) => SendOperation::WriteWithImmediate(remote, immediate),
            (_, false) => SendOperation::Send,
            (_, true) => SendOperation::SendWithImmediate(immediate),
        };
        let sources = match read {
            Some(read) => read,
            None if draft.is_inline => Vec::new(),
            None => self.place_sources(end, &bytes),
        };
        let mut entries: Vec<_> = sources.iter().map(|piece| self.memory.entry(*piece)).collect();
        if draft.mistake == Some(Mistake::LocalKey) {
            let index = self.dice.index(entries.len());
            entries[index].local_key ^= 0x0033_0011;
        }
        let is_signaled = draft.is_signaled || self.must_signal(end, 1);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, is_signaled);
        flags.set(SendFlags::SOLICITED, self.dice.chance(10));
        flags.set(SendFlags::FENCE, has_fence);
        let id = self.next_id();
        let queue_key = if draft.mistake == Some(Mistake::QueueKey) { !QUEUE_KEY & 0x7fff_ffff } else { QUEUE_KEY };
        let (this, other) = (&self.ends[end.0], &self.ends[peer.0]);
        let mut request = SendRequest::new(id, operation, &entries).with_flags(flags);
        if let Some(handle) = &this.address_handle {
            request = request.to(handle.destination(other.queue_pair.number(), queue_key));
        }
        let posted = match draft.is_inline {
            true => this.queue_pair.post_send_inline(&request, &bytes),
            false => this.queue_pair.post_send(&[request]),
        };
        // Behind a window or a slot memory is not the message's own.
        let own_target = if draft.way.is_some() { None } else { target };
        let piece = own_target.map(|place| Piece { place, length: draft.length });
        if let Err(error) = posted {
            self.accuse_refusal(end, "send", &error);
            self.end_receive(sources);
            return None;
        }
        self.tally.count_operation(match (draft.kind, draft.has_immediate, has_fence) {
            _ if draft.invalidates.is_some() => "send_with_invalidate",
            (_, _, true) => "fenced",
            (Kind::Write, false, _) => "write",
            (Kind::Write, true, _) => "write_with_immediate",
            (_, false, _) => "send",
            (_, true, _) => "send_with_immediate",
        });
        self.messages.push(MessageMemory {
            sources,
            target: piece,
            is_reliable: self.transport(end) == Transport::ReliableConnection,
        });
        let facts = SendFacts {
            id,
            to: peer,
            kind: draft.kind,
            length: draft.length,
            has_immediate: draft.has_immediate,
            target,
            mistake: draft.mistake,
            is_signaled,
            through: draft.way.and_then(|way| way.key),
            ends_key: draft.invalidates.map(|(key, _)| key),
        };
        Some(self.judge.posted_send(end, facts))
    }

    /// Puts a message into memory that it is sent from, in pieces.
    fn place_sources(&mut self, end: EndNumber, bytes: &[u8]) -> Vec<Piece> {
        let piece_count = self.dice.within(1..=u64::from(self.pair(end).limits.send_entries)) as usize;
        let arena = &mut self.ends[end.0].sources;
        let length = bytes.len();
        let pieces = arena.allocate_pieces(&mut self.memory, &mut self.judge, &mut self.dice, length, piece_count);
        let mut position = 0;
        for piece in &pieces {
            self.memory.write(&mut self.judge, piece.place, &bytes[position..position + piece.length]);
            position += piece.length;
        }
        pieces
    }

    /// A place that a peer must not be able to write to.
    pub(super) fn wrong_place(&mut self, owner: EndNumber, length: usize) -> RemoteMemory {
        let wrong = self.dice.within(0..=4);
        let revoked = &self.ends[owner.0].revoked;
        if wrong <= 1 && !revoked.is_empty() {
            // A key that was once right.
            let (remote, bytes) = revoked[self.dice.index(revoked.len())];
            let room = bytes.saturating_sub(length);
            let offset = self.dice.index(room + 1) as u64;
            return RemoteMemory { address: remote.address + offset, ..remote };
        }
        let arena = &mut self.ends[owner.0].targets;
        let place = arena.allocate(&mut self.memory, &mut self.judge, &mut self.dice, length);
        let remote = self.memory.remote(place);
        self.memory.release(Piece { place, length });
        match wrong {
            2 => {
                // Right key, but the last byte lies one or more behind the region's end.
                let beyond = self.memory.region_bytes(place.region) - place.offset;
                let first = (beyond + 1).saturating_sub(length);
                RemoteMemory { address: remote.address + self.dice.within(first as u64..=beyond as u64), ..remote }
            }
            3 => {
                // Memory that its owner receives into, but that is not for peers.
                let arena = &mut self.ends[owner.0].receives;
                let place = arena.allocate(&mut self.memory, &mut self.judge, &mut self.dice, length);
                self.memory.release(Piece { place, length });
                self.memory.remote(place)
            }
            _ => RemoteMemory { key: remote.key ^ 0x00a5_5a00 ^ self.dice.within(0..=255) as u32, ..remote },
        }
    }

    /// Posts a burst of single-packet writes, if there is room for it.
    pub(super) fn post_burst(&mut self, end: EndNumber) {
        let most = BURST_PACKETS_MAX.min(self.free_sends(end));
        if most == 0 {
            return;
        }
        let peer = self.peer(end);
        let stride = self.dice.within(1..=u64::from(self.pair(end).mtu.byte_count())) as usize;
        let count = self.dice.within(1..=most as u64) as usize;
        let last = self.dice.within(1..=stride as u64) as usize;
        let length = (count - 1) * stride + last;
        let first = self.judge.next_message();
        let lengths = |index: usize| if index + 1 == count { last } else { stride };
        let bytes: Vec<u8> = (0..count).flat_map(|index| message_bytes(first + index as u32, lengths(index))).collect();
        let source = self.ends[end.0].sources.allocate(&mut self.memory, &mut self.judge, &mut self.dice, length);
        let target = self.ends[peer.0].targets.allocate(&mut self.memory, &mut self.judge, &mut self.dice, length);
        self.memory.write(&mut self.judge, source, &bytes);
        let immediates: Vec<u32> = (0..count).map(|index| immediate(first + index as u32)).collect();
        let is_signaled = !self.dice.chance(self.plan.unsignaled_percent) || self.must_signal(end, count);
        let id = self.next_id();
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, is_signaled);
        let burst = WriteBurst {
            id,
            local: self.memory.entry(Piece { place: source, length }),
            remote: self.memory.remote(target),
            stride: stride as u32,
            immediates: &immediates,
            flags,
        };
        if let Err(error) = self.ends[end.0].queue_pair.post_write_burst(&burst) {
            return self.accuse_refusal(end, "burst", &error);
        }
        self.tally.count_operation("write_burst");
        for index in 0..count {
            let piece = |place: Place| Piece {
                place: Place { offset: place.offset + index * stride, ..place },
                length: lengths(index),
            };
            self.messages.push(MessageMemory {
                sources: vec![piece(source)],
                target: Some(piece(target)),
                is_reliable: self.transport(end) == Transport::ReliableConnection,
            });
            let facts = SendFacts {
                id,
                to: peer,
                kind: Kind::Write,
                length: lengths(index),
                has_immediate: true,
                target: Some(piece(target).place),
                mistake: None,
                is_signaled: is_signaled && index + 1 == count,
                through: None,
                ends_key: None,
            };
            self.judge.posted_send(end, facts);
        }
    }
}
