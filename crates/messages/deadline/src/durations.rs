//! How long operations take, by their size.

use crate::rule::Digest;

/// α of the moving averages, as the paper has it for its one average.
const SMOOTHING: f64 = 0.2;
/// When most ranks heard nothing, the next deadline is this many times later.
const GROWTH: f64 = 1.5;
/// Four classes for each power of two of 64 bits.
const CLASSES: usize = 256;

/// Median durations of operations with about as many bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Class {
    bytes: f64,
    nanoseconds: f64,
}

/// Median durations. An operation takes a time that its bytes do not explain, and a time for each byte; neither is
/// known apart from the other, and the path may be slower for a while with the first bytes. So durations are learned
/// for each size: classes are a quarter of a power of two wide.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Durations {
    classes: Vec<Option<Class>>,
}

fn class_of(bytes: u64) -> usize {
    match bytes {
        0..4 => bytes as usize,
        _ => {
            let power = bytes.ilog2();
            4 * power as usize + (bytes >> (power - 2) & 3) as usize
        }
    }
}

impl Durations {
    /// Begins with one operation.
    pub(crate) fn new(bytes: u64, nanoseconds: f64) -> Durations {
        let mut durations = Durations { classes: vec![None; CLASSES] };
        durations.classes[class_of(bytes)] = Some(Class { bytes: bytes as f64, nanoseconds });
        durations
    }

    /// The median duration of operations with as many bytes, in nanoseconds. Of a size that was never seen, at most as
    /// much as the next larger one takes, and as the next smaller one takes for each of its bytes.
    pub(crate) fn median(&self, bytes: u64) -> f64 {
        let class = class_of(bytes);
        let smaller = self.classes[..=class].iter().rev().flatten().next();
        let larger = self.classes[class + 1..].iter().flatten().next();
        let scaled = |class: &Class| class.nanoseconds * (bytes as f64 / class.bytes).max(1.0);
        match (smaller, larger) {
            (Some(own), _) if self.classes[class].is_some() => scaled(own),
            (Some(smaller), Some(larger)) => scaled(smaller).min(larger.nanoseconds).max(smaller.nanoseconds),
            (Some(smaller), None) => scaled(smaller),
            (None, Some(larger)) => larger.nanoseconds,
            (None, None) => 0.0,
        }
    }

    /// Takes the median duration of an operation.
    pub(crate) fn observe(&mut self, bytes: u64, nanoseconds: f64) {
        let got = Class { bytes: bytes as f64, nanoseconds };
        let class = &mut self.classes[class_of(bytes)];
        *class = Some(class.map_or(got, |before| Class {
            bytes: SMOOTHING * got.bytes + (1.0 - SMOOTHING) * before.bytes,
            nanoseconds: SMOOTHING * got.nanoseconds + (1.0 - SMOOTHING) * before.nanoseconds,
        }));
    }

    /// Most ranks had nothing of an operation at its deadline: durations are longer than that.
    pub(crate) fn grow(&mut self, bytes: u64, deadline: f64, ceiling: f64) {
        let now = self.median(bytes);
        let nanoseconds = (GROWTH * now).max(deadline).min(ceiling).max(now);
        self.classes[class_of(bytes)] = Some(Class { bytes: bytes as f64, nanoseconds });
    }

    pub(crate) fn digest(&self, digest: &mut Digest) {
        self.classes.iter().flatten().for_each(|class| digest.numbers([&class.bytes, &class.nanoseconds]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_a_quarter_of_a_power_of_two() {
        let classes: Vec<usize> = [0, 1, 3, 4, 5, 7, 8, 9, 10, 1 << 20, (1 << 20) + 1, u64::MAX].map(class_of).into();
        assert_eq!(classes, [0, 1, 3, 8, 9, 11, 12, 12, 13, 80, 80, 255]);
    }

    #[test]
    fn small_operations_have_durations_of_their_own() {
        // 25 ms, and 1 ns a byte.
        let mut durations = Durations::new(8 << 20, 33.4e6);
        // Not known yet: at most as long as the large one.
        assert_eq!(durations.median(1024), 33.4e6);
        durations.observe(1024, 25.001e6);
        assert_eq!((durations.median(1024), durations.median(8 << 20)), (25.001e6, 33.4e6));
        assert_eq!(durations.median(8), 25.001e6);
        // In between, and beyond.
        assert_eq!((durations.median(1 << 20), durations.median(1200)), (33.4e6, 25.001e6 * 1200.0 / 1024.0));
        assert_eq!(durations.median(16 << 20), 66.8e6);
    }

    #[test]
    fn silence_makes_durations_longer_up_to_the_ceiling_and_no_longer() {
        let mut durations = Durations::new(1024, 1e4);
        durations.grow(1024, 1e5, 1e9);
        assert_eq!(durations.median(1024), 1e5);
        for _ in 0..100 {
            durations.grow(1024, 1e5, 1e9);
        }
        assert_eq!(durations.median(1024), 1e9);
        // What was learned in silence is forgotten soon.
        for _ in 0..60 {
            durations.observe(1024, 1e5);
        }
        assert!(durations.median(1024) < 1.1e5);
    }
}
