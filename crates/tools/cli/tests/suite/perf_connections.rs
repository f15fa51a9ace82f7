//! `longhaul perf connections`: what connections cost, and that it is what it should be.

use crate::perf_server;

use perf_server::{finish, number, perf};
use serde_json::Value;

/// What an idle connection may take of resident memory.
const BYTES_PER_IDLE_CONNECTION_MAX: f64 = 32.0 * 1024.0;
const CONNECTIONS: f64 = 400.0;

#[test]
fn connections_cost_a_descriptor_and_little_memory() {
    let arguments = ["connections", "--connections", "1,400", "--seconds", "0.5", "--idle-seconds", "2", "--json"];
    let output = finish(perf(&arguments));
    assert!(output.status.success(), "{output:?}");
    let value: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(value["schema"], 1, "{value}");
    let [one, many] = value["rows"].as_array().expect("rows").as_slice() else { panic!("two rows: {value}") };
    assert_eq!([number(one, "connections"), number(many, "connections")], [1.0, CONNECTIONS]);
    assert_eq!(number(one, "threads"), number(many, "threads"), "no thread for a connection: {value}");
    let descriptors = number(many, "descriptors_per_connection") * CONNECTIONS;
    assert!((CONNECTIONS..=CONNECTIONS + 64.0).contains(&descriptors), "{value}");
    let bytes = number(many, "bytes_per_idle_connection");
    assert!((1000.0..=BYTES_PER_IDLE_CONNECTION_MAX).contains(&bytes), "{value}");
    // Other tests may run at the same time, but an idle endpoint does not look for work. A hundredth is the aim.
    assert!(number(many, "idle_cpu_share") < 0.05, "{value}");
    assert!(number(many, "messages_per_second") > 0.0 && number(many, "jain") > 0.5, "{value}");
}

#[test]
fn the_table_is_for_people_and_errors_name_what_is_allowed() {
    let output = finish(perf(&["connections", "--connections", "2", "--seconds", "0.1", "--idle-seconds", "0.1"]));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for words in ["connections", "threads", "descriptors", "KiB, idle each", "messages/s", "Jain"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    for (arguments, words) in
        [(["--connections", "0"], "1"), (["--seconds", "0"], "0.1 and 600"), (["--scheme", "sr:never"], "sr:nack")]
    {
        let output = finish(perf(&[&["connections"], &arguments[..]].concat()));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
}
