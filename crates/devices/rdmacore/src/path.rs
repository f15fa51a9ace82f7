//! The path to a peer, in libibverbs' form and back.
#![allow(unsafe_code, reason = "calls libibverbs; reads a union of C")]

use longhaul_verbs::{Gid, PathAttributes};

use crate::answer::check;
use crate::context::Context;
use longhaul_verbs_abi::{ibv_ah_attr, ibv_gid, ibv_global_route};

/// RoCEv2's port, the only one that hardware and Soft-RoCE send to.
const UDP_PORT_ROCE: u16 = 4791;

/// `ibv_ah_attr` of a path. Without a destination GID it is InfiniBand's local addressing.
pub(crate) fn path_to_c(path: &PathAttributes) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: gid_to_c(path.destination),
            flow_label: path.flow_label,
            sgid_index: path.source_gid_index,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        },
        dlid: path.destination_lid,
        sl: path.service_level,
        src_path_bits: path.source_path_bits,
        static_rate: path.static_rate,
        is_global: (path.destination != Gid::default()).into(),
        port_num: path.port,
    }
}

/// The path of an `ibv_ah_attr`.
pub(crate) fn path_from_c(attributes: &ibv_ah_attr) -> PathAttributes {
    let route = &attributes.grh;
    PathAttributes {
        destination: if attributes.is_global == 0 { Gid::default() } else { gid_from_c(&route.dgid) },
        source_gid_index: route.sgid_index,
        hop_limit: route.hop_limit,
        traffic_class: route.traffic_class,
        flow_label: route.flow_label,
        port: attributes.port_num,
        service_level: attributes.sl,
        static_rate: attributes.static_rate,
        destination_lid: attributes.dlid,
        source_path_bits: attributes.src_path_bits,
        udp_port: UDP_PORT_ROCE,
        // Not the device's to check: it does not show source ports.
        peer_source_port: 0,
    }
}

/// Whether the peer is expected at a port that only software of ours can send to.
pub(crate) fn has_free_udp_port(path: &PathAttributes) -> bool {
    path.udp_port != UDP_PORT_ROCE
}

/// Whether the source of a path is there, and of the destination's address family. Kernels do not all check it, and
/// would send to somewhere else. InfiniBand's addresses have no family.
pub(crate) fn source_fits(context: &Context, path: &PathAttributes) -> bool {
    if path.destination == Gid::default() {
        return true;
    }
    let mut gid = gid_to_c(Gid::default());
    let index = path.source_gid_index.into();
    // SAFETY: the device is open, and `gid` is there to be written.
    let answer = unsafe { (context.library().ibv_query_gid)(context.as_ptr(), path.port, index, &mut gid) };
    let source = gid_from_c(&gid);
    check(answer).is_ok() && source != Gid::default() && source.to_ip().is_ipv4() == path.destination.to_ip().is_ipv4()
}

pub(crate) fn gid_to_c(gid: Gid) -> ibv_gid {
    ibv_gid { raw: gid.0 }
}

pub(crate) fn gid_from_c(gid: &ibv_gid) -> Gid {
    Gid(gid.raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_comes_back_as_it_went() {
        let path = PathAttributes {
            destination: Gid([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
            source_gid_index: 17,
            hop_limit: 18,
            traffic_class: 19,
            flow_label: 0xabcde,
            port: 2,
            service_level: 3,
            static_rate: 4,
            destination_lid: 0x1234,
            source_path_bits: 5,
            udp_port: UDP_PORT_ROCE,
            peer_source_port: 0,
        };
        assert_eq!(path_from_c(&path_to_c(&path)), path);
        assert_eq!(path_to_c(&path).is_global, 1);
    }

    #[test]
    fn without_a_gid_the_path_is_local() {
        let path = PathAttributes { destination_lid: 7, ..PathAttributes::to(Gid::default()) };
        assert_eq!(path_to_c(&path).is_global, 0);
        assert_eq!(path_from_c(&path_to_c(&path)), path);
    }

    #[test]
    fn only_software_sends_to_another_port() {
        let path = PathAttributes::to(Gid::default());
        assert!(!has_free_udp_port(&path));
        assert!(has_free_udp_port(&PathAttributes { udp_port: 9000, ..path }));
    }
}
