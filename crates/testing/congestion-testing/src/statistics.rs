//! What is measured at the bottleneck and behind it, not by the flows.

use longhaul_impair::Counters;
use longhaul_time::{Duration, Instant};

/// Goodput is counted in slices of this.
const SLICE: Duration = Duration::from_millis(50);
/// Queueing delays are counted in steps of a part in 32.
const STEPS: f64 = 32.0;

/// Of one flow.
#[derive(Clone, Debug, Default)]
pub struct FlowStatistics {
    /// Bytes delivered in each slice of time.
    delivered: Vec<u64>,
    /// Packets sent in each slice.
    sent: Vec<u64>,
    /// Packets dropped for want of room in each slice.
    dropped: Vec<u64>,
}

/// Of a run.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// One for each.
    pub flows: Vec<FlowStatistics>,
    /// What became of packets at the bottleneck.
    pub counters: Counters,
    slice: Duration,
    /// How many packets found which queueing delay, in logarithmic steps above a nanosecond.
    delays: Vec<u64>,
}

impl Statistics {
    pub(crate) fn new(flows: usize, lasts: Duration) -> Self {
        // At least a hundred slices, so that short runs in fabrics have some.
        let slice = SLICE.min(lasts / 100);
        let slices = (lasts.as_nanos() / slice.as_nanos().max(1)) as usize + 1;
        let empty = FlowStatistics { delivered: vec![0; slices], sent: vec![0; slices], dropped: vec![0; slices] };
        Statistics { flows: vec![empty; flows], counters: Counters::default(), slice, delays: vec![0; 36 * 32] }
    }

    fn slice_of(&self, at: Instant) -> usize {
        ((at.as_nanos() as u128 / self.slice.as_nanos()) as usize).min(self.flows[0].delivered.len() - 1)
    }

    pub(crate) fn on_sent(&mut self, flow: usize, now: Instant, queueing: Duration) {
        let slice = self.slice_of(now);
        self.flows[flow].sent[slice] += 1;
        let step = (queueing.as_nanos().max(1) as f64).log2() * STEPS;
        let last = self.delays.len() - 1;
        self.delays[(step as usize).min(last)] += 1;
    }

    pub(crate) fn on_dropped(&mut self, flow: usize, now: Instant, is_queue_full: bool) {
        let slice = self.slice_of(now);
        self.flows[flow].dropped[slice] += u64::from(is_queue_full);
    }

    pub(crate) fn on_delivered(&mut self, flow: usize, now: Instant, bytes: u32) {
        let slice = self.slice_of(now);
        self.flows[flow].delivered[slice] += u64::from(bytes);
    }

    fn range(&self, from: Duration, until: Duration) -> std::ops::Range<usize> {
        let slices = self.flows[0].delivered.len() - 1;
        let of = |time: Duration| ((time.as_nanos() / self.slice.as_nanos()) as usize).min(slices);
        of(from)..of(until)
    }

    /// What a flow delivered in that time, in bits per second on the wire.
    pub fn bits_per_second(&self, flow: usize, from: Duration, until: Duration) -> f64 {
        let range = self.range(from, until);
        let time = self.slice.as_secs_f64() * range.len() as f64;
        self.flows[flow].delivered[range].iter().sum::<u64>() as f64 * 8.0 / time
    }

    /// What all flows delivered in that time.
    pub fn total_bits_per_second(&self, from: Duration, until: Duration) -> f64 {
        (0..self.flows.len()).map(|flow| self.bits_per_second(flow, from, until)).sum()
    }

    /// Packets that a flow sent in that time.
    pub fn sent_packets(&self, flow: usize, from: Duration, until: Duration) -> u64 {
        self.flows[flow].sent[self.range(from, until)].iter().sum()
    }

    /// The share of packets of all flows that were dropped for want of room in that time.
    pub fn loss_caused(&self, from: Duration, until: Duration) -> f64 {
        let range = self.range(from, until);
        let sum = |of: fn(&FlowStatistics) -> &Vec<u64>| -> u64 {
            self.flows.iter().map(|flow| of(flow)[range.clone()].iter().sum::<u64>()).sum()
        };
        sum(|flow| &flow.dropped) as f64 / sum(|flow| &flow.sent).max(1) as f64
    }

    /// The queueing delay that this share of packets did not exceed.
    pub fn queueing(&self, share: f64) -> Duration {
        let total: u64 = self.delays.iter().sum();
        let mut left = (total as f64 * share) as u64;
        for (step, count) in self.delays.iter().enumerate() {
            if *count > left {
                return Duration::from_nanos(((step + 1) as f64 / STEPS).exp2() as u64);
            }
            left -= count;
        }
        Duration::ZERO
    }

    /// Jain's index of fairness of the flows in that time.
    pub fn jain(&self, from: Duration, until: Duration) -> f64 {
        let shares: Vec<f64> = (0..self.flows.len()).map(|flow| self.bits_per_second(flow, from, until)).collect();
        jain(&shares)
    }

    /// From `from` on, how long until all flows together deliver `bits_per_second` on average over the five seconds that
    /// follow: shorter averages show single probes. `None` when they never do.
    pub fn averages(&self, bits_per_second: f64, from: Duration) -> Option<Duration> {
        let over = Duration::from_secs(5);
        self.reached(bits_per_second, from, over).map(|at| at.saturating_sub(over))
    }

    /// From `from` on, how long until all flows together have delivered at least `bits_per_second`, over a window of
    /// `over`, for the first time; `None` when they never did.
    pub fn reached(&self, bits_per_second: f64, from: Duration, over: Duration) -> Option<Duration> {
        let width = ((over.as_nanos() / self.slice.as_nanos()) as usize).max(1);
        let range = self.range(from, self.slice * self.flows[0].delivered.len() as u32);
        let total: Vec<u64> = range.map(|slice| self.flows.iter().map(|flow| flow.delivered[slice]).sum()).collect();
        let needed = bits_per_second * self.slice.as_secs_f64() * width as f64 / 8.0;
        let first = total.windows(width).position(|window| window.iter().sum::<u64>() as f64 >= needed)?;
        Some(self.slice * (first + width) as u32)
    }
}

/// Jain's index of fairness: 1 when all are equal, 1/n when one has everything.
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares).max(f64::MIN_POSITIVE)
}
