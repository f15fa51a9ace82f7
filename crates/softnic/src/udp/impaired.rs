//! A bad network in front of the sockets, in process and without root.
//!
//! ```text
//!   device ─▶ ICRC ─▶ impairment ─▶ wait until it is due ─▶ socket ═══ network
//!   device ◀─ ICRC checked ◀─ wait until it is due ◀─ impairment ◀─ socket ═══ network
//! ```
//!
//! Both directions of one port are impaired, each on its own, so one such port makes both ways of all its connections bad. What
//! passes are whole datagrams with their ICRC: a flipped bit is found where it would be found on a real wire. Each
//! datagram leaves in a call of its own, with identification 0, whose ICRC does not depend on what becomes of its neighbours.
//!
//! As everywhere, time is an argument: [`Lane::next_at`] says when something is due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{IpAddr, SocketAddr};

use longhaul_impair::{Counters, Delivery, Impairment, Profile, ProfileError, Verdict};
use longhaul_time::Instant;
use longhaul_wire::{Ecn, ipv4, ipv6, udp};

use super::port::Way;
use super::socket::Arrival;

/// What may wait in one direction, in memory. A second at 2 Gbit/s; the profile's own queue is usually much shorter.
const WAITING_BYTES_MAX: usize = 256 << 20;
/// What a datagram that waits costs besides its bytes.
const WAITING_OVERHEAD_BYTES: usize = 256;

/// A bad network between a device and its sockets, both ways.
#[derive(Clone, Debug, PartialEq)]
pub struct Impair {
    /// How bad, in each direction. Lengths are those of IP packets.
    pub profile: Profile,
    /// All random decisions come from it. Those of two directions are independent of each other, and of another seed's.
    pub seed: u64,
}

/// Both directions of a port.
pub(super) struct Impaired {
    pub(super) outgoing: Lane<Way>,
    pub(super) incoming: Lane<Came>,
}

impl Impaired {
    pub(super) fn new(impair: &Impair) -> Result<Impaired, ProfileError> {
        Ok(Impaired {
            outgoing: Lane::new(impair.profile.clone(), impair.seed)?,
            // Far from any seed that the peer may have been given.
            incoming: Lane::new(impair.profile.clone(), !impair.seed)?,
        })
    }

    /// Change both directions under way.
    pub(super) fn set_profile(&mut self, profile: &Profile, now: Instant) -> Result<(), ProfileError> {
        self.outgoing.impairment.set_profile(profile.clone(), now)?;
        self.incoming.impairment.set_profile(profile.clone(), now)
    }

    /// What has happened to what was sent, and to what came.
    pub(super) fn counters(&self) -> [Counters; 2] {
        [self.outgoing.impairment.counters(), self.incoming.impairment.counters()]
    }
}

/// Where an incoming datagram came from, and at which socket.
#[derive(Clone, Copy)]
pub(super) struct Came {
    pub(super) arrival: Arrival,
    pub(super) local: SocketAddr,
}

/// What a lane has to know of what it carries.
pub(super) trait Travelling {
    /// Bytes of the IP and UDP headers.
    fn header_bytes(&self) -> usize;
    fn traffic_class_mut(&mut self) -> &mut u8;
}

impl Travelling for Way {
    fn header_bytes(&self) -> usize {
        header_bytes(self.route.destination)
    }

    fn traffic_class_mut(&mut self) -> &mut u8 {
        &mut self.route.traffic_class
    }
}

impl Travelling for Came {
    fn header_bytes(&self) -> usize {
        header_bytes(self.local.ip())
    }

    fn traffic_class_mut(&mut self) -> &mut u8 {
        &mut self.arrival.traffic_class
    }
}

fn header_bytes(address: IpAddr) -> usize {
    udp::HEADER_BYTES + if address.is_ipv4() { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES }
}

/// One direction: datagrams enter, and come out when they are due.
pub(super) struct Lane<T> {
    impairment: Impairment,
    waiting: BinaryHeap<Reverse<Waiting<T>>>,
    waiting_bytes: usize,
    entered: u64,
    /// Datagrams that found no room, which the profile knows nothing of.
    no_room: u64,
}

struct Waiting<T> {
    at: Instant,
    /// Of two that are due at once, the one that entered first goes first.
    sequence: u64,
    about: T,
    datagram: Vec<u8>,
}

