//! The sender's part in a code that follows the link: what it sends is counted, reports are taken and sent.

use std::net::IpAddr;

use longhaul_time::Instant;
use longhaul_wire::repair::{REPORT_BYTES, Report};
use longhaul_wire::{IcrcScope, Position};

use super::{Encoder, FlowPosition};
use crate::packet::{Envelope, Summary};
use crate::paths::Peer;
use crate::{Packet, PathStatus};

impl Encoder {
    /// How each path stands whose code follows it, and why.
    pub fn paths(&self) -> Vec<PathStatus> {
        self.paths.iter().flat_map(|paths| paths.statuses()).collect()
    }

    /// A peer reports what has become of our packets. Counts only if it is of a flow of ours, and can be true.
    pub fn handle_report(&mut self, envelope: &Envelope, report: &Report, now: Instant) {
        let Some(paths) = &mut self.paths else { return };
        let (ours, peer) = (envelope.destination.ip(), envelope.source.ip());
        let taken = self.flows.find_between(report.subject, ours, peer).and_then(|id| {
            let flow = self.flows.flow(id);
            let position =
                FlowPosition { epoch: flow.epoch, next: flow.next, sent: flow.sent, skips: flow.has_skipped };
            let (sample, in_flight) = flow.reported.take(report, &position)?;
            Some((flow.path?, sample, in_flight))
        });
        let Some((path, sample, in_flight)) = taken else {
            self.counters.reports_refused += 1;
            return;
        };
        self.counters.reports_used += 1;
        self.counters.code_changes += u64::from(paths.path(path).report(sample, in_flight, now));
    }

    /// Reports to the sender of a packet that has arrived, with this envelope, what was lost of its flow.
    pub fn send_report(&mut self, arrived: &Envelope, report: Report, out: &mut Vec<Packet>) {
        let (source, destination) = (arrived.destination, arrived.source);
        // Ports cannot be known from what arrives. If nothing was sent there, both ends are taken to listen at the same one.
        let path = match self.agreements.network_or_host(&self.config, destination.ip()) {
            Some(peer) => self.path_of(peer, destination.ip()),
            None => None,
        };
        let like = path.and_then(|path| self.paths.as_mut()?.path(path).like);
        let ports = like.map_or((source.port(), source.port()), |like| (like.source.port(), like.destination.port()));
        let (source, destination) = ((source.ip(), ports.0).into(), (destination.ip(), ports.1).into());
        let scope = match (arrived.icrc_scope, IcrcScope::between(source, destination)) {
            (IcrcScope::WITHOUT_ADDRESSES, _) | (_, None) => IcrcScope::WITHOUT_ADDRESSES,
            (_, Some(scope)) => scope,
        };
        let envelope = Envelope {
            source,
            destination,
            traffic_class: like.map_or(arrived.traffic_class & !3, |like| like.traffic_class),
            hop_limit: like.map_or(64, |like| like.hop_limit),
            identification: like.map_or(Some(0), |like| like.identification),
            icrc_scope: scope,
            elided_bytes: 0,
        };
        let report = Report { has_tag: self.config.key.is_some(), ..report };
        let mut datagram = vec![0; REPORT_BYTES];
        report.emit(&mut datagram);
        out.push(self.finished(datagram, &envelope, 0));
        self.counters.reports += 1;
    }

    /// The path of packets to a queue pair, if the code follows it.
    pub(super) fn path_to(&mut self, envelope: &Envelope, queue_pair: u32) -> Option<usize> {
        self.paths.as_ref()?;
        let host = envelope.destination.ip();
        let peer = self.agreements.peer(&self.config, host, queue_pair)?;
        self.path_of(peer, host)
    }

    /// The path to a peer. `None` if there are too many: those have the code that was agreed on.
    fn path_of(&mut self, peer: Peer, host: IpAddr) -> Option<usize> {
        let paths = self.paths.as_mut()?;
        if let Some(id) = paths.get(peer) {
            return Some(id);
        }
        let is_needed = |peer| match peer {
            Peer::Network(_) => true,
            Peer::Host(host) => self.agreements.knows(&self.config, host),
        };
        let id = paths.insert(peer, host, is_needed)?;
        // Those that it was of before are not protected any more.
        self.flows.iter_mut().filter(|flow| flow.path == Some(id)).for_each(|flow| flow.path = None);
        Some(id)
    }

    /// A data packet is sent.
    pub(super) fn note_sent(&mut self, id: usize, summary: &Summary, envelope: &Envelope, now: Instant) {
        let flow = self.flows.flow(id);
        flow.sent += 1;
        let Some(auto) = &self.config.auto else { return };
        flow.credit.earn(auto.overhead_max);
        let (Some(paths), Some(path)) = (&mut self.paths, flow.path) else { return };
        let position = summary.position();
        if position.is_start() {
            flow.message_start = Some(summary.psn);
        }
        let path = paths.path(path);
        path.note_protected();
        path.like = Some(*envelope);
        if position == Position::Only || position.is_end() {
            let start = flow.message_start.take();
            let packets = start.and_then(|start| u32::try_from(summary.psn.distance_from(start)).ok());
            let has_changed = packets.is_some_and(|packets| path.note_message(packets + 1, now));
            self.counters.code_changes += u64::from(has_changed);
        }
    }

    /// A block is cut short because its flow pauses.
    pub(super) fn note_cut(&mut self, id: usize) {
        if let (Some(paths), Some(path)) = (&mut self.paths, self.flows.flow(id).path) {
            paths.path(path).note_cut();
        }
    }

    /// Whether repair packets are within the user's bound of overhead.
    pub(super) fn is_within_bound(&mut self, id: usize, repairs: u8) -> bool {
        let is_within = self.config.auto.is_none() || self.flows.flow(id).credit.spend(repairs);
        self.counters.over_bound += u64::from(!is_within);
        is_within
    }
}
