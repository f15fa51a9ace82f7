//! An end of messages with a reliability scheme: a device, an SDR queue pair on it, and the connection above that.

use std::time::Instant as Clock;

use longhaul_reliable::{Attributes, Connection, NamedScheme, scheme_named};
use longhaul_sdr::info::QueuePairInfo;
use longhaul_sdr::{Context, ContextAttributes, Memory, QueuePair, QueuePairAttributes, default_chunk_bytes};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{Capabilities, Gid, Mtu};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use super::control::{self, SchemeContact};
use super::pacer::Pacer;
use super::silence::Silence;
use crate::message::with_sources;
use crate::opened_device::{OpenedDevice, UDP_PORT_ROCE};
use crate::randomness::random_number;
use crate::stop::Stop;

/// Packets that may be in flight, in bytes: well below what a socket buffer holds, as for UC.
const WINDOW_BYTES: u32 = 3 << 20;
/// But no more packets than this: devices have room for that many completions.
const WINDOW_PACKETS_MAX: u32 = 4096;
/// The largest chunk that an end agrees to.
pub(crate) const CHUNK_BYTES_MAX: u32 = 1 << 20;
/// How often packets are taken, if some have come, before the scheme looks at them: it need not see each one.
const CHANNEL_POLLS: usize = 4;
/// An end looks again and again for this long after something happened before it sleeps, as the `longhaul` crate's does: an end that
/// never slept would take from the other, on the same host, the processor that it needs.
const SPIN: Duration = Duration::from_micros(50);
/// It sleeps no longer than this, because its caller watches other things as well.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// What an end is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SchemeOptions {
    /// The scheme; the other end has the same.
    pub(crate) scheme: NamedScheme,
    /// Payload of a packet; the other end has the same.
    pub(crate) mtu: Mtu,
    /// Bytes of a chunk, a multiple of the MTU; the other end has the same. By default as in the `longhaul` crate.
    pub(crate) chunk_bytes: Option<u32>,
    /// Bytes of memory to send from or to receive into.
    pub(crate) buffer_bytes: usize,
    /// The longest message.
    pub(crate) message_bytes_max: u32,
    /// What is sent at most; `None` leaves it to the device.
    pub(crate) rate_bits_per_second: Option<u64>,
    /// Messages are sent with a checksum. Whoever receives verifies it in any case.
    pub(crate) checksum: bool,
}

/// What an SDR queue pair is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuePairOptions {
    pub(crate) mtu: Mtu,
    pub(crate) chunk_bytes: u32,
    pub(crate) message_bytes_max: u64,
    /// Only for devices that can limit it.
    pub(crate) rate_bits_per_second: Option<u64>,
}

/// Creates an SDR queue pair, with a context of its own.
pub(crate) fn create_queue_pair(
    device: &OpenedDevice,
    options: &QueuePairOptions,
) -> Result<(Context, QueuePair), Stop> {
    let mtu = options.mtu;
    let mut attributes = QueuePairAttributes::new(device.gid, device.udp_port, mtu);
    attributes.path = device.path_to(Gid::default(), device.udp_port);
    // Messages that are longer than an immediate can count are cut.
    let most = attributes.layout.message_bytes_max(mtu.byte_count());
    attributes.message_bytes_max = attributes.message_bytes_max.max(options.message_bytes_max).min(most);
    attributes.chunk_bytes = options.chunk_bytes;
    attributes.receive_depth = (WINDOW_BYTES / mtu.byte_count()).min(WINDOW_PACKETS_MAX);
    attributes.rate_bits_per_second = options.rate_bits_per_second;
    attributes.random = random_number()?;
    let mut context_attributes = ContextAttributes::default();
    context_attributes.completions = attributes.receive_depth * u32::from(attributes.generations);
    let cannot = |what: &str, error: &dyn std::error::Error| Stop::failed(what, with_sources(error));
    let context = Context::create(&device.verbs(), &context_attributes);
    let context = context.map_err(|error| cannot("cannot create the queues of an SDR context", &error))?;
    let queue_pair = QueuePair::create(&context, &attributes);
    let queue_pair = queue_pair.map_err(|error| cannot("cannot create an SDR queue pair", &error))?;
    Ok((context, queue_pair))
}

