//! A port with layers in front of it, as the device sees it.
//!
//! ```text
//!   Nic ─▶ Layered ─┬─ no layer wants packets: Port::transmit, in batches ──────────────┬─▶ network
//!                   └─ Port::complete ─▶ Stack::send ─▶ … ─▶ take_outgoing ─▶ Port::send ─┘
//!
//!   Nic ◀──┬─ Port::receive, in place if there are no layers ◀─────────────┬── network
//!          └─ Port::check ◀─ take_incoming ◀─ … ◀─ Stack::arrive ◀─ Port::receive ─┘
//! ```
//!
//! The driver of a device makes a [`Layered`] for each step: [`receive`](Layered::receive) for what has arrived and
//! what layers have let go of, then [`transmit_from`](Layered::transmit_from), and
//! [`next_deadline`](Layered::next_deadline) to know when to come back.

use longhaul_time::Instant;

use super::Port;
use super::datagram::{Outgoing, TransmitSink};
use super::layer::Stack;
use super::route::Route;
use crate::nic::guard::NicGuard;

/// What the device may hand to the layers in one step, before arrivals are looked at again.
const STEP_BYTES: usize = 256 << 10;
/// Rounds when closing, at most: more than layers need for what they may hold. A layer that always has something to send must not block it.
const CLOSING_ROUNDS_MAX: usize = 8192;

/// Why the device is asked for what it has to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// Time has passed or something has arrived.
    Step,
    /// A program has just posted.
    Post,
    /// The same, and answers to peers can wait.
    PostOnly,
}

/// A port, its layers, and the time. Made for each step.
pub struct Layered<'a, P> {
    port: &'a mut P,
    stack: &'a mut Stack,
    now: Instant,
    /// What the device has handed to the layers.
    entered_bytes: usize,
}

impl<'a, P: Port> Layered<'a, P> {
    /// A port and the layers in front of it, now.
    pub fn new(port: &'a mut P, stack: &'a mut Stack, now: Instant) -> Self {
        Layered { port, stack, now, entered_bytes: 0 }
    }

    /// Take what has arrived, and what layers have held until now, and hand it to the device. With `until_completion`
    /// it may stop when there is a completion: then looking for more only delays the thread that waits for one. Whether
    /// there may be more.
    pub fn receive(&mut self, nic: &mut NicGuard<'_>, until_completion: bool) -> bool {
        let mut has_more = self.port.receive(self.stack, nic, self.now, until_completion);
        if !self.stack.is_empty() {
            self.stack.poll(self.now);
            while let Some(packet) = self.stack.take_incoming() {
                self.port.check(&packet, nic, self.now);
            }
            // A layer has held more than goes in one step.
            has_more |= self.stack.next_deadline(false).is_some_and(|deadline| deadline <= self.now);
        }
        nic.note_arrivals_left(has_more, self.now);
        has_more
    }

    /// Have the device send as much as one step allows. Whether there is more.
    pub fn transmit_from(&mut self, nic: &mut NicGuard<'_>, occasion: Occasion) -> bool {
        self.port.begin_step(self.stack, self.now);
        if !self.stack.is_empty() {
            // What waits goes first, and makes room for the device.
            self.send_waiting();
        }
        match occasion {
            Occasion::Step => nic.poll(self.now, self),
            Occasion::Post => nic.poll_after_post(self.now, self, true),
            Occasion::PostOnly => nic.poll_after_post(self.now, self, false),
        }
        if self.stack.is_empty() {
            return nic.has_output() && !self.port.is_full();
        }
        self.stack.poll(self.now);
        self.send_waiting();
        let has_more = nic.has_output() && self.stack.has_room() || self.stack.has_outgoing();
        has_more && !self.port.is_full()
    }

    /// When to come back, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.stack.is_empty() {
            return self.port.next_deadline();
        }
        Instant::earlier_of(self.port.next_deadline(), self.stack.next_deadline(!self.port.is_full()))
    }

    /// Send everything that layers hold and that still has to leave, as far as the port takes it. Nothing is sent afterwards.
    pub fn close(&mut self) {
        for _ in 0..CLOSING_ROUNDS_MAX {
            // What the port has not taken yet it may take now: nobody comes back to see.
            let now = self.port.next_deadline().map_or(self.now, |deadline| deadline.max(self.now));
            self.port.begin_step(self.stack, now);
            self.stack.close(now);
            if !self.send_waiting() {
                return;
            }
        }
        tracing::warn!("a layer that closes sends packets without end; the rest of them are dropped");
    }

    /// Send what has passed the layers, as far as the port has room. Whether anything was sent.
    fn send_waiting(&mut self) -> bool {
        let mut has_sent = false;
        while self.port.has_room()
            && let Some(packet) = self.stack.take_outgoing()
        {
            self.port.send(packet);
            has_sent = true;
        }
        has_sent
    }
}

impl<P: Port> TransmitSink for Layered<'_, P> {
    fn has_room(&self) -> bool {
        match self.stack.takes_packets() {
            // What layers have passed on before counts for the port's step, not for the device's.
            true => !self.port.is_full() && self.entered_bytes < STEP_BYTES && self.stack.has_room(),
            false => self.port.has_room(),
        }
    }

    fn transmit(&mut self, route: &Route, datagram: &Outgoing<'_>) {
        if !self.stack.takes_packets() {
            self.port.transmit(route, datagram, self.stack);
        } else if let Some(packet) = self.port.complete(route, datagram) {
            self.entered_bytes += packet.datagram.len();
            self.stack.send(packet, self.now);
            // At once, so that the device stops as soon as the port is full. What would wait here has passed the layers: to them the
            // flow would seem idle until it has left.
            self.send_waiting();
        }
    }

    fn flush(&mut self) {
        self.port.flush(self.stack);
        self.send_waiting();
    }
}
