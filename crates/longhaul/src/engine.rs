//! All connections of a driver, each looked at when something happens on it, or when it is time: those on which nothing
//! happens cost nothing.
//!
//! It is driven itself: [`Engine::take`] takes what has come, [`Engine::turn`] does what is due and says when it must be
//! called again at the latest. It waits for nothing.

use std::collections::{BTreeSet, HashMap};

use longhaul_time::Instant;

use crate::driven::{Driven, Turn};
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
    rest: Rest,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    /// It is among the busy ones.
    None,
    /// Until something happens.
    Unlimited,
    /// It is in the agenda.
    Until(Instant),
}

/// When the engine must have its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// At once: there are busy connections.
    Now,
    /// When something comes, or at this moment.
    At(Option<Instant>),
}

impl Engine {
    pub(crate) fn take(&mut self, letter: Letter) {
        match letter {
            Letter::Add(shared) => {
                let id = shared.id();
                self.connections.insert(id, Place { driven: Driven::new(shared), rest: Rest::None });
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
        match std::mem::replace(&mut place.rest, Rest::None) {
            Rest::None => return,
            Rest::Unlimited => {}
            Rest::Until(at) => {
                self.agenda.remove(&(at, id));
            }
        }
        self.busy.push(id);
    }

    /// Give each connection that needs it a turn.
    pub(crate) fn turn(&mut self, now: Instant) -> Next {
        while let Some(&(at, id)) = self.agenda.first()
            && at <= now
        {
            self.wake(id, false);
        }
        let mut busy = std::mem::take(&mut self.busy);
        busy.retain(|id| self.turn_of(*id));
        // Wakers of the program may have run; what they did comes by letter.
        self.busy.append(&mut busy);
        match self.busy.is_empty() {
            true => Next::At(self.agenda.first().map(|(at, _)| *at)),
            false => Next::Now,
        }
    }

    /// Returns whether it needs another one.
    fn turn_of(&mut self, id: u64) -> bool {
        let Some(place) = self.connections.get_mut(&id) else { return false };
        let rest = match catch(|| place.driven.turn()).unwrap_or_else(|panicked| Err(End::from(panicked))) {
            Ok(Turn::Again) => return true,
            Ok(Turn::Rest(None)) => Rest::Unlimited,
            Ok(Turn::Rest(Some(at))) => {
                self.agenda.insert((at, id));
                Rest::Until(at)
            }
            Err(end) => {
                if let Some(place) = self.connections.remove(&id) {
                    place.driven.let_go(end);
                }
                return false;
            }
        };
        place.rest = rest;
        false
    }

    /// Everything has ended.
    pub(crate) fn end_all(&mut self, end: &End) {
        self.busy.clear();
        self.agenda.clear();
        self.connections.drain().for_each(|(_, place)| place.driven.let_go(end.clone()));
    }
}
