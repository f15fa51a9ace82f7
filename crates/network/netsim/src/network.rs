//! Everything of a simulation but its nodes, and the part of it that a node may touch.

use std::sync::Arc;

use longhaul_capture::{Capture, CaptureDirection};
use longhaul_impair::{Impairment, Profile, ProfileError, Verdict};
use longhaul_time::Instant;

use crate::endpoint::{Endpoint, NodeId};
use crate::event_queue::{EventKey, EventQueue, Source, SourceId};
use crate::fault::FaultSchedule;
use crate::frame::{Frame, FramePool};
use crate::limits::SimulationLimits;
use crate::link::{Direction, Lane, LinkId};
use crate::node_trouble::NodeTrouble;
use crate::trace_hash::TraceHash;

/// Why two ports cannot be joined.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// One of them already has a link.
    #[error("port {} of node {} already has a link: use a free port", .0.port, .0.node.0)]
    PortInUse(Endpoint),
    /// The port number is above the limit.
    #[error("port {} of node {} is above the limit: use a port below {}", .0.port, .0.node.0, ConnectError::PORT_COUNT_MAX)]
    PortNumber(Endpoint),
    /// The link would join a port with itself.
    #[error("port {} of node {} cannot be linked to itself: use two ports", .0.port, .0.node.0)]
    SamePort(Endpoint),
    /// A direction's profile makes no sense.
    #[error("the profile of the link's {direction} direction does not work")]
    Profile {
        /// Which direction.
        direction: Direction,
        /// What is wrong with it.
        source: ProfileError,
    },
}

impl ConnectError {
    /// Ports of a node are numbered below this.
    pub const PORT_COUNT_MAX: usize = 1 << 16;
}

/// What the simulator knows about a node.
pub(crate) struct NodeState {
    ports: Ports,
    pub(crate) source: SourceId,
    /// The instant of the node's entry in the event queue; [`Instant::FAR_FUTURE`] if it has none. It may be earlier
    /// than the node's deadline (deadlines that move away are noticed when the entry comes up) but never later. While
    /// the node does not run it is [`Instant::ZERO`], which no deadline undercuts, so that nothing is announced for it.
    pub(crate) scheduled_at: Instant,
    pub(crate) woken: bool,
    pub(crate) is_running: bool,
    capture_interface: Option<u32>,
    /// Only of nodes that were paused or stopped at some time.
    pub(crate) trouble: Option<Box<NodeTrouble>>,
}

/// The direction that leaves by each port of a node. Most nodes have one port, so the first is at hand.
struct Ports {
    first: u32,
    others: Vec<u32>,
}

/// No link at a port.
const NO_LANE: u32 = u32::MAX;

impl Default for Ports {
    fn default() -> Self {
        Ports { first: NO_LANE, others: Vec::new() }
    }
}

impl Ports {
    #[inline]
    fn get(&self, port: usize) -> Option<usize> {
        let lane = match port.checked_sub(1) {
            None => self.first,
            Some(other) => self.others.get(other).copied().unwrap_or(NO_LANE),
        };
        (lane != NO_LANE).then_some(lane as usize)
    }

    fn set(&mut self, port: usize, lane: u32) {
        let Some(other) = port.checked_sub(1) else {
            self.first = lane;
            return;
        };
        if self.others.len() <= other {
            self.others.resize(other + 1, NO_LANE);
        }
        self.others[other] = lane;
    }

    /// One more than the highest port that has a link.
    fn count(&self) -> usize {
        match self.others.len() {
            0 => usize::from(self.first != NO_LANE),
            others => others + 1,
        }
    }
}

pub(crate) struct Network {
    pub(crate) now: Instant,
    pub(crate) seed: u64,
    pub(crate) lanes: Vec<Lane>,
    pub(crate) queue: EventQueue,
    pub(crate) pool: FramePool,
    pub(crate) capture: Option<Box<Capture>>,
    pub(crate) trace_hash: TraceHash,
    pub(crate) ecn_marker: Option<fn(&mut Frame)>,
    pub(crate) limits: SimulationLimits,
    pub(crate) frames_without_link: u64,
    pub(crate) faults: FaultSchedule,
    /// Directions that are cut now.
    pub(crate) cut_lane_count: usize,
    pub(crate) nodes: Vec<NodeState>,
    sequence: u64,
}

