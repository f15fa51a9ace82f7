//! How much may be in flight towards a peer.
//!
//! The window begins with what any socket takes, because the peer's may be much smaller than ours, and doubles with each window
//! of data that is acknowledged up to what the configuration says (slow start: a few round trips). When something is lost it is
//! halved, at most once for all that was in flight at that moment, and from then on it grows by an eighth with each window of data.
//! (By a packet, as TCP's, would take for ever on a busy host: what looks like loss there is a receiver that was kept from its
//! processor for longer than a time-out, several times in a row, and round trips are milliseconds.) A window that is not used does not grow. A peer that says nothing at all is
//! not a narrow path: without a sign of life the window is not halved a second time.
//!
//! A loss on a path to another host says little about the peer's buffer: the path loses packets of its own, and a
//! controller that goes by losses has dealt with it. Halving for each would undo what that controller found. So such
//! losses halve the window only when they are frequent, as they are when too many queue pairs overrun one buffer. The
//! first overrun, which doubling leads to, must not wait for that: there the first loss of a queue pair with a small part
//! of the window halves it. One with a large part has a controller that sends less itself.
//! Time-outs, and losses of queue pairs without such a controller, halve it as on this host.
//!
//! This is not one of the controllers of crate `congestion`, and cannot become one: a controller looks after one flow on one
//! path, from its round trips and delivery rates. This window is the sum over ten thousand flows, of which each may have a
//! controller of its own, and what it guards is not the path but the receive buffer of a socket, which has a size, no
//! delay that anybody could measure, and on this host no rate either. It counts what a packet takes of that buffer, not
//! what it takes of the wire. Both apply: a queue pair sends what its controller and its peer's window allow.

/// A window of fewer packets than this would stop and go.
const WINDOW_PACKETS_MIN: u64 = 8;

/// After a loss a window grows by this part of what is acknowledged.
const GROWTH_DIVISOR: u64 = 8;

/// A window begins with this: an untouched Linux socket takes about 212,992 bytes, bookkeeping included.
const WINDOW_BYTES_FIRST: u64 = 128 << 10;

/// Losses that a controller has dealt with are frequent when they are more than one for each of this many packets
/// acknowledged…
const PACKETS_PER_LOSS: u64 = 16;

/// …by this many losses of full packets: a few in a row are nothing.
const FREQUENT_LOSSES: u64 = 8;

/// A queue pair with less than this part of what is in flight is one of many.
const CROWD: u64 = 8;

/// How much may be in flight: halved on loss, grown with acknowledgements.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) limit_bytes: u64,
    limit_bytes_max: u64,
    limit_bytes_min: u64,
    /// Losses that a controller has dealt with, in bytes of acknowledgements that would make up for them.
    debt_bytes: u64,
    debt_bytes_max: u64,
    /// Nothing was lost so far.
    is_starting: bool,
    /// Of what was in flight at the last halving, what still is. Losses among it are the same event.
    recovering_bytes: u64,
    /// The peer has acknowledged something since the last halving.
    is_alive: bool,
}

impl Window {
    pub(super) fn new(limit_bytes: u64, packet_bytes: u64) -> Self {
        let limit_bytes_min = WINDOW_PACKETS_MIN * packet_bytes;
        let limit_bytes_max = limit_bytes.max(limit_bytes_min);
        Window {
            limit_bytes: WINDOW_BYTES_FIRST.clamp(limit_bytes_min, limit_bytes_max),
            limit_bytes_max,
            limit_bytes_min,
            debt_bytes: 0,
            debt_bytes_max: FREQUENT_LOSSES * PACKETS_PER_LOSS * packet_bytes,
            is_starting: true,
            recovering_bytes: 0,
            is_alive: true,
        }
    }

    pub(super) fn on_loss(&mut self, in_flight_bytes: u64) {
        if self.recovering_bytes > 0 || !self.is_alive {
            return;
        }
        self.limit_bytes = (self.limit_bytes / 2).max(self.limit_bytes_min);
        self.is_starting = false;
        self.recovering_bytes = in_flight_bytes;
        self.is_alive = false;
    }

    /// Packets of this many bytes together were lost of a queue pair's `own_bytes` in flight, and its controller has dealt
    /// with that.
    pub(super) fn on_controlled_loss(&mut self, lost_bytes: u64, own_bytes: u64, in_flight_bytes: u64) {
        self.debt_bytes += PACKETS_PER_LOSS * lost_bytes;
        let is_first_overrun = self.is_starting && own_bytes < in_flight_bytes / CROWD;
        if self.debt_bytes > self.debt_bytes_max || is_first_overrun {
            self.debt_bytes = 0;
            self.on_loss(in_flight_bytes);
        }
    }

    pub(super) fn on_acknowledged(&mut self, bytes: u64, in_flight_bytes: u64) {
        self.is_alive = true;
        self.debt_bytes = self.debt_bytes.saturating_sub(bytes);
        let is_used = in_flight_bytes >= self.limit_bytes / 2;
        if self.recovering_bytes > 0 || self.limit_bytes == self.limit_bytes_max || !is_used {
            return;
        }
        let growth_bytes = if self.is_starting { bytes } else { bytes / GROWTH_DIVISOR };
        self.limit_bytes = (self.limit_bytes + growth_bytes).min(self.limit_bytes_max);
    }

