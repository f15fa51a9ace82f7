//! Whether there is another gateway.
//!
//! Gateways have no addresses of their own. Each sends a greeting now and then, as if one host had sent it to the host it talks
//! to: a report about queue pair 0 with only zeros, which the other gateway takes out. Repair packets are sent once anything of the
//! other gateway has arrived, and no longer than it is heard: if it is missing, hosts get a greeting a second, which RoCEv2's
//! receivers drop (its opcode does not exist), and no repair packet.

use longhaul_datagram::Envelope;
use longhaul_time::{Duration, Instant};
use longhaul_wire::UDP_PORT_ROCE;

/// How long greetings go on when no RoCEv2 packet passes any more.
const GREETS_FOR: Duration = Duration::from_secs(300);
/// Greetings are this far apart at least.
const APART_MIN: Duration = Duration::from_millis(100);
/// The envelope of greetings is renewed this often.
const RENEWED_APART: Duration = Duration::from_millis(250);

/// Keeps track of the other gateway.
#[derive(Debug)]
pub(crate) struct Peer {
    /// How far greetings are apart, and four times as far while the other gateway is heard.
    interval: Duration,
    /// Without a sign of life for this long it is missing.
    patience: Duration,
    heard_at: Option<Instant>,
    greeted_at: Option<Instant>,
    /// Whose packets have passed, and when: greetings look like theirs.
    like: Option<(Envelope, Instant)>,
}

impl Peer {
    pub(crate) fn new(interval: Duration, patience: Duration) -> Peer {
        Peer { interval, patience, heard_at: None, greeted_at: None, like: None }
    }

    pub(crate) fn is_heard(&self, now: Instant) -> bool {
        self.heard_at.is_some_and(|at| now.saturating_since(at) < self.patience)
    }

    /// Something of the other gateway has arrived.
    pub(crate) fn hear(&mut self, now: Instant) {
        let was_heard = self.is_heard(now);
        self.heard_at = Some(now);
        // It may be waiting for us.
        if !was_heard && self.greeted_at.is_some_and(|at| now.saturating_since(at) >= APART_MIN) {
            self.greeted_at = None;
        }
    }

    /// A packet passes to the other side.
    pub(crate) fn note_outgoing(&mut self, envelope: &Envelope, now: Instant) {
        if self.like.is_none_or(|(_, at)| now.saturating_since(at) >= RENEWED_APART) {
            self.like = Some((*envelope, now));
        }
    }

    /// A packet passes from the other side.
    pub(crate) fn note_incoming(&mut self, envelope: &Envelope, now: Instant) {
        if self.like.is_none_or(|(_, at)| now.saturating_since(at) >= RENEWED_APART * 4) {
            let mut back = *envelope;
            (back.source, back.destination) = (envelope.destination, envelope.source);
            back.source.set_port(envelope.source.port());
            back.destination.set_port(UDP_PORT_ROCE);
            let scope = longhaul_wire::IcrcScope::between(back.source, back.destination);
            let Some(scope) = scope else { return };
            back.icrc_scope = scope;
            self.like = Some((back, now));
        }
    }

    /// The next greeting, if it is due.
    pub(crate) fn greeting(&mut self, now: Instant) -> Option<Envelope> {
        self.deadline(now).filter(|due| *due <= now)?;
        self.greeted_at = Some(now);
        self.like.map(|(envelope, _)| envelope)
    }

    /// When the next greeting is due.
    pub(crate) fn deadline(&self, now: Instant) -> Option<Instant> {
        let (_, seen_at) = self.like?;
        let Some(greeted_at) = self.greeted_at else { return Some(seen_at) };
        let interval = if self.is_heard(now) { self.interval * 4 } else { self.interval };
        let due = greeted_at + interval;
        (due.saturating_since(seen_at) < GREETS_FOR).then_some(due)
    }
}
