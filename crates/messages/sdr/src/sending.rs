//! The sending half of a queue pair: messages that wait for their clear-to-send, writes that wait for room, and those
//! in flight.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use longhaul_time::Instant;
use longhaul_verbs::{
    PostError, PostErrorKind, QueuePair as VerbsQueuePair, RemoteMemory, SendFlags, SendOperation, SendRequest,
    WriteBurst,
};
use longhaul_wire::control::ClearToSend;

use crate::memory::Outgoing;
use crate::path::Path;
use crate::shape::Shape;

/// Writes that are posted at a time, to one internal queue pair; then it is the next channel's turn. Full packets of 4 KiB go 15 in a call to
/// the kernel, so that 60 fill four calls.
const BURST: usize = 60;

/// What the peer has done for a message of ours, as far as we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerReceive {
    /// It has not posted a receive for it.
    NotPosted,
    /// It has posted one.
    Posted,
    /// That one is over, and all before it.
    Over,
}

/// How far a send has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendStatus {
    /// The receiver has not posted the receive yet, or has not told.
    Waiting,
    /// Something is still to be sent, or has not left this device; or the stream has not been ended.
    Sending,
    /// Everything has left this device; its bytes may be changed. What has arrived is for the receiver to tell.
    Sent,
    /// The receiver has completed the message; nothing more is sent.
    Over,
    /// The message is longer than what the receiver has posted: nothing beyond that was sent.
    TooLong {
        /// What was posted.
        room: u64,
    },
}

/// What the sending half has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounters {
    /// Data writes posted to the device.
    pub writes: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Writes that were taken for lost when the window was counted.
    pub presumed_lost: u64,
}

/// A peer's number that cannot be true.
#[derive(Debug)]
pub(crate) struct WildNumber;

pub(crate) struct Sending {
    shape: Shape,
    next_number: u64,
    open: BTreeMap<u64, OpenSend>,
    /// Of messages that are still to be sent.
    clear: BTreeMap<u64, ClearToSend>,
    /// Every clear-to-send below has come.
    cleared_through: u64,
    /// Clear-to-sends below are of messages that are open or not begun: the others have been forgotten.
    swept_through: u64,
    /// Messages that have something to send, cleared or not.
    working: BTreeSet<u64>,
    /// Every message below is over at the receiver.
    peer_open_from: u64,
    /// The pump stopped for it.
    was_paced: bool,
    lanes: Vec<Lane>,
    next_channel: usize,
    counters: SendCounters,
    /// Messages of which something has happened, once somebody wants to know.
    news: Option<Vec<u64>>,
    /// The layer above may still ask the receiver about messages from here on, though nothing more is sent of them.
    asks_from: Option<u64>,
}

#[derive(Default)]
struct OpenSend {
    pieces: VecDeque<Piece>,
    /// Writes that they take.
    waiting_writes: u64,
    user_immediate: u32,
    /// Fragments of the user's immediate that go in writes of their own, and the byte that these carry.
    fragments: std::ops::Range<u32>,
    first_byte: Option<Outgoing>,
    bursts_on_their_way: u32,
    /// Bytes that have left the device.
    left_bytes: u64,
    is_ended: bool,
    is_over: bool,
    room: Option<u64>,
    /// Nobody wants to know any more.
    is_detached: bool,
    is_in_news: bool,
}

/// Bytes to be written at an offset of the message.
struct Piece {
    bytes: Outgoing,
    /// Bytes of it that have been posted.
    done: usize,
    offset: u64,
}

/// An internal queue pair, as the sender sees it.
struct Lane {
    queue_pair: VerbsQueuePair,
    free: u32,
    /// Bursts, in order; the last write of each is signalled.
    posted: VecDeque<Burst>,
}

/// Writes that were posted together.
struct Burst {
    message: u64,
    first_packet: u32,
    writes: u32,
    byte_count: u64,
    /// The device may read them until the burst has left it.
    _bytes: Outgoing,
}

impl Sending {
    pub(crate) fn new(shape: Shape, lanes: Vec<VerbsQueuePair>, depth: u32, first_number: u64) -> Self {
        let lane = |queue_pair| Lane { queue_pair, free: depth, posted: VecDeque::new() };
        Sending {
            shape,
            next_number: first_number,
            open: BTreeMap::new(),
            clear: BTreeMap::new(),
            cleared_through: first_number,
            swept_through: first_number,
            working: BTreeSet::new(),
            peer_open_from: first_number,
            was_paced: false,
            lanes: lanes.into_iter().map(lane).collect(),
            next_channel: 0,
            counters: SendCounters::default(),
            news: None,
            asks_from: None,
        }
    }

