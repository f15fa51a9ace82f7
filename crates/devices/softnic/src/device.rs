//! The device as verbs programs see it: [`longhaul_verbs::raw`] over a [`Nic`] behind a lock.
//!
//! Every call locks the device, does its work there and is done; nothing waits for the network. Afterwards the driver
//! of the device is notified if there is something to send. The rate-setting calls take batches (posting, polling), so
//! the lock costs little per request.

mod address_handle;
mod completions;
mod domain;
mod drive;
mod memory;
mod queue_pair;
mod shared;
mod shared_receive;
mod windows;

#[cfg(unix)]
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longhaul_verbs::raw;
use longhaul_verbs::{
    AsyncEvent, Capabilities, Counter, CreateError, DeviceAttributes, EventError, Gid, GidEntry, GidType,
    PortAttributes, QueryError,
};

use completions::{CompletionChannel, CompletionQueue};
use domain::ProtectionDomain;
use shared::{Shared, check_count, check_queue_size};

pub(crate) use address_handle::AddressHandle;
pub use drive::Drive;
pub(crate) use windows::window_bind;

use crate::config::{Config, Type2Windows};
use crate::nic::Nic;
use crate::nic::guard::{NicGuard, NicLock};
use crate::queue_pair::MESSAGE_BYTES_MAX;
use crate::resources::{CompletionQueue as Queue, Signal, Waiting};

/// What a software RNIC can do today, whatever its port.
const CAPABILITIES: Capabilities = Capabilities::RELIABLE_CONNECTION
    .union(Capabilities::UNRELIABLE_CONNECTION)
    .union(Capabilities::UNRELIABLE_DATAGRAM)
    .union(Capabilities::READ)
    .union(Capabilities::ATOMICS)
    .union(Capabilities::WRITE_BURST)
    .union(Capabilities::COMPLETION_CHANNEL)
    .union(Capabilities::RESIZE_COMPLETION_QUEUE)
    .union(Capabilities::ZERO_BASED)
    .union(Capabilities::RATE_LIMIT)
    .union(Capabilities::SEND_QUEUE_DRAIN)
    .union(Capabilities::INVALIDATE)
    .union(Capabilities::SHARED_RECEIVE_QUEUE)
    .union(Capabilities::WINDOW_TYPE_1)
    .union(Capabilities::NULL_REGION)
    .union(Capabilities::SLOTTED_REGION)
    .union(Capabilities::COMPLETION_MODERATION);

/// An open software RNIC.
#[derive(Clone)]
pub struct Device {
    shared: Arc<Shared>,
}

impl Device {
    /// A device; it calls `wake` when a verbs call has made work.
    pub fn new(config: Config, wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self::driven(config, Box::new(wake), None)
    }

    /// A device, who drives it, and what to signal when there are asynchronous events.
    pub fn driven(config: Config, drive: Box<dyn Drive>, events: Option<Arc<dyn Signal>>) -> Self {
        static SERIALS: AtomicU64 = AtomicU64::new(0);
        let serial = SERIALS.fetch_add(1, Ordering::Relaxed);
        let name = config.name.clone();
        let mut nic = Nic::new(config, serial);
        nic.shared.events.signal = events.clone();
        Device { shared: Arc::new(Shared { nic: Arc::new(NicLock::new(nic)), serial, name, drive, events }) }
    }

    /// What the driver needs of it, and may hold longer than anybody holds the device.
    pub fn nic_lock(&self) -> Arc<NicLock> {
        self.shared.nic.clone()
    }

    /// The device behind it, for its driver. Verbs calls wait while it is held.
    pub fn nic(&self) -> NicGuard<'_> {
        NicGuard::new(self.shared.lock())
    }

    /// The safe face of it.
    pub fn verbs(&self) -> longhaul_verbs::Device {
        longhaul_verbs::Device::new(Arc::new(self.clone()))
    }
}

fn check_port(port: u8) -> Result<(), QueryError> {
    match port {
        1 => Ok(()),
        _ => Err(QueryError::NoSuch { what: "port", index: port.into(), count: 1 }),
    }
}

