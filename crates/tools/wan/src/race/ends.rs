//! The ends of each system.

mod messages;
#[cfg(feature = "quic")]
mod quic;
mod rc;
mod tcp;

use std::sync::Arc;

use super::end_error::EndError;
use super::orders::{Contact, Work};
use super::prepared::End;
use super::system::System;
use super::tally::Tally;

/// The receiver of a system, and how its sender reaches it.
pub(super) fn receiver(work: &Work, tally: &Arc<Tally>) -> Result<(Contact, Box<dyn End>), EndError> {
    match work.system {
        System::TcpCubic | System::TcpBbr => tcp::receiver(work),
        System::Quic | System::QuicCubic | System::QuicBbr => quic::receiver(work, tally),
        System::Rc => rc::receiver(work, tally),
        System::SelectiveRepeat | System::Erasure => messages::receiver(work),
    }
}

/// The sender of a system, connected.
pub(super) fn sender(work: &Work, contact: &Contact) -> Result<Box<dyn End>, EndError> {
    match work.system {
        System::TcpCubic | System::TcpBbr => tcp::sender(work, contact),
        System::Quic | System::QuicCubic | System::QuicBbr => quic::sender(work, contact),
        System::Rc => rc::sender(work, contact),
        System::SelectiveRepeat | System::Erasure => messages::sender(work, contact),
    }
}

#[cfg(not(feature = "quic"))]
mod quic {
    use super::{Arc, Contact, End, EndError, Tally, Work};

    fn missing() -> EndError {
        EndError::Missing("this longhaul was built without QUIC: build it with --features quic".to_owned())
    }

    pub(super) fn receiver(_: &Work, _: &Arc<Tally>) -> Result<(Contact, Box<dyn End>), EndError> {
        Err(missing())
    }

    pub(super) fn sender(_: &Work, _: &Contact) -> Result<Box<dyn End>, EndError> {
        Err(missing())
    }
}
