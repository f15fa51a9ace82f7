//! Who is joined to whom, and which ways lead where.
//!
//! A [`Topology`] is arithmetic: hosts and switches are numbered, and who is behind a port and which ports lead to a
//! host follow from the numbers. So there are no route tables to fill or to hold, and ten thousand hosts cost no more
//! than two. It knows nothing of frames. [`Topology::build`] makes nodes and links of it in a simulation.
//!
//! ```text
//! Star            Clos: leaves, spines            FatTree, arity k: k pods of k/2 edges and k/2 aggregations, (k/2)² cores
//!
//!    ┌───┐           ┌───┐   ┌───┐                    ┌───┐┌───┐ ┌───┐┌───┐
//!    │ 0 │           │ 2 │   │ 3 │                    │ c ││ c │ │ c ││ c │       core (a, i) is joined to
//!    └┬─┬┘           └┬─┬┘   └┬─┬┘                    └───┘└───┘ └───┘└───┘       aggregation a of every pod
//!     │ │             │ └──┐┌─┘ │                   ┌───┐┌───┐     ┌───┐┌───┐
//!    h0 h1            │ ┌──┘└─┐ │                   │ a ││ a │ ... │ a ││ a │
//!                    ┌┴─┴┐   ┌┴─┴┐                  └───┘└───┘     └───┘└───┘
//!                    │ 0 │   │ 1 │                  ┌───┐┌───┐     ┌───┐┌───┐
//!                    └┬─┬┘   └┬─┬┘                  │ e ││ e │ ... │ e ││ e │
//!                    h0 h1   h2 h3                  └───┘└───┘     └───┘└───┘
//! ```
//!
//! A switch's ports are numbered from below: first those towards hosts (down), then those away from them (up). Frames
//! go up as far as they must and then down, so none goes in a circle. Where several ports lead up, they are of equal
//! cost.

use std::ops::Range;
use std::sync::Arc;

use longhaul_impair::Profile;

use crate::endpoint::{Endpoint, NodeId};
use crate::fabric::{Fabric, FabricLink};
use crate::link::LinkId;
use crate::network::ConnectError;
use crate::node::Node;
use crate::simulation::Simulation;

/// How hosts are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Shape {
    /// Two hosts, one link.
    Pair,
    /// One switch, a link for each host.
    Star,
    /// Two tiers: every leaf is joined to every spine.
    Clos {
        /// Switches with hosts.
        leaf_count: usize,
        /// Switches above them: the number of equal-cost paths from leaf to leaf.
        spine_count: usize,
        /// Places for hosts at each leaf.
        hosts_per_leaf: usize,
    },
    /// Three tiers of switches with `arity` ports each, with places for arity³/4 hosts and (arity/2)² ways of equal
    /// cost from pod to pod.
    FatTree {
        /// Ports of each switch: an even number.
        arity: usize,
    },
}

/// Why there is no such topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// More hosts than places, or none.
    #[error("{hosts} hosts do not fit this topology: use 1 to {places}")]
    HostCount {
        /// What was asked for.
        hosts: usize,
        /// The number that fits.
        places: usize,
    },
    /// A pair of one or of three.
    #[error("a pair has two hosts, not {hosts}")]
    NotAPair {
        /// What was asked for.
        hosts: usize,
    },
    /// No switches in a tier.
    #[error("expected at least one leaf, one spine and one host at a leaf")]
    EmptyTier,
    /// An arity that does not halve.
    #[error("a fat tree needs an even arity of at least 2, not {arity}")]
    Arity {
        /// What was asked for.
        arity: usize,
    },
    /// A switch with more ports than a node may have.
    #[error(
        "a switch has at most {} ports, and this topology needs {ports}: use fewer hosts per switch",
        ConnectError::PORT_COUNT_MAX
    )]
    PortCount {
        /// What a switch would have.
        ports: usize,
    },
}

/// Who is joined to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Topology {
    shape: Shape,
    host_count: usize,
}

/// Who is behind a port of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// This host.
    Host(usize),
    /// A port of this switch.
    Switch {
        /// Which switch.
        switch: usize,
        /// Which of its ports.
        port: usize,
    },
}

/// How good the links are, each in both directions.
#[derive(Clone, Debug, Default)]
pub struct FabricProfiles {
    /// Between hosts and switches, or the two hosts of a pair.
    pub host: Profile,
    /// Between switches.
    pub fabric: Profile,
}

/// Where a switch of a fat tree stands.
enum Tier {
    Edge { pod: usize, number: usize },
    Aggregation { pod: usize, number: usize },
    Core { aggregation: usize },
}

