//! Unreliable datagram, receiving half: one packet, one receive.

use std::net::IpAddr;

use longhaul_verbs::{CompletionFlags, CompletionOperation, CompletionStatus, QueuePairNumber, WorkCompletion};
use longhaul_wire::ip::PROTOCOL_UDP;
use longhaul_wire::{Headers, ipv4, ipv6, udp};

use crate::memory::Payload;
use crate::port::Received;
use crate::queue_pair::QueuePair;
use crate::resources::Resources;

/// Every receive of a datagram begins with room for the global route header (IBTA 11.4.1.2). With RoCEv2 the IP header
/// is put there: IPv6 fills it, IPv4 takes its last 20 bytes (A17.4.5.2).
pub(crate) const ROUTE_HEADER_BYTES: u32 = 40;

/// A datagram has arrived.
pub(crate) fn handle_datagram(
    queue_pair: &mut QueuePair,
    shared: &mut Resources,
    headers: &Headers,
    payload: Payload<'_>,
    received: &Received<'_>,
) {
    let Some(deth) = headers.deth else { return };
    if deth.queue_key != queue_pair.settings().queue_key {
        shared.counters.rx_wrong_queue_key += 1;
        return;
    }
    queue_pair.has_receive(shared);
    let Some(receive) = queue_pair.next_receive() else {
        shared.counters.out_of_buffer += 1;
        shared.counters.dropped_messages += 1;
        return;
    };
    let byte_count = ROUTE_HEADER_BYTES + payload.len();
    if u64::from(byte_count) > receive.entries.length() {
        shared.counters.dropped_messages += 1;
        queue_pair.return_receive(shared);
        return;
    }
    let domain = queue_pair.identity().domain;
    let entries = receive.entries.list();
    let route_header = route_header(received);
    let placed = shared
        .memory
        .scatter(domain, entries, 0, Payload::Carried(&route_header))
        .and_then(|()| shared.memory.scatter(domain, entries, ROUTE_HEADER_BYTES.into(), payload));
    if placed.is_err() {
        queue_pair.fail_receive(shared, CompletionStatus::LocalProtectionError);
        return;
    }
    let mut flags = CompletionFlags::GLOBAL_ROUTE_HEADER;
    flags.set(CompletionFlags::IMMEDIATE, headers.immediate.is_some());
    flags.set(CompletionFlags::CONGESTION_MARK, shared.is_arriving_marked);
    let completion = WorkCompletion {
        status: CompletionStatus::Success,
        operation: CompletionOperation::Receive,
        flags,
        byte_count,
        immediate_or_key: headers.immediate.unwrap_or(0),
        source_queue_pair: QueuePairNumber::new(deth.source_qp),
        ..Default::default()
    };
    queue_pair.complete_receive(shared, completion, headers.bth.solicited_event);
}

/// The IP header of a datagram, made again from what the port has kept of it.
fn route_header(received: &Received<'_>) -> [u8; ROUTE_HEADER_BYTES as usize] {
    let mut bytes = [0; ROUTE_HEADER_BYTES as usize];
    let length = (udp::HEADER_BYTES + received.datagram.len()) as u16 + received.elided_bytes as u16;
    match (received.source, received.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = ipv4::Header {
                type_of_service: received.traffic_class,
                total_length: ipv4::HEADER_BYTES as u16 + length,
                identification: 0,
                flags_fragment: ipv4::DONT_FRAGMENT,
                time_to_live: received.hop_limit,
                protocol: PROTOCOL_UDP,
                checksum: 0,
                source,
                destination,
            };
            header.checksum = header.computed_checksum();
            if let Ok(mut view) = ipv4::Ipv4::new_checked(&mut bytes[ipv6::HEADER_BYTES - ipv4::HEADER_BYTES..]) {
                header.emit(&mut view);
            }
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let header = ipv6::Header {
                traffic_class: received.traffic_class,
                flow_label: 0,
                payload_length: length,
                next_header: PROTOCOL_UDP,
                hop_limit: received.hop_limit,
                source,
                destination,
            };
            if let Ok(mut view) = ipv6::Ipv6::new_checked(&mut bytes[..]) {
                header.emit(&mut view);
            }
        }
        // No packet has addresses of two families.
        _ => {}
    }
    bytes
}
