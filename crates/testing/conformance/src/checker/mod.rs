//! Invariant checkers: is what a verbs program saw allowed by the specification? The [`Judge`] gets what the program
//! posted and which completions arrived, and can read the program's memory. It knows nothing else: no packet, no clock
//! of the device, no code of it. From the InfiniBand specification (volume 1, chapters 9 and 10) it derives what may be
//! seen; [`Rule`] lists the rules. The interesting ones:
//!
//! - **Memory.** Every byte holds what the program put there, or a byte of a message that was legally addressed to it.
//!   A message is placed packet by packet, each whole; which packets of a message that is in flight are there, and in
//!   which order they arrived, is up to the device.
//! - **RC.** When a send completes with success, its bytes are in place *at that moment*, and those of everything
//!   posted before it; a receive completion says the same. The n-th message that needs a receive completes the n-th
//!   receive. A repeated request is acknowledged, not executed again (C9-105), so old bytes never come back.
//! - **UC.** The specification knows no duplicate here: a packet that begins a message begins it whatever its
//!   sequence number (9.8.3: a gap ends the message that was being received, and the next "first" or "only" packet
//!   starts another). So on a network that duplicates or reorders, a message may be delivered again, or late; on one
//!   that does neither, at most once and in order. Any packets of an unfinished message may be in memory, in the
//!   receive that the next message will take too; a completion means that the whole message is there.
//! - **UD.** One packet, all or nothing. Duplicates and reordering of the network are visible.
//! - **READ.** The bytes it brings are those that the peer's memory held between posting and completion. The program
//!   fills what is to be read with bytes that nothing else ever held, so bytes of another time are found. Until the
//!   completion they may be in place packet by packet, when it comes they all are; nothing else changes.
//! - **Atomics.** Each happens exactly once, those of one connection in order; one that ends without an answer at most
//!   once. Words show their own history: see `words.rs`.
//! - **Failures.** A request may end with [`RetryExceededError`](longhaul_verbs::CompletionStatus::RetryExceededError)
//!   only if the network loses packets or the peer may have stopped to answer, and only after as many time-outs as it
//!   may be repeated; the same goes for a receiver that is not ready. Every other failure needs a mistake that the
//!   program made on purpose. After a failure everything later is flushed.
//! - **Windows and slots.** When the request that binds a window anew, or invalidates it, is reported done (a SEND that
//!   invalidates: at its receiver), the old key is as good as revoked. What comes through a slot after it was unbound
//!   is not kept.
//! - **Revoked keys.** After deregistration has returned the memory belongs to the program, which uses it at once for
//!   something else: nothing may change there. A write that was not whole by then must not succeed.

mod atomics;
mod contents;
mod facts;
mod judge;
mod keys;
mod memory;
mod reads;
mod receive_queue;
mod receives;
mod send_queue;
mod sends;
mod shared_receives;
mod violation;
mod words;

#[cfg(test)]
mod tests;

pub use contents::{MESSAGE_BYTES_MAX, MessageNumber, fill_untouched, immediate, message_bytes};
pub use facts::{
    EndFacts, EndNumber, Ended, KeyNumber, KeyUse, Kind, Mistake, NetworkFacts, Observation, ReadFacts, SendFacts,
};
pub use judge::Judge;
pub use memory::{Place, ReadMemory, RegionNumber};
pub use receive_queue::{Piece, PostedReceive, SharedQueueNumber};
pub use send_queue::Ending;
pub use violation::{Rule, Violation, Violations};
pub use words::{Atomic, WordNumber, WordUse};
