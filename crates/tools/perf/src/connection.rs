//! Queue pairs from one end to the other: created, connected, and the memory that they work on.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use longhaul_softnic_udp::{Fec, FecPeer, Protection};
use longhaul_verbs::{
    Access, AddressHandle, Capabilities, CompletionChannel, CompletionQueue, CompletionStatus, Gid, MemoryRegion, Mtu,
    ProtectionDomain, QueuePair, QueuePairAttributes, QueuePairLimits, QueuePairNumber, QueuePairOptions, RemoteMemory,
    ScatterGatherEntry, SendRequest, Transport, WorkCompletion,
};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};

use crate::device::{OpenedDevice, UDP_PORT_ROCE};
use crate::error::PerfError;
use crate::silence::Silence;

/// Bytes at the start of a datagram's receive that hold the global route header.
pub(crate) const GRH_BYTES: usize = 40;
/// The key that datagrams of a measurement carry.
const QUEUE_KEY: u32 = 0x1111_1111;
/// Receiver-not-ready timer of 0.64 ms, as the specification encodes it.
const NOT_READY_TIMER: u8 = 12;
/// Try again for ever while the receiver is not ready: it will be.
const NOT_READY_RETRIES: u8 = 7;
/// Times to send again before the peer is given up.
const RETRIES: u8 = 7;
/// Completions of all queue pairs of a group together, at most. With more queue pairs each has shorter queues.
const COMPLETIONS_MAX: u32 = 1 << 20;
/// The longest that a group sleeps at a time.
const SLEEP_MILLISECONDS_MAX: u8 = 5;
/// Messages lie at multiples of this: a cache line, so that they do not share one.
const ALIGNMENT: usize = 64;

/// The transport, by the name that perftest users know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Connection {
    /// Reliable connection
    Rc,
    /// Unreliable connection: nothing is repeated
    Uc,
    /// Unreliable datagrams: single packets
    Ud,
}

impl Connection {
    /// As verbs name it.
    pub const fn transport(self) -> Transport {
        match self {
            Connection::Rc => Transport::ReliableConnection,
            Connection::Uc => Transport::UnreliableConnection,
            Connection::Ud => Transport::UnreliableDatagram,
        }
    }

    /// Whether nothing is lost.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Connection::Rc)
    }
}

/// What a group is made with.
#[derive(Clone, Debug)]
pub(crate) struct GroupOptions {
    pub(crate) connection: Connection,
    pub(crate) queue_pairs: u32,
    /// Requests in each send queue.
    pub(crate) send_depth: u32,
    /// Requests in each receive queue.
    pub(crate) receive_depth: u32,
    /// READs and atomics that each queue pair may have outstanding. More than the device can are as many as it can, and
    /// after connecting as many as both devices can.
    pub(crate) outstanding_reads: u8,
    /// What the peer may do with the memory.
    pub(crate) remote_access: Access,
    /// Sleep until there is a completion, instead of looking for it all the time.
    pub(crate) sleeps: bool,
    /// Acknowledgement time-out, 4.096 µs · 2^n.
    pub(crate) timeout: u8,
    /// What each queue pair sends at most; `None` leaves it to the device. A device without rate limits is paced from
    /// here.
    pub(crate) rate_bits_per_second: Option<u64>,
    /// First packet sequence numbers follow from it.
    pub(crate) seed: u64,
}

/// How the other end reaches a group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Contact {
    /// The device, for people.
    #[serde(default)]
    pub device: String,
    /// Its address.
    pub address: IpAddr,
    /// The UDP port at which it listens.
    pub udp_port: u16,
    /// Payload of a packet that this end's route carries.
    pub mtu_bytes: u32,
    /// READs and atomics that it can have outstanding.
    pub outstanding_reads: u8,
    /// Number and first packet sequence number of each queue pair.
    pub queue_pairs: Vec<(u32, u32)>,
    /// Where its memory begins.
    pub memory_address: u64,
    /// The remote key of its memory.
    pub memory_key: u32,
    /// How long its memory is.
    pub memory_bytes: u64,
}

