//! The program of a seed: items are carried out when they are due, ends are polled, and the [judge](super::judge) is
//! given what is seen.

use std::collections::VecDeque;

use longhaul_impair::Profile;
use longhaul_reliable::{Choice, ReceiveTicket, SendTicket};
use longhaul_sdr::{Receive, ReceiveError, SendError, SendStream};
use longhaul_time::{Duration, Instant};
use longhaul_verbs::Mtu;
use longhaul_world::{Topology, World, WorldConfig};

use super::contents::{Label, digest};
use super::driver::VirtualClock;
use super::ends::{self, Carrier, End, Host, Makers, Places};
use super::judge::{Judge, Outcome};
use super::memory_meter::MemoryMeter;
use super::plan::{Item, MTU, MessagePlan, Plan};
use super::violation::Rule;

/// Polls of all ends in one seed, and packets: more of them is an end that is never done.
const ROUNDS_MAX: u64 = 100_000;
const PACKETS_MAX: u64 = 100_000;
/// Rounds of messages after everything else has ended.
pub(super) const FRESH_ROUNDS: usize = 2;

pub(super) struct Program<'a> {
    pub(super) plan: &'a Plan,
    makers: Makers,
    pub(super) world: World,
    /// The time of the world, for its connections.
    pub(super) clock: VirtualClock,
    pub(super) hosts: Vec<Host>,
    pub(super) connections: Vec<ConnectionState>,
    pub(super) messages: Vec<MessagePlan>,
    pub(super) states: Vec<MessageState>,
    /// What happens when, in order; of faults the beginning and the end.
    pub(super) agenda: VecDeque<(Instant, usize, bool)>,
    pub(super) active: Vec<bool>,
    pub(super) judge: Judge,
    grain: Duration,
    /// Of the memory that it takes.
    pub(super) meter: MemoryMeter,
    rounds: u64,
    pub(super) forged: u64,
    /// Fresh messages are due from here on.
    fresh_from: [Option<Instant>; FRESH_ROUNDS],
}

pub(super) struct ConnectionState {
    pub(super) life: u32,
    pub(super) places: [Places; 2],
    pub(super) ends: [Option<End>; 2],
    /// Ends whose peer is gone, until they are dropped.
    pub(super) orphans: Vec<(End, usize, u32, Instant)>,
    /// Messages of each direction, in order, and how many sends and receives of them have been posted or left out.
    pub(super) order: [Vec<usize>; 2],
    pub(super) next: [[usize; 2]; 2],
    /// When something of a direction was posted or ended last, while somebody waited.
    progressed: [Instant; 2],
}

/// What has become of a message.
#[derive(Default)]
pub(super) struct MessageState {
    /// The life of the connection that it belongs to.
    pub(super) life: Option<u32>,
    pub(super) send: Half<Sending>,
    pub(super) receive: Half<Receiving>,
    pub(super) posted_at: [Option<Instant>; 2],
    pub(super) ended_at: [Option<Instant>; 2],
    /// What the receive's memory held when it ended.
    pub(super) digest: Option<u64>,
}

/// One half of a message.
#[derive(Default)]
pub(super) enum Half<T> {
    #[default]
    Unposted,
    Pending(T),
    /// The program does not want to know.
    Dropped,
    Succeeded(T),
    Failed(String),
    /// Its end is gone, or it was never posted because its life had ended.
    Gone,
}

impl<T> Half<T> {
    pub(super) fn is_pending(&self) -> bool {
        matches!(self, Half::Pending(_))
    }
}

pub(super) enum Sending {
    Ticket(SendTicket),
    /// Sent again and again until the time.
    Stream(SendStream, Instant, Instant),
}

pub(super) enum Receiving {
    Ticket(ReceiveTicket),
    /// Completed at the time.
    Open(Option<Receive>, Instant),
}

