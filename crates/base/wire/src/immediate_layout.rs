//! The 32 bits of immediate that every data packet of Longhaul carries, and how they are divided.
//!
//! ```text
//!   31            22 21                       4 3     0
//!  ┌────────────────┬──────────────────────────┬───────┐
//!  │  slot          │  packet                  │ user  │   10 + 18 + 4 bits by default
//!  └────────────────┴──────────────────────────┴───────┘
//! ```
//!
//! The slot is the message's number modulo the size of the message table, the packet is its place in the message in units of the
//! path MTU. The user bits of packet `p` are fragment `p mod n` of the immediate that the sender's user gave the message, where `n`
//! fragments make 32 bits.
//!
//! A message with fewer packets than that needs more writes to carry its immediate. They have the `n` packet numbers behind the last
//! packet of the receive, and carry one byte of the message, so that the receiving device checks their key: a write of nothing needs
//! none, and anybody could send it. A receive that is so long that these numbers do not exist gets the immediate only of messages
//! with at least `n` packets.

use core::fmt;

/// How the 32 bits are divided. Both ends must agree; the numbers are in the connection's info.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImmediateLayout {
    message_bits: u8,
    packet_bits: u8,
}

/// A division that does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    /// Not 32 bits.
    Sum {
        /// Bits for the slot.
        message: u8,
        /// Bits for the packet.
        packet: u8,
        /// Bits for the user.
        user: u8,
    },
    /// No room for a slot, or a table that would be too large.
    Message(u8),
    /// The user's bits must cut 32 bits evenly.
    User(u8),
}

impl fmt::Display for LayoutError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayoutError::Sum { message, packet, user } => {
                write!(formatter, "expected fields that have 32 bits together, got {message} + {packet} + {user}")
            }
            LayoutError::Message(bits) => write!(formatter, "expected 1 to 16 bits for the message, got {bits}"),
            LayoutError::User(bits) => write!(formatter, "expected 0, 1, 2, 4, 8 or 16 bits for the user, got {bits}"),
        }
    }
}

impl core::error::Error for LayoutError {}

/// What an immediate says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// Place in the message table.
    pub slot: u32,
    /// Place in the message.
    pub packet: u32,
    /// A fragment of the user's immediate.
    pub user: u32,
}

impl Default for ImmediateLayout {
    fn default() -> Self {
        ImmediateLayout::PAPER
    }
}

impl ImmediateLayout {
    /// The paper's: 1,024 messages, 1 GiB at an MTU of 4 KiB, 4 bits of the user's.
    pub const PAPER: ImmediateLayout = ImmediateLayout { message_bits: 10, packet_bits: 18 };

    /// A division of 32 bits.
    pub const fn new(message: u8, packet: u8, user: u8) -> Result<Self, LayoutError> {
        if message as u32 + packet as u32 + user as u32 != 32 {
            return Err(LayoutError::Sum { message, packet, user });
        }
        if message == 0 || message > 16 {
            return Err(LayoutError::Message(message));
        }
        if !matches!(user, 0 | 1 | 2 | 4 | 8 | 16) {
            return Err(LayoutError::User(user));
        }
        Ok(ImmediateLayout { message_bits: message, packet_bits: packet })
    }

    /// Bits for slot, packet and user.
    pub const fn bits(self) -> (u8, u8, u8) {
        (self.message_bits, self.packet_bits, self.user_bits())
    }

    /// Bits for the user.
    pub const fn user_bits(self) -> u8 {
        32 - self.message_bits - self.packet_bits
    }

    /// Messages that can be in flight.
    pub const fn slot_count(self) -> u32 {
        1 << self.message_bits
    }

    /// Bytes of the longest message whose packets can be counted.
    pub const fn message_bytes_max(self, packet_bytes: u32) -> u64 {
        self.packet_count_max() as u64 * packet_bytes as u64
    }

    /// The place of a message in the table.
    pub const fn slot_of(self, number: u64) -> u32 {
        (number % self.slot_count() as u64) as u32
    }

    /// The generation of a message, counted from 0: how often the table has wrapped before it, modulo their number.
    pub const fn generation_of(self, number: u64, generations: u32) -> u32 {
        let round = number >> self.message_bits;
        // Asked for each packet, and a division takes longer than the rest of what is done with one.
        match generations.is_power_of_two() {
            true => round as u32 & (generations - 1),
            false => (round % generations as u64) as u32,
        }
    }

    /// Packets that a message can have.
    pub const fn packet_count_max(self) -> u32 {
        // All 31 bits at most, since a message has at least one.
        1 << self.packet_bits
    }

