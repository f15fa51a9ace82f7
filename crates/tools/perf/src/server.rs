//! The server: waits for clients and measures with one after another.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use longhaul::with_sources;
use longhaul_verbs::Mtu;

use crate::answers;
use crate::connection::Connection;
use crate::control::{Control, Plan, Reply, Request, VERSION, different_versions};
use crate::device::Towards;
use crate::error::PerfError;
use crate::meeting;
use crate::report::{ServerReport, ServerRow};
use crate::request::{MESSAGE_BYTES_MAX, SCHEME_DEPTH_MAX};
use crate::scheme_end::CHUNK_BYTES_MAX;
use crate::scheme_server;
use crate::session::{Half, Session, Side, buffer_bytes, is_checked_at_end};
use crate::settings::EndSettings;
use crate::stream::{Received, Run};
use crate::turns::{RunDeadline, SETUP_PATIENCE, next_run, unexpected};

/// How long a client may take to say what it wants.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// Clients that wait for their turn and are informed of it; further clients wait without a word.
const CLIENTS_WAITING_MAX: usize = 16;
/// A server: waits for clients, and measures with one after another.
pub struct Server {
    settings: EndSettings,
    port: u16,
    clients: Receiver<std::io::Result<(TcpStream, SocketAddr)>>,
    /// Clients that are not done.
    present: Arc<AtomicUsize>,
}

impl Server {
    /// Listens at the address that its device was given, or at all addresses.
    pub fn listen(settings: EndSettings) -> Result<Server, PerfError> {
        let listener = meeting::listen(settings.device.given_address(), settings.port)?;
        // Port 0 has the system choose one.
        let port =
            listener.local_addr().map_err(|error| PerfError::failed("cannot ask for the TCP port", error))?.port();
        let present = Arc::new(AtomicUsize::new(0));
        let clients = accept(listener, present.clone());
        Ok(Server { settings, port, clients, present })
    }

