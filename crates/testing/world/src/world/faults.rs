//! Faults of a world, in the words of an operator of RNICs: a cable is pulled, a fiber is cut in one direction, a host
//! stands still, a host is switched off and comes back with nothing.
//!
//! All faults happen now, between two runs, so that a program that draws them from a seed is as deterministic as its
//! seed. As values ([`Fault`]) they can be kept in a list and printed.

use std::fmt;

use longhaul_netsim::{Direction, LinkId, NodeCondition};
use longhaul_verbs::LinkState;

use super::World;

/// A link of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Link {
    /// That of a node's NIC. The two nodes of a pair have the same one.
    Nic(usize),
    /// Between two switches; below [`World::fabric_link_count`].
    Fabric(usize),
}

/// Which of a link's directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// Both.
    Both,
    /// Away from the NIC; between switches, from the one nearer to NICs to the other.
    Up,
    /// Towards the NIC; between switches, towards the one nearer to NICs.
    Down,
}

/// A fault, or its repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// [`World::set_link`].
    SetLink(usize, bool),
    /// [`World::cut`].
    Cut(Link, Way),
    /// [`World::restore`].
    Restore(Link, Way),
    /// [`World::pause`].
    Pause(usize),
    /// [`World::resume`].
    Resume(usize),
    /// [`World::stop`].
    Stop(usize),
    /// [`World::restart`].
    Restart(usize),
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Link::Nic(node) => write!(f, "the link of node {node}"),
            Link::Fabric(number) => write!(f, "fabric link {number}"),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Both => "both ways",
            Way::Up => "upwards",
            Way::Down => "downwards",
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::SetLink(node, true) => write!(f, "node {node}: link up"),
            Fault::SetLink(node, false) => write!(f, "node {node}: link down"),
            Fault::Cut(link, way) => write!(f, "{link}: cut {way}"),
            Fault::Restore(link, way) => write!(f, "{link}: restored {way}"),
            Fault::Pause(node) => write!(f, "node {node}: paused"),
            Fault::Resume(node) => write!(f, "node {node}: resumed"),
            Fault::Stop(node) => write!(f, "node {node}: stopped"),
            Fault::Restart(node) => write!(f, "node {node}: restarted, empty"),
        }
    }
}

impl World {
    /// Applies a fault, or a repair, now.
    pub fn apply(&mut self, fault: Fault) {
        match fault {
            Fault::SetLink(node, is_up) => self.set_link(node, is_up),
            Fault::Cut(link, way) => self.cut(link, way),
            Fault::Restore(link, way) => self.restore(link, way),
            Fault::Pause(node) => self.pause(node),
            Fault::Resume(node) => self.resume(node),
            Fault::Stop(node) => self.stop(node),
            Fault::Restart(node) => self.restart(node),
        }
    }

    /// The cable of a NIC is pulled or plugged in: both directions of its link, and the NIC knows. So does the other
    /// NIC of a pair. What is on the cable is lost.
    pub fn set_link(&mut self, node: usize, is_up: bool) {
        match is_up {
            true => self.restore(Link::Nic(node), Way::Both),
            false => self.cut(Link::Nic(node), Way::Both),
        }
        for end in [Some(node), self.twin_of(node)].into_iter().flatten() {
            self.nodes[end].link_is_up = is_up;
            self.tell_link_state(end);
        }
    }

    /// Cuts a link, in one direction or both. No NIC notices: as with a failure in the middle of the path, packets just
    /// do not arrive. Switches know if [`WorldConfig::path_avoidance`](super::WorldConfig) lets them. What is in flight
    /// in a cut direction is lost.
    pub fn cut(&mut self, link: Link, way: Way) {
        self.apply_to_link(link, way, longhaul_netsim::Fault::Cut);
    }

    /// Repairs a link, one way or both, however it was cut; but a NIC that was notified that its link is down is not
    /// notified that it is up ([`World::set_link`] does).
    pub fn restore(&mut self, link: Link, way: Way) {
        self.apply_to_link(link, way, longhaul_netsim::Fault::Restore);
    }

    /// A host stands still: its NIC sends nothing, and what arrives waits, bounded, until [`World::resume`]. Verbs
    /// calls can be made meanwhile; what they ask for waits too. Timers that run out meanwhile do so when the host goes
    /// on, after what had arrived.
    pub fn pause(&mut self, node: usize) {
        self.simulation.apply(longhaul_netsim::Fault::Pause(self.nics[node]));
    }

