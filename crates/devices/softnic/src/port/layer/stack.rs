//! The layers of a port, and the packets that move between them.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;

use longhaul_time::Instant;

use super::{Direction, Envelope, Layer, Packet};

/// A layer that passes on what it holds stops when this much waits for the port or for the device.
const ROOM_BYTES: usize = 256 << 10;
/// What the stack holds in all. More is dropped: layers that answer what arrives must not fill the memory while the port cannot
/// send.
const HELD_BYTES_MAX: usize = 64 << 20;
/// What a packet costs besides its bytes.
const PACKET_OVERHEAD_BYTES: usize = 256;
/// How often a packet, and what layers make of it, may move within one call. Two layers that answer each other would never end.
const HOPS_MAX: u32 = 64;

/// The layers of a port. See [`Layer`](super::Layer) for their order.
///
/// Inputs are [`send`](Stack::send), [`arrive`](Stack::arrive), [`poll`](Stack::poll) and [`close`](Stack::close). After any of
/// them take what comes out, with [`take_outgoing`](Stack::take_outgoing) as far as the port has room and with
/// [`take_incoming`](Stack::take_incoming) in full.
#[derive(Default)]
pub struct Stack {
    layers: Vec<Box<dyn Layer>>,
    /// Whether a layer does more than watch.
    takes_packets: bool,
    passing: Passing,
    polled_at: Instant,
}

/// The packets in a stack, but for those that layers hold.
#[derive(Default)]
struct Passing {
    between: VecDeque<Between>,
    outgoing: Waiting,
    incoming: Waiting,
    held_bytes: usize,
    /// A layer has kept back packets for the device since layers were polled last, until those before are taken.
    keeps_back_incoming: Cell<bool>,
    dropped: u64,
}

/// A packet that goes to a layer next.
struct Between {
    packet: Packet,
    direction: Direction,
    layer: usize,
    hops: u32,
}

/// Packets that have passed all layers.
#[derive(Default)]
struct Waiting {
    packets: VecDeque<Packet>,
    bytes: usize,
}

/// Where a layer passes packets on to.
pub struct Onward<'a> {
    passing: &'a mut Passing,
    /// The layer that passes them on.
    layer: usize,
    layer_count: usize,
    hops: u32,
}

impl Stack {
    /// A stack of these layers, the first next to the device. Without layers it costs nothing.
    pub fn new(layers: Vec<Box<dyn Layer>>) -> Stack {
        let mut stack = Stack::default();
        layers.into_iter().for_each(|layer| stack.push(layer));
        stack
    }

    /// Add a layer next to the port.
    pub fn push(&mut self, layer: Box<dyn Layer>) {
        self.takes_packets |= !layer.only_watches();
        self.layers.push(layer);
    }

