//! A switch of a topology, with several ways of equal cost.
//!
//! Which flow a frame belongs to, the caller's function says: the simulator does not know what bytes mean. All frames
//! of a flow take the same way as long as it is there. Of several ways one is chosen by a hash of the flow and the
//! switch's number, so that flows spread anew at each tier. When a way is known to be dead, only the flows on it move.

use std::sync::Arc;

use longhaul_time::{Duration, Instant};

use crate::endpoint::NodeId;
use crate::frame::Frame;
use crate::network::{NodeIo, mix};
use crate::node::Node;
use crate::topology::{Neighbour, Topology};

/// Where a frame is going, and what it has in common with others that must stay in order with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Where it is going.
    pub destination: Destination,
    /// The same for all frames of a flow; need not be spread well.
    pub key: u64,
}

/// Where a frame is going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To this host of the topology.
    Host(usize),
    /// To all hosts but the one it comes from.
    Everyone,
    /// Nowhere that the network knows.
    Nowhere,
}

/// What a switch does about ways that lead over a link that is cut. It knows of links beyond its own, as routing
/// protocols would announce it, and all switches know at the same instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathAvoidance {
    /// They are not used from the instant of the cut.
    #[default]
    AtOnce,
    /// They are not used once they have been dead for so long; until then they are black holes.
    After(Duration),
    /// They are used as ever: black holes.
    Never,
}

/// The caller's function that distinguishes flows, shared by all switches.
pub type FlowOf = Arc<dyn Fn(&Frame) -> Flow + Send + Sync>;

/// A switch of a topology. Like [`Switch`](crate::Switch) it has no queue of its own: frames queue where they leave.
pub struct FabricSwitch {
    topology: Topology,
    number: usize,
    flow_of: FlowOf,
    avoidance: PathAvoidance,
    /// What it has done so far.
    pub counters: FabricSwitchCounters,
}

/// What a switch has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FabricSwitchCounters {
    /// Frames sent towards a host.
    pub forwarded: u64,
    /// Of those, frames that went another way than usual because that was dead.
    pub rerouted: u64,
    /// Frames sent towards everyone.
    pub flooded: u64,
    /// Frames that go nowhere, and were dropped.
    pub unroutable: u64,
}

impl FabricSwitch {
    /// The switch with this number. The switches of a topology are nodes that follow each other, in the order of their
    /// numbers, as [`Topology::build`] makes them. Links that are cut are avoided; switches that are stopped or paused
    /// are not.
    pub fn new(topology: Topology, number: usize, flow_of: FlowOf, avoidance: PathAvoidance) -> Self {
        FabricSwitch { topology, number, flow_of, avoidance, counters: FabricSwitchCounters::default() }
    }

    /// The port for a flow towards a host.
    #[inline]
    fn choose(&mut self, host: usize, key: u64, io: &NodeIo<'_>) -> usize {
        let mut ports = self.topology.ports_towards(self.number, host);
        if ports.len() == 1 {
            return ports.start;
        }
        let mixed = spread(key, self.number as u64);
        let usual = ports.start + scale(mixed, ports.len());
        if io.all_links_are_whole() || self.avoidance == PathAvoidance::Never {
            return usual;
        }
        let view = FabricView { switch: self, io };
        if view.leads_to(self.number, usual, host) {
            return usual;
        }
        let is_alive = |port: &usize| view.leads_to(self.number, *port, host);
        let alive_count = ports.clone().filter(is_alive).count();
        if alive_count == 0 {
            // It is lost where the path ends, and counted there.
            return usual;
        }
        let chosen = ports.by_ref().filter(is_alive).nth(scale(spread(mixed, 1), alive_count)).unwrap_or(usual);
        self.counters.rerouted += 1;
        chosen
    }

    /// Up one way and down all, so that everyone gets one copy and none goes in a circle.
    fn flood(&mut self, came_by: usize, frame: Frame, key: u64, io: &mut NodeIo<'_>) {
        self.counters.flooded += 1;
        let up = self.topology.up_ports(self.number);
        let is_from_below = !up.contains(&came_by);
        if is_from_below && !up.is_empty() {
            let copy = io.copy(&frame);
            io.send(self.way_up(up, key, io), copy);
        }
        for port in self.topology.down_ports(self.number).filter(|&port| port != came_by) {
            if io.is_connected(port) {
                let copy = io.copy(&frame);
                io.send(port, copy);
            }
        }
        io.recycle(frame);
    }

    /// The port up for a frame to everyone: the usual one, or the next whose own link is whole.
    fn way_up(&self, up: std::ops::Range<usize>, key: u64, io: &NodeIo<'_>) -> usize {
        let usual = scale(spread(key, self.number as u64), up.len());
        let view = FabricView { switch: self, io };
        (0..up.len())
            .map(|offset| up.start + (usual + offset) % up.len())
            .find(|&port| !view.is_avoided(self.number, port))
            .unwrap_or(up.start + usual)
    }
}

/// What a switch knows of the fabric around it.
struct FabricView<'a, 'b> {
    switch: &'a FabricSwitch,
    io: &'a NodeIo<'b>,
}

impl FabricView<'_, '_> {
    /// Whether there is a path to a host over a port. The link of the host itself is left out: there is no path around
    /// it.
    fn leads_to(&self, switch: usize, port: usize, host: usize) -> bool {
        let topology = &self.switch.topology;
        match topology.neighbour(switch, port) {
            Some(Neighbour::Host(_)) => true,
            Some(Neighbour::Switch { switch: next, .. }) => {
                !self.is_avoided(switch, port)
                    && topology.ports_towards(next, host).any(|port| self.leads_to(next, port, host))
            }
            None => false,
        }
    }

    fn is_avoided(&self, switch: usize, port: usize) -> bool {
        let delay = match self.switch.avoidance {
            PathAvoidance::AtOnce => Duration::ZERO,
            PathAvoidance::After(delay) => delay,
            PathAvoidance::Never => return false,
        };
        // Switches were added one after the other, so their nodes are numbered as they are.
        let first = self.io.node().index() - self.switch.number;
        let port = NodeId((first + switch) as u32).port(port);
        self.io.link_cut_since(port).is_some_and(|since| since + delay <= self.io.now())
    }
}

impl Node for FabricSwitch {
    fn handle(&mut self, link_port: usize, frame: Frame, _now: Instant, io: &mut NodeIo<'_>) {
        let Flow { destination, key } = (self.flow_of)(&frame);
        match destination {
            Destination::Host(host) if host < self.topology.host_count() => {
                self.counters.forwarded += 1;
                let port = self.choose(host, key, io);
                io.send(port, frame);
            }
            Destination::Everyone => self.flood(link_port, frame, key, io),
            Destination::Host(_) | Destination::Nowhere => {
                self.counters.unroutable += 1;
                io.recycle(frame);
            }
        }
    }

    fn poll(&mut self, _now: Instant, _io: &mut NodeIo<'_>) {}

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

/// Spreads flows whose keys are near each other.
#[inline]
fn spread(key: u64, salt: u64) -> u64 {
    mix(key ^ salt.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// A number below `count`, evenly from all 64-bit numbers.
#[inline]
fn scale(hash: u64, count: usize) -> usize {
    ((u128::from(hash) * count as u128) >> 64) as usize
}
