//! `longhaul perf client`: measures against a server.

use std::net::IpAddr;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use longhaul_softnic_udp::path;
use longhaul_verbs::Mtu;

use super::control::{Control, Plan, Rate, Reply, Request, VERSION};
use super::meeting;
use super::options::ClientArguments;
use super::scheme_client;
use super::session::{Half, Session, Side};
use super::statistics::Sorted;
use super::stream::{Bound, Run};
use super::table::{self, BandwidthLine, Heading, LatencyLine};
use crate::message::kind_of;
use crate::opened_device::Towards;
use crate::randomness::random_number;
use crate::stop::{Stop, with_error};

/// How long to wait while the server measures with other clients.
const TURN_PATIENCE: Duration = Duration::from_secs(3600);
/// How long the server may take to create its queue pairs, or to report what it has seen.
const ANSWER_PATIENCE: Duration = Duration::from_secs(120);

/// Runs the subcommand.
pub(crate) fn run(arguments: &ClientArguments) -> Result<(), Stop> {
    if arguments.end.softnic.prints_help() {
        return Ok(());
    }
    arguments.check()?;
    let stream = meeting::connect(&arguments.host, arguments.end.port, "`longhaul perf server`")?;
    let (local, peer) = meeting::addresses(&stream)?;
    let plan = make_plan(arguments, peer)?;
    let mut control = Control::new(stream)?;
    let mtu_max = arguments.mtu.unwrap_or(Mtu::Bytes4096);
    let towards = Towards { local, peer, gid_index: arguments.end.gid_index };
    if let Some(scheme) = arguments.scheme {
        return scheme_client::run(arguments, scheme, plan, &mut control, towards);
    }
    control.send(&Request::Hello { version: VERSION, client: local, server: peer, plan: plan.clone() })?;
    let mut session = Session::open(Side::Client, &arguments.end, &plan, towards, mtu_max)?;
    let theirs = match first_answer(&control)? {
        Reply::Contact { contact, .. } => contact,
        other => return Err(unexpected("a contact", &other)),
    };
    let ours = session.contact();
    control.send(&Request::Contact(ours.clone()))?;
    session.connect(&plan, &theirs)?;
    match answer(&control)? {
        Reply::Ready => {}
        other => return Err(unexpected("that it is ready", &other)),
    }
    let outstanding_reads = session.group().options.outstanding_reads;
    if let Some(note) = arguments.outstanding_note(outstanding_reads) {
        eprintln!("{note}");
    }
    let sizes = arguments.sizes(session.mtu)?;
    let device = session.nic.device.clone();
    let (device_name, gid_index) = (device.verbs().name().to_owned(), device.gid_index);
    let heading = Heading {
        arguments,
        plan: &plan,
        device_name,
        gid_index,
        mtu: session.mtu,
        outstanding_reads,
        ours: &ours,
        theirs: &theirs,
    };
    if !arguments.end.json {
        print!("{}", table::heading(&heading));
    }
    let mut results = Vec::new();
    let (mut wrong, mut lost) = (None, 0);
    for (index, &size) in sizes.iter().enumerate() {
        let progress = spinner(arguments, size, (index, sizes.len()));
        let result = run_size(arguments, &plan, &mut control, &mut session, size);
        progress.finish_and_clear();
        let (result, mismatch) = result?;
        wrong = wrong.or(mismatch);
        lost += result.lost();
        if !arguments.end.json {
            print!("{}", result.to_row(arguments.report_gbits));
        }
        results.push(result.to_json());
    }
    let impairment = device.impairment_json();
    let wrong = wrong.as_deref().map(table::wrong_contents).or_else(|| table::lost_messages(lost));
    let wrong = wrong.or(device.finish().err().map(Stop::shown));
    match arguments.end.json {
        true => println!("{}", with_error(table::to_json(&heading, results, impairment), wrong.as_ref())),
        false => print!("{}", table::footing()),
    }
    wrong.map_or(Ok(()), Err)
}

fn make_plan(arguments: &ClientArguments, peer: IpAddr) -> Result<Plan, Stop> {
    let rate = arguments.rate();
    if rate == Rate::Careful && !path::is_of_this_host(peer) {
        eprintln!(
            "{peer} is not on this host, so sending is paced at 1 Gbit/s; --rate_limit GBITS sets another rate, 0 none"
        );
    }
    let verify_seed = match arguments.verify {
        true => Some(random_number()?),
        false => None,
    };
    Ok(Plan {
        test: arguments.test,
        operation: arguments.operation(),
        connection: arguments.connection(),
        queue_pairs: arguments.queue_pairs,
        message_bytes_max: arguments.message_bytes_max(),
        send_depth: arguments.tx_depth,
        receive_depth: arguments.rx_depth(),
        outstanding_reads: arguments.outstanding_reads(),
        sleeps: arguments.events,
        timeout: arguments.timeout,
        rate,
        verify_seed,
        scheme: None,
    })
}

