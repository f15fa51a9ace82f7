//! The payload that the path to a peer carries.

use std::net::IpAddr;

use longhaul_softnic_udp::path::{largest_mtu, route_mtu_bytes};
use longhaul_verbs::Mtu;

use crate::error::PerfError;

/// The largest payload that the route to a peer carries besides what is added to packets.
pub(crate) fn route_mtu(local: IpAddr, peer: IpAddr, overhead_bytes: u32) -> Result<Mtu, PerfError> {
    let bytes = route_mtu_bytes(local, peer)
        .map_err(|error| PerfError::failed(format!("cannot find the path from {local} to {peer}"), error))?;
    let too_small = || {
        PerfError::Missing(format!(
            "the path from {local} to {peer} carries {bytes} bytes, too few for any RoCE packet"
        ))
    };
    largest_mtu(bytes.saturating_sub(overhead_bytes), peer.is_ipv6()).ok_or_else(too_small)
}
