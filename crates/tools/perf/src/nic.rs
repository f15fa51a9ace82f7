//! The device that measurements run on.

use std::rc::Rc;

use longhaul_verbs::{Access, MemoryRegion, ProtectionDomain};

use crate::connection::{Group, GroupOptions, register};
use crate::device::OpenedDevice;
use crate::error::PerfError;

/// An open device with memory to measure with.
pub(crate) struct Nic {
    pub(crate) device: Rc<OpenedDevice>,
    domain: ProtectionDomain,
    region: Rc<MemoryRegion>,
}

impl Nic {
    /// Registers memory with a device.
    pub(crate) fn new(device: OpenedDevice, buffer_bytes: usize, remote_access: Access) -> Result<Self, PerfError> {
        let domain = device.verbs().allocate_protection_domain();
        let domain = domain.map_err(|error| PerfError::failed("cannot allocate a protection domain", error))?;
        let region = register(&domain, buffer_bytes, remote_access)?;
        Ok(Nic { device: Rc::new(device), domain, region })
    }

    /// Queue pairs on the memory of this device.
    pub(crate) fn create_group(&self, options: GroupOptions) -> Result<Group, PerfError> {
        Group::create(&self.device, &self.domain, &self.region, options)
    }
}
