//! `longhaul interop`: two ends, each with a device of any kind, check every byte and every completion of each other.
//! What they do is in `longhaul_interop`; here are the command line, the devices and the report.

mod client;
mod options;
mod server;

use longhaul::with_sources;
use longhaul_interop::{CheckResult, DeathReport, InteropError};
use serde_json::{Value, json};

use crate::stop::{self, Stop};

/// Check that two devices understand each other
///
/// `longhaul interop server` on one host, `longhaul interop client HOST` on the other; each takes its device with -d.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Server(options::ServerArguments),
    Client(options::ClientArguments),
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    match &arguments.command {
        Command::Server(arguments) => server::run(arguments),
        Command::Client(arguments) => client::run(arguments),
    }
}

/// What a session that broke means to the exit status.
fn of_session(error: &InteropError) -> Stop {
    match error {
        InteropError::Impossible(_) => Stop::Missing(with_sources(error)),
        _ => Stop::Failed(with_sources(error)),
    }
}

/// A check in one line.
fn line(result: &CheckResult) -> String {
    let CheckResult { name, operations, .. } = result;
    match &result.message {
        None => format!("passed {name} {operations} operations"),
        Some(message) => format!("failed {name} {operations} operations: {message}"),
    }
}

/// What the survivor saw, as its one check.
fn death_result(report: &DeathReport) -> CheckResult {
    let role = if report.was_writing { "until-death/writing" } else { "until-death/receiving" };
    CheckResult {
        name: role.to_owned(),
        operations: u32::try_from(report.succeeded).unwrap_or(u32::MAX),
        passed: report.problem.is_none(),
        message: report.problem.clone(),
    }
}

/// The survivor's report, and whether it is good.
fn tell_death(report: &DeathReport, side: &str, device: &str, is_json: bool) -> Result<(), Stop> {
    let result = death_result(report);
    let value = || {
        json!({
            "schema": 1,
            "mode": "until-death",
            "side": side,
            "device": device,
            "was_writing": report.was_writing,
            "succeeded_requests": report.succeeded,
            "failure_status": report.failure_status,
            "flushed_requests": report.flushed,
            "flushed_receives": report.receives_flushed,
            "time_to_failure_ms": report.milliseconds_to_failure,
            "passed": result.passed,
            "message": result.message,
        })
    };
    let table = || {
        let status = report.failure_status.as_deref().unwrap_or("no failure");
        let when = match report.milliseconds_to_failure {
            Some(milliseconds) => format!(" {:.1} s after the peer's end", milliseconds as f64 / 1000.0),
            None => String::new(),
        };
        format!(
            "{}\n  then {status}{when}; flushed: {} requests, {} receives\n{} passed, {} failed\n",
            line(&result),
            report.flushed,
            report.receives_flushed,
            usize::from(result.passed),
            usize::from(!result.passed)
        )
    };
    let wrong = report.problem.as_ref();
    let wrong = wrong.map(|_| Stop::Failed("the survivor did not get the errors that it must get".to_owned()));
    stop::tell(is_json, value, table, wrong)
}

/// The checks, as JSON.
fn checks_json(checks: &[CheckResult]) -> Value {
    let check = |check: &CheckResult| {
        json!({
            "name": check.name,
            "operations": check.operations,
            "passed": check.passed,
            "message": check.message,
        })
    };
    checks.iter().map(check).collect()
}

/// How many passed, how many did not.
fn counts(checks: &[CheckResult]) -> (usize, usize) {
    let passed = checks.iter().filter(|check| check.passed).count();
    (passed, checks.len() - passed)
}
