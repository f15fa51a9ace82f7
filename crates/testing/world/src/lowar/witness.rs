//! What passes the receiver, and when.

use longhaul_softnic::{Direction, Envelope, Layer};
use longhaul_time::Instant;
use longhaul_wire::bth::Bth;
use longhaul_wire::repair;

/// What passed, in order.
#[derive(Default)]
pub(super) struct Witness {
    /// Each data packet's PSN, or nothing for a repair packet, and when it passed.
    pub(super) passed: Vec<(Option<u32>, Instant)>,
}

impl Layer for Witness {
    fn watch(&mut self, direction: Direction, _envelope: &Envelope, datagram: &[u8], now: Instant) {
        let Ok(bth) = Bth::new_checked(datagram) else { return };
        if direction == Direction::Incoming {
            let psn = (!repair::is_repair(datagram)).then(|| bth.psn().value());
            self.passed.push((psn, now));
        }
    }

    fn only_watches(&self) -> bool {
        true
    }
}
