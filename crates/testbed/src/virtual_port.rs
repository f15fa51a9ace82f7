//! The virtual port: a software RNIC as a node of a simulated network.
//!
//! Frames on the simulated wire are whole IP packets, so captures of them open in Wireshark. The port adds the IP and UDP
//! headers and the ICRC, and checks them; it numbers packets as a plain UDP socket does (identification 0, don't fragment).

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use longhaul_netsim::{Frame, Node, NodeIo};
use longhaul_softnic::{Device, Nic, NicGuard, Received, Route, TransmitSink};
use longhaul_time::Instant;
use longhaul_wire::ip::PROTOCOL_UDP;
use longhaul_wire::{Ecn, IcrcScope, IpHeader, UDP_PORT_ROCE, icrc, ipv4, ipv6, udp};

/// The simulated wire is plugged in here.
const WIRE: usize = 0;

/// What may wait in front of the wire before the device is told to stop: enough to keep the wire busy, little enough
/// that the device decides late what to send.
const EGRESS_LIMIT_BYTES: u64 = 64 << 10;

/// Datagrams to one of the device's own addresses that may wait before the device is told to stop.
const LOOPBACK_FRAMES_MAX: usize = 4096;

/// A device with a virtual port.
pub struct VirtualNic {
    device: Device,
    /// Datagrams to the device itself, which never reach the wire.
    loopback: VecDeque<Frame>,
    deadline: Option<Instant>,
}

impl VirtualNic {
    /// The node for a device. Nobody else may drive the device.
    pub fn new(device: Device) -> Self {
        VirtualNic { device, loopback: VecDeque::new(), deadline: None }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn plan_next(nic: &Nic, has_loopback: bool, now: Instant, io: &NodeIo<'_>) -> Option<Instant> {
        if has_loopback {
            return Some(now);
        }
        let room_at = nic.has_output().then(|| {
            let backlog_bytes = io.egress_backlog_bytes(WIRE);
            if backlog_bytes < EGRESS_LIMIT_BYTES {
                return now;
            }
            // The wire drains evenly: come back when half of the limit is left.
            let idle_at = io.egress_idle_at(WIRE);
            let drain_nanos = (idle_at - now).as_nanos() as u64;
            let keep = EGRESS_LIMIT_BYTES / 2;
            let wait_nanos = u128::from(drain_nanos) * u128::from(backlog_bytes - keep) / u128::from(backlog_bytes);
            now.saturating_add_nanos((wait_nanos as u64).max(1))
        });
        match (room_at, nic.next_deadline()) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }
}

impl Node for VirtualNic {
    fn handle(&mut self, _link_port: usize, frame: Frame, now: Instant, io: &mut NodeIo<'_>) {
        let mut nic = self.device.nic();
        receive(&mut nic, &frame, now);
        io.recycle(frame);
        self.deadline = Self::plan_next(&nic, !self.loopback.is_empty(), now, io);
    }

