//! Attributes of devices, ports and queues: those that can be queried and those that can be set.

use std::borrow::Cow;
use std::fmt;

use bitflags::bitflags;

use crate::flag_names::write_names;
use crate::{Capabilities, Mtu, PathAttributes, QueuePairNumber, QueuePairState};

/// The transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// RC: acknowledged, in order, exactly once, one peer.
    ReliableConnection,
    /// UC: one peer, nothing repeated.
    UnreliableConnection,
    /// UD: single packets to anybody.
    UnreliableDatagram,
}

impl Transport {
    /// The three, in the specification's order.
    pub const ALL: [Transport; 3] =
        [Transport::ReliableConnection, Transport::UnreliableConnection, Transport::UnreliableDatagram];

    /// `RC`, `UC`, `UD`, as everybody writes them.
    pub const fn abbreviation(self) -> &'static str {
        match self {
            Transport::ReliableConnection => "RC",
            Transport::UnreliableConnection => "UC",
            Transport::UnreliableDatagram => "UD",
        }
    }

    /// The capability that a device needs for it.
    pub const fn capability(self) -> Capabilities {
        match self {
            Transport::ReliableConnection => Capabilities::RELIABLE_CONNECTION,
            Transport::UnreliableConnection => Capabilities::UNRELIABLE_CONNECTION,
            Transport::UnreliableDatagram => Capabilities::UNRELIABLE_DATAGRAM,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.abbreviation())
    }
}

bitflags! {
    /// Who may do what with a region, a window or through a queue pair. Bits are libibverbs' `ibv_access_flags`.
    /// Local reading is always allowed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// The device may write on behalf of this process (receives, READ responses).
        const LOCAL_WRITE = 1 << 0;
        /// Peers may WRITE. Needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may READ.
        const REMOTE_READ = 1 << 2;
        /// Peers may run atomics. Needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
        /// Windows may be bound to it.
        const WINDOW_BIND = 1 << 4;
        /// Addresses count from zero.
        const ZERO_BASED = 1 << 5;
        /// Pages may be brought in when they are used, instead of being pinned.
        const ON_DEMAND = 1 << 6;
        /// The memory is in huge pages.
        const HUGE_PAGES = 1 << 7;
        /// The device may reorder its writes.
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// Sizes and abilities of a device: libibverbs' `ibv_device_attr`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// What it can do.
    pub capabilities: Capabilities,
    /// Node GUID.
    pub node_guid: u64,
    /// Vendor number.
    pub vendor_id: u32,
    /// Version of firmware or, for a software device, of the program.
    pub firmware_version: String,
    /// Ports, counted from 1.
    pub port_count: u8,
    /// Largest region in bytes.
    pub max_region_bytes: u64,
    /// Queue pairs.
    pub max_queue_pairs: u32,
    /// Requests in one queue.
    pub max_work_requests: u32,
    /// Entries in one request.
    pub max_scatter_gather_entries: u32,
    /// Completion queues.
    pub max_completion_queues: u32,
    /// Entries in one completion queue.
    pub max_completion_queue_entries: u32,
    /// Regions.
    pub max_memory_regions: u32,
    /// Protection domains.
    pub max_protection_domains: u32,
    /// Bytes that can be sent inline. 0 when the device reports it only after a queue pair has been created.
    pub max_inline_bytes: u32,
    /// Largest message in bytes.
    pub max_message_bytes: u64,
    /// READs and atomics that a queue pair can have outstanding at its responder.
    pub max_destination_read_atomic: u8,
    /// READs and atomics that a queue pair can have outstanding as requester.
    pub max_read_atomic: u8,
    /// Shared receive queues.
    pub max_shared_receive_queues: u32,
    /// Memory windows.
    pub max_memory_windows: u32,
    /// Address handles.
    pub max_address_handles: u32,
    /// Multicast groups.
    pub max_multicast_groups: u32,
}

/// Whether a port can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkState {
    /// No link.
    Down,
    /// Coming up.
    Initializing,
    /// Usable.
    Active,
}

/// A port: libibverbs' `ibv_port_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// Usable?
    pub state: LinkState,
    /// Largest MTU it could ever have.
    pub max_mtu: Mtu,
    /// Largest MTU that queue pairs can use now.
    pub active_mtu: Mtu,
    /// Rows in the GID table.
    pub gid_table_length: u32,
    /// Rows in the partition key table.
    pub partition_key_table_length: u16,
    /// Rate in bits per second; `None` when the port does not know.
    pub rate_bits_per_second: Option<u64>,
    /// InfiniBand local identifier; 0 with RoCE.
    pub lid: u16,
}

/// A number that a device counts, by the name that rxe or mlx5 give it in sysfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The name.
    pub name: Cow<'static, str>,
    /// The count since the device was made.
    pub value: u64,
}

/// Sizes of a queue pair: libibverbs' `ibv_qp_cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairLimits {
    /// Requests in the send queue.
    pub send_requests: u32,
    /// Requests in the receive queue.
    pub receive_requests: u32,
    /// Entries of a send request.
    pub send_entries: u32,
    /// Entries of a receive request.
    pub receive_entries: u32,
    /// Inline bytes of a send request.
    pub inline_bytes: u32,
}

