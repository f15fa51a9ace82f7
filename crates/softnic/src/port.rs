//! Where packets leave and arrive.
//!
//! The device hands over and takes in datagrams: BTH to ICRC, the payload of a UDP packet. Addresses, the IP header
//! and the ICRC (which covers fields of the IP header that only the port knows) are the port's:
//!
//! ```text
//!   Nic::poll ──▶ TransmitSink::transmit ──▶ port adds the ICRC ══ network ══ port checks the ICRC ──▶ Nic::handle
//! ```
//!
//! Later wrappers (forward error correction, encryption per packet, captures, impairment) stand between the two by
//! implementing [`TransmitSink`] over another one.

use std::net::IpAddr;

use longhaul_wire::Ecn;

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// From this one of our addresses.
    pub source: IpAddr,
    /// To this one, which may be a multicast group.
    pub destination: IpAddr,
    /// Chosen per queue pair, so that equal-cost paths are used.
    pub source_port: u16,
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

    /// Send a datagram of `bytes` bytes, ICRC included, plus `elided_bytes` that exist only as a length. `fill` writes
    /// all but the last four bytes, which are the port's for the ICRC; when it fails, nothing is sent.
    fn transmit<E>(
        &mut self,
        route: &Route,
        bytes: usize,
        elided_bytes: u32,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E>;
}

/// A datagram that has arrived, its ICRC checked by the port.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Who sent it.
    pub source: IpAddr,
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
