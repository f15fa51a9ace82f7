//! What a queue pair knows of the path to its peer: the round-trip time, and how many packets are in flight.

use std::collections::VecDeque;

use longhaul_time::{Duration, Instant};

/// The longest time beyond the shortest round trip that an answer is waited for. What takes longer is in a queue that is worth no
/// waiting for, or was held up by a network that will do so again: repeating something once a second costs nothing.
const PATIENCE_MAX: Duration = Duration::from_secs(1);
/// The shortest time that an answer is waited for: hosts are not woken sooner. A peer that claims a round trip of a nanosecond would
/// otherwise be asked without end, because the back-off stops growing after a number of doublings.
const PATIENCE_MIN: Duration = Duration::from_micros(50);
/// The longest time that the peer may have held a frame before the answer to it is no good for measuring: two clocks that differ by
/// 100 parts in a million drift apart by 10 us meanwhile.
const HELD_MAX: Duration = Duration::from_millis(100);

/// A sample that is this many times shorter than the mean begins a new mean.
const HELD_UP: u32 = 4;

/// The round-trip time, measured with every control message that is the first to echo one of ours (RFC 6298's smoothing).
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
    /// A frame that was sent with this stamp was answered, after the peer had held it for a while. Without the time of arrival, or when
    /// the peer claims to have held it for longer than it was away, nothing is measured.
    pub(crate) fn measure_answer(&mut self, stamp: u64, held: Duration, arrival: Option<Instant>) {
        let away = arrival.map(|arrival| arrival.saturating_since(Instant::from_nanos(stamp)));
        if let Some(sample) = away.and_then(|away| away.checked_sub(held))
            && !sample.is_zero()
            && held <= HELD_MAX
        {
            self.measure(sample);
        }
    }

    /// A frame came back after this time.
    fn measure(&mut self, sample: Duration) {
        self.latest = Some(sample);
        self.least = Some(self.least.map_or(sample, |least| least.min(sample)));
        match self.smoothed {
            Some(smoothed) if sample >= smoothed / HELD_UP => {
                self.variation = (self.variation * 3 + smoothed.abs_diff(sample)) / 4;
                self.smoothed = Some((smoothed * 7 + sample) / 8);
            }
            // The first; or what went before was held up, by a host that stood still for example: it would count for many samples.
            _ => {
                self.smoothed = Some(sample);
                self.variation = sample / 2;
            }
        }
    }

    /// After this long without an answer something was most likely lost: RFC 6298's time-out, at least a quarter above the smoothed time,
    /// because a path that is always the same has no variation but hosts have, and at most a second above the shortest; never so short that a
    /// peer that lies is asked without end.
    pub fn patience(&self, unknown: Duration) -> Duration {
        let (Some(smoothed), Some(least)) = (self.smoothed, self.least) else { return unknown };
        (smoothed + (self.variation * 4).max(smoothed / 4)).min(least + PATIENCE_MAX).max(PATIENCE_MIN)
    }
}

/// Data packets in flight, so that they never are more than the peer has receives for.
///
/// The peer reports how many receives have been consumed, but a lost packet consumes none. What left the device longer ago than a packet can
/// be in flight and be reported has either been consumed or is lost: that settles it. A packet that arrives later all the same makes the
/// window one too large until the next such moment, when the losses are counted again; at worst the peer drops a packet and counts it.
///
/// Packets that wait in the device, for its rate limit for example, are not in flight yet, but they will be: they take room in the window,
/// and are not presumed lost however long they wait.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    size: u32,
    /// Given to the device.
    posted: u64,
    /// Of these, have left it.
    left: u64,
    /// Consumed, by the newest report.
    consumed: u64,
    /// Presumed lost.
    lost: u64,
    /// Of those that left the device long enough ago, all: consumed or lost.
    settled: u64,
    /// How many had left when; oldest first.
    marks: VecDeque<Mark>,
    #[cfg(feature = "mutations")]
    pub(crate) never_lowers_lost: bool,
}

/// What left the device in a short time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    begun: Instant,
    ended: Instant,
    /// All that had left by its end.
    left: u64,
}

/// A mark covers this part of the horizon, so that there are not many more marks than that.
const MARKS_A_HORIZON: u32 = 32;
/// More than that there are only if no report comes; then they are merged.
const MARKS_MAX: usize = 4 * MARKS_A_HORIZON as usize;

