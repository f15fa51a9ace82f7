//! `longhaul plan figures` as users run it; that docs/figures has what it writes; and that this is what the SDR-RDMA
//! paper says.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn figures(options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.args(["plan", "figures"]).args(options).output().expect("the command starts")
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// An empty directory for a test.
fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("plan_figures_{name}_{}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    path
}

/// The numbers of a text, and what is between them.
fn pieces(text: &str) -> (Vec<f64>, Vec<&str>) {
    let is_part = |letter: char| letter.is_ascii_digit() || letter == '.';
    let numbers = text.split(|letter| !is_part(letter)).filter_map(|word| word.parse().ok()).collect();
    (numbers, text.split(is_part).filter(|word| !word.is_empty()).collect())
}

/// The same but for the last bits of a logarithm, which are not the same on every host: a sheet has four units to the
/// pixel.
#[track_caller]
fn assert_same_picture(name: &str, written: &str, kept: &str) {
    let (one, other) = (pieces(written), pieces(kept));
    let is_close = one.0.iter().zip(&other.0).all(|(one, other)| (one - other).abs() <= 2.0);
    assert!(
        one.1 == other.1 && one.0.len() == other.0.len() && is_close,
        "{name} is not as docs/figures has it: {RENEW}"
    );
}

#[track_caller]
fn assert_same_table(name: &str, written: &str, kept: &str) {
    assert_eq!(written.lines().count(), kept.lines().count(), "{name}: {RENEW}");
    for (one, other) in written.lines().zip(kept.lines()) {
        assert_eq!(one.split(',').count(), other.split(',').count(), "{name}: {RENEW}");
        for (one, other) in one.split(',').zip(other.split(',')) {
            let is_same = match (one.parse::<f64>(), other.parse::<f64>()) {
                (Ok(one), Ok(other)) => (one - other).abs() <= 1e-4 * other.abs(),
                _ => one == other,
            };
            assert!(is_same, "{name}: {one} is {other} in docs/figures: {RENEW}");
        }
    }
}

const RENEW: &str =
    "run `longhaul plan figures --out docs/figures`, review the changes and update docs/figures/README.md";

