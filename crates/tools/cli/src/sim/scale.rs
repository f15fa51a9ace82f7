//! `longhaul sim scale`: thousands of software RNICs on one simulated network.

use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use longhaul_softnic::PayloadMode;
use longhaul_world::scale::{Scale, ScaleFabric, ScaleOptions, ScaleOutcome};
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};

use crate::stop::{self, Stop};
use crate::{counting_allocator, progress};

/// With --contents every message has memory of its own at both ends; more than this is refused before it is taken.
const CONTENTS_BYTES_MAX: u64 = 16 << 30;

/// More than this take more memory than hosts have.
const QUEUE_PAIRS_MAX: usize = 4_000_000;

/// Run thousands of software RNICs, each with a few queue pairs, all sending at the same time
///
/// Queue pairs alternate between RC and UC; the seed chooses which nodes they connect. Both ends alternate WRITEs and
/// SENDs over lossless links of 100 Gbit/s and 1 µs. Every completion is checked: the exit status is 1 unless all
/// messages arrive, in order and without error. By default packets carry only the length of their payload; --contents
/// adds the bytes. The same seed gives the same trace hash.
///
/// bytes_per_queue_pair is the growth of memory in use while the queue pairs are created and moved to RTS, divided by
/// their number; packets_per_second counts packets sent while traffic ran; seconds is the whole run.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Number of software RNICs
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..=60_000))]
    nodes: u32,

    /// Queue pairs per node: the first RC, the second UC, and so on
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    queue_pairs: u32,

    /// Messages sent by each queue pair
    #[arg(long, value_name = "NUMBER", default_value_t = 8, value_parser = longhaul_units::whole_number(1_u32..))]
    messages: u32,

    /// Message size
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 10, value_parser = longhaul_units::bytes_within::<u32>(1..=1 << 30))]
    message_size: u32,

    /// How the nodes are connected; switches are added as needed
    #[arg(long, value_enum, default_value_t = Topology::Star)]
    topology: Topology,

    /// Carry payload bytes, and compare what arrived with what was sent
    #[arg(long)]
    contents: bool,

    /// Seed of the connections and of everything else random
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Topology {
    /// One switch
    Star,
    /// Leaf and spine switches, with equal-cost paths
    Clos,
    /// Three tiers of identical switches, with equal-cost paths
    FatTree,
}

impl From<Topology> for ScaleFabric {
    fn from(topology: Topology) -> Self {
        match topology {
            Topology::Star => ScaleFabric::Star,
            Topology::Clos => ScaleFabric::Clos,
            Topology::FatTree => ScaleFabric::FatTree,
        }
    }
}

/// The outcome of a run, and its cost.
struct Report {
    options: ScaleOptions,
    outcome: ScaleOutcome,
    bytes_per_queue_pair: f64,
    setup: Duration,
    traffic: Duration,
    total: Duration,
    peak_resident_bytes: Option<u64>,
}

/// Runs the scenario.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let options = ScaleOptions {
        seed: arguments.seed,
        nodes: arguments.nodes as usize,
        queue_pairs_per_node: arguments.queue_pairs as usize,
        messages: arguments.messages,
        message_bytes: arguments.message_size,
        fabric: arguments.topology.into(),
        payload: if arguments.contents { PayloadMode::Carried } else { PayloadMode::Elided },
        ..Default::default()
    };
    if options.queue_pair_count() > QUEUE_PAIRS_MAX {
        return Err(Stop::Usage(format!(
            "expected at most {QUEUE_PAIRS_MAX} queue pairs in all, got {}: take fewer nodes or queue pairs",
            options.queue_pair_count(),
        )));
    }
    if arguments.contents && options.region_bytes() > CONTENTS_BYTES_MAX {
        return Err(Stop::Usage(format!(
            "expected at most {CONTENTS_BYTES_MAX} bytes of messages at both ends with --contents, got {}: take fewer nodes, \
             queue pairs or messages, or smaller ones",
            options.region_bytes(),
        )));
    }
    let report = measure(options);
    let failures = &report.outcome.failures;
    for failure in failures.kept() {
        eprintln!("{failure}");
    }
    if failures.count() > failures.kept().len() as u64 {
        eprintln!("… and {} more failures", failures.count() - failures.kept().len() as u64);
    }
    let wrong = (!is_good(&report)).then(|| Stop::Failed(format!("number of failures: {}", failures.count())));
    stop::tell(arguments.json, || to_json(&report), || to_table(&report), wrong)
}

fn measure(options: ScaleOptions) -> Report {
    let begin = Instant::now();
    let bar = progress_bar(options.message_count());
    bar.set_message(format!("making {} nodes", options.nodes));
    let mut scale = Scale::new(options.clone());
    bar.set_message(format!("connecting {} queue pairs", options.queue_pair_count()));
    let bytes_before = counting_allocator::bytes_in_use();
    scale.connect();
    let growth_bytes = counting_allocator::bytes_in_use() - bytes_before;
    let setup = begin.elapsed();
    bar.set_message("traffic");
    let outcome = scale.run(|messages| bar.set_position(messages));
    let total = begin.elapsed();
    bar.finish_and_clear();
    Report {
        bytes_per_queue_pair: growth_bytes as f64 / options.queue_pair_count() as f64,
        options,
        outcome,
        setup,
        traffic: total - setup,
        total,
        peak_resident_bytes: peak_resident_bytes(),
    }
}

