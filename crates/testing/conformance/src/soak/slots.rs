//! Slots: one key over many messages. Each slot is bound to memory for one message, and unbound while its packets may
//! still arrive.

use longhaul_verbs::{Access, Transport};

use super::actions::{Draft, WayIn};
use super::program::Program;
use super::state::{EndSlots, SLOTS};
use crate::checker::{EndNumber, Ending, KeyNumber, KeyUse, Kind, MessageNumber, Piece, Rule};

impl Program {
    /// Binds a slot and lets the peer write to it, or unbinds it.
    pub(super) fn use_slot(&mut self, end: EndNumber) {
        if self.ends[end.0].slots.is_none() {
            let node = self.node(end);
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let bytes = self.plan.message_bytes_max as u64;
            let region = self.domain(node).allocate_slotted_region(SLOTS as u32, bytes, access);
            let region = region.expect("a few slots can be made");
            self.ends[end.0].slots = Some(EndSlots { region, slots: Default::default() });
        }
        let index = self.dice.index(SLOTS);
        let Some(slots) = &self.ends[end.0].slots else { return };
        let slot = &slots.slots[index];
        if slot.bound.is_some() {
            return self.unbind_slot(end, index);
        }
        let peer = self.peer(end);
        if slot.is_spent || self.free_sends(peer) == 0 || self.is_stopped(self.node(peer)) {
            return;
        }
        let is_reliable = self.transport(end) == Transport::ReliableConnection;
        let has_succeeded = |message: &MessageNumber| self.judge.ending(*message) == Some(Ending::Succeeded);
        let (is_quiet, may_be_quiet) = (
            slot.messages.iter().all(has_succeeded),
            slot.messages.iter().all(|message| has_succeeded(message) || self.judge.ending(*message).is_none()),
        );
        // An unreliable message, or one that failed, may have packets in flight for ever.
        if !is_quiet || !is_reliable && !slot.messages.is_empty() {
            let is_spent = !may_be_quiet || !is_reliable;
            if let Some(slots) = &mut self.ends[end.0].slots {
                slots.slots[index].is_spent = is_spent;
            }
            return;
        }
        self.write_to_slot(end, index);
    }

    fn write_to_slot(&mut self, end: EndNumber, index: usize) {
        let peer = self.peer(end);
        let length = self.draft_length(peer);
        let bound = match self.dice.chance(80) && length > 0 {
            true => Some(self.bind_slot(end, index, length)),
            // What is written to a slot that is bound to nothing is taken, and not kept.
            false => None,
        };
        let Some(slots) = &mut self.ends[end.0].slots else { return };
        let way = WayIn {
            remote: slots.region.remote(index as u64, 0),
            target: bound.map(|(_, piece)| piece.place),
            key: bound.map(|(key, _)| key),
        };
        slots.slots[index].bound = bound;
        slots.slots[index].messages.clear();
        let draft = Draft {
            has_immediate: self.dice.chance(30),
            is_signaled: !self.dice.chance(self.plan.unsignaled_percent),
            way: Some(way),
            ..Draft::plain(Kind::Write, length)
        };
        self.tally.count_operation(if bound.is_some() { "write_to_slot" } else { "write_to_unbound_slot" });
        let message = self.post_message(peer, draft);
        if let Some(slots) = &mut self.ends[end.0].slots {
            slots.slots[index].messages.extend(message);
        }
    }

    fn bind_slot(&mut self, end: EndNumber, index: usize, length: usize) -> (KeyNumber, Piece) {
        let this = &mut self.ends[end.0];
        let place = this.slotted.allocate(&mut self.memory, &mut self.judge, &mut self.dice, length);
        let region = self.memory.registered_region(place.region);
        let mut value = 0;
        if let Some(slots) = &this.slots {
            value = slots.region.remote_key();
            if let Err(error) = slots.region.bind(index as u64, region, place.offset..place.offset + length) {
                let subject = format!("binding slot {index} of queue pair {}", end.0);
                self.judge.accuse(Rule::Refusal, subject, "it to be possible", error.to_string());
            }
        }
        (self.judge.add_key(KeyUse::Slot, value), Piece { place, length })
    }

    /// From now on nothing that comes is kept; the memory is used for something else at once.
    fn unbind_slot(&mut self, end: EndNumber, index: usize) {
        let Some(slots) = &mut self.ends[end.0].slots else { return };
        let Some((key, piece)) = slots.slots[index].bound.take() else { return };
        if let Err(error) = slots.region.unbind(index as u64) {
            let subject = format!("unbinding slot {index} of queue pair {}", end.0);
            self.judge.accuse(Rule::Refusal, subject, "it to be possible", error.to_string());
        }
        self.tally.count_operation("unbind_slot");
        self.judge.key_died(key, &self.memory);
        self.epoch += 1;
        self.memory.refill_and_release(&mut self.judge, piece, self.epoch);
    }

    /// Revokes the key over the slots of a queue pair that is reset or gone.
    pub(super) fn drop_slots(&mut self, end: EndNumber) {
        for index in 0..SLOTS {
            self.unbind_slot(end, index);
        }
        let Some(slots) = self.ends[end.0].slots.take() else { return };
        if let Err(error) = slots.region.deregister() {
            let subject = format!("revoking the slots of queue pair {}", end.0);
            self.judge.accuse(Rule::Refusal, subject, "it to be possible", error.to_string());
        }
    }
}