#[test]
fn the_page_has_what_the_command_writes() {
    let directory = directory("page");
    let output = figures(&["--json", "--out", directory.to_str().expect("UTF-8")]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(text.lines().count(), 1, "{text}");
    let report: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!(report["schema"], 1, "{report}");
    // A minute on two cores; this is not the release profile.
    assert!(report["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0 && seconds < 60.0), "{report}");

    let files = report["files"].as_array().expect("a list");
    let paths: Vec<PathBuf> = files.iter().map(|file| file.as_str().expect("a path").into()).collect();
    let names: BTreeSet<String> =
        paths.iter().map(|path| path.file_name().expect("a name").to_string_lossy().into_owned()).collect();
    let figures = ["03a", "03b", "03c", "09", "10a", "10b", "10c", "10d", "12", "13", "15"];
    let expected = figures.iter().flat_map(|figure| ["svg", "csv"].map(|kind| format!("figure-{figure}.{kind}")));
    assert_eq!(names, expected.collect());
    let kept = docs().join("figures");
    let beside = fs::read_dir(&kept).expect("docs/figures").map(|entry| entry.expect("an entry").file_name());
    let beside: BTreeSet<String> = beside.map(|name| name.to_string_lossy().into_owned()).collect();
    assert_eq!(beside.into_iter().filter(|name| name != "README.md").collect::<BTreeSet<_>>(), names);

    let page = read(&kept.join("README.md"));
    for path in &paths {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(page.contains(&name), "docs/figures/README.md says nothing of {name}");
        match name.ends_with("csv") {
            true => assert_same_table(&name, &read(path), &read(&kept.join(&name))),
            false => {
                let picture = read(path);
                assert_same_picture(&name, &picture, &read(&kept.join(&name)));
                // A page shows a wider picture smaller, and its letters are then too small to read.
                let width = picture.split('"').nth(1).and_then(|width| width.parse::<u32>().ok());
                assert!(width.is_some_and(|width| width <= 1200), "{name} is {width:?} pixels wide");
            }
        }
    }
    fs::remove_dir_all(directory).expect("it was ours");
}

#[test]
fn pictures_that_differ_are_noticed() {
    assert_same_picture("same", "<a x=\"10\"/>", "<a x=\"11\"/>");
    for other in ["<a x=\"13\"/>", "<b x=\"10\"/>", "<a x=\"10\"/><a x=\"1\"/>"] {
        let outcome = std::panic::catch_unwind(|| assert_same_picture("other", "<a x=\"10\"/>", other));
        assert!(outcome.is_err(), "{other}");
    }
    assert_same_table("same", "a,b\nx,1.00001", "a,b\nx,1");
    for other in ["a,b\nx,1.001", "a,b\ny,1", "a,b\nx,1\nx,1", "a,b\nx"] {
        let outcome = std::panic::catch_unwind(|| assert_same_table("other", "a,b\nx,1", other));
        assert!(outcome.is_err(), "{other}");
    }
}

#[test]
fn what_cannot_be_written_to_is_told() {
    let file = directory("file");
    fs::write(&file, "").expect("a file");
    for (out, status, word) in
        [(file.clone(), 2, "which is a file"), (file.join("below"), 3, "cannot make the directory")]
    {
        let output = figures(&["--out", out.to_str().expect("UTF-8")]);
        let message = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(status), "{message}");
        assert!(message.contains(word) && message.contains("--out") && output.stdout.is_empty(), "{message}");
    }
    fs::remove_file(file).expect("it was ours");
    // A file that leads to a full disk.
    let full = directory("full");
    fs::create_dir(&full).expect("a directory");
    std::os::unix::fs::symlink("/dev/full", full.join("figure-03a.svg")).expect("a link");
    let output = figures(&["--out", full.to_str().expect("UTF-8"), "--json"]);
    let message = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(3), "{message}");
    assert!(message.contains("figure-03a.svg") && message.contains("No space left on device"), "{message}");
    fs::remove_dir_all(full).expect("it was ours");
    let output = figures(&[]);
    let message = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(output.status.code() == Some(2) && message.contains("--out <DIR>"), "{message}");
}

/// A table of docs/figures.
struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(figure: &str) -> Self {
        let text = read(&docs().join(format!("figures/figure-{figure}.csv")));
        // Names of schemes have commas, within quotes.
        let fields = |line: &str| {
            let parts = line.split('"').enumerate();
            let kept = parts.map(|(index, part)| if index % 2 == 1 { part.replace(',', ";") } else { part.to_owned() });
            kept.collect::<String>().split(',').map(|field| field.replace(';', ",")).collect::<Vec<_>>()
        };
        let mut lines = text.lines().map(fields);
        Table { columns: lines.next().expect("a header"), rows: lines.collect() }
    }

    fn index(&self, column: &str) -> usize {
        self.columns.iter().position(|name| name == column).unwrap_or_else(|| panic!("{column} of {:?}", self.columns))
    }

    /// Pairs of numbers of the rows where some columns have some values.
    fn curve(&self, fixed: &[(&str, &str)], x: &str, y: &str) -> Vec<(f64, f64)> {
        let number = |row: &[String], column: &str| row[self.index(column)].parse::<f64>().expect("a number");
        let is_own = |row: &&Vec<String>| fixed.iter().all(|(column, value)| row[self.index(column)] == *value);
        let points: Vec<_> = self.rows.iter().filter(is_own).map(|row| (number(row, x), number(row, y))).collect();
        assert!(!points.is_empty(), "{fixed:?}");
        points
    }

    #[track_caller]
    fn value(&self, fixed: &[(&str, &str)], y: &str) -> f64 {
        let points = self.curve(fixed, y, y);
        assert_eq!(points.len(), 1, "{fixed:?}");
        points[0].1
    }
}

fn largest(curve: &[(f64, f64)]) -> (f64, f64) {
    curve.iter().copied().max_by(|one, other| one.1.total_cmp(&other.1)).expect("points")
}

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

#[test]
fn figure_3_shows_that_no_scheme_is_best() {
    let sizes = Table::new("03a");
    let of = |scheme| sizes.curve(&[("scheme", scheme)], "message_bytes", "mean_slowdown");
    let (sr, mds) = (of("sr:rto"), of("ec:mds:32,8"));
    // The peak is near 1/P chunks, and as high as the paper's axis goes, 2.5.
    let peak = largest(&sr);
    assert!((2.3..2.6).contains(&peak.1) && (0.5..2.5).contains(&(peak.0 / 4096.0 * 1e-5)), "{peak:?}");
    // "Above 32 GiB" parity costs more than losses.
    assert!(sr.iter().zip(&mds).all(|(sr, mds)| sr.0 < 32.0 * GIB || sr.1 < mds.1));
    assert!(sr.iter().zip(&mds).all(|(sr, mds)| !(0.01 * GIB..8.0 * GIB).contains(&sr.0) || sr.1 > mds.1));

    let distances = Table::new("03b");
    let of = |scheme| distances.curve(&[("scheme", scheme)], "round_trip_ms", "mean_slowdown");
    let (sr, mds) = (of("sr:rto"), of("ec:mds:32,8"));
    assert!(sr[0].1 < mds[0].1 && sr[sr.len() - 1].1 > mds[mds.len() - 1].1);

    let losses = Table::new("03c");
    let of = |scheme| losses.curve(&[("scheme", scheme)], "loss", "mean_slowdown");
    assert!(of("sr:rto").iter().all(|point| !(1e-4..=0.05).contains(&point.0) || (3.0..10.0).contains(&point.1)));
    assert!(of("ec:mds:32,8").iter().all(|point| point.0 > 0.02 || point.1 < 1.03));
}