/// The first answer, which comes when the server has time.
pub(super) fn first_answer(control: &Control) -> Result<Reply, Stop> {
    match answer(control)? {
        Reply::Waiting { .. } => {
            let minutes = TURN_PATIENCE.as_secs() / 60;
            eprintln!("the server is measuring with another client; waiting up to {minutes} minutes for it to finish");
            match control.receive(TURN_PATIENCE)? {
                Reply::Refused { reason, .. } => Err(Stop::Failed(format!("the server: {reason}"))),
                reply => Ok(reply),
            }
        }
        reply => Ok(reply),
    }
}

pub(super) fn answer(control: &Control) -> Result<Reply, Stop> {
    match control.receive(ANSWER_PATIENCE)? {
        Reply::Refused { reason, .. } => Err(Stop::Failed(format!("the server: {reason}"))),
        reply => Ok(reply),
    }
}

pub(super) fn unexpected(expected: &str, got: &Reply) -> Stop {
    Stop::Failed(format!(
        "the server should have said {expected}, but sent \"{}\": use the same release at both ends",
        kind_of(got)
    ))
}

/// On standard error, and only when that is a terminal.
pub(super) fn spinner(arguments: &ClientArguments, size: u32, (index, count): (usize, usize)) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg}, {elapsed}").expect("a valid template");
    let progress = ProgressBar::new_spinner().with_style(style);
    progress.set_message(format!("{} of {size} bytes, {} of {count}", arguments.test.name(), index + 1));
    progress.enable_steady_tick(Duration::from_millis(500));
    progress
}

/// The result of one size.
enum SizeResult {
    Bandwidth(BandwidthLine),
    Latency(LatencyLine),
}

impl SizeResult {
    fn lost(&self) -> u64 {
        match self {
            SizeResult::Bandwidth(line) => line.lost(),
            SizeResult::Latency(line) => line.lost,
        }
    }

    fn to_row(&self, report_gbits: bool) -> String {
        match self {
            SizeResult::Bandwidth(line) => line.to_row(report_gbits),
            SizeResult::Latency(line) => line.to_row(),
        }
    }

    fn to_json(&self) -> serde_json::Value {
        match self {
            SizeResult::Bandwidth(line) => line.to_json(),
            SizeResult::Latency(line) => line.to_json(),
        }
    }
}

/// One size; and the first contents that were wrong, at either end.
fn run_size(
    arguments: &ClientArguments,
    plan: &Plan,
    control: &mut Control,
    session: &mut Session,
    size: u32,
) -> Result<(SizeResult, Option<String>), Stop> {
    let bound = match arguments.duration {
        Some(seconds) => Bound::Time(Duration::from_secs(u64::from(seconds))),
        None => Bound::Messages(arguments.iterations() * u64::from(arguments.queue_pairs)),
    };
    let run = Run { operation: plan.operation, message_bytes: size, bound, verify_seed: plan.verify_seed };
    if let Half::PingPong(ping_pong) = &session.half {
        ping_pong.prepare(&run);
    }
    control.send(&Request::Run(run))?;
    match answer(control)? {
        Reply::Running => {}
        other => return Err(unexpected("that it runs", &other)),
    }
    let is_gone = || control.is_gone();
    match &mut session.half {
        Half::Sender(sender) if plan.test.is_latency() => {
            let trips = sender.time_each(&run, &is_gone)?;
            let received = stop(control, 0, trips.nanoseconds.len() as u64)?;
            let microseconds = trips.nanoseconds.iter().map(|&nanoseconds| f64::from(nanoseconds) / 1000.0);
            let line = LatencyLine { bytes: size, microseconds: Sorted::new(microseconds), lost: 0 };
            Ok((SizeResult::Latency(line), trips.mismatch.or(received.mismatch)))
        }
        Half::Sender(sender) => {
            let first = sender.next_message();
            let sent = sender.run(&run, &is_gone)?;
            let received = stop(control, first, sent.messages)?;
            let line = BandwidthLine {
                bytes: size,
                iterations: sent.messages,
                arrived: received.messages,
                seconds: sent.elapsed.as_secs_f64(),
                peak_messages_per_second: sent.peak_messages_per_second,
                // The end that received the contents has checked them.
                verified: sent.verified_messages + received.verified_messages,
            };
            Ok((SizeResult::Bandwidth(line), sent.mismatch.or(received.mismatch)))
        }
        Half::PingPong(ping_pong) => {
            let trips = ping_pong.ping(&run, plan.message_bytes_max as usize, &is_gone)?;
            let received = stop(control, 0, trips.nanoseconds.len() as u64)?;
            // Half of a round trip, in microseconds.
            let one_way = trips.nanoseconds.iter().map(|&nanoseconds| f64::from(nanoseconds) / 2000.0);
            let line = LatencyLine { bytes: size, microseconds: Sorted::new(one_way), lost: trips.lost };
            Ok((SizeResult::Latency(line), trips.mismatch.or(received.mismatch)))
        }
        Half::Receiver(_) => unreachable!("a client sends first"),
    }
}

fn stop(control: &mut Control, first: u64, count: u64) -> Result<super::stream::Received, Stop> {
    control.send(&Request::Stop { first, count })?;
    match answer(control)? {
        Reply::Received(received) => Ok(received),
        other => Err(unexpected("what it has received", &other)),
    }
}
