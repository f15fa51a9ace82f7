//! Faults, and their repair.
//!
//! A fault is a value ([`Fault`]): it can be applied now ([`apply`](crate::Simulation::apply)), scheduled for an instant
//! ([`schedule`](crate::Simulation::schedule)), kept in a list and printed. A simulation without faults pays one
//! comparison per frame for them.
//!
//! A direction that is cut loses everything in flight in it, and all that is sent into it. That includes frames that
//! wait in front of the wire: a port that loses its link empties its queue. The sender's wire goes on at its pace, as a
//! laser does that shines into a broken fibre, so a sender that waits for its wire is neither stopped nor let run free.

use std::collections::BTreeMap;
use std::fmt;

use crate::endpoint::NodeId;
use crate::event_queue::{EventKey, SourceId};
use crate::link::{Direction, LinkId};

/// A fault, or its repair.
///
/// A stopped node comes back through [`replace`](crate::Simulation::replace) instead, because that needs a new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A direction of a link is cut.
    Cut(LinkId, Direction),
    /// It is repaired.
    Restore(LinkId, Direction),
    /// A node stands still: it is handed nothing and not polled.
    Pause(NodeId),
    /// It goes on.
    Resume(NodeId),
    /// A node is gone.
    Stop(NodeId),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Cut(link, direction) => write!(f, "cut link {} {direction}", link.index()),
            Fault::Restore(link, direction) => write!(f, "restore link {} {direction}", link.index()),
            Fault::Pause(node) => write!(f, "pause node {}", node.index()),
            Fault::Resume(node) => write!(f, "resume node {}", node.index()),
            Fault::Stop(node) => write!(f, "stop node {}", node.index()),
        }
    }
}

/// Faults to come, in the order of their instants, and of scheduling within one.
#[derive(Default)]
pub(crate) struct FaultSchedule {
    pub(crate) faults: BTreeMap<EventKey, Fault>,
    /// Its place in the event queue, once there has been a fault.
    pub(crate) source: Option<SourceId>,
}

/// Why a fault was not scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {most} faults are scheduled: let some happen before scheduling others")]
pub struct TooManyFaults {
    /// [`SimulationLimits::scheduled_faults_max`](crate::SimulationLimits).
    pub most: usize,
}
