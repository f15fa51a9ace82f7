//! `longhaul perf server`: waits for clients and measures with one after another.

use longhaul_perf::{PORT, Server, ServerReport, ServerRow};
use serde_json::{Value, json};

use super::options::ServerArguments;
use super::table::wrong_contents;
use crate::device_report;
use crate::stop::{Stop, with_error};

/// Runs the subcommand.
pub(crate) fn run(arguments: &ServerArguments) -> Result<(), Stop> {
    if arguments.end.softnic.prints_help() {
        return Ok(());
    }
    arguments.fec.check_server(&arguments.end.choice()?)?;
    arguments.end.check()?;
    if arguments.end.json && !arguments.once {
        return Err(Stop::Usage("--json prints one line, so it needs --once".to_owned()));
    }
    let server = Server::listen(arguments.fec.apply_to(arguments.end.settings()?))?;
    let port = server.port();
    let option = if port == PORT { String::new() } else { format!(" -p {port}") };
    eprintln!("waiting on TCP port {port} for: longhaul perf client HOST{option}");
    loop {
        let (peer, served) = server.serve_next(&mut |note| eprintln!("{note}"))?;
        let outcome = served.map_err(Stop::from).and_then(|report| show(&report, arguments.end.json));
        if arguments.once {
            return outcome;
        }
        // One client's misfortune is not the next one's.
        if let Err(stop) = outcome {
            eprintln!("{peer}: {stop}");
        }
    }
}

/// The report in JSON, and what was wrong.
fn show(report: &ServerReport, is_json: bool) -> Result<(), Stop> {
    let wrong = report.mismatch.as_deref().map(wrong_contents);
    let wrong = wrong.or(device_report::finish(&report.finish).err().map(Stop::shown));
    if is_json {
        println!("{}", with_error(to_json(report), wrong.as_ref()));
    }
    wrong.map_or(Ok(()), Err)
}

fn to_json(report: &ServerReport) -> Value {
    let row = |row: &ServerRow| {
        json!({
            "bytes": row.bytes,
            "messages_received": row.messages_received,
            "messages_verified": row.messages_verified,
        })
    };
    let mut value = json!({
        "schema": 1,
        "test": report.test.name(),
        "client": report.client.to_string(),
        "client_device": report.client_device,
        "server_device": report.server_device,
        "fec_counters": device_report::fec_json(report.finish.fec),
        "fec_paths": device_report::fec_paths_json(&report.finish.fec_paths),
        "results": report.results.iter().map(row).collect::<Vec<_>>(),
    });
    if let Some(scheme) = &report.schemes {
        value["scheme"] = scheme.to_string().into();
    }
    value
}
