//! Diagnosis of a host: what can be used here, what each device can do, what is wrong and how to fix it.
//!
//! ```text
//!   facts ─▶ problems ───┐
//!     ├────▶ list ───────┤
//!     └────▶ libibverbs ─┴─▶ Diagnosis
//! ```
//!
//! Looking changes nothing: sockets are bound for a moment and never send. How a diagnosis is shown is up to the
//! program; `longhaul devices` prints it.

mod diagnosis;
mod facts;
mod libibverbs;
mod link;
mod list;
mod netlink;
mod port_owner;
mod problems;

pub use diagnosis::{Diagnosis, DiagnosisError};
pub use facts::{Address, HostFacts, Interface, LockedMemory, RdmaDevice, RocePort, SocketBuffer, unusable};
pub use libibverbs::{Libibverbs, Port, RdmaDetails, RdmaEntry, type_name};
pub use link::{Features, Link};
pub use list::{Details, Entry};
pub use port_owner::Owner;
pub use problems::{Problem, Severity};