impl Default for QueuePairLimits {
    fn default() -> Self {
        QueuePairLimits {
            send_requests: 128,
            receive_requests: 128,
            send_entries: 4,
            receive_entries: 4,
            inline_bytes: 64,
        }
    }
}

/// Automatic path migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathMigrationState {
    /// On the alternate path, or without one.
    Migrated,
    /// An alternate path is to be loaded.
    Rearm,
    /// Ready to migrate.
    Armed,
}

bitflags! {
    /// Which fields of [`QueuePairAttributes`] are meant. Bits are libibverbs' `ibv_qp_attr_mask`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct AttributeMask: u32 {
        /// `state`
        const STATE = 1 << 0;
        /// `current_state`
        const CURRENT_STATE = 1 << 1;
        /// `send_queue_drained_event`
        const SEND_QUEUE_DRAINED_EVENT = 1 << 2;
        /// `access`
        const ACCESS = 1 << 3;
        /// `partition_key_index`
        const PARTITION_KEY_INDEX = 1 << 4;
        /// `port`
        const PORT = 1 << 5;
        /// `queue_key`
        const QUEUE_KEY = 1 << 6;
        /// `path`
        const PATH = 1 << 7;
        /// `path_mtu`
        const PATH_MTU = 1 << 8;
        /// `timeout`
        const TIMEOUT = 1 << 9;
        /// `retry_count`
        const RETRY_COUNT = 1 << 10;
        /// `receiver_not_ready_retry`
        const RECEIVER_NOT_READY_RETRY = 1 << 11;
        /// `receive_psn`
        const RECEIVE_PSN = 1 << 12;
        /// `max_read_atomic`
        const MAX_READ_ATOMIC = 1 << 13;
        /// `alternate_path`
        const ALTERNATE_PATH = 1 << 14;
        /// `min_receiver_not_ready_timer`
        const MIN_RECEIVER_NOT_READY_TIMER = 1 << 15;
        /// `send_psn`
        const SEND_PSN = 1 << 16;
        /// `max_destination_read_atomic`
        const MAX_DESTINATION_READ_ATOMIC = 1 << 17;
        /// `path_migration_state`
        const PATH_MIGRATION_STATE = 1 << 18;
        /// `limits`
        const LIMITS = 1 << 19;
        /// `destination_queue_pair`
        const DESTINATION_QUEUE_PAIR = 1 << 20;
        /// `rate_limit_kilobits_per_second`
        const RATE_LIMIT = 1 << 25;
    }
}

impl fmt::Debug for AttributeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        bitflags::parser::to_writer(self, f)
    }
}

/// For people: `path MTU, destination queue pair, RNR retry`.
impl fmt::Display for AttributeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_names(f, self.iter_names().map(|(name, _)| name))
    }
}

/// What can be set on a queue pair: libibverbs' `ibv_qp_attr` and its mask in one. A field that is `None` is not in the
/// mask.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueuePairAttributes {
    /// The state to move to.
    pub state: Option<QueuePairState>,
    /// The state that the caller believes it to be in.
    pub current_state: Option<QueuePairState>,
    /// Whether draining the send queue ends with an event.
    pub send_queue_drained_event: Option<bool>,
    /// What the peer may do.
    pub access: Option<Access>,
    /// Row of the partition key table.
    pub partition_key_index: Option<u16>,
    /// The device's port, counted from 1.
    pub port: Option<u8>,
    /// UD: the key that incoming datagrams must carry.
    pub queue_key: Option<u32>,
    /// RC, UC: the path to the peer.
    pub path: Option<PathAttributes>,
    /// RC, UC: bytes in a full packet.
    pub path_mtu: Option<Mtu>,
    /// RC: acknowledgement time-out, 4.096 µs · 2^n; 0 is never.
    pub timeout: Option<u8>,
    /// RC: how often to send again after a time-out or a sequence error, 0 to 7.
    pub retry_count: Option<u8>,
    /// RC: how often to send again when the peer has no receive posted; 7 is for ever.
    pub receiver_not_ready_retry: Option<u8>,
    /// RC, UC: the first sequence number expected.
    pub receive_psn: Option<u32>,
    /// The first sequence number sent.
    pub send_psn: Option<u32>,
    /// RC: READs and atomics outstanding as requester.
    pub max_read_atomic: Option<u8>,
    /// RC: READs and atomics outstanding as responder.
    pub max_destination_read_atomic: Option<u8>,
    /// RC, UC: a second way to the peer.
    pub alternate_path: Option<PathAttributes>,
    /// RC: how long the peer is asked to wait when no receive is posted (encoded, 0 to 31).
    pub min_receiver_not_ready_timer: Option<u8>,
    /// Path migration.
    pub path_migration_state: Option<PathMigrationState>,
    /// New queue sizes.
    pub limits: Option<QueuePairLimits>,
    /// RC, UC: the peer's queue pair.
    pub destination_queue_pair: Option<QueuePairNumber>,
    /// Rate limit; 0 is none. (Kilobits are libibverbs' unit.)
    pub rate_limit_kilobits_per_second: Option<u32>,
}

