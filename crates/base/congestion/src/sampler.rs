//! From what was sent and what the receiver reports to samples: what was delivered and lost, how fast, and how long it
//! took.
//!
//! Packets have numbers in the order in which they were sent, over all queue pairs of a path; a repeated packet gets a
//! new number. The receiver reports counts and the newest packet that it has, not each packet: verbs show a sender's
//! packets only as completions at the receiver. What is missing up to the newest packet is presumed lost once a later
//! report, with a packet newer by at least [`REORDERING_PACKETS`], still misses as many; what arrives afterwards is
//! found again. Packets that left long ago are settled with any report.
//!
//! A receiver that takes packets in order only (go-back-N) acknowledges all packets before a number, or misses one and
//! discards all that was sent after it. Those say nothing about the path: the network has carried them. So they are
//! neither delivered nor lost, and only the missing one is lost.

mod in_order;
mod shortest;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use longhaul_time::{Duration, Instant};

use crate::controller::Sample;
use shortest::Shortest;

/// Packets that may overtake another before it is presumed lost (RFC 9002, section 6.1.1).
pub(crate) const REORDERING_PACKETS: u64 = 3;
/// A shorter train shows nothing: hosts hand over several packets at once.
const TRAIN_PACKETS_MIN: f64 = 16.0;
/// Bursts that are remembered; more are merged.
const BURSTS_MAX: usize = 8192;
/// Bursts that a flow at rest keeps room for.
const BURSTS_AT_REST: usize = 4;

/// What the receiver reports, counted since the flow began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrivals {
    /// Packets that have arrived.
    pub packets: u64,
    /// Of these, with a mark of congestion.
    pub marked: u64,
    /// The number of the newest packet that has arrived; `None` when that is not known, for one that was sent twice.
    pub newest: Option<u64>,
    /// How long the receiver has had that packet before it reported.
    pub held: Duration,
}

/// Packets that were sent at once.
#[derive(Clone, Copy, Debug)]
struct Burst {
    /// One past its last packet's number.
    end: u64,
    packets: u64,
    /// Bytes sent up to its end.
    bytes_through: u64,
    bytes: u64,
    sent_at: Instant,
    /// When it left the device.
    left_at: Instant,
    /// When the newest packet known to have been delivered had been sent: the beginning of what the rate is measured over.
    base_sent_at: Instant,
    delivered_bytes: u64,
    delivered_at: Instant,
    in_flight_bytes: u64,
    in_flight_packets: u64,
    lost: u64,
    is_app_limited: bool,
}

/// Packets that were sent without a break, after the sender had nothing to send.
#[derive(Clone, Copy, Debug, Default)]
struct Train {
    /// The number of its first packet, and what was sent before it.
    first: u64,
    sent_bytes: u64,
    /// Of the train before.
    bytes_before: u64,
    /// The first report about it: when the packet that it names was sent and arrived, and what was delivered by then.
    base: Option<(Instant, Instant, u64)>,
    /// The next packet begins another one.
    is_over: bool,
}

/// What a sample shows the change of.
#[derive(Clone, Copy, Debug)]
struct Counts {
    delivered: u64,
    delivered_bytes: u64,
    lost: u64,
    discarded: u64,
    marked: u64,
}

/// Keeps what is in flight, and makes a [`Sample`] of each report.
#[derive(Clone, Debug, Default)]
pub struct Sampler {
    /// From the oldest that is not settled, in order of sending.
    bursts: VecDeque<Burst>,
    sent: u64,
    sent_bytes: u64,
    /// Packets that have left the device.
    left: u64,
    delivered: u64,
    delivered_bytes: u64,
    delivered_at: Instant,
    /// Arrivals that cannot have been packets of ours.
    duplicates: u64,
    /// The shortest time from sending a packet to the report about it, less the time that the receiver held it. Lately: on
    /// a path that has become longer an old one would let duplicates stand for most of what is in flight.
    round_trip_min: Shortest,
    marked: u64,
    lost: u64,
    /// Packets that the receiver has thrown away, because it missed one before them.
    discarded: u64,
    /// Packets that were delivered, discarded or presumed lost, at most, and their bytes.
    settled: u64,
    settled_bytes: u64,
    /// The mean of those that were settled last.
    packet_bytes: f64,
    /// One past the newest packet that has arrived.
    newest_end: u64,
    /// Packets below were written off: they left long ago, or nothing was heard for long. What arrives of them is found.
    written_off_end: u64,
    /// That, and how many were missing up to it, at an earlier report.
    missing_at: (u64, u64),
    base_sent_at: Instant,
    /// The sender had nothing to send until this many bytes are delivered.
    app_limited_until: Option<u64>,
    train: Train,
}

