//! The raw layer: what a device implements.
//!
//! Object-safe traits, one for each verbs object. Calls that not every device has come with a body that answers
//! "not supported" and names the capability, so that a device implements what it can do and no caller checks for
//! null. Every trait is `Any`: a device finds its own type behind an object that it is handed.
//!
//! Objects are reference counted. Dropping the last reference destroys the object; where the caller must know that (a
//! key revoked, a queue pair gone) there is an explicit call as well. A child keeps its parents alive; only a
//! completion queue does without its channel, and then raises no events.
//!
//! Memory safety rests on the device's own unsafe code: it touches memory only between registration and the moment at
//! which `deregister` answers `Ok` or `Gone`.
//!
//! All calls may come from any thread, and none blocks on the network.
#![allow(unsafe_code, reason = "posting and registering are unsafe to call, as the base of the boundary must be")]

use std::any::Any;
#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::{
    Access, AsyncEvent, Capabilities, Counter, CreateError, DestroyError, DeviceAttributes, EventError, Gid, GidEntry,
    ModifyError, MulticastError, NotSupported, PathAttributes, PollError, PortAttributes, PostError, PostErrorKind,
    QueryError, QueuePairAttributes, QueuePairLimits, QueuePairNumber, QueuePairState, ReceiveRequest, RegisterError,
    SendFlags, SendRequest, SharedReceiveQueueAttributes, SharedReceiveQueueChange, SlotBinding, Transport,
    WindowBinding, WindowType, WorkCompletion, WriteBurst,
};

const fn unsupported(capability: Capabilities) -> NotSupported {
    NotSupported { capability }
}

/// An open device: libibverbs' `ibv_context`.
pub trait Device: Any + Send + Sync {
    /// The name that users call it by.
    fn name(&self) -> &str;

    /// Sizes and abilities (`ibv_query_device_ex`).
    fn attributes(&self) -> Result<DeviceAttributes, QueryError>;

    /// A port, counted from 1 (`ibv_query_port`).
    fn port_attributes(&self, port: u8) -> Result<PortAttributes, QueryError>;

    /// A row of a port's GID table (`ibv_query_gid_ex`). An empty row has a GID of all zeros.
    fn gid(&self, port: u8, index: u32) -> Result<GidEntry, QueryError>;

    /// A row of a port's partition key table (`ibv_query_pkey`). RoCE has one: the default partition.
    fn partition_key(&self, _port: u8, index: u16) -> Result<u16, QueryError> {
        match index {
            0 => Ok(0xffff),
            _ => Err(QueryError::NoSuch { what: "partition key", index: index.into(), count: 1 }),
        }
    }

    /// What the device has counted so far. (libibverbs leaves this to sysfs.)
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }

    /// A new protection domain (`ibv_alloc_pd`).
    fn allocate_protection_domain(&self) -> Result<Arc<dyn ProtectionDomain>, CreateError>;

    /// A new completion channel (`ibv_create_comp_channel`).
    fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>, CreateError> {
        Err(unsupported(Capabilities::COMPLETION_CHANNEL).into())
    }

    /// A new completion queue with room for at least `entries` completions (`ibv_create_cq`). With a channel, its
    /// events carry `token`.
    fn create_completion_queue(
        &self,
        entries: u32,
        channel: Option<(&dyn CompletionChannel, u64)>,
    ) -> Result<Arc<dyn CompletionQueue>, CreateError>;

    /// The next asynchronous event, without waiting (`ibv_get_async_event` on a non-blocking descriptor).
    fn next_event(&self) -> Result<Option<AsyncEvent>, EventError>;

    /// A descriptor that is readable when there is an asynchronous event.
    #[cfg(unix)]
    fn event_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// What belongs together: libibverbs' `ibv_pd`.
