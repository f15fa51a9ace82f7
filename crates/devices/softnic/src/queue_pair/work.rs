//! Requests in the device's queues, and how a message is cut into packets.

use longhaul_verbs::{CompletionOperation, RemoteMemory, ScatterGatherEntry, SendFlags};
use longhaul_wire::{Operation, Position, Psn, Trailer};

use crate::memory::WindowBind;
use crate::port::Route;

/// The specification's largest message.
pub(crate) const MESSAGE_BYTES_MAX: u64 = 1 << 31;

/// Atomics work on words of eight bytes at addresses that are multiples of eight (IBTA 9.4.5).
pub(crate) const ATOMIC_BYTES: u64 = 8;

/// A scatter-gather list, or data that was copied while posting. One entry, by far the most common, takes no allocation.
#[derive(Clone, Debug)]
pub(crate) enum Entries {
    One(ScatterGatherEntry),
    Many(Box<[ScatterGatherEntry]>),
    Inline(Box<[u8]>),
}

impl Entries {
    pub(crate) fn new(entries: &[ScatterGatherEntry]) -> Self {
        match entries {
            [one] => Entries::One(*one),
            _ => Entries::Many(entries.into()),
        }
    }

    /// The list; empty for inline data.
    pub(crate) fn list(&self) -> &[ScatterGatherEntry] {
        match self {
            Entries::One(one) => std::slice::from_ref(one),
            Entries::Many(many) => many,
            Entries::Inline(_) => &[],
        }
    }

    pub(crate) fn length(&self) -> u64 {
        match self {
            Entries::Inline(data) => data.len() as u64,
            _ => list_length(self.list()),
        }
    }
}

/// Bytes of a list.
pub(crate) fn list_length(entries: &[ScatterGatherEntry]) -> u64 {
    entries.iter().map(|entry| u64::from(entry.length)).sum()
}

/// A receive request.
#[derive(Clone, Debug)]
pub(crate) struct ReceiveWork {
    pub(crate) id: u64,
    pub(crate) entries: Entries,
}

impl ReceiveWork {
    /// Whether only a WRITE with immediate, which brings its own place, can use it.
    pub(crate) fn has_no_memory(&self) -> bool {
        matches!(&self.entries, Entries::Many(entries) if entries.is_empty())
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub(crate) route: Route,
    pub(crate) queue_pair: u32,
    pub(crate) queue_key: u32,
}

/// What a send request does; the rest of [`SendWork`] is the same for all.
#[derive(Clone, Debug)]
pub(crate) enum SendKind {
    Send,
    Write(RemoteMemory),
    Read(RemoteMemory),
    CompareAndSwap { remote: RemoteMemory, compare: u64, swap: u64 },
    FetchAndAdd { remote: RemoteMemory, add: u64 },
    LocalInvalidate(u32),
    BindWindow(Box<WindowBind>),
}

/// What the last packet of a message brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attached {
    Nothing,
    Immediate(u32),
    /// A key that the peer is to make invalid.
    Invalidate(u32),
}

/// A send request.
#[derive(Clone, Debug)]
pub(crate) struct SendWork {
    pub(crate) id: u64,
    pub(crate) kind: SendKind,
    pub(crate) attached: Attached,
    pub(crate) flags: SendFlags,
    pub(crate) length: u32,
    pub(crate) entries: Entries,
    pub(crate) destination: Option<Box<Destination>>,
    /// The first packet's sequence number, given out when the request is started.
    pub(crate) first_psn: Psn,
    /// RC: what all requests before it took of the peer's window, given out when the request is started.
    pub(crate) first_charge_bytes: u64,
    pub(crate) is_started: bool,
}

/// One packet of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) offset: u32,
    pub(crate) length: u32,
    pub(crate) position: Position,
}

impl SendWork {
    /// A request that has not been looked at by a requester yet.
    pub(crate) fn new(id: u64, kind: SendKind, flags: SendFlags, length: u32, entries: Entries) -> Self {
        SendWork {
            id,
            kind,
            attached: Attached::Nothing,
            flags,
            length,
            entries,
            destination: None,
            first_psn: Psn::default(),
            first_charge_bytes: 0,
            is_started: false,
        }
    }