impl<'a> Program<'a> {
    pub(super) fn new(plan: &'a Plan, makers: Makers, meter: MemoryMeter) -> Self {
        let mut config = WorldConfig {
            seed: plan.seed,
            nodes: plan.hosts + 1,
            topology: Topology::Star,
            link: plan.link.clone(),
            ..WorldConfig::default()
        };
        config.nic.mtu = Mtu::Bytes256;
        let world = World::new(config);
        let clock = VirtualClock::default();
        let hosts = (0..plan.hosts).map(|node| Host::new(&world, node, &clock)).collect();
        let mut messages: Vec<MessagePlan> = Vec::new();
        let mut agenda = Vec::new();
        for (index, item) in plan.items.iter().enumerate() {
            let at = |time: Duration| Instant::ZERO + time;
            match item {
                Item::Message(message) => messages.push(message.clone()),
                Item::Fault(fault) => {
                    agenda.push((at(fault.at), index, true));
                    agenda.push((at(fault.at + fault.lasts), index, false));
                }
                Item::Forgery(forgery) => agenda.push((at(forgery.at), index, true)),
                Item::Lie(lie) => agenda.push((at(lie.at), index, true)),
            }
        }
        agenda.sort_by_key(|(at, index, begins)| (*at, *index, !*begins));
        for round in 0..FRESH_ROUNDS {
            for (connection, _) in plan.connections.iter().enumerate().filter(|(_, plan)| is_matched(plan)) {
                messages.extend((0..2).map(|from| fresh_message(connection, from, round)));
            }
        }
        let state = |index: usize| {
            let order = [0, 1].map(|from| {
                let is_own = |message: &MessagePlan| message.connection == index && message.from == from;
                let numbers = messages.iter().enumerate().filter(|(_, message)| is_own(message));
                numbers.map(|(number, _)| number).collect::<Vec<_>>()
            });
            let places = [0, 1].map(|end| Places::new(&messages, index, end));
            ConnectionState {
                life: 0,
                places,
                ends: [None, None],
                orphans: Vec::new(),
                order,
                next: [[0; 2]; 2],
                progressed: [Instant::ZERO; 2],
            }
        };
        let connections: Vec<_> = (0..plan.connections.len()).map(state).collect();
        let grain = (plan.round_trip() / 24).clamp(Duration::from_nanos(500), Duration::from_micros(200));
        let mut program = Program {
            plan,
            makers,
            world,
            clock,
            hosts,
            connections,
            states: messages.iter().map(|_| MessageState::default()).collect(),
            messages,
            agenda: agenda.into(),
            active: vec![false; plan.items.len()],
            judge: Judge::new(plan),
            grain,
            rounds: 0,
            meter,
            forged: 0,
            fresh_from: [None; FRESH_ROUNDS],
        };
        (0..program.connections.len()).for_each(|index| program.begin_life(index));
        program
    }

    pub(super) fn now(&self) -> Instant {
        self.world.now()
    }

    fn is_used(&self, index: usize) -> bool {
        let has_item = |item: &Item| match item {
            Item::Message(message) => message.connection == index,
            Item::Forgery(forgery) => forgery.connection == index,
            Item::Lie(lie) => lie.connection == index,
            Item::Fault(_) => false,
        };
        self.plan.items.iter().any(has_item)
    }

    /// Make both ends of a connection, if both hosts are there.
    pub(super) fn begin_life(&mut self, index: usize) {
        let plan = &self.plan.connections[index];
        let is_there = plan.nodes.iter().all(|node| !self.hosts[*node].is_down);
        let state = &mut self.connections[index];
        if !is_there || state.ends.iter().any(Option::is_some) {
            return;
        }
        if !self.plan.items.is_empty() && !self.is_used(index) {
            return;
        }
        let state = &mut self.connections[index];
        let random = self.plan.seed.wrapping_mul(64).wrapping_add(index as u64 * 8 + u64::from(state.life));
        let round_trip = self.plan.round_trip();
        let made = ends::connect(&self.world, &self.hosts, plan, &state.places, random, round_trip, &self.makers);
        state.ends = made.map(Some);
        state.progressed = [self.world.now(); 2];
    }

