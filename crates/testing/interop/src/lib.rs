//! The verified exchange: a client and a server, two processes, each with a device of any kind, of which one may be
//! ours and the other the kernel's or silicon. It knows devices through [`longhaul_verbs`] only.
//!
//! ```text
//!            TCP: what is to be checked, queue pairs, verdicts (messages, control)
//!   client ═══════════════════════════════════════════════════════════════════════ server
//!   requester                                                              responder
//!     posts every operation ───────────▶ RDMA ──────────────────────────▶ posts receives
//!     checks its completions,                                  checks its completions and
//!     what READs and atomics bring                             what has come into memory
//! ```
//!
//! A check ([`Check`]) is one operation in one size, repeated, on a queue pair of its own. Each operation has a slot of
//! memory at either end, with guard bytes around it, and contents that follow from its number (`contents`): a byte that
//! is lost, repeated, of another operation or in another place is seen. Completions are held against what must come, in
//! order (`ledger`); atomics against a model of the words that they work on (`words`).
//!
//! `reliable` sends messages with reliability schemes instead, in both directions.
//!
//! `death` is the other half: operations until the other end dies, and what the survivor must then see.
//!
//! Everything is bounded in time, and an end that has nothing to do sleeps on its completion channel and its TCP
//! connection.

mod client;
mod contents;
mod control;
mod death;
mod endpoint;
mod fault;
mod ledger;
mod messages;
mod pace;
mod pair;
mod plan;
mod reliable;
mod requester;
mod responder;
mod server;
mod words;

pub use client::{Client, ClientOptions};
pub use control::refuse;
pub use death::DeathReport;
pub use endpoint::End;
pub use fault::InteropError;
pub use plan::{Check, CheckResult, Connection, Operation, Size, Summary};
pub use reliable::ReliableOptions;
pub use server::{ServerOutcome, serve};
