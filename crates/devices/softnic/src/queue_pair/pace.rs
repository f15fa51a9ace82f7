//! The pace of a queue pair: what it is made from, and its turns.

use longhaul_congestion::{ControllerName, Flow, PathFacts};
use longhaul_time::Instant;
use longhaul_verbs::Transport;

use super::{QueuePair, Turn};
use crate::config::Config;
use crate::pace::{PACKET_HEADER_BYTES, Pacing};

impl QueuePair {
    pub(crate) fn is_paced(&self) -> bool {
        self.pacing.is_some()
    }

    #[inline]
    pub(crate) fn pacing_mut(&mut self) -> Option<&mut Pacing> {
        self.pacing.as_deref_mut()
    }

    /// Its pace is made anew when it sends next.
    pub(crate) fn renew_pacing(&mut self) {
        self.pacing = None;
        self.wants_pacing = true;
    }

    /// Its requests have a turn.
    #[inline]
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        if let Some(pacing) = &mut self.pacing {
            pacing.begin_turn(now, !self.reliable.requester.has_asked_last());
            // Not if its pace holds it up: then the answers have still had the last packet.
            self.has_responded_last &= !pacing.has_room();
        }
    }

    /// Its requests have had their turn.
    #[inline]
    pub(crate) fn end_turn(&mut self, now: Instant, turn: Turn) {
        if self.pacing.is_none() || !self.is_reliable() {
            return;
        }
        // Questions that may not be asked yet are as many as the window takes, more or less: then it is not starved.
        let has_questions = self.reliable.requester.has_questions() && self.has_request_to_send();
        if let Some(pacing) = &mut self.pacing {
            pacing.end_turn(now, turn != Turn::More && !has_questions);
        }
    }

    /// Its answers to READs and atomics have a turn.
    #[inline]
    pub(crate) fn begin_answers(&mut self, now: Instant) {
        if let Some(pacing) = &mut self.pacing {
            pacing.begin_answers(now);
        }
    }

    /// An answer of this many bytes has left.
    pub(crate) fn note_answered(&mut self, now: Instant, wire_bytes: u64) {
        if let Some(pacing) = &mut self.pacing {
            pacing.note_answered(now, wire_bytes);
            self.has_responded_last = pacing.shares_pace();
        }
    }

    /// Whether its pace lets another packet leave in this turn.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.pacing.as_ref().is_none_or(|pacing| pacing.has_room())
    }

    /// Make its pace, when it sends for the first time: what the configuration says, which spares peers on this host, and its
    /// own rate limit.
    pub(crate) fn make_pacing(&mut self, config: &Config) {
        if !std::mem::take(&mut self.wants_pacing) {
            return;
        }
        let is_local = self.settings.path().is_some_and(|path| config.is_local(path.destination.to_ip()));
        let name = match (self.is_reliable(), config.congestion) {
            // Nothing is acknowledged that a controller could find a rate by.
            (false, Some(ControllerName::Fixed(rate))) => Some(ControllerName::Fixed(rate)),
            (false, _) => config.unacknowledged_bits_per_second.map(ControllerName::Fixed),
            (true, name) => name,
        };
        self.pacing = self.pacing_of(name.filter(|_| !is_local), config).map(Box::new);
    }

    /// RC: put it under the control of this controller. `false` when that cannot be.
    pub(crate) fn set_congestion(&mut self, name: ControllerName, config: &Config) -> bool {
        let is_possible = self.is_reliable() && self.settings.path().is_some() && name != ControllerName::Credit;
        if is_possible {
            self.pacing = self.pacing_of(Some(name), config).map(Box::new);
            self.wants_pacing = false;
        }
        is_possible
    }

    fn pacing_of(&self, name: Option<ControllerName>, config: &Config) -> Option<Pacing> {
        let limit_kilobits = Some(self.settings.rate_limit_kilobits_per_second).filter(|limit| *limit > 0);
        let limit = limit_kilobits.map(|kilobits| u64::from(kilobits) * 1000);
        let mtu = if self.identity.transport == Transport::UnreliableDatagram { config.mtu } else { self.settings.mtu };
        let packet_bytes = mtu.byte_count() + PACKET_HEADER_BYTES;
        let line_bits_per_second = config.rate_bits_per_second;
        let seed = self.identity.number.into();
        let facts = PathFacts { packet_bytes, round_trip: None, line_bits_per_second, seed };
        let (flow, is_measured) = match (name, limit) {
            (None, None) => return None,
            // A rate of its own takes the place of the rate of all.
            (None | Some(ControllerName::Fixed(_)), Some(_)) => (Flow::unlimited(&facts), false),
            (Some(name), _) => (Flow::new(name, &facts), !matches!(name, ControllerName::Fixed(_))),
        };
        let mut pacing = Pacing::new(flow.with_rate_max(limit), packet_bytes, is_measured);
        // A limit is for all that it sends, and so is a rate.
        if self.is_reliable() && limit.is_none() && is_measured {
            pacing = pacing.with_answers_at(config.unacknowledged_bits_per_second);
        }
        // A datagram queue pair has peers here and there.
        pacing.spares_local = limit.is_none();
        Some(pacing)
    }

    /// A packet of this many bytes has left that nobody acknowledges.
    #[inline]
    pub(crate) fn pace(&mut self, now: Instant, wire_bytes: u64) {
        if let Some(pacing) = &mut self.pacing {
            pacing.note_unacknowledged(now, wire_bytes);
        }
    }

    /// Whether its answers have to let its requests pass: both go at one pace, and take turns.
    pub(crate) fn lets_requests_first(&self, now: Instant) -> bool {
        self.has_responded_last
            && self.is_active
            && self.has_request_to_send()
            && !self.reliable.share.is_waiting()
            && self.pacing.as_ref().is_some_and(|pacing| pacing.blocked_until(now, false).is_none())
    }

    /// When its pace lets it send what it has to send, or wants a turn for itself.
    pub(super) fn pacing_deadline(&self, pacing: &Pacing, now: Instant) -> Instant {
        let must_ask = !self.reliable.requester.has_asked_last();
        let requests = self.has_request_to_send().then(|| pacing.blocked_until(now, must_ask)).flatten();
        let answers = self.reliable.responder.has_unsent_responses().then(|| pacing.answers_blocked_until(now));
        let deadlines = [requests, answers.flatten(), pacing.next_deadline()];
        deadlines.into_iter().flatten().min().unwrap_or(Instant::FAR_FUTURE)
    }
}
