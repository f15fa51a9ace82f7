//! What a context and the objects made from it share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use longhaul_verbs::raw;

use crate::device::Device;
use crate::mailbox::Mailbox;

/// A context's part of its device. Each object has it too, and so keeps the device open: a program may close the context
/// with objects left, and a second device at the address could not have the port.
pub(crate) struct Session {
    pub(crate) device: Arc<Device>,
    pub(crate) mailbox: Arc<Mailbox>,
    left: Mutex<Left>,
}

/// What peers reach memory through, by the addresses of C's structures.
#[derive(Default)]
struct Left {
    regions: HashMap<usize, Weak<dyn raw::MemoryRegion>>,
    queue_pairs: HashMap<usize, Weak<dyn raw::QueuePair>>,
}

impl Session {
    pub(crate) fn new(device: Arc<Device>, mailbox: Arc<Mailbox>) -> Arc<Session> {
        device.add_mailbox(&mailbox);
        Arc::new(Session { device, mailbox, left: Mutex::default() })
    }

    /// Whether this process opened the device. In a child of fork it has no thread, and its locks may be held for ever:
    /// whatever is destroyed there is left alone.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.device.process == std::process::id()
    }

    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add_region(&self, structure: usize, region: &Arc<dyn raw::MemoryRegion>) {
        self.left().regions.insert(structure, Arc::downgrade(region));
    }

    pub(crate) fn remove_region(&self, structure: usize) {
        self.left().regions.remove(&structure);
    }

    pub(crate) fn add_queue_pair(&self, structure: usize, pair: &Arc<dyn raw::QueuePair>) {
        self.left().queue_pairs.insert(structure, Arc::downgrade(pair));
    }

    pub(crate) fn remove_queue_pair(&self, structure: usize) {
        self.left().queue_pairs.remove(&structure);
    }

    /// End what the program has left, as the kernel does: no peer reaches its memory afterwards.
    pub(crate) fn close(&self) {
        let Left { regions, queue_pairs } = std::mem::take(&mut *self.left());
        for pair in queue_pairs.into_values().filter_map(|pair| pair.upgrade()) {
            // An error says that it is gone.
            let _ = pair.destroy();
        }
        for region in regions.into_values().filter_map(|region| region.upgrade()) {
            // Windows may be bound to it.
            let _ = region.abandon();
        }
        self.device.remove_mailbox(&self.mailbox);
    }
}
