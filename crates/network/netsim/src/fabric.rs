//! A topology that stands in a simulation: which node and which link is what, so that a fault can pick one by its
//! meaning.

use crate::endpoint::NodeId;
use crate::link::{Direction, LinkId};
use crate::topology::Topology;

/// A topology that stands in a simulation.
#[derive(Clone, Debug)]
pub struct Fabric {
    pub(crate) topology: Topology,
    pub(crate) hosts: Vec<NodeId>,
    pub(crate) switches: Vec<NodeId>,
    pub(crate) host_links: Vec<LinkId>,
    pub(crate) fabric_links: Vec<FabricLink>,
}

/// A link between two switches. Its forward direction leads up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FabricLink {
    /// The link.
    pub link: LinkId,
    /// The switch nearer to hosts.
    pub lower: usize,
    /// The switch farther from them.
    pub upper: usize,
}

impl Fabric {
    /// Who is joined to whom.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The nodes of the hosts. Each has its link at port 0.
    pub fn hosts(&self) -> &[NodeId] {
        &self.hosts
    }

    /// The nodes of the switches.
    pub fn switches(&self) -> &[NodeId] {
        &self.switches
    }

    /// The link of each host. The two of a pair have the same one.
    pub fn host_links(&self) -> &[LinkId] {
        &self.host_links
    }

    /// The direction of a host's link that leads away from it.
    pub fn away_from_host(&self, host: usize) -> Direction {
        match host {
            1 if self.switches.is_empty() => Direction::Backward,
            _ => Direction::Forward,
        }
    }

    /// The links between switches.
    pub fn fabric_links(&self) -> &[FabricLink] {
        &self.fabric_links
    }

    /// Every link once.
    pub fn links(&self) -> impl Iterator<Item = LinkId> {
        let host_link_count = if self.switches.is_empty() { 1 } else { self.host_links.len() };
        self.host_links[..host_link_count].iter().copied().chain(self.fabric_links.iter().map(|fabric| fabric.link))
    }
}
