//! The port: sockets below, the device above.
//!
//! Each address has one socket that listens and, made when they are needed, several that send, so that queue pairs have
//! different source ports and use different equal-cost paths. Sending collects equal datagrams into a [`Batch`]; receiving
//! takes batches apart, checks each ICRC and hands the datagrams to the device.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use longhaul_softnic::{Direction, NicGuard, Outgoing, Packet, Port, Route, Stack};
use longhaul_time::Instant;
use longhaul_wire::{IcrcScope, icrc};
use nix::libc;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};

use crate::batch::Batch;
use crate::config::UdpConfig;
use crate::path;
use crate::receive::{Checks, Origin, Receiving};
use crate::socket::Socket;
use crate::way::{SenderIndex, Way};

/// Source ports in use for one address. More would spread better and cost a socket each.
const SOURCE_PORTS: usize = 32;
/// What is handed to the kernel before arrivals are looked at again.
const STEP_SEND_BYTES: usize = 256 << 10;
/// What is received before sending is looked at again.
const STEP_RECEIVE_BYTES: usize = 256 << 10;
/// Calls to receive before sending is looked at again. Datagrams that come one by one must be as welcome as those that the
/// kernel joins: were a few calls the limit, a device that sends much would hear too late that some of it is missing.
const STEP_RECEIVE_CALLS: usize = 256;
/// When the kernel takes no more: its buffer drains at the rate of the link, and nobody says when.
const RETRY_AFTER: Duration = Duration::from_micros(100);

/// A UDP port of a device.
pub(crate) struct UdpPort {
    sockets: Sockets,
    offload: bool,
    batch: Batch,
    /// Datagrams that the kernel did not take, complete with ICRC.
    backlog: VecDeque<(Way, Vec<u8>)>,
    retry_at: Option<Instant>,
    /// Left of [`STEP_SEND_BYTES`].
    step_bytes: usize,
    receiving: Receiving,
    reports_hop_limits: bool,
    troubles: Troubles,
    arrivals: Arc<Epoll>,
    /// Of the last step.
    now: Instant,
    /// Where datagrams are put together for layers that watch.
    watched: Vec<u8>,
}

struct Sockets {
    addresses: Vec<AddressSockets>,
    /// The address that is looked at first in the next step.
    first: usize,
    send_buffer_bytes: usize,
}

struct AddressSockets {
    address: IpAddr,
    listener: Socket,
    senders: [Option<Sender>; SOURCE_PORTS],
}

/// A socket with a source port of its own, and the options that it has now.
struct Sender {
    socket: Socket,
    traffic_class: Option<u8>,
    hop_limit: Option<u8>,
}

/// Destinations of which it was said that datagrams were not sent.
#[derive(Default)]
struct Troubles {
    too_long: HashSet<IpAddr>,
    refused: HashSet<IpAddr>,
}

/// This many destinations are named; more would say nothing new.
const TROUBLES_MAX: usize = 64;

/// How much has been received in one step.
#[derive(Default)]
struct ReceiveStep {
    calls: usize,
    bytes: usize,
}

impl ReceiveStep {
    fn count(&mut self, bytes: usize) {
        self.calls += 1;
        self.bytes += bytes;
    }

    fn is_over(&self) -> bool {
        self.calls >= STEP_RECEIVE_CALLS || self.bytes >= STEP_RECEIVE_BYTES
    }
}

