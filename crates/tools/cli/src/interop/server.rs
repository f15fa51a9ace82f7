//! `longhaul interop server`: waits for clients and checks what they send.

use std::net::{IpAddr, TcpStream};

use longhaul_interop::{CheckResult, ServerOutcome, refuse, serve};
use longhaul_perf::meeting;
use serde_json::json;

use super::options::{PORT, ServerArguments};
use super::{checks_json, counts, line, of_session, tell_death};
use crate::device_report;
use crate::stop::{self, Stop};

/// Runs the subcommand.
pub(crate) fn run(arguments: &ServerArguments) -> Result<(), Stop> {
    arguments.end.check()?;
    let is_once = arguments.once || arguments.until_death;
    if arguments.end.json && !is_once {
        return Err(Stop::Usage("--json prints one line, so it needs --once or --until-death".to_owned()));
    }
    let listener = meeting::listen(arguments.end.choice()?.given_address(), arguments.end.port)?;
    // Port 0 has the system choose one.
    let port = listener.local_addr().map_err(|error| Stop::failed("cannot ask for the TCP port", error))?.port();
    let option = if port == PORT { String::new() } else { format!(" --port {port}") };
    eprintln!("waiting on TCP port {port} for: longhaul interop client HOST{option}");
    loop {
        let (stream, peer) = listener.accept().map_err(|error| Stop::failed("cannot accept a client", error))?;
        let outcome = serve_one(arguments, stream, peer.ip().to_canonical());
        if is_once {
            return outcome;
        }
        // One client's misfortune is not the next one's.
        if let Err(stop) = outcome {
            eprintln!("{}: {stop}", peer.ip().to_canonical());
        }
    }
}

fn serve_one(arguments: &ServerArguments, stream: TcpStream, peer: IpAddr) -> Result<(), Stop> {
    let (opened, end) = match arguments.end.open(&stream, false) {
        Ok(opened) => opened,
        Err(stop) => {
            refuse(stream, &stop.to_string());
            return Err(stop);
        }
    };
    let device = end.description.clone();
    eprintln!("{peer}: {device}");
    let mut report = |result: &CheckResult| eprintln!("{peer}: {}", line(result));
    let mut in_progress =
        |count: u64| eprintln!("in progress: {count} WRITEs of this end have completed; now kill the client (kill -9)");
    match serve(stream, end, &mut report, &mut in_progress).map_err(|error| of_session(&error))? {
        ServerOutcome::Died(report) => tell_death(&report, "server", &device, arguments.end.json),
        ServerOutcome::Checked(_) if arguments.until_death => {
            Err(Stop::Failed("this server waits for a client with --until-death, but the client runs checks: give both ends --until-death or neither".to_owned()))
        }
        ServerOutcome::Checked(checks) => {
            let (passed, failed) = counts(&checks);
            eprintln!("{peer}: {passed} passed, {failed} failed");
            let client = peer.to_string();
            let checks = checks_json(&checks);
            let value = || {
                json!({
                    "schema": 1, "client": client, "device": device, "checks": checks, "passed": passed, "failed": failed,
                })
            };
            let finished = device_report::finish(&opened.finish());
            let wrong = (failed > 0).then(|| Stop::Failed(format!("number of checks that failed: {failed}")));
            let wrong = wrong.or(finished.err());
            stop::tell(arguments.end.json, value, String::new, wrong)
        }
    }
}
