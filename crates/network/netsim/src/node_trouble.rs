//! Nodes that do not run: paused or stopped.
//!
//! What arrives for a paused node waits, as in the receive ring of a NIC whose host stands still, and is handed over
//! when the node goes on, in the order of arrival and before the node is polled. The ring is bounded
//! ([`SimulationLimits::paused_frames_max`](crate::SimulationLimits)): further frames are lost. What arrives for a
//! stopped node is lost: there is nothing left to receive it.

use std::collections::VecDeque;

use longhaul_time::Instant;

use crate::frame::Frame;
use crate::network::Network;

/// What became of frames that arrived while a node did not run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounters {
    /// Frames that arrived while the node was paused and found no room to wait.
    pub lost_while_paused: u64,
    /// Frames that arrived while the node was stopped, or waited for it when it was.
    pub lost_while_stopped: u64,
}

/// Whether a node runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeCondition {
    /// It is handed frames and polled.
    #[default]
    Running,
    /// It stands still; frames wait for it.
    Paused,
    /// It is gone; frames for it are lost.
    Stopped,
}

/// What the simulator knows about a node that was paused or stopped at some time.
#[derive(Default)]
pub(crate) struct NodeTrouble {
    pub(crate) condition: NodeCondition,
    /// Each with the direction that it arrived in.
    waiting: VecDeque<(u32, Frame)>,
    pub(crate) counters: NodeCounters,
}

impl Network {
    #[inline]
    pub(crate) fn leads_to_running_node(&self, lane: usize) -> bool {
        self.nodes[self.lanes[lane].to().node.index()].is_running
    }

    pub(crate) fn condition(&self, node: usize) -> NodeCondition {
        self.nodes[node].trouble.as_ref().map_or(NodeCondition::Running, |trouble| trouble.condition)
    }

    /// A frame has arrived for a node that does not run.
    #[cold]
    pub(crate) fn hold_or_drop(&mut self, lane: usize, frame: Frame) {
        let most = self.limits.paused_frames_max;
        let node = self.lanes[lane].to().node.index();
        let trouble = self.nodes[node].trouble.get_or_insert_default();
        let lost = match trouble.condition {
            NodeCondition::Paused if trouble.waiting.len() < most => {
                trouble.waiting.push_back((lane as u32, frame));
                return;
            }
            NodeCondition::Paused => &mut trouble.counters.lost_while_paused,
            NodeCondition::Running | NodeCondition::Stopped => &mut trouble.counters.lost_while_stopped,
        };
        *lost += 1;
        self.pool.give_back(frame.bytes);
    }

    /// A node stands still from now on. Nothing if it does already, or is stopped.
    pub(crate) fn pause_node(&mut self, index: usize) {
        if self.condition(index) == NodeCondition::Running {
            self.halt(index, NodeCondition::Paused);
        }
    }

    /// A node is gone from now on, and what waited for it.
    pub(crate) fn stop_node(&mut self, index: usize) {
        self.halt(index, NodeCondition::Stopped);
        let node = &mut self.nodes[index];
        node.woken = false;
        let trouble = node.trouble.get_or_insert_default();
        for (_, frame) in std::mem::take(&mut trouble.waiting) {
            trouble.counters.lost_while_stopped += 1;
            self.pool.give_back(frame.bytes);
        }
    }

    fn halt(&mut self, index: usize, condition: NodeCondition) {
        let node = &mut self.nodes[index];
        node.is_running = false;
        node.scheduled_at = Instant::ZERO;
        node.trouble.get_or_insert_default().condition = condition;
        self.queue.remove(node.source);
    }

    /// A node runs from now on. Gives out what waited for it.
    pub(crate) fn run_node(&mut self, index: usize) -> VecDeque<(u32, Frame)> {
        let node = &mut self.nodes[index];
        node.is_running = true;
        node.scheduled_at = Instant::FAR_FUTURE;
        let trouble = node.trouble.get_or_insert_default();
        trouble.condition = NodeCondition::Running;
        std::mem::take(&mut trouble.waiting)
    }
}
