//! All connections of a driver, each looked at when something happens on it, or when it is time: those on which nothing
//! happens cost nothing.
//!
//! It is driven itself: [`Engine::take`] takes what has come, [`Engine::turn`] does what is due and says when it must be
//! called again at the latest. It waits for nothing.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use longhaul_time::{Duration, Instant};

use crate::driven::{Driven, Turn};
use crate::end::End;
use crate::granter::Granter;
use crate::letter::Letter;
use crate::panicked::catch;

/// All connections of a driver.
pub struct Engine {
    /// How long a connection has another turn after something happened on it; those that are busy share this time.
    spin: Duration,
    connections: HashMap<u64, Place>,
    /// Those that have a turn each time.
    busy: Vec<u64>,
    /// When the others have one at the latest.
    agenda: BTreeSet<(Instant, u64)>,
    /// Who grants credit to the peers of its connections, and of other drivers'.
    granter: Option<Arc<Granter>>,
    is_stopped: bool,
}

struct Place {
    driven: Driven,
    /// What it needs next: it is among the busy ones, in the agenda, or in neither.
    next: Turn,
}

impl Engine {
    /// Without connections. With `spin` ([`crate::SPIN`] for a driver to which waking up costs time) a connection on which something has
    /// happened is looked at again and again for that long; with none it rests at once. That is right on virtual time, where waking up
    /// costs nothing.
    pub fn new(spin: Duration) -> Self {
        Engine {
            spin,
            connections: HashMap::new(),
            busy: Vec::new(),
            agenda: BTreeSet::new(),
            granter: None,
            is_stopped: false,
        }
    }

    /// The same, for connections whose peers may have the controller `credit`: this one grants it to them.
    #[must_use]
    pub fn with_granter(self, granter: &Arc<Granter>) -> Self {
        Engine { granter: Some(granter.clone()), ..self }
    }

    /// A letter has come.
    pub fn take(&mut self, letter: Letter) {
        match letter {
            Letter::Add(shared) => {
                let id = shared.id();
                self.granter.iter().for_each(|granter| shared.join_granter(granter));
                self.connections.insert(id, Place { driven: Driven::new(shared), next: Turn::Again });
                self.busy.push(id);
            }
            Letter::Look(id) => self.wake(id, true),
            Letter::PeerSaid(id) => {
                if let Some(place) = self.connections.get_mut(&id) {
                    place.driven.on_peer_said();
                }
                self.wake(id, true);
            }
            Letter::Stop => self.is_stopped = true,
        }
    }

    /// Nobody needs it any more.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    fn wake(&mut self, id: u64, is_news: bool) {
        // One that has ended may still have events.
        let Some(place) = self.connections.get_mut(&id) else { return };
        place.driven.wake(is_news);
        match std::mem::replace(&mut place.next, Turn::Again) {
            Turn::Again => return,
            Turn::Rest(None) => {}
            Turn::Rest(Some(at)) => {
                self.agenda.remove(&(at, id));
            }
        }
        self.busy.push(id);
    }

    /// Give each connection that needs it a turn. Returns when the engine itself needs its next one.
    pub fn turn(&mut self, now: Instant) -> Turn {
        while let Some(&(at, id)) = self.agenda.first()
            && at <= now
        {
            self.wake(id, false);
        }
        let mut busy = std::mem::take(&mut self.busy);
        let spin = self.spin / u32::try_from(busy.len()).unwrap_or(u32::MAX).max(1);
        busy.retain(|id| self.turn_of(*id, spin));
        // After them: what has arrived meanwhile is not written off.
        self.granter.iter().for_each(|granter| granter.on_time(now));
        // Wakers of the program may have run; what they did comes by letter.
        self.busy.append(&mut busy);
        match self.busy.is_empty() {
            true => {
                let grant = self.granter.as_ref().and_then(|granter| granter.next_deadline());
                Turn::Rest(Instant::earlier_of(self.agenda.first().map(|(at, _)| *at), grant))
            }
            false => Turn::Again,
        }
    }

    /// Returns whether it needs another one.
    fn turn_of(&mut self, id: u64, spin: Duration) -> bool {
        let Some(place) = self.connections.get_mut(&id) else { return false };
        match catch(|| place.driven.turn(spin)).unwrap_or_else(|panicked| Err(End::from(panicked))) {
            Ok(next) => {
                place.next = next;
                if let Turn::Rest(Some(at)) = next {
                    self.agenda.insert((at, id));
                }
                next == Turn::Again
            }
            Err(end) => {
                if let Some(place) = self.connections.remove(&id) {
                    place.driven.let_go(end);
                }
                false
            }
        }
    }

    /// Everything has ended, in the order in which connections were named.
    pub fn end_all(&mut self, end: &End) {
        self.busy.clear();
        self.agenda.clear();
        let mut ended: Vec<_> = self.connections.drain().collect();
        ended.sort_unstable_by_key(|(id, _)| *id);
        ended.into_iter().for_each(|(_, place)| place.driven.let_go(end.clone()));
    }
}
