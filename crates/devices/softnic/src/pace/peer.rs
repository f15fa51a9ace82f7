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
//! [`Peers`] decides and the device acts: it is told what a queue pair has in flight, and says who may send, how much, and whose
//! turn is next.

mod window;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use longhaul_time::Instant;
use slotmap::{SlotMap, new_key_type};

use crate::config::Config;
use crate::queue_pair::{QueuePairKey, acknowledge_timeout};
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

/// What a message of this length, in this many packets, takes of the window.
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
    /// None without a limit, and before the path to the peer is known.
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
    /// What was lost since then and its controller has dealt with.
    controlled_loss_bytes: u64,
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
        controlled_loss_bytes: 0,
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

    /// A packet to the peer that takes so much of its window was lost, and a controller of this queue pair goes by
    /// losses.
    pub(crate) fn note_controlled_loss(&mut self, bytes: u64) {
        self.controlled_loss_bytes += bytes;
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.probe_at
    }

    /// It has its turn, or has nothing to send.
    pub(crate) fn step_out(&mut self) {
        self.place = Place::Outside;
        self.probe_at = Instant::FAR_FUTURE;
    }

    #[inline]
    pub(crate) fn has_peer(&self) -> bool {
        self.peer.is_some()
    }

    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        matches!(self.place, Place::Waiting(_))
    }

    /// Whether it waits at this place of the queue.
    pub(crate) fn holds(&self, place: u64) -> bool {
        self.place == Place::Waiting(place)
    }

    /// Call it up from this place of the queue. `false` when it has left that place.
    pub(crate) fn call(&mut self, place: u64) -> bool {
        let is_called = self.holds(place);
        if is_called {
            self.place = Place::Called;
        }
        is_called
    }

    /// Whether it waits with nothing in flight, and nothing would end that.
    #[inline]
    pub(crate) fn needs_patience(&self) -> bool {
        self.is_waiting() && self.counted_bytes == 0 && self.probe_at == Instant::FAR_FUTURE
    }

    /// See to it that it does not wait for ever.
    pub(crate) fn limit_patience(&mut self, now: Instant, encoded_timeout: u8) {
        self.probe_at = now + patience(encoded_timeout);
    }
}

/// Whether a queue pair may look after a silent peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probe {
    No,
    /// It may send one packet to this peer. `needs_turn` if it waited until now, and so has none.
    Send {
        peer: PeerKey,
        needs_turn: bool,
    },
}

