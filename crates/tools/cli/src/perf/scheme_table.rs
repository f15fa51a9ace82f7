//! What a client with a reliability scheme prints.

use longhaul_perf::{ChecksumCost, Lateness, SchemeHeading, SchemeLine};
use serde_json::{Value, json};

use super::table;

fn rate(heading: &SchemeHeading) -> Option<u64> {
    heading.plan.rate_max()
}

pub(super) fn heading(heading: &SchemeHeading, report_gbits: bool) -> String {
    let rate_limit = table::rate_text(rate(heading));
    let congestion = heading.congestion.map_or_else(|| "none".to_owned(), |name| name.to_string());
    let is_latency = heading.plan.test.is_latency();
    let kind = if is_latency { "Completion" } else { "BW" };
    let mut text = format!("{}                    RDMA_Write {kind} Test with {}\n", table::RULE, heading.schemes);
    let mut pair = |left: (&str, String), right: (&str, String)| {
        text += &format!(" {:<16}: {:<18} {:<16}: {}\n", left.0, left.1, right.0, right.1);
    };
    pair(("Scheme", heading.schemes.to_string()), ("Connection type", "SDR over UC".to_owned()));
    pair(("Mtu", format!("{}[B]", heading.mtu_bytes)), ("Chunk", format!("{}[B]", heading.chunk_bytes)));
    pair(("In flight", format!("{} messages", heading.depth)), ("Rate limit", rate_limit));
    pair(
        ("Message", format!("{}[B]", heading.plan.message_bytes_max)),
        ("Verify contents", if heading.plan.verify_seed.is_some() { "ON" } else { "OFF" }.to_owned()),
    );
    text += &format!(" {:<16}: {congestion}\n", "Congestion");
    if let Some(deadline) = heading.deadline {
        text += &format!(" {:<16}: {deadline:?} from the posting of each receive\n", "Deadline");
    }
    if heading.checksum {
        text += &format!(" {:<16}: XXH3, 64 bits, verified by the server\n", "Checksum");
    }
    for (whose, contact) in [("Client device", &heading.ours), ("Server device", &heading.theirs)] {
        text += &format!(" {whose:<16}: {} at {}, UDP port {}\n", contact.device, contact.address, contact.udp_port);
    }
    text += table::RULE;
    if !is_latency {
        text += &table::bandwidth_columns(report_gbits);
    }
    text
}

pub(super) fn to_json(heading: &SchemeHeading, line: &SchemeLine, impairment: Value) -> Value {
    let SchemeHeading { plan, ours, theirs, .. } = heading;
    let mut value = json!({
        "schema": 1,
        "test": plan.test.name(),
        "operation": plan.operation.name(),
        "scheme": heading.schemes.to_string(),
        "client_device": ours.device,
        "server_device": theirs.device,
        "connection": plan.connection.transport().abbreviation(),
        "mtu_bytes": heading.mtu_bytes,
        "chunk_bytes": heading.chunk_bytes,
        "messages_in_flight": heading.depth,
        "rate_limit_bits_per_second": rate(heading),
        "congestion": heading.congestion.map(|name| name.to_string()),
        "local": { "address": ours.address, "udp_port": ours.udp_port },
        "remote": { "address": theirs.address, "udp_port": theirs.udp_port },
        "verified": plan.verify_seed.is_some(),
        "checksum": heading.checksum,
        // There is one size, so its most important values are here as well.
        "completion_us": completion_json(line),
        "repeated": line.repeated(),
        "duplicates": line.duplicates(),
        "impairment": impairment,
        "results": [line_json(line)],
    });
    add_bounded(line, &mut value);
    value["deadline_us"] = json!(heading.deadline.map(|deadline| deadline.as_secs_f64() * 1e6));
    value
}

/// What was missing of bounded messages and what ended them, as the receiver saw it, and what the sender heard of that.
fn add_bounded(line: &SchemeLine, value: &mut Value) {
    let Some(received) = line.receiver.bounded_received else { return };
    value["missing_bytes"] = json!(received.missing_bytes);
    value["missing_ranges"] = json!(received.missing_ranges);
    value["ended"] = json!({ "whole": received.whole, "quiet": received.quiet, "deadline": received.deadline });
    let lateness =
        |late: Option<Lateness>| json!(late.map(|late| json!({ "p50": late.p50, "p99": late.p99, "max": late.max })));
    value["late_us"] = lateness(received.late);
    value["ended_late_us"] = lateness(received.ended_late);
    value["after_end_us"] = lateness(received.after_end);
    let Some(sent) = line.sender.bounded_sent else { return };
    value["sender"] = json!({
        "missing_bytes": sent.missing_bytes,
        "missing_ranges": sent.missing_ranges,
        "whole": sent.whole,
        "partial": sent.partial,
        "unknown": sent.unknown,
    });
}

fn completion_json(line: &SchemeLine) -> Value {
    let completion = &line.completion;
    json!({
        "p50": completion.percentile(50.0),
        "p99": completion.percentile(99.0),
        "p999": completion.percentile(99.9),
        "max": completion.longest(),
    })
}

