//! `--paper`: the link of the SDR-RDMA paper, its figures next to ours, and the bounds that must hold.

use longhaul_scheme_testing::completion::formula;
use serde_json::{Value, json};

use super::Measurement;

/// The schemes, as users name them.
pub(super) const SCHEMES: [&str; 4] = ["sr:rto", "sr:nack", "ec:mds:32,8", "ec:xor:32,8"];
/// The losses of packets.
pub(super) const LOSSES: [f64; 5] = [0.0, 1e-5, 1e-4, 1e-3, 1e-2];

/// With fewer samples a rare event has not happened often enough to be asked for.
const SAMPLES_FOR_RARE: u32 = 100;

/// What the paper's text says about a point, and where. Its figures are pictures: only what is in words is here.
pub(super) fn says(scheme: &str, loss: f64) -> Option<&'static str> {
    match scheme {
        "sr:rto" if loss == 1e-2 => Some("3 to 10 (§2.1, fig. 3c); up to 6.5, p99.9 up to 12.2 (§5.2.1)"),
        "sr:rto" if loss >= 1e-4 => Some("3 to 10 above 1e-4 (§2.1, fig. 3c)"),
        "sr:nack" if loss > 0.0 => Some("up to 4 times less than sr:rto (§5.2.1)"),
        "ec:mds:32,8" if loss == 1e-2 => Some("\"robust beyond 1e-2\" (§5.2.1, fig. 11)"),
        "ec:xor:32,8" if loss == 1e-3 => Some("\"falls back to SR at about 1e-3\" (§5.2.1, fig. 11)"),
        _ => None,
    }
}

/// What its formula gives for the mean.
pub(super) fn formula_mean(measurement: &Measurement) -> Option<f64> {
    formula::mean_slowdown(&measurement.sampling.options)
}

/// A bound that must hold.
#[derive(Debug)]
pub(super) struct Check {
    what: String,
    expected: String,
    got: f64,
    pub(super) passed: bool,
}

/// The bounds, for the paper's link and 128 MiB.
pub(super) fn checks(measurements: &[Measurement]) -> Vec<Check> {
    let mean = |scheme: &str, loss: f64| {
        let is_it =
            |row: &&Measurement| row.sampling.options.scheme.to_string() == scheme && row.sampling.options.loss == loss;
        let row = measurements.iter().find(is_it)?;
        Some((row.slowdown.mean, row.sampling.sample_count))
    };
    let mut bounds = vec![("sr:rto", 1e-2, 5.0, 8.0)];
    bounds.extend(LOSSES[1..].iter().map(|loss| ("ec:mds:32,8", *loss, 1.0, 1.1)));
    // It falls off near 1e-3: nothing to be seen below, a few messages of a hundred there, every one above.
    bounds.extend([1e-5, 1e-4].map(|loss| ("ec:xor:32,8", loss, 1.0, 1.1)));
    if mean("ec:xor:32,8", 1e-3).is_some_and(|(_, samples)| samples >= SAMPLES_FOR_RARE) {
        bounds.push(("ec:xor:32,8", 1e-3, 1.05, 2.0));
    }
    bounds.push(("ec:xor:32,8", 1e-2, 2.0, 8.0));
    let check = |(scheme, loss, least, most): (&str, f64, f64, f64)| {
        let (got, _) = mean(scheme, loss)?;
        Some(Check {
            what: format!("mean of {scheme} at {loss:e}"),
            expected: format!("{least} to {most}"),
            got,
            passed: (least..=most).contains(&got),
        })
    };
    bounds.into_iter().filter_map(check).collect()
}

/// The checks as people read them.
pub(super) fn describe(checks: &[Check]) -> String {
    let line = |Check { what, expected, got, passed }: &Check| {
        let verdict = if *passed { "passed" } else { "FAILED" };
        format!("{verdict}: {what}, expected {expected}, got {got:.3}\n")
    };
    checks.iter().map(line).collect()
}

