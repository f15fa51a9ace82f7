//! Work completions: the results of requests.

use std::fmt;

use bitflags::bitflags;

use crate::QueuePairNumber;

/// How a request ended. Numbers are libibverbs' `ibv_wc_status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum CompletionStatus {
    /// Done.
    #[default]
    Success = 0,
    /// The message is longer than the receive, or than the transport allows.
    LocalLengthError = 1,
    /// The queue pair itself failed.
    LocalQueuePairError = 2,
    /// A local entry names a key or range that is not registered for this use.
    LocalProtectionError = 4,
    /// The queue pair was in, or went into, the error state before this request was done.
    FlushedError = 5,
    /// A window could not be bound.
    WindowBindError = 6,
    /// The peer sent something that does not fit.
    BadResponseError = 7,
    /// A receive failed because of local access rights.
    LocalAccessError = 8,
    /// The peer found the request invalid.
    RemoteInvalidRequestError = 9,
    /// The peer refused the key, the range or the access.
    RemoteAccessError = 10,
    /// The peer could not carry it out.
    RemoteOperationError = 11,
    /// No answer from the peer after all retries.
    RetryExceededError = 12,
    /// The peer had no receive posted, after all retries.
    ReceiverNotReadyRetryExceededError = 13,
    /// The peer aborted it.
    RemoteAbortedError = 16,
    /// A fatal device error.
    FatalError = 19,
    /// Response time-out of a management request.
    ResponseTimeoutError = 20,
    /// Anything else.
    GeneralError = 21,
}

/// In the words of libibverbs' `ibv_wc_status_str`.
impl fmt::Display for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            CompletionStatus::Success => "success",
            CompletionStatus::LocalLengthError => "local length error",
            CompletionStatus::LocalQueuePairError => "local QP operation error",
            CompletionStatus::LocalProtectionError => "local protection error",
            CompletionStatus::FlushedError => "work request flushed error",
            CompletionStatus::WindowBindError => "memory window bind error",
            CompletionStatus::BadResponseError => "bad response error",
            CompletionStatus::LocalAccessError => "local access error",
            CompletionStatus::RemoteInvalidRequestError => "remote invalid request error",
            CompletionStatus::RemoteAccessError => "remote access error",
            CompletionStatus::RemoteOperationError => "remote operation error",
            CompletionStatus::RetryExceededError => "transport retry counter exceeded",
            CompletionStatus::ReceiverNotReadyRetryExceededError => "RNR retry counter exceeded",
            CompletionStatus::RemoteAbortedError => "remote aborted error",
            CompletionStatus::FatalError => "fatal error",
            CompletionStatus::ResponseTimeoutError => "response timeout error",
            CompletionStatus::GeneralError => "general error",
        })
    }
}

/// What kind of request ended. Meaningful only on success, as in libibverbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
#[non_exhaustive]
pub enum CompletionOperation {
    /// A SEND of any form.
    #[default]
    Send = 0,
    /// A WRITE of any form.
    Write = 1,
    /// A READ.
    Read = 2,
    /// A compare-and-swap.
    CompareAndSwap = 3,
    /// A fetch-and-add.
    FetchAndAdd = 4,
    /// A window bound.
    BindWindow = 5,
    /// A local invalidation.
    LocalInvalidate = 6,
    /// A receive that took a SEND.
    Receive = 128,
    /// A receive that a WRITE with immediate consumed.
    ReceiveWriteWithImmediate = 129,
}

bitflags! {
    /// What else is in a completion. Bits are libibverbs' `ibv_wc_flags`, but for the mark.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct CompletionFlags: u32 {
        /// The first 40 bytes of the receive hold a GRH.
        const GLOBAL_ROUTE_HEADER = 1 << 0;
        /// There is an immediate.
        const IMMEDIATE = 1 << 1;
        /// A key was invalidated.
        const INVALIDATED = 1 << 3;
        /// A router marked congestion on the packet that ended the message (ECN). libibverbs has no such flag: devices
        /// behind it never set it.
        const CONGESTION_MARK = 1 << 31;
    }
}

/// How one request ended: libibverbs' `ibv_wc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct WorkCompletion {
    /// The request's id.
    pub id: u64,
    /// How it ended. On failure only this, `id`, `queue_pair` and `vendor_error` mean something.
    pub status: CompletionStatus,
    /// What it was.
    pub operation: CompletionOperation,
    /// What else is here.
    pub flags: CompletionFlags,
    /// The device's own code for a failure.
    pub vendor_error: u32,
    /// Bytes received or read. 0 for sends.
    pub byte_count: u32,
    /// The immediate or the invalidated key, as `flags` says. Use [`WorkCompletion::immediate`].
    pub immediate_or_key: u32,
    /// The queue pair that the request was posted to (or through which a shared receive was consumed).
    pub queue_pair: QueuePairNumber,
    /// Who sent a datagram.
    pub source_queue_pair: QueuePairNumber,
    /// InfiniBand: the local identifier of who sent a datagram; 0 with RoCE.
    pub source_lid: u16,
    /// InfiniBand: its service level.
    pub service_level: u8,
    /// InfiniBand: which of our own identifiers it was sent to.
    pub destination_path_bits: u8,
}

impl WorkCompletion {
    /// The 32 bits received with the message, as the sender's number.
    pub fn immediate(&self) -> Option<u32> {
        self.flags.contains(CompletionFlags::IMMEDIATE).then_some(self.immediate_or_key)
    }

    /// The key that the message invalidated here.
    pub fn invalidated_key(&self) -> Option<u32> {
        self.flags.contains(CompletionFlags::INVALIDATED).then_some(self.immediate_or_key)
    }

    /// Whether the request was carried out.
    pub fn is_success(&self) -> bool {
        self.status == CompletionStatus::Success
    }
}

// Completions are made by the million; the software RNIC keeps rings of them.
const _: () = assert!(size_of::<WorkCompletion>() <= 40);
