//! How a code follows the link, and the user's bounds.

use std::fmt;

use longhaul_coding::CodeKind;

/// Repair packets per data packet at most, by default.
const OVERHEAD_MAX: f64 = 0.25;
/// No block has more than twice its packets.
const OVERHEAD_MOST: f64 = 1.0;

/// How the code follows the link. Written `auto`, `auto:xor` or `auto:mds`, with bounds behind commas: `auto:mds,overhead=10%` and
/// `auto,unrepaired=1e-7`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Auto {
    /// The only kind of code to use; `None` is either.
    pub family: Option<CodeKind>,
    /// Repair packets per data packet, at most, whatever is reported.
    pub overhead_max: f64,
    /// Blocks that cannot be repaired, per data packet, at most: the cheapest code that keeps to it. By default the code that
    /// moves most data: one more repair packet is worth it if it saves more than itself from being sent again.
    pub unrepaired_max: Option<f64>,
}

impl Default for Auto {
    fn default() -> Auto {
        Auto { family: None, overhead_max: OVERHEAD_MAX, unrepaired_max: None }
    }
}

impl Auto {
    /// Whether the bounds make sense.
    pub(crate) fn is_possible(&self) -> bool {
        let is_overhead = self.overhead_max > 0.0 && self.overhead_max <= OVERHEAD_MOST;
        let is_share = self.unrepaired_max.is_none_or(|share| share > 0.0 && share < 1.0);
        is_overhead && is_share
    }
}

impl fmt::Display for Auto {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "auto")?;
        if let Some(family) = self.family {
            write!(formatter, ":{family}")?;
        }
        if self.overhead_max != OVERHEAD_MAX {
            write!(formatter, ",overhead={}%", self.overhead_max * 100.0)?;
        }
        match self.unrepaired_max {
            Some(share) => write!(formatter, ",unrepaired={share:e}"),
            None => Ok(()),
        }
    }
}
