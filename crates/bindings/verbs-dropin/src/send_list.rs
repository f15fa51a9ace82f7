//! Send requests that a program is making call by call.

use std::cell::UnsafeCell;
use std::ops::Range;

use longhaul_verbs::{ScatterGatherEntry, SendFlags, SendOperation};
use longhaul_verbs_abi::{ibv_mw, ibv_mw_bind_info, ibv_send_wr_ud};
use nix::errno::Errno;

use crate::held_lock::HeldLock;

/// Where requests are collected.
#[derive(Default)]
pub(crate) struct SendBuilder {
    /// From the start to the end of a list.
    pub(crate) started: HeldLock,
    pub(crate) list: UnsafeCell<List>,
}

/// Requests that are not posted yet. Its rooms are kept from list to list.
#[derive(Default)]
pub(crate) struct List {
    pub(crate) requests: Vec<Building>,
    pub(crate) entries: Vec<ScatterGatherEntry>,
    pub(crate) inline: Vec<u8>,
    /// Why none of them can be posted.
    pub(crate) refused: Option<Errno>,
}

pub(crate) struct Building {
    pub(crate) id: u64,
    pub(crate) flags: SendFlags,
    pub(crate) operation: SendOperation,
    pub(crate) data: Data,
    pub(crate) datagram: Option<ibv_send_wr_ud>,
    pub(crate) window: Option<(*mut ibv_mw, ibv_mw_bind_info)>,
}

/// Ranges of the list's rooms.
pub(crate) enum Data {
    Entries(Range<usize>),
    Inline(Range<usize>),
}

impl List {
    pub(crate) fn refuse(&mut self, errno: Errno) {
        self.refused.get_or_insert(errno);
    }

    /// What the last request is about.
    pub(crate) fn set(&mut self, change: impl FnOnce(&mut Building)) {
        match self.requests.last_mut() {
            Some(last) => change(last),
            None => self.refuse(Errno::EINVAL),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.entries.clear();
        self.inline.clear();
        self.refused = None;
    }
}
