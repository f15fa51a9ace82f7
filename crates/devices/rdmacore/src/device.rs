//! An open device behind the boundary.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use longhaul_verbs::raw;
use longhaul_verbs::{
    AsyncEvent, Counter, CreateError, DeviceAttributes, EventError, Gid, GidEntry, GidType, PortAttributes, QueryError,
};

use crate::answer::{check, is_not_supported};
use crate::channel::{CompletionChannel, make_raw_non_blocking};
use crate::completion::CompletionQueue;
use crate::context::Context;
use crate::domain::ProtectionDomain;
use crate::library::Library;
use crate::listing::{DeviceList, ListError};
use crate::probe::{self, Abilities};
use crate::sysfs::{self, DeviceFolder};
use crate::{attributes, events};
use longhaul_verbs_abi::{IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, ibv_gid_entry};

/// A device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no library to ask, or it does not answer.
    #[error(transparent)]
    List(#[from] ListError),
    /// libibverbs does not know it.
    #[error("there is no RDMA device {name}: {}", known_devices(known))]
    NoSuchDevice {
        /// What was asked for.
        name: String,
        /// The devices of this host.
        known: Vec<String>,
    },
    /// The kernel has it, but it cannot be used from here.
    #[error(
        "the kernel has RDMA device {name}, but libibverbs does not list it; install its driver (package \
         ibverbs-providers) and load the module ib_uverbs"
    )]
    NotListed {
        /// What was asked for.
        name: String,
    },
    /// The system refused.
    #[error("RDMA device {name} could not be opened; may this user read and write /dev/infiniband/{kernel_device}?")]
    System {
        /// The device.
        name: String,
        /// Its file.
        kernel_device: String,
        /// Why.
        source: io::Error,
    },
}

fn known_devices(known: &[String]) -> String {
    match known {
        [] => "libibverbs finds none on this host (rdma link add rxe0 type rxe netdev INTERFACE makes one in software)"
            .into(),
        known => format!("libibverbs finds {}", known.join(", ")),
    }
}

/// An open device of libibverbs: an RNIC or Linux Soft-RoCE.
#[derive(Clone)]
pub struct RdmaDevice {
    shared: Arc<Shared>,
}

struct Shared {
    context: Arc<Context>,
    name: String,
    folder: DeviceFolder,
    port_count: u8,
    /// Rows of each port's GID table. They do not change, and are asked for with every row.
    gid_table_lengths: Vec<u32>,
    completion_queue_entries_max: u32,
    /// Found out when first asked for.
    abilities: Mutex<Option<Abilities>>,
}

impl RdmaDevice {
    /// Open the device that the kernel calls `name`.
    pub fn open(name: &str) -> Result<Self, OpenError> {
        let library = Library::load().map_err(ListError::from)?;
        let list = DeviceList::read(&library).map_err(ListError::from)?;
        let Some(listed) = list.iter().find(|device| device.name() == name) else {
            if sysfs::kernel_has(name) {
                return Err(OpenError::NotListed { name: name.into() });
            }
            let mut known: Vec<String> = list.iter().map(|device| device.name()).collect();
            known.sort_unstable();
            return Err(OpenError::NoSuchDevice { name: name.into(), known });
        };
        let refused = |source| OpenError::System { name: name.into(), kernel_device: listed.kernel_device(), source };
        let raw = listed.open(&library).map_err(refused)?;
        // SAFETY: just opened, and handed to nobody else.
        let context = unsafe { Context::new(library.clone(), raw) };
        // SAFETY: the device is open, and its descriptor with it.
        unsafe { make_raw_non_blocking((&raw const (*context.as_ptr()).async_fd).read()) }.map_err(refused)?;
        let sizes = context.query_device().map_err(refused)?.orig_attr;
        let gid_table_length = |port| Ok(attributes::port(&context.query_port(port)?).gid_table_length);
        let gid_table_lengths = (1..=sizes.phys_port_cnt).map(gid_table_length).collect::<io::Result<_>>();
        Ok(RdmaDevice {
            shared: Arc::new(Shared {
                context: Arc::new(context),
                name: name.into(),
                folder: listed.folder(),
                port_count: sizes.phys_port_cnt,
                gid_table_lengths: gid_table_lengths.map_err(refused)?,
                completion_queue_entries_max: attributes::positive(sizes.max_cqe),
                abilities: Mutex::new(None),
            }),
        })
    }

    /// The driver in the kernel, if that is known: `rxe`, `mlx5_core`.
    pub fn driver(&self) -> Option<String> {
        self.shared.folder.driver()
    }

    /// The safe face of it.
    pub fn verbs(&self) -> longhaul_verbs::Device {
        longhaul_verbs::Device::new(Arc::new(self.clone()))
    }

