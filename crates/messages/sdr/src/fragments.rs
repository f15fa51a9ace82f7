//! The user's immediate, put together from the fragments that packets carry.

use longhaul_wire::immediate_layout::ImmediateLayout;

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

    fn layouts() -> impl Strategy<Value = ImmediateLayout> {
        (1..=16_u8, prop::sample::select(vec![0_u8, 1, 2, 4, 8, 16]))
            .prop_filter("room for packets", |(message, user)| message + user < 32)
            .prop_map(|(message, user)| ImmediateLayout::new(message, 32 - message - user, user).expect("it sums up"))
    }

    proptest! {
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