    /// So much is no longer in flight, for whatever reason.
    pub(super) fn on_left(&mut self, bytes: u64) {
        self.recovering_bytes = self.recovering_bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: u64 = 1000;

    /// A window that has grown to its most.
    fn grown(limit_bytes: u64) -> Window {
        let mut window = Window::new(limit_bytes, PACKET);
        window.on_acknowledged(limit_bytes, limit_bytes);
        assert_eq!(window.limit_bytes, limit_bytes);
        window
    }

    #[test]
    fn a_window_starts_small_and_doubles_while_it_is_used() {
        let mut window = Window::new(10 * WINDOW_BYTES_FIRST, PACKET);
        window.on_acknowledged(WINDOW_BYTES_FIRST, PACKET);
        assert_eq!(window.limit_bytes, WINDOW_BYTES_FIRST, "it was not used");
        let mut grow = || {
            window.on_acknowledged(window.limit_bytes, window.limit_bytes);
            window.limit_bytes / WINDOW_BYTES_FIRST
        };
        assert_eq!([grow(), grow(), grow(), grow(), grow()], [2, 4, 8, 10, 10]);
    }

    #[test]
    fn losses_of_one_flight_halve_once() {
        let mut window = grown(200 * PACKET);
        window.on_loss(200 * PACKET);
        assert_eq!(window.limit_bytes, 100 * PACKET);
        for _ in 0..199 {
            window.on_left(PACKET);
            window.on_acknowledged(PACKET, 100 * PACKET);
            window.on_loss(100 * PACKET);
        }
        assert_eq!(window.limit_bytes, 100 * PACKET, "all of it was in flight at the first loss");
        window.on_left(PACKET);
        window.on_loss(100 * PACKET);
        assert_eq!(window.limit_bytes, 50 * PACKET);
    }

    #[test]
    fn only_frequent_losses_count_when_a_controller_has_dealt_with_them() {
        let lose = |window: &mut Window, acknowledged_packets: u64| {
            for _ in 0..200 {
                window.on_acknowledged(acknowledged_packets * PACKET, 200 * PACKET);
                window.on_controlled_loss(PACKET, 200 * PACKET, 200 * PACKET);
                window.on_left(200 * PACKET);
            }
        };
        let mut window = grown(200 * PACKET);
        lose(&mut window, 20);
        assert_eq!(window.limit_bytes, 200 * PACKET, "a path that loses one packet of twenty");
        lose(&mut window, 4);
        assert!(window.limit_bytes < 2 * WINDOW_PACKETS_MIN * PACKET, "a buffer that loses one packet of four");
    }

    #[test]
    fn a_few_controlled_losses_in_a_row_do_not_halve() {
        let mut window = grown(200 * PACKET);
        let lose = |window: &mut Window| window.on_controlled_loss(PACKET, 200 * PACKET, 200 * PACKET);
        (0..FREQUENT_LOSSES).for_each(|_| lose(&mut window));
        assert_eq!(window.limit_bytes, 200 * PACKET);
        lose(&mut window);
        assert_eq!(window.limit_bytes, 100 * PACKET);
        (0..100).for_each(|_| lose(&mut window));
        assert_eq!(window.limit_bytes, 100 * PACKET, "losses of one flight");
    }

    #[test]
    fn the_first_loss_of_one_of_many_ends_doubling() {
        let mut window = grown(200 * PACKET);
        window.on_controlled_loss(PACKET, 10 * PACKET, 200 * PACKET);
        assert_eq!(window.limit_bytes, 100 * PACKET);
        window.on_left(200 * PACKET);
        window.on_acknowledged(PACKET, 0);
        window.on_controlled_loss(PACKET, 10 * PACKET, 100 * PACKET);
        assert_eq!(window.limit_bytes, 100 * PACKET, "from then on only frequent losses count");
    }

    #[test]
    fn silence_halves_once_and_nothing_closes_the_window() {
        let mut window = grown(200 * PACKET);
        for _ in 0..10 {
            window.on_loss(PACKET);
            window.on_left(PACKET);
        }
        assert_eq!(window.limit_bytes, 100 * PACKET);
        for _ in 0..10 {
            window.on_acknowledged(1, PACKET);
            window.on_loss(PACKET);
            window.on_left(PACKET);
        }
        assert_eq!(window.limit_bytes, WINDOW_PACKETS_MIN * PACKET);
    }

    #[test]
    fn after_a_loss_a_window_grows_by_an_eighth_for_each_window() {
        let mut window = grown(200 * PACKET);
        window.on_loss(0);
        let mut acknowledge = |packets: u64| {
            (0..packets).for_each(|_| window.on_acknowledged(PACKET, window.limit_bytes));
            window.limit_bytes / PACKET
        };
        assert_eq!(acknowledge(100), 112);
        assert_eq!(acknowledge(112), 126);
        assert_eq!(acknowledge(1000), 200, "and not beyond what it was made with");
    }

    #[test]
    fn a_window_takes_some_packets_whatever_was_asked_for() {
        assert_eq!(Window::new(0, PACKET).limit_bytes, WINDOW_PACKETS_MIN * PACKET);
    }
}
