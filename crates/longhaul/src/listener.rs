//! Listening: a TCP port at which handshakes are made, and the connections that come of them.
//!
//! Each handshake has a thread of its own, for as long as it takes and no longer than `connect_timeout`: somebody who connects and says
//! nothing, or something else, keeps nobody waiting.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use thiserror::Error;

use crate::carrier::{Carrier, CarrierError};
use crate::connection::Connection;
use crate::device::{DeviceChoice, DeviceNameError};
use crate::endpoint::{Endpoint, OpenError, Towards, with_sources};
use crate::handle::ListenHandle;
use crate::handshake::{Accepting, HandshakeError, Meeting};
use crate::options::Options;
use crate::pending::Pending;
use crate::randomness::random;

/// Handshakes at a time; whoever comes later waits in the system's queue.
const HANDSHAKES_MAX: usize = 64;
/// Connections that nobody has accepted yet.
const WAITING_MAX: usize = 128;
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
    /// The address cannot be listened at.
    #[error("cannot listen at this address; is it one of this host, and its port free?")]
    Bind(#[source] io::Error),
    /// The system refused.
    #[error("cannot set up the listener")]
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
    handshakes: AtomicUsize,
    refused: AtomicU64,
    closing: AtomicBool,
    bell: EventFd,
    queue: Mutex<Queue>,
}

enum DeviceSource {
    /// Opened towards the first peer that comes to an address of ours, and kept.
    Choice(Box<DeviceChoice>, Mutex<HashMap<IpAddr, Endpoint>>),
    Open(Endpoint),
}

#[derive(Default)]
struct Queue {
    connections: VecDeque<Connection>,
    wakers: VecDeque<Waker>,
    is_closed: bool,
}

/// Why a handshake came to nothing.
#[derive(Debug, Error)]
enum RefusedError {
    #[error(transparent)]
    Carrier(#[from] CarrierError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
}

impl Listener {
    /// Listen at an address (port 0 has the system choose one), for connections of a device by its name, which is opened when the first
    /// peer comes: `Listener::bind("0.0.0.0:7471", "softnic", &options)`.
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
            handshakes: AtomicUsize::new(0),
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

    /// Refuse those who were not given the handle. (A handle of another listener is always refused.)
    pub fn require_token(&self) {
        self.shared.needs_token.store(true, Ordering::Release);
    }

    /// The next connection.
    pub fn accept(&self) -> Pending<Connection, AcceptError> {
        let shared = self.shared.clone();
        Pending::new(std::future::poll_fn(move |context| {
            let mut queue = shared.queue();
            match queue.connections.pop_front() {
                Some(connection) => Poll::Ready(Ok(connection)),
                None if queue.is_closed => Poll::Ready(Err(AcceptError::Closed)),
                None => {
                    // Everybody who waits is woken by the next connection, so nobody's turn is lost with a dropped future.
                    if !queue.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                        queue.wakers.push_back(context.waker().clone());
                    }
                    Poll::Pending
                }
            }
        }))
    }

    /// Handshakes that came to nothing: strangers, other schemes, wrong tokens. Why is said as a `tracing` event.
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
        wakers.into_iter().for_each(Waker::wake);
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

    fn endpoint(&self, local: IpAddr, peer: IpAddr) -> Result<Endpoint, OpenError> {
        let (choice, open) = match &self.device {
            DeviceSource::Open(endpoint) => return Ok(endpoint.clone()),
            DeviceSource::Choice(choice, open) => (choice, open),
        };
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(endpoint) = open.get(&local) {
            return Ok(endpoint.clone());
        }
        let towards = Towards { local, peer, gid_index: choice.gid_index };
        let endpoint = Endpoint::open(&choice.name, towards, choice.udp.clone())?;
        for warning in endpoint.warnings() {
            tracing::warn!("{warning}");
        }
        open.insert(local, endpoint.clone());
        Ok(endpoint)
    }

    fn shake_hands(&self, stream: TcpStream) -> Result<Connection, RefusedError> {
        let options = &self.options;
        let mut carrier = Carrier::new(stream, options.connect_timeout)?;
        let (local, peer) = carrier.addresses()?;
        let hello = carrier.receive()?;
        let endpoint = self.endpoint(local, peer);
        let endpoint = match endpoint {
            Ok(endpoint) => endpoint,
            Err(error) => {
                let _ = carrier.send(&HandshakeError::Refused(with_sources(&error)).to_refusal());
                return Err(error.into());
            }
        };
        let meeting = Meeting { addresses: Some((local, peer)), token: Some(self.token) };
        let needs_token = self.needs_token.load(Ordering::Acquire);
        let accepted = Accepting::on_hello(&endpoint, options, &meeting, needs_token, &hello);
        let (accepting, answer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                let _ = carrier.send(&error.to_refusal());
                return Err(error.into());
            }
        };
        carrier.send(&answer)?;
        let info = carrier.receive()?;
        let connection = accepting.on_info(&info)?;
        connection.watch(carrier.into_lifeline(options.message_timeout)).map_err(CarrierError::System)?;
        Ok(connection)
    }
}

/// The listener's thread.
fn serve(listener: &TcpListener, shared: &Arc<Shared>) {
    let readable = PollFlags::POLLIN;
    while !shared.closing.load(Ordering::Acquire) {
        let is_full = shared.handshakes.load(Ordering::Acquire) >= HANDSHAKES_MAX
            || shared.queue().connections.len() >= WAITING_MAX;
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
    shared.handshakes.fetch_add(1, Ordering::AcqRel);
    let served = shared.clone();
    let handshake = move || {
        let outcome = served.shake_hands(stream);
        let wakers = match outcome {
            Ok(connection) => {
                let mut queue = served.queue();
                // Of a listener that has gone nobody accepts; dropping the connection tells the peer.
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
                VecDeque::new()
            }
        };
        served.handshakes.fetch_sub(1, Ordering::AcqRel);
        wakers.into_iter().for_each(Waker::wake);
    };
    if let Err(error) = thread::Builder::new().name("longhaul-accept".to_owned()).spawn(handshake) {
        shared.handshakes.fetch_sub(1, Ordering::AcqRel);
        tracing::warn!("cannot start a thread for {peer}: {error}");
    }
}

/// The addresses at which others can reach this host, best first; the loopback address last.
fn host_addresses(only_v4: bool) -> Vec<IpAddr> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let address_of = |interface: nix::ifaddrs::InterfaceAddress| {
        let storage = interface.address?;
        let v4 = storage.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    };
    let is_usable = |address: &IpAddr| match address {
        IpAddr::V4(address) => !address.is_link_local(),
        // A link-local address says nothing without the interface.
        IpAddr::V6(address) => !only_v4 && !address.is_unicast_link_local(),
    };
    let mut addresses: Vec<IpAddr> = interfaces.filter_map(address_of).filter(is_usable).collect();
    addresses.sort_by_key(|address| (address.is_loopback(), address.is_ipv6()));
    addresses.dedup();
    if addresses.is_empty() {
        addresses.push(if only_v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    addresses
}
