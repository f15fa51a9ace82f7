//! What names memory, and who uses it.

use std::num::NonZeroU64;

use longhaul_verbs::{Access, WindowType};

/// The number of a protection domain.
pub(crate) type DomainId = u32;

/// The key, the range or the rights were wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccessDenied;

/// Through which queue pair a key is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accessor {
    pub(crate) domain: DomainId,
    pub(crate) queue_pair: u32,
}

/// Names what a key stands for, and nothing that has the same key later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyId {
    /// The upper 24 bits of the key, which never change.
    pub(crate) index: u32,
    /// Different for everything that ever was in the table.
    pub(crate) serial: NonZeroU64,
}

/// A window that a request binds, with everything that was known when it was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowBind {
    pub(crate) window: KeyId,
    /// Which kind the request is for.
    pub(crate) window_type: WindowType,
    /// The window's key from then on.
    pub(crate) key: u32,
    /// Not looked at when `length` is 0.
    pub(crate) region: KeyId,
    /// First byte, as work requests name it.
    pub(crate) address: u64,
    /// Bytes; 0 unbinds.
    pub(crate) length: u64,
    /// What peers may do through it.
    pub(crate) access: Access,
}
