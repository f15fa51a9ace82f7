//! Both sides, as the forwarding loop drives them.

use longhaul_datagram::{Direction, Envelope, Packet};
use longhaul_forward::{Arrival, Fate, Handler, Outbox};
use longhaul_shim::{Config, ConfigError, DecoderCounters, EncoderCounters, Onward, PathStatus, Shim, greeting};
use longhaul_time::{Duration, Instant};
use longhaul_wire::repair;

use crate::frame::{self, LinkHeader, Parsed};
use crate::pairs::{Pair, Pairs, TrafficClass};
use crate::peer::Peer;
use crate::waiting::WaitingHeaders;

/// The interface towards the hosts.
pub const SITE: usize = 0;
/// The interface towards the other gateway.
pub const WIDE: usize = 1;

/// Memory of packets that have left, kept for others.
const SPARE_MAX: usize = 256;
/// A deadline that is noticed this late was slept through: what arrived meanwhile comes first, so that a packet is not given up
/// while its repair waits in the ring.
const SLEPT: Duration = Duration::from_micros(500);
/// This many frames without a look at deadlines: the ring has more.
const BACKLOG: usize = 128;

/// How a gateway behaves, besides its shim.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayConfig {
    /// What is protected, and how.
    pub shim: Config,
    /// Pairs of hosts whose link headers are remembered, each way.
    pub pairs_max: usize,
    /// Send repair packets only while the other gateway is heard.
    pub waits_for_peer: bool,
    /// How far greetings are apart until the other gateway is heard; then four times as far.
    pub greeting_interval: Duration,
    /// The other gateway is missing when nothing of it has arrived for this long.
    pub peer_timeout: Duration,
}

impl GatewayConfig {
    /// With a shim like this.
    pub fn new(shim: Config) -> GatewayConfig {
        GatewayConfig {
            pairs_max: shim.flows_max,
            shim,
            waits_for_peer: true,
            greeting_interval: Duration::from_millis(250),
            peer_timeout: Duration::from_secs(5),
        }
    }

    /// Bytes of memory that packets can make grow, at most.
    pub fn memory_bytes_max(&self) -> usize {
        let (pairs, headers) = (2 * self.pairs_max, self.shim.held_packets_max);
        self.shim.memory_bytes_max() + pairs * Pairs::PAIR_BYTES + headers * WaitingHeaders::HEADER_BYTES
    }
}

/// What a gateway has counted. Numbers are of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GatewayCounters {
    /// Not RoCEv2, or not as RoCEv2 is: forwarded as they are, by the side where they arrived.
    pub other: [u64; 2],
    /// RoCEv2, by the side where they arrived.
    pub packets: [u64; 2],
    /// RoCEv2 to or from hosts that are not behind the other gateway: forwarded as they are.
    pub not_peer: [u64; 2],
    /// RoCEv2 between pairs of hosts for which there was no room: forwarded as they are.
    pub no_pair: [u64; 2],
    /// Forwarded without protection because the other gateway is not heard.
    pub without_peer: u64,
    /// Repair packets that arrived at the site side, and were dropped: hosts have none to send.
    pub site_repairs: u64,
    /// Repair packets that arrived at the wide side from hosts that are not behind the other gateway, and were dropped.
    pub not_peer_repairs: u64,
    /// Greetings that were sent.
    pub greetings: u64,
    /// Packets out of the shim that no frame could be built for. Always 0 unless something is wrong here.
    pub not_built: u64,
    /// How long packets have waited for missing ones, all together, in nanoseconds.
    pub waited_nanos: u64,
}

/// A moment of a gateway.
#[derive(Clone, Copy, Debug, Default)]
pub struct GatewayState {
    /// Of frames.
    pub frames: GatewayCounters,
    /// Of what was sent to the wide side.
    pub sent: EncoderCounters,
    /// Of what came from there.
    pub received: DecoderCounters,
    /// Flows that were not idle of late: towards the wide side, and from there.
    pub flows: [usize; 2],
    /// Pairs of hosts that are remembered, the same way.
    pub pairs: [usize; 2],
    /// Packets that wait for a missing one now.
    pub waiting_packets: usize,
    /// Bytes of memory that packets make grow: the shim, pairs of hosts, and headers of packets that wait.
    pub memory_bytes: usize,
    /// The bound of the same.
    pub memory_bytes_max: usize,
    /// Whether the other gateway is heard.
    pub peer_heard: bool,
}

