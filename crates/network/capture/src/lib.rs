//! Captures in pcapng, for Wireshark and tshark, of simulated networks and of real ports alike.
//!
//! A capture is one file with an interface for each node, link or port that it watches. Packets are IP packets without
//! a link layer (link type RAW, 101), or Ethernet frames. A packet of which some bytes exist only as a length is written as one of which
//! only the first bytes were captured; readers know that as a snapshot length.
//!
//! Time is an argument, as everywhere. Timestamps are nanoseconds since the origin of the watched end's driver, which
//! is shown as 1970-01-01 (virtual time), or as the date given to [`Capture::set_origin`] (real time).

use std::borrow::Cow;
use std::io::Write;
use std::time::Duration;

use longhaul_time::Instant;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::{DataLink, PcapError};

/// A capture being written.
pub struct Capture {
    writer: PcapNgWriter<Box<dyn Write + Send>>,
    snap_bytes: usize,
    file_bytes_max: u64,
    file_bytes: u64,
    origin: Duration,
    interface_count: u32,
    summary: CaptureSummary,
    /// The first error of writing; nothing is written after it.
    failure: Option<PcapError>,
}

/// What became of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureSummary {
    /// Packets in the file.
    pub frames_written: u64,
    /// Packets left out because the file had reached its limit.
    pub frames_left_out: u64,
}

/// Whether the watched end sent or received a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureDirection {
    /// Outbound.
    Sent,
    /// Inbound.
    Received,
}

/// Why a capture could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The file could not be written.
    #[error("the capture is not complete: it could not be written; is the disk full?")]
    Write(#[source] std::io::Error),
    /// What was to be written does not fit the format.
    #[error("the capture is not complete: what was recorded cannot be written as pcapng")]
    Format(#[source] PcapError),
    /// There is no capture.
    #[error("there is no capture: start one first")]
    NotStarted,
}

impl From<PcapError> for CaptureError {
    fn from(error: PcapError) -> Self {
        match error {
            // Without the library's own words for it, which are of reading.
            PcapError::IoError(error) => CaptureError::Write(error),
            error => CaptureError::Format(error),
        }
    }
}

impl Capture {
    /// A file grows to this by default.
    pub const FILE_BYTES_MAX: u64 = 1 << 30;

    /// Begins a capture. Every packet is one write: give a buffered writer.
    pub fn new(writer: impl Write + Send + 'static) -> Result<Self, CaptureError> {
        let writer: Box<dyn Write + Send> = Box::new(writer);
        Ok(Capture {
            writer: PcapNgWriter::new(writer)?,
            snap_bytes: usize::MAX,
            file_bytes_max: Self::FILE_BYTES_MAX,
            file_bytes: 0,
            origin: Duration::ZERO,
            interface_count: 0,
            summary: CaptureSummary::default(),
            failure: None,
        })
    }

    /// Writes at most this many bytes of each packet.
    pub fn with_snap_bytes(mut self, snap_bytes: usize) -> Self {
        self.snap_bytes = snap_bytes;
        self
    }

    /// Stops writing when the file has about this size.
    pub fn with_file_bytes_max(mut self, file_bytes_max: u64) -> Self {
        self.file_bytes_max = file_bytes_max;
        self
    }

    /// Says when the origin of all instants was, counted from 1970-01-01 UTC.
    pub fn set_origin(&mut self, since_1970: Duration) {
        self.origin = since_1970;
    }

    /// Adds something to watch whose packets are IP packets; returns its number.
    pub fn add_interface(&mut self, name: &str) -> Result<u32, CaptureError> {
        self.add(name, DataLink::RAW)
    }

    /// Adds something to watch whose packets are Ethernet frames, without a check sequence; returns its number.
    pub fn add_ethernet_interface(&mut self, name: &str) -> Result<u32, CaptureError> {
        self.add(name, DataLink::ETHERNET)
    }

    fn add(&mut self, name: &str, linktype: DataLink) -> Result<u32, CaptureError> {
        let block = InterfaceDescriptionBlock {
            linktype,
            snaplen: u32::try_from(self.snap_bytes).unwrap_or(0),
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
                // 10^-9 s: without it readers assume microseconds, and the writer counts nanoseconds in any case.
                InterfaceDescriptionOption::IfTsResol(9),
            ],
        };
        self.writer.write_pcapng_block(block)?;
        self.interface_count += 1;
        Ok(self.interface_count - 1)
    }

    /// Writes a packet. `wire_bytes` is its length on the wire, which is more than `packet` holds when bytes of it
    /// exist only as a length. An error is kept for [`finish`](Self::finish).
    pub fn record(
        &mut self,
        interface: u32,
        now: Instant,
        packet: &[u8],
        wire_bytes: u32,
        direction: CaptureDirection,
    ) {
        if self.failure.is_some() {
            return;
        }
        if self.file_bytes >= self.file_bytes_max {
            self.summary.frames_left_out += 1;
            return;
        }
        let flags = match direction {
            CaptureDirection::Received => 0b01,
            CaptureDirection::Sent => 0b10,
        };
        let packet = EnhancedPacketBlock {
            interface_id: interface,
            timestamp: self.origin.saturating_add(Duration::from_nanos(now.as_nanos())),
            original_len: wire_bytes,
            data: Cow::Borrowed(&packet[..packet.len().min(self.snap_bytes)]),
            options: vec![EnhancedPacketOption::Flags(flags)],
        };
        match self.writer.write_pcapng_block(packet) {
            Ok(written_bytes) => {
                self.file_bytes += written_bytes as u64;
                self.summary.frames_written += 1;
            }
            Err(failure) => self.failure = Some(failure),
        }
    }

    /// Writes what is buffered, so that somebody else can read all that was recorded so far. An error is kept for
    /// [`finish`](Self::finish).
    pub fn flush(&mut self) {
        if self.failure.is_none()
            && let Err(error) = self.writer.get_mut().flush()
        {
            self.failure = Some(PcapError::IoError(error));
        }
    }

    /// Writes what is buffered, and says what became of everything.
    pub fn finish(self) -> Result<CaptureSummary, CaptureError> {
        if let Some(failure) = self.failure {
            return Err(failure.into());
        }
        self.writer.into_inner().flush().map_err(CaptureError::Write)?;
        Ok(self.summary)
    }
}
