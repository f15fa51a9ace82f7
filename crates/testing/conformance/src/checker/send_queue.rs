//! One send queue: which completions may come next, and what each says about the requests before it.

use std::collections::VecDeque;

use longhaul_verbs::CompletionStatus;

use super::contents::MessageNumber;

/// How a send request ended, as far as its program can know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Its completion says success, or a later completion implies it.
    Succeeded,
    /// Its completion says something else.
    Failed(CompletionStatus),
    /// Its queue pair was reset or destroyed, or it is one of a burst of which only the number of failures is known.
    Unknown,
}

/// Why a completion cannot be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SendFault {
    /// There is no such request (any more).
    NotPosted,
    /// The request asked for no completion on success.
    NotSignaled,
    /// A request before it must have completed first.
    Skipped {
        /// That request.
        id: u64,
    },
    /// After a failure everything must be flushed.
    AfterFailure,
}

struct Entry {
    id: u64,
    message: MessageNumber,
    is_signaled: bool,
}

/// The model of a send queue.
#[derive(Default)]
pub(super) struct SendQueue {
    entries: VecDeque<Entry>,
    /// A request failed; until a reset (or, for UC and UD, the return to RTS) only flushes may come.
    has_failed: bool,
    /// All requests of a burst carry one id. When it fails, the completions do not say at which of them.
    failed_id: Option<u64>,
}

impl SendQueue {
    /// A request was posted.
    pub(super) fn post(&mut self, id: u64, message: MessageNumber, is_signaled: bool) {
        self.entries.push_back(Entry { id, message, is_signaled });
    }

    /// A completion arrived. Returns the requests that it ends, oldest first, or the reason why it cannot be right.
    pub(super) fn complete(
        &mut self,
        id: u64,
        status: CompletionStatus,
    ) -> Result<Vec<(MessageNumber, Ending)>, SendFault> {
        let is_success = status == CompletionStatus::Success;
        let of_id = |entry: &Entry| entry.id == id;
        let position = if is_success {
            self.entries.iter().position(|entry| of_id(entry) && entry.is_signaled)
        } else {
            self.entries.iter().position(of_id)
        };
        let Some(position) = position else {
            let is_posted = self.entries.iter().any(of_id);
            return Err(if is_posted { SendFault::NotSignaled } else { SendFault::NotPosted });
        };
        if self.has_failed && status != CompletionStatus::FlushedError {
            return Err(SendFault::AfterFailure);
        }
        let is_ambiguous = |entry: &Entry| self.failed_id == Some(entry.id);
        // Before a failure, silence of an unsignalled request is success; after one, each must be flushed aloud.
        let must_speak = |entry: &&Entry| (entry.is_signaled || self.has_failed) && !is_ambiguous(entry);
        if let Some(skipped) = self.entries.iter().take(position).find(must_speak) {
            return Err(SendFault::Skipped { id: skipped.id });
        }
        let mut endings = Vec::with_capacity(position + 1);
        for _ in 0..position {
            let entry = self.entries.pop_front().expect("before `position`");
            let ambiguous = self.failed_id == Some(entry.id);
            let ending = if ambiguous { Ending::Unknown } else { Ending::Succeeded };
            endings.push((entry.message, ending));
        }
        let entry = self.entries.pop_front().expect("at `position`");
        let next_is_same_burst = self.entries.front().is_some_and(|next| next.id == entry.id);
        let ending = match status {
            CompletionStatus::Success => Ending::Succeeded,
            // Which one of the burst it was is not said; that it is one of them is checked above.
            _ if next_is_same_burst || self.failed_id == Some(id) => Ending::Unknown,
            _ => Ending::Failed(status),
        };
        endings.push((entry.message, ending));
        if !is_success {
            self.has_failed = true;
            if next_is_same_burst {
                self.failed_id = Some(id);
            }
        }
        Ok(endings)
    }

    /// The queue pair was reset: what is left is forgotten.
    pub(super) fn reset(&mut self) -> Vec<MessageNumber> {
        self.has_failed = false;
        self.failed_id = None;
        self.entries.drain(..).map(|entry| entry.message).collect()
    }

