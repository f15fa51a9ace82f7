//! Questions about devices, ports, GIDs and partition keys.
#![allow(unsafe_code, reason = "writes structures of C")]

use std::ffi::{c_int, c_uint};

use longhaul_verbs::{Capabilities, DeviceAttributes, GidEntry, GidType, LinkState, PortAttributes};
use longhaul_verbs_abi as abi;
use longhaul_verbs_abi::{
    ibv_context, ibv_cq_moderation_caps, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry,
    ibv_packet_pacing_caps, ibv_port_attr, ibv_query_device_ex_input,
};
use nix::errno::Errno;

use crate::configuration::guid;
use crate::context::context;
use crate::errors::{minus_one, number};
use crate::listing::{copy_text, listed};

/// What the port attributes had before they grew: `ibv_query_port` writes no more.
const PORT_BYTES_AT_FIRST: usize = 48;
/// `IBV_QPF_GRH_REQUIRED`: RoCE has no other addresses than GIDs.
const GRH_REQUIRED: u8 = 1;
/// Up, as InfiniBand counts the states of a link.
const PHYSICAL_LINK_UP: u8 = 5;
/// What rxe says too: 4.096 µs · 2^15 = 134 ms.
const ACK_DELAY: u8 = 15;

/// What rxe says of itself: nobody's. Some programs take 0 for a device that does not answer.
const SOFTWARE_VENDOR: u32 = 0x00ff_ffff;

/// As C's int, which is smaller.
fn int(value: impl TryInto<c_int>) -> c_int {
    value.try_into().unwrap_or(c_int::MAX)
}

fn device_attributes(ours: &DeviceAttributes, guid: u64) -> ibv_device_attr {
    let can = |capability| ours.capabilities.contains(capability);
    let mut c = ibv_device_attr::zeroed();
    copy_text(&mut c.fw_ver, &ours.firmware_version);
    (c.node_guid, c.sys_image_guid) = (guid.to_be(), guid.to_be());
    c.max_mr_size = ours.max_region_bytes;
    c.page_size_cap = 0xffff_f000;
    c.vendor_id = if ours.vendor_id == 0 { SOFTWARE_VENDOR } else { ours.vendor_id };
    c.max_qp = int(ours.max_queue_pairs);
    c.max_qp_wr = int(ours.max_work_requests);
    if can(Capabilities::INVALIDATE) {
        c.device_cap_flags |= abi::IBV_DEVICE_MEM_MGT_EXTENSIONS;
    }
    (c.max_sge, c.max_sge_rd) = (int(ours.max_scatter_gather_entries), int(ours.max_scatter_gather_entries));
    c.max_cq = int(ours.max_completion_queues);
    c.max_cqe = int(ours.max_completion_queue_entries);
    c.max_mr = int(ours.max_memory_regions);
    c.max_pd = int(ours.max_protection_domains);
    c.max_qp_rd_atom = ours.max_destination_read_atomic.into();
    c.max_qp_init_rd_atom = ours.max_read_atomic.into();
    c.max_res_rd_atom = c.max_qp.saturating_mul(c.max_qp_rd_atom);
    c.atomic_cap = if can(Capabilities::ATOMICS) { abi::IBV_ATOMIC_GLOB } else { abi::IBV_ATOMIC_NONE };
    c.max_pkeys = 1;
    c.local_ca_ack_delay = ACK_DELAY;
    c.phys_port_cnt = ours.port_count;
    c.max_ah = int(ours.max_address_handles);
    c.max_srq = int(ours.max_shared_receive_queues);
    (c.max_srq_wr, c.max_srq_sge) = (c.max_qp_wr, c.max_sge);
    c.max_mw = int(ours.max_memory_windows);
    for (capability, flag) in [
        (Capabilities::WINDOW_TYPE_1, abi::IBV_DEVICE_MEM_WINDOW),
        (Capabilities::WINDOW_TYPE_2A, abi::IBV_DEVICE_MEM_WINDOW_TYPE_2A),
        (Capabilities::WINDOW_TYPE_2B, abi::IBV_DEVICE_MEM_WINDOW_TYPE_2B),
    ] {
        if can(capability) {
            c.device_cap_flags |= flag;
        }
    }
    // Multicast stays 0: its calls are not here yet.
    c
}

