//! The device behind the contexts of one address.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use longhaul_softnic::Config;
use longhaul_softnic_udp::{ForeignMemory, UdpConfig, UdpDevice, UdpPortChoice, foreign_memory};
use longhaul_verbs::raw;
use nix::sys::signal::{SigSet, SigmaskHow};

use crate::configuration;
use crate::mailbox::{Mailbox, Owner};

/// A device that is open in this process.
pub(crate) struct Device {
    address: IpAddr,
    pub(crate) raw: Arc<dyn raw::Device>,
    pub(crate) memory: ForeignMemory,
    /// Who is told of the device's events.
    mailboxes: Mutex<Vec<Weak<Mailbox>>>,
    /// What events are about.
    owners: Mutex<Owners>,
}

/// Objects of C by the names that the device gives them.
#[derive(Default)]
pub(crate) struct Owners {
    pub(crate) queue_pairs: HashMap<u32, Owner>,
    pub(crate) completion_queues: HashMap<u32, Owner>,
    pub(crate) shared_receive_queues: HashMap<u32, Owner>,
}

/// Devices that are open: a program that opens one twice gets two contexts of it.
static OPEN: Mutex<Vec<Weak<Device>>> = Mutex::new(Vec::new());

impl Device {
    pub(crate) fn open(address: IpAddr) -> Result<Arc<Device>, String> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|device| device.strong_count() > 0);
        if let Some(known) = open.iter().filter_map(Weak::upgrade).find(|device| device.address == address) {
            return Ok(known);
        }
        let mut seed = [0; 32];
        let random = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut seed));
        random.map_err(|error| format!("cannot read /dev/urandom: {error}"))?;
        let memory = foreign_memory().map_err(|error| {
            format!(
                "this host does not let a process copy its own memory with process_vm_readv ({error}): allow it in the \
                 sandbox's rules; without it, memory that the program frees too early would crash the program"
            )
        })?;
        let mut config = Config::new(configuration::device_name(address), vec![address], seed);
        config.foreign_memory = Some(memory);
        let mut udp = UdpConfig::default();
        // Programs exchange no port, so no other can be used.
        udp.udp_port = UdpPortChoice::Roce;
        udp.receive_in_place = false;
        // The program's signals are for its own threads.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
        let device = UdpDevice::open(config, udp);
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
        let device = device.map_err(|error| {
            format!("{error}; programs on one host need an address each: longhaul run -d ADDRESS, such as 127.0.0.2")
        })?;
        let raw = Arc::new(device.device().clone());
        let device = Arc::new(Device { address, raw, memory, mailboxes: Mutex::default(), owners: Mutex::default() });
        open.push(Arc::downgrade(&device));
        Ok(device)
    }

    pub(crate) fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Tell a context of the device's events, for as long as it is open.
    pub(crate) fn add_mailbox(&self, mailbox: &Arc<Mailbox>) {
        self.mailboxes().push(Arc::downgrade(mailbox));
    }

    /// Of all contexts that are open.
    pub(crate) fn for_each_mailbox(&self, mut visit: impl FnMut(&Mailbox)) {
        self.mailboxes().retain(|mailbox| mailbox.upgrade().inspect(|mailbox| visit(mailbox)).is_some());
    }

    fn mailboxes(&self) -> MutexGuard<'_, Vec<Weak<Mailbox>>> {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
