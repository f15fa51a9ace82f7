//! The soak of bounded messages: random programs on virtual time, over links that lose anything from nothing to everything,
//! reorder, repeat and fall silent, with ends that stand still.
//!
//! A seed decides everything. What a receive ended with is judged by code that knows only what was sent, what the program
//! asked for, and what the receiver's device has counted:
//!
//! - in half of the programs hardly any message has a number at a time, or there is hardly any memory for parity, so that most of them wait;
//! - some receives are not bounded: they get all of their message or an error, never holes;
//! - messages of several schemes and chunks share a connection, and each has what its sender has chosen;
//! - each end is over by its deadline, at most a microsecond later while its program runs, and never earlier without a
//!   reason;
//! - the bytes outside the missing ranges are those of its own message, and those inside are what the program wanted there;
//! - no more is missing than did not come: where nothing is repeated, the packets that were there are as many as arrived;
//! - the sender hears of exactly the same ranges, or of nothing;
//! - what is held changes no more, whatever comes later;
//! - a message after all that, over a link that works again, arrives.

mod judge;
mod plan;

use std::ops::Range;

use longhaul_reliable::{
    Attributes, Bound, BoundedSendTicket, ConnectionError, Deadline, MessageError, ReceiveTicket, Received, Sent,
};
use longhaul_time::{Duration, Instant};

use crate::end_to_end::{Ground as _, GroundOptions, VirtualGround, scheme_by_name};
use judge::Judge;
use plan::{Fault, PACKET, Plan, SLOT_BYTES};

/// What a receive's memory holds before: no message has this byte.
pub(crate) const STALE: u8 = 0xee;
/// After the program, everything is healed; a message that takes longer than this does not end.
const FRESH: Duration = Duration::from_secs(60);

/// The outcome of one seed.
#[derive(Clone, Debug, Default)]
pub struct BoundedSeedReport {
    /// The seed.
    pub seed: u64,
    /// Messages of which both halves were posted.
    pub messages: u64,
    /// Receives that ended whole, quiet, and by their deadline.
    pub ended: [u64; 3],
    /// Sends whose sender learned what was missing, or that nothing was; and others.
    pub known: u64,
    /// The latter.
    pub unknown: u64,
    /// Plain receives that got all of their message, that failed because something was missing, and whose sender gave up.
    pub plain: [u64; 3],
    /// Bytes that were missing.
    pub missing_bytes: u64,
    /// How late a receive was at most, in a program that ran.
    pub latest: Duration,
    /// Rules that were broken.
    pub violations: Vec<String>,
}

struct Running {
    receive: Option<ReceiveTicket>,
    received: Option<Received>,
    /// What was missing when a plain receive failed.
    incomplete: Option<Vec<Range<u64>>>,
    send: Option<BoundedSendTicket>,
    sent: Option<Sent>,
    posted: [Option<Instant>; 2],
}

/// Runs one seed.
pub fn run_bounded_seed(seed: u64) -> BoundedSeedReport {
    run_bounded_seed_with(seed, Attributes::default())
}

/// The same with other attributes: tests put mistakes into the receiver here.
pub fn run_bounded_seed_with(seed: u64, attributes: Attributes) -> BoundedSeedReport {
    let plan = Plan::draw(seed);
    let mut soak = Soak::new(&plan, attributes);
    soak.run();
    soak.judge.finish(seed)
}

struct Soak<'a> {
    plan: &'a Plan,
    ground: VirtualGround,
    running: Vec<Running>,
    judge: Judge,
    /// Whether the programs run, and since when.
    runs: [(bool, Instant); 2],
}