impl UdpPort {
    /// A port over sockets that are bound already, and that other processes may have a part in.
    pub(crate) fn new(
        listeners: Vec<Socket>,
        offload: bool,
        shares_port: bool,
        config: &UdpConfig,
    ) -> io::Result<Self> {
        let arrivals = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        for (index, listener) in listeners.iter().enumerate() {
            arrivals.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, index as u64))?;
        }
        let addresses = listeners
            .into_iter()
            .map(|listener| AddressSockets {
                address: listener.local().ip(),
                listener,
                senders: [const { None }; SOURCE_PORTS],
            })
            .collect();
        Ok(UdpPort {
            sockets: Sockets { addresses, first: 0, send_buffer_bytes: config.send_buffer_bytes },
            offload,
            batch: Batch::new(),
            backlog: VecDeque::new(),
            retry_at: None,
            step_bytes: STEP_SEND_BYTES,
            receiving: Receiving::new(config.receive_in_place, shares_port),
            reports_hop_limits: false,
            troubles: Troubles::default(),
            arrivals: Arc::new(arrivals),
            now: Instant::ZERO,
            watched: Vec::new(),
        })
    }

    /// Leave addresses out of the ICRC of packets to and from a peer.
    pub(crate) fn set_translated(&mut self, peer: IpAddr) {
        self.receiving.checks().set_translated(peer);
    }

    /// The port of the socket that datagrams of a route leave from.
    pub(crate) fn source_port(&mut self, route: &Route) -> Option<u16> {
        self.sockets.way(route).ok().map(|way| way.route.source_port)
    }

    /// Readable when something has arrived.
    pub(crate) fn arrivals(&self) -> Arc<Epoll> {
        self.arrivals.clone()
    }

    /// Where a datagram goes, and what its ICRC covers. `None` when it cannot be sent.
    fn way_and_scope(&mut self, route: &Route, datagram: &Outgoing<'_>) -> Option<(Way, IcrcScope)> {
        let way = match self.sockets.way(route) {
            Ok(way) => way,
            Err(error) => {
                self.troubles.note(route, datagram.len(), &error);
                return None;
            }
        };
        // The device takes care that both are of one family.
        let scope = way.icrc_scope(self.receiving.checks().is_translated(route.destination))?;
        Some((way, scope))
    }

    /// Only datagrams hand the time to live up, in their route header.
    fn report_hop_limits(&mut self) {
        self.reports_hop_limits = true;
        for sockets in &self.sockets.addresses {
            if let Err(error) = sockets.listener.report_hop_limits() {
                tracing::warn!(%error, "route headers of datagrams will not tell the hop limit");
            }
        }
    }

    /// Receive without guessing where payload belongs, because layers see each datagram first.
    fn receive_layered(&mut self, stack: &mut Stack, nic: &mut NicGuard<'_>, now: Instant) -> bool {
        let UdpPort { sockets, receiving, .. } = self;
        let mut step = ReceiveStep::default();
        let mut each = |checks: &mut Checks, from: &Origin, datagram: &[u8]| {
            let envelope = checks.envelope(from);
            if envelope.is_none_or(|envelope| stack.arrive(&envelope, datagram, now)) {
                checks.take(from, datagram, nic, now);
            }
        };
        for sockets in sockets.in_turn() {
            while let Some(bytes) = receiving.receive_each(&sockets.listener, &mut each) {
                step.count(bytes);
                if step.is_over() {
                    return true;
                }
            }
        }
        false
    }

    fn send_batch(&mut self, stack: &mut Stack) {
        let Some(way) = self.batch.way() else { return };
        self.step_bytes = self.step_bytes.saturating_sub(self.batch.bytes());
        let (left, result) = match self.backlog.is_empty() {
            true => self.send_now(&way),
            // Nothing overtakes what the kernel has not taken yet.
            false => (0, Err(io::ErrorKind::WouldBlock.into())),
        };
        if !stack.is_empty() {
            let UdpPort { batch, watched, receiving, .. } = self;
            let translated = receiving.checks().is_translated(way.route.destination);
            batch.for_each_sent(left, |identification, pieces| {
                watched.clear();
                pieces.iter().for_each(|piece| watched.extend_from_slice(piece));
                if let Some(envelope) = way.envelope(identification, translated) {
                    stack.watch(Direction::Outgoing, &envelope, watched, self.now);
                }
            });
        }
        match result {
            Ok(()) => {}
            Err(error) if is_full(&error) => {
                self.batch.copy_out(left, |datagram| self.backlog.push_back((way, datagram)));
                self.retry_at.get_or_insert(self.now + RETRY_AFTER);
            }
            Err(error) => {
                let count = self.batch.len();
                self.troubles.note(&way.route, self.batch.bytes() / count, &error);
            }
        }
        self.batch.clear();
    }

    /// Send the batch. How many datagrams have left, and why not all.
    fn send_now(&mut self, way: &Way) -> (usize, io::Result<()>) {
        let socket = match self.sockets.prepare(way) {
            Ok(socket) => socket,
            Err(error) => return (0, Err(error)),
        };
        let count = self.batch.len();
        match self.batch.send(socket, way.destination()) {
            Ok(()) => (count, Ok(())),
            Err(error) if count > 1 && is_offload_refusal(&error) => {
                let result = self.batch.send_singly(socket, way.destination());
                if result.1.is_ok() {
                    tracing::warn!(%error, "segmentation offload does not work here; sending datagrams one by one");
                    self.offload = false;
                }
                result
            }
            Err(error) => (0, Err(error)),
        }
    }

    /// Send what the kernel has not taken yet, and show it to `watchers`.
    fn send_backlog(&mut self, watchers: Option<&mut Stack>) {
        if self.retry_at.is_some_and(|at| at > self.now) {
            return;
        }
        self.retry_at = None;
        let mut watchers = watchers.filter(|stack| !stack.is_empty());
        while let Some((way, datagram)) = self.backlog.front_mut() {
            // It is complete with the ICRC for identification 0, which is what the kernel gives to a datagram on its own.
            let result = self.sockets.prepare(way).and_then(|socket| socket.send_one(way.destination(), datagram));
            match result {
                Ok(()) => {
                    let translated = self.receiving.checks().is_translated(way.route.destination);
                    if let Some(stack) = &mut watchers
                        && let Some(envelope) = way.envelope(0, translated)
                    {
                        stack.watch(Direction::Outgoing, &envelope, datagram, self.now);
                    }
                }
                Err(error) if is_full(&error) => {
                    self.retry_at = Some(self.now + RETRY_AFTER);
                    return;
                }
                Err(error) => self.troubles.note(&way.route, datagram.len(), &error),
            }
            self.backlog.pop_front();
        }
    }
}

