//! The suite on virtual time: two software RNICs on a simulated link. Seconds of retries take milliseconds, and a
//! seed repeats a run to the byte.

use longhaul_softnic::Type2Windows;
use longhaul_time::{Duration, Instant};
use longhaul_verbs::{Device, Mtu};
use longhaul_world::{World, WorldConfig};

use super::Environment;

/// Time between two looks.
const STEP: Duration = Duration::from_micros(100);
/// Steps until something counts as never happening: 2 s.
const PATIENCE: u32 = 20_000;
/// Steps until it is believed that nothing happens any more: 20 ms.
const QUIET: u32 = 200;

/// Two software RNICs on a simulated link.
pub struct VirtualTime {
    world: World,
    devices: [Device; 2],
    gid_index: u8,
    mtu: Mtu,
    /// The node of each end.
    nodes: [usize; 2],
}

impl VirtualTime {
    /// With IPv4 addresses and an MTU of 1024.
    pub fn new(seed: u64) -> Self {
        VirtualTime::of(WorldConfig { seed, ..WorldConfig::default() })
    }

    /// The same with devices that have the other kind of type 2 memory windows than usual.
    pub fn with_type_2a_windows(seed: u64) -> Self {
        let mut config = WorldConfig { seed, ..WorldConfig::default() };
        config.nic.type_2_windows = Type2Windows::A;
        VirtualTime::of(config)
    }

    fn of(config: WorldConfig) -> Self {
        let world = World::new(config);
        let devices = [world.device(0), world.device(1)];
        VirtualTime { devices, world, gid_index: 0, mtu: Mtu::default(), nodes: [0, 1] }
    }

    /// The same with IPv6 addresses.
    #[must_use]
    pub fn with_ipv6(self) -> Self {
        VirtualTime { gid_index: 1, ..self }
    }

    /// The same with both ends on one device, which then talks to itself.
    #[must_use]
    pub fn with_one_device(self) -> Self {
        let device = self.world.device(0);
        VirtualTime { devices: [device.clone(), device], nodes: [0, 0], ..self }
    }

    /// The same with another MTU.
    #[must_use]
    pub fn with_mtu(self, mtu: Mtu) -> Self {
        VirtualTime { mtu, ..self }
    }

    /// The simulated network, for captures.
    pub fn world(&mut self) -> &mut World {
        &mut self.world
    }
}

impl Environment for VirtualTime {
    fn devices(&self) -> [&Device; 2] {
        self.devices.each_ref()
    }

    fn gid_index(&self, _end: usize) -> u8 {
        self.gid_index
    }

    fn mtu(&self) -> Mtu {
        self.mtu
    }

    fn progress(&mut self) {
        self.world.run_for(STEP);
    }

    fn now(&self) -> Duration {
        self.world.now() - Instant::ZERO
    }

    fn patience(&self) -> u32 {
        PATIENCE
    }

    fn quiet(&self) -> u32 {
        QUIET
    }

    fn set_link(&mut self, end: usize, up: bool) -> bool {
        self.world.set_link(self.nodes[end], up);
        true
    }
}
