//! The stack, driven by hand.

use std::collections::VecDeque;
use std::net::SocketAddr;

use longhaul_time::Duration;
use longhaul_wire::IcrcScope;

use super::*;

/// Between two documentation addresses.
pub(in crate::port::layer) fn envelope() -> Envelope {
    let end = |last| SocketAddr::from(([192, 0, 2, last], 4791));
    Envelope {
        source: end(1),
        destination: end(2),
        traffic_class: 0,
        hop_limit: 64,
        identification: None,
        icrc_scope: IcrcScope::between(end(1), end(2)).unwrap(),
        elided_bytes: 0,
    }
}

fn packet(bytes: &[u8]) -> Packet {
    Packet { envelope: envelope(), datagram: bytes.to_vec() }
}

fn at(micros: u64) -> Instant {
    Instant::from_nanos(1000 * micros)
}

fn sent(stack: &mut Stack) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| stack.take_outgoing()).map(|packet| packet.datagram).collect()
}

fn delivered(stack: &mut Stack) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| stack.take_incoming()).map(|packet| packet.datagram).collect()
}

/// A packet arrives that layers take for themselves.
fn arrive(stack: &mut Stack, bytes: &[u8], now: Instant) {
    assert!(!stack.arrive(&envelope(), bytes, now));
}

/// Appends its mark to what goes out, and expects and removes it from what comes in.
struct Mark(u8);

impl Layer for Mark {
    fn handle(&mut self, direction: Direction, mut packet: Packet, _now: Instant, onward: &mut Onward<'_>) {
        match direction {
            Direction::Outgoing => packet.datagram.push(self.0),
            // What does not have it is dropped.
            Direction::Incoming if packet.datagram.pop() != Some(self.0) => return,
            Direction::Incoming => {}
        }
        onward.pass(direction, packet);
    }

    fn overhead_bytes(&self) -> usize {
        1
    }
}

/// Holds everything that goes out for a while.
#[derive(Default)]
struct Hold {
    held: VecDeque<(Instant, Packet)>,
    limit: Option<usize>,
}

const HOLD: Duration = Duration::from_micros(10);

impl Layer for Hold {
    fn handle(&mut self, direction: Direction, packet: Packet, now: Instant, onward: &mut Onward<'_>) {
        match direction {
            Direction::Outgoing => self.held.push_back((now + HOLD, packet)),
            Direction::Incoming => onward.pass(direction, packet),
        }
    }

    fn poll(&mut self, now: Instant, onward: &mut Onward<'_>) {
        while onward.has_room(Direction::Outgoing) && self.next_deadline().is_some_and(|deadline| deadline <= now) {
            let (_, packet) = self.held.pop_front().unwrap();
            onward.pass(Direction::Outgoing, packet);
        }
    }

    fn close(&mut self, _now: Instant, onward: &mut Onward<'_>) {
        self.poll(Instant::FAR_FUTURE, onward);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.held.front().map(|(at, _)| *at)
    }

    fn has_room(&self) -> bool {
        self.limit.is_none_or(|limit| self.held.len() < limit)
    }
}

/// Answers whatever comes from one side with this on the same way back.
struct Answer(Direction, u8);

impl Layer for Answer {
    fn handle(&mut self, direction: Direction, packet: Packet, _now: Instant, onward: &mut Onward<'_>) {
        if direction == self.0 {
            let back = match direction {
                Direction::Outgoing => Direction::Incoming,
                Direction::Incoming => Direction::Outgoing,
            };
            onward.pass(back, Packet { datagram: vec![self.1], ..packet.clone() });
        }
        onward.pass(direction, packet);
    }
}

/// Writes down what it sees.
#[derive(Default)]
struct Watch(Vec<(Direction, Vec<u8>)>);

impl Layer for Watch {
    fn only_watches(&self) -> bool {
        true
    }

    fn watch(&mut self, direction: Direction, _envelope: &Envelope, datagram: &[u8], _now: Instant) {
        self.0.push((direction, datagram.to_vec()));
    }
}