    /// Let time pass until something is true, but not beyond `end`.
    pub(super) fn run_until(&mut self, end: Instant, is_done: impl Fn(&Self) -> bool) {
        loop {
            let now = self.now();
            self.clock.set(now);
            self.apply_due(now);
            self.post_due(now);
            self.poll_ends(now);
            self.look(now);
            // What has just arrived may have made room, and nothing else wakes a program that waits for that.
            if self.post_due(now) {
                self.poll_ends(now);
            }
            self.check_waits(now);
            self.rounds += 1;
            if self.rounds > ROUNDS_MAX || self.rounds.is_multiple_of(64) && self.world.packet_count() > PACKETS_MAX {
                let text = format!("{} rounds of polling, {} packets", self.rounds, self.world.packet_count());
                self.judge.accuse(Rule::Busy, now, text);
            }
            if let Err(text) = self.meter.measure() {
                self.judge.accuse(Rule::Growth, now, text);
            }
            if !self.judge.violations.is_empty() || now >= end || is_done(self) {
                return;
            }
            let next = self.next_deadline(now, end).max(now.saturating_add_nanos(1));
            self.world.run_some(next, self.grain);
        }
    }

    /// When a half of a message (0: its send) is to be posted.
    pub(super) fn due_at(&self, message: usize, half: usize) -> Option<Instant> {
        let plan = &self.messages[message];
        let time = if half == 0 { plan.send_at } else { plan.receive_at };
        match fresh_round(plan) {
            Some(round) => self.fresh_from[round],
            None => Some(Instant::ZERO + time),
        }
    }

    /// Fresh messages may be posted from now on.
    pub(super) fn begin_fresh(&mut self, round: usize) {
        self.fresh_from[round] = Some(self.now());
    }

    /// Post what is due and can be posted; whether something was.
    fn post_due(&mut self, now: Instant) -> bool {
        let mut has_posted = false;
        for index in 0..self.connections.len() {
            for from in 0..2 {
                for half in 0..2 {
                    while let Some(&message) =
                        self.connections[index].order[from].get(self.connections[index].next[from][half])
                        && self.due_at(message, half).is_some_and(|at| at <= now)
                        && self.post(index, message, half, now)
                    {
                        self.connections[index].next[from][half] += 1;
                        self.connections[index].progressed[from] = now;
                        has_posted = true;
                    }
                }
            }
        }
        has_posted
    }

    /// Post a half of a message; whether that is settled now.
    fn post(&mut self, index: usize, message: usize, half: usize, now: Instant) -> bool {
        let plan = self.messages[message].clone();
        let side = if half == 0 { plan.from } else { 1 - plan.from };
        let ConnectionState { life, places, ends, .. } = &mut self.connections[index];
        let state = &mut self.states[message];
        if state.life.is_some_and(|own| own != *life) {
            match half {
                0 => state.send = Half::Gone,
                _ => state.receive = Half::Gone,
            }
            return true;
        }
        let node = self.plan.connections[index].nodes[side];
        let Some(end) = ends[side].as_mut().filter(|_| self.hosts[node].runs()) else { return false };
        let range = places[side].ranges[message].clone().expect("every message of a connection has a place");
        let label = Label::new(index, *life, message);
        let round_trip = self.plan.round_trip();
        match (&end.carrier, half) {
            (Carrier::Scheme(shared), 0) => {
                ends::fill(&end.memory, range.clone(), label);
                match shared.send(&end.memory, range, &Choice::default()) {
                    Ok(Ok(ticket)) if plan.drops[0] => drop((ticket, state.send = Half::Dropped)),
                    Ok(Ok(ticket)) => state.send = Half::Pending(Sending::Ticket(ticket)),
                    Ok(Err(error)) => state.send = Half::Failed(error.to_string()),
                    Err(end) => state.send = Half::Failed(format!("the connection has ended: {end:?}")),
                }
            }
            (Carrier::Scheme(shared), _) => match shared.post_receive(&end.memory, range) {
                Ok(Ok(ticket)) if plan.drops[1] => drop((ticket, state.receive = Half::Dropped)),
                Ok(Ok(ticket)) => state.receive = Half::Pending(Receiving::Ticket(ticket)),
                Ok(Err(error)) => state.receive = Half::Failed(error.to_string()),
                Err(end) => state.receive = Half::Failed(format!("the connection has ended: {end:?}")),
            },
            (Carrier::Plain(queue_pair), 0) => match queue_pair.start_stream(Some(label.immediate())) {
                Ok(stream) => {
                    ends::fill(&end.memory, range.clone(), label);
                    stream.send_immediate(&end.memory, range.start).expect("it is a byte of the memory");
                    stream.send_at(0, &end.memory, range).expect("it fits");
                    let until = now + plan.complete_after;
                    state.send = Half::Pending(Sending::Stream(stream, now + round_trip, until));
                }
                Err(SendError::TableFull(_)) => return false,
                Err(error) => panic!("a message that fits is not sent: {error}"),
            },
            (Carrier::Plain(queue_pair), _) => match queue_pair.post_receive(&end.memory, range) {
                Ok(receive) => {
                    state.receive = Half::Pending(Receiving::Open(Some(receive), now + plan.complete_after));
                }
                Err(ReceiveError::TableFull(_)) => return false,
                Err(error) => panic!("a receive that fits is not posted: {error}"),
            },
        }
        end.posted += 1;
        state.life = Some(*life);
        state.posted_at[half] = Some(now);
        true
    }

