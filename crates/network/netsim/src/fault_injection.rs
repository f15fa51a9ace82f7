//! What faults do to links and nodes, and when.

use longhaul_time::Instant;

use crate::endpoint::NodeId;
use crate::event_queue::Source;
use crate::fault::{Fault, TooManyFaults};
use crate::link::{Direction, LinkId};
use crate::network::Network;
use crate::node::Node;
use crate::node_trouble::{NodeCondition, NodeCounters};
use crate::simulation::Simulation;

impl Network {
    fn schedule_fault(&mut self, at: Instant, fault: Fault) -> Result<(), TooManyFaults> {
        let most = self.limits.scheduled_faults_max;
        if self.faults.faults.len() >= most {
            return Err(TooManyFaults { most });
        }
        let key = self.next_key(at.max(self.now));
        self.faults.faults.insert(key, fault);
        self.faults.source.get_or_insert_with(|| self.queue.add_source(Source::Faults));
        self.announce_fault();
        Ok(())
    }

    fn announce_fault(&mut self) {
        let Some(source) = self.faults.source else {
            return;
        };
        match self.faults.faults.first_key_value() {
            Some((&key, _)) => self.queue.set(source, key),
            None => self.queue.remove(source),
        }
    }

    /// Takes the fault whose instant has come.
    pub(crate) fn take_fault(&mut self) -> Fault {
        let (_, fault) =
            self.faults.faults.pop_first().expect("the schedule is in the event queue only while it has a fault");
        self.announce_fault();
        fault
    }

    fn cut(&mut self, lane_index: usize) {
        let lane = &mut self.lanes[lane_index];
        if lane.is_cut() {
            return;
        }
        lane.rarities_mut().cut_since = Some(self.now);
        self.cut_lane_count += 1;
        self.queue.remove(lane.source);
        while let Some(lost) = lane.pop() {
            lane.rarities_mut().lost_by_cut += 1;
            self.pool.give_back(lost.frame.bytes);
        }
    }

    fn restore(&mut self, lane_index: usize) {
        let lane = &mut self.lanes[lane_index];
        if lane.is_cut() {
            lane.rarities_mut().cut_since = None;
            self.cut_lane_count -= 1;
        }
    }
}

impl<N: Node> Simulation<N> {
    /// Applies a fault, or a repair, now. Does nothing if the state is already as asked.
    pub fn apply(&mut self, fault: Fault) {
        match fault {
            Fault::Cut(link, direction) => self.network.cut(link.lane(direction)),
            Fault::Restore(link, direction) => self.network.restore(link.lane(direction)),
            Fault::Pause(node) => self.network.pause_node(node.index()),
            Fault::Resume(node) => self.resume(node),
            Fault::Stop(node) => self.network.stop_node(node.index()),
        }
    }

    /// Lets a fault happen at an instant, now if that is past. Faults of one instant happen in the order in which they
    /// were scheduled.
    pub fn schedule(&mut self, at: Instant, fault: Fault) -> Result<(), TooManyFaults> {
        self.network.schedule_fault(at, fault)
    }

    /// Faults that are still to come, in their order.
    pub fn scheduled_faults(&self) -> impl Iterator<Item = (Instant, Fault)> {
        self.network.faults.faults.iter().map(|(key, fault)| (key.at(), *fault))
    }

    /// Forgets the faults that are still to come.
    pub fn clear_schedule(&mut self) {
        self.network.faults.faults.clear();
        self.network.announce_fault();
    }

    /// Puts a fresh node in the place of another, which it gives back: same ports, same links, nothing remembered. It
    /// runs, whatever the other did. Frames in flight arrive at the fresh node, as those in a real network do; what
    /// waited for the old one is lost with it.
    pub fn replace(&mut self, id: NodeId, fresh: N) -> N {
        self.network.stop_node(id.index());
        self.network.run_node(id.index());
        let old = std::mem::replace(&mut self.nodes[id.index()], fresh);
        self.reschedule(id.index());
        old
    }

    /// Whether a node runs.
    pub fn condition(&self, id: NodeId) -> NodeCondition {
        self.network.condition(id.index())
    }

    /// What became of frames that arrived while a node did not run.
    pub fn node_counters(&self, id: NodeId) -> NodeCounters {
        self.network.nodes[id.index()].trouble.as_ref().map(|trouble| trouble.counters).unwrap_or_default()
    }

    /// Whether a direction of a link is cut.
    pub fn is_cut(&self, link: LinkId, direction: Direction) -> bool {
        self.network.lanes[link.lane(direction)].is_cut()
    }

    /// Directions of links that are cut.
    pub fn cut_count(&self) -> usize {
        self.network.cut_lane_count
    }

    fn resume(&mut self, id: NodeId) {
        let index = id.index();
        if self.network.condition(index) != NodeCondition::Paused {
            return;
        }
        for (lane, frame) in self.network.run_node(index) {
            self.deliver(lane as usize, frame);
        }
        if self.network.nodes[index].woken {
            self.network.wake_node(index);
        }
        self.reschedule(index);
    }
}
