//! The ground on which Longhaul is tried: not published, and needed by no product crate.
//!
//! - [`message_soak`]: random programs of messages, over `sdr` and `reliable`, with attackers and liars.
//! - [`end_to_end`]: reliability schemes over bad links; [`completion`]: how long a message takes with each of them.
//! - [`validation`]: the model of completion times against its twin, and against the protocol on virtual time and on
//!   sockets.
//! - [`interop`]: two programs, each with a device of any kind, that check every byte and every completion of each
//!   other.

pub mod completion;
pub mod end_to_end;
#[doc(hidden)]
pub mod fuzzing;
pub mod interop;
pub mod message_soak;
pub mod validation;
