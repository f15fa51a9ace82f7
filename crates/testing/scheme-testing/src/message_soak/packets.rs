//! Packets that no device of ours sends: well-formed RoCEv2 with a right ICRC, from whatever address is wanted.

use std::net::{IpAddr, SocketAddr};

use longhaul_wire::{Headers, IcrcScope, Opcode, OrdinaryHeaders, Psn, UDP_PORT_ROCE, packet, reth};

/// Where a packet comes from and goes to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    pub(super) source: IpAddr,
    pub(super) source_port: u16,
    pub(super) destination: IpAddr,
}

/// A SEND of one packet to a queue pair of an unreliable connection.
pub(super) fn send(flow: Flow, queue_pair: u32, psn: u32, payload: &[u8]) -> Vec<u8> {
    datagram(flow, &Headers::new(Opcode::UcSendOnly, queue_pair, Psn::new(psn)), payload)
}

/// A write of one packet with immediate.
pub(super) fn write(
    flow: Flow,
    queue_pair: u32,
    psn: u32,
    (address, key): (u64, u32),
    immediate: u32,
    payload: &[u8],
) -> Vec<u8> {
    let mut headers = Headers::new(Opcode::UcWriteOnlyWithImmediate, queue_pair, Psn::new(psn));
    headers.reth = Some(reth::Header { virtual_address: address, remote_key: key, dma_length: payload.len() as u32 });
    headers.immediate = Some(immediate);
    datagram(flow, &headers, payload)
}

fn datagram(flow: Flow, headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let source = SocketAddr::new(flow.source, flow.source_port);
    let destination = SocketAddr::new(flow.destination, UDP_PORT_ROCE);
    let ip = OrdinaryHeaders::between(source, destination);
    let scope = IcrcScope::between(source, destination).expect("both are of one family");
    let header_bytes = ip.byte_count();
    let mut bytes = vec![0; header_bytes + packet::MAX_HEADER_BYTES + payload.len() + 8];
    let length = packet::write_datagram(headers, payload, &scope, &mut bytes[header_bytes..]).expect("it fits");
    bytes.truncate(header_bytes + length);
    ip.emit(length, &mut bytes).expect("it fits an IP packet");
    bytes
}
