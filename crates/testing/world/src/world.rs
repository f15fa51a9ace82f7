//! Software RNICs on a simulated network: the ground of conformance tests, soaks and scenarios.
//!
//! Two nodes are joined by one link, more by a switch, each with a link to it, unless the [`Topology`] says otherwise.
//! A world belongs to one thread: the program makes verbs calls between runs, and time passes only inside
//! [`World::run_for`] and [`World::run_until`]. What can go wrong with links and nodes is a [`Fault`].

mod addressing;
mod faults;

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::{Arc, Mutex};

use longhaul_impair::Profile;
use longhaul_netsim::capture::Capture;
use longhaul_netsim::{
    Direction, Fabric, FabricProfiles, FabricSwitch, FlowOf, Frame, Node, NodeId, NodeIo, PathAvoidance, Shape,
    Simulation, SimulationLimits,
};
use longhaul_softnic as softnic;
use longhaul_time::{Duration, Instant};
use longhaul_verbs::Gid;

pub use faults::{Fault, Link, Way};

use crate::virtual_port::{EGRESS_LIMIT_BYTES, VirtualNic, mark_congestion};
use addressing::{addresses, flow_of};

/// What a world is made from.
#[derive(Clone)]
pub struct WorldConfig {
    /// Everything random comes from it.
    pub seed: u64,
    /// Software RNICs.
    pub nodes: usize,
    /// How they are joined.
    pub topology: Topology,
    /// Separate networks of that topology, over which the nodes are dealt out in turn: with two, nodes 0 and 1 are the
    /// two NICs of a host, nodes 2 and 3 those of the next. Nodes on different planes cannot reach each other.
    pub plane_count: usize,
    /// Each direction of each link.
    pub link: Profile,
    /// Each direction of links between switches, if they differ.
    pub fabric_link: Option<Profile>,
    /// What switches do about ways that lead over a link that is cut.
    pub path_avoidance: PathAvoidance,
    /// How far the simulation may grow. Worlds of many nodes without payload want small buffers
    /// (`pool_buffer_bytes`).
    pub limits: SimulationLimits,
    /// What each device may have waiting in front of its wire.
    pub egress_limit_bytes: u64,
    /// The devices, but for name, addresses and random seed, which each gets for itself.
    pub nic: softnic::Config,
    /// The layers of a node's port, made anew whenever its device is.
    pub layers: Option<LayersOf>,
}

/// Makes the layers of a node's port, the first next to the device.
pub type LayersOf = Arc<dyn Fn(usize) -> Vec<Box<dyn softnic::Layer>> + Send + Sync>;

/// How the nodes of a plane are joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Topology {
    /// Two by one link, more by one switch.
    #[default]
    PairOrStar,
    /// By one switch.
    Star,
    /// By two tiers of switches: every leaf is joined to every spine. Leaves are filled one after the other.
    Clos {
        /// Switches with nodes.
        leaf_count: usize,
        /// Switches above them.
        spine_count: usize,
    },
    /// By three tiers of switches with `arity` ports each, with places for arity³/4 nodes.
    FatTree {
        /// An even number.
        arity: usize,
    },
}

impl Topology {
    fn of(self, node_count: usize) -> Result<longhaul_netsim::Topology, longhaul_netsim::TopologyError> {
        let shape = match self {
            Topology::PairOrStar if node_count == 2 => Shape::Pair,
            Topology::PairOrStar | Topology::Star => Shape::Star,
            Topology::Clos { leaf_count, spine_count } => {
                Shape::Clos { leaf_count, spine_count, hosts_per_leaf: node_count.div_ceil(leaf_count.max(1)) }
            }
            Topology::FatTree { arity } => Shape::FatTree { arity },
        };
        longhaul_netsim::Topology::new(shape, node_count)
    }
}

impl Default for WorldConfig {
    /// Two nodes on a perfect link of 10 µs.
    fn default() -> Self {
        WorldConfig {
            seed: 0,
            nodes: 2,
            topology: Topology::PairOrStar,
            plane_count: 1,
            fabric_link: None,
            path_avoidance: PathAvoidance::default(),
            limits: SimulationLimits::default(),
            egress_limit_bytes: EGRESS_LIMIT_BYTES,
            link: Profile::default().with_propagation_delay(Duration::from_micros(10)),
            nic: softnic::Config::new("softnic", vec![IpAddr::V4(Ipv4Addr::UNSPECIFIED)], [0; 32]),
            layers: None,
        }
    }
}

/// Software RNICs on a simulated network.
pub struct World {
    simulation: Simulation<WorldNode>,
    seed: u64,
    /// What devices are made with.
    nic: softnic::Config,
    nics: Vec<NodeId>,
    devices: Vec<softnic::Device>,
    nodes: Vec<NodeFacts>,
    planes: Vec<Fabric>,
    news: News,
    /// Packets that devices had sent that are gone.
    retired_packets: u64,
    egress_limit_bytes: u64,
    layers: Option<LayersOf>,
}

