//! Keys that stop working while requests use them: of windows, which are bound anew or invalidated, and of slots, which
//! are unbound.

use super::contents::MessageNumber;
use super::facts::{Key, KeyNumber, KeyUse, Message, Target};
use super::judge::Judge;
use super::memory::ReadMemory;

impl Judge {
    /// A window was bound (its request has succeeded) or a slot (the call has returned): messages may go through it.
    pub fn add_key(&mut self, key_use: KeyUse, value: u32) -> KeyNumber {
        self.keys.push(Key { key_use, value, may_be_dead: false, messages: Vec::new() });
        KeyNumber(self.keys.len() - 1)
    }

    /// The key does not work any more: its window was deallocated, or its slot unbound. What has arrived stays, and no
    /// more comes.
    pub fn key_died(&mut self, number: KeyNumber, memory: &impl ReadMemory) {
        self.keys[number.0].may_be_dead = true;
        self.dead_keys.push(number);
        for message in std::mem::take(&mut self.keys[number.0].messages) {
            let Target::Open(place) = self.messages[message as usize].target else { continue };
            let was_whole = match self.memory.close(place, memory) {
                Ok(was_whole) => was_whole,
                Err(difference) => {
                    self.accuse_memory(&difference, "memory behind a key that has just ended");
                    false
                }
            };
            self.messages[message as usize].target = match self.keys[number.0].key_use {
                KeyUse::Window => Target::Revoked { was_whole },
                KeyUse::Slot => Target::Settled,
            };
        }
    }

    pub(super) fn note_keys(&mut self, number: MessageNumber) {
        let facts = &self.messages[number as usize].facts;
        let (through, ends) = (facts.through, facts.ends_key);
        if let Some(key) = through {
            self.keys[key.0].messages.push(number);
        }
        if let Some(key) = ends {
            self.keys[key.0].may_be_dead = true;
        }
    }

    /// A request that ends a key was carried out.
    pub(super) fn end_key(&mut self, number: MessageNumber, memory: &impl ReadMemory) {
        if let Some(key) = self.messages[number as usize].facts.ends_key {
            self.key_died(key, memory);
        }
    }

    /// The key that a message makes invalid, as its receiver's completion names it.
    pub(super) fn ended_key_value(&self, number: MessageNumber) -> Option<u32> {
        self.messages[number as usize].facts.ends_key.map(|key| self.keys[key.0].value)
    }

    /// Whether a message may be refused because of its key.
    pub(super) fn may_have_lost_its_key(&self, message: &Message) -> bool {
        let is_dying = |key: KeyNumber| {
            let key = &self.keys[key.0];
            key.may_be_dead && key.key_use == KeyUse::Window
        };
        matches!(message.target, Target::Revoked { .. }) || message.facts.through.is_some_and(is_dying)
    }
}
