//! The short-term bounds: what losses and marks leave of the bandwidth and of what may be in flight, until the next probe.

use super::{BETA, BETA_ECN, Feedback, Lateness, State, Wan};

impl Wan {
    /// Once a round: losses and marks outside of probing cut the short-term bounds.
    pub(super) fn adapt_short_term_bounds(&mut self) {
        if !self.is_round_start {
            return;
        }
        let mut late = std::mem::take(&mut self.round_late);
        if late.has_discarded {
            late.packets += self.carried_late.packets;
            late.lost += self.carried_late.lost;
        }
        // A receiver in order shows one loss of a flight, whatever else was lost of it: they count over rounds.
        self.carried_late = if late.has_discarded { late } else { Lateness::default() };
        let excess = late.lost - self.ambient.share() * late.packets;
        // The marks of a probe have ended it, and count no more; nor do its losses, if the sender pauses: a round that has a
        // pause in it shows less than the path carries, and the messages until the next probe would be slowed down to that.
        let is_of_probe = self.feedback == Feedback::Stopping;
        let has_loss = excess >= 2.0 && excess >= 0.005 * late.packets && !(is_of_probe && self.is_pausing);
        let has_marks = std::mem::take(&mut self.round_marks) > 0 && !is_of_probe;
        let is_probing = matches!(self.state, State::Startup | State::Refill | State::Up);
        if !is_probing && (has_loss || has_marks) {
            let bandwidth = self.bandwidth_short.min(self.bandwidth_long());
            let in_flight = self.in_flight_short.min(self.window);
            if has_loss {
                self.carried_late = Lateness::default();
                // Of two rounds: one whose packets were lost shows less than the path carries.
                self.bandwidth_short = (BETA * bandwidth).max(self.latest_bandwidth).max(self.previous_bandwidth);
                self.in_flight_short = (BETA * in_flight).max(self.latest_in_flight);
            } else {
                self.bandwidth_short = BETA_ECN * bandwidth;
                self.in_flight_short = BETA_ECN * in_flight;
            }
        }
        self.previous_bandwidth = self.latest_bandwidth;
        (self.latest_bandwidth, self.latest_in_flight) = (0.0, 0.0);
    }

    pub(super) fn reset_short_term_bounds(&mut self) {
        (self.bandwidth_short, self.in_flight_short) = (f64::INFINITY, f64::INFINITY);
    }
}