/// What a world knows of a node.
struct NodeFacts {
    /// How often it has come back empty.
    incarnation: u32,
    link_is_up: bool,
}

/// What links have done to packets, each hop counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkTotals {
    /// Lost, cut off, or of no use because bits were flipped.
    pub lost: u64,
    /// Held back.
    pub held: u64,
    /// Delivered twice.
    pub duplicated: u64,
}

/// Nodes, each with its incarnation, that a verbs call has given work since they were woken last.
type News = Arc<Mutex<Vec<(usize, u32)>>>;

enum WorldNode {
    Nic(Box<VirtualNic>),
    Switch(FabricSwitch),
}

impl WorldNode {
    fn nic(node: usize, device: &softnic::Device, egress_limit_bytes: u64, layers: Option<&LayersOf>) -> Self {
        let nic = VirtualNic::with_egress_limit(device.clone(), egress_limit_bytes);
        WorldNode::Nic(Box::new(match layers {
            None => nic,
            Some(layers) => nic.with_layers(layers(node)),
        }))
    }
}

impl Node for WorldNode {
    fn handle(&mut self, link_port: usize, frame: Frame, now: Instant, io: &mut NodeIo<'_>) {
        match self {
            WorldNode::Nic(nic) => nic.handle(link_port, frame, now, io),
            WorldNode::Switch(switch) => switch.handle(link_port, frame, now, io),
        }
    }

    fn poll(&mut self, now: Instant, io: &mut NodeIo<'_>) {
        match self {
            WorldNode::Nic(nic) => nic.poll(now, io),
            WorldNode::Switch(switch) => switch.poll(now, io),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        match self {
            WorldNode::Nic(nic) => nic.next_deadline(),
            WorldNode::Switch(switch) => switch.next_deadline(),
        }
    }
}

impl World {
    /// A world at the beginning of time. Panics when a profile or the topology is not valid: scenarios check theirs
    /// before.
    pub fn new(config: WorldConfig) -> World {
        let mut simulation = Simulation::with_limits(config.seed, config.limits);
        simulation.set_ecn_marker(mark_congestion);
        let mut nic = config.nic;
        nic.rate_bits_per_second = config.link.rate_bits_per_second;
        let mut world = World {
            simulation,
            seed: config.seed,
            nic,
            nics: Vec::with_capacity(config.nodes),
            devices: Vec::with_capacity(config.nodes),
            nodes: (0..config.nodes).map(|_| NodeFacts { incarnation: 0, link_is_up: true }).collect(),
            planes: Vec::with_capacity(config.plane_count),
            news: News::default(),
            retired_packets: 0,
            egress_limit_bytes: config.egress_limit_bytes,
            layers: config.layers,
        };
        world.devices = (0..config.nodes).map(|node| world.make_device(node)).collect();
        let fabric = config.fabric_link.unwrap_or_else(|| config.link.clone());
        let profiles = FabricProfiles { host: config.link, fabric };
        let plane_count = config.plane_count;
        for plane in 0..plane_count {
            let node_count = (config.nodes + plane_count - 1 - plane) / plane_count;
            let topology = config.topology.of(node_count).expect("a topology with places for the nodes");
            let flow_of: FlowOf = Arc::new(move |frame| flow_of(frame, plane, plane_count));
            let host = |host: usize| {
                let node = host * plane_count + plane;
                WorldNode::nic(node, &world.devices[node], world.egress_limit_bytes, world.layers.as_ref())
            };
            let switch =
                |number| WorldNode::Switch(FabricSwitch::new(topology, number, flow_of.clone(), config.path_avoidance));
            let fabric = topology.build(&mut world.simulation, &profiles, host, switch).expect("a valid profile");
            world.planes.push(fabric);
        }
        world.nics =
            (0..config.nodes).map(|node| world.planes[node % plane_count].hosts()[node / plane_count]).collect();
        world
    }

    /// A device for a node, in its present incarnation.
    fn make_device(&self, node: usize) -> softnic::Device {
        let incarnation = self.nodes[node].incarnation;
        let mut random_seed = [0; 32];
        random_seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        random_seed[8..16].copy_from_slice(&(node as u64).to_le_bytes());
        random_seed[16..20].copy_from_slice(&incarnation.to_le_bytes());
        let mut nic = self.nic.clone();
        nic.name = format!("softnic{node}");
        nic.addresses = addresses(node).to_vec();
        nic.random_seed = random_seed;
        let news = self.news.clone();
        softnic::Device::new(nic, move || news.lock().expect("nothing panics with it").push((node, incarnation)))
    }

    /// The plane of a node, and its number there.
    fn place_of(&self, node: usize) -> (usize, usize) {
        (node % self.planes.len(), node / self.planes.len())
    }

    /// The device of a node.
    pub fn device(&self, node: usize) -> longhaul_verbs::Device {
        self.devices[node].verbs()
    }

    /// The software RNIC of a node, for what verbs do not show.
    pub fn softnic(&self, node: usize) -> &softnic::Device {
        &self.devices[node]
    }

