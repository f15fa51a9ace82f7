//! Where each coefficient of an encoded tensor lies: which packet carries which part of which block.

use std::ops::Range;

/// Most elements of a block and of a packet: a block's intermediate results are kept in memory, 64 MiB at most.
pub(super) const ELEMENTS_MAX: usize = 1 << 24;

/// How a tensor is cut into blocks, and how blocks are spread over packets.
///
/// A *block* is transformed as a whole. A *packet* has `packet` elements, `packet / stride` from each of `stride`
/// blocks; these blocks are a *group*. So a lost packet takes the part `packet / (stride · block)` of each block of its
/// group, and a block is spread over `block · stride / packet` packets.
///
/// The last group of a tensor may have fewer blocks. It is cut into groups with the stride halved once or several
/// times, so that no group is filled up with blocks of zeros. Only the tensor's last unit, a block or a packet,
/// whichever is larger, is filled up.
///
/// Block 1 transforms nothing: the tensor travels as it is, at any stride.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HadamardLayout {
    block: usize,
    packet: usize,
    stride: usize,
}

/// Why a layout is impossible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HadamardLayoutError {
    /// Not a power of two, or too large.
    #[error("{what} of {elements} elements: it must be a power of two, at most {ELEMENTS_MAX}")]
    Size {
        /// Block, packet or stride.
        what: &'static str,
        /// What was asked for.
        elements: usize,
    },
    /// A packet would hold less than one element of each block.
    #[error("stride {stride} with packets of {packet} elements: a packet has at least one element of each block")]
    StrideTooLarge {
        /// Blocks that a packet has parts of.
        stride: usize,
        /// Elements of a packet.
        packet: usize,
    },
    /// The blocks of a group have more elements than addresses of this machine reach.
    #[error("{stride} blocks of {block} elements: more than this machine can address")]
    GroupTooLarge {
        /// Blocks that a packet has parts of.
        stride: usize,
        /// Elements of a block.
        block: usize,
    },
    /// A packet would need more elements of a block than the block has.
    #[error("packets of {packet} elements, but {stride} blocks of {block} have fewer: use stride {} or more", .packet / .block)]
    StrideTooSmall {
        /// Blocks that a packet has parts of.
        stride: usize,
        /// Elements of a packet.
        packet: usize,
        /// Elements of a block.
        block: usize,
    },
}

/// Blocks that share packets, and where they lie: the same elements of the tensor and of what is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    /// The first element.
    pub(super) first: usize,
    /// Blocks, and blocks in each packet.
    pub(super) stride: usize,
}

/// Whether a group's elements can be counted up to `most`: on machines with addresses of 32 bits, not always.
fn is_addressable(block: usize, stride: usize, most: usize) -> bool {
    (block as u64).checked_mul(stride as u64).is_some_and(|elements| elements <= most as u64)
}

impl HadamardLayout {
    /// Blocks and packets of these numbers of elements, each packet with elements of `stride` blocks. All three are powers of
    /// two.
    pub fn new(block: usize, packet: usize, stride: usize) -> Result<HadamardLayout, HadamardLayoutError> {
        for (what, elements) in [("a block", block), ("a packet", packet), ("a stride", stride)] {
            if !elements.is_power_of_two() || elements > ELEMENTS_MAX {
                return Err(HadamardLayoutError::Size { what, elements });
            }
        }
        if stride > packet {
            return Err(HadamardLayoutError::StrideTooLarge { stride, packet });
        }
        if packet / stride > block {
            return Err(HadamardLayoutError::StrideTooSmall { stride, packet, block });
        }
        if !is_addressable(block, stride, usize::MAX) {
            return Err(HadamardLayoutError::GroupTooLarge { stride, block });
        }
        Ok(HadamardLayout { block, packet, stride })
    }

    /// Elements of a block.
    pub fn block(&self) -> usize {
        self.block
    }

    /// Elements of a packet.
    pub fn packet(&self) -> usize {
        self.packet
    }

    /// Blocks that a packet has elements of.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Packets that a block is spread over, in a group with all its blocks.
    pub fn packets_of_block(&self) -> usize {
        self.block * self.stride / self.packet
    }

    /// Elements of what a tensor of `elements` elements is encoded to: as many, filled up to a whole block and a whole
    /// packet.
    pub fn encoded_elements(&self, elements: usize) -> usize {
        elements.div_ceil(self.unit()) * self.unit()
    }

