//! The result of a soak, for people and for programs: of `longhaul sim soak` and of `longhaul conformance --soak`.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_conformance::soak::{SeedReport, Summary, Troubles};
use serde_json::{Value, json};

use crate::stop::Stop;

/// Failing seeds whose violations are printed; of the others only the number.
const PRINTED_SEEDS_MAX: usize = 10;

/// What was wrong, and how to see it again: `again` is the command that runs a seed.
pub(crate) fn describe_failures(summary: &Summary, again: impl Fn(u64) -> String) -> String {
    let printed = summary.failing.iter().take(PRINTED_SEEDS_MAX);
    let mut text: String = printed.map(|report| describe_failure(report, &again)).collect();
    if summary.failing.len() > PRINTED_SEEDS_MAX {
        text += &format!("… and {} more failing seeds\n", summary.failing.len() - PRINTED_SEEDS_MAX);
    }
    text
}

fn describe_failure(report: &SeedReport, again: impl Fn(u64) -> String) -> String {
    let mut text = format!("seed {}: {} violations\n", report.seed, report.violations.count());
    for violation in report.violations.kept() {
        text += &format!("  {violation}\n");
    }
    text + &format!("  again: {}\n", again(report.seed))
}

/// What is wrong when seeds fail.
pub(crate) fn wrong(failing: usize, seeds: u64) -> Option<Stop> {
    (failing > 0).then(|| Stop::Failed(format!("rules were broken by {failing} of {seeds} seeds")))
}

/// The report of a soak on virtual time.
pub(crate) fn to_json(summary: &Summary, elapsed: Duration) -> Value {
    let failing_seeds: Vec<u64> = summary.failing.iter().map(|report| report.seed).collect();
    json!({
        "schema": 1,
        "seeds": summary.seeds,
        "operations": summary.messages,
        "operations_by_kind": summary.tally.operations,
        "faults": summary.tally.faults,
        "packets": summary.packets,
        "restored_packets": summary.restored,
        "violations": summary.violations,
        "trace_hash": format!("{:016x}", summary.trace_hash),
        "failing_seeds": failing_seeds,
        "seconds": elapsed.as_secs_f64(),
    })
}

/// The same of one on real time, which has no hash, and with what the bad network did.
pub(crate) fn to_json_on_real_time(device: &str, summary: &Summary, elapsed: Duration) -> Value {
    let mut value = to_json(summary, elapsed);
    let Troubles { lost, duplicated, reordered, corrupted } = summary.troubles;
    value["device"] = device.into();
    value["trace_hash"] = Value::Null;
    value["lost_packets"] = lost.into();
    value["duplicated_packets"] = duplicated.into();
    value["reordered_packets"] = reordered.into();
    value["corrupted_packets"] = corrupted.into();
    value
}

/// The rows of a table, those of the network's doings apart.
pub(crate) fn to_table(summary: &Summary, elapsed: Duration, network: &[(&str, String)]) -> String {
    let tally = &summary.tally;
    let seconds = elapsed.as_secs_f64();
    let before = [
        ("seeds", summary.seeds.to_string()),
        ("requests posted", summary.messages.to_string()),
        ("  succeeded", tally.succeeded.to_string()),
        ("  refused, as they should be", tally.refused.to_string()),
        ("  retries exceeded", tally.retries_exceeded.to_string()),
        ("  flushed or forgotten", tally.flushed.to_string()),
        ("messages received", tally.received.to_string()),
        ("keys revoked", tally.revocations.to_string()),
        ("connections made anew", tally.reconnections.to_string()),
        ("packets", summary.packets.to_string()),
        ("packets restored by FEC", summary.restored.to_string()),
    ];
    let after = [
        ("violations", summary.violations.to_string()),
        ("failing seeds", summary.failing.len().to_string()),
        ("seconds", format!("{seconds:.1}")),
    ];
    // What was asked for and what went wrong, by name.
    let counts = |heading: &'static str, counts: &BTreeMap<&'static str, u64>| {
        let named = counts.iter().map(|(name, count)| (format!("  {}", name.replace('_', " ")), count.to_string()));
        let total = counts.values().sum::<u64>().to_string();
        std::iter::once((heading.to_owned(), total)).chain(named).collect::<Vec<_>>()
    };
    let owned =
        |rows: &[(&str, String)]| rows.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let rows: [Vec<(String, String)>; 5] = [
        owned(&before),
        owned(network),
        counts("operations", &tally.operations),
        counts("faults", &tally.faults),
        owned(&after),
    ];
    rows.concat().iter().map(|(name, value)| format!("{name:<30} {value:>16}\n")).collect()
}