pub trait ProtectionDomain: Any + Send + Sync {
    /// Let the device use `length` bytes at `address` of this process (`ibv_reg_mr_iova`). Work requests and peers name
    /// them by addresses that count from `first_address`: usually `address` itself; 0 needs [`Access::ZERO_BASED`].
    /// (The kernel wants the two to agree within a page; the software RNIC does not care.)
    ///
    /// # Safety
    ///
    /// The memory must be valid for reads (and, with [`Access::LOCAL_WRITE`], writes) by other threads until the
    /// region has been deregistered, and no Rust reference to it may be used in a way that conflicts with what the
    /// device does there meanwhile.
    unsafe fn register_memory(
        &self,
        address: *mut u8,
        length: usize,
        first_address: u64,
        access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, RegisterError>;

    /// Let the device use memory that the CPU may not be able to read (`ibv_reg_dmabuf_mr`).
    ///
    /// # Safety
    ///
    /// As for [`ProtectionDomain::register_memory`], as far as the memory is reachable from this process.
    #[cfg(unix)]
    unsafe fn register_dma_buf(
        &self,
        _descriptor: BorrowedFd<'_>,
        _offset: u64,
        _length: usize,
        _first_address: u64,
        _access: Access,
    ) -> Result<Arc<dyn MemoryRegion>, RegisterError> {
        Err(unsupported(Capabilities::DMA_BUF).into())
    }

    /// A region that takes writes and keeps nothing, and reads as zeros (`ibv_alloc_null_mr`). With libibverbs only its
    /// local key means anything.
    fn allocate_null_region(&self) -> Result<Arc<dyn MemoryRegion>, RegisterError> {
        Err(unsupported(Capabilities::NULL_REGION).into())
    }

    /// A key over `slots` slots of `slot_bytes` bytes each, all of them bound to nothing. Peers may do through it what
    /// `access` says, as with a window: the region behind a slot need not be open to peers itself, only have local
    /// write access where they write.
    fn allocate_slotted_region(
        &self,
        _slots: u32,
        _slot_bytes: u64,
        _access: Access,
    ) -> Result<Arc<dyn SlottedRegion>, RegisterError> {
        Err(unsupported(Capabilities::SLOTTED_REGION).into())
    }

    /// A memory window, not yet bound (`ibv_alloc_mw`).
    fn allocate_memory_window(&self, window_type: WindowType) -> Result<Arc<dyn MemoryWindow>, CreateError> {
        let capability = match window_type {
            WindowType::Type1 => Capabilities::WINDOW_TYPE_1,
            WindowType::Type2 => Capabilities::WINDOW_TYPE_2A | Capabilities::WINDOW_TYPE_2B,
        };
        Err(unsupported(capability).into())
    }

    /// A shared receive queue (`ibv_create_srq`).
    fn create_shared_receive_queue(
        &self,
        _attributes: SharedReceiveQueueAttributes,
    ) -> Result<Arc<dyn SharedReceiveQueue>, CreateError> {
        Err(unsupported(Capabilities::SHARED_RECEIVE_QUEUE).into())
    }

    /// A way to a peer, for datagrams (`ibv_create_ah`).
    fn create_address_handle(&self, path: &PathAttributes) -> Result<Arc<dyn AddressHandle>, CreateError>;

    /// A queue pair in state RESET (`ibv_create_qp`).
    fn create_queue_pair(&self, init: &QueuePairInit<'_>) -> Result<Arc<dyn QueuePair>, CreateError>;
}

/// What a queue pair is made from: libibverbs' `ibv_qp_init_attr`.
#[derive(Clone, Copy)]
pub struct QueuePairInit<'a> {
    /// The transport.
    pub transport: Transport,
    /// Where completions of sends go.
    pub send_queue: &'a dyn CompletionQueue,
    /// Where completions of receives go.
    pub receive_queue: &'a dyn CompletionQueue,
    /// Receives come from here instead of its own queue.
    pub shared_receive_queue: Option<&'a dyn SharedReceiveQueue>,
    /// Sizes. The device may give more.
    pub limits: QueuePairLimits,
    /// Every send makes a completion, whatever its flags.
    pub signal_all: bool,
}

/// Memory that a device may use: libibverbs' `ibv_mr`.
pub trait MemoryRegion: Any + Send + Sync {
    /// The key for this process's work requests.
    fn local_key(&self) -> u32;
    /// The key for peers.
    fn remote_key(&self) -> u32;
    /// The first byte's address, as work requests and peers name it.
    fn address(&self) -> u64;
    /// Bytes.
    fn length(&self) -> u64;
    /// Give the region other memory, another protection domain or other rights, whatever is `Some` (`ibv_rereg_mr`).
    /// Its keys may change. On error it may be left deregistered.
    ///
    /// # Safety
    ///
    /// As for [`ProtectionDomain::register_memory`], for the new memory.
    unsafe fn reregister(
        &self,
        _memory: Option<(*mut u8, usize)>,
        _domain: Option<&dyn ProtectionDomain>,
        _access: Option<Access>,
    ) -> Result<(), RegisterError> {
        Err(unsupported(Capabilities::REREGISTER).into())
    }
    /// Revoke the keys (`ibv_dereg_mr`). When this returns `Ok`, the device does not touch the memory any more and
    /// no access to it is in flight. While windows are bound to the region the answer is `InUse`, and nothing changes.
    fn deregister(&self) -> Result<(), DestroyError>;
    /// Revoke the keys, whatever is bound to the region: windows on it lead nowhere from now on. The same promise as
    /// with `deregister`, for the code that frees the memory next. A device that cannot do that answers as to
    /// `deregister`.
    fn abandon(&self) -> Result<(), DestroyError> {
        self.deregister()
    }
}

/// One key over many messages: SDR's indirect root key. (Vendors have it as an indirect memory key; libibverbs has no
/// call for it.)
///
/// Messages are numbered, and number `n` has the addresses `[n · slot_bytes, (n + 1) · slot_bytes)`, up to the end of
/// 64 bits. As many as there are slots are live at a time: number `n` is in slot `n mod slots`, and takes it from the
/// number that had it. At first slot `i` has number `i`, bound to nothing.
///
/// A live number is bound to a part of a region or to nothing; like a null region, one that is bound to nothing takes
/// writes and keeps nothing, and reads as zeros. An access to any other number is refused like one outside a region: on
/// an unreliable connection it is dropped without a completion. So a late packet of a message reaches no later one,
/// however late it is. Bindings change at any time, also while packets arrive.
pub trait SlottedRegion: Any + Send + Sync {
    /// The key for peers. Work requests of this process cannot use it.
    fn remote_key(&self) -> u32;
    /// Slots: numbers that are live at a time.
    fn slots(&self) -> u32;
    /// Bytes of a slot.
    fn slot_bytes(&self) -> u64;
    /// Make a number live, which ends the one that had its slot, and bind it to the first bytes of a part of a region
    /// or to nothing. When this returns, no byte is written through the slot to what it was bound to before, and none
    /// is in flight. An access beyond the part, or to a region that has been deregistered since, is refused like one
    /// outside a region.
    fn bind_slot(&self, number: u64, to: Option<SlotBinding<'_>>) -> Result<(), RegisterError>;
    /// Revoke the key. The same promise as with [`MemoryRegion::deregister`].
    fn deregister(&self) -> Result<(), DestroyError>;
}

/// A key for a part of a region that can be changed quickly: libibverbs' `ibv_mw`.
pub trait MemoryWindow: Any + Send + Sync {
    /// The key for peers.
    fn remote_key(&self) -> u32;
    /// Bind a type 1 window through a queue pair's send queue (`ibv_bind_mw`). Type 2 windows are bound by
    /// [`SendOperation::BindWindow`](crate::SendOperation::BindWindow).
    fn bind(
        &self,
        _through: &dyn QueuePair,
        _id: u64,
        _flags: SendFlags,
        _binding: &WindowBinding<'_>,
    ) -> Result<(), PostError> {
        Err(PostErrorKind::from(unsupported(Capabilities::WINDOW_TYPE_1)).at(0))
    }
    /// Free the window (`ibv_dealloc_mw`).
    fn deallocate(&self) -> Result<(), DestroyError>;
}

/// Where events of completion queues arrive: libibverbs' `ibv_comp_channel`.
pub trait CompletionChannel: Any + Send + Sync {
    /// The next event, without waiting: the token of the completion queue that has something
    /// (`ibv_get_cq_event` on a non-blocking descriptor; the acknowledgement is included).
    fn next_event(&self) -> Result<Option<u64>, EventError>;
    /// A descriptor that is readable when there is an event.
    #[cfg(unix)]
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Where completions arrive: libibverbs' `ibv_cq`.
pub trait CompletionQueue: Any + Send + Sync {
    /// Names it in [`AsyncEvent`]s.
    fn handle(&self) -> u32;
    /// Room, at least what was asked for.
    fn capacity(&self) -> u32;
    /// Take up to `completions.len()` completions (`ibv_poll_cq`). 0 when there are none.
    fn poll(&self, completions: &mut [WorkCompletion]) -> Result<usize, PollError>;
    /// Raise one event at the next (solicited) completion (`ibv_req_notify_cq`).
    fn request_notification(&self, _solicited_only: bool) -> Result<(), PollError> {
        Err(unsupported(Capabilities::COMPLETION_CHANNEL).into())
    }
    /// Make room for at least this many (`ibv_resize_cq`).
    fn resize(&self, _entries: u32) -> Result<(), CreateError> {
        Err(unsupported(Capabilities::RESIZE_COMPLETION_QUEUE).into())
    }
    /// Raise an event only after `count` completions or `period_us` microseconds (`ibv_modify_cq`).
    /// With either of them 0, events come at once.
    fn moderate(&self, _count: u16, _period_us: u16) -> Result<(), ModifyError> {
        Err(unsupported(Capabilities::COMPLETION_MODERATION).into())
    }
}

/// Receives for many queue pairs: libibverbs' `ibv_srq`.
pub trait SharedReceiveQueue: Any + Send + Sync {
    /// Names it in [`AsyncEvent`]s.
    fn handle(&self) -> u32;
    /// Change its limit or size (`ibv_modify_srq`).
    fn modify(&self, change: SharedReceiveQueueChange) -> Result<(), ModifyError>;
    /// Its sizes (`ibv_query_srq`).
    fn query(&self) -> Result<SharedReceiveQueueAttributes, QueryError>;
    /// Post receives, in order (`ibv_post_srq_recv`).
    ///
    /// # Safety
    ///
    /// As for [`QueuePair::post_receive`].
    unsafe fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError>;
}

/// A way to a peer, for datagrams: libibverbs' `ibv_ah`.
pub trait AddressHandle: Any + Send + Sync {
    /// What it was made from.
    fn path(&self) -> PathAttributes;
}

/// A queue pair: libibverbs' `ibv_qp`.
pub trait QueuePair: Any + Send + Sync {
    /// Its number, never 0 or 1.
    fn number(&self) -> QueuePairNumber;
    /// Its transport.
    fn transport(&self) -> Transport;
    /// Its state now, as far as the device reports it without an error; `query` asks and can fail.
    fn state(&self) -> QueuePairState;
    /// Change it (`ibv_modify_qp`). The state diagram is [`check_transition`](crate::check_transition)'s.
    fn modify(&self, attributes: &QueuePairAttributes) -> Result<(), ModifyError>;
    /// All its attributes (`ibv_query_qp`).
    fn query(&self) -> Result<QueuePairAttributes, QueryError>;
    /// The UDP port that its packets come from, when they leave from this row of the GID table: known from its creation
    /// on and the same until it is destroyed. `None` on devices that do not show it.
    fn source_port(&self, _source_gid_index: u8) -> Option<u16> {
        None
    }

