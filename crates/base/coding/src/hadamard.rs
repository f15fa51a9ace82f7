//! The Hadamard transform of tensors whose packets may be lost: each lost packet costs every block a little, instead
//! of some elements everything.
//!
//! A tensor is cut into blocks, each is transformed (orthonormal: twice is the identity, energy is kept), and packets
//! get parts of several blocks ([`HadamardLayout`]). What does not arrive counts as zero. The expected error is the
//! lost share of the energy, whatever the layout; what the layout changes is its spread. A block in `S` packets loses
//! `1/S` with each lost packet, and without a transform a lost packet takes all of its elements.
//!
//! The transform is linear, so ranks may add what is encoded ([`sum_encoded`]) and decode the sum. Arithmetic is in
//! f32; bf16 and f16 are rounded once, when stored. What is encoded may have another type than the tensor: a block of
//! equal elements grows by √block without signs, so in f16 elements above 65504/√block overflow, and in f32 or bf16
//! they do not. An overflow becomes an infinity, and the block is decoded to infinities and NaN, as sums that overflow
//! do; programs that scale their loss look for those.
//!
//! Every kernel makes the same bytes on every processor, as long as the thread's floating-point environment is the usual
//! one: rounding to nearest, and subnormal numbers kept. A program that flushes them to zero (FTZ and DAZ on x86, FZ on
//! Arm, which some compilers' fast-math options set when a program is loaded) gets other bytes than one that does not.
//! Set it alike at all ranks.
//!
//! ```
//! use longhaul_coding::{Hadamard, HadamardLayout, HadamardSigns};
//!
//! let hadamard = Hadamard::new(HadamardLayout::new(64, 64, 16)?).with_signs(HadamardSigns::new(7, 0, 0));
//! let tensor: Vec<f32> = (0..1000).map(|at| at as f32 / 1000.0).collect();
//! let mut encoded = vec![0.0_f32; hadamard.layout().encoded_elements(tensor.len())];
//! hadamard.encode(&tensor, &mut encoded)?;
//! // The second packet is lost.
//! let mut decoded = vec![0.0_f32; tensor.len()];
//! hadamard.decode(&mut encoded, &[256..512], &mut decoded)?;
//! let energy = |values: &[f32]| values.iter().map(|value| value * value).sum::<f32>();
//! let error: Vec<f32> = tensor.iter().zip(&decoded).map(|(sent, got)| sent - got).collect();
//! assert!(energy(&error) < 0.15 * energy(&tensor));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod element;
mod interleave;
mod kernel;
mod layout;
mod moving;
mod signs;
mod streaming;
#[cfg(target_arch = "x86_64")]
mod x86;
#[cfg(target_arch = "x86_64")]
mod x86_memory;

use std::ops::Range;

pub use self::element::{Bf16, ElementKind, F16, HadamardElement};
use self::interleave::{Along, Pieces, Place, interleave, prefetch_rows};
pub use self::kernel::HadamardKernel;
use self::kernel::Job;
use self::layout::Group;
pub use self::layout::{HadamardLayout, HadamardLayoutError};
use self::moving::Moving;
pub use self::signs::HadamardSigns;
use self::streaming::Streaming;

/// Blocks of a group are transformed into a buffer of this many bytes, and moved from there to the packets while the
/// next blocks are transformed into another one: both stay in the second-level cache, and packets are written one after
/// the other.
const TILE_BYTES: usize = 512 << 10;
/// Rows of the buffer are this much longer than a block: blocks are powers of two, and their rows would fall into the
/// same few places of the cache.
const ROW_GAP_BYTES: usize = 64;

/// Encodes and decodes tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hadamard {
    layout: HadamardLayout,
    signs: Option<HadamardSigns>,
    kernel: HadamardKernel,
}

