//! How bad the network is: plain configuration, checked once.

use longhaul_time::Duration;

use crate::corruption::Corruption;
use crate::loss::Loss;

/// One direction of one link. The default is a perfect one: no delay, infinitely fast, nothing lost.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Time from the last bit sent to the last bit received.
    pub propagation_delay: Duration,
    /// Delay that differs from packet to packet.
    pub jitter: Jitter,
    /// Bits a second on the wire; `None` is infinitely fast, and then there is no queue.
    pub rate_bits_per_second: Option<u64>,
    /// Bytes that may wait, or be in transmission, before the wire. A packet that would exceed it is dropped, unless
    /// the wire is idle. 16 MiB by default.
    pub queue_limit_bytes: u64,
    /// Bytes each packet takes on the wire in addition to its own (an Ethernet frame around an IP packet: 14 + 4, and
    /// 20 for preamble and gap).
    pub overhead_bytes_per_packet: u32,
    /// When the queue marks packets as having met congestion.
    pub ecn: EcnMarking,
    /// Packets lost on the wire.
    pub loss: Loss,
    /// Packets held back so that later ones overtake them.
    pub reordering: Reordering,
    /// That a packet comes out twice.
    pub duplication_probability: f64,
    /// Bit errors.
    pub corruption: CorruptionModel,
}

/// Delay that differs from packet to packet: uniform between zero and `delay_max`, added to the propagation delay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Jitter {
    /// The largest extra delay.
    pub delay_max: Duration,
    /// Whether a packet waits for those before it (a queue somewhere on the path) or may overtake them (many paths).
    pub keeps_order: bool,
}

/// When the queue marks a packet as having met congestion. Needs a rate: without one there is no queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum EcnMarking {
    /// Never.
    #[default]
    Off,
    /// When the queue that the packet finds is longer than this (DCTCP's K).
    Step {
        /// K.
        threshold_bytes: u64,
    },
    /// Never up to the minimum, then with a probability that grows to `probability_max` at the maximum, and always
    /// above it (as DCQCN sets up switches: Kmin, Kmax, Pmax), by the queue the packet finds.
    Ramp {
        /// Kmin.
        minimum_bytes: u64,
        /// Kmax.
        maximum_bytes: u64,
        /// Pmax.
        probability_max: f64,
    },
}

/// Packets held back so that later ones overtake them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reordering {
    /// Of holding a packet back.
    pub probability: f64,
    /// For how long.
    pub extra_delay: Duration,
}

/// Bit errors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CorruptionModel {
    /// Of a packet having any.
    pub probability: f64,
    /// How many different bits are then flipped.
    pub bits_per_packet: u8,
}

impl Default for Profile {
    fn default() -> Self {
        Profile {
            propagation_delay: Duration::ZERO,
            jitter: Jitter::default(),
            rate_bits_per_second: None,
            queue_limit_bytes: 16 << 20,
            overhead_bytes_per_packet: 0,
            ecn: EcnMarking::Off,
            loss: Loss::None,
            reordering: Reordering::default(),
            duplication_probability: 0.0,
            corruption: CorruptionModel::default(),
        }
    }
}

impl Default for CorruptionModel {
    fn default() -> Self {
        CorruptionModel { probability: 0.0, bits_per_packet: 1 }
    }
}

impl Profile {
    /// The longest delay of any kind that a profile may ask for.
    pub const DELAY_MAX: Duration = Duration::from_secs(24 * 60 * 60);
    /// The highest rate, a petabit a second.
    pub const RATE_BITS_PER_SECOND_MAX: u64 = 1_000_000_000_000_000;

    /// Sets the propagation delay.
    pub fn with_propagation_delay(mut self, delay: Duration) -> Self {
        self.propagation_delay = delay;
        self
    }

    /// Sets the rate.
    pub fn with_rate_bits_per_second(mut self, rate: u64) -> Self {
        self.rate_bits_per_second = Some(rate);
        self
    }

    /// Sets the queue's limit.
    pub fn with_queue_limit_bytes(mut self, limit: u64) -> Self {
        self.queue_limit_bytes = limit;
        self
    }

    /// Sets the bytes each packet takes in addition to its own.
    pub fn with_overhead_bytes_per_packet(mut self, overhead: u32) -> Self {
        self.overhead_bytes_per_packet = overhead;
        self
    }

    /// Sets jitter.
    pub fn with_jitter(mut self, delay_max: Duration, keeps_order: bool) -> Self {
        self.jitter = Jitter { delay_max, keeps_order };
        self
    }

