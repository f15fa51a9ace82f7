//! Drives reliable connections, without a clock, a thread or a socket of its own.
//!
//! ```text
//!   letters, time ─▶ Engine ── turns ──▶ Driven ─▶ Shared: context, queue pair, reliable connection
//!                       └─▶ Turn: again, or rest until then            ▲
//!                                       program's threads: send, post_receive, attend, close
//! ```
//!
//! The [`Engine`] takes [`Letter`]s and the time, gives each connection that needs it a turn, and says when it must be
//! called again. A connection is a [`Shared`]: the program posts messages to it, the engine drives it. The caller of
//! the engine supplies a [`Letterbox`], and a [`Lifeline`] if it can see that the peer has gone.
//!
//! A [`Granter`] grants credit to all senders of an endpoint, for those that have the controller `credit`.
//!
//! Two callers exist: the facade `longhaul`, with threads, descriptors and the host's clock; and the soak of messages in
//! `scheme-testing`, on virtual time. So what the soak tests is what programs use.

mod assembly;
mod driven;
mod end;
mod engine;
mod error_text;
mod granter;
mod letter;
mod panicked;
mod shared;
mod waking;

pub use assembly::Assembly;
pub use driven::{LINGER_MAX, SPIN, Turn};
pub use end::End;
pub use engine::Engine;
pub use error_text::with_sources;
pub use granter::Granter;
pub use letter::{Letter, Letterbox, Lifeline};
pub use panicked::{Panicked, catch};
#[cfg(feature = "mutations")]
pub use shared::Mutation;
pub use shared::{Attending, Shared, WhenClosed};
pub use waking::Waiting;
