//! What is said of a device before and after its use.

use longhaul_impair::Counters;
use longhaul_perf::{Finish, OpenedDevice};
use longhaul_softnic_udp::CaptureSummary;
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

/// The same for programs; `null` without it.
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
