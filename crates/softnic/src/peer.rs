//! What is in flight towards a peer, over all reliable connections to it.
//!
//! A peer is an address and a UDP port: one socket, with one receive buffer. Each connection's own window says nothing about
//! that buffer. Ten thousand connections that each keep a few packets in flight overrun it, every loss makes go-back-N send a
//! whole window again, and that overruns it once more. So all reliable connections to a peer share one window in bytes:
//!
//! ```text
//!   active ──turn──▶ room in the peer's window? ──yes──▶ send, up to a turn's packets
//!     ▲                        │ no, or others wait
//!     │                        ▼
//!     └──called up, one by one─ waiting, in the order of arrival
//! ```
//!
//! While nobody waits, a queue pair sends when it has its turn. Once somebody does, everybody goes through the queue, so that
//! each gets a turn and nobody overtakes. One waiter is called up whenever there is room for a turn, and the next one when that
//! one has had its turn: no event costs more than one waiter. Nobody waits with packets in flight for which it has not asked for
//! an acknowledgement: they would take room from others for as long as it waits.
//!
//! How large the window is, is in [`window`]. The connections to a peer that says nothing at all end by their own retries. Those
//! that wait for room are not held up by the packets of others for ever: after a time-out of silence each may send one packet
//! whatever the window says.
//!
//! What is in flight is counted in one place, [`Nic::settle_with_peer`], from where the queue pair's cursor is.

mod window;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use longhaul_time::Instant;
use slotmap::{SlotMap, new_key_type};

use crate::config::Config;
use crate::nic::{Nic, QueuePairKey};
use crate::queue_pair::QueuePair;
use crate::rc_requester::acknowledge_timeout;
use window::Window;

new_key_type! {
    /// A peer of one device.
    pub(crate) struct PeerKey;
}

/// What a packet in a socket's receive buffer is charged with besides its payload: headers and the kernel's bookkeeping
/// (Linux takes 768 bytes for the smallest of datagrams).
const PACKET_OVERHEAD_BYTES: u64 = 768;

/// Acknowledgements are asked for at least so often in a window.
const ACKNOWLEDGES_PER_WINDOW: u64 = 4;

/// How long a queue pair waits for a silent peer's window before it sends one packet all the same: its time-out, within these.
const PATIENCE_MIN: Duration = Duration::from_millis(1);
const PATIENCE_MAX: Duration = Duration::from_secs(1);

/// What a packet with so much payload takes of the window.
pub(crate) fn charge_bytes(payload_bytes: u32) -> u64 {
    u64::from(payload_bytes) + PACKET_OVERHEAD_BYTES
}

/// What a message of so much payload in so many packets takes of the window.
pub(crate) fn message_charge_bytes(length: u32, packet_count: u32) -> u64 {
    u64::from(length) + u64::from(packet_count) * PACKET_OVERHEAD_BYTES
}

/// The window towards a peer, as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerWindow {
    /// The peer's address and UDP port.
    pub address: SocketAddr,
    /// Reliable connections to it.
    pub queue_pairs: u32,
    /// Those that wait for room.
    pub waiting: usize,
    /// What may be in flight now.
    pub limit_bytes: u64,
    /// What is in flight. A probe of a silent peer may go beyond the limit.
    pub in_flight_bytes: u64,
}

/// Whether a queue pair is held up by its peer's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Place {
    /// Not held up.
    #[default]
    Outside,
    /// In the queue, with this number. (An entry with another number has been left behind.)
    Waiting(u64),
    /// Called up from the queue: its turn is next.
    Called,
    /// Allowed one packet beyond the window.
    Probing,
}