/// Why a tensor cannot be encoded or decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HadamardError {
    /// The encoded tensor has another length.
    #[error("a tensor of {elements} elements is {expected} when encoded, got {got}")]
    EncodedLength {
        /// Elements of the tensor.
        elements: usize,
        /// Elements that the encoded tensor has.
        expected: usize,
        /// What was passed.
        got: usize,
    },
    /// Bytes are missing that were never there.
    #[error("bytes {} to {} are missing of {bytes}", range.start, range.end)]
    Missing {
        /// What is said to be missing.
        range: Range<usize>,
        /// Bytes of the encoded tensor.
        bytes: usize,
    },
    /// A contribution to a sum has another length.
    #[error("contribution {contribution} has {got} elements, expected {expected}")]
    ContributionLength {
        /// Its number, from 0.
        contribution: usize,
        /// Elements of the sum.
        expected: usize,
        /// What was passed.
        got: usize,
    },
}

/// What encoding and decoding need besides the tensor; bounded by the size of a block and of a tile.
struct Buffers<T, E> {
    words: Vec<u64>,
    scratch: Vec<f32>,
    /// A block of the tensor: the last one, filled up with zeros, or one before it is written past the caches.
    filled_up: Vec<T>,
    tile: Vec<E>,
}

impl Hadamard {
    /// With this layout, no signs, and the fastest kernel.
    pub fn new(layout: HadamardLayout) -> Hadamard {
        Hadamard { layout, signs: None, kernel: HadamardKernel::fastest() }
    }

    /// With random signs.
    pub fn with_signs(self, signs: HadamardSigns) -> Hadamard {
        Hadamard { signs: Some(signs), ..self }
    }

    /// With this kernel, for tests and measurements.
    ///
    /// # Panics
    ///
    /// When this processor does not have it.
    pub fn with_kernel(self, kernel: HadamardKernel) -> Hadamard {
        assert!(kernel.is_available(), "{kernel} does not run on this processor");
        Hadamard { kernel, ..self }
    }

    /// The layout.
    pub fn layout(&self) -> &HadamardLayout {
        &self.layout
    }

    /// The kernel.
    pub fn kernel(&self) -> HadamardKernel {
        self.kernel
    }

    /// Encodes a tensor. `encoded` has [`HadamardLayout::encoded_elements`] elements; each run of
    /// [`HadamardLayout::packet`] elements is a packet.
    pub fn encode<T: HadamardElement, E: HadamardElement>(
        &self,
        tensor: &[T],
        encoded: &mut [E],
    ) -> Result<(), HadamardError> {
        self.check(tensor.len(), encoded.len())?;
        let mut buffers = self.buffers::<T, E>(tensor.len());
        // Blocks and pieces are written at multiples of this.
        let streaming = Streaming::for_target(encoded, self.layout.block().min(self.layout.packet()));
        // The tile before, which is moved while the next one is transformed.
        let (mut previous, mut moving) = (Vec::new(), None::<Moving>);
        for group in self.layout.groups(tensor.len()) {
            if self.is_in_order(&group) {
                for first in self.layout.elements_of(&group).step_by(self.layout.block()) {
                    let to = &mut encoded[first..][..self.layout.block()];
                    if !streaming.has_steps() {
                        self.encode_block(tensor, first, to, &mut buffers);
                        continue;
                    }
                    let mut tile = std::mem::take(&mut buffers.tile);
                    self.encode_block(tensor, first, &mut tile[..to.len()], &mut buffers);
                    streaming.copy(&tile[..to.len()], to);
                    buffers.tile = tile;
                }
                continue;
            }
            let (rows, row) = (self.tile_rows::<E>(&group), row_elements::<E>(&self.layout));
            let elements = self.layout.piece(&group);
            let pieces = Pieces { rows, columns: self.layout.block() / elements, elements };
            let mut tile = std::mem::take(&mut buffers.tile);
            for first_row in (0..group.stride).step_by(rows) {
                for (number, to) in tile.chunks_exact_mut(row).take(rows).enumerate() {
                    let first = group.first + (first_row + number) * self.layout.block();
                    self.encode_block(tensor, first, &mut to[..self.layout.block()], &mut buffers);
                    if let Some(moving) = &mut moving {
                        moving.advance(&previous, encoded, (number + 1, rows), streaming, self.kernel);
                    }
                }
                previous.resize(tile.len(), E::default());
                std::mem::swap(&mut tile, &mut previous);
                moving = Some(Moving::new(pieces, row, self.packets(&group, first_row)));
            }
            buffers.tile = tile;
        }
        if let Some(moving) = &mut moving {
            moving.advance(&previous, encoded, (1, 1), streaming, self.kernel);
        }
        streaming.end();
        Ok(())
    }

