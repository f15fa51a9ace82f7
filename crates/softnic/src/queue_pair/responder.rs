//! What the receiving half of a queue pair knows, and the message that is arriving.

use longhaul_time::Instant;
use longhaul_verbs::RemoteMemory;
use longhaul_wire::Psn;

/// The receiving half of a queue pair.
#[derive(Default)]
pub(crate) struct Responder {
    pub(crate) expected_psn: Psn,
    /// UC: one beyond the highest packet so far.
    furthest_psn: Psn,
    /// A congestion notification is to be sent.
    pub(crate) notify_congestion: bool,
    /// Whether anything has arrived since it became ready to receive.
    pub(crate) is_established: bool,
    /// Whether the message that is arriving is new, and not a copy of one that may be complete already.
    is_message_new: bool,
}

/// What is arriving.
#[derive(Default)]
pub(crate) struct Arriving {
    pub(crate) message: Message,
    /// UC: what lies behind a WRITE with immediate that was one full packet, if that is what arrived last.
    pub(crate) single_write: Option<RemoteMemory>,
    /// [`MemoryTable::binding_count`](crate::memory::MemoryTable) when the WRITE that is arriving began.
    pub(crate) binding_count: u64,
    /// The next congestion notification is not sent before then.
    pub(crate) next_notification: Instant,
    #[cfg(feature = "mutations")]
    pub(crate) deferred: Option<(u32, u64, Vec<u8>)>,
}

/// The message that is arriving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Message {
    #[default]
    None,
    /// Into the receive at the front of the queue, which stays there until the message is complete.
    Send { received: u32 },
    /// Into memory that the peer named.
    Write { address: u64, key: u32, received: u32, left: u32 },
}

/// What is still to come of a WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteInProgress {
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) left_bytes: u32,
}

impl Responder {
    pub(crate) fn start(&mut self, first: Psn) {
        *self = Responder { expected_psn: first, furthest_psn: first, ..Default::default() };
    }

    /// UC: a packet of this number is about to be carried out. Copies that the network made, or that come late, begin
    /// messages too; what they write to may have been handed over already.
    pub(crate) fn note_unreliable(&mut self, psn: Psn, is_start: bool) {
        let ahead = psn.distance_from(self.furthest_psn);
        if is_start {
            self.is_message_new = ahead >= 0;
        }
        if ahead >= 0 {
            self.furthest_psn = psn.next();
        }
    }

    pub(crate) fn is_message_new(&self) -> bool {
        self.is_message_new
    }
}

impl Arriving {
    pub(crate) const NONE: Self = Arriving {
        message: Message::None,
        single_write: None,
        binding_count: 0,
        next_notification: Instant::ZERO,
        #[cfg(feature = "mutations")]
        deferred: None,
    };

    /// What is still to come of a WRITE that has begun.
    pub(crate) fn write_in_progress(&self) -> Option<WriteInProgress> {
        match self.message {
            Message::Write { address, key, left, .. } if left > 0 => {
                Some(WriteInProgress { address, key, left_bytes: left })
            }
            _ => None,
        }
    }

    /// What lies behind the WRITE with immediate that arrived last, if it was one packet of an unreliable connection.
    pub(crate) fn single_write(&self) -> Option<RemoteMemory> {
        self.single_write
    }

    /// Whether more of a WRITE, or other WRITEs behind it, are likely to arrive next.
    pub(crate) fn is_writing(&self) -> bool {
        self.single_write.is_some() || self.write_in_progress().is_some()
    }

    pub(crate) fn is_in_message(&self) -> bool {
        self.message != Message::None
    }

    /// Forget the message that is arriving; `false` when there was none.
    pub(crate) fn abandon_message(&mut self) -> bool {
        std::mem::take(&mut self.message) != Message::None
    }
}
