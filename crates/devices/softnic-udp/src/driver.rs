//! Who polls: the caller's own calls, and a background thread for ends that never poll.
//!
//! A caller that polls for completions drains the sockets itself: nothing is faster, because nobody has to be woken. A
//! program that sleeps, computes, or only lends its memory to a peer is served by the background thread, which sleeps until
//! something arrives or a deadline comes. Both hold the device's lock while they work, a bounded time each.
//!
//! So that the two do not get into each other's way, the thread leaves the sockets alone while callers poll often:
//!
//! ```text
//!   Watching ── many polls since the last look ──▶ Attended (looks again every millisecond)
//!      ▲                                              │
//!      └──── few polls since the last look, or a program asks to be told of completions ──┘
//! ```
//!
//! No wake-up is lost: what the two tell each other, and why that suffices, is in `rest`.

mod doorbell;
mod rest;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use longhaul_softnic::{Config, Device, Drive, Layered, Nic, NicGuard, NicLock, Occasion, Route, Signal, Stack};
use longhaul_time::Instant;
use longhaul_verbs::{Capabilities, LinkState};
use nix::sys::eventfd::EventFd;

use self::doorbell::{Doorbell, eventfd};
use self::rest::{Left, Nap, Rest};
use crate::capture::CaptureLayer;
use crate::config::Background;
use crate::link::LinkWatch;
use crate::port::UdpPort;

/// How long the busy thread waits, at most, for callers to take the lock that it has let go of. They may have to be woken
/// first, on a core that somebody else has.
const GIVE_WAY: Duration = Duration::from_millis(1);

/// Drives one device on sockets.
pub(crate) struct Driver {
    /// Taken after the device's lock, never before it.
    state: Mutex<State>,
    doorbell: Doorbell,
    background: Background,
    started: std::time::Instant,
}

struct State {
    port: UdpPort,
    stack: Stack,
    rest: Rest,
}

impl State {
    /// What a step needs.
    fn split(&mut self, now: Instant) -> (Layered<'_, UdpPort>, &mut Rest) {
        (Layered::new(&mut self.port, &mut self.stack, now), &mut self.rest)
    }
}

impl Driver {
    /// Make a device and start to drive it.
    pub(crate) fn start(
        config: Config,
        port: UdpPort,
        mut stack: Stack,
        background: Background,
    ) -> io::Result<(Device, Weak<Driver>)> {
        // Instants count from here; a capture shows them as dates.
        let started = std::time::Instant::now();
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        stack.layers_mut::<CaptureLayer>().for_each(|layer| layer.set_origin(since_1970.clone().unwrap_or_default()));
        let link = LinkWatch::new(&config.addresses);
        if let Err(error) = &link {
            tracing::warn!(%error, "the system does not tell when the link goes down");
        }
        let driver = Arc::new(Driver {
            doorbell: Doorbell::new(port.arrivals(), link.ok())?,
            state: Mutex::new(State { port, stack, rest: Rest::new() }),
            background,
            started,
        });
        let (give_nic, take_nic) = mpsc::channel::<Arc<NicLock>>();
        let thread = std::thread::Builder::new().name(format!("{} driver", config.name)).spawn({
            let driver = driver.clone();
            move || {
                if let Ok(nic) = take_nic.recv() {
                    driver.run(&nic);
                }
            }
        })?;
        let events = driver.create_signal()?;
        let weak = Arc::downgrade(&driver);
        let link_state = driver.doorbell.link_state();
        let device = Device::driven(config, Box::new(Attached { driver, thread: Some(thread) }), events);
        // Not a change: there was nobody to see it otherwise.
        device.nic().begin_with_link_state(link_state.unwrap_or(LinkState::Active));
        // The thread waits for it. It never holds the device itself, which so goes when its last user lets go of it, and not
        // before the thread has ended.
        give_nic.send(device.nic_lock()).map_err(io::Error::other)?;
        Ok((device, weak))
    }

    /// Look at the port and its layers, or change them, between two steps.
    pub(crate) fn with_port<T>(&self, change: impl FnOnce(&mut UdpPort, &mut Stack, Instant) -> T) -> T {
        let mut state = self.state();
        let State { port, stack, .. } = &mut *state;
        let result = change(port, stack, self.now());
        // What the thread sleeps for may be due at another time now.
        state.rest.wake(&self.doorbell);
        result
    }

