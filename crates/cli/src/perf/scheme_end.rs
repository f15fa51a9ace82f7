//! An end of messages with a reliability scheme: a device, an SDR queue pair on it, and the connection above that.

use std::time::Instant as Clock;

use longhaul_reliable::{Attributes, Connection, NamedScheme};
use longhaul_sdr::info::QueuePairInfo;
use longhaul_sdr::{Context, ContextAttributes, Memory, QueuePair, QueuePairAttributes};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{Capabilities, Gid, Mtu};

use super::control::SchemeContact;
use super::pacer::Pacer;
use crate::message::with_sources;
use crate::opened_device::{OpenedDevice, UDP_PORT_ROCE};
use crate::randomness::random_number;
use crate::stop::Stop;

/// Packets that may be on their way, in bytes: well below what a socket buffer holds, as for UC.
const WINDOW_BYTES: u32 = 3 << 20;
/// But no more packets than this: devices have room for so many completions.
const WINDOW_PACKETS_MAX: u32 = 4096;

/// How often packets are taken, if some have come, before the scheme looks at them: it need not see each one.
const CHANNEL_POLLS: usize = 4;

/// What an end is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SchemeOptions {
    /// The scheme; the other end has the same.
    pub(crate) scheme: NamedScheme,
    /// It takes nothing for lost before, if that is not what it does by itself.
    pub(crate) timeout_min: Option<Duration>,
    /// Payload of a packet; the other end has the same.
    pub(crate) mtu: Mtu,
    /// Bytes of memory to send from or to receive into.
    pub(crate) buffer_bytes: usize,
    /// The longest message.
    pub(crate) message_bytes_max: u32,
    /// What is sent at most; `None` leaves it to the device.
    pub(crate) rate_bits_per_second: Option<u64>,
}

/// An end. It is polled: nothing happens unless [`SchemeEnd::poll`] is called again and again.
pub(crate) struct SchemeEnd {
    pub(crate) connection: Connection,
    context: Context,
    pub(crate) memory: Memory,
    contact: SchemeContact,
    /// Whether peers may listen at another port than RoCE's.
    has_free_udp_ports: bool,
    /// Instants count from here.
    started: Clock,
    /// For devices that cannot hold packets back themselves: messages are held back then.
    pub(crate) pacer: Option<Pacer>,
}

impl SchemeEnd {
    /// Makes the queue pair and registers memory.
    pub(crate) fn create(device: &OpenedDevice, options: &SchemeOptions) -> Result<Self, Stop> {
        let SchemeOptions { mtu, buffer_bytes, message_bytes_max, rate_bits_per_second: rate, .. } = *options;
        let verbs = device.verbs();
        let device_attributes = verbs.attributes();
        let capabilities = device_attributes
            .map_err(|error| Stop::failed("cannot ask the device what it can do", error))?
            .capabilities;
        let paces_itself = capabilities.contains(Capabilities::RATE_LIMIT);
        let mut attributes = QueuePairAttributes::new(device.gid, device.udp_port, mtu);
        attributes.path = device.path_to(Gid::default(), device.udp_port);
        // Messages that are longer than an immediate can count are cut.
        let most = attributes.layout.message_bytes_max(mtu.byte_count());
        attributes.message_bytes_max = attributes.message_bytes_max.max(message_bytes_max.into()).min(most);
        attributes.receive_depth = (WINDOW_BYTES / mtu.byte_count()).min(WINDOW_PACKETS_MAX);
        attributes.rate_bits_per_second = rate.filter(|_| paces_itself);
        attributes.random = random_number()?;
        let mut context_attributes = ContextAttributes::default();
        context_attributes.completions = attributes.receive_depth * u32::from(attributes.generations);
        let cannot = |what: &str, error: &dyn std::error::Error| Stop::failed(what, with_sources(error));
        let context = Context::create(&verbs, &context_attributes);
        let context = context.map_err(|error| cannot("cannot make the queues of an SDR context", &error))?;
        let queue_pair = QueuePair::create(&context, &attributes);
        let queue_pair = queue_pair.map_err(|error| cannot("cannot make an SDR queue pair", &error))?;
        // Not zeros, of which there would be only one page.
        let memory = context.register(vec![0x5a; buffer_bytes]);
        let memory = memory.map_err(|error| cannot("cannot register memory", &error))?;
        let scheme = match options.timeout_min {
            Some(timeout_min) => options.scheme.scheme_with_timeout_min(timeout_min),
            None => options.scheme.scheme(),
        };
        let connection = Connection::new(queue_pair, scheme, Attributes::default());
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
            started: Clock::now(),
            pacer: rate.filter(|_| !paces_itself).map(Pacer::new),
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
    pub(crate) fn connect(&self, info: &[u8]) -> Result<(), Stop> {
        let cannot = |error: &dyn std::error::Error| Stop::failed("cannot connect", with_sources(error));
        let info = QueuePairInfo::from_bytes(info).map_err(|error| cannot(&error))?;
        if info.udp_port != UDP_PORT_ROCE && !self.has_free_udp_ports {
            return Err(Stop::Failed(format!(
                "the other end's device listens at UDP port {}, and {} speaks only to RoCE's own, {UDP_PORT_ROCE}: who has that \
                 port there? (`longhaul devices` there says it)",
                info.udp_port, self.contact.device
            )));
        }
        self.connection.queue_pair().connect(&info).map_err(|error| cannot(&error))
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.started.elapsed().as_nanos() as u64)
    }

    /// Takes what has arrived, sends what is due.
    pub(crate) fn poll(&mut self) -> Result<(), Stop> {
        for _ in 0..CHANNEL_POLLS {
            let taken = self.context.poll();
            if taken.map_err(|error| Stop::failed("cannot take completions", with_sources(&error)))? == 0 {
                break;
            }
        }
        let now = self.now();
        self.connection.poll(now).map_err(|error| Stop::failed("the connection has failed", with_sources(&*error)))
    }
}