    /// Decodes a tensor of which some bytes may be missing, as ranges of bytes of `encoded`. An element that is missing
    /// in part is missing; missing elements are set to zero before the transform.
    pub fn decode<T: HadamardElement, E: HadamardElement>(
        &self,
        encoded: &mut [E],
        missing_bytes: &[Range<usize>],
        tensor: &mut [T],
    ) -> Result<(), HadamardError> {
        self.check(tensor.len(), encoded.len())?;
        let bytes = size_of_val(encoded);
        if let Some(range) = missing_bytes.iter().find(|range| range.start > range.end || range.end > bytes) {
            return Err(HadamardError::Missing { range: range.clone(), bytes });
        }
        for range in missing_bytes.iter().filter(|range| !range.is_empty()) {
            encoded[range.start / size_of::<E>()..range.end.div_ceil(size_of::<E>())].fill(E::default());
        }
        let mut buffers = self.buffers::<T, E>(tensor.len());
        let streaming = Streaming::for_target(tensor, self.layout.block());
        for group in self.layout.groups(tensor.len()) {
            if self.is_in_order(&group) {
                for first in self.layout.elements_of(&group).step_by(self.layout.block()) {
                    let from = &encoded[first..][..self.layout.block()];
                    self.decode_block(from, tensor, first, streaming, &mut buffers);
                }
                continue;
            }
            let (rows, row) = (self.tile_rows::<E>(&group), row_elements::<E>(&self.layout));
            let mut tile = std::mem::take(&mut buffers.tile);
            for first_row in (0..group.stride).step_by(rows) {
                let elements = self.layout.piece(&group);
                let pieces = Pieces { rows: self.layout.block() / elements, columns: rows, elements };
                interleave(
                    encoded,
                    self.packets(&group, first_row),
                    &mut tile,
                    Place { first: 0, row },
                    pieces,
                    Along::Source,
                    self.kernel,
                );
                for (number, from) in tile.chunks_exact(row).take(rows).enumerate() {
                    let first = group.first + (first_row + number) * self.layout.block();
                    // While this tile is transformed, the next one comes from memory.
                    prefetch_rows(encoded, self.packets(&group, first_row + rows), pieces, number, rows);
                    self.decode_block(&from[..self.layout.block()], tensor, first, streaming, &mut buffers);
                }
            }
            buffers.tile = tile;
        }
        streaming.end();
        Ok(())
    }

    fn check(&self, elements: usize, got: usize) -> Result<(), HadamardError> {
        let expected = self.layout.encoded_elements(elements);
        if got != expected {
            return Err(HadamardError::EncodedLength { elements, expected, got });
        }
        Ok(())
    }

    /// Whether the group's blocks lie in the packets as in the tensor.
    fn is_in_order(&self, group: &Group) -> bool {
        group.stride == 1 || self.layout.piece(group) == self.layout.block()
    }

    /// Where the pieces of a group's blocks lie in its packets, from block `first_row` on; in the next group, if that is
    /// the number of blocks.
    fn packets(&self, group: &Group, first_row: usize) -> Place {
        let piece = self.layout.piece(group);
        if first_row == group.stride {
            return Place { first: group.first + group.stride * self.layout.block(), row: group.stride * piece };
        }
        Place { first: group.first + first_row * piece, row: group.stride * piece }
    }

