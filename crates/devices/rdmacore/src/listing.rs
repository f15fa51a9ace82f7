//! Which devices there are.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::ffi::{CStr, c_char};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::answer::check_pointer;
use crate::library::{Library, LoadError};
use crate::sysfs::DeviceFolder;
use longhaul_verbs_abi::{ibv_context, ibv_device};

/// A device that libibverbs knows, as far as it can be described without opening it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceDescription {
    /// What to open it by: `rxe0`, `mlx5_0`.
    pub name: String,
    /// The driver in the kernel: `rxe`, `mlx5_core`.
    pub driver: Option<String>,
    /// Node GUID.
    pub node_guid: u64,
    /// The network interface behind port 1.
    pub interface: Option<String>,
    /// The device file, under `/dev/infiniband`: `uverbs0`.
    pub kernel_device: String,
}

/// The devices could not be listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// There is no library to ask.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The system refused.
    #[error("libibverbs could not list the RDMA devices of this host")]
    System(#[from] io::Error),
}

/// The RDMA devices of this host, sorted by name. None is not an error; no library is.
pub fn devices() -> Result<Vec<DeviceDescription>, ListError> {
    let library = Library::load()?;
    let list = DeviceList::read(&library)?;
    let mut devices: Vec<_> = list.iter().map(|device| device.describe(&library)).collect();
    devices.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(devices)
}

/// What `ibv_get_device_list` gave. Its devices can be opened as long as it is there.
pub(crate) struct DeviceList {
    library: Arc<Library>,
    /// `None` where the kernel has no RDMA at all.
    list: Option<NonNull<*mut ibv_device>>,
    count: usize,
}

impl DeviceList {
    pub(crate) fn read(library: &Arc<Library>) -> io::Result<Self> {
        let mut count = 0;
        // SAFETY: the count can be written.
        let list = match check_pointer(unsafe { (library.ibv_get_device_list)(&mut count) }) {
            Ok(list) => Some(list),
            // No module of the kernel's RDMA core is loaded.
            Err(error) if error.raw_os_error() == Some(nix::libc::ENOSYS) => None,
            Err(error) => return Err(error),
        };
        let count = if list.is_some() { usize::try_from(count).unwrap_or(0) } else { 0 };
        Ok(DeviceList { library: library.clone(), list, count })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = ListedDevice<'_>> {
        let device = |index: usize| {
            // SAFETY: the list has `count` devices, none of them null.
            let device = unsafe { *self.list?.as_ptr().add(index) };
            Some(ListedDevice { device: NonNull::new(device)?, _list: self })
        };
        (0..self.count).filter_map(device)
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if let Some(list) = self.list {
            // SAFETY: it came from `ibv_get_device_list`, and nobody uses its devices any more: they borrow it.
            unsafe { (self.library.ibv_free_device_list)(list.as_ptr()) };
        }
    }
}

/// A device of a list.
pub(crate) struct ListedDevice<'a> {
    device: NonNull<ibv_device>,
    _list: &'a DeviceList,
}

impl ListedDevice<'_> {
    pub(crate) fn name(&self) -> String {
        // SAFETY: the list is there, and so is the device.
        text(unsafe { &(*self.device.as_ptr()).name })
    }

    /// The device file's name.
    pub(crate) fn kernel_device(&self) -> String {
        // SAFETY: as above.
        text(unsafe { &(*self.device.as_ptr()).dev_name })
    }

    pub(crate) fn folder(&self) -> DeviceFolder {
        // SAFETY: as above.
        DeviceFolder::new(text(unsafe { &(*self.device.as_ptr()).ibdev_path }))
    }

    /// `ibv_open_device`
    pub(crate) fn open(&self, library: &Library) -> io::Result<NonNull<ibv_context>> {
        // SAFETY: as above.
        check_pointer(unsafe { (library.ibv_open_device)(self.device.as_ptr()) })
    }

    fn describe(&self, library: &Library) -> DeviceDescription {
        let folder = self.folder();
        // SAFETY: as above.
        let node_guid = u64::from_be(unsafe { (library.ibv_get_device_guid)(self.device.as_ptr()) });
        DeviceDescription {
            name: self.name(),
            driver: folder.driver(),
            node_guid,
            interface: folder.interface(1),
            kernel_device: self.kernel_device(),
        }
    }
}

/// The text in a fixed array of C characters, up to its first zero or all of it.
pub(crate) fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|&character| character as u8).chain([0]).collect();
    CStr::from_bytes_until_nul(&bytes).map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_end_at_their_zero_or_with_the_array() {
        let characters = |text: &[u8]| text.iter().map(|&byte| byte as c_char).collect::<Vec<_>>();
        assert_eq!(text(&characters(b"rxe0\0rest")), "rxe0");
        assert_eq!(text(&characters(b"whole")), "whole");
        assert_eq!(text(&[]), "");
    }
}
