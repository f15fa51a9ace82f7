//! `longhaul gateway check`: what a gateway can do on this machine.

use std::time::Duration;

use longhaul::with_sources;
use longhaul_units::seconds_within;
use longhaul_wan::check::Percentiles;
use longhaul_wan::gateway_check::{self, Attack, GatewayCheckError, GatewayReport, GatewayRow};
use serde_json::{Value, json};

use super::run::stop_of;
use crate::judged::{self, Judged};
use crate::progress;
use crate::stop::{self, Stop};

/// Of a gateway that moves frames as fast as it should.
const OVER_BARE_MIN: f64 = 0.7;
/// One gateway with long packets.
const GBITS_MIN: f64 = 2.0;
const GBITS_MTU: usize = 4200;
/// Of the bare forwarder's rate; a quarter is aimed at.
const HOSTILE_MIN: f64 = 0.2;
/// Of a flow that is attacked.
const FLOW_SHARE_MIN: f64 = 0.8;
/// What is restored under attack over what is without: a flow that is no longer repaired still has nearly all of its packets.
const RESTORED_OVER_QUIET_MIN: f64 = 0.8;
/// Packets in blocks over those that the gateway took, and repair packets over what the code says.
const PROTECTED_MIN: f64 = 0.98;
const REPAIR_MIN: f64 = 0.95;
/// Of lowar:32,1.
const REPAIR_SHARE: f64 = 1.0 / 32.0;

/// Measure what a gateway can do on this machine, both sides on it
///
/// In namespaces of its own, for MTU 1500 and 4200 (RDMA MTU 1024 and 4096): RoCEv2 packets a second of a gateway that adds repair packets
/// (lowar:32,1), compared with a forwarder that does nothing to frames (medians of runs in turns); and how much longer packets take
/// through a gateway that receives, without loss and with 1 % lost. Then a million hostile packets arrive at a quarter of the forwarder's
/// rate, next to a flow with 1 % lost that lasts as long: noise, malformed headers, flows that do not exist, repair packets that lie. Exit
/// status 1: a check failed.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Seconds of each measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds_within(0.1..=60.0))]
    seconds: f64,

    /// Packets of the attack, which lasts half a second at least
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    hostile_packets: u64,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let progress = progress::bar(5, "{bar:30} {pos}/{len} {msg}");
    let report =
        gateway_check::check(Duration::from_secs_f64(arguments.seconds), arguments.hostile_packets, &mut |what| {
            progress.set_message(what.to_owned());
            progress.inc(1);
        });
    progress.finish_and_clear();
    let report = report.map_err(|error| match error {
        GatewayCheckError::Gateway(error) => stop_of(error),
        GatewayCheckError::Forward(error) => stop_of(error.into()),
        GatewayCheckError::Namespace(error) => error.into(),
        error => Stop::Failed(with_sources(&error)),
    })?;
    let judged: Vec<Judged> = report.rows.iter().flat_map(judge).chain(judge_attack(&report.attack)).collect();
    stop::tell(arguments.json, || to_json(&report, &judged), || to_table(&report, &judged), judged::wrong(&judged))
}

fn judge(row: &GatewayRow) -> Vec<Judged> {
    let mtu = row.mtu;
    let at_least = |name: &str, got: f64, least: f64| Judged::at_least(format!("{name}, MTU {mtu}"), got, least);
    let restored = row.restored_packets as f64 / row.lost_packets.max(1) as f64;
    let mut judged = vec![
        at_least("over_bare_forwarder", row.over_bare_forwarder, OVER_BARE_MIN),
        at_least("packets in blocks over those taken", row.protected_share, PROTECTED_MIN),
        at_least("repair packets over those of the code", row.repair_share / REPAIR_SHARE, REPAIR_MIN),
        // Each of two packets of one block that are both lost stays lost.
        at_least("restored share of what was lost", restored, 0.5),
    ];
    if mtu == GBITS_MTU {
        judged.push(at_least("Gbit/s", row.bits_per_second / 1e9, GBITS_MIN));
    }
    judged
}

