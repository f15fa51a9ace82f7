//! The receiving half: packets pass in order, lost ones are restored at their place, repair packets end here.

mod following;
mod restoring;
mod shared;

use longhaul_time::Instant;
use longhaul_wire::icrc;
use longhaul_wire::repair::{self, Datagram, Header, Report, TAG_BYTES};

use crate::coded::read_coded;
use crate::config::{BlockCode, Config};
use crate::counters::DecoderCounters;
use crate::flows::{FlowKey, Flows};
use crate::packet::{Packet, Summary};
use crate::tag::tag;
use following::Following;
use shared::Shared;

/// Reports that wait to be taken, at most.
const REPORTS_MAX: usize = 64;

/// Restores lost packets from repair packets. Driven: packets and time come in, packets go out.
///
/// A flow is followed from its first repair packet or announcement on; packets of other flows pass at once and cost nothing. As
/// long as nothing is missing, packets pass at once too, and are added to the sums of their block. Behind a missing packet they
/// wait, until it is restored or arrives, or until it is clear that it will not be: then they are handed on as they are, and the
/// transport's own retransmission takes over.
#[derive(Debug)]
pub struct Decoder {
    flows: Flows<Following>,
    shared: Shared,
    reports: Vec<Report>,
}

impl Decoder {
    /// A decoder.
    pub fn new(config: Config) -> Decoder {
        let shared = Shared::new(config);
        Decoder { flows: Flows::new(shared.config.flows_max), shared, reports: Vec::new() }
    }

    /// What was done so far.
    pub fn counters(&self) -> DecoderCounters {
        self.shared.counters
    }

    /// Packets that wait at the moment.
    pub fn held_packets(&self) -> usize {
        self.shared.held_packets
    }

    /// Bytes of memory in coding units and waiting packets, at the moment.
    pub fn memory_bytes(&self) -> usize {
        let sums: usize = self.flows.iter().map(Following::sum_bytes).sum();
        sums + self.shared.units.free_bytes() + self.shared.held_bytes + self.flows.len() * size_of::<Following>()
    }

