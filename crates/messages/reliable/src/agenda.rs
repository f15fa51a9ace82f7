//! When each of many messages wants to be looked at, so that nobody has to ask all of them.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_time::Instant;

#[derive(Default)]
pub(crate) struct Agenda {
    in_order: BTreeSet<(Instant, u64)>,
    by_number: BTreeMap<u64, Instant>,
}

impl Agenda {
    /// A message wants to be looked at then, or not at all.
    pub(crate) fn set(&mut self, number: u64, at: Option<Instant>) {
        let before = match at {
            Some(at) => self.by_number.insert(number, at),
            None => self.by_number.remove(&number),
        };
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.in_order.remove(&(before, number));
        }
        if let Some(at) = at {
            self.in_order.insert((at, number));
        }
    }

    /// Those that want to be looked at now.
    pub(crate) fn due(&self, now: Instant) -> impl Iterator<Item = u64> {
        self.in_order.range(..=(now, u64::MAX)).map(|(_, number)| *number)
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        self.in_order.first().map(|(at, _)| *at)
    }

    pub(crate) fn clear(&mut self) {
        self.in_order.clear();
        self.by_number.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_one_time() {
        let at = Instant::from_nanos;
        let mut agenda = Agenda::default();
        agenda.set(1, Some(at(10)));
        agenda.set(2, Some(at(20)));
        agenda.set(3, Some(at(10)));
        assert!(agenda.due(at(10)).eq([1, 3]) && agenda.due(at(9)).eq([]));
        agenda.set(1, Some(at(30)));
        agenda.set(3, None);
        agenda.set(4, None);
        assert_eq!(agenda.next(), Some(at(20)));
        assert!(agenda.due(at(40)).eq([2, 1]));
        agenda.clear();
        assert_eq!(agenda.next(), None);
    }
}
