//! Completion queues and channels.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use longhaul_time::Instant;
use longhaul_verbs::{CompletionStatus, WorkCompletion};
use slotmap::new_key_type;

use super::signal::Signal;

new_key_type! {
    /// A completion queue of one device.
    pub(crate) struct CompletionQueueKey;
    /// A completion channel of one device.
    pub(crate) struct ChannelKey;
}

/// Things that wait for the program to take them, with a descriptor that is readable while there are any.
pub(crate) struct Waiting<T> {
    items: VecDeque<T>,
    pub(crate) signal: Option<Arc<dyn Signal>>,
}

impl<T> Waiting<T> {
    pub(crate) fn new(signal: Option<Arc<dyn Signal>>) -> Self {
        Waiting { items: VecDeque::new(), signal }
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn push(&mut self, item: T) {
        self.items.push_back(item);
        if self.items.len() == 1
            && let Some(signal) = &self.signal
        {
            signal.set();
        }
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let item = self.items.pop_front();
        self.clear_if_empty();
        item
    }

    pub(crate) fn retain(&mut self, is_kept: impl FnMut(&T) -> bool) {
        self.items.retain(is_kept);
        self.clear_if_empty();
    }

    fn clear_if_empty(&self) {
        if self.items.is_empty()
            && let Some(signal) = &self.signal
        {
            signal.clear();
        }
    }
}

/// A completion queue.
pub(crate) struct CompletionQueue {
    completions: VecDeque<WorkCompletion>,
    capacity: usize,
    overrun: bool,
    channel: Option<(ChannelKey, u64)>,
    armed: Armed,
    moderation: Option<Moderation>,
    /// Completions since it was armed whose event moderation holds back.
    held: u16,
    /// When that event is raised at the latest. `Some` exactly when one is held back.
    held_until: Option<Instant>,
    /// Queue pairs that complete into it.
    pub(crate) users: u32,
    /// The program has dropped it; it goes with its last user.
    pub(crate) is_abandoned: bool,
}

/// An event waits for this many completions, or for this long after the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moderation {
    pub(crate) count: u16,
    pub(crate) period: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Armed {
    No,
    ForSolicited,
    ForAny,
}

/// The result of adding a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    Quietly,
    /// Raise an event: this token on this channel.
    Event(ChannelKey, u64),
    /// Raise an event by this time, unless enough completions come before.
    Held(Instant),
    /// There was no room: the completion is lost. `first` for the first one lost.
    Overrun {
        first: bool,
    },
}

impl CompletionQueue {
    pub(crate) fn new(capacity: u32, channel: Option<(ChannelKey, u64)>) -> Self {
        CompletionQueue {
            completions: VecDeque::new(),
            capacity: capacity as usize,
            overrun: false,
            channel,
            armed: Armed::No,
            moderation: None,
            held: 0,
            held_until: None,
            users: 0,
            is_abandoned: false,
        }
    }

    pub(crate) fn push(&mut self, completion: WorkCompletion, solicited: bool, now: Instant) -> Pushed {
        if self.completions.len() == self.capacity {
            let first = !self.overrun;
            self.overrun = true;
            return Pushed::Overrun { first };
        }
        self.completions.push_back(completion);
        // An error counts as solicited (IBTA 11.4.2.2).
        let wanted = match self.armed {
            Armed::No => false,
            Armed::ForSolicited => solicited || completion.status != CompletionStatus::Success,
            Armed::ForAny => true,
        };
        if !wanted || self.channel.is_none() {
            return Pushed::Quietly;
        }
        self.held += 1;
        match self.moderation {
            // A full queue cannot wait: what comes next would be lost.
            Some(Moderation { count, period }) if self.held < count && self.completions.len() < self.capacity => {
                match self.held_until {
                    Some(_) => Pushed::Quietly,
                    None => {
                        let until = now + period;
                        self.held_until = Some(until);
                        Pushed::Held(until)
                    }
                }
            }
            _ => self.take_event().map_or(Pushed::Quietly, |(channel, token)| Pushed::Event(channel, token)),
        }
    }

