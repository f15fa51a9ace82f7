//! What is measured, and in which layouts.

use longhaul_coding::{ElementKind, Hadamard, HadamardLayout, HadamardSigns};

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
