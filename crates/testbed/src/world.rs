//! Software RNICs on a simulated network: the ground of conformance tests, soaks and scenarios.
//!
//! Two nodes are joined by one link; more are joined by a switch, each with a link to it. A world belongs to one thread: the
//! program makes verbs calls between runs, and time passes only inside [`World::run_for`] and [`World::run_until`].

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::{Arc, Mutex};

use longhaul_impair::Profile;
use longhaul_netsim::capture::Capture;
use longhaul_netsim::{Direction, Frame, LinkId, Node, NodeId, NodeIo, Simulation, SimulationLimits, Switch};
use longhaul_softnic as softnic;
use longhaul_time::{Duration, Instant};
use longhaul_verbs::Gid;
use longhaul_wire::{ipv4, ipv6};

use crate::virtual_port::{VirtualNic, mark_congestion};

/// What a world is made from.
#[derive(Clone)]
pub struct WorldConfig {
    /// Everything random comes from it.
    pub seed: u64,
    /// Software RNICs.
    pub nodes: usize,
    /// Each direction of each link.
    pub link: Profile,
    /// The devices, but for name, addresses and random seed, which each gets for itself.
    pub nic: softnic::Config,
}

impl Default for WorldConfig {
    /// Two nodes on a perfect link of 10 µs.
    fn default() -> Self {
        WorldConfig {
            seed: 0,
            nodes: 2,
            link: Profile::default().with_propagation_delay(Duration::from_micros(10)),
            nic: softnic::Config::new("softnic", vec![IpAddr::V4(Ipv4Addr::UNSPECIFIED)], [0; 32]),
        }
    }
}

/// Software RNICs on a simulated network.
pub struct World {
    simulation: Simulation<WorldNode>,
    nics: Vec<NodeId>,
    devices: Vec<softnic::Device>,
    links: Vec<LinkId>,
    /// Nodes that a verbs call has given work since they were woken last.
    news: Arc<Mutex<Vec<usize>>>,
}

type Route = Box<dyn FnMut(&Frame) -> Option<usize>>;

enum WorldNode {
    Nic(Box<VirtualNic>),
    Switch(Switch<Route>),
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

/// Without payload frames are headers only, and buffers of their size lie in far fewer pages.
fn limits(payload: softnic::PayloadMode) -> SimulationLimits {
    let limits = SimulationLimits::default();
    match payload {
        softnic::PayloadMode::Carried => limits,
        softnic::PayloadMode::Elided => SimulationLimits { pool_buffer_bytes: 128, ..limits },
    }
}

/// The addresses of a node, rows 0 and 1 of its GID table.
fn addresses(node: usize) -> [IpAddr; 2] {
    let number = node as u32 + 1;
    let v4 = Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + number);
    let v6 = Ipv6Addr::from_bits((0xfd00_u128 << 112) + u128::from(number));
    [IpAddr::V4(v4), IpAddr::V6(v6)]
}

/// The node that a frame is for; `None` for a multicast group and whatever is not IP.
fn node_of(frame: &Frame) -> Option<usize> {
    let bytes = &frame.bytes;
    let number = match bytes.first()? >> 4 {
        4 => {
            let address = ipv4::Ipv4::new_checked(bytes).ok()?.destination();
            (!address.is_multicast()).then(|| address.to_bits() & 0x00ff_ffff)?
        }
        6 => {
            let address = ipv6::Ipv6::new_checked(bytes).ok()?.destination();
            (!address.is_multicast()).then(|| address.to_bits() as u32)?
        }
        _ => return None,
    };
    (number as usize).checked_sub(1)
}

impl World {
    /// A world at the beginning of time. Panics when the profile is not valid: scenarios check theirs before.
    pub fn new(config: WorldConfig) -> World {
        let mut simulation = Simulation::with_limits(config.seed, limits(config.nic.payload));
        simulation.set_ecn_marker(mark_congestion);
        let news = Arc::new(Mutex::new(Vec::new()));
        let mut nics = Vec::new();
        let mut devices = Vec::new();
        for node in 0..config.nodes {
            let mut random_seed = [0; 32];
            random_seed[..8].copy_from_slice(&config.seed.to_le_bytes());
            random_seed[8..16].copy_from_slice(&(node as u64).to_le_bytes());
            let mut nic = config.nic.clone();
            nic.name = format!("softnic{node}");
            nic.addresses = addresses(node).to_vec();
            nic.random_seed = random_seed;
            nic.rate_bits_per_second = config.link.rate_bits_per_second;
            let news = news.clone();
            let device = softnic::Device::new(nic, move || news.lock().expect("nothing panics with it").push(node));
            nics.push(simulation.add_node(WorldNode::Nic(Box::new(VirtualNic::new(device.clone())))));
            devices.push(device);
        }
        let join = |simulation: &mut Simulation<WorldNode>, one: NodeId, other: NodeId, port: usize| {
            simulation
                .connect(one.port(0), other.port(port), config.link.clone(), config.link.clone())
                .expect("a valid profile and free ports")
        };
        let links = if let [one, other] = nics[..] {
            vec![join(&mut simulation, one, other, 0)]
        } else {
            let count = nics.len();
            let route: Route = Box::new(move |frame| node_of(frame).filter(|node| *node < count));
            let switch = simulation.add_node(WorldNode::Switch(Switch::new(route)));
            nics.iter().enumerate().map(|(port, nic)| join(&mut simulation, *nic, switch, port)).collect()
        };
        World { simulation, nics, devices, links, news }
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

    /// Let time pass until `condition` holds, which is asked after each event, but not beyond `deadline`. Returns whether it
    /// holds. The condition may make verbs calls.
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

    /// Make every link better or worse. Panics when the profile is not valid.
    pub fn set_link_profile(&mut self, profile: Profile) {
        for &link in &self.links {
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
        self.devices.iter().map(|device| device.nic().counters().sent_pkts).sum()
    }

    fn wake_nics(&mut self) {
        let mut news = std::mem::take(&mut *self.news.lock().expect("nothing panics with it"));
        // In an order that does not depend on which call came first.
        news.sort_unstable();
        news.dedup();
        for node in news {
            self.simulation.wake(self.nics[node]);
        }
    }
}