    pub(super) fn look_at(&mut self, index: usize, side: usize, life: u32, now: Instant) {
        let own: Vec<usize> = self.connections[index].order.concat();
        for message in own {
            let (plan, state) = (&self.messages[message], &mut self.states[message]);
            if state.life != Some(life) {
                continue;
            }
            let label = Label::new(index, life, message);
            if plan.from == side {
                let outcome = match &mut state.send {
                    Half::Pending(Sending::Ticket(ticket)) => ticket.take().map(|result| match result {
                        Ok(report) => Outcome::Sent(report),
                        Err(error) => Outcome::failed(&error),
                    }),
                    Half::Pending(Sending::Stream(stream, again, until)) => {
                        let is_due = *again <= now;
                        if is_due {
                            *again = now + 2 * self.plan.round_trip();
                        }
                        if is_due && let Some(end) = &self.connections[index].ends[side] {
                            let range = self.connections[index].places[side].ranges[message].clone();
                            let range = range.expect("every message of a connection has a place");
                            stream.send_immediate(&end.memory, range.start).expect("it is a byte of the memory");
                            stream.send_at(0, &end.memory, range).expect("it fits");
                        }
                        (*until <= now).then_some(Outcome::Ended)
                    }
                    _ => None,
                };
                if let Some(outcome) = outcome {
                    state.ended_at[0] = Some(now);
                    self.connections[index].progressed[plan.from] = now;
                    let half = std::mem::take(&mut state.send);
                    state.send = self.judge.sent(plan, message, outcome, half, now);
                }
                continue;
            }
            let outcome = match &mut state.receive {
                Half::Pending(Receiving::Ticket(ticket)) => ticket.take().map(|result| match result {
                    Ok(received) => Outcome::Received(received),
                    Err(error) => Outcome::failed(&error),
                }),
                Half::Pending(Receiving::Open(receive, at)) if *at <= now => {
                    let immediate = receive.as_ref().and_then(Receive::user_immediate);
                    let completed = receive.take().map(|receive| receive.complete().expect("a key is revoked"));
                    completed.map(|message| Outcome::Completed(message, immediate))
                }
                _ => None,
            };
            let Some(outcome) = outcome else { continue };
            state.ended_at[1] = Some(now);
            self.connections[index].progressed[plan.from] = now;
            let is_sent = state.posted_at[0].is_some();
            let half = std::mem::take(&mut state.receive);
            state.receive = self.judge.received(plan, message, label, is_sent, outcome, half, now);
            let orphan = self.connections[index].orphans.iter().find(|(_, own, of, _)| *own == side && *of == life);
            let end = self.connections[index].ends[side].as_ref().filter(|_| self.connections[index].life == life);
            if let Some(end) = end.or(orphan.map(|(end, ..)| end)) {
                let range = self.connections[index].places[side].ranges[message].clone();
                let bytes = range.and_then(|range| end.memory.read(range).ok().map(|bytes| digest(&bytes)));
                self.states[message].digest = bytes;
            }
        }
    }