/// A gateway between interfaces [`SITE`] and [`WIDE`] of a forwarding loop.
#[derive(Debug)]
pub struct Gateway {
    config: GatewayConfig,
    shim: Shim,
    onward: Onward,
    spare: Vec<Vec<u8>>,
    /// By the side where packets enter.
    pairs: [Pairs; 2],
    /// Of packets from the wide side.
    waiting: WaitingHeaders,
    peer: Peer,
    counters: GatewayCounters,
    /// Frames that arrived before were forwarded by the kernel.
    begins_at: Instant,
    /// The latest time that was seen.
    now: Instant,
    since_poll: usize,
    has_slept: bool,
    is_closing: bool,
    is_closed: bool,
}

impl Gateway {
    /// A gateway. The seed decides with which epochs flows begin; after a restart it should be another one.
    pub fn new(config: GatewayConfig, seed: u64) -> Result<Gateway, ConfigError> {
        let idle = config.shim.flow_idle.max(config.shim.timeout * 2);
        Ok(Gateway {
            shim: Shim::new(config.shim.clone(), seed)?,
            onward: Onward::default(),
            spare: Vec::new(),
            pairs: [Pairs::new(config.pairs_max, idle), Pairs::new(config.pairs_max, idle)],
            waiting: WaitingHeaders::new(config.shim.held_packets_max),
            peer: Peer::new(config.greeting_interval, config.peer_timeout),
            counters: GatewayCounters::default(),
            begins_at: Instant::ZERO,
            now: Instant::ZERO,
            since_poll: 0,
            has_slept: false,
            is_closing: false,
            is_closed: false,
            config,
        })
    }

    /// Frames that arrived before this instant are dropped: somebody else has forwarded them.
    pub fn begin_at(&mut self, now: Instant) {
        self.begins_at = now;
    }

    /// Hand on what waits, at the next look at deadlines. What arrives after that passes unprotected, and waits for nothing.
    pub fn close(&mut self) {
        (self.is_closing, self.is_closed) = (true, true);
    }

    /// Bytes by which repair packets are longer than the longest packet.
    pub fn overhead_bytes(&self) -> usize {
        self.shim.overhead_bytes()
    }

    /// What it does and what it has counted.
    pub fn state(&self, now: Instant) -> GatewayState {
        GatewayState {
            frames: self.counters,
            sent: self.shim.encoder().counters(),
            received: self.shim.decoder().counters(),
            flows: self.shim.flows_in_use(now),
            pairs: [self.pairs[SITE].len(), self.pairs[WIDE].len()],
            waiting_packets: self.shim.decoder().held_packets(),
            memory_bytes: self.memory_bytes(),
            memory_bytes_max: self.config.memory_bytes_max(),
            peer_heard: self.peer.is_heard(now),
        }
    }

    /// With a code that follows the link: how it stands for each network of the peer, with every change and its reason.
    pub fn paths(&self) -> Vec<PathStatus> {
        self.shim.encoder().paths()
    }

    fn memory_bytes(&self) -> usize {
        let pairs: usize = self.pairs.iter().map(Pairs::memory_bytes).sum();
        self.shim.memory_bytes() + pairs + self.waiting.memory_bytes()
    }

    fn advance(&mut self, now: Instant) {
        let passed = now.saturating_since(self.now).as_nanos() as u64;
        self.counters.waited_nanos += passed * self.shim.decoder().held_packets() as u64;
        self.now = self.now.max(now);
    }

    fn is_peer(&self, address: std::net::IpAddr) -> bool {
        self.config.shim.peers.iter().any(|network| network.contains(address))
    }

    /// A packet towards the wide side: `true` if the shim shall see it.
    fn wants_outgoing(&mut self, parsed: &Parsed<'_>) -> bool {
        if !self.is_peer(parsed.envelope.destination.ip()) {
            self.counters.not_peer[SITE] += 1;
        } else if !self.pairs[SITE].note(pair_of(parsed), TrafficClass::of(&parsed.envelope), parsed.link, self.now) {
            self.counters.no_pair[SITE] += 1;
        } else {
            self.peer.note_outgoing(&parsed.envelope, self.now);
            if self.sends_repairs() {
                return true;
            }
            self.counters.without_peer += 1;
        }
        false
    }

    /// The same from the wide side.
    fn wants_incoming(&mut self, parsed: &Parsed<'_>) -> bool {
        if !self.is_peer(parsed.envelope.source.ip()) {
            self.counters.not_peer[WIDE] += 1;
        } else if !self.pairs[WIDE].note(pair_of(parsed), TrafficClass::of(&parsed.envelope), parsed.link, self.now) {
            self.counters.no_pair[WIDE] += 1;
        } else {
            self.peer.note_incoming(&parsed.envelope, self.now);
            return true;
        }
        false
    }