/// Registered memory, divided into slots for messages of one size.
#[derive(Clone)]
pub(crate) struct Slots {
    region: Rc<MemoryRegion>,
    stride_bytes: usize,
    count: usize,
}

impl Slots {
    /// As many slots as fit; at least one does. A slot has room for the header of a datagram, if there is one.
    pub(crate) fn new(group: &Group, message_bytes: usize) -> Self {
        let region = group.region.clone();
        let stride_bytes = (message_bytes + group.header_bytes()).next_multiple_of(ALIGNMENT);
        let count = region.len() / stride_bytes;
        assert!(count > 0, "a region of {} bytes holds a message of {message_bytes}", region.len());
        Slots { region, stride_bytes, count }
    }

    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn region(&self) -> &MemoryRegion {
        &self.region
    }

    /// Where a slot begins. Numbers go round.
    pub(crate) const fn offset(&self, number: u64) -> usize {
        (number % self.count as u64) as usize * self.stride_bytes
    }

    /// The first bytes of a slot.
    pub(crate) fn entry(&self, number: u64, byte_count: usize) -> ScatterGatherEntry {
        let offset = self.offset(number);
        self.region.entry(offset..offset + byte_count)
    }
}

/// The peer, once it is known.
struct Peer {
    memory: RemoteMemory,
    /// How long to wait for a sign of it.
    silence: Silence,
    /// Datagrams: the path to the peer, and its queue pair numbers.
    datagrams: Option<(AddressHandle, Vec<QueuePairNumber>)>,
}

/// Queue pairs of one kind to one peer, with one completion queue.
pub(crate) struct Group {
    pub(crate) options: GroupOptions,
    completions: CompletionQueue,
    /// Where to sleep.
    channel: Option<CompletionChannel>,
    pub(crate) queue_pairs: Vec<QueuePair>,
    pub(crate) region: Rc<MemoryRegion>,
    domain: ProtectionDomain,
    /// The rate that the sender itself must keep, all queue pairs together, because the device cannot.
    pub(crate) paced_bits_per_second: Option<u64>,
    device: Rc<OpenedDevice>,
    /// Whether peers may listen at another port than RoCE's.
    has_free_udp_ports: bool,
    /// Of its queue pairs by forward error correction, for as long as they are there.
    protections: Vec<Protection>,
    peer: Option<Peer>,
}

/// Memory that a group can work on, touched, so that each page is there.
pub(crate) fn register(
    domain: &ProtectionDomain,
    byte_count: usize,
    remote_access: Access,
) -> Result<Rc<MemoryRegion>, PerfError> {
    let region = domain.register(vec![0x5a; byte_count], Access::LOCAL_WRITE | remote_access);
    Ok(Rc::new(region.map_err(|error| PerfError::missing(format!("cannot register {byte_count} bytes"), error))?))
}

