//! What queue pairs share: the device, registered memory, and the channels that data arrives on.
//!
//! A channel is a completion queue into which every queue pair of the context completes its receives of data. Each channel can be
//! polled by a thread of its own; packets of one message arrive on all of them.

use std::sync::{Arc, Mutex, PoisonError};

use longhaul_verbs::{
    CompletionChannel, CompletionQueue, CreateError, Device, PollError, PostError, ProtectionDomain,
    QueuePair as VerbsQueuePair, QueuePairNumber, ReceiveRequest, RegisterError, WorkCompletion,
};
use thiserror::Error;

use crate::control_memory::ControlMemory;
use crate::memory::Memory;
use crate::receive_table::{Lookups, ReceiveTable};

/// Completions that are taken at a time.
const BATCH: usize = 64;
/// Receives that are posted at a time.
const POSTED_AT_ONCE: usize = 32;

/// What a context is made with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ContextAttributes {
    /// Channels: as many threads can put packets into bitmaps.
    pub channels: usize,
    /// Room for completions in each channel: receives of all its queue pairs.
    pub completions: u32,
    /// Completions can raise events, so that a driver can sleep until something happens ([`Context::events`]). Only for
    /// [`Context::create`]: a channel that the caller supplies decides for itself.
    pub events: bool,
}

impl Default for ContextAttributes {
    fn default() -> Self {
        ContextAttributes { channels: 1, completions: 1 << 16, events: false }
    }
}

/// A device, and what its SDR queue pairs share.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

struct Inner {
    control: ControlMemory,
    events: Option<CompletionChannel>,
    token: u64,
    channels: Vec<Channel>,
    /// That each channel's queue has room for.
    completions: u32,
}

struct Channel {
    completions: CompletionQueue,
    state: Mutex<ChannelState>,
}

struct ChannelState {
    /// In the order of their numbers.
    receivers: Vec<Receiver>,
    /// Room that nobody has asked for yet.
    room: u32,
}

/// An internal queue pair, as a channel sees it.
struct Receiver {
    table: Arc<ReceiveTable>,
    generation: u32,
    queue_pair: VerbsQueuePair,
    lookups: Lookups,
    /// Receives that were consumed and are to be posted again.
    consumed: usize,
}

