//! What `<infiniband/verbs.h>` declares, as far as Longhaul uses it: types with C's layout, and constants.
//!
//! Names of types, fields and constants are the header's own, so that everybody who knows libibverbs can read on;
//! the crates that use them translate. Each file is one table in a macro that defines the types and, next to them, a
//! list of their sizes and offsets. `tests/layout.rs` has a C compiler print the same list from the installed header
//! and compares: no field can be forgotten, because there is only one list.
//!
//! C's enumerations are plain integers here. What the library or a newer kernel hands us may be a number that this
//! version does not know, and a Rust enum must never hold one.
#![allow(unsafe_code, reason = "zeroed values of types that mirror C's")]
#![allow(
    non_camel_case_types,
    non_snake_case,
    missing_docs,
    reason = "names and meanings are those of <infiniband/verbs.h>"
)]

/// A type's place in memory, to be compared with the header's.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// As C calls it, without `struct`.
    pub name: &'static str,
    pub size: usize,
    pub fields: &'static [Field],
}

/// A field's place in its type.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// As C calls it; `r#` in front of names that are words of Rust.
    pub name: &'static str,
    pub offset: usize,
    pub size: usize,
}

/// Defines types with C's layout, a value of each with all bytes zero, and the list `LAYOUTS`.
///
/// Only types for which all zeros are a value may stand here: numbers, raw pointers, `Option` of functions, and
/// other types of the same kind.
macro_rules! mirrored {
    ($( $(#[$attribute:meta])* struct $name:ident { $( $(#[$note:meta])* $field:ident: $type:ty ),* $(,)? } )*) => {
        $(
            $(#[$attribute])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub struct $name { $( $(#[$note])* pub $field: $type ),* }

            impl $name {
                /// All bytes zero, as C programs begin with.
                pub const fn zeroed() -> Self {
                    // SAFETY: numbers, raw pointers and optional functions: all zeros are a value of each of them.
                    unsafe { std::mem::zeroed() }
                }
            }
        )*

        /// Where everything lies.
        pub(crate) const LAYOUTS: &[$crate::Layout] = &[ $( $crate::Layout {
            name: stringify!($name),
            size: size_of::<$name>(),
            fields: &[ $( $crate::Field {
                name: stringify!($field),
                offset: std::mem::offset_of!($name, $field),
                size: size_of::<$type>(),
            } ),* ],
        } ),* ];
    };
}

/// Defines constants and the list of them.
macro_rules! constants {
    ($( $type:ident: $( $name:ident = $value:expr ),* $(,)?; )*) => {
        $( $( pub const $name: $type = $value; )* )*

        /// All of them, with their values as C's `long long`.
        #[allow(clippy::unnecessary_cast, reason = "some of them have that type already")]
        pub const CONSTANTS: &[(&str, i64)] = &[ $( $( (stringify!($name), $name as i64) ),* ),* ];
    };
}

mod completion;
mod constants;
mod context;
mod device;
mod memory;
mod queue_pair;

pub use completion::{
    ibv_async_event, ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_moderate_cq, ibv_modify_cq_attr,
    ibv_poll_cq_attr, ibv_wc, ibv_wc_tm_info,
};
pub use constants::*;
pub use context::{_ibv_device_ops, VERBS_ABI_IS_EXTENDED, ibv_context, ibv_context_ops, ibv_device, verbs_context};
pub use device::{
    ibv_cq_moderation_caps, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_odp_caps,
    ibv_odp_caps_per_transport_caps, ibv_packet_pacing_caps, ibv_pci_atomic_caps, ibv_port_attr,
    ibv_query_device_ex_input, ibv_rss_caps, ibv_tm_caps, ibv_tso_caps,
};
pub use memory::{
    ibv_mr, ibv_mw, ibv_mw_bind, ibv_mw_bind_info, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};
pub use queue_pair::{
    ibv_ah, ibv_ah_attr, ibv_data_buf, ibv_ece, ibv_global_route, ibv_grh, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_ex,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_rate_limit_attr, ibv_recv_wr, ibv_rx_hash_conf, ibv_send_wr,
    ibv_send_wr_atomic, ibv_send_wr_bind_mw, ibv_send_wr_rdma, ibv_send_wr_ud, ibv_send_wr_wr, ibv_sge, ibv_srq,
    ibv_srq_attr, ibv_srq_init_attr,
};

/// The layouts of all types of this crate that the header names.
pub fn layouts() -> impl Iterator<Item = &'static Layout> {
    let files = [completion::LAYOUTS, context::LAYOUTS, device::LAYOUTS, memory::LAYOUTS, queue_pair::LAYOUTS];
    files.into_iter().flatten()
}
