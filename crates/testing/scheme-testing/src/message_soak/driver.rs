//! What drives the connections of a host: the runtime that programs use, on virtual time.
//!
//! The facade has a thread that sleeps until an event, a letter or a deadline comes. Here the program does that in its
//! place: it lets the driver [turn](VirtualDriver::turn) whenever something may have happened, and time go on to [the
//! next deadline](VirtualDriver::next_deadline).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longhaul_runtime::{Assembly, End, Engine, Letter, Letterbox, Turn};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::CompletionChannel;
use longhaul_world::World;

/// Turns that an engine may want at one instant: more of them is a connection that is never done.
const TURNS_MAX: u32 = 1000;

/// Virtual time, as connections see it.
#[derive(Clone, Default)]
pub(super) struct VirtualClock(Arc<AtomicU64>);

impl VirtualClock {
    pub(super) fn set(&self, now: Instant) {
        self.0.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// The letters of a driver that never sleeps.
pub(super) struct VirtualMailbox {
    clock: VirtualClock,
    letters: Mutex<Vec<Letter>>,
}

impl VirtualMailbox {
    fn letters(&self) -> MutexGuard<'_, Vec<Letter>> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Letterbox for VirtualMailbox {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn put(&self, letter: Letter) {
        self.letters().push(letter);
    }
}

/// The driver of a host.
pub(super) struct VirtualDriver {
    pub(super) assembly: Assembly,
    pub(super) mailbox: Arc<VirtualMailbox>,
    pub(super) events: CompletionChannel,
    engine: Engine,
    /// When the engine must have its next turn, if nothing happens before.
    next: Option<Instant>,
}

impl VirtualDriver {
    pub(super) fn new(world: &World, node: usize, clock: &VirtualClock) -> Self {
        let device = world.device(node);
        let assembly = Assembly::new(&device).expect("a new device has room");
        let engine = Engine::new(Duration::ZERO).with_granter(assembly.granter());
        VirtualDriver {
            assembly,
            mailbox: Arc::new(VirtualMailbox { clock: clock.clone(), letters: Mutex::default() }),
            events: device.create_completion_channel().expect("a new device has room"),
            engine,
            next: None,
        }
    }

    /// Do what is due; `false` if it would never be done.
    pub(super) fn turn(&mut self, now: Instant) -> bool {
        let mut is_due = self.next.is_some_and(|next| next <= now);
        for _ in 0..TURNS_MAX {
            while let Some(id) = self.events.next_event().expect("events can be taken") {
                self.engine.take(Letter::Look(id));
                is_due = true;
            }
            for letter in std::mem::take(&mut *self.mailbox.letters()) {
                self.engine.take(letter);
                is_due = true;
            }
            if !std::mem::take(&mut is_due) {
                return true;
            }
            match self.engine.turn(now) {
                Turn::Again => is_due = true,
                Turn::Rest(next) => self.next = next,
            }
        }
        false
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        match self.mailbox.letters().is_empty() {
            true => self.next,
            false => Some(self.mailbox.now()),
        }
    }

    /// The process has ended, and with it everything.
    pub(super) fn kill(&mut self) {
        let end = End::Closed;
        self.engine.end_all(&end);
        let letters = std::mem::take(&mut *self.mailbox.letters());
        letters.into_iter().for_each(|letter| letter.return_to_sender(&end));
        self.next = None;
    }
}

impl Drop for VirtualDriver {
    fn drop(&mut self) {
        // A letter may hold a connection, which holds the mailbox.
        self.kill();
    }
}
