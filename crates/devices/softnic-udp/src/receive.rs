//! From a socket to the device: one call, many datagrams, each checked.
//!
//! In the middle of a long WRITE, or of a run of short ones, the datagrams' payloads are received where they belong, and only headers and ICRCs next to
//! each other into the port's own buffer:
//!
//! ```text
//!   own bytes:   [headers 0][ICRC 0 | headers 1][ICRC 1 | headers 2] … [ICRC n-1 | whatever follows]
//!   parts:            │    ╲      │        ╲       │       ╲
//!                     │  payload 0│      payload 1 │     payload 2        (where it belongs in registered memory)
//! ```
//!
//! Should something else arrive than was expected, everything is put together in the order in which it came, and taken as if
//! nothing had been expected. See [`ExpectedPackets`] for why a wrong guess does no harm.
#![allow(unsafe_code, reason = "receives into registered memory")]

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};

use longhaul_softnic::{Envelope, ExpectedPackets, NicGuard, Received};
use longhaul_time::Instant;
use longhaul_wire::icrc::{self, ICRC_BYTES, IdentificationTracker, Verdict};
use longhaul_wire::{IcrcScope, bth, packet};

use crate::sharing::are_mixed;
use crate::socket::{Arrival, Part, Socket, part};

/// The most that one call gives: what an IP packet can hold.
const CALL_BYTES_MAX: usize = 1 << 16;
/// What each packet that is received in place has in the own buffer, at most: headers and ICRC.
const SLOT_BYTES_MAX: usize = ExpectedPackets::HEADER_BYTES_MAX + ICRC_BYTES;
/// The most packets that one call gives: the smallest payload worth a scatter list.
const SLOTS_MAX: usize = 64;
/// Senders whose identifications are followed. When there are more, all are forgotten: that costs each one weaker check.
const SENDERS_MAX: usize = 4096;

/// The receiving side of a port.
pub(crate) struct Receiving {
    /// Slots of packets that are received in place, then whatever follows them.
    buffer: Box<[u8]>,
    /// Where datagrams are put together after a wrong guess.
    assembled: Box<[u8]>,
    parts: Vec<Part>,
    in_place: bool,
    /// Other processes receive at the same port.
    shares_port: bool,
    checks: Checks,
}

// SAFETY: the parts are written and used within one call of `receive`, under the device's lock.
unsafe impl Send for Receiving {}

impl Receiving {
    pub(crate) fn new(in_place: bool, shares_port: bool) -> Self {
        Receiving {
            buffer: vec![0; SLOTS_MAX * SLOT_BYTES_MAX + CALL_BYTES_MAX].into_boxed_slice(),
            assembled: vec![0; SLOTS_MAX * SLOT_BYTES_MAX + CALL_BYTES_MAX].into_boxed_slice(),
            parts: Vec::with_capacity(2 * SLOTS_MAX + 1),
            in_place,
            shares_port,
            checks: Checks::default(),
        }
    }

    /// One call to the kernel. How many bytes came; `None` when nothing has arrived.
    pub(crate) fn receive(&mut self, listener: &Socket, nic: &mut NicGuard<'_>, now: Instant) -> Option<usize> {
        let expected = if self.in_place { nic.expected_packets(SLOTS_MAX) } else { None };
        let Some(mut expected) = expected else {
            return self.receive_each(listener, |checks, from, datagram| checks.take(from, datagram, nic, now));
        };
        // More do not come in one call; each part costs.
        expected.truncate(CALL_BYTES_MAX / expected.packet_bytes());
        self.point_parts_at(&expected);
        // SAFETY: the parts are the own buffer, which is ours alone, and registered memory of a device that stays locked
        // until this function is done with it, in bytes that nobody may look at yet (`ExpectedPackets`).
        let arrival = arrived(unsafe { listener.receive(&mut self.parts) })?;
        let from = Origin::of(&arrival, listener);
        self.checks.begins_batch = true;
        self.take_expected(listener, &expected, &arrival, &from, nic, now);
        Some(arrival.bytes)
    }

