//! Coding units: memory for sums, shared by all queue pairs of a device.

use std::collections::VecDeque;

use longhaul_coding::RunningCoder;

/// A bounded number of buffers. They are taken from the front and come back to the end, as in the paper's appendix.
#[derive(Debug)]
pub(crate) struct Units {
    free: VecDeque<Vec<u8>>,
    taken: usize,
    units_max: usize,
}

impl Units {
    pub(crate) fn new(units_max: usize) -> Units {
        Units { free: VecDeque::new(), taken: 0, units_max }
    }

    /// Units that can still be taken.
    pub(crate) fn available(&self) -> usize {
        self.units_max - self.taken
    }

    /// Units that a flow can still take: those that may have been invented leave half to the proven ones.
    pub(crate) fn available_to(&self, is_proven: bool) -> usize {
        let part = if is_proven { self.units_max } else { self.units_max.div_ceil(2) };
        part.saturating_sub(self.taken)
    }

    /// An empty unit, if one is free.
    pub(crate) fn take(&mut self) -> Option<Vec<u8>> {
        if self.taken == self.units_max {
            return None;
        }
        self.taken += 1;
        Some(self.free.pop_front().unwrap_or_default())
    }

    pub(crate) fn give_back(&mut self, mut unit: Vec<u8>) {
        unit.clear();
        self.taken -= 1;
        self.free.push_back(unit);
    }

    /// Bytes of the units that are free; the others are counted where they are used.
    pub(crate) fn free_bytes(&self) -> usize {
        self.free.iter().map(Vec::capacity).sum::<usize>() + self.free.capacity() * size_of::<Vec<u8>>()
    }
}

/// Memory of sums that were taken together.
pub(crate) fn bytes_of(sums: &Vec<Vec<u8>>) -> usize {
    sums.iter().map(Vec::capacity).sum::<usize>() + sums.capacity() * size_of::<Vec<u8>>()
}

/// Makes a sum at least this long; what is added are zeros.
pub(crate) fn lengthen(sum: &mut Vec<u8>, bytes: usize) {
    if sum.len() < bytes {
        sum.resize(bytes, 0);
    }
}

/// Adds a packet to all sums of an MDS code, which are long enough.
pub(crate) fn add_to_all(coder: &RunningCoder, place: usize, bytes: &[u8], sums: &mut [Vec<u8>]) {
    const AT_ONCE: usize = 8;
    for (part, sums) in sums.chunks_mut(AT_ONCE).enumerate() {
        let count = sums.len();
        let mut outputs: [&mut [u8]; AT_ONCE] = Default::default();
        for (output, sum) in outputs.iter_mut().zip(sums) {
            *output = sum;
        }
        coder.add_mds(place, bytes, part * AT_ONCE, &mut outputs[..count]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_bounded_and_come_back_empty() {
        let mut units = Units::new(2);
        let (mut one, two) = (units.take().unwrap(), units.take().unwrap());
        assert_eq!((units.take(), units.available()), (None, 0));
        assert_eq!(units.available_to(false), 0);
        lengthen(&mut one, 100);
        lengthen(&mut one, 50);
        assert_eq!(one, [0; 100]);
        units.give_back(two);
        assert_eq!((units.available_to(true), units.available_to(false)), (1, 0));
        units.give_back(one);
        assert_eq!((units.available_to(true), units.available_to(false)), (2, 1));
        assert!(units.free_bytes() >= 100);
        assert_eq!((units.take(), units.take()), (Some(Vec::new()), Some(Vec::new())));
    }
}
