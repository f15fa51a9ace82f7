//! A distribution of times: what every model gives, and every question reads.
//!
//! It is kept as points (time, probability that it takes longer), in order; between two points the probability falls
//! along a straight line, and two points at one time are a jump. The tail is kept rather than the cumulative
//! probability: near 1 there are no digits left for "one in a million takes longer".

/// How long something takes, as probabilities.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    points: Vec<Point>,
    mean: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    seconds: f64,
    /// Probability to take longer.
    tail: f64,
}

/// What people ask of a distribution, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Of all.
    pub mean: f64,
    /// Half take no longer.
    pub p50: f64,
    /// 99 of 100 take no longer.
    pub p99: f64,
    /// 999 of 1000 take no longer.
    pub p999: f64,
}

/// A tail below this is taken for none.
const TAIL_MIN: f64 = 1e-9;
/// Where the tail is so thin, its relative error counts; above, its absolute one.
const TAIL_THIN: f64 = 0.02;
const HALVINGS_MAX: u32 = 14;

impl Distribution {
    /// Always the same.
    pub fn constant(seconds: f64) -> Self {
        Distribution::of_atoms(vec![(seconds, 1.0)])
    }

    /// Some times with their probabilities, in any order; these are brought to sum up to 1.
    pub(crate) fn of_atoms(mut atoms: Vec<(f64, f64)>) -> Self {
        atoms.sort_by(|one, other| one.0.total_cmp(&other.0));
        let sum: f64 = atoms.iter().map(|atom| atom.1).sum();
        // From the end, where small numbers are added to small numbers.
        let mut tail = 0.0;
        let mut points = Vec::with_capacity(2 * atoms.len());
        for &(seconds, weight) in atoms.iter().rev() {
            points.push(Point { seconds, tail });
            tail += weight / sum;
            points.push(Point { seconds, tail: tail.min(1.0) });
        }
        points.reverse();
        Distribution::of_points(points)
    }

    /// From the probability to take longer than a time, which may jump at, and bend between, the given times.
    ///
    /// `tail(t)` is right-continuous; just before a given time it is asked a trillionth earlier. Between, times are
    /// halved until a straight line would do.
    pub(crate) fn of_tail(mut times: Vec<f64>, tail: impl Fn(f64) -> f64) -> Self {
        times.sort_by(f64::total_cmp);
        times.dedup_by(|one, other| (*one - *other).abs() <= 4e-12 * other.abs());
        let mut points: Vec<Point> = Vec::new();
        for &seconds in &times {
            let before = Point { seconds, tail: tail(seconds * (1.0 - 1e-12)) };
            if let Some(&last) = points.last() {
                refine(last, before, HALVINGS_MAX, &tail, &mut points);
            }
            points.push(before);
            let at = Point { seconds, tail: tail(seconds * (1.0 + 1e-12)) };
            points.push(at);
            if at.tail < TAIL_MIN {
                break;
            }
        }
        if let Some(first) = points.first_mut() {
            first.tail = 1.0;
        }
        if let Some(last) = points.last_mut() {
            last.tail = 0.0;
        }
        // Rounding may turn a flat piece upwards.
        let mut least = 1.0_f64;
        for point in &mut points {
            least = least.min(point.tail.clamp(0.0, 1.0));
            point.tail = least;
        }
        Distribution::of_points(points)
    }

    /// From the quantiles of a smooth distribution.
    pub(crate) fn of_quantiles(quantile: impl Fn(f64) -> f64) -> Self {
        const HALF: i32 = 128;
        let shares = (-HALF..=HALF).map(|step| {
            // Denser towards both ends: tails down to 1e-9.
            let x = f64::from(step) / f64::from(HALF);
            let end = 0.5 * (10.0_f64).powf(-8.7 * x.abs().powf(1.5));
            if x < 0.0 { 1.0 - end } else { end }
        });
        let mut points: Vec<Point> = shares.map(|tail| Point { seconds: quantile(1.0 - tail), tail }).collect();
        if let Some(first) = points.first_mut() {
            first.tail = 1.0;
        }
        if let Some(last) = points.last_mut() {
            last.tail = 0.0;
        }
        for index in 1..points.len() {
            points[index].seconds = points[index].seconds.max(points[index - 1].seconds);
        }
        Distribution::of_points(points)
    }

