//! The device behind the contexts of one address.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use longhaul_port_broker::Lease;
use longhaul_softnic::Config;
use longhaul_softnic_udp::{ForeignMemory, UdpConfig, foreign_memory};
use longhaul_verbs::raw;

use crate::configuration;
use crate::mailbox::{Mailbox, Owner};
use crate::refusal::{Refusal, errno_of};
use crate::sharing::{self, Opened};

/// A device that is open in this process.
pub(crate) struct Device {
    address: IpAddr,
    /// Who opened it: its children by fork have a copy of this without the thread behind it.
    pub(crate) process: u32,
    pub(crate) raw: Arc<dyn raw::Device>,
    pub(crate) memory: ForeignMemory,
    /// Who is told of the device's events.
    mailboxes: Mutex<Vec<Weak<Mailbox>>>,
    /// What events are about.
    owners: Mutex<Owners>,
    /// Last, so that the device has let go of its socket before the part is another process's.
    _lease: Option<Lease>,
}

/// Objects of C by the names that the device gives them.
#[derive(Default)]
pub(crate) struct Owners {
    pub(crate) queue_pairs: HashMap<u32, Owner>,
    pub(crate) completion_queues: HashMap<u32, Owner>,
    pub(crate) shared_receive_queues: HashMap<u32, Owner>,
}

/// Devices that are open, with the process that opened them: a program that opens one twice gets two contexts of it.
static OPEN: Mutex<Vec<(u32, Weak<Device>)>> = Mutex::new(Vec::new());

impl Device {
    pub(crate) fn open(address: IpAddr) -> Result<Arc<Device>, Refusal> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        open.retain(|(of, device)| *of == process && device.strong_count() > 0);
        if let Some(known) =
            open.iter().filter_map(|(_, device)| device.upgrade()).find(|device| device.address == address)
        {
            return Ok(known);
        }
        let mut seed = [0; 32];
        let random = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut seed));
        random
            .map_err(|error| Refusal { text: format!("cannot read /dev/urandom: {error}"), errno: errno_of(&error) })?;
        let memory = foreign_memory().map_err(|error| {
            let text = format!(
                "this host does not let a process copy its own memory with process_vm_readv and process_vm_writev \
                 ({error}): allow both in the sandbox's rules; without them, memory that the program frees too early \
                 would crash the program"
            );
            Refusal { text, errno: errno_of(&error) }
        })?;
        let mut config = Config::new(configuration::device_name(address), vec![address], seed);
        config.foreign_memory = Some(memory);
        let mut udp = UdpConfig::default();
        udp.receive_in_place = false;
        let Opened { device, lease } = sharing::open(address, config, udp)?;
        let raw = Arc::new(device.device().clone());
        let (mailboxes, owners) = Default::default();
        let device = Arc::new(Device { address, process, raw, memory, mailboxes, owners, _lease: lease });
        open.push((process, Arc::downgrade(&device)));
        Ok(device)
    }

    pub(crate) fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tell a context of the device's events, for as long as it is open.
    pub(crate) fn add_mailbox(&self, mailbox: &Arc<Mailbox>) {
        self.mailboxes().push(Arc::downgrade(mailbox));
    }

    /// A context is closed: nobody reads its events any more.
    pub(crate) fn remove_mailbox(&self, closed: &Arc<Mailbox>) {
        self.mailboxes().retain(|mailbox| !std::ptr::eq(mailbox.as_ptr(), Arc::as_ptr(closed)));
        let mut owners = self.owners();
        let Owners { queue_pairs, completion_queues, shared_receive_queues } = &mut *owners;
        for objects in [queue_pairs, completion_queues, shared_receive_queues] {
            objects.retain(|_, owner| !Arc::ptr_eq(&owner.mailbox, closed));
        }
    }

    /// Of all contexts that are open.
    pub(crate) fn for_each_mailbox(&self, mut visit: impl FnMut(&Mailbox)) {
        self.mailboxes().retain(|mailbox| mailbox.upgrade().inspect(|mailbox| visit(mailbox)).is_some());
    }

    fn mailboxes(&self) -> MutexGuard<'_, Vec<Weak<Mailbox>>> {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
