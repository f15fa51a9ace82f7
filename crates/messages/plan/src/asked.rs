//! How many chunks an erasure receiver asks for, and which of them is the one that it needs last.
//!
//! Of a submessage that cannot be computed, all missing data chunks are asked for, and come one after the other; it is
//! computable before the last of them has come. With F such submessages, each with A chunks missing, the last one
//! computable after R of its own,
//!
//! ```text
//!   chunks until all is computable = A₁ + … + A_(F − 1) + R          chunks asked for = A₁ + … + A_F
//! ```
//!
//! F is binomial, the A and R are as [`Asked`] has them, and sums are taken by convolution; with many submessages they
//! are near a gamma distribution. When some submessage cannot be computed even then, what it asks for next is
//! geometric: what of a run is lost again.
//!
//! In bursts two neighbours may fail together. Then F counts clusters, a share of which are two submessages.

use crate::probability::{binomial, skewed_quantile};

/// One way for a submessage to fail: how likely it is, how many chunks are asked for, and after which of them it is
/// computable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Asked {
    pub(crate) missing: usize,
    pub(crate) needed: usize,
    pub(crate) probability: f64,
}

/// Numbers of chunks and their probabilities, in order.
pub(crate) type Numbers = Vec<(f64, f64)>;

/// What is asked for first, when anything is.
pub(crate) struct FirstAsked {
    /// Chunks until all is computable.
    pub(crate) until_computable: Numbers,
    /// When some submessage cannot be computed even then: all of these, and what is then asked for until all is
    /// computable.
    pub(crate) until_computable_again: Numbers,
    /// Its mean.
    pub(crate) mean_again: f64,
}

/// More submessages that fail are not counted one by one.
const FAILURES_COUNTED_MAX: f64 = 16.0;
/// Steps of a gamma distribution.
const GAMMA_STEPS: u32 = 400;

/// What fails, and how.
pub(crate) struct Failures<'a> {
    /// Submessages.
    pub(crate) count: u64,
    /// Of one of them, or of a cluster of two.
    pub(crate) ways: &'a [Asked],
    /// Probability that one fails.
    pub(crate) fails: f64,
    /// Of those that do, the share that fails after asking, too.
    pub(crate) again: f64,
    /// The share of clusters that are two.
    pub(crate) pairs: f64,
    /// Chunks asked for the second time, in the mean.
    pub(crate) asked_again: f64,
}

/// What they ask for first.
pub(crate) fn first_asked(failures: &Failures<'_>) -> FirstAsked {
    let Failures { count, ways, fails, again, pairs, asked_again } = *failures;
    let most = ways.iter().map(|way| way.missing.max(way.needed)).max().unwrap_or(0);
    let (mut missing, mut needed) = (vec![0.0; most + 1], vec![0.0; most + 1]);
    let sum: f64 = ways.iter().map(|way| way.probability).sum();
    for way in ways {
        missing[way.missing] += way.probability / sum;
        needed[way.needed] += way.probability / sum;
    }
    if pairs > 0.0 {
        let mixed = |single: Vec<f64>, double: Vec<f64>| -> Vec<f64> {
            let single = single.into_iter().chain(std::iter::repeat(0.0));
            double.iter().zip(single).map(|(double, single)| pairs * double + (1.0 - pairs) * single).collect()
        };
        let double = convolved(&missing, &needed);
        needed = mixed(needed, double);
        let double = convolved(&missing, &missing);
        missing = mixed(missing, double);
    }
    let [mean, square, cube] = moments(&missing);
    let failures = count as f64 * fails;
    if failures > FAILURES_COUNTED_MAX {
        let all = failures * mean;
        let deviation = (failures * square).sqrt();
        let skewness = cube / (square.powf(1.5) * failures.sqrt());
        let last = mean - moments(&needed)[0];
        // More failures, more that fail again: the mean is taken over numbers weighed by themselves.
        let weighed = if failures * again < 1.0 { deviation * deviation / all } else { 0.0 };
        let mean_again = all + weighed + asked_again;
        return FirstAsked {
            until_computable: gamma(all - last, deviation, skewness),
            until_computable_again: gamma(mean_again, deviation.hypot(asked_again), skewness),
            mean_again,
        };
    }
    // Of a submessage that fails again more is missing: each chunk is one more that can be lost again.
    let missing_again: Vec<f64> = missing.iter().enumerate().map(|(number, p)| p * number as f64 / mean).collect();
    let (first, probabilities) = binomial(count, fails);
    let (mut until_computable, mut before_another) = (Vec::new(), vec![0.0]);
    // What all failures but the last ask for.
    let mut others = vec![1.0];
    for failures in 1..first + probabilities.len() as u64 {
        let index = failures.checked_sub(first).map(|index| index as usize);
        let probability = index.and_then(|index| probabilities.get(index)).copied().unwrap_or(0.0);
        let all = convolved(&others, &missing);
        if probability > 1e-12 {
            add(&mut until_computable, &convolved(&others, &needed), probability);
            let some_again = -f64::exp_m1(failures as f64 * (-again).max(-1.0 + f64::EPSILON).ln_1p());
            add(&mut before_another, &convolved(&others, &missing_again), probability * some_again);
        }
        others = all;
    }
    let until_computable_again = numbers(&convolved(&before_another, &geometric(asked_again)));
    let mean_again = until_computable_again.iter().map(|(number, share)| number * share).sum();
    FirstAsked { until_computable: numbers(&until_computable), until_computable_again, mean_again }
}

