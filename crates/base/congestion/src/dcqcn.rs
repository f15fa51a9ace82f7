//! `dcqcn`: for private fabrics whose switches mark packets (ECN) and whose devices send congestion notification packets.
//!
//! The sender ("reaction point") of DCQCN (Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015)
//! with the parameters of that paper:
//!
//! ```text
//!  notification:  target = rate;  rate ×= 1 − α/2;  α = (1 − g)·α + g;  both counts of rises back to zero
//!  55 µs without: α ×= 1 − g
//!  every 55 µs and every 10 MB: a rise
//!     both counts at most F    fast recovery      rate = (rate + target) / 2
//!     one beyond F             additive increase  target += 40 Mbit/s, then the same
//!     both beyond F            hyper increase     target += i · 400 Mbit/s, i = the smaller count − F, then the same
//! ```
//!
//! What is not the paper's:
//!
//! - The step of hyper increase is ten times the additive one, as on NVIDIA's devices (5 and 50 Mbit/s there).
//! - The smallest rate is a thousandth of the line rate.
//! - DCQCN is made for lossless fabrics: loss means nothing. Here a timeout counts as a notification.
//! - Timers do not run before the first notification, nor once the rate is back at line rate and α is negligible: an
//!   idle sender has no deadlines.
//!
//! Without marks, or on devices that do not report notifications, it stays at line rate. It has no window.

use longhaul_time::{Duration, Instant};

use crate::controller::{Controller, PathFacts, Sample};

/// Weight of a notification in α.
const GAIN: f64 = 1.0 / 256.0;
/// α decreases after this time without a notification.
const ALPHA_TIMER: Duration = Duration::from_micros(55);
/// The rate rises after this time,
const RISE_TIMER: Duration = Duration::from_micros(55);
/// Notifications that come sooner after a cut belong to it.
const NOTIFICATION_GAP: Duration = Duration::from_micros(50);
/// and after this many bytes.
const RISE_BYTES: u64 = 10_000_000;
/// Rises of each kind that only recover (F).
const RECOVERY_RISES: u32 = 5;
const ADDITIVE_BITS_PER_SECOND: f64 = 40e6;
const HYPER_BITS_PER_SECOND: f64 = 400e6;
/// Of the line rate.
const RATE_SHARE_MIN: f64 = 1e-3;
/// Below this α no longer needs its timer.
const ALPHA_NEGLIGIBLE: f64 = 1e-4;
/// For devices that do not report the rate of their port.
const LINE_BITS_PER_SECOND: u64 = 10_000_000_000;

/// The controller `dcqcn`.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    line: f64,
    rate: f64,
    target: f64,
    alpha: f64,
    /// When α decreases; `None` while it does not.
    alpha_at: Option<Instant>,
    /// When the rate rises.
    rise_at: Option<Instant>,
    cut_at: Option<Instant>,
    /// Rises by the timer and by the byte counter since the last notification.
    timer_rises: u32,
    byte_rises: u32,
    /// Sent since the byte counter was last reset.
    bytes: u64,
    burst: Duration,
}

impl Dcqcn {
    /// At line rate.
    pub fn new(facts: &PathFacts) -> Self {
        let line = facts.line_bits_per_second.unwrap_or(LINE_BITS_PER_SECOND).max(1) as f64;
        Dcqcn {
            line,
            rate: line,
            target: line,
            alpha: 1.0,
            alpha_at: None,
            rise_at: None,
            cut_at: None,
            timer_rises: 0,
            byte_rises: 0,
            bytes: 0,
            burst: facts.fabric_burst(),
        }
    }

    fn rise(&mut self) {
        let (fewer, more) = (self.timer_rises.min(self.byte_rises), self.timer_rises.max(self.byte_rises));
        if fewer > RECOVERY_RISES {
            self.target += f64::from(fewer - RECOVERY_RISES) * HYPER_BITS_PER_SECOND;
        } else if more > RECOVERY_RISES {
            self.target += ADDITIVE_BITS_PER_SECOND;
        }
        self.target = self.target.min(self.line);
        self.rate = f64::midpoint(self.rate, self.target);
        // Halving the distance never ends by itself.
        if self.rate > self.line * 0.9999 {
            self.rate = self.line;
            self.rise_at = None;
        }
    }