    /// The first GID of a node (IPv4). The second (index 1) is IPv6.
    pub fn gid(&self, node: usize) -> Gid {
        Gid::from_ip(addresses(node)[0])
    }

    /// Virtual time.
    pub fn now(&self) -> Instant {
        self.simulation.now()
    }

    /// Let time pass.
    pub fn run_for(&mut self, duration: Duration) {
        self.wake_nics();
        let end = self.simulation.now() + duration;
        self.simulation.run_until(end);
    }

    /// Let time pass until `condition` holds, which is asked after each event, but not beyond `deadline`. Returns
    /// whether it holds. The condition may make verbs calls.
    pub fn run_until(&mut self, deadline: Instant, mut condition: impl FnMut() -> bool) -> bool {
        loop {
            if condition() {
                return true;
            }
            self.wake_nics();
            if !self.simulation.step_until(deadline) {
                self.simulation.run_until(deadline);
                return condition();
            }
        }
    }

    /// Let time pass until the next event, and `span` longer, but not beyond `deadline`: for a caller that drives
    /// something in addition to the devices, and should look at it when something has happened.
    pub fn run_some(&mut self, deadline: Instant, span: Duration) {
        self.wake_nics();
        let end = match self.simulation.step_until(deadline) {
            true => deadline.min(self.simulation.now() + span),
            false => deadline,
        };
        self.simulation.run_until(end);
    }

    /// Make every link better or worse. Panics when the profile is not valid.
    pub fn set_link_profile(&mut self, profile: Profile) {
        let profile = Arc::new(profile);
        for link in self.planes.iter().flat_map(Fabric::links) {
            for direction in [Direction::Forward, Direction::Backward] {
                self.simulation.set_profile(link, direction, profile.clone()).expect("a valid profile");
            }
        }
        // A port that waits for room on its wire has planned with the old rate.
        for &nic in &self.nics {
            self.simulation.wake(nic);
        }
    }

    /// Write everything that passes the devices' ports from now on to a pcapng file.
    pub fn capture_to(&mut self, path: &Path) -> io::Result<()> {
        let file = io::BufWriter::new(std::fs::File::create(path)?);
        self.simulation.start_capture(Capture::new(file).map_err(io::Error::other)?);
        for (index, &nic) in self.nics.iter().enumerate() {
            self.simulation.capture_node(nic, &format!("softnic{index}")).map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// End the capture, and say if it could not be written.
    pub fn finish_capture(&mut self) -> io::Result<()> {
        self.simulation.finish_capture().map(drop).map_err(io::Error::other)
    }

    /// A hash of every delivery so far.
    pub fn trace_hash(&self) -> u64 {
        self.simulation.trace_hash()
    }

    /// Packets that devices have sent so far.
    pub fn packet_count(&self) -> u64 {
        self.retired_packets + self.devices.iter().map(|device| device.nic().counters().sent_pkts).sum::<u64>()
    }

    /// What the simulator has done so far: arrivals, polls and scheduled faults.
    pub fn event_count(&self) -> u64 {
        self.simulation.event_count()
    }

    /// Put an IP packet on the wire of a node, whatever address it says it is from: for attackers.
    pub fn inject(&mut self, node: usize, bytes: &[u8]) {
        self.simulation.drive(self.nics[node], |_, _, io| {
            let mut packet = io.take_buffer();
            packet.clear();
            packet.extend_from_slice(bytes);
            io.send(0, Frame { bytes: packet, elided_bytes: 0 });
        });
    }

    /// Look at the layers of a node's port, or change them.
    pub fn with_layers<T>(&mut self, node: usize, look: impl FnOnce(&mut softnic::Stack) -> T) -> T {
        self.simulation.drive(self.nics[node], |node, _, _| match node {
            WorldNode::Nic(nic) => look(nic.stack_mut()),
            WorldNode::Switch(_) => unreachable!("nics are the nodes with devices"),
        })
    }

    /// What all links together have done to packets so far.
    pub fn link_totals(&self) -> LinkTotals {
        let mut totals = LinkTotals::default();
        for link in self.planes.iter().flat_map(Fabric::links) {
            for direction in [Direction::Forward, Direction::Backward] {
                let counters = self.simulation.link_counters(link, direction);
                let impaired = counters.impairment;
                totals.lost += impaired.lost + impaired.queue_full + impaired.corrupted;
                totals.lost += counters.in_flight_limit + counters.lost_by_cut + counters.sent_into_cut;
                totals.held += impaired.reordered;
                totals.duplicated += impaired.duplicated;
            }
        }
        totals
    }

    fn wake_nics(&mut self) {
        let mut news = self.news.lock().expect("nothing panics with it");
        if news.is_empty() {
            return;
        }
        // In an order that does not depend on which call was first.
        news.sort_unstable();
        news.dedup();
        for (node, incarnation) in news.drain(..) {
            // What is asked of a device that is gone, nobody does.
            if incarnation == self.nodes[node].incarnation {
                self.simulation.wake(self.nics[node]);
            }
        }
    }
}