    fn check_port(&self, port: u8) -> Result<(), QueryError> {
        let count = self.shared.port_count;
        match port {
            _ if (1..=count).contains(&port) => Ok(()),
            _ => Err(QueryError::NoSuch { what: "port", index: port.into(), count: count.into() }),
        }
    }

    /// A row of the GID table from a library that reports its type.
    fn gid_from_library(&self, port: u8, index: u32) -> Option<io::Result<GidEntry>> {
        let context = &self.shared.context;
        let query = (context.library()._ibv_query_gid_ex)?;
        let mut theirs = ibv_gid_entry::zeroed();
        // SAFETY: the device is open, and the entry is as large as we say.
        let answer = unsafe { query(context.as_ptr(), port.into(), index, &mut theirs, 0, size_of::<ibv_gid_entry>()) };
        let gid_type = || match theirs.gid_type {
            IBV_GID_TYPE_ROCE_V1 => GidType::RoceV1,
            IBV_GID_TYPE_ROCE_V2 => GidType::RoceV2,
            _ => GidType::InfiniBand,
        };
        match check(answer) {
            Ok(()) => Some(Ok(GidEntry { gid: Gid(theirs.gid.raw), gid_type: gid_type(), index })),
            // An empty row.
            Err(error) if error.raw_os_error() == Some(nix::libc::ENODATA) => {
                Some(Ok(GidEntry { gid: Gid::default(), gid_type: GidType::InfiniBand, index }))
            }
            Err(error) if is_not_supported(&error) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

impl raw::Device for RdmaDevice {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn attributes(&self) -> Result<DeviceAttributes, QueryError> {
        let context = &self.shared.context;
        let theirs = context.query_device()?;
        let mut known = self.shared.abilities.lock().unwrap_or_else(PoisonError::into_inner);
        let abilities = match *known {
            Some(abilities) => abilities,
            None => *known.insert(probe::abilities(context, &theirs)?),
        };
        drop(known);
        let message_bytes = context.query_port(1)?.max_msg_sz;
        Ok(attributes::device(&theirs, &abilities, message_bytes))
    }

    fn port_attributes(&self, port: u8) -> Result<PortAttributes, QueryError> {
        self.check_port(port)?;
        Ok(attributes::port(&self.shared.context.query_port(port)?))
    }

    fn gid(&self, port: u8, index: u32) -> Result<GidEntry, QueryError> {
        self.check_port(port)?;
        let count = self.shared.gid_table_lengths[usize::from(port) - 1];
        if index >= count {
            return Err(QueryError::NoSuch { what: "GID", index, count });
        }
        match self.gid_from_library(port, index) {
            Some(answer) => Ok(answer?),
            None => Ok(self.shared.folder.gid(port, index)?),
        }
    }

    fn partition_key(&self, port: u8, index: u16) -> Result<u16, QueryError> {
        let count = self.port_attributes(port)?.partition_key_table_length;
        if index >= count {
            return Err(QueryError::NoSuch { what: "partition key", index: index.into(), count: count.into() });
        }
        let context = &self.shared.context;
        let mut key = 0;
        // SAFETY: the device is open.
        check(unsafe { (context.library().ibv_query_pkey)(context.as_ptr(), port, index.into(), &mut key) })?;
        Ok(u16::from_be(key))
    }

    fn counters(&self) -> Vec<Counter> {
        self.shared.folder.counters(self.shared.port_count)
    }

    fn allocate_protection_domain(&self) -> Result<Arc<dyn raw::ProtectionDomain>, CreateError> {
        Ok(Arc::new(ProtectionDomain::allocate(&self.shared.context)?))
    }

    fn create_completion_channel(&self) -> Result<Arc<dyn raw::CompletionChannel>, CreateError> {
        CompletionChannel::create(&self.shared.context)
    }

    fn create_completion_queue(
        &self,
        entries: u32,
        channel: Option<(&dyn raw::CompletionChannel, u64)>,
    ) -> Result<Arc<dyn raw::CompletionQueue>, CreateError> {
        CompletionQueue::create(&self.shared.context, entries, self.shared.completion_queue_entries_max, channel)
    }

    fn next_event(&self) -> Result<Option<AsyncEvent>, EventError> {
        events::next(&self.shared.context)
    }

    fn event_descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the device is open, and its descriptor with it.
        Some(unsafe { BorrowedFd::borrow_raw((&raw const (*self.shared.context.as_ptr()).async_fd).read()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_told_with_those_that_are() {
        let text = |known: &[&str]| {
            let known = known.iter().map(|&name| name.to_owned()).collect();
            OpenError::NoSuchDevice { name: "rxe7".into(), known }.to_string()
        };
        assert_eq!(text(&["mlx5_0", "rxe0"]), "there is no RDMA device rxe7: libibverbs finds mlx5_0, rxe0");
        assert!(text(&[]).contains("finds none on this host"), "{}", text(&[]));
    }
}
