//! The server's end of messages with a reliability scheme.

use longhaul_reliable::SchemeList;
use longhaul_verbs::Mtu;

use crate::control::{Control, Plan, Reply, Request, SchemeContact, SchemePlan, VERSION};
use crate::device::Towards;
use crate::error::PerfError;
use crate::report::{ServerReport, ServerRow};
use crate::scheme_end::{SchemeEnd, SchemeOptions};
use crate::scheme_stream::SchemeReceiver;
use crate::session::{Side, buffer_bytes, open_device};
use crate::settings::EndSettings;
use crate::turns::{RunDeadline, SETUP_PATIENCE, next_run, unexpected};

/// One client, from its plan to goodbye.
pub(crate) fn serve(
    settings: &EndSettings,
    control: &mut Control,
    plan: &Plan,
    scheme: &SchemePlan,
    towards: Towards,
    note: &mut dyn FnMut(String),
) -> Result<ServerReport, PerfError> {
    let (peer, message_bytes_max) = (towards.peer, plan.message_bytes_max);
    let (chunk_bytes, depth, deadline) = (scheme.chunk_bytes, scheme.depth, scheme.deadline);
    let schemes: SchemeList = scheme.name.parse().map_err(|error| PerfError::failed("the client's scheme", error))?;
    note(format!("{peer}: {} with {schemes}", plan.test.name()));
    let (device, mtu) = open_device(Side::Server, settings, plan, towards, Mtu::Bytes4096, note)?;
    // It only receives.
    let options = SchemeOptions {
        schemes: schemes.clone(),
        mtu,
        chunk_bytes,
        congestion: settings.softnic.congestion,
        rate_bits_per_second: plan.rate_max(),
        checksum: false,
    };
    let listener = device.endpoint().listen((towards.local, 0), &options.for_library());
    let listener = listener.map_err(|error| PerfError::failed("cannot listen for the client's connection", error))?;
    listener.require_token();
    let ours = SchemeContact::new(&device, Some(&listener));
    control.send(&Reply::SchemeContact { version: VERSION, contact: ours.clone() })?;
    let theirs = match control.receive(SETUP_PATIENCE)? {
        Request::SchemeContact(contact) => contact,
        other => return Err(unexpected("its device", &other)),
    };
    note(format!("{peer}: server device {}, client device {}", ours.device, theirs.device));
    // A client that has given up closes the control connection, and says nothing before the server is ready.
    let end =
        SchemeEnd::accept(device.endpoint(), &listener, buffer_bytes(plan)?, SETUP_PATIENCE, &|| control.has_news())?;
    drop(listener);
    let mut receiver = SchemeReceiver::new(end, message_bytes_max, depth, deadline);
    control.send(&Reply::Ready)?;
    let mut results = Vec::new();
    let mut first_mismatch = None;
    while let Some(run) = next_run(control)? {
        control.send(&Reply::Running)?;
        let until = RunDeadline::new(&run);
        let (mut received, mut totals) = receiver.run(&run, &|| control.has_news() || until.has_passed())?;
        match control.receive(SETUP_PATIENCE)? {
            Request::Stop { count, .. } => receiver.leave_out(count, &mut received, &mut totals),
            other => return Err(unexpected("a stop", &other)),
        }
        if let Some(mismatch) = &received.mismatch {
            first_mismatch.get_or_insert_with(|| mismatch.clone());
        }
        let (messages, verified) = (received.messages, received.verified_messages);
        let checked = plan.verify_seed.map_or_else(String::new, |_| format!(", contents of {verified} checked"));
        note(format!("{peer}: {message_bytes_max} bytes: {messages} messages received{checked}"));
        results.push(ServerRow { bytes: message_bytes_max, messages_received: messages, messages_verified: verified });
        control.send(&Reply::SchemeReceived(received, Box::new(totals)))?;
    }
    Ok(ServerReport {
        test: plan.test,
        schemes: Some(schemes),
        client: peer,
        client_device: theirs.device,
        server_device: ours.device,
        results,
        mismatch: first_mismatch,
        finish: device.finish(),
    })
}
