//! The virtual port: a software RNIC as a node of a simulated network.
//!
//! Frames on the simulated wire are whole IP packets, so captures of them open in Wireshark. The port adds the IP and UDP
//! headers and the ICRC, and checks them; it numbers packets as a plain UDP socket does (identification 0, don't fragment).

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use longhaul_netsim::{Frame, Node, NodeIo};
use longhaul_softnic::{Device, Nic, NicGuard, Outgoing, Received, Route, TransmitSink};
use longhaul_time::Instant;
use longhaul_wire::{Ecn, IcrcScope, IpHeader, OrdinaryHeaders, UDP_PORT_ROCE, icrc, ipv4, ipv6};

/// The simulated wire is plugged in here.
const WIRE: usize = 0;

/// What may wait in front of the wire before the device is told to stop, unless told otherwise: enough to keep the wire busy, little enough
/// that the device decides late what to send.
pub const EGRESS_LIMIT_BYTES: u64 = 64 << 10;

/// Datagrams to one of the device's own addresses that may wait before the device is told to stop.
const LOOPBACK_FRAMES_MAX: usize = 4096;

/// A device with a virtual port.
pub struct VirtualNic {
    device: Device,
    /// Datagrams to the device itself, which never reach the wire.
    loopback: VecDeque<Frame>,
    deadline: Option<Instant>,
    egress_limit_bytes: u64,
}

impl VirtualNic {
    /// The node for a device. Nobody else may drive the device.
    pub fn new(device: Device) -> Self {
        VirtualNic::with_egress_limit(device, EGRESS_LIMIT_BYTES)
    }

    /// The same with another limit of what may wait in front of the wire. On a slow wire the usual one is long: nothing that is queued there can be
    /// taken back, and everything else waits behind it.
    pub fn with_egress_limit(device: Device, egress_limit_bytes: u64) -> Self {
        VirtualNic { device, loopback: VecDeque::new(), deadline: None, egress_limit_bytes }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn plan_next(nic: &Nic, has_loopback: bool, limit_bytes: u64, now: Instant, io: &NodeIo<'_>) -> Option<Instant> {
        if has_loopback {
            return Some(now);
        }
        let room_at = nic.has_output().then(|| {
            let backlog_bytes = io.egress_backlog_bytes(WIRE);
            if backlog_bytes < limit_bytes {
                return now;
            }
            // The wire drains evenly: come back when half of the limit is left.
            let idle_at = io.egress_idle_at(WIRE);
            let drain_nanos = (idle_at - now).as_nanos() as u64;
            let keep = limit_bytes / 2;
            let wait_nanos = u128::from(drain_nanos) * u128::from(backlog_bytes - keep) / u128::from(backlog_bytes);
            now.saturating_add_nanos((wait_nanos as u64).max(1))
        });
        Instant::earlier_of(room_at, nic.next_deadline())
    }
}

impl Node for VirtualNic {
    fn handle(&mut self, _link_port: usize, frame: Frame, now: Instant, io: &mut NodeIo<'_>) {
        let mut nic = self.device.nic();
        receive(&mut nic, &frame, now);
        io.recycle(frame);
        self.deadline = Self::plan_next(&nic, !self.loopback.is_empty(), self.egress_limit_bytes, now, io);
    }

    fn poll(&mut self, now: Instant, io: &mut NodeIo<'_>) {
        let mut nic = self.device.nic();
        for _ in 0..self.loopback.len() {
            if let Some(frame) = self.loopback.pop_front() {
                receive(&mut nic, &frame, now);
                io.recycle(frame);
            }
        }
        let mut sink = VirtualSink {
            backlog_bytes: io.egress_backlog_bytes(WIRE),
            egress_limit_bytes: self.egress_limit_bytes,
            io,
            loopback: &mut self.loopback,
        };
        nic.poll(now, &mut sink);
        self.deadline = Self::plan_next(&nic, !self.loopback.is_empty(), self.egress_limit_bytes, now, io);
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
        source_port: packet.udp.source_port,
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
    egress_limit_bytes: u64,
}

impl TransmitSink for VirtualSink<'_, '_> {
    fn has_room(&self) -> bool {
        self.backlog_bytes < self.egress_limit_bytes && self.loopback.len() < LOOPBACK_FRAMES_MAX
    }

    fn transmit(&mut self, route: &Route, datagram: &Outgoing<'_>) {
        let source = SocketAddr::new(route.source, route.source_port);
        let destination = SocketAddr::new(route.destination, route.destination_port);
        let headers = OrdinaryHeaders {
            traffic_class: route.traffic_class,
            hop_limit: route.hop_limit,
            ..OrdinaryHeaders::between(source, destination)
        };
        let header_bytes = headers.byte_count();
        let bytes = datagram.len();
        let mut packet = self.io.take_buffer();
        packet.resize(header_bytes + bytes, 0);
        let payload = &mut packet[header_bytes..];
        datagram.write_to(payload);
        // The device takes care that both are of one family.
        if let Some(scope) = IcrcScope::between(source, destination) {
            icrc::write(&scope, payload);
        }
        let is_written = headers.emit(bytes, &mut packet).is_ok();
        debug_assert!(is_written, "both addresses are of one family, and the datagram fits an IP packet");
        let frame = Frame { bytes: packet, elided_bytes: datagram.elided_bytes() };
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
    }
}