impl Group {
    /// Queue pairs that know of nobody yet.
    pub(crate) fn create(
        device: &Rc<OpenedDevice>,
        domain: &ProtectionDomain,
        region: &Rc<MemoryRegion>,
        mut options: GroupOptions,
    ) -> Result<Self, PerfError> {
        let (device, verbs) = (device.clone(), device.verbs());
        let most =
            verbs.attributes().map_err(|error| PerfError::failed("cannot ask the device for its limits", error))?;
        if options.queue_pairs > most.max_queue_pairs {
            let text = format!(
                "-q {}: this device has at most {} queue pairs; use fewer",
                options.queue_pairs, most.max_queue_pairs
            );
            return Err(PerfError::Request(text));
        }
        let paced_bits_per_second = match most.capabilities.contains(Capabilities::RATE_LIMIT) {
            true => None,
            false => options.rate_bits_per_second.take().map(|rate| rate * u64::from(options.queue_pairs)),
        };
        let outstanding_max = most.max_read_atomic.min(most.max_destination_read_atomic);
        if options.outstanding_reads > 0 && outstanding_max == 0 {
            return Err(PerfError::Missing(
                "this device supports neither READs nor atomics: measure write_bw or send_bw, or use another device"
                    .to_owned(),
            ));
        }
        options.outstanding_reads = options.outstanding_reads.min(outstanding_max);
        // A queue that overflows is the end of its queue pairs on most devices.
        let completions_max = COMPLETIONS_MAX.min(most.max_completion_queue_entries);
        let each_max = completions_max / options.queue_pairs / 2;
        if each_max == 0 {
            return Err(PerfError::Request(format!(
                "-q {}: one completion queue of this device serves at most {} such queue pairs; use fewer, or lower -t and -r",
                options.queue_pairs,
                completions_max / 2
            )));
        }
        options.send_depth = options.send_depth.min(most.max_work_requests).min(each_max);
        options.receive_depth = options.receive_depth.min(most.max_work_requests).min(each_max);
        let entries = options.queue_pairs * (options.send_depth + options.receive_depth);
        let failed = |error| PerfError::failed("cannot create a queue", error);
        let channel = options.sleeps.then(|| verbs.create_completion_channel()).transpose().map_err(failed)?;
        let completions = match &channel {
            Some(channel) => verbs.create_completion_queue_on(entries, channel, 0),
            None => verbs.create_completion_queue(entries),
        };
        let completions = completions.map_err(failed)?;
        let limits = QueuePairLimits {
            send_requests: options.send_depth,
            receive_requests: options.receive_depth,
            send_entries: 1,
            receive_entries: 1,
            inline_bytes: most.max_inline_bytes.min(64),
        };
        let queue_pair_options = QueuePairOptions { limits, signal_all: false, shared_receive_queue: None };
        let transport = options.connection.transport();
        let queue_pairs: Result<Vec<_>, _> = (0..options.queue_pairs)
            .map(|_| domain.create_queue_pair(transport, &completions, &completions, &queue_pair_options))
            .collect();
        let queue_pairs = queue_pairs.map_err(failed)?;
        for queue_pair in &queue_pairs {
            let attributes = match options.connection {
                Connection::Ud => QueuePairAttributes::init_datagram(QUEUE_KEY),
                Connection::Rc | Connection::Uc => QueuePairAttributes::init_connected(options.remote_access),
            };
            let attributes = QueuePairAttributes { port: Some(device.port), ..attributes };
            queue_pair
                .modify(&attributes)
                .map_err(|error| PerfError::failed("cannot initialize a queue pair", error))?;
        }
        let (region, domain) = (region.clone(), domain.clone());
        Ok(Group {
            options,
            completions,
            channel,
            queue_pairs,
            region,
            domain,
            paced_bits_per_second,
            device,
            has_free_udp_ports: most.capabilities.contains(Capabilities::FREE_UDP_PORT),
            protections: Vec::new(),
            peer: None,
        })
    }

    /// The first sequence number that a queue pair sends.
    fn first_psn(&self, index: usize) -> u32 {
        let mixed = (self.options.seed ^ index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 40) as u32
    }

    /// What the other end has to know.
    pub(crate) fn contact(&self, mtu: Mtu) -> Contact {
        let numbers = self.queue_pairs.iter().enumerate();
        Contact {
            device: self.device.describe().to_owned(),
            address: self.device.address,
            udp_port: self.device.udp_port,
            mtu_bytes: mtu.byte_count(),
            outstanding_reads: self.options.outstanding_reads,
            queue_pairs: numbers.map(|(index, pair)| (pair.number().value(), self.first_psn(index))).collect(),
            memory_address: self.region.address(),
            memory_key: self.region.remote_key(),
            memory_bytes: self.region.len() as u64,
        }
    }