/// A queue pair's part in its peer's window.
#[derive(Debug)]
pub(crate) struct PeerShare {
    /// None without a limit, and before the way to the peer is known.
    peer: Option<PeerKey>,
    /// What of the peer's sum is this queue pair's.
    counted_bytes: u64,
    place: Place,
    /// Waiting, or called up in vain, with nothing in flight: may look after the peer then.
    probe_at: Instant,
    /// Acknowledged since it was settled last.
    acknowledged_bytes: u64,
    /// Something was lost since it was settled last.
    has_lost: bool,
    /// When the peer last answered this queue pair.
    heard_at: Instant,
}

impl Default for PeerShare {
    fn default() -> Self {
        PeerShare::NONE
    }
}

impl PeerShare {
    pub(crate) const NONE: Self = PeerShare {
        peer: None,
        counted_bytes: 0,
        place: Place::Outside,
        probe_at: Instant::FAR_FUTURE,
        acknowledged_bytes: 0,
        has_lost: false,
        heard_at: Instant::ZERO,
    };

    /// The peer has answered.
    pub(crate) fn note_heard(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// The peer has acknowledged so much more.
    pub(crate) fn note_acknowledged(&mut self, bytes: u64) {
        self.acknowledged_bytes = self.acknowledged_bytes.saturating_add(bytes);
    }

    /// Packets to the peer were lost.
    pub(crate) fn note_loss(&mut self) {
        self.has_lost = true;
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.probe_at
    }

    /// It has its turn, or has nothing to send.
    pub(crate) fn step_out(&mut self) {
        self.place = Place::Outside;
        self.probe_at = Instant::FAR_FUTURE;
    }

    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.place, Place::Waiting(_))
    }
}

/// What a queue pair may send in its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// Room in the peer's window.
    pub(crate) bytes: u64,
    /// An acknowledgement is asked for after so many packets within a message.
    pub(crate) acknowledge_packets: u32,
    /// And with the last packet before a pause: the next turn may be far away, and what is in flight takes room from others.
    pub(crate) asks_before_pause: bool,
}

impl Allowance {
    fn unlimited(config: &Config) -> Self {
        Allowance { bytes: u64::MAX, acknowledge_packets: config.acknowledge_packets.max(1), asks_before_pause: false }
    }
}

struct Peer {
    address: SocketAddr,
    /// Reliable connections to it. The last one takes it away.
    users: u32,
    in_flight_bytes: u64,
    window: Window,
    last_heard: Instant,
    /// Who waits for room, with the number of the place. Bounded by the users, but for places left behind
    /// ([`Peers::sweep`]).
    waiting: VecDeque<(QueuePairKey, u64)>,
}

impl Peer {
    fn room_bytes(&self) -> u64 {
        self.window.limit_bytes.saturating_sub(self.in_flight_bytes)
    }

    /// Whether there is room for a turn, so that packets leave in batches. In a narrow window a part of it has to do; it is
    /// more than a packet.
    fn has_room_for_turn(&self, turn_bytes: u64) -> bool {
        self.room_bytes() >= turn_bytes.min(self.window.limit_bytes / ACKNOWLEDGES_PER_WINDOW)
    }
}

/// The peers of a device. Empty when the configuration sets no limit.
pub(crate) struct Peers {
    /// The charge of the largest packet.
    packet_bytes: u64,
    /// The charge of a turn of such packets.
    turn_bytes: u64,
    table: SlotMap<PeerKey, Peer>,
    addresses: BTreeMap<SocketAddr, PeerKey>,
    next_place: u64,
}

impl Peers {
    pub(crate) fn new(config: &Config) -> Self {
        let packet_bytes = charge_bytes(config.mtu.byte_count());
        Peers {
            packet_bytes,
            turn_bytes: u64::from(config.turn_packets) * packet_bytes,
            table: SlotMap::with_key(),
            addresses: BTreeMap::new(),
            next_place: 0,
        }
    }

