//! Windows: bound, written through by the peer, bound anew or invalidated by either side, and tried again with their
//! old keys.

use longhaul_verbs::{
    Access, Capabilities, PostError, QueuePairState, RemoteMemory, SendFlags, SendOperation, SendRequest,
    WindowBinding, WindowRequest, WindowType,
};

use super::actions::{Draft, WayIn};
use super::program::{MessageMemory, Program};
use super::state::{BoundWindow, EndWindow};
use crate::checker::{EndNumber, Ending, KeyNumber, KeyUse, Kind, MessageNumber, Piece, Place, Rule, SendFacts};

impl Program {
    /// Binds the window of a queue pair, or lets the peer write through it, or ends it.
    pub(super) fn use_window(&mut self, end: EndNumber) {
        let Some(window) = &self.ends[end.0].window else { return self.allocate_window(end) };
        if window.pending.is_some() || self.free_sends(end) == 0 {
            return;
        }
        match window.bound {
            None => self.post_bind(end),
            Some(bound) if bound.is_ending => {}
            Some(_) if self.dice.chance(50) => self.write_through_window(end),
            Some(bound) => self.end_window(end, bound),
        }
    }

    fn allocate_window(&mut self, end: EndNumber) {
        let has_type_2 = self.has(Capabilities::WINDOW_TYPE_2A) || self.has(Capabilities::WINDOW_TYPE_2B);
        let window_type = match (self.has(Capabilities::WINDOW_TYPE_1), has_type_2) {
            (true, true) => self.dice.pick(&[WindowType::Type1, WindowType::Type2]),
            (true, false) => WindowType::Type1,
            (false, true) => WindowType::Type2,
            (false, false) => return,
        };
        let node = self.node(end);
        let window = self.domain(node).allocate_memory_window(window_type).expect("a few windows can be made");
        let key_byte = self.dice.within(0..=255) as u8;
        self.ends[end.0].window = Some(EndWindow { window, window_type, bound: None, pending: None, key_byte });
    }

    /// Binds the window to memory of its own; a window of type 1 perhaps anew.
    fn post_bind(&mut self, end: EndNumber) {
        let length = self.dice.within(1..=self.plan.message_bytes_max as u64) as usize;
        let place = self.ends[end.0].windowed.allocate(&mut self.memory, &mut self.judge, &mut self.dice, length);
        let range = Piece { place, length };
        let (id, is_signaled, flags) = self.window_request_flags(end);
        let this = &mut self.ends[end.0];
        let Some(window) = &mut this.window else { return };
        let region = self.memory.registered_region(place.region);
        let binding = WindowBinding {
            region: &**region.raw(),
            address: region.address() + place.offset as u64,
            length: length as u64,
            access: Access::REMOTE_WRITE,
        };
        let posted = match window.window_type {
            WindowType::Type1 => window.window.bind(&this.queue_pair, id, flags, &binding),
            WindowType::Type2 => {
                window.key_byte = window.key_byte.wrapping_add(1);
                let key = window.window.remote_key() & !0xff | u32::from(window.key_byte);
                let request = WindowRequest { window: &**window.window.raw(), binding };
                let bind = SendRequest::new(id, SendOperation::BindWindow(key), &[]).with_flags(flags);
                this.queue_pair.post_send(&[SendRequest { window: Some(request), ..bind }])
            }
        };
        let remote_key = match window.window_type {
            WindowType::Type1 => window.window.remote_key(),
            WindowType::Type2 => window.window.remote_key() & !0xff | u32::from(window.key_byte),
        };
        let ends_key = window.bound.map(|bound| bound.key);
        if self.note_window_request(end, posted, Kind::BindWindow, id, is_signaled, ends_key, Some((range, remote_key)))
        {
            let name = match self.ends[end.0].window.as_ref().map(|window| window.window_type) {
                Some(WindowType::Type1) => "bind_window_type_1",
                _ => "bind_window_type_2",
            };
            self.tally.count_operation(name);
        }
    }

