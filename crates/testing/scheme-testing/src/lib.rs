//! Does a reliability scheme deliver what was sent, whatever the network and the peer do, and how long does it take? For
//! those who write schemes ([`longhaul_reliable::Scheme`]).
//!
//! - [`end_to_end`]: messages of many sizes over bad links, contents verified; on virtual time, or on devices through the
//!   library.
//! - [`message_soak`]: random programs of messages, over `sdr` and `reliable`, with attackers and liars.
//! - [`bounded_soak`]: random programs of bounded messages: they end on time and say exactly what is missing.
//! - [`completion`]: how long a message takes with each scheme.
//! - [`validation`]: the model of completion times against its twin, and against the protocol on virtual time and on
//!   sockets.
//!
//! ```
//! use longhaul_scheme_testing::end_to_end::{Case, GroundOptions, VirtualGround, links, run_case, scheme_by_name};
//!
//! // Any scheme of yours takes the place of this one.
//! let scheme = scheme_by_name("sr:nack").expect("a scheme of ours");
//! for link in links() {
//!     let options = GroundOptions::new(link.profile.unwrap_or_default(), 1 << 20);
//!     let mut ground = VirtualGround::with_scheme(&options, scheme.clone());
//!     run_case(&mut ground, &Case::new(10, 100_000)).expect("all messages arrive as they were sent");
//! }
//! ```

pub mod bounded_soak;
pub mod completion;
pub mod end_to_end;
#[doc(hidden)]
pub mod fuzzing;
pub mod message_soak;
pub mod validation;
