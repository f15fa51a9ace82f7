//! What the sending halves share: where in the send queue they are, and a packet from a request.

use longhaul_verbs::SendFlags;
use longhaul_wire::icrc::ICRC_BYTES;
use longhaul_wire::packet::{MAX_HEADER_BYTES, datagram_bytes, pad_count};
use longhaul_wire::{Headers, Opcode, Operation, Position, Psn, atomic_eth, deth, reth};

use crate::config::{Config, PayloadMode};
use crate::memory::AccessDenied;
use crate::port::{Outgoing, OutgoingPayload, Route, TransmitSink};
use crate::queue_pair::QueuePair;
use crate::queue_pair::{Attached, Entries, SendKind, SendWork};
use crate::resources::Resources;

/// What a packet needs to know besides its request.
pub(crate) struct Envelope {
    pub(crate) route: Route,
    pub(crate) transport: longhaul_wire::Transport,
    pub(crate) destination_queue_pair: u32,
    pub(crate) mtu_bytes: u32,
    pub(crate) domain: u32,
    /// Datagrams only: the peer's queue key and our number.
    pub(crate) datagram: Option<deth::Header>,
}

impl Envelope {
    /// For packets to the peer of a connected queue pair, once that is known.
    pub(crate) fn connected(
        queue_pair: &QueuePair,
        config: &Config,
        transport: longhaul_wire::Transport,
    ) -> Option<Envelope> {
        Some(Envelope {
            route: queue_pair.route(config)?,
            transport,
            destination_queue_pair: queue_pair.settings().destination_queue_pair,
            mtu_bytes: queue_pair.mtu_bytes(),
            domain: queue_pair.identity().domain,
            datagram: None,
        })
    }
}

/// Send the `index`-th packet of a SEND or WRITE. Returns the bytes that it takes on the wire, IP header included.
pub(crate) fn send_packet<S: TransmitSink + ?Sized>(
    envelope: &Envelope,
    work: &SendWork,
    index: u32,
    psn: Psn,
    acknowledge: bool,
    shared: &mut Resources,
    sink: &mut S,
) -> Result<u64, AccessDenied> {
    let segment = work.segment(index, envelope.mtu_bytes);
    let mut headers = request_headers(envelope, work, segment.position, psn);
    headers.bth.ack_request = acknowledge;
    headers.bth.solicited_event = segment.position.is_end() && work.flags.contains(SendFlags::SOLICITED);
    headers.deth = envelope.datagram;
    if let SendKind::Write(remote) = work.kind
        && segment.position.is_start()
    {
        headers.reth =
            Some(reth::Header { virtual_address: remote.address, remote_key: remote.key, dma_length: work.length });
    }
    if segment.position.is_end() {
        match work.attached {
            Attached::Nothing => {}
            Attached::Immediate(immediate) => headers.immediate = Some(immediate),
            Attached::Invalidate(key) => headers.invalidate = Some(key),
        }
    }
    let gathered;
    let payload = match &work.entries {
        Entries::Inline(data) => OutgoingPayload::Device(&data[segment.offset as usize..][..segment.length as usize]),
        entries => {
            let (offset, length) = (segment.offset.into(), segment.length.into());
            gathered = shared.memory.gather(envelope.domain, entries.list(), offset, length)?;
            OutgoingPayload::Registered(&gathered)
        }
    };
    #[cfg(feature = "mutations")]
    if shared.config.mutation == Some(crate::config::Mutation::DropsWithoutImmediate)
        && envelope.transport != longhaul_wire::Transport::ReliableConnection
        && work.attached == Attached::Nothing
    {
        return Ok(0);
    }
    Ok(emit(&envelope.route, &mut headers, payload, shared, sink))
}

/// Ask for `packets` packets of a READ from the `index`-th on, or for an atomic. Returns the bytes that the request takes on
/// the wire.
pub(crate) fn send_question<S: TransmitSink + ?Sized>(
    envelope: &Envelope,
    work: &SendWork,
    index: u32,
    packets: u32,
    psn: Psn,
    shared: &mut Resources,
    sink: &mut S,
) -> u64 {
    let mut headers = request_headers(envelope, work, Position::Only, psn);
    headers.bth.ack_request = true;
    let atomic = |remote: longhaul_verbs::RemoteMemory, swap_or_add, compare| {
        Some(atomic_eth::Header { virtual_address: remote.address, remote_key: remote.key, swap_or_add, compare })
    };
    match work.kind {
        SendKind::Read(remote) => {
            let offset = index * envelope.mtu_bytes;
            let dma_length = (work.length - offset).min(packets * envelope.mtu_bytes);
            let virtual_address = remote.address.wrapping_add(offset.into());
            headers.reth = Some(reth::Header { virtual_address, remote_key: remote.key, dma_length });
        }
        SendKind::CompareAndSwap { remote, compare, swap } => headers.atomic = atomic(remote, swap, compare),
        SendKind::FetchAndAdd { remote, add } => headers.atomic = atomic(remote, add, 0),
        _ => debug_assert!(false, "only READs and atomics are questions"),
    }
    emit(&envelope.route, &mut headers, OutgoingPayload::Device(&[]), shared, sink)
}

fn request_headers(envelope: &Envelope, work: &SendWork, position: Position, psn: Psn) -> Headers {
    let opcode = Opcode::request(envelope.transport, work.wire_operation(), position, work.trailer(position))
        // Every combination that posting lets through has an opcode.
        .expect("posting has checked that the transport has this operation");
    Headers::new(opcode, envelope.destination_queue_pair, psn)
}

/// Hand a packet to the port. Returns the bytes that it takes on the wire, IP header included.
pub(crate) fn emit<S: TransmitSink + ?Sized>(
    route: &Route,
    headers: &mut Headers,
    payload: OutgoingPayload<'_>,
    shared: &mut Resources,
    sink: &mut S,
) -> u64 {
    let payload_bytes = payload.len();
    headers.bth.pad_count = pad_count(payload_bytes);
    let mut header_buffer = [0; MAX_HEADER_BYTES];
    let (opcode, header_bytes) = (headers.bth.opcode, headers.byte_count());
    headers.emit(&mut header_buffer).expect("the buffer takes the longest headers");
    let whole_bytes = datagram_bytes(header_bytes, payload_bytes);
    let headers = &header_buffer[..header_bytes];
    let is_elided = match shared.config.payload {
        PayloadMode::Carried => false,
        PayloadMode::Elided => true,
        PayloadMode::WritesElided => opcode.operation() == Operation::Write,
    };
    let datagram = match is_elided {
        false => {
            let pad_bytes = whole_bytes - header_bytes - payload_bytes - ICRC_BYTES;
            Outgoing::new(headers, payload, pad_bytes, 0)
        }
        true => {
            let elided_bytes = (whole_bytes - datagram_bytes(header_bytes, 0)) as u32;
            Outgoing::new(headers, OutgoingPayload::Device(&[]), 0, elided_bytes)
        }
    };
    sink.transmit(route, &datagram);
    shared.counters.sent_pkts += 1;
    shared.counters.sent_bytes += payload_bytes as u64;
    wire_bytes(route, whole_bytes)
}

/// Bytes of a datagram with its UDP and IP headers.
fn wire_bytes(route: &Route, datagram_bytes: usize) -> u64 {
    let ip_bytes = if route.destination.is_ipv4() { 20 } else { 40 };
    (datagram_bytes + 8 + ip_bytes) as u64
}
