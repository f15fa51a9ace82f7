//! What a client prints: perftest's columns, or JSON.

use longhaul_perf::{BandwidthLine, Heading, LatencyLine, Operation, SizeResult};
use longhaul_verbs::Gid;
use serde_json::{Value, json};

use crate::stop::Stop;

pub(crate) const RULE: &str =
    "---------------------------------------------------------------------------------------\n";

/// Above the results.
pub(crate) fn heading(heading: &Heading, report_gbits: bool) -> String {
    let Heading { plan, mtu, device_name, gid_index, congestion, outstanding_reads, ours, theirs } = heading;
    let operation = match plan.operation {
        Operation::Write => "RDMA_Write",
        Operation::Send => "Send",
        Operation::Read => "RDMA_Read",
        Operation::CompareAndSwap => "Atomic CMP_AND_SWAP",
        Operation::FetchAndAdd => "Atomic FETCH_AND_ADD",
    };
    let title = format!("{operation} {} Test", if plan.test.is_latency() { "Latency" } else { "BW" });
    let rate = match (heading.rate_limit(), congestion) {
        (None, Some(name)) => name.to_string(),
        (limit, _) => rate_text(limit),
    };
    let mut text = format!("{RULE}                    {title}\n");
    let mut pair = |left: (&str, String), right: (&str, String)| {
        text += &format!(" {:<16}: {:<18} {:<16}: {}\n", left.0, left.1, right.0, right.1);
    };
    pair(("Device", device_name.clone()), ("Number of qps", plan.queue_pairs.to_string()));
    pair(
        ("Connection type", plan.connection.transport().abbreviation().to_owned()),
        ("TX depth", plan.send_depth.to_string()),
    );
    pair(("Mtu", format!("{}[B]", mtu.byte_count())), ("GID index", gid_index.to_string()));
    pair(("Rate limit", rate), ("Verify contents", if plan.verify_seed.is_some() { "ON" } else { "OFF" }.to_owned()));
    for (whose, contact) in [("Client device", ours), ("Server device", theirs)] {
        text += &format!(" {whose:<16}: {}\n", contact.device);
    }
    if let Some(fec) = &plan.fec {
        text += &format!(" {:<16}: {fec}\n", "FEC");
    }
    if plan.operation.is_answered() {
        text += &format!(" {:<16}: {outstanding_reads}\n", "Outstand reads");
    }
    text += RULE;
    for (whose, contact) in [("local", ours), ("remote", theirs)] {
        // As many as fit a screen; perftest prints them all.
        for (number, psn) in contact.queue_pairs.iter().take(4) {
            let (key, address) = (contact.memory_key, contact.memory_address);
            text +=
                &format!(" {whose} address: QPN {number:#08x} PSN {psn:#08x} RKey {key:#010x} VAddr {address:#018x}\n");
        }
        if contact.queue_pairs.len() > 4 {
            text += &format!(" {whose} address: and {} more queue pairs\n", contact.queue_pairs.len() - 4);
        }
        let gid = Gid::from_ip(contact.address);
        text += &format!(" GID: {gid:?} UDP port {}\n", contact.udp_port);
    }
    text += RULE;
    text += &match plan.test.is_latency() {
        false => bandwidth_columns(report_gbits),
        true => {
            let columns = ["t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]", "t_stdev[usec]"];
            let columns: String = columns.iter().map(|name| format!(" {name:<15}")).collect();
            format!(
                " {:<10} {:<12}{columns} {:<22} 99.9% percentile[usec]\n",
                "#bytes", "#iterations", "99% percentile[usec]"
            )
        }
    };
    text
}

/// A rate limit in the heading.
pub(crate) fn rate_text(bits_per_second: Option<u64>) -> String {
    bits_per_second.map_or_else(|| "none".to_owned(), |rate| format!("{} Gbit/s", rate as f64 / 1e9))
}

/// Above the rows of a bandwidth test.
pub(crate) fn bandwidth_columns(report_gbits: bool) -> String {
    let unit = if report_gbits { "Gb/sec" } else { "MiB/sec" };
    let (peak, average) = (format!("BW peak[{unit}]"), format!("BW average[{unit}]"));
    format!(" {:<10} {:<14} {peak:<18} {average:<20} MsgRate[Mpps]\n", "#bytes", "#iterations")
}

/// Below the results.
pub(crate) fn footing() -> &'static str {
    RULE
}

/// A row of the table.
pub(crate) fn row(result: &SizeResult, report_gbits: bool) -> String {
    match result {
        SizeResult::Bandwidth(line) => bandwidth_row(line, report_gbits),
        SizeResult::Latency(line) => latency_row(line),
    }
}

