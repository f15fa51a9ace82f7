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

    /// Its pace is made, or fitted to its rate limit, when it sends next.
    pub(crate) fn want_pacing(&mut self) {
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

    /// Make its pace, when it sends for the first time, or fit it to a new rate limit: what the configuration says, which
    /// spares peers on this host, and its own rate limit.
    pub(crate) fn make_pacing(&mut self, config: &Config) {
        if !std::mem::take(&mut self.wants_pacing) {
            return;
        }
        let name = self.controller_name(config);
        match self.pacing.take() {
            // What its controller has learned, and what is in flight, stay.
            Some(mut pacing) if pacing.name() == name && (name.is_some() || self.rate_limit().is_some()) => {
                self.apply_limit(&mut pacing, config);
                self.pacing = Some(pacing);
            }
            _ => self.pacing = self.pacing_of(name, config).map(Box::new),
        }
    }

    /// The controller that it is to have, if any.
    fn controller_name(&self, config: &Config) -> Option<ControllerName> {
        if let Some(pacing) = self.pacing.as_ref().filter(|pacing| pacing.is_chosen) {
            return pacing.name();
        }
        let is_local = self.settings.path().is_some_and(|path| config.is_local(path.destination.to_ip()));
        let name = match (self.is_reliable(), config.congestion) {
            // Nothing is acknowledged that a controller could find a rate by.
            (false, Some(ControllerName::Fixed(rate))) => Some(ControllerName::Fixed(rate)),
            (false, _) => config.unacknowledged_bits_per_second.map(ControllerName::Fixed),
            (true, name) => name,
        };
        // A rate of its own takes the place of the rate of all.
        let is_replaced = |name| self.rate_limit().is_some() && matches!(name, ControllerName::Fixed(_));
        name.filter(|name| !is_local && !is_replaced(*name))
    }

    /// Its rate limit, in bits per second.
    fn rate_limit(&self) -> Option<u64> {
        let kilobits = Some(self.settings.rate_limit_kilobits_per_second).filter(|limit| *limit > 0);
        kilobits.map(|kilobits| u64::from(kilobits) * 1000)
    }

    /// RC: put it under the control of this controller. `false` when that cannot be.
    pub(crate) fn set_congestion(&mut self, name: ControllerName, config: &Config) -> bool {
        let is_possible = self.is_reliable() && self.settings.path().is_some() && name != ControllerName::Credit;
        if is_possible {
            self.choose_controller(name, config);
        }
        is_possible
    }

    fn choose_controller(&mut self, name: ControllerName, config: &Config) {
        self.pacing = self.pacing_of(Some(name), config).map(Box::new);
        if let Some(pacing) = &mut self.pacing {
            pacing.is_chosen = true;
        }
        self.wants_pacing = false;
    }

    /// It has a new path: what was learned of the old one says nothing about it.
    pub(crate) fn renew_pacing_for_path(&mut self, config: &Config) {
        match self.pacing.as_ref().filter(|pacing| pacing.is_chosen).and_then(|pacing| pacing.name()) {
            Some(name) => self.choose_controller(name, config),
            None => {
                self.pacing = None;
                self.wants_pacing = true;
            }
        }
    }

    fn pacing_of(&self, name: Option<ControllerName>, config: &Config) -> Option<Pacing> {
        let limit = self.rate_limit();
        let mtu = if self.identity.transport == Transport::UnreliableDatagram { config.mtu } else { self.settings.mtu };
        let packet_bytes = mtu.byte_count() + PACKET_HEADER_BYTES;
        let line_bits_per_second = config.rate_bits_per_second;
        let seed = self.identity.number.into();
        let facts = PathFacts { packet_bytes, round_trip: None, line_bits_per_second, seed };
        let flow = match (name, limit) {
            (None, None) => return None,
            (None, Some(_)) => Flow::unlimited(&facts),
            (Some(name), _) => Flow::new(name, &facts),
        };
        let mut pacing = Pacing::new(name, flow, packet_bytes);
        self.apply_limit(&mut pacing, config);
        Some(pacing)
    }

    /// Have a pace keep the rate limit.
    fn apply_limit(&self, pacing: &mut Pacing, config: &Config) {
        let limit = self.rate_limit();
        pacing.set_limit(limit);
        // A limit is for all that it sends, and so is a rate.
        let has_pace_of_answers = self.is_reliable() && limit.is_none() && pacing.is_measured();
        match has_pace_of_answers {
            true if pacing.shares_pace() => pacing.pace_answers_at(config.unacknowledged_bits_per_second),
            true => {}
            false => pacing.pace_answers_with_requests(),
        }
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
