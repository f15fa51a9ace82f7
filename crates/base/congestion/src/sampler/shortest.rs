//! The shortest round trip lately.

use longhaul_time::{Duration, Instant};

/// What was measured counts for at least this long, and less than twice as long while something is measured.
const WINDOW: Duration = Duration::from_secs(10);

/// The shortest round trip of this window and of the one before: a path may become longer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shortest {
    begun: Instant,
    least: [Option<Duration>; 2],
}

impl Shortest {
    /// One was measured.
    pub(super) fn measured(&mut self, now: Instant, round_trip: Duration) {
        let since = now - self.begun;
        if self.least[1].is_none() || since >= WINDOW {
            // Nothing is known of a window in which nothing was measured.
            self.least = [self.least[1].filter(|_| since < 2 * WINDOW), None];
            self.begun = now;
        }
        self.least[1] = self.least[1].into_iter().chain([round_trip]).min();
    }

    pub(super) fn get(&self) -> Option<Duration> {
        self.least.into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn the_shortest_counts_for_one_window_and_less_than_two() {
        let mut shortest = Shortest::default();
        assert_eq!(shortest.get(), None);
        shortest.measured(at(100), Duration::from_millis(1));
        for seconds in 101..120 {
            shortest.measured(at(seconds), Duration::from_millis(3));
            assert_eq!(shortest.get(), Some(Duration::from_millis(1)), "after {seconds} s");
        }
        shortest.measured(at(120), Duration::from_millis(3));
        assert_eq!(shortest.get(), Some(Duration::from_millis(3)));
        // After a pause only what is new counts, and time that goes backwards changes nothing.
        shortest.measured(at(140), Duration::from_millis(5));
        shortest.measured(at(90), Duration::from_millis(6));
        assert_eq!(shortest.get(), Some(Duration::from_millis(5)));
    }
}
