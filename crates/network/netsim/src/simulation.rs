//! The run loop.

use std::sync::Arc;

use longhaul_capture::{Capture, CaptureError, CaptureSummary};
use longhaul_impair::{Profile, ProfileError};
use longhaul_time::Instant;

use crate::endpoint::{Endpoint, NodeId};
use crate::event_queue::Source;
use crate::frame::{Frame, FramePool};
use crate::limits::SimulationLimits;
use crate::link::{Direction, LinkCounters, LinkId};
use crate::network::{ConnectError, Network, NodeIo, node_seed};
use crate::node::Node;

/// Nodes, links and virtual time.
///
/// Build it with [`add_node`](Self::add_node) and [`connect`](Self::connect), at the start or between events; run it
/// with [`step`](Self::step), [`run_until`](Self::run_until) or [`run_while`](Self::run_while). Between those calls
/// nodes can be looked at and changed; say so with [`wake`](Self::wake), or use [`drive`](Self::drive). The simulator
/// calls a node only when a frame arrives for it, its deadline has come, or it was woken.
///
/// Identifiers belong to the simulation that gave them; one of another simulation panics or names something else.
pub struct Simulation<N: Node> {
    pub(crate) nodes: Vec<N>,
    pub(crate) network: Network,
    events_at_now: u64,
    event_count: u64,
}

impl<N: Node> Simulation<N> {
    /// An empty network at [`Instant::ZERO`].
    pub fn new(seed: u64) -> Self {
        Self::with_limits(seed, SimulationLimits::default())
    }

    /// An empty network that may grow so far.
    pub fn with_limits(seed: u64, limits: SimulationLimits) -> Self {
        Simulation { nodes: Vec::new(), network: Network::new(seed, limits), events_at_now: 0, event_count: 0 }
    }

    /// Adds a node. Its first deadline is asked for at once.
    pub fn add_node(&mut self, node: N) -> NodeId {
        let id = self.network.add_node();
        self.nodes.push(node);
        self.reschedule(id.index());
        id
    }

    /// Joins two ports by a link, with a profile for each direction: `forward` from `one` to `other`. Many links of one
    /// profile take less memory if each is given an `Arc` of it.
    pub fn connect(
        &mut self,
        one: Endpoint,
        other: Endpoint,
        forward: impl Into<Arc<Profile>>,
        backward: impl Into<Arc<Profile>>,
    ) -> Result<LinkId, ConnectError> {
        self.network.connect(one, other, forward.into(), backward.into())
    }

    /// Makes a direction of a link better or worse. Frames in flight arrive as announced; those sent from now on may
    /// overtake them if the delay is now shorter or the rate higher.
    pub fn set_profile(
        &mut self,
        link: LinkId,
        direction: Direction,
        profile: impl Into<Arc<Profile>>,
    ) -> Result<(), ProfileError> {
        let now = self.network.now;
        self.network.lanes[link.lane(direction)].impairment.set_profile(profile, now)
    }

    /// How a frame is marked when it met congestion: for IP, by setting CE in its header if it is ECN-capable. Without
    /// it marks are counted and otherwise ignored.
    pub fn set_ecn_marker(&mut self, mark: fn(&mut Frame)) {
        self.network.ecn_marker = Some(mark);
    }

    /// Handles the next event, however far away; `false` if there is none.
    pub fn step(&mut self) -> bool {
        self.advance(Instant::FAR_FUTURE)
    }

    /// Handles the next event if it is not after `end`; `false` if there is none.
    pub fn step_until(&mut self, end: Instant) -> bool {
        self.advance(end)
    }

    /// Handles everything up to and including `end`, and leaves the clock there (or at the last event, if `end` is
    /// [`Instant::FAR_FUTURE`]).
    pub fn run_until(&mut self, end: Instant) {
        while self.advance(end) {}
        if end != Instant::FAR_FUTURE && end > self.network.now {
            self.network.now = end;
            self.events_at_now = 0;
        }
    }

    /// Handles events while the condition holds, which is asked before each. Returns whether it stopped holding;
    /// `false` means that nothing more will happen.
    pub fn run_while(&mut self, mut condition: impl FnMut(&mut Self) -> bool) -> bool {
        while condition(self) {
            if !self.step() {
                return false;
            }
        }
        true
    }

