//! What a program drives, and when: hosts that run, ends without a scheme, ends whose peers are gone.

use longhaul_time::{Duration, Instant};

use super::program::{Half, Program, Receiving, Sending};
use super::violation::Rule;

/// An end that is closed has ended after this, if its host runs.
pub(super) const CLOSING_MAX: Duration = longhaul_runtime::LINGER_MAX.saturating_add(Duration::from_secs(1));
/// Faults that stop one host, at most.
const PAUSES_MAX: u32 = 3;

impl Program<'_> {
    /// When something must be done next.
    pub(super) fn next_deadline(&self, now: Instant, end: Instant) -> Instant {
        let mut next = end;
        if let Some((at, ..)) = self.agenda.front() {
            next = next.min(*at);
        }
        for host in self.hosts.iter().filter(|host| host.runs()) {
            next = host.driver.next_deadline().map_or(next, |at| next.min(at));
        }
        for (index, state) in self.connections.iter().enumerate() {
            for (side, found) in state.ends.iter().enumerate() {
                let node = self.plan.connections[index].nodes[side];
                let Some(found) = found.as_ref().filter(|end| self.hosts[node].runs() && !end.has_failed) else {
                    continue;
                };
                next = found.carrier.next_deadline().map_or(next, |at| next.min(at));
            }
            for (orphan, side, _, until) in &state.orphans {
                let runs = self.hosts[self.plan.connections[index].nodes[*side]].runs() && !orphan.has_failed;
                let own = orphan.carrier.next_deadline().filter(|_| runs);
                next = next.min(own.map_or(*until, |at| at.min(*until)));
            }
            for from in 0..2 {
                for half in 0..2 {
                    if let Some(&message) = state.order[from].get(state.next[from][half])
                        && let Some(at) = self.due_at(message, half).filter(|at| *at > now)
                    {
                        next = next.min(at);
                    }
                }
            }
        }
        for (message, state) in self.messages.iter().zip(&self.states) {
            let nodes = self.plan.connections[message.connection].nodes;
            if let Half::Pending(Sending::Stream(_, again, until)) = &state.send
                && self.hosts[nodes[message.from]].runs()
            {
                next = next.min(*again).min(*until);
            }
            if let Half::Pending(Receiving::Open(_, at)) = &state.receive
                && self.hosts[nodes[1 - message.from]].runs()
            {
                next = next.min(*at);
            }
        }
        next
    }

    pub(super) fn poll_ends(&mut self, now: Instant) {
        for (node, host) in self.hosts.iter_mut().enumerate().filter(|(_, host)| host.runs()) {
            while host.context.poll().expect("completions can be taken") > 0 {}
            if !host.driver.turn(now) {
                self.judge.accuse(Rule::Busy, now, format!("host {node}: its connections never rest"));
            }
        }
        for (index, state) in self.connections.iter_mut().enumerate() {
            let plan = &self.plan.connections[index];
            let ends = state.ends.iter_mut().enumerate().filter_map(|(side, end)| Some((end.as_mut()?, side, false)));
            // The peer of an orphan is gone: that it fails is no wonder, that it panics would be.
            let orphans = state.orphans.iter_mut().map(|(end, side, ..)| (end, *side, true));
            for (end, side, is_orphan) in ends.chain(orphans) {
                if self.hosts[plan.nodes[side]].runs()
                    && let Err(failure) = end.carrier.poll(now, end.is_closing)
                    && !std::mem::replace(&mut end.has_failed, true)
                    && (failure.is_panic || !is_orphan && !plan.has_liar)
                {
                    let rule = if failure.is_panic { Rule::Panic } else { Rule::Connection };
                    self.judge.accuse(rule, now, format!("connection {index}, end {side}: {}", failure.text));
                }
            }
        }
    }

    /// See what has ended.
    pub(super) fn look(&mut self, now: Instant) {
        for index in 0..self.connections.len() {
            for side in 0..2 {
                let state = &mut self.connections[index];
                let life = state.life;
                let runs = self.hosts[self.plan.connections[index].nodes[side]].runs();
                let Some(end) = state.ends[side].as_mut().filter(|_| runs) else { continue };
                let over = end.carrier.over_count();
                if over.is_some() && over == std::mem::replace(&mut end.seen_over, over) {
                    continue;
                }
                self.look_at(index, side, life, now);
            }
            let mut orphans = std::mem::take(&mut self.connections[index].orphans);
            for (end, side, _, until) in orphans.iter_mut().filter(|(.., until)| *until <= now) {
                if end.is_closing && !end.carrier.is_closed() {
                    let text = format!("connection {index}, end {side}: it was closed, and has not ended");
                    self.judge.accuse(Rule::Ending, now, text);
                }
                // Whatever it still waits for ends with it.
                end.close();
                *until = now + CLOSING_MAX + PAUSES_MAX * self.plan.longest_pause();
            }
            for (end, side, life, _) in orphans.extract_if(.., |(end, ..)| end.is_closing && end.carrier.is_closed()) {
                drop(end);
                self.look_at(index, side, life, now);
                self.judge.must_be_over(index, side, life, now, &self.messages, &self.states);
                self.end_halves_of(index, side, life);
            }
            for (_, side, life, _) in &orphans {
                self.look_at(index, *side, *life, now);
            }
            self.connections[index].orphans = orphans;
        }
    }
}
