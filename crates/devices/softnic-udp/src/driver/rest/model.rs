//! The interleavings of callers and background thread, tried out by loom: all with up to three preemptions.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p longhaul-softnic-udp --lib --target-dir target/loom driver::rest::model`.
//!
//! [`Rest`] is the real one. Around it is a device of a few numbers, and the three calls and the loop of `driver.rs` in the same
//! order of steps. Time stands still unless a test moves it, and the bell has no time-out of its own: so whatever nobody was
//! woken for is a deadlock, which loom reports. The last test plants mistakes, and sees that they are found.

use longhaul_time::Instant;
use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
use loom::thread::{self, JoinHandle};

use super::{ATTENDED_POLLS, Bell, Left, Nap, Rest};

/// A wrong way to do it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    /// Write down the nap after letting go of the lock.
    PublishLate,
    /// Say that the thread is awake, and forget to ring.
    ForgetToRing,
    /// Hear the bell just before sleeping, instead of just after.
    HearBeforeSleeping,
    /// Decide that callers can be relied on before taking the lock.
    JudgeBeforeLocking,
}

/// What the kernel has: the bell, the sockets, the clock.
#[derive(Default)]
struct Kernel {
    is_rung: bool,
    ring_count: u32,
    arrivals: u32,
    now: u64,
}

struct Outside {
    kernel: Mutex<Kernel>,
    changed: Condvar,
    mistake: Option<Mistake>,
    /// Whether a nap while callers poll ends by itself, as it does after a millisecond.
    attended_ends: bool,
}

impl Outside {
    fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut Kernel)) {
        change(&mut self.kernel());
        self.changed.notify_all();
    }

    /// As `Doorbell::sleep`.
    fn sleep(&self, nap: Nap) {
        let mut kernel = self.kernel();
        if self.mistake == Some(Mistake::HearBeforeSleeping) {
            kernel.is_rung = false;
        }
        let ends = |kernel: &Kernel| match nap {
            Nap::Awake => true,
            Nap::Watching { until } => {
                kernel.arrivals > 0 || until.is_some_and(|until| until <= Instant::from_nanos(kernel.now))
            }
            Nap::Attended => self.attended_ends,
        };
        while !kernel.is_rung && !ends(&kernel) {
            kernel = self.changed.wait(kernel).unwrap();
        }
        if self.mistake != Some(Mistake::HearBeforeSleeping) && nap != Nap::Awake {
            kernel.is_rung = false;
        }
    }
}

impl Bell for Outside {
    fn ring(&self) {
        let is_forgotten = self.mistake == Some(Mistake::ForgetToRing);
        self.change(|kernel| {
            kernel.is_rung |= !is_forgotten;
            kernel.ring_count += 1;
        });
    }
}

/// What the lock protects.
struct Device {
    rest: Rest,
    to_send: u32,
    sent: u32,
    received: u32,
    deadline: Option<Instant>,
    deadlines_handled: u32,
}

struct Model {
    device: Mutex<Device>,
    progress: Condvar,
    outside: Outside,
}

impl Device {
    fn receive(&mut self, outside: &Outside) {
        self.received += std::mem::take(&mut outside.kernel().arrivals);
    }

    /// One packet each time: the rest is for somebody to come back for.
    fn transmit(&mut self, outside: &Outside) -> Left {
        let now = Instant::from_nanos(outside.kernel().now);
        if self.deadline.take_if(|deadline| *deadline <= now).is_some() {
            self.deadlines_handled += 1;
        }
        if self.to_send > 0 {
            self.to_send -= 1;
            self.sent += 1;
        }
        Left { has_more: self.to_send > 0, deadline: self.deadline }
    }
}

impl Model {
    fn start(mistake: Option<Mistake>, attended_ends: bool) -> (Arc<Model>, JoinHandle<()>) {
        let device =
            Device { rest: Rest::new(), to_send: 0, sent: 0, received: 0, deadline: None, deadlines_handled: 0 };
        let outside = Outside { kernel: Mutex::default(), changed: Condvar::new(), mistake, attended_ends };
        let model = Arc::new(Model { device: Mutex::new(device), progress: Condvar::new(), outside });
        let thread = thread::spawn({
            let model = model.clone();
            move || model.run()
        });
        (model, thread)
    }