fn judge_attack(attack: &Attack) -> [Judged; 8] {
    let has_restored = attack.restored_share_without > 0.0;
    let restored = if has_restored { attack.restored_share / attack.restored_share_without } else { 0.0 };
    let memory = attack.memory_bytes as f64 / attack.memory_bytes_max.max(1) as f64;
    let named = |name: &str| format!("{name}, attacked");
    [
        Judged::at_least(
            named("hostile packets at the gateway over those of the bare forwarder"),
            attack.over_bare_forwarder,
            HOSTILE_MIN,
        ),
        Judged::at_least(named("share of the flow that arrives"), attack.flow_share, FLOW_SHARE_MIN),
        Judged::at_least(
            named("restored share of what was lost, over that without"),
            restored,
            RESTORED_OVER_QUIET_MIN,
        ),
        Judged::none(named("packets at the host twice"), attack.duplicates_at_host),
        Judged::none(named("packets at the host behind later ones"), attack.backward_at_host),
        Judged::none(named("packets at the host that nobody sent"), attack.lies_at_host),
        Judged::none(named("repair packets at the host"), attack.repairs_at_host),
        Judged::at_most(named("memory of its bound"), memory, 1.0),
    ]
}

fn delay_to_json(delay: Percentiles) -> Value {
    json!({ "p50": delay.p50, "p99": delay.p99 })
}

fn row_to_json(row: &GatewayRow) -> Value {
    let mut added = delay_to_json(row.added_delay_us);
    added["lossless"] = delay_to_json(row.added_delay_us);
    added["repairing"] = delay_to_json(row.added_delay_repairing_us);
    json!({
        "mtu": row.mtu,
        "rdma_mtu": row.rdma_mtu,
        "packets_per_second": row.packets_per_second,
        "bare_packets_per_second": row.bare_packets_per_second,
        "over_bare_forwarder": row.over_bare_forwarder,
        "protected_share": row.protected_share,
        "repair_share": row.repair_share,
        "packets_per_second_per_core": row.packets_per_second_per_core,
        "gbit_per_second": row.bits_per_second / 1e9,
        "bare_delay_us": delay_to_json(row.bare_delay_us),
        "added_delay_us": added,
        "lost_packets": row.lost_packets,
        "restored_packets": row.restored_packets,
        "receiving_packets_per_second_per_core": row.receiving_packets_per_second_per_core,
    })
}

fn to_json(report: &GatewayReport, judged: &[Judged]) -> Value {
    // The keys of the whole are those of the first row: the MTU of most networks.
    let mut value = report.rows.first().map_or_else(|| json!({}), row_to_json);
    value["schema"] = 1.into();
    value["rows"] = report.rows.iter().map(row_to_json).collect();
    let attack = &report.attack;
    value["attack"] = json!({
        "packets": attack.packets,
        "arrived_packets": attack.arrived_packets,
        "packets_per_second": attack.packets_per_second,
        "over_bare_forwarder": attack.over_bare_forwarder,
        "flow_share": attack.flow_share,
        "flow_share_without": attack.flow_share_without,
        "restored_share": attack.restored_share,
        "restored_share_without": attack.restored_share_without,
        "duplicates_at_host": attack.duplicates_at_host,
        "backward_at_host": attack.backward_at_host,
        "lies_at_host": attack.lies_at_host,
        "repairs_at_host": attack.repairs_at_host,
        "memory_bytes": attack.memory_bytes,
        "memory_bytes_max": attack.memory_bytes_max,
    });
    value["has_real_time_priority"] = report.has_priority.into();
    value["steal_share"] = report.steal_share.into();
    value["checks"] = judged::to_json(judged);
    value
}