impl Sampler {
    /// Packets in flight: sent, neither delivered nor discarded nor presumed lost.
    pub fn in_flight_packets(&self) -> u64 {
        self.sent - (self.delivered + self.lost + self.discarded).min(self.sent)
    }

    /// Bytes in flight.
    pub fn in_flight_bytes(&self) -> u64 {
        self.sent_bytes - self.settled_bytes
    }

    /// Whether the sender had nothing to send lately.
    pub fn is_app_limited(&self) -> bool {
        self.app_limited_until.is_some()
    }

    /// Packets that were sent so far: the number of the next one.
    pub fn sent_packets(&self) -> u64 {
        self.sent
    }

    /// Packets delivered so far.
    pub fn delivered_packets(&self) -> u64 {
        self.delivered
    }

    /// Packets presumed lost so far.
    pub fn lost_packets(&self) -> u64 {
        self.lost
    }

    /// Packets that a receiver of packets in order has discarded so far.
    pub fn discarded_packets(&self) -> u64 {
        self.discarded
    }

    /// Packets were given to the device at once.
    pub fn on_sent(&mut self, now: Instant, packets: u64, bytes: u64) {
        if packets == 0 {
            return;
        }
        if self.in_flight_packets() == 0 {
            // Nothing was measured while nothing was in flight.
            (self.base_sent_at, self.delivered_at) = (now, now);
        }
        if self.train.is_over {
            let bytes_before = self.sent_bytes - self.train.sent_bytes;
            let (first, sent_bytes) = (self.sent, self.sent_bytes);
            self.train = Train { first, sent_bytes, bytes_before, ..Train::default() };
        }
        self.sent += packets;
        self.sent_bytes += bytes;
        if self.bursts.len() == BURSTS_MAX {
            self.merge();
        }
        self.bursts.push_back(Burst {
            end: self.sent,
            packets,
            bytes_through: self.sent_bytes,
            bytes,
            sent_at: now,
            left_at: Instant::FAR_FUTURE,
            base_sent_at: self.base_sent_at,
            delivered_bytes: self.delivered_bytes,
            delivered_at: self.delivered_at,
            in_flight_bytes: self.in_flight_bytes(),
            in_flight_packets: self.in_flight_packets(),
            lost: self.lost,
            is_app_limited: self.app_limited_until.is_some(),
        });
    }

    /// Packets have left the device, in the order of sending.
    pub fn on_left(&mut self, now: Instant, packets: u64) {
        self.left = self.left.saturating_add(packets).min(self.sent);
        let first = self.bursts.partition_point(|burst| burst.left_at != Instant::FAR_FUTURE);
        for burst in self.bursts.range_mut(first..).take_while(|burst| burst.end <= self.left) {
            burst.left_at = now;
        }
    }

    /// The sender could have sent more, and had nothing to send.
    pub fn on_app_limited(&mut self) {
        self.app_limited_until = Some((self.delivered_bytes + self.in_flight_bytes()).max(1));
        self.train.is_over = true;
    }

    /// The receiver has reported. What left the device longer ago than `horizon` is settled with that: it was delivered,
    /// or it is lost.
    pub fn on_report(&mut self, now: Instant, arrivals: &Arrivals, horizon: Duration) -> Sample {
        let before = self.counts();
        let named = arrivals.newest.filter(|number| *number < self.sent);
        let newest = named.filter(|number| *number >= self.newest_end);
        let burst = newest.and_then(|number| self.burst_of(number));
        let held = u64::try_from(arrivals.held.as_nanos()).unwrap_or(u64::MAX);
        let arrived_at = Instant::from_nanos(now.as_nanos().saturating_sub(held));
        let arrived = self.without_duplicates(arrivals.packets, named, arrived_at);
        // Never less than known, for an old report; never more than was sent, for a wrong one.
        self.delivered = arrived.clamp(self.delivered, (self.sent - self.discarded).max(self.delivered));
        self.marked = arrivals.marked.clamp(self.marked, self.delivered);
        self.newest_end = match (named, newest) {
            (_, Some(number)) => number + 1,
            // Others have overtaken it.
            (Some(_), None) => self.newest_end.max(self.delivered),
            // Which ones arrived is not known; that none more are missing is.
            (None, None) => (self.newest_end + self.delivered - before.delivered).min(self.sent),
        };
        self.count_lost(now, horizon);
        self.settle(before.delivered);
        let mut sample = self.sample(now, &before);
        // A receiver that claims to have held it for longer than it was away measures nothing.
        if let Some(burst) = burst.filter(|burst| arrived_at > burst.sent_at) {
            sample.round_trip = Some(arrived_at - burst.sent_at);
            self.measure(&mut sample, &burst, arrived_at);
            sample.train_rate = self.measure_train(&burst, arrived_at);
        }
        sample
    }