    /// Blocks that are transformed before they are moved to the packets.
    fn tile_rows<E>(&self, group: &Group) -> usize {
        // A power of two, as a tile and a block are, and at least one.
        (TILE_BYTES / size_of::<E>() / self.layout.block()).clamp(1, group.stride)
    }

    fn buffers<T: HadamardElement, E: HadamardElement>(&self, elements: usize) -> Buffers<T, E> {
        let block = self.layout.block();
        let tiled = self.layout.groups(elements).filter(|group| !self.is_in_order(group));
        let rows = tiled.map(|group| self.tile_rows::<E>(&group)).max().unwrap_or(1);
        Buffers {
            words: vec![0; block.div_ceil(64)],
            scratch: vec![0.0; block],
            filled_up: vec![T::default(); block],
            tile: vec![E::default(); rows * row_elements::<E>(&self.layout)],
        }
    }

    fn job<'a>(&self, signs_first: bool, first: usize, words: &'a mut [u64]) -> Job<'a> {
        signs::fill_words(self.signs, first, words);
        Job { signs_first, signs: words, scale: kernel::scale(self.layout.block()) }
    }

    /// Transforms the block that begins at element `first`.
    fn encode_block<T: HadamardElement, E: HadamardElement>(
        &self,
        tensor: &[T],
        first: usize,
        to: &mut [E],
        buffers: &mut Buffers<T, E>,
    ) {
        let job = self.job(true, first, &mut buffers.words);
        let from = match tensor.get(first..first + self.layout.block()) {
            Some(from) => from,
            None => {
                let rest = &tensor[first.min(tensor.len())..];
                buffers.filled_up[..rest.len()].copy_from_slice(rest);
                buffers.filled_up[rest.len()..].fill(T::default());
                &buffers.filled_up
            }
        };
        self.kernel.transform(job, from, to, &mut buffers.scratch);
    }

    /// Transforms back the block that begins at element `first`.
    fn decode_block<T: HadamardElement, E: HadamardElement>(
        &self,
        from: &[E],
        tensor: &mut [T],
        first: usize,
        streaming: Streaming,
        buffers: &mut Buffers<T, E>,
    ) {
        let job = self.job(false, first, &mut buffers.words);
        let to = tensor.get_mut(first..first + self.layout.block());
        if let Some(to) = to {
            if !streaming.has_steps() {
                return self.kernel.transform(job, from, to, &mut buffers.scratch);
            }
            self.kernel.transform(job, from, &mut buffers.filled_up, &mut buffers.scratch);
            return streaming.copy(&buffers.filled_up, to);
        }
        self.kernel.transform(job, from, &mut buffers.filled_up, &mut buffers.scratch);
        let first = first.min(tensor.len());
        let rest = &mut tensor[first..];
        rest.copy_from_slice(&buffers.filled_up[..rest.len()]);
    }
}

/// Elements from one row of a tile to the next.
fn row_elements<E>(layout: &HadamardLayout) -> usize {
    layout.block() + ROW_GAP_BYTES / size_of::<E>()
}

/// Adds up what ranks have encoded with the same layout and signs: the sum of their tensors, encoded. The sum is in
/// f32, in the order of the contributions, and rounded once.
pub fn sum_encoded<E: HadamardElement>(contributions: &[&[E]], sum: &mut [E]) -> Result<(), HadamardError> {
    const AT_ONCE: usize = 256;
    let expected = sum.len();
    let wrong = contributions.iter().position(|contribution| contribution.len() != expected);
    if let Some(contribution) = wrong {
        let got = contributions[contribution].len();
        return Err(HadamardError::ContributionLength { contribution, expected, got });
    }
    for (number, sum) in sum.chunks_mut(AT_ONCE).enumerate() {
        let mut sums = [0.0; AT_ONCE];
        for contribution in contributions {
            for (sum, element) in sums.iter_mut().zip(&contribution[number * AT_ONCE..][..sum.len()]) {
                *sum += element.to_f32();
            }
        }
        for (sum, value) in sum.iter_mut().zip(sums) {
            *sum = E::from_f32(value);
        }
    }
    Ok(())
}
