//! The UDP port: a software RNIC on real sockets, with real RoCEv2 datagrams, on any IP host and without root.
//!
//! ```text
//!   verbs calls ─▶ device ─▶ port ─▶ batch ─▶ socket ═══ network ═══ socket ─▶ receive ─▶ device ─▶ completions
//!                     ▲                                                            │
//!                     └────── driver: the caller's own polls, and a background thread ┘
//! ```
//!
//! One process owns an address's port 4791; others take a free port, which peers must be told
//! ([`UdpDevice::udp_port`], [`PathAttributes::udp_port`](longhaul_verbs::PathAttributes::udp_port)) and only softnics understand.
//! Or somebody hands each process a socket at that port, and a part of the queue pair numbers: [`sharing`].

mod config;
mod device;
mod foreign_memory;
mod open;
mod protection;

mod driver;

mod batch;
mod port;
mod receive;
pub mod sharing;
mod socket;
mod way;

mod capture;
mod link;
pub mod path;

pub use config::{Background, CAREFUL_BITS_PER_SECOND, UdpConfig, UdpPortChoice};
pub use device::UdpDevice;
pub use foreign_memory::foreign_memory;
pub use longhaul_capture::{CaptureError, CaptureSummary};
pub use longhaul_shim::{
    Agreement, Auto, BlockCode, BlockCodeError, CodeChange, DecoderCounters, EncoderCounters, Fec, FecError, Lowar,
    Network, PathStatus,
};
pub use longhaul_softnic::{ForeignMemory, Impair};
pub use open::{OpenError, Warning};
pub use protection::{FecPeer, ProtectError, Protection};