    /// Virtual time.
    pub fn now(&self) -> Instant {
        self.network.now
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &N {
        &self.nodes[id.index()]
    }

    /// A node, to be changed. Follow with [`wake`](Self::wake) if it has something to do now, or something to do
    /// earlier than before.
    pub fn node_mut(&mut self, id: NodeId) -> &mut N {
        &mut self.nodes[id.index()]
    }

    /// All nodes, in the order in which they were added.
    pub fn nodes(&self) -> &[N] {
        &self.nodes
    }

    /// Says that something outside changed a node: it is polled at the present instant, after what had already been
    /// announced for it.
    pub fn wake(&mut self, id: NodeId) {
        self.network.wake_node(id.index());
    }

    /// Does something with a node as if it had been called by the simulator: it can send, and its deadline is asked for
    /// afterwards. Whether the node is paused or stopped is the caller's business.
    pub fn drive<R>(&mut self, id: NodeId, action: impl FnOnce(&mut N, Instant, &mut NodeIo<'_>) -> R) -> R {
        let now = self.network.now;
        let mut io = NodeIo { network: &mut self.network, node: id };
        let result = action(&mut self.nodes[id.index()], now, &mut io);
        self.reschedule(id.index());
        result
    }

    /// A seed for a node's own randomness: from the simulation's seed and the node's number alone.
    pub fn node_seed(&self, id: NodeId) -> u64 {
        node_seed(self.network.seed, id)
    }

    /// A hash of every delivery so far: instant, link, direction, length, and the first 64 and last 16 bytes, of
    /// which a RoCE packet's invariant CRC stands for those between. Equal for equal runs.
    pub fn trace_hash(&self) -> u64 {
        self.network.trace_hash.value()
    }

    /// Arrivals, polls and scheduled faults so far.
    pub fn event_count(&self) -> u64 {
        self.event_count
    }

    /// What a direction of a link has done so far.
    pub fn link_counters(&self, link: LinkId, direction: Direction) -> LinkCounters {
        self.network.lanes[link.lane(direction)].counters()
    }

    /// Frames in flight on a direction of a link.
    pub fn in_flight_count(&self, link: LinkId, direction: Direction) -> usize {
        self.network.lanes[link.lane(direction)].in_flight_count()
    }

    /// Where a link begins and ends, in its forward direction.
    pub fn endpoints(&self, link: LinkId) -> (Endpoint, Endpoint) {
        let end = |direction| self.network.lanes[link.lane(direction)].to();
        (end(Direction::Backward), end(Direction::Forward))
    }

    /// Frames sent on ports that have no link.
    pub fn frames_without_link(&self) -> u64 {
        self.network.frames_without_link
    }

    /// Where buffers come from.
    pub fn frame_pool(&self) -> &FramePool {
        &self.network.pool
    }

    /// Starts writing a capture; then say of what. One capture can hold many nodes and links, each as an interface. A
    /// damaged or marked frame is written as the watched end saw it: undamaged where it was sent, damaged where it
    /// arrived.
    pub fn start_capture(&mut self, capture: Capture) {
        self.network.clear_captures();
        self.network.capture = Some(Box::new(capture));
    }

    /// Captures a node as a capture on that host would: what it sends as it sends it, what it receives as it arrives.
    pub fn capture_node(&mut self, node: NodeId, name: &str) -> Result<(), CaptureError> {
        let interface = self.network.capture.as_mut().ok_or(CaptureError::NotStarted)?.add_interface(name)?;
        self.network.set_node_capture(node, interface);
        Ok(())
    }

    /// Captures a direction of a link at its beginning: every frame sent into it, those included that it then loses.
    pub fn capture_link(&mut self, link: LinkId, direction: Direction, name: &str) -> Result<(), CaptureError> {
        let interface = self.network.capture.as_mut().ok_or(CaptureError::NotStarted)?.add_interface(name)?;
        self.network.lanes[link.lane(direction)].rarities_mut().capture_interface = Some(interface);
        Ok(())
    }

    /// Ends the capture, and says what became of it: an error while writing does not stop the simulation, and is
    /// reported here.
    pub fn finish_capture(&mut self) -> Result<CaptureSummary, CaptureError> {
        self.network.clear_captures();
        self.network.capture.take().ok_or(CaptureError::NotStarted)?.finish()
    }

    /// Handles the next event, if it is not later than `end`.
    #[inline]
    fn advance(&mut self, end: Instant) -> bool {
        loop {
            let Some((key, source)) = self.network.queue.peek() else {
                return false;
            };
            let at = key.at();
            if at > end {
                return false;
            }
            match source {
                Source::Lane(lane) => {
                    self.move_clock(at);
                    let frame = self.network.take_arrival(lane);
                    if self.network.leads_to_running_node(lane) {
                        let index = self.deliver(lane, frame);
                        self.reschedule(index);
                    } else {
                        self.network.hold_or_drop(lane, frame);
                    }
                }
                Source::Faults => {
                    self.move_clock(at);
                    let fault = self.network.take_fault();
                    self.apply(fault);
                }
                Source::Node(index) => {
                    let deadline = self.nodes[index].next_deadline();
                    if !self.network.take_deadline(index, at, deadline) {
                        // It had moved, and nothing happens now.
                        continue;
                    }
                    self.move_clock(at);
                    let mut io = NodeIo { network: &mut self.network, node: NodeId(index as u32) };
                    self.nodes[index].poll(at, &mut io);
                    self.reschedule(index);
                }
            }
            self.event_count += 1;
            return true;
        }
    }

    /// Hands a frame to the node at the end of a direction, and says which node that is.
    #[inline]
    pub(crate) fn deliver(&mut self, lane: usize, frame: Frame) -> usize {
        let to = self.network.note_delivery(lane, &frame);
        let now = self.network.now;
        let mut io = NodeIo { network: &mut self.network, node: to.node };
        self.nodes[to.node.index()].handle(to.port, frame, now, &mut io);
        to.node.index()
    }

    #[inline]
    fn move_clock(&mut self, at: Instant) {
        debug_assert!(at >= self.network.now, "events come in order");
        if at > self.network.now {
            self.network.now = at;
            self.events_at_now = 0;
        }
        self.events_at_now += 1;
        assert!(
            self.events_at_now <= self.network.limits.events_per_instant_max,
            "time does not advance: {} events at {:?}; a node's deadline stays in the past after a poll, or \
             frames go in a circle without delay",
            self.events_at_now,
            self.network.now,
        );
    }

    #[inline]
    pub(crate) fn reschedule(&mut self, index: usize) {
        let deadline = self.nodes[index].next_deadline();
        self.network.schedule_node(index, deadline);
    }
}
