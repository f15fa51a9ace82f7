//! One of the two processes: it listens, or it connects. Both do with the library what a program would do: a task for each connection.

use std::io::BufRead as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul::{Connection, DeviceName, Endpoint, Listener, Options, Towards};
use longhaul_reliable::{NamedScheme, scheme_named};
use longhaul_softnic_udp::{UdpConfig, UdpPortChoice};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::exchange::{Answer, CONNECTIONS_BEFORE, MESSAGE_BYTES, Order};
use super::usage::Usage;
use crate::child::answer;
use crate::error::PerfError;

/// Handshakes at the same time: a listener has places for a few of each host.
const CONNECTING_MAX: usize = 4;
/// A host that is busy with thousands of connections answers late.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// One end, started by the coordinator.
#[derive(Clone, Copy, Debug)]
pub struct EndRequest {
    /// Which end.
    pub role: Role,
    /// How messages are sent.
    pub scheme: NamedScheme,
    /// Messages in flight at once on each connection.
    pub in_flight: usize,
}

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Accepts connections and receives.
    Listen,
    /// Connects and sends.
    Connect,
}

/// Runs an end, until its standard input ends. The process must end then: connections stay open.
pub fn run_end(request: &EndRequest) {
    let end = End::start(request);
    let mut end = match end {
        Ok((end, Some(address))) => {
            answer(&Ok(Answer::Listening(address)));
            end
        }
        Ok((end, None)) => end,
        Err(error) => {
            answer::<Answer>(&Err(error));
            return;
        }
    };
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let order = serde_json::from_str(&line);
        let order = order.map_err(|error| PerfError::failed(format!("an order that cannot be read: {line}"), error));
        answer(&order.and_then(|order| end.carry_out(order)));
    }
    // What both ends have open is as good as closed when both processes are gone.
    std::mem::forget(end);
}

struct End {
    endpoint: Endpoint,
    options: Options,
    /// Runs the tasks of this thread, while it waits for them.
    tasks: Runtime,
    in_flight: usize,
    connections: Vec<Arc<Sender>>,
}

/// A connection, and the messages that it has sent.
struct Sender {
    connection: Connection,
    sent: std::sync::atomic::AtomicU64,
}

impl End {
    /// And where it listens, if it does.
    fn start(request: &EndRequest) -> Result<(Self, Option<SocketAddr>), PerfError> {
        allow_descriptors();
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut udp = UdpConfig::default();
        udp.udp_port = UdpPortChoice::Free;
        let name = DeviceName::Softnic { addresses: vec![local] };
        let endpoint = Endpoint::open(&name, Towards { local, peer: local, gid_index: None }, udp)
            .map_err(|error| PerfError::failed("the device cannot be opened", error))?;
        let mut options = Options::default();
        options.scheme = scheme_named(request.scheme);
        options.connect_timeout = CONNECT_TIMEOUT;
        let tasks = Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(|error| PerfError::failed("tasks cannot be run", error))?;
        let in_flight = request.in_flight;
        let end = End { endpoint, options, tasks, in_flight, connections: Vec::new() };
        match request.role {
            Role::Connect => Ok((end, None)),
            Role::Listen => {
                let listener = end.endpoint.listen((local, 0), &end.options);
                let listener = listener.map_err(|error| PerfError::failed("nobody can listen", error))?;
                let address = listener.local_address();
                std::thread::spawn(move || receive_all(&listener, in_flight));
                Ok((end, Some(address)))
            }
        }
    }

    fn carry_out(&mut self, order: Order) -> Result<Answer, PerfError> {
        match order {
            Order::Connect { to, connections } => self.connect(to, connections as usize).map(|()| Answer::Done),
            Order::Use => Usage::now().map(Answer::Uses),
            Order::Send(messages) => {
                self.send(&self.connections, move |sender| sender.sent() < messages).map(|_| Answer::Done)
            }
            Order::WarmUp(duration) => {
                // One alone is served in another rhythm than many.
                let last = self.connections.len().saturating_sub(1);
                for connections in [&self.connections[..], &self.connections[last..]] {
                    let begun = Instant::now();
                    self.send(connections, move |_| begun.elapsed() < duration)?;
                }
                Ok(Answer::Done)
            }
            Order::Run(duration) => {
                let counted = self.connections.get(CONNECTIONS_BEFORE as usize..).unwrap_or_default();
                let before: Vec<u64> = counted.iter().map(|sender| sender.sent()).collect();
                let begun = Instant::now();
                let elapsed = self.send(counted, move |_| begun.elapsed() < duration)?;
                let counted = counted.iter().zip(before).map(|(sender, before)| sender.sent() - before);
                Ok(Answer::Sent { messages: counted.collect(), elapsed })
            }
        }
    }

    fn connect(&mut self, to: SocketAddr, count: usize) -> Result<(), PerfError> {
        let (mut left, mut connecting) = (count, JoinSet::new());
        self.connections.reserve_exact(count);
        self.tasks.block_on(async {
            while left > 0 || !connecting.is_empty() {
                while left > 0 && connecting.len() < CONNECTING_MAX {
                    let pending = self.endpoint.connect(to, &self.options);
                    connecting.spawn(pending);
                    left -= 1;
                }
                let Some(joined) = connecting.join_next().await else { continue };
                let connected = joined.map_err(|error| PerfError::failed("a task has ended early", error))?;
                let connection = connected.map_err(|error| PerfError::failed("a connection cannot be made", error))?;
                self.connections.push(Arc::new(Sender { connection, sent: Default::default() }));
            }
            Ok(())
        })
    }

    /// Send on connections, as long as each wants to. How long that took.
    fn send(
        &self,
        connections: &[Arc<Sender>],
        goes_on: impl Fn(&Sender) -> bool + Clone + Send + 'static,
    ) -> Result<Duration, PerfError> {
        let begun = Instant::now();
        self.tasks.block_on(async {
            let mut sending = JoinSet::new();
            for sender in connections.iter().flat_map(|sender| std::iter::repeat_n(sender, self.in_flight)) {
                sending.spawn(sender.clone().send(goes_on.clone()));
            }
            while let Some(sent) = sending.join_next().await {
                sent.map_err(|error| PerfError::failed("a task has ended early", error))?
                    .map_err(|error| PerfError::failed("a message was not sent", error))?;
            }
            Ok(begun.elapsed())
        })
    }
}

impl Sender {
    fn sent(&self) -> u64 {
        self.sent.load(std::sync::atomic::Ordering::Relaxed)
    }

    async fn send(self: Arc<Self>, goes_on: impl Fn(&Sender) -> bool) -> Result<(), longhaul::TransferError> {
        while goes_on(&self) {
            self.connection.write([0x5a; MESSAGE_BYTES]).await?;
            self.sent.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Accept all connections, and receive what arrives, until the process ends.
fn receive_all(listener: &Listener, in_flight: usize) {
    let Ok(tasks) = Builder::new_current_thread().enable_time().build() else { return };
    tasks.block_on(async {
        while let Ok(connection) = listener.accept().await {
            tokio::spawn(async move {
                let mut messages = connection.incoming(MESSAGE_BYTES, in_flight);
                while messages.next_message().await.is_ok() {}
            });
        }
    });
}

/// A connection has a descriptor. If the host allows too few, connecting says so.
fn allow_descriptors() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}