    /// Fragments that the user's immediate is cut into; 0 when there is no room for any.
    pub const fn fragment_count(self) -> u32 {
        match self.user_bits() {
            0 => 0,
            bits => 32 / bits as u32,
        }
    }

    /// The number of the write that carries only a fragment of the user's immediate, into a receive of `packet_count`
    /// packets; `None` if there is no such number.
    pub const fn fragment_packet(self, fragment: u32, packet_count: u32) -> Option<u32> {
        let count = self.fragment_count();
        if fragment >= count || packet_count as u64 + count as u64 > self.packet_count_max() as u64 {
            return None;
        }
        Some(packet_count + (fragment + count - packet_count % count) % count)
    }

    /// Whether a write with this packet number carries only a fragment, in a receive of `packet_count` packets.
    #[inline]
    pub const fn is_fragment_only(self, packet: u32, packet_count: u32) -> bool {
        packet >= packet_count && packet - packet_count < self.fragment_count()
    }

    /// The immediate of a packet.
    #[inline]
    pub const fn encode(self, slot: u32, packet: u32, user_immediate: u32) -> u32 {
        debug_assert!(slot < self.slot_count() && packet < self.packet_count_max());
        slot << (32 - self.message_bits) | packet << self.user_bits() | self.fragment(user_immediate, packet)
    }

    /// What an immediate says.
    #[inline]
    pub const fn decode(self, immediate: u32) -> Fields {
        let user = immediate & mask(self.user_bits());
        let packet = immediate >> self.user_bits() & mask(self.packet_bits);
        Fields { slot: immediate >> (32 - self.message_bits), packet, user }
    }

    /// The fragment of the user's immediate that a packet carries.
    #[inline]
    const fn fragment(self, user_immediate: u32, packet: u32) -> u32 {
        match self.fragment_count() {
            0 => 0,
            count => user_immediate >> (packet % count * self.user_bits() as u32) & mask(self.user_bits()),
        }
    }
}

const fn mask(bits: u8) -> u32 {
    ((1_u64 << bits) - 1) as u32
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::borrow::ToOwned;
    use std::string::ToString;
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_document_is_true() {
        let (message, packet, user) = ImmediateLayout::default().bits();
        let rows: Vec<_> = crate::document::table::<3>("The immediate of a data packet", 0).collect();
        let row = |first: u8, bits: u8, name: &'static str| [first.to_string(), bits.to_string(), name.to_owned()];
        let expected = [row(packet + user, message, "slot"), row(user, packet, "packet"), row(0, user, "user")];
        assert_eq!(rows.iter().map(|row| row.map(str::to_owned)).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn bytes_on_the_wire() {
        let layout = ImmediateLayout::default();
        assert_eq!(layout.bits(), (10, 18, 4));
        // Slot 3, packet 5; fragment 5 of 0x87654321 is 6.
        assert_eq!(layout.encode(3, 5, 0x8765_4321), 3 << 22 | 5 << 4 | 6);
        assert_eq!(layout.decode(3 << 22 | 5 << 4 | 6), Fields { slot: 3, packet: 5, user: 6 });
        assert_eq!(layout.encode(1023, (1 << 18) - 1, u32::MAX), u32::MAX);
    }

    #[test]
    fn divisions_that_do_not_work() {
        assert_eq!(ImmediateLayout::new(8, 22, 2).map(ImmediateLayout::bits), Ok((8, 22, 2)));
        assert_eq!(ImmediateLayout::new(10, 18, 5), Err(LayoutError::Sum { message: 10, packet: 18, user: 5 }));
        assert_eq!(ImmediateLayout::new(0, 28, 4), Err(LayoutError::Message(0)));
        assert_eq!(ImmediateLayout::new(17, 11, 4), Err(LayoutError::Message(17)));
        assert_eq!(ImmediateLayout::new(10, 19, 3), Err(LayoutError::User(3)));
    }

    fn layouts() -> impl Strategy<Value = ImmediateLayout> {
        (1..=16_u8, prop::sample::select(vec![0_u8, 1, 2, 4, 8, 16]))
            .prop_filter("room for packets", |(message, user)| message + user < 32)
            .prop_map(|(message, user)| ImmediateLayout::new(message, 32 - message - user, user).expect("it sums up"))
    }

    proptest! {
        #[test]
        fn fields_survive(layout in layouts(), slot: u32, packet: u32, user: u32) {
            let (slot, packet) = (slot % layout.slot_count(), packet % layout.packet_count_max());
            let fields = layout.decode(layout.encode(slot, packet, user));
            prop_assert_eq!((fields.slot, fields.packet), (slot, packet));
        }
    }
}
