//! What must hold everywhere: more loss is never faster, more rate never slower, percentiles are in order, extremes
//! have answers.

use longhaul_plan::link::{Link, Loss};
use longhaul_plan::model::Case;
use longhaul_plan::question::Question;
use longhaul_plan::scheme::Scheme;
use proptest::prelude::*;

const SCHEMES: [&str; 7] = ["sr:rto", "sr:nack", "ec:mds:32,8", "ec:xor:32,8", "ec:mds:8,2", "rc", "lowar:32,1"];

fn any_scheme() -> impl Strategy<Value = Scheme> {
    (0..SCHEMES.len()).prop_map(|index| SCHEMES[index].parse().expect("a scheme"))
}

fn any_case() -> impl Strategy<Value = Case> {
    let loss = (-8.0..-0.7_f64).prop_map(|exponent| 10_f64.powf(exponent));
    let burst = prop_oneof![2 => Just(0.0), 1 => 1.5..40.0_f64];
    (any_scheme(), 0.0..41.0_f64, 6.0..12.0_f64, -5.0..0.0_f64, loss, burst, 0..4_u32).prop_map(
        |(scheme, size, rate, round_trip, loss, burst, chunk)| {
            let loss = if burst == 0.0 { Loss::Independent(loss) } else { Loss::bursts(loss, burst) };
            let link = Link::new(10_f64.powf(rate), 10_f64.powf(round_trip), loss);
            Case { link, message_bytes: (2_f64.powf(size) as u64).max(1), chunk_bytes: 4096 << chunk, scheme }
        },
    )
}

/// What lies within the models' own tables.
const SLACK: f64 = 1.003;

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn percentiles_are_in_order_and_the_cdf_rises(case in any_case()) {
        let Ok(completion) = case.completion() else { return Ok(()) };
        let distribution = completion.distribution;
        let summary = distribution.summary();
        prop_assert!(summary.p50 <= summary.p99 && summary.p99 <= summary.p999, "{:?}", summary);
        prop_assert!(summary.mean.is_finite() && summary.mean >= distribution.least() * (1.0 - 1e-9), "{:?}", summary);
        let lossless = completion.lossless_seconds;
        prop_assert!(distribution.least() >= lossless * (1.0 - 1e-9), "{} {}", distribution.least(), lossless);
        let mut before = 0.0;
        for step in 0..200 {
            let cdf = distribution.cdf(lossless * 0.9 + (summary.p999 * 1.2 - lossless * 0.9) * f64::from(step) / 199.0);
            prop_assert!((0.0..=1.0).contains(&cdf) && cdf >= before - 1e-12);
            before = cdf;
        }
        for share in [0.1, 0.5, 0.9, 0.99, 0.999] {
            let quantile = distribution.quantile(share);
            prop_assert!(distribution.cdf(quantile * (1.0 + 1e-9)) >= share - 1e-6, "{} at {}", share, quantile);
        }
        prop_assert!(completion.extra_bandwidth >= 0.0);
    }

    #[test]
    fn more_loss_is_never_faster(case in any_case(), factor in 1.5..20.0_f64) {
        let loss = case.link.loss;
        let worse = Case { link: Link { loss: loss.with_mean((loss.mean() * factor).min(0.3)), ..case.link }, ..case };
        let (Ok(one), Ok(other)) = (case.completion(), worse.completion()) else { return Ok(()) };
        prop_assume!(worse.link.loss.mean() > loss.mean());
        let (one, other) = (one.distribution.summary(), other.distribution.summary());
        prop_assert!(other.mean >= one.mean / SLACK, "{:?} {:?}", one, other);
        prop_assert!(other.p999 >= one.p999 / SLACK, "{:?} {:?}", one, other);
    }

    #[test]
    fn more_rate_is_never_slower(case in any_case(), factor in 1.5..20.0_f64) {
        // A reliable connection's timeout comes in powers of two of the time that a message takes; that is no property
        // of the rate.
        prop_assume!(case.scheme.is_available());
        let faster = Case { link: Link { rate_bits_per_second: case.link.rate_bits_per_second * factor, ..case.link }, ..case };
        let (Ok(one), Ok(other)) = (case.completion(), faster.completion()) else { return Ok(()) };
        let (one, other) = (one.distribution.summary(), other.distribution.summary());
        prop_assert!(other.mean <= one.mean * SLACK, "{:?} {:?}", one, other);
        prop_assert!(other.p999 <= one.p999 * SLACK, "{:?} {:?}", one, other);
    }
}

