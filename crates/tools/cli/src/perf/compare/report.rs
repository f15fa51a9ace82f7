//! A comparison as a table and as JSON.

use std::fmt::Write as _;

use longhaul_perf::compare::{Comparison, Subject};
use serde_json::{Map, Value, json};

fn comparison_json(comparison: &Comparison) -> Map<String, Value> {
    let mut results = Vec::new();
    for subject in Subject::BANDWIDTH {
        if let Some(bandwidth) = comparison.bandwidth(subject) {
            results.push(json!({
                "name": subject.name(),
                "gbps": rounded(bandwidth.gbps.median()),
                "gbps_min": rounded(bandwidth.gbps.minimum()),
                "gbps_max": rounded(bandwidth.gbps.maximum()),
                "lost_bytes": bandwidth.lost_bytes,
                "repeated_packets": subject.scheme().map(|_| bandwidth.repeated_packets),
                "coding_threads": bandwidth.coding_threads,
                "sender_ns_per_packet": rounded(bandwidth.nanoseconds_per_packet[0]),
                "receiver_ns_per_packet": rounded(bandwidth.nanoseconds_per_packet[1]),
                "sender_ns_per_byte": rounded(bandwidth.nanoseconds_per_byte[0]),
                "receiver_ns_per_byte": rounded(bandwidth.nanoseconds_per_byte[1]),
            }));
        }
    }
    let mut latency_us = Map::new();
    let mut percentiles_us = Map::new();
    for subject in Subject::LATENCY {
        if let Some(latency) = comparison.latency(subject) {
            latency_us.insert(subject.name().to_owned(), rounded(latency.median()));
            percentiles_us.insert(
                subject.name().to_owned(),
                json!({
                    "samples": latency.count(),
                    "min": rounded(latency.minimum()),
                    "p50": rounded(latency.percentile(50.0)),
                    "p99": rounded(latency.percentile(99.0)),
                    "p99_9": rounded(latency.percentile(99.9)),
                    "max": rounded(latency.maximum()),
                }),
            );
        }
    }
    let ratios: Map<String, Value> =
        comparison.ratios().into_iter().map(|(name, ratio)| (name.to_owned(), rounded(ratio))).collect();
    let mut object = Map::new();
    for (key, value) in [
        ("environment", json!(comparison.environment.name())),
        ("mtu_bytes", json!(comparison.mtu)),
        ("link_mtu_bytes", json!(comparison.link_mtu())),
        ("payload_bytes_per_packet", json!(comparison.payload_bytes_per_packet)),
        ("seconds", json!(comparison.seconds)),
        ("rounds", json!(comparison.rounds)),
        ("queue_pairs", json!(comparison.queue_pairs)),
        ("results", json!(results)),
        ("latency_us", json!(latency_us)),
        ("latency_percentiles_us", json!(percentiles_us)),
        ("ratios", json!(ratios)),
    ] {
        object.insert(key.to_owned(), value);
    }
    object
}

/// One object for one comparison; several stand in a list.
pub(super) fn to_json(comparisons: &[Comparison]) -> Value {
    let mut object = match comparisons {
        [one] => comparison_json(one),
        several => {
            let list: Vec<Value> =
                several.iter().map(|comparison| Value::Object(comparison_json(comparison))).collect();
            Map::from_iter([("comparisons".to_owned(), json!(list))])
        }
    };
    object.insert("schema".to_owned(), json!(1));
    Value::Object(object)
}

/// Three decimals are more than any measurement is worth.
fn rounded(value: f64) -> Value {
    json!((value * 1000.0).round() / 1000.0)
}

