//! A bounded table of flows, and when each of them must be looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use longhaul_time::{Duration, Instant};
use longhaul_wire::repair::Subject;

use crate::packet::Envelope;

/// One space of PSNs. The UDP source port is not part of it: it may differ from packet to packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FlowKey {
    subject: Subject,
    source: IpAddr,
    destination: SocketAddr,
}

impl FlowKey {
    pub(crate) fn new(envelope: &Envelope, subject: Subject) -> FlowKey {
        FlowKey { subject, source: envelope.source.ip(), destination: envelope.destination }
    }

    pub(crate) fn destination(&self) -> IpAddr {
        self.destination.ip()
    }

    pub(crate) fn subject(&self) -> Subject {
        self.subject
    }
}

/// How many flows are looked at to find one that makes room.
const EVICTION_STEPS: usize = 16;

/// Flows by their key, as many as the configuration allows.
#[derive(Debug)]
pub(crate) struct Flows<T> {
    index: BTreeMap<FlowKey, usize>,
    slots: Vec<Slot<T>>,
    flows_max: usize,
    /// The flow that was asked for last: packets come in runs.
    last: Option<(FlowKey, usize)>,
    /// Where the search for an idle flow goes on.
    hand: usize,
    alarms: BTreeSet<(Instant, usize)>,
}

#[derive(Debug)]
struct Slot<T> {
    key: FlowKey,
    used_at: Instant,
    alarm: Option<Instant>,
    flow: T,
}

impl<T> Flows<T> {
    /// Memory of a flow in the table: its slot, and its entries in trees that may be half empty.
    pub(crate) const SLOT_BYTES: usize =
        size_of::<Slot<T>>() + 2 * size_of::<(FlowKey, usize)>() + 2 * size_of::<(Instant, usize)>();

    pub(crate) fn memory_bytes(&self) -> usize {
        let spare = (self.slots.capacity() - self.slots.len()) * size_of::<Slot<T>>();
        self.slots.len() * Flows::<T>::SLOT_BYTES + spare
    }

    pub(crate) fn new(flows_max: usize) -> Flows<T> {
        Flows { index: BTreeMap::new(), slots: Vec::new(), flows_max, last: None, hand: 0, alarms: BTreeSet::new() }
    }

    /// The number of a flow, which is now in use.
    pub(crate) fn find(&mut self, key: &FlowKey, now: Instant) -> Option<usize> {
        let id = match &self.last {
            Some((last, id)) if last == key => *id,
            _ => *self.index.get(key)?,
        };
        self.last = Some((*key, id));
        self.slots[id].used_at = now;
        Some(id)
    }

    /// Adds a flow, in the place of one that has been idle if there is no other; what was there before comes back too. `None` when
    /// there is no room. `patience` says for how long a flow must have been idle, and `None` if it may not go at all.
    pub(crate) fn insert(
        &mut self,
        key: FlowKey,
        flow: T,
        now: Instant,
        patience: impl Fn(&T) -> Option<Duration>,
    ) -> Option<(usize, Option<T>)> {
        let slot = Slot { key, used_at: now, alarm: None, flow };
        if self.slots.len() < self.flows_max {
            if self.slots.len() == self.slots.capacity() {
                // Not beyond the bound.
                let more = self.slots.len().max(4).min(self.flows_max - self.slots.len());
                self.slots.reserve_exact(more);
            }
            self.slots.push(slot);
            self.index.insert(key, self.slots.len() - 1);
            return Some((self.slots.len() - 1, None));
        }
        let steps = EVICTION_STEPS.min(self.slots.len());
        let mut candidates = (0..steps).map(|step| (self.hand + step) % self.slots.len());
        let is_idle = |slot: &Slot<T>| {
            patience(&slot.flow).is_some_and(|patience| now.saturating_since(slot.used_at) >= patience)
        };
        let id = candidates.find(|&id| is_idle(&self.slots[id]));
        self.hand = id.map_or(self.hand + steps, |id| id + 1) % self.slots.len().max(1);
        let id = id?;
        let old = std::mem::replace(&mut self.slots[id], slot);
        old.alarm.map(|at| self.alarms.remove(&(at, id)));
        self.index.remove(&old.key);
        self.index.insert(key, id);
        self.last = None;
        Some((id, Some(old.flow)))
    }