/// What the network did on virtual time.
pub(crate) fn virtual_rows(summary: &Summary) -> [(&'static str, String); 1] {
    [("trace hash", format!("{:016x}", summary.trace_hash))]
}

/// What the network did on real time.
pub(crate) fn real_rows(summary: &Summary) -> [(&'static str, String); 4] {
    let Troubles { lost, duplicated, reordered, corrupted } = summary.troubles;
    [
        ("  lost", lost.to_string()),
        ("  duplicated", duplicated.to_string()),
        ("  held back", reordered.to_string()),
        ("  with flipped bits", corrupted.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use longhaul_conformance::checker::{Rule, Violation, Violations};
    use longhaul_conformance::soak::{Campaign, SoakOptions, Tally};

    use super::*;

    /// A short soak on virtual time.
    fn summary() -> Summary {
        let campaign = Campaign {
            first_seed: 7,
            seed_count: 1,
            options: SoakOptions { operations: 5, ..SoakOptions::default() },
            thread_count: 1,
            time_limit: None,
        };
        campaign.run(|_| {}).expect("nothing is written")
    }

    fn keys(value: &Value) -> Vec<&str> {
        let mut keys: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn a_failing_seed_says_how_to_see_it_again() {
        let mut violations = Violations::default();
        violations.add(Violation {
            rule: Rule::Memory,
            at: Default::default(),
            subject: "region 3".to_owned(),
            expected: "no change".to_owned(),
            got: "bytes of message 9".to_owned(),
        });
        let report = SeedReport {
            seed: 42,
            messages: 1,
            restored: 0,
            wrong_blocks: 0,
            packets: 1,
            trace_hash: None,
            troubles: Troubles::default(),
            tally: Tally::default(),
            violations,
        };
        let text = describe_failure(&report, |seed| format!("soak {seed}"));
        assert!(text.contains("expected no change, got bytes of message 9"), "{text}");
        assert!(text.ends_with("  again: soak 42\n"), "{text}");
    }

    #[test]
    fn the_json_has_the_documented_form() {
        let summary = summary();
        let elapsed = Duration::from_millis(1500);
        let value = to_json(&summary, elapsed);
        let common = [
            "failing_seeds",
            "faults",
            "operations",
            "operations_by_kind",
            "packets",
            "restored_packets",
            "schema",
            "seconds",
            "seeds",
            "trace_hash",
            "violations",
        ];
        assert_eq!(keys(&value), common);
        assert_eq!(value["schema"], 1);
        assert_eq!(value["trace_hash"].as_str().map(str::len), Some(16));
        let value = to_json_on_real_time("softnic:127.0.0.1", &summary, elapsed);
        let more = ["device", "corrupted_packets", "duplicated_packets", "lost_packets", "reordered_packets"];
        let mut all = [&common[..], &more[..]].concat();
        all.sort_unstable();
        assert_eq!(keys(&value), all);
        assert_eq!(value["trace_hash"], Value::Null);
    }

    #[test]
    fn the_table_has_what_the_network_did_before_the_verdict() {
        let summary = summary();
        let table = to_table(&summary, Duration::from_secs(1), &real_rows(&summary));
        let position = |text: &str| table.find(text).expect("a row");
        assert!(position("packets") < position("  lost") && position("  lost") < position("violations"), "{table}");
        assert!(to_table(&summary, Duration::from_secs(1), &virtual_rows(&summary)).contains("trace hash"));
    }
}
