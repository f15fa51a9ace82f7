//! `longhaul perf wan` as a user runs it, a few seconds of it. Where network namespaces are not allowed, a test says that it
//! was skipped.

use crate::perf_server;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use perf_server::perf;

/// What a race of a few rows takes at most, each of them run three times.
const PATIENCE: &str = "150";

fn run(arguments: &str) -> Output {
    let mut command = Command::new("timeout");
    command.args([PATIENCE, env!("CARGO_BIN_EXE_longhaul"), "perf", "wan", "--json"]);
    command.args(arguments.split_whitespace()).stdin(Stdio::null()).output().expect("the command runs")
}

/// What it prints; `None` where namespaces are not allowed.
fn race(arguments: &str) -> Option<Value> {
    let output = run(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(3) && said.contains("namespace") {
        eprintln!("SKIPPED: {said}");
        return None;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{arguments}: {text} {said}");
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    Some(serde_json::from_str(&text).expect("one JSON object"))
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

fn folder(test: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("wan-{test}-{}", std::process::id()))
}

#[test]
fn a_row_of_each_system_and_its_files() {
    let folder = folder("rows");
    std::fs::create_dir_all(&folder).expect("a folder");
    let csv = folder.join("rows.csv");
    let files = format!("--csv {} --svg {}", csv.display(), folder.display());
    let arguments =
        format!("--system tcp-cubic,rc,sr:nack,ec:mds --seconds 2 --rtt 5ms --loss 1e-3 --rate 30M {files}");
    let Some(value) = race(&arguments) else { return };
    assert_eq!(value["schema"], 1);
    let rows = value["rows"].as_array().expect("rows");
    let systems: Vec<&str> = rows.iter().filter_map(|row| row["system"].as_str()).collect();
    assert!(matches!(systems[..], ["tcp-cubic", "rc", "sr:nack", code] if code.starts_with("ec:mds:")), "{systems:?}");
    let expected = [
        "system",
        "kind",
        "seconds",
        "connections",
        "rtt_ms",
        "queue_ms",
        "loss",
        "burst",
        "message_bytes",
        "mtu",
        "goodput_mbit_per_second",
        "goodput_of_link",
        "completion_ms",
        "messages",
        "late_frames",
        "late_frames_by_host",
        "valid",
    ];
    for row in rows {
        assert_eq!(keys(row), BTreeSet::from(expected), "{row}");
        assert_eq!(
            (&row["connections"], &row["rtt_ms"], &row["loss"]),
            (&1.into(), &5.0.into(), &1e-3.into()),
            "{row}"
        );
        let of_link = row["goodput_of_link"].as_f64().expect("a share");
        assert!(of_link > 0.05 && of_link <= 1.0, "{row}");
        assert_eq!((&row["kind"], &row["seconds"]), (&"bulk".into(), &2.0.into()), "{row}");
        assert!(row["completion_ms"].is_null() && row["messages"].is_null(), "{row}");
    }
    assert_eq!(value["skipped"].as_array().map(Vec::len), Some(0), "no check asks for these: {value}");
    assert_eq!(value["options"].as_array().map(Vec::len), Some(4), "{value}");
    let checks = value["checks"].as_array().expect("checks");
    assert!(checks.iter().all(|check| check["good"] == true && check["measured"].is_number()), "{checks:?}");
    let text = std::fs::read_to_string(&csv).expect("a file");
    assert!(text.lines().count() == 5 && text.starts_with("system,connections,"), "{text}");
    let picture = std::fs::read_to_string(folder.join("goodput-5ms-mtu1500.svg")).expect("a picture");
    assert!(picture.contains("<svg") && picture.contains("tcp-cubic"), "{picture}");
    std::fs::remove_dir_all(folder).expect("it was there");
}

#[test]
fn completion_times_of_messages() {
    let arguments = "--measure completion --system tcp-bbr,sr:nack,rc --size 64KiB --rtt 10ms --seconds 2 --rate 50M";
    let Some(value) = race(arguments) else { return };
    let rows = value["rows"].as_array().expect("rows");
    // A kernel may have no bbr, and then says so.
    let missing = value["unfinished"].as_array().map_or(0, Vec::len);
    assert_eq!(rows.len() + missing, 3, "{value}");
    for row in rows {
        let [p50, longest] = ["p50", "longest"].map(|name| row["completion_ms"][name].as_f64().expect("a time"));
        // Half a round trip and 64 KiB at 50 Mbit/s, without loss.
        assert!(p50 > 5.0 + 10.0 && p50 < 200.0 && longest >= p50, "{row}");
        let messages = row["messages"].as_u64().expect("a number");
        assert!(messages > 0 && row["completion_ms"]["p99"].is_number() == (messages >= 100), "{row}");
        assert!(row["goodput_of_link"].is_null(), "{row}");
    }
}

#[test]
fn two_next_to_each_other() {
    let Some(value) = race("--measure shares --seconds 3 --rate 50M") else { return };
    assert_eq!(value["rows"].as_array().map(Vec::len), Some(0), "{value}");
    let skipped = value["skipped"].as_array().expect("what was not judged");
    assert!(skipped.len() == 3 && skipped.iter().all(|one| one["why"].is_string()), "too short: {skipped:?}");
    for share in value["shares"].as_array().expect("shares") {
        let [ours, theirs] = ["ours", "theirs"].map(|name| share[name].as_f64().expect("a share"));
        assert!(share["valid"].is_boolean() && share["late_frames"].is_u64() && share["seconds"] == 3.0, "{share}");
        assert!(ours >= 0.0 && theirs >= 0.0 && ours + theirs > 0.1 && ours + theirs <= 2.0, "{share}");
    }
}

#[test]
fn mistakes_are_explained() {
    for (arguments, expected) in [
        ("--system tcp", "unknown system \"tcp\"; use tcp-cubic"),
        ("--rtt 5s", "expected 100us to 1s"),
        ("--loss 0.9", "at most 0.5"),
        ("--rate 1k", "expected 1M to 20G"),
        ("--connections 0", "--connections"),
        ("--mtu 500", "--mtu"),
        ("--measure nothing", "--measure"),
    ] {
        let output = run(arguments);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.code() == Some(2) && text.contains(&expected.replace('"', "\\\"")),
            "{arguments}: {output:?}"
        );
    }
}

#[test]
fn files_that_cannot_be_written_are_found_before_the_race() {
    let folder = folder("files");
    std::fs::create_dir_all(&folder).expect("a folder");
    let (missing, file) = (folder.join("missing/rows.csv"), folder.join("file"));
    std::fs::write(&file, "").expect("a file");
    for (option, path) in [("--csv", &missing), ("--svg", &file)] {
        let output = run(&format!("--seconds 600 {option} {}", path.display()));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(3) && text.contains(option), "{option}: {output:?}");
    }
    std::fs::remove_dir_all(folder).expect("it was there");
}