impl<'a> Soak<'a> {
    fn new(plan: &'a Plan, mut attributes: Attributes) -> Self {
        attributes.parity_bytes_max = plan.parity_bytes_max;
        let scheme = |name: &&str| scheme_by_name(name).expect("a scheme");
        let options = GroundOptions {
            seed: plan.seed,
            mtu: longhaul_verbs::Mtu::Bytes256,
            chunk_bytes: plan.chunk_packets * PACKET as u32,
            grain: Duration::from_nanos(500),
            connection: attributes,
            layout: plan.layout,
            generations: plan.generations,
            other_schemes: plan.schemes[1..].iter().map(scheme).collect(),
            round_trip_guess: plan.round_trip,
            ..GroundOptions::new(plan.link.clone(), (plan.messages.len() + 1) * SLOT_BYTES)
        };
        let mut ground = VirtualGround::with_scheme(&options, scheme(&plan.schemes[0]));
        let memory = ground.receiver().1;
        memory.write(0..memory.len()).expect("nobody uses it").fill(STALE);
        let none =
            || Running { receive: None, received: None, incomplete: None, send: None, sent: None, posted: [None; 2] };
        let running = plan.messages.iter().map(|_| none()).collect();
        Soak { plan, ground, running, judge: Judge::new(plan), runs: [(true, Instant::ZERO); 2] }
    }

    fn run(&mut self) {
        // While it runs, then until every deadline is over.
        let end = Instant::ZERO + self.plan.length();
        let mut faults = self.plan.faults();
        while self.ground.now() < end && self.judge.is_content() {
            let now = self.ground.now();
            while let Some((_, fault, begins)) = faults.pop_if(|(at, ..)| *at <= now) {
                self.apply(&fault, begins, now);
            }
            self.post_due(now);
            self.look(now);
            let next = faults.last().map(|(at, ..)| *at);
            let next = Instant::earlier_of(next, self.next_post(now)).map_or(end, |next| next.min(end));
            let next = next.max(now.saturating_add_nanos(1));
            let runs = self.runs.map(|(runs, _)| runs);
            self.ground.step_with(next, runs).expect("the ends work");
        }
        if !self.judge.is_content() {
            return;
        }
        for (index, running) in self.running.iter().enumerate() {
            let is_open = running.receive.is_some() && !self.plan.messages[index].is_plain || running.send.is_some();
            self.judge.must(!is_open, || format!("message {index} has not ended after all deadlines"));
        }
        let counters = self.ground.receiver().0.queue_pair().counters().1;
        self.judge.arrived(counters.arrived, counters.late);
        self.fresh();
        self.plain();
        for (index, running) in self.running.iter().enumerate() {
            if let Some(received) = &running.received {
                self.judge.contents(index, received, "at the end");
            }
        }
    }

    /// When the next half of a message is due.
    fn next_post(&self, now: Instant) -> Option<Instant> {
        let due = |half: usize| {
            let unposted = self.running.iter().position(|running| running.posted[half].is_none())?;
            Some(Instant::ZERO + self.plan.messages[unposted].at[half])
        };
        Instant::earlier_of(due(0).filter(|at| *at > now), due(1).filter(|at| *at > now))
    }

    /// A message over a link that works again.
    fn fresh(&mut self) {
        self.ground.world.set_link_profile(self.plan.good_link());
        self.runs = [(true, self.ground.now()); 2];
        let now = self.ground.now();
        let slot = self.plan.messages.len() * SLOT_BYTES;
        let (connection, memory) = self.ground.receiver();
        let bound = Bound { deadline: Deadline::After(FRESH), fill: longhaul_reliable::Fill::Zero };
        let receive = connection.receive_bounded(memory, slot..slot + 5 * PACKET, bound, now).expect("there is room");
        let (connection, memory) = self.ground.sender();
        memory.write(slot..slot + 5 * PACKET).expect("nobody uses it").fill(7);
        let deadline = Deadline::After(FRESH);
        let send = connection.send_bounded(memory, slot..slot + 5 * PACKET, deadline, now).expect("there is room");
        let end = now + FRESH + FRESH;
        while self.ground.now() < end && !(receive.is_over() && send.is_over()) {
            self.ground.step(end).expect("the ends work");
        }
        let is_whole = receive.take().is_some_and(|received| {
            received
                .is_ok_and(|received| received.missing().is_empty() && received.bytes().iter().all(|byte| *byte == 7))
        });
        self.judge.must(is_whole, || "a message over a link that works again does not arrive".to_owned());
        let took = self.ground.now() - now;
        self.judge.must(took < FRESH, || format!("a message over a link that works again took {took:?}"));
    }

