//! The virtual port: a software RNIC as a node of a simulated network.
//!
//! Frames on the simulated wire are whole IP packets, so captures of them open in Wireshark. The port adds the IP and
//! UDP headers and the ICRC, and checks them; it numbers packets as a plain UDP socket does (identification 0, don't
//! fragment). Between it and the device may stand the same layers as on sockets, on virtual time.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

use longhaul_netsim::{Frame, Node, NodeIo};
use longhaul_softnic::{
    Device, Direction, Envelope, Layer, Layered, Nic, NicGuard, Occasion, Outgoing, Packet, Port, Received, Route,
    Stack,
};
use longhaul_time::Instant;
use longhaul_wire::{Ecn, IcrcScope, IpHeader, OrdinaryHeaders, UDP_PORT_ROCE, icrc, ipv4, ipv6};

/// The simulated wire is plugged in here.
const WIRE: usize = 0;

/// What may wait in front of the wire before the device is asked to stop, by default: enough to keep the wire busy,
/// little enough that the device decides late what to send.
pub const EGRESS_LIMIT_BYTES: u64 = 64 << 10;

/// Datagrams to one of the device's own addresses that may wait before the device is asked to stop.
const LOOPBACK_FRAMES_MAX: usize = 4096;

/// A device with a virtual port.
pub struct VirtualNic {
    device: Device,
    stack: Stack,
    egress: Egress,
    deadline: Option<Instant>,
}

/// What a virtual port keeps between two calls of the simulator.
struct Egress {
    /// Datagrams to the device itself, which never reach the wire.
    loopback: VecDeque<Frame>,
    limit_bytes: u64,
}

impl VirtualNic {
    /// The node for a device. Nobody else may drive the device.
    pub fn new(device: Device) -> Self {
        VirtualNic::with_egress_limit(device, EGRESS_LIMIT_BYTES)
    }

    /// The same with another limit of what may wait in front of the wire. On a slow wire the usual one is long: nothing
    /// that is queued there can be taken back, and everything else waits behind it.
    pub fn with_egress_limit(device: Device, egress_limit_bytes: u64) -> Self {
        let egress = Egress { loopback: VecDeque::new(), limit_bytes: egress_limit_bytes };
        VirtualNic { device, stack: Stack::default(), egress, deadline: None }
    }

    /// The same with layers between the device and the wire, the first next to the device. (Wires here carry packets of
    /// any length, so what layers add does not change the MTU.)
    #[must_use]
    pub fn with_layers(self, layers: Vec<Box<dyn Layer>>) -> Self {
        VirtualNic { stack: Stack::new(layers), ..self }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The layers between the device and the wire.
    pub fn stack_mut(&mut self) -> &mut Stack {
        &mut self.stack
    }
}

impl Egress {
    fn plan_next(&self, nic: &Nic, stack: &Stack, now: Instant, io: &NodeIo<'_>) -> Option<Instant> {
        if !self.loopback.is_empty() {
            return Some(now);
        }
        // While a layer takes nothing, what the device has to send waits for that layer.
        let has_output = nic.has_output() && stack.has_room() || stack.has_outgoing();
        let room_at = has_output.then(|| {
            let backlog_bytes = io.egress_backlog_bytes(WIRE);
            if backlog_bytes < self.limit_bytes {
                return now;
            }
            // The wire drains evenly: come back when half of the limit is left.
            let idle_at = io.egress_idle_at(WIRE);
            let drain_nanos = (idle_at - now).as_nanos() as u64;
            let keep = self.limit_bytes / 2;
            let wait_nanos = u128::from(drain_nanos) * u128::from(backlog_bytes - keep) / u128::from(backlog_bytes);
            now.saturating_add_nanos((wait_nanos as u64).max(1))
        });
        // When the wire has room for what has passed the layers is said already.
        Instant::earlier_of(Instant::earlier_of(room_at, stack.next_deadline(false)), nic.next_deadline())
    }
}

impl Node for VirtualNic {
    fn handle(&mut self, _link_port: usize, frame: Frame, now: Instant, io: &mut NodeIo<'_>) {
        let VirtualNic { device, stack, egress, deadline } = self;
        let mut nic = device.nic();
        // Nothing is sent before the next poll, so it does not matter how much room there is.
        let mut port = VirtualPort { arrived: Some(frame), io, egress, backlog_bytes: 0, now };
        Layered::new(&mut port, stack, now).receive(&mut nic, false);
        *deadline = egress.plan_next(&nic, stack, now, io);
    }

    fn poll(&mut self, now: Instant, io: &mut NodeIo<'_>) {
        let VirtualNic { device, stack, egress, deadline } = self;
        let mut nic = device.nic();
        let backlog_bytes = io.egress_backlog_bytes(WIRE);
        let mut port = VirtualPort { arrived: None, io, egress, backlog_bytes, now };
        let mut layered = Layered::new(&mut port, stack, now);
        layered.receive(&mut nic, false);
        layered.transmit_from(&mut nic, Occasion::Step);
        *deadline = egress.plan_next(&nic, stack, now, io);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.deadline
    }
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

/// The wire of a node, as its port sees it while the simulator is at the node.
struct VirtualPort<'a, 'b> {
    /// What has just arrived; otherwise it is time for what the device has sent to itself.
    arrived: Option<Frame>,
    io: &'a mut NodeIo<'b>,
    egress: &'a mut Egress,
    /// What waits in front of the wire. Kept here because asking the wire costs a division.
    backlog_bytes: u64,
    now: Instant,
}

impl Port for VirtualPort<'_, '_> {
    fn begin_step(&mut self, _stack: &mut Stack, _now: Instant) {}

