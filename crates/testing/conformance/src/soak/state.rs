//! What the program keeps for a node or a queue pair, apart from its queues and its memory: words for atomics, a shared
//! receive queue, a window, slots. What it does with them is in the files that are named after them.

use longhaul_verbs::{
    Access, MemoryWindow, ProtectionDomain, SharedReceiveQueue, SharedReceiveQueueAttributes, SlottedRegion, WindowType,
};

use super::memory::Arena;
use crate::checker::{KeyNumber, MessageNumber, Piece, Place, RegionNumber, SharedQueueNumber, WordNumber, WordUse};

/// Bytes of a word.
pub(super) const WORD_BYTES: usize = 8;
/// Receives in a shared queue, and entries of each.
pub(super) const SHARED_RECEIVES: u32 = 256;
pub(super) const SHARED_RECEIVE_ENTRIES: u32 = 3;
/// Slots of a key.
pub(super) const SLOTS: usize = 4;

/// The words of one node.
pub(super) struct NodeWords {
    pub(super) arena: Arena,
    pub(super) words: Vec<(WordNumber, WordUse, Place)>,
    /// The value that the last request on each word would put, if all goes well.
    pub(super) hoped: Vec<u64>,
}

impl NodeWords {
    pub(super) fn new(domain: &ProtectionDomain) -> Self {
        let access = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC | Access::ZERO_BASED;
        let arena = Arena { domain: domain.clone(), access, region_bytes: 32 * WORD_BYTES, regions: Vec::new() };
        NodeWords { arena, words: Vec::new(), hoped: Vec::new() }
    }

    /// The memory of the words, which are not used any more.
    pub(super) fn take_regions(&mut self) -> Vec<RegionNumber> {
        self.words.clear();
        std::mem::take(&mut self.arena.regions)
    }
}

/// The shared receive queue of a node.
pub(super) struct NodeReceives {
    pub(super) queue: SharedReceiveQueue,
    pub(super) number: SharedQueueNumber,
    pub(super) arena: Arena,
}

impl NodeReceives {
    pub(super) fn new(domain: &ProtectionDomain, number: SharedQueueNumber, arena: Arena) -> Self {
        let attributes =
            SharedReceiveQueueAttributes { requests: SHARED_RECEIVES, entries: SHARED_RECEIVE_ENTRIES, limit: 0 };
        let queue = domain.create_shared_receive_queue(attributes).expect("each node can have a shared receive queue");
        NodeReceives { queue, number, arena }
    }

    pub(super) fn number(&self) -> SharedQueueNumber {
        self.number
    }
}

/// A queue pair's window.
pub(super) struct EndWindow {
    pub(super) window: MemoryWindow,
    pub(super) window_type: WindowType,
    /// What the peer may use now.
    pub(super) bound: Option<BoundWindow>,
    /// A request that binds or ends it is in flight: what it binds.
    pub(super) pending: Option<Option<(Piece, u32)>>,
    /// The program's part of a type 2 key: never the same one twice in a row.
    pub(super) key_byte: u8,
}

#[derive(Clone, Copy)]
pub(super) struct BoundWindow {
    pub(super) key: KeyNumber,
    pub(super) remote_key: u32,
    pub(super) range: Piece,
    /// Bytes that messages have gone to already: each has its own.
    pub(super) used: usize,
    /// Somebody has asked for its end.
    pub(super) is_ending: bool,
}

/// The slots of a queue pair, for its peer to write to.
pub(super) struct EndSlots {
    pub(super) region: SlottedRegion,
    pub(super) slots: [Slot; SLOTS],
}

#[derive(Clone, Default)]
pub(super) struct Slot {
    pub(super) bound: Option<(KeyNumber, Piece)>,
    /// Since it was bound last: packets of these may still come.
    pub(super) messages: Vec<MessageNumber>,
    /// Packets of something that has ended may still come, so it can not be used for anything else.
    pub(super) is_spent: bool,
}
