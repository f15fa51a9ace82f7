//! Completion queues and channels as verbs programs see them.

#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use longhaul_verbs::raw;
use longhaul_verbs::{CreateError, EventError, ModifyError, PollError, WorkCompletion};

use super::shared::{Owned, Shared, check_queue_size};
use crate::nic::guard::NicGuard;
use crate::resources::Signal;
use crate::resources::handle_of;
use crate::resources::{ChannelKey, CompletionQueue as Queue, CompletionQueueKey, Waiting};

pub(super) struct CompletionChannel {
    pub(super) shared: Arc<Shared>,
    pub(super) key: ChannelKey,
    #[cfg_attr(not(unix), expect(dead_code, reason = "only its descriptor is asked for"))]
    pub(super) signal: Option<Arc<dyn Signal>>,
}

impl Owned for CompletionChannel {
    fn owner(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl raw::CompletionChannel for CompletionChannel {
    fn next_event(&self) -> Result<Option<u64>, EventError> {
        Ok(self.shared.lock().shared.channels.get_mut(self.key).and_then(Waiting::pop).map(|(_, token)| token))
    }

    #[cfg(unix)]
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.signal.as_deref().map(Signal::descriptor)
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        self.shared.tidy(|nic| nic.shared.channels.remove(self.key));
    }
}

pub(super) struct CompletionQueue {
    pub(super) shared: Arc<Shared>,
    pub(super) key: CompletionQueueKey,
}

impl Owned for CompletionQueue {
    fn owner(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl raw::CompletionQueue for CompletionQueue {
    fn handle(&self) -> u32 {
        handle_of(self.key)
    }

    fn capacity(&self) -> u32 {
        self.shared.lock().shared.completion_queues.get(self.key).map_or(0, Queue::capacity)
    }

    fn poll(&self, completions: &mut [WorkCompletion]) -> Result<usize, PollError> {
        let mut nic = NicGuard::new(self.shared.lock());
        if nic.completion_queue(self.key).ok_or(PollError::Gone)?.is_empty() {
            self.shared.drive.on_empty_poll(&mut nic);
        }
        let queue = nic.completion_queue(self.key).ok_or(PollError::Gone)?;
        let count = queue.take(completions);
        if count == 0 && queue.take_overrun() {
            return Err(PollError::Overrun);
        }
        drop(nic);
        if count == 0 && self.shared.nic.is_waited_for() {
            // Who polls again at once would always be faster than somebody who has to be woken first.
            self.shared.drive.give_way();
        }
        Ok(count)
    }

    fn request_notification(&self, solicited_only: bool) -> Result<(), PollError> {
        let mut nic = NicGuard::new(self.shared.lock());
        nic.completion_queue(self.key).ok_or(PollError::Gone)?.arm(solicited_only);
        self.shared.drive.on_armed(&mut nic);
        Ok(())
    }

    fn moderate(&self, count: u16, period_us: u16) -> Result<(), ModifyError> {
        let period = Duration::from_micros(period_us.into());
        self.shared.with(|nic| nic.shared.moderate(self.key, count, period)).then_some(()).ok_or(ModifyError::Gone)
    }

    fn resize(&self, entries: u32) -> Result<(), CreateError> {
        let mut nic = self.shared.lock();
        check_queue_size(entries, nic.config())?;
        let Some(queue) = nic.shared.completion_queues.get_mut(self.key) else {
            return Ok(());
        };
        queue.resize(entries).map_err(|_| CreateError::InvalidArgument {
            what: "completion queue entries",
            expected: "at least as many as are waiting in it",
        })
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.shared.tidy(|nic| nic.shared.abandon_completion_queue(self.key));
    }
}