/// What is lost and repeated is a packet, so chunks of any size take the same time; a code is over chunks, and does
/// not.
#[test]
fn chunks_matter_to_codes_only() {
    let link = Link::new(0.2e9, 0.06, Loss::Independent(1e-3));
    let completion = |scheme: &str, chunk_bytes: u32| {
        let case = Case { link, message_bytes: 4 << 20, chunk_bytes, scheme: scheme.parse().expect("a scheme") };
        case.completion().expect("an answer")
    };
    for scheme in ["sr:rto", "sr:nack"] {
        assert_eq!(completion(scheme, 4096), completion(scheme, 65536), "{scheme}");
    }
    assert_ne!(completion("ec:mds:32,8", 4096), completion("ec:mds:32,8", 65536));
}

#[test]
fn extremes_have_answers() {
    for scheme in SCHEMES {
        for message_bytes in [1, 4096, 4097, 1 << 20, 2 << 40] {
            for loss in [0.0, 1e-9, 1e-2, 0.5] {
                for round_trip in [0.0, 1e-6, 0.025, 10.0] {
                    let link = Link::new(400e9, round_trip, Loss::Independent(loss));
                    let case =
                        Case { link, message_bytes, chunk_bytes: 4096, scheme: scheme.parse().expect("a scheme") };
                    let completion = case.completion().expect("an answer");
                    let summary = completion.distribution.summary();
                    let name = format!("{scheme} {message_bytes} {loss} {round_trip}");
                    assert!(summary.mean.is_finite() && summary.mean > 0.0, "{name}: {summary:?}");
                    assert!(
                        summary.p999 >= summary.p50 && summary.p50 >= completion.lossless_seconds * (1.0 - 1e-9),
                        "{name}: {summary:?}"
                    );
                    if loss == 0.0 {
                        let same = (summary.mean / completion.lossless_seconds - 1.0).abs()
                            + (summary.p999 / summary.p50 - 1.0).abs();
                        assert!(same < 1e-9, "{name}: {summary:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn impossible_input_says_what_to_change() {
    let good = Link::new(1e9, 0.01, Loss::Independent(0.01));
    let refused = |link: Link, bytes: u64, chunk: u32| {
        let question = Question { chunk_bytes: Some(chunk), ..Question::new(link, bytes) };
        question.answer().expect_err("it is impossible").to_string()
    };
    assert!(refused(Link { rate_bits_per_second: 0.0, ..good }, 1, 4096).contains("rate"));
    assert!(refused(Link { rate_bits_per_second: f64::NAN, ..good }, 1, 4096).contains("rate"));
    assert!(refused(Link { round_trip_seconds: -1.0, ..good }, 1, 4096).contains("round trip"));
    assert!(refused(Link { loss: Loss::Independent(1.0), ..good }, 1, 4096).contains("less than 1"));
    assert!(refused(Link { loss: Loss::bursts(0.1, f64::INFINITY), ..good }, 1, 4096).contains("p_bad_to_good"));
    assert!(refused(good, 0, 4096).contains("2 TiB"));
    assert!(refused(good, 3 << 40, 4096).contains("2 TiB"));
    assert!(refused(good, 1, 5000).contains("multiple"));
    // Large chunks on a link that loses half of its packets: refused one by one, and what has no chunks is still there.
    let question =
        Question { chunk_bytes: Some(65536), ..Question::new(Link { loss: Loss::Independent(0.5), ..good }, 1 << 20) };
    let answer = question.answer().expect("an answer");
    assert!(
        answer.refused.iter().any(|(_, error)| error.to_string().contains("fewer packets")),
        "{:?}",
        answer.refused
    );
}