/// Of the device behind a context.
fn attributes_of(from: *mut ibv_context) -> Result<(DeviceAttributes, ibv_device_attr), c_int> {
    // SAFETY: a context of ours, and its device of our list.
    let (context, guid) = unsafe { (context(from), guid(listed((*from).device).address)) };
    let ours = context.session.device.raw.attributes().map_err(number)?;
    let c = device_attributes(&ours, guid);
    Ok((ours, c))
}

pub(crate) unsafe extern "C" fn query_device(from: *mut ibv_context, attributes: *mut ibv_device_attr) -> c_int {
    match attributes_of(from) {
        Ok((_, c)) => {
            // SAFETY: the program gives room for it.
            unsafe { attributes.write(c) };
            0
        }
        Err(errno) => errno,
    }
}

pub(crate) unsafe extern "C" fn query_device_ex(
    from: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attributes: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    // SAFETY: null, or what the program asks.
    if !input.is_null() && unsafe { (*input).comp_mask } != 0 || size < size_of::<ibv_device_attr>() {
        return number(Errno::EINVAL);
    }
    let (ours, orig_attr) = match attributes_of(from) {
        Ok(both) => both,
        Err(errno) => return errno,
    };
    // What is not set is not here: no on-demand paging, segmentation offload, time stamps, tag matching or device memory.
    let mut extended = ibv_device_attr_ex { orig_attr, ..ibv_device_attr_ex::zeroed() };
    extended.phys_port_cnt_ex = orig_attr.phys_port_cnt.into();
    extended.device_cap_flags_ex = orig_attr.device_cap_flags.into();
    if ours.capabilities.contains(Capabilities::COMPLETION_MODERATION) {
        extended.cq_mod_caps = ibv_cq_moderation_caps { max_cq_count: u16::MAX, max_cq_period: u16::MAX };
    }
    if ours.capabilities.contains(Capabilities::RATE_LIMIT) {
        let supported_qpts = 1 << abi::IBV_QPT_RC | 1 << abi::IBV_QPT_UC | 1 << abi::IBV_QPT_UD;
        extended.packet_pacing_caps =
            ibv_packet_pacing_caps { qp_rate_limit_min: 1, qp_rate_limit_max: u32::MAX, supported_qpts };
    }
    write_sized(attributes, size, &extended);
    0
}

/// Write as much of a structure that grows as the program has room for, and zeros behind it.
fn write_sized<T>(to: *mut T, size: usize, value: &T) {
    let known = size.min(size_of::<T>());
    // SAFETY: the program gives room for `size` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), to.cast::<u8>(), known);
        std::ptr::write_bytes(to.cast::<u8>().add(known), 0, size - known);
    }
}

fn port_attributes(ours: &PortAttributes, message_bytes: u64) -> ibv_port_attr {
    let mut c = ibv_port_attr::zeroed();
    c.state = match ours.state {
        LinkState::Active => abi::IBV_PORT_ACTIVE,
        LinkState::Initializing => abi::IBV_PORT_INIT,
        _ => abi::IBV_PORT_DOWN,
    };
    c.max_mtu = ours.max_mtu as c_uint;
    c.active_mtu = ours.active_mtu as c_uint;
    c.gid_tbl_len = int(ours.gid_table_length);
    c.max_msg_sz = u32::try_from(message_bytes).unwrap_or(u32::MAX);
    c.pkey_tbl_len = ours.partition_key_table_length;
    c.lid = ours.lid;
    c.max_vl_num = 1;
    // One lane of 10 Gbit/s, unless the rate is known: a port must say something.
    let lanes_of_10 = ours.rate_bits_per_second.map_or(1, |rate| rate / 10_000_000_000);
    (c.active_width, c.active_speed) = match lanes_of_10 {
        ..4 => (1, 8),
        4..8 => (2, 8),
        8..12 => (4, 8),
        _ => (8, 8),
    };
    c.phys_state = PHYSICAL_LINK_UP;
    c.link_layer = abi::IBV_LINK_LAYER_ETHERNET;
    c.flags = GRH_REQUIRED;
    c
}

pub(crate) unsafe extern "C" fn query_port_sized(
    from: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    // SAFETY: a context of ours.
    let device = &unsafe { context(from) }.session.device.raw;
    let ours = device.port_attributes(port).and_then(|port| Ok((port, device.attributes()?.max_message_bytes)));
    match ours {
        Ok((ours, message_bytes)) => {
            write_sized(attributes, size, &port_attributes(&ours, message_bytes));
            0
        }
        Err(error) => number(error),
    }
}