fn seen(stack: &mut Stack) -> Vec<(Direction, Vec<u8>)> {
    stack.layers_mut::<Watch>().flat_map(|watch| std::mem::take(&mut watch.0)).collect()
}

#[test]
fn packets_pass_layers_in_order_and_back_in_the_opposite_order() {
    let mut stack = Stack::new(vec![Box::new(Mark(1)), Box::new(Mark(2)), Box::new(Mark(3))]);
    for value in [10, 20] {
        stack.send(packet(&[value]), at(0));
    }
    assert_eq!(sent(&mut stack), [[10, 1, 2, 3], [20, 1, 2, 3]]);
    arrive(&mut stack, &[10, 1, 2, 3], at(0));
    // In another order than they were put on, marks are strangers'.
    arrive(&mut stack, &[10, 3, 2, 1], at(0));
    assert_eq!(delivered(&mut stack), [[10]]);
    assert!(sent(&mut stack).is_empty());
    assert_eq!(stack.overhead_bytes(), 3);
}

#[test]
fn a_stack_without_layers_lets_everything_through() {
    let mut stack = Stack::default();
    assert!(stack.is_empty() && !stack.takes_packets() && stack.has_room());
    assert!(stack.arrive(&envelope(), &[1], at(0)), "straight to the device");
    stack.send(packet(&[2]), at(0));
    assert_eq!(sent(&mut stack), [[2]]);
    assert_eq!((stack.next_deadline(true), stack.overhead_bytes()), (None, 0));
}

#[test]
fn what_is_held_passes_the_layers_below_when_it_is_due() {
    let mut stack = Stack::new(vec![Box::new(Mark(1)), Box::<Hold>::default(), Box::new(Mark(2))]);
    stack.send(packet(&[7]), at(5));
    assert_eq!((sent(&mut stack).len(), stack.next_deadline(true)), (0, Some(at(15))));
    stack.poll(at(14));
    assert!(sent(&mut stack).is_empty());
    stack.poll(at(15));
    assert_eq!(stack.next_deadline(true), Some(at(15)), "a packet waits for the port");
    assert_eq!(stack.next_deadline(false), None, "which has to have room first");
    assert_eq!(sent(&mut stack), [[7, 1, 2]]);
    assert_eq!(stack.next_deadline(true), None);
}

#[test]
fn layers_add_packets_in_either_direction() {
    let above = Box::new(Answer(Direction::Outgoing, 8));
    let below = Box::new(Answer(Direction::Incoming, 9));
    let mut stack = Stack::new(vec![above, Box::new(Mark(1)), below]);
    stack.send(packet(&[5]), at(0));
    assert_eq!((sent(&mut stack), delivered(&mut stack)), (vec![vec![5, 1]], vec![vec![8]]));
    arrive(&mut stack, &[6, 1], at(0));
    // What is added passes only the layers that are still before it.
    assert_eq!((sent(&mut stack), delivered(&mut stack)), (vec![vec![9]], vec![vec![6]]));
}

#[test]
fn layers_that_answer_each_other_come_to_an_end() {
    let (one, two) = (Answer(Direction::Incoming, 1), Answer(Direction::Outgoing, 2));
    let mut stack = Stack::new(vec![Box::new(one), Box::new(two)]);
    stack.send(packet(&[5]), at(0));
    assert!(stack.dropped() > 0);
    assert!(sent(&mut stack).len() < HOPS_MAX as usize);
    assert!(delivered(&mut stack).len() < HOPS_MAX as usize);
    assert_eq!(stack.passing.held_bytes, 0);
}

