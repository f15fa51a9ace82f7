//! What passes a port, as a pcapng file that Wireshark and tshark open.
//!
//! The kernel's headers are not seen by a socket, so they are written anew around each datagram. What the ICRC covers is as on
//! the wire: the identification of what is sent is known, and that of what came is the one that makes the ICRC right (0 when
//! there is none, that is, when the packet is damaged). UDP checksums, which ICRC does not cover, are left out.
//!
//! With a bad network in between ([`super::impaired`]), what is sent is shown as it is handed to the socket, and what came as the
//! ICRC check is given it: both late, repeated and damaged as they are then, and without what was lost.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use longhaul_capture::{Capture, CaptureDirection, CaptureError, CaptureSummary};
use longhaul_time::{Duration, Instant};
use longhaul_wire::{IcrcScope, OrdinaryHeaders, icrc};

use super::port::Way;
use super::receive::Origin;

/// For so long a packet may be in memory and not yet in the file.
const FLUSH_AFTER: Duration = Duration::from_millis(200);
const BUFFER_BYTES: usize = 1 << 20;

/// A capture of one port. It is complete when it is dropped.
pub(super) struct PortCapture {
    /// There until the end.
    capture: Option<Capture>,
    interface: u32,
    path: PathBuf,
    packet: Vec<u8>,
    flush_at: Option<Instant>,
}

impl PortCapture {
    /// Begin a capture in a new file, or in place of one that is there.
    pub(super) fn create(path: &Path, device_name: &str) -> io::Result<PortCapture> {
        let file = BufWriter::with_capacity(BUFFER_BYTES, File::create(path)?);
        let mut capture = Capture::new(file).map_err(io::Error::other)?;
        let interface = capture.add_interface(device_name).map_err(io::Error::other)?;
        Ok(PortCapture { capture: Some(capture), interface, path: path.to_owned(), packet: Vec::new(), flush_at: None })
    }

    /// Say when the origin of all instants was, counted from 1970.
    pub(super) fn set_origin(&mut self, since_1970: Duration) {
        if let Some(capture) = &mut self.capture {
            capture.set_origin(since_1970);
        }
    }

    /// A datagram in pieces, complete with ICRC, was given to the kernel.
    pub(super) fn sent(&mut self, way: &Way, identification: u16, pieces: &[&[u8]], now: Instant) {
        let headers = OrdinaryHeaders {
            source: way.source(),
            destination: way.destination(),
            traffic_class: way.route.traffic_class,
            hop_limit: way.route.hop_limit.max(1),
            identification,
        };
        self.record(&headers, pieces, CaptureDirection::Sent, now);
    }

    /// A datagram has arrived and is about to be checked.
    pub(super) fn received(&mut self, from: &Origin<'_>, datagram: &[u8], now: Instant) {
        let scope = IcrcScope::between(from.arrival.source, from.local);
        let identification = scope.and_then(|scope| icrc::solve_identification(&scope, datagram));
        let headers = OrdinaryHeaders {
            source: from.arrival.source,
            destination: from.local,
            traffic_class: from.arrival.traffic_class,
            hop_limit: from.arrival.hop_limit,
            identification: identification.unwrap_or(0),
        };
        self.record(&headers, &[datagram], CaptureDirection::Received, now);
    }

    fn record(&mut self, headers: &OrdinaryHeaders, pieces: &[&[u8]], direction: CaptureDirection, now: Instant) {
        self.packet.clear();
        self.packet.resize(headers.byte_count(), 0);
        for piece in pieces {
            self.packet.extend_from_slice(piece);
        }
        let datagram_bytes = self.packet.len() - headers.byte_count();
        // Both ends are of one family, and it has been, or is about to be, an IP packet.
        if headers.emit(datagram_bytes, &mut self.packet).is_err() {
            return;
        }
        if let Some(capture) = &mut self.capture {
            let wire_bytes = self.packet.len() as u32;
            capture.record(self.interface, now, &self.packet, wire_bytes, direction);
            self.flush_at.get_or_insert(now + FLUSH_AFTER);
        }
    }

    /// Write everything, and say whether the file is complete.
    pub(super) fn finish(mut self) -> Result<CaptureSummary, CaptureError> {
        self.capture.take().map_or_else(|| Ok(CaptureSummary::default()), Capture::finish)
    }

    /// When the file should be written to.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.flush_at
    }

    /// Write to the file what has been in memory for long enough.
    pub(super) fn flush_due(&mut self, now: Instant) {
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush_at = None;
            if let Some(capture) = &mut self.capture {
                capture.flush();
            }
        }
    }
}

impl Drop for PortCapture {
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
