//! What passes a port, as a pcapng file that Wireshark and tshark open.
//!
//! The kernel's headers are not seen by a socket, so they are written anew around each datagram. What the ICRC covers is as on
//! the wire: the identification of what is sent is known, and that of what came is the one that makes the ICRC right (0 when
//! there is none, that is, when the packet is damaged). UDP checksums, which ICRC does not cover, are left out.
//!
//! Where there is a bad network in process, the capture stands between its two directions ([`ImpairmentLayer`](longhaul_softnic::ImpairmentLayer)): what is sent is
//! shown as it is handed to the port, and what arrives as it is handed to the ICRC check, both late, repeated and damaged as they
//! are then, and without what was lost.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use longhaul_capture::{Capture, CaptureDirection, CaptureError, CaptureSummary};
use longhaul_softnic::{Direction, Envelope, Layer, Onward};
use longhaul_time::{Duration, Instant};
use longhaul_wire::{IcrcScope, OrdinaryHeaders, icrc};

/// For so long a packet may be in memory and not yet in the file.
const FLUSH_AFTER: Duration = Duration::from_millis(200);
const BUFFER_BYTES: usize = 1 << 20;

/// A capture of one port. It is complete when it is dropped.
pub(crate) struct CaptureLayer {
    /// There until the end.
    capture: Option<Capture>,
    interface: u32,
    path: PathBuf,
    packet: Vec<u8>,
    flush_at: Option<Instant>,
}

impl CaptureLayer {
    /// Begin a capture in a new file, or in place of one that is there.
    pub(crate) fn create(path: &Path, device_name: &str) -> io::Result<CaptureLayer> {
        let file = BufWriter::with_capacity(BUFFER_BYTES, File::create(path)?);
        let mut capture = Capture::new(file).map_err(io::Error::other)?;
        let interface = capture.add_interface(device_name).map_err(io::Error::other)?;
        Ok(CaptureLayer {
            capture: Some(capture),
            interface,
            path: path.to_owned(),
            packet: Vec::new(),
            flush_at: None,
        })
    }

    /// Say when the origin of all instants was, counted from 1970.
    pub(crate) fn set_origin(&mut self, since_1970: Duration) {
        if let Some(capture) = &mut self.capture {
            capture.set_origin(since_1970);
        }
    }

    /// Write everything, and say whether the file is complete.
    pub(crate) fn finish(mut self) -> Result<CaptureSummary, CaptureError> {
        self.capture.take().map_or_else(|| Ok(CaptureSummary::default()), Capture::finish)
    }
}

impl Layer for CaptureLayer {
    fn only_watches(&self) -> bool {
        true
    }

    fn watch(&mut self, direction: Direction, envelope: &Envelope, datagram: &[u8], now: Instant) {
        let scope = IcrcScope::between(envelope.source, envelope.destination);
        let solved = || scope.and_then(|scope| icrc::solve_identification(&scope, datagram));
        let headers = OrdinaryHeaders {
            source: envelope.source,
            destination: envelope.destination,
            traffic_class: envelope.traffic_class,
            hop_limit: envelope.hop_limit,
            identification: envelope.identification.or_else(solved).unwrap_or(0),
        };
        self.packet.clear();
        self.packet.resize(headers.byte_count(), 0);
        self.packet.extend_from_slice(datagram);
        // Both ends are of one family, and it has been, or is about to be, an IP packet.
        if headers.emit(datagram.len(), &mut self.packet).is_err() {
            return;
        }
        if let Some(capture) = &mut self.capture {
            let direction = match direction {
                Direction::Outgoing => CaptureDirection::Sent,
                Direction::Incoming => CaptureDirection::Received,
            };
            let wire_bytes = self.packet.len() as u32 + envelope.elided_bytes;
            capture.record(self.interface, now, &self.packet, wire_bytes, direction);
            self.flush_at.get_or_insert(now + FLUSH_AFTER);
        }
    }

    /// Write to the file what has been in memory for long enough.
    fn poll(&mut self, _now: Instant, _onward: &mut Onward<'_>) {
        self.flush_at = None;
        if let Some(capture) = &mut self.capture {
            capture.flush();
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.flush_at
    }
}

impl Drop for CaptureLayer {
    fn drop(&mut self) {
        let path = self.path.display();
        match self.capture.take().map(Capture::finish) {
            Some(Err(error)) => tracing::warn!(%error, "the capture {path} is not complete"),
            Some(Ok(summary)) if summary.frames_left_out > 0 => tracing::warn!(
                "the capture {path} has reached its greatest size: {} packets are in it, {} are not",
                summary.frames_written,
                summary.frames_left_out
            ),
            _ => {}
        }
    }
}
