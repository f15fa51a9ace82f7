//! What a comparison says, as a table and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::orders::{Outcome, Subject};
use crate::perf::statistics::Sorted;

/// What the loopback device carries unless somebody has changed it.
const LOOPBACK_MTU: u32 = 65_536;

/// What lies between the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Environment {
    /// Two network namespaces and a veth.
    Namespaces,
    /// The same, in a user namespace.
    UserNamespaces,
    /// The loopback device.
    Loopback,
}

impl Environment {
    const fn name(self) -> &'static str {
        match self {
            Environment::Namespaces => "namespaces",
            Environment::UserNamespaces => "user-namespaces",
            Environment::Loopback => "loopback",
        }
    }

    const fn description(self) -> &'static str {
        match self {
            Environment::Namespaces => "two network namespaces joined by a veth",
            Environment::UserNamespaces => "two network namespaces, in a user namespace, joined by a veth",
            Environment::Loopback => "LOOPBACK, not a network: its figures are not those of a link",
        }
    }
}

/// Every round of every measurement at one MTU.
pub(super) struct Comparison {
    environment: Environment,
    mtu: u32,
    payload_bytes_per_packet: u32,
    seconds: f64,
    rounds: u32,
    /// Of the measurement with many of them.
    pub(super) queue_pairs: Option<u32>,
    outcomes: BTreeMap<Subject, Vec<(Outcome, Outcome)>>,
}

/// What the rounds of one bandwidth measurement say together.
struct Bandwidth {
    gbps: Sorted,
    /// Payload that was sent and did not arrive.
    lost_bytes: u64,
    /// Packets that a scheme sent again.
    repeated_packets: u64,
    /// Threads that only encode and decode, at each end.
    coding_threads: Option<usize>,
    /// Nanoseconds of processor time for a packet, and for a byte, at the sender and at the receiver.
    nanoseconds_per_packet: [f64; 2],
    nanoseconds_per_byte: [f64; 2],
}

impl Comparison {
    pub(super) fn new(
        environment: Environment,
        mtu: u32,
        payload_bytes_per_packet: u32,
        seconds: f64,
        rounds: u32,
    ) -> Self {
        let (queue_pairs, outcomes) = (None, BTreeMap::new());
        Comparison { environment, mtu, payload_bytes_per_packet, seconds, rounds, queue_pairs, outcomes }
    }

    /// MTU of what lies between the ends. Nobody changes that of the host's loopback device for a measurement.
    fn link_mtu(&self) -> u32 {
        if self.environment != Environment::Loopback {
            return self.mtu;
        }
        let text = std::fs::read_to_string("/sys/class/net/lo/mtu").ok();
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(LOOPBACK_MTU)
    }

    /// What the sender and the receiver saw of a round.
    pub(super) fn add(&mut self, subject: Subject, sent: Outcome, received: Outcome) {
        self.outcomes.entry(subject).or_default().push((sent, received));
    }

    fn bandwidth(&self, subject: Subject) -> Option<Bandwidth> {
        let rounds = self.outcomes.get(&subject)?;
        // RC's receiver gets no completion for WRITEs and READs; its sender gets one when the bytes have arrived.
        let counted = |(sent, received): &(Outcome, Outcome)| match subject {
            Subject::RcWrite | Subject::RcWriteMany | Subject::RcRead => (sent.payload_bytes, sent.nanoseconds),
            _ => (received.payload_bytes, received.nanoseconds),
        };
        let rate = |round: &(Outcome, Outcome)| {
            let (bytes, nanoseconds) = counted(round);
            bytes as f64 * 8.0 / nanoseconds.max(1) as f64
        };
        let sent: u64 = rounds.iter().map(|(sent, _)| sent.payload_bytes).sum();
        let arrived: u64 = rounds.iter().map(|round| counted(round).0).sum();
        let early: u64 = rounds.iter().map(|(_, received)| received.early_bytes).sum();
        let spent = |pick: fn(&(Outcome, Outcome)) -> &Outcome| -> f64 {
            rounds.iter().map(|round| pick(round).processor_nanoseconds as f64).sum()
        };
        let spent = [spent(|round| &round.0), spent(|round| &round.1)];
        let bytes = [sent.max(1) as f64, arrived.max(1) as f64];
        let nanoseconds_per_byte = [spent[0] / bytes[0], spent[1] / bytes[1]];
        Some(Bandwidth {
            gbps: Sorted::new(rounds.iter().map(rate)),
            lost_bytes: sent.saturating_sub(arrived + early),
            repeated_packets: rounds.iter().map(|(sent, _)| sent.repeated_packets).sum(),
            coding_threads: rounds.iter().find_map(|(sent, _)| sent.coding_threads),
            nanoseconds_per_packet: nanoseconds_per_byte.map(|cost| cost * f64::from(self.payload_bytes_per_packet)),
            nanoseconds_per_byte,
        })
    }

