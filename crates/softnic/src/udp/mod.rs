//! The UDP port: a software RNIC on real sockets, with real RoCEv2 datagrams, on any IP host and without root.
//!
//! ```text
//!   verbs calls ─▶ device ─▶ port ─▶ batch ─▶ socket ═══ network ═══ socket ─▶ receive ─▶ device ─▶ completions
//!                     ▲                                                            │
//!                     └────── driver: the caller's own polls, and a background thread ┘
//! ```
//!
//! One process owns an address's port 4791; others take a free port, which peers must be told
//! ([`UdpDevice::udp_port`], [`PathAttributes::udp_port`](longhaul_verbs::PathAttributes::udp_port)) and only softnics understand.

mod batch;
mod link;
mod open;
pub mod path;
mod port;
mod receive;
mod socket;

pub(crate) use link::LinkWatch;
pub use open::{OpenError, Warning};
pub(crate) use port::UdpPort;

use std::sync::Weak;

pub use longhaul_capture::{CaptureError, CaptureSummary};
use longhaul_time::Instant;
use longhaul_verbs as verbs;

use crate::driver::Driver;
use crate::layer::capture::CaptureLayer;
pub use crate::layer::impairment::Impair;
use crate::layer::impairment::ImpairmentLayer;
use crate::{Config, Device, Layer, Stack};

/// To other hosts there is no congestion control yet: this rate unless the user gives one.
pub const CAREFUL_BITS_PER_SECOND: u64 = 1_000_000_000;

/// How a device uses UDP.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UdpConfig {
    /// The port to listen at.
    pub udp_port: UdpPortChoice,
    /// Asked of the kernel for each listening socket. What is in flight to us waits there.
    pub receive_buffer_bytes: usize,
    /// Asked of the kernel for each sending socket.
    pub send_buffer_bytes: usize,
    /// Let the kernel cut and join datagrams (UDP_SEGMENT, UDP_GRO), where it can.
    pub offload: bool,
    /// Receive the packets of a long WRITE where they belong, without a copy in between.
    pub receive_in_place: bool,
    /// What the background thread does while nothing happens.
    pub background: Background,
    /// Rate of each queue pair to another host, unless the configuration of the device or the queue pair has one; `None` is as
    /// fast as the sockets take packets. There is no congestion control yet that would find the rate of the network.
    pub off_host_rate_bits_per_second: Option<u64>,
    /// A bad network in process, both ways. Datagrams then pass one by one, and nothing is received in place.
    pub impair: Option<Impair>,
    /// Write everything that is sent and received to this file, for Wireshark and tshark. Up to 1 GiB; nothing is then
    /// received in place. It is complete when the device has closed, and a moment behind until then.
    pub capture: Option<std::path::PathBuf>,
}

impl Default for UdpConfig {
    fn default() -> Self {
        UdpConfig {
            udp_port: UdpPortChoice::RoceOrFree,
            receive_buffer_bytes: 16 << 20,
            send_buffer_bytes: 4 << 20,
            offload: true,
            receive_in_place: true,
            background: Background::Sleep,
            off_host_rate_bits_per_second: Some(CAREFUL_BITS_PER_SECOND),
            impair: None,
            capture: None,
        }
    }
}

/// Where to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpPortChoice {
    /// 4791, RoCEv2's. The only one that RNICs and kernels speak to.
    Roce,
    /// 4791, or any that is free when somebody has it.
    RoceOrFree,
    /// Any that is free.
    Free,
    /// This one.
    Exactly(u16),
}

/// What the background thread does while nothing happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Background {
    /// Sleep until something arrives.
    Sleep,
    /// Look again and again for this long after the last arrival, then sleep: lower latency for ends that never poll, at the
    /// price of a core.
    Spin(std::time::Duration),
}

