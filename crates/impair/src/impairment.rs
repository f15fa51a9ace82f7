//! One direction of one link, at work.

use longhaul_time::Instant;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::chance::{Chance, up_to};
use crate::corruption::Corruption;
use crate::loss::LossState;
use crate::profile::{Profile, ProfileError};
use crate::queue::Queue;

/// One direction of one link: packets in, schedule out.
///
/// Call [`handle`](Impairment::handle) once for each packet, with instants that do not go back, and carry out the
/// verdict. There is nothing to poll: all that will happen to a packet is decided when it enters.
#[derive(Clone, Debug)]
pub struct Impairment {
    /// `None` on an infinitely fast link.
    queue: Option<Queue>,
    propagation_delay_nanos: u64,
    /// Whether any stage after the queue does more than delay; if not, `handle` is done early.
    is_plain: bool,
    counters: Counters,
    /// The latest delivery so far, of packets held back as if they had not been: what order-keeping jitter may not
    /// undercut.
    latest_at: Instant,
    /// Apart, so that ten thousand plain links stay small in the cache.
    stages: Box<Stages>,
}

/// What comes after the queue, and its randomness.
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
    random: ChaCha8Rng,
    profile: Profile,
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
    /// Whether it met congestion. Whoever knows the packet sets the mark in it, if the packet can carry one.
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
    /// A link direction as the profile says, all of whose random decisions come from the seed.
    pub fn new(profile: Profile, seed: u64) -> Result<Self, ProfileError> {
        Self::build(profile, ChaCha8Rng::seed_from_u64(seed))
    }

    fn build(profile: Profile, random: ChaCha8Rng) -> Result<Self, ProfileError> {
        profile.check()?;
        let loss = LossState::new(&profile.loss);
        let reordering = Chance::new(profile.reordering.probability);
        let duplication = Chance::new(profile.duplication_probability);
        let corruption = Chance::new(profile.corruption.probability);
        // Checked to be at most a day.
        let nanos = |delay: longhaul_time::Duration| delay.as_nanos() as u64;
        Ok(Impairment {
            queue: profile.rate_bits_per_second.map(|rate| Queue::new(rate, &profile)),
            propagation_delay_nanos: nanos(profile.propagation_delay),
            is_plain: matches!(loss, LossState::None)
                && profile.jitter.delay_max.is_zero()
                && reordering.is_never()
                && duplication.is_never()
                && corruption.is_never(),
            counters: Counters::default(),
            latest_at: Instant::ZERO,
            stages: Box::new(Stages {
                jitter_max_nanos: nanos(profile.jitter.delay_max),
                jitter_keeps_order: profile.jitter.keeps_order,
                loss,
                reordering,
                reordering_delay_nanos: nanos(profile.reordering.extra_delay),
                duplication,
                corruption,
                corruption_bits: profile.corruption.bits_per_packet,
                random,
                profile,
            }),
        })
    }

    /// Decides what happens to a packet that enters now.
    #[inline]
    pub fn handle(&mut self, packet_bytes: u32, now: Instant) -> Verdict {
        self.counters.packets += 1;
        self.counters.bytes += u64::from(packet_bytes);
        let (sent_at, ecn_mark) = match &mut self.queue {
            None => (now, false),
            Some(queue) => match queue.admit(packet_bytes, now, &mut self.stages.random) {
                Some(departure) => (departure.at, departure.ecn_mark),
                None => {
                    self.counters.queue_full += 1;
                    return Verdict::Dropped(DropReason::QueueFull);
                }
            },
        };
        self.counters.ecn_marked += u64::from(ecn_mark);
        let at = sent_at.saturating_add_nanos(self.propagation_delay_nanos);
        if self.is_plain {
            self.latest_at = self.latest_at.max(at);
            return Verdict::Once(Delivery { at, ecn_mark, corruption: None });
        }
        self.handle_on_wire(at, ecn_mark)
    }

    /// The stages after the queue, for links that have any.
    fn handle_on_wire(&mut self, mut at: Instant, ecn_mark: bool) -> Verdict {
        let stages = &mut *self.stages;
        if stages.loss.is_lost(&mut stages.random) {
            self.counters.lost += 1;
            return Verdict::Dropped(DropReason::Loss);
        }
        if stages.jitter_max_nanos > 0 {
            at = at.saturating_add_nanos(up_to(stages.jitter_max_nanos, &mut stages.random));
            if stages.jitter_keeps_order {
                at = at.max(self.latest_at);
            }
        }
        let in_order_at = at;
        self.latest_at = self.latest_at.max(in_order_at);
        if stages.reordering.draw(&mut stages.random) {
            self.counters.reordered += 1;
            at = at.saturating_add_nanos(stages.reordering_delay_nanos);
        }
        let corruption = stages.corrupt(&mut self.counters);
        let first = Delivery { at, ecn_mark, corruption };
        if !stages.duplication.draw(&mut stages.random) {
            return Verdict::Once(first);
        }
        self.counters.duplicated += 1;
        let corruption = stages.corrupt(&mut self.counters);
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

    /// Changes the link under way. Deliveries already announced stay as they were, so a shorter delay or a higher rate
    /// lets new packets overtake old ones. The backlog stays as many bytes, which from now on take the new rate.
    /// Counters and the random stream go on; a loss model starts anew if it is a different one.
    pub fn set_profile(&mut self, profile: Profile, now: Instant) -> Result<(), ProfileError> {
        let mut changed = Self::build(profile, self.stages.random.clone())?;
        if let (Some(queue), Some(before)) = (&mut changed.queue, &self.queue) {
            queue.continue_from(before, now);
        }
        if changed.stages.profile.loss == self.stages.profile.loss {
            changed.stages.loss = self.stages.loss.clone();
        }
        changed.counters = self.counters;
        changed.latest_at = self.latest_at;
        *self = changed;
        Ok(())
    }

    /// The profile in force.
    pub fn profile(&self) -> &Profile {
        &self.stages.profile
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }
}

impl Stages {
    fn corrupt(&mut self, counters: &mut Counters) -> Option<Corruption> {
        if !self.corruption.draw(&mut self.random) {
            return None;
        }
        counters.corrupted += 1;
        Some(Corruption { seed: self.random.next_u64(), bit_count: self.corruption_bits })
    }
}