    /// The event that is raised now, held back before or not: this token on this channel.
    pub(crate) fn take_event(&mut self) -> Option<(ChannelKey, u64)> {
        self.armed = Armed::No;
        self.held = 0;
        self.held_until = None;
        self.channel
    }

    /// When an event is raised that is held back.
    pub(crate) fn held_until(&self) -> Option<Instant> {
        self.held_until
    }

    /// Hold events back, or no longer.
    pub(crate) fn moderate(&mut self, moderation: Option<Moderation>) {
        self.moderation = moderation;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.completions.is_empty()
    }

    /// Moves completions out; the number moved.
    pub(crate) fn take(&mut self, into: &mut [WorkCompletion]) -> usize {
        let count = into.len().min(self.completions.len());
        for (slot, completion) in into.iter_mut().zip(self.completions.drain(..count)) {
            *slot = completion;
        }
        count
    }

    /// Whether completions were lost since this was asked last. An overrun is reported and counted, and then over: the program
    /// decides what it means.
    pub(crate) fn take_overrun(&mut self) -> bool {
        std::mem::take(&mut self.overrun)
    }

    /// Raise no more events.
    pub(crate) fn detach_channel(&mut self) -> Option<ChannelKey> {
        self.channel.take().map(|(channel, _)| channel)
    }

    pub(crate) fn arm(&mut self, solicited_only: bool) {
        // Arming for less does not undo arming for more (IBTA 11.4.2.2).
        let wish = if solicited_only { Armed::ForSolicited } else { Armed::ForAny };
        self.armed = self.armed.max(wish);
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity as u32
    }

    /// Changes the capacity, but not below what is waiting.
    pub(crate) fn resize(&mut self, capacity: u32) -> Result<(), u32> {
        if (capacity as usize) < self.completions.len() {
            return Err(self.completions.len() as u32);
        }
        self.capacity = capacity as usize;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(id: u64) -> WorkCompletion {
        WorkCompletion { id, ..Default::default() }
    }

    #[test]
    fn keeps_order_and_reports_the_overrun_once() {
        let mut queue = CompletionQueue::new(2, None);
        assert_eq!(queue.push(completion(1), false, Instant::ZERO), Pushed::Quietly);
        assert_eq!(queue.push(completion(2), false, Instant::ZERO), Pushed::Quietly);
        assert_eq!(queue.push(completion(3), false, Instant::ZERO), Pushed::Overrun { first: true });
        assert_eq!(queue.push(completion(4), false, Instant::ZERO), Pushed::Overrun { first: false });
        let mut taken = [WorkCompletion::default(); 4];
        assert_eq!(queue.take(&mut taken), 2);
        assert_eq!((taken[0].id, taken[1].id), (1, 2));
        assert!(queue.take_overrun());
        assert!(!queue.take_overrun());
    }

    #[test]
    fn an_event_needs_arming_and_comes_once() {
        let channel = ChannelKey::default();
        let mut queue = CompletionQueue::new(8, Some((channel, 5)));
        assert_eq!(queue.push(completion(1), true, Instant::ZERO), Pushed::Quietly);
        queue.arm(true);
        assert_eq!(queue.push(completion(2), false, Instant::ZERO), Pushed::Quietly);
        let mut failed = completion(3);
        failed.status = CompletionStatus::FlushedError;
        assert_eq!(queue.push(failed, false, Instant::ZERO), Pushed::Event(channel, 5));
        assert_eq!(queue.push(completion(4), true, Instant::ZERO), Pushed::Quietly);
        queue.arm(false);
        queue.arm(true);
        assert_eq!(queue.push(completion(5), false, Instant::ZERO), Pushed::Event(channel, 5));
    }
}
