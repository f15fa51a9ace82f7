//! The bound of memory, from what each part needs at most.

use crate::config::Config;
use crate::{decoder, encoder};

/// Memory of a unit besides the bytes of its sum: where it is when it is in use, and when it is free, in a list that may be half empty.
const UNIT_BYTES: usize = 3 * size_of::<Vec<u8>>();

impl Config {
    /// Bytes that both directions may use, at most: sums, repair packets that wait, packets that wait, and flows.
    pub fn memory_bytes_max(&self) -> usize {
        let units = 2 * self.units_max * (2 * self.unit_bytes() + UNIT_BYTES);
        let flows = self.flows_max * (encoder::FLOW_BYTES_MAX + decoder::FLOW_BYTES_MAX);
        units + flows + self.held_packets_max * (self.unit_bytes() + decoder::HELD_BYTES_MAX)
    }
}
