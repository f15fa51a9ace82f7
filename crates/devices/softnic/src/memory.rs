//! Registered memory: the only place where the device touches the memory of programs.
//!
//! Every access names a key, and happens only when that key is good now, for the queue pair that it comes through, with the
//! rights that the access needs, and when the range lies inside of what the key stands for. All keys are in one table
//! ([`MemoryTable`]); what they stand for is
//!
//! - a region: memory of the program (`region`),
//! - a null region, which keeps nothing and reads as zeros,
//! - a window: a part of a region, with rights of its own and changed by requests in send queues (`windows`),
//! - a slotted region: numbered messages, some of them live, each bound to a part of a region or to nothing (`slotted`).
//!
//! Because the device runs under one lock, no copy is in progress when a call returns that revokes a key or changes
//! what it stands for. The copies themselves are in `copy`.

mod copy;
mod keys;
mod live_numbers;
mod region;
mod slotted;
mod spread;
mod table;
mod windows;

pub use copy::{ForeignMemory, Gathered, Piece};
pub(crate) use copy::{Payload, copy_inline};
pub(crate) use keys::{AccessDenied, Accessor, DomainId, KeyId, WindowBind};
pub(crate) use slotted::Slot;
pub(crate) use spread::RandomNumberMap;
pub(crate) use table::MemoryTable;