    fn window_request_flags(&mut self, end: EndNumber) -> (u64, bool, SendFlags) {
        let is_signaled = !self.dice.chance(self.plan.unsignaled_percent) || self.must_signal(end, 1);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, is_signaled);
        (self.next_id(), is_signaled, flags)
    }

    #[expect(clippy::too_many_arguments, reason = "all of it says what was posted")]
    fn note_window_request(
        &mut self,
        end: EndNumber,
        posted: Result<(), PostError>,
        kind: Kind,
        id: u64,
        is_signaled: bool,
        ends_key: Option<KeyNumber>,
        binds: Option<(Piece, u32)>,
    ) -> bool {
        if let Err(error) = posted {
            self.accuse_refusal(end, "request about a window", &error);
            return false;
        }
        self.messages.push(MessageMemory { is_reliable: true, ..MessageMemory::default() });
        let facts = SendFacts {
            id,
            to: self.peer(end),
            kind,
            length: 0,
            has_immediate: false,
            target: None,
            mistake: None,
            is_signaled,
            through: None,
            ends_key,
        };
        let message = self.judge.posted_send(end, facts);
        self.window_requests.insert(message, end);
        if let Some(window) = &mut self.ends[end.0].window {
            window.pending = Some(binds);
            if let Some(bound) = &mut window.bound {
                bound.is_ending = ends_key.is_some();
            }
        }
        true
    }

    /// The peer writes into a part of the window that nobody has written to.
    fn write_through_window(&mut self, end: EndNumber) {
        let peer = self.peer(end);
        let wanted = self.draft_length(peer);
        let Some(bound) = self.ends[end.0].window.as_mut().and_then(|window| window.bound.as_mut()) else { return };
        let length = wanted.min(bound.range.length - bound.used);
        if length == 0 {
            return;
        }
        let place = Place { offset: bound.range.place.offset + bound.used, ..bound.range.place };
        let (key, remote_key) = (bound.key, bound.remote_key);
        bound.used += length;
        if self.is_stopped(self.node(peer)) {
            return;
        }
        let address = self.memory.remote(place).address;
        let way = WayIn { remote: RemoteMemory { address, key: remote_key }, target: Some(place), key: Some(key) };
        let draft = Draft {
            has_immediate: self.dice.chance(30),
            is_signaled: !self.dice.chance(self.plan.unsignaled_percent),
            way: Some(way),
            ..Draft::plain(Kind::Write, length)
        };
        self.tally.count_operation("write_through_window");
        self.post_message(peer, draft);
    }

    fn end_window(&mut self, end: EndNumber, bound: BoundWindow) {
        // A write that is in flight when the key ends is refused, which is the end of the connection too.
        if self.plan.mistake_percent > 0 && self.dice.chance(50) {
            self.write_through_window(end);
        }
        let is_type_1 = self.ends[end.0].window.as_ref().is_some_and(|window| window.window_type == WindowType::Type1);
        if is_type_1 {
            return self.post_bind(end);
        }
        let peer = self.peer(end);
        let peer_can = self.free_sends(peer) > 0
            && self.ends[peer.0].queue_pair.state() == QueuePairState::ReadyToSend
            && !self.is_stopped(self.node(peer));
        if !self.has(Capabilities::INVALIDATE) {
            return;
        }
        if peer_can && self.dice.chance(50) {
            let length = self.draft_length(peer);
            let is_signaled = !self.dice.chance(self.plan.unsignaled_percent);
            let invalidates = Some((bound.key, bound.remote_key));
            let posted =
                self.post_message(peer, Draft { is_signaled, invalidates, ..Draft::plain(Kind::Send, length) });
            if let (Some(_), Some(window)) = (posted, &mut self.ends[end.0].window)
                && let Some(bound) = &mut window.bound
            {
                bound.is_ending = true;
            }
            return;
        }
        let (id, is_signaled, flags) = self.window_request_flags(end);
        let operation = SendOperation::LocalInvalidate(bound.remote_key);
        let posted = self.ends[end.0].queue_pair.post_send(&[SendRequest::new(id, operation, &[]).with_flags(flags)]);
        if self.note_window_request(end, posted, Kind::LocalInvalidate, id, is_signaled, Some(bound.key), None) {
            self.tally.count_operation("local_invalidate");
        }
    }

    /// A request that binds or ends a window has ended.
    pub(super) fn window_request_ended(&mut self, message: MessageNumber, ending: Ending) {
        let Some(end) = self.window_requests.remove(&message) else { return };
        let Some(window) = &mut self.ends[end.0].window else { return };
        let Some(Some((range, remote_key))) = window.pending.take() else { return };
        if ending == Ending::Succeeded {
            let key = self.judge.add_key(KeyUse::Window, remote_key);
            window.bound = Some(BoundWindow { key, remote_key, range, used: 0, is_ending: false });
        } else {
            // Nobody knows its key, if it has been bound at all.
            self.epoch += 1;
            self.memory.refill_and_release(&mut self.judge, range, self.epoch);
        }
    }

    /// A key does not work any more. Its memory is used for something else at once.
    pub(super) fn window_ended(&mut self, key: KeyNumber) {
        let holds = |end: &EndNumber| {
            let bound = self.ends[end.0].window.as_ref().and_then(|window| window.bound);
            bound.is_some_and(|bound| bound.key == key)
        };
        let Some(end) = self.all_ends().find(holds) else { return };
        let Some(bound) = self.ends[end.0].window.as_mut().and_then(|window| window.bound.take()) else { return };
        let address = self.memory.remote(bound.range.place).address;
        let remote = RemoteMemory { address, key: bound.remote_key };
        self.ends[end.0].revoked.push((remote, bound.range.length));
        self.epoch += 1;
        self.memory.refill_and_release(&mut self.judge, bound.range, self.epoch);
    }

    /// Frees the window of a queue pair that is reset or gone.
    pub(super) fn drop_window(&mut self, end: EndNumber) {
        let Some(window) = &self.ends[end.0].window else { return };
        if let Err(error) = window.window.deallocate() {
            let subject = format!("freeing the window of queue pair {}", end.0);
            self.judge.accuse(Rule::Refusal, subject, "it to be possible", error.to_string());
        }
        if let Some(bound) = window.bound {
            self.judge.key_died(bound.key, &self.memory);
            self.window_ended(bound.key);
        }
        self.ends[end.0].window = None;
    }
}
