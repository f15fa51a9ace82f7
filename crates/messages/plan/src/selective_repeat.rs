//! Selective repeat: when every packet has come through.
//!
//! Packets, not chunks: the receiver reports packets and the sender repeats packets, so the size of a chunk does not
//! matter here. The paper's formula has chunks in their place; where it is compared with, a chunk is a packet.
//!
//! **Small messages.** Packet i of M leaves at i·t, and each time that it is lost it leaves again O later: O is the
//! timeout, or the time until the receiver has reported it. It is there once it has been lost j times and not again, at
//! i·t + j·(O + t). The paper's formula follows: within time q, packet i can have been sent 1 + ⌊(q − i·t)/(O + t)⌋
//! times, and
//!
//! ```text
//!   P(all there by q) = Π (1 − p^(tries of packet i by q))
//! ```
//!
//! Packets with the same number of tries are counted, not walked: n₀(q) packets have left at least once by q, n₁(q) of
//! them twice, and so on, and the product has one factor (1 − p^(j+1))^(nⱼ − nⱼ₊₁) for each number of tries, a few
//! dozen for 2 TiB.
//!
//! **Large messages**, for which the paper's formula is a lower bound only. Our protocol queues the whole message and
//! what is to be repeated behind it, in the order in which it becomes due. As long as the link is busy, the n-th
//! transmission leaves at n·t; of the transmissions before time x a share p is lost, whichever they were; so what left
//! at x and was lost has M + p·x/t transmissions before it, and leaves again at
//!
//! ```text
//!   φ(x) = max(x + O, M·t + p·(x − t)) + t
//! ```
//!
//! and after the busy time, when the first term is the larger one, O later as before. φ is all there is to
//! serialisation. It grows with x, so the number of packets with j + 1 tries by q is φ⁻¹ applied j times to q, over t.
//! The number of losses before a transmission deviates by √(p·M) packets: where these are more than a thousandth of a
//! timeout, the whole is a mean over messages with more and with fewer losses.
//!
//! **Negative acknowledgements.** A gap shows when 65 later packets have come; it is reported within 1/32 of a round
//! trip, so O is a round trip, that, and 65·t the first time. The last 65 packets have nobody behind them: they are
//! reported when nothing has come for a quarter of a round trip, all at once, and leave again one after the other.
//!
//! **Bursts.** First tries are lost in runs; repeats come much later than a burst is long. With sⱼ the probability that
//! one of j repeats comes through, P(all there) is the product of the matrices `whole + sⱼ·lost` over all packets (see
//! [`crate::losses`]): equal ones are powers. What was lost together is repeated together, which
//! [`crate::losses::ChunkChain::missing_after`] accounts for.

use crate::distribution::Distribution;
use crate::losses::ChunkChain;
use crate::matrix::Matrix;
use crate::scheme::{OVERTAKING_PACKETS, Timers};

/// A message that is sent with selective repeat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelectiveRepeat {
    pub(crate) chain: ChunkChain,
    pub(crate) packets: u64,
    /// Time on the wire of a packet.
    pub(crate) packet_seconds: f64,
    pub(crate) delays: Delays,
    pub(crate) round_trip: f64,
    /// Share of what was sent that was lost, which is what repeats wait behind: the loss, or its outcome in one
    /// message.
    pub(crate) lost_share: f64,
}

/// Numbers of losses among the last packets that are less likely are taken for impossible.
const LATE_LOSSES_MIN: f64 = 1e-13;

/// Standard deviations and weights.
const NORMAL_RULE: [(f64, f64); 5] = [
    (0.0, 0.533_333_333_333_333_3),
    (1.355_626_179_974_266, 0.222_075_922_005_612_6),
    (-1.355_626_179_974_266, 0.222_075_922_005_612_6),
    (2.856_970_013_872_806, 0.011_257_411_327_720_7),
    (-2.856_970_013_872_806, 0.011_257_411_327_720_7),
];
/// How much of a timeout the deviation of a queue must be to be looked at.
const QUEUE_SHOWN_MIN: f64 = 1e-3;
/// And how much of the whole time.
const QUEUE_SHARE_MIN: f64 = 1e-4;

