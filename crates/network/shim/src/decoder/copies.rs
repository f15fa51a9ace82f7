//! Acknowledgements and their copies: of each pair one passes.

use longhaul_time::Instant;

use crate::config::Config;

/// Pairs that are remembered. A power of two: so much memory there is.
const PAIRS_MAX: usize = 32;

/// What has come of the newest pairs. Equal acknowledgements have equal ICRCs and are different pairs.
#[derive(Debug, Default)]
pub(super) struct Copies {
    pairs: Vec<Pair>,
}

#[derive(Debug)]
struct Pair {
    icrc: u32,
    seen: Seen,
    /// When the last of it came.
    at: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Original,
    Copy,
    Both,
}

impl Copies {
    pub(super) const BYTES_MAX: usize = PAIRS_MAX * size_of::<Pair>();

    /// An acknowledgement comes: whether it passes. It does not if it was overtaken by its copy.
    pub(super) fn passes_original(&mut self, icrc: u32, config: &Config, now: Instant) -> bool {
        self.expire(config, now);
        let is_overtaken = self.complete(icrc, Seen::Copy, now);
        if !is_overtaken {
            self.push(icrc, Seen::Original, now);
        }
        !is_overtaken
    }

    /// A copy comes: whether it passes. It does not if its original has passed, or if the network has doubled the copy.
    pub(super) fn passes_copy(&mut self, icrc: u32, config: &Config, now: Instant) -> bool {
        self.expire(config, now);
        if self.complete(icrc, Seen::Original, now) || self.pairs.iter().any(|pair| pair.icrc == icrc) {
            return false;
        }
        self.push(icrc, Seen::Copy, now);
        true
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.pairs.capacity() * size_of::<Pair>()
    }

    /// The other half of a pair of which this half was seen.
    fn complete(&mut self, icrc: u32, seen: Seen, now: Instant) -> bool {
        let pair = self.pairs.iter_mut().find(|pair| pair.icrc == icrc && pair.seen == seen);
        pair.map(|pair| (pair.seen, pair.at) = (Seen::Both, now)).is_some()
    }

    /// An equal acknowledgement that comes later than a network reorders or doubles packets is another one.
    fn expire(&mut self, config: &Config, now: Instant) {
        self.pairs.retain(|pair| {
            let patience = if pair.seen == Seen::Original { config.timeout } else { config.reordering };
            now.saturating_since(pair.at) <= patience
        });
    }

    fn push(&mut self, icrc: u32, seen: Seen, now: Instant) {
        if self.pairs.len() == PAIRS_MAX {
            let done = self.pairs.iter().position(|pair| pair.seen == Seen::Both);
            self.pairs.remove(done.unwrap_or(0));
        }
        self.pairs.push(Pair { icrc, seen, at: now });
    }
}
