//! `longhaul conformance`: the verbs conformance suite on a device, and a report that can be sent to us.

mod facts;
mod libibverbs;
mod reachability;
mod reliable;
mod report;
mod soak;
mod table;
mod testable;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use facts::Facts;
use indicatif::{ProgressBar, ProgressStyle};
use longhaul_conformance::{self as conformance, Report, Test, Verdict};
use longhaul_reliable::Scheme;
use longhaul_scheme_testing::end_to_end::{Suite, scheme_by_name};
use serde_json::{Value, json};
use testable::Testable;

use crate::stop::{self, Stop};

/// The largest message: both ends hold all of it in memory.
const MESSAGE_BYTES_MAX: usize = 512 << 20;

/// Run the verbs conformance suite on a device
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The device to test: `softnic` is the software RNIC on virtual time; `softnic:ADDRESS` is two of them on UDP
    /// sockets at one address of this host, `softnic:ADDRESS,ADDRESS` at two; any other name is a libibverbs device
    /// used for both ends (`rxe0`), or two devices (`rxe0,rxe1`)
    #[arg(short, long, value_name = "DEVICE", required_unless_present = "list")]
    device: Option<String>,

    /// GID table index of each libibverbs device (`3`, or `3,1` for two devices) [default: chosen automatically]
    #[arg(long, value_name = "NUMBER", value_delimiter = ',', num_args = 1..=2)]
    gid_index: Vec<u8>,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,

    /// Run only tests whose name contains this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,

    /// Print the names of the tests without running them
    #[arg(long)]
    list: bool,

    /// Also fail if the run does not match this reviewed table of the device (see docs/devices)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["filter", "list", "soak"])]
    check_table: Option<PathBuf>,

    /// Write the table of this device to a file, for review
    #[arg(long, value_name = "FILE", conflicts_with_all = ["filter", "list", "soak"])]
    write_table: Option<PathBuf>,

    /// Seed of everything random on virtual time; with --soak, the first seed
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Run random programs instead of the suite, over an in-process network that loses, duplicates, reorders and
    /// corrupts packets, and check the results against the specification (like `longhaul sim soak`, but on this device)
    #[arg(long, conflicts_with_all = ["list", "filter"])]
    soak: bool,

    /// With --soak: start no new program after this many seconds
    #[arg(long, value_name = "NUMBER", default_value_t = 30, requires = "soak", value_parser = longhaul_units::whole_number(1_u64..))]
    seconds: u64,

    /// With --soak: run at most this many programs
    #[arg(long, value_name = "NUMBER", requires = "soak", value_parser = longhaul_units::whole_number(1_u64..))]
    seeds: Option<u64>,

    /// With --soak and --seeds 1: write the packets to a pcapng file (on real time, one file per device)
    #[arg(long, value_name = "FILE", requires = "soak")]
    capture: Option<PathBuf>,

    /// Run the suite of reliability schemes instead of the verbs suite: messages of all sizes with every scheme,
    /// contents verified; on softnic, over in-process links that lose (also in bursts), reorder and duplicate packets
    #[arg(long, conflicts_with_all = ["list", "filter", "soak", "check_table", "write_table"])]
    reliable: bool,

    /// With --reliable: test only this scheme, such as sr:rto, sr:nack, ec:mds:32,8, ec:xor:32,8 or twice; repeatable
    #[arg(long = "scheme", value_name = "NAME", requires = "reliable", value_parser = known_scheme)]
    schemes: Vec<String>,

    /// With --reliable: message sizes
    #[arg(long, value_name = "BYTES", value_delimiter = ',', requires = "reliable", default_values_t = Suite::SIZES, value_parser = longhaul_units::bytes_within::<usize>(0..=MESSAGE_BYTES_MAX as u64))]
    sizes: Vec<usize>,

    /// With --reliable: number of messages of each size
    #[arg(long, value_name = "NUMBER", requires = "reliable", default_value_t = 100, value_parser = longhaul_units::whole_number(1_u32..))]
    messages: u32,
}

/// A name that stands for a scheme.
fn known_scheme(name: &str) -> Result<String, String> {
    scheme_by_name(name).map(|_| name.to_owned()).map_err(|error| error.to_string())
}