    /// Sets congestion marking.
    pub fn with_ecn(mut self, ecn: EcnMarking) -> Self {
        self.ecn = ecn;
        self
    }

    /// Sets the loss model.
    pub fn with_loss(mut self, loss: Loss) -> Self {
        self.loss = loss;
        self
    }

    /// Sets reordering.
    pub fn with_reordering(mut self, probability: f64, extra_delay: Duration) -> Self {
        self.reordering = Reordering { probability, extra_delay };
        self
    }

    /// Sets duplication.
    pub fn with_duplication(mut self, probability: f64) -> Self {
        self.duplication_probability = probability;
        self
    }

    /// Sets bit errors.
    pub fn with_corruption(mut self, probability: f64, bits_per_packet: u8) -> Self {
        self.corruption = CorruptionModel { probability, bits_per_packet };
        self
    }

    /// Says whether the values make sense, and if not, which does not and what would.
    pub fn check(&self) -> Result<(), ProfileError> {
        check_delay("propagation delay", self.propagation_delay)?;
        check_delay("largest jitter", self.jitter.delay_max)?;
        check_delay("extra delay of reordering", self.reordering.extra_delay)?;
        check_probability("reordering probability", self.reordering.probability)?;
        check_probability("duplication probability", self.duplication_probability)?;
        check_probability("corruption probability", self.corruption.probability)?;
        self.loss.check()?;
        let bits = self.corruption.bits_per_packet;
        if bits == 0 || bits > Corruption::BIT_COUNT_MAX {
            return Err(ProfileError::CorruptionBits { got: bits });
        }
        if let Some(rate) = self.rate_bits_per_second
            && (rate == 0 || rate > Self::RATE_BITS_PER_SECOND_MAX)
        {
            return Err(ProfileError::Rate { got: rate });
        }
        if self.ecn != EcnMarking::Off && self.rate_bits_per_second.is_none() {
            return Err(ProfileError::EcnWithoutRate);
        }
        if let EcnMarking::Ramp { minimum_bytes, maximum_bytes, probability_max } = self.ecn {
            check_probability("probability_max of ECN marking", probability_max)?;
            if minimum_bytes >= maximum_bytes {
                return Err(ProfileError::EcnThresholds { minimum_bytes, maximum_bytes });
            }
        }
        Ok(())
    }
}

/// Why a [`Profile`] cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// Not a probability.
    #[error("{name} {got} is out of range: use 0 to 1")]
    Probability {
        /// Which one.
        name: &'static str,
        /// What was given.
        got: f64,
    },
    /// A delay of more than [`Profile::DELAY_MAX`].
    #[error("{name} {got:?} is too long: use at most 24 hours")]
    Delay {
        /// Which one.
        name: &'static str,
        /// What was given.
        got: Duration,
    },
    /// A rate of nothing, or of more than [`Profile::RATE_BITS_PER_SECOND_MAX`].
    #[error(
        "rate {got} bit/s is out of range: use 1 bit/s to 1 Pbit/s; leave it out for an infinitely fast link, or set the loss to 1 for a \
         broken one"
    )]
    Rate {
        /// What was given.
        got: u64,
    },
    /// Congestion marking on a link that has no queue.
    #[error("ECN marking needs a rate: an infinitely fast link has no queue to measure")]
    EcnWithoutRate,
    /// The ramp of congestion marking does not rise.
    #[error("ECN thresholds {minimum_bytes} and {maximum_bytes} bytes: the minimum must be below the maximum")]
    EcnThresholds {
        /// Kmin.
        minimum_bytes: u64,
        /// Kmax.
        maximum_bytes: u64,
    },
    /// No bits to flip, or too many.
    #[error("cannot corrupt {got} bits per packet: use 1 to 64")]
    CorruptionBits {
        /// What was given.
        got: u8,
    },
    /// A trace without packets.
    #[error("the loss trace is empty: it needs at least one packet")]
    EmptyLossTrace,
    /// Bursts without packets.
    #[error("burst_packets is 0, so that no burst could lose anything: use 1 or more")]
    EmptyBursts,
}

pub(crate) fn check_probability(name: &'static str, got: f64) -> Result<(), ProfileError> {
    // A NaN is in no range.
    if (0.0..=1.0).contains(&got) { Ok(()) } else { Err(ProfileError::Probability { name, got }) }
}

fn check_delay(name: &'static str, got: Duration) -> Result<(), ProfileError> {
    if got <= Profile::DELAY_MAX { Ok(()) } else { Err(ProfileError::Delay { name, got }) }
}
