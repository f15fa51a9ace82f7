//! The best that bandwidth has been for a while.

use std::collections::VecDeque;
use std::time::Instant;

/// The best rate over a stretch of messages, from the moment when the first of them was posted to the moment when the
/// last one was done, as perftest has it: that many completions are found at once does not make them fast.
pub(crate) struct Peak {
    /// When the message with this number, and those behind it, were posted.
    posts: VecDeque<(Instant, u64)>,
    /// Several windows: a message waits for a window of others before it is sent.
    stretch: u64,
    pub(crate) best: f64,
}

impl Peak {
    pub(crate) fn new(window: u64) -> Self {
        Peak { posts: VecDeque::new(), stretch: (window * 4).max(16), best: 0.0 }
    }

    pub(crate) fn posted(&mut self, now: Instant, number: u64) {
        self.posts.push_back((now, number));
    }

    /// All messages before this one are done.
    pub(crate) fn done(&mut self, now: Instant, number: u64) {
        while self.posts.get(1).is_some_and(|post| number.saturating_sub(post.1) >= self.stretch) {
            self.posts.pop_front();
        }
        if let Some((since, first)) = self.posts.front()
            && number.saturating_sub(*first) >= self.stretch
        {
            let seconds = now.duration_since(*since).as_secs_f64();
            self.best = self.best.max((number - first) as f64 / seconds.max(1e-9));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn completions_that_are_found_at_once_do_not_make_a_peak() {
        let begin = Instant::now();
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        let mut peak = Peak::new(4);
        // Four messages a millisecond, then nothing is seen for a while, then all at once.
        for number in 0..100 {
            peak.posted(at(number / 4), number);
            peak.done(at(number / 4 + 1), number);
        }
        let steady = peak.best;
        assert!((3000.0..=4000.0).contains(&steady), "{steady} messages a second");
        peak.posted(at(25), 100);
        peak.done(at(80), 100);
        peak.done(at(80), 130);
        assert_eq!(peak.best, steady);
    }
}
