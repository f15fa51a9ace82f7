//! Where the suite runs.

use longhaul_time::Duration;
use longhaul_verbs::{Device, Mtu};
use longhaul_wire::UDP_PORT_ROCE;

use super::known_departures::KnownDeparture;

/// Where the suite runs: two devices (or twice the same), of which a port each can reach the other, over a
/// network that loses nothing, at well under a millisecond.
pub trait Environment {
    /// The devices of the two ends.
    fn devices(&self) -> [&Device; 2];
    /// The port of each end's device, counted from 1.
    fn port(&self, _end: usize) -> u8 {
        1
    }
    /// The row of that port's GID table that each end uses.
    fn gid_index(&self, end: usize) -> u8;
    /// The UDP port at which each end listens.
    fn udp_port(&self, _end: usize) -> u16 {
        UDP_PORT_ROCE
    }
    /// The MTU of the path between them.
    fn mtu(&self) -> Mtu;
    /// Let a little time pass: some 100 µs.
    fn progress(&mut self);
    /// The time, from any beginning.
    fn now(&self) -> Duration;
    /// How many calls of `progress` to wait for something before it counts as never happening. In time at least a
    /// second: error tests wait for retries to run out.
    fn patience(&self) -> u32;
    /// After how many calls of `progress` it is believed that nothing happens any more. In time at least 10 ms.
    fn quiet(&self) -> u32;
    /// Takes down or brings up the link of an end's port, where the environment can; whether it can. Tests leave it up.
    fn set_link(&mut self, _end: usize, _up: bool) -> bool {
        false
    }
    /// Whether departures from the specification that are common in the field are failures rather than remarks.
    fn is_strict(&self) -> bool {
        true
    }
    /// Where the devices' driver is known to depart from the specification.
    fn known_departures(&self) -> &[KnownDeparture] {
        &[]
    }
}
