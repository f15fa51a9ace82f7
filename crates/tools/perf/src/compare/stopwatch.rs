//! What a sender and a receiver of a stream write down, whatever carries it.

use std::io::{Error, ErrorKind};
use std::time::{Duration, Instant};

use super::orders::Outcome;
use crate::processor;

/// How long a receiver waits for bytes before it looks whether it is to stop.
pub(super) const READ_PATIENCE: Duration = Duration::from_millis(5);

/// Whether a call has only found nothing to do.
pub(super) fn is_nothing_there(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Runs from the first call on.
pub(super) struct SenderWatch {
    begin: Instant,
    processor_before: Duration,
}

impl SenderWatch {
    pub(super) fn start() -> Self {
        let processor_before = processor::time_used();
        SenderWatch { begin: Instant::now(), processor_before }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    pub(super) fn outcome(&self, payload_bytes: u64, packets: u64) -> Outcome {
        Outcome {
            payload_bytes,
            packets,
            nanoseconds: self.begin.elapsed().as_nanos() as u64,
            processor_nanoseconds: (processor::time_used() - self.processor_before).as_nanos() as u64,
            ..Outcome::default()
        }
    }
}

/// Runs from the first arrival, which does not count, to the last.
pub(super) struct ReceiverWatch {
    outcome: Outcome,
    first: Option<Instant>,
    last: Instant,
    processor_before: Duration,
}

impl ReceiverWatch {
    pub(super) fn new() -> Self {
        let processor_before = processor::time_used();
        ReceiverWatch { outcome: Outcome::default(), first: None, last: Instant::now(), processor_before }
    }

    pub(super) fn arrived(&mut self, payload_bytes: u64, packets: u64) {
        self.last = Instant::now();
        if self.first.is_none() {
            (self.first, self.processor_before) = (Some(self.last), processor::time_used());
            self.outcome.early_bytes = payload_bytes;
        } else {
            self.outcome.packets += packets;
            self.outcome.payload_bytes += payload_bytes;
        }
    }

    pub(super) fn outcome(mut self) -> Outcome {
        self.outcome.nanoseconds = self.first.map_or(0, |first| self.last.duration_since(first).as_nanos() as u64);
        self.outcome.processor_nanoseconds = (processor::time_used() - self.processor_before).as_nanos() as u64;
        self.outcome
    }
}
