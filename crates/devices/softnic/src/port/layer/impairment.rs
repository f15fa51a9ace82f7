//! A bad network in front of a port, in process and without root.
//!
//! ```text
//!   device ─▶ ICRC ─▶ impairment ─▶ wait until it is due ─▶ port ═══ network
//!   device ◀─ ICRC checked ◀─ wait until it is due ◀─ impairment ◀─ port ═══ network
//! ```
//!
//! Both directions of one port are impaired, each by a layer of its own, so one such port makes both ways of all its connections
//! bad. What passes are whole datagrams with their ICRC: a flipped bit is found where it would be found on a real wire. Each
//! datagram leaves in a call of its own, with identification 0, whose ICRC does not depend on what becomes of its neighbours.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;

use longhaul_impair::{Counters, Delivery, Impairment, Profile, ProfileError, Verdict};
use longhaul_time::Instant;
use longhaul_wire::{Ecn, ipv4, ipv6, udp};

use super::{Direction, Layer, Onward, Packet};

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

/// A bad network in one direction: packets enter, and come out when they are due. Those that go the other way just pass.
pub struct ImpairmentLayer {
    direction: Direction,
    impairment: Impairment,
    waiting: BinaryHeap<Reverse<Waiting>>,
    waiting_bytes: usize,
    entered: u64,
    /// Packets that found no room, which the profile knows nothing of.
    no_room: u64,
}

struct Waiting {
    at: Instant,
    /// Of two that are due at once, the one that entered first goes first.
    sequence: u64,
    packet: Packet,
}

impl ImpairmentLayer {
    /// What a bad network does in one direction.
    pub fn new(impair: &Impair, direction: Direction) -> Result<ImpairmentLayer, ProfileError> {
        let seed = match direction {
            Direction::Outgoing => impair.seed,
            // Far from any seed that the peer may have been given.
            Direction::Incoming => !impair.seed,
        };
        Ok(ImpairmentLayer {
            direction,
            impairment: Impairment::new(impair.profile.clone(), seed)?,
            waiting: BinaryHeap::new(),
            waiting_bytes: 0,
            entered: 0,
            no_room: 0,
        })
    }

    /// Make it better or worse, for what enters from now on.
    pub fn set_profile(&mut self, profile: &Profile, now: Instant) -> Result<(), ProfileError> {
        self.impairment.set_profile(profile.clone(), now)
    }

    /// What has happened so far.
    pub fn counters(&self) -> Counters {
        self.impairment.counters()
    }

    fn put(&mut self, mut packet: Packet, delivery: &Delivery) {
        if self.waiting_bytes >= WAITING_BYTES_MAX {
            if self.no_room == 0 {
                tracing::warn!(
                    "{WAITING_BYTES_MAX} bytes wait in a direction of the impaired port, and more are dropped: give the \
                     profile a smaller delay or queue, or send more slowly"
                );
            }
            self.no_room += 1;
            return;
        }
        let traffic_class = &mut packet.envelope.traffic_class;
        if delivery.ecn_mark && Ecn::from_bits(*traffic_class) != Ecn::NotCapable {
            *traffic_class = Ecn::CongestionExperienced.apply_to(*traffic_class);
        }
        if let Some(corruption) = delivery.corruption {
            corruption.apply(&mut packet.datagram);
        }
        self.entered += 1;
        self.waiting_bytes += packet.datagram.len() + WAITING_OVERHEAD_BYTES;
        self.waiting.push(Reverse(Waiting { at: delivery.at, sequence: self.entered, packet }));
    }

    /// Pass on what is due by then, as far as there is room.
    fn pass_due(&mut self, until: Instant, onward: &mut Onward<'_>) {
        while onward.has_room(self.direction)
            && self.next_deadline().is_some_and(|at| at <= until)
            && let Some(Reverse(Waiting { packet, .. })) = self.waiting.pop()
        {
            self.waiting_bytes -= packet.datagram.len() + WAITING_OVERHEAD_BYTES;
            onward.pass(self.direction, packet);
        }
    }
}

impl Layer for ImpairmentLayer {
    fn handle(&mut self, direction: Direction, packet: Packet, now: Instant, onward: &mut Onward<'_>) {
        if direction != self.direction {
            return onward.pass(direction, packet);
        }
        let Packet { envelope, datagram } = &packet;
        let packet_bytes = header_bytes(envelope.destination.ip()) + datagram.len() + envelope.elided_bytes as usize;
        match self.impairment.handle(packet_bytes as u32, now) {
            Verdict::Dropped(_) => {}
            Verdict::Once(delivery) => self.put(packet, &delivery),
            Verdict::Twice(first, second) => {
                self.put(packet.clone(), &first);
                self.put(packet, &second);
            }
        }
    }

