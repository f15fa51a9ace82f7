//! Where packets leave and arrive.
//!
//! The device hands over and takes in datagrams: BTH to ICRC, the payload of a UDP packet. Addresses, the IP header
//! and the ICRC (which covers fields of the IP header that only the port knows) are the port's:
//!
//! ```text
//!   Nic::poll ──▶ TransmitSink::transmit ──▶ port adds the ICRC ══ network ══ port checks the ICRC ──▶ Nic::handle
//! ```
//!
//! Between the device and its port may stand [`Layer`](crate::Layer)s, which see packets complete with ICRC. [`Layered`](crate::Layered) puts
//! the three together, so that every [`Port`] carries every layer: [`TransmitSink`] above it, the port below.

mod datagram;
pub(crate) mod layer;
pub(crate) mod layered;
mod route;

use longhaul_time::Instant;

pub use datagram::{Outgoing, OutgoingPayload, Received, TransmitSink};
pub use layer::{Direction, Envelope, Impair, ImpairmentLayer, Layer, Onward, Packet, ShimLayer, Stack};
pub use route::Route;

use crate::nic::guard::NicGuard;

/// What carries packets: UDP sockets, a simulated wire, later raw frames. [`Layered`](crate::Layered) drives it.
///
/// A port has two paths. Datagrams that no layer wants for itself take the fast one, [`transmit`](Port::transmit)
/// and [`receive`](Port::receive), in batches and in place as far as the port can. Layers work on whole packets, which take the
/// other one: [`complete`](Port::complete) and [`send`](Port::send) outbound, [`check`](Port::check) inbound.
pub trait Port {
    /// Begin to send, now, after whatever has been left from before.
    fn begin_step(&mut self, stack: &mut Stack, now: Instant);

    /// Whether there is room for another datagram in this step.
    fn has_room(&self) -> bool;

    /// Whether there is no room whatever the step: it will be there when [`next_deadline`](Port::next_deadline) has come.
    fn is_full(&self) -> bool;

    /// As [`TransmitSink::transmit`], for datagrams that layers at most watch.
    fn transmit(&mut self, route: &Route, datagram: &Outgoing<'_>, stack: &mut Stack);

    /// As [`TransmitSink::flush`].
    fn flush(&mut self, stack: &mut Stack);

    /// Make a datagram a complete packet. `None` when it cannot be sent.
    fn complete(&mut self, route: &Route, datagram: &Outgoing<'_>) -> Option<Packet>;

    /// Send a packet that has passed the layers, as it is.
    fn send(&mut self, packet: Packet);

    /// Take what has arrived, show it to the layers ([`Stack::arrive`]), and hand to the device what goes straight on, its ICRC
    /// checked. May stop when there is a completion, if `until_completion`. Whether there may be more.
    fn receive(&mut self, stack: &mut Stack, nic: &mut NicGuard<'_>, now: Instant, until_completion: bool) -> bool;

    /// Check the ICRC of a packet that has passed the layers, and hand it to the device.
    fn check(&mut self, packet: &Packet, nic: &mut NicGuard<'_>, now: Instant);

    /// When to come back, if nothing happens before.
    fn next_deadline(&self) -> Option<Instant>;
}
