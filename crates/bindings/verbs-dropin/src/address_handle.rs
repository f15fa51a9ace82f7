//! Address handles, for datagrams.
#![allow(unsafe_code, reason = "hands structures to C and takes them back")]

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use longhaul_verbs::{Gid, raw};
use longhaul_verbs_abi::{IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_grh, ibv_pd, ibv_wc};
use nix::errno::Errno;

use crate::attributes;
use crate::cancellation::NotCancelled;
use crate::context::context;
use crate::errors::{minus_one, null};
use crate::memory::domain;

/// Bytes of an `ibv_grh`.
const ROUTE_HEADER: usize = size_of::<ibv_grh>();
/// The protocol's number in IP headers.
const UDP: u8 = 17;

/// `ibv_ah`
#[repr(C)]
pub(crate) struct AddressHandle {
    c: ibv_ah,
    pub(crate) raw: Arc<dyn raw::AddressHandle>,
}

/// Ours behind a pointer of the program.
///
/// # Safety
///
/// It must be what `ibv_create_ah` has given, and not be destroyed yet.
pub(crate) unsafe fn handle<'a>(handle: *mut ibv_ah) -> &'a AddressHandle {
    // SAFETY: the caller's promise; the structure is the first field.
    unsafe { &*handle.cast::<AddressHandle>() }
}

pub(crate) unsafe extern "C" fn create_ah(of: *mut ibv_pd, attributes: *mut ibv_ah_attr) -> *mut ibv_ah {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a domain of ours, and attributes of the program.
    let (domain, path) = unsafe { (domain(of), attributes::path(&*attributes, (*attributes).port_num)) };
    let Some(path) = path else { return null(Errno::EINVAL) };
    match domain.raw.create_address_handle(&path) {
        Ok(raw) => {
            domain.users.fetch_add(1, Ordering::AcqRel);
            // SAFETY: as above.
            let c = ibv_ah { context: unsafe { (*of).context }, pd: of, handle: 0 };
            Box::into_raw(Box::new(AddressHandle { c, raw })).cast()
        }
        Err(error) => null(error),
    }
}

/// The way back to who sent a datagram, from its completion and the route header in front of its payload. `None` if the
/// header is not one of RoCEv2, or was not sent to a row of our GID table.
fn way_back(device: &dyn raw::Device, port: u8, wc: &ibv_wc, route_header: &[u8; ROUTE_HEADER]) -> Option<ibv_ah_attr> {
    let mut c = ibv_ah_attr::zeroed();
    (c.dlid, c.sl, c.src_path_bits, c.port_num) = (wc.slid, wc.sl, wc.dlid_path_bits, port);
    if wc.wc_flags & IBV_WC_GRH == 0 {
        return Some(c);
    }
    c.is_global = 1;
    let v4 = &route_header[20..];
    let word = u32::from_be_bytes(route_header[..4].try_into().ok()?);
    let (source, destination);
    // An IPv4 header is in the last 20 bytes. What stands before it is undefined, so its checksum decides.
    if v4[0] == 0x45 && ones_complement_sum(v4) == 0xffff {
        let gid = |at| <[u8; 4]>::try_from(&v4[at..at + 4]).ok().map(|octets| Gid::from_ip(octets.into()));
        (source, destination) = (gid(12)?, gid(16)?);
        (c.grh.traffic_class, c.grh.hop_limit) = (v4[1], v4[8]);
    } else if word >> 28 == 6 && route_header[6] == UDP {
        let gid = |at| <[u8; 16]>::try_from(&route_header[at..at + 16]).ok().map(Gid);
        (source, destination) = (gid(8)?, gid(24)?);
        (c.grh.traffic_class, c.grh.hop_limit) = ((word >> 20) as u8, route_header[7]);
        c.grh.flow_label = word & 0xf_ffff;
    } else {
        return None;
    }
    let rows = device.port_attributes(port).ok()?.gid_table_length;
    let row = (0..rows).find(|row| device.gid(port, *row).is_ok_and(|entry| entry.gid == destination))?;
    c.grh.sgid_index = u8::try_from(row).ok()?;
    c.grh.dgid = ibv_gid { raw: source.0 };
    Some(c)
}

/// Of a header with its checksum it is all ones.
fn ones_complement_sum(header: &[u8]) -> u32 {
    let sum: u32 = header.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    (sum & 0xffff) + (sum >> 16)
}

pub(crate) unsafe extern "C" fn init_ah_from_wc(
    from: *mut ibv_context,
    port: u8,
    completion: *mut ibv_wc,
    route_header: *mut ibv_grh,
    attributes: *mut ibv_ah_attr,
) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: a context of ours, and structures of the program.
    let (session, wc) = unsafe { (&context(from).session, &*completion) };
    let bytes = if wc.wc_flags & IBV_WC_GRH == 0 {
        [0; ROUTE_HEADER]
    } else {
        // SAFETY: as above; then there are that many bytes, wherever they lie.
        unsafe { route_header.cast::<[u8; ROUTE_HEADER]>().read_unaligned() }
    };
    match way_back(&*session.device.raw, port, wc, &bytes) {
        Some(found) => {
            // SAFETY: the program gives room for it.
            unsafe { attributes.write(found) };
            0
        }
        None => minus_one(Errno::EPROTONOSUPPORT),
    }
}

pub(crate) unsafe extern "C" fn create_ah_from_wc(
    of: *mut ibv_pd,
    completion: *mut ibv_wc,
    route_header: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    let mut attributes = ibv_ah_attr::zeroed();
    // SAFETY: the caller's promises are the same.
    unsafe {
        match init_ah_from_wc((*of).context, port, completion, route_header, &raw mut attributes) {
            0 => create_ah(of, &raw mut attributes),
            _ => std::ptr::null_mut(),
        }
    }
}

pub(crate) unsafe extern "C" fn destroy_ah(of: *mut ibv_ah) -> c_int {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: made by `create_ah`, and destroyed once; its domain is there as long as it is.
    unsafe {
        let domain = domain(handle(of).c.pd);
        if !domain.session.is_of_this_process() {
            return 0;
        }
        domain.users.fetch_sub(1, Ordering::AcqRel);
        drop(Box::from_raw(of.cast::<AddressHandle>()));
    }
    0
}