    /// Messages that were cleared, have bytes that left, are over or too long, since this was asked last.
    pub(crate) fn take_news(&mut self) -> Vec<u64> {
        let news = std::mem::take(self.news.get_or_insert_default());
        for number in &news {
            if let Some(send) = self.open.get_mut(number) {
                send.is_in_news = false;
            }
        }
        news
    }

    pub(crate) fn has_news(&self) -> bool {
        self.news.as_ref().is_some_and(|news| !news.is_empty())
    }

    fn note(&mut self, number: u64) {
        if let (Some(news), Some(send)) = (&mut self.news, self.open.get_mut(&number))
            && !std::mem::replace(&mut send.is_in_news, true)
        {
            news.push(number);
        }
    }

    pub(crate) fn counters(&self, path: &Path) -> SendCounters {
        SendCounters { presumed_lost: path.lost(), ..self.counters }
    }

    /// Nothing more is sent of messages below, and nobody asks about them.
    pub(crate) fn sends_from(&self) -> u64 {
        let is_busy = |send: &OpenSend| send.bursts_on_their_way > 0 || !send.is_over && !send.is_done();
        let first = self.open.iter().find(|(_, send)| is_busy(send));
        let from = first.map_or(self.next_number, |(number, _)| *number);
        self.asks_from.map_or(from, |asks_from| from.min(asks_from))
    }

    pub(crate) fn set_asks_from(&mut self, number: Option<u64>) {
        self.asks_from = number;
    }

    pub(crate) fn cleared_through(&self) -> u64 {
        self.cleared_through
    }

    pub(crate) fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Begin the next message. `None` when as many are open as the table has slots.
    pub(crate) fn start(&mut self, user_immediate: Option<u32>) -> Option<u64> {
        if self.open.len() >= self.shape.layout.slot_count() as usize {
            return None;
        }
        let number = self.next_number;
        // The last number is never used, so that the one after a message always exists.
        self.next_number = number.checked_add(1)?;
        // The receiver may have completed it before it begins.
        let is_over = number < self.peer_open_from || self.clear.get(&number).is_some_and(|clear| clear.is_over);
        let send = OpenSend { user_immediate: user_immediate.unwrap_or(0), is_over, ..Default::default() };
        self.open.insert(number, send);
        Some(number)
    }

    /// Send the user's immediate in writes of its own, from a fragment on: for messages with fewer packets than it has fragments. Each
    /// write carries the message's first byte to its place, so that the receiving device checks the key.
    pub(crate) fn send_fragments(&mut self, number: u64, from: u32, first_byte: Outgoing) {
        debug_assert_eq!(first_byte.len(), 1);
        let count = self.shape.layout.fragment_count();
        if let Some(send) = self.open.get_mut(&number)
            && from < count
            && !send.is_over
        {
            (send.fragments, send.first_byte) = (from..count, Some(first_byte));
            self.working.insert(number);
        }
    }

    /// Add bytes at an offset of the message.
    pub(crate) fn add(&mut self, number: u64, offset: u64, bytes: Outgoing) {
        if let Some(send) = self.open.get_mut(&number)
            && bytes.len() > 0
            && !send.is_over
        {
            send.waiting_writes += (bytes.len() as u64).div_ceil(self.shape.write_bytes().into());
            send.pieces.push_back(Piece { bytes, done: 0, offset });
            self.working.insert(number);
        }
    }

    pub(crate) fn end(&mut self, number: u64) {
        if let Some(send) = self.open.get_mut(&number) {
            send.is_ended = true;
        }
    }

    pub(crate) fn status(&self, number: u64) -> SendStatus {
        let Some(send) = self.open.get(&number) else { return SendStatus::Sent };
        match send.room {
            Some(room) => SendStatus::TooLong { room },
            None if send.is_over && send.bursts_on_their_way == 0 => SendStatus::Over,
            None if send.is_done() => SendStatus::Sent,
            None if send.has_work() && !self.clear.contains_key(&number) => SendStatus::Waiting,
            None => SendStatus::Sending,
        }
    }

    /// Whether the receiver has told where the message goes.
    pub(crate) fn is_cleared(&self, number: u64) -> bool {
        number < self.peer_open_from || self.clear.contains_key(&number)
    }

    /// The room that the receiver has for the message, if it has said so.
    pub(crate) fn cleared_bytes(&self, number: u64) -> Option<u64> {
        self.clear.get(&number).map(|clear| clear.length)
    }

