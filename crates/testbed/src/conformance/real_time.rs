//! The suite on real time: two software RNICs on UDP sockets of this host, with their own background threads.
//!
//! Nothing here repeats to the byte, and a step takes as long as it takes. A test waits for what must come as long as
//! `patience` says, and believes that nothing comes after `quiet`; on a busy host both stretch, because each step is a sleep
//! that the same busy host has to end.

use std::net::IpAddr;

use longhaul_impair::{Loss, Profile};
use longhaul_softnic::udp::{OpenError, UdpConfig, UdpDevice};
use longhaul_softnic::{Config, Counters};
use longhaul_time::Duration;
use longhaul_verbs::{Device, LinkState, Mtu};

use super::Environment;

/// Time between two looks, to which the kernel adds some 50 µs.
const STEP: Duration = Duration::from_micros(100);
/// Steps until something counts as never happening: 3 s and more.
const PATIENCE: u32 = 20_000;
/// Steps until it is believed that nothing happens any more: 20 ms and more.
const QUIET: u32 = 130;
/// A packet that has not arrived by then is lost.
const LONGEST_FLIGHT: Duration = Duration::from_millis(500);

/// Two software RNICs on UDP sockets.
pub struct RealTime {
    udp: [UdpDevice; 2],
    devices: [Device; 2],
    mtu: Mtu,
    begin: std::time::Instant,
    is_one_device: bool,
    /// Packets that did not arrive when there was time enough for it, and have not arrived since.
    lost_packets: u64,
    /// Whether the devices were opened with a network in process, which can be taken away.
    has_link: bool,
    is_link_up: bool,
}

impl RealTime {
    /// Two devices, each at one address of this host. At the same address both listen at ports of their own.
    pub fn open(addresses: [IpAddr; 2], udp: &UdpConfig) -> Result<Self, OpenError> {
        let open = |end: usize| {
            // Keys and numbers need not be secret here, only different.
            let mut random_seed = [0x5e; 32];
            random_seed[0] = end as u8;
            UdpDevice::open(Config::new(format!("softnic{end}"), vec![addresses[end]], random_seed), udp.clone())
        };
        Ok(RealTime::between([open(0)?, open(1)?], false, udp))
    }

    /// The same with both ends on one device, which then talks to itself through the kernel.
    pub fn open_one(address: IpAddr, udp: &UdpConfig) -> Result<Self, OpenError> {
        let device = UdpDevice::open(Config::new("softnic", vec![address], [0x5e; 32]), udp.clone())?;
        Ok(RealTime::between([device.clone(), device], true, udp))
    }

    fn between(udp: [UdpDevice; 2], is_one_device: bool, config: &UdpConfig) -> Self {
        let has_link = config.impair.is_some();
        let devices = udp.each_ref().map(UdpDevice::verbs);
        let port_mtu = |device: &Device| device.port_attributes(1).map_or(Mtu::Bytes256, |port| port.active_mtu);
        let mtu = Mtu::default().min(port_mtu(&devices[0])).min(port_mtu(&devices[1]));
        let begin = std::time::Instant::now();
        RealTime { udp, devices, mtu, begin, is_one_device, lost_packets: 0, has_link, is_link_up: true }
    }

    /// The same with another MTU; the ports must allow it.
    #[must_use]
    pub fn with_mtu(self, mtu: Mtu) -> Self {
        RealTime { mtu, ..self }
    }

    /// Packets that a device has sent and none has received: under way in the kernel, or lost.
    fn in_flight_packets(&self) -> u64 {
        let devices = if self.is_one_device { &self.udp[..1] } else { &self.udp[..] };
        let sum = |count: fn(&Counters) -> u64| -> u64 {
            devices.iter().map(|device| count(&device.device().nic().counters())).sum()
        };
        // In this order, because traffic goes on meanwhile: what has arrived by the first look is sent by the second.
        let arrived = sum(|counters| counters.rcvd_pkts + counters.rx_malformed + counters.rx_icrc_encapsulated);
        let sent = sum(|counters| counters.sent_pkts);
        sent.saturating_sub(arrived)
    }

    /// Whether any packet is under way that may still arrive.
    fn are_packets_under_way(&mut self) -> bool {
        let in_flight = self.in_flight_packets();
        // One that was only late has left those in flight: else a later packet would be taken for it, and not waited for.
        self.lost_packets = self.lost_packets.min(in_flight);
        in_flight > self.lost_packets
    }

    /// The devices, for what verbs do not show.
    pub fn udp_devices(&self) -> &[UdpDevice; 2] {
        &self.udp
    }
}

impl Environment for RealTime {
    fn devices(&self) -> [&Device; 2] {
        self.devices.each_ref()
    }

    fn gid_index(&self, _end: usize) -> u8 {
        0
    }

    fn udp_port(&self, end: usize) -> u16 {
        self.udp[end].udp_port()
    }

    fn mtu(&self) -> Mtu {
        self.mtu
    }

    fn progress(&mut self) {
        // Nobody polls meanwhile, so this is the background threads' time. On a busy host they may not have got any yet.
        std::thread::sleep(STEP);
        if !self.is_link_up {
            // Nothing arrives, and what is sent is lost for ever.
            return;
        }
        let begin = std::time::Instant::now();
        while self.are_packets_under_way() {
            if begin.elapsed() > LONGEST_FLIGHT {
                // Sent to where no device is.
                self.lost_packets = self.in_flight_packets();
                return;
            }
            std::thread::sleep(STEP);
        }
    }

    fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    fn patience(&self) -> u32 {
        PATIENCE
    }

    fn quiet(&self) -> u32 {
        QUIET
    }

    /// With devices that were opened with a network in process ([`UdpConfig::impair`]): that loses everything, and the ports of both
    /// ends are told, as at the two ends of one cable.
    fn set_link(&mut self, _end: usize, up: bool) -> bool {
        if !self.has_link {
            return false;
        }
        let loss = if up { Loss::None } else { Loss::Independent { probability: 1.0 } };
        let state = if up { LinkState::Active } else { LinkState::Down };
        for device in if self.is_one_device { &self.udp[..1] } else { &self.udp[..] } {
            device.set_impairment(&Profile::default().with_loss(loss.clone())).expect("a valid profile");
            device.device().nic().set_link_state(state);
        }
        if up && !self.is_link_up {
            self.lost_packets = self.in_flight_packets();
        }
        self.is_link_up = up;
        true
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
        environment.lost_packets = 3;
        environment.progress();
        assert_eq!(environment.lost_packets, 0);
    }
}
