//! What is said of a device before and after its use.

use longhaul_impair::Counters;
use longhaul_perf::{Finish, OpenedDevice};
use longhaul_softnic_udp::{CaptureSummary, CodeChange, DecoderCounters, EncoderCounters, PathStatus};
use serde_json::{Value, json};

use crate::stop::Stop;

/// What the host lacks for this device to do its best, to standard error.
pub(crate) fn warnings(device: &OpenedDevice) {
    device.warnings().for_each(|warning| eprintln!("warning: {warning}"));
}

/// Nothing more is sent: says on standard error what `--impair` did, and whether all of `--capture` is in its file.
pub(crate) fn finish(finish: &Finish) -> Result<(), Stop> {
    if let Some(counters) = &finish.impairment {
        eprintln!("{}", impairment_text(counters));
    }
    if let Some(counters) = &finish.fec {
        eprintln!("{}", fec_text(counters));
    }
    finish.fec_paths.iter().for_each(|path| eprintln!("{}", path_text(path)));
    match &finish.capture {
        None | Some(Ok(CaptureSummary { frames_left_out: 0, .. })) => Ok(()),
        Some(Ok(CaptureSummary { frames_written, frames_left_out, .. })) => {
            eprintln!(
                "warning: --capture: the file has reached its greatest size; {frames_written} packets are in it, {frames_left_out} are not"
            );
            Ok(())
        }
        Some(Err(error)) => Err(Stop::from_perf(error)),
    }
}

/// What `--impair` has done to the packets, for people.
fn impairment_text([sent, received]: &[Counters; 2]) -> String {
    let direction = |of: &str, counters: &Counters| {
        let parts = [
            (counters.lost, "lost"),
            (counters.queue_full, "dropped by a full queue"),
            (counters.duplicated, "duplicated"),
            (counters.reordered, "held back"),
            (counters.corrupted, "damaged"),
            (counters.ecn_marked, "marked"),
        ];
        let parts = parts.into_iter().filter(|(count, what)| *count > 0 || *what == "lost");
        let parts: Vec<String> = parts.map(|(count, what)| format!("{count} {what}")).collect();
        format!("of {} packets {of}, {}", counters.packets, parts.join(", "))
    };
    format!("--impair: {}; {}", direction("sent", sent), direction("received", received))
}

/// What `--fec` has done, for people.
fn fec_text((sent, received): &(EncoderCounters, DecoderCounters)) -> String {
    let mut text = format!(
        "--fec: {} packets sent with {} repair packets; {} restored of what came, {} times a loss could not be repaired",
        sent.protected,
        sent.repairs,
        received.restored + received.restored_acknowledgements,
        received.given_up
    );
    let unprotected = sent.no_unit + sent.no_flow + sent.unfit;
    if unprotected > 0 {
        text +=
            &format!("; {unprotected} packets were sent unprotected: too many queue pairs or too large blocks at once");
    }
    if sent.over_bound > 0 {
        text += &format!(
            "; {} blocks had no repair packets, which would have exceeded the bound of overhead",
            sent.over_bound
        );
    }
    text
}

/// How the code has followed the link, for people.
fn path_text(path: &PathStatus) -> String {
    let mut text = format!(
        "--fec: to {}: {} now, loss {:.2e} in bursts of {:.1} in the last {} packets; code changes: {}",
        path.peer,
        path.code,
        path.loss,
        path.mean_burst_packets,
        path.sample_packets,
        path.changes.len()
    );
    for change in &path.changes {
        text += &format!("\n  {:9.3} s  {change}", seconds(change));
    }
    text
}

/// On the clock of the device.
fn seconds(change: &CodeChange) -> f64 {
    change.at.as_nanos() as f64 / 1e9
}

/// The same for programs.
pub(crate) fn fec_paths_json(paths: &[PathStatus]) -> Value {
    let change = |change: &CodeChange| {
        json!({
            "at_seconds": seconds(change),
            "from": change.from.to_string(),
            "to": change.to.to_string(),
            "reason": change.reason.name(),
            "loss": change.loss,
            "mean_burst_packets": change.mean_burst_packets,
            "sample_packets": change.sample_packets,
            "sample_bursts": change.sample_bursts,
            "in_flight_packets": change.in_flight_packets,
            "message_packets": change.message_packets,
            "unrepaired": { "before": change.unrepaired[0], "after": change.unrepaired[1] },
            "overhead": { "before": change.overhead[0], "after": change.overhead[1] },
            "unrepaired_max": change.unrepaired_max,
        })
    };
    let path = |path: &PathStatus| {
        json!({
            "peer": path.peer.to_string(),
            "code": path.code.to_string(),
            "sample_packets": path.sample_packets,
            "loss": path.loss,
            "mean_burst_packets": path.mean_burst_packets,
            "changes": path.changes.iter().map(change).collect::<Vec<_>>(),
        })
    };
    paths.iter().map(path).collect::<Vec<_>>().into()
}

/// The same for programs; `null` without it.
pub(crate) fn fec_json(counters: Option<(EncoderCounters, DecoderCounters)>) -> Value {
    let Some((sent, received)) = counters else {
        return Value::Null;
    };
    json!({
        "protected_packets": sent.protected,
        "unprotected_packets": sent.no_unit + sent.no_flow + sent.unfit,
        "repair_packets": sent.repairs,
        "restored_packets": received.restored + received.restored_acknowledgements,
        "given_up": received.given_up,
        "not_kept": received.no_unit + received.no_flow + received.no_room,
        "refused": received.refused + received.malformed + received.wrong_blocks,
        "reports_sent": sent.reports,
        "reports_used": sent.reports_used,
        "reports_refused": sent.reports_refused,
        "code_changes": sent.code_changes,
        "over_bound_blocks": sent.over_bound,
    })
}

/// What `--impair` has done to the packets, for programs; `null` without it.
pub(crate) fn impairment_json(counters: Option<[Counters; 2]>) -> Value {
    let Some([sent, received]) = counters else {
        return Value::Null;
    };
    let direction = |counters: Counters| {
        json!({
            "packets": counters.packets,
            "lost": counters.lost,
            "queue_full": counters.queue_full,
            "duplicated": counters.duplicated,
            "reordered": counters.reordered,
            "corrupted": counters.corrupted,
            "ecn_marked": counters.ecn_marked,
        })
    };
    json!({ "sent": direction(sent), "received": direction(received) })
}