    /// The newest packet, of this burst, has arrived: how fast its train arrives.
    fn measure_train(&mut self, burst: &Burst, arrived_at: Instant) -> Option<u64> {
        if burst.end <= self.train.first {
            return None;
        }
        let &mut (base_sent_at, base_arrived_at, base_bytes) =
            self.train.base.get_or_insert((burst.sent_at, arrived_at, self.delivered_bytes));
        let bytes = self.delivered_bytes.saturating_sub(base_bytes);
        let took = arrived_at.saturating_since(base_arrived_at).max(burst.sent_at - base_sent_at);
        let is_long = bytes as f64 >= TRAIN_PACKETS_MIN * self.packet_bytes;
        (is_long && !took.is_zero()).then(|| (bytes as f64 * 8.0 / took.as_secs_f64()) as u64)
    }

    fn counts(&self) -> Counts {
        let Sampler { delivered, delivered_bytes, lost, discarded, marked, .. } = *self;
        Counts { delivered, delivered_bytes, lost, discarded, marked }
    }

    /// What has changed since then.
    fn sample(&mut self, now: Instant, before: &Counts) -> Sample {
        if self.app_limited_until.is_some_and(|until| self.delivered_bytes > until) {
            self.app_limited_until = None;
        }
        Sample {
            now,
            round_trip: None,
            sent_at: self.base_sent_at,
            delivery_rate: None,
            rate_interval: Duration::ZERO,
            is_app_limited: self.app_limited_until.is_some(),
            train_rate: None,
            train_bytes: self.train.bytes_before.max(self.sent_bytes - self.train.sent_bytes),
            delivered_packets: self.delivered - before.delivered,
            delivered_bytes: self.delivered_bytes.saturating_sub(before.delivered_bytes),
            delivered_bytes_total: self.delivered_bytes,
            delivered_bytes_at_sending: 0,
            lost_packets: self.lost.saturating_sub(before.lost),
            discarded_packets: self.discarded - before.discarded,
            found_packets: before.lost.saturating_sub(self.lost),
            lost_packets_since_sending: 0,
            marked_packets: self.marked - before.marked,
            in_flight_bytes_at_sending: 0,
            in_flight_packets_at_sending: 0,
            in_flight_bytes: self.in_flight_bytes(),
        }
    }

    /// The newest packet, of this burst, has arrived: how fast packets were delivered since it was sent.
    fn measure(&mut self, sample: &mut Sample, burst: &Burst, arrived_at: Instant) {
        let sending = burst.sent_at - burst.base_sent_at;
        let arriving = arrived_at - burst.delivered_at;
        let took = sending.max(arriving);
        let bytes = self.delivered_bytes.saturating_sub(burst.delivered_bytes);
        sample.rate_interval = took;
        sample.delivery_rate = (!took.is_zero() && bytes > 0).then(|| (bytes as f64 * 8.0 / took.as_secs_f64()) as u64);
        self.describe_sending(sample, burst);
        self.base_sent_at = burst.sent_at;
        self.delivered_at = arrived_at.max(self.delivered_at);
    }

    /// How it was when the packet was sent that the sample is about.
    fn describe_sending(&self, sample: &mut Sample, burst: &Burst) {
        sample.sent_at = burst.sent_at;
        sample.is_app_limited = burst.is_app_limited;
        sample.delivered_bytes_at_sending = burst.delivered_bytes;
        sample.lost_packets_since_sending = self.lost.saturating_sub(burst.lost);
        sample.in_flight_bytes_at_sending = burst.in_flight_bytes;
        sample.in_flight_packets_at_sending = burst.in_flight_packets;
    }

    /// How many packets have arrived, of those that were sent. A network that duplicates packets would otherwise make
    /// losses invisible, and what is in flight vanish.
    fn without_duplicates(&mut self, arrived: u64, named: Option<u64>, arrived_at: Instant) -> u64 {
        let possible = match named {
            // The one that arrived last need not be the newest.
            Some(number) => {
                let overtaken = self.in_flight_packets() / 2 + REORDERING_PACKETS;
                let in_order = self.newest_end.max(number + 1) + overtaken;
                self.sent.min(in_order.max(self.sent_in_time(number, arrived_at)))
            }
            None => self.sent,
        };
        let most = possible.max(self.delivered).saturating_add(self.duplicates);
        // Not from a report that is absurd, or nothing would count any more.
        let more = arrived.saturating_sub(most);
        if more <= self.in_flight_packets() {
            self.duplicates += more;
        }
        arrived.saturating_sub(self.duplicates)
    }