#[test]
fn figure_9_is_red_where_the_paper_says() {
    let table = Table::new("09");
    let speedup = |loss: &str| table.curve(&[("loss", loss)], "message_bytes", "speedup_mean");
    for loss in ["1e-6", "1e-5", "1e-4", "1e-3", "1e-2"] {
        let red = speedup(loss).into_iter().filter(|point| (131_072.0..=GIB).contains(&point.0));
        assert!(red.into_iter().all(|point| point.1 > 0.999), "{loss}");
    }
    // Selective repeat is better for large messages on a good link.
    assert!(speedup("1e-6").iter().all(|point| point.0 < 8.0 * GIB || point.1 < 0.95));
    assert!((5.0..7.0).contains(&largest(&speedup("1e-2")).1));
}

#[test]
fn figure_10_shows_what_a_loss_costs() {
    let table = Table::new("10b");
    let value = |scheme: &str, loss: &str, what: &str| table.value(&[("scheme", scheme), ("loss", loss)], what);
    assert!((6.0..7.0).contains(&value("sr:rto", "0.01", "mean_slowdown")));
    assert!(value("sr:rto", "0.01", "p999_slowdown") > 9.0 && value("sr:rto", "0.0177828", "p999_slowdown") > 11.0);
    // XOR falls back at about 1e-3, MDS beyond 1e-2.
    assert!(
        value("ec:xor:32,8", "1e-4", "mean_slowdown") < 1.05 && value("ec:xor:32,8", "0.001", "mean_slowdown") > 1.1
    );
    assert!(value("ec:mds:32,8", "0.01", "p999_slowdown") < 1.1 && value("ec:mds:32,8", "0.1", "mean_slowdown") > 2.0);
    // A timeout of three round trips is at most three times as long as one, whatever the text says of four times.
    for loss in ["1e-5", "1e-4", "0.001", "0.01", "0.1"] {
        let times = value("sr:rto", loss, "mean_slowdown") / value("sr:nack", loss, "mean_slowdown");
        assert!((1.3..3.0).contains(&times), "{loss}: {times}");
    }

    let splits = Table::new("10d");
    let at = |parity: u32, loss: &str| {
        splits.value(&[("scheme", &format!("ec:mds:32,{parity}")), ("loss", loss)], "mean_slowdown")
    };
    // More parity costs more where little is lost, and less where much is.
    for pair in [2, 4, 8, 16, 32].windows(2) {
        assert!(at(pair[0], "1e-5") < at(pair[1], "1e-5"), "{pair:?}");
    }
    assert!(at(2, "0.1") > at(4, "0.1") && at(4, "0.1") > at(8, "0.1") && at(8, "0.1") > at(16, "0.1"));
}

#[test]
fn figures_12_and_13_show_distance_and_stages() {
    let table = Table::new("12");
    let at = |scheme: &str, rtt: &str| {
        let fixed = [("scheme", scheme), ("rate_gbit_per_second", "400"), ("round_trip_ms", rtt)];
        // Both halves of the figure have the paper's link.
        table.curve(&fixed, "round_trip_ms", "mean_slowdown")[0].1
    };
    assert!(at("sr:rto", "1") < at("sr:rto", "5") && at("sr:rto", "5") < at("sr:rto", "40"));
    assert!(at("ec:mds:32,8", "1") > at("ec:mds:32,8", "5") && at("ec:mds:32,8", "5") > at("ec:mds:32,8", "40"));

    let table = Table::new("13");
    for sites in ["4", "8"] {
        let at = |loss: &str| {
            let fixed = [("sites", sites), ("buffer_bytes", "134217728"), ("loss", loss)];
            table.curve(&fixed, "loss", "speedup_p999")[0].1
        };
        // "From 3× to more than 6×", and then parity is not enough.
        assert!(at("1e-5") > 2.0 && at("1e-4") > 3.0 && at("1e-2") > 6.0 && at("1e-1") < at("1e-2"), "{sites} sites");
    }
}

#[test]
fn figure_15_has_the_measured_rates_of_the_page_on_performance() {
    let table = Table::new("15");
    let fixed = [("chunk_packets", "16"), ("packet_loss", "1e-5")];
    assert!((table.value(&fixed, "chunk_loss") / 1.6e-4 - 1.0).abs() < 1e-3);
    let performance = read(&docs().join("PERFORMANCE.md"));
    for (threads, column) in [(1, "ours_1_host_thread"), (2, "ours_2_host_threads")] {
        let rate = table.value(&fixed, &format!("{column}_million_packets_per_second")).to_string();
        let is_row = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            words.len() == 4 && words[0] == threads.to_string() && words[1] == rate
        };
        assert!(
            performance.lines().any(is_row),
            "docs/PERFORMANCE.md has another rate for {threads} threads than {rate}"
        );
    }
}
