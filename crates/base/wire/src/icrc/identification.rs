//! Checking an ICRC without knowing the identification.
//!
//! Over IPv4 the ICRC covers the identification of the IP header, and a UDP socket does not show it to a receiver. Three
//! ways to check a packet all the same:
//!
//! - **Solve.** CRC is linear: each of the 16 bits changes the result by a known pattern, and the 16 patterns are independent.
//!   So there is at most one identification that makes a received ICRC right, and one multiplication finds it, or finds that
//!   there is none ([`solve_identification`]). What remains is a check of 32 − 16 = 16 bits.
//! - **Predict.** Senders count. If the solved identification is near the last one of the same sender, the 16 bits have not been
//!   free: only a few values were acceptable ([`IdentificationTracker`]).
//! - **Know.** A packet socket shows the field, IPv6 does not have it, and softnics send what their receiver expects.
//!
//! # Strength
//!
//! By *strength* of n bits we mean: a packet whose covered bytes and ICRC are random noise passes with probability 2^-n.
//!
//! | [`Verdict`] | acceptable identifications | strength |
//! |---|---|---|
//! | `Exact` | 1: known | 32 bits, and all that CRC-32 guarantees |
//! | `Exact` from a tracker | 2: exactly the next, or 0 | 31 bits |
//! | `Predicted` | 1024: 128 before to 895 after the last | 22 bits |
//! | `Predicted` of a sender that was never above 128 | 129 | 25 bits |
//! | `Predicted` while a jump is pending | 2048: two such windows | 21 bits |
//! | `Solved` | all 65,536 | 16 bits |
//!
//! What is *guaranteed*, apart from probability, shrinks as well:
//!
//! - `Exact` keeps what every CRC-32 promises: all errors of one, two or three bits (in packets up to 9000 bytes), and all
//!   bursts of up to 32 bits, are found.
//! - `Predicted` and `Solved` miss an error that looks like a change of the identification, and how an error looks depends only
//!   on its distance from that field. By exhaustive search (`tests/icrc_strength.rs`), in packets up to 6 KiB: every error of
//!   one bit and every burst of up to three bits is found, and all but 4 of the 196,000 bursts of four bits. Of
//!   longer bursts and of pairs of bits, about one in 2^16 is missed.

use super::{IcrcScope, compute, compute_parts, polynomial, split};
use crate::{ipv4, udp};

/// Bytes of the IP header that follow the identification.
const IP_BYTES_AFTER_IDENTIFICATION: usize = ipv4::HEADER_BYTES - 6;

/// The identification with which a datagram's ICRC would be right; `None` when there is none, and over IPv6, which has no
/// such field. The identification in `scope` does not matter.
///
/// It finds an identification for one in 2^16 corrupted packets: see the table above. Costs the CRC plus some 50 ns.
#[inline]
pub fn solve_identification(scope: &IcrcScope, datagram_with_icrc: &[u8]) -> Option<u16> {
    let assumed = scope.identification()?;
    let (datagram, icrc) = split(datagram_with_icrc)?;
    Some(assumed ^ solve_change(compute(scope, datagram) ^ icrc, datagram.len())?)
}

/// Which bits of the identification have to change for the CRC to change by `crc_change`.
#[inline]
fn solve_change(crc_change: u32, datagram_bytes: usize) -> Option<u16> {
    let bytes_after = IP_BYTES_AFTER_IDENTIFICATION + udp::HEADER_BYTES + datagram_bytes;
    // The field's own two bytes were the first to be shifted through. What is left is the two bytes where they entered the
    // register, the first in the low eight bits and nothing in the upper half.
    let entered = polynomial::undo_bytes(crc_change, bytes_after + size_of::<u16>())?;
    u16::try_from(entered).ok().map(u16::swap_bytes)
}

/// What a check found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Right with the one identification that it should have, or without one over IPv6.
    Exact,
    /// Right with an identification close to the sender's last one.
    Predicted,
    /// Right with some identification that nothing is known about.
    Solved,
    /// Wrong whatever the identification is.
    Bad,
}

/// Follows the identifications of one sender.
///
/// One tracker for each pair of addresses, not for each queue pair: Linux counts for a destination, whatever the port. A sender
/// that starts again from 0 in each batch of up to 128 packets, as softnics do, is followed too: 0 is always expected.
///
/// A first packet other than 0, or one after a jump, is `Solved`. Whether to take it is the caller's decision
/// ([`IdentificationTracker::expects_jumps`]; the sender will repeat what is dropped, and the repeated packet will be near the
/// dropped one's identification, hence `Predicted`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IdentificationTracker {
    /// The identification of the last packet that was `Exact` or `Predicted`, or of the very first.
    last: Option<u16>,
    /// The identification of a `Solved` packet since: where the sender may have jumped to. A corrupted packet that was solved
    /// by accident ends up here, and so does not spoil `last`.
    jumped_to: Option<u16>,
    /// Has been further from 0 than a softnic ever is.
    is_counting: bool,
}

