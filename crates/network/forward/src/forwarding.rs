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
        // With each frame, how many had been sent by then: they leave before it.
        let fates: Vec<(Fate, usize)> = arrivals
            .iter_mut()
            .map(|arrival| (handler.handle(port, arrival, outbox), outbox.leaving().len()))
            .collect();
        let leaving = outbox.leaving();
        let mut frames: Vec<&[u8]> = Vec::with_capacity(arrivals.len() + leaving.len());
        for (out, sink) in self.sinks.iter_mut().enumerate() {
            let mut done = 0;
            for (arrival, (fate, until)) in arrivals.iter().zip(&fates) {
                let sent = leaving[done..*until].iter().filter(|leaving| leaving.port == out);
                frames.extend(sent.map(|leaving| &leaving.frame[..]));
                done = *until;
                if *fate == Fate::Forward(out) {
                    frames.push(&*arrival.bytes);
                }
            }
            self.counters.send(&mut **sink, &mut frames)?;
        }
        let left = self.clock.now();
        let forwarded = arrivals.iter().zip(&fates).filter(|(_, (fate, _))| matches!(fate, Fate::Forward(_)));
        forwarded.for_each(|(arrival, _)| self.counters.on_left(left - arrival.at));
        leaving.iter().for_each(|leaving| self.counters.on_left(left - leaving.due));
        self.outbox.clear();
        drop(arrivals);
        // Their memory goes back at once, so that the interface can use it.
        self.sources[port].receive(0, &mut Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::sync::{Arc, Mutex};

    use nix::sys::eventfd::EventFd;

    use super::*;

    /// Frames that have arrived.
    struct Given {
        ready: EventFd,
        frames: Vec<Vec<u8>>,
    }

    impl Source for Given {
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.ready.as_fd()
        }

        fn receive<'a>(&'a mut self, most: usize, arrivals: &mut Vec<Arrival<'a>>) -> Result<(), ForwardError> {
            let at = Instant::ZERO;
            arrivals.extend(self.frames.iter_mut().take(most).map(|bytes| Arrival { bytes, at }));
            Ok(())
        }

        fn check(&mut self) -> Result<(), ForwardError> {
            Ok(())
        }

        fn counters(&mut self) -> SourceCounters {
            SourceCounters::default()
        }
    }

    struct Kept(Arc<Mutex<Vec<Vec<u8>>>>);

    impl Sink for Kept {
        fn send(&mut self, frames: &[&[u8]]) -> Result<u64, ForwardError> {
            self.0.lock().unwrap().extend(frames.iter().map(|frame| frame.to_vec()));
            Ok(0)
        }
    }

    /// Sends two frames of its own in place of each third frame.
    struct Adding;

    impl Handler for Adding {
        fn handle(&mut self, _: usize, frame: &mut Arrival<'_>, outbox: &mut Outbox) -> Fate {
            let number = frame.bytes[0];
            if number.is_multiple_of(3) {
                for _ in 0..2 {
                    outbox.send(1, vec![number, 1], Instant::ZERO);
                }
                return Fate::Taken;
            }
            Fate::Forward(1)
        }

        fn poll(&mut self, _: Instant, _: &mut Outbox) {}

        fn next_deadline(&self) -> Option<Instant> {
            None
        }
    }

    #[test]
    fn frames_leave_in_the_order_in_which_they_were_handled() {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let interface = |frames: Vec<Vec<u8>>, sink: Kept| {
            let ready = EventFd::from_value(1).expect("a descriptor");
            Interface { source: Box::new(Given { ready, frames }), sink: Box::new(sink) }
        };
        let frames = (0..10).map(|number| vec![number]).collect();
        let interfaces = vec![interface(frames, Kept(Arc::default())), interface(Vec::new(), Kept(kept.clone()))];
        let mut forwarding = Forwarding::new(interfaces, Adding, Clock::start());
        let never = EventFd::new().expect("a descriptor");
        forwarding.turn(never.as_fd(), Duration::ZERO).expect("a turn");
        let expected: Vec<Vec<u8>> = (0..10)
            .flat_map(|number: u8| if number.is_multiple_of(3) { vec![vec![number, 1]; 2] } else { vec![vec![number]] })
            .collect();
        assert_eq!(*kept.lock().unwrap(), expected);
        assert_eq!(forwarding.counters().sent, expected.len() as u64);
    }
}
