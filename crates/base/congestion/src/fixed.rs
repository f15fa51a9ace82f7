//! A rate that somebody has chosen, or none.

use crate::controller::{Controller, Sample};

/// A rate that never changes: for paths whose capacity is reserved. It reacts to nothing, so on a shared path it takes
/// what others need.
#[derive(Clone, Copy, Debug)]
pub struct FixedRate(pub u64);

/// No control: what the device takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unlimited;

impl Controller for Unlimited {
    fn on_sample(&mut self, _sample: &Sample) {}

    fn window_bytes(&self) -> u64 {
        u64::MAX
    }

    fn bits_per_second(&self) -> Option<u64> {
        None
    }
}

impl Controller for FixedRate {
    fn on_sample(&mut self, _sample: &Sample) {}

    fn window_bytes(&self) -> u64 {
        u64::MAX
    }

    fn bits_per_second(&self) -> Option<u64> {
        Some(self.0)
    }
}