    /// From now on nothing goes wrong any more; what was waited for until now does not count.
    pub(super) fn heal(&mut self, link: Profile) {
        self.judge.is_healed = true;
        self.world.set_link_profile(link);
        let now = self.now();
        self.connections.iter_mut().for_each(|connection| connection.progressed = [now; 2]);
    }

    /// Whether connections say so too: a message whose ticket was dropped may still be in flight.
    pub(super) fn is_settled(&self) -> bool {
        let is_settled = |end: &End| end.carrier.over_count().is_none_or(|over| over == end.posted);
        let honest = self.plan.connections.iter().zip(&self.connections).filter(|(plan, _)| !plan.has_liar);
        honest.flat_map(|(_, state)| state.ends.iter().flatten()).all(is_settled)
    }

    /// Whether nothing is to be expected any more.
    pub(super) fn is_over(&self) -> bool {
        let is_over = |(plan, state): (&MessagePlan, &MessageState)| {
            let is_due = |half| fresh_round(plan).is_none_or(|round| self.fresh_from[round].is_some()) && half;
            let is_open = |unposted: bool, pending: bool| pending || is_due(unposted);
            let has_liar = self.plan.connections[plan.connection].has_liar;
            let is_unused = self.connections[plan.connection].ends.iter().all(Option::is_none);
            has_liar
                || is_unused
                || !is_open(matches!(state.send, Half::Unposted), state.send.is_pending())
                    && !is_open(matches!(state.receive, Half::Unposted), state.receive.is_pending())
        };
        self.agenda.is_empty() && self.messages.iter().zip(&self.states).all(is_over)
    }

    fn check_waits(&mut self, now: Instant) {
        if !self.judge.watches_waits() {
            return;
        }
        for (index, connection) in self.connections.iter_mut().enumerate() {
            let plan = &self.plan.connections[index];
            if plan.has_liar || plan.schemes.is_none() || connection.ends.iter().any(Option::is_none) {
                continue;
            }
            // Time in which an end stands still is not the other's wait.
            if !plan.nodes.iter().all(|node| self.hosts[*node].runs()) {
                connection.progressed = [now; 2];
                continue;
            }
            for from in 0..2 {
                let is_waiting = |message: &&usize| {
                    let state = &self.states[**message];
                    let is_begun = state.posted_at.iter().all(Option::is_some) && state.life == Some(connection.life);
                    is_begun && (state.receive.is_pending() || state.send.is_pending())
                };
                match connection.order[from].iter().find(is_waiting) {
                    None => connection.progressed[from] = now,
                    Some(&message) => {
                        let waits = now - connection.progressed[from];
                        self.judge.waits(index, message, &self.messages[message], waits, now);
                    }
                }
            }
        }
    }
}

/// Whether both ends of a connection have the same scheme, and are honest.
fn is_matched(plan: &super::plan::ConnectionPlan) -> bool {
    !plan.has_liar && plan.schemes.is_some_and(|[one, other]| one == other)
}

/// A message that is sent when everything else has ended.
fn fresh_message(connection: usize, from: usize, round: usize) -> MessagePlan {
    MessagePlan {
        connection,
        from,
        bytes: 3 * MTU,
        room: 3 * MTU,
        send_at: Duration::MAX,
        receive_at: Duration::from_nanos(round as u64),
        drops: [false; 2],
        complete_after: Duration::ZERO,
    }
}

/// The round of a message that is sent when everything else has ended.
pub(super) fn fresh_round(plan: &MessagePlan) -> Option<usize> {
    (plan.send_at == Duration::MAX).then_some(plan.receive_at.as_nanos() as usize)
}