    /// Bytes of the message that have left the device, each as often as it has.
    pub(crate) fn left_bytes(&self, number: u64) -> u64 {
        self.open.get(&number).map_or(0, |send| send.left_bytes)
    }

    /// Nobody will ask for the message any more. It is still sent.
    pub(crate) fn detach(&mut self, number: u64) {
        if let Some(send) = self.open.get_mut(&number) {
            send.is_detached = true;
            send.is_ended = true;
        }
        self.forget_if_done(number);
    }

    /// The receiver has posted the receive, or has completed it already. Returns whether that is news; an error when its numbers make
    /// no sense, so that it is as good as lost.
    pub(crate) fn on_clear(&mut self, clear: &ClearToSend) -> Result<bool, WildNumber> {
        let horizon = self.cleared_through.saturating_add(4 * u64::from(self.shape.layout.slot_count()));
        let has_end = clear.length == 0 || clear.address.checked_add(clear.length - 1).is_some();
        let generation = self.shape.generation_of(clear.number);
        if clear.number >= horizon || !has_end || u32::from(clear.generation) != generation {
            return Err(WildNumber);
        }
        let is_known = self.peer_receive_of(clear.number) != PeerReceive::NotPosted;
        if clear.is_over {
            self.finish_early(clear.number);
        }
        if is_known {
            return Ok(false);
        }
        self.clear.insert(clear.number, *clear);
        self.note(clear.number);
        self.advance();
        Ok(true)
    }

    /// What the receiver has done for a message, as far as we know.
    pub(crate) fn peer_receive_of(&self, number: u64) -> PeerReceive {
        match () {
            () if number < self.peer_open_from => PeerReceive::Over,
            () if number < self.cleared_through || self.clear.contains_key(&number) => PeerReceive::Posted,
            () => PeerReceive::NotPosted,
        }
    }

    /// Every message with a smaller number has been completed at the receiver. Returns whether that is news.
    pub(crate) fn on_open_from(&mut self, open_from: u64) -> bool {
        // A receiver gets no further ahead: it uses a slot and generation again only when our last message of them has ended.
        let slots = u64::from(self.shape.layout.slot_count()) * u64::from(self.shape.generations);
        if open_from <= self.peer_open_from || open_from > self.next_number.saturating_add(slots) {
            return false;
        }
        self.peer_open_from = open_from;
        let numbers: Vec<u64> = self.open.range(..open_from).map(|(number, _)| *number).collect();
        numbers.into_iter().for_each(|number| self.finish_early(number));
        self.cleared_through = self.cleared_through.max(open_from);
        self.advance();
        true
    }

    /// Clear-to-sends that have arrived although an earlier one has not, for
    /// [`longhaul_wire::control::Record::ClearedBeyond`].
    pub(crate) fn cleared_beyond(&self, bytes_max: usize) -> Vec<u8> {
        let mut bits = Vec::new();
        for number in self.clear.range(self.cleared_through..).map(|(number, _)| *number) {
            let offset = number - self.cleared_through;
            let Some(byte) = usize::try_from(offset / 8).ok().filter(|byte| *byte < bytes_max) else { break };
            if bits.len() <= byte {
                bits.resize(byte + 1, 0);
            }
            bits[byte] |= 1 << (offset % 8);
        }
        bits
    }

    /// Whether something could be sent if the receiver had cleared it.
    pub(crate) fn waits_for_clear(&self) -> bool {
        self.working.range(self.cleared_through..).any(|number| !self.clear.contains_key(number))
    }

    /// Clear-to-sends in order are remembered by one number; of the others, only those of messages that will be sent are kept.
    fn advance(&mut self) {
        while self.clear.contains_key(&self.cleared_through) {
            self.cleared_through += 1;
        }
        // Each is looked at once: this is called for every clear-to-send. One that is open now goes with its message.
        let passed = self.clear.range(self.swept_through..self.cleared_through).map(|(number, _)| *number);
        let is_over = |number: &u64| *number < self.next_number && !self.open.contains_key(number);
        let over: Vec<u64> = passed.filter(is_over).collect();
        for number in over {
            self.clear.remove(&number);
        }
        self.swept_through = self.cleared_through;
    }

    /// Send nothing more of a message.
    pub(crate) fn finish_early(&mut self, number: u64) {
        if let Some(send) = self.open.get_mut(&number) {
            send.is_over = true;
            send.pieces.clear();
            send.waiting_writes = 0;
            (send.fragments, send.first_byte) = (0..0, None);
            self.working.remove(&number);
        }
        self.note(number);
        self.forget_if_done(number);
    }

