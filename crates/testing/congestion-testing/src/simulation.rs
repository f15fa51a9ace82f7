//! Packets of flows through one bottleneck, event by event.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use longhaul_congestion::{Announcement, Arrivals, Controller, ControllerName, CreditReceiver, Flow, PathFacts};
use longhaul_impair::{DropReason, Impairment, Profile, Verdict};
use longhaul_time::{Duration, Instant};

use crate::cross_traffic::{CrossTraffic, Source};
use crate::statistics::Statistics;

/// A receiver reports after this many packets, or after a quarter of a round trip.
const REPORT_PACKETS: u64 = 16;
/// Reports are no closer together than this, on paths that are longer.
const REPORT_GAP_MIN: Duration = Duration::from_micros(250);
/// A device sends no more than one congestion notification in this time.
const NOTIFICATION_GAP: Duration = Duration::from_micros(50);
/// What a sender has to send: without end, for these times.
const BACKLOG_BYTES: u64 = 1 << 50;

/// One sender and its receiver.
#[derive(Clone, Debug)]
pub struct FlowPlan {
    /// How it is controlled.
    pub controller: ControllerName,
    /// Without queueing.
    pub round_trip: Duration,
    /// When it begins.
    pub begins: Duration,
    /// When it has nothing to send: from, until.
    pub pauses: Vec<(Duration, Duration)>,
}

/// What is simulated.
#[derive(Clone, Debug)]
pub struct SimulationPlan {
    /// The bottleneck: rate, queue, marks, loss. Its delay is that of the flows.
    pub bottleneck: Profile,
    /// What it becomes, and when.
    pub changes: Vec<(Duration, Profile)>,
    /// The senders.
    pub flows: Vec<FlowPlan>,
    /// Others that do not react to congestion.
    pub cross_traffic: Option<CrossTraffic>,
    /// A full packet on the wire.
    pub packet_bytes: u32,
    /// How long.
    pub lasts: Duration,
    /// Of all random decisions.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Send,
    Arrive {
        number: u64,
        is_marked: bool,
    },
    /// The receiver's patience has ended.
    ReportDue,
    Report {
        packets: u64,
        marked: u64,
        newest: u64,
        held_nanos: u64,
    },
    Notification,
    /// To the receiver, which grants credit.
    Announce {
        announcement: Announcement,
    },
    Credit {
        bytes: u64,
    },
    /// The receiver's next grant.
    Grant,
    /// The sender's patience has ended.
    Timeout,
    Deadline,
    Cross,
    Change {
        index: usize,
    },
}

/// A sender, its receiver and what is between them.
#[derive(Debug)]
struct Party {
    plan: FlowPlan,
    flow: Flow,
    /// The next event of its own that is scheduled.
    send_at: Instant,
    deadline_at: Instant,
    is_timeout_due: bool,
    /// When the last report came, or the first packet was sent after all had been settled.
    heard_at: Instant,
    // The receiver.
    arrived: u64,
    marked: u64,
    newest: u64,
    newest_at: Instant,
    reported: u64,
    reported_at: Instant,
    is_report_due: bool,
    notified_at: Option<Instant>,
}

/// A run.
#[derive(Debug)]
pub struct Simulation {
    plan: SimulationPlan,
    bottleneck: Impairment,
    parties: Vec<Party>,
    /// The one receiver of all flows with `credit`, and when it is polled next.
    granter: Option<CreditReceiver>,
    grant_at: Instant,
    cross: Option<Source>,
    events: BinaryHeap<Reverse<(Instant, u64, usize, Event)>>,
    next_event: u64,
    statistics: Statistics,
}

impl Simulation {
    /// With controllers by their names.
    pub fn new(plan: SimulationPlan) -> Self {
        Simulation::with_controllers(plan, |_, name, facts| name.controller(facts))
    }