    /// The flow of a subject from us to a host, at whatever port. It is not in use by that.
    pub(crate) fn find_between(&self, subject: Subject, source: IpAddr, host: IpAddr) -> Option<usize> {
        let from = FlowKey { subject, source, destination: (host, 0).into() };
        let to = FlowKey { destination: (host, u16::MAX).into(), ..from };
        self.index.range(from..=to).next().map(|(_, id)| *id)
    }

    pub(crate) fn flow(&mut self, id: usize) -> &mut T {
        &mut self.slots[id].flow
    }

    pub(crate) fn key(&self, id: usize) -> FlowKey {
        self.slots[id].key
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// How many were in use within this time.
    pub(crate) fn in_use(&self, now: Instant, within: Duration) -> usize {
        self.slots.iter().filter(|slot| now.saturating_since(slot.used_at) < within).count()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().map(|slot| &mut slot.flow)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().map(|slot| &slot.flow)
    }

    /// Look at the flow at this instant or earlier. Asking for a later one than before costs nothing.
    pub(crate) fn wake(&mut self, id: usize, at: Instant) {
        let alarm = &mut self.slots[id].alarm;
        if alarm.is_some_and(|alarm| alarm <= at) {
            return;
        }
        if let Some(later) = alarm.replace(at) {
            self.alarms.remove(&(later, id));
        }
        self.alarms.insert((at, id));
    }

    pub(crate) fn next_alarm(&self) -> Option<Instant> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// A flow that is to be looked at now.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<usize> {
        let (at, id) = *self.alarms.first().filter(|(at, _)| *at <= now)?;
        self.alarms.remove(&(at, id));
        self.slots[id].alarm = None;
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(queue_pair: u32) -> FlowKey {
        let subject = Subject { queue_pair, is_responses: false };
        FlowKey { subject, source: [10, 0, 0, 1].into(), destination: ([10, 0, 0, 2], 4791).into() }
    }

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn idle_flows_make_room_and_busy_ones_do_not() {
        let mut flows = Flows::new(2);
        let idle = |_: &char| Some(Duration::from_micros(100));
        assert_eq!(flows.insert(key(1), 'a', at(0), idle), Some((0, None)));
        assert_eq!(flows.insert(key(2), 'b', at(0), idle), Some((1, None)));
        assert_eq!(flows.insert(key(3), 'c', at(50), idle), None);
        assert_eq!(flows.find(&key(1), at(99)), Some(0));
        flows.wake(1, at(200));
        assert_eq!(flows.insert(key(3), 'c', at(100), idle), Some((1, Some('b'))));
        assert_eq!(flows.find(&key(2), at(100)), None);
        assert_eq!(flows.find(&key(3), at(100)), Some(1));
        assert_eq!(flows.next_alarm(), None, "the alarm went with its flow");
        assert_eq!(flows.insert(key(4), 'd', at(1000), |_| None), None, "none may go");
        assert_eq!(flows.len(), 2);
    }

    #[test]
    fn every_flow_is_looked_at_for_one_that_makes_room() {
        let count = EVICTION_STEPS + 1;
        let mut flows = Flows::new(count);
        for flow in 0..count {
            assert_eq!(flows.insert(key(flow as u32), flow, at(0), |_| None), Some((flow, None)));
        }
        let only_the_last = |flow: &usize| (*flow == EVICTION_STEPS).then_some(Duration::ZERO);
        assert_eq!(flows.insert(key(100), 100, at(1), only_the_last), None, "not among the first");
        assert_eq!(flows.insert(key(100), 100, at(1), only_the_last), Some((EVICTION_STEPS, Some(EVICTION_STEPS))));
    }

    #[test]
    fn alarms_ring_once_and_the_earliest_counts() {
        let mut flows = Flows::new(2);
        for queue_pair in [1, 2] {
            flows.insert(key(queue_pair), (), at(0), |()| None);
        }
        flows.wake(0, at(30));
        flows.wake(1, at(20));
        flows.wake(0, at(40));
        flows.wake(0, at(10));
        assert_eq!(flows.next_alarm(), Some(at(10)));
        assert_eq!(flows.pop_due(at(9)), None);
        assert_eq!([flows.pop_due(at(25)), flows.pop_due(at(25)), flows.pop_due(at(50))], [Some(0), Some(1), None]);
    }
}
