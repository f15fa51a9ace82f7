//! What a queue pair was made with.

use longhaul_verbs::{QueuePairLimits, Transport};
use slotmap::new_key_type;

use crate::memory::{Accessor, DomainId};
use crate::resources::{CompletionQueueKey, SharedReceiveQueueKey};

new_key_type! {
    /// A queue pair of one device.
    pub(crate) struct QueuePairKey;
}

/// What a queue pair was made with and does not change.
pub(crate) struct Identity {
    pub(crate) number: u32,
    pub(crate) domain: DomainId,
    pub(crate) send_completions: CompletionQueueKey,
    pub(crate) receive_completions: CompletionQueueKey,
    /// Where its receives come from, if not from its own queue.
    pub(crate) shared_receive: Option<SharedReceiveQueueKey>,
    pub(crate) limits: Limits,
    pub(crate) transport: Transport,
    pub(crate) signal_all: bool,
}

impl Identity {
    /// As whom it uses keys.
    pub(crate) fn accessor(&self) -> Accessor {
        Accessor { domain: self.domain, queue_pair: self.number }
    }
}

/// Sizes of a queue pair in few bytes; [`Nic::new`](crate::Nic) sees to it that a device allows no larger ones.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) send_requests: u32,
    pub(crate) receive_requests: u32,
    pub(crate) send_entries: u16,
    pub(crate) receive_entries: u16,
    pub(crate) inline_bytes: u16,
}

impl Limits {
    pub(crate) fn new(limits: QueuePairLimits) -> Self {
        Limits {
            send_requests: limits.send_requests,
            receive_requests: limits.receive_requests,
            send_entries: limits.send_entries as u16,
            receive_entries: limits.receive_entries as u16,
            inline_bytes: limits.inline_bytes as u16,
        }
    }

    pub(crate) fn to_verbs(self) -> QueuePairLimits {
        QueuePairLimits {
            send_requests: self.send_requests,
            receive_requests: self.receive_requests,
            send_entries: self.send_entries.into(),
            receive_entries: self.receive_entries.into(),
            inline_bytes: self.inline_bytes.into(),
        }
    }
}
