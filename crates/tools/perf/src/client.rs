//! The client: measures against a server.

use std::net::IpAddr;
use std::time::Duration;

use longhaul_softnic_udp::path;
use longhaul_verbs::Mtu;

use crate::control::{Control, Plan, Rate, Reply, Request, VERSION};
use crate::device::Towards;
use crate::error::PerfError;
use crate::meeting;
use crate::randomness::random_number;
use crate::replies::{answer, first_answer, unexpected};
use crate::report::{BandwidthLine, ClientEvent, ClientReport, Heading, LatencyLine, SizeResult};
use crate::request::ClientRequest;
use crate::scheme_client;
use crate::session::{self, Half, Session, Side};
use crate::statistics::Sorted;
use crate::stream::{Bound, Received, Run};

/// Measures against a server. `tell` gets what happens, as it happens.
pub fn measure(request: &ClientRequest, tell: &mut dyn FnMut(ClientEvent<'_>)) -> Result<ClientReport, PerfError> {
    let stream = meeting::connect(&request.host, request.end.port, "`longhaul perf server`")?;
    let (local, peer) = meeting::addresses(&stream)?;
    let plan = make_plan(request, peer, tell)?;
    let mut control = Control::new(stream)?;
    let mtu_max = request.mtu.unwrap_or(Mtu::Bytes4096);
    let towards = Towards { local, peer, gid_index: request.end.gid_index };
    if let Some(schemes) = request.schemes.clone() {
        return scheme_client::measure(request, schemes, plan, &mut control, towards, tell);
    }
    control.send(&Request::Hello { version: VERSION, client: local, server: peer, plan: plan.clone() })?;
    let mut note = |note| tell(ClientEvent::Note(note));
    let mut session = Session::open(Side::Client, &request.end, &plan, towards, mtu_max, &mut note)?;
    let theirs = match first_answer(&control, tell)? {
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
    if let Some(note) = request.outstanding_note(outstanding_reads) {
        tell(ClientEvent::Note(note));
    }
    let sizes = request.sizes(session.mtu)?;
    let device = session.nic.device.clone();
    let (device_name, gid_index) = (device.verbs().name().to_owned(), device.gid_index);
    let congestion = session::congestion(&request.end, &plan, peer);
    let (plan_shown, mtu) = (plan.clone(), session.mtu);
    let heading =
        Heading { plan: plan_shown, device_name, gid_index, congestion, mtu, outstanding_reads, ours, theirs };
    tell(ClientEvent::Connected(&heading));
    let (mut results, mut mismatch) = (Vec::new(), None);
    for (index, &bytes) in sizes.iter().enumerate() {
        tell(ClientEvent::Begun { bytes, index, count: sizes.len() });
        let result = run_size(request, &plan, &mut control, &mut session, bytes);
        tell(ClientEvent::Ended);
        let (result, wrong) = result?;
        mismatch = mismatch.or(wrong);
        tell(ClientEvent::Measured(&result));
        results.push(result);
    }
    Ok(ClientReport::Verbs { heading, results, mismatch, finish: device.finish() })
}

fn make_plan(request: &ClientRequest, peer: IpAddr, tell: &mut dyn FnMut(ClientEvent<'_>)) -> Result<Plan, PerfError> {
    let rate = request.rate;
    let verify_seed = match request.verify {
        true => Some(random_number()?),
        false => None,
    };
    let plan = Plan {
        test: request.test,
        operation: request.operation(),
        connection: request.connection(),
        queue_pairs: request.queue_pairs,
        message_bytes_max: request.message_bytes_max(),
        send_depth: request.tx_depth,
        receive_depth: request.rx_depth(),
        outstanding_reads: request.outstanding_reads(),
        sleeps: request.events,
        timeout: request.timeout,
        rate,
        verify_seed,
        fec: request.fec.map(|fec| fec.to_string()),
        scheme: None,
    };
    if rate == Rate::Careful && request.schemes.is_none() && !path::is_of_this_host(peer) {
        let how = match session::congestion(&request.end, &plan, peer) {
            Some(name) => format!("congestion control ({name}) finds the rate; --rate_limit GBITS sets one, 0 none"),
            None => "sending is paced at 1 Gbit/s; --rate_limit GBITS sets another rate, 0 none".to_owned(),
        };
        tell(ClientEvent::Note(format!("{peer} is not on this host, so {how}")));
    }
    Ok(plan)
}

/// One size; and the first contents that were wrong, at either end.
fn run_size(
    request: &ClientRequest,
    plan: &Plan,
    control: &mut Control,
    session: &mut Session,
    size: u32,
) -> Result<(SizeResult, Option<String>), PerfError> {
    let bound = match request.duration {
        Some(seconds) => Bound::Time(Duration::from_secs(u64::from(seconds))),
        None => Bound::Messages(request.iterations() * u64::from(request.queue_pairs)),
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

fn stop(control: &mut Control, first: u64, count: u64) -> Result<Received, PerfError> {
    control.send(&Request::Stop { first, count })?;
    match answer(control)? {
        Reply::Received(received) => Ok(received),
        other => Err(unexpected("what it has received", &other)),
    }
}