    fn poll(&mut self, now: Instant, io: &mut NodeIo<'_>) {
        let mut nic = self.device.nic();
        for _ in 0..self.loopback.len() {
            if let Some(frame) = self.loopback.pop_front() {
                receive(&mut nic, &frame, now);
                io.recycle(frame);
            }
        }
        let mut sink = VirtualSink { backlog_bytes: io.egress_backlog_bytes(WIRE), io, loopback: &mut self.loopback };
        nic.poll(now, &mut sink);
        self.deadline = Self::plan_next(&nic, !self.loopback.is_empty(), now, io);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

/// Take the IP packet apart, check it, and hand the datagram to the device.
fn receive(nic: &mut NicGuard<'_>, bytes: &Frame, now: Instant) {
    let Ok(packet) = longhaul_wire::Frame::parse(&bytes.bytes) else {
        nic.count_malformed();
        return;
    };
    let is_ours = match packet.ip {
        IpHeader::V4(header) if !header.checksum_is_right() => false,
        _ => packet.udp.destination_port == UDP_PORT_ROCE && is_for(nic, packet.ip.destination()),
    };
    if !is_ours {
        nic.count_malformed();
        return;
    }
    if !icrc::verify(&packet.icrc_scope(), packet.datagram) {
        nic.count_icrc_error();
        return;
    }
    let received = Received {
        source: packet.ip.source(),
        destination: packet.ip.destination(),
        traffic_class: packet.ip.traffic_class(),
        hop_limit: match packet.ip {
            IpHeader::V4(header) => header.time_to_live,
            IpHeader::V6(header) => header.hop_limit,
        },
        datagram: packet.datagram,
        elided_bytes: bytes.elided_bytes,
    };
    nic.handle(&received, now);
}

fn is_for(nic: &Nic, destination: IpAddr) -> bool {
    destination.is_multicast() || nic.config().addresses.contains(&destination)
}

/// Set "congestion experienced" in the IP header of a frame, if its sender allows it.
pub fn mark_congestion(frame: &mut Frame) {
    let bytes = &mut frame.bytes;
    match bytes.first().map(|byte| byte >> 4) {
        Some(4) if bytes.len() >= ipv4::HEADER_BYTES && bytes[1] & 0b11 != 0 => {
            bytes[1] |= Ecn::CongestionExperienced.bits();
            if let Ok(mut view) = ipv4::Ipv4::new_checked(bytes) {
                let checksum = ipv4::Header::parse(&view).computed_checksum();
                view.set_checksum(checksum);
            }
        }
        // The traffic class lies across two bytes; its lower two bits are in the upper half of the second.
        Some(6) if bytes.len() >= ipv6::HEADER_BYTES && bytes[1] & 0x30 != 0 => bytes[1] |= 0x30,
        _ => {}
    }
}

struct VirtualSink<'a, 'b> {
    io: &'a mut NodeIo<'b>,
    loopback: &'a mut VecDeque<Frame>,
    /// What waits in front of the wire. Kept here because asking the wire costs a division.
    backlog_bytes: u64,
}

impl TransmitSink for VirtualSink<'_, '_> {
    fn has_room(&self) -> bool {
        self.backlog_bytes < EGRESS_LIMIT_BYTES && self.loopback.len() < LOOPBACK_FRAMES_MAX
    }

    fn transmit<E>(
        &mut self,
        route: &Route,
        bytes: usize,
        elided_bytes: u32,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let header_bytes = udp::HEADER_BYTES
            + match route.destination {
                IpAddr::V4(_) => ipv4::HEADER_BYTES,
                IpAddr::V6(_) => ipv6::HEADER_BYTES,
            };
        let mut packet = self.io.take_buffer();
        packet.resize(header_bytes + bytes, 0);
        let (headers, datagram) = packet.split_at_mut(header_bytes);
        if let Err(error) = fill(datagram) {
            self.io.recycle(Frame::from(packet));
            return Err(error);
        }
        let source = SocketAddr::new(route.source, route.source_port);
        let destination = SocketAddr::new(route.destination, UDP_PORT_ROCE);
        // The device takes care that both are of one family.
        if let Some(scope) = IcrcScope::between(source, destination) {
            icrc::write(&scope, datagram);
        }
        write_headers(headers, route, bytes as u16);
        let frame = Frame { bytes: packet, elided_bytes };
        // A device hears its own datagrams to a group, as sockets do unless told otherwise.
        if route.destination.is_multicast() {
            let copy = self.io.copy(&frame);
            self.loopback.push_back(copy);
        }
        if route.destination == route.source {
            self.loopback.push_back(frame);
        } else {
            self.backlog_bytes += u64::from(frame.wire_bytes());
            self.io.send(WIRE, frame);
        }
        Ok(())
    }
}

/// IP and UDP headers, as a plain UDP socket with "don't fragment" would send them.
fn write_headers(buffer: &mut [u8], route: &Route, datagram_bytes: u16) {
    let udp_length = udp::HEADER_BYTES as u16 + datagram_bytes;
    let (ip, rest) = match (route.source, route.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let (ip, rest) = buffer.split_at_mut(ipv4::HEADER_BYTES);
            let mut header = ipv4::Header {
                type_of_service: route.traffic_class,
                total_length: ipv4::HEADER_BYTES as u16 + udp_length,
                identification: 0,
                flags_fragment: ipv4::DONT_FRAGMENT,
                time_to_live: route.hop_limit,
                protocol: PROTOCOL_UDP,
                checksum: 0,
                source,
                destination,
            };
            header.checksum = header.computed_checksum();
            (ipv4::Ipv4::new_checked(ip).map(|mut view| header.emit(&mut view)).is_ok(), rest)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let (ip, rest) = buffer.split_at_mut(ipv6::HEADER_BYTES);
            let header = ipv6::Header {
                traffic_class: route.traffic_class,
                flow_label: 0,
                payload_length: udp_length,
                next_header: PROTOCOL_UDP,
                hop_limit: route.hop_limit,
                source,
                destination,
            };
            (ipv6::Ipv6::new_checked(ip).map(|mut view| header.emit(&mut view)).is_ok(), rest)
        }
        _ => (false, buffer),
    };
    debug_assert!(ip, "both addresses are of one family");
    let header = udp::Header {
        source_port: route.source_port,
        destination_port: UDP_PORT_ROCE,
        length: udp_length,
        // RoCEv2 leaves it out: the ICRC is stronger (A17.3.2).
        checksum: 0,
    };
    if let Ok(mut view) = udp::Udp::new_checked(rest) {
        header.emit(&mut view);
    }
}
