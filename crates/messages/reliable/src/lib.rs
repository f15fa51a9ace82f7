//! Reliability schemes: what is done about chunks that do not arrive.
//!
//! ```text
//!   Connection::send ─▶ SendHalf ─▶ sdr stream ═══ data (and parity) ═══▶ sdr bitmap ─▶ ReceiveHalf ─▶ recover ─▶ Received
//!                         ▲                                                                 │
//!                         └──────────────── feedback, done (lost, repeated, reordered) ─────┘
//! ```
//!
//! Below is `longhaul-sdr`, which reports to the receiver which chunks of a message have arrived and promises nothing.
//! A [`Scheme`] is a policy over that bitmap, in two halves: what the sender sends and repeats, and when the receiver
//! has enough. The schemes here, one file each with both halves:
//!
//! | scheme | idea |
//! |---|---|
//! | [`SelectiveRepeat`] | the receiver reports what it has; the sender repeats what is missing after a timeout or, with negative acknowledgements, as soon as a gap shows |
//! | [`Erasure`] | parity goes along; the receiver computes what is lost, and only asks for what it cannot compute |
//! | [`BestEffort`] | everything is sent once, with parity or without; the receiver ends with what has arrived, and says what is missing |
//!
//! [`NamedScheme`] reads their names, and [`scheme_named`] makes them. To add another, implement [`Scheme`]; nothing in
//! here knows which one runs.
//!
//! With every scheme a message can be *bounded* ([`Connection::receive_bounded`], [`Connection::send_bounded`]): it ends by a deadline, whatever
//! has arrived, and both ends learn exactly which bytes are missing.
//!
//! # What a connection does for every scheme
//!
//! A [`Connection`] takes messages of any length, and cuts those that are too long for one message of `sdr` into
//! several (the private module `parts` explains how). It matches sends with receives in order, announces a message's
//! length and the sender's scheme to the receiver (an *offer*, repeated until the receiver answers), carries the
//! scheme's feedback, and reports to the sender when a message is done. Everything that the ends send each other is
//! state that is repeated, never an event that must arrive. It is driven: time comes in as an argument, and
//! [`Connection::next_deadline`] says when it must be polled at the latest.

mod acknowledgement;
mod agenda;
mod answers;
mod arrivals;
mod attributes;
mod best_effort;
mod bounded;
mod checksum;
mod choice;
mod chunk_set;
mod connection;
mod ended;
mod erasure;
#[doc(hidden)]
pub mod fuzzing;
mod incoming;
mod jobs;
mod long_answers;
mod moment;
mod named;
mod outgoing;
mod parity_pool;
mod parts;
mod receives;
mod repeater;
mod report;
mod scheme;
mod selective_repeat;
mod sends;
mod terms;
mod ticket;

pub use arrivals::Arrivals;
pub use attributes::Attributes;
#[cfg(feature = "mutations")]
pub use attributes::Mutation;
pub use best_effort::BestEffort;
pub use bounded::{Bound, Deadline, Delivery, Ending, Fill, Sent};
pub use checksum::checksum;
pub use choice::{Choice, ChoiceError};
pub use connection::{Connection, ConnectionError};
pub use erasure::Erasure;
pub use jobs::{Inline, Job, Task, Workers};
pub use longhaul_scheme::{NamedScheme, SchemeList, SchemeNameError};
/// The format of records, from below.
pub use longhaul_wire::record;
pub use named::scheme_named;
pub use report::{ConnectionCounters, MessageReport};
pub use scheme::{MessageShape, Progress, ReceiveHalf, ReceiveIo, Scheme, SendHalf, SendIo};
pub use selective_repeat::SelectiveRepeat;
pub use terms::record_bytes;
pub use ticket::{BoundedSendTicket, MessageError, ReceiveTicket, Received, SendTicket};
