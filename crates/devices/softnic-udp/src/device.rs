//! A device on UDP sockets, as programs hold it.

use std::os::fd::OwnedFd;
use std::sync::Weak;

use longhaul_capture::{CaptureError, CaptureSummary};
use longhaul_shim::{Agreement, DecoderCounters, EncoderCounters, Fec, PathStatus};
use longhaul_softnic::{Config, Device, ImpairmentLayer, Layer, ShimLayer, Stack};
use longhaul_time::Instant;
use longhaul_verbs as verbs;

use crate::capture::CaptureLayer;
use crate::config::UdpConfig;
use crate::driver::Driver;
use crate::open::{OpenError, Opened, Warning, open};
use crate::protection::{self, FecPeer, ProtectError, Protected, Protection};

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
    fec: Option<Fec>,
    protected: Protected,
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
        Self::open_at(config, udp, layers, None)
    }

    /// Open a device at a port that other processes use too. `sockets` are bound UDP sockets, one for each address of `config`, all at
    /// one port, which takes the place of `udp.udp_port`; `config.queue_pair_numbers` says which part of the numbers they receive for.
    /// See [`sharing`](crate::sharing).
    pub fn open_shared(config: Config, udp: UdpConfig, sockets: Vec<OwnedFd>) -> Result<UdpDevice, OpenError> {
        Self::open_at(config, udp, Vec::new(), Some(sockets))
    }

    fn open_at(
        config: Config,
        udp: UdpConfig,
        layers: Vec<Box<dyn Layer>>,
        shared: Option<Vec<OwnedFd>>,
    ) -> Result<UdpDevice, OpenError> {
        let (has_impairment, fec) = (udp.impair.is_some(), udp.fec);
        let Opened { device, driver, udp_port, overhead_bytes, warnings } = open(config, &udp, layers, shared)?;
        let (protected, warnings) = (Protected::default(), warnings.into());
        Ok(UdpDevice { device, driver, udp_port, overhead_bytes, has_impairment, fec, protected, warnings })
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

    /// The forward error correction that it was opened with ([`UdpConfig::fec`]). It protects a queue pair once both ends have
    /// agreed on it: send this with the connection info.
    pub fn fec(&self) -> Option<Fec> {
        self.fec
    }

    /// Repair what a queue pair of RC or UC loses, from now on until the [`Protection`] is dropped. Both ends must call this before
    /// either sends: after the connection info was exchanged, and before the queue pair is ready to receive. Each end sends with the
    /// code of its own device. Nothing is protected if this fails, so the program may go on without. A queue pair that is connected
    /// again needs another protection, after the first was dropped.
    pub fn protect_queue_pair(&self, ours: &verbs::QueuePair, peer: &FecPeer) -> Result<Protection, ProtectError> {
        protection::protect_queue_pair(self.fec, self.driver.clone(), &self.protected, ours, peer)
    }

    /// The same by numbers, for programs that check the peer themselves: [`UdpDevice::protect_queue_pair`] does it for others.
    pub fn protect(&self, agreement: &Agreement) -> Result<(), ProtectError> {
        protection::agree(&self.driver, agreement)
    }

    /// Repair what it loses no more: the queue pair is destroyed, or connected elsewhere. Without this, its place among those that can be
    /// protected is never free again.
    pub fn unprotect(&self, agreement: &Agreement) {
        self.with_layers(|stack, _| protection::disagree(stack, agreement));
    }

    /// What forward error correction has done: with what was sent, and with what came.
    pub fn fec_counters(&self) -> Option<(EncoderCounters, DecoderCounters)> {
        self.with_layers(|stack, _| stack.layers_mut::<ShimLayer>().next().map(|layer| layer.counters()))?
    }

    /// How forward error correction stands whose code follows the link: one entry for each peer, with every change and its reason.
    pub fn fec_paths(&self) -> Vec<PathStatus> {
        let paths = self.with_layers(|stack, _| stack.layers_mut::<ShimLayer>().next().map(|layer| layer.paths()));
        paths.flatten().unwrap_or_default()
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

    /// Leave addresses out of the ICRC of all packets to and from this address, because there is an address translator
    /// in between. Only a softnic that does the same for us understands it: agree on it when connecting, when one end
    /// sees another address than the other end has. `peer` is the address that packets seem to come from.
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