#[cfg(not(feature = "quic"))]
#[test]
fn without_the_feature_it_says_how_to_get_quic() {
    let output = run("--system quic --seconds 1 --rtt 1ms");
    let text = String::from_utf8_lossy(&output.stdout);
    let is_skipped = text.contains("namespace");
    assert!(output.status.code() == Some(3) && (is_skipped || text.contains("--features quic")), "{output:?}");
}

#[cfg(feature = "quic")]
#[test]
fn quic_takes_part() {
    let Some(value) = race("--system quic,quic:bbr --seconds 2 --rtt 5ms --rate 30M") else { return };
    let rows = value["rows"].as_array().expect("rows");
    let systems: Vec<&str> = rows.iter().filter_map(|row| row["system"].as_str()).collect();
    assert_eq!(systems, ["quic:cubic", "quic:bbr"], "without loss, the first is the better one");
    assert!(rows.iter().all(|row| row["goodput_of_link"].as_f64().is_some_and(|share| share > 0.05)), "{value}");
}

/// A race that runs, killed with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_race_that_is_killed_leaves_nobody_behind() {
    let arguments = ["wan", "--system", "sr:nack", "--seconds", "60"];
    let started = perf(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut running = Running(started);
    let log = BufReader::new(running.0.stderr.take().expect("it was asked for as a pipe"));
    let says_that_it_runs = log.lines().map_while(Result::ok).any(|line| line.starts_with("1/1 "));
    if !says_that_it_runs {
        eprintln!("SKIPPED: namespaces are not allowed");
        return;
    }
    let id = running.0.id();
    let ends = wait_for(|| Some(children(id)).filter(|ends| ends.len() == 2)).expect("two ends");
    running.0.kill().expect("it runs");
    running.0.wait().expect("it has ended");
    let is_gone = |id: &u32| !is_end(*id);
    assert!(wait_for(|| ends.iter().all(is_gone).then_some(())).is_some(), "{ends:?} go on");
}

fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(30) {
        if let Some(seen) = look() {
            return Some(seen);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    None
}

/// Whether this process is an end of a race.
fn is_end(id: u32) -> bool {
    std::fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| line.ends_with(b"wan-end\0"))
}

/// The ends that a process has started.
fn children(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").expect("processes").flatten();
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |id: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        status.lines().any(|line| line.split_whitespace().eq(["PPid:", &parent.to_string()])) && is_end(*id)
    };
    ids.filter(is_child).collect()
}