    fn lock(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap()
    }

    /// As `Driver::run`.
    fn run(&self) {
        let mistake = self.outside.mistake;
        loop {
            let stale_polls = (mistake == Some(Mistake::JudgeBeforeLocking)).then(|| self.lock().rest.polls);
            let mut device = self.lock();
            if let Some(polls) = stale_polls {
                device.rest.polls = polls;
            }
            let mut rest = std::mem::replace(&mut device.rest, Rest::new());
            let nap = rest.look(Instant::ZERO, || {
                device.receive(&self.outside);
                device.transmit(&self.outside)
            });
            device.rest = rest;
            if mistake == Some(Mistake::PublishLate) {
                device.rest.nap = Nap::Awake;
            }
            drop(device);
            self.progress.notify_all();
            let Some(nap) = nap else { return };
            if mistake == Some(Mistake::PublishLate) {
                self.lock().rest.nap = nap;
            }
            self.outside.sleep(nap);
        }
    }

    /// As `Drive::on_work`, after a post of this many packets, to be answered by then.
    fn post(&self, packets: u32, deadline: Option<Instant>) {
        let mut device = self.lock();
        device.to_send += packets;
        if deadline.is_some() {
            device.deadline = deadline;
        }
        let left = device.transmit(&self.outside);
        device.rest.rouse(&self.outside, left);
    }

    /// As `Drive::on_empty_poll`. Whether something has been received, now or by somebody else.
    fn poll(&self) -> bool {
        let mut device = self.lock();
        device.rest.note_poll(Instant::ZERO);
        device.receive(&self.outside);
        let left = device.transmit(&self.outside);
        device.rest.rouse(&self.outside, left);
        device.received > 0
    }

    /// As `Drive::on_armed`.
    fn arm(&self) {
        self.lock().rest.note_armed(&self.outside);
    }

    /// Wait, as a program does that sleeps on a descriptor.
    fn wait(&self, is_done: impl Fn(&Device) -> bool) {
        let mut device = self.lock();
        while !is_done(&device) {
            device = self.progress.wait(device).unwrap();
        }
    }

    /// As the destructor of the driver.
    fn close(&self, thread: JoinHandle<()>) {
        self.lock().rest.close(&self.outside);
        thread.join().unwrap();
    }
}

/// All interleavings with at most three preemptions, which takes seconds. (Waiting for a lock or a condition does not count as
/// one.) The planted mistakes need no more.
fn check(scenario: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(scenario);
}

fn work_left_behind(mistake: Option<Mistake>) {
    check(move || {
        let (model, thread) = Model::start(mistake, false);
        model.post(2, None);
        model.wait(|device| device.sent == 2);
        model.close(thread);
    });
}

#[test]
fn work_that_a_caller_leaves_behind_is_done() {
    work_left_behind(None);
}

fn earlier_deadline(mistake: Option<Mistake>) {
    check(move || {
        let (model, thread) = Model::start(mistake, false);
        model.post(1, Some(Instant::from_nanos(100)));
        model.post(1, Some(Instant::from_nanos(10)));
        model.outside.change(|kernel| kernel.now = 10);
        model.wait(|device| device.deadlines_handled == 1);
        model.close(thread);
    });
}

#[test]
fn a_deadline_that_becomes_earlier_is_kept() {
    earlier_deadline(None);
}

#[test]
fn what_arrives_while_the_thread_goes_to_sleep_is_received() {
    check(|| {
        let (model, thread) = Model::start(None, false);
        model.outside.change(|kernel| kernel.arrivals += 1);
        model.wait(|device| device.received == 1);
        model.outside.change(|kernel| kernel.arrivals += 1);
        model.wait(|device| device.received == 2);
        model.close(thread);
    });
}

