//! Bounded messages: a receive that ends on time and says exactly what is missing, and a send that does.
//!
//! ```text
//!   posted ──┬─ everything is there (or can be computed) ──────────────────────────▶ whole
//!            ├─ a best-effort scheme: all was sent, and nothing came for a while ──▶ quiet
//!            └─ its deadline, whatever has come, heard of or not ──────────────────▶ deadline
//!   ended ──▶ the key is revoked ──▶ what can be computed is ──▶ what is missing is filled ──▶ the program; the sender hears the ranges
//! ```
//!
//! Any scheme can bring a bounded message over: what differs is what is missing when time is up. A deadline counts from the posting, or is an
//! instant that the caller names. After the end no late packet changes the message, because its key has been revoked; and packets of other
//! messages never can.

use std::ops::Range;

use longhaul_sdr::Memory;
use longhaul_sdr::memory::BorrowError;
use longhaul_time::{Duration, Instant};

use crate::report::MessageReport;

/// When a bounded message ends at the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// This long after it was posted.
    After(Duration),
    /// At this instant of the connection's clock. One that has passed ends the message at once.
    At(Instant),
}

impl Deadline {
    pub(crate) fn of_posting(self, now: Instant) -> Instant {
        match self {
            Deadline::After(duration) => now + duration,
            Deadline::At(at) => at,
        }
    }
}

/// What the missing bytes of a bounded receive are when its program gets them. They are never another message's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fill {
    /// Zero.
    #[default]
    Zero,
    /// This value each.
    Value(u8),
    /// What they were when the receive was posted. A copy of them is kept until the receive ends: devices that receive in place may
    /// write there before they know whether they should.
    Stale,
}

/// How a receive is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// When it ends at the latest.
    pub deadline: Deadline,
    /// What its missing bytes are.
    pub fill: Fill,
}

/// What ended a receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// Everything had arrived, or could be computed.
    #[default]
    Whole,
    /// Everything had been sent, and nothing had arrived for the reordering allowance. Only best-effort schemes end so.
    Quiet,
    /// Its deadline.
    Deadline,
}

/// How much of a message has arrived, as far as its sender knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// All of it.
    Whole,
    /// All but these ranges of bytes, in order. Exact to the packet unless `is_coarse`: then bytes between missing ones may be in them.
    Partial {
        /// The ranges. None if nothing was to be sent, and the receiver has not heard even that.
        missing: Vec<Range<u64>>,
        /// There were too many ranges.
        is_coarse: bool,
    },
    /// The sender's deadline came before the receiver's report.
    Unknown,
}

/// How a bounded send has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sent {
    /// What happened.
    pub report: MessageReport,
    /// How much of it has arrived.
    pub delivery: Delivery,
}

/// The bound of a receive that is open.
pub(crate) struct ReceiveBound {
    /// None with a best-effort scheme and a receive that its program has not bounded.
    pub(crate) deadline: Option<Instant>,
    fill: Fill,
    stale: Option<Box<[u8]>>,
    /// When it was posted.
    #[cfg(feature = "mutations")]
    pub(crate) posted: Instant,
    #[cfg(feature = "mutations")]
    pub(crate) mutation: Option<crate::attributes::Mutation>,
}

impl ReceiveBound {
    pub(crate) fn new(bound: Bound, memory: &Memory, range: Range<usize>, now: Instant) -> Result<Self, BorrowError> {
        let stale = match bound.fill {
            Fill::Stale => Some(memory.read(range)?.to_vec().into_boxed_slice()),
            Fill::Zero | Fill::Value(_) => None,
        };
        let deadline = Some(bound.deadline.of_posting(now));
        Ok(ReceiveBound {
            deadline,
            fill: bound.fill,
            stale,
            #[cfg(feature = "mutations")]
            posted: now,
            #[cfg(feature = "mutations")]
            mutation: None,
        })
    }

    #[cfg(feature = "mutations")]
    pub(crate) fn mutated(self, mutation: Option<crate::attributes::Mutation>) -> Self {
        ReceiveBound { mutation, ..self }
    }

    /// For a receive that only the scheme bounds.
    pub(crate) fn best_effort() -> Self {
        ReceiveBound {
            deadline: None,
            fill: Fill::Zero,
            stale: None,
            #[cfg(feature = "mutations")]
            posted: Instant::ZERO,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }

    /// Fill what is missing of a receive that begins with these bytes.
    pub(crate) fn fill(&self, bytes: &mut [u8], missing: &[Range<u64>]) {
        #[cfg(feature = "mutations")]
        if self.mutation == Some(crate::attributes::Mutation::MissingUnfilled) {
            return;
        }
        for range in missing {
            let range = range.start as usize..range.end as usize;
            match (self.fill, &self.stale) {
                (Fill::Value(value), _) => bytes[range].fill(value),
                (Fill::Stale, Some(stale)) => bytes[range.clone()].copy_from_slice(&stale[range]),
                (Fill::Zero | Fill::Stale, _) => bytes[range].fill(0),
            }
        }
    }
}

/// Ranges in order, neighbours as one.
pub(crate) fn tidy(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, before| {
        let is_next = before.end >= next.start;
        if is_next {
            before.end = before.end.max(next.end);
        }
        is_next
    });
    ranges
}

/// Bytes in ranges.
pub(crate) fn byte_count(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}
