//! `longhaul plan` as a user runs it: what programs read, and what it says when something cannot be.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde_json::Value;

use crate::kept_speed::{days_ago, kept};

fn plan_in(cache: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.arg("plan").args(arguments).env("XDG_CACHE_HOME", cache).current_dir(cache);
    command.output().expect("the command runs")
}

/// With a given speed of coding.
fn plan(arguments: &[&str]) -> Output {
    let arguments: Vec<&str> = arguments.iter().copied().chain(["--coding-speed", "9.9,14.2"]).collect();
    plan_in(&std::env::temp_dir(), &arguments)
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn json(output: &Output) -> Value {
    let text = stdout(output);
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

const LINK: [&str; 6] = ["--rate", "400G", "--rtt", "25ms", "--loss", "1e-5"];

fn on_link<'a>(more: &[&'a str]) -> Vec<&'a str> {
    LINK.into_iter().chain(more.iter().copied()).collect()
}

#[test]
fn programs_get_what_they_were_promised() {
    let value = json(&plan(&on_link(&["--size", "128MiB", "--json"])));
    assert_eq!(value["schema"], 1);
    let schemes = value["schemes"].as_array().expect("schemes");
    assert_eq!(schemes.len(), 6);
    for scheme in schemes {
        assert!(scheme["scheme"].is_string() && scheme["chunk_bytes"].is_u64(), "{scheme}");
        for key in ["slowdown", "extra_bandwidth", "cores", "window_bytes"] {
            assert!(scheme[key].is_number(), "{key} in {scheme}");
        }
        let at = |name: &str| scheme["completion_ms"][name].as_f64().expect(name);
        assert!(at("p50") <= at("p99") && at("p99") <= at("p999") && at("mean") >= 27.6, "{scheme}");
    }
    let recommendation = &value["recommendation"];
    let named = |key: &str| schemes.iter().any(|scheme| scheme["scheme"] == recommendation[key]);
    assert!(named("scheme") && named("second"), "{recommendation}");
    assert!(recommendation["reason"].is_string() && recommendation["margin"].is_number(), "{recommendation}");
}

#[test]
fn several_questions_at_once() {
    let arguments = ["--rate", "100G", "--distance", "1500km", "--loss", "0,1e-3", "--size", "64KiB,16MiB,1GiB"];
    let value = json(&plan(&[&arguments[..], &["--json"]].concat()));
    let answers = value["answers"].as_array().expect("answers");
    assert_eq!(answers.len(), 6);
    assert!(answers.iter().all(|answer| answer["rtt_ms"] == 10.0 && answer["recommendation"]["scheme"].is_string()));
    let csv = stdout(&plan(&[&arguments[..], &["--csv"]].concat()));
    let columns = |line: &str| line.replace("\"ec:mds:", "\"").split(',').count();
    assert_eq!(csv.lines().count(), 1 + 6 * 6, "{csv}");
    assert!(csv.lines().skip(1).filter(|line| line.contains("\"sr:")).all(|line| columns(line) == 18), "{csv}");
    assert_eq!(csv.lines().filter(|line| line.ends_with(",true")).count(), 6);
    let table = stdout(&plan(&arguments));
    assert!(table.contains("What to take") && table.contains("in glass"), "{table}");
}

#[test]
fn rings_deadlines_and_bursts() {
    let value = json(&plan(&on_link(&["--size", "128MiB", "--ring", "4", "--deadline", "200ms", "--json"])));
    assert_eq!(value["ring_sites"], 4);
    assert!(value["schemes"][0]["within_deadline"].as_f64().is_some_and(|share| (0.0..1.0).contains(&share)));
    let value = json(&plan(&on_link(&["--size", "1MiB", "--burst", "8", "--deadline", "13ms", "--json"])));
    // Half a round trip is 12.5 ms: sent once, all but the lost has arrived; acknowledged, nothing has.
    assert_eq!(value["burst_packets"], 8.0);
    assert!(value["arrived_once"]["mean"].as_f64().is_some_and(|share| (0.999..1.0).contains(&share)), "{value}");
    assert_eq!(value["schemes"][0]["within_deadline"], 0.0);
    let table = stdout(&plan(&on_link(&["--size", "1MiB", "--deadline", "13ms"])));
    assert!(
        table.contains("No scheme is done in time") && table.contains("later deadline, a shorter message"),
        "{table}"
    );
}

#[test]
fn a_picture() {
    let path = std::env::temp_dir().join(format!("longhaul-plan-{}.svg", std::process::id()));
    let path_text = path.to_str().expect("text");
    let output = plan(&on_link(&["--size", "1MiB,16MiB,128MiB", "--plot", path_text, "--json"]));
    json(&output);
    let picture = std::fs::read_to_string(&path).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.contains("Message size") && picture.contains("sr:nack"));
    std::fs::remove_file(path).expect("ours");
    let output = plan(&on_link(&["--size", "1MiB", "--plot", "/no/such/directory/plan.svg"]));
    assert_eq!(output.status.code(), Some(3));
}

