//! What the SDR-RDMA paper's formulas give for the mean completion time: section 4.2, appendix A (selective repeat) and
//! appendix B (the probability that a submessage can be decoded).
//!
//! The formulas know neither headers, nor acknowledgements that are lost, nor timers that are late. Selective repeat
//! with negative acknowledgements is, as in the paper, a timeout of one round trip. One thing is kept that the paper's
//! appendix drops: a number of timeouts is a whole number.

use longhaul_coding::{Code, CodeKind};
use longhaul_reliable::NamedScheme;

use super::{CompletionOptions, CompletionScheme, MTU};

/// Timeouts in round trips: `sr:rto`, and what `ec` falls back to.
const TIMEOUT_ROUND_TRIPS: f64 = 3.0;
/// Timeouts in round trips with negative acknowledgements.
const NEGATIVE_ROUND_TRIPS: f64 = 1.0;
/// Round trips that an erasure receiver waits before it asks (β).
const FALLBACK_ROUND_TRIPS: f64 = 1.0;
/// Parts of a timeout that are summed up one by one.
const STEPS_A_TIMEOUT: f64 = 4096.0;
/// What is less probable counts for nothing.
const TAIL_MIN: f64 = 1e-9;

/// The mean slowdown of a message; none for schemes that the paper has no formula for, and none in bursts.
pub fn mean_slowdown(options: &CompletionOptions) -> Option<f64> {
    if options.burst_packets.is_some() {
        return None;
    }
    let model = Model::of(options);
    let chunks = (options.message_bytes as f64 / f64::from(options.chunk_bytes)).ceil();
    let seconds = match options.scheme {
        CompletionScheme::Named(NamedScheme::SelectiveRepeat) => model.selective_repeat(chunks, TIMEOUT_ROUND_TRIPS),
        CompletionScheme::Named(NamedScheme::NegativeAcknowledgements) => {
            model.selective_repeat(chunks, NEGATIVE_ROUND_TRIPS)
        }
        CompletionScheme::Named(NamedScheme::Erasure(code)) => model.erasure(chunks, code),
        _ => return None,
    };
    Some(seconds / options.least().as_secs_f64())
}

/// The probability that a submessage can be decoded (appendix B), when each chunk is lost with this probability.
pub fn decoding_probability(code: Code, loss: f64) -> f64 {
    let (data, parity) = (code.data_chunks() as i32, code.parity_chunks() as i32);
    if code.kind() == CodeKind::Xor {
        let group = f64::from(data) / f64::from(parity) + 1.0;
        let at_most_one = (1.0 - loss).powf(group) + group * loss * (1.0 - loss).powf(group - 1.0);
        return at_most_one.powi(parity);
    }
    let all = data + parity;
    let mut choices = 1.0;
    let mut probability = 0.0;
    for lost in 0..=parity {
        probability += choices * loss.powi(lost) * (1.0 - loss).powi(all - lost);
        choices *= f64::from(all - lost) / f64::from(lost + 1);
    }
    probability
}

/// The probability that a chunk is lost: one packet of it is enough.
pub(super) fn chunk_loss(options: &CompletionOptions) -> f64 {
    let packets = (f64::from(options.chunk_bytes) / f64::from(MTU.byte_count())).max(1.0);
    1.0 - (1.0 - options.loss).powf(packets)
}

/// The link as the formulas see it; times in seconds.
struct Model {
    /// What a chunk takes to be sent.
    injection: f64,
    round_trip: f64,
    chunk_loss: f64,
}

impl Model {
    fn of(options: &CompletionOptions) -> Self {
        Model {
            injection: 8.0 * f64::from(options.chunk_bytes) / options.rate_bits_per_second as f64,
            round_trip: options.round_trip.as_secs_f64(),
            chunk_loss: chunk_loss(options),
        }
    }

    /// Appendix A: the mean of the maximum over all chunks, each of which takes a geometric number of timeouts, and a
    /// round trip.
    fn selective_repeat(&self, chunks: f64, timeout_round_trips: f64) -> f64 {
        let sent = chunks * self.injection;
        // Until the last chunk has been sent for the first time, nothing has ended.
        let mut mean = sent;
        let overhead = timeout_round_trips * self.round_trip + self.injection;
        let step = overhead / STEPS_A_TIMEOUT;
        let sent_by = |time: f64| (time / self.injection).clamp(0.0, chunks);
        let mut time = sent + step / 2.0;
        loop {
            // Chunks that have had this many timeouts by now, and each of them lost.
            let (mut all_there, mut timeouts) = (0.0, 0.0);
            while time - timeouts * overhead > 0.0 {
                let count = sent_by(time - timeouts * overhead) - sent_by(time - (timeouts + 1.0) * overhead);
                timeouts += 1.0;
                all_there += count * (-self.chunk_loss.powf(timeouts)).ln_1p();
            }
            let tail = -all_there.exp_m1();
            mean += tail * step;
            time += step;
            if tail < TAIL_MIN {
                return mean + self.round_trip;
            }
        }
    }