impl QueuePairAttributes {
    /// Which fields are set.
    pub fn mask(&self) -> AttributeMask {
        use AttributeMask as M;
        let set = [
            (self.state.is_some(), M::STATE),
            (self.current_state.is_some(), M::CURRENT_STATE),
            (self.send_queue_drained_event.is_some(), M::SEND_QUEUE_DRAINED_EVENT),
            (self.access.is_some(), M::ACCESS),
            (self.partition_key_index.is_some(), M::PARTITION_KEY_INDEX),
            (self.port.is_some(), M::PORT),
            (self.queue_key.is_some(), M::QUEUE_KEY),
            (self.path.is_some(), M::PATH),
            (self.path_mtu.is_some(), M::PATH_MTU),
            (self.timeout.is_some(), M::TIMEOUT),
            (self.retry_count.is_some(), M::RETRY_COUNT),
            (self.receiver_not_ready_retry.is_some(), M::RECEIVER_NOT_READY_RETRY),
            (self.receive_psn.is_some(), M::RECEIVE_PSN),
            (self.send_psn.is_some(), M::SEND_PSN),
            (self.max_read_atomic.is_some(), M::MAX_READ_ATOMIC),
            (self.max_destination_read_atomic.is_some(), M::MAX_DESTINATION_READ_ATOMIC),
            (self.alternate_path.is_some(), M::ALTERNATE_PATH),
            (self.min_receiver_not_ready_timer.is_some(), M::MIN_RECEIVER_NOT_READY_TIMER),
            (self.path_migration_state.is_some(), M::PATH_MIGRATION_STATE),
            (self.limits.is_some(), M::LIMITS),
            (self.destination_queue_pair.is_some(), M::DESTINATION_QUEUE_PAIR),
            (self.rate_limit_kilobits_per_second.is_some(), M::RATE_LIMIT),
        ];
        set.into_iter().filter(|(is_set, _)| *is_set).map(|(_, mask)| mask).collect()
    }

    /// Only a new state.
    pub fn to_state(state: QueuePairState) -> Self {
        QueuePairAttributes { state: Some(state), ..Default::default() }
    }

    /// RESET to INIT for a connected transport, on port 1.
    pub fn init_connected(access: Access) -> Self {
        QueuePairAttributes {
            partition_key_index: Some(0),
            port: Some(1),
            access: Some(access),
            ..Self::to_state(QueuePairState::Initialized)
        }
    }

    /// RESET to INIT for datagrams, on port 1.
    pub fn init_datagram(queue_key: u32) -> Self {
        QueuePairAttributes {
            partition_key_index: Some(0),
            port: Some(1),
            queue_key: Some(queue_key),
            ..Self::to_state(QueuePairState::Initialized)
        }
    }

    /// INIT to RTR with what UC and RC both need. RC also needs [`QueuePairAttributes::reliable_receive`].
    pub fn ready_to_receive(path: PathAttributes, mtu: Mtu, peer: QueuePairNumber, receive_psn: u32) -> Self {
        QueuePairAttributes {
            path: Some(path),
            path_mtu: Some(mtu),
            destination_queue_pair: Some(peer),
            receive_psn: Some(receive_psn),
            ..Self::to_state(QueuePairState::ReadyToReceive)
        }
    }

    /// What RC needs beyond UC to become ready to receive.
    #[must_use]
    pub fn reliable_receive(self, max_destination_read_atomic: u8, min_receiver_not_ready_timer: u8) -> Self {
        QueuePairAttributes {
            max_destination_read_atomic: Some(max_destination_read_atomic),
            min_receiver_not_ready_timer: Some(min_receiver_not_ready_timer),
            ..self
        }
    }

    /// RTR to RTS with what all transports need. RC also needs [`QueuePairAttributes::reliable_send`].
    pub fn ready_to_send(send_psn: u32) -> Self {
        QueuePairAttributes { send_psn: Some(send_psn), ..Self::to_state(QueuePairState::ReadyToSend) }
    }

    /// What RC needs beyond UC to become ready to send.
    #[must_use]
    pub fn reliable_send(
        self,
        timeout: u8,
        retry_count: u8,
        receiver_not_ready_retry: u8,
        max_read_atomic: u8,
    ) -> Self {
        QueuePairAttributes {
            timeout: Some(timeout),
            retry_count: Some(retry_count),
            receiver_not_ready_retry: Some(receiver_not_ready_retry),
            max_read_atomic: Some(max_read_atomic),
            ..self
        }
    }
}

/// What a shared receive queue is made with, and answers when asked: libibverbs' `ibv_srq_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SharedReceiveQueueAttributes {
    /// Requests in the queue.
    pub requests: u32,
    /// Entries of a request.
    pub entries: u32,
    /// Raise an event when fewer requests than this are left; 0 is never.
    pub limit: u32,
}

/// What can be changed of a shared receive queue: libibverbs' `ibv_srq_attr` and its mask in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SharedReceiveQueueChange {
    /// Requests in the queue.
    pub requests: Option<u32>,
    /// Raise an event when fewer requests than this are left; 0 is never.
    pub limit: Option<u32>,
}
