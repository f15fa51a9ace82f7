//! How a program's message is cut into messages of `sdr`.
//!
//! The bits of a packet's immediate limit how many packets a message of `sdr` has, and memory for parity is limited
//! too, so a message of `sdr` has a maximum length. A program's message that is longer is cut: all parts but the last
//! have that length. Both ends use the same one, because they exchanged their maximum when they connected.
//!
//! # Which numbers a long message takes
//!
//! Messages of `sdr` find their receives by order alone, so both ends must know how many of them a program's message takes, before
//! anything else can have the number after it. A receiver does not: a message may be shorter than its receive. So:
//!
//! ```text
//!   sender                                        receiver
//!   part 0, and the whole length (offer) ───────▶  has posted part 0 only, and nothing after it
//!                                       ◀───────  accepted; posts the other parts, then the receives that follow
//!   the other parts                     ───────▶
//!                                       ◀───────  done, for each part
//! ```
//!
//! - Of a receive that is longer than a part, only the first part is posted until the length is known from the offer, or
//!   from a message in one part.
//! - A sender uses no number after a first part's until it knows whether the message was accepted: then the others are its parts'. One that is
//!   refused (too long, another scheme) takes one part.
//! - A message that fails after it was accepted still takes all its numbers, at both ends: the rest are used for nothing.
//! - A sender that gives a message up *withdraws* it until it hears what the receiver made of it.
//!
//! All of that is state that is repeated until it is known. Messages and receives of up to one part wait for nothing.
//! For longer ones the answer travels while the first part is being sent, so no time is lost as long as a part takes a
//! round trip to send (the bandwidth-delay product).

/// A message in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    whole_bytes: u64,
    part_bytes: u64,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) cut: Cut,
    pub(crate) index: u64,
}

impl Cut {
    /// `part_bytes` must not be 0.
    pub(crate) fn new(whole_bytes: u64, part_bytes: u64) -> Self {
        Cut { whole_bytes, part_bytes }
    }

    pub(crate) fn whole_bytes(&self) -> u64 {
        self.whole_bytes
    }

    pub(crate) fn part_bytes(&self) -> u64 {
        self.part_bytes
    }

    /// Parts; a message of nothing has one.
    pub(crate) fn count(&self) -> u64 {
        self.whole_bytes.div_ceil(self.part_bytes).max(1)
    }

    pub(crate) fn part(&self, index: u64) -> Part {
        Part { cut: *self, index }
    }
}

impl Part {
    /// Where it begins in its message.
    pub(crate) fn offset(&self) -> u64 {
        self.index * self.cut.part_bytes
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.cut.part_bytes.min(self.cut.whole_bytes - self.offset())
    }

    /// Where it lies in its message.
    pub(crate) fn range(&self) -> std::ops::Range<u64> {
        self.offset()..self.offset() + self.bytes()
    }
}

/// The largest number up to `most` for which `fits` holds, which does for small ones if at all.
pub(crate) fn longest(most: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        match fits(middle) {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_side_by_side_and_are_the_whole() {
        for whole in [0, 1, 9, 10, 11, 19, 20, 21, 100] {
            let cut = Cut::new(whole, 10);
            let mut end = 0;
            for index in 0..cut.count() {
                let part = cut.part(index);
                assert_eq!(part.offset(), end);
                assert!(part.bytes() == 10 || index + 1 == cut.count());
                end += part.bytes();
            }
            assert_eq!(end, whole);
        }
        let counts = [0, 1, 10, 11, 20, 21].map(|whole| Cut::new(whole, 10).count());
        assert_eq!(counts, [1, 1, 1, 2, 2, 3]);
    }

    #[test]
    fn the_longest_that_fits() {
        assert_eq!(longest(100, |_| true), 100);
        assert_eq!(longest(100, |bytes| bytes <= 37), 37);
        assert_eq!(longest(100, |bytes| bytes == 0), 0);
    }
}