impl<T: Travelling + Copy> Lane<T> {
    fn new(profile: Profile, seed: u64) -> Result<Self, ProfileError> {
        let impairment = Impairment::new(profile, seed)?;
        Ok(Lane { impairment, waiting: BinaryHeap::new(), waiting_bytes: 0, entered: 0, no_room: 0 })
    }

    /// Whether there is room for another datagram. One that enters all the same is dropped.
    pub(super) fn has_room(&self) -> bool {
        self.waiting_bytes < WAITING_BYTES_MAX
    }

    /// A datagram, complete with ICRC, enters now.
    pub(super) fn enter(&mut self, about: T, datagram: Vec<u8>, now: Instant) {
        let packet_bytes = about.header_bytes() + datagram.len();
        match self.impairment.handle(packet_bytes as u32, now) {
            Verdict::Dropped(_) => {}
            Verdict::Once(delivery) => self.put(about, datagram, &delivery),
            Verdict::Twice(first, second) => {
                self.put(about, datagram.clone(), &first);
                self.put(about, datagram, &second);
            }
        }
    }

    fn put(&mut self, mut about: T, mut datagram: Vec<u8>, delivery: &Delivery) {
        if !self.has_room() {
            if self.no_room == 0 {
                tracing::warn!(
                    "{WAITING_BYTES_MAX} bytes wait in a direction of the impaired port, and more are dropped: give the \
                     profile a smaller delay or queue, or send more slowly"
                );
            }
            self.no_room += 1;
            return;
        }
        let traffic_class = about.traffic_class_mut();
        if delivery.ecn_mark && Ecn::from_bits(*traffic_class) != Ecn::NotCapable {
            *traffic_class = Ecn::CongestionExperienced.apply_to(*traffic_class);
        }
        if let Some(corruption) = delivery.corruption {
            corruption.apply(&mut datagram);
        }
        self.entered += 1;
        self.waiting_bytes += datagram.len() + WAITING_OVERHEAD_BYTES;
        self.waiting.push(Reverse(Waiting { at: delivery.at, sequence: self.entered, about, datagram }));
    }

    /// The next datagram, if it is due.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<(T, Vec<u8>)> {
        if self.next_at()? > now {
            return None;
        }
        let Reverse(Waiting { about, datagram, .. }) = self.waiting.pop()?;
        self.waiting_bytes -= datagram.len() + WAITING_OVERHEAD_BYTES;
        Some((about, datagram))
    }

    /// When the next datagram is due.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.waiting.peek().map(|Reverse(waiting)| waiting.at)
    }
}

impl<T> Waiting<T> {
    fn key(&self) -> (Instant, u64) {
        (self.at, self.sequence)
    }
}

impl<T> PartialEq for Waiting<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Waiting<T> {}