pub(super) fn row(result: &SchemeLine, report_gbits: bool) -> String {
    let SchemeLine { sender, receiver, completion, .. } = result;
    let mut text =
        if result.is_latency { String::new() } else { table::bandwidth_row(&result.bandwidth, report_gbits) };
    let mut line = |words: String| text += &format!(" {:<10} {words}\n", "");
    line(format!("completion of {} messages, from handing over to done:", completion.count()));
    line(format!(
        "min {:.1}, mean {:.1}, p50 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1} µs",
        completion.least(),
        completion.mean(),
        completion.percentile(50.0),
        completion.percentile(99.0),
        completion.percentile(99.9),
        completion.longest()
    ));
    line(format!(
        "{} data packets sent, {} of them repeats; {} duplicates arrived",
        sender.data_packets_sent,
        result.repeated(),
        result.duplicates()
    ));
    if let (Some(received), Some(sent)) = (receiver.bounded_received, sender.bounded_sent) {
        line(format!(
            "ended: {} whole, {} quiet, {} by the deadline; {} bytes missing, in {} ranges",
            received.whole, received.quiet, received.deadline, received.missing_bytes, received.missing_ranges
        ));
        if let (Some(late), Some(ended), Some(after)) = (received.late, received.ended_late, received.after_end) {
            let text = |late: Lateness| format!("p50 {:.1}, p99 {:.1}, max {:.1} µs", late.p50, late.p99, late.max);
            line(format!("those of the deadline ended {} after it", text(ended)));
            line(format!(
                "filling and handing over took {} more; they were there {} after it",
                text(after),
                text(late)
            ));
        }
        line(format!(
            "the sender heard of {} bytes missing in {} ranges; of {} messages it heard nothing in time",
            sent.missing_bytes, sent.missing_ranges, sent.unknown
        ));
    }
    if sender.parity_packets_sent > 0 {
        line(format!(
            "{} parity packets sent; {} chunks computed from {} of parity, {} of parity not needed",
            sender.parity_packets_sent,
            receiver.chunks_recovered,
            receiver.parity_chunks_used,
            receiver.parity_chunks_wasted
        ));
    }
    let round_trip = result.round_trip_us().map_or_else(|| "not measured".to_owned(), |time| format!("{time:.1} µs"));
    line(format!(
        "fell back {} times at the sender, {} at the receiver; round trip {round_trip}",
        sender.fallbacks, receiver.fallbacks
    ));
    let [client, server] = result.longest_pauses_us().map(|us| us / 1e3);
    line(format!("longest time for which an end stood still: client {client:.1} ms, server {server:.1} ms"));
    if let Some(checksum) = result.checksum {
        line(format!("checksums of {} bytes verified by the server, none differed", receiver.checksummed_bytes));
        checksum_text(&checksum).into_iter().for_each(line);
    }
    text
}

fn line_json(line: &SchemeLine) -> Value {
    let SchemeLine { bandwidth, sender, receiver, completion, .. } = line;
    let mut value = table::bandwidth_json(bandwidth);
    value["completion_us"] = completion_json(line);
    value["completion_us"]["min"] = json!(completion.least());
    value["completion_us"]["mean"] = json!(completion.mean());
    for (name, count) in [
        ("repeated", line.repeated()),
        ("duplicates", line.duplicates()),
        ("data_packets_sent", sender.data_packets_sent),
        ("data_packets_repeated", sender.data_packets_repeated),
        ("parity_packets_sent", sender.parity_packets_sent),
        ("duplicate_packets", receiver.duplicate_packets),
        ("late_packets", receiver.late_packets),
        ("parity_chunks_used", receiver.parity_chunks_used),
        ("parity_chunks_wasted", receiver.parity_chunks_wasted),
        ("chunks_recovered", receiver.chunks_recovered),
        ("sender_fallbacks", sender.fallbacks),
        ("receiver_fallbacks", receiver.fallbacks),
        ("feedback_records_sent", receiver.feedback_records),
        ("feedback_records_received", sender.feedback_records),
        ("checksummed_bytes_sent", sender.checksummed_bytes),
        ("checksummed_bytes_verified", receiver.checksummed_bytes),
    ] {
        value[name] = json!(count);
    }
    value["round_trip_us"] = json!(line.round_trip_us());
    let [client, server] = line.longest_pauses_us();
    value["longest_pause_us"] = json!({ "client": client, "server": server });
    add_checksum(line.checksum.as_ref(), &mut value);
    value
}

/// For people: what is compared with what.
fn checksum_text(cost: &ChecksumCost) -> [String; 2] {
    let price = format!(
        "a checksum takes {:.2} µs a message at each end ({:.1} GB/s), processor time, alone after the run on the same buffers;",
        cost.ns_per_message / 1e3,
        cost.bytes_per_second() / 1e9,
    );
    let run = format!(
        "that is {:.1} % of the {:.2} µs that each message took on average in the run",
        cost.over_message_time() * 100.0,
        cost.run_ns_per_message / 1e3
    );
    [price, run]
}

/// The same, for programs; nulls when checksums are off.
fn add_checksum(cost: Option<&ChecksumCost>, result: &mut Value) {
    let value = |of: fn(&ChecksumCost) -> f64| json!(cost.map(of));
    result["checksum_ns_per_message"] = value(|cost| cost.ns_per_message);
    result["checksum_ns_per_mebibyte"] = value(ChecksumCost::ns_per_mebibyte);
    result["checksum_bytes_per_second"] = value(ChecksumCost::bytes_per_second);
    result["checksum_over_message_time"] = value(ChecksumCost::over_message_time);
}