/// An end. It is polled: nothing happens unless [`SchemeEnd::poll`] is called again and again.
pub(crate) struct SchemeEnd {
    pub(crate) connection: Connection,
    context: Context,
    pub(crate) memory: Memory,
    contact: SchemeContact,
    /// Whether peers may listen at another port than RoCE's.
    has_free_udp_ports: bool,
    rate_bits_per_second: Option<u64>,
    /// How long to wait for a sign of the peer, once it is known.
    silence: Option<Silence>,
    /// Instants count from here.
    started: Clock,
    /// For devices that cannot hold packets back themselves: messages are held back then.
    pub(crate) pacer: Option<Pacer>,
    /// When something happened last, and what had until then.
    active: Instant,
    seen: Happened,
    looked: Instant,
    /// The longest time between two looks, since it was asked for last.
    longest_pause: Duration,
}

/// What shows that something happens: writes that were sent, control frames that came, messages that are over.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Happened {
    writes: u64,
    frames: u64,
    over: u64,
}

impl SchemeEnd {
    /// Makes the queue pair and registers memory.
    pub(crate) fn create(device: &OpenedDevice, options: &SchemeOptions) -> Result<Self, Stop> {
        let SchemeOptions { mtu, buffer_bytes, message_bytes_max, rate_bits_per_second: rate, .. } = *options;
        let scheme = scheme_named(options.scheme);
        let verbs = device.verbs();
        let device_attributes = verbs.attributes();
        let capabilities = device_attributes
            .map_err(|error| Stop::failed("cannot ask the device what it can do", error))?
            .capabilities;
        let paces_itself = capabilities.contains(Capabilities::RATE_LIMIT);
        let queue_pair_options = QueuePairOptions {
            mtu,
            chunk_bytes: options.chunk_bytes.unwrap_or_else(|| default_chunk_bytes(mtu)),
            message_bytes_max: message_bytes_max.into(),
            rate_bits_per_second: rate.filter(|_| paces_itself),
        };
        let (context, queue_pair) = create_queue_pair(device, &queue_pair_options)?;
        // Not zeros, of which there would be only one page.
        let memory = context.register(vec![0x5a; buffer_bytes]);
        let memory = memory.map_err(|error| Stop::failed("cannot register memory", with_sources(&error)))?;
        let mut attributes = Attributes::default();
        attributes.checksum = options.checksum;
        let connection = Connection::new(queue_pair, scheme, attributes);
        let contact = SchemeContact {
            device: device.describe().to_owned(),
            address: device.address,
            udp_port: device.udp_port,
            info: connection.queue_pair().info().to_bytes(),
        };
        Ok(SchemeEnd {
            connection,
            context,
            memory,
            contact,
            has_free_udp_ports: capabilities.contains(Capabilities::FREE_UDP_PORT),
            rate_bits_per_second: rate,
            silence: None,
            started: Clock::now(),
            pacer: rate.filter(|_| !paces_itself).map(Pacer::new),
            active: Instant::ZERO,
            seen: Happened::default(),
            looked: Instant::ZERO,
            longest_pause: Duration::ZERO,
        })
    }

    /// What the other end has to know.
    pub(crate) fn contact(&self) -> SchemeContact {
        self.contact.clone()
    }

    /// What a bit of the receiver's bitmap stands for.
    pub(crate) fn chunk_bytes(&self) -> u32 {
        self.connection.queue_pair().attributes().chunk_bytes
    }

    /// Connects with the other end.
    pub(crate) fn connect(&mut self, info: &[u8]) -> Result<(), Stop> {
        let cannot = |error: &dyn std::error::Error| Stop::failed("cannot connect", with_sources(error));
        let info = QueuePairInfo::from_bytes(info).map_err(|error| cannot(&error))?;
        if info.udp_port != UDP_PORT_ROCE && !self.has_free_udp_ports {
            return Err(Stop::Failed(format!(
                "the other end's device listens at UDP port {}, and {} speaks only to RoCE's own, {UDP_PORT_ROCE}: who has that \
                 port there? (`longhaul devices` there says it)",
                info.udp_port, self.contact.device
            )));
        }
        self.connection.queue_pair().connect(&info).map_err(|error| cannot(&error))?;
        let rate = self.rate_bits_per_second;
        self.silence = Some(Silence::new(super::connection::Connection::Uc, info.gid.to_ip(), info.udp_port, rate));
        Ok(())
    }

