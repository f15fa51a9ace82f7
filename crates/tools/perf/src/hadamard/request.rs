//! What is measured, and in which layouts.

use longhaul_coding::{ElementKind, Hadamard, HadamardLayout, HadamardSigns};

use crate::error::PerfError;

/// What is measured.
#[derive(Clone, Debug)]
pub struct HadamardRequest {
    /// Bytes of the tensors whose speed is measured.
    pub buffer_bytes: usize,
    /// Rounds of each measurement of speed.
    pub rounds: u32,
    /// Share of packets that are lost.
    pub loss: f64,
    /// Tensors that are decoded in each layout, each with other packets lost.
    pub trials: u32,
    /// Draws of lost packets for the distribution of a block's error.
    pub samples: u32,
    /// The seed of tensors, signs and losses.
    pub seed: u64,
}

/// Packets that trials, and blocks that samples, are expected to lose at least: with fewer, chance decides what is
/// measured.
const LOSSES_MIN: f64 = 100.0;

impl HadamardRequest {
    /// Whether it can be measured, with tensors of `packets` packets or more.
    pub(super) fn check(&self, packets: usize) -> Result<(), PerfError> {
        let HadamardRequest { loss, trials, samples, .. } = *self;
        if !(loss > 0.0 && loss < 1.0) {
            return Err(PerfError::Request(format!("a loss of {loss}: expected a share between 0 and 1")));
        }
        let needed = |of_each: f64| (LOSSES_MIN / (loss * of_each)).ceil() as u64;
        for (option, got, needed) in [("trials", trials, needed(packets as f64)), ("samples", samples, needed(1.0))] {
            if u64::from(got) < needed {
                return Err(PerfError::Request(format!(
                    "--{option} {got}: too few losses to measure at a loss of {loss}, use at least {needed}"
                )));
            }
        }
        Ok(())
    }
}

/// A layout that is measured.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredLayout {
    /// Type of the tensor's elements, and of what is sent.
    pub kind: ElementKind,
    /// Elements of a block; 1 is no transform.
    pub block: usize,
    /// Elements of a packet.
    pub packet: usize,
    /// Blocks in a packet.
    pub stride: usize,
    /// Whether there are random signs.
    pub signs: bool,
}

impl MeasuredLayout {
    /// As people call the type.
    pub fn type_name(&self) -> &'static str {
        match self.kind {
            ElementKind::F32 => "f32",
            ElementKind::Bf16 => "bf16",
            ElementKind::F16 => "f16",
        }
    }

    pub(super) fn element_bytes(&self) -> usize {
        if self.kind == ElementKind::F32 { 4 } else { 2 }
    }

    pub(super) fn hadamard(&self, seed: u64) -> Hadamard {
        let layout = HadamardLayout::new(self.block, self.packet, self.stride).expect("a layout of the list");
        let hadamard = Hadamard::new(layout);
        if self.signs { hadamard.with_signs(HadamardSigns::new(seed, 1, 1)) } else { hadamard }
    }

    pub(super) fn name(&self) -> String {
        let signs = if self.signs { "signs" } else { "no signs" };
        format!("{} block {} stride {} {signs}", self.type_name(), self.block, self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_losses_are_refused_with_what_would_do() {
        let request =
            HadamardRequest { buffer_bytes: 0, rounds: 3, loss: 0.001, trials: 782, samples: 100_000, seed: 1 };
        assert!(request.check(128).is_ok());
        let error = |request: HadamardRequest| request.check(128).expect_err("too few").to_string();
        assert!(error(HadamardRequest { trials: 781, ..request.clone() }).contains("--trials 781"));
        assert!(error(HadamardRequest { trials: 781, ..request.clone() }).contains("use at least 782"));
        assert!(error(HadamardRequest { samples: 99_999, ..request.clone() }).contains("--samples 99999"));
        assert!(error(HadamardRequest { loss: 0.0, ..request }).contains("a loss of 0"));
    }
}