impl Sockets {
    /// All addresses, another one first each time: one that is never quiet must not keep the others from being heard.
    fn in_turn(&mut self) -> impl Iterator<Item = &AddressSockets> {
        self.first = (self.first + 1) % self.addresses.len();
        let (before, after) = self.addresses.split_at(self.first);
        after.iter().chain(before)
    }

    /// The way of a route: through a socket with its source port, or another if that is taken or there are too many.
    fn way(&mut self, route: &Route) -> io::Result<Way> {
        let address = self.addresses.iter().position(|sockets| sockets.address == route.source);
        let address = address.ok_or(io::ErrorKind::AddrNotAvailable)?;
        let slot = usize::from(route.source_port) % SOURCE_PORTS;
        let sender = &mut self.addresses[address].senders[slot];
        let source_port = match sender {
            Some(sender) => sender.socket.local().port(),
            None => {
                let socket = Socket::bind(SocketAddr::new(route.source, route.source_port))
                    .or_else(|_| Socket::bind(SocketAddr::new(route.source, 0)))?;
                // Nobody answers to this port; what comes all the same is not to take memory.
                socket.set_buffers(1, self.send_buffer_bytes)?;
                let port = socket.local().port();
                *sender = Some(Sender { socket, traffic_class: None, hop_limit: None });
                port
            }
        };
        Ok(Way { route: Route { source_port, ..*route }, sender: SenderIndex { address, slot } })
    }

    /// The way of a packet that was completed before: through the very socket whose port the ICRC covers.
    fn way_of(&self, route: &Route) -> io::Result<Way> {
        let source = SocketAddr::new(route.source, route.source_port);
        let has_source = |sender: &Option<Sender>| sender.as_ref().is_some_and(|s| s.socket.local() == source);
        let mut slots = self.addresses.iter().enumerate().filter_map(|(address, sockets)| {
            sockets.senders.iter().position(has_source).map(|slot| SenderIndex { address, slot })
        });
        let sender = slots.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Way { route: *route, sender })
    }

    /// The socket of a way, with the options that its route asks for.
    fn prepare(&mut self, way: &Way) -> io::Result<&Socket> {
        let sender = self.addresses[way.sender.address].senders[way.sender.slot].as_mut();
        let sender = sender.ok_or(io::ErrorKind::NotConnected)?;
        let route = &way.route;
        if sender.traffic_class != Some(route.traffic_class) {
            sender.socket.set_traffic_class(route.traffic_class)?;
            sender.traffic_class = Some(route.traffic_class);
        }
        if sender.hop_limit != Some(route.hop_limit) {
            // To the kernel 0 is no time to live at all; a packet with 1 does not leave the network either.
            sender.socket.set_hop_limit(route.hop_limit.max(1))?;
            sender.hop_limit = Some(route.hop_limit);
        }
        Ok(&sender.socket)
    }
}

