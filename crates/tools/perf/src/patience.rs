//! How long to wait for what may have been lost.

use std::time::Duration;

/// Before anything has come back, nobody knows how far away the peer is.
const FIRST: Duration = Duration::from_millis(500);
/// A peer that is near may still be kept from its processor for a while.
const LEAST: Duration = Duration::from_millis(20);
/// Times the longest of the last round trips.
const FACTOR: u32 = 4;

/// How long to wait for an answer over a transport that loses messages: a few of the longest round trips of late.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    longest: Option<Duration>,
}

impl Patience {
    /// An answer took this long.
    pub(crate) fn learn(&mut self, round_trip: Duration) {
        // One that was long by chance is forgotten by and by.
        let before = self.longest.map(|longest| longest * 7 / 8);
        self.longest = before.max(Some(round_trip));
    }

    /// After this long it is taken as lost.
    pub(crate) fn limit(&self) -> Duration {
        self.longest.map_or(FIRST, |longest| (longest * FACTOR).max(LEAST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_follows_the_distance() {
        let mut patience = Patience::default();
        assert_eq!(patience.limit(), FIRST);
        patience.learn(Duration::from_micros(10));
        assert_eq!(patience.limit(), LEAST);
        patience.learn(Duration::from_millis(100));
        assert_eq!(patience.limit(), Duration::from_millis(400));
        patience.learn(Duration::from_millis(1));
        assert_eq!(patience.limit(), Duration::from_millis(350));
    }
}