/// How long after a packet left it is queued again, if it was lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delays {
    /// The first time.
    pub(crate) first: f64,
    /// Later.
    pub(crate) later: f64,
    /// The last packets of a message, how many there are and how long after the message's end they are queued again the
    /// first time.
    pub(crate) last: Option<(u64, f64)>,
}

impl Delays {
    pub(crate) fn timeouts(timers: &Timers) -> Self {
        Delays { first: timers.timeout, later: timers.timeout, last: None }
    }

    pub(crate) fn negative(timers: &Timers, packet_seconds: f64) -> Self {
        let reported = timers.round_trip + timers.report_delay;
        let overtaken = OVERTAKING_PACKETS as f64 * packet_seconds;
        Delays {
            first: reported + overtaken,
            later: reported,
            last: Some((OVERTAKING_PACKETS, timers.round_trip + timers.silence)),
        }
    }
}

impl SelectiveRepeat {
    /// Until the receiver has everything and its report arrives half a round trip later, without loss of reports.
    pub(crate) fn distribution(&self) -> Distribution {
        let end = self.end();
        let lossless = end + self.round_trip;
        let loss = self.chain.loss;
        if loss == 0.0 {
            return Distribution::constant(lossless);
        }
        let late = self.late_losses();
        let mut times = vec![end];
        // First and last packet of each number of tries, and those at the end that are reported otherwise.
        let (mut first, mut last) = (self.packet_seconds, self.packet_seconds * self.early_packets() as f64);
        let mut silent = self.repeated_last();
        for tries in 0_u32.. {
            let next = |x| if tries == 0 { self.repeated(x) } else { self.repeated_again(x) };
            (first, last) = (next(first), next(last));
            if tries > 0 {
                silent = self.repeated_again(silent);
            }
            // Those at the end leave one after the other.
            let each = (0..late[0].len().max(1)).map(|place| silent + place as f64 * self.packet_seconds);
            times.extend([first, last].into_iter().chain(each).filter(|time| *time > end));
            if self.packets as f64 * loss * self.chain.missing_after(tries) < 1e-10 {
                break;
            }
        }
        let moved = times.into_iter().map(|time| time + self.round_trip).collect();
        let queues = self.queues();
        Distribution::of_tail(moved, |seconds| {
            let tail =
                |(message, weight): &(SelectiveRepeat, f64)| weight * message.tail(seconds - self.round_trip, &late);
            queues.iter().map(tail).sum()
        })
    }

    /// The same message with fewer and with more losses in front of repeats, and how likely each is: its number of
    /// losses is normal, and this is Gauss and Hermite's rule. Itself alone where nothing queues, or so little that
    /// nobody sees it.
    fn queues(&self) -> Vec<(SelectiveRepeat, f64)> {
        let count = self.end() / self.packet_seconds;
        let in_runs = 2.0 * self.chain.mean_run() - 1.0;
        let deviation = (self.chain.loss * (1.0 - self.chain.loss) * in_runs / count).sqrt();
        let is_queueing = self.delays.first < self.end();
        let is_shown = deviation * self.end() > QUEUE_SHOWN_MIN * self.delays.later && deviation > QUEUE_SHARE_MIN;
        if !is_queueing || !is_shown {
            return vec![(*self, 1.0)];
        }
        let with = |&(steps, weight): &(f64, f64)| {
            let lost_share = (self.chain.loss + steps * deviation).clamp(0.05 * self.chain.loss, 0.99);
            (SelectiveRepeat { lost_share, ..*self }, weight)
        };
        NORMAL_RULE.iter().map(with).collect()
    }

    fn end(&self) -> f64 {
        self.packets as f64 * self.packet_seconds
    }

