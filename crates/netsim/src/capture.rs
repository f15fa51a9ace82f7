//! Captures in pcapng, with virtual time, for Wireshark and tshark.
//!
//! A capture is one file with an interface for each node or link that it watches. Timestamps are nanoseconds of
//! virtual time, so the origin of the simulation is shown as 1970-01-01. Frames are IP packets without a link layer
//! (link type RAW, 101). A frame with elided payload is written as a packet of which only the first bytes were
//! captured; readers know that as a snapshot length. A damaged or marked frame is written as whoever is watched saw
//! it: undamaged where it was sent, damaged where it arrived.

use std::borrow::Cow;
use std::io::Write;
use std::time::Duration;

use longhaul_time::Instant;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::{DataLink, PcapError};

use crate::frame::Frame;

/// A capture being written.
pub struct Capture {
    writer: PcapNgWriter<Box<dyn Write + Send>>,
    snap_bytes: usize,
    file_bytes_max: u64,
    file_bytes: u64,
    interface_count: u32,
    summary: CaptureSummary,
    /// The first error of writing; nothing is written after it.
    failure: Option<PcapError>,
}

/// What became of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureSummary {
    /// Frames in the file.
    pub frames_written: u64,
    /// Frames left out because the file had reached its limit.
    pub frames_left_out: u64,
}

/// Whether a watched node sent or received a frame.
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
    #[error("expected to write a capture, and could not; is there room where it is written?")]
    Write(#[source] PcapError),
    /// The file could not be finished.
    #[error("expected to write the last of a capture, and could not; is there room where it is written?")]
    Flush(#[source] std::io::Error),
    /// There is no capture.
    #[error("expected a capture, came none: start one first")]
    NotStarted,
}

impl Capture {
    /// A file grows to this unless told.
    pub const FILE_BYTES_MAX: u64 = 1 << 30;

    /// Begins a capture. Every frame is one write: give a buffered writer.
    pub fn new(writer: impl Write + Send + 'static) -> Result<Self, CaptureError> {
        let writer: Box<dyn Write + Send> = Box::new(writer);
        Ok(Capture {
            writer: PcapNgWriter::new(writer).map_err(CaptureError::Write)?,
            snap_bytes: usize::MAX,
            file_bytes_max: Self::FILE_BYTES_MAX,
            file_bytes: 0,
            interface_count: 0,
            summary: CaptureSummary::default(),
            failure: None,
        })
    }

    /// Writes at most so many bytes of each frame.
    pub fn with_snap_bytes(mut self, snap_bytes: usize) -> Self {
        self.snap_bytes = snap_bytes;
        self
    }

    /// Stops writing when the file has about this size.
    pub fn with_file_bytes_max(mut self, file_bytes_max: u64) -> Self {
        self.file_bytes_max = file_bytes_max;
        self
    }

    /// Adds something to watch; returns its number.
    pub fn add_interface(&mut self, name: &str) -> Result<u32, CaptureError> {
        let block = InterfaceDescriptionBlock {
            linktype: DataLink::RAW,
            snaplen: u32::try_from(self.snap_bytes).unwrap_or(0),
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
                // 10^-9 s: without it readers assume microseconds, and the writer counts nanoseconds in any case.
                InterfaceDescriptionOption::IfTsResol(9),
            ],
        };
        self.writer.write_pcapng_block(block).map_err(CaptureError::Write)?;
        self.interface_count += 1;
        Ok(self.interface_count - 1)
    }

    /// Writes a frame. An error is kept for [`finish`](Self::finish).
    pub fn record(&mut self, interface: u32, now: Instant, frame: &Frame, direction: CaptureDirection) {
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
            timestamp: Duration::from_nanos(now.as_nanos()),
            original_len: frame.wire_bytes(),
            data: Cow::Borrowed(&frame.bytes[..frame.bytes.len().min(self.snap_bytes)]),
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

    /// Writes what is buffered.
    pub fn finish(self) -> Result<CaptureSummary, CaptureError> {
        if let Some(failure) = self.failure {
            return Err(CaptureError::Write(failure));
        }
        self.writer.into_inner().flush().map_err(CaptureError::Flush)?;
        Ok(self.summary)
    }
}
