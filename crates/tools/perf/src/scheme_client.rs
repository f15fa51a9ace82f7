//! The client of messages with a reliability scheme: bandwidth and completion times, against a server.

use std::time::Duration;

use longhaul_reliable::SchemeList;
use longhaul_verbs::Mtu;

use crate::checksum::ChecksumCost;
use crate::control::{Control, Plan, Reply, Request, SchemeContact, SchemePlan, VERSION};
use crate::device::Towards;
use crate::error::PerfError;
use crate::replies::{answer, first_answer, unexpected};
use crate::report::{BandwidthLine, ClientEvent, ClientReport, SchemeHeading, SchemeLine};
use crate::request::ClientRequest;
use crate::scheme_end::{SchemeEnd, SchemeOptions};
use crate::scheme_stream::{SchemeSender, SchemeSent};
use crate::session::{Side, buffer_bytes, open_device};
use crate::stream::{Bound, Run};

/// How long the server may take to say why it has ended a connection.
const REASON_PATIENCE: Duration = Duration::from_millis(250);

/// Measures with the server at the other end of a connection.
pub(crate) fn measure(
    request: &ClientRequest,
    schemes: SchemeList,
    mut plan: Plan,
    control: &mut Control,
    towards: Towards,
    tell: &mut dyn FnMut(ClientEvent<'_>),
) -> Result<ClientReport, PerfError> {
    let mtu_max = request.mtu.unwrap_or(Mtu::Bytes4096);
    let mut note = |note| tell(ClientEvent::Note(note));
    let (device, mtu) = open_device(Side::Client, &request.end, &plan, towards, mtu_max, &mut note)?;
    // Deadlines count from when receives are posted, so that those ahead of their messages would lose time.
    let depth = request.scheme_depth().or(request.deadline.map(|_| 1));
    let chunk_bytes = request.chunk;
    if let Some(chunk_bytes) = chunk_bytes.filter(|bytes| !bytes.is_multiple_of(mtu.byte_count())) {
        let mtu_bytes = mtu.byte_count();
        let text = format!(
            "--chunk {chunk_bytes} is not a multiple of {mtu_bytes}, the MTU of this path: use a multiple, or a smaller MTU with -m"
        );
        return Err(PerfError::Request(text));
    }
    plan.scheme = Some(SchemePlan { name: schemes.to_string(), chunk_bytes, depth, deadline: request.deadline });
    let buffer_bytes = buffer_bytes(&plan)?;
    let (client, server) = (towards.local, towards.peer);
    control.send(&Request::Hello { version: VERSION, client, server, plan: plan.clone() })?;
    let theirs = match first_answer(control, tell)? {
        Reply::SchemeContact { contact, .. } => contact,
        other => return Err(unexpected("where it listens", &other)),
    };
    let Some(listener) = &theirs.listener else {
        return Err(PerfError::Failed(
            "the server did not say where it listens: use the same release at both ends".to_owned(),
        ));
    };
    let ours = SchemeContact::new(&device, None);
    control.send(&Request::SchemeContact(ours.clone()))?;
    let options = SchemeOptions {
        schemes: schemes.clone(),
        mtu,
        chunk_bytes,
        congestion: request.end.softnic.congestion,
        rate_bits_per_second: plan.rate_max(),
        checksum: request.checksum,
    };
    let end = SchemeEnd::connect(device.endpoint(), listener, &options, buffer_bytes);
    let end = end.map_err(|error| or_the_servers_reason(error, control))?;
    match answer(control)? {
        Reply::Ready => {}
        other => return Err(unexpected("that it is ready", &other)),
    }
    // As agreed: the server's path may carry less.
    let mtu_bytes = end.connection.mtu_bytes().unwrap_or_else(|| mtu.byte_count());
    let size = plan.message_bytes_max;
    let chunk_bytes = end.connection.chunk_bytes().unwrap_or(mtu_bytes);
    let congestion = end.connection.congestion();
    // Latency is that of one message at a time.
    let depth = if plan.test.is_latency() { Some(1) } else { depth };
    let mut sender = SchemeSender::new(end, size, depth, request.deadline);
    let depth = sender.depth();
    let (checksum, deadline) = (request.checksum, request.deadline);
    let heading =
        SchemeHeading { schemes, plan, mtu_bytes, chunk_bytes, depth, checksum, congestion, ours, theirs, deadline };
    tell(ClientEvent::SchemeConnected(&heading));
    tell(ClientEvent::Begun { bytes: size, index: 0, count: 1 });
    let result = run(request, &heading.plan, control, &mut sender, size);
    tell(ClientEvent::Ended);
    let (line, mismatch) = result?;
    Ok(ClientReport::Scheme { heading, line: Box::new(line), mismatch, finish: device.finish() })
}

/// What went wrong, or the reason that the server gives for it: when that ends, so does the connection.
fn or_the_servers_reason(error: PerfError, control: &Control) -> PerfError {
    match control.receive(REASON_PATIENCE) {
        Ok(Reply::Refused { reason, .. }) => PerfError::Failed(format!("the server: {reason}")),
        Err(gone) if control.is_gone() => gone,
        Ok(_) | Err(_) => error,
    }
}

fn run(
    request: &ClientRequest,
    plan: &Plan,
    control: &mut Control,
    sender: &mut SchemeSender,
    size: u32,
) -> Result<(SchemeLine, Option<String>), PerfError> {
    let run = Run {
        operation: plan.operation,
        message_bytes: size,
        bound: match request.duration {
            Some(seconds) => Bound::Time(Duration::from_secs(u64::from(seconds))),
            None => Bound::Messages(request.iterations()),
        },
        verify_seed: plan.verify_seed,
    };
    control.send(&Request::Run(run))?;
    match answer(control)? {
        Reply::Running => {}
        other => return Err(unexpected("that it runs", &other)),
    }
    let sent = sender.run(&run).map_err(|error| or_the_servers_reason(error, control))?;
    let SchemeSent { sent, totals, completion } = sent;
    control.send(&Request::Stop { first: 0, count: sent.messages })?;
    let (received, receiver) = match answer(control)? {
        Reply::SchemeReceived(received, totals) => (received, *totals),
        other => return Err(unexpected("what it has received", &other)),
    };
    let bandwidth = BandwidthLine {
        bytes: size,
        iterations: sent.messages,
        arrived: received.messages,
        seconds: sent.elapsed.as_secs_f64(),
        peak_messages_per_second: sent.peak_messages_per_second,
        verified: received.verified_messages,
    };
    let checksum = request.checksum.then(|| {
        let run_ns_per_message = bandwidth.seconds * 1e9 / (sent.messages.max(1) as f64);
        ChecksumCost::measure(&sender.end.memory, &sender.free_places(), size, run_ns_per_message)
    });
    let checksum = checksum.transpose()?;
    let is_latency = plan.test.is_latency();
    Ok((SchemeLine { is_latency, bandwidth, completion, sender: totals, receiver, checksum }, received.mismatch))
}
