//! `longhaul plan` as a user runs it: what README.md shows, what programs read, and what it says when something cannot be.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A directory of its own for what is kept, with a speed of coding in it: the output does not depend on the machine.
fn kept(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("longhaul-plan-{name}-{}", std::process::id()));
    std::fs::create_dir_all(directory.join("longhaul")).expect("a directory");
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = cpuinfo.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
    let text = serde_json::json!({
        "processor": processor.map_or("", |(_, name)| name.trim()),
        "version": env!("CARGO_PKG_VERSION"),
        "mds_bytes_per_second": 9.9e9,
        "xor_bytes_per_second": 14.2e9,
    });
    std::fs::write(directory.join("longhaul").join("coding-speed.json"), text.to_string()).expect("a file");
    directory
}

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

/// Every `longhaul plan` that README.md shows prints what README.md shows below it.
#[test]
fn readme_shows_what_the_command_prints() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).expect("README.md");
    let cache = kept("readme");
    let mut shown = 0;
    for part in readme.split("```sh\ntarget/release/longhaul plan ").skip(1) {
        let (command, rest) = part.split_once("\n```\n").expect("a block ends");
        let Some(expected) = rest.strip_prefix("\n```text\n") else { continue };
        let (expected, _) = expected.split_once("\n```\n").expect("a block ends");
        let arguments: Vec<&str> = command.split_whitespace().collect();
        assert_eq!(stdout(&plan_in(&cache, &arguments)).trim_end(), expected, "longhaul plan {command}");
        shown += 1;
    }
    assert!(shown >= 2, "README.md shows {shown} of them");
    std::fs::remove_dir_all(cache).expect("ours");
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
        (vec!["--rate", "400G", "--loss", "0", "--size", "1"], "--rtt"),
        (on_link(&["--size", "0"]), "1 byte to 2 TiB"),
        (on_link(&["--size", "3TiB"]), "1 byte to 2 TiB"),
        (on_link(&["--size", "1MiB", "--chunk", "5000"]), "take 4096 or change --packet"),
        (on_link(&["--size", "1MiB", "--packet", "1MiB"]), "256, 512, 1024, 2048 and 4096"),
        (on_link(&["--size", "1MiB", "--burst", "0.5"]), "take more, or leave it out"),
        (on_link(&["--size", "1MiB", "--ring", "1"]), "2 to 64 sites"),
        (on_link(&["--size", "1MiB", "--scheme", "ec:mds:300,8"]), "at most 255"),
        (on_link(&["--size", "1MiB", "--scheme", "tcp"]), "expected sr:rto"),
        (on_link(&["--size", "1MiB", "--objective", "p42"]), "mean, p99 or p999"),
        (vec!["--rate", "1G", "--rtt", "1ms", "--loss", "1", "--size", "1MiB"], "nothing would ever arrive"),
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

/// Measured once, and kept.
#[test]
fn how_fast_this_machine_codes_is_kept() {
    let cache = std::env::temp_dir().join(format!("longhaul-plan-speed-{}", std::process::id()));
    std::fs::create_dir_all(&cache).expect("a directory");
    let told: Vec<bool> = (0..2)
        .map(|_| {
            let output = plan_in(&cache, &on_link(&["--size", "128MiB", "--json"]));
            assert!(json(&output)["coding_bytes_per_second"]["mds"].as_f64().is_some_and(|speed| speed > 1e7));
            String::from_utf8_lossy(&output.stderr).contains("measured how fast")
        })
        .collect();
    assert_eq!(told, [true, false]);
    std::fs::remove_dir_all(cache).expect("ours");
}
