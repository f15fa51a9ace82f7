//! What the broker decides: who has which part of which address, whom it waits for, and when it ends. No sockets, no clock.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use crate::letters::Refusal;
use crate::parts::{PARTS, PROCESSES};

/// What a broker holds at most, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Addresses with sockets.
    pub addresses: usize,
    /// Clients that have connected and asked for nothing yet. One more, and the one that waits longest has to go.
    pub silent_clients: usize,
    /// How long a client may be silent.
    pub patience: Duration,
    /// How long the sockets of an address stay when the last process has left: one that was killed may not have closed its own
    /// yet. The broker stays as long.
    pub rest: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        let (patience, rest) = (Duration::from_secs(2), Duration::from_secs(1));
        Bounds { addresses: 64, silent_clients: 64, patience, rest }
    }
}

/// Decisions of a broker. Times count from any beginning, clients are numbers that are used once.
#[derive(Debug)]
pub struct Decisions {
    bounds: Bounds,
    addresses: BTreeMap<IpAddr, Parts>,
    /// Since when they are silent; the longest first.
    silent: VecDeque<(u64, Duration)>,
    leases: BTreeMap<u64, (IpAddr, u8)>,
    /// Since when there is nothing left.
    idle_since: Option<Duration>,
}

#[derive(Debug)]
struct Parts {
    /// The one that is free longest comes first, so that stragglers for its last owner have gone.
    free: VecDeque<u8>,
    /// Since when nobody has one.
    unused_since: Option<Duration>,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The sockets of the address have to be opened first. If that succeeds, say so ([`Decisions::add_address`]) and ask again.
    Open,
    /// The client has this part, until it leaves.
    Granted(u8),
    /// It gets nothing.
    Refused(Refusal),
}

/// What has to be done now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// Clients that were silent for too long.
    pub disconnect: Vec<u64>,
    /// Addresses whose sockets nobody needs.
    pub close: Vec<IpAddr>,
    /// Nothing is left to do here.
    pub end: bool,
}

impl Decisions {
    /// Nobody is here yet.
    pub fn new(bounds: Bounds, now: Duration) -> Self {
        Decisions {
            bounds,
            addresses: BTreeMap::new(),
            silent: VecDeque::new(),
            leases: BTreeMap::new(),
            idle_since: Some(now),
        }
    }

    /// A client has connected. Who has to go for it: silent clients must not keep others out.
    pub fn connect(&mut self, client: u64, now: Duration) -> Option<u64> {
        self.idle_since = None;
        let is_full = self.silent.len() >= self.bounds.silent_clients;
        let evicted = if is_full { self.silent.pop_front() } else { None };
        self.silent.push_back((client, now));
        evicted.map(|(client, _)| client)
    }

    /// A silent client asks for a part of an address.
    pub fn request(&mut self, client: u64, address: IpAddr) -> Verdict {
        let Some(place) = self.silent.iter().position(|(silent, _)| *silent == client) else {
            return Verdict::Refused(Refusal::Malformed);
        };
        let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if address.is_unspecified() || address.is_multicast() || is_link_local {
            return Verdict::Refused(Refusal::NotOurAddress);
        }
        let Some(parts) = self.addresses.get_mut(&address) else {
            let is_full = self.addresses.len() >= self.bounds.addresses;
            return if is_full { Verdict::Refused(Refusal::TooManyAddresses) } else { Verdict::Open };
        };
        let Some(part) = parts.free.pop_front() else { return Verdict::Refused(Refusal::Full) };
        parts.unused_since = None;
        self.silent.remove(place);
        self.leases.insert(client, (address, part));
        Verdict::Granted(part)
    }

    /// The sockets of an address have been opened.
    pub fn add_address(&mut self, address: IpAddr, now: Duration) {
        let free = (1..PARTS).collect();
        self.addresses.insert(address, Parts { free, unused_since: Some(now) });
    }

    /// A client has gone, or has to. Which part is free again.
    pub fn leave(&mut self, client: u64, now: Duration) -> Option<(IpAddr, u8)> {
        self.silent.retain(|(silent, _)| *silent != client);
        let left = self.leases.remove(&client);
        if let Some((address, part)) = left
            && let Some(parts) = self.addresses.get_mut(&address)
        {
            parts.free.push_back(part);
            if parts.free.len() == usize::from(PROCESSES) {
                parts.unused_since = Some(now);
            }
        }
        self.note_idle(now);
        left
    }

    fn note_idle(&mut self, now: Duration) {
        if self.silent.is_empty() && self.addresses.is_empty() {
            self.idle_since.get_or_insert(now);
        }
    }

    /// What has to be done. It is taken as done.
    pub fn due(&mut self, now: Duration) -> Due {
        let Bounds { patience, rest, .. } = self.bounds;
        let mut due = Due::default();
        while let Some((client, _)) = self.silent.pop_front_if(|(_, since)| *since + patience <= now) {
            due.disconnect.push(client);
        }
        let is_unused = |parts: &Parts| parts.unused_since.is_some_and(|since| since + rest <= now);
        due.close.extend(self.addresses.iter().filter(|(_, parts)| is_unused(parts)).map(|(address, _)| *address));
        due.close.iter().for_each(|address| drop(self.addresses.remove(address)));
        self.note_idle(now);
        due.end = self.idle_since.is_some_and(|since| since + rest <= now);
        due
    }

