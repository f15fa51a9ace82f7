//! What was measured, as values.

use std::net::IpAddr;
use std::time::Duration;

use longhaul_congestion::ControllerName;
use longhaul_reliable::SchemeList;
use longhaul_verbs::Mtu;

use crate::checksum::ChecksumCost;
use crate::connection::Contact;
use crate::control::{Plan, Rate, SchemeContact, Test};
use crate::device::Finish;
use crate::histogram::Histogram;
use crate::scheme_stream::SchemeTotals;
use crate::statistics::Sorted;

/// What happens while a client measures, as it happens.
pub enum ClientEvent<'a> {
    /// Something that people should know.
    Note(String),
    /// Both ends are connected.
    Connected(&'a Heading),
    /// The same, for messages with a scheme.
    SchemeConnected(&'a SchemeHeading),
    /// A size begins.
    Begun {
        /// Bytes of a message.
        bytes: u32,
        /// Its place among the sizes, from 0.
        index: usize,
        /// Sizes.
        count: usize,
    },
    /// It has ended, with a result or without.
    Ended,
    /// Its result.
    Measured(&'a SizeResult),
}

/// What a client has measured.
pub enum ClientReport {
    /// On queue pairs.
    Verbs {
        /// What is known of the ends.
        heading: Heading,
        /// A result for each size.
        results: Vec<SizeResult>,
        /// The first contents that were wrong, at either end.
        mismatch: Option<String>,
        /// The device at the end.
        finish: Finish,
    },
    /// With a scheme.
    Scheme {
        /// What is known of the ends.
        heading: SchemeHeading,
        /// The result.
        line: Box<SchemeLine>,
        /// The first contents that were wrong.
        mismatch: Option<String>,
        /// The device at the end.
        finish: Finish,
    },
}

/// What is known before the first result.
pub struct Heading {
    /// What is measured.
    pub plan: Plan,
    /// Payload of a packet.
    pub mtu: Mtu,
    /// The client's device.
    pub device_name: String,
    /// Its row of the GID table.
    pub gid_index: u8,
    /// What controls the rate at which the client sends; `None` if nothing does.
    pub congestion: Option<ControllerName>,
    /// READs and atomics outstanding on each queue pair.
    pub outstanding_reads: u8,
    /// The client's queue pairs.
    pub ours: Contact,
    /// The server's.
    pub theirs: Contact,
}

impl Heading {
    /// What the client sends at most, in bits per second; `None` if there is no limit, or a controller finds it.
    pub fn rate_limit(&self) -> Option<u64> {
        let is_found = self.plan.rate == Rate::Careful && self.congestion.is_some();
        self.plan.rate_towards(self.theirs.address).filter(|_| !is_found)
    }
}

/// The same, for messages with a scheme.
pub struct SchemeHeading {
    /// The schemes that messages have in turn.
    pub schemes: SchemeList,
    /// What is measured.
    pub plan: Plan,
    /// Payload of a packet.
    pub mtu_bytes: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Messages in flight.
    pub depth: usize,
    /// Whether messages have a checksum.
    pub checksum: bool,
    /// Messages are bounded: each receive ends this long after it was posted.
    pub deadline: Option<Duration>,
    /// What controls the client's send rate.
    pub congestion: Option<ControllerName>,
    /// The client's device.
    pub ours: SchemeContact,
    /// The server's.
    pub theirs: SchemeContact,
}

/// The result of one size.
pub enum SizeResult {
    /// Of a bandwidth test.
    Bandwidth(BandwidthLine),
    /// Of a latency test.
    Latency(LatencyLine),
}

impl SizeResult {
    /// Messages that did not arrive.
    pub fn lost(&self) -> u64 {
        match self {
            SizeResult::Bandwidth(line) => line.lost(),
            SizeResult::Latency(line) => line.lost,
        }
    }
}

/// One size of a bandwidth test.
pub struct BandwidthLine {
    /// Bytes of a message.
    pub bytes: u32,
    /// Messages sent.
    pub iterations: u64,
    /// Messages that have arrived: all of them, unless the transport may lose some.
    pub arrived: u64,
    /// How long it took.
    pub seconds: f64,
    /// In the best window of the run.
    pub peak_messages_per_second: f64,
    /// Messages whose contents were checked.
    pub verified: u64,
}

impl BandwidthLine {
    /// Of what arrived.
    pub fn bytes_per_second(&self) -> f64 {
        self.arrived as f64 * f64::from(self.bytes) / self.seconds.max(1e-9)
    }

    /// In the best window of the run.
    pub fn peak_bytes_per_second(&self) -> f64 {
        // Of a run that is shorter than a window, the average is the peak.
        (self.peak_messages_per_second * f64::from(self.bytes)).max(self.bytes_per_second())
    }

    /// Of what arrived.
    pub fn messages_per_second(&self) -> f64 {
        self.arrived as f64 / self.seconds.max(1e-9)
    }

    /// Messages that did not arrive.
    pub fn lost(&self) -> u64 {
        self.iterations.saturating_sub(self.arrived)
    }
}

/// One size of a latency test: one-way times; of READs and atomics, there and back.
pub struct LatencyLine {
    /// Bytes of a message.
    pub bytes: u32,
    /// The times.
    pub microseconds: Sorted,
    /// Messages that did not arrive.
    pub lost: u64,
}

/// The result of messages with a scheme.
pub struct SchemeLine {
    /// One message at a time.
    pub is_latency: bool,
    /// From handing a message over to its being reported as done.
    pub completion: Histogram,
    /// Bandwidth.
    pub bandwidth: BandwidthLine,
    /// What the sender has counted.
    pub sender: SchemeTotals,
    /// What the receiver has counted.
    pub receiver: SchemeTotals,
    /// What checksums cost.
    pub checksum: Option<ChecksumCost>,
}

impl SchemeLine {
    /// As the sender has measured it.
    pub fn round_trip_us(&self) -> Option<f64> {
        self.sender.round_trip.map(|round_trip| round_trip.as_secs_f64() * 1e6)
    }

    /// How long each end did not look at anything at most: without a processor, or busy with what it had taken. A
    /// message in flight then takes as long.
    pub fn longest_pauses_us(&self) -> [f64; 2] {
        [self.sender, self.receiver].map(|totals| totals.longest_pause.as_secs_f64() * 1e6)
    }

    /// Data packets that were sent again.
    pub fn repeated(&self) -> u64 {
        self.sender.data_packets_repeated
    }

    /// Packets that the receiver had already. One that comes after its message has ended is one too, unless there is
    /// parity, which is often still in flight when the data is complete and cannot be distinguished from data then:
    /// `late_packets` has both.
    pub fn duplicates(&self) -> u64 {
        let has_parity = self.sender.parity_packets_sent > 0;
        self.receiver.duplicate_packets + if has_parity { 0 } else { self.receiver.late_packets }
    }
}

/// What a server has measured with one client.
pub struct ServerReport {
    /// What was measured.
    pub test: Test,
    /// With which schemes, if any.
    pub schemes: Option<SchemeList>,
    /// The client's address.
    pub client: IpAddr,
    /// The client's device, for people.
    pub client_device: String,
    /// The server's.
    pub server_device: String,
    /// A row for each size.
    pub results: Vec<ServerRow>,
    /// The first contents that were wrong.
    pub mismatch: Option<String>,
    /// The device at the end.
    pub finish: Finish,
}

/// One size, as a server sees it.
pub struct ServerRow {
    /// Bytes of a message.
    pub bytes: u32,
    /// Messages that have arrived.
    pub messages_received: u64,
    /// Messages whose contents were checked.
    pub messages_verified: u64,
}