/// The checks for programs.
pub(super) fn to_json(checks: &[Check]) -> Value {
    let check = |Check { what, expected, got, passed }: &Check| json!({ "what": what, "expected": expected, "came": got, "passed": passed });
    checks.iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use longhaul_scheme_testing::completion::{CompletionOptions, Sampling, Summary};
    use longhaul_time::Duration;

    use super::*;

    fn measurement(scheme: &str, loss: f64, mean: f64, sample_count: u32) -> Measurement {
        let options = CompletionOptions {
            rate_bits_per_second: 400_000_000_000,
            round_trip: Duration::from_millis(25),
            loss,
            burst_packets: None,
            message_bytes: 128 << 20,
            chunk_bytes: 4096,
            scheme: scheme.parse().expect("a scheme"),
            seed: 1,
        };
        Measurement {
            sampling: Sampling { options, sample_count, thread_count: 1 },
            slowdown: Summary { mean, p50: mean, p99: mean, p999: None },
            repeated_packets: 0.0,
            fallbacks: 0.0,
        }
    }

    /// As they come out on the paper's link, with one of them changed.
    fn with(changed: (&str, f64, f64), samples: u32) -> Vec<Measurement> {
        let usual = |scheme: &str, loss: f64| match (scheme, loss) {
            ("sr:rto", 1e-2) => 6.4,
            ("ec:xor:32,8", 1e-3) => 1.17,
            ("ec:xor:32,8", 1e-2) => 3.0,
            _ => 1.03,
        };
        let row = |(scheme, loss): (&str, f64)| {
            let mean = if (scheme, loss) == (changed.0, changed.1) { changed.2 } else { usual(scheme, loss) };
            measurement(scheme, loss, mean, samples)
        };
        SCHEMES.into_iter().flat_map(|scheme| LOSSES.map(|loss| (scheme, loss))).map(row).collect()
    }

    #[test]
    fn every_bound_can_be_broken() {
        let failed = |measurements: &[Measurement]| checks(measurements).iter().filter(|check| !check.passed).count();
        assert_eq!(checks(&with(("", 0.0, 0.0), 200)).len(), 9);
        assert_eq!(failed(&with(("", 0.0, 0.0), 200)), 0);
        for changed in [
            ("sr:rto", 1e-2, 4.9),
            ("sr:rto", 1e-2, 8.1),
            ("ec:mds:32,8", 1e-5, 1.11),
            ("ec:mds:32,8", 1e-4, 1.11),
            ("ec:mds:32,8", 1e-3, 1.11),
            ("ec:mds:32,8", 1e-2, 1.11),
            ("ec:xor:32,8", 1e-4, 1.2),
            ("ec:xor:32,8", 1e-3, 1.03),
            ("ec:xor:32,8", 1e-2, 1.03),
        ] {
            assert_eq!(failed(&with(changed, 200)), 1, "{changed:?}");
        }
        // Of twenty messages perhaps none falls back.
        assert_eq!(failed(&with(("ec:xor:32,8", 1e-3, 1.03), 20)), 0);
    }

    #[test]
    fn broken_bounds_are_told() {
        let checks = checks(&with(("sr:rto", 1e-2, 9.0), 200));
        assert!(describe(&checks).starts_with("FAILED: mean of sr:rto at 1e-2, expected 5 to 8, got 9.000\n"));
        assert_eq!(to_json(&checks)[0]["passed"], false);
    }

    #[test]
    fn rows_have_the_paper_s_figures_beside_them() {
        let rows = with(("", 0.0, 0.0), 200);
        assert!(rows.iter().all(|row| formula_mean(row).is_some_and(|mean| mean > 0.999)));
        assert!(says("sr:rto", 1e-2).is_some_and(|text| text.contains("6.5") && text.contains("12.2")));
        assert_eq!(says("sr:rto", 1e-5), None);
    }
}
