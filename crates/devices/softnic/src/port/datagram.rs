//! What a device hands to its port, and takes from it: datagrams from BTH to ICRC.

use std::net::IpAddr;

use longhaul_wire::Ecn;
use longhaul_wire::icrc::ICRC_BYTES;

use super::route::Route;
use crate::memory::Gathered;

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
    #[inline]
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
    /// From which UDP port; 0 when that says nothing, because addresses are translated in the network.
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
    /// Whether a router marked congestion.
    pub fn is_congestion_experienced(&self) -> bool {
        self.traffic_class & 0b11 == Ecn::CongestionExperienced as u8
    }
}
