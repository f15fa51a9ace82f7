//! The list of devices.
#![allow(unsafe_code, reason = "hands structures to C and takes them back")]

use std::ffi::{c_char, c_int};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use longhaul_verbs_abi::{IBV_NODE_CA, IBV_TRANSPORT_IB, ibv_device};
use nix::errno::Errno;

use crate::configuration;
use crate::errors::null;

/// A device that can be opened. It lives as long as the process: programs keep pointers to it when the list is gone.
#[repr(C)]
pub(crate) struct Listed {
    c: ibv_device,
    pub(crate) address: IpAddr,
    pub(crate) index: c_int,
}

// SAFETY: it is never changed after it was made; its pointers are null.
unsafe impl Sync for Listed {}
// SAFETY: as above.
unsafe impl Send for Listed {}

/// Of this process, each made once.
static DEVICES: Mutex<Vec<&'static Listed>> = Mutex::new(Vec::new());

fn device_of(address: IpAddr) -> &'static Listed {
    let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = devices.iter().find(|device| device.address == address) {
        return known;
    }
    let index = devices.len();
    let name = configuration::device_name(address);
    let mut c = ibv_device::zeroed();
    (c.node_type, c.transport_type) = (IBV_NODE_CA, IBV_TRANSPORT_IB);
    let verbs_name = configuration::verbs_name(address);
    copy_text(&mut c.name, &name);
    copy_text(&mut c.dev_name, &verbs_name);
    copy_text(&mut c.dev_path, &format!("/sys/class/infiniband_verbs/{verbs_name}"));
    copy_text(&mut c.ibdev_path, &format!("/sys/class/infiniband/{name}"));
    let device: &'static Listed = Box::leak(Box::new(Listed { c, address, index: index as c_int }));
    devices.push(device);
    device
}

/// Text for C, cut if need be, and always ended by a zero.
pub(crate) fn copy_text(into: &mut [c_char], text: &str) {
    let room = into.len().saturating_sub(1);
    for (to, from) in into[..room].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
}

/// The device behind a pointer.
///
/// # Safety
///
/// The pointer must come from a list of ours.
pub(crate) unsafe fn listed<'a>(device: *mut ibv_device) -> &'a Listed {
    // SAFETY: the caller's promise; the structure is the first field of what was made here, and lives for ever.
    unsafe { &*device.cast::<Listed>() }
}

pub(crate) unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let devices: Vec<&'static Listed> = configuration::addresses().into_iter().map(device_of).collect();
    if let Ok(devices) = c_int::try_from(devices.len())
        && !count.is_null()
    {
        // SAFETY: the program gives room for a number, or null.
        unsafe { count.write(devices) };
    }
    let pointers = devices.iter().map(|device| (&raw const device.c).cast_mut());
    let list: Box<[*mut ibv_device]> = pointers.chain([std::ptr::null_mut()]).collect();
    Box::into_raw(list).cast()
}

pub(crate) unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    if list.is_null() {
        return;
    }
    let mut length = 0;
    // SAFETY: the list ends with a null pointer.
    while !unsafe { list.add(length).read() }.is_null() {
        length += 1;
    }
    let all = std::ptr::slice_from_raw_parts_mut(list, length + 1);
    // SAFETY: made by `get_device_list` with this length; programs may not change a list.
    drop(unsafe { Box::from_raw(all) });
}

pub(crate) unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    if device.is_null() {
        return null::<c_char>(Errno::EINVAL);
    }
    // SAFETY: a device of ours, as everything that programs find here.
    unsafe { &raw const (*device).name }.cast()
}

pub(crate) unsafe extern "C" fn get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: as above.
    configuration::guid(unsafe { listed(device) }.address).to_be()
}

pub(crate) unsafe extern "C" fn get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: as above.
    unsafe { listed(device) }.index
}