    /// With controllers that `make` makes for each flow, by its number, in the place of those that are named.
    pub fn with_controllers(
        plan: SimulationPlan,
        make: impl Fn(usize, ControllerName, &PathFacts) -> Box<dyn Controller>,
    ) -> Self {
        let bottleneck = Impairment::new(plan.bottleneck.clone(), plan.seed).expect("a profile of ours is good");
        let party = |(index, flow): (usize, &FlowPlan)| {
            let facts = PathFacts {
                packet_bytes: plan.packet_bytes,
                round_trip: Some(flow.round_trip),
                line_bits_per_second: plan.bottleneck.rate_bits_per_second,
                seed: plan.seed.wrapping_mul(1000).wrapping_add(index as u64),
            };
            Party {
                plan: flow.clone(),
                flow: Flow::with_controller(make(index, flow.controller, &facts), &facts),
                send_at: Instant::FAR_FUTURE,
                deadline_at: Instant::FAR_FUTURE,
                is_timeout_due: false,
                heard_at: Instant::ZERO,
                arrived: 0,
                marked: 0,
                newest: 0,
                newest_at: Instant::ZERO,
                reported: 0,
                reported_at: Instant::ZERO,
                is_report_due: false,
                notified_at: None,
            }
        };
        let is_credited = |flow: &&FlowPlan| flow.controller == ControllerName::Credit;
        let longest = plan.flows.iter().filter(is_credited).map(|flow| flow.round_trip).max();
        let granter = longest.map(|round_trip| {
            CreditReceiver::new(&PathFacts {
                packet_bytes: plan.packet_bytes,
                round_trip: Some(round_trip),
                line_bits_per_second: plan.bottleneck.rate_bits_per_second,
                seed: plan.seed,
            })
        });
        let mut simulation = Simulation {
            bottleneck,
            granter,
            grant_at: Instant::FAR_FUTURE,
            parties: plan.flows.iter().enumerate().map(party).collect(),
            cross: plan.cross_traffic.map(|cross| Source::new(cross, plan.seed)),
            events: BinaryHeap::new(),
            next_event: 0,
            statistics: Statistics::new(plan.flows.len(), plan.lasts),
            plan,
        };
        for index in 0..simulation.parties.len() {
            simulation.schedule_send(index, Instant::ZERO + simulation.parties[index].plan.begins);
        }
        for index in 0..simulation.plan.changes.len() {
            simulation.push(Instant::ZERO + simulation.plan.changes[index].0, 0, Event::Change { index });
        }
        if simulation.cross.is_some() {
            simulation.push(Instant::ZERO, 0, Event::Cross);
        }
        simulation
    }

    /// Runs to the end.
    pub fn run(mut self) -> Statistics {
        let end = Instant::ZERO + self.plan.lasts;
        while let Some(Reverse((now, _, index, event))) = self.events.pop()
            && now < end
        {
            self.handle(now, index, event);
        }
        self.statistics.counters = self.bottleneck.counters();
        self.statistics
    }

    fn push(&mut self, at: Instant, index: usize, event: Event) {
        self.next_event += 1;
        self.events.push(Reverse((at, self.next_event, index, event)));
    }

    fn schedule_send(&mut self, index: usize, at: Instant) {
        if at < self.parties[index].send_at {
            self.parties[index].send_at = at;
            self.push(at, index, Event::Send);
        }
    }

