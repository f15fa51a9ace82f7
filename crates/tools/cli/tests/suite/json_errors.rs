//! With `--json` every error is one line of JSON on standard output too, whichever command it comes from.

use std::process::Command;

use serde_json::Value;

/// The error that a command prints, and its exit status.
fn error(arguments: &str) -> (String, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    let output = command.args(arguments.split(' ')).arg("--json").output().expect("the command runs");
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(text.lines().count(), 1, "{arguments}: {text}");
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value["schema"], 1, "{arguments}: {text}");
    let error = value["error"].as_str().expect("an error").to_owned();
    assert!(String::from_utf8_lossy(&output.stderr).contains(&error), "{arguments}: people read it too");
    (error, output.status.code())
}

#[test]
fn arguments_that_no_command_knows() {
    let commands = [
        "conformance",
        "devices",
        "interop client host",
        "interop server",
        "perf bitmap",
        "perf client host",
        "perf coding",
        "perf hadamard",
        "perf compare",
        "perf pingpong",
        "perf quic --certificate file",
        "perf sdr",
        "perf server",
        "perf wan",
        "plan",
        "plan figures",
        "plan validate",
        "report",
        "sim completion",
        "sim scale",
        "sim soak",
        "sim throughput",
        "sim timeout",
    ];
    for command in commands {
        let (error, status) = error(&format!("{command} --nonsense"));
        assert!(error.starts_with("unexpected argument '--nonsense'"), "{command}: {error}");
        assert_eq!(status, Some(2), "{command}");
    }
    assert_eq!(error("nonsense").1, Some(2));
    assert_eq!(error("perf client").1, Some(2), "the host is missing");
}

#[test]
fn arguments_that_mean_nothing_together() {
    for (command, word) in [
        ("conformance -d softnic --soak --seeds 2 --capture file", "--seeds 1"),
        ("conformance -d softnic --filter nonsense", "--list"),
        ("conformance -d softnic --reliable --messages 0", "--messages"),
        ("conformance -d softnic --reliable --sizes 1,99999999999999", "512 MiB"),
        ("conformance -d softnic:nowhere", "nowhere"),
        ("interop server", "--once"),
        ("perf bitmap --at-least nan", "0.5"),
        ("perf client 127.0.0.1 -n 0", "at least 1"),
        ("perf client 127.0.0.1 -s 2GiB", "1 byte to 1 GiB"),
        ("perf client 127.0.0.1 --rate 5X", "as in 400G"),
        ("perf client 127.0.0.1:http", "host:port"),
        ("plan --rate 1G --rtt 1ms --loss 1 --size 1MiB", "--loss"),
        ("sim completion --size 0", "1 byte"),
        ("sim scale --nodes 60000 --queue-pairs 100000", "queue pairs"),
        ("sim soak --messages --only 1", "--seeds 1"),
        ("sim soak --messages --threads 0", "--threads"),
        ("sim soak --seeds 2 --capture file", "--seeds 1"),
        ("sim throughput --packets 0", "--packets"),
        ("sim timeout --ranks 3", "--ranks"),
        ("sim timeout --ranks 1024 --operations 1000000", "at most 20000000"),
        ("sim timeout --first-seed 18446744073709551615", "--first-seed"),
        ("sim timeout --target 60%", "from 0.05% to 50%"),
        ("perf hadamard --loss 0.1% --trials 16", "--trials"),
        ("perf hadamard --loss 60%", "from 0.1% to 50%"),
    ] {
        let (error, status) = error(command);
        assert!(error.contains(word) && status == Some(2), "{command}: {status:?} {error}");
    }
}

#[test]
fn what_is_missing_on_this_host() {
    for (command, word) in [
        ("conformance -d no-such-device", "no-such-device"),
        ("interop client 127.0.0.1 --port 1", "longhaul interop server"),
        // Before anybody is connected to: nobody listens at port 1.
        ("interop client 127.0.0.1 --port 1 -d no-such-device", "no-such-device"),
        ("perf client 127.0.0.1 --port 1 -d no-such-device", "no-such-device"),
        ("perf pingpong 127.0.0.1 --port 1 -d no-such-device", "no-such-device"),
        ("plan --rate 1G --rtt 1ms --loss 0 --size 1 --coding-speed 1 --plot /proc/nowhere/file.svg", "--plot"),
        ("plan figures --out /proc/nowhere", "--out"),
        ("sim soak --seeds 1 --operations 1 --capture /proc/nowhere/file", "capture"),
    ] {
        let (error, status) = error(command);
        assert!(error.contains(word) && status == Some(3), "{command}: {status:?} {error}");
    }
}

/// A result that misses what was asked of it is still the one line, and says so.
#[test]
fn a_result_that_shows_the_error() {
    let (error, status) = error("sim throughput --packets 100 --rounds 1 --at-least 1000000000000");
    assert!(error.contains("1000000000000 packets a second") && status == Some(1), "{status:?} {error}");
}
