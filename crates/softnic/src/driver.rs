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
//! No wake-up is lost: what the thread sleeps for is written down under the lock, and whoever makes work for it that
//! is due earlier, also under the lock, writes to an eventfd that the thread waits for in any case.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use longhaul_time::Instant;
use longhaul_verbs::Capabilities;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::Epoll;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

use crate::Config;
use crate::device::{Device, WeakDevice};
use crate::drive::{Drive, Signal};
use crate::guard::NicGuard;
use crate::nic::Nic;
use crate::udp::{Background, Occasion, UdpPort};

/// How long the thread leaves the sockets to callers before it looks whether they still poll.
const ATTENDED_LOOK: Duration = Duration::from_millis(1);
/// So many polls since the last look make a caller that can be relied on.
const ATTENDED_POLLS: u64 = 4;

/// While a caller is busy with completions, and posts, and polls again, acknowledgements are kept back this long at most, and
/// one serves several messages: each would cost a system call at a moment when the peer waits for something else. Only
/// callers that can be relied on; who waits for a WRITE to be acknowledged does not wait for this, because a WRITE
/// completes nothing at its target.
const ANSWER_DELAY: Duration = Duration::from_micros(10);
/// After so many messages one is sent in any case.
const ANSWERS_KEPT_MAX: u32 = 8;

/// Drives one device on sockets.
pub(crate) struct Driver {
    /// Taken after the device's lock, never before it.
    state: Mutex<State>,
    /// Ends the thread's sleep.
    doorbell: EventFd,
    /// How often callers have looked for completions and found none.
    polls: AtomicU64,
    background: Background,
    /// Readable when something has arrived for the port.
    arrivals: Arc<Epoll>,
    started: std::time::Instant,
}

struct State {
    port: UdpPort,
    sleep: Sleep,
    /// Since when answers to peers are kept back, because a caller has completions to look at first.
    answers_kept_since: Option<Instant>,
    /// How many times completions have been handed over since.
    answers_kept_times: u32,
}

/// What the background thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    /// It runs, and will look at everything before it sleeps.
    Awake,
    /// It sleeps until something arrives, but not longer than this.
    Watching { until: Option<Instant> },
    /// It sleeps for a moment and leaves the sockets to callers.
    Attended,
}

impl Driver {
    /// Make a device and start to drive it.
    pub(crate) fn start(
        config: Config,
        mut port: UdpPort,
        background: Background,
    ) -> io::Result<(Device, Weak<Driver>)> {
        // Instants count from here; a capture shows them as dates.
        let started = std::time::Instant::now();
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        port.set_origin(since_1970.unwrap_or_default());
        let driver = Arc::new(Driver {
            arrivals: port.arrivals(),
            state: Mutex::new(State { port, sleep: Sleep::Awake, answers_kept_since: None, answers_kept_times: 0 }),
            doorbell: EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            polls: AtomicU64::new(0),
            background,
            started,
        });
        let (give_device, take_device) = mpsc::channel::<WeakDevice>();
        let thread = std::thread::Builder::new().name(format!("{} driver", config.name)).spawn({
            let driver = driver.clone();
            move || {
                if let Ok(device) = take_device.recv() {
                    driver.run(&device);
                }
            }
        })?;
        let events = driver.create_signal()?;
        let weak = Arc::downgrade(&driver);
        let device = Device::driven(config, Box::new(Attached { driver, thread: Some(thread) }), events);
        // The thread waits for it, and ends only when the device is gone.
        give_device.send(device.downgrade()).map_err(io::Error::other)?;
        Ok((device, weak))
    }

