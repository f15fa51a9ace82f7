//! `longhaul report`: what this host and one of its devices can do, in one file that can be attached to an issue.
//!
//! ```text
//!   host ─▶ conformance ─▶ bandwidth, latency ─▶ schemes ─▶ comparison     each part within the time that is left
//!                                                               └─▶ mask ─▶ one Markdown file with JSON in it
//! ```
//!
//! Each part is a `longhaul` command of its own process, so that a device that hangs costs its part and not the report.

mod loopback;
mod mask;
mod page;
mod part;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longhaul::with_sources;
use longhaul_host::Diagnosis;
use longhaul_perf::{DeviceChoice, SOFTNIC};
use serde_json::{Value, json};

use self::loopback::Loopback;
use self::mask::Mask;
use self::part::{Part, Status};
use crate::devices;
use crate::stop::{self, Stop};

/// The part that the versions of the device come from.
const CONFORMANCE: &str = "conformance";
/// Where the report goes by default.
const FILE: &str = "longhaul-report.md";
/// The schemes that are measured.
const SCHEMES: [&str; 2] = ["sr:nack", "ec:mds:32,8"];
/// The rows of the comparison: what the software RNIC and the library reach next to bare UDP and TCP.
const COMPARED: &str = "bare-udp,tcp,uc-write,rc-write,sdr-sr,latency";

/// Test and measure a device, and write one file to attach to an issue
///
/// Runs on one device of this host: the diagnosis of `longhaul devices`, the conformance suite, bandwidth and latency
/// of WRITEs and SENDs over loopback, messages with two reliability schemes and, on the software RNIC, the comparison
/// with bare UDP and TCP. The file is Markdown with a summary and the JSON of each part. The host name, IP and MAC
/// addresses and GUIDs are replaced in it. The exit status is 1 if a part failed or did not finish in time.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The device: a libibverbs device such as `rxe0`, `softnic` or `softnic:ADDRESS` [default: the first libibverbs
    /// device that is up, else softnic]
    #[arg(short, long, value_name = "DEVICE")]
    device: Option<String>,

    /// The file to write; one that exists is replaced
    #[arg(short, long, value_name = "FILE", default_value = FILE)]
    output: PathBuf,

    /// The longest that the whole run may take
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = longhaul_units::whole_number(10_u64..=600))]
    seconds: u64,

    /// Print one line of JSON instead of the summary
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let begin = Instant::now();
    let deadline = begin + Duration::from_secs(arguments.seconds);
    let diagnosis = Diagnosis::of_this_host().map_err(|error| Stop::Missing(with_sources(&error)))?;
    let device = arguments.device.clone().unwrap_or_else(|| first_device(&diagnosis));
    DeviceChoice::parse(&device, &[])?.check()?;
    prepare(&arguments.output)?;
    let mut parts = vec![host_part(&diagnosis)];
    let loopback = Loopback::of(&device, &diagnosis);
    for order in orders(&device, &loopback, arguments.seconds) {
        eprintln!("{} …", order.name);
        let mut part = order.run(deadline);
        if part.name == CONFORMANCE {
            name_passed(&mut part, deadline);
        }
        eprintln!("{}: {}", part.name, part.status.name());
        parts.push(part);
    }
    let mask = Mask::of_this_host();
    let seconds = (begin.elapsed().as_secs_f64() * 10.0).round() / 10.0;
    let value = mask.value(to_json(arguments, &device, &parts, seconds));
    let summary = page::summary(&value);
    write(&arguments.output, &page::markdown(&value))?;
    let bad: Vec<&str> = parts.iter().filter(|part| part.status.is_bad()).map(|part| part.name).collect();
    let wrong = (!bad.is_empty())
        .then(|| Stop::Failed(format!("parts that failed or did not finish in time: {}", bad.join(", "))));
    let text = || format!("{summary}\nAttach this file: {}\n", arguments.output.display());
    stop::tell(arguments.json, || value.clone(), text, wrong)
}

