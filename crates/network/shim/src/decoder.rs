//! The receiving half: packets pass in order, lost ones are restored at their place, repair packets end here.

mod arrivals;
mod block;
mod claim;
mod copies;
mod executed;
mod following;
mod placing;
mod restoring;
mod shared;
mod waiting;

use std::net::IpAddr;

use longhaul_time::Instant;
use longhaul_wire::Psn;
use longhaul_wire::icrc;
use longhaul_wire::repair::{self, Datagram, Header, Report, TAG_BYTES};

use crate::agreements::Agreements;
use crate::coded::read_coded;
use crate::config::{BlockCode, Config, ConfigError};
use crate::counters::DecoderCounters;
use crate::flows::{FlowKey, Flows};
use crate::packet::{Checked, Envelope, Packet, Summary, right_scope};
use crate::tag::tag;
use following::Following;
use shared::Shared;

/// What is remembered of a flow, at most, but for units and packets that wait.
pub(crate) const FLOW_BYTES_MAX: usize = Flows::<Following>::SLOT_BYTES + Following::BYTES_MAX;
/// Memory of a packet that waits, besides its bytes: what is known of it, and room for four acknowledgements or two sums.
pub(crate) const HELD_BYTES_MAX: usize = shared::HELD_OVERHEAD_BYTES + 64;

/// Reports that wait to be taken, at most.
const REPORTS_MAX: usize = 64;

/// Restores lost packets from repair packets. Driven: packets and time come in, packets go out.
///
/// A flow is followed from its first repair packet or announcement on; packets of other flows pass at once and cost little. As
/// long as nothing is missing, packets pass at once too, and are added to the sums of their block. Behind a missing packet they
/// wait, until it is restored or arrives, or until it is clear that it will not be: then they are handed on as they are, the
/// transport's own retransmission takes over, and the next block is followed.
#[derive(Debug)]
pub struct Decoder {
    agreements: Agreements,
    flows: Flows<Following>,
    shared: Shared,
    reports: Vec<(Envelope, Report)>,
    due_reports: Vec<(Envelope, Report)>,
}

impl Decoder {
    /// A decoder.
    pub fn new(config: Config) -> Result<Decoder, ConfigError> {
        config.check()?;
        let shared = Shared::new(config);
        let flows = Flows::new(shared.config.flows_max);
        Ok(Decoder { agreements: Agreements::default(), flows, shared, reports: Vec::new(), due_reports: Vec::new() })
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
        let flows: usize = self.flows.iter().map(Following::memory_bytes).sum();
        flows + self.flows.memory_bytes() + self.shared.units.free_bytes() + self.shared.held_bytes
    }

    pub(crate) fn flows_in_use(&self, now: Instant) -> usize {
        self.flows.in_use(now, self.shared.config.flow_idle)
    }

    pub(crate) fn check_room(&self, peer: IpAddr, queue_pair: u32) -> Result<(), ConfigError> {
        let config = &self.shared.config;
        let has_room = self.agreements.has_room(config, peer, queue_pair);
        if has_room { Ok(()) } else { Err(ConfigError::Agreements { flows_max: config.flows_max }) }
    }

    pub(crate) fn agreements_mut(&mut self) -> &mut Agreements {
        &mut self.agreements
    }

    /// What peers have reported of our own packets since the last call, with what surrounded the reports.
    pub fn take_reports(&mut self) -> Vec<(Envelope, Report)> {
        std::mem::take(&mut self.reports)
    }

