//! Listening: a TCP port at which handshakes are made, and the connections that come of them.
//!
//! Each handshake has a thread of its own, for as long as it takes and no longer than `connect_timeout`. Somebody who
//! connects and says nothing is given up after [`HELLO_TIMEOUT`], and before that as soon as somebody else needs the
//! place (`admission`).

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use longhaul_runtime::{Panicked, catch};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use thiserror::Error;

use crate::admission::{Admission, HandshakeId, Standing};
use crate::agreement::Meeting;
use crate::carrier::{Carrier, CarrierError};
use crate::connection::Connection;
use crate::device::{DeviceChoice, DeviceNameError, FecOnMessagesError, check_fec};
use crate::endpoint::{Endpoint, OpenError, Towards};
use crate::handle::ListenHandle;
use crate::handshake::Accepting;
use crate::handshake_error::HandshakeError;
use crate::options::{Options, SchemeNamesTooLong};
use crate::path_check::{self, VerifyError};
use crate::peer_claims::{self, own_addresses};
use crate::pending::Pending;
use crate::randomness::random;
use longhaul_runtime::with_sources;

/// Handshakes at a time.
const HANDSHAKES_MAX: usize = 256;
/// Of those, from one source that has not shown the token. All processes of a host may connect at the same moment, and
/// each opens its device before it says anything.
const HANDSHAKES_PER_SOURCE_MAX: usize = 128;
/// Threads, including those whose handshakes have given way and that are about to end.
const THREADS_MAX: usize = 2 * HANDSHAKES_MAX;
/// The first message must have come after this.
const HELLO_TIMEOUT: Duration = Duration::from_secs(3);
/// Connections that nobody has accepted yet.
const WAITING_MAX: usize = 128;
/// Devices that are kept at loopback addresses other than the usual one: a host has sixteen million of them, and any
/// program on it can connect to any of them.
const LOOPBACK_DEVICES_MAX: usize = 8;
/// When there are too many of either, it looks again after this.
const FULL_PAUSE: Duration = Duration::from_millis(5);
/// After an error of the system, such as too many open files.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Why a listener cannot listen.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ListenError {
    /// The device's name stands for nothing.
    #[error(transparent)]
    DeviceName(#[from] DeviceNameError),
    /// There is no such device.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The device is not for messages.
    #[error(transparent)]
    Fec(#[from] FecOnMessagesError),
    /// The schemes have names that are too long.
    #[error(transparent)]
    SchemeNames(#[from] SchemeNamesTooLong),
    /// The address cannot be listened at.
    #[error("cannot listen at this address; is it one of this host, and its port free?")]
    Bind(#[source] io::Error),
    /// The system refused.
    #[error("cannot set up the listener on this address")]
    System(#[source] io::Error),
}

/// Why no connection is accepted any more.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The listener was dropped.
    #[error("the listener was closed")]
    Closed,
}

/// Accepts connections at a TCP port. When it is dropped it listens no more; connections live on.
pub struct Listener {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    options: Options,
    token: [u8; 16],
    needs_token: AtomicBool,
    device: DeviceSource,
    handshakes: Mutex<Admission<Arc<TcpStream>>>,
    threads: AtomicUsize,
    refused: AtomicU64,
    closing: AtomicBool,
    bell: EventFd,
    queue: Mutex<Queue>,
}

enum DeviceSource {
    /// Opened towards the first peer that comes to an address of ours, and kept; the oldest first.
    Choice(Box<DeviceChoice>, Mutex<Vec<(IpAddr, Endpoint)>>),
    Open(Endpoint),
}

#[derive(Default)]
struct Queue {
    connections: VecDeque<Connection>,
    /// Of those who wait in [`Listener::accept`], by the number of each.
    wakers: BTreeMap<u64, Waker>,
    next_accept: u64,
    is_closed: bool,
}

/// What [`Listener::accept`] returns, inside.
struct Accept {
    shared: Arc<Shared>,
    number: u64,
}

impl Future for Accept {
    type Output = Result<Connection, AcceptError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut queue = self.shared.queue();
        let ended = take_ended(&mut queue.connections);
        let result = match queue.connections.pop_front() {
            Some(connection) => Ok(connection),
            None if queue.is_closed => Err(AcceptError::Closed),
            None => {
                // Everybody who waits is woken by the next connection, so nobody's turn is lost with a dropped future.
                let previous = queue.wakers.insert(self.number, context.waker().clone());
                drop(queue);
                drop((previous, ended));
                return Poll::Pending;
            }
        };
        drop(queue);
        drop(ended);
        Poll::Ready(result)
    }
}

impl Drop for Accept {
    fn drop(&mut self) {
        let waker = self.shared.queue().wakers.remove(&self.number);
        drop(waker);
    }
}

/// Why a handshake failed.
#[derive(Debug, Error)]
enum RefusedError {
    #[error(transparent)]
    Carrier(#[from] CarrierError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Path(#[from] VerifyError),
    #[error(transparent)]
    Panicked(#[from] Panicked),
    #[error("it was dropped in favor of others: it took too long while many were connecting; try again")]
    GaveWay,
}

impl Listener {
    /// Listen at an address (port 0 has the system choose one), for connections of a device by its name, which is
    /// opened when the first peer comes: `Listener::bind("0.0.0.0:7471", "softnic", &options)`.
    pub fn bind<D>(at: impl ToSocketAddrs, device: D, options: &Options) -> Result<Self, ListenError>
    where
        D: TryInto<DeviceChoice>,
        D::Error: Into<DeviceNameError>,
    {
        let choice: DeviceChoice = device.try_into().map_err(|error| ListenError::DeviceName(error.into()))?;
        choice.name.check()?;
        Self::start(at, DeviceSource::Choice(Box::new(choice), Mutex::default()), options)
    }

    fn start(at: impl ToSocketAddrs, device: DeviceSource, options: &Options) -> Result<Self, ListenError> {
        check_fec(match &device {
            DeviceSource::Choice(choice, _) => choice.udp.fec,
            DeviceSource::Open(endpoint) => endpoint.fec(),
        })?;
        options.check_names()?;
        let listener = TcpListener::bind(at).map_err(ListenError::Bind)?;
        listener.set_nonblocking(true).map_err(ListenError::System)?;
        let address = listener.local_addr().map_err(ListenError::System)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let bell = EventFd::from_value_and_flags(0, flags).map_err(|error| ListenError::System(error.into()))?;
        let shared = Arc::new(Shared {
            options: options.clone(),
            token: random().map_err(ListenError::System)?,
            needs_token: AtomicBool::new(false),
            device,
            handshakes: Mutex::new(Admission::new(HANDSHAKES_MAX, HANDSHAKES_PER_SOURCE_MAX)),
            threads: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            bell,
            queue: Mutex::default(),
        });
        let served = shared.clone();
        let builder = thread::Builder::new().name("longhaul-listen".to_owned());
        let thread = builder.spawn(move || serve(&listener, &served)).map_err(ListenError::System)?;
        Ok(Listener { shared, address, thread: Some(thread) })
    }

    /// The address and TCP port.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// All that a connecting end must know: bytes for a bootstrap that carries them there.
    pub fn handle(&self) -> ListenHandle {
        let addresses = match self.address.ip().to_canonical() {
            address if address.is_unspecified() => host_addresses(address.is_ipv4()),
            address => vec![address],
        };
        ListenHandle::new(addresses, self.address.port(), self.shared.token)
    }

    /// Refuse those on this host too who were not given the handle. Peers on other hosts are refused without it in any
    /// case, unless [`Options::allow_without_token`] is set; the handle of another listener is always refused.
    pub fn require_token(&self) {
        self.shared.needs_token.store(true, Ordering::Release);
    }

    /// The next connection.
    pub fn accept(&self) -> Pending<Connection, AcceptError> {
        let number = {
            let mut queue = self.shared.queue();
            queue.next_accept += 1;
            queue.next_accept
        };
        Pending::new(Accept { shared: self.shared.clone(), number })
    }

    /// Failed handshakes: strangers, other schemes, wrong tokens. A `tracing` event gives the reason.
    pub fn refused_count(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }
}

impl Endpoint {
    /// Listen at an address, for connections of this device.
    pub fn listen(&self, at: impl ToSocketAddrs, options: &Options) -> Result<Listener, ListenError> {
        Listener::start(at, DeviceSource::Open(self.clone()), options)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Release);
        let _ = self.shared.bell.write(1);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let (connections, wakers) = {
            let mut queue = self.shared.queue();
            queue.is_closed = true;
            (std::mem::take(&mut queue.connections), std::mem::take(&mut queue.wakers))
        };
        drop(connections);
        wakers.into_values().for_each(Waker::wake);
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Listener").field(&self.address).finish()
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handshakes(&self) -> MutexGuard<'_, Admission<Arc<TcpStream>>> {
        self.handshakes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is no room for another connection that the program has not accepted yet.
    fn is_queue_full(&self) -> bool {
        let mut queue = self.queue();
        if queue.connections.len() < WAITING_MAX {
            return false;
        }
        let ended = take_ended(&mut queue.connections);
        let is_full = queue.connections.len() >= WAITING_MAX;
        drop(queue);
        drop(ended);
        is_full
    }

    fn needs_token(&self, local: IpAddr, peer: IpAddr) -> bool {
        self.needs_token.load(Ordering::Acquire) || is_token_needed(local, peer, &self.options)
    }

    fn endpoint(&self, local: IpAddr, peer: IpAddr) -> Result<Endpoint, OpenError> {
        let (choice, open) = match &self.device {
            DeviceSource::Open(endpoint) => return Ok(endpoint.clone()),
            DeviceSource::Choice(choice, open) => (choice, open),
        };
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, endpoint)) = open.iter().find(|(address, _)| *address == local) {
            return Ok(endpoint.clone());
        }
        let towards = Towards { local, peer, gid_index: choice.gid_index };
        let endpoint = Endpoint::open(&choice.name, towards, choice.udp.clone())?;
        for warning in endpoint.warnings() {
            tracing::warn!("{warning}");
        }
        let forgotten = forgotten_for(local, open.iter().map(|(address, _)| *address));
        // Its connections keep it for as long as they live.
        let forgotten = forgotten.map(|index| open.remove(index));
        open.push((local, endpoint.clone()));
        drop(open);
        drop(forgotten);
        Ok(endpoint)
    }

    fn shake_hands(&self, stream: Arc<TcpStream>, id: HandshakeId) -> Result<Connection, RefusedError> {
        let options = &self.options;
        let mut carrier = Carrier::new(stream, options.connect_timeout.min(HELLO_TIMEOUT))?;
        let (local, peer) = carrier.addresses()?;
        let hello = carrier.receive()?;
        carrier.set_patience(options.connect_timeout);
        let meeting = Meeting { addresses: Some((local, peer)), token: Some(self.token) };
        let needs_token = self.needs_token(local, peer);
        // Nothing is made for somebody who may not connect.
        if let Err(error) = peer_claims::check_token(&meeting, needs_token, &hello) {
            let _ = carrier.send(&error.to_refusal());
            return Err(error.into());
        }
        let endpoint = self.endpoint(local, peer);
        let endpoint = match endpoint {
            Ok(endpoint) => endpoint,
            Err(error) => {
                let _ = carrier.send(&HandshakeError::Refused(with_sources(&error)).to_refusal());
                return Err(error.into());
            }
        };
        let accepted = Accepting::on_hello(&endpoint, options, &meeting, needs_token, &hello);
        let (accepting, answer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                let _ = carrier.send(&error.to_refusal());
                return Err(error.into());
            }
        };
        self.handshakes().promote(id, if accepting.has_token() { Standing::Trusted } else { Standing::Heard });
        carrier.send(&answer)?;
        let info = carrier.receive()?;
        let connection = accepting.on_info(&info)?;
        path_check::verify(&connection, &mut carrier)?;
        connection.watch(carrier.into_lifeline(options.message_timeout)).map_err(CarrierError::System)?;
        Ok(connection)
    }
}

/// Which of the devices at these addresses is kept no longer when one at another address is.
fn forgotten_for(address: IpAddr, mut kept: impl Iterator<Item = IpAddr> + Clone) -> Option<usize> {
    let is_one_of_many = |address: &IpAddr| address.is_loopback() && *address != IpAddr::V4(Ipv4Addr::LOCALHOST);
    let is_full = kept.clone().filter(is_one_of_many).count() >= LOOPBACK_DEVICES_MAX;
    kept.position(|kept| is_full && is_one_of_many(&address) && is_one_of_many(&kept))
}

/// Removes the connections that ended before the program accepted them: nothing was received on them, and nothing will
/// be. The caller drops them after it has unlocked the queue, because closing a connection takes time.
fn take_ended(connections: &mut VecDeque<Connection>) -> VecDeque<Connection> {
    let (ended, alive) = std::mem::take(connections).into_iter().partition(Connection::is_over);
    *connections = alive;
    ended
}

/// Somebody on this host needs no token; nobody does if the options say so.
fn is_token_needed(local: IpAddr, peer: IpAddr, options: &Options) -> bool {
    let is_here = peer.is_loopback() || peer == local;
    !is_here && !options.allow_without_token
}

/// The listener's thread.
fn serve(listener: &TcpListener, shared: &Arc<Shared>) {
    let readable = PollFlags::POLLIN;
    while !shared.closing.load(Ordering::Acquire) {
        let is_full = shared.handshakes().is_full()
            || shared.threads.load(Ordering::Acquire) >= THREADS_MAX
            || shared.is_queue_full();
        let mut watched = vec![PollFd::new(shared.bell.as_fd(), readable)];
        if !is_full {
            watched.push(PollFd::new(listener.as_fd(), readable));
        }
        let pause = PollTimeout::try_from(FULL_PAUSE).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut watched, if is_full { pause } else { PollTimeout::NONE });
        if is_full {
            continue;
        }
        match listener.accept() {
            Ok((stream, peer)) => begin(stream, peer, shared),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!("cannot accept: {error}");
                thread::sleep(ERROR_PAUSE);
            }
        }
    }
}