impl Port for UdpPort {
    fn begin_step(&mut self, stack: &mut Stack, now: Instant) {
        self.step_bytes = STEP_SEND_BYTES;
        self.now = now;
        // Layers that do more than watch have seen it before it got here.
        self.send_backlog((!stack.takes_packets()).then_some(stack));
    }

    fn has_room(&self) -> bool {
        self.backlog.is_empty() && self.step_bytes > self.batch.bytes()
    }

    fn is_full(&self) -> bool {
        !self.backlog.is_empty()
    }

    fn transmit(&mut self, route: &Route, datagram: &Outgoing<'_>, stack: &mut Stack) {
        let Some((way, scope)) = self.way_and_scope(route, datagram) else { return };
        if !self.batch.takes(&way, datagram, self.offload) {
            self.send_batch(stack);
        }
        self.batch.push(&way, scope, datagram);
    }

    fn flush(&mut self, stack: &mut Stack) {
        self.send_batch(stack);
    }

    fn complete(&mut self, route: &Route, datagram: &Outgoing<'_>) -> Option<Packet> {
        let (way, scope) = self.way_and_scope(route, datagram)?;
        let envelope = way.envelope(0, scope == IcrcScope::WITHOUT_ADDRESSES)?;
        let mut bytes = vec![0; datagram.len()];
        datagram.write_to(&mut bytes);
        icrc::write(&scope, &mut bytes);
        Some(Packet { envelope, datagram: bytes })
    }

    fn send(&mut self, packet: Packet) {
        self.step_bytes = self.step_bytes.saturating_sub(packet.datagram.len());
        let route = Route::of(&packet.envelope);
        match self.sockets.way_of(&route) {
            Ok(way) => {
                self.backlog.push_back((way, packet.datagram));
                self.send_backlog(None);
            }
            Err(error) => self.troubles.note(&route, packet.datagram.len(), &error),
        }
    }

    fn receive(&mut self, stack: &mut Stack, nic: &mut NicGuard<'_>, now: Instant, until_completion: bool) -> bool {
        if nic.takes_datagrams() && !self.reports_hop_limits {
            self.report_hop_limits();
        }
        if !stack.is_empty() {
            return self.receive_layered(stack, nic, now);
        }
        let completions_before = nic.completion_count();
        let mut step = ReceiveStep::default();
        for sockets in self.sockets.in_turn() {
            while let Some(bytes) = self.receiving.receive(&sockets.listener, nic, now) {
                step.count(bytes);
                let has_completed = until_completion && nic.completion_count() != completions_before;
                if step.is_over() || has_completed {
                    return true;
                }
            }
        }
        false
    }

    fn check(&mut self, packet: &Packet, nic: &mut NicGuard<'_>, now: Instant) {
        self.receiving.checks().take(&Origin::of_packet(&packet.envelope), &packet.datagram, nic, now);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.retry_at
    }
}

impl Troubles {
    /// Say what it is about, once for a destination.
    fn note(&mut self, route: &Route, datagram_bytes: usize, error: &io::Error) {
        let destination = route.destination;
        if error.raw_os_error() == Some(libc::EMSGSIZE) {
            if self.too_long.len() < TROUBLES_MAX && self.too_long.insert(destination) {
                let mtu = path::route_mtu_bytes(route.source, route.destination);
                let path_mtu = mtu.map_or_else(|_| "unknown".to_owned(), |bytes| format!("{bytes} bytes"));
                tracing::warn!(
                    "packets of {datagram_bytes} bytes do not fit the path to {destination} any more (its MTU is {path_mtu}); \
                     connect again with a smaller MTU, or raise the MTU of the path",
                );
            }
        } else if self.refused.len() < TROUBLES_MAX && self.refused.insert(destination) {
            tracing::warn!(%error, "packets to {destination} were not sent");
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::ENOBUFS)
}

/// What kernels answer when they, or the device below, cannot cut a call into datagrams.
fn is_offload_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EIO | libc::EOPNOTSUPP))
}
