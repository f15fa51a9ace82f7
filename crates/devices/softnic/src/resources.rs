//! What all queue pairs of a device share, apart from the wire.

mod completion;
mod shared_receive;
mod signal;

use std::collections::BTreeSet;
use std::time::Duration;

use longhaul_time::Instant;
use longhaul_verbs::{
    AsyncEvent, AsyncEventKind, CompletionFlags, CompletionOperation, CompletionStatus, EventSource, LinkState,
    QueuePairNumber, WorkCompletion,
};
use slotmap::SlotMap;

pub(crate) use completion::{ChannelKey, CompletionQueue, CompletionQueueKey, Waiting};
use completion::{Moderation, Pushed};
pub(crate) use shared_receive::{SharedReceiveQueue, SharedReceiveQueueKey};
pub use signal::Signal;

use crate::config::Config;
use crate::counters::Counters;
use crate::memory::MemoryTable;

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
    /// Events that moderation holds back, and until when.
    held_events: BTreeSet<(Instant, CompletionQueueKey)>,
    has_new_deadline: bool,
    pub(crate) events: Waiting<AsyncEvent>,
    pub(crate) link_state: LinkState,
    /// Whether a router has marked congestion on the packet that is looked at.
    pub(crate) is_arriving_marked: bool,
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
            held_events: BTreeSet::new(),
            has_new_deadline: false,
            events: Waiting::new(None),
            link_state: LinkState::Active,
            is_arriving_marked: false,
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
        if let Some(until) = queue.held_until() {
            self.held_events.remove(&(until, key));
            queue.take_event();
        }
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

    /// Put a completion into its queue, and raise the events that follow. `false` when there was no room and it is lost.
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
        let held_until = queue.held_until();
        match queue.push(completion, solicited, self.now) {
            Pushed::Quietly => {}
            Pushed::Event(channel, token) => {
                if let Some(until) = held_until {
                    self.held_events.remove(&(until, into));
                }
                if let Some(tokens) = self.channels.get_mut(channel) {
                    tokens.push((into, token));
                }
            }
            Pushed::Held(until) => {
                self.held_events.insert((until, into));
                self.has_new_deadline = true;
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

    /// Have a completion queue raise its events only after `count` completions, or `period` after the first since it was armed.
    /// With either of them 0, events come at once. `false` when there is no such queue.
    pub(crate) fn moderate(&mut self, key: CompletionQueueKey, count: u16, period: Duration) -> bool {
        let Some(queue) = self.completion_queues.get_mut(key) else { return false };
        let is_off = count == 0 || period.is_zero();
        queue.moderate((!is_off).then_some(Moderation { count, period }));
        // What the old setting held back is not held any longer.
        if queue.held_until().is_some() {
            self.raise_held_event(key);
        }
        true
    }

    /// When an event is due that moderation holds back.
    pub(crate) fn moderation_deadline(&self) -> Option<Instant> {
        self.held_events.first().map(|(until, _)| *until)
    }

    /// Raise the events that moderation has held back until now.
    pub(crate) fn handle_moderation(&mut self, now: Instant) {
        while let Some(&(until, key)) = self.held_events.first()
            && until <= now
        {
            self.held_events.pop_first();
            self.raise_held_event(key);
        }
    }

    fn raise_held_event(&mut self, key: CompletionQueueKey) {
        let Some(queue) = self.completion_queues.get_mut(key) else { return };
        if let Some(until) = queue.held_until() {
            self.held_events.remove(&(until, key));
        }
        if let Some((channel, token)) = queue.take_event()
            && let Some(tokens) = self.channels.get_mut(channel)
        {
            tokens.push((key, token));
        }
    }

    /// Whether a deadline of its own has been added since this was asked last: the driver of the device may have to
    /// come back earlier.
    pub(crate) fn take_new_deadline(&mut self) -> bool {
        std::mem::take(&mut self.has_new_deadline)
    }

    /// The port's link has come up or gone down. Nothing else in the device changes.
    pub(crate) fn set_link_state(&mut self, state: LinkState) {
        let before = std::mem::replace(&mut self.link_state, state);
        let kind = match (before == LinkState::Active, state == LinkState::Active) {
            (true, false) => AsyncEventKind::PortError,
            (false, true) => AsyncEventKind::PortActive,
            _ => return,
        };
        self.raise(AsyncEvent { kind, source: EventSource::Port(1) });
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_micros(20);

    /// A device with one completion queue on a channel.
    fn resources() -> (Resources, CompletionQueueKey) {
        let mut resources = Resources::new(Config::new("test", vec!["10.0.0.1".parse().unwrap()], [0; 32]));
        let channel = resources.channels.insert(Waiting::new(None));
        let queue = resources.completion_queues.insert(CompletionQueue::new(100, Some((channel, 5))));
        (resources, queue)
    }

    fn complete(resources: &mut Resources, queue: CompletionQueueKey, at_us: u64) {
        resources.now = Instant::from_nanos(at_us * 1000);
        assert!(resources.complete(queue, WorkCompletion::default(), false));
    }

    fn arm(resources: &mut Resources, queue: CompletionQueueKey) {
        resources.completion_queues[queue].arm(false);
    }

    fn events(resources: &Resources) -> usize {
        resources.channels.values().map(Waiting::len).sum()
    }

    fn deadline_us(resources: &Resources) -> Option<u64> {
        resources.moderation_deadline().map(|deadline| deadline.as_nanos() / 1000)
    }

    #[test]
    fn a_moderated_event_waits_for_so_many_completions() {
        let (mut resources, queue) = resources();
        assert!(resources.moderate(queue, 3, PERIOD));
        // Before it is armed nothing counts.
        complete(&mut resources, queue, 1);
        assert_eq!((events(&resources), deadline_us(&resources)), (0, None));
        arm(&mut resources, queue);
        for at in [10, 11] {
            complete(&mut resources, queue, at);
            assert_eq!((events(&resources), deadline_us(&resources)), (0, Some(30)));
        }
        assert!(resources.take_new_deadline());
        assert!(!resources.take_new_deadline());
        complete(&mut resources, queue, 12);
        assert_eq!((events(&resources), deadline_us(&resources)), (1, None));
        // One event for one arming.
        for at in 13..20 {
            complete(&mut resources, queue, at);
        }
        resources.handle_moderation(Instant::from_nanos(1_000_000));
        assert_eq!((events(&resources), deadline_us(&resources)), (1, None));
        // Counting begins anew.
        arm(&mut resources, queue);
        complete(&mut resources, queue, 40);
        complete(&mut resources, queue, 41);
        assert_eq!((events(&resources), deadline_us(&resources)), (1, Some(60)));
    }

    #[test]
    fn a_moderated_event_waits_no_longer_than_its_period() {
        let (mut resources, queue) = resources();
        assert!(resources.moderate(queue, 3, PERIOD));
        arm(&mut resources, queue);
        complete(&mut resources, queue, 10);
        complete(&mut resources, queue, 25);
        resources.handle_moderation(Instant::from_nanos(29_999));
        assert_eq!(events(&resources), 0);
        resources.handle_moderation(Instant::from_nanos(30_000));
        assert_eq!((events(&resources), deadline_us(&resources)), (1, None));
        complete(&mut resources, queue, 40);
        resources.handle_moderation(Instant::from_nanos(100_000));
        assert_eq!(events(&resources), 1);
    }

    #[test]
    fn without_a_count_or_a_period_events_come_at_once() {
        for (count, period) in [(0, PERIOD), (3, Duration::ZERO), (0, Duration::ZERO), (1, PERIOD)] {
            let (mut resources, queue) = resources();
            resources.moderate(queue, count, period);
            arm(&mut resources, queue);
            complete(&mut resources, queue, 10);
            assert_eq!((events(&resources), deadline_us(&resources)), (1, None));
        }
    }

    #[test]
    fn what_is_held_back_is_not_lost() {
        // When moderation ends, the event comes.
        let (mut resources, queue) = resources();
        resources.moderate(queue, 3, PERIOD);
        arm(&mut resources, queue);
        complete(&mut resources, queue, 10);
        resources.moderate(queue, 0, PERIOD);
        assert_eq!((events(&resources), deadline_us(&resources)), (1, None));
        // When the queue goes, nothing is left of it.
        let (mut resources, queue) = self::resources();
        resources.moderate(queue, 3, PERIOD);
        arm(&mut resources, queue);
        complete(&mut resources, queue, 10);
        resources.abandon_completion_queue(queue);
        assert_eq!((events(&resources), deadline_us(&resources)), (0, None));
        assert!(!resources.moderate(queue, 3, PERIOD));
    }

    #[test]
    fn a_lost_completion_is_told_to_the_caller() {
        let (mut resources, _) = resources();
        let queue = resources.completion_queues.insert(CompletionQueue::new(1, None));
        assert!(resources.complete(queue, WorkCompletion::default(), false));
        assert!(!resources.complete(queue, WorkCompletion::default(), false));
        assert_eq!(resources.events.pop().map(|event| event.kind), Some(AsyncEventKind::CompletionQueueError));
    }

    #[test]
    fn the_link_is_reported_when_it_changes() {
        let (mut resources, _) = resources();
        let mut set = |state| {
            resources.set_link_state(state);
            let event = resources.events.pop();
            assert!(event.is_none_or(|event| event.source == EventSource::Port(1)));
            assert_eq!(resources.link_state, state);
            event.map(|event| event.kind)
        };
        assert_eq!(set(LinkState::Active), None);
        assert_eq!(set(LinkState::Down), Some(AsyncEventKind::PortError));
        assert_eq!(set(LinkState::Down), None);
        assert_eq!(set(LinkState::Initializing), None);
        assert_eq!(set(LinkState::Active), Some(AsyncEventKind::PortActive));
    }
}