    fn has_room(&self) -> bool {
        self.backlog_bytes < self.egress.limit_bytes && self.egress.loopback.len() < LOOPBACK_FRAMES_MAX
    }

    fn is_full(&self) -> bool {
        !self.has_room()
    }

    fn transmit(&mut self, route: &Route, datagram: &Outgoing<'_>, stack: &mut Stack) {
        let Some(envelope) = envelope(route, datagram) else { return };
        let now = self.now;
        self.put(&envelope, datagram.len(), |bytes| {
            complete(&envelope, datagram, bytes);
            stack.watch(Direction::Outgoing, &envelope, bytes, now);
        });
    }

    fn flush(&mut self, _stack: &mut Stack) {}

    fn complete(&mut self, route: &Route, datagram: &Outgoing<'_>) -> Option<Packet> {
        let envelope = envelope(route, datagram)?;
        let mut bytes = vec![0; datagram.len()];
        complete(&envelope, datagram, &mut bytes);
        Some(Packet { envelope, datagram: bytes })
    }

    fn send(&mut self, packet: Packet) {
        let Packet { envelope, datagram } = packet;
        self.put(&envelope, datagram.len(), |bytes| bytes.copy_from_slice(&datagram));
    }

    fn receive(&mut self, stack: &mut Stack, nic: &mut NicGuard<'_>, now: Instant, _until_completion: bool) -> bool {
        if let Some(frame) = self.arrived.take() {
            receive(stack, nic, &frame, now);
            self.io.recycle(frame);
            return false;
        }
        for _ in 0..self.egress.loopback.len() {
            if let Some(frame) = self.egress.loopback.pop_front() {
                receive(stack, nic, &frame, now);
                self.io.recycle(frame);
            }
        }
        false
    }

    fn check(&mut self, packet: &Packet, nic: &mut NicGuard<'_>, now: Instant) {
        check(&packet.envelope, &packet.datagram, nic, now);
    }

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

impl VirtualPort<'_, '_> {
    /// Put a packet on the wire, or where the device will find it itself.
    fn put(&mut self, envelope: &Envelope, datagram_bytes: usize, write: impl FnOnce(&mut [u8])) {
        let headers = OrdinaryHeaders {
            traffic_class: envelope.traffic_class,
            hop_limit: envelope.hop_limit,
            ..OrdinaryHeaders::between(envelope.source, envelope.destination)
        };
        let header_bytes = headers.byte_count();
        let mut packet = self.io.take_buffer();
        packet.resize(header_bytes + datagram_bytes, 0);
        write(&mut packet[header_bytes..]);
        let is_written = headers.emit(datagram_bytes, &mut packet).is_ok();
        debug_assert!(is_written, "both addresses are of one family, and the datagram fits an IP packet");
        let frame = Frame { bytes: packet, elided_bytes: envelope.elided_bytes };
        let destination = envelope.destination.ip();
        // A device hears its own datagrams to a group, as sockets do by default.
        if destination.is_multicast() {
            let copy = self.io.copy(&frame);
            self.egress.loopback.push_back(copy);
        }
        if destination == envelope.source.ip() {
            self.egress.loopback.push_back(frame);
        } else {
            self.backlog_bytes += u64::from(frame.wire_bytes());
            self.io.send(WIRE, frame);
        }
    }
}

/// What surrounds a datagram of the device. (The device takes care that both ends are of one family.)
fn envelope(route: &Route, datagram: &Outgoing<'_>) -> Option<Envelope> {
    let source = SocketAddr::new(route.source, route.source_port);
    let destination = SocketAddr::new(route.destination, route.destination_port);
    Some(Envelope {
        source,
        destination,
        traffic_class: route.traffic_class,
        hop_limit: route.hop_limit,
        identification: Some(0),
        icrc_scope: IcrcScope::between(source, destination)?,
        elided_bytes: datagram.elided_bytes(),
    })
}

/// Write a datagram with its ICRC.
fn complete(envelope: &Envelope, datagram: &Outgoing<'_>, bytes: &mut [u8]) {
    datagram.write_to(bytes);
    icrc::write(&envelope.icrc_scope, bytes);
}

/// Take the IP packet apart, and hand the datagram to the layers or, if they do no more than watch, to the device.
fn receive(stack: &mut Stack, nic: &mut NicGuard<'_>, frame: &Frame, now: Instant) {
    let Ok(packet) = longhaul_wire::Frame::parse(&frame.bytes) else {
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
    let icrc_scope = packet.icrc_scope();
    let envelope = Envelope {
        source: packet.source(),
        destination: packet.destination(),
        traffic_class: packet.ip.traffic_class(),
        hop_limit: match packet.ip {
            IpHeader::V4(header) => header.time_to_live,
            IpHeader::V6(header) => header.hop_limit,
        },
        identification: icrc_scope.identification(),
        icrc_scope,
        elided_bytes: frame.elided_bytes,
    };
    if stack.arrive(&envelope, packet.datagram, now) {
        check(&envelope, packet.datagram, nic, now);
    }
}

/// Check the ICRC of a datagram and hand it to the device.
fn check(envelope: &Envelope, datagram: &[u8], nic: &mut NicGuard<'_>, now: Instant) {
    if !icrc::verify(&envelope.icrc_scope, datagram) {
        nic.count_icrc_error();
        return;
    }
    let received = Received {
        source: envelope.source.ip(),
        source_port: envelope.source.port(),
        destination: envelope.destination.ip(),
        traffic_class: envelope.traffic_class,
        hop_limit: envelope.hop_limit,
        datagram,
        elided_bytes: envelope.elided_bytes,
    };
    nic.handle(&received, now);
}

fn is_for(nic: &Nic, destination: IpAddr) -> bool {
    destination.is_multicast() || nic.config().addresses.contains(&destination)
}