    /// Post sends, in order (`ibv_post_send`). On error, what stands before the failing one is posted.
    ///
    /// # Safety
    ///
    /// Entries of requests with the flag `INLINE` must be readable now. All others must lie in registered memory,
    /// or the request completes with an error: that is checked by the device, not believed.
    unsafe fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError>;

    /// Post receives, in order (`ibv_post_recv`).
    ///
    /// # Safety
    ///
    /// Entries must lie in registered memory, or the receive completes with an error: checked by the device.
    unsafe fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError>;

    /// Post many single-packet WRITEs with immediate. Without the capability `WRITE_BURST`, as here, they are
    /// posted as single requests, in batches; an error's index counts them.
    ///
    /// # Safety
    ///
    /// As for [`QueuePair::post_send`].
    unsafe fn post_write_burst(&self, burst: &WriteBurst<'_>) -> Result<(), PostError> {
        if !burst.is_consistent() {
            return Err(PostErrorKind::InconsistentBurst.at(0));
        }
        const BATCH: usize = 32;
        let total = burst.immediates.len();
        for first in (0..total).step_by(BATCH) {
            let count = BATCH.min(total - first);
            let entries: [_; BATCH] = std::array::from_fn(|index| [burst.entry(first + index.min(count - 1))]);
            let requests: [_; BATCH] = std::array::from_fn(|index| {
                let nth = first + index.min(count - 1);
                SendRequest::new(burst.id, burst.operation(nth), &entries[index]).with_flags(burst.request_flags(nth))
            });
            // SAFETY: not inline (`is_consistent`), so the device checks the entries.
            unsafe { self.post_send(&requests[..count]) }
                .map_err(|error| PostError { index: first + error.index, ..error })?;
        }
        Ok(())
    }

    /// Receive what is sent to a group (`ibv_attach_mcast`). The LID is InfiniBand's; 0 with RoCE.
    fn attach_multicast(&self, _group: Gid, _lid: u16) -> Result<(), MulticastError> {
        Err(unsupported(Capabilities::MULTICAST).into())
    }
    /// Stop receiving it (`ibv_detach_mcast`).
    fn detach_multicast(&self, _group: Gid, _lid: u16) -> Result<(), MulticastError> {
        Err(unsupported(Capabilities::MULTICAST).into())
    }

    /// Destroy it now (`ibv_destroy_qp`). When this returns `Ok` it uses no memory any more; requests that had not
    /// completed are forgotten.
    fn destroy(&self) -> Result<(), DestroyError>;
}