    /// What peers are to be told of their packets, each with what surrounded the packet that showed it.
    pub fn take_due_reports(&mut self) -> Vec<(Envelope, Report)> {
        std::mem::take(&mut self.due_reports)
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
        let known = self.flows.find(&key, now);
        // What UC has executed must not be restored, even if it arrives before the flow's first header.
        let peer = packet.envelope.source.ip();
        let code = self.agreements.code(&self.shared.config, peer, summary.subject.queue_pair);
        let code = code.filter(|_| !summary.is_reliable);
        if known.is_none() && code.is_none() {
            out.push(packet);
            return;
        }
        let Some(scope) = right_scope(&packet) else {
            // As good as lost: it enters no block. The port or the host counts it.
            self.shared.counters.icrc_errors += 1;
            out.push(packet);
            return;
        };
        let known = known.or_else(|| code.and_then(|code| self.insert(key, code, summary.psn, now)));
        let Some(id) = known else {
            out.push(packet);
            return;
        };
        let flow = self.flows.flow(id);
        let envelope = packet.envelope;
        let checked = Checked { packet, summary, scope };
        match summary.is_acknowledgement() {
            true => flow.handle_acknowledgement(checked, now, &mut self.shared, out),
            false => {
                flow.handle_data(checked, now, &mut self.shared, out);
                let every = self.shared.config.reports_every;
                if let Some(report) = every.and_then(|every| flow.report(summary.subject, every, now))
                    && self.due_reports.len() < REPORTS_MAX
                {
                    self.due_reports.push((envelope, report));
                }
            }
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
    pub fn close(&mut self, out: &mut Vec<Packet>) {
        (0..self.flows.len()).for_each(|id| self.flows.flow(id).hand_on_all(&mut self.shared, out));
    }

    fn rearm(&mut self, id: usize) {
        if let Some(deadline) = self.flows.flow(id).deadline(&self.shared.config) {
            self.flows.wake(id, deadline);
        }
    }

    fn handle_repair(&mut self, packet: Packet, now: Instant, out: &mut Vec<Packet>) {
        let Some((header, body)) = self.accept(&packet) else { return };
        let Some(code) = code_of(&header) else {
            self.shared.counters.malformed += 1;
            return;
        };
        if code.repair_packets() > self.shared.config.flow_units_max {
            self.shared.counters.refused += 1;
            return;
        }
        let key = FlowKey::new(&packet.envelope, header.subject);
        let id = match self.flows.find(&key, now) {
            Some(id) => id,
            // Whether the original has passed is not known: wait for the next.
            None if header.is_copy => {
                self.insert(key, code, header.base_psn, now);
                return;
            }
            None => {
                let Some(id) = self.insert(key, code, header.base_psn, now) else { return };
                id
            }
        };
        if header.is_copy {
            self.handle_copy(id, &header, body, &packet, now, out);
        } else {
            let flow = self.flows.flow(id);
            flow.handle_header(&header, code, body, &packet.envelope, now, &mut self.shared, out);
        }
        self.rearm(id);
    }

    fn insert(&mut self, key: FlowKey, code: BlockCode, psn: Psn, now: Instant) -> Option<usize> {
        let flow = Following::new(code, psn, now);
        let Some((id, old)) = self.flows.insert(key, flow, now, |flow| flow.patience(&self.shared)) else {
            self.shared.counters.no_flow += 1;
            return None;
        };
        self.shared.unproven_flows += 1;
        old.into_iter().for_each(|old| old.remove(&mut self.shared));
        Some(id)
    }

    fn handle_copy(
        &mut self,
        id: usize,
        header: &Header,
        body: &[u8],
        packet: &Packet,
        now: Instant,
        out: &mut Vec<Packet>,
    ) {
        let read = read_coded(body, &packet.envelope, true);
        let summary = read.as_ref().and_then(|(packet, _)| Summary::of(&packet.datagram));
        match (read, summary) {
            (Some((copy, coded)), Some(summary))
                if summary.is_acknowledgement() && summary.subject == header.subject =>
            {
                let scope = copy.envelope.icrc_scope;
                let checked = Checked { packet: copy, summary, scope };
                self.flows.flow(id).handle_copy(checked, coded, now, &mut self.shared, out);
            }
            _ => self.shared.counters.wrong_blocks += 1,
        }
    }

    /// A repair packet that may be used: from a peer, whole, with the right tag and ICRC.
    fn accept<'a>(&mut self, packet: &'a Packet) -> Option<(Header, &'a [u8])> {
        let Shared { config, counters, .. } = &mut self.shared;
        let peer = packet.envelope.source.ip();
        if !self.agreements.knows(config, peer) {
            counters.refused += 1;
            return None;
        }
        let Ok(parsed) = Datagram::parse(&packet.datagram) else {
            counters.malformed += 1;
            return None;
        };
        let (has_tag, is_agreed) = match &parsed {
            Datagram::Block(header, _) => {
                (header.has_tag, self.agreements.code(config, peer, header.subject.queue_pair).is_some())
            }
            Datagram::Report(report) => (report.has_tag, true),
        };
        if !is_agreed || !is_authentic(config, packet, has_tag) {
            counters.refused += 1;
            return None;
        }
        if right_scope(packet).is_none() {
            counters.malformed += 1;
            return None;
        }
        if matches!(&parsed, Datagram::Block(_, body) if body.len() > config.unit_bytes()) {
            counters.too_long += 1;
            return None;
        }
        counters.repairs += 1;
        match parsed {
            Datagram::Block(header, body) => Some((header, body)),
            Datagram::Report(report) => {
                if self.reports.len() < REPORTS_MAX {
                    self.reports.push((packet.envelope, report));
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