    /// Where element `coefficient` of block `block` of a tensor of `elements` elements lies when it is encoded.
    ///
    /// # Panics
    ///
    /// When there is no such block or element.
    pub fn encoded_index(&self, elements: usize, block: usize, coefficient: usize) -> usize {
        assert!(coefficient < self.block, "coefficient {coefficient} of a block of {}", self.block);
        let element = block * self.block;
        let group = self.groups(elements).find(|group| self.elements_of(group).contains(&element));
        let group = group.unwrap_or_else(|| panic!("block {block} of a tensor of {elements} elements"));
        let piece = self.piece(&group);
        let row = block - group.first / self.block;
        group.first + coefficient / piece * (group.stride * piece) + row * piece + coefficient % piece
    }

    /// What is filled up at the tensor's end.
    pub(super) fn unit(&self) -> usize {
        self.block.max(self.packet)
    }

    /// All groups of a tensor, in order.
    pub(super) fn groups(&self, elements: usize) -> impl Iterator<Item = Group> + use<> {
        let layout = *self;
        let all = self.encoded_elements(elements);
        let (mut first, mut stride) = (0, self.stride);
        std::iter::from_fn(move || {
            if first == all {
                return None;
            }
            while stride * layout.block > all - first {
                stride /= 2;
            }
            let group = Group { first, stride };
            first += stride * layout.block;
            Some(group)
        })
    }

    pub(super) fn elements_of(&self, group: &Group) -> Range<usize> {
        group.first..group.first + group.stride * self.block
    }

    /// Consecutive elements of a block that stay together.
    pub(super) fn piece(&self, group: &Group) -> usize {
        (self.packet / group.stride).min(self.block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_has_parts_of_as_many_blocks_as_the_stride_says() {
        let layout = HadamardLayout::new(8, 8, 4).expect("a layout");
        // Four blocks, two elements of each in a packet.
        let packet = |number: usize| {
            let mut blocks: Vec<usize> = (0..4)
                .flat_map(|block| (0..8).map(move |at| (block, at)))
                .filter(|&(block, at)| layout.encoded_index(32, block, at) / 8 == number)
                .map(|(block, _)| block)
                .collect();
            blocks.sort_unstable();
            blocks
        };
        for number in 0..4 {
            assert_eq!(packet(number), [0, 0, 1, 1, 2, 2, 3, 3]);
        }
        assert_eq!(layout.packets_of_block(), 4);
    }

    #[test]
    fn the_last_group_is_cut_and_not_filled_up() {
        let layout = HadamardLayout::new(4, 4, 4).expect("a layout");
        // Seven blocks and a part of an eighth that is filled up; then exactly seven.
        let strides = |elements| layout.groups(elements).map(|group| group.stride).collect::<Vec<_>>();
        assert_eq!((strides(30), layout.encoded_elements(30)), (vec![4, 4], 32));
        assert_eq!((strides(28), layout.encoded_elements(28)), (vec![4, 2, 1], 28));
        assert_eq!((strides(0), layout.encoded_elements(0)), (vec![], 0));
        // Packets of two blocks: a group has at least two.
        let layout = HadamardLayout::new(4, 8, 8).expect("a layout");
        let strides: Vec<usize> = layout.groups(41).map(|group| group.stride).collect();
        assert_eq!((strides, layout.encoded_elements(41)), (vec![8, 4], 48));
    }

    #[test]
    fn groups_beyond_the_address_space_are_seen() {
        let most = u32::MAX as usize;
        assert!(is_addressable(ELEMENTS_MAX, 128, most) && !is_addressable(ELEMENTS_MAX, 256, most));
        assert_eq!(HadamardLayout::new(ELEMENTS_MAX, ELEMENTS_MAX, 256).is_ok(), cfg!(target_pointer_width = "64"));
    }

    #[test]
    fn impossible_layouts_are_refused() {
        let error =
            |block, packet, stride| HadamardLayout::new(block, packet, stride).expect_err("refused").to_string();
        assert!(error(1000, 1024, 1).contains("a block of 1000 elements: it must be a power of two"));
        assert!(error(0, 1024, 1).contains("a block of 0"));
        assert!(error(1024, 64, 128).contains("stride 128 with packets of 64"));
        assert!(error(64, 1024, 8).contains("use stride 16 or more"));
        assert!(HadamardLayout::new(64, 1024, 16).is_ok());
    }
}