    fn handle(&mut self, now: Instant, index: usize, event: Event) {
        match event {
            Event::Send => {
                // One that was scheduled before an earlier one came up.
                if self.parties[index].send_at == now {
                    self.parties[index].send_at = Instant::FAR_FUTURE;
                    self.send(now, index);
                }
            }
            Event::Arrive { number, is_marked } => self.arrive(now, index, number, is_marked),
            Event::ReportDue => {
                self.parties[index].is_report_due = false;
                if self.parties[index].arrived > self.parties[index].reported {
                    self.report(now, index);
                }
            }
            Event::Report { packets, marked, newest, held_nanos } => {
                let party = &mut self.parties[index];
                party.heard_at = now;
                let held = Duration::from_nanos(held_nanos);
                let arrivals = Arrivals { packets, marked, newest: Some(newest), held };
                party.flow.on_report(now, &arrivals, 4 * party.plan.round_trip);
                self.send(now, index);
            }
            Event::Notification => {
                self.parties[index].flow.on_notification(now);
                self.send(now, index);
            }
            Event::Announce { announcement } => {
                if let Some(granter) = &mut self.granter {
                    granter.on_announcement(now, index as u64, &announcement);
                }
                self.grant(now);
            }
            Event::Credit { bytes } => {
                self.parties[index].flow.on_credit(now, bytes);
                self.send(now, index);
            }
            Event::Grant => {
                if self.grant_at == now {
                    self.grant_at = Instant::FAR_FUTURE;
                    self.grant(now);
                }
            }
            Event::Timeout => self.time_out(now, index),
            Event::Deadline => {
                if self.parties[index].deadline_at == now {
                    self.parties[index].deadline_at = Instant::FAR_FUTURE;
                    self.parties[index].flow.on_deadline(now);
                    self.send(now, index);
                }
            }
            Event::Cross => {
                let Some(source) = &mut self.cross else { return };
                let (bytes, next) = source.next(now);
                self.bottleneck.handle(bytes, now);
                self.push(next, 0, Event::Cross);
            }
            Event::Change { index } => {
                let profile = self.plan.changes[index].1.clone();
                self.bottleneck.set_profile(profile, now).expect("a profile of ours is good");
            }
        }
    }

    /// Sends what may be sent, and schedules the next time.
    fn send(&mut self, now: Instant, index: usize) {
        let begins = Instant::ZERO + self.parties[index].plan.begins;
        if now < begins {
            return;
        }
        let since = now - Instant::ZERO;
        if let Some((_, until)) =
            self.parties[index].plan.pauses.iter().find(|(from, until)| (*from..*until).contains(&since))
        {
            let until = Instant::ZERO + *until;
            self.parties[index].flow.on_app_limited();
            self.announce(now, index, 0);
            self.schedule_send(index, until);
            return;
        }
        let packet = u64::from(self.plan.packet_bytes);
        let sent_bytes = self.parties[index].flow.sampler().sent_packets() * packet;
        self.announce(now, index, BACKLOG_BYTES - sent_bytes);
        let room = self.parties[index].flow.room_bytes(now) / packet;
        if room > 0 {
            if self.parties[index].flow.sampler().in_flight_packets() == 0 {
                self.parties[index].heard_at = now;
            }
            let first = self.parties[index].flow.on_sent(now, room, room * packet);
            self.parties[index].flow.on_left(now, room);
            for number in first..first + room {
                self.enter(now, index, number);
            }
        }
        self.schedule_timeout(index);
        let party = &self.parties[index];
        if party.flow.window_room_bytes() >= packet
            && let Some(at) = party.flow.ready_at()
        {
            self.schedule_send(index, at.max(now.saturating_add_nanos(1)));
        }
        if let Some(at) = self.parties[index].flow.next_deadline()
            && at < self.parties[index].deadline_at
        {
            self.parties[index].deadline_at = at;
            self.push(at.max(now), index, Event::Deadline);
        }
    }

    /// The sender has this much to send, and announces what it must.
    fn announce(&mut self, now: Instant, index: usize, backlog_bytes: u64) {
        let party = &mut self.parties[index];
        party.flow.on_backlog(now, backlog_bytes);
        if let Some(announcement) = party.flow.announcement(now) {
            let at = now + party.plan.round_trip / 2;
            self.push(at, index, Event::Announce { announcement });
        }
    }