    /// Protects each queue pair with forward error correction, before it is connected: from then on the peer sends.
    pub(crate) fn protect(&mut self, peer: &Contact, fec: Fec) -> Result<(), PerfError> {
        let softnic = self.device.endpoint().softnic();
        let softnic = softnic.ok_or_else(|| PerfError::Failed("--fec needs -d softnic".to_owned()))?;
        for (ours, (theirs, _)) in self.queue_pairs.iter().zip(&peer.queue_pairs) {
            let peer = FecPeer { address: peer.address, queue_pair: QueuePairNumber::new(*theirs), fec: Some(fec) };
            let protection = softnic.protect_queue_pair(ours, &peer);
            self.protections.push(protection.map_err(|error| PerfError::failed("--fec", error))?);
        }
        Ok(())
    }

    /// Connects each queue pair with its counterpart.
    pub(crate) fn connect(&mut self, peer: &Contact, mtu: Mtu) -> Result<(), PerfError> {
        if peer.queue_pairs.len() != self.queue_pairs.len() {
            let (ours, theirs) = (self.queue_pairs.len(), peer.queue_pairs.len());
            return Err(PerfError::Failed(format!(
                "the other end has {theirs} queue pairs, not {ours}: use the same release at both ends"
            )));
        }
        if peer.udp_port != UDP_PORT_ROCE && !self.has_free_udp_ports {
            return Err(PerfError::Failed(format!(
                "the other end's device listens at UDP port {}, and {} speaks only to RoCE's own, {UDP_PORT_ROCE}: who has that \
                 port there? (`longhaul devices` there says it)",
                peer.udp_port,
                self.device.describe()
            )));
        }
        let outstanding_reads = self.options.outstanding_reads.min(peer.outstanding_reads);
        self.options.outstanding_reads = outstanding_reads;
        let path = self.device.path_to(Gid::from_ip(peer.address), peer.udp_port);
        let failed =
            |error| PerfError::failed(format!("cannot connect to {} port {}", peer.address, peer.udp_port), error);
        let numbers: Vec<_> = peer.queue_pairs.iter().map(|(number, _)| QueuePairNumber::new(*number)).collect();
        for (index, queue_pair) in self.queue_pairs.iter().enumerate() {
            let receive = QueuePairAttributes::ready_to_receive(path, mtu, numbers[index], peer.queue_pairs[index].1);
            let kilobits = |rate: u64| u32::try_from(rate / 1000).unwrap_or(u32::MAX).max(1);
            let send = QueuePairAttributes {
                rate_limit_kilobits_per_second: self.options.rate_bits_per_second.map(kilobits),
                ..QueuePairAttributes::ready_to_send(self.first_psn(index))
            };
            let (receive, send) = match self.options.connection {
                Connection::Rc => (
                    receive.reliable_receive(outstanding_reads, NOT_READY_TIMER),
                    send.reliable_send(self.options.timeout, RETRIES, NOT_READY_RETRIES, outstanding_reads),
                ),
                Connection::Uc => (receive, send),
                Connection::Ud => (QueuePairAttributes::to_state(longhaul_verbs::QueuePairState::ReadyToReceive), send),
            };
            queue_pair.modify(&receive).map_err(failed)?;
            queue_pair.modify(&send).map_err(failed)?;
        }
        let datagrams = match self.options.connection {
            Connection::Ud => {
                let handle = self.domain.create_address_handle(&path);
                let handle = handle.map_err(|error| PerfError::failed("cannot make an address handle", error))?;
                Some((handle, numbers))
            }
            Connection::Rc | Connection::Uc => None,
        };
        let memory = RemoteMemory { address: peer.memory_address, key: peer.memory_key };
        let all = |each: u64| each.saturating_mul(self.queue_pairs.len() as u64);
        let all = self.paced_bits_per_second.or(self.options.rate_bits_per_second.map(all));
        let silence = Silence::new(self.options.connection, peer.address, peer.udp_port, all);
        self.peer = Some(Peer { memory, silence, datagrams });
        Ok(())
    }

    /// A place in the peer's memory.
    pub(crate) fn remote(&self, offset: usize) -> RemoteMemory {
        let memory = self.peer.as_ref().map(|peer| peer.memory).unwrap_or_default();
        RemoteMemory { address: memory.address.wrapping_add(offset as u64), key: memory.key }
    }