    fn cut(&mut self, now: Instant) {
        self.target = self.rate;
        self.rate = (self.rate * (1.0 - self.alpha / 2.0)).max(self.line * RATE_SHARE_MIN).max(1.0);
        self.alpha = (1.0 - GAIN) * self.alpha + GAIN;
        (self.timer_rises, self.byte_rises, self.bytes) = (0, 0, 0);
        self.alpha_at = Some(now + ALPHA_TIMER);
        self.rise_at = Some(now + RISE_TIMER);
        self.cut_at = Some(now);
    }
}

impl Controller for Dcqcn {
    fn on_sent(&mut self, _now: Instant, bytes: u64, _in_flight_bytes: u64) {
        if self.rise_at.is_none() {
            return;
        }
        self.bytes += bytes;
        while self.bytes >= RISE_BYTES && self.rise_at.is_some() {
            self.bytes -= RISE_BYTES;
            self.byte_rises = self.byte_rises.saturating_add(1);
            self.rise();
        }
    }

    fn on_sample(&mut self, _sample: &Sample) {}

    fn on_notification(&mut self, now: Instant) {
        // Devices limit them for each queue pair, and a path has several.
        if self.cut_at.is_none_or(|at| now >= at + NOTIFICATION_GAP) {
            self.cut(now);
        }
    }

    fn on_timeout(&mut self, now: Instant) {
        self.cut(now);
    }

    fn next_deadline(&self) -> Option<Instant> {
        Instant::earlier_of(self.alpha_at, self.rise_at)
    }

    fn on_deadline(&mut self, now: Instant) {
        // A driver that comes late owes no more than one step of each: nothing was sent at the rates in between.
        if self.alpha_at.is_some_and(|at| now >= at) {
            self.alpha *= 1.0 - GAIN;
            self.alpha_at = (self.alpha > ALPHA_NEGLIGIBLE || self.rise_at.is_some()).then_some(now + ALPHA_TIMER);
        }
        if self.rise_at.is_some_and(|at| now >= at) {
            self.rise_at = Some(now + RISE_TIMER);
            self.timer_rises = self.timer_rises.saturating_add(1);
            self.rise();
        }
    }

    fn window_bytes(&self) -> u64 {
        u64::MAX
    }

    fn bits_per_second(&self) -> Option<u64> {
        Some(self.rate as u64)
    }