    fn join(&mut self, share: &mut PeerShare, address: SocketAddr, config: &Config) {
        let Some(mut window_bytes) = config.peer_window_bytes else { return };
        if !config.is_local(address.ip()) {
            // Most of what is in flight to another host is on the way, not in its buffer.
            window_bytes = window_bytes.max(u64::from(config.window_packets_max) * self.packet_bytes);
        }
        let (table, packet_bytes) = (&mut self.table, self.packet_bytes);
        let key = *self.addresses.entry(address).or_insert_with(|| {
            table.insert(Peer {
                address,
                users: 0,
                in_flight_bytes: 0,
                window: Window::new(window_bytes, packet_bytes),
                last_heard: Instant::ZERO,
                waiting: VecDeque::new(),
            })
        });
        self.table[key].users += 1;
        *share = PeerShare { peer: Some(key), ..Default::default() };
    }

    fn leave(&mut self, share: &mut PeerShare) {
        let share = std::mem::take(share);
        let Some(key) = share.peer else { return };
        let peer = &mut self.table[key];
        peer.in_flight_bytes -= share.counted_bytes;
        peer.window.on_left(share.counted_bytes);
        peer.users -= 1;
        if peer.users == 0 {
            self.addresses.remove(&peer.address);
            self.table.remove(key);
        }
    }

    /// What a queue pair may send in its turn; `None` when it has to wait for others, and does.
    pub(crate) fn admit(
        &mut self,
        key: QueuePairKey,
        queue_pair: &mut QueuePair,
        config: &Config,
    ) -> Option<Allowance> {
        let mtu_bytes = queue_pair.mtu_bytes();
        let must_ask = !queue_pair.reliable.requester.has_asked_last;
        let share = &mut queue_pair.reliable.share;
        let Some(peer_key) = share.peer else { return Some(Allowance::unlimited(config)) };
        let peer = &mut self.table[peer_key];
        let room_bytes = match share.place {
            // One packet at least: with no room for a second it asks for the acknowledgement.
            _ if must_ask && share.counted_bytes > 0 => peer.room_bytes().max(charge_bytes(mtu_bytes)),
            Place::Probing => peer.room_bytes().max(charge_bytes(mtu_bytes)),
            Place::Outside if !peer.waiting.is_empty() => {
                self.wait(key, share);
                return None;
            }
            Place::Called if !peer.has_room_for_turn(self.turn_bytes) => {
                self.wait_first(key, share);
                return None;
            }
            _ => peer.room_bytes(),
        };
        share.step_out();
        let window_packets = peer.window.limit_bytes / charge_bytes(mtu_bytes);
        let interval = window_packets.min(config.window_packets_max.into()) / ACKNOWLEDGES_PER_WINDOW;
        Some(Allowance {
            bytes: room_bytes,
            acknowledge_packets: interval.min(config.acknowledge_packets.into()).max(1) as u32,
            asks_before_pause: peer.users > 1,
        })
    }

    /// A queue pair has found no room in its turn.
    pub(crate) fn wait(&mut self, key: QueuePairKey, share: &mut PeerShare) {
        let place = self.take_place(share);
        if let Some(peer) = share.peer.and_then(|peer| self.table.get_mut(peer)) {
            peer.waiting.push_back((key, place));
        }
    }

    /// A queue pair that was called up has found that others were faster.
    fn wait_first(&mut self, key: QueuePairKey, share: &mut PeerShare) {
        let place = self.take_place(share);
        if let Some(peer) = share.peer.and_then(|peer| self.table.get_mut(peer)) {
            peer.waiting.push_front((key, place));
        }
    }

    fn take_place(&mut self, share: &mut PeerShare) -> u64 {
        self.next_place += 1;
        share.place = Place::Waiting(self.next_place);
        self.next_place
    }

