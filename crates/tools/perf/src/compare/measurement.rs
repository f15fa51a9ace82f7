//! What every measurement of a comparison is to its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::orders::{Contact, Outcome, Settings};
use super::softnic;
use crate::error::PerfError;
use crate::nic::Nic;

/// One end's half of a measurement. Its sockets and buffers live as long as the comparison.
pub(super) trait Measurement {
    /// How the other half reaches this one.
    fn contact(&self) -> Contact;
    /// Called once, before the first round.
    fn connect(&mut self, peer: &Contact) -> Result<(), PerfError>;
    /// One round: a sender runs for the duration, a receiver until it is ordered to stop.
    fn run(&mut self, duration: Duration, stop: &StopSign) -> Result<Outcome, PerfError>;
}

/// Whether the coordinator has ordered this end to stop.
#[derive(Clone, Default)]
pub(super) struct StopSign(Arc<AtomicBool>);

impl StopSign {
    pub(super) fn is_up(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, up: bool) {
        self.0.store(up, Ordering::Relaxed);
    }
}

/// The memory that measurements over plain sockets send from and receive into, shared by them, because they take turns.
pub(super) struct Buffers {
    plain: Option<SharedBuffer>,
    nic: Option<Nic>,
    note: fn(String),
}

/// Bytes that several measurements use in turns.
pub(super) type SharedBuffer = std::rc::Rc<std::cell::RefCell<Vec<u8>>>;

impl Buffers {
    pub(super) fn new(note: fn(String)) -> Self {
        Buffers { plain: None, nic: None, note }
    }

    /// The memory, made when it is first asked for. Not zeros, of which there would be only one page.
    pub(super) fn plain(&mut self, byte_count: usize) -> SharedBuffer {
        let make = || SharedBuffer::new(vec![0x5a; byte_count].into());
        self.plain.get_or_insert_with(make).clone()
    }

    /// The device, with memory of its own, opened when it is first asked for.
    pub(super) fn nic(&mut self, settings: &Settings) -> Result<&Nic, PerfError> {
        if self.nic.is_none() {
            self.nic = Some(softnic::open(settings, self.note)?);
        }
        self.nic.as_ref().ok_or_else(|| PerfError::Failed("the device is not open".to_owned()))
    }
}