    /// Plain receives have no deadline, and end when they hear of their senders again.
    fn plain(&mut self) {
        let end = self.ground.now() + FRESH / 2;
        while self.running.iter().any(|running| running.receive.is_some()) && self.judge.is_content() {
            let now = self.ground.now();
            self.judge.must(now < end, || "a plain receive does not end over a link that works again".to_owned());
            self.ground.step(end).expect("the ends work");
            self.look(now);
        }
    }

    fn apply(&mut self, fault: &Fault, begins: bool, now: Instant) {
        match fault {
            Fault::Link(profile) => {
                let link = if begins { profile.clone() } else { self.plan.link.clone() };
                self.ground.world.set_link_profile(link);
            }
            Fault::Pause(end) => self.runs[*end] = (!begins, now),
        }
    }

    fn post_due(&mut self, now: Instant) {
        for half in 0..2 {
            // Program code does not run while it stands still, and posts in order.
            while self.runs[half].0
                && let Some(index) = self.running.iter().position(|running| running.posted[half].is_none())
                && Instant::ZERO + self.plan.messages[index].at[half] <= now
            {
                if !self.post(index, half, now) {
                    break;
                }
            }
        }
    }

    /// Post the send (half 0) or the receive of a message. Whether it could be.
    fn post(&mut self, index: usize, half: usize, now: Instant) -> bool {
        let message = &self.plan.messages[index];
        let start = index * SLOT_BYTES;
        let deadline = match message.is_absolute[half] {
            true => Deadline::At(Instant::ZERO + message.at[half] + message.deadline[half]),
            false => Deadline::After(message.deadline[half]),
        };
        let posted = if half == 0 {
            let (connection, memory) = self.ground.sender();
            let range = start..start + message.bytes;
            let bytes = memory.write(range.clone());
            bytes.expect("its memory is its own").iter_mut().enumerate().for_each(|(place, byte)| {
                *byte = plan::byte_of(index, place);
            });
            let posted = connection.send_bounded_chosen(memory, range, deadline, &message.choice, now);
            posted.map(|ticket| self.running[index].send = Some(ticket))
        } else {
            let (connection, memory) = self.ground.receiver();
            let bound = Bound { deadline, fill: message.fill };
            let range = start..start + message.room;
            let posted = match message.is_plain {
                true => connection.post_receive(memory, range),
                false => connection.receive_bounded(memory, range, bound, now),
            };
            posted.map(|ticket| self.running[index].receive = Some(ticket))
        };
        match posted {
            Ok(()) => self.running[index].posted[half] = Some(now),
            Err(ConnectionError::TooManyWaiting(_)) => return false,
            Err(error) => self.judge.must(false, || format!("message {index}: {error}")),
        }
        true
    }

    fn look(&mut self, now: Instant) {
        let runs = self.runs;
        for (index, running) in self.running.iter_mut().enumerate() {
            if let Some(outcome) = running.receive.as_ref().and_then(ReceiveTicket::take) {
                running.receive = None;
                let posted = running.posted[1].unwrap_or_default();
                if self.plan.messages[index].is_plain {
                    self.judge.plain(index, &outcome);
                }
                match outcome {
                    Ok(received) if self.plan.messages[index].is_plain => running.received = Some(received),
                    Err(error) if self.plan.messages[index].is_plain => {
                        if let MessageError::Incomplete { missing } = error {
                            running.incomplete = Some(missing);
                        }
                    }
                    Ok(received) => {
                        self.judge.received(index, &received, posted, now, runs[1].1);
                        running.received = Some(received);
                    }
                    // A message that is longer than its receive is refused.
                    Err(error) => self.judge.failed(index, &error, "receive"),
                }
            }
            if let Some(outcome) = running.send.as_ref().and_then(BoundedSendTicket::take) {
                running.send = None;
                let posted = running.posted[0].unwrap_or_default();
                match outcome {
                    Ok(sent) => {
                        self.judge.sent(index, &sent, posted, now, runs[0].1);
                        running.sent = Some(sent);
                    }
                    Err(error) => self.judge.failed(index, &error, "send"),
                }
            }
            match (&running.received, &running.incomplete, &running.sent) {
                (Some(received), _, Some(sent)) => self.judge.both(index, received, sent),
                (_, Some(missing), Some(sent)) => self.judge.both_incomplete(index, missing, sent),
                _ => continue,
            }
            running.sent = None;
        }
    }
}