    /// Whether there are no layers, and nothing is left of those that there were.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty() && self.passing.held_bytes == 0
    }

    /// Whether packets must be handed over, with [`send`](Stack::send). Otherwise [`watch`](Stack::watch) is enough.
    #[inline]
    pub fn takes_packets(&self) -> bool {
        self.takes_packets
    }

    /// Bytes by which all layers together make packets longer, at most.
    pub fn overhead_bytes(&self) -> usize {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.overhead_bytes()))
    }

    /// The layers of one type.
    pub fn layers_mut<T: Layer>(&mut self) -> impl Iterator<Item = &mut T> {
        self.layers.iter_mut().filter_map(|layer| {
            let layer: &mut dyn Any = layer.as_mut();
            layer.downcast_mut()
        })
    }

    /// Remove the first layer of a type. What it holds goes with it.
    pub fn remove<T: Layer>(&mut self) -> Option<Box<T>> {
        let index = self.layers.iter().position(|layer| {
            let layer: &dyn Any = layer.as_ref();
            layer.is::<T>()
        })?;
        let layer: Box<dyn Any> = self.layers.remove(index);
        self.takes_packets = self.layers.iter().any(|layer| !layer.only_watches());
        layer.downcast().ok()
    }

    /// Whether the device may send another packet.
    pub fn has_room(&self) -> bool {
        let have_room = || self.layers.iter().all(|layer| layer.has_room());
        !self.takes_packets || self.passing.has_room(Direction::Outgoing) && have_room()
    }

    /// The device sends a packet, complete with ICRC.
    pub fn send(&mut self, packet: Packet, now: Instant) {
        self.enter(Direction::Outgoing, packet, now);
    }

    /// A packet has arrived. `true` when it goes straight on to the device: then the layers have seen it. Otherwise they have
    /// a copy, and it is dealt with.
    #[inline]
    #[must_use]
    pub fn arrive(&mut self, envelope: &Envelope, datagram: &[u8], now: Instant) -> bool {
        if self.takes_packets {
            let packet = Packet { envelope: *envelope, datagram: datagram.to_vec() };
            self.enter(Direction::Incoming, packet, now);
            return false;
        }
        self.watch(Direction::Incoming, envelope, datagram, now);
        true
    }

    /// A packet has passed that no layer wants for itself.
    pub fn watch(&mut self, direction: Direction, envelope: &Envelope, datagram: &[u8], now: Instant) {
        let mut show = |layer: &mut Box<dyn Layer>| layer.watch(direction, envelope, datagram, now);
        match direction {
            Direction::Outgoing => self.layers.iter_mut().for_each(&mut show),
            Direction::Incoming => self.layers.iter_mut().rev().for_each(&mut show),
        }
    }

    /// Have the layers whose deadline has come do what is due.
    pub fn poll(&mut self, now: Instant) {
        self.polled_at = now;
        self.passing.keeps_back_incoming.set(false);
        let is_due = |layer: &dyn Layer| layer.next_deadline().is_some_and(|deadline| deadline <= now);
        self.for_each(now, |layer, onward| {
            if is_due(layer) {
                layer.poll(now, onward);
            }
        });
    }

    /// The port closes: have the layers let go of what still has to leave. To be called until nothing comes out.
    pub fn close(&mut self, now: Instant) {
        self.for_each(now, |layer, onward| layer.close(now, onward));
    }

    /// When to poll next. A layer that is late because the port has no room waits for room, not for time; `port_has_room` says
    /// whether the port takes packets.
    pub fn next_deadline(&self, port_has_room: bool) -> Option<Instant> {
        let passing = &self.passing;
        let has_incoming = !passing.incoming.packets.is_empty() || passing.keeps_back_incoming.get();
        if has_incoming || port_has_room && self.has_outgoing() {
            return Some(self.polled_at);
        }
        let is_stuck = !passing.has_room(Direction::Outgoing);
        let deadlines = self.layers.iter().filter_map(|layer| layer.next_deadline());
        deadlines.filter(|&deadline| !is_stuck || deadline > self.polled_at).min()
    }

    /// Whether packets wait to be sent.
    pub fn has_outgoing(&self) -> bool {
        !self.passing.outgoing.packets.is_empty()
    }

    /// The next packet to send.
    pub fn take_outgoing(&mut self) -> Option<Packet> {
        self.passing.take(Direction::Outgoing)
    }

    /// The next packet for the device, its ICRC still to be checked.
    pub fn take_incoming(&mut self) -> Option<Packet> {
        self.passing.take(Direction::Incoming)
    }

    /// Packets that were dropped because the stack held too much, or layers kept answering each other.
    pub fn dropped(&self) -> u64 {
        self.passing.dropped
    }

    fn enter(&mut self, direction: Direction, packet: Packet, now: Instant) {
        let layer = match direction {
            Direction::Outgoing => 0,
            Direction::Incoming => self.layers.len().saturating_sub(1),
        };
        self.passing.put(Between { packet, direction, layer, hops: 0 }, self.layers.len());
        self.settle(now);
    }

    fn for_each(&mut self, now: Instant, mut act: impl FnMut(&mut dyn Layer, &mut Onward<'_>)) {
        let layer_count = self.layers.len();
        for index in 0..layer_count {
            let Stack { layers, passing, .. } = self;
            act(layers[index].as_mut(), &mut Onward { passing, layer: index, layer_count, hops: 0 });
            // Before the next layer acts: when closing, it must still be able to forward these packets.
            self.settle(now);
        }
    }

    /// Hand packets to the next layers until all have passed through or are held.
    fn settle(&mut self, now: Instant) {
        let Stack { layers, passing, .. } = self;
        let layer_count = layers.len();
        while let Some(Between { packet, direction, layer, hops }) = passing.between.pop_front() {
            passing.held_bytes -= cost_bytes(&packet);
            let mut onward = Onward { passing, layer, layer_count, hops: hops + 1 };
            layers[layer].handle(direction, packet, now, &mut onward);
        }
    }
}

impl Onward<'_> {
    /// Pass a packet on in the direction that it is going.
    pub fn pass(&mut self, direction: Direction, packet: Packet) {
        let layer = match direction {
            Direction::Outgoing => self.layer + 1,
            // Above the first layer is the device: beyond all layers, as the port is.
            Direction::Incoming => self.layer.checked_sub(1).unwrap_or(self.layer_count),
        };
        self.passing.put(Between { packet, direction, layer, hops: self.hops }, self.layer_count);
    }

    /// Whether there is room for packets that were held, in the direction that they are going.
    pub fn has_room(&self, direction: Direction) -> bool {
        let has_room = self.passing.has_room(direction);
        if !has_room && direction == Direction::Incoming {
            self.passing.keeps_back_incoming.set(true);
        }
        has_room
    }
}

impl Passing {
    fn has_room(&self, direction: Direction) -> bool {
        let other_way_bytes = match direction {
            Direction::Outgoing => self.incoming.bytes,
            Direction::Incoming => self.outgoing.bytes,
        };
        self.held_bytes - other_way_bytes < ROOM_BYTES
    }

    fn waiting_mut(&mut self, direction: Direction) -> &mut Waiting {
        match direction {
            Direction::Outgoing => &mut self.outgoing,
            Direction::Incoming => &mut self.incoming,
        }
    }

    fn put(&mut self, between: Between, layer_count: usize) {
        let bytes = cost_bytes(&between.packet);
        if self.held_bytes + bytes > HELD_BYTES_MAX || between.hops > HOPS_MAX {
            if self.dropped == 0 {
                tracing::warn!(
                    "packets are dropped between the layers of a port: more than {HELD_BYTES_MAX} bytes wait, or layers answer each \
                     other without end"
                );
            }
            self.dropped += 1;
            return;
        }
        self.held_bytes += bytes;
        if between.layer < layer_count {
            self.between.push_back(between);
            return;
        }
        let waiting = self.waiting_mut(between.direction);
        waiting.bytes += bytes;
        waiting.packets.push_back(between.packet);
    }

    fn take(&mut self, direction: Direction) -> Option<Packet> {
        let waiting = self.waiting_mut(direction);
        let packet = waiting.packets.pop_front()?;
        waiting.bytes -= cost_bytes(&packet);
        self.held_bytes -= cost_bytes(&packet);
        Some(packet)
    }
}

fn cost_bytes(packet: &Packet) -> usize {
    packet.datagram.len() + PACKET_OVERHEAD_BYTES
}

#[cfg(test)]
pub(super) mod tests;
