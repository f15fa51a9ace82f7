//! `longhaul sim throughput`: how many packets a second the simulator and two software RNICs move on one core.

use std::time::Instant;

use longhaul_softnic::PayloadMode;
use longhaul_world::throughput::{self, PACKET_BYTES, Traffic};
use serde_json::{Value, json};

use crate::stop::{self, Stop};

/// Measure packets per second between two software RNICs on a simulated link, on one core
///
/// UC: single-packet WRITEs with immediate, each with its receive and completion. RC: WRITEs of 1 MiB. With payload, 4
/// KiB per packet are copied out of the sender's memory and into the receiver's, and the ICRC is computed and checked.
/// The limit is measured too: two copies and two ICRCs of 4 KiB and nothing else. The best of several rounds counts,
/// because other load on the machine only makes a round slower.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Packets per measurement
    #[arg(long, value_name = "NUMBER", default_value_t = 500_000, value_parser = longhaul_units::whole_number(1_u64..))]
    packets: u64,

    /// Rounds; the best one counts
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = longhaul_units::whole_number(1_u32..))]
    rounds: u32,

    /// Exit with status 1 if UC with payload is slower than this many packets per second
    #[arg(long, value_name = "NUMBER")]
    at_least: Option<u64>,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

struct Measurement {
    traffic: Traffic,
    payload: PayloadMode,
    packets_per_second: f64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let mut measurements: Vec<Measurement> = [Traffic::UnreliableWriteBursts, Traffic::ReliableWrites]
        .into_iter()
        .flat_map(|traffic| [PayloadMode::Carried, PayloadMode::Elided].map(|payload| (traffic, payload)))
        .map(|(traffic, payload)| Measurement { traffic, payload, packets_per_second: 0.0 })
        .collect();
    let mut limit_packets_per_second = 0.0_f64;
    for round in 1..=arguments.rounds {
        eprintln!("round {round} of {}", arguments.rounds);
        let limit = rate(|| throughput::copy_and_check(arguments.packets));
        limit_packets_per_second = limit_packets_per_second.max(limit);
        for measurement in &mut measurements {
            let moved = || throughput::run(measurement.traffic, measurement.payload, arguments.packets).packets;
            measurement.packets_per_second = measurement.packets_per_second.max(rate(moved));
        }
    }
    let reached = measurements[0].packets_per_second;
    let too_slow = arguments.at_least.filter(|wanted| reached < *wanted as f64).map(|wanted| {
        Stop::Failed(format!("UC with payload: expected at least {wanted} packets a second, got {reached:.0}"))
    });
    let value = || to_json(&measurements, limit_packets_per_second);
    stop::tell(arguments.json, value, || to_table(&measurements, limit_packets_per_second), too_slow)
}

/// Packets a second of `work`, which says how many it moved.
fn rate(work: impl FnOnce() -> u64) -> f64 {
    let begin = Instant::now();
    let packets = work();
    packets as f64 / begin.elapsed().as_secs_f64()
}

fn name(traffic: Traffic) -> &'static str {
    match traffic {
        Traffic::UnreliableWriteBursts => "uc_write_with_immediate",
        Traffic::ReliableWrites => "rc_write_1mib",
    }
}

fn to_json(measurements: &[Measurement], limit: f64) -> Value {
    let runs: Vec<Value> = measurements
        .iter()
        .map(|measurement| {
            json!({
                "traffic": name(measurement.traffic),
                "payload_bytes_per_packet": PACKET_BYTES,
                "payload_copied": measurement.payload == PayloadMode::Carried,
                "packets_per_second": measurement.packets_per_second.round(),
                "ratio_to_limit": measurement.packets_per_second / limit,
            })
        })
        .collect();
    json!({
        "schema": 1,
        "limit": { "what": "two copies and two ICRCs of a packet, nothing else", "packets_per_second": limit.round() },
        "runs": runs,
    })
}

fn to_table(measurements: &[Measurement], limit: f64) -> String {
    let mut table =
        format!("{:<26} {:>8} {:>14} {:>10}\n", "traffic, 4 KiB packets", "payload", "packets/s", "of limit");
    table += &format!("{:<26} {:>8} {:>14.0} {:>10}\n", "limit: copies and ICRCs", "copied", limit, "1.00");
    for measurement in measurements {
        let payload = match measurement.payload {
            PayloadMode::Carried => "copied",
            PayloadMode::Elided | PayloadMode::WritesElided => "left out",
        };
        let (rate, ratio) = (measurement.packets_per_second, measurement.packets_per_second / limit);
        table += &format!("{:<26} {payload:>8} {rate:>14.0} {ratio:>10.2}\n", name(measurement.traffic));
    }
    table
}
