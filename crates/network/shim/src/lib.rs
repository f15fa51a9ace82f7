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
//! - **A packet that is executed twice.** The original of a restored packet is dropped on UC if it arrives late; RC knows duplicates.
//! - **A lie that is believed.** A header that says that a flow is elsewhere counts only if data packets agree. Of two packets with one
//!   PSN that differ neither is kept. A forged data packet, whose ICRC anybody can compute, waits only if so few packets are missing
//!   before it that reordering or repair explains them: 2 `c` + 16. Any other goes on at once, and the transport refuses it as it
//!   would without the shim. A forger who guesses a PSN blindly therefore hits a few dozen of 16 million instead of one.
//! - **A host that sees a repair packet.** They end in the decoder, all of them, and are sent only to configured peers.
//! - **Growth.** Coding units, waiting packets and flows are bounded in [`Config`], and shared by all queue pairs: no flow gets all of
//!   them, and all come back after a time. When there is no free unit, packets pass unprotected and are counted.
//!   Flows that no repair packet has agreed with may be invented, and leave half of everything to the others. Anybody who
//!   can send whole flows with their repair packets passes for a peer: only a key keeps such strangers out.
//! - **A report that is believed too much.** What a report claims must fit what was sent, and whatever is claimed, a code that
//!   follows the link stays within the user's bound of overhead. Without a key, an attacker on the path can still report that nothing
//!   was lost, so that repair packets become few. Set [`Config::key`] where packets can be forged.
//!
//! With [`Config::auto`] the code follows the link: the decoder reports what it sees of loss, the peer's encoder takes the cheapest
//! code that is good enough, and [`Encoder::paths`] explains every change.
//!
//! The shim is driven: `handle`, `poll` and `next_deadline` take and give instants; there is no clock, socket or thread here. The
//! same object serves a software RNIC, as a layer of its port, and a gateway in front of RNICs as they are.

mod adaptive;
mod agreements;
mod coded;
mod config;
mod counters;
mod decoder;
mod encoder;
mod flows;
mod greeting;
mod memory;
mod packet;
mod paths;
mod shim;
mod tag;
mod units;

#[cfg(feature = "mutations")]
mod mutation;

#[doc(hidden)]
pub mod fuzzing;

pub use adaptive::{Auto, CodeChange, Fec, FecError, PathLoss, Reason, block_failure};
pub use agreements::Agreement;
pub use config::{BlockCode, BlockCodeError, Config, ConfigError, Lowar, Network};
pub use counters::{DecoderCounters, EncoderCounters};
pub use decoder::Decoder;
pub use encoder::Encoder;
pub use greeting::greeting;
pub use longhaul_coding::CodeKind;
pub use longhaul_datagram::{Direction, Envelope, Packet};
#[cfg(feature = "mutations")]
pub use mutation::Mutation;
pub use packet::Onward;
pub use paths::PathStatus;
pub use shim::Shim;