    /// The TCP port at which it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits for the next client and measures with it. `note` gets what people should know, as it happens.
    pub fn serve_next(
        &self,
        note: &mut dyn FnMut(String),
    ) -> Result<(IpAddr, Result<ServerReport, PerfError>), PerfError> {
        let accepted =
            self.clients.recv().map_err(|error| PerfError::failed("cannot accept clients any more", error))?;
        let (stream, peer) = accepted.map_err(|error| PerfError::failed("cannot accept a client", error))?;
        let served = serve(&self.settings, stream, note);
        self.present.fetch_sub(1, Ordering::AcqRel);
        Ok((peer.ip().to_canonical(), served))
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

/// One client, from hello to goodbye.
fn serve(settings: &EndSettings, stream: TcpStream, note: &mut dyn FnMut(String)) -> Result<ServerReport, PerfError> {
    let (local, peer) = meeting::addresses(&stream)?;
    let mut control = Control::new(stream)?;
    let served = serve_plan(settings, &mut control, local, peer, note);
    if let Err(error) = &served
        && !control.is_gone()
    {
        let _ = control.send(&Reply::Refused { version: VERSION, reason: with_sources(error) });
    }
    served
}

fn serve_plan(
    settings: &EndSettings,
    control: &mut Control,
    local: IpAddr,
    peer: IpAddr,
    note: &mut dyn FnMut(String),
) -> Result<ServerReport, PerfError> {
    let plan = match control.receive(HELLO_PATIENCE)? {
        Request::Hello { version, .. } if version != VERSION => {
            return Err(PerfError::Failed(different_versions(&version.to_string())));
        }
        Request::Hello { client, server, plan, .. } => {
            check_addresses((peer, client), (local, server))?;
            check_plan(&plan)?;
            if plan.scheme.is_some() && settings.softnic.fec_gateway.is_some() {
                return Err(PerfError::Failed(
                    "--scheme: its messages are single packets, so this server's --fec would send each twice; leave --fec out at the \
                     server, or --scheme at the client"
                        .to_owned(),
                ));
            }
            if plan.fec.is_some() && settings.softnic.fec_gateway.is_some() {
                return Err(PerfError::Failed(
                    "the client asks for --fec, but this server has --fec-peer gateway: a gateway before the client does that half; \
                     leave --fec out at the client"
                        .to_owned(),
                ));
            }
            plan
        }
        other => return Err(unexpected("a hello", &other)),
    };
    let towards = Towards { local, peer, gid_index: settings.gid_index };
    if let Some(scheme) = &plan.scheme {
        return scheme_server::serve(settings, control, &plan, scheme, towards, note);
    }
    let connection = plan.connection.transport().abbreviation();
    note(format!("{peer}: {} over {connection}, number of queue pairs {}", plan.test.name(), plan.queue_pairs));
    let mut session = Session::open(Side::Server, settings, &plan, towards, Mtu::Bytes4096, note)?;
    control.send(&Reply::Contact { version: VERSION, contact: session.contact() })?;
    let client_device = match control.receive(SETUP_PATIENCE)? {
        Request::Contact(contact) => {
            let (ours, theirs) = (session.nic.device.describe(), &contact.device);
            note(format!("{peer}: server device {ours}, client device {theirs}"));
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
            return Err(PerfError::Failed(
                "the client asked for another operation than it had planned: use the same release at both ends"
                    .to_owned(),
            ));
        }
        if run.message_bytes == 0 || run.message_bytes > plan.message_bytes_max {
            let most = plan.message_bytes_max;
            return Err(PerfError::Failed(format!(
                "the client asked for messages of {} bytes; this server takes 1 to {most}",
                run.message_bytes
            )));
        }
        let received = serve_run(control, &mut session, &plan, &run)?;
        if let Some(mismatch) = &received.mismatch {
            first_mismatch.get_or_insert_with(|| mismatch.clone());
        }
        note(format!("{peer}: {} bytes: {}", run.message_bytes, summary(&plan, &received)));
        results.push(ServerRow {
            bytes: run.message_bytes,
            messages_received: received.messages,
            messages_verified: received.verified_messages,
        });
        control.send(&Reply::Received(received))?;
    }
    let device = &session.nic.device;
    Ok(ServerReport {
        test: plan.test,
        schemes: None,
        client: peer,
        client_device,
        server_device: device.describe().to_owned(),
        results,
        mismatch: first_mismatch,
        finish: device.finish(),
    })
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
fn serve_run(control: &mut Control, session: &mut Session, plan: &Plan, run: &Run) -> Result<Received, PerfError> {
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

/// ICRC covers the addresses: packets whose addresses are rewritten in the network look corrupted.
fn check_addresses(client: (IpAddr, IpAddr), server: (IpAddr, IpAddr)) -> Result<(), PerfError> {
    for (who, (seen, believed)) in [("client", client), ("server", server)] {
        if seen != believed {
            return Err(PerfError::Failed(format!(
                "there is a NAT between client and server: the {who} has address {believed} on the client's side and {seen} \
                 on the server's. RoCE packets carry a checksum over their addresses and cannot pass it; use a path without \
                 NAT, such as a tunnel"
            )));
        }
    }
    Ok(())
}

/// A client must not make this end do just anything.
fn check_plan(plan: &Plan) -> Result<(), PerfError> {
    let message_bytes_max = match plan.connection {
        Connection::Ud => Mtu::Bytes4096.byte_count(),
        Connection::Rc | Connection::Uc => MESSAGE_BYTES_MAX,
    };
    if plan.operation.is_answered() && !plan.connection.is_reliable() {
        return Err(PerfError::Failed("READs and atomics need RC; use -c RC".to_owned()));
    }
    let counts = [plan.queue_pairs, plan.send_depth, plan.receive_depth];
    if counts.contains(&0) {
        let text = "expected at least one queue pair, one send and one receive, got none of one of them";
        return Err(PerfError::Failed(text.to_owned()));
    }
    if !(1..=message_bytes_max).contains(&plan.message_bytes_max) {
        let got = plan.message_bytes_max;
        return Err(PerfError::Failed(format!("expected messages of 1 to {message_bytes_max} bytes, got {got}")));
    }
    if plan.agreed_fec()?.is_some() && (plan.scheme.is_some() || plan.connection == Connection::Ud) {
        return Err(PerfError::Failed("--fec is for RC and UC: messages of others are single packets".to_owned()));
    }
    if let Some(scheme) = &plan.scheme {
        let chunk_fits = scheme.chunk_bytes.is_none_or(|bytes| (1..=CHUNK_BYTES_MAX).contains(&bytes));
        if !chunk_fits || !scheme.depth.is_none_or(|depth| (1..=SCHEME_DEPTH_MAX).contains(&depth)) {
            return Err(PerfError::Failed(format!(
                "the client's --chunk or -r is out of range: this server takes chunks of 1 to {CHUNK_BYTES_MAX} bytes and 1 to \
                 {SCHEME_DEPTH_MAX} messages in flight"
            )));
        }
    }
    buffer_bytes(plan).map(|_| ())
}