    fn forget_if_done(&mut self, number: u64) {
        if let Some(send) = self.open.get(&number)
            && send.is_detached
            && send.bursts_on_their_way == 0
            && (send.is_over || !send.has_work())
        {
            self.open.remove(&number);
            self.working.remove(&number);
            if number < self.cleared_through {
                self.clear.remove(&number);
            }
        }
    }

    /// A burst of an internal queue pair has left the device.
    pub(crate) fn on_sent(&mut self, lane: usize, path: &mut Path, now: Instant) {
        let burst = self.lanes.get_mut(lane).and_then(|lane| lane.posted.pop_front());
        debug_assert!(burst.is_some(), "a completion that no burst has waited for");
        let Some(burst) = burst else { return };
        self.lanes[lane].free += burst.writes;
        path.on_left(burst.writes, now);
        if let Some(send) = self.open.get_mut(&burst.message) {
            send.bursts_on_their_way -= 1;
            send.left_bytes += burst.byte_count;
        }
        self.note(burst.message);
        self.forget_if_done(burst.message);
    }

    /// Whether something could be sent if the receiver's window were open.
    pub(crate) fn waits_for_window(&self, path: &Path) -> bool {
        path.is_shut() && self.can_send()
    }

    /// When something can be sent that has to wait for the rate.
    pub(crate) fn next_deadline(&self, path: &Path) -> Option<Instant> {
        let at = path.ready_at()?;
        (self.was_paced && self.can_send()).then_some(at)
    }

    /// Whether something is cleared and not posted.
    fn can_send(&self) -> bool {
        self.working.iter().any(|number| self.clear.contains_key(number))
    }

    /// Writes that are cleared and not posted.
    pub(crate) fn waiting_writes(&self) -> u64 {
        let cleared = self.working.iter().filter(|number| self.clear.contains_key(number));
        let open = cleared.filter_map(|number| self.open.get(number));
        open.map(|send| send.waiting_writes + send.fragments.len() as u64).sum()
    }

    /// Post what can be sent now, messages in order.
    pub(crate) fn pump(&mut self, path: &mut Path, now: Instant) -> Result<(), PostError> {
        let Sending { shape, open, working, clear, lanes, next_channel, counters, .. } = self;
        let mut touched = Vec::new();
        for &number in &*working {
            let (Some(clear), Some(send)) = (clear.get(&number), open.get_mut(&number)) else { continue };
            let mut message = Message { shape, number, clear, send };
            let generation = shape.generation_of(number) as usize;
            let mut full_lanes = 0;
            while full_lanes < shape.channels && path.room(now) > 0 && message.send.has_work() {
                let index = generation * shape.channels + *next_channel % shape.channels;
                let lane = &mut lanes[index];
                *next_channel = next_channel.wrapping_add(1);
                let most = (path.room(now) as usize).min(lane.free as usize).min(BURST);
                let posted = if most == 0 { None } else { message.post(&lane.queue_pair, index as u64, most)? };
                let Some(burst) = posted else {
                    full_lanes += 1;
                    continue;
                };
                full_lanes = 0;
                lane.free -= burst.writes;
                message.send.bursts_on_their_way += 1;
                let wire_bytes = burst.byte_count + u64::from(burst.writes) * shape.write_overhead_bytes();
                path.on_posted(number, burst.first_packet, burst.writes, wire_bytes, now);
                counters.writes += u64::from(burst.writes);
                counters.bytes += burst.byte_count;
                lane.posted.push_back(burst);
            }
            touched.push(number);
            if path.room(now) == 0 {
                break;
            }
        }
        self.was_paced = !path.is_shut() && path.room(now) == 0;
        if !(self.was_paced || path.is_shut() && self.can_send()) {
            path.on_nothing_to_send();
        }
        for number in touched {
            let Some(send) = self.open.get(&number) else { continue };
            if !send.has_work() {
                self.working.remove(&number);
            }
            if send.room.is_some() {
                self.note(number);
            }
            self.forget_if_done(number);
        }
        Ok(())
    }
}

impl OpenSend {
    fn has_work(&self) -> bool {
        !self.pieces.is_empty() || !self.fragments.is_empty()
    }

    fn is_done(&self) -> bool {
        self.is_ended && !self.has_work() && self.bursts_on_their_way == 0
    }
}

/// A message that is being sent.
struct Message<'a> {
    shape: &'a Shape,
    number: u64,
    clear: &'a ClearToSend,
    send: &'a mut OpenSend,
}

