//! Complete packets, as they pass between a device or a host and the network.
//!
//! A packet is complete when its ICRC is in it: addresses, ports, traffic class, and everything from BTH to ICRC. Layers of a
//! software RNIC's port see such packets, and so does a gateway in front of RNICs; what works on them (`longhaul-shim`) need not
//! know which of the two it serves.

use std::net::SocketAddr;

use longhaul_wire::IcrcScope;

/// A complete packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// What surrounds the datagram.
    pub envelope: Envelope,
    /// BTH to ICRC. Of what has arrived nothing has been checked: a stranger can send anything, even nothing.
    pub datagram: Vec<u8>,
}

/// What surrounds the datagram of a packet: its IP and UDP headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The sender.
    pub source: SocketAddr,
    /// The receiver.
    pub destination: SocketAddr,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// IP time to live. Sockets do not report it for what arrives unless the device has datagram queue pairs.
    pub hop_limit: u8,
    /// IPv4 identification, where it is known: sockets do not report it for what arrives.
    pub identification: Option<u16>,
    /// What the ICRC covers of these headers, for those that compute it anew. Where the identification is not known it is 0
    /// here, and the port accepts that.
    pub icrc_scope: IcrcScope,
    /// Bytes that exist only as a length, behind the headers of the datagram: simulations leave payload out.
    pub elided_bytes: u32,
}

/// Where a packet is going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device or the host to the network.
    Outgoing,
    /// From the network to the device or the host.
    Incoming,
}
