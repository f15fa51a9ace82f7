//! The device as verbs programs see it: [`longhaul_verbs::raw`] over a [`Nic`] behind a lock.
//!
//! Every call locks the device, does its work there and is done; nothing waits for the network. Afterwards whoever
//! drives the device is told, if there is something to send. The rate-setting calls take batches (posting, polling), so
//! the lock costs little per request.
#![allow(unsafe_code, reason = "implements the unsafe calls of the raw verbs layer")]

mod completions;
mod windows;

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use longhaul_verbs::raw::{self, QueuePairInit};
use longhaul_verbs::{
    Access, AsyncEvent, Capabilities, Counter, CreateError, DestroyError, DeviceAttributes, EventError, Gid, GidEntry,
    GidType, LinkState, ModifyError, MulticastError, NotSupported, PathAttributes, PortAttributes, PostError,
    QueryError, QueuePairAttributes, QueuePairNumber, QueuePairState, ReceiveRequest, RegisterError, SendRequest,
    Transport, WriteBurst,
};

use completions::{CompletionChannel, CompletionQueue};

pub(crate) use windows::window_bind;

use crate::Config;
use crate::completion::{CompletionQueue as Queue, Waiting};
use crate::drive::{Drive, Signal};
use crate::guard::{NicGuard, NicLock};
use crate::memory::{DomainId, copy_inline};
use crate::nic::{Nic, QueuePairKey};
use crate::post::MESSAGE_BYTES_MAX;
use crate::queue_pair::{Identity, Limits};

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
    .union(Capabilities::SEND_QUEUE_DRAIN);

/// An open software RNIC.
#[derive(Clone)]
pub struct Device {
    shared: Arc<Shared>,
}

struct Shared {
    nic: Arc<NicLock>,
    name: String,
    drive: Box<dyn Drive>,
    /// Readable while there are asynchronous events.
    events: Option<Arc<dyn Signal>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Nic> {
        self.nic.lock()
    }

    /// For destructors: a device that has panicked needs no tidying, and a second panic would abort the process.
    fn tidy<R>(&self, work: impl FnOnce(&mut Nic) -> R) {
        if let Ok(mut nic) = self.nic.lock_unless_panicked() {
            work(&mut nic);
        }
    }

    /// Have the answer sent that a queue pair owes its peer, before it is forgotten.
    fn send_answer_of(&self, nic: &mut NicGuard<'_>, key: QueuePairKey) {
        if nic.queue_pairs.get(key).is_some_and(|queue_pair| queue_pair.owes_anything()) {
            self.drive.before_destroy(nic);
        }
    }

    /// `false` when it is gone already.
    fn destroy_queue_pair(&self, nic: MutexGuard<'_, Nic>, key: QueuePairKey) -> bool {
        let mut nic = NicGuard::new(nic);
        self.send_answer_of(&mut nic, key);
        let was_there = nic.remove_queue_pair(key);
        // Others may have waited for what it had in flight to a common peer.
        if nic.has_output() {
            self.drive.on_work(nic);
        }
        was_there
    }

    /// Run a call and tell the driver if it made work.
    fn with<R>(&self, call: impl FnOnce(&mut Nic) -> R) -> R {
        let mut nic = self.lock();
        let result = call(&mut nic);
        if nic.has_news() {
            self.drive.on_work(NicGuard::new(nic));
        }
        result
    }
}

impl Device {
    /// A device, and `wake` to tell whoever keeps the time that a verbs call has made work.
    pub fn new(config: Config, wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self::driven(config, Box::new(wake), None)
    }

    /// A device, who drives it, and what to signal when there are asynchronous events.
    pub(crate) fn driven(config: Config, drive: Box<dyn Drive>, events: Option<Arc<dyn Signal>>) -> Self {
        static SERIALS: AtomicU64 = AtomicU64::new(0);
        let serial = SERIALS.fetch_add(1, Ordering::Relaxed);
        let name = config.name.clone();
        let mut nic = Nic::new(config, serial);
        nic.shared.events.signal = events.clone();
        Device { shared: Arc::new(Shared { nic: Arc::new(NicLock::new(nic)), name, drive, events }) }
    }

    /// What the driver needs of it, and may hold longer than anybody holds the device.
    pub(crate) fn nic_lock(&self) -> Arc<NicLock> {
        self.shared.nic.clone()
    }