    /// Count what a queue pair has in flight now, and act on what it has learnt about the peer.
    fn settle(&mut self, share: &mut PeerShare, in_flight_bytes: u64) {
        let Some(peer) = share.peer.and_then(|peer| self.table.get_mut(peer)) else { return };
        peer.last_heard = peer.last_heard.max(share.heard_at);
        if std::mem::take(&mut share.has_lost) {
            peer.window.on_loss(peer.in_flight_bytes);
        }
        let acknowledged_bytes = std::mem::take(&mut share.acknowledged_bytes);
        peer.window.on_left(share.counted_bytes.saturating_sub(in_flight_bytes));
        if acknowledged_bytes > 0 {
            peer.window.on_acknowledged(acknowledged_bytes, peer.in_flight_bytes);
        }
        peer.in_flight_bytes = peer.in_flight_bytes - share.counted_bytes + in_flight_bytes;
        share.counted_bytes = in_flight_bytes;
    }

    /// Take the first place in the queue, if there is room for whoever has it.
    fn next_in_line(&mut self, peer: PeerKey) -> Option<(QueuePairKey, u64)> {
        let peer = self.table.get_mut(peer)?;
        peer.has_room_for_turn(self.turn_bytes).then(|| peer.waiting.pop_front())?
    }
}

impl Nic {
    /// A reliable connection has got a way to its peer.
    pub(crate) fn join_peer(&mut self, key: QueuePairKey) {
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else { return };
        let Some(route) = queue_pair.route(&self.shared.config) else { return };
        let address = SocketAddr::new(route.destination, route.destination_port);
        let current = queue_pair.reliable.share.peer.and_then(|peer| self.peers.table.get(peer));
        if current.is_some_and(|peer| peer.address == address) {
            return;
        }
        self.leave_peer(key);
        if let Some(queue_pair) = self.queue_pairs.get_mut(key) {
            self.peers.join(&mut queue_pair.reliable.share, address, &self.shared.config);
        }
        self.settle_with_peer(key);
    }

    /// A queue pair has no way to its peer any more, or ceases to exist.
    pub(crate) fn leave_peer(&mut self, key: QueuePairKey) {
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else { return };
        let Some(peer) = queue_pair.reliable.share.peer else { return };
        if queue_pair.reliable.share.is_waiting() {
            queue_pair.is_active = false;
        }
        self.peers.leave(&mut queue_pair.reliable.share);
        self.sweep_places(peer);
        self.call_up(peer);
    }

    /// Count what a queue pair has in flight now. To be called after everything that may have changed it: turns, answers,
    /// deadlines, changes of state.
    #[inline]
    pub(crate) fn settle_with_peer(&mut self, key: QueuePairKey) {
        // Asked for every packet: without a limit it must cost nothing.
        if !self.peers.table.is_empty() {
            self.settle_with_known_peer(key);
        }
    }

    fn settle_with_known_peer(&mut self, key: QueuePairKey) {
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else { return };
        let Some(peer) = queue_pair.reliable.share.peer else { return };
        let in_flight_bytes = queue_pair.in_flight_bytes();
        self.peers.settle(&mut queue_pair.reliable.share, in_flight_bytes);
        self.call_up(peer);
    }

    /// Give a turn to whoever has waited longest, if there is room.
    fn call_up(&mut self, peer: PeerKey) {
        while let Some((key, place)) = self.peers.next_in_line(peer) {
            if let Some(queue_pair) = self.queue_pairs.get_mut(key)
                && queue_pair.reliable.share.place == Place::Waiting(place)
            {
                queue_pair.reliable.share.place = Place::Called;
                // Before those who came while it waited.
                self.active.push_front(key);
                return;
            }
        }
    }

    /// See to it that a queue pair that waits with nothing in flight does not do so for ever.
    pub(crate) fn limit_patience(queue_pair: &mut QueuePair, now: Instant) {
        let share = &queue_pair.reliable.share;
        if share.is_waiting() && share.counted_bytes == 0 && share.probe_at == Instant::FAR_FUTURE {
            queue_pair.reliable.share.probe_at = now + patience(queue_pair.settings.timeout);
        }
    }

