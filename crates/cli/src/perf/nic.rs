//! The device that measurements run on.

use std::io::Read as _;
use std::net::IpAddr;
use std::rc::Rc;

use longhaul_softnic::Config;
use longhaul_softnic::udp::{UdpConfig, UdpDevice};
use longhaul_verbs::{Access, MemoryRegion, Mtu, ProtectionDomain};

use super::connection::{Group, GroupOptions, register};
use super::stop::Stop;
use crate::message::with_sources;

/// An open device with memory to measure with.
pub(crate) struct Nic {
    pub(crate) device: UdpDevice,
    domain: ProtectionDomain,
    region: Rc<MemoryRegion>,
}

impl Nic {
    /// Opens the software RNIC at an address. Unless it is to be quiet, warnings go to standard error.
    pub(crate) fn open(
        addresses: &[IpAddr],
        udp: UdpConfig,
        buffer_bytes: usize,
        remote_access: Access,
        is_quiet: bool,
    ) -> Result<Self, Stop> {
        let config = Config::new("softnic", addresses.to_vec(), random()?);
        let opened = UdpDevice::open(config, udp);
        let device =
            opened.map_err(|error| Stop::Missing(format!("cannot open the device: {}", with_sources(&error))))?;
        for warning in device.warnings().iter().filter(|_| !is_quiet) {
            eprintln!("warning: {warning}");
        }
        let domain = device.verbs().allocate_protection_domain();
        let domain = domain.map_err(|error| Stop::failed("cannot allocate a protection domain", error))?;
        let region = register(&domain, buffer_bytes, remote_access)?;
        Ok(Nic { device, domain, region })
    }

    /// Queue pairs on the memory of this device.
    pub(crate) fn create_group(&self, options: GroupOptions) -> Result<Group, Stop> {
        Group::create(&self.device.verbs(), &self.domain, &self.region, options)
    }

    /// Payload of a packet that the port can carry.
    pub(crate) fn mtu(&self) -> Result<Mtu, Stop> {
        let port = self.device.verbs().port_attributes(1);
        Ok(port.map_err(|error| Stop::failed("cannot ask the device for its MTU", error))?.active_mtu)
    }
}

/// The operating system's randomness.
pub(crate) fn random<const BYTES: usize>() -> Result<[u8; BYTES], Stop> {
    let mut bytes = [0; BYTES];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| Stop::missing("cannot read /dev/urandom", error))?;
    Ok(bytes)
}
