//! Software RNICs on a simulated network: verbs programs, faults and measurements on virtual time, from one seed.
//!
//! - [`World`]: software RNICs, joined by links and switches, and what can go wrong with them. A program makes verbs
//!   calls on their devices; time passes only when it lets the world run.
//! - [`VirtualNic`]: one software RNIC as a node of [`longhaul_netsim`], for networks of your own.
//! - [`scale`]: many nodes at once; [`throughput`]: two of them, as fast as they can; [`lowar`]: RC over a link that loses, repaired.
//! - [`Dice`]: choices of a seed, for programs that are random and still repeat.
//!
//! The same seed and the same program give the same packets at the same instants, on every machine.
//!
//! ```
//! use longhaul_time::Duration;
//! use longhaul_verbs::{Access, PathAttributes, QueuePairAttributes};
//! use longhaul_verbs::{Mtu, QueuePairOptions, SendFlags, SendOperation, SendRequest, Transport};
//! use longhaul_world::{World, WorldConfig};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut world = World::new(WorldConfig { seed: 42, ..WorldConfig::default() });
//! let mut ends = Vec::new();
//! for node in [0, 1] {
//!     let device = world.device(node);
//!     let domain = device.allocate_protection_domain()?;
//!     let completions = device.create_completion_queue(16)?;
//!     let options = QueuePairOptions::default();
//!     let transport = Transport::UnreliableConnection;
//!     let queue_pair = domain.create_queue_pair(transport, &completions, &completions, &options)?;
//!     let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
//!     let memory = domain.register(vec![node as u8; 4096], access)?;
//!     queue_pair.modify(&QueuePairAttributes::init_connected(access))?;
//!     ends.push((queue_pair, completions, memory));
//! }
//! for node in [0, 1] {
//!     let (path, peer) = (PathAttributes::to(world.gid(1 - node)), ends[1 - node].0.number());
//!     ends[node].0.modify(&QueuePairAttributes::ready_to_receive(path, Mtu::Bytes1024, peer, 0))?;
//!     ends[node].0.modify(&QueuePairAttributes::ready_to_send(0))?;
//! }
//! let (queue_pair, _, memory) = &ends[0];
//! let (operation, entry) = (SendOperation::Write(ends[1].2.remote(0)), [memory.entry(0..4096)]);
//! queue_pair.post_send(&[SendRequest::new(1, operation, &entry).with_flags(SendFlags::SIGNALED)])?;
//! world.run_for(Duration::from_millis(1));
//! assert_eq!(ends[1].2.to_vec(0..4096), vec![0; 4096]);
//! # Ok(())
//! # }
//! ```

mod dice;
pub mod lowar;
pub mod scale;
pub mod throughput;
mod virtual_port;
mod world;

pub use dice::Dice;
pub use virtual_port::{EGRESS_LIMIT_BYTES, VirtualNic, mark_congestion};
pub use world::{Fault, LayersOf, Link, LinkTotals, Topology, Way, World, WorldConfig};