    /// If what has arrived together is for several processes, the others' packets are lost. It will not happen again.
    fn separate_if_mixed<'a>(&self, listener: &Socket, datagrams: impl Iterator<Item = &'a [u8]>) {
        if self.shares_port && are_mixed(datagrams) {
            tracing::debug!("packets for several processes were joined; the kernel joins no more here");
            // A kernel that joins them can be told not to.
            let _ = listener.disable_receive_offload();
        }
    }

    /// One call to the kernel, nothing in place, each datagram handed to `each`. How many bytes came; `None` when nothing has
    /// arrived.
    pub(crate) fn receive_each(
        &mut self,
        listener: &Socket,
        mut each: impl FnMut(&mut Checks, &Origin, &[u8]),
    ) -> Option<usize> {
        let arrival = arrived(listener.receive_one(&mut self.buffer[..CALL_BYTES_MAX]))?;
        let from = Origin::of(&arrival, listener);
        self.checks.begins_batch = true;
        self.separate_if_mixed(listener, cut(&self.buffer[..arrival.bytes], arrival.segment_bytes));
        for datagram in cut(&self.buffer[..arrival.bytes], arrival.segment_bytes) {
            each(&mut self.checks, &from, datagram);
        }
        Some(arrival.bytes)
    }

    /// What checks datagrams that were received with [`receive_each`](Receiving::receive_each) and held by layers.
    pub(crate) fn checks(&mut self) -> &mut Checks {
        &mut self.checks
    }

    /// Have the next call write payloads to where they are expected, and the rest to the own buffer.
    fn point_parts_at(&mut self, expected: &ExpectedPackets) {
        self.parts.clear();
        let mut own = 0;
        let slot_bytes = expected.header_bytes() + ICRC_BYTES;
        for index in 0..expected.count() {
            let payload = expected.payload(index);
            let end = index * slot_bytes + expected.header_bytes();
            self.parts.push(part(self.buffer[own..end].as_mut_ptr(), end - own));
            self.parts.push(part(payload.memory, payload.bytes));
            own = end;
        }
        self.parts.push(part(self.buffer[own..].as_mut_ptr(), ICRC_BYTES + CALL_BYTES_MAX));
    }

    /// Take datagrams of which the first `expected.count()` should be the expected ones.
    fn take_expected(
        &mut self,
        listener: &Socket,
        expected: &ExpectedPackets,
        arrival: &Arrival,
        from: &Origin,
        nic: &mut NicGuard<'_>,
        now: Instant,
    ) {
        let (header_bytes, packet_bytes) = (expected.header_bytes(), expected.packet_bytes());
        let slot_bytes = header_bytes + ICRC_BYTES;
        let in_slots = expected.count().min(arrival.bytes / packet_bytes);
        let is_as_expected = arrival.segment_bytes == packet_bytes
            // What is left over begins behind the last slot, or there is none.
            && (in_slots == expected.count() || arrival.bytes == in_slots * packet_bytes)
            && (0..in_slots).all(|index| expected.is_packet(index, &self.buffer[index * slot_bytes..][..header_bytes]));
        if !is_as_expected {
            nic.expect_nothing();
            self.assemble(arrival.bytes);
            self.separate_if_mixed(listener, cut(&self.assembled[..arrival.bytes], arrival.segment_bytes));
            for datagram in cut(&self.assembled[..arrival.bytes], arrival.segment_bytes) {
                self.checks.take(from, datagram, nic, now);
            }
            return;
        }
        for index in 0..in_slots {
            let slot = &self.buffer[index * slot_bytes..][..slot_bytes];
            let (headers, icrc) = slot.split_at(header_bytes);
            let icrc = u32::from_le_bytes(icrc.try_into().expect("a slot ends with an ICRC"));
            let payload = expected.payload(index);
            // SAFETY: registered memory of a device that is locked, just written by the kernel. The slice ends with the check;
            // a program that changes the bytes meanwhile, against the rules of verbs, makes the ICRC wrong at worst.
            let bytes = unsafe { std::slice::from_raw_parts(payload.memory, payload.bytes) };
            if self.checks.is_good(from, headers, &[bytes], icrc) {
                // SAFETY: `expected` is of this device, which has stayed locked since; `payload` has checked the index.
                unsafe { nic.handle_in_place(&self.checks.received(from, headers), payload, now) };
            } else {
                nic.count_icrc_error();
            }
        }
        let rest = &self.buffer[expected.count() * slot_bytes..];
        let rest = &rest[..arrival.bytes - in_slots * packet_bytes];
        let headers = (in_slots > 0).then(|| &self.buffer[..header_bytes]);
        self.separate_if_mixed(listener, headers.into_iter().chain(rest.chunks(packet_bytes)));
        for datagram in rest.chunks(packet_bytes) {
            self.checks.take(from, datagram, nic, now);
        }
    }

    /// Put what was received together, in order.
    fn assemble(&mut self, bytes: usize) {
        let mut done = 0;
        for part in &self.parts {
            let length = part.iov_len.min(bytes - done);
            let into = &mut self.assembled[done..done + length];
            // SAFETY: the kernel has just written these bytes of the part, which is as alive as it was for the call; the
            // own buffers are apart from each other and from registered memory.
            unsafe { std::ptr::copy_nonoverlapping(part.iov_base.cast::<u8>(), into.as_mut_ptr(), length) };
            done += length;
        }
    }
}

/// The datagrams that one call gave. An empty one is one too: somebody sent it, and it is counted.
fn cut(bytes: &[u8], segment_bytes: usize) -> impl Iterator<Item = &[u8]> {
    bytes.chunks(segment_bytes.max(1)).chain(bytes.is_empty().then_some(bytes))
}

