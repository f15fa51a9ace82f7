//! The symbols that programs link to.
//!
//! Each is a jump to a function of ours. `#[no_mangle]` would not do: rustc then lists the symbol in a version script of its
//! own, without a version, and that wins over `versions.map`.
#![allow(unsafe_code, reason = "assembly makes symbols that programs call")]

use std::arch::global_asm;

use crate::{
    address_handle, completion, events, listing, memory, names, opening, query, queue_pair, queue_pair_creation,
    shared_receive_queue, unsupported,
};

macro_rules! exports {
    ($($name:ident = $function:path;)*) => {
        $(global_asm!(
            ".pushsection .text",
            ".p2align 4",
            concat!(".globl ", stringify!($name)),
            concat!(".type ", stringify!($name), ", @function"),
            concat!(stringify!($name), ":"),
            "endbr64",
            "jmp {}",
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
            ".popsection",
            sym $function,
        );)*

        /// All of them.
        #[cfg(test)]
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

exports! {
    ibv_get_device_list = listing::get_device_list;
    ibv_free_device_list = listing::free_device_list;
    ibv_get_device_name = listing::get_device_name;
    ibv_get_device_guid = listing::get_device_guid;
    ibv_get_device_index = listing::get_device_index;
    ibv_open_device = opening::open_device;
    ibv_close_device = opening::close_device;

    ibv_query_device = query::query_device;
    ibv_query_port = query::query_port;
    ibv_query_gid = query::query_gid;
    ibv_query_pkey = query::query_pkey;
    ibv_get_pkey_index = query::get_pkey_index;
    ibv_query_gid_type = query::query_gid_type;
    _ibv_query_gid_ex = query::query_gid_ex;
    _ibv_query_gid_table = query::query_gid_table;

    ibv_alloc_pd = memory::alloc_pd;
    ibv_dealloc_pd = memory::dealloc_pd;
    ibv_reg_mr = memory::reg_mr;
    ibv_reg_mr_iova = memory::reg_mr_iova;
    ibv_reg_mr_iova2 = memory::reg_mr_iova2;
    ibv_dereg_mr = memory::dereg_mr;

    ibv_create_comp_channel = completion::create_comp_channel;
    ibv_destroy_comp_channel = completion::destroy_comp_channel;
    ibv_create_cq = completion::create_cq;
    ibv_resize_cq = completion::resize_cq;
    ibv_destroy_cq = completion::destroy_cq;
    ibv_get_cq_event = completion::get_cq_event;
    ibv_ack_cq_events = completion::ack_cq_events;

    ibv_create_qp = queue_pair_creation::create_qp;
    ibv_modify_qp = queue_pair::modify_qp;
    ibv_query_qp = queue_pair::query_qp;
    ibv_destroy_qp = queue_pair::destroy_qp;
    ibv_qp_to_qp_ex = queue_pair::qp_to_qp_ex;
    ibv_query_ece = queue_pair::query_ece;
    ibv_set_ece = queue_pair::set_ece;

    ibv_get_async_event = events::get_async_event;
    ibv_ack_async_event = events::ack_async_event;

    ibv_wc_status_str = names::wc_status_str;
    ibv_event_type_str = names::event_type_str;
    ibv_port_state_str = names::port_state_str;
    ibv_node_type_str = names::node_type_str;

    ibv_fork_init = unsupported::fork_init;
    ibv_is_fork_initialized = unsupported::is_fork_initialized;
    ibv_query_qp_data_in_order = unsupported::query_qp_data_in_order;

    ibv_create_srq = shared_receive_queue::create_srq;
    ibv_modify_srq = shared_receive_queue::modify_srq;
    ibv_query_srq = shared_receive_queue::query_srq;
    ibv_destroy_srq = shared_receive_queue::destroy_srq;
    ibv_create_ah = address_handle::create_ah;
    ibv_destroy_ah = address_handle::destroy_ah;
    ibv_create_ah_from_wc = address_handle::create_ah_from_wc;
    ibv_init_ah_from_wc = address_handle::init_ah_from_wc;

    ibv_attach_mcast = unsupported::error;
    ibv_detach_mcast = unsupported::error;
    ibv_resolve_eth_l2_from_gid = unsupported::failed;
    ibv_rereg_mr = unsupported::failed;
    ibv_reg_dmabuf_mr = unsupported::pointer;
    ibv_import_device = unsupported::pointer;
    ibv_import_pd = unsupported::pointer;
    ibv_unimport_pd = unsupported::nothing;
    ibv_import_mr = unsupported::pointer;
    ibv_unimport_mr = unsupported::nothing;
    ibv_import_dm = unsupported::pointer;
    ibv_unimport_dm = unsupported::nothing;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_symbol_has_exactly_one_version() {
        let versions = include_str!("../versions.map");
        let words = || versions.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for name in NAMES {
            assert_eq!(words().filter(|word| word == name).count(), 1, "{name}");
        }
        let named: Vec<_> = words().filter(|word| word.starts_with("ibv_") || word.starts_with("_ibv_")).collect();
        assert_eq!(named.len(), NAMES.len(), "versions.map names a symbol that is not here");
    }
}
