//! LoWAR's shim as a bump in the wire, in front of RDMA NICs as they are.
//!
//! ```text
//!   hosts ─ site ─▶ Gateway: every packet as it is, repair packets after each block ─▶ wide ═══ the other gateway
//!   hosts ◀─ site ─ Gateway: packets in order, lost ones restored, no repair packet ◀─ wide ═══ the other gateway
//! ```
//!
//! [`Gateway`] is driven: Ethernet frames and time in, frames out. It takes RoCEv2 packets out of frames for
//! [`longhaul_shim`], and builds frames for those that come out of it. What it shows to nobody passes byte for byte: other
//! protocols, fragments, packets of hosts that are not behind the other gateway. Flows and messages are learned from the packets.
//!
//! [`RunningGateway`] drives one on a thread of its own, between two interfaces. [`bypass`] lets the kernel join these
//! when the process ends, however it ends. [`settings`] is the configuration as a file, and [`metrics`] what it has counted, for
//! Prometheus.

pub mod bypass;
mod frame;
mod gateway;
mod interfaces;
mod ip;
pub mod metrics;
mod pairs;
mod peer;
mod running;
pub mod settings;
mod waiting;

#[cfg(test)]
mod gateway_tests;
#[cfg(test)]
mod samples;

pub use gateway::{Gateway, GatewayConfig, GatewayCounters, GatewayState, SITE, WIDE};
pub use interfaces::InterfaceError;
pub use ip::IpError;
pub use running::{GatewayError, RunningGateway, RunningState};