    /// Look at the port, or change it, between two steps.
    pub(crate) fn with_port<T>(&self, change: impl FnOnce(&mut UdpPort, Instant) -> T) -> T {
        let mut state = self.state();
        let result = change(&mut state.port, self.now());
        // What the thread sleeps for may be due at another time now.
        self.ring(&mut state);
        result
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.started.elapsed().as_nanos() as u64)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // As with the device's own lock: going on with half a change would hide the bug.
        self.state.lock().expect("no other thread has panicked while driving the device")
    }

    /// The background thread.
    fn run(&self, device: &WeakDevice) {
        let mut polls_seen = 0;
        let mut active_until = Instant::ZERO;
        while let Some(device) = device.upgrade() {
            let polls = self.polls.load(Ordering::Relaxed);
            let is_attended = polls.wrapping_sub(polls_seen) >= ATTENDED_POLLS;
            polls_seen = polls;
            let mut nic = device.nic();
            let mut state = self.state();
            let now = self.now();
            if is_attended {
                state.sleep = Sleep::Attended;
                drop((state, nic));
                drop(device);
                self.wait(&[], Some(ATTENDED_LOOK));
                continue;
            }
            let received_before = nic.counters().rcvd_pkts;
            let has_more = state.step(&mut nic, now);
            if let Background::Spin(patience) = self.background
                && nic.counters().rcvd_pkts != received_before
            {
                active_until = now + patience;
            }
            if has_more || now < active_until {
                state.sleep = Sleep::Awake;
                drop((state, nic));
                // Callers wait for the lock: let them have it.
                std::thread::yield_now();
                continue;
            }
            let until = state.next_deadline(&nic);
            state.sleep = Sleep::Watching { until };
            drop((state, nic));
            drop(device);
            self.wait(&[self.arrivals.0.as_fd()], until.map(|until| until.saturating_since(now)));
        }
    }

    /// Sleep until the doorbell rings, one of the descriptors is readable, or time is up.
    fn wait(&self, descriptors: &[BorrowedFd<'_>], timeout: Option<Duration>) {
        let mut waits: Vec<PollFd<'_>> = std::iter::once(self.doorbell.as_fd())
            .chain(descriptors.iter().copied())
            .map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN))
            .collect();
        match ppoll(&mut waits, timeout.map(TimeSpec::from), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => tracing::error!(%error, "the driver cannot wait"),
        }
        if waits[0].any() == Some(true) {
            // It counts; reading it makes it 0 again. That it is 0 already is no harm.
            let _ = self.doorbell.read();
        }
    }

    /// End the thread's sleep, if there is something for it to do before it would wake by itself.
    fn rouse(&self, nic: &Nic, state: &mut State, has_more: bool) {
        let Sleep::Watching { until } = state.sleep else { return };
        let is_earlier = match (state.next_deadline(nic), until) {
            (Some(deadline), Some(until)) => deadline < until,
            (deadline, _) => deadline.is_some(),
        };
        if has_more || is_earlier {
            self.ring(state);
        }
    }

    fn ring(&self, state: &mut State) {
        state.sleep = Sleep::Awake;
        // Fails only when it has been rung 2^64 times without being heard.
        let _ = self.doorbell.write(1);
    }
}

impl State {
    /// Take in what has arrived, and send. Whether there is more to do at once.
    fn step(&mut self, nic: &mut NicGuard<'_>, now: Instant) -> bool {
        let more_to_receive = self.port.receive(nic, now, false);
        let more_to_send = self.port.transmit_from(nic, now, Occasion::Step);
        self.answers_kept_since = None;
        more_to_receive || more_to_send
    }

    /// Whether answers are kept back still. Forgets about them when it is time.
    fn keeps_answers(&mut self, now: Instant) -> bool {
        let is_early = self.answers_kept_since.is_some_and(|since| now < since + ANSWER_DELAY);
        let keeps = is_early && self.answers_kept_times < ANSWERS_KEPT_MAX && self.sleep == Sleep::Attended;
        if !keeps {
            self.answers_kept_since = None;
            self.answers_kept_times = 0;
        }
        keeps
    }

    fn next_deadline(&self, nic: &Nic) -> Option<Instant> {
        match (nic.next_deadline(), self.port.next_deadline()) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }
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

    fn on_work(&self, mut nic: NicGuard<'_>) {
        let driver = &*self.driver;
        let mut state = driver.state();
        let now = driver.now();
        let occasion = if state.keeps_answers(now) { Occasion::PostOnly } else { Occasion::Post };
        let has_more = state.port.transmit_from(&mut nic, now, occasion);
        driver.rouse(&nic, &mut state, has_more);
    }

    fn on_empty_poll(&self, nic: &mut NicGuard<'_>) {
        let driver = &*self.driver;
        // Under the lock, so a plain store would do; the thread reads it without.
        driver.polls.fetch_add(1, Ordering::Relaxed);
        let mut state = driver.state();
        let now = driver.now();
        let completions_before = nic.completion_count();
        state.port.receive(nic, now, true);
        if nic.completion_count() != completions_before && state.sleep == Sleep::Attended {
            // A program that has been given something answers it first, as often as not.
            state.answers_kept_since.get_or_insert(now);
            state.answers_kept_times += 1;
        }
        let is_due = nic.has_due_work(now) || state.port.next_deadline().is_some_and(|deadline| deadline <= now);
        if is_due {
            let occasion = if state.keeps_answers(now) { Occasion::PostOnly } else { Occasion::Step };
            state.port.transmit_from(nic, now, occasion);
        }
        let has_more = nic.has_output();
        driver.rouse(nic, &mut state, has_more);
    }

    fn on_armed(&self, _nic: &mut NicGuard<'_>) {
        let mut state = self.driver.state();
        if state.sleep == Sleep::Attended {
            self.driver.ring(&mut state);
        }
    }

    fn create_signal(&self) -> io::Result<Option<Arc<dyn Signal>>> {
        self.driver.create_signal()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = self.driver.doorbell.write(1);
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
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Some(Arc::new(EventSignal(EventFd::from_value_and_flags(0, flags)?))))
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
