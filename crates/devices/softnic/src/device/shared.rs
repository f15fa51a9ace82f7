//! What the objects of a device share, and what checks them.

use std::any::Any;
use std::sync::{Arc, MutexGuard};

use longhaul_verbs::CreateError;

use super::drive::Drive;
use crate::config::Config;
use crate::nic::Nic;
use crate::nic::guard::{NicGuard, NicLock};
use crate::queue_pair::QueuePairKey;
use crate::resources::Signal;

/// What all objects of a device hold.
pub(super) struct Shared {
    pub(super) nic: Arc<NicLock>,
    /// Distinguishes it from every other device of the process.
    pub(super) serial: u64,
    pub(super) name: String,
    pub(super) drive: Box<dyn Drive>,
    /// Readable while there are asynchronous events.
    #[cfg_attr(not(unix), expect(dead_code, reason = "only its descriptor is asked for"))]
    pub(super) events: Option<Arc<dyn Signal>>,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Nic> {
        self.nic.lock()
    }

    /// For destructors: a device that has panicked needs no tidying, and a second panic would abort the process.
    pub(super) fn tidy<R>(&self, work: impl FnOnce(&mut Nic) -> R) {
        if let Ok(mut nic) = self.nic.lock_unless_panicked() {
            work(&mut nic);
        }
    }

    /// Have the answer sent that a queue pair owes its peer, before it is forgotten.
    pub(super) fn send_answer_of(&self, nic: &mut NicGuard<'_>, key: QueuePairKey) {
        if nic.queue_pairs.get(key).is_some_and(|queue_pair| queue_pair.owes_anything()) {
            self.drive.before_destroy(nic);
        }
    }

    /// `false` when it is gone already.
    pub(super) fn destroy_queue_pair(&self, nic: MutexGuard<'_, Nic>, key: QueuePairKey) -> bool {
        let mut nic = NicGuard::new(nic);
        self.send_answer_of(&mut nic, key);
        let was_there = nic.remove_queue_pair(key);
        // Others may have waited for what it had in flight to a common peer.
        if nic.has_output() {
            self.drive.on_work(nic);
        }
        was_there
    }

    /// An object of ours behind a verbs object, if it is of this very device.
    pub(super) fn own<'a, T: Owned>(self: &Arc<Self>, object: &'a dyn Any) -> Option<&'a T> {
        object.downcast_ref::<T>().filter(|ours| Arc::ptr_eq(ours.owner(), self))
    }

    /// Run a call and tell the driver if it made work.
    pub(super) fn with<R>(&self, call: impl FnOnce(&mut Nic) -> R) -> R {
        let mut nic = self.lock();
        let result = call(&mut nic);
        if nic.has_news() | nic.shared.take_new_deadline() {
            self.drive.on_work(NicGuard::new(nic));
        }
        result
    }
}

pub(super) fn check_queue_size(entries: u32, config: &Config) -> Result<(), CreateError> {
    let most = config.completion_queue_entries_max;
    match entries {
        0 => Err(CreateError::InvalidArgument { what: "completion queue entries", expected: "at least 1" }),
        _ if entries > most => {
            Err(CreateError::TooMany { what: "completion queue entries", requested: entries.into(), most: most.into() })
        }
        _ => Ok(()),
    }
}

pub(super) fn check_count(what: &'static str, existing: u64, most: u64) -> Result<(), CreateError> {
    if existing >= most {
        return Err(CreateError::TooMany { what, requested: existing + 1, most });
    }
    Ok(())
}

/// An object that belongs to a device.
pub(super) trait Owned: Any {
    fn owner(&self) -> &Arc<Shared>;
}
