//! The loop.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use longhaul_time::Instant;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::clock::Clock;
use crate::error::ForwardError;
use crate::handler::{Fate, Handler, Outbox};
use crate::interface::{Arrival, Interface, Sink, Source, SourceCounters};

/// Frames that are taken from one interface before another one has its turn.
const BATCH: usize = 128;
/// How often is looked whether the interfaces are there.
const CHECKED_APART: Duration = Duration::from_millis(500);
/// A frame that leaves this much later than it was due is counted as late.
const LATE: Duration = Duration::from_millis(1);

/// Interfaces, and who decides what becomes of their frames.
pub struct Forwarding<H> {
    sources: Vec<Box<dyn Source>>,
    sinks: Vec<Box<dyn Sink>>,
    handler: H,
    outbox: Outbox,
    clock: Clock,
    counters: Counters,
    /// When it was last looked whether the interfaces are there.
    checked: Instant,
}

/// What the loop counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that have left.
    pub sent: u64,
    /// Frames that an interface did not take.
    pub refused: u64,
    /// Frames that left more than a millisecond after they were due.
    pub late: u64,
    /// The latest of them, in nanoseconds.
    pub latest_nanos: u64,
}

/// Why the loop has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// There may be more to do at once.
    Turn,
    /// The other descriptor can be read.
    Other,
}

impl Counters {
    /// A frame has left this long after it was due.
    fn on_left(&mut self, late_by: Duration) {
        self.latest_nanos = self.latest_nanos.max(late_by.as_nanos() as u64);
        self.late += u64::from(late_by > LATE);
    }

    /// Send frames, and count them.
    fn send(&mut self, sink: &mut dyn Sink, frames: &mut Vec<&[u8]>) -> Result<(), ForwardError> {
        if !frames.is_empty() {
            let refused = sink.send(frames)?;
            self.refused += refused;
            self.sent += frames.len() as u64 - refused;
            frames.clear();
        }
        Ok(())
    }
}

impl<H: Handler> Forwarding<H> {
    /// Between interfaces, which the handler knows by their index. Times are those of `clock`, which the sources use too.
    pub fn new(interfaces: Vec<Interface>, handler: H, clock: Clock) -> Self {
        let (sources, sinks) = interfaces.into_iter().map(|Interface { source, sink }| (source, sink)).unzip();
        Forwarding {
            sources,
            sinks,
            handler,
            outbox: Outbox::default(),
            clock,
            counters: Counters::default(),
            checked: clock.now(),
        }
    }

    /// Who decides.
    pub fn handler(&mut self) -> &mut H {
        &mut self.handler
    }

    /// The clock that frames are stamped with.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// What was counted so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What an interface has counted so far.
    pub fn source_counters(&mut self, port: usize) -> SourceCounters {
        self.sources[port].counters()
    }

    /// Sleep until a frame arrives, a deadline has come or `other` can be read, but no longer than `at_most`; then move
    /// frames.
    pub fn turn(&mut self, other: BorrowedFd<'_>, at_most: Duration) -> Result<Woken, ForwardError> {
        let is_woken = self.sleep(other, at_most)?;
        self.send_due()?;
        for port in 0..self.sources.len() {
            self.take_from(port)?;
        }
        self.send_due()?;
        Ok(if is_woken { Woken::Other } else { Woken::Turn })
    }

    /// Returns whether `other` can be read.
    fn sleep(&mut self, other: BorrowedFd<'_>, at_most: Duration) -> Result<bool, ForwardError> {
        let now = self.clock.now();
        let wait = self.handler.next_deadline().map_or(at_most, |deadline| at_most.min(deadline - now));
        let interest = PollFlags::POLLIN;
        let mut polled: Vec<PollFd<'_>> =
            self.sources.iter().map(|source| PollFd::new(source.descriptor(), interest)).collect();
        polled.push(PollFd::new(other, interest));
        match ppoll(&mut polled, Some(TimeSpec::from_duration(wait)), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(ForwardError::Wait(error.into())),
        }
        let has = |polled: &PollFd<'_>, flags| polled.revents().is_some_and(|events| events.intersects(flags));
        let is_woken = polled.last().is_some_and(|other| has(other, PollFlags::all()));
        let trouble = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
        let in_trouble: Vec<usize> = (0..self.sources.len()).filter(|port| has(&polled[*port], trouble)).collect();
        drop(polled);
        in_trouble.into_iter().try_for_each(|port| self.sources[port].check())?;
        let now = self.clock.now();
        if now - self.checked >= CHECKED_APART {
            self.checked = now;
            self.sources.iter_mut().try_for_each(|source| source.check())?;
        }
        Ok(is_woken)
    }

    /// Send what the handler has kept, and is due.
    fn send_due(&mut self) -> Result<(), ForwardError> {
        let now = self.clock.now();
        if self.handler.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.handler.poll(now, &mut self.outbox);
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), ForwardError> {
        if self.outbox.leaving().is_empty() {
            return Ok(());
        }
        let mut frames: Vec<&[u8]> = Vec::with_capacity(self.outbox.leaving().len());
        for (port, sink) in self.sinks.iter_mut().enumerate() {
            let leaving = self.outbox.leaving().iter().filter(|leaving| leaving.port == port);
            frames.extend(leaving.map(|leaving| &leaving.frame[..]));
            self.counters.send(&mut **sink, &mut frames)?;
        }
        let left = self.clock.now();
        self.outbox.leaving().iter().for_each(|leaving| self.counters.on_left(left - leaving.due));
        self.outbox.clear();
        Ok(())
    }

    /// Ask the handler about what has arrived at an interface.
    fn take_from(&mut self, port: usize) -> Result<(), ForwardError> {
        let mut arrivals: Vec<Arrival<'_>> = Vec::new();
        self.sources[port].receive(BATCH, &mut arrivals)?;
        if arrivals.is_empty() {
            return Ok(());
        }
        let (handler, outbox) = (&mut self.handler, &mut self.outbox);
        let fates: Vec<Fate> = arrivals.iter_mut().map(|arrival| handler.handle(port, arrival, outbox)).collect();
        let mut frames: Vec<&[u8]> = Vec::with_capacity(arrivals.len());
        for (out, sink) in self.sinks.iter_mut().enumerate() {
            let leaving = arrivals.iter().zip(&fates).filter(|(_, fate)| **fate == Fate::Forward(out));
            frames.extend(leaving.map(|(arrival, _)| &*arrival.bytes));
            self.counters.send(&mut **sink, &mut frames)?;
        }
        let left = self.clock.now();
        let forwarded = arrivals.iter().zip(&fates).filter(|(_, fate)| matches!(fate, Fate::Forward(_)));
        forwarded.for_each(|(arrival, _)| self.counters.on_left(left - arrival.at));
        drop(arrivals);
        // Their memory goes back at once, so that the interface can use it.
        self.sources[port].receive(0, &mut Vec::new())?;
        self.flush()
    }
}
