//! How a port is divided.

/// RoCEv2's port.
pub const PORT: u16 = 4791;

/// Sockets of an address, and parts of the queue pair numbers.
pub const PARTS: u8 = 64;

/// Processes that can share an address: one for each part, without that of queue pair 1.
pub const PROCESSES: u8 = PARTS - 1;
