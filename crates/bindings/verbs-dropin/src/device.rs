//! The device behind the contexts of one address.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use longhaul_softnic::Config;
use longhaul_softnic_udp::{ForeignMemory, OpenError, UdpConfig, UdpDevice, UdpPortChoice, foreign_memory};
use longhaul_verbs::raw;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow};

use crate::configuration;
use crate::mailbox::{Mailbox, Owner};

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

/// Why a device was not opened.
pub(crate) struct Refusal {
    pub(crate) text: String,
    pub(crate) errno: Errno,
}

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
        // Programs exchange no port, so no other can be used.
        udp.udp_port = UdpPortChoice::Roce;
        udp.receive_in_place = false;
        // The program's signals are for its own threads.
        let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
        let device = UdpDevice::open(config, udp);
        if let Ok(before) = before {
            let _ = before.thread_set_mask();
        }
        let device = device.map_err(|error| refusal(&error))?;
        let raw = Arc::new(device.device().clone());
        let device =
            Arc::new(Device { address, process, raw, memory, mailboxes: Mutex::default(), owners: Mutex::default() });
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

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

fn refusal(error: &OpenError) -> Refusal {
    let mut text = error.to_string();
    let errno = match error {
        OpenError::PortTaken { .. } => {
            text.push_str("; programs on one host need an address each: longhaul run -d ADDRESS, such as 127.0.0.2");
            // What programs know of a device that somebody else has.
            Errno::EBUSY
        }
        OpenError::NotOurAddress { .. } | OpenError::UnusableAddress { .. } => Errno::EADDRNOTAVAIL,
        OpenError::System { source, .. } => {
            text = format!("{text}: {source}");
            errno_of(source)
        }
        _ => Errno::EINVAL,
    };
    Refusal { text, errno }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_the_systems_number() {
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        let number = |error: OpenError| refusal(&error).errno;
        assert_eq!(number(OpenError::PortTaken { address, port: 4791 }), Errno::EBUSY);
        assert_eq!(number(OpenError::NotOurAddress { address }), Errno::EADDRNOTAVAIL);
        let source = io::Error::from_raw_os_error(Errno::EMFILE as i32);
        assert_eq!(number(OpenError::System { what: "open a socket", address, source }), Errno::EMFILE);
    }
}