impl Window {
    /// A window of the size that the peer has reported.
    pub(crate) fn new(size: u32) -> Self {
        Window {
            size,
            posted: 0,
            left: 0,
            consumed: 0,
            lost: 0,
            settled: 0,
            marks: VecDeque::new(),
            #[cfg(feature = "mutations")]
            never_lowers_lost: false,
        }
    }

    /// Packets that may be given to the device now.
    pub(crate) fn available(&self) -> u32 {
        self.size.saturating_sub(u32::try_from(self.in_flight()).unwrap_or(u32::MAX))
    }

    fn in_flight(&self) -> u64 {
        self.posted - self.settled.max(self.consumed + self.lost).min(self.posted)
    }

    /// Packets that are presumed lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Packets were given to the device.
    pub(crate) fn on_posted(&mut self, count: u32) {
        self.posted += u64::from(count);
    }

    /// Packets have left the device.
    pub(crate) fn on_left(&mut self, count: u32, now: Instant, horizon: Duration) {
        self.left = (self.left + u64::from(count)).min(self.posted);
        let is_full = self.marks.len() == MARKS_MAX;
        match self.marks.back_mut() {
            // A mark that ends later only settles later.
            Some(mark) if is_full || now - mark.begun < horizon / MARKS_A_HORIZON => {
                (mark.ended, mark.left) = (now, self.left);
            }
            _ => self.marks.push_back(Mark { begun: now, ended: now, left: self.left }),
        }
    }

