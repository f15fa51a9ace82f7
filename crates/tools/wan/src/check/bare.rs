//! A forwarder that does nothing to frames: what the link is compared with.

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use longhaul_forward::clock::Clock;
use longhaul_forward::ring::{self, Unfinished};
use longhaul_forward::{Arrival, Fate, ForwardError, Forwarding, Handler, Outbox, priority};
use longhaul_link::LinkError;
use longhaul_link::namespaces::Side;
use longhaul_time::Instant;
use nix::sys::eventfd::EventFd;

use super::report::CheckError;

/// Each frame leaves by the other interface.
struct PassOn;

impl Handler for PassOn {
    fn handle(&mut self, port: usize, _: &mut Arrival<'_>, _: &mut Outbox) -> Fate {
        Fate::Forward(1 - port)
    }

    fn poll(&mut self, _: Instant, _: &mut Outbox) {}

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

pub(crate) struct Bare {
    is_over: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: JoinHandle<Result<(), ForwardError>>,
}

impl Bare {
    pub(crate) fn start(processor: usize) -> Result<Self, CheckError> {
        let clock = Clock::start();
        let interfaces = Side::BOTH.map(|side| ring::open(side.name(), clock, Unfinished::Refuse));
        let interfaces = interfaces.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut forwarding = Forwarding::new(interfaces, PassOn, clock);
        let never = EventFd::new().map_err(|error| LinkError::Start(error.into()))?;
        let (is_over, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ends, counts) = (is_over.clone(), sent.clone());
        let thread = std::thread::spawn(move || {
            // As the link's thread has it.
            let _ = priority::wake_on_time();
            let _ = priority::run_on(processor);
            let _ = priority::run_before_others(priority::LINK);
            while !ends.load(Ordering::Relaxed) {
                forwarding.turn(never.as_fd(), Duration::from_millis(50))?;
                counts.store(forwarding.counters().sent, Ordering::Relaxed);
            }
            Ok(())
        });
        Ok(Bare { is_over, sent, thread })
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    pub(crate) fn end(self) -> Result<(), CheckError> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| LinkError::Panicked)??;
        Ok(())
    }
}
