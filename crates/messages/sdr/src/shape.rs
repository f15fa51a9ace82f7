//! How messages are cut into writes, and spread over queue pairs.

use longhaul_wire::immediate_layout::ImmediateLayout;

/// Headers of a packet: IPv4, UDP, BTH, RETH, the immediate and the ICRC.
pub(crate) const PACKET_OVERHEAD_BYTES: u64 = 20 + 8 + 12 + 16 + 4 + 4;

/// Geometry that both halves of a queue pair share, and its path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) layout: ImmediateLayout,
    pub(crate) packet_bytes: u32,
    pub(crate) packets_per_write: u32,
    pub(crate) generations: u32,
    pub(crate) channels: usize,
}

impl Shape {
    pub(crate) fn slot_of(&self, number: u64) -> u32 {
        self.layout.slot_of(number)
    }

    pub(crate) fn generation_of(&self, number: u64) -> u32 {
        self.layout.generation_of(number, self.generations)
    }

    pub(crate) fn write_bytes(&self) -> u32 {
        self.packet_bytes * self.packets_per_write
    }

    /// Headers of a write with all its packets, at most.
    pub(crate) fn write_overhead_bytes(&self) -> u64 {
        PACKET_OVERHEAD_BYTES * u64::from(self.packets_per_write)
    }

    /// A full write on the wire.
    pub(crate) fn write_wire_bytes(&self) -> u64 {
        u64::from(self.write_bytes()) + self.write_overhead_bytes()
    }
}
