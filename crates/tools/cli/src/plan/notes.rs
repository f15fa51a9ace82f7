//! What a reader of any answer should know: said below the table, and in `notes` of the JSON.

use longhaul_plan::digits::significant;
use longhaul_plan::link::Link;
use serde_json::{Value, json};

use super::table::rate_text;

/// What messages with a scheme reach with our software RNIC on one host: `sdr-sr` of docs/PERFORMANCE.md, rounded down.
/// A faster host may do more, and `longhaul perf compare` measures it.
pub(super) const SOFTNIC_BITS_PER_SECOND: f64 = 20e9;

/// A note.
pub(super) struct Note {
    /// For programs: it stays the same whatever the text says.
    pub(super) key: &'static str,
    /// For people: what the note is about.
    pub(super) heading: &'static str,
    /// A sentence without its full stop.
    pub(super) text: String,
}

impl Note {
    pub(super) fn to_json(&self) -> Value {
        json!({ "key": self.key, "text": self.text })
    }
}

/// That the software RNIC is slower than the link, where it is.
pub(super) fn softnic(link_bits_per_second: f64) -> Option<Note> {
    (link_bits_per_second > SOFTNIC_BITS_PER_SECOND).then(|| Note {
        key: "softnic_slower_than_link",
        heading: "Software RNIC",
        text: format!(
            "softnic reaches about {} on one host (docs/PERFORMANCE.md), less than this link's {}, so this plan is for hardware \
             NICs; for softnic, plan with --rate {}G",
            rate_text(SOFTNIC_BITS_PER_SECOND),
            rate_text(link_bits_per_second),
            SOFTNIC_BITS_PER_SECOND / 1e9,
        ),
    })
}

/// How a distance became a round trip.
pub(super) fn distance(kilometres: f64) -> Note {
    let milliseconds = Link::round_trip_over(kilometres) * 1e3;
    Note {
        key: "distance",
        heading: "Distance",
        text: format!(
            "{} km there and back take {} ms at the speed of light, which is how the SDR-RDMA paper counts; in glass about {} ms \
             (give that as --rtt)",
            significant(kilometres),
            significant(milliseconds),
            significant(1.5 * milliseconds)
        ),
    }
}
