//! Which way packets go.

use std::net::IpAddr;

use longhaul_datagram::Envelope;
use longhaul_verbs::PathAttributes;
use longhaul_wire::Ecn;

use crate::config::Config;

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// From this one of our addresses.
    pub source: IpAddr,
    /// To this one, which may be a multicast group.
    pub destination: IpAddr,
    /// Chosen per queue pair, so that equal-cost paths are used. A port may have fewer at hand and use another.
    pub source_port: u16,
    /// 4791, unless the peer is a softnic that listens elsewhere.
    pub destination_port: u16,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// IP time to live.
    pub hop_limit: u8,
}

impl Route {
    /// The way that a packet takes.
    pub fn of(envelope: &Envelope) -> Route {
        Route {
            source: envelope.source.ip(),
            destination: envelope.destination.ip(),
            source_port: envelope.source.port(),
            destination_port: envelope.destination.port(),
            traffic_class: envelope.traffic_class,
            hop_limit: envelope.hop_limit,
        }
    }

    /// The route along a path, for the packets of a queue pair. The path's source address must be one of the device's.
    pub(crate) fn along(config: &Config, queue_pair: u32, path: &PathAttributes) -> Route {
        let ecn = if config.ecn_capable { Ecn::Capable0 } else { Ecn::NotCapable };
        Route {
            source: config.addresses[usize::from(path.source_gid_index)],
            destination: path.destination.to_ip(),
            // From the dynamic range, different for different queue pairs, so that routers with equal-cost paths spread them.
            source_port: 0xc000 | (queue_pair.wrapping_mul(0x9e37_79b9) >> 18) as u16,
            destination_port: path.udp_port,
            traffic_class: ecn.apply_to(path.traffic_class),
            hop_limit: path.hop_limit,
        }
    }
}
