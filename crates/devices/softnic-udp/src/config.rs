//! How a device uses UDP.

use longhaul_congestion::ControllerName;
use longhaul_shim::{Fec, Network};
use longhaul_softnic::Impair;

/// The rate at which a queue pair sends to other hosts by default what nobody acknowledges: nothing finds out what the
/// network carries.
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
    /// What controls the rate of each reliable connection to another host, unless the configuration of the device has
    /// something else; `None` is as fast as the sockets take packets. By default `wan`, which finds the rate of the
    /// network.
    pub off_host_congestion: Option<ControllerName>,
    /// Rate of each other queue pair to another host, and of answers to READs, unless the configuration of the device or
    /// the queue pair has one; `None` is as fast as the sockets take packets. UC and UD have no acknowledgements from
    /// which a controller could find the rate of the network, so the default is a careful one.
    pub off_host_rate_bits_per_second: Option<u64>,
    /// Forward error correction, with this code or one that follows the link, for the queue pairs of RC and UC whose two ends agree on
    /// it ([`UdpDevice::protect_queue_pair`](crate::UdpDevice::protect_queue_pair)).
    /// Datagrams then pass one by one, nothing is received in place, and the MTU leaves room for repair packets.
    pub fec: Option<Fec>,
    /// Hosts with a gateway before them, which does the other half: with [`fec`](UdpConfig::fec), all queue pairs of RC and UC to
    /// them are protected, and nobody is asked. Only for those: a host without one would get packets that it does not know. Not for
    /// the library's messages (schemes over `longhaul-sdr`): their messages are single packets, so each would be sent twice, or
    /// with [`Fec::Auto`] most would have no repair packet.
    pub fec_gateways: Vec<Network>,
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
            off_host_congestion: Some(ControllerName::Wan),
            off_host_rate_bits_per_second: Some(CAREFUL_BITS_PER_SECOND),
            fec: None,
            fec_gateways: Vec::new(),
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
