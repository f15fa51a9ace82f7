//! One direction of one link, at work.

use std::sync::Arc;

use longhaul_time::Instant;
use rand_chacha::ChaCha8Rng;
use rand_core::Rng;

use crate::chance::{Chance, up_to};
use crate::corruption::Corruption;
use crate::loss::LossState;
use crate::profile::{Profile, ProfileError};
use crate::queue::Queue;
use crate::randomness::Randomness;

/// One direction of one link: packets in, schedule out.
///
/// Call [`handle`](Impairment::handle) once for each packet, with instants that do not go back, and carry out the
/// verdict. There is nothing to poll: all that will happen to a packet is decided when it enters.
#[derive(Clone, Debug)]
pub struct Impairment {
    /// `None` on an infinitely fast link.
    queue: Option<Queue>,
    propagation_delay_nanos: u64,
    counters: Counters,
    /// The latest delivery so far, of packets held back as if they had not been: what order-keeping jitter may not
    /// undercut.
    latest_at: Instant,
    /// What comes after the queue, if that does more than delay; if not, `handle` is done early. Apart, so that ten
    /// thousand plain links stay small in the cache.
    stages: Option<Box<Stages>>,
    random: Randomness,
    /// Shared by links that are as good or as bad as each other.
    profile: Arc<Profile>,
}

/// What comes after the queue.
#[derive(Clone, Debug)]
struct Stages {
    jitter_max_nanos: u64,
    jitter_keeps_order: bool,
    loss: LossState,
    reordering: Chance,
    reordering_delay_nanos: u64,
    duplication: Chance,
    corruption: Chance,
    corruption_bits: u8,
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It does not arrive.
    Dropped(DropReason),
    /// It arrives.
    Once(Delivery),
    /// It arrives twice, at the same instant unless the first is held back.
    Twice(Delivery, Delivery),
}

/// One arrival of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// When.
    pub at: Instant,
    /// Whether it met congestion. The caller, which knows the packet, sets the mark in it, if the packet can carry one.
    pub ecn_mark: bool,
    /// Bits to flip.
    pub corruption: Option<Corruption>,
}

/// Why a packet does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DropReason {
    /// The queue before the wire had no room.
    QueueFull,
    /// It was lost on the wire.
    Loss,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that entered.
    pub packets: u64,
    /// Their bytes, without overhead.
    pub bytes: u64,
    /// Packets that found the queue full.
    pub queue_full: u64,
    /// Packets lost on the wire.
    pub lost: u64,
    /// Packets marked by the queue (of those, some may have been lost after it).
    pub ecn_marked: u64,
    /// Packets held back.
    pub reordered: u64,
    /// Packets that arrive twice.
    pub duplicated: u64,
    /// Arrivals with flipped bits.
    pub corrupted: u64,
}

impl Counters {
    /// Arrivals, each of a duplicated packet counted.
    pub fn deliveries(&self) -> u64 {
        self.packets - self.queue_full - self.lost + self.duplicated
    }
}

impl Impairment {
    /// A link direction as the profile says, all of whose random decisions come from the seed. Many links of one
    /// profile can share it: give each an `Arc` of it.
    pub fn new(profile: impl Into<Arc<Profile>>, seed: u64) -> Result<Self, ProfileError> {
        Self::build(profile.into(), Randomness::new(seed))
    }

    fn build(profile: Arc<Profile>, random: Randomness) -> Result<Self, ProfileError> {
        profile.check()?;
        Ok(Impairment {
            queue: profile.rate_bits_per_second.map(|rate| Queue::new(rate, &profile)),
            propagation_delay_nanos: nanos(profile.propagation_delay),
            counters: Counters::default(),
            latest_at: Instant::ZERO,
            stages: Stages::new(&profile).map(Box::new),
            random,
            profile,
        })
    }

    /// Decides what happens to a packet that enters now.
    #[inline]
    pub fn handle(&mut self, packet_bytes: u32, now: Instant) -> Verdict {
        self.counters.packets += 1;
        self.counters.bytes += u64::from(packet_bytes);
        let (sent_at, ecn_mark) = match &mut self.queue {
            None => (now, false),
            Some(queue) => match queue.admit(packet_bytes, now, &mut self.random) {
                Some(departure) => (departure.at, departure.ecn_mark),
                None => {
                    self.counters.queue_full += 1;
                    return Verdict::Dropped(DropReason::QueueFull);
                }
            },
        };
        self.counters.ecn_marked += u64::from(ecn_mark);
        let at = sent_at.saturating_add_nanos(self.propagation_delay_nanos);
        if self.stages.is_none() {
            self.latest_at = self.latest_at.max(at);
            return Verdict::Once(Delivery { at, ecn_mark, corruption: None });
        }
        self.handle_on_wire(at, ecn_mark)
    }