/// The suite's own report names the tests that did not simply pass; here, the others have their names too.
fn name_passed(part: &mut Part, deadline: Instant) {
    let list = part::Order::command(CONFORMANCE, &["conformance", "--list", "--json"]).run(deadline).result;
    let (Some(list), Some(result)) = (list, &mut part.result) else { return };
    if result["passed"].is_null() {
        return;
    }
    let others = ["failures", "skipped", "departures"].map(|key| result[key].as_array().cloned().unwrap_or_default());
    let is_other = |name: &Value| others.iter().flatten().any(|other| other["test"] == *name);
    let tests = list["tests"].as_array().cloned().unwrap_or_default();
    result["passed_tests"] = tests.into_iter().filter(|name| !is_other(name)).collect();
}

/// The first device of libibverbs that can be used, else the software RNIC.
fn first_device(diagnosis: &Diagnosis) -> String {
    let usable = diagnosis.libibverbs.devices.iter().find(|device| device.is_usable());
    usable.map_or_else(|| SOFTNIC.to_owned(), |device| device.description.name.clone())
}

/// Finds out before the run whether the file can be written, and says so if there is one.
fn prepare(file: &Path) -> Result<(), Stop> {
    if file.exists() {
        eprintln!("{} exists and will be replaced", file.display());
    }
    OpenOptions::new().append(true).create(true).open(file).map(drop).map_err(|error| cannot_write(file, error))
}

fn write(file: &Path, text: &str) -> Result<(), Stop> {
    std::fs::write(file, text).map_err(|error| cannot_write(file, error))
}

fn cannot_write(file: &Path, error: std::io::Error) -> Stop {
    Stop::missing(format!("cannot write {}; name another file with -o", file.display()), error)
}

fn host_part(diagnosis: &Diagnosis) -> Part {
    let status = if diagnosis.is_usable() { Status::Passed } else { Status::Failed };
    Part { name: "host", status, seconds: 0.0, result: Some(devices::to_json(diagnosis)), error: None }
}

/// What is run, in this order.
fn orders(device: &str, loopback: &Loopback, seconds: u64) -> Vec<part::Order> {
    let each = (seconds / 150).clamp(1, 4).to_string();
    let conformance_device = if device == SOFTNIC { "softnic:127.0.0.1" } else { device };
    let mut orders = vec![part::Order::command(CONFORMANCE, &["conformance", "-d", conformance_device, "--json"])];
    for (name, options) in [
        ("write_bw", &["write_bw", "-D", &each][..]),
        ("write_lat", &["write_lat", "-n", "1000"]),
        ("send_bw", &["send_bw", "-D", &each]),
        ("send_lat", &["send_lat", "-n", "1000"]),
    ] {
        orders.push(part::Order::measurement(name, device, loopback, options));
    }
    for (name, scheme) in [("scheme_sr", SCHEMES[0]), ("scheme_ec", SCHEMES[1])] {
        let options = ["write_bw", "--scheme", scheme, "-s", "1MiB", "-D", &each, "--verify"];
        orders.push(part::Order::measurement(name, device, loopback, &options));
    }
    let compare = ["perf", "compare", "--loopback", "--seconds", &each, "--only", COMPARED, "--json"];
    orders.push(match device.starts_with(SOFTNIC) {
        true => part::Order::command("compare", &compare),
        false => part::Order::skipped("compare", "`longhaul perf compare` measures the software RNIC only"),
    });
    orders
}

fn to_json(arguments: &Arguments, device: &str, parts: &[Part], seconds: f64) -> Value {
    let count = |status: Status| parts.iter().filter(|part| part.status == status).count();
    let of_conformance = parts.iter().find(|part| part.name == CONFORMANCE).and_then(|part| part.result.as_ref());
    let known = |key: &str| of_conformance.map_or(Value::Null, |result| result[key].clone());
    json!({
        "schema": 1,
        "version": env!("CARGO_PKG_VERSION"),
        "device": device,
        "file": arguments.output.display().to_string(),
        "kernel": known("kernel"),
        "rdma_core": known("rdma_core"),
        "architecture": std::env::consts::ARCH,
        "processors": std::thread::available_parallelism().map_or(1, usize::from),
        "passed": count(Status::Passed),
        "failed": parts.iter().filter(|part| part.status.is_bad()).count(),
        "skipped": count(Status::Skipped),
        "seconds": seconds,
        "parts": parts.iter().map(Part::to_json).collect::<Vec<_>>(),
    })
}