    fn poll(&mut self, now: Instant, onward: &mut Onward<'_>) {
        self.pass_due(now, onward);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.waiting.peek().map(|Reverse(waiting)| waiting.at)
    }

    fn close(&mut self, _now: Instant, onward: &mut Onward<'_>) {
        // A network that delays does not lose what its sender, gone by now, had sent.
        if self.direction == Direction::Outgoing {
            self.pass_due(Instant::FAR_FUTURE, onward);
        }
    }

    fn has_room(&self) -> bool {
        self.direction == Direction::Incoming || self.waiting_bytes < WAITING_BYTES_MAX
    }
}

/// Bytes of the IP and UDP headers.
fn header_bytes(address: IpAddr) -> usize {
    udp::HEADER_BYTES + if address.is_ipv4() { ipv4::HEADER_BYTES } else { ipv6::HEADER_BYTES }
}

impl Waiting {
    fn key(&self) -> (Instant, u64) {
        (self.at, self.sequence)
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use longhaul_impair::{EcnMarking, Loss};
    use longhaul_time::Duration;

    use super::*;
    use crate::port::layer::stack::tests::envelope as plain_envelope;
    use crate::port::layer::{Envelope, Stack};

    /// A bad network in one direction, alone in a stack.
    fn only(direction: Direction, impair: &Impair) -> Stack {
        Stack::new(vec![Box::new(ImpairmentLayer::new(impair, direction).unwrap())])
    }

    fn incoming(profile: Profile) -> Stack {
        only(Direction::Incoming, &Impair { profile, seed: 1 })
    }

    fn envelope(traffic_class: u8) -> Envelope {
        Envelope { traffic_class, ..plain_envelope() }
    }

    fn enter(stack: &mut Stack, traffic_class: u8, datagram: Vec<u8>, now: Instant) {
        let is_watched_only = stack.arrive(&envelope(traffic_class), &datagram, now);
        assert!(!is_watched_only);
    }

    fn layer(stack: &mut Stack) -> &mut ImpairmentLayer {
        stack.layers_mut().next().unwrap()
    }

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(1000 * micros)
    }

    /// Everything that comes out until then, with traffic classes.
    fn drain(stack: &mut Stack, now: Instant) -> Vec<(u8, Vec<u8>)> {
        stack.poll(now);
        std::iter::from_fn(|| stack.take_incoming())
            .map(|packet| (packet.envelope.traffic_class, packet.datagram))
            .collect()
    }

    #[test]
    fn datagrams_come_out_when_they_are_due_and_in_order() {
        let profile = Profile::default().with_propagation_delay(Duration::from_micros(10));
        let mut lane = incoming(profile);
        for (value, entered) in [(1, 0), (2, 0), (3, 5)] {
            enter(&mut lane, 0, vec![value], at(entered));
        }
        assert_eq!(lane.next_deadline(true), Some(at(10)));
        assert_eq!(drain(&mut lane, Instant::from_nanos(9_999)), []);
        assert_eq!(drain(&mut lane, at(10)), [(0, vec![1]), (0, vec![2])]);
        assert_eq!(lane.next_deadline(true), Some(at(15)));
        assert_eq!(drain(&mut lane, at(100)), [(0, vec![3])]);
        assert_eq!((lane.next_deadline(true), layer(&mut lane).waiting_bytes), (None, 0));
    }

    #[test]
    fn a_datagram_held_back_is_overtaken_and_a_repeated_one_comes_twice() {
        let mut profile = Profile::default().with_duplication(1.0);
        profile.reordering = longhaul_impair::Reordering { probability: 1.0, extra_delay: Duration::from_micros(7) };
        let mut lane = incoming(profile);
        enter(&mut lane, 0, vec![1], at(0));
        assert_eq!(drain(&mut lane, at(6)).len(), 1, "the second copy");
        enter(&mut lane, 0, vec![2], at(6));
        let values: Vec<u8> = drain(&mut lane, at(20)).into_iter().map(|(_, datagram)| datagram[0]).collect();
        assert_eq!(values, [2, 1, 2], "copy of 2, then 1 from 0 + 7, then 2 from 6 + 7");
    }