impl Message<'_> {
    /// Post up to `most` writes, the last of them signalled; `None` when the device has no room or there was nothing to send.
    fn post(&mut self, to: &VerbsQueuePair, id: u64, most: usize) -> Result<Option<Burst>, PostError> {
        let posted = match self.send.fragments.is_empty() {
            false => self.post_fragments(to, id, most),
            true => self.post_piece(to, id, most),
        };
        match posted {
            Err(PostError { kind: PostErrorKind::QueueFull { .. }, index: 0 }) => Ok(None),
            result => result,
        }
    }

    /// The immediate of a write that carries only a fragment of the user's. `None` when the receive is too long for that.
    fn fragment_immediate(&self, fragment: u32) -> Option<u32> {
        let Shape { layout, packet_bytes, .. } = *self.shape;
        let packet_count = u32::try_from(self.clear.length.div_ceil(packet_bytes.into())).ok()?;
        let packet = layout.fragment_packet(fragment, packet_count)?;
        Some(layout.encode(self.shape.slot_of(self.number), packet, self.send.user_immediate))
    }

    fn post_fragments(&mut self, to: &VerbsQueuePair, id: u64, most: usize) -> Result<Option<Burst>, PostError> {
        let fragments = self.send.fragments.clone().take(most);
        let immediates: Option<Vec<u32>> = fragments.map(|fragment| self.fragment_immediate(fragment)).collect();
        let (Some(immediates), Some(byte)) = (immediates, self.send.first_byte.clone()) else {
            (self.send.fragments, self.send.first_byte) = (0..0, None);
            return self.post_piece(to, id, most);
        };
        let at = RemoteMemory { address: self.clear.address, key: self.clear.key };
        let entry = [byte.entry(0..1)];
        let operations = immediates.iter().map(|immediate| SendOperation::WriteWithImmediate(at, *immediate));
        let unsignaled = |operation| SendRequest::new(id, operation, &entry).with_flags(SendFlags::empty());
        let mut requests: Vec<_> = operations.map(unsignaled).collect();
        let writes = requests.len() as u32;
        // One completion for the burst, as `on_sent` expects.
        if let Some(last) = requests.last_mut() {
            last.flags = SendFlags::SIGNALED;
        }
        to.post_send(&requests)?;
        self.send.fragments.start += writes;
        if self.send.fragments.is_empty() {
            self.send.first_byte = None;
        }
        // The byte is one of the message's, which leaves with its packets.
        let first_packet = immediates.first().map_or(0, |immediate| self.shape.layout.decode(*immediate).packet);
        Ok(Some(Burst { message: self.number, first_packet, writes, byte_count: 0, _bytes: byte }))
    }

    fn post_piece(&mut self, to: &VerbsQueuePair, id: u64, most: usize) -> Result<Option<Burst>, PostError> {
        let (shape, slot, user_immediate) = (self.shape, self.shape.slot_of(self.number), self.send.user_immediate);
        let Some(piece) = self.send.pieces.front_mut() else { return Ok(None) };
        let offset = piece.offset + piece.done as u64;
        let left = piece.bytes.len() - piece.done;
        if offset.checked_add(left as u64).is_none_or(|end| end > self.clear.length) {
            self.send.room = Some(self.clear.length);
            self.send.pieces.clear();
            self.send.waiting_writes = 0;
            return Ok(None);
        }
        let stride = self.shape.write_bytes();
        let length = left.min(most * stride as usize);
        let first_packet = (offset / u64::from(self.shape.packet_bytes)) as u32;
        let writes = length.div_ceil(stride as usize);
        let mut immediates = [0; BURST];
        for (index, immediate) in immediates[..writes].iter_mut().enumerate() {
            let packet = first_packet + index as u32 * shape.packets_per_write;
            *immediate = shape.layout.encode(slot, packet, user_immediate);
        }
        let local = piece.bytes.entry(piece.done..piece.done + length);
        to.post_write_burst(&WriteBurst {
            id,
            local,
            // `on_clear` has checked that the last byte of the room has an address, and this is before it.
            remote: RemoteMemory { address: self.clear.address + offset, key: self.clear.key },
            stride,
            immediates: &immediates[..writes],
            flags: SendFlags::SIGNALED,
        })?;
        let bytes = piece.bytes.clone();
        piece.done += length;
        self.send.waiting_writes -= writes as u64;
        if piece.done == bytes.len() {
            self.send.pieces.pop_front();
        }
        let (message, writes, byte_count) = (self.number, writes as u32, length as u64);
        Ok(Some(Burst { message, first_packet, writes, byte_count, _bytes: bytes }))
    }
}
