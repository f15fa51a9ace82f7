//! Packet sequence numbers.
//!
//! ```text
//!            0 ──► … ──► 2^23 - 1 ──► 2^23 ──► … ──► 2^24 - 1 ──┐
//!            ▲                                                  │
//!            └──────────────────────────────────────────────────┘
//! ```
//!
//! A PSN has 24 bits and wraps (IBTA 9.7.1). On a circle nothing is first, so [`Psn`] has no order: a comparison that is right
//! for the first sixteen million packets and wrong for the next one must not compile. Instead, there is the
//! distance between two numbers that are less than half the circle apart, which a window guarantees.

use core::fmt;

/// A 24-bit serial number, counting the packets of one direction of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// How many numbers there are; one more than the largest.
    pub const COUNT: u32 = 1 << 24;
    const MASK: u32 = Psn::COUNT - 1;

    /// The number with the low 24 bits of `value`.
    #[inline]
    pub const fn new(value: u32) -> Psn {
        Psn(value & Psn::MASK)
    }

    /// The number, in 0 .. 2^24.
    #[inline]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The number `count` packets later.
    #[inline]
    #[must_use]
    pub const fn add(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_add(count))
    }

    /// The number `count` packets earlier.
    #[inline]
    #[must_use]
    pub const fn back(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(count))
    }

    /// The number of the packet after this one.
    #[inline]
    #[must_use]
    pub const fn next(self) -> Psn {
        self.add(1)
    }

    /// How many packets `self` is after `earlier`, in -2^23 .. 2^23; negative when it is before it.
    ///
    /// Numbers exactly half the circle apart are both "before" each other: -2^23 either way.
    #[inline]
    pub const fn distance_from(self, earlier: Psn) -> i32 {
        // Bit 23 of the difference becomes the sign.
        (self.0.wrapping_sub(earlier.0) << 8).cast_signed() >> 8
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Psn({})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_wrap_at_24_bits() {
        assert_eq!(Psn::new(0xff00_0001).value(), 1);
        assert_eq!(Psn::new(0xff_ffff).next(), Psn::new(0));
        assert_eq!(Psn::new(5).add(u32::MAX), Psn::new(4));
        assert_eq!(Psn::new(0).back(1), Psn::new(0xff_ffff));
    }

    #[test]
    fn distance_is_signed_and_crosses_the_wrap() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.next().distance_from(last), 1);
        assert_eq!(last.distance_from(last.next()), -1);
        assert_eq!(last.distance_from(last), 0);
        assert_eq!(Psn::new(0x7f_ffff).distance_from(Psn::new(0)), 0x7f_ffff);
        assert_eq!(Psn::new(0x80_0000).distance_from(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(0).distance_from(Psn::new(0x80_0000)), -0x80_0000);
    }
}
