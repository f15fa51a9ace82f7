//! The device over libibverbs: RNICs and Linux Soft-RoCE behind Longhaul's verbs boundary.
//!
//! libibverbs is loaded when it is first needed ([`Library::load`]); neither building nor starting a program needs it.
//! [`devices`] lists what it knows, [`RdmaDevice::open`] opens one of them, and [`RdmaDevice::verbs`] is the device for
//! everything above the boundary.
//!
//! From the ground up:
//!
//! - [`abi`]: the types and constants of `<infiniband/verbs.h>`, held against the installed header by a test.
//! - `library`: the functions of the library. `context`: an open device, and the functions that the header defines.
//! - `listing`, `device`, `attributes`, `probe`, `sysfs`, `events`: devices, what they can do, what they count and report.
//! - `completion`: completion queues and channels.
//! - `domain`, `memory`, `windows`, `address_handle`, `shared_receive_queue`, `queue_pair`: the other objects.
//! - `post`, `extended_post`: work requests, as linked lists and as calls.
//!
//! Every object holds the [`Arc`](std::sync::Arc) of what it was made from, so destruction goes from the leaves to the
//! device. Nothing is copied: buffers are registered where they are, and scatter-gather lists are passed on as they are.

pub mod abi;
mod answer;
mod context;
mod library;

pub use library::{Library, LoadError};
