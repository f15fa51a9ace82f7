//! The server's end of `longhaul perf client --scheme`.

use longhaul_reliable::NamedScheme;
use longhaul_verbs::Mtu;
use serde_json::json;

use super::control::{Control, Plan, Reply, Request, SchemeContact, SchemePlan, VERSION};
use super::options::ServerArguments;
use super::scheme_end::{SchemeEnd, SchemeOptions};
use super::scheme_stream::SchemeReceiver;
use super::server::{RunDeadline, SETUP_PATIENCE, next_run, unexpected};
use super::session::{Side, buffer_bytes, open_device, rate};
use super::table::wrong_contents;
use crate::opened_device::Towards;
use crate::stop::{Stop, with_error};

/// One client, from its plan to goodbye.
pub(super) fn serve(
    arguments: &ServerArguments,
    control: &mut Control,
    plan: &Plan,
    scheme: &SchemePlan,
    towards: Towards,
) -> Result<(), Stop> {
    let (peer, message_bytes_max) = (towards.peer, plan.message_bytes_max);
    let (chunk_bytes, depth) = (scheme.chunk_bytes, scheme.depth);
    let scheme: NamedScheme = scheme.name.parse().map_err(|error| Stop::failed("the client's scheme", error))?;
    eprintln!("{peer}: {} with {scheme}", plan.test.name());
    let (device, mtu) = open_device(Side::Server, &arguments.end, plan, towards, Mtu::Bytes4096)?;
    let rate_bits_per_second = rate(&arguments.end, plan, towards)?;
    // It only receives.
    let options = SchemeOptions { scheme, mtu, chunk_bytes, rate_bits_per_second, checksum: false };
    let listener = device.endpoint().listen((towards.local, 0), &options.for_library());
    let listener = listener.map_err(|error| Stop::failed("cannot listen for the client's connection", error))?;
    listener.require_token();
    let ours = SchemeContact::new(&device, Some(&listener));
    control.send(&Reply::SchemeContact { version: VERSION, contact: ours.clone() })?;
    let theirs = match control.receive(SETUP_PATIENCE)? {
        Request::SchemeContact(contact) => contact,
        other => return Err(unexpected("its device", &other)),
    };
    eprintln!("{peer}: server device {}, client device {}", ours.device, theirs.device);
    // A client that has given up closes the control connection, and says nothing before the server is ready.
    let end =
        SchemeEnd::accept(device.endpoint(), &listener, buffer_bytes(plan)?, SETUP_PATIENCE, &|| control.has_news())?;
    drop(listener);
    let mut receiver = SchemeReceiver::new(end, message_bytes_max, depth);
    control.send(&Reply::Ready)?;
    let mut results = Vec::new();
    let mut first_mismatch = None;
    while let Some(run) = next_run(control)? {
        control.send(&Reply::Running)?;
        let until = RunDeadline::new(&run);
        let (received, totals) = receiver.run(&run, &|| control.has_news() || until.has_passed())?;
        match control.receive(SETUP_PATIENCE)? {
            Request::Stop { .. } => {}
            other => return Err(unexpected("a stop", &other)),
        }
        if let Some(mismatch) = &received.mismatch {
            first_mismatch.get_or_insert_with(|| mismatch.clone());
        }
        let (messages, verified) = (received.messages, received.verified_messages);
        let checked = plan.verify_seed.map_or_else(String::new, |_| format!(", contents of {verified} checked"));
        eprintln!("{peer}: {message_bytes_max} bytes: {messages} messages received{checked}");
        results.push(json!({
            "bytes": message_bytes_max,
            "messages_received": messages,
            "messages_verified": verified,
        }));
        control.send(&Reply::SchemeReceived(received, totals))?;
    }
    let wrong = first_mismatch.as_deref().map(wrong_contents).or(device.finish().err().map(Stop::shown));
    if arguments.end.json {
        let line = json!({
            "schema": 1,
            "test": plan.test.name(),
            "scheme": scheme.to_string(),
            "client": peer.to_string(),
            "client_device": theirs.device,
            "server_device": ours.device,
            "results": results,
        });
        println!("{}", with_error(line, wrong.as_ref()));
    }
    wrong.map_or(Ok(()), Err)
}