/// What a call has received. An error is the socket's, about something sent long ago, and no reason to stop.
fn arrived(received: io::Result<Option<Arrival>>) -> Option<Arrival> {
    received.inspect_err(|error| tracing::debug!(%error, "a socket reports an error")).ok().flatten()
}

/// Where datagrams came from, and at which socket they arrived.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    source: SocketAddr,
    local: SocketAddr,
    traffic_class: u8,
    hop_limit: u8,
}

impl Origin {
    fn of(arrival: &Arrival, listener: &Socket) -> Origin {
        let Arrival { source, traffic_class, hop_limit, .. } = *arrival;
        Origin { source, local: listener.local(), traffic_class, hop_limit }
    }

    /// Of a packet that has passed the layers.
    pub(crate) fn of_packet(envelope: &Envelope) -> Origin {
        let Envelope { source, destination, traffic_class, hop_limit, .. } = *envelope;
        Origin { source, local: destination, traffic_class, hop_limit }
    }
}

/// Checks ICRCs.
#[derive(Default)]
pub(crate) struct Checks {
    /// The sender of the last datagram: by far most often that of the next.
    last: Option<(Addresses, IdentificationTracker)>,
    others: HashMap<Addresses, IdentificationTracker>,
    /// The next datagram is the first of a call.
    begins_batch: bool,
    /// Peers behind an address translator: what ICRC covers of IP and UDP headers is not what they sent.
    translated: HashSet<IpAddr>,
}

/// Source and destination.
type Addresses = (IpAddr, IpAddr);

impl Checks {
    /// Check a datagram and hand it to the device.
    pub(crate) fn take(&mut self, from: &Origin, datagram: &[u8], nic: &mut NicGuard<'_>, now: Instant) {
        if datagram.len() < packet::datagram_bytes(bth::HEADER_BYTES, 0) {
            nic.count_malformed();
            return;
        }
        let (covered, icrc) = datagram.split_at(datagram.len() - ICRC_BYTES);
        let icrc = u32::from_le_bytes(icrc.try_into().expect("four bytes"));
        if self.is_good(from, covered, &[], icrc) {
            nic.handle(&self.received(from, datagram), now);
        } else {
            nic.count_icrc_error();
        }
    }

    fn received<'a>(&self, from: &Origin, datagram: &'a [u8]) -> Received<'a> {
        Received {
            source: from.source.ip(),
            source_port: if self.is_translated(from.source.ip()) { 0 } else { from.source.port() },
            destination: from.local.ip(),
            traffic_class: from.traffic_class,
            hop_limit: from.hop_limit,
            datagram,
            elided_bytes: 0,
        }
    }

    /// What surrounds datagrams from there, for layers; `None` when the ends are of different families.
    pub(crate) fn envelope(&self, from: &Origin) -> Option<Envelope> {
        let icrc_scope = match self.is_translated(from.source.ip()) {
            true => IcrcScope::WITHOUT_ADDRESSES,
            false => IcrcScope::between(from.source, from.local)?,
        };
        Some(Envelope {
            source: from.source,
            destination: from.local,
            traffic_class: from.traffic_class,
            hop_limit: from.hop_limit,
            identification: None,
            icrc_scope,
            elided_bytes: 0,
        })
    }

    fn is_good(&mut self, from: &Origin, headers: &[u8], rest: &[&[u8]], icrc: u32) -> bool {
        if self.is_translated(from.source.ip()) {
            return icrc::compute_parts(&IcrcScope::WITHOUT_ADDRESSES, headers, rest) == icrc;
        }
        let Some(scope) = IcrcScope::between(from.source, from.local) else { return false };
        let begins_batch = std::mem::take(&mut self.begins_batch);
        let tracker = self.tracker((from.source.ip(), from.local.ip()));
        let expects_jumps = tracker.expects_jumps();
        match tracker.check_parts(&scope, headers, rest, icrc, begins_batch) {
            Verdict::Exact | Verdict::Predicted => true,
            Verdict::Solved => expects_jumps,
            Verdict::Bad => false,
        }
    }

    pub(crate) fn set_translated(&mut self, peer: IpAddr) {
        // Bounded: with more, the oldest agreements would have to be told from the newest.
        if self.translated.len() < SENDERS_MAX {
            self.translated.insert(peer);
        }
    }

    pub(crate) fn is_translated(&self, peer: IpAddr) -> bool {
        !self.translated.is_empty() && self.translated.contains(&peer)
    }

    fn tracker(&mut self, pair: Addresses) -> &mut IdentificationTracker {
        if self.last.as_ref().is_none_or(|(last, _)| *last != pair) {
            if self.others.len() >= SENDERS_MAX {
                self.others.clear();
            }
            let tracker = self.others.remove(&pair).unwrap_or_default();
            if let Some((pair, tracker)) = self.last.replace((pair, tracker)) {
                self.others.insert(pair, tracker);
            }
        }
        &mut self.last.as_mut().expect("set above").1
    }
}
