//! A node that forwards.

use longhaul_time::Instant;

use crate::frame::Frame;
use crate::network::NodeIo;
use crate::node::Node;

/// Forwards each frame to the port that a function of the caller names, and to all others if it names none.
///
/// It holds no queue of its own: frames queue where they leave, in the links' directions away from the switch, as in a
/// switch with output queues. It learns nothing: the function knows the addresses, the switch does not.
pub struct Switch<F: FnMut(&Frame) -> Option<usize>> {
    route: F,
    /// Frames sent to the port that the function named.
    pub forwarded: u64,
    /// Frames sent to every other port.
    pub flooded: u64,
}

impl<F: FnMut(&Frame) -> Option<usize>> Switch<F> {
    /// A switch that asks `route` for the port of each frame.
    pub fn new(route: F) -> Self {
        Switch { route, forwarded: 0, flooded: 0 }
    }
}

impl<F: FnMut(&Frame) -> Option<usize>> Node for Switch<F> {
    fn handle(&mut self, link_port: usize, frame: Frame, _now: Instant, io: &mut NodeIo<'_>) {
        if let Some(port) = (self.route)(&frame) {
            self.forwarded += 1;
            io.send(port, frame);
            return;
        }
        self.flooded += 1;
        for port in (0..io.port_count()).filter(|&port| port != link_port) {
            if io.is_connected(port) {
                let copy = io.copy(&frame);
                io.send(port, copy);
            }
        }
        io.recycle(frame);
    }

    fn poll(&mut self, _now: Instant, _io: &mut NodeIo<'_>) {}

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}