    #[test]
    fn bits_are_flipped_and_datagrams_are_lost() {
        let mut lane = incoming(Profile::default().with_corruption(1.0, 3));
        enter(&mut lane, 0, vec![0; 100], at(0));
        let [(_, datagram)] = &drain(&mut lane, at(0))[..] else { panic!("expected one datagram") };
        assert_eq!(datagram.iter().map(|byte| byte.count_ones()).sum::<u32>(), 3);
        let mut lane = incoming(Profile::default().with_loss(Loss::Independent { probability: 1.0 }));
        enter(&mut lane, 0, vec![0; 100], at(0));
        assert_eq!(drain(&mut lane, Instant::FAR_FUTURE), []);
    }

    #[test]
    fn only_what_is_capable_of_ecn_is_marked() {
        let profile =
            Profile::default().with_rate_bits_per_second(1_000_000).with_ecn(EcnMarking::Step { threshold_bytes: 0 });
        let mut lane = incoming(profile);
        // The first finds the queue empty.
        for traffic_class in [0b10, 0b1010_1010, 0b01, 0b1010_1000] {
            enter(&mut lane, traffic_class, vec![0; 100], at(0));
        }
        let classes: Vec<u8> = drain(&mut lane, at(1_000_000)).into_iter().map(|(class, _)| class).collect();
        assert_eq!(classes, [0b10, 0b1010_1011, 0b11, 0b1010_1000]);
    }

    #[test]
    fn rate_counts_ip_and_udp_headers() {
        let mut lane = incoming(Profile::default().with_rate_bits_per_second(8_000_000));
        enter(&mut lane, 0, vec![0; 72], at(0));
        assert_eq!(lane.next_deadline(true), Some(at(100)), "20 + 8 + 72 bytes at a byte a microsecond");
    }

    #[test]
    fn what_waits_is_bounded() {
        let profile = Profile::default().with_propagation_delay(Duration::from_secs(1));
        let mut lane = only(Direction::Outgoing, &Impair { profile, seed: 1 });
        let packet = || Packet { envelope: envelope(0), datagram: vec![0; 1 << 20] };
        let mut entered = 0;
        while lane.has_room() {
            lane.send(packet(), at(0));
            entered += 1;
        }
        lane.send(packet(), at(0));
        let layer = layer(&mut lane);
        assert_eq!((layer.waiting.len(), layer.no_room), (entered, 1));
        assert!(layer.waiting_bytes < WAITING_BYTES_MAX + (2 << 20));
    }

    #[test]
    fn what_goes_the_other_way_passes_at_once() {
        let profile = Profile::default().with_loss(Loss::Independent { probability: 1.0 });
        let mut lane = incoming(profile);
        lane.send(Packet { envelope: envelope(0), datagram: vec![1] }, at(0));
        assert_eq!(lane.take_outgoing().map(|packet| packet.datagram), Some(vec![1]));
        assert_eq!(layer(&mut lane).counters(), Counters::default());
    }

    #[test]
    fn closing_lets_go_of_what_was_sent_and_not_of_what_arrives() {
        let profile = Profile::default().with_propagation_delay(Duration::from_secs(1));
        for (direction, expected) in [(Direction::Outgoing, true), (Direction::Incoming, false)] {
            let mut lane = only(direction, &Impair { profile: profile.clone(), seed: 1 });
            match direction {
                Direction::Outgoing => lane.send(Packet { envelope: envelope(0), datagram: vec![1] }, at(0)),
                Direction::Incoming => enter(&mut lane, 0, vec![1], at(0)),
            }
            lane.close(at(1));
            assert_eq!(lane.take_outgoing().is_some(), expected);
            assert!(lane.take_incoming().is_none());
        }
    }

    #[test]
    fn directions_and_seeds_decide_independently() {
        let impair =
            |seed| Impair { profile: Profile::default().with_loss(Loss::Independent { probability: 0.5 }), seed };
        let decisions = |direction, seed| -> Vec<bool> {
            let mut lane = only(direction, &impair(seed));
            let mut is_delivered = || match direction {
                Direction::Outgoing => {
                    lane.send(Packet { envelope: envelope(0), datagram: vec![0] }, at(0));
                    lane.poll(at(0));
                    lane.take_outgoing().is_some()
                }
                Direction::Incoming => {
                    enter(&mut lane, 0, vec![0], at(0));
                    !drain(&mut lane, at(0)).is_empty()
                }
            };
            (0..64).map(|_| is_delivered()).collect()
        };
        let mut seen = Vec::new();
        for seed in [1, 2] {
            seen.push(decisions(Direction::Incoming, seed));
            seen.push(decisions(Direction::Outgoing, seed));
        }
        for one in 0..seen.len() {
            assert!((0..one).all(|other| seen[one] != seen[other]));
        }
    }
}
