//! The queue pair that control messages travel on: SENDs of an unreliable connection, one packet each.

use longhaul_verbs::{
    CompletionQueue, CreateError, DestroyError, PostError, QueuePair as VerbsQueuePair, QueuePairLimits,
    QueuePairOptions, ReceiveRequest, RegisterError, SendFlags, SendOperation, SendRequest, Transport,
};
use thiserror::Error;

use crate::control_memory::{ControlMemory, PLACE_BYTES, Place};

/// Frames that can arrive before anybody looks, at most. More are lost, as any may be.
const RECEIVES: u32 = 256;
/// The same on a connection that rests. A receive that is posted uses its memory some day, and an endpoint may have thousands of connections.
const RECEIVES_AT_REST: u32 = 6;
/// Frames that are sent one after another without looking whether the first has left: a connection keeps the memory of as many.
const SENDS_WITHOUT_COMPLETIONS: usize = 1;
/// A message of one packet is talked about in hardly more frames than this at a time: that it may come, and that it has come.
const RECEIVES_A_MESSAGE: u32 = 2;
/// If every posted receive was used at once, some frames may have been lost: from then on this many times more are posted.
const RECEIVES_AFTER_BURST: u32 = 4;
/// Outgoing frames in progress at most.
const SENDS: u32 = 32;

pub(crate) struct ControlPath {
    queue_pair: VerbsQueuePair,
    memory: ControlMemory,
    frame_bytes: usize,
    /// Of outgoing frames; as many as were ever in progress at once.
    sends: Vec<Place>,
    /// Those that can be used.
    free: Vec<u32>,
    /// Of frames that arrive: a receive is posted for each that there is, with its index as id.
    receives: Vec<Option<Place>>,
    /// Those that there are not.
    vacant: Vec<u32>,
    /// How many there should be.
    wanted: u32,
    /// How many there should be when no message is open.
    at_rest: u32,
    /// How many there can be: less after the device has refused memory.
    most: u32,
    /// One of the open messages has several packets, and so any number of frames about it.
    has_long_message: bool,
}

