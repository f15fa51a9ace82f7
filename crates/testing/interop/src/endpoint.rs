//! One end: its device, and memory for all checks.

use std::net::IpAddr;

use longhaul_verbs::{
    Access, Capabilities, Device, DeviceAttributes, MemoryRegion, Mtu, PathAttributes, ProtectionDomain,
};

use crate::contents::{Contents, FILL, Layout};
use crate::fault::InteropError;
use crate::messages::{EndInfo, MemoryInfo};
use crate::plan::Check;

/// A peer must not make this end register just any amount of memory.
pub(crate) const MEMORY_BYTES_MAX: u64 = 512 << 20;
/// Work through large regions in pieces of about this size.
const LEAST_BYTES: u64 = 4096;

/// An open device, and how it is addressed towards the peer.
#[derive(Clone)]
pub struct End {
    /// The device.
    pub device: Device,
    /// In one line for people.
    pub description: String,
    /// Our address: what the peer's path leads to.
    pub address: IpAddr,
    /// Its row in the GID table.
    pub gid_index: u8,
    /// The device's port, counted from 1.
    pub port: u8,
    /// The UDP port at which the device listens.
    pub udp_port: u16,
}

/// A device with memory.
pub(crate) struct Endpoint {
    pub(crate) end: End,
    pub(crate) attributes: DeviceAttributes,
    pub(crate) mtu: Mtu,
    pub(crate) domain: ProtectionDomain,
    pub(crate) memory: MemoryRegion,
}

impl Endpoint {
    pub(crate) fn new(end: End, memory_bytes: u64) -> Result<Endpoint, InteropError> {
        if memory_bytes > MEMORY_BYTES_MAX {
            return Err(InteropError::Impossible(format!(
                "expected checks that need at most {} MiB of memory at each end, got {} MiB: take fewer or shorter operations",
                MEMORY_BYTES_MAX >> 20,
                memory_bytes >> 20
            )));
        }
        let failed = InteropError::device("ask the device for its limits");
        let attributes = end.device.attributes().map_err(|error| failed(error.into()))?;
        let mtu = end.device.port_attributes(end.port).map_err(|error| failed(error.into()))?.active_mtu;
        let failed = InteropError::device("allocate a protection domain");
        let domain = end.device.allocate_protection_domain().map_err(|error| failed(error.into()))?;
        let mut access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        if attributes.capabilities.contains(Capabilities::READ) {
            access |= Access::REMOTE_READ;
        }
        if attributes.capabilities.contains(Capabilities::ATOMICS) {
            access |= Access::REMOTE_ATOMIC;
        }
        let failed = InteropError::device("register memory");
        let memory = domain.register(vec![FILL; memory_bytes.max(LEAST_BYTES) as usize], access);
        let memory = memory.map_err(|error| failed(error.into()))?;
        Ok(Endpoint { end, attributes, mtu, domain, memory })
    }

    pub(crate) fn info(&self) -> EndInfo {
        let memory = MemoryInfo {
            address: self.memory.address(),
            key: self.memory.remote_key(),
            bytes: self.memory.len() as u64,
        };
        EndInfo::new(&self.end, &self.attributes, self.mtu, memory)
    }

    /// The path to a peer's device.
    pub(crate) fn path_to(&self, peer: &EndInfo) -> PathAttributes {
        PathAttributes {
            source_gid_index: self.end.gid_index,
            port: self.end.port,
            udp_port: peer.udp_port,
            ..PathAttributes::to(longhaul_verbs::Gid::from_ip(peer.address))
        }
    }

    pub(crate) fn has(&self, capability: Capabilities) -> bool {
        self.attributes.capabilities.contains(capability)
    }

    /// Writes what all slots hold.
    pub(crate) fn fill(&self, check: &Check, layout: &Layout, contents: impl Fn(u64) -> Contents) {
        let mut slot = vec![0; layout.stride()];
        for number in 0..layout.count() as u64 {
            layout.fill(check, number, contents(number), &mut slot);
            self.memory.copy_in(layout.slot(number), &slot);
        }
    }

    /// Whether a slot holds what it must.
    pub(crate) fn verify_slot(
        &self,
        check: &Check,
        layout: &Layout,
        number: u64,
        contents: Contents,
    ) -> Result<(), String> {
        let start = layout.slot(number);
        let slot = self.memory.to_vec(start..start + layout.stride());
        layout.verify(check, number, contents, &slot)
    }

    /// Whether all slots hold what they must.
    pub(crate) fn verify(
        &self,
        check: &Check,
        layout: &Layout,
        contents: impl Fn(u64) -> Contents,
    ) -> Result<(), String> {
        (0..layout.count() as u64).try_for_each(|number| self.verify_slot(check, layout, number, contents(number)))
    }
}