    /// The device behind it, for whoever drives it. Verbs calls wait while it is held.
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
        let capabilities = CAPABILITIES | self.shared.drive.capabilities();
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
            max_shared_receive_queues: 0,
            max_memory_windows: 0,
            max_address_handles: u32::MAX,
            max_multicast_groups: if has_multicast { config.multicast_memberships_max } else { 0 },
        })
    }

    fn port_attributes(&self, port: u8) -> Result<PortAttributes, QueryError> {
        check_port(port)?;
        let nic = self.shared.lock();
        let config = nic.config();
        Ok(PortAttributes {
            state: LinkState::Active,
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
                Some((own::<CompletionChannel>(channel, &self.shared, "completion channel")?.key, token))
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

    fn event_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.shared.events.as_deref().map(Signal::descriptor)
    }
}

fn check_queue_size(entries: u32, config: &Config) -> Result<(), CreateError> {
    let most = config.completion_queue_entries_max;
    match entries {
        0 => Err(CreateError::InvalidArgument { what: "completion queue entries", expected: "at least 1" }),
        _ if entries > most => {
            Err(CreateError::TooMany { what: "completion queue entries", requested: entries.into(), most: most.into() })
        }
        _ => Ok(()),
    }
}

fn check_count(what: &'static str, existing: u64, most: u64) -> Result<(), CreateError> {
    if existing >= most {
        return Err(CreateError::TooMany { what, requested: existing + 1, most });
    }
    Ok(())
}

/// An object of ours behind a verbs object, if it is of this very device.
trait Owned: Any {
    fn owner(&self) -> &Arc<Shared>;
}

fn own<'a, T: Owned>(object: &'a dyn Any, device: &Arc<Shared>, what: &'static str) -> Result<&'a T, CreateError> {
    match object.downcast_ref::<T>() {
        Some(ours) if Arc::ptr_eq(ours.owner(), device) => Ok(ours),
        _ => Err(CreateError::ForeignObject { what }),
    }
}

struct ProtectionDomain {
    shared: Arc<Shared>,
    id: DomainId,
}

impl raw::ProtectionDomain for ProtectionDomain {
    unsafe fn register_memory(
        &self,
        address: *mut u8,
        length: usize,
        first_address: u64,
        access: Access,
    ) -> Result<Arc<dyn raw::MemoryRegion>, RegisterError> {
        let length = length as u64;
        let remote_writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        if access.intersects(remote_writes) && !access.contains(Access::LOCAL_WRITE) {
            return Err(RegisterError::RemoteWriteWithoutLocalWrite);
        }
        for first in [address as u64, first_address] {
            if first.checked_add(length).is_none() {
                return Err(RegisterError::Wraps { address: first, length });
            }
        }
        let mut nic = self.shared.lock();
        let most = u64::from(nic.config().memory_regions_max);
        if nic.shared.memory.len() as u64 >= most {
            return Err(RegisterError::TooMany { most });
        }
        let Nic { shared, random, .. } = &mut *nic;
        // SAFETY: the caller's promise is the one that `register` asks for; `MemoryRegion` below ends it.
        let key = unsafe { shared.memory.register(address, length, first_address, self.id, access, random) };
        drop(nic);
        Ok(Arc::new(MemoryRegion {
            shared: self.shared.clone(),
            key,
            is_deregistered: AtomicBool::new(false),
            first_address,
            length,
        }))
    }

    fn create_address_handle(&self, path: &PathAttributes) -> Result<Arc<dyn raw::AddressHandle>, CreateError> {
        let nic = self.shared.lock();
        let source = nic.config().addresses.get(usize::from(path.source_gid_index));
        if source.is_none_or(|source| source.is_ipv4() != path.destination.to_ip().is_ipv4()) {
            return Err(CreateError::InvalidArgument {
                what: "source GID index",
                expected: "a row of the GID table whose address is of the destination's family",
            });
        }
        if path.port != 1 {
            return Err(CreateError::InvalidArgument { what: "port", expected: "1, the only port" });
        }
        Ok(Arc::new(AddressHandle { path: *path, device_serial: nic.serial }))
    }

    fn create_queue_pair(&self, init: &QueuePairInit<'_>) -> Result<Arc<dyn raw::QueuePair>, CreateError> {
        if init.shared_receive_queue.is_some() {
            return Err(NotSupported { capability: Capabilities::SHARED_RECEIVE_QUEUE }.into());
        }
        let send_completions = own::<CompletionQueue>(init.send_queue, &self.shared, "send completion queue")?.key;
        let receive_completions =
            own::<CompletionQueue>(init.receive_queue, &self.shared, "receive completion queue")?.key;
        let mut nic = self.shared.lock();
        let config = nic.config();
        let limits = init.limits;
        let bounds = [
            ("send requests", limits.send_requests, config.work_requests_max),
            ("receive requests", limits.receive_requests, config.work_requests_max),
            ("send scatter-gather entries", limits.send_entries, config.scatter_gather_entries_max),
            ("receive scatter-gather entries", limits.receive_entries, config.scatter_gather_entries_max),
            ("inline bytes", limits.inline_bytes, config.inline_bytes_max),
        ];
        for (what, requested, most) in bounds {
            if requested > most {
                return Err(CreateError::TooMany { what, requested: requested.into(), most: most.into() });
            }
        }
        check_count("queue pairs", nic.queue_pairs.len() as u64, nic.config().queue_pairs_max.into())?;
        nic.shared.join_completion_queue(send_completions);
        nic.shared.join_completion_queue(receive_completions);
        let (key, number) = nic.insert_queue_pair(|number| Identity {
            number,
            transport: init.transport,
            domain: self.id,
            send_completions,
            receive_completions,
            shared_receive: None,
            limits: Limits::new(limits),
            signal_all: init.signal_all,
        });
        drop(nic);
        let number = QueuePairNumber::new(number);
        Ok(Arc::new(QueuePair { shared: self.shared.clone(), key, number, transport: init.transport }))
    }
}

struct MemoryRegion {
    shared: Arc<Shared>,
    key: u32,
    /// Another region may be given the same key later.
    is_deregistered: AtomicBool,
    first_address: u64,
    length: u64,
}

impl raw::MemoryRegion for MemoryRegion {
    fn local_key(&self) -> u32 {
        self.key
    }
    fn remote_key(&self) -> u32 {
        self.key
    }
    fn address(&self) -> u64 {
        self.first_address
    }
    fn length(&self) -> u64 {
        self.length
    }
    fn deregister(&self) -> Result<(), DestroyError> {
        // Nobody may hear "gone" before the key really is: the one who hears it frees the memory. So the lock comes first.
        // (A device that has panicked touches nothing any more, because whoever drives it fails at the lock; a key can be taken
        // from it all the same, and a destructor must not panic.)
        let mut nic = self.shared.nic.lock_unless_panicked().unwrap_or_else(PoisonError::into_inner);
        if self.is_deregistered.swap(true, Ordering::Relaxed) {
            return Err(DestroyError::Gone);
        }
        nic.shared.memory.deregister(self.key);
        Ok(())
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if !*self.is_deregistered.get_mut() {
            self.shared.tidy(|nic| nic.shared.memory.deregister(self.key));
        }
    }
}

/// A way to a peer, for datagrams.
pub(crate) struct AddressHandle {
    pub(crate) path: PathAttributes,
    /// Of the device that it was made for, and checked with.
    pub(crate) device_serial: u64,
}

impl raw::AddressHandle for AddressHandle {
    fn path(&self) -> PathAttributes {
        self.path
    }
}

struct QueuePair {
    shared: Arc<Shared>,
    key: QueuePairKey,
    number: QueuePairNumber,
    transport: Transport,
}

impl raw::QueuePair for QueuePair {
    fn number(&self) -> QueuePairNumber {
        self.number
    }

    fn transport(&self) -> Transport {
        self.transport
    }

    fn state(&self) -> QueuePairState {
        self.shared.lock().queue_pairs.get(self.key).map_or(QueuePairState::Error, |queue_pair| queue_pair.state)
    }

    fn modify(&self, attributes: &QueuePairAttributes) -> Result<(), ModifyError> {
        if attributes.state == Some(QueuePairState::Reset) {
            // What it owes its peer goes first, as when it is destroyed.
            self.shared.send_answer_of(&mut NicGuard::new(self.shared.lock()), self.key);
        }
        self.shared.with(|nic| nic.modify_queue_pair(self.key, attributes))
    }

    fn query(&self) -> Result<QueuePairAttributes, QueryError> {
        self.shared.lock().query_queue_pair(self.key)
    }

    unsafe fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        self.shared.with(|nic| {
            // SAFETY: only called for requests with the flag INLINE, whose entries the caller has promised to be readable.
            nic.post_send(self.key, requests, |request| unsafe { copy_inline(request.local) })
        })
    }

    unsafe fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        self.shared.with(|nic| nic.post_receive(self.key, requests))
    }

    unsafe fn post_write_burst(&self, burst: &WriteBurst<'_>) -> Result<(), PostError> {
        self.shared.with(|nic| nic.post_write_burst(self.key, burst))
    }

    fn attach_multicast(&self, group: Gid, _lid: u16) -> Result<(), MulticastError> {
        if !self.shared.drive.capabilities().contains(Capabilities::MULTICAST) {
            return Err(NotSupported { capability: Capabilities::MULTICAST }.into());
        }
        if self.transport != Transport::UnreliableDatagram {
            return Err(MulticastError::WrongTransport);
        }
        if !group.is_multicast() {
            return Err(MulticastError::NotAGroup);
        }
        let mut nic = self.shared.lock();
        if !nic.queue_pairs.contains_key(self.key) {
            return Err(MulticastError::Gone);
        }
        let most = nic.config().multicast_memberships_max;
        let membership = (group, self.key);
        if !nic.memberships.contains(&membership) {
            if nic.memberships.len() >= most as usize {
                return Err(MulticastError::TooMany { most: most.into() });
            }
            nic.memberships.push(membership);
        }
        Ok(())
    }

    fn detach_multicast(&self, group: Gid, _lid: u16) -> Result<(), MulticastError> {
        let mut nic = self.shared.lock();
        let before = nic.memberships.len();
        nic.memberships.retain(|membership| *membership != (group, self.key));
        if nic.memberships.len() == before { Err(MulticastError::NotAttached) } else { Ok(()) }
    }

    fn destroy(&self) -> Result<(), DestroyError> {
        let was_there = self.shared.destroy_queue_pair(self.shared.lock(), self.key);
        was_there.then_some(()).ok_or(DestroyError::Gone)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if let Ok(nic) = self.shared.nic.lock_unless_panicked() {
            self.shared.destroy_queue_pair(nic, self.key);
        }
    }
}
