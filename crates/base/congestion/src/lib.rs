//! Congestion control: how much a sender may have in flight, and how fast it may send.
//!
//! ```text
//!   sent ────────▶ Sampler ──Sample──▶ Controller ──window, rate──▶ Flow ──▶ room now, or when
//!   reports ──────▶   │                (fixed, dcqcn, swift,          ▲
//!   (delivered,       └ in flight       credit, wan)                  └ Pacer
//!    newest, marks)
//! ```
//!
//! A [`Flow`] is what a sender owns for each path. It is driven: the sender reports what it sent and what the receiver
//! reported, with the time, and asks how much it may send. The [`Sampler`] turns reports into [`Sample`]s: bytes
//! delivered and lost, round trips, delivery rates. A [`Controller`] sees samples only, so that one controller serves
//! any sender. Controllers are chosen by name ([`ControllerName`]), as schemes are. `credit` has a half at the receiver,
//! too: one [`CreditReceiver`] grants credit to all senders of a host.
//!
//! All bytes are bytes on the wire, headers included; all rates are bits per second on the wire.

mod controller;
mod credit;
mod dcqcn;
mod fixed;
mod flow;
mod name;
mod pacer;
mod sampler;
mod swift;
mod wan;

pub use controller::{Announcement, Controller, PathFacts, Sample};
pub use credit::{Credit, Grant, Receiver as CreditReceiver, ReceiverLimits, Standing};
pub use dcqcn::Dcqcn;
pub use fixed::FixedRate;
pub use flow::Flow;
pub use name::{ControllerName, ControllerNameError};
pub use pacer::Pacer;
pub use sampler::{Arrivals, Sampler};
pub use swift::Swift;
pub use wan::Wan;
