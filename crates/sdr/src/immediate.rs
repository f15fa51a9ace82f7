//! The 32 bits of immediate that every packet carries, and how they are divided.
//!
//! ```text
//!   31            22 21                       4 3     0
//!  ┌────────────────┬──────────────────────────┬───────┐
//!  │  slot          │  packet                  │ user  │   10 + 18 + 4 bits unless told otherwise
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

use thiserror::Error;

/// How the 32 bits are divided. Both ends must agree; the numbers are in the connection's info.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ImmediateLayout {
    message_bits: u8,
    packet_bits: u8,
}

/// A division that does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// Not 32 bits.
    #[error("expected fields that have 32 bits together, came {message} + {packet} + {user}")]
    Sum {
        /// Bits for the slot.
        message: u8,
        /// Bits for the packet.
        packet: u8,
        /// Bits for the user.
        user: u8,
    },
    /// No room for a slot, or a table that would be too large.
    #[error("expected 1 to 16 bits for the message, came {0}")]
    Message(u8),
    /// The user's bits must cut 32 bits evenly.
    #[error("expected 0, 1, 2, 4, 8 or 16 bits for the user, came {0}")]
    User(u8),
}

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
    /// The paper's: 1,024 messages, 1 GiB at an MTU of 4 KiB, 4 bits of the user's.
    fn default() -> Self {
        ImmediateLayout { message_bits: 10, packet_bits: 18 }
    }
}

impl ImmediateLayout {
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

    const fn user_bits(self) -> u8 {
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

    /// The number of the write that carries only a fragment of the user's immediate, into a receive of so many packets; `None` when
    /// there is no such number.
    pub(crate) const fn fragment_packet(self, fragment: u32, packet_count: u32) -> Option<u32> {
        let count = self.fragment_count();
        if fragment >= count || packet_count as u64 + count as u64 > self.packet_count_max() as u64 {
            return None;
        }
        Some(packet_count + (fragment + count - packet_count % count) % count)
    }

    /// Whether a write with this packet number carries only a fragment, in a receive of so many packets.
    #[inline]
    pub(crate) const fn is_fragment_only(self, packet: u32, packet_count: u32) -> bool {
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

/// A user's immediate that is being put together: the value in the low half, a bit for each fragment that is there in the high.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fragments(pub(crate) u64);

impl Fragments {
    /// What a packet adds.
    #[inline]
    pub(crate) const fn of(layout: ImmediateLayout, packet: u32, user: u32) -> Fragments {
        match layout.fragment_count() {
            0 => Fragments(0),
            count => {
                let index = packet % count;
                Fragments((user as u64) << (index * layout.user_bits() as u32) | 1 << (32 + index))
            }
        }
    }

    /// Whether all that the other has is here.
    #[inline]
    pub(crate) const fn contains(self, other: Fragments) -> bool {
        self.0 & other.0 == other.0
    }

    /// The immediate, once all fragments are there.
    pub(crate) const fn value(self, layout: ImmediateLayout) -> Option<u32> {
        let count = layout.fragment_count();
        if count == 0 || self.0 >> 32 != (1 << count) - 1 {
            return None;
        }
        Some(self.0 as u32)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_document_is_true() {
        let (message, packet, user) = ImmediateLayout::default().bits();
        let rows: Vec<_> = longhaul_wire::document::table::<3>("The immediate of a data packet", 0).collect();
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

        /// Writes that only carry a fragment say which, and are told from all packets of the message.
        #[test]
        fn fragments_in_writes_of_their_own(layout in layouts(), user: u32, packet_count in 0..1000_u32) {
            let (count, room) = (layout.fragment_count(), layout.packet_count_max());
            let mut fragments = Fragments::default();
            for fragment in 0..count {
                let Some(packet) = layout.fragment_packet(fragment, packet_count) else {
                    prop_assert!(packet_count + count > room);
                    return Ok(());
                };
                prop_assert!(packet < room && layout.is_fragment_only(packet, packet_count));
                fragments.0 |= Fragments::of(layout, packet, layout.decode(layout.encode(0, packet, user)).user).0;
            }
            prop_assert_eq!(layout.fragment_packet(count, packet_count), None);
            prop_assert!(!layout.is_fragment_only(packet_count + count, packet_count));
            prop_assert_eq!(fragments.value(layout), (count > 0).then_some(user));
        }

        /// Any packets that have all fragments among them give the immediate; none less does.
        #[test]
        fn fragments_make_the_immediate(layout in layouts(), user: u32, first in 0..100_u32, repeated: bool) {
            let count = layout.fragment_count();
            prop_assume!(count > 0 && first + count <= layout.packet_count_max());
            let mut fragments = Fragments::default();
            for packet in first..first + count {
                prop_assert_eq!(fragments.value(layout), None);
                for _ in 0..1 + u32::from(repeated) {
                    let fields = layout.decode(layout.encode(0, packet, user));
                    fragments.0 |= Fragments::of(layout, packet, fields.user).0;
                }
            }
            prop_assert_eq!(fragments.value(layout), Some(user));
        }
    }
}