/// A software RNIC on UDP sockets. It closes when this and everything made from it is gone.
#[derive(Clone)]
pub struct UdpDevice {
    device: Device,
    /// There as long as the device is.
    driver: Weak<Driver>,
    udp_port: u16,
    overhead_bytes: u32,
    /// The last two layers that impair are the bad network that it was opened with.
    has_impairment: bool,
    warnings: std::sync::Arc<[Warning]>,
}

impl UdpDevice {
    /// Open a device at the addresses of `config`, and no others.
    pub fn open(config: Config, udp: UdpConfig) -> Result<UdpDevice, OpenError> {
        Self::open_layered(config, udp, Vec::new())
    }

    /// The same with layers, the first next to the device. All of them stand above the bad network and the capture of `udp`.
    /// With any of them nothing is received in place; unless all only watch, datagrams pass one by one.
    pub fn open_layered(config: Config, udp: UdpConfig, layers: Vec<Box<dyn Layer>>) -> Result<UdpDevice, OpenError> {
        open::open(config, &udp, layers)
    }

    /// The device behind it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The safe face of it.
    pub fn verbs(&self) -> verbs::Device {
        self.device.verbs()
    }

    /// Where it listens: what peers' paths must say.
    pub fn udp_port(&self) -> u16 {
        self.udp_port
    }

    /// Make the bad network in process better or worse, for what is sent from now on. Does nothing on a device that was
    /// opened without one.
    pub fn set_impairment(&self, profile: &longhaul_impair::Profile) -> Result<(), longhaul_impair::ProfileError> {
        profile.check()?;
        let change = |stack: &mut Stack, now| {
            self.impairment(stack).into_iter().flatten().try_for_each(|layer| layer.set_profile(profile, now))
        };
        self.with_layers(change).unwrap_or(Ok(()))
    }

    /// What the bad network in process has done: to what was sent, and to what came.
    pub fn impairment_counters(&self) -> Option<[longhaul_impair::Counters; 2]> {
        self.with_layers(|stack, _| Some(self.impairment(stack)?.map(|layer| layer.counters())))?
    }

    /// The bad network that it was opened with: of what is sent, and of what comes.
    fn impairment<'a>(&self, stack: &'a mut Stack) -> Option<[&'a mut ImpairmentLayer; 2]> {
        let mut layers: Vec<_> = stack.layers_mut::<ImpairmentLayer>().filter(|_| self.has_impairment).collect();
        let incoming = layers.pop()?;
        Some([layers.pop()?, incoming])
    }

    /// End the capture, if there is one, and say whether all of it is in the file: a disk may be full. What passes afterwards is not
    /// captured.
    pub fn finish_capture(&self) -> Result<CaptureSummary, CaptureError> {
        let capture = self.with_layers(|stack, _| stack.remove::<CaptureLayer>()).flatten();
        capture.map_or_else(|| Ok(CaptureSummary::default()), |capture| capture.finish())
    }

    /// Look at the layers, or change them, while no packet passes. `look` must make no verbs calls of this device, which would
    /// wait for it, and add no layer that makes packets longer, since the MTU has been chosen.
    pub fn with_layers<T>(&self, look: impl FnOnce(&mut Stack, Instant) -> T) -> Option<T> {
        Some(self.driver.upgrade()?.with_port(|_, stack, now| look(stack, now)))
    }

    /// Bytes by which layers make packets longer, at most. The MTU of the port leaves room for them; that of a path must too.
    pub fn overhead_bytes(&self) -> u32 {
        self.overhead_bytes
    }

    /// Leave addresses out of the ICRC of all packets to and from this address, because there is an address translator on the
    /// way. Only a softnic that does the same for us understands it: agree on it when connecting, when one end sees another
    /// address than the other end has. `peer` is the address that packets seem to come from.
    pub fn set_translated(&self, peer: std::net::IpAddr) {
        if let Some(driver) = self.driver.upgrade() {
            driver.with_port(|port, _, _| port.set_translated(peer));
        }
    }

    /// What is not as it should be on this host.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}
