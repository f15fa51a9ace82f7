//! What the race orders its ends to do, and what they answer: a line of JSON each.

use serde::{Deserialize, Serialize};

use super::system::System;

/// What an end prepares for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Work {
    pub(super) system: System,
    /// Longhaul's scheme.
    pub(super) scheme: Option<String>,
    pub(super) connections: usize,
    pub(super) message_bytes: usize,
    pub(super) mtu: u16,
    /// Rate times round trip of the link.
    pub(super) bandwidth_delay_bytes: u64,
    /// Round trip and the longest wait in the queue.
    pub(super) round_trip_max_nanos: u64,
    pub(super) measure: Measure,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Measure {
    /// Bytes in a time.
    Bulk,
    /// Times of this many messages, one at a time.
    Completion(usize),
}

impl Work {
    /// Messages that a sender keeps posted, so that the path never idles: three bandwidth-delay products at least.
    pub(super) fn depth(&self) -> usize {
        match self.measure {
            Measure::Bulk => (3 * self.bandwidth_delay_bytes).div_ceil(self.message_bytes as u64).max(3) as usize + 1,
            Measure::Completion(_) => 1,
        }
    }
}

/// How a sender reaches its receiver.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Contact {
    /// An address with its port, or Longhaul's handle.
    pub(super) address: String,
    /// QUIC's certificate.
    pub(super) certificate: Vec<u8>,
}

/// An order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Be the receiver; answered with a [`Contact`].
    Receive(Work),
    /// Be the sender, and connect; answered with `()`.
    Send(Work, Contact),
    /// Begin and end at these times of the monotonic clock, in nanoseconds; answered with an [`Outcome`].
    Run { start: u64, until: u64 },
}

/// What an end has seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Outcome {
    /// When the sender really began, and when the receiver's bytes were counted, by the monotonic clock in nanoseconds.
    pub(super) begun: u64,
    pub(super) ended: u64,
    /// The receiver: bytes in messages that arrived whole.
    pub(super) whole_bytes: u64,
    /// Completion: when each message was posted, or had arrived, by the monotonic clock in nanoseconds.
    pub(super) times: Vec<u64>,
    /// Completion times in nanoseconds, where the sender knows them itself: from the receiver's answers.
    pub(super) completions: Vec<u64>,
    /// What the sender has counted.
    pub(super) counters: Vec<(String, u64)>,
}

impl Outcome {
    /// A counter; those of all connections together.
    pub(super) fn counter(&self, name: &str) -> u64 {
        self.counters.iter().filter(|(known, _)| known == name).map(|(_, count)| count).sum()
    }
}
