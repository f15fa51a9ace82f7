//! What the receiving half of a queue pair knows, and the message that is arriving.

use longhaul_time::{Duration, Instant};
use longhaul_verbs::RemoteMemory;
use longhaul_wire::Psn;

/// The receiving half of a queue pair.
#[derive(Default)]
pub(crate) struct Responder {
    expected_psn: Psn,
    /// UC: one beyond the highest packet so far.
    furthest_psn: Psn,
    /// A congestion notification is to be sent.
    notify_congestion: bool,
    /// Whether anything has arrived since it became ready to receive.
    is_established: bool,
    /// Whether the message that is arriving is new, and not a copy of one that may be complete already.
    is_message_new: bool,
}

/// What is arriving.
#[derive(Default)]
pub(crate) struct Arriving {
    message: Message,
    /// UC: what lies behind a WRITE with immediate that was one full packet, if that is what arrived last.
    single_write: Option<RemoteMemory>,
    /// [`MemoryTable::binding_count`](crate::memory::MemoryTable) when the WRITE that is arriving began.
    binding_count: u64,
    /// The next congestion notification is not sent before then.
    next_notification: Instant,
    #[cfg(feature = "mutations")]
    deferred: Option<(u32, u64, Vec<u8>)>,
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

    #[inline]
    pub(crate) fn expected_psn(&self) -> Psn {
        self.expected_psn
    }

    /// The packet of this number is expected next.
    #[inline]
    pub(crate) fn expect(&mut self, psn: Psn) {
        self.expected_psn = psn;
    }

    /// Something has arrived. Whether it is the first since it became ready to receive.
    #[inline]
    pub(crate) fn note_established(&mut self) -> bool {
        !std::mem::replace(&mut self.is_established, true)
    }

    /// Whether a congestion notification is to be sent.
    #[inline]
    pub(crate) fn owes_notification(&self) -> bool {
        self.notify_congestion
    }

    pub(crate) fn owe_notification(&mut self) {
        self.notify_congestion = true;
    }

    /// The notification is being sent; `false` when none is owed.
    pub(crate) fn take_notification(&mut self) -> bool {
        std::mem::take(&mut self.notify_congestion)
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

    /// The message that is arriving.
    #[inline]
    pub(crate) fn message(&self) -> Message {
        self.message
    }

    /// So far has the message come.
    #[inline]
    pub(crate) fn set_message(&mut self, message: Message) {
        self.message = message;
    }

    /// A WRITE begins, after this many bindings of keys.
    pub(crate) fn begin_write(&mut self, binding_count: u64) {
        self.binding_count = binding_count;
    }

    /// Bindings of keys when the WRITE that is arriving began.
    pub(crate) fn binding_count(&self) -> u64 {
        self.binding_count
    }

    /// What lies behind a WRITE with immediate that was one full packet; `None` when something else has arrived.
    #[inline]
    pub(crate) fn set_single_write(&mut self, behind: Option<RemoteMemory>) {
        self.single_write = behind;
    }

    /// Whether the peer may be notified of congestion now; the next time is not before `interval` has passed.
    pub(crate) fn may_notify(&mut self, now: Instant, interval: Duration) -> bool {
        let may = self.next_notification <= now;
        if may {
            self.next_notification = now + interval;
        }
        may
    }

    /// Keep bytes back, and take those that were kept back before.
    #[cfg(feature = "mutations")]
    pub(crate) fn defer(&mut self, key: u32, address: u64, bytes: Vec<u8>) -> Option<(u32, u64, Vec<u8>)> {
        self.deferred.replace((key, address, bytes))
    }

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
