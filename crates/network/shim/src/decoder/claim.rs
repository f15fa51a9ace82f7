//! What is known of where a flow is, besides what was handed on.

use longhaul_time::Instant;

use crate::config::BlockCode;

/// The data packets that came last, one after the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recent {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Whether the first of them came after a later one.
    pub(super) went_back: bool,
    /// The end of those that came before or after them, not far from them.
    pub(super) highest_end: u64,
}

/// A header that nothing agrees with yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) epoch: u16,
    pub(super) code: BlockCode,
    pub(super) base: u64,
    pub(super) end: u64,
    pub(super) is_announcement: bool,
    pub(super) has_last: bool,
    pub(super) at: Instant,
}
