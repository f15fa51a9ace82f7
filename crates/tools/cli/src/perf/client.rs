//! `longhaul perf client`: measures against a server.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use longhaul_perf::{ClientEvent, ClientReport, SizeResult, Test};

use super::options::ClientArguments;
use super::{scheme_table, table};
use crate::device_report;
use crate::stop::{Stop, with_error};

/// Runs the subcommand.
pub(crate) fn run(arguments: &ClientArguments) -> Result<(), Stop> {
    if arguments.end.softnic.prints_help() {
        return Ok(());
    }
    arguments.check()?;
    let request = arguments.request()?;
    let (is_json, report_gbits) = (arguments.end.json, arguments.report_gbits);
    if let Some(fec) = arguments.fec.gateway() {
        eprintln!("--fec {fec} to a gateway before {}: the server itself is not asked", arguments.host);
    }
    let mut progress = None;
    let report = longhaul_perf::measure(&request, &mut |event| match event {
        ClientEvent::Note(note) => eprintln!("{note}"),
        ClientEvent::Begun { bytes, index, count } => progress = Some(spinner(request.test, bytes, (index, count))),
        ClientEvent::Ended => {
            if let Some(progress) = progress.take() {
                progress.finish_and_clear();
            }
        }
        ClientEvent::Connected(heading) if !is_json => print!("{}", table::heading(heading, report_gbits)),
        ClientEvent::SchemeConnected(heading) if !is_json => {
            print!("{}", scheme_table::heading(heading, report_gbits));
        }
        ClientEvent::Measured(result) if !is_json => print!("{}", table::row(result, report_gbits)),
        ClientEvent::Connected(_) | ClientEvent::SchemeConnected(_) | ClientEvent::Measured(_) => {}
    })?;
    show(&report, arguments, report_gbits)
}

/// What remains to be printed, and what was wrong.
fn show(report: &ClientReport, arguments: &ClientArguments, report_gbits: bool) -> Result<(), Stop> {
    let is_json = arguments.end.json;
    let (mismatch, finish, lost) = match report {
        ClientReport::Verbs { results, mismatch, finish, .. } => {
            (mismatch, finish, results.iter().map(SizeResult::lost).sum())
        }
        ClientReport::Scheme { mismatch, finish, .. } => (mismatch, finish, 0),
    };
    let wrong = mismatch.as_deref().map(table::wrong_contents).or_else(|| table::lost_messages(lost));
    let wrong = wrong.or(device_report::finish(finish).err().map(Stop::shown));
    let impairment = device_report::impairment_json(finish.impairment);
    let fec = device_report::fec_json(finish.fec);
    match report {
        ClientReport::Verbs { heading, results, .. } if is_json => {
            let mut value = table::to_json(heading, results, impairment, fec);
            value["fec"] = arguments.fec.fec.map(|fec| fec.to_string()).into();
            value["fec_peer"] = arguments.fec.fec.map(|_| arguments.fec.fec_peer.name()).into();
            value["fec_paths"] = device_report::fec_paths_json(&finish.fec_paths);
            println!("{}", with_error(value, wrong.as_ref()));
        }
        ClientReport::Scheme { heading, line, .. } if is_json => {
            println!("{}", with_error(scheme_table::to_json(heading, line, impairment), wrong.as_ref()));
        }
        ClientReport::Verbs { .. } => print!("{}", table::footing()),
        ClientReport::Scheme { line, .. } => {
            print!("{}{}", scheme_table::row(line, report_gbits), table::footing());
        }
    }
    wrong.map_or(Ok(()), Err)
}

/// On standard error, and only when that is a terminal.
fn spinner(test: Test, bytes: u32, (index, count): (usize, usize)) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg}, {elapsed}").expect("a valid template");
    let progress = ProgressBar::new_spinner().with_style(style);
    progress.set_message(format!("{} of {bytes} bytes, {} of {count}", test.name(), index + 1));
    progress.enable_steady_tick(Duration::from_millis(500));
    progress
}