/// For people.
pub(super) fn to_table(comparison: &Comparison, with_costs: bool) -> String {
    let mut text = String::new();
    let Comparison { environment, mtu, payload_bytes_per_packet, seconds, rounds, .. } = comparison;
    // Writing to a string cannot fail.
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        let _ = writeln!(text, "{arguments}");
    };
    line(format_args!("{}", environment.description()));
    let mtu = match comparison.link_mtu() {
        link_mtu if link_mtu == *mtu => format!("MTU {mtu}"),
        link_mtu => format!("MTU {link_mtu} (the loopback device's), packets as for an MTU of {mtu}"),
    };
    line(format_args!(
        "{mtu}, {payload_bytes_per_packet} bytes a packet, {seconds} s each in {rounds} interleaved rounds"
    ));
    line(format_args!(""));
    let bare = comparison.bandwidth(Subject::BareUdp).map(|bandwidth| bandwidth.gbps.median());
    line(format_args!("{:<16} {:>8} {:>18} {:>10} {:>12}", "", "Gbit/s", "lowest..highest", "of bare", "lost MiB"));
    for subject in Subject::BANDWIDTH {
        if let Some(bandwidth) = comparison.bandwidth(subject) {
            let gbps = bandwidth.gbps.median();
            let range = format!("{:.1}..{:.1}", bandwidth.gbps.minimum(), bandwidth.gbps.maximum());
            let of_bare = bare.map_or_else(|| "-".to_owned(), |bare| format!("{:.2}", gbps / bare));
            let lost = bandwidth.lost_bytes as f64 / f64::from(1 << 20);
            line(format_args!("{:<16} {gbps:>8.2} {range:>18} {of_bare:>10} {lost:>12.1}", subject.name()));
        }
    }
    for subject in Subject::BANDWIDTH {
        if let (Some(scheme), Some(bandwidth)) = (subject.scheme(), comparison.bandwidth(subject)) {
            let repeated = bandwidth.repeated_packets;
            let coding = match bandwidth.coding_threads {
                None => String::new(),
                Some(0) => ", coded on the threads that drive the connection".to_owned(),
                Some(1) => ", coded on a thread of its own at each end".to_owned(),
                Some(threads) => format!(", coded on up to {threads} threads of their own at each end"),
            };
            line(format_args!(
                "({}: {scheme}, messages of 16 MiB, one packet a write{coding}; {repeated} packets sent again)",
                subject.name()
            ));
        }
    }
    let latencies: Vec<_> =
        Subject::LATENCY.into_iter().filter_map(|subject| Some((subject, comparison.latency(subject)?))).collect();
    if !latencies.is_empty() {
        line(format_args!(""));
        let heads = ["min", "median", "99%", "99.9%", "max", "samples"];
        let heads: String = heads.iter().map(|head| format!(" {head:>8}")).collect();
        line(format_args!("{:<16}{heads}", "one way, µs"));
        for (subject, latency) in &latencies {
            let values = [
                latency.minimum(),
                latency.median(),
                latency.percentile(99.0),
                latency.percentile(99.9),
                latency.maximum(),
            ];
            let values: String = values.iter().map(|value| format!(" {value:>8.2}")).collect();
            line(format_args!("{:<16}{values} {:>8}", subject.name(), latency.count()));
        }
    }
    if with_costs {
        line(format_args!(""));
        line(format_args!("{:<16} {:>25} {:>25}", "processor", "ns a packet", "ns a KiB"));
        line(format_args!("{:<16} {:>12} {:>12} {:>12} {:>12}", "", "sender", "receiver", "sender", "receiver"));
        for subject in Subject::BANDWIDTH {
            if let Some(bandwidth) = comparison.bandwidth(subject) {
                let [sender, receiver] = bandwidth.nanoseconds_per_packet;
                let [sender_kib, receiver_kib] = bandwidth.nanoseconds_per_byte.map(|cost| cost * 1024.0);
                line(format_args!(
                    "{:<16} {sender:>12.0} {receiver:>12.0} {sender_kib:>12.0} {receiver_kib:>12.0}",
                    subject.name()
                ));
            }
        }
    }
    if with_costs {
        line(format_args!("(UC and RC poll all the time, so what they spend on waiting is in it)"));
    }
    let ratios = comparison.ratios();
    if !ratios.is_empty() {
        line(format_args!(""));
        for (name, ratio) in ratios {
            line(format_args!("{name:<31} {ratio:>6.2}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use longhaul_perf::compare::{Environment, Outcome};

    use super::*;

    /// So much in a second, of which the first packet starts the clock.
    fn round(sent_bytes: u64, arrived_bytes: u64) -> (Outcome, Outcome) {
        let outcome = |payload_bytes, early_bytes| Outcome {
            payload_bytes,
            early_bytes,
            nanoseconds: 1_000_000_000,
            processor_nanoseconds: 500_000_000,
            ..Outcome::default()
        };
        (outcome(sent_bytes, 0), outcome(arrived_bytes, 4096))
    }

    fn comparison() -> Comparison {
        let mut comparison = Comparison::new(Environment::Namespaces, 4200, 4096, 3.0, 3);
        for arrived in [2_000_000_000, 5_000_000_000, 4_000_000_000] {
            let (sent, received) = round(6_000_000_000, arrived);
            comparison.add(Subject::BareUdp, sent, received);
            let (sent, received) = round(2_500_000_000, 2_500_000_000 - 4096);
            comparison.add(Subject::Tcp, sent, received);
            // The receiver gets no completion for RC's WRITEs.
            let (sent, _) = round(arrived * 3 / 4, 0);
            comparison.add(Subject::RcWrite, sent, Outcome::default());
            for (subject, round_trip) in [(Subject::BareUdpPingPong, 5000), (Subject::RcSendPingPong, 7000)] {
                let trips = Outcome { round_trips_nanoseconds: vec![round_trip; 10], ..Outcome::default() };
                comparison.add(subject, trips, Outcome::default());
            }
        }
        comparison
    }

    #[test]
    fn the_median_round_counts() {
        let value = to_json(&[comparison()]);
        assert_eq!(value["results"][0]["name"], "bare-udp");
        assert_eq!(value["results"][0]["gbps"], 32.0);
        assert_eq!(value["results"][0]["lost_bytes"], 7_000_000_000_u64 - 3 * 4096);
        assert_eq!(value["results"][1]["lost_bytes"], 0);
        assert_eq!(value["results"][2]["name"], "rc-write");
        assert_eq!(value["results"][2]["gbps"], 24.0);
        assert_eq!(value["latency_us"], json!({ "bare_udp": 2.5, "rc_send": 3.5 }));
        let ratios = json!({ "rc_over_bare": 0.75, "rc_over_tcp": 1.2, "rc_latency_over_bare": 1.4 });
        assert_eq!(value["ratios"], ratios);
        assert_eq!(value["schema"], 1);
    }

    #[test]
    fn the_table_says_the_same() {
        let table = to_table(&comparison(), true);
        for text in [
            "two network namespaces",
            "rc-write            24.00",
            "rc_over_bare                      0.75",
            "ns a KiB",
        ] {
            assert!(table.contains(text), "{text} in\n{table}");
        }
        assert!(!table.contains("uc-write"), "not measured, not in the table:\n{table}");
    }
}
