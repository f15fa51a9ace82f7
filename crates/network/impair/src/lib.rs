//! What a bad network does to a packet.
//!
//! An [`Impairment`] is one direction of one link. Its input is "a packet of this many bytes enters now", and answers
//! with a [`Verdict`]: when the packet comes out at the far end, whether it carries a congestion mark, whether bits of
//! it are flipped, whether it comes out twice, or why it does not come out at all. It never sees the packet and does
//! not know what carries it, so the same code stands between two simulated nodes and in front of a real socket.
//!
//! A packet passes the stages of a real path in this order:
//!
//! ```text
//!            queue              wire                              far end
//! packet → [ limit, ECN ] → [ rate ] → loss → delay + jitter → reordering → duplication → corruption →
//! ```
//!
//! So a packet that finds the queue full uses no bandwidth, and one that is lost on the wire does.
//!
//! Nothing here reads a clock or asks the operating system for randomness: time is an argument, and every random
//! decision comes from the seed. A stage that is switched off draws no random number, and a link that is only
//! delay and rate draws none at all.
//!
//! ```
//! use longhaul_impair::{Impairment, Loss, Profile, Verdict};
//! use longhaul_time::{Duration, Instant};
//!
//! let profile = Profile::default()
//!     .with_propagation_delay(Duration::from_millis(25))
//!     .with_rate_bits_per_second(100_000_000_000)
//!     .with_loss(Loss::Independent { probability: 1e-4 });
//! let mut impairment = Impairment::new(profile, 7)?;
//! match impairment.handle(4096, Instant::ZERO) {
//!     Verdict::Dropped(reason) => println!("dropped: {reason:?}"),
//!     Verdict::Once(delivery) => println!("arrives at {:?}", delivery.at),
//!     Verdict::Twice(first, second) => println!("arrives at {:?} and {:?}", first.at, second.at),
//! }
//! # Ok::<(), longhaul_impair::ProfileError>(())
//! ```

mod chance;
mod corruption;
mod impairment;
mod loss;
mod profile;
mod queue;
mod randomness;

pub use corruption::Corruption;
pub use impairment::{Counters, Delivery, DropReason, Impairment, Verdict};
pub use loss::{Loss, LossTrace};
pub use profile::{CorruptionModel, EcnMarking, Jitter, Profile, ProfileError, Reordering};