impl Network {
    pub(crate) fn new(seed: u64, limits: SimulationLimits) -> Self {
        Network {
            now: Instant::ZERO,
            seed,
            lanes: Vec::new(),
            queue: EventQueue::default(),
            pool: FramePool::new(limits.pool_buffer_bytes, limits.pool_buffer_count_max),
            capture: None,
            trace_hash: TraceHash::new(),
            ecn_marker: None,
            limits,
            frames_without_link: 0,
            faults: FaultSchedule::default(),
            cut_lane_count: 0,
            nodes: Vec::new(),
            sequence: 0,
        }
    }

    pub(crate) fn add_node(&mut self) -> NodeId {
        let index = self.nodes.len();
        let source = self.queue.add_source(Source::Node(index));
        self.nodes.push(NodeState {
            ports: Ports::default(),
            source,
            scheduled_at: Instant::FAR_FUTURE,
            woken: false,
            is_running: true,
            capture_interface: None,
            trouble: None,
        });
        NodeId(u32::try_from(index).expect("fewer than 2^32 nodes: they would not fit in memory"))
    }

    pub(crate) fn connect(
        &mut self,
        one: Endpoint,
        other: Endpoint,
        forward: Arc<Profile>,
        backward: Arc<Profile>,
    ) -> Result<LinkId, ConnectError> {
        if one == other {
            return Err(ConnectError::SamePort(one));
        }
        for end in [one, other] {
            if end.port >= ConnectError::PORT_COUNT_MAX {
                return Err(ConnectError::PortNumber(end));
            }
            if self.lane_from(end).is_some() {
                return Err(ConnectError::PortInUse(end));
            }
        }
        let impairment = |from: Endpoint, profile, direction| {
            Impairment::new(profile, link_seed(self.seed, from))
                .map_err(|source| ConnectError::Profile { direction, source })
        };
        let forward = impairment(one, forward, Direction::Forward)?;
        let backward = impairment(other, backward, Direction::Backward)?;
        let link = LinkId(u32::try_from(self.lanes.len() / 2).expect("fewer than 2^31 links: they fit in memory"));
        for (impairment, from, to) in [(forward, one, other), (backward, other, one)] {
            let index = self.lanes.len();
            let source = self.queue.add_source(Source::Lane(index));
            self.lanes.push(Lane::new(impairment, source, to));
            self.nodes[from.node.index()].ports.set(from.port, index as u32);
        }
        Ok(link)
    }

    #[inline]
    pub(crate) fn lane_from(&self, end: Endpoint) -> Option<usize> {
        self.nodes[end.node.index()].ports.get(end.port)
    }

    #[inline]
    pub(crate) fn next_key(&mut self, at: Instant) -> EventKey {
        self.sequence += 1;
        EventKey::new(at, self.sequence)
    }

    fn send(&mut self, from: Endpoint, mut frame: Frame) {
        let Some(lane_index) = self.lane_from(from) else {
            self.frames_without_link += 1;
            self.pool.give_back(frame.bytes);
            return;
        };
        if self.capture.is_some() {
            self.capture_sent(from, lane_index, &frame);
        }
        let lane = &mut self.lanes[lane_index];
        let (first, second) = match lane.impairment.handle(frame.wire_bytes(), self.now) {
            Verdict::Once(delivery) => (delivery, None),
            Verdict::Twice(first, second) => (first, Some(second)),
            Verdict::Dropped(_) => {
                self.pool.give_back(frame.bytes);
                return;
            }
        };
        if first.ecn_mark
            && let Some(mark) = self.ecn_marker
        {
            mark(&mut frame);
        }
        if let Some(second) = second {
            let mut copy = self.pool.copy(&frame);
            if let Some(corruption) = second.corruption {
                corruption.apply(&mut copy.bytes);
            }
            if let Some(corruption) = first.corruption {
                corruption.apply(&mut frame.bytes);
            }
            self.put_in_flight(lane_index, first.at, frame);
            self.put_in_flight(lane_index, second.at, copy);
            return;
        }
        if let Some(corruption) = first.corruption {
            corruption.apply(&mut frame.bytes);
        }
        self.put_in_flight(lane_index, first.at, frame);
    }

