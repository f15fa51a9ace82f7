//! Bounded receives that end before they have a number.

use longhaul_time::Instant;

use super::Incoming;
use crate::jobs::{JobOf, Task};
use crate::receives::FILLED_AT_ONCE_BYTES_MAX;
use crate::terms::Terms;
use crate::ticket::{MessageError, Promise, Received};

/// One that has ended, and whose memory is being filled.
pub(super) struct Filling {
    /// Dropped first: it gives the memory back before the program hears that its message is over.
    task: Task<Received>,
    promise: Promise<Received>,
}

impl Incoming {
    /// Bounded receives that wait for a number, or for memory for parity, end by their deadlines, too: with nothing. They take their numbers all the
    /// same, so that each message finds the receive that was meant for it. Returns the messages that are over.
    pub(crate) fn expire_waiting(&mut self, now: Instant, terms: &Terms) -> u64 {
        let due: Vec<u64> = self.waiting_deadlines.due(now).collect();
        let mut over = 0;
        for own in due {
            self.waiting_deadlines.set(own, None);
            let Some(message) = self.messages.get_mut(&own) else { continue };
            let was_open = message.promise.is_some();
            let Some((promise, expired)) = message.end_early(now, terms.packet_bytes()) else {
                over += u64::from(was_open && message.promise.is_none());
                continue;
            };
            // As with others: only one at a time, and not much.
            let bytes = expired.bytes();
            let is_at_once = self.filled_at != now && bytes as u64 <= FILLED_AT_ONCE_BYTES_MAX;
            self.filled_at = if is_at_once { now } else { self.filled_at };
            let bytes = if is_at_once { 0 } else { bytes };
            let task = terms.jobs.start(JobOf::Expired(own), bytes, move |_| expired.fill());
            self.filling.insert(own, Filling { task, promise });
            over += self.on_filled(own);
        }
        over
    }

    /// The memory of a receive may have been filled. Returns the messages that are over.
    pub(crate) fn on_filled(&mut self, own: u64) -> u64 {
        let Some(received) = self.filling.get_mut(&own).and_then(|filling| filling.task.take()) else { return 0 };
        if let Some(filling) = self.filling.remove(&own) {
            filling.promise.keep(Ok(received));
        }
        1
    }

    /// Everything has failed.
    pub(super) fn fail_filling(&mut self, error: &MessageError) {
        for Filling { task, promise } in std::mem::take(&mut self.filling).into_values() {
            drop(task);
            promise.keep(Err(error.clone()));
        }
    }
}
