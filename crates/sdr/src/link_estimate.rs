//! What a queue pair knows of the way to its peer: the round-trip time, and how many packets are on it.

use std::collections::VecDeque;

use longhaul_time::{Duration, Instant};

/// The round-trip time, measured with every control message that echoes one of ours (RFC 6298's smoothing).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTripTime {
    /// The newest measurement.
    pub latest: Option<Duration>,
    /// The mean, newer ones counting more.
    pub smoothed: Option<Duration>,
    /// How far measurements lie from it.
    pub variation: Duration,
    /// The shortest.
    pub least: Option<Duration>,
}

impl RoundTripTime {
    /// A frame came back after so long.
    pub(crate) fn measure(&mut self, sample: Duration) {
        self.latest = Some(sample);
        self.least = Some(self.least.map_or(sample, |least| least.min(sample)));
        match self.smoothed {
            None => {
                self.smoothed = Some(sample);
                self.variation = sample / 2;
            }
            Some(smoothed) => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(sample)) / 4;
                self.smoothed = Some((smoothed * 7 + sample) / 8);
            }
        }
    }

    /// After this long without an answer something is lost, most likely.
    pub fn patience(&self, unknown: Duration) -> Duration {
        self.smoothed.map_or(unknown, |smoothed| smoothed + self.variation * 4)
    }
}

/// Data packets on their way, so that they never are more than the peer has receives for.
///
/// The peer tells how many receives have been consumed, but a lost packet consumes none. What was sent longer ago than a packet can be
/// on its way and be reported has either been consumed or is lost: that settles it. A packet that takes longer all the same
/// makes the window one too large for a while; at worst the peer drops a packet and counts it.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    size: u32,
    sent: u64,
    /// Consumed, by the newest report.
    consumed: u64,
    /// Those that are taken for lost.
    lost: u64,
    /// Sent and not on their way any more.
    settled: u64,
    /// How many had been sent when; oldest first.
    marks: VecDeque<Mark>,
}

/// What was sent in a short time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    begun: Instant,
    ended: Instant,
    /// All that had been sent by its end.
    sent: u64,
}

/// A mark covers this part of the horizon, so that there are not many more marks than that.
const MARKS_A_HORIZON: u32 = 32;
/// More than that there are only if no report comes; then they are merged.
const MARKS_MAX: usize = 4 * MARKS_A_HORIZON as usize;

impl Window {
    /// A window of a size that the peer has told.
    pub(crate) fn new(size: u32) -> Self {
        Window { size, sent: 0, consumed: 0, lost: 0, settled: 0, marks: VecDeque::new() }
    }

    /// Packets that may be sent now.
    pub(crate) fn available(&self) -> u32 {
        self.size.saturating_sub(u32::try_from(self.sent - self.settled).unwrap_or(u32::MAX))
    }

    /// Packets that are taken for lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Packets were sent.
    pub(crate) fn on_sent(&mut self, count: u32, now: Instant, horizon: Duration) {
        self.sent += u64::from(count);
        let is_full = self.marks.len() == MARKS_MAX;
        match self.marks.back_mut() {
            // A mark that ends later only settles later.
            Some(mark) if is_full || now - mark.begun < horizon / MARKS_A_HORIZON => {
                (mark.ended, mark.sent) = (now, self.sent);
            }
            _ => self.marks.push_back(Mark { begun: now, ended: now, sent: self.sent }),
        }
    }

    /// The peer has told how many it has consumed, and its window. What was sent before `now - horizon` is settled with that.
    pub(crate) fn on_report(&mut self, consumed: u64, size: u32, now: Instant, horizon: Duration) {
        self.size = size;
        // An old frame; or a peer that counts what was never sent.
        self.consumed = self.consumed.max(consumed.min(self.sent));
        while let Some(&Mark { ended, sent, .. }) = self.marks.front()
            && now >= ended + horizon
        {
            self.lost = self.lost.max(sent.saturating_sub(self.consumed));
            self.settled = self.settled.max(sent);
            self.marks.pop_front();
        }
        self.settled = self.settled.max((self.consumed + self.lost).min(self.sent));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HORIZON: Duration = Duration::from_millis(10);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_window_opens_with_what_is_consumed() {
        let mut window = Window::new(100);
        window.on_sent(80, at(1), HORIZON);
        assert_eq!(window.available(), 20);
        window.on_report(50, 100, at(2), HORIZON);
        assert_eq!((window.available(), window.lost()), (70, 0));
        // An older report, or a repeated one, changes nothing.
        window.on_report(30, 100, at(3), HORIZON);
        assert_eq!(window.available(), 70);
    }

    #[test]
    fn what_is_lost_does_not_close_it_for_ever() {
        let mut window = Window::new(100);
        window.on_sent(100, at(1), HORIZON);
        window.on_report(60, 100, at(5), HORIZON);
        assert_eq!(window.available(), 60);
        window.on_report(60, 100, at(11), HORIZON);
        assert_eq!((window.available(), window.lost()), (100, 40));
        // Sent after the losses: only what is consumed of them opens the window.
        window.on_sent(50, at(12), HORIZON);
        assert_eq!(window.available(), 50);
        window.on_report(70, 100, at(13), HORIZON);
        assert_eq!(window.available(), 60);
    }

    #[test]
    fn a_packet_that_was_taken_for_lost_and_comes_late() {
        let mut window = Window::new(10);
        window.on_sent(10, at(1), HORIZON);
        window.on_report(9, 10, at(20), HORIZON);
        assert_eq!((window.available(), window.lost()), (10, 1));
        window.on_sent(10, at(21), HORIZON);
        window.on_report(10, 10, at(22), HORIZON);
        // One too large, and no more.
        assert_eq!(window.available(), 1);
        window.on_report(1000, 10, at(23), HORIZON);
        assert_eq!(window.available(), 10);
    }

    #[test]
    fn marks_are_few_and_settle_while_sending_goes_on() {
        let mut window = Window::new(u32::MAX);
        let mut now = Instant::ZERO;
        for step in 1..=100_000 {
            now += Duration::from_micros(10);
            window.on_sent(1, now, HORIZON);
            // Everything is lost.
            if step % 100 == 0 {
                window.on_report(0, u32::MAX, now, HORIZON);
            }
        }
        let on_their_way = window.sent - window.settled;
        assert!((1000..1200).contains(&on_their_way), "1000 packets a horizon, {on_their_way} on their way");
        for _ in 0..100_000 {
            now += Duration::from_micros(10);
            window.on_sent(1, now, HORIZON);
        }
        assert!(window.marks.len() <= MARKS_MAX, "also without reports");
    }

    #[test]
    fn the_round_trip_time_follows() {
        let mut time = RoundTripTime::default();
        assert_eq!(time.patience(Duration::from_secs(1)), Duration::from_secs(1));
        time.measure(Duration::from_millis(20));
        assert_eq!(time.patience(Duration::ZERO), Duration::from_millis(60));
        for _ in 0..200 {
            time.measure(Duration::from_millis(40));
        }
        let smoothed = time.smoothed.expect("it was measured");
        assert!(smoothed > Duration::from_micros(39_900) && smoothed <= Duration::from_millis(40), "{smoothed:?}");
        assert_eq!(time.least, Some(Duration::from_millis(20)));
        assert!(time.variation < Duration::from_millis(1));
    }
}
