//! Where packets leave and arrive.
//!
//! The device hands over and takes in datagrams: BTH to ICRC, the payload of a UDP packet. Addresses, the IP header
//! and the ICRC (which covers fields of the IP header that only the port knows) are the port's:
//!
//! ```text
//!   Nic::poll ──▶ TransmitSink::transmit ──▶ port adds the ICRC ══ network ══ port checks the ICRC ──▶ Nic::handle
//! ```
//!
//! Between the device and its port may stand [`Layer`](crate::Layer)s, which see packets complete with ICRC. [`Layered`](crate::Layered) puts
//! the three together, so that every [`Port`] carries every layer: [`TransmitSink`] above it, the port below.

use std::net::IpAddr;

use longhaul_time::Instant;
use longhaul_wire::Ecn;
use longhaul_wire::icrc::ICRC_BYTES;

use crate::guard::NicGuard;
use crate::layer::{Packet, Stack};
use crate::memory::Gathered;

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// From this one of our addresses.
    pub source: IpAddr,
    /// To this one, which may be a multicast group.
    pub destination: IpAddr,
    /// Chosen per queue pair, so that equal-cost paths are used. A port may have fewer at hand and use another.
    pub source_port: u16,
    /// 4791, unless the peer is a softnic that listens elsewhere.
    pub destination_port: u16,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// IP time to live.
    pub hop_limit: u8,
}

/// Takes datagrams that are to be sent.
pub trait TransmitSink {
    /// Whether [`transmit`](TransmitSink::transmit) can be called. When there is no room the device stops, and expects
    /// to be polled again once there is.
    fn has_room(&self) -> bool;

    /// Send a datagram. The port adds the ICRC. Until [`flush`](TransmitSink::flush) it may leave the payload where it
    /// lies.
    fn transmit(&mut self, route: &Route, datagram: &Outgoing<'_>);

    /// The device is done for now: what was handed over is sent, or copied. Afterwards the port looks at no memory of
    /// programs any more, because they may be told that their requests are complete.
    fn flush(&mut self) {}
}

/// What carries packets: UDP sockets, a simulated wire, later raw frames. [`Layered`](crate::Layered) drives it.
///
/// There are two ways through a port. Datagrams that no layer wants for itself take the fast one, [`transmit`](Port::transmit)
/// and [`receive`](Port::receive), in batches and in place as far as the port can. Layers work on whole packets, which take the
/// other one: [`complete`](Port::complete) and [`send`](Port::send) on the way out, [`check`](Port::check) on the way in.
pub trait Port {
    /// Begin to send, now, after whatever has been left from before.
    fn begin_step(&mut self, stack: &mut Stack, now: Instant);

    /// Whether there is room for another datagram in this step.
    fn has_room(&self) -> bool;

    /// Whether there is no room whatever the step: it will be there when [`next_deadline`](Port::next_deadline) has come.
    fn is_full(&self) -> bool;

    /// As [`TransmitSink::transmit`], for datagrams that layers at most watch.
    fn transmit(&mut self, route: &Route, datagram: &Outgoing<'_>, stack: &mut Stack);

    /// As [`TransmitSink::flush`].
    fn flush(&mut self, stack: &mut Stack);

    /// Make a datagram a complete packet. `None` when it cannot be sent.
    fn complete(&mut self, route: &Route, datagram: &Outgoing<'_>) -> Option<Packet>;

    /// Send a packet that has passed the layers, as it is.
    fn send(&mut self, packet: Packet);

    /// Take what has arrived, show it to the layers ([`Stack::arrive`]), and hand to the device what goes straight on, its ICRC
    /// checked. May stop when there is a completion, if `until_completion`. Whether there may be more.
    fn receive(&mut self, stack: &mut Stack, nic: &mut NicGuard<'_>, now: Instant, until_completion: bool) -> bool;

    /// Check the ICRC of a packet that has passed the layers, and hand it to the device.
    fn check(&mut self, packet: &Packet, nic: &mut NicGuard<'_>, now: Instant);

    /// When to come back, if nothing happens before.
    fn next_deadline(&self) -> Option<Instant>;
}

/// A datagram to be sent: headers, payload and pad; the ICRC, its last four bytes, is the port's.
pub struct Outgoing<'a> {
    headers: &'a [u8],
    payload: OutgoingPayload<'a>,
    pad_bytes: usize,
    /// Bytes that exist only as a length.
    elided_bytes: u32,
}

/// Where the payload of a datagram lies.
#[derive(Clone, Copy, Debug)]
pub enum OutgoingPayload<'a> {
    /// With the device: data that was copied when it was posted, or nothing.
    Device(&'a [u8]),
    /// In registered memory of a program.
    Registered(&'a Gathered),
}

impl OutgoingPayload<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            OutgoingPayload::Device(bytes) => bytes.len(),
            OutgoingPayload::Registered(gathered) => gathered.len(),
        }
    }
}

impl<'a> Outgoing<'a> {
    /// A datagram of a device. `elided_bytes` of it exist only as a length.
    #[inline]
    pub(crate) fn new(headers: &'a [u8], payload: OutgoingPayload<'a>, pad_bytes: usize, elided_bytes: u32) -> Self {
        Outgoing { headers, payload, pad_bytes, elided_bytes }
    }

    /// From BTH to what comes before the payload.
    #[inline]
    pub fn headers(&self) -> &'a [u8] {
        self.headers
    }

    /// What comes behind the headers. It stays where it lies until [`TransmitSink::flush`].
    #[inline]
    pub fn payload(&self) -> OutgoingPayload<'a> {
        self.payload
    }

    /// Zeros between payload and ICRC.
    #[inline]
    pub fn pad_bytes(&self) -> usize {
        self.pad_bytes
    }

    /// Bytes that travel, ICRC included.
    #[expect(clippy::len_without_is_empty, reason = "there is no datagram without headers")]
    pub fn len(&self) -> usize {
        self.headers.len() + self.payload_bytes() + self.pad_bytes + ICRC_BYTES
    }

    /// Bytes that exist only as a length.
    pub fn elided_bytes(&self) -> u32 {
        self.elided_bytes
    }

    pub(crate) fn payload_bytes(&self) -> usize {
        self.payload.len()
    }

    /// Copy everything but the ICRC to the front of `buffer`, which must be [`len`](Outgoing::len) bytes long.
    pub fn write_to(&self, buffer: &mut [u8]) {
        let (headers, rest) = buffer.split_at_mut(self.headers.len());
        headers.copy_from_slice(self.headers);
        let (payload, rest) = rest.split_at_mut(self.payload_bytes());
        match self.payload {
            OutgoingPayload::Device(bytes) => payload.copy_from_slice(bytes),
            OutgoingPayload::Registered(gathered) => gathered.copy_to(payload),
        }
        rest[..self.pad_bytes].fill(0);
    }
}

/// A datagram that has arrived, its ICRC checked by the port.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Who sent it.
    pub source: IpAddr,
    /// From which UDP port; 0 when that says nothing, because addresses are translated on the way.
    pub source_port: u16,
    /// To which of our addresses, or to which multicast group.
    pub destination: IpAddr,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// What is left of the time to live.
    pub hop_limit: u8,
    /// BTH to ICRC.
    pub datagram: &'a [u8],
    /// Bytes that exist only as a length.
    pub elided_bytes: u32,
}

impl Received<'_> {
    /// Whether a router marked congestion on the way.
    pub fn is_congestion_experienced(&self) -> bool {
        self.traffic_class & 0b11 == Ecn::CongestionExperienced as u8
    }
}