    /// The peer has reported how many it has consumed, and its window. What left before `now - horizon` is settled with that. Returns
    /// whether more are consumed than was known.
    pub(crate) fn on_report(&mut self, consumed: u64, size: u32, now: Instant, horizon: Duration) -> bool {
        self.size = size;
        // An old frame; or a peer that counts what was never sent.
        let before = self.consumed;
        #[cfg(feature = "mutations")]
        let lost_before = self.lost;
        self.consumed = before.max(consumed.min(self.posted));
        while let Some(&Mark { ended, left, .. }) = self.marks.front()
            && now >= ended + horizon
        {
            // Counted again each time, not added up: one that was late has been consumed by now.
            self.lost = left.saturating_sub(self.consumed);
            self.settled = left;
            self.marks.pop_front();
        }
        // Nothing can be lost that has been consumed.
        self.lost = self.lost.min(self.posted - self.consumed);
        #[cfg(feature = "mutations")]
        if self.never_lowers_lost {
            self.lost = self.lost.max(lost_before);
        }
        self.consumed > before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HORIZON: Duration = Duration::from_millis(10);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// Packets leave as soon as they are posted.
    fn send(window: &mut Window, count: u32, now: Instant) {
        window.on_posted(count);
        window.on_left(count, now, HORIZON);
    }

    #[test]
    fn what_was_held_up_does_not_count_for_long() {
        let mut time = RoundTripTime::default();
        let mut measure = |sent: u64, came: u64| {
            time.measure_answer(at(sent).as_nanos(), Duration::ZERO, Some(at(came)));
            time.patience(Duration::ZERO)
        };
        assert!(measure(1, 3001) >= Duration::from_secs(3), "a host that stood still");
        assert!(measure(4000, 4020) <= Duration::from_millis(60), "the next one is right at once");
        (0..50).for_each(|round| assert!(measure(5000 + round * 20, 5020 + round * 20) < Duration::from_millis(60)));
        assert!(measure(7000, 10_000) > Duration::from_secs(1), "one that is late is believed");
        assert!(measure(11_000, 11_020) <= Duration::from_millis(60), "until the next");
    }

    #[test]
    fn a_window_opens_with_what_is_consumed() {
        let mut window = Window::new(100);
        send(&mut window, 80, at(1));
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
        send(&mut window, 100, at(1));
        window.on_report(60, 100, at(5), HORIZON);
        assert_eq!(window.available(), 60);
        window.on_report(60, 100, at(11), HORIZON);
        assert_eq!((window.available(), window.lost()), (100, 40));
        // Sent after the losses: only what is consumed of them opens the window.
        send(&mut window, 50, at(12));
        assert_eq!(window.available(), 50);
        window.on_report(70, 100, at(13), HORIZON);
        assert_eq!(window.available(), 60);
    }

    #[test]
    fn a_packet_that_was_presumed_lost_and_comes_late() {
        let mut window = Window::new(10);
        send(&mut window, 10, at(1));
        window.on_report(9, 10, at(20), HORIZON);
        assert_eq!((window.available(), window.lost()), (10, 1));
        send(&mut window, 10, at(21));
        window.on_report(10, 10, at(22), HORIZON);
        // One too large until the next count.
        assert_eq!(window.available(), 1);
        window.on_report(19, 10, at(40), HORIZON);
        assert_eq!((window.available(), window.lost()), (10, 1));
        // That one comes late, too, when nothing else is in flight.
        window.on_report(1000, 10, at(41), HORIZON);
        assert_eq!((window.available(), window.lost()), (10, 0));
    }

    #[test]
    fn late_packets_do_not_inflate_it_for_good() {
        let mut window = Window::new(100);
        let (mut now, mut consumed) = (Instant::ZERO, 0);
        for round in 1..=1000_u64 {
            now += Duration::from_millis(20);
            send(&mut window, 50, now);
            now += Duration::from_millis(20);
            // Two of each round are late by more than the horizon, and come in the next.
            consumed = round * 50 - 2;
            window.on_report(consumed, 100, now, HORIZON);
        }
        assert_eq!(window.lost(), 2);
        send(&mut window, 100, now);
        assert_eq!(window.available(), 0, "after {consumed} packets");
        window.on_report(consumed + 2, 100, now, HORIZON);
        assert_eq!(window.available(), 2, "two too large, whatever was late before");
    }

    #[test]
    fn what_waits_in_the_device_is_not_lost() {
        let mut window = Window::new(600);
        window.on_posted(512);
        assert_eq!(window.available(), 88);
        // One leaves every 10 ms, and is consumed within another 10.
        for millis in 1..=500 {
            window.on_left(1, at(millis * 10), HORIZON);
            window.on_report(millis - 1, 600, at(millis * 10), HORIZON);
            assert_eq!(window.lost(), 0, "after {millis}");
        }
        assert_eq!(window.available(), 88 + 499);
    }

    #[test]
    fn marks_are_few_and_settle_while_sending_goes_on() {
        let mut window = Window::new(u32::MAX);
        let mut now = Instant::ZERO;
        for step in 1..=100_000 {
            now += Duration::from_micros(10);
            send(&mut window, 1, now);
            // Everything is lost.
            if step % 100 == 0 {
                window.on_report(0, u32::MAX, now, HORIZON);
            }
        }
        let on_their_way = window.in_flight();
        assert!((1000..1200).contains(&on_their_way), "1000 packets a horizon, {on_their_way} in flight");
        for _ in 0..100_000 {
            now += Duration::from_micros(10);
            send(&mut window, 1, now);
        }
        assert!(window.marks.len() <= MARKS_MAX, "also without reports");
    }

    #[test]
    fn a_peer_that_claims_no_round_trip_at_all_is_not_asked_without_end() {
        let mut time = RoundTripTime::default();
        time.measure(Duration::from_nanos(1));
        assert_eq!(time.patience(Duration::ZERO), PATIENCE_MIN);
        assert_eq!(crate::asking::backed_off(time.patience(Duration::ZERO), u32::MAX), crate::asking::WAIT_MAX);
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
        let patience = time.patience(Duration::ZERO);
        assert!(patience >= smoothed * 5 / 4, "hosts are never as steady as a path: {patience:?}");
    }

    #[test]
    fn patience_has_an_end() {
        let mut time = RoundTripTime::default();
        time.measure(Duration::from_millis(20));
        for _ in 0..10 {
            time.measure(Duration::from_secs(3));
        }
        assert_eq!(time.patience(Duration::ZERO), Duration::from_millis(1020));
    }

    #[test]
    fn an_answer_that_cannot_be_true_measures_nothing() {
        let mut time = RoundTripTime::default();
        let sent = at(100).as_nanos();
        let millis = Duration::from_millis;
        time.measure_answer(sent, millis(0), None);
        time.measure_answer(sent, millis(21), Some(at(120)));
        time.measure_answer(sent, millis(20), Some(at(120)));
        time.measure_answer(sent, Duration::from_nanos(u64::MAX), Some(at(120)));
        time.measure_answer(sent, millis(0), Some(at(90)));
        time.measure_answer(sent, millis(900), Some(at(1020)));
        assert_eq!(time, RoundTripTime::default());
        time.measure_answer(sent, millis(5), Some(at(125)));
        assert_eq!((time.latest, time.least), (Some(millis(20)), Some(millis(20))));
    }
}
