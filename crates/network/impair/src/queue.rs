//! The bottleneck: a first-in-first-out queue in front of a wire of fixed rate.
//!
//! No packet is stored. All that matters about the queue is when it will be empty, so it is held as that instant:
//! what is left until then, times the rate, is the backlog. Limits in bytes become limits in time when the profile
//! is set, and each packet costs one division. Instants are exact: whole nanoseconds, and a remainder counted in
//! 1/rate nanoseconds, so that a million packets of 81.92 ns take 81.92 ms. A sender knows whole nanoseconds only: if
//! it waits for the wire to fall idle, it comes a fraction late. The packet is then sent as if it had come in time, or
//! a million packets of 2.04 ns would take 3 ms.

use longhaul_time::Instant;

use crate::chance::Chance;
use crate::profile::{EcnMarking, Profile};
use crate::randomness::Randomness;

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

#[derive(Clone, Debug)]
enum Marking {
    Off,
    Step {
        threshold: Span,
    },
    /// Apart, so that links without it stay small.
    Ramp(Box<Ramp>),
}

#[derive(Clone, Copy, Debug)]
struct Ramp {
    minimum: Span,
    maximum: Span,
    probability_max: f64,
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
                    let (minimum, maximum) = (span(minimum_bytes), span(maximum_bytes));
                    Marking::Ramp(Box::new(Ramp { minimum, maximum, probability_max }))
                }
            },
        }
    }

    /// Lets a packet in, or says `None` when there is no room.
    #[inline]
    pub(crate) fn admit(&mut self, packet_bytes: u32, now: Instant, random: &mut Randomness) -> Option<Departure> {
        let now_nanos = now.as_nanos();
        let found = self.backlog_at(now_nanos);
        let (start_nanos, ahead) = if self.fell_idle_within_nanosecond_before(now_nanos) {
            (self.idle_at_nanos, Span { nanos: 0, remainder: self.idle_at_remainder })
        } else {
            (now_nanos, found)
        };
        let bytes = (u64::from(packet_bytes) + self.overhead_bytes).min(PACKET_BYTES_MAX);
        // At most 2^33 × 10^9 + 10^15: below 2^63.
        let work = bytes * 8 * 1_000_000_000 + ahead.remainder;
        let left = Span {
            nanos: ahead.nanos.saturating_add(work / self.rate_bits_per_second),
            remainder: work % self.rate_bits_per_second,
        };
        if found != EMPTY && left > self.limit {
            return None;
        }
        let ecn_mark = self.marks(found, random);
        self.idle_at_nanos = start_nanos.saturating_add(left.nanos);
        self.idle_at_remainder = left.remainder;
        Some(Departure { at: self.idle_at(), ecn_mark })
    }

    #[inline]
    fn marks(&self, found: Span, random: &mut Randomness) -> bool {
        match &self.marking {
            Marking::Off => false,
            Marking::Step { threshold } => found > *threshold,
            Marking::Ramp(ramp) => {
                let Ramp { minimum, maximum, probability_max } = **ramp;
                if found <= minimum {
                    return false;
                }
                if found > maximum {
                    return true;
                }
                let rate = self.rate_bits_per_second;
                let share = found.nanos_above(minimum, rate) / maximum.nanos_above(minimum, rate);
                Chance::new(share.min(1.0) * probability_max).draw(random.stream())
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
        let work = self.backlog_at(now.as_nanos()).work(self.rate_bits_per_second);
        u64::try_from(work.div_ceil(8_000_000_000)).unwrap_or(u64::MAX)
    }

    /// Takes over what another queue has before it, when a link's profile changes: as many bytes, from now on sent at
    /// the new rate. Kept as time, what a slow link had queued would overfill the queue of a fast one.
    pub(crate) fn continue_from(&mut self, before: &Queue, now: Instant) {
        let backlog = before.backlog_at(now.as_nanos());
        if backlog == EMPTY {
            self.idle_at_nanos = before.idle_at().as_nanos();
            self.idle_at_remainder = 0;
            return;
        }
        let left = Span::of_work(backlog.work(before.rate_bits_per_second), self.rate_bits_per_second);
        self.idle_at_nanos = now.as_nanos().saturating_add(left.nanos);
        self.idle_at_remainder = left.remainder;
    }

    /// Whether the wire was busy until after the last whole nanosecond, but is no more.
    #[inline]
    fn fell_idle_within_nanosecond_before(&self, now_nanos: u64) -> bool {
        self.idle_at_remainder != 0 && now_nanos.checked_sub(1) == Some(self.idle_at_nanos)
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
        Self::of_work(u128::from(bytes) * 8_000_000_000, rate_bits_per_second)
    }

    /// The time that this many 10^-9 bits take.
    fn of_work(work: u128, rate_bits_per_second: u64) -> Self {
        let rate = u128::from(rate_bits_per_second);
        match u64::try_from(work / rate) {
            Ok(nanos) => Span { nanos, remainder: (work % rate) as u64 },
            Err(_) => Span { nanos: u64::MAX, remainder: 0 },
        }
    }

    /// What is sent meanwhile, in 10^-9 bits: a nanosecond sends `rate` of them.
    fn work(self, rate_bits_per_second: u64) -> u128 {
        u128::from(self.nanos) * u128::from(rate_bits_per_second) + u128::from(self.remainder)
    }

    /// How much longer it is than a span that is no longer, in nanoseconds.
    fn nanos_above(self, shorter: Span, rate_bits_per_second: u64) -> f64 {
        let remainder = self.remainder as f64 - shorter.remainder as f64;
        (self.nanos - shorter.nanos) as f64 + remainder / rate_bits_per_second as f64
    }
}