    fn sends_repairs(&self) -> bool {
        !self.config.waits_for_peer || self.peer.is_heard(self.now)
    }

    /// A datagram in memory that is moved through the shim: what comes out at this address is what went in, or was.
    fn datagram(&mut self, parsed: &Parsed<'_>) -> Vec<u8> {
        let mut datagram = self.spare.pop().unwrap_or_default();
        datagram.clear();
        datagram.extend_from_slice(parsed.datagram);
        datagram
    }

    /// Shows a packet towards the wide side to the shim. Its frame leaves as it is, between what the shim adds.
    fn show_outgoing(&mut self, parsed: &Parsed<'_>, bytes: &[u8], outbox: &mut Outbox) -> Fate {
        let mut added = std::mem::take(&mut self.onward.outgoing);
        let place = self.shim.encoder_mut().pass(&parsed.envelope, parsed.datagram, self.now, &mut added);
        // Frames of the outbox leave before the one that is handled.
        let is_last = place == added.len();
        for (index, packet) in added.drain(..).enumerate() {
            if index == place {
                let copy = outbox.copy(bytes);
                outbox.send(WIDE, copy, self.now);
            }
            self.send(SITE, packet, outbox);
        }
        self.onward.outgoing = added;
        if is_last { Fate::Forward(WIDE) } else { Fate::Taken }
    }

    /// Shows a packet from the wide side to the shim. Its frame leaves as it is, at once or later.
    fn show_incoming(&mut self, parsed: &Parsed<'_>, bytes: &[u8], outbox: &mut Outbox) -> Fate {
        let datagram = self.datagram(parsed);
        let memory = datagram.as_ptr();
        let held = self.shim.decoder().held_packets();
        let packet = Packet { envelope: parsed.envelope, datagram };
        self.shim.handle(Direction::Incoming, packet, self.now, &mut self.onward);
        // Reports of what was lost.
        self.send_onward(SITE, outbox);
        let is_same = |packet: &Packet| {
            packet.datagram.as_ptr() == memory
                && packet.envelope == parsed.envelope
                && packet.datagram == parsed.datagram
        };
        let out = &mut self.onward.incoming;
        if let [only] = &out[..]
            && is_same(only)
        {
            out.drain(..).for_each(|packet| keep(&mut self.spare, packet.datagram));
            return Fate::Forward(SITE);
        }
        let mut out = std::mem::take(out);
        // What has neither come out nor was dropped waits.
        let may_wait = !out.is_empty() || self.shim.decoder().held_packets() > held;
        if may_wait && !out.iter().any(is_same) {
            if held == 0 {
                self.waiting.clear();
            }
            self.waiting.keep(memory, parsed);
        }
        for packet in out.drain(..) {
            if is_same(&packet) {
                let copy = outbox.copy(bytes);
                outbox.send(SITE, copy, self.now);
                keep(&mut self.spare, packet.datagram);
            } else {
                self.send(WIDE, packet, outbox);
            }
        }
        self.give_back(WIDE, out);
        Fate::Taken
    }

    /// Shows a repair packet from the wide side to the shim, which hands on what it restores from it.
    fn show_repair(&mut self, parsed: &Parsed<'_>, outbox: &mut Outbox) {
        let pair = pair_of(parsed);
        if !self.is_peer(parsed.envelope.source.ip()) {
            self.counters.not_peer_repairs += 1;
            return;
        }
        if !parsed.is_intact || self.is_closed {
            return;
        }
        // Anybody can send repair packets: only those that the shim accepts may change what is remembered.
        let Some(place) = self.pairs[WIDE].place(&pair, self.now) else {
            self.counters.no_pair[WIDE] += 1;
            return;
        };
        let datagram = self.datagram(parsed);
        let before = self.shim.decoder().counters().repairs;
        let packet = Packet { envelope: parsed.envelope, datagram };
        self.shim.handle(Direction::Incoming, packet, self.now, &mut self.onward);
        if self.shim.decoder().counters().repairs > before {
            self.pairs[WIDE].accept(place, pair, TrafficClass::of(&parsed.envelope), parsed.link, self.now);
            self.peer.note_incoming(&parsed.envelope, self.now);
            self.peer.hear(self.now);
            self.shim.decoder_mut().take_reports();
        }
        self.send_onward(WIDE, outbox);
    }

    /// Sends what the shim has handed on of the packets that entered at `port`.
    fn send_onward(&mut self, port: usize, outbox: &mut Outbox) {
        let out = if port == SITE { &mut self.onward.outgoing } else { &mut self.onward.incoming };
        let mut out = std::mem::take(out);
        for packet in out.drain(..) {
            self.send(port, packet, outbox);
        }
        self.give_back(port, out);
    }