    fn late_packets(&self) -> u64 {
        self.delays.last.map_or(0, |(count, _)| count.min(self.packets))
    }

    fn early_packets(&self) -> u64 {
        self.packets - self.late_packets()
    }

    /// φ: when what left at `x` and was lost leaves again.
    fn later(&self, x: f64, delay: f64) -> f64 {
        let end = self.end();
        let before = x - self.packet_seconds;
        (x + delay).max(end + self.lost_share * before) + self.packet_seconds
    }

    fn repeated(&self, x: f64) -> f64 {
        self.later(x, self.delays.first)
    }

    fn repeated_again(&self, x: f64) -> f64 {
        self.later(x, self.delays.later)
    }

    /// When the first of the last packets that were lost leaves again; the others follow one by one.
    fn repeated_last(&self) -> f64 {
        let delay = self.delays.last.map_or(0.0, |(_, delay)| delay);
        self.later(self.end(), delay)
    }

    /// φ⁻¹.
    fn earlier(&self, y: f64, delay: f64) -> f64 {
        let (y, end) = (y - self.packet_seconds, self.end());
        let before = (y - end) / self.lost_share;
        (y - delay).min(before + self.packet_seconds)
    }

    /// Probability of each number of losses among the last packets, by the state before them. As many as are likely.
    fn late_losses(&self) -> [Vec<f64>; 2] {
        [[1.0, 0.0], [0.0, 1.0]].map(|start| {
            let mut counts = vec![start];
            for _ in 0..self.late_packets() {
                counts = self.chain.step(&counts);
                while counts.len() > 2 && counts.last().is_some_and(|row| row[0] + row[1] < LATE_LOSSES_MIN) {
                    counts.pop();
                }
            }
            counts.iter().map(|row| row[0] + row[1]).collect()
        })
    }

    /// Probability that all of the last packets are there at `q`, by the state before them: the n-th of those that were
    /// lost leaves n − 1 packets' times after the first.
    fn late_are_there(&self, q: f64, late: &[Vec<f64>; 2]) -> [f64; 2] {
        let q = q * (1.0 + 1e-12);
        let mut repeats = Vec::new();
        let mut time = self.repeated_last();
        while time <= q && repeats.len() < 5000 {
            repeats.push(time);
            time = self.repeated_again(time);
        }
        let mut through = 1.0;
        let mut there = late.each_ref().map(|counts| counts[0]);
        for place in 0..late[0].len().max(late[1].len()) - 1 {
            let behind = place as f64 * self.packet_seconds;
            while repeats.last().is_some_and(|time| time + behind > q) {
                repeats.pop();
            }
            through *= 1.0 - self.chain.missing_after(repeats.len() as u32);
            for (there, counts) in there.iter_mut().zip(late) {
                *there += through * counts.get(place + 1).copied().unwrap_or(0.0);
            }
        }
        there
    }

    /// Probability that something is missing at `q`.
    fn tail(&self, q: f64, late: &[Vec<f64>; 2]) -> f64 {
        if q < self.end() * (1.0 - 1e-11) {
            return 1.0;
        }
        // How many of the early packets have left at least j + 1 times: packets are numbered from 1, and packet i first
        // leaves at i·t.
        let early = self.early_packets();
        let count = |time: f64| ((time / self.packet_seconds + 1e-6).floor().max(0.0) as u64).min(early);
        let mut tries = vec![early];
        let mut time = q;
        loop {
            let again = self.earlier(time, self.delays.later);
            let left = count(self.earlier(time, self.delays.first));
            // Packets with one try more: all later repeats undone, then the first one.
            tries.push(left);
            time = again;
            if left == 0 {
                break;
            }
        }
        self.tail_of(&tries, self.late_are_there(q, late))
    }

