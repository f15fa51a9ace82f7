//! The device over libibverbs: RNICs and Linux Soft-RoCE behind Longhaul's verbs boundary.
//!
//! libibverbs is loaded when it is first needed ([`Library::load`]); neither building nor starting a program needs it.
//! [`devices`] lists what it knows, [`RdmaDevice::open`] opens one of them, and [`RdmaDevice::verbs`] is the device for
//! everything above the boundary.
//!
//! The types and constants of `<infiniband/verbs.h>` are in crate `longhaul-verbs-abi`. From the ground up:
//!
//! - `library`: the functions of the library. `context`: an open device, and the functions that the header defines.
//! - `listing`, `device`, `attributes`, `probe`, `sysfs`, `events`: devices, what they can do, what they count and
//!   report.
//! - `completion`, `work_completion`, `channel`: completion queues, what comes out of them, and their events.
//! - `domain`, `protection_domain`, `memory`, `windows`, `address_handle`, `shared_receive_queue`, `queue_pair`: the
//!   other objects. `handle` is what they have in common, `path` the path to a peer in C's form.
//! - `queue_pair_creation`, `queue_pair_attributes`, `modify`: making queue pairs, and changing and asking them.
//! - `request_check`, `request_list`, `post`, `extended_post`: work requests: checked, then posted as linked lists or
//!   as calls.
//!
//! Every object holds the [`Arc`](std::sync::Arc) of what it was made from, so destruction goes from the leaves to the
//! device. Nothing is copied: buffers are registered where they are, and scatter-gather lists are passed on as they
//! are.

mod address_handle;
mod answer;
mod attributes;
mod channel;
mod completion;
mod context;
mod device;
#[cfg(test)]
mod device_tests;
mod domain;
mod events;
mod extended_post;
mod handle;
mod library;
mod listing;
mod membership;
mod memory;
mod modify;
mod path;
mod post;
mod probe;
mod protection_domain;
mod queue_pair;
mod queue_pair_attributes;
mod queue_pair_creation;
mod request_check;
mod request_list;
mod shared_receive_queue;
mod sysfs;
mod windows;
mod work_completion;

pub use device::{OpenError, RdmaDevice};
pub use library::{Library, LoadError};
pub use listing::{DeviceDescription, ListError, devices};
