//! The sending half: packets pass as they are, and repair packets follow each block.

mod credit;
mod following;

use std::net::IpAddr;

use longhaul_coding::{CodeKind, RunningCoder, xor_group};
use longhaul_time::{Duration, Instant};
use longhaul_wire::icrc::{self, ICRC_BYTES};
use longhaul_wire::repair::{self, HEADER_BYTES, Header};
use longhaul_wire::{Opcode, Position, Psn};

use crate::agreements::Agreements;
use crate::coded::Coded;
use crate::config::{BlockCode, Config, ConfigError};
use crate::counters::EncoderCounters;
use crate::flows::{FlowKey, Flows};
use crate::packet::{Borrowed, Envelope, Packet, SKIPPED_MAX, Summary, right_scope};
use crate::paths::{Paths, Position as FlowPosition, Reported};
use crate::tag::tag;
use crate::units::{Units, add_to_all, bytes_of, lengthen};
use credit::Credit;

/// Adds repair packets to what is sent. Driven: packets and time come in, packets go out.
///
/// Blocks are consecutive PSNs of one message. A block ends when it is full, with its message, when its flow is idle, and when the
/// sender goes back to an earlier PSN or skips some; then its repair packets leave. Only packets to the configured peers and
/// to queue pairs that were agreed on are protected.
#[derive(Debug)]
pub struct Encoder {
    config: Config,
    agreements: Agreements,
    flows: Flows<Sending>,
    units: Units,
    coder: RunningCoder,
    coded: Vec<u8>,
    /// State of the generator that first epochs come from.
    epochs: u64,
    counters: EncoderCounters,
    /// There if the code follows the link.
    paths: Option<Paths>,
    #[cfg(feature = "mutations")]
    pub(crate) mutation: Option<crate::Mutation>,
}

pub(crate) const FLOW_BYTES_MAX: usize = Flows::<Sending>::SLOT_BYTES;

/// What is known of a flow that is sent.
#[derive(Debug)]
struct Sending {
    epoch: u16,
    /// The code that was announced last, if the flow was announced at all.
    code: Option<BlockCode>,
    next: Psn,
    /// The next packet that begins a message may have any later PSN.
    is_open: bool,
    block: Option<Block>,
    /// Packets of a block that found no units.
    unprotected: u8,
    /// The path, if the code follows it.
    path: Option<usize>,
    /// What is left of the user's bound of overhead.
    credit: Credit,
    /// A block ended where the receiver cannot know: the next one is announced.
    is_cut: bool,
    /// Data packets that were sent, and whether any PSNs were skipped between them.
    sent: u64,
    has_skipped: bool,
    /// Where the message began that is being sent.
    message_start: Option<Psn>,
    reported: Reported,
    /// When the last packet was sent, and how far packets are apart.
    sent_at: Option<Instant>,
    spacing: Duration,
}

/// A block that has not ended.
#[derive(Debug)]
struct Block {
    code: BlockCode,
    base: Psn,
    count: u8,
    sums: Vec<Vec<u8>>,
    digest: u32,
    has_first: bool,
    has_last: bool,
    last_length: u16,
    /// The longest elided payload, and whether any packet has payload that is not.
    elided_bytes: u32,
    has_payload: bool,
    /// Of the newest packet.
    envelope: Envelope,
    began_at: Instant,
    added_at: Instant,
}

impl Encoder {
    /// An encoder. The seed decides with which epoch flows begin; after a restart it should be another one.
    pub fn new(config: Config, seed: u64) -> Result<Encoder, ConfigError> {
        config.check()?;
        Ok(Encoder {
            flows: Flows::new(config.flows_max),
            units: Units::new(config.units_max),
            coder: RunningCoder::new(),
            coded: Vec::new(),
            epochs: seed,
            counters: EncoderCounters::default(),
            agreements: Agreements::default(),
            paths: Paths::new(&config),
            config,
            #[cfg(feature = "mutations")]
            mutation: None,
        })
    }

    /// What was done so far.
    pub fn counters(&self) -> EncoderCounters {
        self.counters
    }

    /// The code of blocks that begin from now on; it is announced with each flow's next block.
    pub fn set_code(&mut self, code: BlockCode) -> Result<(), ConfigError> {
        let before = std::mem::replace(&mut self.config.code, code);
        self.config.check().inspect_err(|_| self.config.code = before)
    }

    pub(crate) fn check_code(&self, code: BlockCode) -> Result<(), ConfigError> {
        Config { code, ..self.config.clone() }.check()
    }

