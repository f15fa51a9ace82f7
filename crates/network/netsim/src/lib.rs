//! A network on virtual time, from one seed.
//!
//! A [`Simulation`] holds nodes, joined port to port by links. Nodes are driven objects: they are given frames and
//! instants, and hand frames out through a [`NodeIo`]. A link carries each direction on its own, as good or as bad as
//! its [`Profile`] says. Time jumps from event to event, so a second of an idle network costs nothing, and everything
//! that happens follows from the nodes, the profiles and the seed: the same three give the same run, on every machine.
//! [`Simulation::trace_hash`] shows whether two runs were the same.
//!
//! The simulator carries bytes and does not know what they mean. Where it must change them it asks: marking congestion
//! in a packet is a function that the caller supplies ([`Simulation::set_ecn_marker`]), and so is distinguishing flows
//! apart where a network has several ways ([`FabricSwitch`]).
//!
//! Networks are built link by link or by a [`Topology`]. What goes wrong in them is a [`Fault`]: links are cut, one way
//! or both, nodes pause, stop, and [come back empty](Simulation::replace).
//!
//! ```
//! use longhaul_impair::Profile;
//! use longhaul_netsim::{Frame, Node, NodeIo, Simulation};
//! use longhaul_time::{Duration, Instant};
//!
//! /// Sends back whatever comes.
//! #[derive(Default)]
//! struct Echo {
//!     heard: u64,
//! }
//!
//! impl Node for Echo {
//!     fn handle(&mut self, link_port: usize, frame: Frame, _now: Instant, io: &mut NodeIo<'_>) {
//!         self.heard += 1;
//!         io.send(link_port, frame);
//!     }
//!     fn poll(&mut self, _now: Instant, _io: &mut NodeIo<'_>) {}
//!     fn next_deadline(&self) -> Option<Instant> {
//!         None
//!     }
//! }
//!
//! let mut simulation = Simulation::new(42);
//! let left = simulation.add_node(Echo::default());
//! let right = simulation.add_node(Echo::default());
//! let profile = Profile::default().with_propagation_delay(Duration::from_millis(1));
//! simulation.connect(left.port(0), right.port(0), profile.clone(), profile)?;
//! simulation.drive(left, |_node, _now, io| {
//!     let mut bytes = io.take_buffer();
//!     bytes.clear();
//!     bytes.extend_from_slice(b"ping");
//!     io.send(0, Frame::from(bytes));
//! });
//! simulation.run_until(Instant::ZERO + Duration::from_secs(1));
//! assert_eq!(simulation.node(right).heard, 500);
//! # Ok::<(), longhaul_netsim::ConnectError>(())
//! ```
//!
//! The path of a frame: [`NodeIo::send`] → capture → impairment → in flight on a link → event queue → trace hash →
//! capture → [`Node::handle`].

mod endpoint;
mod event_queue;
mod fabric;
mod fabric_switch;
mod fault;
mod fault_injection;
mod frame;
mod limits;
mod link;
mod network;
mod node;
mod node_trouble;
mod simulation;
mod switch;
mod topology;
mod trace_hash;

pub use endpoint::{Endpoint, NodeId};
pub use fabric::{Fabric, FabricLink};
pub use fabric_switch::{Destination, FabricSwitch, FabricSwitchCounters, Flow, FlowOf, PathAvoidance};
pub use fault::{Fault, TooManyFaults};
pub use frame::{Frame, FramePool};
pub use limits::SimulationLimits;
pub use link::{Direction, LinkCounters, LinkId};
pub use longhaul_capture as capture;
pub use longhaul_impair::{Profile, ProfileError};
pub use network::{ConnectError, NodeIo};
pub use node::Node;
pub use node_trouble::{NodeCondition, NodeCounters};
pub use simulation::Simulation;
pub use switch::Switch;
pub use topology::{FabricProfiles, Neighbour, Shape, Topology, TopologyError};