    fn give_back(&mut self, port: usize, out: Vec<Packet>) {
        let place = if port == SITE { &mut self.onward.outgoing } else { &mut self.onward.incoming };
        *place = out;
    }

    /// What surrounds packets like this one that enter at `port`; if none of them did, what surrounds those that go back.
    fn header(&self, port: usize, envelope: &Envelope) -> Option<LinkHeader> {
        let (source, destination) = (envelope.source.ip(), envelope.destination.ip());
        let class = TrafficClass::of(envelope);
        let back = || self.pairs[1 - port].header(&(destination, source), class).map(|link| link.reversed());
        self.pairs[port].header(&(source, destination), class).copied().or_else(back)
    }

    /// Sends a packet whose frame is gone, or never was.
    fn send(&mut self, port: usize, packet: Packet, outbox: &mut Outbox) {
        if port == SITE && repair::is_repair(&packet.datagram) && !self.sends_repairs() {
            return keep(&mut self.spare, packet.datagram);
        }
        let own = if port == WIDE { self.waiting.take(&packet) } else { None };
        let link = own.or_else(|| self.header(port, &packet.envelope));
        let mut bytes = outbox.copy(&[]);
        match link {
            Some(link) if frame::write(&packet, &link, &mut bytes) => outbox.send(1 - port, bytes, self.now),
            _ => {
                self.counters.not_built += 1;
                outbox.give_back(bytes);
            }
        }
        keep(&mut self.spare, packet.datagram);
    }
}

fn pair_of(parsed: &Parsed<'_>) -> Pair {
    (parsed.envelope.source.ip(), parsed.envelope.destination.ip())
}

fn keep(spare: &mut Vec<Vec<u8>>, memory: Vec<u8>) {
    if spare.len() < SPARE_MAX {
        spare.push(memory);
    }
}

impl Handler for Gateway {
    fn handle(&mut self, port: usize, arrival: &mut Arrival<'_>, outbox: &mut Outbox) -> Fate {
        if arrival.at < self.begins_at {
            return Fate::Taken;
        }
        self.advance(arrival.at);
        self.since_poll += 1;
        let Some(parsed) = frame::parse(arrival.bytes) else {
            self.counters.other[port] += 1;
            return Fate::Forward(1 - port);
        };
        self.counters.packets[port] += 1;
        match (port, repair::is_repair(parsed.datagram)) {
            // They would pass for ours at the other gateway.
            (SITE, true) if self.is_peer(parsed.envelope.destination.ip()) => {
                self.counters.site_repairs += 1;
                Fate::Taken
            }
            (SITE, true) => Fate::Forward(WIDE),
            (_, true) => {
                self.show_repair(&parsed, outbox);
                Fate::Taken
            }
            // What its header says cannot be restored if it is wrong.
            (_, false) if !parsed.is_intact || self.is_closed => Fate::Forward(1 - port),
            (SITE, false) if self.wants_outgoing(&parsed) => self.show_outgoing(&parsed, arrival.bytes, outbox),
            (SITE, false) => Fate::Forward(WIDE),
            (_, false) if self.wants_incoming(&parsed) => self.show_incoming(&parsed, arrival.bytes, outbox),
            (_, false) => Fate::Forward(SITE),
        }
    }

    fn poll(&mut self, now: Instant, outbox: &mut Outbox) {
        let is_late = self.shim.next_deadline().is_some_and(|due| now.saturating_since(due) > SLEPT);
        let has_backlog = std::mem::take(&mut self.since_poll) >= BACKLOG;
        if is_late && !self.has_slept && !self.is_closing {
            self.has_slept = true;
            return;
        }
        self.has_slept = false;
        // With a backlog, time is that of the frames.
        self.advance(if has_backlog { self.now } else { now });
        self.shim.poll(self.now, &mut self.onward);
        if self.is_closing {
            self.is_closing = false;
            self.shim.close(&mut self.onward);
        }
        self.send_onward(SITE, outbox);
        self.send_onward(WIDE, outbox);
        if let Some(like) = self.peer.greeting(self.now) {
            let link = self.header(SITE, &like);
            let mut bytes = outbox.copy(&[]);
            match link {
                Some(link) if frame::write(&greeting(&self.config.shim, &like), &link, &mut bytes) => {
                    self.counters.greetings += 1;
                    outbox.send(WIDE, bytes, self.now);
                }
                _ => outbox.give_back(bytes),
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        if self.is_closing {
            return Some(Instant::ZERO);
        }
        Instant::earlier_of(self.shim.next_deadline(), self.peer.deadline(self.now))
    }
}