    /// What peers have reported of our own packets since the last call.
    pub fn take_reports(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.reports)
    }

    /// A packet has arrived. Repair packets are never handed on.
    pub fn handle(&mut self, packet: Packet, now: Instant, out: &mut Vec<Packet>) {
        if repair::is_repair(&packet.datagram) {
            self.handle_repair(packet, now, out);
            return;
        }
        let Some(summary) = Summary::of(&packet.datagram) else {
            out.push(packet);
            return;
        };
        let key = FlowKey::new(&packet.envelope, summary.subject);
        let Some(id) = self.flows.find(&key, now) else {
            out.push(packet);
            return;
        };
        if !icrc::verify(&packet.envelope.icrc_scope, &packet.datagram) {
            // As good as lost: it enters no block. The port or the host counts it.
            self.shared.counters.icrc_errors += 1;
            out.push(packet);
            return;
        }
        let flow = self.flows.flow(id);
        match summary.is_acknowledgement() {
            true => flow.handle_acknowledgement(summary, packet, now, &mut self.shared, out),
            false => flow.handle_data(summary, packet, now, &mut self.shared, out),
        }
        self.rearm(id);
    }

    /// Hands on what has waited long enough.
    pub fn poll(&mut self, now: Instant, out: &mut Vec<Packet>) {
        while let Some(id) = self.flows.pop_due(now) {
            self.flows.flow(id).poll(now, &mut self.shared, out);
            self.rearm(id);
        }
    }

    /// When [`poll`](Decoder::poll) is wanted next; there may be nothing to do then.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.flows.next_alarm()
    }

    /// Hands on all that waits.
    pub fn close(&mut self, now: Instant, out: &mut Vec<Packet>) {
        (0..self.flows.len()).for_each(|id| self.flows.flow(id).give_up(now, &mut self.shared, out));
    }

    fn rearm(&mut self, id: usize) {
        if let Some(deadline) = self.flows.flow(id).deadline() {
            self.flows.wake(id, deadline);
        }
    }

    fn handle_repair(&mut self, packet: Packet, now: Instant, out: &mut Vec<Packet>) {
        let Some((header, body)) = self.accept(&packet) else { return };
        let Some(code) = code_of(&header) else {
            self.shared.counters.malformed += 1;
            return;
        };
        let key = FlowKey::new(&packet.envelope, header.subject);
        let known = self.flows.find(&key, now);
        let id = match known {
            Some(id) => id,
            None => {
                let flow = Following::new(code, header.epoch, header.base_psn);
                let idle = self.shared.config.flow_idle;
                let Some((id, old)) = self.flows.insert(key, flow, idle, now, Following::can_go) else {
                    self.shared.counters.no_flow += 1;
                    return;
                };
                old.into_iter().for_each(|mut old| old.forget(&mut self.shared));
                id
            }
        };
        let flow = self.flows.flow(id);
        if header.is_copy {
            let read = read_coded(body, &packet.envelope, true);
            let summary = read.as_ref().and_then(|(packet, _)| Summary::of(&packet.datagram));
            match (read, summary) {
                (Some((copy, coded)), Some(summary))
                    if summary.is_acknowledgement() && summary.subject == header.subject =>
                {
                    // Whether the original has passed is not known before the flow is followed.
                    if known.is_none() {
                        flow.remember(coded);
                    }
                    flow.handle_copy(summary, copy, coded, now, &mut self.shared, out);
                }
                _ => self.shared.counters.wrong_blocks += 1,
            }
        } else {
            flow.handle_header(&header, code, body, &packet.envelope, now, &mut self.shared, out);
        }
        self.rearm(id);
    }

    /// A repair packet that may be used: from a source that may send it, whole, with the right tag and ICRC.
    fn accept<'a>(&mut self, packet: &'a Packet) -> Option<(Header, &'a [u8])> {
        let Shared { config, counters, .. } = &mut self.shared;
        if !config.is_source(packet.envelope.source.ip()) {
            counters.refused += 1;
            return None;
        }
        let Ok(parsed) = Datagram::parse(&packet.datagram) else {
            counters.malformed += 1;
            return None;
        };
        let has_tag = match &parsed {
            Datagram::Block(header, _) => header.has_tag,
            Datagram::Report(report) => report.has_tag,
        };
        if !is_authentic(config, packet, has_tag) {
            counters.refused += 1;
            return None;
        }
        if !icrc::verify(&packet.envelope.icrc_scope, &packet.datagram) {
            counters.malformed += 1;
            return None;
        }
        counters.repairs += 1;
        match parsed {
            Datagram::Block(header, body) if body.len() <= config.unit_bytes() => Some((header, body)),
            Datagram::Block(..) => None,
            Datagram::Report(report) => {
                if self.reports.len() < REPORTS_MAX {
                    self.reports.push(report);
                }
                None
            }
        }
    }

    #[cfg(feature = "mutations")]
    pub(crate) fn mutate(&mut self, mutation: crate::Mutation) {
        self.shared.mutation = Some(mutation);
    }
}

/// With a key, every repair packet needs its tag; without one, none does.
fn is_authentic(config: &Config, packet: &Packet, has_tag: bool) -> bool {
    let Some(key) = &config.key else { return true };
    let tagged = packet.datagram.len().checked_sub(icrc::ICRC_BYTES + TAG_BYTES);
    has_tag
        && tagged.is_some_and(|tagged| {
            let (covered, rest) = packet.datagram.split_at(tagged);
            tag(key, &packet.envelope, covered) == rest[..TAG_BYTES]
        })
}

fn code_of(header: &Header) -> Option<BlockCode> {
    let kind = if header.is_mds { longhaul_coding::CodeKind::Mds } else { longhaul_coding::CodeKind::Xor };
    BlockCode::new(kind, header.block_packets, header.repair_packets).ok()
}