/// Whatever cannot be has an answer that says what to change.
#[test]
fn mistakes_are_explained() {
    for (arguments, expected) in [
        (vec![], "--rate"),
        (on_link(&[]), "--size"),
        (vec!["--rate", "400G", "--loss", "0", "--size", "1"], "--rtt <TIME>|--distance <DISTANCE>"),
        (on_link(&["--size", "1", "--distance", "1km"]), "'--rtt <TIME>' cannot be used with '--distance <DISTANCE>'"),
        (on_link(&["--size", "0"]), "1 byte to 2 TiB"),
        (on_link(&["--size", "3TiB"]), "1 byte to 2 TiB"),
        (on_link(&["--size", "1MiB", "--chunk", "5000"]), "take 4096 or change --packet"),
        (on_link(&["--size", "1MiB", "--packet", "1MiB"]), "256, 512, 1024, 2048 and 4096"),
        (on_link(&["--size", "1MiB", "--burst", "0.5"]), "expected a --burst of 1.000 to 1000000 packets"),
        (on_link(&["--size", "1MiB", "--burst", "1e300"]), "expected a --burst of 1.000 to 1000000 packets"),
        (on_link(&["--size", "1MiB", "--ring", "1"]), "'1' for '--ring <SITES>': expected a whole number from 2 to 64"),
        (on_link(&["--size", "1MiB", "--ring", "65"]), "expected a whole number from 2 to 64"),
        (on_link(&["--size", "1MiB", "--ring", "four"]), "expected a whole number from 2 to 64"),
        (on_link(&["--size", "1MiB", "--scheme", "ec:mds:300,8"]), "at most 255"),
        (on_link(&["--size", "1MiB", "--scheme", "tcp"]), "use sr:rto"),
        (on_link(&["--size", "1MiB", "--objective", "p42"]), "mean, p99 or p999"),
        (vec!["--rate", "1G", "--rtt", "1ms", "--loss", "1", "--size", "1MiB"], "no message would arrive"),
        (
            vec![
                "--rate", "1G", "--rtt", "1ms", "--loss", "0.9", "--size", "1GiB", "--chunk", "1MiB", "--scheme",
                "ec:mds",
            ],
            "take a chunk of fewer packets",
        ),
    ] {
        let output = plan(&arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(output.stdout.is_empty() && error.contains(expected), "{arguments:?}: {error}");
    }
    let output = plan_in(&std::env::temp_dir(), &on_link(&["--size", "1MiB", "--coding-speed", "0"]));
    assert!(output.status.code() == Some(2) && String::from_utf8_lossy(&output.stderr).contains("perf coding"));
}

#[test]
fn a_missing_round_trip_is_one_line_of_json_too() {
    let output = plan(&["--rate", "400G", "--loss", "0", "--size", "1", "--json"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(text.lines().count(), 1, "{text}");
    let error = serde_json::from_str::<Value>(&text).expect("JSON")["error"].to_string();
    assert!(error.contains("--rtt") && error.contains("--distance"), "{error}");
}

/// The software RNIC cannot fill a fast link: people and programs are told.
#[test]
fn links_that_only_hardware_fills_are_noted() {
    let at = |rate: &'static str| ["--rate", rate, "--rtt", "25ms", "--loss", "1e-5", "--size", "128MiB"];
    let keys = |rate| {
        let value = json(&plan(&[&at(rate)[..], &["--json"]].concat()));
        value["notes"].as_array().expect("notes").iter().map(|note| note["key"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(keys("400G"), ["softnic_slower_than_link"]);
    assert!(keys("20G").is_empty());
    // The text is folded.
    let words = |rate| stdout(&plan(&at(rate))).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words("25G").contains("softnic reaches about 20 Gbit/s") && words("25G").contains("hardware NICs"));
    assert!(!words("20G").contains("softnic"));
    let performance = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/PERFORMANCE.md");
    let performance = std::fs::read_to_string(performance).expect("docs/PERFORMANCE.md");
    assert!(performance.contains("`longhaul plan` takes 20 Gbit/s"), "docs/PERFORMANCE.md has another rate");
}

/// Digits of a number that count: neither zeros before the first, nor zeros at the end of a whole number.
fn significant_digits(number: &str) -> usize {
    let mantissa = number.split('e').next().unwrap_or_default();
    let digits = mantissa.replace('.', "");
    let digits = digits.trim_start_matches('0');
    if mantissa.contains('.') { digits.len() } else { digits.trim_end_matches('0').len() }
}

#[test]
fn no_number_has_more_than_four_digits() {
    for arguments in [
        &["--rate", "123456789012", "--rtt", "25.123456ms", "--loss", "1.23456e-5", "--size", "123456789"][..],
        &["--rate", "400G", "--distance", "3751.237km", "--loss", "0,1e-3,0.123456", "--size", "12345,1GiB,2TiB"],
        &[
            "--rate",
            "1M",
            "--rtt",
            "1s",
            "--loss",
            "0.3",
            "--burst",
            "123.456",
            "--size",
            "123456789",
            "--deadline",
            "2000s",
        ],
        &[
            "--rate",
            "400G",
            "--rtt",
            "25ms",
            "--loss",
            "1e-3",
            "--size",
            "1000003",
            "--ring",
            "7",
            "--deadline",
            "987.654ms",
        ],
        &["--rate", "10T", "--rtt", "12345us", "--loss", "1e-6", "--size", "1GiB", "--packet", "1452"],
        &[
            "--rate",
            "10T",
            "--rtt",
            "0.3us",
            "--loss",
            "0.2",
            "--size",
            "2TiB",
            "--objective",
            "p999",
            "--chunk",
            "64KiB",
        ],
    ] {
        let text = stdout(&plan(arguments))
            + &stdout(&plan_in(&std::env::temp_dir(), &[arguments, &["--coding-speed", "0.0012345,12345.6"]].concat()));
        let is_part = |letter: char| letter.is_ascii_digit() || matches!(letter, '.' | 'e');
        let words = text.split(|letter: char| !is_part(letter)).map(|word| word.trim_matches(['.', 'e']));
        for number in words.filter(|word| word.starts_with(|letter: char| letter.is_ascii_digit())) {
            assert!(significant_digits(number) <= 4, "{number} in {text}");
        }
    }
}

/// A full disk is an error that names the file, for what goes to a file and for what goes to standard output.
#[test]
fn a_full_disk_is_an_error() {
    let output = plan(&on_link(&["--size", "1MiB", "--plot", "/dev/full", "--json"]));
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("/dev/full") && error.contains("No space left on device"), "{error}");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("{\"error\":"), "{output:?}");
    for kind in [&["--csv"][..], &["--json"], &[]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
        command.arg("plan").args(on_link(&["--size", "1MiB", "--coding-speed", "9"])).args(kind).stdout(full);
        let output = command.output().expect("the command runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{kind:?}: {error}");
        assert!(error.contains("standard output cannot be written: No space left on device"), "{error}");
        assert!(!error.contains("panicked"), "{error}");
    }
}

/// Measured once and kept, unless the host was busy; and measured again when it is old.
#[test]
fn how_fast_this_machine_codes_is_kept() {
    let measures = |cache: &Path| {
        let output = plan_in(cache, &on_link(&["--size", "128MiB", "--json"]));
        assert!(json(&output)["coding_bytes_per_second"]["mds"].as_f64().is_some_and(|speed| speed > 1e7));
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        message.contains("measured how fast").then(|| message.contains("the host was busy"))
    };
    let cache = std::env::temp_dir().join(format!("longhaul-plan-speed-{}", std::process::id()));
    std::fs::create_dir_all(&cache).expect("a directory");
    // Other tests may run on the same cores.
    let is_busy = measures(&cache).expect("nothing was kept");
    assert_eq!(cache.join("longhaul/coding-speed.json").exists(), !is_busy);
    assert!(is_busy || measures(&cache).is_none());
    std::fs::remove_dir_all(cache).expect("ours");

    for (days, expected) in [(6, false), (8, true)] {
        let cache = kept(&format!("{days}-days"), days_ago(days));
        assert_eq!(measures(&cache).is_some(), expected, "after {days} days");
        std::fs::remove_dir_all(cache).expect("ours");
    }
}

/// What a busy host measures is used and not kept.
#[test]
fn a_busy_host_keeps_nothing() {
    let cache = std::env::temp_dir().join(format!("longhaul-plan-busy-{}", std::process::id()));
    std::fs::create_dir_all(&cache).expect("a directory");
    // Threads and processes inherit the core that this thread is bound to.
    let myself = Pid::from_raw(0);
    let allowed = sched_getaffinity(myself).expect("the cores of this thread");
    let core = (0..CpuSet::count()).find(|core| allowed.is_set(*core) == Ok(true)).expect("a core");
    let mut one_core = CpuSet::new();
    one_core.set(core).expect("a core");
    sched_setaffinity(myself, &one_core).expect("one of the cores of this thread");
    let is_done = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let output = plan_in(&cache, &on_link(&["--size", "128MiB", "--json"]));
        is_done.store(true, Ordering::Relaxed);
        output
    });
    assert!(json(&output)["coding_bytes_per_second"]["mds"].as_f64().is_some_and(|speed| speed > 1e7));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("not kept, because the host was busy"), "{message}");
    assert!(!cache.join("longhaul").exists());
    std::fs::remove_dir_all(cache).expect("ours");
}