/// A caller polls for long, gives up, asks to be told, polls once more as it must, and sleeps. The nap of a thread that relies
/// on callers does not end by itself here, so nothing but the arming can end it.
fn arming(mistake: Option<Mistake>) {
    check(move || {
        let (model, thread) = Model::start(mistake, false);
        let network = thread::spawn({
            let model = model.clone();
            move || model.outside.change(|kernel| kernel.arrivals += 1)
        });
        let has_received = (0..ATTENDED_POLLS).any(|_| model.poll());
        if !has_received {
            model.arm();
            if !model.poll() {
                model.wait(|device| device.received == 1);
            }
        }
        network.join().unwrap();
        model.close(thread);
    });
}

#[test]
fn a_caller_that_arms_and_sleeps_is_woken() {
    arming(None);
}

#[test]
fn when_callers_stop_polling_the_thread_takes_over() {
    check(|| {
        let (model, thread) = Model::start(None, true);
        for _ in 0..ATTENDED_POLLS {
            model.poll();
        }
        model.post(2, Some(Instant::from_nanos(10)));
        model.outside.change(|kernel| (kernel.arrivals, kernel.now) = (1, 10));
        model.wait(|device| (device.sent, device.received, device.deadlines_handled) == (2, 1, 1));
        model.close(thread);
    });
}

#[test]
fn two_callers_at_once_lose_nothing() {
    check(|| {
        let (model, thread) = Model::start(None, false);
        let other = thread::spawn({
            let model = model.clone();
            move || {
                model.post(2, None);
                model.wait(|device| device.sent >= 2);
            }
        });
        model.post(1, Some(Instant::from_nanos(10)));
        other.join().unwrap();
        model.outside.change(|kernel| kernel.now = 10);
        model.wait(|device| (device.sent, device.deadlines_handled) == (3, 1));
        model.close(thread);
    });
}

#[test]
fn closing_ends_the_thread_whatever_it_does() {
    for attended_ends in [false, true] {
        check(move || {
            let (model, thread) = Model::start(None, attended_ends);
            let network = thread::spawn({
                let model = model.clone();
                move || model.outside.change(|kernel| kernel.arrivals += 1)
            });
            for _ in 0..ATTENDED_POLLS {
                model.poll();
            }
            model.post(2, Some(Instant::from_nanos(10)));
            // With work left to do, from whichever thread.
            model.close(thread);
            network.join().unwrap();
        });
    }
}

#[test]
fn the_bell_is_not_rung_for_every_post() {
    check(|| {
        let (model, thread) = Model::start(None, false);
        for _ in 0..4 {
            model.post(1, Some(Instant::from_nanos(10)));
        }
        // Once at most, for the deadline; what comes after it finds the thread awake, or resting no longer than that.
        assert!(model.outside.kernel().ring_count <= 1);
        model.close(thread);
    });
}

/// Why the tests above can be believed. A deadlock that loom finds ends the process, so each mistake has one of its own.
#[test]
fn planted_mistakes_are_found() {
    let mistakes = ["publish_late", "forget_to_ring", "hear_before_sleeping", "judge_before_locking"];
    let module = module_path!().split_once("::").unwrap().1;
    for mistake in mistakes {
        let name = format!("{module}::mistake_{mistake}");
        let mut process = std::process::Command::new(std::env::current_exe().unwrap());
        process.args(["--exact", &name, "--ignored", "--nocapture"]).env("RUST_BACKTRACE", "0");
        let output = process.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("deadlock"), "{mistake} was not found: {said}");
    }
}

#[test]
#[ignore = "fails, as it should: run by planted_mistakes_are_found"]
fn mistake_publish_late() {
    work_left_behind(Some(Mistake::PublishLate));
}

#[test]
#[ignore = "fails, as it should: run by planted_mistakes_are_found"]
fn mistake_forget_to_ring() {
    earlier_deadline(Some(Mistake::ForgetToRing));
}

#[test]
#[ignore = "fails, as it should: run by planted_mistakes_are_found"]
fn mistake_hear_before_sleeping() {
    work_left_behind(Some(Mistake::HearBeforeSleeping));
}

#[test]
#[ignore = "fails, as it should: run by planted_mistakes_are_found"]
fn mistake_judge_before_locking() {
    arming(Some(Mistake::JudgeBeforeLocking));
}
