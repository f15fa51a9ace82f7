//! Layers: what stands between a device and its port, and sees every packet complete.
//!
//! A packet is complete when its ICRC is in it: addresses, ports, traffic class, and everything from BTH to ICRC. Packets
//! going out pass the layers from the first to the last, packets coming in from the last to the first:
//!
//! ```text
//!   device ─▶ port completes it (ICRC) ─▶ layer 0 ─▶ … ─▶ layer n-1 ─▶ port sends it ═══ network
//!   device ◀─ port checks the ICRC ◀───── layer 0 ◀─ … ◀─ layer n-1 ◀─ port receives it ═══ network
//! ```
//!
//! A layer may pass a packet on, change it, hold it, drop it, or add others, in either direction. So forward error correction
//! restores packets before anybody misses them, and what it restores is checked as if it had arrived. The layers of a device
//! on sockets, first to last, are: those that it was opened with, forward error correction, the impairment of what is sent, the
//! capture, the impairment of what arrives. The capture thus shows both directions after the bad network has had its way with them.
//!
//! A layer is driven, like everything else here: time is an argument, and there is no clock, socket or thread in it. It runs on
//! virtual time as on real time ([`Port`](crate::Port)).

mod impairment;
mod shim;
mod stack;

use std::any::Any;

use longhaul_time::Instant;

pub use impairment::{Impair, ImpairmentLayer};
pub use longhaul_datagram::{Direction, Envelope, Packet};
pub use shim::ShimLayer;
pub use stack::{Onward, Stack};

/// Something that sees the packets of a port, in both directions.
///
/// Inputs are [`handle`](Layer::handle), [`poll`](Layer::poll) and [`close`](Layer::close); what a layer passes on goes
/// through [`Onward`]. What it holds must be bounded.
pub trait Layer: Any + Send {
    /// A packet passes. Pass it on, changed or not, now or later, alone or with others; or drop it. A layer that
    /// [only watches](Layer::only_watches) need not have this.
    fn handle(&mut self, direction: Direction, packet: Packet, now: Instant, onward: &mut Onward<'_>) {
        self.watch(direction, &packet.envelope, &packet.datagram, now);
        onward.pass(direction, packet);
    }

    /// A packet passes and goes on as it is.
    fn watch(&mut self, _direction: Direction, _envelope: &Envelope, _datagram: &[u8], _now: Instant) {}

    /// Whether the layer looks at packets and does nothing else. If every layer only watches, packets are sent in the same
    /// batches as without layers, so nothing changes on the wire. Nothing is received in place.
    fn only_watches(&self) -> bool {
        false
    }

    /// The deadline has come. Stop passing packets on when [`Onward::has_room`] says `false`; there will be another call.
    fn poll(&mut self, _now: Instant, _onward: &mut Onward<'_>) {}

    /// When `poll` is wanted next.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// The port closes: pass on what is held and still has to leave, as in [`poll`](Layer::poll). Called until nothing comes.
    fn close(&mut self, _now: Instant, _onward: &mut Onward<'_>) {}

    /// Whether the layer takes another packet from the device. While it does not, the device waits.
    fn has_room(&self) -> bool {
        true
    }

    /// Bytes by which packets grow here, at most. The device offers an MTU that leaves room for them.
    fn overhead_bytes(&self) -> usize {
        0
    }
}
