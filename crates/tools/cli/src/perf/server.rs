//! `longhaul perf server`: waits for clients and measures with one after another.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use longhaul_verbs::Mtu;
use serde_json::json;

use super::answers;
use super::connection::Connection;
use super::control::{Control, Plan, Reply, Request, VERSION, different_versions};
use super::meeting;
use super::options::{MESSAGE_BYTES_MAX, PORT, SCHEME_DEPTH_MAX, ServerArguments};
use super::scheme_end::CHUNK_BYTES_MAX;
use super::scheme_server;
use super::session::{Half, Session, Side, buffer_bytes, is_checked_at_end};
use super::stream::{Bound, Received, Run};
use super::table::wrong_contents;
use crate::message::kind_of;
use crate::opened_device::Towards;
use crate::stop::{Stop, with_error};

/// How long a client may take to say what it wants.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// Clients that wait for their turn and are informed of it; further clients wait without a word.
const CLIENTS_WAITING_MAX: usize = 16;
/// How long a client may take to create its queue pairs, or between two runs.
pub(super) const SETUP_PATIENCE: Duration = Duration::from_secs(120);
/// How much longer than it announced a client may take for a run.
const RUN_PATIENCE: Duration = Duration::from_secs(120);

/// When a client must have ended a run that it has given a time. One with a number of messages is as long as it is: the
/// client gives up when nothing comes back, and keepalive notices when the client's host is gone.
pub(super) struct RunDeadline(Option<Instant>);

impl RunDeadline {
    pub(super) fn new(run: &Run) -> Self {
        RunDeadline(match run.bound {
            Bound::Time(duration) => Instant::now().checked_add(duration.saturating_add(RUN_PATIENCE)),
            Bound::Messages(_) => None,
        })
    }

    pub(super) fn has_passed(&self) -> bool {
        self.0.is_some_and(|deadline| Instant::now() > deadline)
    }
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &ServerArguments) -> Result<(), Stop> {
    if arguments.end.softnic.prints_help() {
        return Ok(());
    }
    arguments.end.check()?;
    if arguments.end.json && !arguments.once {
        return Err(Stop::Usage("--json prints one line, so it needs --once".to_owned()));
    }
    let listener = meeting::listen(arguments.end.choice()?.given_address(), arguments.end.port)?;
    // Port 0 has the system choose one.
    let port = listener.local_addr().map_err(|error| Stop::failed("cannot ask for the TCP port", error))?.port();
    eprintln!("waiting on TCP port {port} for: longhaul perf client HOST{}", port_option(port));
    let present = Arc::new(AtomicUsize::new(0));
    let clients = accept(listener, present.clone());
    loop {
        let accepted = clients.recv().map_err(|error| Stop::failed("cannot accept clients any more", error))?;
        let (stream, peer) = accepted.map_err(|error| Stop::failed("cannot accept a client", error))?;
        let outcome = serve(arguments, stream);
        present.fetch_sub(1, Ordering::AcqRel);
        if arguments.once {
            return outcome;
        }
        // One client's misfortune is not the next one's.
        if let Err(stop) = outcome {
            eprintln!("{}: {stop}", peer.ip().to_canonical());
        }
    }
}

/// Accepts clients, on a thread, so that one that has to wait can be informed. `present` counts those that are not
/// done.
fn accept(listener: TcpListener, present: Arc<AtomicUsize>) -> Receiver<std::io::Result<(TcpStream, SocketAddr)>> {
    let (sender, clients) = sync_channel(CLIENTS_WAITING_MAX);
    std::thread::spawn(move || {
        loop {
            let accepted = listener.accept();
            let is_over = accepted.is_err();
            if let Ok((stream, _)) = &accepted
                && must_wait(&present)
                && let Ok(mut line) = serde_json::to_string(&Reply::Waiting { version: VERSION })
            {
                line.push('\n');
                // If it is gone already, its turn will show that.
                let _ = (&*stream).write_all(line.as_bytes());
            }
            if sender.send(accepted).is_err() || is_over {
                return;
            }
        }
    });
    clients
}