impl raw::Device for Device {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn attributes(&self) -> Result<DeviceAttributes, QueryError> {
        let nic = self.shared.lock();
        let config = nic.config();
        let type_2_windows = match config.type_2_windows {
            Type2Windows::A => Capabilities::WINDOW_TYPE_2A,
            Type2Windows::B => Capabilities::WINDOW_TYPE_2B,
        };
        let mut capabilities = CAPABILITIES | type_2_windows | self.shared.drive.capabilities();
        if config.foreign_memory.is_some() {
            capabilities -= Capabilities::ATOMICS;
        }
        let has_multicast = capabilities.contains(Capabilities::MULTICAST);
        Ok(DeviceAttributes {
            capabilities,
            node_guid: 0,
            vendor_id: 0,
            firmware_version: env!("CARGO_PKG_VERSION").into(),
            port_count: 1,
            max_region_bytes: u64::MAX,
            max_queue_pairs: config.queue_pairs_max,
            max_work_requests: config.work_requests_max,
            max_scatter_gather_entries: config.scatter_gather_entries_max,
            max_completion_queues: config.completion_queues_max,
            max_completion_queue_entries: config.completion_queue_entries_max,
            max_memory_regions: config.memory_regions_max,
            max_protection_domains: u32::MAX,
            max_inline_bytes: config.inline_bytes_max,
            max_message_bytes: MESSAGE_BYTES_MAX,
            max_destination_read_atomic: config.read_atomic_max,
            max_read_atomic: config.read_atomic_max,
            max_shared_receive_queues: config.shared_receive_queues_max,
            max_memory_windows: config.memory_windows_max,
            max_address_handles: u32::MAX,
            max_multicast_groups: if has_multicast { config.multicast_memberships_max } else { 0 },
        })
    }

    fn port_attributes(&self, port: u8) -> Result<PortAttributes, QueryError> {
        check_port(port)?;
        let nic = self.shared.lock();
        let config = nic.config();
        Ok(PortAttributes {
            state: nic.shared.link_state,
            max_mtu: longhaul_verbs::Mtu::Bytes4096,
            active_mtu: config.mtu,
            gid_table_length: config.addresses.len() as u32,
            partition_key_table_length: 1,
            rate_bits_per_second: config.rate_bits_per_second,
            lid: 0,
        })
    }

    fn gid(&self, port: u8, index: u32) -> Result<GidEntry, QueryError> {
        check_port(port)?;
        let nic = self.shared.lock();
        let addresses = &nic.config().addresses;
        match addresses.get(index as usize) {
            Some(&address) => Ok(GidEntry { gid: Gid::from_ip(address), gid_type: GidType::RoceV2, index }),
            None => Err(QueryError::NoSuch { what: "GID", index, count: addresses.len() as u32 }),
        }
    }

    fn counters(&self) -> Vec<Counter> {
        self.shared.lock().counters().to_list()
    }

    fn allocate_protection_domain(&self) -> Result<Arc<dyn raw::ProtectionDomain>, CreateError> {
        let mut nic = self.shared.lock();
        let id = nic.next_domain;
        nic.next_domain = id.checked_add(1).ok_or(CreateError::TooMany {
            what: "protection domains over the device's life",
            requested: u64::from(u32::MAX) + 1,
            most: u32::MAX.into(),
        })?;
        drop(nic);
        Ok(Arc::new(ProtectionDomain { shared: self.shared.clone(), id }))
    }

    fn create_completion_channel(&self) -> Result<Arc<dyn raw::CompletionChannel>, CreateError> {
        let mut nic = self.shared.lock();
        let most = nic.config().completion_channels_max.into();
        check_count("completion channels", nic.shared.channels.len() as u64, most)?;
        let signal = self.shared.drive.create_signal().map_err(CreateError::System)?;
        let key = nic.shared.channels.insert(Waiting::new(signal.clone()));
        drop(nic);
        Ok(Arc::new(CompletionChannel { shared: self.shared.clone(), key, signal }))
    }

    fn create_completion_queue(
        &self,
        entries: u32,
        channel: Option<(&dyn raw::CompletionChannel, u64)>,
    ) -> Result<Arc<dyn raw::CompletionQueue>, CreateError> {
        let channel = match channel {
            None => None,
            Some((channel, token)) => {
                let own = self.shared.own::<CompletionChannel>(channel);
                let own = own.ok_or(CreateError::ForeignObject { what: "completion channel" })?;
                Some((own.key, token))
            }
        };
        let mut nic = self.shared.lock();
        check_queue_size(entries, nic.config())?;
        check_count(
            "completion queues",
            nic.shared.completion_queues.len() as u64,
            nic.config().completion_queues_max.into(),
        )?;
        let key = nic.shared.completion_queues.insert(Queue::new(entries, channel));
        drop(nic);
        Ok(Arc::new(CompletionQueue { shared: self.shared.clone(), key }))
    }

    fn next_event(&self) -> Result<Option<AsyncEvent>, EventError> {
        Ok(self.shared.lock().shared.events.pop())
    }

    #[cfg(unix)]
    fn event_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.shared.events.as_deref().map(Signal::descriptor)
    }
}
