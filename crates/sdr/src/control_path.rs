//! The queue pair that control messages travel on: SENDs of an unreliable connection, one packet each.

use longhaul_verbs::{
    Access, CompletionQueue, CreateError, MemoryRegion, PostError, ProtectionDomain, QueuePair as VerbsQueuePair,
    QueuePairLimits, QueuePairOptions, ReceiveRequest, RegisterError, SendFlags, SendOperation, SendRequest, Transport,
};
use thiserror::Error;

/// Frames that can arrive before anybody looks. More are lost, as any may be.
const RECEIVES: u32 = 256;
/// Frames that can be on their way out.
const SENDS: u32 = 32;

pub(crate) struct ControlPath {
    queue_pair: VerbsQueuePair,
    /// Places for frames that arrive, then places for those that leave.
    region: MemoryRegion,
    frame_bytes: usize,
    free: Vec<u32>,
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

    pub(crate) fn create(
        domain: &ProtectionDomain,
        completions: &CompletionQueue,
        frame_bytes: usize,
    ) -> Result<Self, ControlPathError> {
        let limits = QueuePairLimits {
            send_requests: SENDS,
            receive_requests: RECEIVES,
            send_entries: 1,
            receive_entries: 1,
            inline_bytes: 0,
        };
        let options = QueuePairOptions { limits, signal_all: true, shared_receive_queue: None };
        let queue_pair =
            domain.create_queue_pair(Transport::UnreliableConnection, completions, completions, &options)?;
        let region = domain.register_zeroed((RECEIVES + SENDS) as usize * frame_bytes, Access::LOCAL_WRITE)?;
        Ok(ControlPath { queue_pair, region, frame_bytes, free: (0..SENDS).collect() })
    }

    pub(crate) fn queue_pair(&self) -> &VerbsQueuePair {
        &self.queue_pair
    }

    pub(crate) fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// Post all receives; ids are places.
    pub(crate) fn post_receives(&self) -> Result<(), PostError> {
        (0..RECEIVES).try_for_each(|place| self.post_receive(place))
    }

    fn post_receive(&self, place: u32) -> Result<(), PostError> {
        let local = [self.region.entry(self.place(place))];
        self.queue_pair.post_receive(&[ReceiveRequest { id: place.into(), local: &local }])
    }

    fn place(&self, index: u32) -> std::ops::Range<usize> {
        let start = index as usize * self.frame_bytes;
        start..start + self.frame_bytes
    }

    /// Take the frame that a receive has brought out of its place, and post the receive again.
    pub(crate) fn take(&self, id: u64, byte_count: u32, frame: &mut Vec<u8>) -> Result<(), PostError> {
        let place = id as u32;
        frame.resize((byte_count as usize).min(self.frame_bytes), 0);
        self.region.copy_out(self.place(place).start, frame);
        self.post_receive(place)
    }

    pub(crate) fn can_send(&self) -> bool {
        !self.free.is_empty()
    }

    /// Send a frame, if a place for it is free.
    pub(crate) fn send(&mut self, frame: &[u8], id_mark: u64) -> Result<bool, PostError> {
        let Some(&index) = self.free.last() else { return Ok(false) };
        let place = self.place(RECEIVES + index);
        self.region.copy_in(place.start, frame);
        let local = [self.region.entry(place.start..place.start + frame.len())];
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
