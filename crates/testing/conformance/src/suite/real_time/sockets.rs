//! What can be done with software RNICs on UDP sockets and with no other device: counting what is in flight, and taking
//! the link away.

use longhaul_impair::{Loss, Profile};
use longhaul_softnic::Counters;
use longhaul_softnic_udp::UdpDevice;
use longhaul_verbs::LinkState;

/// The software RNICs of the two ends.
pub(super) struct Sockets {
    pub(super) devices: [UdpDevice; 2],
    pub(super) is_one_device: bool,
    /// Packets that did not arrive when there was time enough for it, and have not arrived since.
    pub(super) lost_packets: u64,
    /// Whether the devices were opened with a network in process, which can be taken away.
    pub(super) has_link: bool,
    pub(super) is_link_up: bool,
}

impl Sockets {
    pub(super) fn new(devices: [UdpDevice; 2], is_one_device: bool, has_link: bool) -> Self {
        Sockets { devices, is_one_device, lost_packets: 0, has_link, is_link_up: true }
    }

    fn different(&self) -> &[UdpDevice] {
        if self.is_one_device { &self.devices[..1] } else { &self.devices[..] }
    }

    /// Packets that a device has sent and none has received: in flight in the kernel, or lost.
    fn in_flight_packets(&self) -> u64 {
        let sum = |count: fn(&Counters) -> u64| -> u64 {
            self.different().iter().map(|device| count(&device.device().nic().counters())).sum()
        };
        // In this order, because traffic goes on meanwhile: what has arrived by the first look is sent by the second.
        let arrived = sum(|counters| counters.rcvd_pkts + counters.rx_malformed + counters.rx_icrc_encapsulated);
        let sent = sum(|counters| counters.sent_pkts);
        sent.saturating_sub(arrived)
    }

    /// Whether any packet is in flight that may still arrive.
    pub(super) fn are_packets_under_way(&mut self) -> bool {
        if !self.is_link_up {
            // Nothing arrives, and what is sent is lost for ever.
            return false;
        }
        let in_flight = self.in_flight_packets();
        // One that was only late has left those in flight: else a later packet would be taken for it, and not waited
        // for.
        self.lost_packets = self.lost_packets.min(in_flight);
        in_flight > self.lost_packets
    }

    /// What is in flight now never arrives: it was sent to where no device is.
    pub(super) fn give_up(&mut self) {
        self.lost_packets = self.in_flight_packets();
    }

    /// The network in process loses everything, and the ports of both ends are notified, as at the two ends of one
    /// cable. Whether there is such a network.
    pub(super) fn set_link(&mut self, up: bool) -> bool {
        if !self.has_link {
            return false;
        }
        let loss = if up { Loss::None } else { Loss::Independent { probability: 1.0 } };
        let state = if up { LinkState::Active } else { LinkState::Down };
        for device in self.different() {
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
