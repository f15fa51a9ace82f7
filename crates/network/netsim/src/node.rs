//! What a simulation drives.

use longhaul_time::Instant;

use crate::frame::Frame;
use crate::network::NodeIo;

/// A driven object with ports.
///
/// The contract: the simulator calls [`handle`](Node::handle) for each frame that arrives, and
/// [`poll`](Node::poll) when [`next_deadline`](Node::next_deadline) has come or somebody outside said
/// [`wake`](crate::Simulation::wake). It asks for the deadline after each of these calls, and at no other time; a
/// deadline in the past means now. A node with nothing to do says `None` and costs nothing.
///
/// A node that merely stores frames in `handle` and works in `poll` names `now` as its deadline: it is then polled
/// once, after all frames that had been announced for the same instant before the first of them arrived.
pub trait Node {
    /// A frame arrives at a port. The buffer is the node's; give it back with [`NodeIo::recycle`] when done.
    fn handle(&mut self, link_port: usize, frame: Frame, now: Instant, io: &mut NodeIo<'_>);

    /// The deadline has come, or the node was woken.
    fn poll(&mut self, now: Instant, io: &mut NodeIo<'_>);

    /// When `poll` is wanted next.
    fn next_deadline(&self) -> Option<Instant>;
}

/// Lets a simulation hold nodes of different types: `Simulation<Box<dyn Node>>`. An enum of them is faster and keeps
/// their types.
impl<N: Node + ?Sized> Node for Box<N> {
    fn handle(&mut self, link_port: usize, frame: Frame, now: Instant, io: &mut NodeIo<'_>) {
        (**self).handle(link_port, frame, now, io);
    }

    fn poll(&mut self, now: Instant, io: &mut NodeIo<'_>) {
        (**self).poll(now, io);
    }

    fn next_deadline(&self) -> Option<Instant> {
        (**self).next_deadline()
    }
}
