//! `longhaul interop client`: carries out operations on a server, and checks everything at both ends.

use std::time::{Duration, Instant};

use longhaul_interop::{CheckResult, Client, Summary};
use longhaul_perf::{OpenedDevice, meeting};
use serde_json::json;

use super::options::ClientArguments;
use super::{checks_json, line, of_session, tell_death};
use crate::device_report;
use crate::stop::{self, Stop};

/// Runs the subcommand.
pub(crate) fn run(arguments: &ClientArguments) -> Result<(), Stop> {
    arguments.check()?;
    let begin = Instant::now();
    let stream = meeting::connect(&arguments.host, arguments.end.port, "`longhaul interop server`")?;
    let (_, peer) = meeting::addresses(&stream)?;
    let options = arguments.options(peer)?;
    let (opened, end) = arguments.end.open(&stream, true)?;
    let device = end.description.clone();
    let rate = options.rate_bits_per_second.filter(|_| !arguments.is_reliable());
    let client = Client::connect(stream, end, options).map_err(|error| of_session(&error))?;
    let reliable = arguments.reliable_options();
    eprintln!(
        "{} from {device} to {}, MTU {}{}",
        if reliable.is_some() { "messages" } else { arguments.connection.name() },
        client.server_device(),
        client.mtu().byte_count(),
        rate.map_or_else(String::new, |rate| format!(", at most {} Mbit/s", rate as f64 / 1e6))
    );
    if arguments.until_death {
        let mut in_progress =
            |count: u64| eprintln!("in progress: {count} WRITEs have completed; now kill the server (kill -9)");
        let report =
            client.run_until_death(arguments.from_server, &mut in_progress).map_err(|error| of_session(&error))?;
        return tell_death(&report, "client", &device, arguments.end.json);
    }
    let is_json = arguments.end.json;
    let mut report = |result: &CheckResult| match (is_json, result.passed) {
        (false, _) => println!("{}", line(result)),
        (true, false) => eprintln!("{}", line(result)),
        (true, true) => {}
    };
    let ran = match &reliable {
        Some(options) => client.run_reliable(options, &mut report),
        None => client.run(&mut report),
    };
    let summary = ran.map_err(|error| of_session(&error))?;
    show(arguments, &summary, &opened, begin.elapsed())
}

fn show(arguments: &ClientArguments, summary: &Summary, device: &OpenedDevice, elapsed: Duration) -> Result<(), Stop> {
    let (passed, failed) = summary.counts();
    for (name, reason) in &summary.skipped {
        eprintln!("skipped {name}: {reason}");
    }
    let finish = device.finish();
    let impairment = device_report::impairment_json(finish.impairment);
    let value = || {
        let skipped: Vec<_> =
            summary.skipped.iter().map(|(name, reason)| json!({ "name": name, "message": reason })).collect();
        json!({
            "schema": 1,
            "connection": if arguments.is_reliable() { "messages" } else { arguments.connection.name() },
            "mtu_bytes": summary.mtu.byte_count(),
            "client_device": summary.client_device,
            "server_device": summary.server_device,
            "checks": checks_json(&summary.checks),
            "skipped": skipped,
            "impairment": impairment.clone(),
            "passed": passed,
            "failed": failed,
            "seconds": (elapsed.as_secs_f64() * 1000.0).round() / 1000.0,
        })
    };
    let finished = device_report::finish(&finish);
    let wrong = match (failed, passed) {
        (0, 1..) => finished.err(),
        (0, 0) => {
            Some(Stop::Missing("nothing was checked: the devices support none of the requested operations".to_owned()))
        }
        _ => Some(Stop::Failed(format!("number of checks that failed: {failed}"))),
    };
    stop::tell(arguments.end.json, value, || format!("{passed} passed, {failed} failed\n"), wrong)
}