    #[inline]
    fn put_in_flight(&mut self, lane_index: usize, at: Instant, frame: Frame) {
        let key = self.next_key(at);
        let lane = &mut self.lanes[lane_index];
        if lane.is_cut() {
            lane.rarities_mut().sent_into_cut += 1;
            self.pool.give_back(frame.bytes);
            return;
        }
        if lane.in_flight_count() >= self.limits.in_flight_frames_max {
            lane.rarities_mut().in_flight_limit += 1;
            self.pool.give_back(frame.bytes);
            return;
        }
        if lane.push(key, frame) {
            self.queue.set(lane.source, key);
        }
    }

    /// Takes the frame that a direction announced, and announces its next.
    #[inline]
    pub(crate) fn take_arrival(&mut self, lane_index: usize) -> Frame {
        let lane = &mut self.lanes[lane_index];
        let arrival = lane.pop().expect("a direction is in the event queue only while it has a frame");
        match lane.next_key() {
            Some(key) => self.queue.set(lane.source, key),
            None => self.queue.remove(lane.source),
        }
        arrival.frame
    }

    /// Notes that a frame is being handed to the node at the end of a direction; says where that is.
    #[inline]
    pub(crate) fn note_delivery(&mut self, lane_index: usize, frame: &Frame) -> Endpoint {
        let lane = &mut self.lanes[lane_index];
        lane.delivered += 1;
        let to = lane.to();
        self.trace_hash.add(self.now.as_nanos(), lane_index as u64, frame.wire_bytes(), &frame.bytes);
        if self.capture.is_some() {
            self.capture_delivered(to, frame);
        }
        to
    }

    /// Notes a node's deadline, if it has come nearer.
    #[inline]
    pub(crate) fn schedule_node(&mut self, index: usize, deadline: Option<Instant>) {
        let Some(deadline) = deadline else {
            return;
        };
        let at = deadline.max(self.now);
        if at < self.nodes[index].scheduled_at {
            let key = self.next_key(at);
            let node = &mut self.nodes[index];
            node.scheduled_at = at;
            self.queue.set(node.source, key);
        }
    }

    pub(crate) fn wake_node(&mut self, index: usize) {
        self.nodes[index].woken = true;
        self.schedule_node(index, Some(self.now));
    }

    /// A node's entry has come up, at its instant `at`. Says whether the node is to be polled; if not, its deadline has
    /// moved, and the entry with it.
    #[inline]
    pub(crate) fn take_deadline(&mut self, index: usize, at: Instant, deadline: Option<Instant>) -> bool {
        let node = &mut self.nodes[index];
        let is_due = node.woken || deadline.is_some_and(|deadline| deadline <= at);
        node.woken = false;
        node.scheduled_at = Instant::FAR_FUTURE;
        if is_due || deadline.is_none_or(|deadline| deadline == Instant::FAR_FUTURE) {
            self.queue.remove(node.source);
        } else {
            self.schedule_node(index, deadline);
        }
        is_due
    }

    pub(crate) fn set_node_capture(&mut self, node: NodeId, interface: u32) {
        self.nodes[node.index()].capture_interface = Some(interface);
    }

    pub(crate) fn clear_captures(&mut self) {
        for node in &mut self.nodes {
            node.capture_interface = None;
        }
        for rarities in self.lanes.iter_mut().filter_map(|lane| lane.rarities.as_mut()) {
            rarities.capture_interface = None;
        }
    }

    #[cold]
    fn capture_sent(&mut self, from: Endpoint, lane_index: usize, frame: &Frame) {
        let lane_interface = self.lanes[lane_index].rarities.as_ref().and_then(|rarities| rarities.capture_interface);
        let interfaces = [self.nodes[from.node.index()].capture_interface, lane_interface];
        if let Some(capture) = &mut self.capture {
            for interface in interfaces.into_iter().flatten() {
                capture.record(interface, self.now, &frame.bytes, frame.wire_bytes(), CaptureDirection::Sent);
            }
        }
    }

