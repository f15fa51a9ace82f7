//! What libibverbs reports about devices and ports, as types of the verbs boundary.

use std::ffi::c_int;

use longhaul_verbs::{Capabilities, DeviceAttributes, LinkState, Mtu, PortAttributes};

use crate::listing::text;
use crate::probe::Abilities;
use longhaul_verbs_abi::{self as abi, ibv_device_attr_ex, ibv_port_attr};

/// Sizes and abilities. `message_bytes` is a port's to say.
pub(crate) fn device(theirs: &ibv_device_attr_ex, abilities: &Abilities, message_bytes: u32) -> DeviceAttributes {
    let Abilities { capabilities, inline_bytes_max } = *abilities;
    let sizes = &theirs.orig_attr;
    let has = |capability, count| if capabilities.intersects(capability) { positive(count) } else { 0 };
    let windows = Capabilities::WINDOW_TYPE_1 | Capabilities::WINDOW_TYPE_2A | Capabilities::WINDOW_TYPE_2B;
    DeviceAttributes {
        capabilities,
        node_guid: u64::from_be(sizes.node_guid),
        vendor_id: sizes.vendor_id,
        firmware_version: text(&sizes.fw_ver),
        port_count: sizes.phys_port_cnt,
        max_region_bytes: sizes.max_mr_size,
        max_queue_pairs: positive(sizes.max_qp),
        max_work_requests: positive(sizes.max_qp_wr),
        max_scatter_gather_entries: positive(sizes.max_sge),
        max_completion_queues: positive(sizes.max_cq),
        max_completion_queue_entries: positive(sizes.max_cqe),
        max_memory_regions: positive(sizes.max_mr),
        max_protection_domains: positive(sizes.max_pd),
        max_inline_bytes: inline_bytes_max,
        max_message_bytes: message_bytes.into(),
        max_destination_read_atomic: at_most_a_byte(sizes.max_qp_rd_atom),
        max_read_atomic: at_most_a_byte(sizes.max_qp_init_rd_atom),
        max_shared_receive_queues: has(Capabilities::SHARED_RECEIVE_QUEUE, sizes.max_srq),
        max_memory_windows: has(windows, sizes.max_mw),
        max_address_handles: positive(sizes.max_ah),
        max_multicast_groups: has(Capabilities::MULTICAST, sizes.max_mcast_grp),
    }
}

/// A count in C's `int`, which no driver makes negative on purpose.
pub(crate) fn positive(count: c_int) -> u32 {
    u32::try_from(count).unwrap_or(0)
}

fn at_most_a_byte(count: c_int) -> u8 {
    positive(count).min(u8::MAX.into()) as u8
}

/// A port.
pub(crate) fn port(theirs: &ibv_port_attr) -> PortAttributes {
    PortAttributes {
        state: match theirs.state {
            abi::IBV_PORT_ACTIVE | abi::IBV_PORT_ACTIVE_DEFER => LinkState::Active,
            abi::IBV_PORT_INIT | abi::IBV_PORT_ARMED => LinkState::Initializing,
            _ => LinkState::Down,
        },
        max_mtu: mtu(theirs.max_mtu),
        active_mtu: mtu(theirs.active_mtu),
        gid_table_length: positive(theirs.gid_tbl_len),
        partition_key_table_length: theirs.pkey_tbl_len,
        rate_bits_per_second: rate(theirs.active_width, theirs.active_speed),
        lid: if theirs.link_layer == abi::IBV_LINK_LAYER_ETHERNET { 0 } else { theirs.lid },
    }
}

fn mtu(number: u32) -> Mtu {
    match number {
        ..=abi::IBV_MTU_256 => Mtu::Bytes256,
        abi::IBV_MTU_512 => Mtu::Bytes512,
        abi::IBV_MTU_1024 => Mtu::Bytes1024,
        abi::IBV_MTU_2048 => Mtu::Bytes2048,
        // Nothing larger is specified.
        _ => Mtu::Bytes4096,
    }
}

/// Lanes times the speed of one, in the encodings of the specification's PortInfo (IBTA 14.2.5.6). Speeds are the
/// names' (an EDR lane is called 25 Gbit/s and signals at 25.78125).
fn rate(width: u8, speed: u8) -> Option<u64> {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return None,
    };
    let megabits = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => return None,
    };
    Some(lanes * megabits * 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_have_states_sizes_and_rates() {
        let theirs = ibv_port_attr {
            state: abi::IBV_PORT_ACTIVE,
            max_mtu: abi::IBV_MTU_4096,
            active_mtu: abi::IBV_MTU_1024,
            gid_tbl_len: 1024,
            pkey_tbl_len: 1,
            active_width: 2,
            active_speed: 32,
            lid: 7,
            link_layer: abi::IBV_LINK_LAYER_INFINIBAND,
            ..ibv_port_attr::zeroed()
        };
        let ours = port(&theirs);
        assert_eq!((ours.state, ours.max_mtu, ours.active_mtu), (LinkState::Active, Mtu::Bytes4096, Mtu::Bytes1024));
        assert_eq!((ours.gid_table_length, ours.partition_key_table_length, ours.lid), (1024, 1, 7));
        assert_eq!(ours.rate_bits_per_second, Some(100_000_000_000));
        let down = port(&ibv_port_attr { state: abi::IBV_PORT_DOWN, ..ibv_port_attr::zeroed() });
        assert_eq!((down.state, down.rate_bits_per_second), (LinkState::Down, None));
        assert_eq!(port(&ibv_port_attr { state: abi::IBV_PORT_INIT, ..theirs }).state, LinkState::Initializing);
        assert_eq!(port(&ibv_port_attr { link_layer: abi::IBV_LINK_LAYER_ETHERNET, ..theirs }).lid, 0);
    }

    #[test]
    fn sizes_of_what_the_device_lacks_are_zero() {
        let mut theirs = ibv_device_attr_ex::zeroed();
        theirs.orig_attr.node_guid = 0x0102_0304_0506_0708_u64.to_be();
        theirs.orig_attr.max_srq = 100;
        theirs.orig_attr.max_mw = 100;
        theirs.orig_attr.max_qp = -1;
        theirs.orig_attr.max_qp_rd_atom = 1000;
        let abilities = Abilities { capabilities: Capabilities::SHARED_RECEIVE_QUEUE, inline_bytes_max: 60 };
        let ours = device(&theirs, &abilities, 1 << 23);
        assert_eq!((ours.capabilities, ours.max_inline_bytes), (Capabilities::SHARED_RECEIVE_QUEUE, 60));
        assert_eq!((ours.max_shared_receive_queues, ours.max_memory_windows, ours.max_queue_pairs), (100, 0, 0));
        assert_eq!((ours.node_guid, ours.max_destination_read_atomic), (0x0102_0304_0506_0708, 255));
        assert_eq!(ours.max_message_bytes, 8 << 20);
    }
}