/// Message sizes that a connection can carry. Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let mut tests = conformance::registry();
    if let Some(text) = &arguments.filter {
        tests.retain(|test| test.name().contains(text.as_str()));
        if tests.is_empty() {
            let text = format!("no test's name contains \"{text}\"; `longhaul conformance --list` prints the names");
            return Err(Stop::Usage(text));
        }
    }
    if arguments.list {
        list(&tests, arguments.json);
        return Ok(());
    }
    let name = arguments.device.as_deref().unwrap_or_default();
    let device = Testable::parse(name).map_err(Stop::Usage)?;
    let is_missing = |missing: String| Stop::missing(format!("{name} cannot be tested here"), missing);
    device.check().map_err(is_missing)?;
    if arguments.soak {
        return soak_on(&device, name, arguments);
    }
    let gid_indexes = match arguments.gid_index[..] {
        [first, second] => Some([first, second]),
        [both] => Some([both; 2]),
        _ => None,
    };
    if arguments.reliable {
        let schemes: Vec<Arc<dyn Scheme>> =
            arguments.schemes.iter().filter_map(|name| scheme_by_name(name).ok()).collect();
        return reliable::run(&reliable::Options {
            name,
            device: &device,
            gid_indexes,
            seed: arguments.seed,
            schemes,
            sizes: &arguments.sizes,
            messages: arguments.messages as usize,
            json: arguments.json,
        });
    }
    // Report an unreadable file before a run that takes minutes, not after it.
    let table = arguments.check_table.as_deref().map(table::read).transpose().map_err(Stop::Missing)?;
    let mut opened = device.open(arguments.seed, gid_indexes).map_err(is_missing)?;
    let begin = Instant::now();
    // On standard error, and only when that is a terminal.
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}").expect("a valid template");
    let progress = ProgressBar::new(tests.len() as u64).with_style(style);
    let report = conformance::run(&mut *opened.environment, &tests, |test, verdict| {
        progress.inc(1);
        progress.set_message(test.name().to_owned());
        match verdict {
            Verdict::Failed(message) => progress.suspend(|| eprintln!("failed: {}: {message}", test.name())),
            Verdict::Departed(message) => progress.suspend(|| eprintln!("departs: {}: {message}", test.name())),
            Verdict::Passed | Verdict::Skipped(_) => {}
        }
    });
    progress.finish_and_clear();
    let seconds = begin.elapsed().as_secs_f64();
    let wrong = match (tables(arguments, table.as_ref(), &opened.facts, &report), report.is_good()) {
        (Err(message), _) => Some(Stop::Missing(message)),
        (_, false) => Some(Stop::Failed("the device does not conform: see the failed tests above".to_owned())),
        (Ok(false), true) => Some(Stop::Failed(
            "the run does not match the table given with --check-table: see the differences above".to_owned(),
        )),
        (Ok(true), true) => None,
    };
    let value = || report::to_json(name, &opened.facts, &report, seconds);
    stop::tell(arguments.json, value, || report::to_table(name, &opened.facts, &report, seconds), wrong)
}

/// Writes and checks the tables of the device that were asked for; whether the run fits.
fn tables(arguments: &Arguments, table: Option<&Value>, facts: &Facts, report: &Report) -> Result<bool, String> {
    if let Some(file) = &arguments.write_table {
        let text = format!("{:#}\n", table::of_run(facts, report));
        std::fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    }
    let (Some(file), Some(table)) = (&arguments.check_table, table) else {
        return Ok(true);
    };
    let differences = table::check(table, facts, report);
    for difference in &differences {
        eprintln!("{}: {difference}", file.display());
    }
    if !differences.is_empty() {
        eprintln!(
            "if these changes are intended, rewrite the table with --write-table {} and review it",
            file.display()
        );
    }
    Ok(differences.is_empty())
}

fn soak_on(device: &Testable, name: &str, arguments: &Arguments) -> Result<(), Stop> {
    if arguments.capture.is_some() && arguments.seeds != Some(1) {
        return Err(Stop::Usage("--capture needs --seeds 1: a capture file holds one run".to_owned()));
    }
    let addresses = match device {
        Testable::Virtual => None,
        Testable::Udp([first, second]) if first == second => Some(vec![*first]),
        Testable::Udp(addresses) => Some(addresses.to_vec()),
        Testable::Libibverbs(_) => {
            return Err(Stop::Usage(
                "--soak needs an in-process network that loses packets, so it runs only on softnic and softnic:ADDRESS"
                    .to_owned(),
            ));
        }
    };
    soak::run(&soak::Options {
        device: name,
        addresses,
        seconds: arguments.seconds,
        first_seed: arguments.seed,
        seeds: arguments.seeds,
        capture: arguments.capture.clone(),
        json: arguments.json,
    })
}

fn list(tests: &[Test], as_json: bool) {
    if as_json {
        let names: Vec<&str> = tests.iter().map(Test::name).collect();
        println!("{}", json!({ "schema": 1, "tests": names }));
        return;
    }
    for test in tests {
        println!("{}", test.name());
    }
}