impl Topology {
    /// Connects this many hosts in a shape. They take its first places.
    pub fn new(shape: Shape, host_count: usize) -> Result<Topology, TopologyError> {
        let (places, ports) = match shape {
            Shape::Pair if host_count != 2 => return Err(TopologyError::NotAPair { hosts: host_count }),
            Shape::Pair => (2, 0),
            Shape::Star => (ConnectError::PORT_COUNT_MAX, host_count),
            Shape::Clos { leaf_count, spine_count, hosts_per_leaf } => {
                if leaf_count == 0 || spine_count == 0 || hosts_per_leaf == 0 {
                    return Err(TopologyError::EmptyTier);
                }
                let ports = hosts_per_leaf.saturating_add(spine_count).max(leaf_count);
                (leaf_count.saturating_mul(hosts_per_leaf), ports)
            }
            Shape::FatTree { arity } => {
                if arity < 2 || !arity.is_multiple_of(2) {
                    return Err(TopologyError::Arity { arity });
                }
                (arity.saturating_pow(3) / 4, arity)
            }
        };
        if ports > ConnectError::PORT_COUNT_MAX {
            return Err(TopologyError::PortCount { ports });
        }
        if host_count == 0 || host_count > places {
            return Err(TopologyError::HostCount { hosts: host_count, places });
        }
        Ok(Topology { shape, host_count })
    }

    /// How the hosts are joined.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Hosts, numbered from zero.
    pub fn host_count(&self) -> usize {
        self.host_count
    }

    /// Switches, numbered from zero: tier by tier, those with hosts first.
    pub fn switch_count(&self) -> usize {
        match self.shape {
            Shape::Pair => 0,
            Shape::Star => 1,
            Shape::Clos { leaf_count, spine_count, .. } => leaf_count + spine_count,
            Shape::FatTree { arity } => arity * arity + arity * arity / 4,
        }
    }

    /// The ports of a switch that lead down, towards hosts. Behind some of them there may be no host.
    pub fn down_ports(&self, switch: usize) -> Range<usize> {
        match self.shape {
            Shape::Pair => 0..0,
            Shape::Star => 0..self.host_count,
            Shape::Clos { leaf_count, hosts_per_leaf, .. } if switch < leaf_count => 0..hosts_per_leaf,
            Shape::Clos { leaf_count, .. } => 0..leaf_count,
            Shape::FatTree { arity } => match tier(arity, switch) {
                Tier::Core { .. } => 0..arity,
                Tier::Edge { .. } | Tier::Aggregation { .. } => 0..arity / 2,
            },
        }
    }

    /// The ports of a switch that lead up. They are of equal cost.
    pub fn up_ports(&self, switch: usize) -> Range<usize> {
        let first = self.down_ports(switch).end;
        let count = match self.shape {
            Shape::Pair | Shape::Star => 0,
            Shape::Clos { leaf_count, spine_count, .. } => usize::from(switch < leaf_count) * spine_count,
            Shape::FatTree { arity } => match tier(arity, switch) {
                Tier::Core { .. } => 0,
                Tier::Edge { .. } | Tier::Aggregation { .. } => arity / 2,
            },
        };
        first..first + count
    }

    /// Who is behind a port of a switch.
    pub fn neighbour(&self, switch: usize, port: usize) -> Option<Neighbour> {
        let host = |host: usize| (host < self.host_count).then_some(Neighbour::Host(host));
        match self.shape {
            Shape::Pair => None,
            Shape::Star => host(port),
            Shape::Clos { leaf_count, spine_count, hosts_per_leaf } => {
                if switch >= leaf_count {
                    let port_above = hosts_per_leaf + (switch - leaf_count);
                    return (port < leaf_count).then_some(Neighbour::Switch { switch: port, port: port_above });
                }
                match port.checked_sub(hosts_per_leaf) {
                    None => host(switch * hosts_per_leaf + port),
                    Some(spine) if spine < spine_count => {
                        Some(Neighbour::Switch { switch: leaf_count + spine, port: switch })
                    }
                    Some(_) => None,
                }
            }
            Shape::FatTree { arity } if port < arity => {
                let half = arity / 2;
                let above = port.checked_sub(half);
                let aggregation = |pod: usize, number: usize| arity * half + pod * half + number;
                match (tier(arity, switch), above) {
                    (Tier::Edge { .. }, None) => host(switch * half + port),
                    (Tier::Edge { pod, number }, Some(above)) => {
                        Some(Neighbour::Switch { switch: aggregation(pod, above), port: number })
                    }
                    (Tier::Aggregation { pod, number }, None) => {
                        Some(Neighbour::Switch { switch: pod * half + port, port: half + number })
                    }
                    (Tier::Aggregation { pod, number }, Some(above)) => {
                        Some(Neighbour::Switch { switch: arity * arity + number * half + above, port: pod })
                    }
                    (Tier::Core { aggregation: number }, _) => {
                        let core = (switch - arity * arity) % half;
                        Some(Neighbour::Switch { switch: aggregation(port, number), port: half + core })
                    }
                }
            }
            Shape::FatTree { .. } => None,
        }
    }

