//! What was reported of a path, as far back as it is still true.
//!
//! Bursts are counted, not lost packets: bursts come independently of each other, so that the bounds of a Poisson distribution hold
//! for them. A newer part of the window that contradicts the older part drops it: the path has changed.

use super::model::PathLoss;

/// A part of a path's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Packets that were received or lost.
    pub(crate) packets: u64,
    pub(crate) lost: u64,
    /// Times that packets in a row were lost.
    pub(crate) bursts: u64,
}

impl Sample {
    fn add(&mut self, other: Sample) {
        self.packets += other.packets;
        self.lost += other.lost;
        self.bursts += other.bursts;
    }

    /// Bursts per packet, at most and at least, as many deviations from what was seen.
    fn rate_bounds(&self, deviations: f64) -> [f64; 2] {
        let (count, square) = (self.bursts as f64, deviations * deviations);
        // The root of a Poisson count deviates by about a half, whatever its mean; a few bursts do not prove much.
        let least = (count.sqrt() - deviations / 2.0).max(0.0).powi(2);
        let most = count + square / 2.0 + deviations * (count + square / 4.0).sqrt();
        [least, most].map(|bound| bound / self.packets.max(1) as f64)
    }

    /// Lost packets for each burst.
    pub(crate) fn mean_burst(&self) -> f64 {
        if self.bursts == 0 { 1.0 } else { self.lost.max(self.bursts) as f64 / self.bursts as f64 }
    }

    /// The share of packets that was lost.
    pub(crate) fn loss(&self) -> f64 {
        self.lost as f64 / self.packets.max(1) as f64
    }
}

/// Parts that are kept apart.
const PARTS_MAX: usize = 64;
/// Packets that a window goes back.
const PACKETS_MAX: u64 = 1 << 26;
/// A path has changed if older and newer part are this many deviations from what lies between them.
const DEVIATIONS_CHANGED: f64 = 3.5;
/// Fewer packets never show that a path has changed …
const PACKETS_CHANGED_MIN: u64 = 256;
/// … nor do fewer bursts show that it got worse.
const BURSTS_CHANGED_MIN: u64 = 4;

/// Samples, the newest last.
#[derive(Debug, Default)]
pub(super) struct Window {
    parts: Vec<Sample>,
    total: Sample,
}

impl Window {
    pub(super) fn total(&self) -> Sample {
        self.total
    }

    /// Adds a sample. Whether the path has changed: what was seen before it did is dropped.
    pub(super) fn add(&mut self, sample: Sample) -> bool {
        self.parts.push(sample);
        if self.parts.len() > PARTS_MAX {
            let oldest = self.parts.remove(0);
            self.parts[0].add(oldest);
        }
        self.total.add(sample);
        let changed_at = self.changed_at();
        if let Some(first) = changed_at {
            self.parts.drain(..first);
        }
        let packets: u64 = self.parts.iter().map(|part| part.packets).sum();
        if packets > PACKETS_MAX && self.parts.len() > 1 {
            self.parts.remove(0);
        }
        self.total = self.parts.iter().fold(Sample::default(), |mut total, part| {
            total.add(*part);
            total
        });
        changed_at.is_some()
    }

    /// Where the newest part begins that contradicts what is before it: at the sharpest contradiction.
    fn changed_at(&self) -> Option<usize> {
        let (mut newer, mut older) = (Sample::default(), self.total);
        let mut sharpest = None;
        for (place, part) in self.parts.iter().enumerate().skip(1).rev() {
            newer.add(*part);
            older.packets -= part.packets;
            older.lost -= part.lost;
            older.bursts -= part.bursts;
            if newer.packets < PACKETS_CHANGED_MIN || older.packets < PACKETS_CHANGED_MIN {
                continue;
            }
            let [newer_low, newer_high] = newer.rate_bounds(DEVIATIONS_CHANGED);
            let [older_low, older_high] = older.rate_bounds(DEVIATIONS_CHANGED);
            let worse = if newer.bursts >= BURSTS_CHANGED_MIN { newer_low / older_high } else { 0.0 };
            let better = if older.bursts >= BURSTS_CHANGED_MIN { older_low / newer_high } else { 0.0 };
            let contradiction = worse.max(better);
            if contradiction > 1.0 && sharpest.is_none_or(|(_, sharpness)| contradiction > sharpness) {
                sharpest = Some((place, contradiction));
            }
        }
        sharpest.map(|(place, _)| place)
    }

    /// Losses of the path: at least, probably and at most. `deviations` for the outer two.
    pub(super) fn losses(&self, deviations: f64) -> [PathLoss; 3] {
        let [low, high] = self.total.rate_bounds(deviations);
        let probable = self.total.bursts as f64 / self.total.packets.max(1) as f64;
        // The first loss of a burst says nothing of how it goes on.
        let longer = self.total.lost.saturating_sub(self.total.bursts) as f64;
        let stays = longer / (self.total.lost as f64 + 1.0);
        let share = |begins: f64| PathLoss { begins: begins.min(0.5), stays: stays.clamp(begins.min(0.5), 0.99) };
        [low, probable, high].map(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(packets: u64, bursts: u64) -> Sample {
        Sample { packets, lost: bursts, bursts }
    }

    #[test]
    fn bounds_close_in() {
        let [low, high] = sample(1000, 0).rate_bounds(2.0);
        assert_eq!((low, high), (0.0, 0.004));
        let [low, high] = sample(1_000_000, 10_000).rate_bounds(2.0);
        assert!(low > 0.0097 && high < 0.0103, "{low} {high}");
    }

    #[test]
    fn a_change_drops_what_was_before() {
        let mut window = Window::default();
        for _ in 0..100 {
            assert!(!window.add(sample(10_000, 0)));
        }
        assert!(window.parts.len() <= PARTS_MAX && window.total().packets == 1_000_000);
        // A few losses prove nothing.
        assert!(!window.add(sample(300, 1)));
        assert!(!window.add(sample(10_000, 2)));
        assert!(window.add(sample(10_000, 100)));
        assert_eq!(window.total(), sample(10_000, 100));
        for _ in 0..10 {
            assert!(!window.add(sample(10_000, 100)));
        }
        assert!(window.add(sample(10_000, 0)), "and back");
        assert_eq!(window.total(), sample(10_000, 0));
    }

    #[test]
    fn what_stays_the_same_is_not_taken_for_a_change() {
        // Poisson counts of mean 1 for each part, from a generator.
        let mut state = 1_u64;
        let mut changes = 0;
        let mut window = Window::default();
        for _ in 0..20_000 {
            let mut bursts = 0;
            for _ in 0..100 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                bursts += u64::from((state >> 33).is_multiple_of(100));
            }
            changes += u32::from(window.add(sample(10_000, bursts)));
        }
        assert!(changes <= 10, "{changes}");
    }
}