    /// The longest wait for a sign of the peer, with this many bytes to pass first.
    pub(crate) fn silence_limit(&self, bytes: u64) -> Duration {
        self.peer.as_ref().map_or(Duration::MAX, |peer| peer.silence.limit(bytes))
    }

    /// An error if the peer has given no sign for too long, with this many bytes to pass first.
    pub(crate) fn check_silence(&self, silent: Duration, bytes: u64) -> Result<(), PerfError> {
        self.peer.as_ref().map_or(Ok(()), |peer| peer.silence.check(silent, bytes))
    }

    /// The request, with a datagram's destination where one is needed.
    pub(crate) fn addressed<'a>(&'a self, index: usize, request: SendRequest<'a>) -> SendRequest<'a> {
        match &self.peer {
            Some(Peer { datagrams: Some((handle, numbers)), .. }) => {
                request.to(handle.destination(numbers[index], QUEUE_KEY))
            }
            _ => request,
        }
    }

    /// Bytes that a receive must have before the message.
    pub(crate) const fn header_bytes(&self) -> usize {
        match self.options.connection {
            Connection::Ud => GRH_BYTES,
            Connection::Rc | Connection::Uc => 0,
        }
    }

    /// Takes completions; a failed one is an error that says what to do. A group that sleeps waits for one, if it may
    /// because there is nothing else to do, but not for long: the caller has clocks to look at.
    pub(crate) fn poll<'a>(
        &self,
        room: &'a mut [WorkCompletion],
        may_sleep: bool,
    ) -> Result<&'a [WorkCompletion], PerfError> {
        let mut count = self.poll_now(room)?;
        if let Some(channel) = &self.channel
            && count == 0
            && may_sleep
        {
            let failed = |error| PerfError::failed("cannot wait for completions", error);
            self.completions.request_notification(false).map_err(failed)?;
            // A completion from before the notification was requested makes no event.
            count = self.poll_now(room)?;
            if count == 0 {
                self.sleep(channel)?;
                count = self.poll_now(room)?;
            }
        }
        let taken = &room[..count];
        match taken.iter().find(|completion| !completion.is_success()) {
            Some(completion) => Err(failure(completion)),
            None => Ok(taken),
        }
    }
}

impl Group {
    fn poll_now(&self, room: &mut [WorkCompletion]) -> Result<usize, PerfError> {
        self.completions.poll(room).map_err(|error| PerfError::failed("cannot poll completions", error))
    }

    fn sleep(&self, channel: &CompletionChannel) -> Result<(), PerfError> {
        let descriptor =
            channel.descriptor().ok_or_else(|| PerfError::Failed("this device cannot wake a sleeper".to_owned()))?;
        let waited = poll(&mut [PollFd::new(descriptor, PollFlags::POLLIN)], SLEEP_MILLISECONDS_MAX);
        if let Err(error) = waited
            && error != Errno::EINTR
        {
            return Err(PerfError::failed("cannot wait for completions", error));
        }
        while channel.next_event().map_err(|error| PerfError::failed("cannot read an event", error))?.is_some() {}
        Ok(())
    }
}

/// What a failed completion means to the user.
fn failure(completion: &WorkCompletion) -> PerfError {
    let meaning = match completion.status {
        CompletionStatus::RetryExceededError => {
            "the peer did not answer: it is gone, or the network loses too much (try -u for a longer time-out)"
        }
        CompletionStatus::ReceiverNotReadyRetryExceededError => "the peer posts no receives",
        CompletionStatus::RemoteAccessError => "the peer refused the key, the range or the access",
        CompletionStatus::LocalLengthError => "a message is longer than the receive, or than the transport allows",
        CompletionStatus::FlushedError => "the queue pair was in the error state already",
        _ => "the queue pair failed",
    };
    let (status, queue_pair) = (completion.status, completion.queue_pair);
    PerfError::Failed(format!("{meaning} (queue pair {:#x} completed a request with {status:?})", queue_pair.value()))
}