impl IdentificationTracker {
    /// How far behind the last identification one may be: packets that were overtaken, batches that start again.
    pub const BEHIND_MAX: u16 = 128;
    /// How far ahead: packets that were lost or went to another queue pair, and Linux's jump of up to one for each timer tick
    /// (1 to 4 ms) of silence: pauses of about a second.
    pub const AHEAD_MAX: u16 = 895;

    /// A tracker that has seen nothing.
    pub const fn new() -> IdentificationTracker {
        IdentificationTracker { last: None, jumped_to: None, is_counting: false }
    }

    /// Whether this sender may jump: nothing has been heard of it yet, or it counts on from packet to packet, as kernels
    /// do, and jumps when it was idle. A softnic never does, so a `Solved` packet in its name is somebody else's, or damaged.
    pub const fn expects_jumps(&self) -> bool {
        self.last.is_none() || self.is_counting
    }

    /// Checks a datagram and learns from it. The identification in `scope` is not used.
    ///
    /// As long as packets come in order this costs a CRC and nothing else.
    #[inline]
    pub fn check(&mut self, scope: &IcrcScope, datagram_with_icrc: &[u8]) -> Verdict {
        match split(datagram_with_icrc) {
            Some((datagram, icrc)) => self.check_parts(scope, datagram, &[], icrc, false),
            None => Verdict::Bad,
        }
    }

    /// The same for a datagram whose payload lies elsewhere: the headers, what follows them, and the ICRC that came. That it
    /// begins a batch, and so should be a softnic's 0, only saves time.
    #[inline]
    pub fn check_parts(
        &mut self,
        scope: &IcrcScope,
        headers: &[u8],
        rest: &[&[u8]],
        icrc: u32,
        begins_batch: bool,
    ) -> Verdict {
        let assumed = match self.last {
            Some(last) if self.is_counting || !begins_batch => last.wrapping_add(1),
            _ => 0,
        };
        let crc_change = compute_parts(&scope.with_identification(assumed), headers, rest) ^ icrc;
        if crc_change == 0 {
            if scope.identification().is_some() {
                self.last = Some(assumed);
                self.is_counting |= assumed > Self::BEHIND_MAX;
            }
            return Verdict::Exact;
        }
        let datagram_bytes = headers.len() + rest.iter().map(|part| part.len()).sum::<usize>();
        match scope.identification().and(solve_change(crc_change, datagram_bytes)) {
            Some(identification_change) => self.place(assumed ^ identification_change),
            None => Verdict::Bad,
        }
    }

    /// Classifies an identification that makes the ICRC right.
    fn place(&mut self, identification: u16) -> Verdict {
        // Somebody who has never counted beyond the batches of a softnic is believed nothing else.
        let is_usual = self.is_counting || identification <= Self::BEHIND_MAX;
        let is_near = is_usual && is_near(self.last, identification) || is_near(self.jumped_to, identification);
        if identification == 0 || is_near {
            self.last = Some(identification);
            self.jumped_to = None;
            // Kernels come by 0 once in 65,536 packets, softnics all the time.
            self.is_counting = identification != 0 && (self.is_counting || identification > Self::BEHIND_MAX);
            if identification == 0 { Verdict::Exact } else { Verdict::Predicted }
        } else {
            match self.last {
                None => {
                    self.last = Some(identification);
                    self.is_counting |= identification > Self::BEHIND_MAX;
                }
                Some(_) => self.jumped_to = Some(identification),
            }
            Verdict::Solved
        }
    }
}

