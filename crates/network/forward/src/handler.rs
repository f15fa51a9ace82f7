//! Who decides what becomes of frames.

use longhaul_time::Instant;

use crate::interface::Arrival;

/// Decides what becomes of frames. Driven: frames and time come in, frames go out.
pub trait Handler {
    /// A frame has arrived at the interface with index `port`.
    fn handle(&mut self, port: usize, frame: &mut Arrival<'_>, outbox: &mut Outbox) -> Fate;

    /// The time has come: send what is due.
    fn poll(&mut self, now: Instant, outbox: &mut Outbox);

    /// When [`Handler::poll`] must be called if no frame arrives before.
    fn next_deadline(&self) -> Option<Instant>;
}

/// What becomes of a frame that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It leaves at once by this interface, from where it lies, with what the handler has changed in it.
    Forward(usize),
    /// The handler has dropped it, or copied what it needs.
    Taken,
}

/// Frames that are to leave in this turn of the loop, and memory for such that leave later.
#[derive(Debug, Default)]
pub struct Outbox {
    leaving: Vec<Leaving>,
    spare: Vec<Vec<u8>>,
}

#[derive(Debug)]
pub(crate) struct Leaving {
    pub(crate) port: usize,
    pub(crate) frame: Vec<u8>,
    /// When it was to leave.
    pub(crate) due: Instant,
}

/// Memory of frames that have left, kept for others.
const SPARE_MAX: usize = 1024;

impl Outbox {
    /// A copy of a frame, in memory that [`Outbox::send`] takes.
    pub fn copy(&mut self, frame: &[u8]) -> Vec<u8> {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(frame);
        copy
    }

    /// Send a frame by an interface, after those that were sent there before, and after frames that were handled before and are
    /// forwarded. It was due at `due`.
    pub fn send(&mut self, port: usize, frame: Vec<u8>, due: Instant) {
        self.leaving.push(Leaving { port, frame, due });
    }

    /// Memory that is not needed after all.
    pub fn give_back(&mut self, frame: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(frame);
        }
    }

    /// Takes out all that is to leave, for a handler that is driven without a loop: the interface, the frame, and when it was due.
    pub fn take_all(&mut self) -> Vec<(usize, Vec<u8>, Instant)> {
        self.leaving.drain(..).map(|leaving| (leaving.port, leaving.frame, leaving.due)).collect()
    }

    pub(crate) fn leaving(&self) -> &[Leaving] {
        &self.leaving
    }

    /// All of them have left.
    pub(crate) fn clear(&mut self) {
        let Outbox { leaving, spare } = self;
        let room = SPARE_MAX.saturating_sub(spare.len());
        spare.extend(leaving.drain(..).map(|leaving| leaving.frame).take(room));
        leaving.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_little_of_it_is_kept() {
        let mut outbox = Outbox::default();
        for _ in 0..3 * SPARE_MAX {
            let frame = outbox.copy(b"frame");
            outbox.send(0, frame, Instant::ZERO);
        }
        assert_eq!((outbox.leaving().len(), outbox.spare.len()), (3 * SPARE_MAX, 0));
        outbox.clear();
        assert_eq!((outbox.leaving().len(), outbox.spare.len()), (0, SPARE_MAX));
        assert_eq!(outbox.copy(b"x"), b"x");
        assert_eq!(outbox.spare.len(), SPARE_MAX - 1);
    }
}