/// Why a channel could not be polled.
#[derive(Debug, Error)]
pub enum ChannelError {
    /// The device says so.
    #[error("cannot poll the channel's completions")]
    Poll(#[from] PollError),
    /// Receives could not be posted again.
    #[error("cannot repost receives")]
    Post(#[from] PostError),
}

impl Context {
    /// Set up what queue pairs share (the paper's `context_create`).
    pub fn create(device: &Device, attributes: &ContextAttributes) -> Result<Self, CreateError> {
        let events = attributes.events.then(|| device.create_completion_channel()).transpose()?;
        let control = ControlMemory::new(&device.allocate_protection_domain()?);
        Self::create_in(&control, events.as_ref(), 0, attributes)
    }

    /// Set up what queue pairs share, next to others in the same protection domain: memory that is registered with one
    /// of them can be used with all, and control messages share theirs. Their events, if they are to raise any, arrive
    /// on one channel and name their context by its token.
    pub fn create_in(
        control: &ControlMemory,
        events: Option<&CompletionChannel>,
        token: u64,
        attributes: &ContextAttributes,
    ) -> Result<Self, CreateError> {
        let channel = || {
            let completions =
                create_completion_queue(control.domain().device(), attributes.completions, events, token)?;
            let state = ChannelState { receivers: Vec::new(), room: attributes.completions };
            Ok(Channel { completions, state: Mutex::new(state) })
        };
        let channels: Result<_, CreateError> = (0..attributes.channels.max(1)).map(|_| channel()).collect();
        let (control, events, completions) = (control.clone(), events.cloned(), attributes.completions);
        Ok(Context { inner: Arc::new(Inner { control, events, token, channels: channels?, completions }) })
    }

    /// What its events say of it.
    pub fn token(&self) -> u64 {
        self.inner.token
    }

    /// Register bytes for sends and receives (the paper's `mr_reg`).
    pub fn register(&self, buffer: Vec<u8>) -> Result<Memory, RegisterError> {
        Memory::register(self.domain(), buffer)
    }

    /// Its protection domain.
    pub fn domain(&self) -> &ProtectionDomain {
        self.inner.control.domain()
    }

    pub(crate) fn control_memory(&self) -> &ControlMemory {
        &self.inner.control
    }

    /// Channels.
    pub fn channel_count(&self) -> usize {
        self.inner.channels.len()
    }

    /// Put what has arrived on a channel into bitmaps, up to a batch of it; how much that was. Any thread may do this at any time;
    /// two that poll the same channel wait for each other.
    pub fn poll_channel(&self, channel: usize) -> Result<usize, ChannelError> {
        let Channel { completions, state } = &self.inner.channels[channel];
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = [WorkCompletion::default(); BATCH];
        let count = completions.poll(&mut taken)?;
        record(&taken[..count], &mut state.receivers)?;
        Ok(count)
    }

    /// Poll all channels once. How many packets arrived.
    pub fn poll(&self) -> Result<usize, ChannelError> {
        (0..self.channel_count()).map(|channel| self.poll_channel(channel)).sum()
    }

    /// Take every completion that is in a channel's queue now, and more if they keep coming.
    pub(crate) fn drain(&self) {
        for channel in 0..self.channel_count() {
            let batches = self.inner.completions as usize / BATCH + 1;
            // A queue that cannot be polled brings nothing more; polling the context reports it.
            let _ = (0..batches).find(|_| !self.poll_channel(channel).is_ok_and(|count| count == BATCH));
        }
    }

    /// Where events arrive, if it was made with them. An event comes only after [`Context::request_notification`] and
    /// [`crate::QueuePair::request_notification`]; what came before makes none, so look once more after having asked.
    pub fn events(&self) -> Option<&CompletionChannel> {
        self.inner.events.as_ref()
    }

    /// Raise an event when the next packet arrives on a channel.
    pub fn request_notification(&self) -> Result<(), PollError> {
        self.inner.channels.iter().try_for_each(|channel| channel.completions.request_notification(false))
    }

    /// A completion queue that raises events where this context's do.
    pub(crate) fn create_completion_queue(&self, entries: u32) -> Result<CompletionQueue, CreateError> {
        create_completion_queue(self.domain().device(), entries, self.events(), self.token())
    }

    pub(crate) fn completions(&self, channel: usize) -> &CompletionQueue {
        &self.inner.channels[channel].completions
    }

    /// Reserve room for completions on every channel; `false` when there is not enough.
    pub(crate) fn reserve(&self, entries: u32) -> bool {
        let mut states: Vec<_> = self.inner.channels.iter().map(Channel::state).collect();
        if states.iter().any(|state| state.room < entries) {
            return false;
        }
        states.iter_mut().for_each(|state| state.room -= entries);
        true
    }

    /// Give it back.
    pub(crate) fn release(&self, entries: u32) {
        self.inner.channels.iter().for_each(|channel| channel.state().room += entries);
    }

    /// Let a channel know an internal queue pair, and post its receives.
    pub(crate) fn add_receiver(
        &self,
        channel: usize,
        queue_pair: VerbsQueuePair,
        table: &Arc<ReceiveTable>,
        generation: u32,
        depth: usize,
    ) -> Result<(), PostError> {
        post_receives(&queue_pair, depth)?;
        let number = queue_pair.number();
        let receiver =
            Receiver { table: table.clone(), generation, queue_pair, lookups: Lookups::default(), consumed: 0 };
        let receivers = &mut self.inner.channels[channel].state().receivers;
        let place = receivers.partition_point(|other| other.queue_pair.number() < number);
        receivers.insert(place, receiver);
        Ok(())
    }

    /// Forget an internal queue pair.
    pub(crate) fn remove_receiver(&self, channel: usize, number: QueuePairNumber) {
        self.inner.channels[channel].state().receivers.retain(|receiver| receiver.queue_pair.number() != number);
    }
}

impl Channel {
    fn state(&self) -> std::sync::MutexGuard<'_, ChannelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn create_completion_queue(
    device: &Device,
    entries: u32,
    events: Option<&CompletionChannel>,
    token: u64,
) -> Result<CompletionQueue, CreateError> {
    match events {
        // The driver that is woken polls all queues of the context: it need not know which it was.
        Some(events) => device.create_completion_queue_on(entries, events, token),
        None => device.create_completion_queue(entries),
    }
}

/// Completions of one channel become bits, and their receives are posted again.
fn record(completions: &[WorkCompletion], receivers: &mut [Receiver]) -> Result<(), PostError> {
    // Packets come in runs: the queue pair is looked for where a run begins.
    for run in completions.chunk_by(|one, next| one.queue_pair == next.queue_pair) {
        // Not there: the queue pair has been dropped, and this was still in the queue.
        let found = receivers.binary_search_by_key(&run[0].queue_pair, |receiver| receiver.queue_pair.number());
        let Ok(index) = found else { continue };
        let receiver = &mut receivers[index];
        receiver.consumed += receiver.table.record(run, receiver.generation, &mut receiver.lookups);
        post_receives(&receiver.queue_pair, std::mem::take(&mut receiver.consumed))?;
    }
    Ok(())
}

/// Receives without memory: a write with immediate brings its own.
fn post_receives(queue_pair: &VerbsQueuePair, count: usize) -> Result<(), PostError> {
    let requests = [const { ReceiveRequest { id: 0, local: &[] } }; POSTED_AT_ONCE];
    let mut left = count;
    while left > 0 {
        let now = left.min(POSTED_AT_ONCE);
        queue_pair.post_receive(&requests[..now])?;
        left -= now;
    }
    Ok(())
}