    /// Section 4.2.3: data and parity, a fallback with its probability, and selective repeat of the submessages that
    /// failed.
    fn erasure(&self, chunks: f64, code: Code) -> f64 {
        let submessages = chunks / code.data_chunks() as f64;
        let parity = (chunks * code.parity_chunks() as f64 / code.data_chunks() as f64).ceil();
        // Rounding may have made it a little more than certain.
        let decoded = decoding_probability(code, self.chunk_loss).min(1.0);
        let failures = submessages * (1.0 - decoded);
        let fallback = 1.0 - decoded.powf(submessages);
        (chunks + parity) * self.injection
            + fallback * (1.0 + FALLBACK_ROUND_TRIPS) * self.round_trip
            + self.selective_repeat(failures * code.data_chunks() as f64, TIMEOUT_ROUND_TRIPS)
    }
}

#[cfg(test)]
mod tests {
    use longhaul_time::Duration;
    use rand_chacha::ChaCha8Rng;
    use rand_core::{Rng, SeedableRng};

    use super::*;

    fn options(scheme: &str, loss: f64) -> CompletionOptions {
        CompletionOptions {
            rate_bits_per_second: 400_000_000_000,
            round_trip: Duration::from_millis(25),
            loss,
            burst_packets: None,
            message_bytes: 128 << 20,
            chunk_bytes: 4096,
            scheme: scheme.parse().expect("a scheme"),
            seed: 1,
        }
    }

    fn share(random: &mut impl Rng) -> f64 {
        (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Against the same model played out with dice.
    #[test]
    fn selective_repeat_is_the_mean_of_what_dice_give() {
        for (loss, timeout) in [(1e-2, 3.0), (1e-3, 3.0), (0.2, 1.0)] {
            let model = Model { injection: 1e-5, round_trip: 25e-3, chunk_loss: loss };
            let mut random = ChaCha8Rng::seed_from_u64(7);
            let overhead = timeout * model.round_trip + model.injection;
            let mut sample = || {
                let chunk = |index: i32| {
                    let mut time = f64::from(index + 1) * model.injection;
                    while share(&mut random) < loss {
                        time += overhead;
                    }
                    time
                };
                (0..500).map(chunk).fold(0.0, f64::max) + model.round_trip
            };
            let dice = (0..4000).map(|_| sample()).sum::<f64>() / 4000.0;
            let formula = model.selective_repeat(500.0, timeout);
            assert!((formula / dice - 1.0).abs() < 0.03, "loss {loss}: {formula} and {dice}");
        }
    }

    #[test]
    fn codes_decode_as_often_as_dice_say() {
        let loss = 0.15;
        for code in [Code::mds(8, 4), Code::xor(8, 4)].map(|code| code.expect("a code")) {
            let is_mds = code == Code::mds(8, 4).expect("a code");
            let mut random = ChaCha8Rng::seed_from_u64(3);
            let mut decodes = || {
                let lost: Vec<bool> = (0..12).map(|_| share(&mut random) < loss).collect();
                match is_mds {
                    true => lost.iter().filter(|lost| **lost).count() <= 4,
                    false => (0..4).all(|group| lost.iter().skip(group).step_by(4).filter(|lost| **lost).count() <= 1),
                }
            };
            let dice = (0..20_000).filter(|_| decodes()).count() as f64 / 20_000.0;
            let formula = decoding_probability(code, loss);
            assert!((formula - dice).abs() < 0.015, "{code}: {formula} and {dice}");
        }
    }

    /// Figures from a Monte Carlo run of the paper's section 4.2 with 2000 samples, which was written without this
    /// code.
    #[test]
    fn the_paper_s_link() {
        for (scheme, expected) in [
            ("sr:rto", [1.75, 3.57, 3.79, 6.36]),
            ("sr:nack", [1.24, 1.85, 1.93, 2.77]),
            ("ec:mds:32,8", [1.02, 1.02, 1.02, 1.02]),
        ] {
            for (loss, expected) in [1e-5, 1e-4, 1e-3, 1e-2].into_iter().zip(expected) {
                let slowdown = mean_slowdown(&options(scheme, loss)).expect("the paper has it");
                assert!(
                    (slowdown / expected - 1.0).abs() < 0.03,
                    "{scheme} at {loss}: {slowdown}, expected {expected}"
                );
            }
        }
        let xor = |loss| mean_slowdown(&options("ec:xor:32,8", loss)).expect("the paper has it");
        assert!(xor(1e-4) < 1.03 && (1.1..1.25).contains(&xor(1e-3)) && (4.5..6.0).contains(&xor(1e-2)));
        assert!((mean_slowdown(&options("sr:rto", 0.0)).expect("it has") - 1.0).abs() < 1e-6);
        assert_eq!(mean_slowdown(&options("rc", 1e-3)), None);
    }
}
