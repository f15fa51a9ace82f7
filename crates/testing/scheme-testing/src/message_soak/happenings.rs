//! What happens to a program: faults begin and end, hosts crash, packets are forged.

use longhaul_time::{Duration, Instant};
use longhaul_world::{Link, Way};

use super::ends::{End, Host};
use super::plan::{FaultKind, Item};
use super::program::{Half, Program};
use super::{attacker, liar};

impl Program<'_> {
    pub(super) fn apply_due(&mut self, now: Instant) {
        while let Some(&(_, index, begins)) = self.agenda.front().filter(|(at, ..)| *at <= now) {
            self.agenda.pop_front();
            match &self.plan.items[index] {
                Item::Fault(fault) if begins => self.begin_fault(index, &fault.kind),
                Item::Fault(fault) => self.end_fault(index, &fault.kind),
                Item::Forgery(forgery) => {
                    let nodes = self.plan.connections[forgery.connection].nodes;
                    if let Some(end) = &self.connections[forgery.connection].ends[forgery.end] {
                        let peer = self.world.gid(nodes[1 - forgery.end]);
                        let packets = attacker::forge(&end.info, peer, forgery.seed, forgery.count);
                        self.inject(self.plan.hosts, &packets);
                    }
                }
                Item::Lie(lie) => {
                    let plan = &self.plan.connections[lie.connection];
                    if let [Some(victim), Some(liar)] = &self.connections[lie.connection].ends {
                        let packets = liar::lie(&victim.info, &liar.info, plan, lie.seed, lie.count);
                        self.inject(plan.nodes[1], &packets);
                    }
                }
                Item::Message(_) => {}
            }
        }
    }

    fn inject(&mut self, node: usize, packets: &[Vec<u8>]) {
        packets.iter().for_each(|packet| self.world.inject(node, packet));
        self.forged += packets.len() as u64;
    }

    fn begin_fault(&mut self, index: usize, kind: &FaultKind) {
        match *kind {
            FaultKind::Weather(ref profile) => self.world.set_link_profile(profile.clone()),
            FaultKind::Cut { node, upwards } => self.world.cut(Link::Nic(node), way(upwards)),
            FaultKind::PauseHost(node) if self.hosts[node].is_down => return,
            FaultKind::PauseHost(node) => {
                self.world.pause(node);
                self.hosts[node].stops += 1;
            }
            FaultKind::PauseProgram(node) => self.hosts[node].stops += 1,
            FaultKind::Crash(node) if self.hosts[node].is_down => return,
            FaultKind::Crash(node) => self.crash(node),
        }
        self.active[index] = true;
    }

    fn end_fault(&mut self, index: usize, kind: &FaultKind) {
        if !std::mem::replace(&mut self.active[index], false) {
            return;
        }
        match *kind {
            FaultKind::Weather(_) => self.world.set_link_profile(self.plan.link.clone()),
            FaultKind::Cut { node, upwards } => self.world.restore(Link::Nic(node), way(upwards)),
            FaultKind::PauseHost(node) => {
                self.hosts[node].stops -= 1;
                let is_paused = |other: usize| {
                    let item = &self.plan.items[other];
                    self.active[other]
                        && matches!(item, Item::Fault(fault) if matches!(fault.kind, FaultKind::PauseHost(at) if at == node))
                };
                if !(0..self.active.len()).any(is_paused) {
                    self.world.resume(node);
                }
            }
            FaultKind::PauseProgram(node) => self.hosts[node].stops -= 1,
            FaultKind::Crash(node) => {
                self.world.restart(node);
                self.hosts[node] = Host { stops: self.hosts[node].stops, ..Host::new(&self.world, node, &self.clock) };
                (0..self.connections.len()).for_each(|index| self.begin_life(index));
            }
        }
    }

    /// A host is switched off: its ends are gone, and those of its peers are on their own.
    fn crash(&mut self, node: usize) {
        for other in 0..self.active.len() {
            let item = &self.plan.items[other];
            if let Item::Fault(fault) = item
                && matches!(fault.kind, FaultKind::PauseHost(at) if at == node)
                && std::mem::replace(&mut self.active[other], false)
            {
                self.hosts[node].stops -= 1;
                self.world.resume(node);
            }
        }
        self.world.stop(node);
        self.hosts[node].is_down = true;
        self.hosts[node].driver.kill();
        let now = self.now();
        for index in 0..self.connections.len() {
            let plan = &self.plan.connections[index];
            if !plan.nodes.contains(&node) {
                continue;
            }
            // Ends of earlier lives whose peers had gone before.
            let gone = |orphan: &mut (End, usize, u32, Instant)| plan.nodes[orphan.1] == node;
            let orphans: Vec<_> = self.connections[index].orphans.extract_if(.., gone).collect();
            for (end, side, life, _) in orphans {
                drop(end);
                self.end_halves_of(index, side, life);
            }
            let life = self.connections[index].life;
            for side in 0..2 {
                let Some(end) = self.connections[index].ends[side].take() else { continue };
                if plan.nodes[side] == node {
                    drop(end);
                    self.end_halves_of(index, side, life);
                } else {
                    let until = now + 2 * plan.timeout + Duration::from_secs(4);
                    self.connections[index].orphans.push((end, side, life, until));
                }
            }
            // Halves that were due in this life and not posted are never posted.
            for from in 0..2 {
                for half in 0..2 {
                    let state = &mut self.connections[index];
                    while let Some(&message) = state.order[from].get(state.next[from][half])
                        && self.states[message].life == Some(life)
                    {
                        state.next[from][half] += 1;
                        match half {
                            0 => self.states[message].send = Half::Gone,
                            _ => self.states[message].receive = Half::Gone,
                        }
                    }
                }
            }
            self.connections[index].life += 1;
        }
    }

    /// The program of an end is gone, and with it what it waited for.
    pub(super) fn end_halves_of(&mut self, index: usize, side: usize, life: u32) {
        for (message, state) in self.messages.iter().zip(&mut self.states) {
            if message.connection != index || state.life != Some(life) {
                continue;
            }
            if message.from == side && state.send.is_pending() {
                state.send = Half::Gone;
            }
            if message.from != side && state.receive.is_pending() {
                state.receive = Half::Gone;
            }
        }
    }
}

fn way(upwards: bool) -> Way {
    if upwards { Way::Up } else { Way::Down }
}