fn begin(stream: TcpStream, peer: SocketAddr, shared: &Arc<Shared>) {
    let stream = Arc::new(stream);
    let (id, evicted) = shared.handshakes().admit(peer.ip(), stream.clone());
    if let Some(evicted) = evicted {
        // Its thread, which waits for the peer, sees the end of the stream.
        let _ = evicted.shutdown(Shutdown::Both);
    }
    shared.threads.fetch_add(1, Ordering::AcqRel);
    let served = shared.clone();
    let handshake = move || {
        let outcome = catch(|| served.shake_hands(stream, id)).unwrap_or_else(|panicked| Err(panicked.into()));
        let has_place = served.handshakes().finish(id);
        let outcome = if has_place { outcome } else { Err(RefusedError::GaveWay) };
        let wakers = match outcome {
            Ok(connection) => {
                let mut queue = served.queue();
                // The listener is gone and accepts nothing; dropping the connection informs the peer.
                let late = match queue.is_closed {
                    true => Some(connection),
                    false => {
                        queue.connections.push_back(connection);
                        None
                    }
                };
                let wakers = std::mem::take(&mut queue.wakers);
                drop(queue);
                drop(late);
                wakers
            }
            Err(error) => {
                served.refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!("{} was refused: {}", peer.ip().to_canonical(), with_sources(&error));
                BTreeMap::new()
            }
        };
        served.threads.fetch_sub(1, Ordering::AcqRel);
        wakers.into_values().for_each(Waker::wake);
    };
    if let Err(error) = thread::Builder::new().name("longhaul-accept".to_owned()).spawn(handshake) {
        shared.handshakes().finish(id);
        shared.threads.fetch_sub(1, Ordering::AcqRel);
        tracing::warn!("cannot start a thread for {peer}: {error}");
    }
}