    /// The receiver grants what it may, and schedules the next time.
    fn grant(&mut self, now: Instant) {
        let Some(mut granter) = self.granter.take() else { return };
        while let Some(grant) = granter.poll(now) {
            let index = grant.sender as usize;
            let at = now + self.parties[index].plan.round_trip / 2;
            self.push(at, index, Event::Credit { bytes: grant.bytes });
        }
        if let Some(at) = granter.next_deadline()
            && at < self.grant_at
        {
            self.grant_at = at;
            self.push(at.max(now), 0, Event::Grant);
        }
        self.granter = Some(granter);
    }

    /// Nothing is heard for this long only when everything in flight was lost.
    fn timeout(&self, index: usize) -> Duration {
        let bottleneck = &self.plan.bottleneck;
        let drain =
            bottleneck.queue_limit_bytes as f64 * 8.0 / bottleneck.rate_bits_per_second.unwrap_or(u64::MAX) as f64;
        10 * self.parties[index].plan.round_trip + Duration::from_secs_f64(drain)
    }

    fn schedule_timeout(&mut self, index: usize) {
        let party = &self.parties[index];
        if !party.is_timeout_due && party.flow.sampler().in_flight_packets() > 0 {
            let at = party.heard_at + self.timeout(index);
            self.parties[index].is_timeout_due = true;
            self.push(at, index, Event::Timeout);
        }
    }

    fn time_out(&mut self, now: Instant, index: usize) {
        self.parties[index].is_timeout_due = false;
        let timeout = self.timeout(index);
        let party = &mut self.parties[index];
        if party.flow.sampler().in_flight_packets() > 0 && now - party.heard_at >= timeout {
            party.heard_at = now;
            party.flow.on_timeout(now, 4 * party.plan.round_trip);
            self.send(now, index);
        }
        self.schedule_timeout(index);
    }

    fn enter(&mut self, now: Instant, index: usize, number: u64) {
        let bytes = self.plan.packet_bytes;
        self.statistics.on_sent(index, now, self.bottleneck.idle_at() - now);
        let to_receiver = self.parties[index].plan.round_trip / 2;
        match self.bottleneck.handle(bytes, now) {
            Verdict::Dropped(reason) => self.statistics.on_dropped(index, now, reason == DropReason::QueueFull),
            Verdict::Once(delivery) | Verdict::Twice(delivery, _) => {
                self.push(delivery.at + to_receiver, index, Event::Arrive { number, is_marked: delivery.ecn_mark });
            }
        }
    }

    fn arrive(&mut self, now: Instant, index: usize, number: u64, is_marked: bool) {
        self.statistics.on_delivered(index, now, self.plan.packet_bytes);
        if let Some(granter) = &mut self.granter {
            granter.on_arrived(index as u64, self.plan.packet_bytes.into());
            self.grant(now);
        }
        let party = &mut self.parties[index];
        party.arrived += 1;
        party.marked += u64::from(is_marked);
        if number >= party.newest {
            (party.newest, party.newest_at) = (number, now);
        }
        let back = party.plan.round_trip / 2;
        if is_marked && party.notified_at.is_none_or(|at| now - at >= NOTIFICATION_GAP) {
            party.notified_at = Some(now);
            self.push(now + back, index, Event::Notification);
        }
        let party = &self.parties[index];
        let quarter = party.plan.round_trip / 4;
        let gap_min = quarter.min(REPORT_GAP_MIN);
        let waited = now - party.reported_at;
        if waited >= gap_min && (party.arrived - party.reported >= REPORT_PACKETS || waited >= quarter) {
            self.report(now, index);
        } else if !party.is_report_due {
            let at = party.reported_at + quarter;
            self.parties[index].is_report_due = true;
            self.push(at.max(now), index, Event::ReportDue);
        }
    }

    fn report(&mut self, now: Instant, index: usize) {
        let party = &mut self.parties[index];
        (party.reported, party.reported_at) = (party.arrived, now);
        let held_nanos = (now - party.newest_at).as_nanos() as u64;
        let report = Event::Report { packets: party.arrived, marked: party.marked, newest: party.newest, held_nanos };
        let at = now + party.plan.round_trip / 2;
        self.push(at, index, report);
    }
}