    /// The ports of a switch that lead to a host by shortest ways, all of equal cost.
    #[inline]
    pub fn ports_towards(&self, switch: usize, host: usize) -> Range<usize> {
        let one = |port: usize| port..port + 1;
        match self.shape {
            Shape::Pair => 0..0,
            Shape::Star => one(host),
            Shape::Clos { leaf_count, hosts_per_leaf, .. } => {
                let leaf = host / hosts_per_leaf;
                if switch == leaf {
                    one(host % hosts_per_leaf)
                } else if switch >= leaf_count {
                    one(leaf)
                } else {
                    self.up_ports(switch)
                }
            }
            Shape::FatTree { arity } => {
                let half = arity / 2;
                let edge = host / half;
                match tier(arity, switch) {
                    Tier::Edge { .. } if switch == edge => one(host % half),
                    Tier::Aggregation { pod, .. } if pod == edge / half => one(edge % half),
                    Tier::Edge { .. } | Tier::Aggregation { .. } => half..arity,
                    Tier::Core { .. } => one(edge / half),
                }
            }
        }
    }

    /// The port that a host's link leads to; `None` in a pair.
    pub fn place_of_host(&self, host: usize) -> Option<(usize, usize)> {
        let hosts_per_switch = match self.shape {
            Shape::Pair => return None,
            Shape::Star => self.host_count,
            Shape::Clos { hosts_per_leaf, .. } => hosts_per_leaf,
            Shape::FatTree { arity } => arity / 2,
        };
        Some((host / hosts_per_switch, host % hosts_per_switch))
    }

    /// Makes nodes and links: first all hosts, then all switches, one after the other, then the links in the same
    /// order. Hosts have their link at port 0.
    pub fn build<N: Node>(
        &self,
        simulation: &mut Simulation<N>,
        profiles: &FabricProfiles,
        host: impl FnMut(usize) -> N,
        switch: impl FnMut(usize) -> N,
    ) -> Result<Fabric, ConnectError> {
        let hosts: Vec<NodeId> = (0..self.host_count).map(host).map(|node| simulation.add_node(node)).collect();
        let switches: Vec<NodeId> =
            (0..self.switch_count()).map(switch).map(|node| simulation.add_node(node)).collect();
        let (host_profile, fabric_profile) = (Arc::new(profiles.host.clone()), Arc::new(profiles.fabric.clone()));
        let mut join = |one: Endpoint, other: Endpoint, profile: &Arc<Profile>| {
            simulation.connect(one, other, profile.clone(), profile.clone())
        };
        let mut host_links: Vec<LinkId> = Vec::with_capacity(hosts.len());
        for (number, host) in hosts.iter().enumerate() {
            host_links.push(match self.place_of_host(number) {
                Some((switch, port)) => join(host.port(0), switches[switch].port(port), &host_profile)?,
                // The one link of a pair is that of both.
                None if number == 1 => host_links[0],
                None => join(host.port(0), hosts[1].port(0), &host_profile)?,
            });
        }
        let mut fabric_links = Vec::new();
        for lower in 0..switches.len() {
            for port in self.up_ports(lower) {
                if let Some(Neighbour::Switch { switch: upper, port: upper_port }) = self.neighbour(lower, port) {
                    let link = join(switches[lower].port(port), switches[upper].port(upper_port), &fabric_profile)?;
                    fabric_links.push(FabricLink { link, lower, upper });
                }
            }
        }
        Ok(Fabric { topology: *self, hosts, switches, host_links, fabric_links })
    }
}

fn tier(arity: usize, switch: usize) -> Tier {
    let half = arity / 2;
    let (row, in_row) = (switch / (arity * half), switch % (arity * half));
    match row {
        0 => Tier::Edge { pod: in_row / half, number: in_row % half },
        1 => Tier::Aggregation { pod: in_row / half, number: in_row % half },
        _ => Tier::Core { aggregation: (switch - arity * arity) / half },
    }
}