    /// A queue pair's deadline has come. If it is the end of its patience, and nobody has heard of the peer for so long, it may
    /// send one packet.
    pub(crate) fn probe_silent_peer(&mut self, key: QueuePairKey, now: Instant) {
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else { return };
        let patience = patience(queue_pair.settings.timeout);
        let Some(peer_key) = queue_pair.reliable.share.peer else { return };
        let share = &mut queue_pair.reliable.share;
        if share.probe_at > now {
            return;
        }
        share.probe_at = Instant::FAR_FUTURE;
        // With something in flight it learns from its own time-out whether the peer is there.
        if share.counted_bytes > 0 {
            return;
        }
        let heard_until = self.peers.table[peer_key].last_heard + patience;
        if heard_until > now {
            share.probe_at = heard_until;
            return;
        }
        if share.is_waiting() {
            // Its place in the queue is passed over.
            self.active.push_back(key);
        }
        share.place = Place::Probing;
        self.sweep_places(peer_key);
    }

    /// Sweep out places that were left behind, so rarely that it costs nothing.
    fn sweep_places(&mut self, peer: PeerKey) {
        let Some(peer) = self.peers.table.get_mut(peer) else { return };
        if peer.waiting.len() > 2 * peer.users as usize + 64 {
            let queue_pairs = &self.queue_pairs;
            let is_held = |&(key, place): &(QueuePairKey, u64)| {
                queue_pairs.get(key).is_some_and(|queue_pair| queue_pair.reliable.share.place == Place::Waiting(place))
            };
            peer.waiting.retain(is_held);
        }
    }

    /// The windows towards all peers. Empty without a limit.
    pub fn peer_windows(&self) -> Vec<PeerWindow> {
        let windows = self.peers.table.values().map(|peer| PeerWindow {
            address: peer.address,
            queue_pairs: peer.users,
            waiting: peer.waiting.len(),
            limit_bytes: peer.window.limit_bytes,
            in_flight_bytes: peer.in_flight_bytes,
        });
        windows.collect()
    }

    /// Every peer's sum is what its queue pairs have in flight, and nobody waits while there is room and nobody's turn.
    #[cfg(debug_assertions)]
    pub(crate) fn check_peers(&self) {
        /// More would take too long to look at after every poll.
        const QUEUE_PAIRS_MAX: usize = 64;
        if self.peers.table.is_empty() || self.queue_pairs.len() > QUEUE_PAIRS_MAX {
            return;
        }
        for (key, peer) in &self.peers.table {
            let users = || self.queue_pairs.values().filter(|queue_pair| queue_pair.reliable.share.peer == Some(key));
            let in_flight_bytes = users().map(|queue_pair| queue_pair.in_flight_bytes()).sum::<u64>();
            assert_eq!(peer.in_flight_bytes, in_flight_bytes, "in flight towards {}", peer.address);
            assert_eq!(peer.users as usize, users().count(), "queue pairs to {}", peer.address);
            let is_anyones_turn =
                users().any(|queue_pair| matches!(queue_pair.reliable.share.place, Place::Called | Place::Probing));
            let has_waiters = users().any(|queue_pair| queue_pair.reliable.share.is_waiting());
            let has_room = peer.has_room_for_turn(self.peers.turn_bytes);
            let is_silent = |queue_pair: &QueuePair| {
                queue_pair.reliable.share.is_waiting()
                    && queue_pair.reliable.share.counted_bytes > 0
                    && !queue_pair.reliable.requester.has_asked_last
            };
            assert!(
                !users().any(|queue_pair| is_silent(queue_pair)),
                "a queue pair waits for {} and has not asked",
                peer.address
            );
            assert!(is_anyones_turn || !has_waiters || !has_room, "nobody is called up for {}", peer.address);
        }
    }
}

fn patience(encoded_timeout: u8) -> Duration {
    acknowledge_timeout(encoded_timeout).unwrap_or(PATIENCE_MAX).clamp(PATIENCE_MIN, PATIENCE_MAX)
}