    /// From samples.
    pub fn of_samples(mut samples: Vec<f64>) -> Self {
        samples.sort_unstable_by(f64::total_cmp);
        let weight = 1.0 / samples.len().max(1) as f64;
        Distribution::of_atoms(samples.into_iter().map(|sample| (sample, weight)).collect())
    }

    fn of_points(points: Vec<Point>) -> Self {
        let first = points.first().map_or(0.0, |point| point.seconds);
        let area = |pair: &[Point]| (pair[1].seconds - pair[0].seconds) * 0.5 * (pair[0].tail + pair[1].tail);
        let mean = first + points.windows(2).map(area).sum::<f64>();
        Distribution { points, mean }
    }

    /// Probability that it takes no longer than `seconds`.
    pub fn cdf(&self, seconds: f64) -> f64 {
        1.0 - self.tail(seconds)
    }

    /// Probability that it takes longer than `seconds`.
    pub fn tail(&self, seconds: f64) -> f64 {
        self.tail_between(self.points.partition_point(|point| point.seconds <= seconds), seconds)
    }

    /// The same, with the first point that is later.
    fn tail_between(&self, after: usize, seconds: f64) -> f64 {
        match (after.checked_sub(1).map(|before| self.points[before]), self.points.get(after)) {
            (None, _) => 1.0,
            (Some(_), None) => 0.0,
            (Some(before), Some(next)) => {
                let share = (seconds - before.seconds) / (next.seconds - before.seconds);
                before.tail + share * (next.tail - before.tail)
            }
        }
    }

    /// The time within which a share of all has completed.
    pub fn quantile(&self, share: f64) -> f64 {
        let wanted = 1.0 - share;
        self.crossing(self.points.partition_point(|point| !is_reached(point, wanted)), wanted)
    }

    /// The same for many shares in rising order: the points are walked once.
    pub(crate) fn quantiles(&self, shares: impl Iterator<Item = f64>) -> Vec<f64> {
        let mut after = 0;
        let at = |share: f64| {
            let wanted = 1.0 - share;
            while self.points.get(after).is_some_and(|point| !is_reached(point, wanted)) {
                after += 1;
            }
            self.crossing(after, wanted)
        };
        shares.map(at).collect()
    }

    /// When the tail falls to `wanted`, with the first point at which it is that low.
    fn crossing(&self, after: usize, wanted: f64) -> f64 {
        match (after.checked_sub(1).map(|before| self.points[before]), self.points.get(after)) {
            (None, next) => next.map_or(0.0, |point| point.seconds),
            (Some(before), None) => before.seconds,
            (Some(before), Some(next)) => {
                let fall = before.tail - next.tail;
                let part = if fall > 0.0 { ((before.tail - wanted) / fall).clamp(0.0, 1.0) } else { 1.0 };
                before.seconds + part * (next.seconds - before.seconds)
            }
        }
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        self.mean
    }

    /// The earliest possible completion.
    pub fn least(&self) -> f64 {
        self.points.first().map_or(0.0, |point| point.seconds)
    }

