//! Packets of UC that were handed on out of turn. UC executes a packet each time that it comes.

use std::collections::VecDeque;

use crate::coded::identity;
use crate::packet::Checked;

/// As many are remembered. A power of two: so much memory there is.
const EXECUTED_MAX: usize = 256;

/// Packets that must not be handed on again: number and ICRC. How late they can come is the network's matter, so that no time makes
/// them forgotten.
#[derive(Debug, Default)]
pub(super) struct Executed {
    packets: VecDeque<(u64, u32)>,
}

impl Executed {
    pub(super) const BYTES_MAX: usize = EXECUTED_MAX * size_of::<(u64, u32)>();

    pub(super) fn note(&mut self, number: u64, checked: &Checked) {
        let Some((icrc, _)) = identity(&checked.packet, &checked.scope) else { return };
        if self.packets.len() == EXECUTED_MAX {
            self.packets.pop_front();
        }
        self.packets.push_back((number, icrc));
    }

    /// Forgets packets, by their number.
    pub(super) fn retain(&mut self, is_kept: impl Fn(u64) -> bool) {
        if !self.packets.is_empty() {
            self.packets.retain(|&(number, _)| is_kept(number));
        }
    }

    /// Whether the packet was handed on before. It is forgotten.
    pub(super) fn take(&mut self, number: u64, checked: &Checked) -> bool {
        if self.packets.is_empty() {
            return false;
        }
        let identity = || identity(&checked.packet, &checked.scope).map(|(icrc, _)| icrc);
        let place = self.packets.iter().position(|&(other, icrc)| other == number && identity() == Some(icrc));
        place.is_some_and(|place| self.packets.remove(place).is_some())
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.packets.capacity() * size_of::<(u64, u32)>()
    }
}