    /// Sequence numbers that it takes: one for each packet of the message, whichever end sends them.
    pub(crate) fn packet_count(&self, mtu_bytes: u32) -> u32 {
        self.length.div_ceil(mtu_bytes).max(1)
    }

    pub(crate) fn last_psn(&self, mtu_bytes: u32) -> Psn {
        self.first_psn.add(self.packet_count(mtu_bytes) - 1)
    }

    /// Whether it is done when its answer has arrived, rather than when it is acknowledged: READs and atomics.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(self.kind, SendKind::Read(_) | SendKind::CompareAndSwap { .. } | SendKind::FetchAndAdd { .. })
    }

    /// Whether it concerns this device alone.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.kind, SendKind::LocalInvalidate(_) | SendKind::BindWindow(_))
    }

    /// The `index`-th packet.
    pub(crate) fn segment(&self, index: u32, mtu_bytes: u32) -> Segment {
        let offset = index * mtu_bytes;
        let left = self.length - offset;
        Segment { offset, length: left.min(mtu_bytes), position: Position::of(index == 0, left <= mtu_bytes) }
    }

    pub(crate) fn wire_operation(&self) -> Operation {
        match self.kind {
            SendKind::Write(_) => Operation::Write,
            SendKind::Read(_) => Operation::ReadRequest,
            SendKind::CompareAndSwap { .. } => Operation::CompareSwap,
            SendKind::FetchAndAdd { .. } => Operation::FetchAdd,
            // Local requests send nothing.
            SendKind::Send | SendKind::LocalInvalidate(_) | SendKind::BindWindow(_) => Operation::Send,
        }
    }

    /// What the packet at `position` brings along.
    pub(crate) fn trailer(&self, position: Position) -> Trailer {
        match self.attached {
            Attached::Immediate(_) if position.is_end() => Trailer::Immediate,
            Attached::Invalidate(_) if position.is_end() => Trailer::Invalidate,
            _ => Trailer::None,
        }
    }

    pub(crate) fn completion_operation(&self) -> CompletionOperation {
        match self.kind {
            SendKind::Send => CompletionOperation::Send,
            SendKind::Write(_) => CompletionOperation::Write,
            SendKind::Read(_) => CompletionOperation::Read,
            SendKind::CompareAndSwap { .. } => CompletionOperation::CompareAndSwap,
            SendKind::FetchAndAdd { .. } => CompletionOperation::FetchAndAdd,
            SendKind::LocalInvalidate(_) => CompletionOperation::LocalInvalidate,
            SendKind::BindWindow(_) => CompletionOperation::BindWindow,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(length: u32) -> SendWork {
        let entry = ScatterGatherEntry { address: 0, length, local_key: 1 };
        SendWork {
            attached: Attached::Immediate(3),
            first_psn: Psn::new(0xff_fffe),
            ..SendWork::new(1, SendKind::Send, SendFlags::empty(), length, Entries::new(&[entry]))
        }
    }

    #[test]
    fn messages_are_cut_at_the_mtu() {
        let cut = |length| {
            let work = work(length);
            let positions: Vec<_> = (0..work.packet_count(1024)).map(|index| work.segment(index, 1024)).collect();
            assert_eq!(positions.iter().map(|segment| segment.length).sum::<u32>(), length);
            positions.iter().map(|segment| segment.position).collect::<Vec<_>>()
        };
        use Position::*;
        assert_eq!(cut(0), [Only]);
        assert_eq!(cut(1024), [Only]);
        assert_eq!(cut(1025), [First, Last]);
        assert_eq!(cut(3 * 1024), [First, Middle, Last]);
    }

    #[test]
    fn sequence_numbers_wrap() {
        assert_eq!(work(4 * 1024).last_psn(1024), Psn::new(1));
    }

    #[test]
    fn only_the_end_carries_the_immediate() {
        assert_eq!(work(0).trailer(Position::Only), Trailer::Immediate);
        assert_eq!(work(0).trailer(Position::First), Trailer::None);
    }
}