    /// Change the layers, for destructors: a device that has panicked needs no tidying, and a second panic would abort the
    /// process.
    pub(crate) fn tidy(&self, change: impl FnOnce(&mut Stack)) {
        if let Ok(mut state) = self.state.lock() {
            change(&mut state.stack);
            state.rest.wake(&self.doorbell);
        }
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.started.elapsed().as_nanos() as u64)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // As with the device's own lock: going on with half a change would hide the bug.
        self.state.lock().expect("no other thread has panicked while driving the device")
    }

    /// The background thread.
    fn run(&self, nic_lock: &NicLock) {
        let mut active_until = Instant::ZERO;
        let mut link_state = nic_lock.guard().link_state();
        loop {
            let mut nic = nic_lock.guard();
            let mut state = self.state();
            let now = self.now();
            let (mut port, rest) = state.split(now);
            let nap = rest.look(now, || {
                let received_before = nic.counters().rcvd_pkts;
                let mut has_more = port.receive(&mut nic, false);
                has_more |= port.transmit_from(&mut nic, Occasion::Step);
                if let Background::Spin(patience) = self.background
                    && nic.counters().rcvd_pkts != received_before
                {
                    active_until = now + patience;
                }
                Left { has_more: has_more || now < active_until, deadline: next_deadline(&nic, &port) }
            });
            drop((state, nic));
            match nap {
                None => return,
                Some(Nap::Awake) => self.give_way(nic_lock),
                Some(nap) => {
                    if self.doorbell.sleep(nap, self.now())
                        && let Some(state) = self.doorbell.link_state()
                        // Most of what the kernel reports is about other interfaces.
                        && std::mem::replace(&mut link_state, state) != state
                    {
                        nic_lock.guard().set_link_state(state);
                    }
                }
            }
        }
    }

    /// Let callers have the lock that wait for it: taking it again at once, the thread would always be faster than somebody
    /// who has to be woken first.
    fn give_way(&self, nic_lock: &NicLock) {
        let until = self.now() + GIVE_WAY;
        loop {
            std::thread::yield_now();
            if !nic_lock.is_waited_for() || self.now() >= until {
                return;
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // A last acknowledgement may be among what the kernel has not taken, or a layer holds. A layer that has panicked is not called again.
        let now = self.now();
        if let Ok(state) = self.state.get_mut() {
            state.split(now).0.close();
        }
    }
}

/// When to look at device and port again, if nothing happens before.
fn next_deadline(nic: &Nic, port: &Layered<'_, UdpPort>) -> Option<Instant> {
    Instant::earlier_of(nic.next_deadline(), port.next_deadline())
}

/// The driver as the device holds it; goes with the device.
struct Attached {
    driver: Arc<Driver>,
    thread: Option<JoinHandle<()>>,
}

impl Drive for Attached {
    fn capabilities(&self) -> Capabilities {
        Capabilities::EVENT_DESCRIPTORS | Capabilities::FREE_UDP_PORT
    }

    fn source_port(&self, route: &Route) -> Option<u16> {
        self.driver.state().port.source_port(route)
    }

    fn on_work(&self, mut nic: NicGuard<'_>) {
        let driver = &*self.driver;
        let mut state = driver.state();
        let now = driver.now();
        let (mut port, rest) = state.split(now);
        let occasion = if rest.keeps_answers(now) { Occasion::PostOnly } else { Occasion::Post };
        if nic.next_deadline().is_some_and(|deadline| deadline <= now) {
            // Nobody has looked at the sockets: a time-out has to wait until somebody has.
            nic.note_arrivals_left(true, now);
        }
        let has_more = port.transmit_from(&mut nic, occasion);
        rest.rouse(&driver.doorbell, Left { has_more, deadline: next_deadline(&nic, &port) });
    }

    fn on_empty_poll(&self, nic: &mut NicGuard<'_>) {
        let driver = &*self.driver;
        let mut state = driver.state();
        let now = driver.now();
        let (mut port, rest) = state.split(now);
        rest.note_poll(now);
        let completions_before = nic.completion_count();
        port.receive(nic, true);
        if nic.completion_count() != completions_before {
            rest.keep_answers(now);
        }
        let is_due = nic.has_due_work(now) || port.next_deadline().is_some_and(|deadline| deadline <= now);
        let mut has_more = false;
        if is_due {
            let occasion = if rest.keeps_answers(now) { Occasion::PostOnly } else { Occasion::Step };
            has_more = port.transmit_from(nic, occasion);
        }
        rest.rouse(&driver.doorbell, Left { has_more, deadline: next_deadline(nic, &port) });
    }

    fn give_way(&self) {
        std::thread::yield_now();
    }

    fn on_armed(&self, _nic: &mut NicGuard<'_>) {
        self.driver.state().rest.note_armed(&self.driver.doorbell);
    }

    fn before_destroy(&self, nic: &mut NicGuard<'_>) {
        let driver = &*self.driver;
        driver.state().split(driver.now()).0.transmit_from(nic, Occasion::Step);
    }

    fn create_signal(&self) -> io::Result<Option<Arc<dyn Signal>>> {
        self.driver.create_signal()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // Also after a panic under the lock: then the thread has ended, or will when it asks for the lock.
        self.driver.state.lock().unwrap_or_else(PoisonError::into_inner).rest.close(&self.driver.doorbell);
        if let Some(thread) = self.thread.take()
            // The thread itself may have been the last to hold the device.
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic there has been reported there.
            let _ = thread.join();
        }
    }
}

impl Driver {
    fn create_signal(&self) -> io::Result<Option<Arc<dyn Signal>>> {
        Ok(Some(Arc::new(EventSignal(eventfd()?))))
    }
}

/// An eventfd: readable while its count is not 0.
struct EventSignal(EventFd);

impl Signal for EventSignal {
    fn set(&self) {
        let _ = self.0.write(1);
    }

    fn clear(&self) {
        let _ = self.0.read();
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