/// The same as JSON.
pub(crate) fn row_json(result: &SizeResult) -> Value {
    match result {
        SizeResult::Bandwidth(line) => bandwidth_json(line),
        SizeResult::Latency(line) => latency_json(line),
    }
}

/// A row of a bandwidth test.
pub(crate) fn bandwidth_row(line: &BandwidthLine, report_gbits: bool) -> String {
    let unit = if report_gbits { 1e9 / 8.0 } else { f64::from(1 << 20) };
    let (peak, average) = (line.peak_bytes_per_second() / unit, line.bytes_per_second() / unit);
    let rate = line.messages_per_second() / 1e6;
    let mut row = format!(" {:<10} {:<14} {peak:<18.2} {average:<20.2} {rate:.6}\n", line.bytes, line.iterations);
    if line.lost() > 0 {
        row += &format!(" {:<10} {} of {} messages lost; only what arrived counts\n", "", line.lost(), line.iterations);
    }
    row
}

/// The same as JSON.
pub(crate) fn bandwidth_json(line: &BandwidthLine) -> Value {
    json!({
        "bytes": line.bytes,
        "iterations": line.iterations,
        "bw_peak_gbps": line.peak_bytes_per_second() * 8.0 / 1e9,
        "bw_average_gbps": line.bytes_per_second() * 8.0 / 1e9,
        "message_rate_mpps": line.messages_per_second() / 1e6,
        "seconds": line.seconds,
        "messages_lost": line.lost(),
        "messages_verified": line.verified,
    })
}

fn latency_row(line: &LatencyLine) -> String {
    let times = &line.microseconds;
    let values = [times.minimum(), times.maximum(), times.median(), times.mean(), times.standard_deviation()];
    let values: String = values.iter().map(|value| format!(" {value:<15.2}")).collect();
    let [high, higher] = [times.percentile(99.0), times.percentile(99.9)];
    let mut row = format!(" {:<10} {:<12}{values} {high:<22.2} {higher:.2}\n", line.bytes, times.count());
    if line.lost > 0 {
        row += &format!(" {:<10} {} messages lost, on either way\n", "", line.lost);
    }
    row
}

fn latency_json(line: &LatencyLine) -> Value {
    let times = &line.microseconds;
    json!({
        "bytes": line.bytes,
        "iterations": times.count(),
        "t_min_us": times.minimum(),
        "t_max_us": times.maximum(),
        "t_typical_us": times.median(),
        "t_avg_us": times.mean(),
        "t_stdev_us": times.standard_deviation(),
        "p99_us": times.percentile(99.0),
        "p99_9_us": times.percentile(99.9),
        "messages_lost": line.lost,
    })
}

/// Contents were wrong, in a measurement whose result is printed all the same.
pub(crate) fn wrong_contents(mismatch: &str) -> Stop {
    Stop::Failed(format!("contents are not what was sent: {mismatch}")).shown()
}

/// Messages were lost, in a measurement whose result is printed all the same; `None` when all have arrived.
pub(crate) fn lost_messages(lost: u64) -> Option<Stop> {
    let text = || {
        format!(
            "{lost} messages were lost: UC and UD repeat nothing. Only what arrived counts; a lower --rate_limit, RC or --scheme lose none"
        )
    };
    (lost > 0).then(|| Stop::Failed(text()).shown())
}

/// Everything in one line.
pub(crate) fn to_json(heading: &Heading, results: &[SizeResult], impairment: Value, fec_counters: Value) -> Value {
    let Heading { plan, mtu, ours, theirs, .. } = heading;
    json!({
        "schema": 1,
        "test": plan.test.name(),
        "operation": plan.operation.name(),
        "device": heading.device_name,
        "client_device": ours.device,
        "server_device": theirs.device,
        "connection": plan.connection.transport().abbreviation(),
        "queue_pairs": plan.queue_pairs,
        "outstanding_reads": plan.operation.is_answered().then_some(heading.outstanding_reads),
        "mtu_bytes": mtu.byte_count(),
        "rate_limit_bits_per_second": heading.rate_limit(),
        "congestion": heading.congestion.map(|name| name.to_string()),
        "local": { "address": ours.address, "udp_port": ours.udp_port },
        "remote": { "address": theirs.address, "udp_port": theirs.udp_port },
        "verified": plan.verify_seed.is_some(),
        "fec_counters": fec_counters,
        "impairment": impairment,
        "results": results.iter().map(row_json).collect::<Vec<_>>(),
    })
}