    /// A host goes on.
    pub fn resume(&mut self, node: usize) {
        self.simulation.apply(longhaul_netsim::Fault::Resume(self.nics[node]));
    }

    /// A host is switched off. What arrives for it is lost. Verbs objects of it are left: requests can be posted, and
    /// never complete.
    pub fn stop(&mut self, node: usize) {
        self.simulation.apply(longhaul_netsim::Fault::Stop(self.nics[node]));
    }

    /// A host comes back empty, whether it was stopped or not: the device and all its objects are gone, and a new one
    /// with the same name and addresses is in its place ([`World::device`] gives it from now on). Objects of the old
    /// one can still be called and dropped, and reach nobody: requests posted to them never complete.
    ///
    /// The new device draws queue pair numbers and keys from another seed, as a real host would, so that packets meant
    /// for the old one meet numbers that do not exist, or with a chance of one in 2^24 for each pair of queue pairs one
    /// that does.
    pub fn restart(&mut self, node: usize) {
        self.nodes[node].incarnation += 1;
        self.retired_packets += self.devices[node].nic().counters().sent_pkts;
        let device = self.make_device(node);
        let nic = super::WorldNode::nic(node, &device, self.egress_limit_bytes, self.layers.as_ref());
        self.simulation.replace(self.nics[node], nic);
        self.devices[node] = device;
        self.tell_link_state(node);
        // Not a change: there was nobody to see it otherwise.
        while let Ok(Some(_)) = self.device(node).next_event() {}
    }

    /// Repairs everything: links are restored, NICs are notified that they are up, paused nodes go on, and stopped ones
    /// [come back empty](World::restart). Link profiles stay as they are.
    pub fn heal_all(&mut self) {
        for link in self.links().collect::<Vec<_>>() {
            self.restore(link, Way::Both);
        }
        for node in 0..self.nics.len() {
            if !self.nodes[node].link_is_up {
                self.set_link(node, true);
            }
            match self.simulation.condition(self.nics[node]) {
                NodeCondition::Running => {}
                NodeCondition::Paused => self.resume(node),
                NodeCondition::Stopped => self.restart(node),
            }
        }
    }

    /// Every link, that of a pair twice.
    pub fn links(&self) -> impl Iterator<Item = Link> + use<> {
        (0..self.nics.len()).map(Link::Nic).chain((0..self.fabric_link_count()).map(Link::Fabric))
    }

    /// Links between switches, over all planes.
    pub fn fabric_link_count(&self) -> usize {
        self.planes.iter().map(|plane| plane.fabric_links().len()).sum()
    }

    /// Whether a node runs.
    pub fn condition(&self, node: usize) -> NodeCondition {
        self.simulation.condition(self.nics[node])
    }

    /// How often a node has come back empty.
    pub fn restart_count(&self, node: usize) -> u32 {
        self.nodes[node].incarnation
    }

    fn apply_to_link(&mut self, link: Link, way: Way, fault: fn(LinkId, Direction) -> longhaul_netsim::Fault) {
        let (id, up) = self.link_of(link);
        let down = match up {
            Direction::Forward => Direction::Backward,
            Direction::Backward => Direction::Forward,
        };
        let directions: &[Direction] = match way {
            Way::Both => &[up, down],
            Way::Up => &[up],
            Way::Down => &[down],
        };
        for &direction in directions {
            self.simulation.apply(fault(id, direction));
        }
    }

    /// A link of the simulation, and its direction up.
    pub(super) fn link_of(&self, link: Link) -> (LinkId, Direction) {
        match link {
            Link::Nic(node) => {
                let (plane, host) = self.place_of(node);
                (self.planes[plane].host_links()[host], self.planes[plane].away_from_host(host))
            }
            Link::Fabric(mut number) => {
                for plane in &self.planes {
                    match plane.fabric_links().get(number) {
                        Some(fabric) => return (fabric.link, Direction::Forward),
                        None => number -= plane.fabric_links().len(),
                    }
                }
                panic!("expected a fabric link below {}, got one {number} beyond", self.fabric_link_count());
            }
        }
    }

    /// The other node of a pair.
    fn twin_of(&self, node: usize) -> Option<usize> {
        let (plane, host) = self.place_of(node);
        self.planes[plane].switches().is_empty().then(|| (1 - host) * self.planes.len() + plane)
    }

    /// Sets the link state of a device.
    fn tell_link_state(&self, node: usize) {
        let state = if self.nodes[node].link_is_up { LinkState::Active } else { LinkState::Down };
        self.devices[node].nic().set_link_state(state);
    }
}
