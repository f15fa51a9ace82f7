//! Faults other than those of the links: cables pulled, fibers cut in one direction, paths between switches lost, hosts
//! that stand still, hosts that stop and come back with nothing.
//!
//! A seed draws which of these there are at all; most have only some, and many have none, so that stricter rules hold.
//! Each fault is repaired after some steps, and all of them before the second phase.

use longhaul_time::Duration;
use longhaul_verbs::{QueuePairAttributes, QueuePairState};
use longhaul_world::{Fault, Link, Way};

use super::fault_plan::FaultKind;
use super::ground::Ground;
use super::program::Program;
use super::state::NodeWords;
use crate::checker::{EndNumber, Ending};

/// Most steps until a fault is repaired.
const STEPS_MAX: u64 = 60;
/// The percentage of faults that last until retries are used up.
const LONG_PERCENT: u32 = 15;

impl Program {
    /// Repairs what is due, and now and then lets something go wrong.
    pub(super) fn step_faults(&mut self, ground: &mut dyn Ground) {
        if self.plan.faults.kinds.is_empty() {
            return;
        }
        self.faults.step += 1;
        let step = self.faults.step;
        while let Some(index) = self.faults.repairs.iter().position(|(due, _)| *due <= step) {
            let (_, repair) = self.faults.repairs.swap_remove(index);
            self.repair_fault(repair, ground);
        }
        if self.dice.within(0..=999) >= u64::from(self.plan.faults.per_mille) {
            return;
        }
        let kinds = self.plan.faults.kinds.clone();
        let kind = self.dice.pick(&kinds);
        let Some((fault, repair)) = self.draw_fault(kind, ground) else { return };
        // One fault for each thing at a time: repairing one would repair the other.
        if self.faults.repairs.iter().any(|(_, other)| *other == repair) {
            return;
        }
        *self.tally.faults.entry(kind.name()).or_default() += 1;
        ground.apply(fault);
        if let Fault::Stop(node) = fault {
            self.node_stopped(node);
        }
        self.faults.repairs.push((step + self.dice.within(1..=STEPS_MAX), repair));
        if self.dice.chance(LONG_PERCENT) {
            // Long enough for every request to be given up.
            let patience = 9 * self.plan.timeout_max();
            self.advance(ground, patience);
        }
    }

    fn draw_fault(&mut self, kind: FaultKind, ground: &dyn Ground) -> Option<(Fault, Fault)> {
        let node = self.dice.index(self.plan.node_count);
        let one_way = self.dice.pick(&[Way::Up, Way::Down]);
        let way = self.dice.pick(&[Way::Both, Way::Both, Way::Up, Way::Down]);
        Some(match kind {
            FaultKind::LinkDown => (Fault::SetLink(node, false), Fault::SetLink(node, true)),
            FaultKind::OneWayCut => {
                let link = Link::Nic(node);
                (Fault::Cut(link, one_way), Fault::Restore(link, Way::Both))
            }
            FaultKind::PathLost => {
                let link = Link::Fabric(self.dice.index(ground.fabric_link_count().max(1)));
                (ground.fabric_link_count() > 0).then_some((Fault::Cut(link, way), Fault::Restore(link, Way::Both)))?
            }
            FaultKind::Pause if self.is_stopped(node) => return None,
            FaultKind::Pause => (Fault::Pause(node), Fault::Resume(node)),
            FaultKind::Restart if self.is_paused(node) => return None,
            FaultKind::Restart => (Fault::Stop(node), Fault::Restart(node)),
        })
    }

    fn repair_fault(&mut self, repair: Fault, ground: &mut dyn Ground) {
        ground.apply(repair);
        if let Fault::Restart(node) = repair {
            self.node_came_back(node, ground);
        }
    }

    /// Repairs everything.
    pub(super) fn mend_all_faults(&mut self, ground: &mut dyn Ground) {
        for (_, repair) in std::mem::take(&mut self.faults.repairs) {
            self.repair_fault(repair, ground);
        }
    }