    /// Control frames that have come from the other end so far.
    pub(crate) fn frames_received(&self) -> u64 {
        self.connection.queue_pair().counters().2.received
    }

    /// Data packets that have come for messages that had ended, so far.
    pub(crate) fn late_packets(&self) -> u64 {
        self.connection.queue_pair().counters().1.late
    }

    /// The longest wait for a sign of the other end, with this many bytes to pass first.
    pub(crate) fn silence_limit(&self, bytes: u64) -> Duration {
        self.silence.as_ref().map_or(Duration::MAX, |silence| silence.limit(bytes))
    }

    /// Polls until packets are known to reach the other end and its packets this one; an error if they do not.
    pub(crate) fn verify_path(&mut self, is_peer_gone: &dyn Fn() -> bool) -> Result<(), Stop> {
        let begin = Clock::now();
        while !self.connection.queue_pair().is_path_verified() {
            self.poll()?;
            if is_peer_gone() {
                return Err(control::gone());
            }
            self.check_silence(begin.elapsed(), 0)?;
        }
        Ok(())
    }

    /// An error if the other end has been silent for too long, with this many bytes to pass first.
    pub(crate) fn check_silence(&self, silent: Duration, bytes: u64) -> Result<(), Stop> {
        self.silence.as_ref().map_or(Ok(()), |silence| silence.check(silent, bytes))
    }

    /// The longest time for which this end has not looked at anything since this was called last: longer than [`SLEEP_MAX`] when the
    /// host gave it no processor, or when it was busy with what it had taken.
    pub(crate) fn take_longest_pause(&mut self) -> Duration {
        std::mem::take(&mut self.longest_pause)
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.started.elapsed().as_nanos() as u64)
    }

    /// Takes what has arrived, sends what is due; sleeps for a moment when nothing has happened for a while.
    pub(crate) fn poll(&mut self) -> Result<(), Stop> {
        // Messages that are held back must leave in time.
        if self.look()? || self.pacer.is_some() || self.now().saturating_since(self.active) < SPIN {
            return Ok(());
        }
        let failed = |error: &dyn std::error::Error| Stop::failed("cannot ask for events", with_sources(error));
        self.context.request_notification().map_err(|error| failed(&error))?;
        self.connection.queue_pair().request_notification().map_err(|error| failed(&error))?;
        // What came before events were asked for raises none.
        if self.look()? { Ok(()) } else { self.sleep() }
    }

    /// Takes what has arrived, sends what is due. Says whether something has happened.
    fn look(&mut self) -> Result<bool, Stop> {
        let mut arrived = 0;
        for _ in 0..CHANNEL_POLLS {
            let taken = self.context.poll();
            let taken = taken.map_err(|error| Stop::failed("cannot take completions", with_sources(&error)))?;
            arrived += taken;
            if taken == 0 {
                break;
            }
        }
        let now = self.now();
        self.longest_pause = self.longest_pause.max(now.saturating_since(self.looked));
        self.looked = now;
        let result = self.connection.poll(now);
        result.map_err(|error| Stop::failed("the connection has failed", with_sources(&*error)))?;
        let (sent, _, control) = self.connection.queue_pair().counters();
        let over = self.connection.over_count();
        let seen = Happened { writes: sent.writes, frames: control.received, over };
        let has_happened = std::mem::replace(&mut self.seen, seen) != seen || arrived > 0;
        if has_happened {
            self.active = now;
        }
        Ok(has_happened)
    }

    /// Until something arrives or is due, but no longer than for a moment.
    fn sleep(&mut self) -> Result<(), Stop> {
        let Some(events) = self.context.events() else { return Ok(()) };
        let Some(descriptor) = events.descriptor() else { return Ok(()) };
        let now = self.now();
        let due = self.connection.next_deadline(now).map_or(SLEEP_MAX, |due| due.saturating_since(now));
        let mut watched = [PollFd::new(descriptor, PollFlags::POLLIN)];
        match ppoll(&mut watched, Some(TimeSpec::from_duration(due.min(SLEEP_MAX))), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(Stop::failed("cannot sleep until something arrives", error)),
        }
        while let Ok(Some(_)) = events.next_event() {}
        Ok(())
    }
}