    pub(crate) fn check_room(&self, peer: IpAddr, queue_pair: u32) -> Result<(), ConfigError> {
        let has_room = self.agreements.has_room(&self.config, peer, queue_pair);
        if has_room { Ok(()) } else { Err(ConfigError::Agreements { flows_max: self.config.flows_max }) }
    }

    pub(crate) fn agreements_mut(&mut self) -> &mut Agreements {
        &mut self.agreements
    }

    /// A packet is sent: it goes on, with what belongs before and after it.
    pub fn handle(&mut self, packet: Packet, now: Instant, out: &mut Vec<Packet>) {
        let place = self.pass(&packet.envelope, &packet.datagram, now, out);
        out.insert(place, packet);
    }

    /// The same for a packet that leaves from where it lies: `out` gets only what belongs before and after it. Returns its place there.
    pub fn pass(&mut self, envelope: &Envelope, datagram: &[u8], now: Instant, out: &mut Vec<Packet>) -> usize {
        let is_protected = |summary: &Summary| {
            self.agreements.code(&self.config, envelope.destination.ip(), summary.subject.queue_pair).is_some()
        };
        let packet = Borrowed { envelope, datagram };
        match Summary::of(datagram).filter(is_protected) {
            Some(summary) if summary.is_acknowledgement() => self.pass_acknowledgement(summary, packet, now, out),
            Some(summary) => self.pass_data(summary, packet, now, out),
            None => out.len(),
        }
    }

    /// Ends blocks that are due.
    pub fn poll(&mut self, now: Instant, out: &mut Vec<Packet>) {
        while let Some(id) = self.flows.pop_due(now) {
            match self.flows.flow(id).due(&self.config) {
                Some(due) if due <= now => {
                    self.counters.flushed_blocks += 1;
                    self.note_cut(id);
                    self.end_block(id, out);
                }
                Some(due) => self.flows.wake(id, due),
                None => {}
            }
        }
    }