/// What a queue pair may send in its turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// Room in the peer's window.
    pub(crate) bytes: u64,
    /// An acknowledgement is requested after this many packets within a message.
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
    /// Nothing is lost on the path to it, only in its socket's buffer.
    is_local: bool,
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

    /// Whether there are none. Asked for every packet: without a limit the rest must cost nothing.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Whether a queue pair has its part in the window towards this address.
    pub(crate) fn is_at(&self, share: &PeerShare, address: SocketAddr) -> bool {
        share.peer.and_then(|peer| self.table.get(peer)).is_some_and(|peer| peer.address == address)
    }

    /// A queue pair has got a way to the peer at this address.
    pub(crate) fn join(&mut self, share: &mut PeerShare, address: SocketAddr, config: &Config) {
        let Some(mut window_bytes) = config.peer_window_bytes else { return };
        let is_local = config.is_local(address.ip());
        if !is_local {
            // Most of what is in flight to another host is in the network, not in its buffer.
            window_bytes = window_bytes.max(u64::from(config.window_packets_max) * self.packet_bytes);
        }
        let (table, packet_bytes) = (&mut self.table, self.packet_bytes);
        let key = *self.addresses.entry(address).or_insert_with(|| {
            table.insert(Peer {
                address,
                users: 0,
                in_flight_bytes: 0,
                window: Window::new(window_bytes, packet_bytes),
                is_local,
                last_heard: Instant::ZERO,
                waiting: VecDeque::new(),
            })
        });
        self.table[key].users += 1;
        *share = PeerShare { peer: Some(key), ..Default::default() };
    }

    /// A queue pair has no way to its peer any more, or ceases to exist. The peer that it leaves, whose window may have
    /// room now.
    pub(crate) fn leave(&mut self, share: &mut PeerShare) -> Option<PeerKey> {
        let share = std::mem::take(share);
        let key = share.peer?;
        let peer = &mut self.table[key];
        peer.in_flight_bytes -= share.counted_bytes;
        peer.window.on_left(share.counted_bytes);
        peer.users -= 1;
        if peer.users == 0 {
            self.addresses.remove(&peer.address);
            self.table.remove(key);
        }
        Some(key)
    }

    /// What a queue pair may send in its turn; `None` when it has to wait for others, and does. `has_asked_last` says whether
    /// its last packet asked for an acknowledgement.
    pub(crate) fn admit(
        &mut self,
        key: QueuePairKey,
        share: &mut PeerShare,
        mtu_bytes: u32,
        has_asked_last: bool,
        config: &Config,
    ) -> Option<Allowance> {
        let must_ask = !has_asked_last;
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

    /// Count what a queue pair has in flight now, and take in what it has learnt about the peer. The peer, whose window may have
    /// room now.
    pub(crate) fn settle(&mut self, share: &mut PeerShare, in_flight_bytes: u64) -> Option<PeerKey> {
        let key = share.peer?;
        let peer = self.table.get_mut(key)?;
        peer.last_heard = peer.last_heard.max(share.heard_at);
        let controlled_loss_bytes = std::mem::take(&mut share.controlled_loss_bytes);
        let has_lost = std::mem::take(&mut share.has_lost);
        if has_lost || peer.is_local && controlled_loss_bytes > 0 {
            peer.window.on_loss(peer.in_flight_bytes);
        } else if controlled_loss_bytes > 0 {
            peer.window.on_controlled_loss(controlled_loss_bytes, share.counted_bytes, peer.in_flight_bytes);
        }
        let acknowledged_bytes = std::mem::take(&mut share.acknowledged_bytes);
        peer.window.on_left(share.counted_bytes.saturating_sub(in_flight_bytes));
        if acknowledged_bytes > 0 {
            peer.window.on_acknowledged(acknowledged_bytes, peer.in_flight_bytes);
        }
        peer.in_flight_bytes = peer.in_flight_bytes - share.counted_bytes + in_flight_bytes;
        share.counted_bytes = in_flight_bytes;
        Some(key)
    }

    /// Whose turn is next: that of the queue pair that has waited longest, if there is room. `call` calls a queue pair up
    /// ([`PeerShare::call`]), and says whether it still had that place.
    pub(crate) fn call_up(
        &mut self,
        peer: PeerKey,
        mut call: impl FnMut(QueuePairKey, u64) -> bool,
    ) -> Option<QueuePairKey> {
        while let Some((key, place)) = self.next_in_line(peer) {
            if call(key, place) {
                return Some(key);
            }
        }
        None
    }

    /// Take the first place in the queue, if there is room for the queue pair that has it.
    fn next_in_line(&mut self, peer: PeerKey) -> Option<(QueuePairKey, u64)> {
        let peer = self.table.get_mut(peer)?;
        peer.has_room_for_turn(self.turn_bytes).then(|| peer.waiting.pop_front())?
    }

    /// A queue pair's deadline has come. If it is the end of its patience, and nobody has heard of the peer for so long, it may
    /// send one packet.
    pub(crate) fn probe(&self, share: &mut PeerShare, encoded_timeout: u8, now: Instant) -> Probe {
        let Some(peer) = share.peer else { return Probe::No };
        if share.probe_at > now {
            return Probe::No;
        }
        share.probe_at = Instant::FAR_FUTURE;
        // With something in flight it learns from its own time-out whether the peer is there.
        if share.counted_bytes > 0 {
            return Probe::No;
        }
        let heard_until = self.table[peer].last_heard + patience(encoded_timeout);
        if heard_until > now {
            share.probe_at = heard_until;
            return Probe::No;
        }
        // Its place in the queue is passed over.
        let needs_turn = share.is_waiting();
        share.place = Place::Probing;
        Probe::Send { peer, needs_turn }
    }

    /// Sweep out places that were left behind, so rarely that it costs nothing. `holds` says whether a queue pair still has its
    /// place ([`PeerShare::holds`]).
    pub(crate) fn sweep(&mut self, peer: PeerKey, holds: impl Fn(QueuePairKey, u64) -> bool) {
        let Some(peer) = self.table.get_mut(peer) else { return };
        if peer.waiting.len() > 2 * peer.users as usize + 64 {
            peer.waiting.retain(|&(key, place)| holds(key, place));
        }
    }

    /// The windows towards all peers.
    pub(crate) fn windows(&self) -> Vec<PeerWindow> {
        let windows = self.table.values().map(|peer| PeerWindow {
            address: peer.address,
            queue_pairs: peer.users,
            waiting: peer.waiting.len(),
            limit_bytes: peer.window.limit_bytes,
            in_flight_bytes: peer.in_flight_bytes,
        });
        windows.collect()
    }

    /// Every peer's sum is what its queue pairs have in flight, and nobody waits while there is room and nobody's turn. Takes
    /// all queue pairs with their shares, what one has in flight, and whether its last packet asked for an acknowledgement.
    #[cfg(debug_assertions)]
    pub(crate) fn check<'a, Q: Copy>(
        &self,
        queue_pairs: impl Iterator<Item = (&'a PeerShare, Q)> + Clone,
        in_flight_bytes: impl Fn(Q) -> u64,
        has_asked_last: impl Fn(Q) -> bool,
    ) {
        for (key, peer) in &self.table {
            let users = || queue_pairs.clone().filter(|(share, ..)| share.peer == Some(key));
            let sum_bytes = users().map(|(_, user)| in_flight_bytes(user)).sum::<u64>();
            assert_eq!(peer.in_flight_bytes, sum_bytes, "in flight towards {}", peer.address);
            assert_eq!(peer.users as usize, users().count(), "queue pairs to {}", peer.address);
            let is_anyones_turn = users().any(|(share, ..)| matches!(share.place, Place::Called | Place::Probing));
            let has_waiters = users().any(|(share, ..)| share.is_waiting());
            let has_room = peer.has_room_for_turn(self.turn_bytes);
            let is_silent =
                |share: &PeerShare, user| share.is_waiting() && share.counted_bytes > 0 && !has_asked_last(user);
            assert!(
                !users().any(|(share, user)| is_silent(share, user)),
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