/// Called by programs that were built before the attributes grew, and by new ones whose context has no extended call.
pub(crate) unsafe extern "C" fn query_port(from: *mut ibv_context, port: u8, attributes: *mut ibv_port_attr) -> c_int {
    // SAFETY: as for the other; the program has room for this much.
    unsafe { query_port_sized(from, port, attributes, PORT_BYTES_AT_FIRST) }
}

fn gid_of(from: *mut ibv_context, port: u32, index: u32) -> Result<GidEntry, Errno> {
    // SAFETY: a context of ours.
    let device = &unsafe { context(from) }.session.device.raw;
    let port = u8::try_from(port).map_err(|_| Errno::EINVAL)?;
    device.gid(port, index).map_err(|_| Errno::EINVAL)
}

pub(crate) unsafe extern "C" fn query_gid(from: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int {
    let row = u32::try_from(index).map_err(|_| Errno::EINVAL).and_then(|index| gid_of(from, port.into(), index));
    match row {
        Ok(row) => {
            // SAFETY: the program gives room for it.
            unsafe { gid.write(ibv_gid { raw: row.gid.0 }) };
            0
        }
        Err(errno) => minus_one(errno),
    }
}

fn gid_entry(row: &GidEntry, port: u32) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: row.gid.0 },
        gid_index: row.index,
        port_num: port,
        gid_type: match row.gid_type {
            GidType::InfiniBand => abi::IBV_GID_TYPE_IB,
            GidType::RoceV1 => abi::IBV_GID_TYPE_ROCE_V1,
            _ => abi::IBV_GID_TYPE_ROCE_V2,
        },
        ndev_ifindex: 0,
    }
}

pub(crate) unsafe extern "C" fn query_gid_ex(
    from: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    if flags != 0 {
        return number(Errno::EOPNOTSUPP);
    }
    match gid_of(from, port, index) {
        Ok(row) => {
            write_sized(entry, size, &gid_entry(&row, port));
            0
        }
        Err(errno) => number(errno),
    }
}

pub(crate) unsafe extern "C" fn query_gid_table(
    from: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    most: usize,
    flags: u32,
    size: usize,
) -> isize {
    if flags != 0 || size < size_of::<ibv_gid_entry>() {
        return -(Errno::EOPNOTSUPP as isize);
    }
    let rows: Vec<GidEntry> = (0..).map_while(|index| gid_of(from, 1, index).ok()).collect();
    if rows.len() > most {
        return -(Errno::EINVAL as isize);
    }
    for (index, row) in rows.iter().enumerate() {
        write_sized(entries.wrapping_byte_add(index * size), size, &gid_entry(row, 1));
    }
    rows.len() as isize
}

/// Private to libibverbs, and called by its own tools: 0 is InfiniBand or RoCE version 1, 1 is RoCE version 2.
pub(crate) unsafe extern "C" fn query_gid_type(
    from: *mut ibv_context,
    port: u8,
    index: c_uint,
    gid_type: *mut c_uint,
) -> c_int {
    match gid_of(from, port.into(), index) {
        Ok(row) => {
            // SAFETY: the program gives room for it.
            unsafe { gid_type.write((row.gid_type == GidType::RoceV2).into()) };
            0
        }
        Err(errno) => minus_one(errno),
    }
}

pub(crate) unsafe extern "C" fn query_pkey(from: *mut ibv_context, port: u8, index: c_int, key: *mut u16) -> c_int {
    // SAFETY: a context of ours.
    let device = &unsafe { context(from) }.session.device.raw;
    let found = u16::try_from(index).ok().and_then(|index| device.partition_key(port, index).ok());
    match found {
        Some(found) => {
            // SAFETY: the program gives room for it. Keys are in network byte order.
            unsafe { key.write(found.to_be()) };
            0
        }
        None => minus_one(Errno::EINVAL),
    }
}

pub(crate) unsafe extern "C" fn get_pkey_index(from: *mut ibv_context, port: u8, key: u16) -> c_int {
    // SAFETY: a context of ours.
    let device = &unsafe { context(from) }.session.device.raw;
    let is_it = |index: &u16| device.partition_key(port, *index).is_ok_and(|found| found.to_be() == key);
    let last = device.port_attributes(port).map_or(0, |port| port.partition_key_table_length);
    (0..last).find(is_it).map_or_else(|| minus_one(Errno::EINVAL), c_int::from)
}
