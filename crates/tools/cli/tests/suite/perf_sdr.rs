//! `longhaul perf sdr`: every size of messages with every size of chunks, next to RC, in the time that was asked for.

use crate::perf_server;

use std::time::{Duration, Instant};

use perf_server::{finish, number, perf};
use serde_json::Value;

#[test]
fn every_size_has_a_row_next_to_rc() {
    let begin = Instant::now();
    let arguments = ["sdr", "--sizes", "5000,64KiB", "--chunks", "4KiB,16KiB", "--seconds", "1", "--json"];
    let output = finish(perf(&arguments));
    assert!(output.status.success(), "{output:?}");
    // A second of measuring; the rest is for opening devices, and for a busy machine.
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    let value: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!((&value["schema"], &value["messages_in_flight"]), (&1.into(), &16.into()), "{value}");
    let rows = value["rows"].as_array().expect("rows");
    let shapes: Vec<_> = rows.iter().map(|row| [number(row, "message_bytes"), number(row, "chunk_bytes")]).collect();
    assert_eq!(shapes, [[5000.0, 4096.0], [5000.0, 16384.0], [65536.0, 4096.0], [65536.0, 16384.0]], "{value}");
    for row in rows {
        let (sdr, rc) = (number(row, "gigabits_per_second"), number(row, "rc_gigabits_per_second"));
        assert!(sdr > 0.0 && rc > 0.0 && number(row, "messages") > 0.0, "{row}");
        assert!((number(row, "ratio") - sdr / rc).abs() < 1e-6, "{row}");
    }
}

#[test]
fn the_table_is_for_people_and_errors_name_what_is_allowed() {
    let output = finish(perf(&["sdr", "--sizes", "4KiB", "--chunks", "4KiB", "--seconds", "0.2"]));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for words in ["SDR Gbit/s", "RC Gbit/s", "SDR/RC", "4 KiB"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    for (arguments, words) in [
        (["--chunks", "1000"], "multiple of 4096 up to 1 MiB"),
        (["--sizes", "0"], "1 byte to 512 MiB"),
        (["--sizes", "64MiB"], "at most 33554432 bytes"),
    ] {
        let output = finish(perf(&[&["sdr"], &arguments[..]].concat()));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
}