fn to_table(report: &GatewayReport, judged: &[Judged]) -> String {
    let mut text = String::from(
        "  MTU  packets/s  bare packets/s  ratio  packets/s/core  Gbit/s  added delay us p50   p99  with loss p50    p99\n",
    );
    for row in &report.rows {
        text += &format!(
            "{:>5} {:>10.0} {:>15.0} {:>6.2} {:>15.0} {:>7.2} {:>19.1} {:>5.0} {:>14.1} {:>6.0}\n",
            row.mtu,
            row.packets_per_second,
            row.bare_packets_per_second,
            row.over_bare_forwarder,
            row.packets_per_second_per_core,
            row.bits_per_second / 1e9,
            row.added_delay_us.p50,
            row.added_delay_us.p99,
            row.added_delay_repairing_us.p50,
            row.added_delay_repairing_us.p99,
        );
    }
    let priority = if report.has_priority { "with" } else { "without" };
    text += &format!(
        "\npackets/s: of a gateway that adds repair packets; bare: a forwarder that does nothing to frames, in turns with it. Added delay: of\n\
         a gateway that receives 20,000 packets/s, over the bare forwarder; with loss: 1 % lost before it. The gateway ran {priority} real-time\n\
         priority; the host gave {:.1} % of the processors' time to others.\n\
         Attack: {} hostile packets, {} of them at the gateway, {:.0} a second; {:.4} of the flow's packets arrived ({:.4} without it), and\n\
         {:.3} of those that were lost were restored ({:.3}); {:.1} MB of memory of at most {:.0}.\n\n",
        100.0 * report.steal_share,
        report.attack.packets,
        report.attack.arrived_packets,
        report.attack.packets_per_second,
        report.attack.flow_share,
        report.attack.flow_share_without,
        report.attack.restored_share,
        report.attack.restored_share_without,
        report.attack.memory_bytes as f64 / 1e6,
        report.attack.memory_bytes_max as f64 / 1e6,
    );
    text + &judged::to_table(judged)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A million packets at a quarter of the rate, and a flow that is repaired all the same.
    const GOOD: Attack = Attack {
        packets: 1_000_000,
        arrived_packets: 1_000_000,
        packets_per_second: 200_000.0,
        over_bare_forwarder: 0.25,
        flow_share: 0.997,
        flow_share_without: 0.997,
        restored_share: 0.72,
        restored_share_without: 0.74,
        duplicates_at_host: 0,
        backward_at_host: 0,
        lies_at_host: 0,
        repairs_at_host: 0,
        memory_bytes: 1,
        memory_bytes_max: 10,
    };

    fn passes(attack: &Attack) -> bool {
        judge_attack(attack).iter().all(|judged| judged.is_good)
    }

    #[test]
    fn an_attack_that_switches_repair_off_or_does_not_arrive_fails() {
        assert!(passes(&GOOD));
        // Without repair, 1 % is lost.
        assert!(!passes(&Attack { flow_share: 0.99, restored_share: 0.0, ..GOOD }));
        assert!(!passes(&Attack { restored_share_without: 0.0, ..GOOD }));
        assert!(!passes(&Attack { arrived_packets: 0, packets_per_second: 0.0, over_bare_forwarder: 0.0, ..GOOD }));
        assert!(!passes(&Attack { duplicates_at_host: 1, ..GOOD }) && !passes(&Attack { backward_at_host: 1, ..GOOD }));
    }

    #[test]
    fn a_gateway_that_protects_nothing_fails() {
        let good = GatewayRow {
            over_bare_forwarder: 0.9,
            protected_share: 1.0,
            repair_share: 0.0313,
            lost_packets: 100,
            restored_packets: 70,
            ..GatewayRow::default()
        };
        let passes = |row: &GatewayRow| judge(row).iter().all(|judged| judged.is_good);
        assert!(passes(&good));
        assert!(!passes(&GatewayRow { protected_share: 0.5, ..good }));
        assert!(!passes(&GatewayRow { repair_share: 0.0, ..good }));
    }
}
