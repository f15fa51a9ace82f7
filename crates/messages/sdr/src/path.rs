//! The path to the peer, as a sender sees it: how long it takes, how much may be in flight on it, and how fast it is
//! used.
//!
//! One for each queue pair. Congestion control, and later several paths, find all that depends on the path in one
//! place.

use longhaul_time::{Duration, Instant};

use crate::link_estimate::{RoundTripTime, Window};
use crate::pacer::Pacer;

pub(crate) struct Path {
    pub(crate) round_trip: RoundTripTime,
    /// Packets that the peer has receives for.
    pub(crate) window: Window,
    pub(crate) pacer: Pacer,
}

impl Path {
    pub(crate) fn new(pacer: Pacer) -> Self {
        Path { round_trip: RoundTripTime::default(), window: Window::new(0), pacer }
    }

    /// How long to wait for an answer; `guess` is a round trip before one was measured.
    pub(crate) fn patience(&self, guess: Duration) -> Duration {
        self.round_trip.patience(guess)
    }

    /// Packets that may be sent now.
    pub(crate) fn room(&self, now: Instant) -> u32 {
        match self.pacer.is_ready(now) {
            true => self.window.available(),
            false => 0,
        }
    }

    /// `packets` were given to the device, with `wire_bytes` on the wire.
    pub(crate) fn on_posted(&mut self, packets: u32, wire_bytes: u64, now: Instant) {
        self.window.on_posted(packets);
        self.pacer.on_posted(wire_bytes, now);
    }
}
