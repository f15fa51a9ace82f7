//! The bottleneck: a first-in-first-out queue in front of a wire of fixed rate.
//!
//! No packet is stored. All that matters about the queue is when it will be empty, so it is held as that instant:
//! what is left until then, times the rate, is the backlog. Limits in bytes become limits in time when the profile
//! is set, and each packet costs one division. Instants are exact: whole nanoseconds, and a remainder counted in
//! 1/rate nanoseconds, so that a million packets of 81.92 ns take 81.92 ms.

use longhaul_time::Instant;
use rand_chacha::ChaCha8Rng;

use crate::chance::Chance;
use crate::profile::{EcnMarking, Profile};

/// A span at a rate: nanoseconds, and a remainder in 1/rate nanoseconds. Ordered as the exact spans are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    nanos: u64,
    remainder: u64,
}

const EMPTY: Span = Span { nanos: 0, remainder: 0 };

/// The largest packet: its bits times 10^9 still fit 64 bits.
const PACKET_BYTES_MAX: u64 = 1 << 30;

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    rate_bits_per_second: u64,
    /// When the wire falls idle: `idle_at_nanos` plus the remainder.
    idle_at_nanos: u64,
    idle_at_remainder: u64,
    limit: Span,
    overhead_bytes: u64,
    marking: Marking,
}

#[derive(Clone, Copy, Debug)]
enum Marking {
    Off,
    Step { threshold: Span },
    Ramp { minimum: Span, maximum: Span, probability_max: f64 },
}

/// A packet that was let in.
pub(crate) struct Departure {
    /// When its last bit leaves, rounded up.
    pub(crate) at: Instant,
    pub(crate) ecn_mark: bool,
}

impl Queue {
    pub(crate) fn new(rate_bits_per_second: u64, profile: &Profile) -> Self {
        let span = |bytes| Span::of_bytes(bytes, rate_bits_per_second);
        Queue {
            rate_bits_per_second,
            idle_at_nanos: 0,
            idle_at_remainder: 0,
            limit: span(profile.queue_limit_bytes),
            overhead_bytes: u64::from(profile.overhead_bytes_per_packet),
            marking: match profile.ecn {
                EcnMarking::Off => Marking::Off,
                EcnMarking::Step { threshold_bytes } => Marking::Step { threshold: span(threshold_bytes) },
                EcnMarking::Ramp { minimum_bytes, maximum_bytes, probability_max } => {
                    Marking::Ramp { minimum: span(minimum_bytes), maximum: span(maximum_bytes), probability_max }
                }
            },
        }
    }

    /// Lets a packet in, or says `None` when there is no room.
    #[inline]
    pub(crate) fn admit(&mut self, packet_bytes: u32, now: Instant, random: &mut ChaCha8Rng) -> Option<Departure> {
        let now_nanos = now.as_nanos();
        let found = self.backlog_at(now_nanos);
        let bytes = (u64::from(packet_bytes) + self.overhead_bytes).min(PACKET_BYTES_MAX);
        // At most 2^33 × 10^9 + 10^15: below 2^63.
        let work = bytes * 8 * 1_000_000_000 + found.remainder;
        let left = Span {
            nanos: found.nanos.saturating_add(work / self.rate_bits_per_second),
            remainder: work % self.rate_bits_per_second,
        };
        if found != EMPTY && left > self.limit {
            return None;
        }
        let ecn_mark = self.marks(found, random);
        self.idle_at_nanos = now_nanos.saturating_add(left.nanos);
        self.idle_at_remainder = left.remainder;
        Some(Departure { at: self.idle_at(), ecn_mark })
    }

    #[inline]
    fn marks(&self, found: Span, random: &mut ChaCha8Rng) -> bool {
        match self.marking {
            Marking::Off => false,
            Marking::Step { threshold } => found > threshold,
            Marking::Ramp { minimum, maximum, probability_max } => {
                if found <= minimum {
                    return false;
                }
                if found > maximum {
                    return true;
                }
                let share = (found.nanos - minimum.nanos) as f64 / (maximum.nanos - minimum.nanos).max(1) as f64;
                Chance::new(share.min(1.0) * probability_max).draw(random)
            }
        }
    }

    /// When the wire falls idle, rounded up.
    #[inline]
    pub(crate) fn idle_at(&self) -> Instant {
        Instant::from_nanos(self.idle_at_nanos).saturating_add_nanos(u64::from(self.idle_at_remainder != 0))
    }

    /// Bytes not yet sent, rounded up.
    pub(crate) fn backlog_bytes(&self, now: Instant) -> u64 {
        let backlog = self.backlog_at(now.as_nanos());
        let bits_times_billion =
            u128::from(backlog.nanos) * u128::from(self.rate_bits_per_second) + u128::from(backlog.remainder);
        u64::try_from(bits_times_billion.div_ceil(8_000_000_000)).unwrap_or(u64::MAX)
    }

    /// Takes over what another queue has before it, when a link's profile changes: what is scheduled stays so.
    pub(crate) fn continue_from(&mut self, before: &Queue) {
        self.idle_at_nanos = before.idle_at().as_nanos();
        self.idle_at_remainder = 0;
    }

    #[inline]
    fn backlog_at(&self, now_nanos: u64) -> Span {
        if now_nanos > self.idle_at_nanos {
            return EMPTY;
        }
        Span { nanos: self.idle_at_nanos - now_nanos, remainder: self.idle_at_remainder }
    }
}

impl Span {
    fn of_bytes(bytes: u64, rate_bits_per_second: u64) -> Self {
        let rate = u128::from(rate_bits_per_second);
        let work = u128::from(bytes) * 8_000_000_000;
        match u64::try_from(work / rate) {
            Ok(nanos) => Span { nanos, remainder: (work % rate) as u64 },
            Err(_) => Span { nanos: u64::MAX, remainder: 0 },
        }
    }
}