fn progress_bar(messages: u64) -> ProgressBar {
    progress::bar(messages, "{bar:30} {pos}/{len} messages, {per_sec} {msg}")
}

/// The most memory that this process has held so far.
fn peak_resident_bytes() -> Option<u64> {
    let kibibytes = getrusage(UsageWho::RUSAGE_SELF).ok()?.max_rss();
    u64::try_from(kibibytes).ok()?.checked_mul(1024)
}

/// Whether everything was sent, arrived and completed.
fn is_good(report: &Report) -> bool {
    report.outcome.failures.count() == 0 && report.outcome.messages == report.options.message_count()
}

fn to_json(report: &Report) -> Value {
    let Report { options, outcome, .. } = report;
    json!({
        "schema": 1,
        "nodes": options.nodes,
        "queue_pairs": options.queue_pair_count(),
        "packets_per_second": (outcome.packets as f64 / report.traffic.as_secs_f64()).round(),
        "bytes_per_queue_pair": report.bytes_per_queue_pair,
        "seconds": report.total.as_secs_f64(),
        "setup_seconds": report.setup.as_secs_f64(),
        "traffic_seconds": report.traffic.as_secs_f64(),
        "virtual_seconds": outcome.virtual_time.as_secs_f64(),
        "topology": options.fabric.name(),
        "seed": options.seed,
        "reliable_queue_pairs": options.nodes * options.queue_pairs_per_node.div_ceil(2),
        "unreliable_queue_pairs": options.nodes * (options.queue_pairs_per_node / 2),
        "messages": outcome.messages,
        "message_bytes": options.message_bytes,
        "contents_checked": options.payload == PayloadMode::Carried,
        "completions": outcome.completions,
        "packets": outcome.packets,
        "events": outcome.events,
        "events_per_second": (outcome.events as f64 / report.traffic.as_secs_f64()).round(),
        "failures": outcome.failures.count(),
        "trace_hash": format!("{:016x}", outcome.trace_hash),
        "peak_resident_bytes": report.peak_resident_bytes,
    })
}

fn to_table(report: &Report) -> String {
    let Report { options, outcome, .. } = report;
    let contents = match options.payload {
        PayloadMode::Carried => "compared",
        PayloadMode::Elided | PayloadMode::WritesElided => "left out",
    };
    let peak = report.peak_resident_bytes.map_or("unknown".to_owned(), |bytes| (bytes >> 20).to_string());
    let rows = [
        ("nodes", options.nodes.to_string()),
        ("topology", options.fabric.name().to_owned()),
        ("queue pairs, RC and UC", options.queue_pair_count().to_string()),
        ("bytes per queue pair", format!("{:.0}", report.bytes_per_queue_pair)),
        ("messages", outcome.messages.to_string()),
        ("  bytes of each", options.message_bytes.to_string()),
        ("  contents", contents.to_owned()),
        ("completions", outcome.completions.to_string()),
        ("packets", outcome.packets.to_string()),
        ("packets/s", format!("{:.0}", outcome.packets as f64 / report.traffic.as_secs_f64())),
        ("events/s of the simulator", format!("{:.0}", outcome.events as f64 / report.traffic.as_secs_f64())),
        ("trace hash", format!("{:016x}", outcome.trace_hash)),
        ("failures", outcome.failures.count().to_string()),
        ("virtual milliseconds", format!("{:.3}", outcome.virtual_time.as_secs_f64() * 1e3)),
        ("seconds", format!("{:.1}", report.total.as_secs_f64())),
        ("  of setting up", format!("{:.1}", report.setup.as_secs_f64())),
        ("  of traffic", format!("{:.1}", report.traffic.as_secs_f64())),
        ("peak memory, MiB", peak),
    ];
    rows.iter().map(|(name, value)| format!("{name:<30} {value:>16}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Report {
        measure(ScaleOptions { nodes: 6, queue_pairs_per_node: 3, messages: 2, ..Default::default() })
    }

    #[test]
    fn the_json_has_the_documented_keys() {
        let value = to_json(&small());
        for key in ["schema", "nodes", "queue_pairs", "packets_per_second", "bytes_per_queue_pair", "seconds"] {
            assert!(value[key].as_f64().is_some_and(|number| number > 0.0), "{key} in {value}");
        }
        assert_eq!((&value["nodes"], &value["queue_pairs"]), (&json!(6), &json!(18)));
        assert_eq!((&value["reliable_queue_pairs"], &value["unreliable_queue_pairs"]), (&json!(12), &json!(6)));
        assert_eq!((&value["messages"], &value["failures"]), (&json!(36), &json!(0)));
    }

    #[test]
    fn a_message_that_is_missing_is_a_failed_check() {
        let mut report = small();
        assert!(is_good(&report));
        report.outcome.messages -= 1;
        assert!(!is_good(&report));
    }
}