    /// When to ask again what is [`due`](Decisions::due), if nothing happens before.
    pub fn next_deadline(&self) -> Option<Duration> {
        let Bounds { patience, rest, .. } = self.bounds;
        let silent = self.silent.front().map(|(_, since)| *since + patience);
        let unused = self.addresses.values().filter_map(|parts| parts.unused_since).min().map(|since| since + rest);
        let idle = self.idle_since.map(|since| since + rest);
        [silent, unused, idle].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds =
        Bounds { addresses: 2, silent_clients: 3, patience: Duration::from_secs(2), rest: Duration::from_secs(1) };

    fn at(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn address(last: u8) -> IpAddr {
        [127, 0, 12, last].into()
    }

    fn granted(decisions: &mut Decisions, client: u64, address: IpAddr, now: Duration) -> u8 {
        assert_eq!(decisions.connect(client, now), None);
        let mut verdict = decisions.request(client, address);
        if verdict == Verdict::Open {
            decisions.add_address(address, now);
            verdict = decisions.request(client, address);
        }
        match verdict {
            Verdict::Granted(part) => part,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sixty_three_have_a_part_each_and_the_next_is_refused() {
        let mut decisions = Decisions::new(BOUNDS, at(0));
        let mut parts: Vec<u8> = (0..63).map(|client| granted(&mut decisions, client, address(1), at(0))).collect();
        parts.sort_unstable();
        assert_eq!(parts, (1..64).collect::<Vec<_>>(), "each its own, and nobody part 0");
        decisions.connect(63, at(0));
        assert_eq!(decisions.request(63, address(1)), Verdict::Refused(Refusal::Full));
        // At another address there is room.
        assert_eq!(decisions.request(63, address(2)), Verdict::Open);
        decisions.add_address(address(2), at(0));
        assert!(matches!(decisions.request(63, address(2)), Verdict::Granted(_)));
    }

    #[test]
    fn the_part_that_is_free_longest_is_given_next() {
        let mut decisions = Decisions::new(BOUNDS, at(0));
        let first = granted(&mut decisions, 0, address(1), at(0));
        assert_eq!(decisions.leave(0, at(1)), Some((address(1), first)));
        let mut given: Vec<u8> = (1..63).map(|client| granted(&mut decisions, client, address(1), at(2))).collect();
        assert!(!given.contains(&first));
        given.push(granted(&mut decisions, 63, address(1), at(2)));
        assert_eq!(given.last(), Some(&first));
        assert_eq!(decisions.leave(0, at(3)), None, "who has left has nothing to leave");
    }

    #[test]
    fn a_client_asks_once_and_only_after_it_has_connected() {
        let mut decisions = Decisions::new(BOUNDS, at(0));
        granted(&mut decisions, 0, address(1), at(0));
        assert_eq!(decisions.request(0, address(1)), Verdict::Refused(Refusal::Malformed));
        assert_eq!(decisions.request(9, address(1)), Verdict::Refused(Refusal::Malformed));
    }

    #[test]
    fn addresses_that_are_none_and_too_many_are_refused() {
        let mut decisions = Decisions::new(BOUNDS, at(0));
        decisions.connect(0, at(0));
        for text in ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "fe80::1"] {
            let verdict = decisions.request(0, text.parse().unwrap());
            assert_eq!(verdict, Verdict::Refused(Refusal::NotOurAddress), "{text}");
        }
        granted(&mut decisions, 1, address(1), at(0));
        granted(&mut decisions, 2, "::1".parse().unwrap(), at(0));
        assert_eq!(decisions.request(0, address(3)), Verdict::Refused(Refusal::TooManyAddresses));
    }

    #[test]
    fn silent_clients_go_in_time_and_make_room_for_others() {
        let mut decisions = Decisions::new(BOUNDS, at(0));
        for client in 0..3 {
            assert_eq!(decisions.connect(client, at(10 * client)), None);
        }
        assert_eq!(decisions.connect(3, at(30)), Some(0), "the one that waits longest");
        assert_eq!(decisions.next_deadline(), Some(at(2010)));
        assert_eq!(decisions.due(at(2009)), Due::default());
        assert_eq!(decisions.due(at(2020)).disconnect, [1, 2]);
        // One that has asked is silent no more.
        assert_eq!(decisions.request(3, address(1)), Verdict::Open);
        decisions.add_address(address(1), at(2020));
        assert_eq!(decisions.request(3, address(1)), Verdict::Granted(1));
        assert_eq!((decisions.due(at(90_000)), decisions.next_deadline()), (Due::default(), None));
    }

    #[test]
    fn sockets_close_and_the_broker_ends_after_the_last_has_left() {
        let mut decisions = Decisions::new(BOUNDS, at(0));
        assert_eq!(decisions.next_deadline(), Some(at(1000)), "also if nobody ever comes");
        granted(&mut decisions, 0, address(1), at(500));
        granted(&mut decisions, 1, address(1), at(500));
        decisions.leave(0, at(600));
        assert_eq!(decisions.due(at(50_000)), Due::default(), "one is left");
        decisions.leave(1, at(60_000));
        assert_eq!(decisions.next_deadline(), Some(at(61_000)));
        // Somebody comes in time.
        granted(&mut decisions, 2, address(1), at(60_999));
        assert_eq!(decisions.due(at(61_000)), Due::default());
        decisions.leave(2, at(62_000));
        assert_eq!(decisions.due(at(63_000)), Due { close: vec![address(1)], ..Due::default() });
        assert_eq!(decisions.next_deadline(), Some(at(64_000)));
        assert_eq!(decisions.due(at(64_000)), Due { end: true, ..Due::default() });
    }

    #[test]
    fn an_address_that_nobody_gets_a_part_of_closes_too() {
        let mut decisions = Decisions::new(BOUNDS, at(0));
        decisions.connect(0, at(0));
        decisions.add_address(address(1), at(0));
        decisions.leave(0, at(0));
        assert_eq!(decisions.due(at(1000)).close, [address(1)]);
    }
}
