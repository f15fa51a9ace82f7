//! Receivers that take packets in order only: go-back-N.
//!
//! Such a receiver acknowledges all packets before a number. When it misses one it says so once, and discards everything
//! behind it; the sender goes back and sends all of that again, under new numbers. All that is known of what was
//! discarded is that the network has carried it: it counts as neither delivered nor lost.

use longhaul_time::Instant;

use super::Sampler;
use crate::controller::Sample;

impl Sampler {
    /// The receiver takes packets in order only, and has acknowledged everything before number `end`. The newest of
    /// these may have been sent before under another number (`is_repeat`): then it measures no round trip, since either
    /// may have arrived.
    pub fn on_acknowledged(&mut self, now: Instant, end: u64, is_repeat: bool) -> Sample {
        let before = self.counts();
        let end = end.min(self.sent);
        let burst = end.checked_sub(1).filter(|number| *number >= self.newest_end).and_then(|last| self.burst_of(last));
        self.newest_end = self.newest_end.max(end);
        self.delivered = self.delivered.max(self.newest_end.saturating_sub(self.lost + self.discarded));
        self.missing_at = (self.newest_end, self.lost);
        self.settle(before.delivered);
        let mut sample = self.sample(now, &before);
        if let Some(burst) = burst.filter(|burst| now > burst.sent_at) {
            sample.round_trip = (!is_repeat).then(|| now - burst.sent_at);
            self.measure(&mut sample, &burst, now);
        }
        sample
    }

    /// The receiver takes packets in order only, and all that is in flight is sent again. Of it, `lost` packets were lost,
    /// from the oldest on; the receiver has discarded the others, or will.
    pub fn on_went_back(&mut self, now: Instant, lost: u64) -> Sample {
        let before = self.counts();
        let oldest = self.burst_of(self.sent - self.in_flight_packets());
        let lost = lost.min(self.in_flight_packets());
        self.discarded += self.in_flight_packets() - lost;
        self.lost += lost;
        self.newest_end = self.sent;
        self.missing_at = (self.newest_end, self.lost);
        self.settle(before.delivered);
        let mut sample = self.sample(now, &before);
        if let Some(burst) = oldest {
            self.describe_sending(&mut sample, &burst);
        }
        sample
    }
}

#[cfg(test)]
mod tests {
    use longhaul_time::Duration;

    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// One packet of 1,000 bytes every millisecond, from `from` on.
    fn send(sampler: &mut Sampler, from: u64, count: u64) {
        for millis in from..from + count {
            sampler.on_sent(at(millis), 1, 1000);
            sampler.on_left(at(millis), 1);
        }
    }

    #[test]
    fn a_receiver_of_packets_in_order_that_misses_one_has_lost_one() {
        let mut sampler = Sampler::default();
        send(&mut sampler, 0, 20);
        let sample = sampler.on_acknowledged(at(25), 5, false);
        assert_eq!((sample.delivered_packets, sample.delivered_bytes), (5, 5000));
        assert_eq!(sample.round_trip, Some(Duration::from_millis(21)));
        // Number 5 is missing: it and the 14 behind it are sent again.
        let sample = sampler.on_went_back(at(26), 1);
        assert_eq!((sample.lost_packets, sample.delivered_packets, sample.delivered_bytes), (1, 0, 0));
        assert_eq!(sample.discarded_packets, 14);
        assert_eq!((sample.sent_at, sample.in_flight_packets_at_sending), (at(5), 6), "as the missing one was sent");
        assert_eq!(sample.lost_packets_since_sending, 1);
        assert_eq!((sampler.lost_packets(), sampler.discarded_packets()), (1, 14));
        assert_eq!((sampler.in_flight_packets(), sampler.in_flight_bytes()), (0, 0));
        send(&mut sampler, 30, 15);
        let sample = sampler.on_acknowledged(at(51), 30, true);
        assert_eq!((sample.delivered_packets, sample.delivered_bytes, sample.lost_packets), (10, 10_000, 0));
        assert_eq!(sample.round_trip, None, "the first of them may have arrived");
        let sample = sampler.on_acknowledged(at(56), 35, true);
        assert_eq!(sample.delivery_rate, Some(15_000 * 8 * 1000 / 26), "from when it was sent on");
        assert_eq!((sampler.in_flight_packets(), sampler.in_flight_bytes(), sampler.lost_packets()), (0, 0, 1));
    }

    #[test]
    fn going_back_without_a_loss_and_wild_acknowledgements_invent_nothing() {
        let mut sampler = Sampler::default();
        send(&mut sampler, 0, 20);
        let sample = sampler.on_went_back(at(20), 0);
        assert_eq!((sample.lost_packets, sampler.discarded_packets(), sampler.in_flight_bytes()), (0, 20, 0));
        let sample = sampler.on_went_back(at(21), 7);
        assert_eq!((sample.lost_packets, sampler.lost_packets()), (0, 0), "nothing was in flight");
        let sample = sampler.on_acknowledged(at(22), u64::MAX, false);
        assert_eq!((sample.delivered_packets, sample.delivered_bytes), (0, 0), "what was discarded stays so");
        send(&mut sampler, 30, 5);
        let sample = sampler.on_acknowledged(at(40), u64::MAX, false);
        assert_eq!((sample.delivered_packets, sample.delivered_bytes, sampler.in_flight_packets()), (5, 5000, 0));
        let sample = sampler.on_acknowledged(at(41), 3, false);
        assert_eq!((sample.delivered_packets, sample.round_trip), (0, None), "an old one");
    }

    #[test]
    fn silence_loses_everything_in_flight_of_packets_in_order_too() {
        let mut sampler = Sampler::default();
        send(&mut sampler, 0, 20);
        sampler.on_acknowledged(at(20), 5, false);
        let sample = sampler.on_timeout(at(100), Duration::ZERO);
        assert_eq!((sample.lost_packets, sampler.in_flight_packets(), sampler.in_flight_bytes()), (15, 0, 0));
        send(&mut sampler, 100, 15);
        let sample = sampler.on_acknowledged(at(120), 35, true);
        assert_eq!((sample.delivered_packets, sample.found_packets, sampler.lost_packets()), (15, 0, 15));
        assert_eq!((sampler.in_flight_packets(), sampler.in_flight_bytes()), (0, 0));
    }
}