    /// The stages after the queue, for links that have any.
    fn handle_on_wire(&mut self, mut at: Instant, ecn_mark: bool) -> Verdict {
        let Some(stages) = self.stages.as_deref_mut() else {
            return Verdict::Once(Delivery { at, ecn_mark, corruption: None });
        };
        let random = self.random.stream();
        if stages.loss.is_lost(random) {
            self.counters.lost += 1;
            return Verdict::Dropped(DropReason::Loss);
        }
        if stages.jitter_max_nanos > 0 {
            at = at.saturating_add_nanos(up_to(stages.jitter_max_nanos, random));
            if stages.jitter_keeps_order {
                at = at.max(self.latest_at);
            }
        }
        let in_order_at = at;
        self.latest_at = self.latest_at.max(in_order_at);
        if stages.reordering.draw(random) {
            self.counters.reordered += 1;
            at = at.saturating_add_nanos(stages.reordering_delay_nanos);
        }
        let corruption = stages.corrupt(random, &mut self.counters);
        let first = Delivery { at, ecn_mark, corruption };
        if !stages.duplication.draw(random) {
            return Verdict::Once(first);
        }
        self.counters.duplicated += 1;
        let corruption = stages.corrupt(random, &mut self.counters);
        Verdict::Twice(first, Delivery { at: in_order_at, ecn_mark, corruption })
    }

    /// When the wire has sent everything that has entered; in the past if it is idle, the origin if nothing ever
    /// queued. A sender that waits for this instant never finds the queue occupied, and loses nothing by its being
    /// rounded up: what enters at this instant follows on what was sent before it without a gap.
    #[inline]
    pub fn idle_at(&self) -> Instant {
        self.queue.as_ref().map_or(Instant::ZERO, Queue::idle_at)
    }

    /// Bytes that have entered and that the wire has not sent by now, overhead included.
    pub fn backlog_bytes(&self, now: Instant) -> u64 {
        self.queue.as_ref().map_or(0, |queue| queue.backlog_bytes(now))
    }

    /// Changes the link while packets are in flight. Deliveries already announced stay as they were, so a shorter delay
    /// or a higher rate lets new packets overtake old ones. The backlog stays as many bytes, which from now on take the
    /// new rate. Counters and the random stream go on; a loss model starts anew if it is a different one.
    pub fn set_profile(&mut self, profile: impl Into<Arc<Profile>>, now: Instant) -> Result<(), ProfileError> {
        let mut changed = Self::build(profile.into(), self.random.clone())?;
        if let (Some(queue), Some(before)) = (&mut changed.queue, &self.queue) {
            queue.continue_from(before, now);
        }
        if let (Some(stages), Some(before)) = (&mut changed.stages, &self.stages)
            && changed.profile.loss == self.profile.loss
        {
            stages.loss = before.loss.clone();
        }
        changed.counters = self.counters;
        changed.latest_at = self.latest_at;
        *self = changed;
        Ok(())
    }

    /// The profile in force.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

/// A profile's delays have been checked to be at most a day.
fn nanos(delay: longhaul_time::Duration) -> u64 {
    delay.as_nanos() as u64
}

impl Stages {
    /// `None` for a profile that asks for nothing but delay.
    fn new(profile: &Profile) -> Option<Self> {
        let stages = Stages {
            jitter_max_nanos: nanos(profile.jitter.delay_max),
            jitter_keeps_order: profile.jitter.keeps_order,
            loss: LossState::new(&profile.loss),
            reordering: Chance::new(profile.reordering.probability),
            reordering_delay_nanos: nanos(profile.reordering.extra_delay),
            duplication: Chance::new(profile.duplication_probability),
            corruption: Chance::new(profile.corruption.probability),
            corruption_bits: profile.corruption.bits_per_packet,
        };
        let is_plain = matches!(stages.loss, LossState::None)
            && stages.jitter_max_nanos == 0
            && stages.reordering.is_never()
            && stages.duplication.is_never()
            && stages.corruption.is_never();
        (!is_plain).then_some(stages)
    }

    fn corrupt(&mut self, random: &mut ChaCha8Rng, counters: &mut Counters) -> Option<Corruption> {
        if !self.corruption.draw(random) {
            return None;
        }
        counters.corrupted += 1;
        Some(Corruption { seed: random.next_u64(), bit_count: self.corruption_bits })
    }
}