    /// When [`poll`](Encoder::poll) is wanted next; there may be nothing to do then.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.flows.next_alarm()
    }

    /// Ends all blocks.
    pub fn close(&mut self, out: &mut Vec<Packet>) {
        (0..self.flows.len()).for_each(|id| self.end_block(id, out));
    }

    /// Bytes by which a repair packet is longer than the longest packet of its block.
    pub fn overhead_bytes(&self) -> usize {
        self.config.overhead_bytes()
    }

    /// Bytes of memory in coding units, at the moment.
    pub fn memory_bytes(&self) -> usize {
        let sums: usize = self.flows.iter().flat_map(|flow| &flow.block).map(|block| bytes_of(&block.sums)).sum();
        sums + self.units.free_bytes() + self.flows.memory_bytes()
    }

    pub(crate) fn flows_in_use(&self, now: Instant) -> usize {
        self.flows.in_use(now, self.config.flow_idle)
    }

    fn code_of(&mut self, id: usize) -> BlockCode {
        if let (Some(paths), Some(path)) = (&self.paths, self.flows.flow(id).path) {
            return paths.code(path);
        }
        let key = self.flows.key(id);
        self.agreements.code(&self.config, key.destination(), key.subject().queue_pair).unwrap_or(self.config.code)
    }

    fn pass_data(&mut self, summary: Summary, packet: Borrowed<'_>, now: Instant, out: &mut Vec<Packet>) -> usize {
        let scope = match self.config.checks_outgoing {
            true => right_scope(packet),
            false => Some(packet.envelope.icrc_scope),
        };
        let Some(scope) = scope else {
            self.counters.icrc_errors += 1;
            return out.len();
        };
        let fits = Coded::byte_count(packet.datagram) <= self.config.unit_bytes();
        match (Coded::of(packet, &scope).filter(|_| fits), summary.opcode) {
            (Some(coded), Some(opcode)) => self.protect(summary, packet, opcode, coded, now, out),
            _ => self.pass_over(summary, packet, now, out),
        }
    }

    /// A packet that is in no block takes its PSN.
    fn pass_over(&mut self, summary: Summary, packet: Borrowed<'_>, now: Instant, out: &mut Vec<Packet>) -> usize {
        self.counters.unfit += 1;
        let key = FlowKey::new(packet.envelope, summary.subject);
        if let Some(id) = self.flows.find(&key, now) {
            self.end_block(id, out);
            let flow = self.flows.flow(id);
            flow.sent += 1;
            flow.unprotected = 0;
            // Any other place is a jump, which the next packet shows.
            if flow.next == summary.psn || flow.is_open && summary.psn.distance_from(flow.next) > 0 {
                flow.next = summary.psn.next();
                flow.is_open = summary.leaves_next_open();
            }
        }
        out.len()
    }

    fn protect(
        &mut self,
        summary: Summary,
        packet: Borrowed<'_>,
        opcode: Opcode,
        coded: Coded,
        now: Instant,
        out: &mut Vec<Packet>,
    ) -> usize {
        let envelope = packet.envelope;
        let Some(id) = self.flow_of(&summary, envelope, now) else {
            self.counters.no_flow += 1;
            return out.len();
        };
        let position = opcode.position();
        let code = self.code_of(id);
        let flow = self.flows.flow(id);
        flow.note_spacing(now, self.config.block_age_max);
        if flow.code.is_none() {
            flow.next = summary.psn;
            flow.code = Some(code);
            self.announce(id, summary.psn, envelope, out);
        }
        let flow = self.flows.flow(id);
        let distance = summary.psn.distance_from(flow.next);
        let skips = flow.is_open && position.is_start() && distance > 0;
        let (is_elided, has_payload) = payload(opcode, packet);
        let is_other_kind = flow
            .block
            .as_ref()
            .is_some_and(|block| is_elided && block.has_payload || has_payload && block.elided_bytes > 0);
        let is_new_message = position.is_start() && !self.crosses_messages();
        if distance != 0 || is_new_message || is_other_kind {
            self.end_block(id, out);
            self.flows.flow(id).unprotected = 0;
        }
        if distance != 0 && !skips {
            match distance < 0 {
                true => self.counters.rewinds += 1,
                false => self.counters.jumps += 1,
            }
            self.flows.flow(id).epoch = self.flows.flow(id).epoch.wrapping_add(1);
        }
        if distance != 0 && !skips || distance > i32::from(SKIPPED_MAX) {
            self.announce(id, summary.psn, envelope, out);
        }
        self.flows.flow(id).has_skipped |= skips;
        self.note_sent(id, &summary, envelope, now);
        let flow = self.flows.flow(id);
        flow.next = summary.psn.next();
        flow.is_open = summary.leaves_next_open();
        let is_added = self.begin_block(id, &summary, envelope, now, out);
        match is_added {
            true => self.add(id, opcode, packet, coded, now),
            false => self.counters.no_unit += 1,
        }
        let place = out.len();
        let ends_block = position.is_end() && !self.crosses_messages();
        let flow = self.flows.flow(id);
        let is_full = flow.block.as_ref().is_some_and(|block| block.count == block.code.block_packets());
        match is_added {
            true if ends_block || is_full => self.end_block(id, out),
            true => {
                let due = flow.due(&self.config);
                due.into_iter().for_each(|due| self.flows.wake(id, due));
            }
            false if ends_block => flow.unprotected = 0,
            false => {}
        }
        place
    }

    /// Adds a packet to its flow's block.
    fn add(&mut self, id: usize, opcode: Opcode, packet: Borrowed<'_>, coded: Coded, now: Instant) {
        let Borrowed { envelope, datagram } = packet;
        let bytes = Coded::byte_count(datagram);
        let position = opcode.position();
        let (is_elided, has_payload) = payload(opcode, packet);
        let Some(block) = &mut self.flows.flow(id).block else { return };
        let code = block.code;
        let place = usize::from(block.count);
        match code.kind() {
            CodeKind::Xor => {
                let group = xor_group(place, usize::from(code.repair_packets()));
                let sum = &mut block.sums[group];
                lengthen(sum, bytes);
                coded.add_plain(datagram, &self.coder, sum);
            }
            CodeKind::Mds => {
                coded.write(datagram, &mut self.coded);
                block.sums.iter_mut().for_each(|sum| lengthen(sum, bytes));
                add_to_all(&self.coder, place, &self.coded, &mut block.sums);
            }
        }
        block.digest = block.digest.wrapping_add(repair::digest_of(block.count, coded.icrc));
        block.count += 1;
        block.has_last = position.is_end();
        block.last_length = if position.is_end() { coded.length } else { 0 };
        block.elided_bytes = block.elided_bytes.max(if is_elided { envelope.elided_bytes } else { 0 });
        block.has_payload |= has_payload;
        block.envelope = *envelope;
        block.added_at = now;
        self.counters.protected += 1;
    }

    /// Begins a block if the flow has none. `false` if there are no units for it.
    fn begin_block(
        &mut self,
        id: usize,
        summary: &Summary,
        envelope: &Envelope,
        now: Instant,
        out: &mut Vec<Packet>,
    ) -> bool {
        let code = self.code_of(id);
        let flow = self.flows.flow(id);
        if flow.block.is_some() {
            return true;
        }
        if flow.unprotected > 0 {
            flow.unprotected -= 1;
            return false;
        }
        let is_whole_message = summary.position() == Position::Only && !self.crosses_messages();
        let wanted = if is_whole_message { 1 } else { usize::from(code.repair_packets()) };
        if self.units.available() < wanted {
            self.flows.flow(id).unprotected = code.block_packets() - 1;
            return false;
        }
        let flow = self.flows.flow(id);
        let is_cut = std::mem::take(&mut flow.is_cut) && !summary.position().is_start();
        if flow.code.replace(code) != Some(code) || is_cut {
            self.announce(id, summary.psn, envelope, out);
        }
        let sums = (0..wanted).filter_map(|_| self.units.take()).collect();
        self.flows.flow(id).block = Some(Block {
            code,
            base: summary.psn,
            count: 0,
            sums,
            digest: 0,
            has_first: summary.position().is_start(),
            has_last: false,
            last_length: 0,
            elided_bytes: 0,
            has_payload: false,
            envelope: *envelope,
            began_at: now,
            added_at: now,
        });
        true
    }

    fn end_block(&mut self, id: usize, out: &mut Vec<Packet>) {
        let subject = self.flows.key(id).subject();
        let flow = self.flows.flow(id);
        let epoch = flow.epoch;
        let Some(mut block) = flow.block.take() else { return };
        let code = block.code;
        let mut header = Header {
            subject,
            is_announcement: false,
            base_psn: block.base,
            epoch,
            is_mds: code.kind() == CodeKind::Mds,
            block_packets: code.block_packets(),
            repair_packets: code.repair_packets(),
            count: block.count,
            index: 0,
            has_first: block.has_first,
            has_last: block.has_last,
            last_length: block.last_length,
            is_copy: false,
            has_tag: self.config.key.is_some(),
            digest: block.digest,
        };
        self.fold(code.groups_of(block.count, block.has_last), &mut block.sums);
        let sums = code.sums_of(block.count, block.has_last);
        let is_cut_short = !block.has_last && block.count < code.block_packets();
        let sums = if self.is_within_bound(id, sums) { sums } else { 0 };
        self.flows.flow(id).is_cut = is_cut_short && sums == 0;
        for (index, sum) in (0..sums).zip(&block.sums) {
            header.index = index;
            out.push(self.repair_packet(&header, sum, &block.envelope, block.elided_bytes));
            self.counters.repairs += 1;
        }
        block.sums.into_iter().for_each(|sum| self.units.give_back(sum));
    }

    /// Adds up sums so that only `groups` are left; those behind them are of no use then.
    fn fold(&self, groups: usize, sums: &mut [Vec<u8>]) {
        let Some((kept, others)) = sums.split_at_mut_checked(groups) else { return };
        for (index, other) in others.iter().enumerate() {
            let sum = &mut kept[index % groups];
            lengthen(sum, other.len());
            self.coder.add_plain(other, &mut sum[..other.len()]);
        }
    }

    fn announce(&mut self, id: usize, base_psn: Psn, envelope: &Envelope, out: &mut Vec<Packet>) {
        let code = self.code_of(id);
        self.flows.flow(id).is_cut = false;
        let header = Header {
            subject: self.flows.key(id).subject(),
            is_announcement: true,
            base_psn,
            epoch: self.flows.flow(id).epoch,
            is_mds: code.kind() == CodeKind::Mds,
            block_packets: code.block_packets(),
            repair_packets: code.repair_packets(),
            count: code.block_packets(),
            index: 0,
            has_first: false,
            has_last: false,
            last_length: 0,
            is_copy: false,
            has_tag: self.config.key.is_some(),
            digest: 0,
        };
        out.push(self.repair_packet(&header, &[], envelope, 0));
        self.counters.announcements += 1;
    }

    fn repair_packet(&self, header: &Header, body: &[u8], like: &Envelope, elided_bytes: u32) -> Packet {
        let mut datagram = Vec::with_capacity(body.len() + self.overhead_bytes());
        datagram.resize(HEADER_BYTES, 0);
        header.emit(&mut datagram);
        datagram.extend_from_slice(body);
        self.finished(datagram, like, elided_bytes)
    }

    /// A packet of the shim's own, with its tag and ICRC.
    fn finished(&self, mut datagram: Vec<u8>, like: &Envelope, elided_bytes: u32) -> Packet {
        let identification = like.identification.map(|_| 0);
        let envelope = Envelope { identification, icrc_scope: like.icrc_scope.canonical(), elided_bytes, ..*like };
        if let Some(key) = &self.config.key {
            let tag = tag(key, &envelope, &datagram);
            datagram.extend_from_slice(&tag);
        }
        datagram.extend_from_slice(&[0; ICRC_BYTES]);
        icrc::write(&envelope.icrc_scope, &mut datagram);
        Packet { envelope, datagram }
    }

    fn pass_acknowledgement(
        &mut self,
        summary: Summary,
        packet: Borrowed<'_>,
        now: Instant,
        out: &mut Vec<Packet>,
    ) -> usize {
        let Borrowed { envelope, datagram } = packet;
        if let (Some(path), Some(paths)) = (self.path_to(envelope, summary.subject.queue_pair), &mut self.paths) {
            paths.path(path).like = Some(*envelope);
        }
        let place = out.len();
        let Some(scope) = right_scope(packet).filter(|_| self.config.copies_acknowledgements) else { return place };
        if let (Some(id), Some(coded)) = (self.flow_of(&summary, envelope, now), Coded::of(packet, &scope)) {
            let header = Header {
                subject: summary.subject,
                is_announcement: false,
                base_psn: summary.psn,
                epoch: self.flows.flow(id).epoch,
                is_mds: false,
                block_packets: 1,
                repair_packets: 1,
                count: 1,
                index: 0,
                has_first: true,
                has_last: true,
                last_length: coded.length,
                is_copy: true,
                has_tag: self.config.key.is_some(),
                digest: repair::digest_of(0, coded.icrc),
            };
            let mut bytes = std::mem::take(&mut self.coded);
            coded.write(datagram, &mut bytes);
            out.push(self.repair_packet(&header, &bytes, envelope, 0));
            self.coded = bytes;
            self.counters.copies += 1;
        }
        place
    }

    /// The flow of a packet.
    fn flow_of(&mut self, summary: &Summary, envelope: &Envelope, now: Instant) -> Option<usize> {
        let key = FlowKey::new(envelope, summary.subject);
        if let Some(id) = self.flows.find(&key, now) {
            return Some(id);
        }
        let path = self.path_to(envelope, summary.subject.queue_pair);
        // SplitMix64.
        self.epochs = self.epochs.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.epochs ^ (self.epochs >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let epoch = (mixed >> 40) as u16;
        let flow = Sending {
            epoch,
            code: None,
            next: summary.psn,
            is_open: false,
            block: None,
            unprotected: 0,
            path,
            credit: Credit::default(),
            is_cut: false,
            sent: 0,
            has_skipped: false,
            message_start: None,
            reported: Reported::default(),
            sent_at: None,
            spacing: Duration::ZERO,
        };
        let idle = self.config.flow_idle;
        let (id, _) = self.flows.insert(key, flow, now, |flow: &Sending| flow.block.is_none().then_some(idle))?;
        Some(id)
    }

    #[cfg(feature = "mutations")]
    fn crosses_messages(&self) -> bool {
        self.mutation == Some(crate::Mutation::BlocksAcrossMessages)
    }

    #[cfg(not(feature = "mutations"))]
    fn crosses_messages(&self) -> bool {
        false
    }
}

impl Sending {
    /// When the block ends if nothing is added. A flow is not idle while its packets come as they usually do: otherwise each
    /// packet of a slow one would be a block, and be sent twice.
    fn due(&self, config: &Config) -> Option<Instant> {
        let block = self.block.as_ref()?;
        let idle = config.idle_flush.max(self.spacing * 4);
        Some((block.added_at + idle).min(block.began_at + config.block_age_max))
    }

    /// A packet is sent. Pauses count as `longest`.
    fn note_spacing(&mut self, now: Instant, longest: Duration) {
        if let Some(before) = self.sent_at.replace(now) {
            self.spacing = (self.spacing * 3 + now.saturating_since(before).min(longest)) / 4;
        }
    }
}

/// Whether the payload of a packet is elided, and whether it is there.
fn payload(opcode: Opcode, packet: Borrowed<'_>) -> (bool, bool) {
    let is_elided = packet.envelope.elided_bytes > 0;
    (is_elided, !is_elided && packet.datagram.len() > opcode.header_bytes() + ICRC_BYTES)
}
