//! Time and the path to the peer, for one round of polling.

use longhaul_time::{Duration, Instant};

use crate::terms::Terms;

/// Timers of hosts are not exact.
const PATIENCE_MIN: Duration = Duration::from_millis(1);

/// What a connection knows of the path to the peer, for one round of polling.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) now: Instant,
    pub(crate) round_trip: Duration,
    /// How much longer than that one may take: four times the variation.
    pub(crate) variation: Duration,
    /// After this long an answer should have come.
    pub(crate) patience: Duration,
    /// When the peer was heard of last, whatever it said.
    pub(crate) heard: Option<Instant>,
    /// When the rate allows an offer with contents.
    pub(crate) rate_free_at: Instant,
}

impl Moment {
    pub(crate) fn new(terms: &Terms, now: Instant) -> Self {
        let queue_pair = &terms.queue_pair;
        let measured = queue_pair.round_trip_time();
        let guess = queue_pair.attributes().round_trip_guess;
        let round_trip = measured.smoothed.unwrap_or(guess);
        let patience = (measured.patience(guess) + round_trip / 4).max(PATIENCE_MIN);
        let rate_free_at = queue_pair.rate_free_at();
        let variation = 4 * measured.variation;
        Moment { now, round_trip, variation, patience, heard: terms.heard, rate_free_at }
    }
}
