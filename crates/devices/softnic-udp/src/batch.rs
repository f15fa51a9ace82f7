//! What is to be sent in one call: equal datagrams to one destination, cut apart by the kernel.
//!
//! ```text
//!   own bytes:   [headers 0][ICRC 0 | headers 1][ICRC 1 | headers 2][ICRC 2]
//!   parts:            │    ╲      │        ╲       │       ╲        │
//!                     │  payload 0│      payload 1 │     payload 2  │
//!                        (where it lies in memory of the program)
//! ```
//!
//! A payload in one piece stays where it lies until the call; small and scattered ones are copied next to their headers. The
//! ICRC of the i-th datagram is computed with identification i, which is what the kernel writes.
//!
//! Processes may share the port at the destination, each with a part of the queue pair numbers ([`crate::sharing`]). A call arrives
//! there as a whole, at the process of its first datagram, so a batch is for one part only.
#![allow(unsafe_code, reason = "points at payload in memory of programs")]

use std::io;
use std::net::SocketAddr;

use longhaul_softnic::{Outgoing, OutgoingPayload, Piece};
use longhaul_wire::IcrcScope;
use longhaul_wire::icrc::{self, ICRC_BYTES};

use crate::sharing::part_of;
use crate::socket::{Part, Socket, part};
use crate::way::Way;

/// The most that one call takes: what an IP packet can hold.
const CALL_BYTES_MAX: usize = 65_507;
/// Linux took 64 segments in one call before it took 128.
const SEGMENTS_MAX: usize = 64;
/// A payload up to this size is copied: that is cheaper than two more parts.
const COPY_BYTES_MAX: usize = 512;

/// Datagrams that leave in one call.
pub(crate) struct Batch {
    /// Headers, copied payloads, ICRCs. Never moves while parts point into it.
    own: Box<[u8]>,
    own_used: usize,
    parts: Vec<Part>,
    /// Where each datagram lies.
    datagrams: Vec<Datagram>,
    destination: Option<(Way, IcrcScope)>,
    /// The part of the queue pair numbers that all are for.
    number_part: Option<u8>,
    /// Bytes of each datagram but the last.
    segment_bytes: usize,
    bytes: usize,
    /// The datagrams left in calls of their own, each with identification 0.
    is_sent_singly: bool,
}

#[derive(Clone, Copy)]
struct Datagram {
    /// In `own`.
    start: usize,
    header_bytes: usize,
    payload: Option<Piece>,
    /// In `own`: where what follows the headers (and the payload, if that is elsewhere) begins and ends, ICRC included.
    tail: (usize, usize),
}

/// Cache lines of the next payload to ask for. Once the first are read in order the processor fetches the others by itself.
const PREFETCH_LINES: usize = 8;