    #[cold]
    fn capture_delivered(&mut self, to: Endpoint, frame: &Frame) {
        if let (Some(capture), Some(interface)) = (&mut self.capture, self.nodes[to.node.index()].capture_interface) {
            capture.record(interface, self.now, &frame.bytes, frame.wire_bytes(), CaptureDirection::Received);
        }
    }
}

/// A node's hands: what it may do to the network while it is being driven.
pub struct NodeIo<'a> {
    pub(crate) network: &'a mut Network,
    pub(crate) node: NodeId,
}

impl NodeIo<'_> {
    /// Sends a frame on a port, now. It joins the queue of the port's link; if that is full the frame is dropped, as
    /// a NIC without back-pressure would. A frame sent on a port without a link is dropped and counted.
    #[inline]
    pub fn send(&mut self, port: usize, frame: Frame) {
        self.network.send(Endpoint { node: self.node, port }, frame);
    }

    /// A buffer for a frame, with whatever its last user left in it.
    #[inline]
    pub fn take_buffer(&mut self) -> Vec<u8> {
        self.network.pool.take()
    }

    /// Gives a frame's buffer back.
    #[inline]
    pub fn recycle(&mut self, frame: Frame) {
        self.network.pool.give_back(frame.bytes);
    }

    /// A copy of a frame, in a buffer of the pool.
    #[inline]
    pub fn copy(&mut self, frame: &Frame) -> Frame {
        self.network.pool.copy(frame)
    }

    /// Bytes sent on a port that the wire has not taken yet; zero on an infinitely fast link.
    pub fn egress_backlog_bytes(&self, port: usize) -> u64 {
        let now = self.network.now;
        self.lane(port).map_or(0, |lane| lane.impairment.backlog_bytes(now))
    }

    /// When the wire of a port has taken everything sent so far; not after now if it is idle. A node that sends at
    /// this instant, and names it as its deadline until then, keeps the wire busy and the queue empty. A profile set
    /// meanwhile may move it.
    #[inline]
    pub fn egress_idle_at(&self, port: usize) -> Instant {
        self.lane(port).map_or(Instant::ZERO, |lane| lane.impairment.idle_at())
    }

    /// One more than the highest port that has a link.
    pub fn port_count(&self) -> usize {
        self.network.nodes[self.node.index()].ports.count()
    }

    /// Whether a port has a link.
    pub fn is_connected(&self, port: usize) -> bool {
        self.lane(port).is_some()
    }

    /// Whether no link is cut anywhere: most of the time, and cheap to ask.
    #[inline]
    pub fn all_links_are_whole(&self) -> bool {
        self.network.cut_lane_count == 0
    }

    /// Since when the link of any port of any node is cut in either direction; `None` if it is whole or there is none.
    /// As with Ethernet's fault signalling, a link of which one direction is dead is known at both ends not to work.
    pub fn link_cut_since(&self, port: Endpoint) -> Option<Instant> {
        let lane = self.network.lane_from(port)?;
        // The two directions of a link are neighbours.
        [lane, lane ^ 1].into_iter().filter_map(|lane| self.network.lanes[lane].cut_since()).min()
    }

    /// The node being driven.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Virtual time.
    pub fn now(&self) -> Instant {
        self.network.now
    }

    #[inline]
    fn lane(&self, port: usize) -> Option<&Lane> {
        let lane = self.network.lane_from(Endpoint { node: self.node, port })?;
        Some(&self.network.lanes[lane])
    }
}

/// The seed of the direction that leaves by a port. It depends on nothing else, so that further links do not change it.
fn link_seed(seed: u64, from: Endpoint) -> u64 {
    derive_seed(seed, 1, (u64::from(from.node.0) << 32) | from.port as u64)
}

/// The seed for whatever randomness a node needs.
pub(crate) fn node_seed(seed: u64, node: NodeId) -> u64 {
    derive_seed(seed, 2, u64::from(node.0))
}

/// One seed of many from a simulation's, mixed once for each input.
fn derive_seed(seed: u64, kind: u64, index: u64) -> u64 {
    [kind, index].into_iter().fold(seed, |mixed, input| mix(mixed.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ input))
}

/// Near inputs give unrelated outputs: the finalizer of SplitMix64.
#[inline]
pub(crate) fn mix(input: u64) -> u64 {
    let mut mixed = (input ^ (input >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