fn is_near(last: Option<u16>, identification: u16) -> bool {
    const WINDOW: u16 = IdentificationTracker::BEHIND_MAX + IdentificationTracker::AHEAD_MAX;
    last.is_some_and(|last| identification.wrapping_sub(last).wrapping_add(IdentificationTracker::BEHIND_MAX) <= WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::icrc;
    use core::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

    fn scope() -> IcrcScope {
        let end = |last| SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, last), 4791);
        IcrcScope::v4(end(1), end(2))
    }

    fn datagram(identification: u16) -> [u8; 64] {
        let mut datagram = [0x5a; 64];
        icrc::write(&scope().with_identification(identification), &mut datagram);
        datagram
    }

    #[test]
    fn every_identification_is_solved() {
        for identification in 0..=u16::MAX {
            assert_eq!(solve_identification(&scope(), &datagram(identification)), Some(identification));
        }
        let assumed = scope().with_identification(0x1234);
        assert_eq!(solve_identification(&assumed, &datagram(7)), Some(7), "what is assumed does not matter");
    }

    #[test]
    fn lengths_from_nothing_to_the_longest() {
        let mut buffer = [0x5a; 65_507];
        for length in [4, 5, 6, 7, 16, 20, 255, 256, 257, 4140, 65_507] {
            icrc::write(&scope().with_identification(0xabcd), &mut buffer[..length]);
            assert_eq!(solve_identification(&scope(), &buffer[..length]), Some(0xabcd), "{length}");
        }
        assert_eq!(solve_identification(&scope(), &buffer[..3]), None);
    }

    #[test]
    fn a_counting_sender_is_followed_exactly() {
        let mut tracker = IdentificationTracker::new();
        assert_eq!(tracker.check(&scope(), &datagram(0xfffe)), Verdict::Solved);
        assert_eq!(tracker.check(&scope(), &datagram(0xffff)), Verdict::Exact);
        assert_eq!(tracker.check(&scope(), &datagram(0x0000)), Verdict::Exact);
        assert_eq!(tracker.check(&scope(), &datagram(0x0003)), Verdict::Predicted, "after a loss");
        assert_eq!(tracker.check(&scope(), &datagram(0x0002)), Verdict::Predicted, "overtaken");
        assert_eq!(tracker.check(&scope(), &datagram(0x0003)), Verdict::Exact);
    }

    #[test]
    fn the_window_ends_where_it_says() {
        for (identification, verdict) in [
            (1000 - IdentificationTracker::BEHIND_MAX - 1, Verdict::Solved),
            (1000 - IdentificationTracker::BEHIND_MAX, Verdict::Predicted),
            (1000, Verdict::Predicted),
            (1001, Verdict::Exact),
            (1000 + IdentificationTracker::AHEAD_MAX, Verdict::Predicted),
            (1000 + IdentificationTracker::AHEAD_MAX + 1, Verdict::Solved),
        ] {
            let mut tracker = IdentificationTracker::new();
            tracker.check(&scope(), &datagram(1000));
            assert_eq!(tracker.check(&scope(), &datagram(identification)), verdict, "{identification}");
        }
    }

    #[test]
    fn a_jump_is_followed_and_an_accident_is_not() {
        let mut tracker = IdentificationTracker::new();
        tracker.check(&scope(), &datagram(100));
        assert_eq!(tracker.check(&scope(), &datagram(30_000)), Verdict::Solved);
        assert_eq!(tracker.check(&scope(), &datagram(101)), Verdict::Exact, "that was an accident");
        assert_eq!(tracker.check(&scope(), &datagram(40_000)), Verdict::Solved);
        assert_eq!(tracker.check(&scope(), &datagram(40_001)), Verdict::Predicted, "that was a jump");
        assert_eq!(tracker.check(&scope(), &datagram(40_002)), Verdict::Exact);
    }

    #[test]
    fn batches_that_start_again_from_zero_are_followed() {
        let mut tracker = IdentificationTracker::new();
        assert!(tracker.expects_jumps());
        for _ in 0..3 {
            for identification in 0..128 {
                assert_eq!(tracker.check(&scope(), &datagram(identification)), Verdict::Exact);
            }
        }
        assert!(!tracker.expects_jumps(), "a softnic");
        assert_eq!(tracker.check(&scope(), &datagram(30_000)), Verdict::Solved);
        assert!(!tracker.expects_jumps(), "one accident makes no counting sender");
        assert_eq!(tracker.check(&scope(), &datagram(500)), Verdict::Solved, "near, and all the same not a softnic's");
        assert_eq!(tracker.check(&scope(), &datagram(100)), Verdict::Predicted);
        for forged in [30_000, 30_001] {
            tracker.check(&scope(), &datagram(forged));
        }
        assert!(tracker.expects_jumps(), "two in a row look like one");
        tracker.check(&scope(), &datagram(0));
        assert!(!tracker.expects_jumps(), "but the softnic shows that it is one");
        assert_eq!(tracker.check(&scope(), &datagram(0)), Verdict::Exact);
    }

    #[test]
    fn ipv6_has_nothing_to_solve() {
        let end = |last| SocketAddrV6::new(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last), 4791, 0, 0);
        let scope = IcrcScope::v6(end(1), end(2));
        let mut datagram = [0x5a; 64];
        icrc::write(&scope, &mut datagram);
        let mut tracker = IdentificationTracker::new();
        assert_eq!(tracker.check(&scope, &datagram), Verdict::Exact);
        assert_eq!(solve_identification(&scope, &datagram), None);
        datagram[20] ^= 1;
        assert_eq!(tracker.check(&scope, &datagram), Verdict::Bad);
        assert_eq!(tracker, IdentificationTracker::new());
    }
}
