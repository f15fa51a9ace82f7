//! What many measured values say together.

/// Values in ascending order.
#[derive(Clone, Debug, Default)]
pub struct Sorted(Vec<f64>);

impl Sorted {
    /// The values, sorted.
    pub fn new(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Sorted(values)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The value below which this share of all lie (nearest rank); 0 without values.
    pub fn percentile(&self, percent: f64) -> f64 {
        // Less a hair, so that what should be a whole number is not rounded up to the next.
        let rank = (percent * self.0.len() as f64 / 100.0 - 1e-6).ceil() as usize;
        self.0.get(rank.max(1) - 1).or(self.0.last()).copied().unwrap_or(0.0)
    }

    /// The middle one; between the two middle ones when their number is even.
    pub fn median(&self) -> f64 {
        let half = self.0.len() / 2;
        match self.0.len() {
            0 => 0.0,
            odd if odd % 2 == 1 => self.0[half],
            _ => (self.0[half - 1] + self.0[half]) / 2.0,
        }
    }

    /// The smallest.
    pub fn minimum(&self) -> f64 {
        self.0.first().copied().unwrap_or(0.0)
    }

    /// The largest.
    pub fn maximum(&self) -> f64 {
        self.0.last().copied().unwrap_or(0.0)
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / (self.0.len().max(1) as f64)
    }

    /// The standard deviation.
    pub fn standard_deviation(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.0.iter().map(|value| (value - mean).powi(2)).sum();
        (squares / (self.0.len().max(1) as f64)).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_ranks() {
        let values = Sorted::new((1..=1000).rev().map(f64::from));
        assert_eq!(values.minimum(), 1.0);
        assert_eq!(values.maximum(), 1000.0);
        assert_eq!(values.median(), 500.5);
        assert_eq!(values.percentile(50.0), 500.0);
        assert_eq!(values.percentile(99.0), 990.0);
        assert_eq!(values.percentile(99.9), 999.0);
        assert_eq!(values.percentile(100.0), 1000.0);
        assert_eq!(values.mean(), 500.5);
        assert!((values.standard_deviation() - 288.675).abs() < 0.001);
    }

    #[test]
    fn nothing_measured_is_zero() {
        let nothing = Sorted::default();
        assert_eq!(nothing.count(), 0);
        assert_eq!(nothing.median(), 0.0);
        assert_eq!(nothing.percentile(99.0), 0.0);
        assert_eq!(nothing.mean(), 0.0);
        assert_eq!(Sorted::new([7.0]).percentile(0.0), 7.0);
    }
}
