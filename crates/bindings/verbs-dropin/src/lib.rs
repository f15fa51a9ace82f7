//! The drop-in: a library with libibverbs' versioned symbols, for verbs programs as they are. `longhaul run` puts it in front
//! of libibverbs (`LD_PRELOAD`), and the program finds software RNICs on the addresses of this host, without a kernel module,
//! root, or hardware.
//!
//! ```text
//!   program ─▶ exports (versioned symbols) ─┐
//!   program ─▶ context->ops (inline calls) ─┴▶ one file for each kind of object ─▶ longhaul_verbs::raw ─▶ softnic-udp
//! ```
//!
//! - `exports`: the symbols. `versions.map` has their versions. `unsupported`: those that answer `EOPNOTSUPP`.
//! - `configuration`, `listing`: which devices there are. `device`: the one behind all contexts of an address. `sharing`: opens it,
//!   at a port that other processes use too. `refusal`: why it was not opened. `context`,
//!   `opening`: open devices as programs hold them, and their tables of functions. `session`: what a context and its objects share.
//! - `query`, `memory`, `parent_domains`, `windows`, `completion`, `extended_polling`, `address_handle`,
//!   `shared_receive_queue`, `queue_pair`, `queue_pair_creation`, `attributes`, `post`, `send_builder`, `send_list`, `events`: the calls. `held_lock`: for calls
//!   that begin what others end. `mailbox`: events for one context. `outstanding`: events that were handed over and not acknowledged. `waiter`: descriptors that programs wait on.
//!   `errors`: our errors as `errno`. `names`: the texts of statuses and events.
//!
//! What C programs hold are pointers to the C structure at the beginning of an object of ours. Like libibverbs, the library
//! trusts them.
//!
//! No panic crosses the border: every function that C calls is `extern "C"`, out of which a panic does not unwind; it ends
//! the process with a message. That is intended: a device whose lock is poisoned must not go on. Only the two calls that wait
//! for events are `extern "C-unwind"`, for `pthread_cancel`, which unwinds from where a thread waits; all others run with it
//! disabled (`cancellation`).

// Version nodes need a linker that joins our version script with rustc's (rust-lld, the default on this target), and the
// stubs of `exports` are instructions of this processor.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod address_handle;
mod attributes;
#[cfg(test)]
mod calls_tests;
mod cancellation;
mod completion;
mod configuration;
mod context;
mod device;
mod errors;
mod events;
mod exports;
mod extended_polling;
#[cfg(test)]
mod extended_tests;
mod held_lock;
mod listing;
mod mailbox;
mod memory;
mod names;
mod opening;
mod outstanding;
mod parent_domains;
mod post;
mod query;
mod queue_pair;
mod queue_pair_creation;
mod refusal;
mod send_builder;
mod send_list;
mod session;
mod shared_receive_queue;
mod sharing;
mod unsupported;
mod waiter;
mod windows;