    /// Packets that were sent early enough to arrive before this one did, however they were reordered: the path takes no
    /// longer for them than it has taken lately.
    fn sent_in_time(&mut self, number: u64, arrived_at: Instant) -> u64 {
        let measured = self.burst_of(number).filter(|burst| arrived_at > burst.sent_at);
        if let Some(burst) = measured {
            self.round_trip_min.measured(arrived_at, arrived_at - burst.sent_at);
        }
        let Some(least) = self.round_trip_min.get() else { return 0 };
        let in_time = self.bursts.partition_point(|burst| burst.sent_at + least <= arrived_at);
        in_time.checked_sub(1).map_or(0, |last| self.bursts[last].end)
    }

    fn burst_of(&self, number: u64) -> Option<Burst> {
        let index = self.bursts.partition_point(|burst| burst.end <= number);
        self.bursts.get(index).copied().filter(|burst| burst.end - burst.packets <= number)
    }

    /// Nothing was heard for so long that what left the device longer ago than `horizon` is presumed lost.
    pub fn on_timeout(&mut self, now: Instant, horizon: Duration) -> Sample {
        let known = Arrivals { packets: self.delivered, marked: self.marked, newest: None, held: Duration::ZERO };
        self.on_report(now, &known, horizon)
    }

    fn write_off(&mut self, now: Instant, horizon: Duration) {
        let has_left_long_ago = |burst: &Burst| burst.left_at != Instant::FAR_FUTURE && now >= burst.left_at + horizon;
        let old = self.bursts.partition_point(has_left_long_ago);
        let old_end = old.checked_sub(1).map_or(0, |index| self.bursts[index].end);
        self.written_off_end = self.written_off_end.max(old_end);
    }

    /// Counts what is presumed lost now.
    fn count_lost(&mut self, now: Instant, horizon: Duration) {
        self.write_off(now, horizon);
        let missing = self.newest_end.saturating_sub(self.delivered + self.discarded);
        let written_off = self.written_off_end.saturating_sub(self.delivered + self.discarded);
        // What has arrived after all is found.
        self.lost = self.lost.min(missing.max(written_off)).max(written_off);
        if self.newest_end >= self.missing_at.0 + REORDERING_PACKETS {
            self.lost = self.lost.max(self.missing_at.1.min(missing));
            self.missing_at = (self.newest_end, missing);
        } else {
            self.missing_at.1 = self.missing_at.1.min(missing);
        }
    }

    /// Counts the bytes of what is delivered, discarded or lost, and forgets bursts that no report can name any more.
    fn settle(&mut self, delivered_before: u64) {
        let settled = self.delivered + self.lost + self.discarded;
        let index = self.bursts.partition_point(|burst| burst.end <= settled);
        let bytes_through = |burst: &Burst, ahead: u64| {
            // Packets of one burst count as equally long.
            let ahead_bytes =
                u128::from(burst.bytes) * u128::from(ahead.min(burst.packets)) / u128::from(burst.packets);
            burst.bytes_through - ahead_bytes as u64
        };
        let settled_bytes = match (self.bursts.get(index), index.checked_sub(1).and_then(|last| self.bursts.get(last)))
        {
            (Some(burst), _) => bytes_through(burst, burst.end - settled),
            (None, Some(last)) => last.bytes_through,
            (None, None) => self.settled_bytes,
        };
        let newly_settled = settled.saturating_sub(self.settled);
        let newly_settled_bytes = settled_bytes.saturating_sub(self.settled_bytes);
        if newly_settled > 0 {
            self.packet_bytes = newly_settled_bytes as f64 / newly_settled as f64;
        }
        self.delivered_bytes += ((self.delivered - delivered_before) as f64 * self.packet_bytes) as u64;
        self.settled = self.settled.max(settled);
        self.settled_bytes = self.settled_bytes.max(settled_bytes);
        // One that was written off may still be named by a report that was late.
        let named_end = settled.min(self.newest_end);
        while self.bursts.front().is_some_and(|burst| burst.end <= named_end) {
            self.bursts.pop_front();
        }
        if self.bursts.len() <= 1 && self.bursts.capacity() > BURSTS_AT_REST {
            // A flow at rest takes no room for what was in flight once.
            self.bursts.shrink_to(BURSTS_AT_REST);
        }
    }

    /// Makes room by merging each burst with its neighbor.
    fn merge(&mut self) {
        let bursts: Vec<Burst> = self.bursts.drain(..).collect();
        for pair in bursts.chunks(2) {
            let mut burst = pair[0];
            if let Some(next) = pair.get(1) {
                (burst.end, burst.bytes_through, burst.left_at) = (next.end, next.bytes_through, next.left_at);
                burst.packets += next.packets;
                burst.bytes += next.bytes;
            }
            self.bursts.push_back(burst);
        }
    }
}