    /// From the number of early packets with at least 1, 2, 3, … tries, and the probability that the last packets are
    /// there.
    fn tail_of(&self, tries: &[u64], late_there: [f64; 2]) -> f64 {
        // Packets at the front have had the most tries.
        let counts = tries.windows(2).enumerate().map(|(repeats, pair)| (repeats as u32, pair[0] - pair[1]));
        if self.chain.is_independent {
            let loss = self.chain.loss;
            let ln = |repeats: u32, count: u64| match count {
                0 => 0.0,
                count => count as f64 * (-loss * self.chain.missing_after(repeats)).ln_1p(),
            };
            let early = -f64::exp_m1(counts.map(|(repeats, count)| ln(repeats, count)).sum::<f64>());
            // 1 − (1 − early)·late, without taking nearly 1 from 1 more often than needed.
            return early + (1.0 - early) * (1.0 - late_there[0]).max(0.0);
        }
        let factor = |repeats: u32| self.chain.whole + self.chain.lost.scaled(1.0 - self.chain.missing_after(repeats));
        let ordered: Vec<(u32, u64)> = counts.collect();
        let product = ordered
            .iter()
            .rev()
            .fold(Matrix::IDENTITY, |product, &(repeats, count)| product * factor(repeats).power(count));
        let before = product.apply(self.chain.start);
        (1.0 - before[0] * late_there[0] - before[1] * late_there[1]).max(0.0)
    }

    /// Mean share of packets that are sent again.
    pub(crate) fn repeated_share(&self) -> f64 {
        let again = (0..5000).map(|repeats| self.chain.missing_after(repeats));
        self.chain.loss * again.take_while(|share| *share > 1e-12).sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Link, Loss};

    fn message(loss: Loss, packets: u64, negative: bool) -> SelectiveRepeat {
        let link = Link::new(8.0 * 4096.0 * 1e6, 0.025, loss);
        let timers = Timers::new(0.025);
        let packet_seconds = 1e-6;
        let delays = if negative { Delays::negative(&timers, packet_seconds) } else { Delays::timeouts(&timers) };
        let chain = ChunkChain::new(&link, 4096).expect("a chain");
        SelectiveRepeat { chain, packets, packet_seconds, delays, round_trip: 0.025, lost_share: chain.loss }
    }

    /// One packet: the paper's geometric distribution.
    #[test]
    fn one_packet() {
        let distribution = message(Loss::Independent(0.1), 1, false).distribution();
        let step = 0.075 + 1e-6;
        assert!((distribution.mean() - (0.025 + 1e-6 + step / 9.0)).abs() < 1e-6, "{}", distribution.mean());
        assert!((distribution.quantile(0.99) - (0.025 + 1e-6 + step)).abs() < 1e-9);
        assert!((distribution.cdf(0.05) - 0.9).abs() < 1e-9 && (distribution.cdf(0.11) - 0.99).abs() < 1e-9);
    }

    /// Packet by packet, as the paper's product.
    #[test]
    fn counting_is_walking() {
        let message = message(Loss::Independent(0.01), 3000, false);
        let distribution = message.distribution();
        for q in [0.004, 0.0761, 0.0775, 0.079, 0.15105, 0.152, 0.154, 0.2271] {
            let product: f64 = (1..=3000)
                .map(|i| {
                    let tries = 1 + ((q - f64::from(i) * 1e-6) / (0.075 + 1e-6) + 1e-9).floor() as i32;
                    1.0 - 0.01_f64.powi(tries)
                })
                .product();
            let cdf = distribution.cdf(q + 0.025);
            assert!((cdf - product).abs() < 3e-3, "{q}: {cdf} {product}");
        }
    }

    /// In a message that takes longer than a timeout, repeats queue behind it.
    #[test]
    fn repeats_are_serialised() {
        let message = message(Loss::Independent(0.1), 10_000_000, false);
        let least = 10.0 / 0.9;
        let mean = message.distribution().mean();
        assert!((least..least + 0.8).contains(&mean), "{mean}");
    }
}
