//! Measurements of RDMA devices and reliability schemes: bandwidth and latency as perftest users know them, next to the
//! limit of the host.
//!
//! ```text
//!   client ◀─ TCP ─▶ server     two hosts, any device: WRITE, SEND, READ, atomics, or messages with a scheme
//!   pingpong                    one end of rdma-core's ibv_*_pingpong
//!   compare                     both ends on this host, next to bare UDP and TCP
//!   sdr, bitmap, coding, hadamard  single layers
//!   connections                 many connections of one endpoint
//! ```
//!
//! A request says what to measure, a report has what was measured, and events say how far it is. Nothing here parses
//! arguments or prints: `longhaul perf` does.

pub mod bitmap;
pub mod coding;
pub mod compare;
pub mod connections;
pub mod hadamard;
pub mod pingpong;
pub mod sdr;

mod client;
mod replies;
mod request;
mod scheme_client;
mod scheme_server;
mod server;

mod child;
mod control;
mod device;
mod error;
pub mod meeting;
mod message;
mod path;
mod patience;
mod randomness;
mod session;
mod settings;
mod silence;

mod answers;
mod arrivals;
mod connection;
mod nic;
mod operation;
mod pacer;
mod pattern;
mod ping_pong;
mod round_trips;

mod bounded;
mod in_flight;
mod scheme_end;
mod scheme_stream;
mod stream;
mod turns;

mod checksum;
mod histogram;
mod peak;
mod processor;
mod report;
mod statistics;

pub use bounded::{BoundedReceived, BoundedSent, Lateness};
pub use checksum::ChecksumCost;
pub use client::measure;
pub use connection::{Connection, Contact};
pub use control::{FEC_REPAIR_PACKETS_MAX, Plan, Rate, SchemeContact, SchemePlan, Test};
pub use device::{DeviceChoice, Finish, OpenedDevice, SOFTNIC, Towards};
pub use error::PerfError;
pub use histogram::Histogram;
pub use operation::Operation;
pub use processor::thread_time_used;
pub use randomness::random_number;
pub use report::{
    BandwidthLine, ClientEvent, ClientReport, Heading, LatencyLine, SchemeHeading, SchemeLine, ServerReport, ServerRow,
    SizeResult,
};
pub use request::{CHUNK_BYTES_MAX, ClientRequest, MESSAGE_BYTES_MAX, PORT, SCHEME_DEPTH_MAX};
pub use scheme_stream::SchemeTotals;
pub use server::Server;
pub use settings::{Congestion, EndSettings, SoftnicSettings};
pub use statistics::Sorted;