/// Put neighbours together, where nobody looks: fine near the 99.9th percentile of the whole, coarse elsewhere. `above`
/// is the probability of all that takes longer than any of these, and `weight` that of these together.
pub(crate) fn gathered(numbers: &Numbers, weight: f64, above: f64) -> Numbers {
    let mut gathered: Numbers = Vec::new();
    let (mut number, mut probability) = (0.0, 0.0);
    let mut left = 1.0;
    for &(each, share) in numbers {
        number += each * share;
        probability += share;
        left -= share;
        let tail = above + weight * left.max(0.0);
        let most = if (1e-4..1e-2).contains(&tail) { 0.03 * tail } else { 0.02 };
        if weight * probability >= most {
            gathered.push((number / probability, probability));
            (number, probability) = (0.0, 0.0);
        }
    }
    if probability > 0.0 {
        gathered.push((number / probability, probability));
    }
    gathered
}

fn convolved(one: &[f64], other: &[f64]) -> Vec<f64> {
    let mut sums = vec![0.0; one.len() + other.len() - 1];
    for (place, factor) in other.iter().enumerate().filter(|(_, factor)| **factor > 1e-12) {
        one.iter().zip(&mut sums[place..]).for_each(|(value, sum)| *sum += factor * value);
    }
    while sums.len() > 1 && sums.last().is_some_and(|last| *last < 1e-13) {
        sums.pop();
    }
    sums
}

fn add(sums: &mut Vec<f64>, values: &[f64], factor: f64) {
    sums.resize(sums.len().max(values.len()), 0.0);
    values.iter().zip(sums).for_each(|(value, sum)| *sum += factor * value);
}

/// Brought to sum up to 1.
fn numbers(probabilities: &[f64]) -> Numbers {
    let sum: f64 = probabilities.iter().sum();
    let all = probabilities.iter().enumerate().filter(|(_, probability)| **probability > 0.0);
    all.map(|(number, probability)| (number as f64, probability / sum)).collect()
}

fn gamma(mean: f64, deviation: f64, skewness: f64) -> Numbers {
    let share = 1.0 / f64::from(GAMMA_STEPS);
    (0..GAMMA_STEPS)
        .map(|step| (skewed_quantile(mean, deviation, skewness, (f64::from(step) + 0.5) * share).max(0.0), share))
        .collect()
}

/// At least 1, with this mean.
fn geometric(mean: f64) -> Vec<f64> {
    let ends = (1.0 / mean).clamp(1e-3, 1.0);
    let mut probabilities = vec![0.0, ends];
    while let Some(last) = probabilities.last().filter(|last| **last > 1e-9 * ends && ends < 1.0) {
        probabilities.push(last * (1.0 - ends));
    }
    probabilities
}

/// Means of the number, its square and its cube.
fn moments(probabilities: &[f64]) -> [f64; 3] {
    let moment =
        |power: i32| probabilities.iter().enumerate().map(|(number, p)| p * (number as f64).powi(power)).sum::<f64>();
    [moment(1), moment(2), moment(3)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(numbers: &Numbers) -> f64 {
        numbers.iter().map(|(number, share)| number * share).sum()
    }

    fn quantile(numbers: &Numbers, share: f64) -> f64 {
        let mut sum = 0.0;
        numbers.iter().find(|(_, each)| (sum += each, sum >= share).1).expect("they sum up to 1").0
    }

    fn failures(count: u64, again: f64) -> Failures<'static> {
        Failures { count, ways: &WAYS, fails: 0.008, again, pairs: 0.0, asked_again: 1.5 }
    }

    const WAYS: [Asked; 2] =
        [Asked { missing: 3, needed: 1, probability: 0.006 }, Asked { missing: 5, needed: 3, probability: 0.002 }];

    #[test]
    fn one_failure_asks_for_its_own_chunks() {
        let asked = first_asked(&failures(1, 0.1));
        assert_eq!(asked.until_computable.len(), 2);
        assert!((mean(&asked.until_computable) - 1.5).abs() < 1e-9);
        let weighed = (3.0 * 3.0 * 0.75 + 5.0 * 5.0 * 0.25) / 3.5 + 1.5;
        assert!((asked.mean_again - weighed).abs() < 1e-6, "{}", asked.mean_again);
    }

    #[test]
    fn counting_and_the_gamma_distribution_agree() {
        // A little less than 16 failures in the mean, and a little more.
        let [counted, gamma] = [1990, 2010].map(|count| first_asked(&failures(count, 1e-3)));
        let pairs = [
            (mean(&counted.until_computable), mean(&gamma.until_computable)),
            (counted.mean_again, gamma.mean_again),
            (mean(&gamma.until_computable_again), gamma.mean_again),
            (quantile(&counted.until_computable, 0.99), quantile(&gamma.until_computable, 0.99)),
            (quantile(&counted.until_computable_again, 0.99), quantile(&gamma.until_computable_again, 0.99)),
        ];
        for (one, other) in pairs {
            assert!((one / other - 1.0).abs() < 0.03, "{pairs:?}");
        }
    }

    #[test]
    fn gathering_keeps_the_mean() {
        let numbers: Numbers = (0..1000).map(|number| (f64::from(number), 1e-3)).collect();
        let few = gathered(&numbers, 0.5, 0.0);
        assert!(few.len() < 200 && (mean(&few) - mean(&numbers)).abs() < 1e-9, "{}", few.len());
        assert!((few.iter().map(|(_, share)| share).sum::<f64>() - 1.0).abs() < 1e-9);
    }
}
