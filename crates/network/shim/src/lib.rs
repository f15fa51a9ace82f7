//! Forward error correction below RDMA's own transport, after LoWAR: lost packets are restored before anybody misses them, so that
//! go-back-N rarely has anything to repeat.
//!
//! ```text
//!   device or host ─▶ Encoder ─▶ packets as they are, and repair packets ═══ network
//!   device or host ◀─ Decoder ◀─ what arrives of them                    ═══ network
//! ```
//!
//! A [`Shim`] sees complete packets, from BTH to ICRC, with their addresses. What is sent passes unchanged. A block is at most `r`
//! packets of one message; its `c` repair packets are sums of them (XOR or Reed–Solomon), updated as packets pass. At the other end
//! packets pass in order; behind a missing one they wait until it is restored, or until it is clear that it will not be. Then they go
//! on as they are, and the transport retransmits as it always does. docs/WIRE.md has the format.
//!
//! What may not happen, and what prevents it:
//!
//! - **A wrong packet.** What fails its ICRC enters no block. What is restored must have a right ICRC, its queue pair, PSN and place in
//!   the message, and together with the rest of the block the digest that the sender computed: CRCs alone do not suffice, because they
//!   are linear ([`longhaul_wire::repair`]).
//! - **A mix of attempts.** PSNs come again after go-back-N. A sender that goes back begins a new epoch; requests and responses
//!   have separate spaces.
//! - **A host that sees a repair packet.** They end in the decoder, all of them.
//! - **Growth.** Coding units, waiting packets and flows are bounded in [`Config`], and shared by all queue pairs. When there is
//!   no free unit, packets pass unprotected and are counted.
//!
//! The shim is driven: `handle`, `poll` and `next_deadline` take and give instants; there is no clock, socket or thread here. The
//! same object serves a software RNIC, as a layer of its port, and a gateway in front of RNICs as they are.

mod coded;
mod config;
mod counters;
mod decoder;
mod encoder;
mod flows;
mod packet;
mod shim;
mod tag;
mod units;

#[cfg(feature = "mutations")]
mod mutation;

#[doc(hidden)]
pub mod fuzzing;

pub use config::{BlockCode, BlockCodeError, Config, Network};
pub use counters::{DecoderCounters, EncoderCounters};
pub use decoder::Decoder;
pub use encoder::Encoder;
pub use longhaul_coding::CodeKind;
#[cfg(feature = "mutations")]
pub use mutation::Mutation;
pub use packet::{Direction, Envelope, Onward, Packet};
pub use shim::Shim;
