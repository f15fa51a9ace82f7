//! Exit statuses of the command other than 0, which is success.

/// A check failed.
pub(crate) const FAILED: u8 = 1;
/// The arguments fit nothing.
pub(crate) const USAGE: u8 = 2;
/// Something is missing on this host.
pub(crate) const MISSING: u8 = 3;
/// Nobody reads the output any more: what shells show for a program that SIGPIPE has ended.
pub(crate) const BROKEN_PIPE: u8 = 128 + 13;