    /// The queue pair went back from SQE to RTS.
    pub(super) fn resume(&mut self) {
        self.has_failed = false;
        self.failed_id = None;
    }

    /// The requests with this id that are still in the queue, oldest first.
    pub(super) fn messages_of(&self, id: u64) -> impl Iterator<Item = MessageNumber> + '_ {
        self.entries.iter().filter(move |entry| entry.id == id).map(|entry| entry.message)
    }

    /// Whether only flushes may come.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Places taken in the queue: unsignalled requests hold theirs until a later one completes.
    pub(super) fn used(&self) -> usize {
        self.entries.len()
    }

    /// Requests that still owe a completion, by id. Unsignalled ones owe one only after a failure.
    pub(super) fn owed(&self) -> impl Iterator<Item = u64> + '_ {
        let owes = |entry: &&Entry| (entry.is_signaled || self.has_failed) && self.failed_id != Some(entry.id);
        self.entries.iter().filter(owes).map(|entry| entry.id)
    }

    /// Unsignalled requests since the last signalled one.
    pub(super) fn unsignaled_tail(&self) -> usize {
        self.entries.iter().rev().take_while(|entry| !entry.is_signaled).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CompletionStatus::{FlushedError, RemoteAccessError, Success};

    fn queue(signaled: &[bool]) -> SendQueue {
        let mut queue = SendQueue::default();
        for (index, is_signaled) in signaled.iter().enumerate() {
            queue.post(10 + index as u64, index as u32, *is_signaled);
        }
        queue
    }

    #[test]
    fn a_completion_implies_the_unsignaled_ones_before_it() {
        let mut queue = queue(&[false, false, true, true]);
        let endings = queue.complete(12, Success).unwrap();
        let succeeded: Vec<_> = (0..3).map(|message| (message, Ending::Succeeded)).collect();
        assert_eq!(endings, succeeded);
        assert_eq!(queue.owed().collect::<Vec<_>>(), [13]);
    }

    #[test]
    fn twice_never_posted_and_unsignaled_are_found() {
        let mut queue = queue(&[true, false]);
        queue.complete(10, Success).unwrap();
        assert_eq!(queue.complete(10, Success), Err(SendFault::NotPosted));
        assert_eq!(queue.complete(99, Success), Err(SendFault::NotPosted));
        assert_eq!(queue.complete(11, Success), Err(SendFault::NotSignaled));
    }

    #[test]
    fn a_skipped_completion_is_found() {
        let mut signaled = queue(&[true, true]);
        assert_eq!(signaled.complete(11, Success), Err(SendFault::Skipped { id: 10 }));
        // After a failure the unsignalled ones must be flushed one by one.
        let mut failed = queue(&[true, false, true]);
        failed.complete(10, RemoteAccessError).unwrap();
        assert_eq!(failed.complete(12, FlushedError), Err(SendFault::Skipped { id: 11 }));
    }

    #[test]
    fn success_after_a_failure_is_found() {
        let mut queue = queue(&[true, true, true]);
        queue.complete(10, RemoteAccessError).unwrap();
        assert_eq!(queue.complete(11, Success), Err(SendFault::AfterFailure));
        assert_eq!(queue.complete(11, RemoteAccessError), Err(SendFault::AfterFailure));
        assert_eq!(queue.complete(11, FlushedError), Ok(vec![(1, Ending::Failed(FlushedError))]));
    }

    #[test]
    fn a_failed_burst_does_not_say_where_it_failed() {
        let mut queue = SendQueue::default();
        for message in 0..4 {
            queue.post(7, message, message == 3);
        }
        queue.post(8, 4, true);
        // The third of four failed: one failure, one flush, then the next request.
        queue.complete(7, RemoteAccessError).unwrap();
        queue.complete(7, FlushedError).unwrap();
        assert_eq!(queue.owed().collect::<Vec<_>>(), [8]);
        let endings = queue.complete(8, FlushedError).unwrap();
        assert_eq!(endings[0], (2, Ending::Unknown));
        assert_eq!(endings[2], (4, Ending::Failed(FlushedError)));
    }
}