/// Have the processor fetch the beginning of what follows a payload, most likely the next one, while the ICRC of this one is
/// computed: payloads are pages, and processors do not fetch ahead beyond a page.
fn prefetch_after(payload: Piece) {
    #[cfg(target_arch = "x86_64")]
    for offset in (payload.bytes..2 * payload.bytes).step_by(64).take(PREFETCH_LINES) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint; it may name any address, and faults at none.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(payload.memory.wrapping_add(offset).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = payload;
}

// SAFETY: the pointers are followed only while the device that filled the batch is locked, by whichever thread holds it.
unsafe impl Send for Batch {}

impl Batch {
    pub(crate) fn new() -> Self {
        Batch {
            own: vec![0; CALL_BYTES_MAX].into_boxed_slice(),
            own_used: 0,
            parts: Vec::with_capacity(4 * SEGMENTS_MAX),
            datagrams: Vec::with_capacity(SEGMENTS_MAX),
            destination: None,
            number_part: None,
            segment_bytes: 0,
            bytes: 0,
            is_sent_singly: false,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.datagrams.len()
    }

    pub(crate) fn way(&self) -> Option<Way> {
        self.destination.map(|(way, _)| way)
    }

    /// Whether a datagram can go with those in the batch.
    pub(crate) fn takes(&self, way: &Way, datagram: &Outgoing<'_>, offload: bool) -> bool {
        let bytes = datagram.len();
        match self.destination {
            None => true,
            Some((to, _)) => {
                offload
                    && to == *way
                    && self.number_part == part_of(datagram.headers())
                    && bytes <= self.segment_bytes
                    // A shorter one ends the batch.
                    && self.bytes == self.segment_bytes * self.datagrams.len()
                    && self.bytes + bytes <= CALL_BYTES_MAX
                    && self.datagrams.len() < SEGMENTS_MAX
            }
        }
    }

    /// Add a datagram that the batch [`takes`](Batch::takes).
    pub(crate) fn push(&mut self, way: &Way, scope: IcrcScope, datagram: &Outgoing<'_>) {
        let identification = self.datagrams.len() as u16;
        if self.datagrams.is_empty() {
            self.destination = Some((*way, scope));
            self.number_part = part_of(datagram.headers());
            self.segment_bytes = datagram.len();
        }
        let start = self.own_used;
        let header_bytes = datagram.headers().len();
        let in_place = match datagram.payload() {
            OutgoingPayload::Registered(gathered) if gathered.len() > COPY_BYTES_MAX => gathered.one_piece(),
            _ => None,
        };
        match in_place {
            Some(payload) => {
                prefetch_after(payload);
                let tail_bytes = datagram.pad_bytes() + ICRC_BYTES;
                let own = &mut self.own[start..start + header_bytes + tail_bytes];
                own[..header_bytes].copy_from_slice(datagram.headers());
                own[header_bytes..].fill(0);
                let (tail_start, end) = (start + header_bytes, start + header_bytes + tail_bytes);
                self.push_own(start, tail_start);
                self.parts.push(part(payload.memory, payload.bytes));
                self.push_own(tail_start, end);
                self.datagrams.push(Datagram { start, header_bytes, payload: Some(payload), tail: (tail_start, end) });
                self.own_used = end;
            }
            None => {
                let end = start + datagram.len();
                datagram.write_to(&mut self.own[start..end]);
                self.push_own(start, end);
                self.datagrams.push(Datagram { start, header_bytes, payload: None, tail: (start + header_bytes, end) });
                self.own_used = end;
            }
        }
        self.bytes += datagram.len();
        self.write_icrc(usize::from(identification), identification);
    }

    /// Own bytes follow own bytes: the last part grows.
    fn push_own(&mut self, start: usize, end: usize) {
        let memory = self.own[start..end].as_mut_ptr();
        match self.parts.last_mut() {
            Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == memory => {
                last.iov_len += end - start;
            }
            _ => self.parts.push(part(memory, end - start)),
        }
    }

    /// A datagram as it lies: headers, payload, and what follows them with the ICRC. A copied payload is in the last piece.
    fn pieces(&self, index: usize) -> [&[u8]; 3] {
        let Datagram { start, header_bytes, payload, tail } = self.datagrams[index];
        let payload = match payload {
            None => &[],
            // SAFETY: registered memory of a device that is locked (`Gathered`) for longer than the batch is not empty, read
            // here as the kernel reads it. No caller keeps the slice. A program that changes the bytes meanwhile breaks the
            // rules of verbs, and the worst that comes of it is a wrong ICRC.
            Some(payload) => unsafe { std::slice::from_raw_parts(payload.memory, payload.bytes) },
        };
        [&self.own[start..start + header_bytes], payload, &self.own[tail.0..tail.1]]
    }

    fn write_icrc(&mut self, index: usize, identification: u16) {
        let Some((_, scope)) = self.destination else { return };
        let [headers, payload, tail] = self.pieces(index);
        let covered_tail = &tail[..tail.len() - ICRC_BYTES];
        let value = icrc::compute_parts(&scope.of_segment(identification), headers, &[payload, covered_tail]);
        let end = self.datagrams[index].tail.1;
        self.own[end - ICRC_BYTES..end].copy_from_slice(&value.to_le_bytes());
    }

    /// Send everything in one call. The batch stays as it is.
    pub(crate) fn send(&self, socket: &Socket, destination: SocketAddr) -> io::Result<()> {
        let segment_bytes = (self.datagrams.len() > 1).then_some(self.segment_bytes as u16);
        // SAFETY: the parts are own bytes and payloads in registered memory of a device that is locked.
        unsafe { socket.send(destination, &self.parts, segment_bytes) }
    }

    /// Send one call for each datagram, for kernels and devices without segmentation offload. How many have left, and why
    /// not all.
    pub(crate) fn send_singly(&mut self, socket: &Socket, destination: SocketAddr) -> (usize, io::Result<()>) {
        self.is_sent_singly = true;
        for index in 0..self.datagrams.len() {
            self.write_icrc(index, 0);
            let mut parts = Vec::with_capacity(3);
            let Datagram { start, header_bytes, payload, tail } = self.datagrams[index];
            parts.push(part(self.own[start..].as_mut_ptr(), header_bytes));
            parts.extend(payload.map(|payload| part(payload.memory, payload.bytes)));
            parts.push(part(self.own[tail.0..].as_mut_ptr(), tail.1 - tail.0));
            // SAFETY: as in `send`.
            if let Err(error) = unsafe { socket.send(destination, &parts, None) } {
                return (index, Err(error));
            }
        }
        (self.datagrams.len(), Ok(()))
    }

    /// The first datagrams, as they have left: each with its identification, in up to three pieces.
    pub(crate) fn for_each_sent(&self, count: usize, mut take: impl FnMut(u16, &[&[u8]])) {
        for index in 0..count {
            let identification = if self.is_sent_singly { 0 } else { index as u16 };
            take(identification, &self.pieces(index));
        }
    }

    /// Copies of the datagrams from `first` on, each complete with the ICRC for being sent alone.
    pub(crate) fn copy_out(&mut self, first: usize, mut take: impl FnMut(Vec<u8>)) {
        for index in first..self.datagrams.len() {
            self.write_icrc(index, 0);
            take(self.pieces(index).concat());
        }
    }

    pub(crate) fn clear(&mut self) {
        self.own_used = 0;
        self.parts.clear();
        self.datagrams.clear();
        self.destination = None;
        self.bytes = 0;
        self.is_sent_singly = false;
    }
}
