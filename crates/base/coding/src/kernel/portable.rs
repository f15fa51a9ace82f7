//! The kernel for any processor, and the definition of what the others must compute.

use super::Block;
use crate::field::PRODUCTS;

/// See [`super::Kernel::combine`].
pub(super) fn combine(coefficients: &Block, sources: &[&[u8]], outputs: &mut [&mut [u8]], add: bool) {
    for (index, output) in outputs.iter_mut().enumerate() {
        if !add {
            output.fill(0);
        }
        for (source, factors) in sources.iter().zip(coefficients) {
            let products = &PRODUCTS[usize::from(factors[index])];
            output.iter_mut().zip(*source).for_each(|(sum, &byte)| *sum ^= products[usize::from(byte)]);
        }
    }
}
