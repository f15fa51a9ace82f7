//! Bounded completion: how much of a message has arrived when time is up.
//!
//! Every packet is sent once. By the deadline (counted at the receiver, from when the sender begins) the first n =
//! min(M, (deadline − RTT/2)/τ) packets can have arrived, and each did unless it was lost: a binomial number. In bursts
//! its variance is larger by (1 + λ)/(1 − λ), where λ is how much of the chain's state is left one packet later, and of
//! what is lost in the bad state.

use crate::link::{Link, PlanError, WRITE_OVERHEAD_BYTES};
use crate::losses::ChunkChain;
use crate::probability::{binomial, normal_quantile};

/// Shares of a message's bytes that have arrived at a deadline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrived {
    /// In the mean.
    pub mean: f64,
    /// Half of the messages have at least this.
    pub p50: f64,
    /// 99 of 100 messages have at least this.
    pub p99: f64,
    /// 999 of 1000 messages have at least this.
    pub p999: f64,
    /// Probability that nothing is missing.
    pub all: f64,
}

/// Up to this many packets are counted exactly.
const COUNTED_MAX: u64 = 1 << 22;

/// What has arrived of a message `deadline_seconds` after the sender began, when nothing is sent twice.
pub fn arrived_by(link: &Link, message_bytes: u64, deadline_seconds: f64) -> Result<Arrived, PlanError> {
    link.check(message_bytes, link.packet_bytes)?;
    let packets = message_bytes.div_ceil(u64::from(link.packet_bytes));
    let packet_seconds = link.wire_seconds(message_bytes, WRITE_OVERHEAD_BYTES) / packets as f64;
    let in_time = (deadline_seconds - link.round_trip_seconds / 2.0) / packet_seconds * (1.0 + 1e-12);
    let sent = (in_time.max(0.0) as u64).min(packets);
    if sent == 0 {
        return Ok(Arrived { mean: 0.0, p50: 0.0, p99: 0.0, p999: 0.0, all: 0.0 });
    }
    let (_, state_loss, bad) = link.loss.chain();
    let chain = ChunkChain::new(link, link.packet_bytes)?;
    let loss = chain.loss;
    let share = |count: f64| (count / packets as f64).clamp(0.0, sent as f64 / packets as f64);
    let all = match sent == packets {
        true => chain.whole.power(sent).apply(chain.start).iter().sum(),
        false => 0.0,
    };
    let mean = sent as f64 * (1.0 - loss);
    let [p50, p99, p999] = if chain.is_independent && sent <= COUNTED_MAX {
        let (first, lost) = binomial(sent, loss);
        [0.5, 0.99, 0.999].map(|wanted| {
            let mut sum = 0.0;
            let index = lost.iter().position(|p| {
                sum += p;
                sum >= wanted - 1e-12
            });
            share((sent - first) as f64 - index.unwrap_or(lost.len()) as f64)
        })
    } else {
        let left = match link.loss {
            crate::link::Loss::GilbertElliott { p_good_to_bad, p_bad_to_good, .. } => {
                1.0 - p_good_to_bad - p_bad_to_good
            }
            crate::link::Loss::Independent(_) => 0.0,
        };
        // Of the variance of one packet, the part that comes from the state is seen again by the next.
        let from_state = bad * (1.0 - bad) * (state_loss[1] - state_loss[0]).powi(2);
        let variance = sent as f64 * (loss * (1.0 - loss) + 2.0 * from_state * left / (1.0 - left));
        [0.5, 0.99, 0.999].map(|wanted| share(mean - normal_quantile(wanted) * variance.max(0.0).sqrt()))
    };
    Ok(Arrived { mean: share(mean), p50, p99, p999, all })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Loss;

    #[test]
    fn what_has_been_sent_and_not_lost_is_there() {
        let link = Link::new(4160.0 * 8.0 * 1000.0, 0.02, Loss::Independent(0.1));
        let message = 4096 * 1000;
        let arrived = arrived_by(&link, message, 2.0).expect("a link");
        assert!((arrived.mean - 0.9).abs() < 1e-12 && arrived.p999 < arrived.p99 && arrived.p99 < arrived.p50);
        assert!((arrived.p99 - (0.9 - 2.326 * (0.09_f64 / 1000.0).sqrt())).abs() < 2e-3, "{arrived:?}");
        let half = arrived_by(&link, message, 0.51).expect("a link");
        assert!((half.mean - 0.45).abs() < 1e-9 && half.all == 0.0, "{half:?}");
        assert_eq!(arrived_by(&link, message, 0.01).expect("a link").mean, 0.0);
        let lossless = Link { loss: Loss::Independent(0.0), ..link };
        assert_eq!(arrived_by(&lossless, message, 2.0).expect("a link").p999, 1.0);
        assert_eq!(arrived_by(&lossless, message, 2.0).expect("a link").all, 1.0);
    }
}
