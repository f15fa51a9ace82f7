//! What a client asks to be measured.

use std::time::Duration;

use longhaul_reliable::SchemeList;
use longhaul_softnic_udp::Fec;
use longhaul_verbs::Mtu;

use crate::answers::ATOMIC_BYTES;
use crate::connection::Connection;
use crate::control::{Rate, Test};
use crate::error::PerfError;
use crate::operation::Operation;
pub use crate::scheme_end::CHUNK_BYTES_MAX;
use crate::settings::EndSettings;

/// perftest's port for the exchange.
pub const PORT: u16 = 18515;
/// The largest message.
pub const MESSAGE_BYTES_MAX: u32 = 1 << 30;
/// Messages with a scheme that may be in flight.
pub const SCHEME_DEPTH_MAX: u32 = 4096;
/// The largest message of all sizes, as in perftest.
const ALL_BYTES_MAX: u32 = 1 << 23;
/// perftest's receive queue depth.
const RX_DEPTH: u32 = 512;

/// A measurement against a server. What is `None` has perftest's default.
#[derive(Clone, Debug)]
pub struct ClientRequest {
    /// Host that runs the server, with or without a port.
    pub host: String,
    /// What to measure.
    pub test: Test,
    /// This end.
    pub end: EndSettings,
    /// The transport.
    pub connection: Option<Connection>,
    /// Forward error correction below the transport, which the server agrees to.
    pub fec: Option<Fec>,
    /// Messages have reliability schemes, in turn, instead of a transport.
    pub schemes: Option<SchemeList>,
    /// Bytes of a chunk of the scheme.
    pub chunk: Option<u32>,
    /// Messages of the scheme have a checksum.
    pub checksum: bool,
    /// Messages of the scheme are bounded: each receive ends this long after it was posted.
    pub deadline: Option<Duration>,
    /// Bytes of a message.
    pub size: Option<u32>,
    /// All sizes from 2 to 2^23 bytes.
    pub all: bool,
    /// Messages on each queue pair.
    pub iterations: Option<u64>,
    /// Seconds of a run, instead of a number of messages.
    pub duration: Option<u32>,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Both ends sleep until a completion arrives.
    pub events: bool,
    /// Send queue depth.
    pub tx_depth: u32,
    /// Receive queue depth; of a scheme, messages in flight.
    pub rx_depth: Option<u32>,
    /// READs and atomics outstanding on each queue pair.
    pub outs: Option<u8>,
    /// The atomic is compare-and-swap, not fetch-and-add.
    pub compares_and_swaps: bool,
    /// Path MTU.
    pub mtu: Option<Mtu>,
    /// Acknowledgement timeout, 4.096 µs · 2^N.
    pub timeout: u8,
    /// How fast to send.
    pub rate: Rate,
    /// Messages are filled with a pattern and checked.
    pub verify: bool,
}

impl ClientRequest {
    /// Receives in each receive queue.
    pub fn rx_depth(&self) -> u32 {
        self.rx_depth.unwrap_or(RX_DEPTH)
    }

    /// Messages with a scheme that are in flight, if the user has said.
    pub(crate) const fn scheme_depth(&self) -> Option<u32> {
        self.rx_depth
    }

    /// The connection type.
    pub fn connection(&self) -> Connection {
        self.connection.unwrap_or(if self.schemes.is_some() { Connection::Uc } else { Connection::Rc })
    }

    /// The sizes of messages, one run each; datagrams are at most a packet.
    pub fn sizes(&self, mtu: Mtu) -> Result<Vec<u32>, PerfError> {
        let most = if self.connection() == Connection::Ud { mtu.byte_count() } else { u32::MAX };
        if self.all {
            let powers = (1..=ALL_BYTES_MAX.trailing_zeros()).map(|power| 1 << power);
            return Ok(powers.filter(|&bytes| bytes <= most).collect());
        }
        match self.size {
            Some(size) if size > most => Err(PerfError::Request(format!(
                "-s {size}: UD messages are single packets, here of at most {most} bytes"
            ))),
            Some(size) => Ok(vec![size]),
            None => Ok(vec![self.default_size().min(most)]),
        }
    }

    const fn default_size(&self) -> u32 {
        match self.test {
            Test::AtomicBw | Test::AtomicLat => ATOMIC_BYTES,
            _ if self.test.is_latency() => 2,
            _ => 65_536,
        }
    }

    /// What the messages are.
    pub const fn operation(&self) -> Operation {
        match self.test {
            Test::WriteBw | Test::WriteLat => Operation::Write,
            Test::SendBw | Test::SendLat => Operation::Send,
            Test::ReadBw | Test::ReadLat => Operation::Read,
            Test::AtomicBw | Test::AtomicLat if self.compares_and_swaps => Operation::CompareAndSwap,
            Test::AtomicBw | Test::AtomicLat => Operation::FetchAndAdd,
        }
    }

    /// READs and atomics that each queue pair is to have outstanding; the most there can be is as many as the device
    /// can.
    pub fn outstanding_reads(&self) -> u8 {
        if self.operation().is_answered() { self.outs.unwrap_or(u8::MAX) } else { 0 }
    }

    /// What to say when there are fewer outstanding than the user wanted.
    pub fn outstanding_note(&self, agreed: u8) -> Option<String> {
        let wanted = self.outs.filter(|&wanted| wanted > agreed)?;
        Some(format!("-o {wanted}: the devices can have at most {agreed} outstanding, so that is what they have"))
    }

    /// The largest of the sizes, as far as it can be known before the path's MTU is.
    pub(crate) fn message_bytes_max(&self) -> u32 {
        let most = if self.connection() == Connection::Ud { Mtu::Bytes4096.byte_count() } else { u32::MAX };
        let wanted = if self.all { ALL_BYTES_MAX } else { self.size.unwrap_or(self.default_size()) };
        wanted.min(most)
    }

    /// Messages on each queue pair.
    pub fn iterations(&self) -> u64 {
        self.iterations.unwrap_or(if self.test.is_latency() { 1000 } else { 5000 })
    }
}
