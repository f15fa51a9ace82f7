//! libibverbs, found when the program runs.
//!
//! Nothing of rdma-core is needed to build this program or to start it. [`Library::load`] asks the dynamic linker for
//! `libibverbs.so.1` once and looks up every function that Longhaul calls. The library has several versions of some of
//! them; a look-up without a version gives the default one, the same that a C program gets that is linked today.
#![allow(unsafe_code, reason = "loads a C library and its functions")]

use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use longhaul_verbs_abi::{
    ibv_ah, ibv_ah_attr, ibv_async_event, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_gid,
    ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_ex, ibv_qp_init_attr, ibv_srq,
    ibv_srq_attr, ibv_srq_init_attr,
};

/// What the dynamic linker is asked for: the name with the version of the interface, as programs link to it.
const SONAME: &str = "libibverbs.so.1";

/// libibverbs could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// It is not there.
    #[error(
        "{soname} was not found: the RDMA library is not installed; it is in package libibverbs1 (Debian, Ubuntu), \
         libibverbs (Fedora, RHEL) or rdma-core (Arch), and its drivers in ibverbs-providers"
    )]
    NotFound {
        /// The name of the library.
        soname: String,
        /// What the dynamic linker says.
        source: libloading::Error,
    },
    /// It is too old, or something else of the same name.
    #[error("{soname} has no function {function}, so it is older than rdma-core 17; update the package")]
    NoFunction {
        /// The library.
        soname: String,
        /// What every version since then has.
        function: &'static str,
        /// What the dynamic linker says.
        source: libloading::Error,
    },
}

/// Defines [`Library`] with a field for each function, and how they are looked up.
macro_rules! functions {
    (
        required { $( $name:ident: fn($($argument:ty),* $(,)?) $(-> $result:ty)?; )* }
        optional {
            $( $(#[$note:meta])* $optional:ident: fn($($optional_argument:ty),* $(,)?) $(-> $optional_result:ty)?; )*
        }
    ) => {
        /// The functions of libibverbs, by their own names. Those that older versions lack are `Option`.
        pub struct Library {
            $( pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?, )*
            $( $(#[$note])* pub(crate) $optional: Option<unsafe extern "C" fn($($optional_argument),*) $(-> $optional_result)?>, )*
        }

        impl Library {
            fn look_up(soname: &str, library: &libloading::Library) -> Result<Self, LoadError> {
                Ok(Library {
                    // SAFETY: the type is that of the header's declaration under this name; the library stays loaded
                    // for as long as the process lives.
                    $( $name: unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .map(|symbol| *symbol)
                        .map_err(|source| LoadError::NoFunction {
                            soname: soname.to_owned(), function: stringify!($name), source
                        })?, )*
                    // SAFETY: as above.
                    $( $optional: unsafe { library.get(concat!(stringify!($optional), "\0").as_bytes()) }
                        .map(|symbol| *symbol)
                        .ok(), )*
                })
            }
        }
    };
}

functions! {
    required {
        ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
        ibv_free_device_list: fn(*mut *mut ibv_device);
        ibv_get_device_guid: fn(*mut ibv_device) -> u64;
        ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
        ibv_close_device: fn(*mut ibv_context) -> c_int;
        ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ibv_ack_async_event: fn(*mut ibv_async_event);
        ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        // Writes the first bytes of the structure only; use `Context::query_port`.
        ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        ibv_query_gid: fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
        ibv_query_pkey: fn(*mut ibv_context, u8, c_int, *mut u16) -> c_int;
        ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
        ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_rereg_mr: fn(*mut ibv_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int;
        ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
        ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
        ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_resize_cq: fn(*mut ibv_cq, c_int) -> c_int;
        ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
        ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events: fn(*mut ibv_cq, c_uint);
        ibv_create_srq: fn(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        ibv_modify_srq: fn(*mut ibv_srq, *mut ibv_srq_attr, c_int) -> c_int;
        ibv_query_srq: fn(*mut ibv_srq, *mut ibv_srq_attr) -> c_int;
        ibv_destroy_srq: fn(*mut ibv_srq) -> c_int;
        ibv_create_qp: fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        ibv_modify_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        ibv_query_qp: fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        ibv_destroy_qp: fn(*mut ibv_qp) -> c_int;
        ibv_create_ah: fn(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
        ibv_destroy_ah: fn(*mut ibv_ah) -> c_int;
        ibv_attach_mcast: fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int;
        ibv_detach_mcast: fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int;
        ibv_fork_init: fn() -> c_int;
    }
    optional {
        /// IBVERBS_1.6: the extended form of a queue pair that was made with `send_ops_flags`.
        ibv_qp_to_qp_ex: fn(*mut ibv_qp) -> *mut ibv_qp_ex;
        /// IBVERBS_1.7
        ibv_reg_mr_iova: fn(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr;
        /// IBVERBS_1.8: also takes flags that a device may ignore (relaxed ordering).
        ibv_reg_mr_iova2: fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        /// IBVERBS_1.11: a row of the GID table with its type. The last argument is the size of the entry.
        _ibv_query_gid_ex: fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
        /// IBVERBS_1.12
        ibv_reg_dmabuf_mr: fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
    }
}

impl Library {
    /// libibverbs, loaded at the first call. Later calls give the same; after a failure they try again.
    pub fn load() -> Result<Arc<Library>, LoadError> {
        static LOADED: Mutex<Option<Arc<Library>>> = Mutex::new(None);
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(library) = &*loaded {
            return Ok(library.clone());
        }
        let library = Arc::new(Library::load_named(SONAME)?);
        *loaded = Some(library.clone());
        Ok(library)
    }

    fn load_named(soname: &str) -> Result<Library, LoadError> {
        // SAFETY: loading runs the initialisers of a system library that programs link to without further ado.
        let handle = unsafe { libloading::Library::new(soname) }
            .map_err(|source| LoadError::NotFound { soname: soname.to_owned(), source })?;
        let library = Library::look_up(soname, &handle)?;
        // It loads drivers of its own and cannot be taken out again.
        std::mem::forget(handle);
        library.make_forks_harmless();
        Ok(library)
    }

    /// A process that forks shares its pages with the child until one of the two writes; then the one who writes gets a
    /// new page, and the device still has the old one. Newer kernels (5.12) copy registered pages at the fork. For
    /// older ones the library keeps them from the child altogether, but only if asked before the first registration.
    fn make_forks_harmless(&self) {
        // SAFETY: no arguments; may be called at any time, and fails when it is too late.
        let result = unsafe { (self.ibv_fork_init)() };
        if result != 0 {
            tracing::debug!(result, "ibv_fork_init failed; do not fork while memory is registered");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        let error = Library::load_named("libibverbs-that-nobody-has.so.1").err().expect("there is no such library");
        let text = error.to_string();
        assert!(text.starts_with("libibverbs-that-nobody-has.so.1 was not found"), "{text}");
        assert!(text.contains("libibverbs1"), "{text}");
        assert!(error.source().is_some(), "what the linker says is kept");
    }

    #[test]
    fn another_library_of_that_name_is_told_by_the_function_it_lacks() {
        let error = Library::load_named("libc.so.6").err().expect("the C library has no verbs");
        assert!(matches!(&error, LoadError::NoFunction { function: "ibv_get_device_list", .. }), "{error}");
        assert!(error.to_string().contains("ibv_get_device_list"), "{error}");
    }
}