/// The addresses at which others can reach this host, best first; the loopback address last.
fn host_addresses(only_v4: bool) -> Vec<IpAddr> {
    let is_usable = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_link_local(),
        // A link-local address says nothing without the interface.
        IpAddr::V6(address) => !only_v4 && !address.is_unicast_link_local(),
    };
    let mut addresses: Vec<IpAddr> = own_addresses().into_iter().filter(is_usable).collect();
    addresses.sort_by_key(|address| (address.is_loopback(), address.is_ipv6()));
    addresses.dedup();
    if addresses.is_empty() {
        addresses.push(if only_v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_on_other_hosts_need_the_token() {
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let mut options = Options::default();
        let cases = [
            ("127.0.0.1", "127.0.0.1", false),
            ("127.0.0.1", "127.0.0.9", false),
            ("::1", "::1", false),
            ("192.0.2.1", "192.0.2.1", false),
            ("192.0.2.1", "192.0.2.2", true),
            ("2001:db8::1", "2001:db8::2", true),
        ];
        for (local, peer, is_needed) in cases {
            assert_eq!(is_token_needed(address(local), address(peer), &options), is_needed, "{peer} at {local}");
        }
        options.allow_without_token = true;
        assert!(!is_token_needed(address("192.0.2.1"), address("192.0.2.2"), &options));
    }
}