    fn burst(&self) -> Duration {
        self.burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn controller() -> Dcqcn {
        let line_bits_per_second = Some(40_000_000_000);
        Dcqcn::new(&PathFacts { packet_bytes: 1000, round_trip: None, line_bits_per_second, seed: 1 })
    }

    /// Wakes it at its deadlines for this long; returns how often.
    fn wake(controller: &mut Dcqcn, until: Instant) -> u32 {
        let mut count = 0;
        while let Some(due) = controller.next_deadline().filter(|due| *due <= until) {
            controller.on_deadline(due);
            count += 1;
        }
        count
    }

    fn gigabits(controller: &Dcqcn) -> f64 {
        controller.bits_per_second().expect("it has a rate") as f64 / 1e9
    }

    #[test]
    fn it_starts_at_line_rate_without_deadlines() {
        let mut controller = controller();
        controller.on_sent(at(1), 100_000_000, 100_000_000);
        assert_eq!((controller.bits_per_second(), controller.next_deadline()), (Some(40_000_000_000), None));
        assert_eq!(controller.window_bytes(), u64::MAX);
    }

    #[test]
    fn the_first_notification_halves_the_rate_and_five_rises_bring_it_back() {
        let mut controller = controller();
        controller.on_notification(at(0));
        assert_eq!(gigabits(&controller), 20.0, "α is 1");
        // 20 → 30 → 35 → 37.5 → 38.75 → 39.375: recovery towards the rate before.
        for (micros, rate) in [(55, 30.0), (110, 35.0), (165, 37.5), (220, 38.75), (275, 39.375)] {
            wake(&mut controller, at(micros));
            assert!((gigabits(&controller) - rate).abs() < 1e-6, "{} at {micros} µs", gigabits(&controller));
        }
    }

    #[test]
    fn notifications_in_a_row_keep_alpha_high_and_quiet_lowers_it() {
        let mut controller = controller();
        for count in 0..4 {
            controller.on_notification(at(50 * count));
        }
        assert_eq!((controller.alpha, gigabits(&controller)), (1.0, 2.5));
        wake(&mut controller, at(150 + 55 * 256));
        assert!((controller.alpha - (255.0_f64 / 256.0).powi(256)).abs() < 1e-9, "{}", controller.alpha);
        let before = gigabits(&controller);
        controller.on_notification(at(20_000));
        let share = gigabits(&controller) / before;
        assert!((0.8..0.83).contains(&share), "a cut of α/2, with α at 0.37: {share}");
    }

    #[test]
    fn after_recovery_the_target_rises_by_40_megabits_each_time() {
        let mut controller = controller();
        controller.on_notification(at(0));
        controller.on_notification(at(50));
        // The target is 20; five rises recover, the next ten add.
        wake(&mut controller, at(50 + 15 * 55));
        assert!((controller.target - 20.4e9).abs() < 1.0, "{}", controller.target);
        assert!((20.3..20.4).contains(&gigabits(&controller)), "{}", gigabits(&controller));
    }

    #[test]
    fn both_counts_beyond_five_rise_ever_faster() {
        let mut controller = controller();
        controller.on_notification(at(0));
        controller.on_notification(at(50));
        wake(&mut controller, at(50 + 6 * 55));
        let before = controller.target;
        controller.on_sent(at(400), 5 * RISE_BYTES, 0);
        assert!((controller.target - before - 5.0 * ADDITIVE_BITS_PER_SECOND).abs() < 1.0, "one count beyond F: adds");
        controller.on_sent(at(400), RISE_BYTES, 0);
        assert!((controller.target - before - 200e6 - 400e6).abs() < 1.0, "i = 1");
        wake(&mut controller, at(50 + 7 * 55));
        controller.on_sent(at(440), RISE_BYTES, 0);
        assert!((controller.target - before - 200e6 - 400e6 - 400e6 - 800e6).abs() < 1.0, "i = 1 again, then 2");
    }

    #[test]
    fn a_notification_begins_the_count_of_bytes_again() {
        let mut controller = controller();
        controller.on_notification(at(0));
        controller.on_sent(at(10), RISE_BYTES - 1, 0);
        let once = gigabits(&controller);
        controller.on_notification(at(20));
        assert_eq!(gigabits(&controller), once, "another queue pair of the path was told of the same congestion");
        controller.on_notification(at(50));
        let rate = gigabits(&controller);
        controller.on_sent(at(52), RISE_BYTES - 1, 0);
        assert_eq!(gigabits(&controller), rate);
        controller.on_sent(at(52), 1, 0);
        assert!(gigabits(&controller) > rate);
    }

    #[test]
    fn it_never_stops_and_timers_end_at_line_rate() {
        let mut controller = controller();
        for count in 0..1000 {
            controller.on_notification(at(50 * count));
        }
        assert_eq!(gigabits(&controller), 0.04);
        let woken = wake(&mut controller, at(60_000_000));
        assert_eq!((gigabits(&controller), controller.next_deadline()), (40.0, None));
        assert!(woken > 1000, "{woken}");
    }

    #[test]
    fn it_does_not_stop_on_the_slowest_line_either() {
        let line_bits_per_second = Some(1);
        let facts = PathFacts { packet_bytes: 1000, round_trip: None, line_bits_per_second, seed: 1 };
        let mut controller = Dcqcn::new(&facts);
        controller.on_notification(at(0));
        assert_eq!(controller.bits_per_second(), Some(1));
    }

    #[test]
    fn a_late_driver_makes_one_step() {
        let mut controller = controller();
        controller.on_notification(at(0));
        controller.on_deadline(at(1_000_000));
        assert_eq!(gigabits(&controller), 30.0);
    }
}
