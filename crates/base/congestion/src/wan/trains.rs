//! Messages shorter than a round trip: how fast the packets of one arrive. Over a round trip a sender of such messages, one at a
//! time, shows only how long they are, and would be paced by that.

use super::{BETA, State, Wan};
use crate::controller::Sample;

/// A message is short up to this part of a bandwidth-delay product, or, while little is known of the bandwidth, up to
/// this length.
const TRAIN_PRODUCTS_MAX: f64 = 0.75;
const TRAIN_BYTES_MAX: f64 = 96.0 * 1024.0;

impl Wan {
    pub(super) fn update_trains(&mut self, sample: &Sample) {
        self.train_bytes = sample.train_bytes as f64;
        if let Some(rate) = sample.train_rate {
            // Packets that left at once may arrive closer together than the pace: no train is faster than that.
            self.train_max[1] = self.train_max[1].max((rate as f64 / 8.0).min(self.pacing));
        }
        if self.is_too_high(sample) && self.train_cut_round != self.rounds {
            self.train_cut_round = self.rounds;
            self.train_max = self.train_max.map(|rate| BETA * rate);
        }
    }

    /// What a message that is shorter than a round trip may be sent at. Measured over a round trip, such a flow shows only how long
    /// its messages are, and would be paced by that. In doubt, what is known of the path over round trips counts.
    pub(super) fn train_bandwidth(&self) -> f64 {
        let train = self.train_max[0].max(self.train_max[1]);
        // A longer one, sent faster than the path is, would overrun a short queue.
        let is_short = self.train_bytes <= self.product(train, TRAIN_PRODUCTS_MAX).max(TRAIN_BYTES_MAX);
        let has_room = self.is_app_limited && self.bandwidth_short.is_infinite() && self.state != State::ProbeRtt;
        if is_short && has_room { train } else { 0.0 }
    }
}
