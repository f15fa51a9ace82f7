//! Links: what is in flight between two ports.
//!
//! Each direction holds its frames in the order of their arrival. Almost always a frame arrives after those sent before
//! it, and simply joins the end of a ring; one that overtakes others (reordering, jitter, a delay cut short) goes to a
//! small heap next to it. Only the earliest frame of a direction is known to the event queue, which therefore stays as
//! small as the network, however many frames are in flight.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;

use longhaul_impair::{Counters, Impairment};
use longhaul_time::Instant;

use crate::endpoint::{Endpoint, NodeId};
use crate::event_queue::{EventKey, SourceId};
use crate::frame::Frame;

/// A link of one simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub(crate) u32);

impl LinkId {
    /// Counts from zero, in the order in which links were made.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn lane(self, direction: Direction) -> usize {
        self.index() * 2 + direction as usize
    }
}

/// One of a link's two directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the end named first when the link was made to the one named second.
    Forward = 0,
    /// The other way.
    Backward = 1,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        })
    }
}

/// What one direction of a link has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// What the impairment decided.
    pub impairment: Counters,
    /// Frames delivered.
    pub delivered: u64,
    /// Frames dropped because too many were in flight (see
    /// [`SimulationLimits::in_flight_frames_max`](crate::SimulationLimits)).
    pub in_flight_limit: u64,
    /// Frames that were in flight when the direction was cut.
    pub lost_by_cut: u64,
    /// Frames sent while the direction was cut.
    pub sent_into_cut: u64,
}

/// One direction of one link. What an arrival needs lies in one line of the cache: with ten thousand busy links, each
/// event finds its direction far from the last one's.
#[repr(C, align(64))]
pub(crate) struct Lane {
    in_order: VecDeque<InFlight>,
    /// What most directions never need.
    pub(crate) rarities: Option<Box<Rarities>>,
    pub(crate) delivered: u64,
    pub(crate) source: SourceId,
    to_node: NodeId,
    to_port: u32,
    pub(crate) impairment: Impairment,
}

#[derive(Default)]
pub(crate) struct Rarities {
    pub(crate) in_flight_limit: u64,
    pub(crate) lost_by_cut: u64,
    pub(crate) sent_into_cut: u64,
    /// Since when the direction is cut, if it is.
    pub(crate) cut_since: Option<Instant>,
    /// The capture's interface for frames as they are sent into this direction.
    pub(crate) capture_interface: Option<u32>,
    /// Frames that arrive before others that were sent earlier.
    overtaking: BinaryHeap<InFlight>,
}

pub(crate) struct InFlight {
    pub(crate) key: EventKey,
    pub(crate) frame: Frame,
}

impl Lane {
    pub(crate) fn new(impairment: Impairment, source: SourceId, to: Endpoint) -> Self {
        Lane {
            in_order: VecDeque::new(),
            rarities: None,
            delivered: 0,
            source,
            to_node: to.node,
            // Ports are numbered below `ConnectError::PORT_COUNT_MAX`.
            to_port: to.port as u32,
            impairment,
        }
    }

    /// Where it leads. It begins where the link's other direction, its neighbour in the list, leads.
    #[inline]
    pub(crate) fn to(&self) -> Endpoint {
        Endpoint { node: self.to_node, port: self.to_port as usize }
    }

    pub(crate) fn rarities_mut(&mut self) -> &mut Rarities {
        self.rarities.get_or_insert_default()
    }

    /// The first of those that overtake.
    #[inline]
    fn first_overtaking(&self) -> Option<EventKey> {
        self.rarities.as_ref().and_then(|rarities| rarities.overtaking.peek()).map(|first| first.key)
    }

    #[inline]
    pub(crate) fn cut_since(&self) -> Option<Instant> {
        self.rarities.as_ref().and_then(|rarities| rarities.cut_since)
    }

    #[inline]
    pub(crate) fn is_cut(&self) -> bool {
        self.cut_since().is_some()
    }

    /// Adds a frame; says whether it is now the direction's earliest.
    #[inline]
    pub(crate) fn push(&mut self, key: EventKey, frame: Frame) -> bool {
        let Some(last) = self.in_order.back() else {
            let earliest = self.first_overtaking().is_none_or(|first| key < first);
            self.in_order.push_back(InFlight { key, frame });
            return earliest;
        };
        if key > last.key {
            self.in_order.push_back(InFlight { key, frame });
            return false;
        }
        let earliest = self.next_key().is_none_or(|first| key < first);
        self.rarities_mut().overtaking.push(InFlight { key, frame });
        earliest
    }

    /// The direction's earliest arrival.
    #[inline]
    pub(crate) fn next_key(&self) -> Option<EventKey> {
        let in_order = self.in_order.front().map(|first| first.key);
        match (in_order, self.first_overtaking()) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Takes the direction's earliest frame.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<InFlight> {
        if let Some(overtaking) = self.first_overtaking()
            && self.in_order.front().is_none_or(|first| overtaking < first.key)
        {
            return self.rarities_mut().overtaking.pop();
        }
        self.in_order.pop_front()
    }

    pub(crate) fn in_flight_count(&self) -> usize {
        self.in_order.len() + self.rarities.as_ref().map_or(0, |rarities| rarities.overtaking.len())
    }

    pub(crate) fn counters(&self) -> LinkCounters {
        let mut counters = LinkCounters {
            impairment: self.impairment.counters(),
            delivered: self.delivered,
            ..LinkCounters::default()
        };
        if let Some(rarities) = &self.rarities {
            counters.in_flight_limit = rarities.in_flight_limit;
            counters.lost_by_cut = rarities.lost_by_cut;
            counters.sent_into_cut = rarities.sent_into_cut;
        }
        counters
    }
}

/// The earliest is the greatest: `BinaryHeap` gives out the greatest.
impl Ord for InFlight {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}

impl PartialOrd for InFlight {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for InFlight {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for InFlight {}
