//! The verbs boundary of Longhaul.
//!
//! Everything above this crate (messages with partial completion, reliability schemes, applications) speaks
//! verbs; everything below it is a device: an RNIC or Linux Soft-RoCE through libibverbs, or our own RNIC in
//! software. The boundary is the field's own, held against `<infiniband/verbs.h>` call by call in
//! `docs/VERBS.md`, with two changes: names are full words, and what a device does not do is an ordinary answer
//! ("not supported", with the name of the missing [`Capabilities`] flag) and the default of every optional call.
//!
//! There are two layers:
//!
//! - [`raw`]: object-safe traits, as dynamic and as raw as libibverbs. A work request holds
//!   `{address, length, key}` entries, posting is `unsafe` and takes batches, memory may be foreign (not readable
//!   by the CPU), and events come with pollable file descriptors. A device implements these.
//! - the types at the root of this crate ([`Device`], [`ProtectionDomain`], [`MemoryRegion`], …): thin, safe and
//!   reference counted. A child keeps its parents alive, so destruction happens in the right order.
//!
//! The path of the data through this crate: a [`SendRequest`] or [`ReceiveRequest`] goes into a
//! [`QueuePair`], a [`WorkCompletion`] comes out of a [`CompletionQueue`].
//!
//! # Why safe posting is safe
//!
//! Addresses in work requests are plain numbers, and a wrong one must not be able to break Rust's memory safety.
//! It cannot: a device reads and writes only memory that lies inside a region that is registered *now* under the
//! key that the entry names, and a safe [`MemoryRegion`] owns its bytes, deregisters them before it frees them,
//! and never hands out a slice of them while they are registered. The one exception of verbs, inline data
//! (read by the CPU when posting, without a key), is a slice in the safe layer.

mod address;
mod attributes;
mod capability;
mod completion;
mod error;
mod event;
mod flag_names;
mod gid_choice;
pub mod raw;
mod request;
mod safe;
mod state;

pub use address::{Gid, GidEntry, GidType, Mtu, PathAttributes, QueuePairNumber};
pub use attributes::{
    Access, AttributeMask, Counter, DeviceAttributes, LinkState, PathMigrationState, PortAttributes,
    QueuePairAttributes, QueuePairLimits, SharedReceiveQueueAttributes, SharedReceiveQueueChange, Transport,
};
pub use capability::Capabilities;
pub use completion::{CompletionFlags, CompletionOperation, CompletionStatus, WorkCompletion};
pub use error::{
    CreateError, DestroyError, EventError, ModifyError, MulticastError, NotSupported, PollError, PostError,
    PostErrorKind, QueryError, RegisterError,
};
pub use event::{AsyncEvent, AsyncEventKind, EventSource};
pub use gid_choice::{GidChoice, GidChoiceError, GidRows, choose_gid};
pub use request::{
    DatagramDestination, ReceiveRequest, RemoteMemory, ScatterGatherEntry, SendFlags, SendOperation, SendRequest,
    SlotBinding, WindowBinding, WindowRequest, WindowType, WriteBurst,
};
pub use safe::{
    AddressHandle, CompletionChannel, CompletionQueue, Device, MemoryRegion, MemoryWindow, NullRegion,
    ProtectionDomain, QueuePair, QueuePairOptions, SharedReceiveQueue, SlottedRegion,
};
pub use state::{QueuePairState, TRANSITIONS, Transition, TransitionError, check_transition, find_transition};
