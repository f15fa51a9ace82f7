//! Many durations in bounded memory: a histogram whose buckets are at most 1/128 of their value wide.

use std::time::Duration;

/// Buckets for each power of two.
const STEPS_LOG2: u32 = 7;
const STEPS: usize = 1 << STEPS_LOG2;
/// Values below the first power of two have a bucket each; 64-bit nanoseconds end with the last one.
const BUCKETS: usize = (64 - STEPS_LOG2 as usize + 1) * STEPS;

/// How many durations fell into each bucket; the longest is kept exactly.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Box<[u64]>,
    count: u64,
    sum_nanoseconds: u128,
    least: Duration,
    longest: Duration,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            counts: vec![0; BUCKETS].into(),
            count: 0,
            sum_nanoseconds: 0,
            least: Duration::MAX,
            longest: Duration::ZERO,
        }
    }
}

impl Histogram {
    pub(crate) fn record(&mut self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket_of(nanoseconds)] += 1;
        self.count += 1;
        self.sum_nanoseconds += u128::from(nanoseconds);
        self.least = self.least.min(duration);
        self.longest = self.longest.max(duration);
    }

    /// How many there are.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// In microseconds, as the other values; 0 without any.
    pub fn least(&self) -> f64 {
        if self.count == 0 { 0.0 } else { microseconds(self.least) }
    }

    /// The longest, in microseconds.
    pub fn longest(&self) -> f64 {
        microseconds(self.longest)
    }

    /// The mean, in microseconds.
    pub fn mean(&self) -> f64 {
        self.sum_nanoseconds as f64 / 1000.0 / self.count.max(1) as f64
    }

    /// The value that this share of all do not exceed (nearest rank), rounded up to the end of its bucket.
    pub fn percentile(&self, percent: f64) -> f64 {
        // Less a hair, so that a whole number is not rounded up to the next.
        let rank = ((percent * self.count as f64 / 100.0 - 1e-6).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return microseconds(Duration::from_nanos(end_of(index)).min(self.longest));
            }
        }
        self.longest()
    }
}

fn microseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

const fn bucket_of(nanoseconds: u64) -> usize {
    if nanoseconds < STEPS as u64 {
        return nanoseconds as usize;
    }
    let power = nanoseconds.ilog2();
    let step = (nanoseconds >> (power - STEPS_LOG2)) as usize - STEPS;
    (power - STEPS_LOG2 + 1) as usize * STEPS + step
}

/// The largest value of a bucket.
const fn end_of(bucket: usize) -> u64 {
    if bucket < STEPS {
        return bucket as u64;
    }
    let shift = (bucket / STEPS - 1) as u32;
    let first = ((bucket % STEPS + STEPS) as u64) << shift;
    first + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        for bucket in 0..BUCKETS {
            assert_eq!(bucket_of(end_of(bucket)), bucket);
            if bucket + 1 < BUCKETS {
                assert_eq!(bucket_of(end_of(bucket) + 1), bucket + 1);
            }
        }
        assert_eq!(end_of(BUCKETS - 1), u64::MAX);
    }

    #[test]
    fn percentiles_are_within_a_bucket_and_the_longest_is_exact() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|value| histogram.record(Duration::from_micros(value)));
        for (percent, expected) in [(50.0, 500.0), (99.0, 990.0), (99.9, 999.0)] {
            let value = histogram.percentile(percent);
            assert!((expected..=expected * (1.0 + 1.0 / 128.0)).contains(&value), "{percent} %: {value}");
        }
        assert_eq!((histogram.percentile(100.0), histogram.longest()), (1000.0, 1000.0));
        assert_eq!((histogram.least(), histogram.mean(), histogram.count()), (1.0, 500.5, 1000));
    }

    #[test]
    fn nothing_recorded_is_zero() {
        let nothing = Histogram::default();
        assert_eq!(
            (nothing.percentile(99.0), nothing.longest(), nothing.least(), nothing.mean()),
            (0.0, 0.0, 0.0, 0.0)
        );
    }
}