    fn has_repair(&self, repair: Fault) -> bool {
        self.faults.repairs.iter().any(|(_, other)| *other == repair)
    }

    fn is_paused(&self, node: usize) -> bool {
        self.has_repair(Fault::Resume(node))
    }

    /// Whether a node is switched off.
    pub(super) fn is_stopped(&self, node: usize) -> bool {
        self.has_repair(Fault::Restart(node))
    }

    /// The node of a queue pair.
    pub(super) fn node(&self, end: EndNumber) -> usize {
        self.pair(end).nodes[self.ends[end.0].side]
    }

    /// Whether one of a connection's two nodes is switched off.
    pub(super) fn is_cut_off(&self, end: EndNumber) -> bool {
        self.pair(end).nodes.into_iter().any(|node| self.is_stopped(node))
    }

    /// Lets the nodes of a connection go on, if they stand still: something is to be asked of both.
    pub(super) fn wake_nodes(&mut self, end: EndNumber, ground: &mut dyn Ground) {
        for node in self.pair(end).nodes {
            let resume = Fault::Resume(node);
            if self.has_repair(resume) {
                self.faults.repairs.retain(|(_, repair)| *repair != resume);
                ground.apply(resume);
            }
        }
    }

    fn node_stopped(&mut self, node: usize) {
        for end in self.all_ends() {
            if self.node(end) == node {
                // Its peer gets no answers any more.
                self.judge.moved_to_error(end);
            }
        }
    }

    /// A node has come back with a new device: everything of it is made anew, and its peers begin again too.
    fn node_came_back(&mut self, node: usize, ground: &mut dyn Ground) {
        let pairs: Vec<usize> =
            (0..self.plan.pairs.len()).filter(|pair| self.plan.pairs[*pair].nodes.contains(&node)).collect();
        let ends: Vec<EndNumber> =
            pairs.iter().flat_map(|pair| [EndNumber(2 * pair), EndNumber(2 * pair + 1)]).collect();
        let (own, others): (Vec<EndNumber>, Vec<EndNumber>) = ends.iter().partition(|end| self.node(**end) == node);
        for end in others {
            self.modify(end, &QueuePairAttributes::to_state(QueuePairState::Error));
            self.judge.moved_to_error(end);
        }
        self.advance(ground, Duration::ZERO);
        if let Some(shared) = &self.shared[node] {
            // Events of the old device are gone with it.
            self.judge.wants_limit_event(shared.number(), 0);
        }
        self.poll_events(ground);
        for &end in &ends {
            self.destroy_queue_pair(end);
            self.ends[end.0].has_last_work_request_event = false;
        }
        self.take_last_completions(ground.now());
        let (receives, sends) = self.judge.reset(&ends, &self.memory);
        receives.into_iter().for_each(|receive| self.end_receive(receive.pieces));
        sends.into_iter().for_each(|message| self.end_message(message, Ending::Unknown));
        for &end in &ends {
            self.drop_window(end);
            self.drop_slots(end);
        }
        for end in own {
            let this = &mut self.ends[end.0];
            for arena in this.arenas() {
                for region in arena.regions.drain(..) {
                    self.memory.revoke(&mut self.judge, region);
                }
            }
            this.revoked.clear();
            this.address_handle = None;
        }
        for region in self.words[node].take_regions() {
            self.memory.revoke(&mut self.judge, region);
        }
        if let Some(shared) = &mut self.shared[node] {
            self.judge.forget_shared_queue(shared.number());
            for region in shared.arena.regions.drain(..) {
                self.memory.revoke(&mut self.judge, region);
            }
        }
        self.renew_node(node, ground);
        self.create_shared_receives(node);
        self.words[node] = NodeWords::new(&self.domain(node).clone());
        for &end in &ends {
            self.replace_queue_pair(end);
            self.ends[end.0].reconnect_count = 0;
        }
        for pair in pairs {
            self.connect_pair(pair, ground);
        }
    }
}
