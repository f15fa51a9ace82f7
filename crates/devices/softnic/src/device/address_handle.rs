//! Ways to peers, for datagrams.

use longhaul_verbs::{PathAttributes, raw};

/// A way to a peer, for datagrams.
pub(crate) struct AddressHandle {
    pub(crate) path: PathAttributes,
    /// Of the device that it was made for, and checked with.
    pub(crate) device_serial: u64,
}

impl raw::AddressHandle for AddressHandle {
    fn path(&self) -> PathAttributes {
        self.path
    }
}
