//! What the device does about the windows towards its peers; what is to be done, [`Peers`](crate::pace::Peers) decides.

use std::net::SocketAddr;

use longhaul_time::Instant;

use super::Nic;
use crate::pace::{PeerKey, PeerWindow, Probe};
#[cfg(debug_assertions)]
use crate::queue_pair::QueuePair;
use crate::queue_pair::QueuePairKey;

impl Nic {
    /// A reliable connection has got a way to its peer.
    pub(super) fn join_peer(&mut self, key: QueuePairKey) {
        let Some(queue_pair) = self.queue_pairs.get(key) else { return };
        let Some(route) = queue_pair.route(&self.shared.config) else { return };
        let address = SocketAddr::new(route.destination, route.destination_port);
        if self.peers.is_at(queue_pair.share(), address) {
            return;
        }
        self.leave_peer(key);
        if let Some(queue_pair) = self.queue_pairs.get_mut(key) {
            self.peers.join(queue_pair.share_mut(), address, &self.shared.config);
        }
        self.settle_with_peer(key);
    }

    /// A queue pair has no way to its peer any more, or ceases to exist.
    pub(super) fn leave_peer(&mut self, key: QueuePairKey) {
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else { return };
        let Some(share) = queue_pair.share_if_used() else { return };
        let was_waiting = share.is_waiting();
        let Some(peer) = self.peers.leave(share) else { return };
        if was_waiting {
            queue_pair.leave_active();
        }
        self.sweep_places(peer);
        self.call_up(peer);
    }

    /// Count what a queue pair has in flight now. To be called after everything that may have changed it: turns, answers,
    /// deadlines, changes of state.
    #[inline]
    pub(super) fn settle_with_peer(&mut self, key: QueuePairKey) {
        if !self.peers.is_empty() {
            self.settle_with_known_peer(key);
        }
    }

    fn settle_with_known_peer(&mut self, key: QueuePairKey) {
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else { return };
        if !queue_pair.share().has_peer() {
            return;
        }
        let in_flight_bytes = queue_pair.in_flight_bytes();
        if let Some(peer) = self.peers.settle(queue_pair.share_mut(), in_flight_bytes) {
            self.call_up(peer);
        }
    }

    /// Give a turn to the queue pair that has waited longest, if there is room.
    fn call_up(&mut self, peer: PeerKey) {
        let queue_pairs = &mut self.queue_pairs;
        let called = self.peers.call_up(peer, |key, place| {
            let share = queue_pairs.get_mut(key).and_then(|queue_pair| queue_pair.share_if_used());
            share.is_some_and(|share| share.call(place))
        });
        if let Some(key) = called {
            // Before those who came while it waited.
            self.active.push_front(key);
        }
    }

    /// A queue pair's deadline has come: it may have to look after a silent peer.
    pub(super) fn probe_silent_peer(&mut self, key: QueuePairKey, now: Instant) {
        let Some(queue_pair) = self.queue_pairs.get_mut(key) else { return };
        let timeout = queue_pair.settings().timeout;
        let Some(share) = queue_pair.share_if_used() else { return };
        if let Probe::Send { peer, needs_turn } = self.peers.probe(share, timeout, now) {
            if needs_turn {
                self.active.push_back(key);
            }
            self.sweep_places(peer);
        }
    }

    fn sweep_places(&mut self, peer: PeerKey) {
        let queue_pairs = &self.queue_pairs;
        let share = |key| queue_pairs.get(key).map(|queue_pair| queue_pair.share());
        self.peers.sweep(peer, |key, place| share(key).is_some_and(|share| share.holds(place)));
    }

    /// The windows towards all peers. Empty without a limit.
    pub fn peer_windows(&self) -> Vec<PeerWindow> {
        self.peers.windows()
    }

    /// See [`Peers::check`](crate::pace::Peers).
    #[cfg(debug_assertions)]
    pub(super) fn check_peers(&self) {
        /// More would take too long to look at after every poll.
        const QUEUE_PAIRS_MAX: usize = 64;
        if self.peers.is_empty() || self.queue_pairs.len() > QUEUE_PAIRS_MAX {
            return;
        }
        let queue_pairs = self.queue_pairs.values().map(|queue_pair| (queue_pair.share(), &**queue_pair));
        let has_asked_last = |queue_pair: &QueuePair| queue_pair.sender().has_asked_last();
        self.peers.check(queue_pairs, QueuePair::in_flight_bytes, has_asked_last);
    }
}
