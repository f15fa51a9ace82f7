//! What a device is made with. Everything that grows has its bound here.

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use longhaul_congestion::ControllerName;
use longhaul_verbs::Mtu;

use crate::memory::ForeignMemory;

/// What a device is made with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The name that users call it by.
    pub name: String,
    /// The port's addresses, the rows of its GID table. At least one.
    pub addresses: Vec<IpAddr>,
    /// Largest MTU that the port carries.
    pub mtu: Mtu,
    /// Rate of the port, for information only.
    pub rate_bits_per_second: Option<u64>,
    /// Seed of keys and queue pair numbers: the operating system's randomness in production, so that they cannot be
    /// guessed; the simulation's seed in simulation.
    pub random_seed: [u8; 32],
    /// Whether packets carry payload. Without it everything is checked and completed as usual, but no byte is copied.
    pub payload: PayloadMode,
    /// Mark packets as ECN capable, so that routers can mark instead of drop.
    pub ecn_capable: bool,
    /// RC: packets in flight on a queue pair. Below 2^23, the half of the sequence number space.
    pub window_packets_max: u32,
    /// RC: an acknowledgement is asked for at the end of a message, and after this many packets within one.
    pub acknowledge_packets: u32,
    /// RC: READs and atomics that a queue pair may have outstanding, as requester and as responder.
    pub read_atomic_max: u8,
    /// RC: a READ is asked for in parts of at most this many packets.
    pub read_packets_max: u32,
    /// At most one congestion notification per queue pair in this time.
    pub congestion_notification_interval: Duration,
    /// RC: what may be in flight towards one peer, over all queue pairs: what its socket's receive buffer takes. Each
    /// packet counts with its payload and 768 bytes for headers and bookkeeping. The window starts with what any socket
    /// takes, grows up to this in a few round trips, and is halved when something is lost; it is never smaller than
    /// eight full packets. Towards another host it may grow to `window_packets_max` packets, since most of them are in
    /// the network, and losses that `wan` or `swift` has dealt with halve it only when they are frequent. `None` sets no
    /// limit.
    pub peer_window_bytes: Option<u64>,
    /// RC: what controls the rate and the window of a queue pair; `None` sends as fast as the port takes packets. A rate
    /// limit of the queue pair is a cap. UC and UD have no acknowledgements, and so nothing to control a rate by:
    /// `fixed:RATE` is theirs, too, any other name is not. `credit` needs a receiver that grants it, and is not for devices.
    /// Peers on this host ([`is_local`](Config::is_local)) are not paced.
    pub congestion: Option<ControllerName>,
    /// Rate of what nobody acknowledges: queue pairs of UC and UD without a rate limit of their own, and RC's answers to
    /// READs. `None` sends as fast as the port takes packets. Peers on this host are not paced.
    pub unacknowledged_bits_per_second: Option<u64>,
    /// Addresses of this host besides `addresses` and loopback.
    pub local_addresses: Vec<IpAddr>,
    /// Packets of one queue pair before it is another's turn.
    pub turn_packets: u32,
    /// Where queue pairs have their numbers: all by default. Processes that share a UDP port have a part each, from which the port
    /// sees whose a packet is. As many as a power of two, and a multiple of it; `queue_pairs_max` is at most half of it, so
    /// that a free number is soon found.
    pub queue_pair_numbers: Range<u32>,
    /// Queue pairs.
    pub queue_pairs_max: u32,
    /// Completion queues.
    pub completion_queues_max: u32,
    /// Completion channels.
    pub completion_channels_max: u32,
    /// Entries of one completion queue.
    pub completion_queue_entries_max: u32,
    /// Regions.
    pub memory_regions_max: u32,
    /// Memory windows.
    pub memory_windows_max: u32,
    /// Whether type 2 windows are of kind 2A (bound to a queue pair) or 2B (to its protection domain as well).
    pub type_2_windows: Type2Windows,
    /// Slots of all slotted regions together.
    pub slotted_slots_max: u32,
    /// Shared receive queues.
    pub shared_receive_queues_max: u32,
    /// Requests of one queue.
    pub work_requests_max: u32,
    /// Entries of one request.
    pub scatter_gather_entries_max: u32,
    /// Inline bytes of one request.
    pub inline_bytes_max: u32,
    /// Memberships of queue pairs in multicast groups.
    pub multicast_memberships_max: u32,
    /// How to copy to and from registered memory that may be gone: that of programs that were not written for this device.
    /// Each packet's payload is then copied by it, an access that faults is refused or completes with an error, and there
    /// are no atomics. `None` trusts who registered the memory, as [`longhaul_verbs::raw`] demands.
    pub foreign_memory: Option<ForeignMemory>,
    /// Asynchronous events that wait to be read; older ones are dropped and counted.
    pub events_max: usize,
    /// A mistake to make on purpose.
    #[cfg(feature = "mutations")]
    pub mutation: Option<Mutation>,
}

