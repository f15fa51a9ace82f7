//! The queue pair that control messages travel on: SENDs of an unreliable connection, one packet each.

use longhaul_verbs::{
    CompletionQueue, CreateError, DestroyError, PostError, QueuePair as VerbsQueuePair, QueuePairLimits,
    QueuePairOptions, ReceiveRequest, RegisterError, SendFlags, SendOperation, SendRequest, Transport,
};
use thiserror::Error;

use crate::control_memory::{ControlMemory, PLACE_BYTES, Place};

/// Frames that can arrive before anybody looks, at most. More are lost, as any may be.
const RECEIVES: u32 = 256;
/// The same on a connection that rests. A receive that was posted has used its memory some day, and an endpoint may have thousands of connections.
const RECEIVES_AT_REST: u32 = 6;
/// A message of one packet is talked about in hardly more frames than this at a time: that it may come, and that it has come.
const RECEIVES_A_MESSAGE: u32 = 2;
/// Frames that can be on their way out.
const SENDS: u32 = 32;

pub(crate) struct ControlPath {
    queue_pair: VerbsQueuePair,
    memory: ControlMemory,
    frame_bytes: usize,
    /// Of frames that leave; as many as were ever on their way at once.
    sends: Vec<Place>,
    /// Those that can be used.
    free: Vec<u32>,
    /// Of frames that arrive: a receive is posted for each, with its index as id.
    receives: Vec<Place>,
    wanted: u32,
}

/// Why a control path could not be made.
#[derive(Debug, Error)]
pub enum ControlPathError {
    /// No queue pair.
    #[error("the queue pair for control messages cannot be made")]
    Create(#[from] CreateError),
    /// No memory.
    #[error("memory for control messages cannot be registered")]
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
            wanted: RECEIVES_AT_REST,
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

    /// So many messages are open, in both directions.
    pub(crate) fn expect_messages(&mut self, count: usize) {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let wanted = RECEIVES_AT_REST.saturating_add(RECEIVES_A_MESSAGE.saturating_mul(count));
        self.wanted = self.wanted.max(wanted.min(RECEIVES));
    }

    /// A message has several packets, and so any number of frames about it.
    pub(crate) fn expect_long_message(&mut self) {
        self.wanted = RECEIVES;
    }

    /// Post the receives that are wanted and not posted yet.
    pub(crate) fn post_receives(&mut self) -> Result<(), PostError> {
        while self.receives.len() < self.wanted as usize {
            let Ok(place) = self.memory.take() else {
                // What is posted must do: frames that find no receive are sent again.
                self.wanted = self.receives.len() as u32;
                break;
            };
            self.receives.push(place);
            self.post_receive(self.receives.len() - 1)?;
        }
        Ok(())
    }

    fn post_receive(&self, index: usize) -> Result<(), PostError> {
        let local = [self.receives[index].entry(self.frame_bytes)];
        self.queue_pair.post_receive(&[ReceiveRequest { id: index as u64, local: &local }])
    }

    /// Take the frame that a receive has brought out of its place, and post the receive again.
    pub(crate) fn take(&self, id: u64, byte_count: u32, frame: &mut Vec<u8>) -> Result<(), PostError> {
        let index = id as usize;
        frame.resize((byte_count as usize).min(self.frame_bytes), 0);
        self.receives[index].copy_out(frame);
        self.post_receive(index)
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
            self.memory.give_back(self.sends.drain(..).chain(self.receives.drain(..)));
        }
    }
}