/// Counts one more client, and says whether others are before it. One that is just leaving does not count.
fn must_wait(present: &AtomicUsize) -> bool {
    present.fetch_add(1, Ordering::AcqRel);
    for _ in 0..30 {
        if present.load(Ordering::Acquire) <= 1 {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

fn port_option(port: u16) -> String {
    if port == PORT { String::new() } else { format!(" -p {port}") }
}

/// One client, from hello to goodbye.
fn serve(arguments: &ServerArguments, stream: TcpStream) -> Result<(), Stop> {
    let (local, peer) = meeting::addresses(&stream)?;
    let mut control = Control::new(stream)?;
    let served = serve_plan(arguments, &mut control, local, peer);
    if let Err(stop) = &served
        && !control.is_gone()
    {
        let _ = control.send(&Reply::Refused { version: VERSION, reason: stop.to_string() });
    }
    served
}

fn serve_plan(arguments: &ServerArguments, control: &mut Control, local: IpAddr, peer: IpAddr) -> Result<(), Stop> {
    let plan = match control.receive(HELLO_PATIENCE)? {
        Request::Hello { version, .. } if version != VERSION => {
            return Err(Stop::Failed(different_versions(&version.to_string())));
        }
        Request::Hello { client, server, plan, .. } => {
            check_addresses((peer, client), (local, server))?;
            check_plan(&plan)?;
            plan
        }
        other => return Err(unexpected("a hello", &other)),
    };
    let towards = Towards { local, peer, gid_index: arguments.end.gid_index };
    if let Some(scheme) = &plan.scheme {
        return scheme_server::serve(arguments, control, &plan, scheme, towards);
    }
    let connection = plan.connection.transport().abbreviation();
    eprintln!("{peer}: {} over {connection}, number of queue pairs {}", plan.test.name(), plan.queue_pairs);
    let mut session = Session::open(Side::Server, &arguments.end, &plan, towards, Mtu::Bytes4096)?;
    control.send(&Reply::Contact { version: VERSION, contact: session.contact() })?;
    let client_device = match control.receive(SETUP_PATIENCE)? {
        Request::Contact(contact) => {
            let (ours, theirs) = (session.nic.device.describe(), &contact.device);
            eprintln!("{peer}: server device {ours}, client device {theirs}");
            session.connect(&plan, &contact)?;
            theirs.clone()
        }
        other => return Err(unexpected("a contact", &other)),
    };
    control.send(&Reply::Ready)?;
    let mut results = Vec::new();
    let mut first_mismatch = None;
    while let Some(run) = next_run(control)? {
        if run.operation != plan.operation {
            return Err(Stop::Failed(
                "the client asked for another operation than it had planned: use the same release at both ends"
                    .to_owned(),
            ));
        }
        if run.message_bytes == 0 || run.message_bytes > plan.message_bytes_max {
            let most = plan.message_bytes_max;
            return Err(Stop::Failed(format!(
                "the client asked for messages of {} bytes; this server takes 1 to {most}",
                run.message_bytes
            )));
        }
        let received = serve_run(control, &mut session, &plan, &run)?;
        if let Some(mismatch) = &received.mismatch {
            first_mismatch.get_or_insert_with(|| mismatch.clone());
        }
        eprintln!("{peer}: {} bytes: {}", run.message_bytes, summary(&plan, &received));
        results.push(json!({
            "bytes": run.message_bytes,
            "messages_received": received.messages,
            "messages_verified": received.verified_messages,
        }));
        control.send(&Reply::Received(received))?;
    }
    let wrong = first_mismatch.as_deref().map(wrong_contents).or(session.nic.device.finish().err().map(Stop::shown));
    if arguments.end.json {
        let line = json!({
            "schema": 1,
            "test": plan.test.name(),
            "client": peer.to_string(),
            "client_device": client_device,
            "server_device": session.nic.device.describe(),
            "results": results,
        });
        println!("{}", with_error(line, wrong.as_ref()));
    }
    wrong.map_or(Ok(()), Err)
}

fn summary(plan: &Plan, received: &Received) -> String {
    match (plan.test.is_latency(), plan.verify_seed) {
        _ if plan.operation.is_answered() => format!("{} requests answered", received.messages),
        (true, _) => "messages answered until the client said to stop".to_owned(),
        (false, None) => format!("{} messages received", received.messages),
        (false, Some(_)) => {
            format!("{} messages received, contents of {} checked", received.messages, received.verified_messages)
        }
    }
}

/// Runs until the client says how many messages it has sent.
fn serve_run(control: &mut Control, session: &mut Session, plan: &Plan, run: &Run) -> Result<Received, Stop> {
    let message_bytes_max = plan.message_bytes_max as usize;
    match &mut session.half {
        Half::Receiver(receiver) if run.operation.is_answered() => answers::prepare_memory(receiver.group(), run),
        Half::Receiver(receiver) => receiver.start(run, message_bytes_max)?,
        Half::PingPong(ping_pong) => ping_pong.prepare(run),
        Half::Sender(_) => unreachable!("a server never sends first"),
    }
    control.send(&Reply::Running)?;
    let until = RunDeadline::new(run);
    let has_news = || control.has_news() || until.has_passed();
    let mut received = match &mut session.half {
        Half::Receiver(receiver) => receiver.run(run, message_bytes_max, &has_news)?,
        Half::PingPong(ping_pong) => {
            let mismatch = ping_pong.pong(run, message_bytes_max, &has_news)?;
            Received { mismatch, ..Received::default() }
        }
        Half::Sender(_) => unreachable!("a server never sends first"),
    };
    match control.receive(SETUP_PATIENCE)? {
        Request::Stop { first, count } => {
            if let Half::Receiver(receiver) = &mut session.half
                && is_checked_at_end(plan, run)
            {
                match run.operation.is_answered() {
                    true => answers::check_memory(receiver.group(), run, count, &mut received),
                    false => receiver.verify_memory(run, first, count, &mut received),
                }
                received.messages = count; // RC has confirmed them to the client.
            }
            Ok(received)
        }
        other => Err(unexpected("a stop", &other)),
    }
}

/// The next run that the client wants; none when it is done.
pub(super) fn next_run(control: &mut Control) -> Result<Option<Run>, Stop> {
    match control.receive(SETUP_PATIENCE) {
        Ok(Request::Run(run)) => Ok(Some(run)),
        Ok(other) => Err(unexpected("a run", &other)),
        Err(_) if control.is_gone() => Ok(None),
        Err(stop) => Err(stop),
    }
}

pub(super) fn unexpected(expected: &str, got: &Request) -> Stop {
    Stop::Failed(format!(
        "the client should have sent {expected}, but sent \"{}\": use the same release at both ends",
        kind_of(got)
    ))
}

/// ICRC covers the addresses: packets whose addresses are rewritten in the network look corrupted.
fn check_addresses(client: (IpAddr, IpAddr), server: (IpAddr, IpAddr)) -> Result<(), Stop> {
    for (who, (seen, believed)) in [("client", client), ("server", server)] {
        if seen != believed {
            return Err(Stop::Failed(format!(
                "there is a NAT between client and server: the {who} has address {believed} on the client's side and {seen} \
                 on the server's. RoCE packets carry a checksum over their addresses and cannot pass it; use a path without \
                 NAT, such as a tunnel"
            )));
        }
    }
    Ok(())
}

/// A client must not make this end do just anything.
fn check_plan(plan: &Plan) -> Result<(), Stop> {
    let message_bytes_max = match plan.connection {
        Connection::Ud => Mtu::Bytes4096.byte_count(),
        Connection::Rc | Connection::Uc => MESSAGE_BYTES_MAX,
    };
    if plan.operation.is_answered() && !plan.connection.is_reliable() {
        return Err(Stop::Failed("READs and atomics need RC; use -c RC".to_owned()));
    }
    let counts = [plan.queue_pairs, plan.send_depth, plan.receive_depth];
    if counts.contains(&0) {
        let text = "expected at least one queue pair, one send and one receive, got none of one of them";
        return Err(Stop::Failed(text.to_owned()));
    }
    if !(1..=message_bytes_max).contains(&plan.message_bytes_max) {
        let got = plan.message_bytes_max;
        return Err(Stop::Failed(format!("expected messages of 1 to {message_bytes_max} bytes, got {got}")));
    }
    if let Some(scheme) = &plan.scheme {
        let chunk_fits = scheme.chunk_bytes.is_none_or(|bytes| (1..=CHUNK_BYTES_MAX).contains(&bytes));
        if !chunk_fits || !scheme.depth.is_none_or(|depth| (1..=SCHEME_DEPTH_MAX).contains(&depth)) {
            return Err(Stop::Failed(format!(
                "the client's --chunk or -r is out of range: this server takes chunks of 1 to {CHUNK_BYTES_MAX} bytes and 1 to \
                 {SCHEME_DEPTH_MAX} messages in flight"
            )));
        }
    }
    buffer_bytes(plan).map(|_| ())
}