    /// Mean and percentiles.
    pub fn summary(&self) -> Summary {
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| self.quantile(share));
        Summary { mean: self.mean, p50, p99, p999 }
    }

    /// That, and then one of some delays, each with its probability, independent of it.
    pub(crate) fn delayed(&self, delays: &[(f64, f64)]) -> Self {
        let delays: Vec<(f64, f64)> = delays.iter().copied().filter(|delay| delay.1 > 0.0).collect();
        if let [(delay, _)] = delays[..] {
            let moved = self.points.iter().map(|point| Point { seconds: point.seconds + delay, ..*point });
            return Distribution::of_points(moved.collect());
        }
        // Every part that still shows at the tail of the whole.
        let mut times = Vec::new();
        for (delay, weight) in &delays {
            let shown = self.points.iter().filter(|point| point.tail * weight >= TAIL_MIN || point.tail == 0.0);
            times.extend(shown.map(|point| point.seconds + delay));
        }
        times.sort_by(f64::total_cmp);
        times.dedup_by(|one, other| (*one - *other).abs() <= 4e-12 * other.abs());
        // Times rise, so that each delay's place among the points only moves on.
        let mut places = vec![0; delays.len()];
        let mut at = |seconds: f64| {
            let parts = delays.iter().zip(&mut places).map(|((delay, weight), place)| {
                let earlier = seconds - delay;
                while self.points.get(*place).is_some_and(|point| point.seconds <= earlier) {
                    *place += 1;
                }
                weight * self.tail_between(*place, earlier)
            });
            parts.sum::<f64>()
        };
        let mut points = Vec::with_capacity(2 * times.len());
        for seconds in times {
            points.push(Point { seconds, tail: at(seconds * (1.0 - 1e-12)) });
            points.push(Point { seconds, tail: at(seconds * (1.0 + 1e-12)) });
        }
        let mut least = 1.0_f64;
        for point in &mut points {
            least = least.min(point.tail);
            point.tail = least;
        }
        if let Some(last) = points.last_mut() {
            last.tail = 0.0;
        }
        Distribution::of_points(points)
    }
}

/// Whether the tail is as low as wanted; shares are computed by subtraction, which leaves some dust.
fn is_reached(point: &Point, wanted: f64) -> bool {
    point.tail <= wanted + 1e-14
}

/// Add points between two that are there, until straight lines do. The second is not added.
fn refine(from: Point, to: Point, halvings: u32, tail: &impl Fn(f64) -> f64, points: &mut Vec<Point>) {
    let fall = from.tail - to.tail;
    let allowed = if from.tail < TAIL_THIN { 0.15 * from.tail.max(TAIL_MIN * 100.0) } else { 0.004 };
    if halvings == 0 || fall <= allowed {
        return;
    }
    let seconds = 0.5 * (from.seconds + to.seconds);
    let middle = Point { seconds, tail: tail(seconds) };
    refine(from, middle, halvings - 1, tail, points);
    points.push(middle);
    refine(middle, to, halvings - 1, tail, points);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atoms_are_jumps() {
        let distribution = Distribution::of_atoms(vec![(3.0, 0.25), (1.0, 0.75)]);
        assert_eq!((distribution.cdf(0.9), distribution.cdf(1.0), distribution.cdf(2.9)), (0.0, 0.75, 0.75));
        assert_eq!(distribution.cdf(3.0), 1.0);
        assert_eq!(
            (distribution.quantile(0.5), distribution.quantile(0.75), distribution.quantile(0.8)),
            (1.0, 1.0, 3.0)
        );
        assert!((distribution.mean() - 1.5).abs() < 1e-12);
        let delayed = distribution.delayed(&[(0.0, 0.9), (1.0, 0.1)]);
        assert!((delayed.mean() - 1.6).abs() < 1e-9);
        assert!((delayed.cdf(2.5) - 0.75).abs() < 1e-12 && (delayed.cdf(3.5) - 0.975).abs() < 1e-12);
    }

    #[test]
    fn smooth_tails_are_followed() {
        // Nothing, then an exponential of mean 1 from 2 on.
        let distribution = Distribution::of_tail(vec![2.0, 30.0], |t| if t < 2.0 { 1.0 } else { (2.0 - t).exp() });
        assert!((distribution.mean() - 3.0).abs() < 2e-3, "{}", distribution.mean());
        for share in [0.5, 0.99, 0.999, 0.99999] {
            let expected = 2.0 - (1.0_f64 - share).ln();
            let quantile = distribution.quantile(share);
            assert!((quantile / expected - 1.0).abs() < 2e-3, "{share}: {quantile} {expected}");
        }
        let shares = [0.0, 0.1, 0.5, 0.5, 0.999, 1.0];
        assert_eq!(distribution.quantiles(shares.into_iter()), shares.map(|share| distribution.quantile(share)));
        let same = Distribution::of_quantiles(|share| 2.0 - (1.0 - share).ln());
        assert!((same.mean() - 3.0).abs() < 5e-3 && (same.quantile(0.999) - 8.9078).abs() < 5e-3, "{same:?}");
    }
}