#[test]
fn watching_takes_no_packets_and_sees_all() {
    let mut stack = Stack::new(vec![Box::<Watch>::default()]);
    assert!(!stack.is_empty() && !stack.takes_packets());
    assert!(stack.arrive(&envelope(), &[1], at(0)));
    stack.watch(Direction::Outgoing, &envelope(), &[2], at(0));
    assert_eq!(seen(&mut stack), [(Direction::Incoming, vec![1]), (Direction::Outgoing, vec![2])]);

    // Next to a layer that changes packets it sees what passes there: above it or below it.
    stack.push(Box::new(Mark(9)));
    assert!(stack.takes_packets());
    stack.send(packet(&[3]), at(0));
    arrive(&mut stack, &[4, 9], at(0));
    assert_eq!(seen(&mut stack), [(Direction::Outgoing, vec![3]), (Direction::Incoming, vec![4])]);
    assert_eq!((sent(&mut stack), delivered(&mut stack)), (vec![vec![3, 9]], vec![vec![4]]));

    assert!(stack.remove::<Mark>().is_some() && stack.remove::<Mark>().is_none());
    assert!(!stack.takes_packets());
    assert!(stack.remove::<Watch>().is_some() && stack.is_empty());
}

#[test]
fn closing_sends_what_is_held() {
    let mut stack = Stack::new(vec![Box::<Hold>::default(), Box::new(Mark(1))]);
    stack.send(packet(&[7]), at(0));
    stack.close(at(1));
    assert_eq!(sent(&mut stack), [[7, 1]]);
    stack.close(at(1));
    assert!(sent(&mut stack).is_empty());
    // What one lets go of, the next one gets before it is asked to let go.
    let mut stack = Stack::new(vec![Box::<Hold>::default(), Box::<Hold>::default()]);
    stack.send(packet(&[8]), at(0));
    stack.close(at(1));
    assert_eq!(sent(&mut stack), [[8]]);
}

#[test]
fn what_is_left_of_a_layer_that_was_removed_still_passes() {
    let mut stack = Stack::new(vec![Box::<Hold>::default()]);
    stack.send(packet(&[7]), at(0));
    stack.poll(at(10));
    assert!(stack.remove::<Hold>().is_some());
    assert!(!stack.is_empty() && stack.next_deadline(true).is_some(), "a packet waits for the port");
    assert_eq!(sent(&mut stack), [[7]]);
    assert!(stack.is_empty());
}

#[test]
fn a_layer_without_room_stops_the_device() {
    let mut stack = Stack::new(vec![Box::new(Hold { limit: Some(2), ..Hold::default() })]);
    stack.send(packet(&[1]), at(0));
    assert!(stack.has_room());
    stack.send(packet(&[2]), at(0));
    assert!(!stack.has_room());
    stack.poll(at(10));
    assert!(stack.has_room());
}

#[test]
fn what_is_late_because_the_port_is_full_waits_for_room() {
    const PACKETS: usize = 1000;
    let mut stack = Stack::new(vec![Box::<Hold>::default()]);
    for _ in 0..PACKETS {
        stack.send(packet(&[0; 1000]), at(0));
    }
    stack.poll(at(20));
    assert!(!stack.has_room(), "the port has not taken anything");
    let cost_bytes = stack.passing.outgoing.bytes;
    assert!((ROOM_BYTES..ROOM_BYTES + 2000).contains(&cost_bytes), "{cost_bytes}");
    assert_eq!(stack.next_deadline(false), None, "looking again at once would change nothing");
    assert_eq!(stack.next_deadline(true), Some(at(20)));
    let mut count = 0;
    while stack.has_outgoing() {
        count += sent(&mut stack).len();
        stack.poll(at(20));
    }
    assert_eq!((count, stack.next_deadline(true), stack.passing.held_bytes), (PACKETS, None, 0));
}

#[test]
fn what_the_stack_holds_is_bounded() {
    let mut stack = Stack::new(vec![Box::new(Answer(Direction::Incoming, 1))]);
    // The device takes what arrives, and the port cannot send the answers.
    for _ in 0..HELD_BYTES_MAX / PACKET_OVERHEAD_BYTES + 100 {
        arrive(&mut stack, &[0], at(0));
        delivered(&mut stack);
    }
    assert!(stack.dropped() > 0);
    assert!(stack.passing.held_bytes <= HELD_BYTES_MAX);
}