/// Whether packets carry payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PayloadMode {
    /// As on any network.
    #[default]
    Carried,
    /// Only lengths travel: for large simulations that look at time, not at contents.
    Elided,
    /// Of WRITEs only lengths travel; SENDs carry what the program above says to its peer.
    WritesElided,
}

/// Which of the specification's two kinds the type 2 windows of a device are; a device has one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Type2Windows {
    /// Usable through the queue pair that a window was bound on.
    A,
    /// And only when window, region and queue pair are of one protection domain.
    #[default]
    B,
}

/// Mistakes that tests have the device make, to see that the checkers notice.
#[cfg(feature = "mutations")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// RC: a WRITE's packet is acknowledged first and placed when the next one arrives.
    AcknowledgeBeforePlacement,
    /// A key still works for peers after its region has been deregistered.
    AcceptInvalidatedKey,
    /// A write burst of two packets or more fails with a protection error.
    FailsBursts,
    /// UC and UD: a message without immediate is never sent, and completes.
    DropsWithoutImmediate,
    /// RC: a request fails where it should be tried again for the first time.
    GivesUpAtOnce,
    /// RC: a READ is answered with what the memory held when it was read before.
    ReadFromWrongEpoch,
    /// RC: an atomic that comes a second time is carried out again.
    AtomicTwice,
    /// RC: of two requests that are acknowledged together the second one completes first.
    CompletionOutOfOrder,
    /// A window's key still works for peers after the window was bound anew.
    WindowAfterRebind,
    /// When a send queue is flushed, its last request is forgotten.
    FlushLosesRequest,
}

impl Config {
    /// A device with these addresses and the default bounds.
    pub fn new(name: impl Into<String>, addresses: Vec<IpAddr>, random_seed: [u8; 32]) -> Self {
        Config {
            name: name.into(),
            addresses,
            mtu: Mtu::Bytes4096,
            rate_bits_per_second: None,
            random_seed,
            payload: PayloadMode::Carried,
            ecn_capable: true,
            window_packets_max: 1 << 16,
            acknowledge_packets: 64,
            read_atomic_max: 16,
            read_packets_max: 256,
            congestion_notification_interval: Duration::from_micros(50),
            peer_window_bytes: None,
            congestion: None,
            unacknowledged_bits_per_second: None,
            local_addresses: Vec::new(),
            turn_packets: 16,
            queue_pair_numbers: 0..1 << 24,
            queue_pairs_max: 1 << 18,
            completion_queues_max: 1 << 16,
            completion_channels_max: 1 << 16,
            completion_queue_entries_max: 1 << 22,
            memory_regions_max: 1 << 20,
            memory_windows_max: 1 << 20,
            type_2_windows: Type2Windows::B,
            // 16,384 connections of 1,024 messages each. A slot that was never used costs nothing.
            slotted_slots_max: 1 << 24,
            shared_receive_queues_max: 1 << 16,
            work_requests_max: 1 << 20,
            scatter_gather_entries_max: 32,
            inline_bytes_max: 512,
            multicast_memberships_max: 4096,
            foreign_memory: None,
            events_max: 4096,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }

    /// Whether packets to an address do not leave this host.
    pub fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.contains(&address) || self.local_addresses.contains(&address)
    }
}