    /// One-way times in microseconds: half of a round trip.
    fn latency(&self, subject: Subject) -> Option<Sorted> {
        let rounds = self.outcomes.get(&subject)?;
        let round_trips = rounds.iter().flat_map(|(sent, _)| &sent.round_trips_nanoseconds);
        Some(Sorted::new(round_trips.map(|&nanoseconds| f64::from(nanoseconds) / 2000.0)))
    }

    /// The ratios that can be computed from what was measured.
    fn ratios(&self) -> Vec<(&'static str, f64)> {
        let gbps = |subject| self.bandwidth(subject).map(|bandwidth| bandwidth.gbps.median());
        let microseconds = |subject| self.latency(subject).map(|latency| latency.median());
        let over = |name, above: Option<f64>, below: Option<f64>| match (above, below) {
            (Some(above), Some(below)) if below > 0.0 => Some((name, above / below)),
            _ => None,
        };
        let (bare, tcp) = (gbps(Subject::BareUdp), gbps(Subject::Tcp));
        let (uc, rc) = (gbps(Subject::UcWrite), gbps(Subject::RcWrite));
        let latency = [microseconds(Subject::RcSendPingPong), microseconds(Subject::BareUdpPingPong)];
        let ratios = [
            over("uc_over_bare", uc, bare),
            over("rc_over_bare", rc, bare),
            over("rc_over_tcp", rc, tcp),
            over("rc_many_over_one", gbps(Subject::RcWriteMany), rc),
            over("rc_read_over_write", gbps(Subject::RcRead), rc),
            // What is measured is the library itself; both names are kept for those who compare with older runs.
            over("facade_sr_over_uc", gbps(Subject::SdrSelectiveRepeat), uc),
            over("sdr_sr_over_uc", gbps(Subject::SdrSelectiveRepeat), uc),
            over("sdr_ec_over_uc", gbps(Subject::SdrErasure), uc),
            over("sdr_ec_inline_over_uc", gbps(Subject::SdrErasureInline), uc),
            over("rc_latency_over_bare", latency[0], latency[1]),
            over("facade_latency_over_rc", microseconds(Subject::FacadePingPong), latency[0]),
            over(
                "facade_sleeping_over_rc_events",
                microseconds(Subject::FacadeSleeping),
                microseconds(Subject::RcSendEvents),
            ),
        ];
        ratios.into_iter().flatten().collect()
    }

    fn to_json(&self) -> Map<String, Value> {
        let mut results = Vec::new();
        for subject in Subject::BANDWIDTH {
            if let Some(bandwidth) = self.bandwidth(subject) {
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
            if let Some(latency) = self.latency(subject) {
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
            self.ratios().into_iter().map(|(name, ratio)| (name.to_owned(), rounded(ratio))).collect();
        let mut object = Map::new();
        for (key, value) in [
            ("environment", json!(self.environment.name())),
            ("mtu_bytes", json!(self.mtu)),
            ("link_mtu_bytes", json!(self.link_mtu())),
            ("payload_bytes_per_packet", json!(self.payload_bytes_per_packet)),
            ("seconds", json!(self.seconds)),
            ("rounds", json!(self.rounds)),
            ("queue_pairs", json!(self.queue_pairs)),
            ("results", json!(results)),
            ("latency_us", json!(latency_us)),
            ("latency_percentiles_us", json!(percentiles_us)),
            ("ratios", json!(ratios)),
        ] {
            object.insert(key.to_owned(), value);
        }
        object
    }
}

/// One object for one comparison; several stand in a list.
pub(super) fn to_json(comparisons: &[Comparison]) -> Value {
    let mut object = match comparisons {
        [one] => one.to_json(),
        several => {
            let list: Vec<Value> = several.iter().map(|comparison| Value::Object(comparison.to_json())).collect();
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