/// Why a control path could not be made.
#[derive(Debug, Error)]
pub enum ControlPathError {
    /// No queue pair.
    #[error("cannot make the queue pair for control messages")]
    Create(#[from] CreateError),
    /// No memory.
    #[error("cannot register memory for control messages")]
    Register(#[from] RegisterError),
}

impl ControlPath {
    /// Completions that it needs room for.
    pub(crate) const COMPLETIONS: u32 = RECEIVES + SENDS;

    /// For frames of up to a packet's payload.
    pub(crate) fn create(
        memory: &ControlMemory,
        completions: &CompletionQueue,
        packet_bytes: u32,
    ) -> Result<Self, ControlPathError> {
        let limits = QueuePairLimits {
            send_requests: SENDS,
            receive_requests: RECEIVES,
            send_entries: 1,
            receive_entries: 1,
            inline_bytes: 0,
        };
        let options = QueuePairOptions { limits, signal_all: true, shared_receive_queue: None };
        let transport = Transport::UnreliableConnection;
        let queue_pair = memory.domain().create_queue_pair(transport, completions, completions, &options)?;
        let mut path = ControlPath {
            queue_pair,
            memory: memory.clone(),
            frame_bytes: PLACE_BYTES.min(packet_bytes as usize),
            sends: Vec::new(),
            free: Vec::new(),
            receives: Vec::new(),
            vacant: Vec::new(),
            wanted: RECEIVES_AT_REST,
            at_rest: RECEIVES_AT_REST,
            most: RECEIVES,
            has_long_message: false,
        };
        path.add_place_for_sends()?;
        Ok(path)
    }

    fn add_place_for_sends(&mut self) -> Result<(), RegisterError> {
        self.sends.push(self.memory.take()?);
        self.free.push(self.sends.len() as u32 - 1);
        Ok(())
    }

    pub(crate) fn queue_pair(&self) -> &VerbsQueuePair {
        &self.queue_pair
    }

    pub(crate) fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// This many messages are open, in both directions.
    pub(crate) fn expect_messages(&mut self, count: usize) {
        self.has_long_message &= count > 0;
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.wanted = match self.has_long_message {
            true => self.most,
            false => self.at_rest.saturating_add(RECEIVES_A_MESSAGE.saturating_mul(count)).min(self.most),
        };
    }

    /// An open message has several packets.
    pub(crate) fn expect_long_message(&mut self) {
        if !std::mem::replace(&mut self.has_long_message, true) {
            // Memory that was refused may be there now.
            self.most = RECEIVES;
        }
    }

    /// `frames` had arrived at once, when `posted` receives were posted.
    pub(crate) fn on_taken(&mut self, frames: u32, posted: u32) {
        if frames > 0 && frames >= posted && !self.has_long_message {
            self.at_rest = (RECEIVES_AFTER_BURST * self.at_rest).min(RECEIVES);
        }
    }

    pub(crate) fn posted(&self) -> u32 {
        (self.receives.len() - self.vacant.len()) as u32
    }

    /// Post the receives that are wanted and not posted yet.
    pub(crate) fn post_receives(&mut self) -> Result<(), PostError> {
        while self.posted() < self.wanted {
            let Ok(place) = self.memory.take() else {
                // What is posted must do: frames that find no receive are sent again.
                self.most = self.posted().max(1);
                break;
            };
            let index = self.vacant.pop().unwrap_or_else(|| {
                self.receives.push(None);
                self.receives.len() as u32 - 1
            });
            self.post_receive(index, place)?;
        }
        Ok(())
    }

    /// If the device does not take it, the place is nobody's, and the next poll tries again.
    fn post_receive(&mut self, index: u32, place: Place) -> Result<(), PostError> {
        let local = [place.entry(self.frame_bytes)];
        match self.queue_pair.post_receive(&[ReceiveRequest { id: index.into(), local: &local }]) {
            Ok(()) => {
                self.receives[index as usize] = Some(place);
                Ok(())
            }
            Err(error) => {
                self.vacant.push(index);
                self.memory.give_back([place]);
                Err(error)
            }
        }
    }

    /// Take the frame that a receive has brought out of its place, and post the receive again, unless there are enough.
    pub(crate) fn take(&mut self, id: u64, byte_count: u32, frame: &mut Vec<u8>) -> Result<(), PostError> {
        let index = id as u32;
        frame.clear();
        let Some(place) = self.receives.get_mut(index as usize).and_then(Option::take) else { return Ok(()) };
        frame.resize((byte_count as usize).min(self.frame_bytes), 0);
        place.copy_out(frame);
        if self.posted() > self.wanted {
            self.vacant.push(index);
            self.memory.give_back([place]);
            return Ok(());
        }
        self.post_receive(index, place)
    }

    /// Whether the next frame would take memory for good, unless one that has left is taken from the completion queue first.
    pub(crate) fn lacks_place(&self) -> bool {
        self.free.is_empty() && self.sends.len() >= SENDS_WITHOUT_COMPLETIONS
    }

    pub(crate) fn can_send(&self) -> bool {
        !self.free.is_empty() || self.sends.len() < SENDS as usize
    }

    /// Send a frame, if a place for it is free.
    pub(crate) fn send(&mut self, frame: &[u8], id_mark: u64) -> Result<bool, PostError> {
        if self.free.is_empty() && self.sends.len() < SENDS as usize {
            // Without more memory, a place comes free when a frame has left.
            let _ = self.add_place_for_sends();
        }
        let Some(&index) = self.free.last() else { return Ok(false) };
        let place = &self.sends[index as usize];
        place.copy_in(frame);
        let local = [place.entry(frame.len())];
        let request = SendRequest::new(id_mark | u64::from(index), SendOperation::Send, &local);
        self.queue_pair.post_send(&[request.with_flags(SendFlags::SIGNALED)])?;
        self.free.pop();
        Ok(true)
    }

    /// A frame has left.
    pub(crate) fn on_sent(&mut self, id: u64) {
        self.free.push(id as u32);
    }
}

impl Drop for ControlPath {
    fn drop(&mut self) {
        // A device that did not destroy the queue pair may still write there: nobody gets these places again.
        if matches!(self.queue_pair.destroy(), Ok(()) | Err(DestroyError::Gone)) {
            self.memory.give_back(self.sends.drain(..).chain(self.receives.drain(..).flatten()));
        }
    }
}