impl<T> PartialOrd for Waiting<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Waiting<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use longhaul_impair::{EcnMarking, Loss};
    use longhaul_time::Duration;

    use super::*;

    fn came(traffic_class: u8) -> Came {
        let end = |last| SocketAddr::from(([192, 0, 2, last], 4791));
        let arrival = Arrival { bytes: 0, segment_bytes: 0, source: end(1), traffic_class, hop_limit: 64 };
        Came { arrival, local: end(2) }
    }

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(1000 * micros)
    }

    /// Everything that comes out until then, with traffic classes.
    fn drain(lane: &mut Lane<Came>, now: Instant) -> Vec<(u8, Vec<u8>)> {
        std::iter::from_fn(|| lane.take_due(now))
            .map(|(came, datagram)| (came.arrival.traffic_class, datagram))
            .collect()
    }

    #[test]
    fn datagrams_come_out_when_they_are_due_and_in_order() {
        let profile = Profile::default().with_propagation_delay(Duration::from_micros(10));
        let mut lane = Lane::new(profile, 1).unwrap();
        for (value, entered) in [(1, 0), (2, 0), (3, 5)] {
            lane.enter(came(0), vec![value], at(entered));
        }
        assert_eq!(lane.next_at(), Some(at(10)));
        assert_eq!(drain(&mut lane, Instant::from_nanos(9_999)), []);
        assert_eq!(drain(&mut lane, at(10)), [(0, vec![1]), (0, vec![2])]);
        assert_eq!(lane.next_at(), Some(at(15)));
        assert_eq!(drain(&mut lane, at(100)), [(0, vec![3])]);
        assert_eq!((lane.next_at(), lane.waiting_bytes), (None, 0));
    }

    #[test]
    fn a_datagram_held_back_is_overtaken_and_a_repeated_one_comes_twice() {
        let mut profile = Profile::default().with_duplication(1.0);
        profile.reordering = longhaul_impair::Reordering { probability: 1.0, extra_delay: Duration::from_micros(7) };
        let mut lane = Lane::new(profile, 1).unwrap();
        lane.enter(came(0), vec![1], at(0));
        assert_eq!(drain(&mut lane, at(6)).len(), 1, "the second copy");
        lane.enter(came(0), vec![2], at(6));
        let values: Vec<u8> = drain(&mut lane, at(20)).into_iter().map(|(_, datagram)| datagram[0]).collect();
        assert_eq!(values, [2, 1, 2], "copy of 2, then 1 from 0 + 7, then 2 from 6 + 7");
    }

    #[test]
    fn bits_are_flipped_and_datagrams_are_lost() {
        let mut lane = Lane::new(Profile::default().with_corruption(1.0, 3), 1).unwrap();
        lane.enter(came(0), vec![0; 100], at(0));
        let (_, datagram) = lane.take_due(at(0)).unwrap();
        assert_eq!(datagram.iter().map(|byte| byte.count_ones()).sum::<u32>(), 3);
        let mut lane = Lane::new(Profile::default().with_loss(Loss::Independent { probability: 1.0 }), 1).unwrap();
        lane.enter(came(0), vec![0; 100], at(0));
        assert!(lane.take_due(Instant::FAR_FUTURE).is_none());
    }

    #[test]
    fn only_what_is_capable_of_ecn_is_marked() {
        let profile =
            Profile::default().with_rate_bits_per_second(1_000_000).with_ecn(EcnMarking::Step { threshold_bytes: 0 });
        let mut lane = Lane::new(profile, 1).unwrap();
        // The first finds the queue empty.
        for traffic_class in [0b10, 0b1010_1010, 0b01, 0b1010_1000] {
            lane.enter(came(traffic_class), vec![0; 100], at(0));
        }
        let classes: Vec<u8> = drain(&mut lane, at(1_000_000)).into_iter().map(|(class, _)| class).collect();
        assert_eq!(classes, [0b10, 0b1010_1011, 0b11, 0b1010_1000]);
    }

    #[test]
    fn rate_counts_ip_and_udp_headers() {
        let mut lane = Lane::new(Profile::default().with_rate_bits_per_second(8_000_000), 1).unwrap();
        lane.enter(came(0), vec![0; 72], at(0));
        assert_eq!(lane.next_at(), Some(at(100)), "20 + 8 + 72 bytes at a byte a microsecond");
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut lane = Lane::new(Profile::default().with_propagation_delay(Duration::from_secs(1)), 1).unwrap();
        let mut entered = 0;
        while lane.has_room() {
            lane.enter(came(0), vec![0; 1 << 20], at(0));
            entered += 1;
        }
        lane.enter(came(0), vec![0; 1 << 20], at(0));
        assert_eq!((lane.waiting.len(), lane.no_room), (entered, 1));
        assert!(lane.waiting_bytes < WAITING_BYTES_MAX + (2 << 20));
    }

    #[test]
    fn directions_and_seeds_decide_independently() {
        let impair =
            |seed| Impair { profile: Profile::default().with_loss(Loss::Independent { probability: 0.5 }), seed };
        let decisions = |lane: &mut Lane<Came>| -> Vec<bool> {
            (0..64)
                .map(|_| {
                    lane.enter(came(0), vec![0], at(0));
                    lane.take_due(at(0)).is_some()
                })
                .collect()
        };
        let mut seen = Vec::new();
        for seed in [1, 2] {
            let mut impaired = Impaired::new(&impair(seed)).unwrap();
            seen.push(decisions(&mut impaired.incoming));
            seen.push(decisions(&mut Lane::new(impair(seed).profile, seed).unwrap()));
        }
        for one in 0..seen.len() {
            assert!((0..one).all(|other| seen[one] != seen[other]));
        }
    }
}
