//! What all queue pairs of a device share, apart from the wire.

use longhaul_time::Instant;
use longhaul_verbs::{
    AsyncEvent, AsyncEventKind, CompletionFlags, CompletionOperation, CompletionStatus, EventSource, QueuePairNumber,
    WorkCompletion,
};
use slotmap::SlotMap;

use crate::Config;
use crate::completion::{ChannelKey, CompletionQueue, CompletionQueueKey, Pushed, Waiting};
use crate::counters::Counters;
use crate::memory::MemoryTable;
use crate::shared_receive::{SharedReceiveQueue, SharedReceiveQueueKey};

/// What all queue pairs of a device share.
pub(crate) struct Resources {
    pub(crate) config: Config,
    pub(crate) memory: MemoryTable,
    /// The time of the call that the device is in.
    pub(crate) now: Instant,
    pub(crate) completion_queues: SlotMap<CompletionQueueKey, CompletionQueue>,
    pub(crate) shared_receive_queues: SlotMap<SharedReceiveQueueKey, SharedReceiveQueue>,
    /// Completion queues that have something, with their tokens, per channel. Bounded: a queue is in there once per arming.
    pub(crate) channels: SlotMap<ChannelKey, Waiting<(CompletionQueueKey, u64)>>,
    pub(crate) events: Waiting<AsyncEvent>,
    /// Completions so far.
    pub(crate) completion_count: u64,
    /// What was read before, for a mutation.
    #[cfg(feature = "mutations")]
    pub(crate) stale_reads: std::collections::BTreeMap<(u32, u64, u32), Vec<u8>>,
    pub(crate) counters: Counters,
}

impl Resources {
    pub(crate) fn new(config: Config) -> Self {
        Resources {
            memory: MemoryTable::new(&config),
            config,
            now: Instant::ZERO,
            completion_queues: SlotMap::with_key(),
            shared_receive_queues: SlotMap::with_key(),
            channels: SlotMap::with_key(),
            events: Waiting::new(None),
            completion_count: 0,
            #[cfg(feature = "mutations")]
            stale_reads: Default::default(),
            counters: Counters::default(),
        }
    }

    /// A queue pair begins to use a completion queue.
    pub(crate) fn join_completion_queue(&mut self, key: CompletionQueueKey) {
        if let Some(queue) = self.completion_queues.get_mut(key) {
            queue.users += 1;
        }
    }

    /// A queue pair has stopped using a completion queue; the last one takes an abandoned queue with it.
    pub(crate) fn leave_completion_queue(&mut self, key: CompletionQueueKey) {
        if let Some(queue) = self.completion_queues.get_mut(key) {
            queue.users -= 1;
            if queue.users == 0 && queue.is_abandoned {
                self.completion_queues.remove(key);
            }
        }
    }

    /// The program has dropped a completion queue. Queue pairs keep theirs alive; its events go at once, because nobody could
    /// look at what they tell of.
    pub(crate) fn abandon_completion_queue(&mut self, key: CompletionQueueKey) {
        let Some(queue) = self.completion_queues.get_mut(key) else { return };
        if let Some(channel) = queue.detach_channel()
            && let Some(events) = self.channels.get_mut(channel)
        {
            events.retain(|(waiting, _)| *waiting != key);
        }
        if queue.users > 0 {
            queue.is_abandoned = true;
        } else {
            self.completion_queues.remove(key);
        }
    }

    /// Put a completion into its queue, and raise the events that follow. `false` when there was no room for it.
    pub(crate) fn complete(&mut self, into: CompletionQueueKey, completion: WorkCompletion, solicited: bool) -> bool {
        match completion.status {
            CompletionStatus::Success => {}
            CompletionStatus::FlushedError => self.counters.cqe_flush_error += 1,
            _ => self.counters.cqe_error += 1,
        }
        self.completion_count += 1;
        // Queue pairs keep their completion queues alive.
        let Some(queue) = self.completion_queues.get_mut(into) else {
            return true;
        };
        match queue.push(completion, solicited) {
            Pushed::Quietly => {}
            Pushed::Event(channel, token) => {
                if let Some(tokens) = self.channels.get_mut(channel) {
                    tokens.push((into, token));
                }
            }
            Pushed::Overrun { first } => {
                self.counters.cq_overrun += 1;
                if first {
                    let source = EventSource::CompletionQueue(handle_of(into));
                    self.raise(AsyncEvent { kind: AsyncEventKind::CompletionQueueError, source });
                }
                return false;
            }
        }
        true
    }

    /// Completes a request in error.
    pub(crate) fn complete_in_error(
        &mut self,
        into: CompletionQueueKey,
        queue_pair: u32,
        id: u64,
        operation: CompletionOperation,
        status: CompletionStatus,
    ) {
        let completion = WorkCompletion {
            id,
            status,
            operation,
            flags: CompletionFlags::empty(),
            queue_pair: QueuePairNumber::new(queue_pair),
            ..Default::default()
        };
        self.complete(into, completion, false);
    }

    pub(crate) fn raise_for(&mut self, kind: AsyncEventKind, queue_pair: u32) {
        let source = EventSource::QueuePair(QueuePairNumber::new(queue_pair));
        self.raise(AsyncEvent { kind, source });
    }

    /// When an event is due that moderation holds back.
    pub(crate) fn moderation_deadline(&self) -> Option<Instant> {
        None
    }

    /// Raise the events that moderation has held back until now.
    pub(crate) fn handle_moderation(&mut self, _now: Instant) {}

    pub(crate) fn raise(&mut self, event: AsyncEvent) {
        if self.events.len() >= self.config.events_max {
            self.events.pop();
            self.counters.events_lost += 1;
        }
        self.events.push(event);
    }
}

/// The number that names a completion queue in events.
pub(crate) fn handle_of(key: CompletionQueueKey) -> u32 {
    use slotmap::Key;
    // The lower half of slotmap's number is the slot, unique among living queues.
    key.data().as_ffi() as u32
}
