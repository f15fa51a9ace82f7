//! All connections of a driver, each looked at when something happens on it, or when it is time: those on which nothing
//! happens cost nothing.
//!
//! It is driven itself: [`Engine::take`] takes what has come, [`Engine::turn`] does what is due and says when it must be
//! called again at the latest. It waits for nothing.

use std::collections::{BTreeSet, HashMap};

use longhaul_time::{Duration, Instant};

use crate::driven::{Driven, SPIN, Turn};
use crate::mailbox::Letter;
use crate::panicked::catch;
use crate::shared::End;

#[derive(Default)]
pub(crate) struct Engine {
    connections: HashMap<u64, Place>,
    /// Those that have a turn each time.
    busy: Vec<u64>,
    /// When the others have one at the latest.
    agenda: BTreeSet<(Instant, u64)>,
    is_stopped: bool,
}

struct Place {
    driven: Driven,
    /// What it needs next: it is among the busy ones, in the agenda, or in neither.
    next: Turn,
}

impl Engine {
    pub(crate) fn take(&mut self, letter: Letter) {
        match letter {
            Letter::Add(shared) => {
                let id = shared.id();
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
    pub(crate) fn is_stopped(&self) -> bool {
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
    pub(crate) fn turn(&mut self, now: Instant) -> Turn {
        while let Some(&(at, id)) = self.agenda.first()
            && at <= now
        {
            self.wake(id, false);
        }
        let mut busy = std::mem::take(&mut self.busy);
        let spin = SPIN / u32::try_from(busy.len()).unwrap_or(u32::MAX).max(1);
        busy.retain(|id| self.turn_of(*id, spin));
        // Wakers of the program may have run; what they did comes by letter.
        self.busy.append(&mut busy);
        match self.busy.is_empty() {
            true => Turn::Rest(self.agenda.first().map(|(at, _)| *at)),
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

    /// Everything has ended.
    pub(crate) fn end_all(&mut self, end: &End) {
        self.busy.clear();
        self.agenda.clear();
        self.connections.drain().for_each(|(_, place)| place.driven.let_go(end.clone()));
    }
}
