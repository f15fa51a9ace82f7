//! A code that was changed, as it is explained to users.

use std::fmt;

use longhaul_time::Instant;

use crate::config::BlockCode;

/// A code that was changed, and why.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CodeChange {
    /// When.
    pub at: Instant,
    /// The code until then.
    pub from: BlockCode,
    /// The code from then on.
    pub to: BlockCode,
    /// What made the difference.
    pub reason: Reason,
    /// Share of packets that were lost.
    pub loss: f64,
    /// Packets lost in a row, in the mean.
    pub mean_burst_packets: f64,
    /// Packets that this was measured on.
    pub sample_packets: u64,
    /// Losses in a row among them, each counted once.
    pub sample_bursts: u64,
    /// Packets in flight: what one block that cannot be repaired costs.
    pub in_flight_packets: u64,
    /// Packets of a message, in the mean.
    pub message_packets: f64,
    /// Blocks that could not be repaired per data packet, as expected with the old code and with the new one.
    pub unrepaired: [f64; 2],
    /// Repair packets per data packet, with the old code and with the new one.
    pub overhead: [f64; 2],
    /// The most that the user allows of `unrepaired`; `None` if most data is to be moved.
    pub unrepaired_max: Option<f64>,
}

/// Why a code was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// More loss, longer bursts, or more in flight than the old code is good for.
    TooWeak,
    /// A cheaper code is good enough.
    TooCostly,
    /// Messages are so short that the first code would have cost more than the user allows. Nothing was reported yet.
    ShortMessages,
}

impl Reason {
    /// As in reports of programs.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::TooWeak => "too_weak",
            Reason::TooCostly => "too_costly",
            Reason::ShortMessages => "short_messages",
        }
    }
}

impl fmt::Display for CodeChange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [unrepaired_before, unrepaired] = self.unrepaired;
        let [overhead_before, overhead] = self.overhead.map(|overhead| overhead * 100.0);
        write!(
            formatter,
            "{} to {}: loss {:.2e} in bursts of {:.1} ({} in {} packets), {} packets in flight; ",
            self.from,
            self.to,
            self.loss,
            self.mean_burst_packets,
            self.sample_bursts,
            self.sample_packets,
            self.in_flight_packets
        )?;
        match self.reason {
            Reason::TooWeak => write!(formatter, "too weak: ")?,
            Reason::TooCostly => write!(formatter, "a cheaper code suffices: ")?,
            Reason::ShortMessages => {
                write!(formatter, "messages of {:.0} packets, nothing reported yet: ", self.message_packets)?;
            }
        }
        write!(
            formatter,
            "unrepaired {unrepaired_before:.1e} to {unrepaired:.1e}, overhead {overhead_before:.1} % to {overhead:.1} %"
        )?;
        match self.unrepaired_max {
            Some(share) => write!(formatter, " (target {share:.1e} unrepaired)"),
            None => Ok(()),
        }
    }
}
