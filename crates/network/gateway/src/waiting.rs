//! Link headers of packets that wait in the shim: they go on with their own, whatever arrives meanwhile.

use std::collections::BTreeMap;

use longhaul_datagram::{Envelope, Packet};
use longhaul_wire::icrc::ICRC_BYTES;

use crate::frame::{LinkHeader, Parsed};

/// By where the datagram lies in memory, which does not change while it waits. A packet that the shim drops leaves its header behind;
/// so a header counts only for a packet with the same envelope and ICRC.
#[derive(Debug)]
pub(crate) struct WaitingHeaders {
    by_memory: BTreeMap<usize, Waiting>,
    most: usize,
}

#[derive(Debug)]
struct Waiting {
    envelope: Envelope,
    icrc: Option<[u8; ICRC_BYTES]>,
    link: LinkHeader,
}

impl WaitingHeaders {
    /// Memory of one, in a tree that may be half empty.
    pub(crate) const HEADER_BYTES: usize = 2 * size_of::<(usize, Waiting)>();

    pub(crate) fn memory_bytes(&self) -> usize {
        self.by_memory.len() * WaitingHeaders::HEADER_BYTES
    }

    pub(crate) fn new(most: usize) -> WaitingHeaders {
        WaitingHeaders { by_memory: BTreeMap::new(), most }
    }

    /// Nothing waits: all are left behind.
    pub(crate) fn clear(&mut self) {
        self.by_memory.clear();
    }

    /// The packet whose datagram was moved to this place waits.
    pub(crate) fn keep(&mut self, memory: *const u8, parsed: &Parsed<'_>) {
        if self.by_memory.len() < self.most || self.by_memory.contains_key(&memory.addr()) {
            let icrc = parsed.datagram.last_chunk().copied();
            let waiting = Waiting { envelope: parsed.envelope, icrc, link: parsed.link };
            self.by_memory.insert(memory.addr(), waiting);
        }
    }

    /// The header of a packet that has waited.
    pub(crate) fn take(&mut self, packet: &Packet) -> Option<LinkHeader> {
        let waiting = self.by_memory.remove(&packet.datagram.as_ptr().addr())?;
        let is_same = waiting.envelope == packet.envelope && waiting.icrc == packet.datagram.last_chunk().copied();
        is_same.then_some(waiting.link)
    }
}
