//! The suite on real time: two devices that are there, of whatever kind, and the clock of this host.
//!
//! Nothing here repeats to the byte, and a step takes as long as it takes. A test waits for what must come as long as
//! `patience` says, and believes that nothing comes after `quiet`; on a busy host both stretch, because each step is a
//! sleep that the same busy host has to end.
//!
//! Software RNICs on UDP sockets can do more for a test than others: their packets can be counted, so that a step ends
//! when all have arrived, and with a network in process their link can be taken away. Where an environment cannot, the
//! tests that need it are skipped, and say so.

mod sockets;

use std::net::IpAddr;

use longhaul_softnic::Config;
use longhaul_softnic_udp::{OpenError, UdpConfig, UdpDevice};
use longhaul_time::Duration;
use longhaul_verbs::{Device, Mtu};

use super::{Environment, KnownDeparture};
use sockets::Sockets;

/// Time between two looks, to which the kernel adds some 50 µs.
const STEP: Duration = Duration::from_micros(100);
/// Steps until something counts as never happening: 3 s and more.
const PATIENCE: u32 = 20_000;
/// The same where known departures make tests wait in vain: 0.8 s and more, and some 1.3 s in a virtual machine without
/// hardware's help.
const PATIENCE_WITH_DEPARTURES: u32 = 5_000;
/// Steps until it is believed that nothing happens any more: 20 ms and more.
const QUIET: u32 = 130;
/// The same on other devices than software RNICs on sockets, which the host's scheduler does not keep from sending: 12
/// ms and more.
const QUIET_ON_DEVICES: u32 = 80;
/// A packet that has not arrived by then is lost.
const LONGEST_FLIGHT: Duration = Duration::from_millis(500);

/// One end: a device, and which of its ports and addresses is meant.
#[derive(Clone)]
pub struct DeviceEnd {
    /// The device.
    pub device: Device,
    /// Its port, counted from 1.
    pub port: u8,
    /// The row of that port's GID table.
    pub gid_index: u8,
    /// The UDP port at which it listens.
    pub udp_port: u16,
}

/// Two devices on real time.
pub struct RealTime {
    ends: [DeviceEnd; 2],
    mtu: Mtu,
    begin: std::time::Instant,
    /// Of software RNICs only.
    sockets: Option<Sockets>,
    is_strict: bool,
    known_departures: Vec<KnownDeparture>,
}

impl RealTime {
    /// Any two devices, or twice the same. What is common in the field and known of their driver is reported as
    /// departure.
    pub fn between(ends: [DeviceEnd; 2], known_departures: Vec<KnownDeparture>) -> Self {
        RealTime { known_departures, is_strict: false, ..RealTime::on(ends, None) }
    }

    /// Two software RNICs, each at one address of this host. At the same address both listen at ports of their own.
    pub fn open(addresses: [IpAddr; 2], udp: &UdpConfig) -> Result<Self, OpenError> {
        let open = |end: usize| {
            // Keys and numbers need not be secret here, only different.
            let mut random_seed = [0x5e; 32];
            random_seed[0] = end as u8;
            UdpDevice::open(Config::new(format!("softnic{end}"), vec![addresses[end]], random_seed), udp.clone())
        };
        Ok(RealTime::on_sockets([open(0)?, open(1)?], false, udp))
    }

    /// The same with both ends on one device, which then talks to itself through the kernel.
    pub fn open_one(address: IpAddr, udp: &UdpConfig) -> Result<Self, OpenError> {
        let device = UdpDevice::open(Config::new("softnic", vec![address], [0x5e; 32]), udp.clone())?;
        Ok(RealTime::on_sockets([device.clone(), device], true, udp))
    }

    fn on_sockets(devices: [UdpDevice; 2], is_one_device: bool, config: &UdpConfig) -> Self {
        let end = |device: &UdpDevice| DeviceEnd {
            device: device.verbs(),
            port: 1,
            gid_index: 0,
            udp_port: device.udp_port(),
        };
        let ends = devices.each_ref().map(end);
        RealTime::on(ends, Some(Sockets::new(devices, is_one_device, config.impair.is_some())))
    }

    fn on(ends: [DeviceEnd; 2], sockets: Option<Sockets>) -> Self {
        let port_mtu =
            |end: &DeviceEnd| end.device.port_attributes(end.port).map_or(Mtu::Bytes256, |port| port.active_mtu);
        let mtu = Mtu::default().min(port_mtu(&ends[0])).min(port_mtu(&ends[1]));
        let begin = std::time::Instant::now();
        RealTime { ends, mtu, begin, sockets, is_strict: true, known_departures: Vec::new() }
    }

    /// The same with another MTU; the ports must allow it.
    #[must_use]
    pub fn with_mtu(self, mtu: Mtu) -> Self {
        RealTime { mtu, ..self }
    }

    /// The software RNICs, for what verbs do not show; none with other devices.
    pub fn udp_devices(&self) -> &[UdpDevice] {
        self.sockets.as_ref().map_or(&[], |sockets| &sockets.devices)
    }
}

impl Environment for RealTime {
    fn devices(&self) -> [&Device; 2] {
        self.ends.each_ref().map(|end| &end.device)
    }

    fn port(&self, end: usize) -> u8 {
        self.ends[end].port
    }

    fn gid_index(&self, end: usize) -> u8 {
        self.ends[end].gid_index
    }

    fn udp_port(&self, end: usize) -> u16 {
        self.ends[end].udp_port
    }

    fn mtu(&self) -> Mtu {
        self.mtu
    }

    fn progress(&mut self) {
        // Nobody polls meanwhile, so this is the background threads' time. On a busy host they may not have got any
        // yet.
        std::thread::sleep(STEP);
        let Some(sockets) = &mut self.sockets else {
            return;
        };
        let begin = std::time::Instant::now();
        while sockets.are_packets_under_way() {
            if begin.elapsed() > LONGEST_FLIGHT {
                sockets.give_up();
                return;
            }
            std::thread::sleep(STEP);
        }
    }

    fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    fn patience(&self) -> u32 {
        if self.known_departures.is_empty() { PATIENCE } else { PATIENCE_WITH_DEPARTURES }
    }

    fn quiet(&self) -> u32 {
        if self.sockets.is_some() { QUIET } else { QUIET_ON_DEVICES }
    }

    /// With software RNICs that were opened with a network in process ([`UdpConfig::impair`]).
    fn set_link(&mut self, _end: usize, up: bool) -> bool {
        self.sockets.as_mut().is_some_and(|sockets| sockets.set_link(up))
    }

    fn is_strict(&self) -> bool {
        self.is_strict
    }

    fn known_departures(&self) -> &[KnownDeparture] {
        &self.known_departures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_were_only_late_are_not_counted_as_lost_for_ever() {
        let address = "127.0.0.1".parse().expect("an address");
        let mut environment = RealTime::open([address; 2], &UdpConfig::default()).expect("loopback has sockets");
        // Three were given up, and have arrived by now: nothing is in flight.
        environment.sockets.as_mut().expect("software RNICs").lost_packets = 3;
        environment.progress();
        assert_eq!(environment.sockets.expect("software RNICs").lost_packets, 0);
    }
}
