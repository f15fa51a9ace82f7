//! `credit`: for fan-in to one host. The receiver grants its senders credit in turn; nobody sends without it.
//!
//! In the manner of EQDS (Olteanu et al., An edge-queued datagram service for all datacenter traffic, NSDI 2022): queues
//! stay at the senders, and the receiver's port, or its socket buffer, gets no more than it can take, however many send.
//!
//! ```text
//!  sender                                              receiver
//!  ── first window, without credit ──────────────────▶
//!  ── announcement: how much more it wants ──────────▶ Receiver: senders in turn, just under line rate,
//!  ◀───────────────────────────────────────── credit ──           at most a bandwidth-delay product outstanding
//!  ── as many bytes as it has credit for ────────────▶ what arrives makes room for more
//! ```
//!
//! This is the sender's half; the receiver's is [`Receiver`]. One serves all senders of a host.
//!
//! What differs from EQDS:
//!
//! - Switches do not trim packets. What is lost of the first window is known late, and many senders that begin at once
//!   lose most of it. So the first window is ten packets at most, not a bandwidth-delay product, and a sender that hears
//!   nothing announces again, less and less often, in the place of EQDS's request to send.
//! - A connection has one first window. After a pause it announces, and waits a round trip for credit.
//! - An announcement names everything that the sender has, not a bandwidth-delay product of it: it is repeated only when
//!   that changes.
//! - Data packets carry no count of credit. Lost packets have used credit; senders announce how much. What was granted
//!   and neither has arrived nor is announced as lost within four round trips is written off: the grant was lost, or the
//!   sender had nothing to send. A sender drops credit that it has not used within four round trips, too. As long as
//!   something arrives, the receiver also waits for what was outstanding before: its line may be slower than it knows.
//! - Senders have different round trips. What one has outstanding counts as a share of its own bandwidth-delay product,
//!   and the shares of all are one at most: a far sender is no reason for near ones to fill a queue.
//! - A sender that has sent nothing yet has a quarter of that at most, and as much more as has arrived from it: one
//!   that takes credit and sends nothing leaves most of it to the others.
//! - Grants are bytes to add, not a running total. A grant that is lost is written off as lost packets are. (On real
//!   connections they are counted from the beginning on the wire, see `longhaul_wire::control`.)
//! - A sender that is granted credit and sends nothing loses its turn until it announces again.
//! - A grant is a sixteenth of the bandwidth-delay product, but one packet at least and 64 KiB at most: fewer messages
//!   than one for each packet.
//! - There is no control for congestion inside the fabric: the receiver's port is taken for the bottleneck.

mod receiver;

use longhaul_time::{Duration, Instant};

use crate::controller::{Announcement, Controller, PathFacts, Sample};

pub use receiver::{Grant, Receiver, ReceiverLimits, Standing};

/// The first window is no longer than this.
const FIRST_PACKETS: u64 = 10;
/// Round trips after which credit is neither used nor believed in any more.
const PATIENCE_ROUND_TRIPS: u32 = 4;
/// When nothing has measured it.
const ROUND_TRIP: Duration = Duration::from_micros(100);
/// Announcements of one sender are repeated at intervals that double up to this often.
const DOUBLINGS: u32 = 6;

/// The controller `credit`: the sender's half.
#[derive(Clone, Debug)]
pub struct Credit {
    packet_bytes: u64,
    line: Option<u64>,
    burst: Duration,
    round_trip: Duration,
    /// What patience and gap are at least, whatever the round trip is.
    patience_min: Duration,
    gap_min: Duration,
    in_flight_bytes: u64,
    sent_bytes: u64,
    lost_bytes: u64,
    /// To be sent, without what is sent already.
    backlog_bytes: u64,
    credit_bytes: u64,
    /// All that was ever granted, as far as it has come.
    received_bytes: u64,
    credited_at: Option<Instant>,
    /// What is left of the first window, and what was sent of it.
    first_bytes: u64,
    uncredited_bytes: u64,
    announced_at: Option<Instant>,
    /// What the receiver believes that this sender wants.
    announced_bytes: u64,
    announced_lost_bytes: u64,
    /// Announcements in a row that brought no credit.
    repeated: u32,
}

impl Credit {
    /// With its first window.
    pub fn new(facts: &PathFacts) -> Self {
        let packet_bytes = u64::from(facts.packet_bytes.max(1));
        let round_trip = facts.round_trip.unwrap_or(ROUND_TRIP);
        let product = facts.line_bits_per_second.map(|line| (line as f64 / 8.0 * round_trip.as_secs_f64()) as u64);
        let first_max = FIRST_PACKETS * packet_bytes;
        Credit {
            packet_bytes,
            line: facts.line_bits_per_second,
            burst: facts.fabric_burst(),
            round_trip,
            patience_min: Duration::ZERO,
            gap_min: Duration::ZERO,
            in_flight_bytes: 0,
            sent_bytes: 0,
            lost_bytes: 0,
            backlog_bytes: 0,
            credit_bytes: 0,
            received_bytes: 0,
            credited_at: None,
            first_bytes: product.map_or(first_max, |product| product.clamp(packet_bytes, first_max)),
            uncredited_bytes: 0,
            announced_at: None,
            announced_bytes: 0,
            announced_lost_bytes: 0,
            repeated: 0,
        }
    }

    /// The same, on hosts: credit lives for this long at least, and announcements are at least this far apart. Threads are
    /// woken late, and a message costs as much as a packet.
    pub fn with_patience_min(mut self, patience: Duration, gap: Duration) -> Self {
        (self.patience_min, self.gap_min) = (patience, gap);
        self
    }

    /// How long credit lives, and how long until the first repetition of an announcement.
    fn patience(&self) -> Duration {
        (PATIENCE_ROUND_TRIPS * self.round_trip).max(self.patience_min)
    }

    /// Announcements are no closer together than this.
    fn gap(&self) -> Duration {
        (self.round_trip / 4).max(self.gap_min)
    }

    fn room_bytes(&self) -> u64 {
        self.credit_bytes.saturating_add(self.first_bytes)
    }

    /// What it needs more credit for.
    fn wanted_bytes(&self) -> u64 {
        self.backlog_bytes.saturating_sub(self.room_bytes())
    }

    fn expires_at(&self) -> Option<Instant> {
        // Less than a packet cannot be used up, and would be lost again and again.
        let is_usable = self.credit_bytes >= self.packet_bytes || (self.credit_bytes > 0 && self.wanted_bytes() == 0);
        self.credited_at.filter(|_| is_usable).map(|at| at + self.patience())
    }

    fn has_news(&self) -> bool {
        self.wanted_bytes() != self.announced_bytes || self.lost_bytes != self.announced_lost_bytes
    }

    /// When the next announcement is due.
    fn announces_at(&self) -> Option<Instant> {
        let news = self.has_news().then(|| self.announced_at.map_or(Instant::ZERO, |at| at + self.gap()));
        let is_starved = self.wanted_bytes() > 0 && self.room_bytes() < self.packet_bytes;
        let heard_at = self.announced_at.max(self.credited_at);
        let repetition = heard_at.filter(|_| is_starved).map(|at| at + self.patience() * (1 << self.repeated));
        Instant::earlier_of(news, repetition)
    }
}

impl Controller for Credit {
    fn on_sent(&mut self, _now: Instant, bytes: u64, in_flight_bytes: u64) {
        self.in_flight_bytes = in_flight_bytes;
        self.sent_bytes += bytes;
        self.backlog_bytes = self.backlog_bytes.saturating_sub(bytes);
        let credited = bytes.min(self.credit_bytes);
        self.credit_bytes -= credited;
        self.first_bytes = self.first_bytes.saturating_sub(bytes - credited);
        self.uncredited_bytes += bytes - credited;
    }

    fn on_sample(&mut self, sample: &Sample) {
        self.in_flight_bytes = sample.in_flight_bytes;
        self.lost_bytes = self.sent_bytes.saturating_sub(sample.in_flight_bytes + sample.delivered_bytes_total);
        // Other messages than reports of data come before anything was sent.
        if sample.delivered_packets > 0 || sample.lost_packets > 0 {
            self.first_bytes = 0;
        }
    }

    fn on_timeout(&mut self, _now: Instant) {
        self.first_bytes = 0;
    }

    fn on_round_trip(&mut self, least: Duration) {
        // The first may have been measured while a host stood still.
        self.round_trip = least;
    }

    fn on_credit(&mut self, now: Instant, bytes: u64) {
        self.on_deadline(now);
        self.first_bytes = 0;
        self.credit_bytes = self.credit_bytes.saturating_add(bytes);
        self.received_bytes = self.received_bytes.saturating_add(bytes);
        self.announced_bytes = self.announced_bytes.saturating_sub(bytes);
        self.credited_at = Some(now);
        self.repeated = 0;
    }

    fn on_backlog(&mut self, _now: Instant, bytes: u64) {
        self.backlog_bytes = bytes;
    }

    fn announcement(&mut self, now: Instant) -> Option<Announcement> {
        if self.announces_at().is_none_or(|at| now < at) {
            return None;
        }
        let wanted_bytes = self.wanted_bytes();
        if !self.has_news() {
            self.repeated = (self.repeated + 1).min(DOUBLINGS);
        }
        self.announced_at = Some(now);
        (self.announced_bytes, self.announced_lost_bytes) = (wanted_bytes, self.lost_bytes);
        let uncredited_bytes = self.uncredited_bytes + self.first_bytes.min(self.backlog_bytes);
        let (received_bytes, lost_bytes) = (self.received_bytes, self.lost_bytes);
        Some(Announcement { wanted_bytes, received_bytes, uncredited_bytes, lost_bytes })
    }

    fn next_deadline(&self) -> Option<Instant> {
        Instant::earlier_of(self.expires_at(), self.announces_at())
    }

    fn on_deadline(&mut self, now: Instant) {
        if self.expires_at().is_some_and(|at| now >= at) {
            self.credit_bytes = 0;
        }
    }

    fn window_bytes(&self) -> u64 {
        self.in_flight_bytes.saturating_add(self.room_bytes())
    }

    fn bits_per_second(&self) -> Option<u64> {
        self.line
    }

    fn burst(&self) -> Duration {
        self.burst
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Flow;
    use crate::sampler::Arrivals;

    const PACKET: u64 = 1000;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// 8 Gbit/s and 20 µs are 20 packets of 1,000 bytes.
    fn facts() -> PathFacts {
        PathFacts {
            packet_bytes: PACKET as u32,
            round_trip: Some(Duration::from_micros(20)),
            line_bits_per_second: Some(8_000_000_000),
            seed: 1,
        }
    }

    #[test]
    fn the_first_window_is_ten_packets_and_ends_with_the_first_report() {
        let mut flow = Flow::with_controller(Box::new(Credit::new(&facts())), &facts());
        flow.on_backlog(at(0), 100 * PACKET);
        let announcement = flow.announcement(at(0)).expect("it wants more than it may send");
        let expected =
            Announcement { wanted_bytes: 90 * PACKET, received_bytes: 0, uncredited_bytes: 10 * PACKET, lost_bytes: 0 };
        assert_eq!(announcement, expected);
        assert_eq!(flow.announcement(at(0)), None, "once");
        assert_eq!(flow.window_room_bytes(), 10 * PACKET);
        flow.on_sent(at(0), 6, 6 * PACKET);
        let arrivals = Arrivals { packets: 1, newest: Some(0), ..Arrivals::default() };
        flow.on_report(at(20), &arrivals, Duration::from_millis(1));
        assert_eq!(flow.window_room_bytes(), 0);
        let announcement = flow.announcement(at(20)).expect("four packets of the first window are wanted, too");
        assert_eq!((announcement.wanted_bytes, announcement.uncredited_bytes), (94 * PACKET, 6 * PACKET));
    }

    #[test]
    fn the_first_window_is_no_longer_than_the_bandwidth_delay_product() {
        let line_bits_per_second = Some(1_600_000_000);
        assert_eq!(Credit::new(&PathFacts { line_bits_per_second, ..facts() }).window_bytes(), 4 * PACKET);
        assert_eq!(Credit::new(&PathFacts { line_bits_per_second: None, ..facts() }).window_bytes(), 10 * PACKET);
    }

    #[test]
    fn a_byte_of_credit_is_a_byte_sent() {
        let mut flow = Flow::with_controller(Box::new(Credit::new(&facts())), &facts());
        flow.on_backlog(at(0), 100 * PACKET);
        flow.announcement(at(0));
        flow.on_credit(at(5), 3 * PACKET);
        assert_eq!(flow.window_room_bytes(), 3 * PACKET, "the first window ends with credit");
        flow.on_sent(at(5), 2, 2 * PACKET);
        assert_eq!(flow.window_room_bytes(), PACKET);
        flow.on_credit(at(6), 5 * PACKET);
        assert_eq!(flow.window_room_bytes(), 6 * PACKET);
        let arrivals = Arrivals { packets: 2, newest: Some(1), ..Arrivals::default() };
        flow.on_report(at(25), &arrivals, Duration::from_millis(1));
        assert_eq!(flow.window_room_bytes(), 6 * PACKET, "what arrives is no credit");
    }

    #[test]
    fn a_starved_sender_announces_again_and_ever_less_often() {
        let mut sender = Credit::new(&facts());
        sender.on_backlog(at(0), 100 * PACKET);
        sender.announcement(at(0)).expect("the first");
        sender.on_sent(at(0), 10 * PACKET, 10 * PACKET);
        let mut times = Vec::new();
        while times.len() < 9 {
            let due = sender.next_deadline().expect("it waits");
            sender.on_deadline(due);
            let announcement = sender.announcement(due).expect("due");
            assert_eq!(announcement.wanted_bytes, 90 * PACKET);
            times.push(due.as_nanos() / 1000);
        }
        assert_eq!(times[..4], [80, 240, 560, 1200]);
        assert_eq!(times[8] - times[7], 80 << 6, "no further apart than that");
        sender.on_credit(at(90_000), PACKET);
        sender.on_sent(at(90_000), PACKET, PACKET);
        assert_eq!(sender.next_deadline(), Some(at(90_080)), "from the beginning");
    }

    #[test]
    fn losses_are_announced() {
        let mut flow = Flow::with_controller(Box::new(Credit::new(&facts())), &facts());
        flow.on_backlog(at(0), 10 * PACKET);
        flow.on_sent(at(0), 10, 10 * PACKET);
        flow.on_left(at(0), 10);
        let arrivals = Arrivals { packets: 7, newest: Some(9), ..Arrivals::default() };
        flow.on_report(at(100), &arrivals, Duration::from_micros(50));
        let announcement = flow.announcement(at(100)).expect("three are lost");
        assert_eq!((announcement.wanted_bytes, announcement.lost_bytes), (0, 3 * PACKET));
        assert_eq!((flow.announcement(at(200)), flow.next_deadline()), (None, None));
    }

    #[test]
    fn what_changes_is_announced_at_intervals() {
        let mut sender = Credit::new(&facts());
        sender.on_backlog(at(0), 20 * PACKET);
        sender.announcement(at(0)).expect("the first");
        sender.on_sent(at(0), 10 * PACKET, 10 * PACKET);
        sender.on_backlog(at(1), 30 * PACKET);
        assert_eq!((sender.announcement(at(1)), sender.next_deadline()), (None, Some(at(5))));
        assert_eq!(sender.announcement(at(5)).map(|announcement| announcement.wanted_bytes), Some(30 * PACKET));
        sender.on_credit(at(20), 30 * PACKET);
        sender.on_sent(at(20), 30 * PACKET, 30 * PACKET);
        assert_eq!((sender.announcement(at(50)), sender.next_deadline()), (None, None), "nothing is left to want");
        sender.on_backlog(at(60), 2 * PACKET);
        assert_eq!(sender.announcement(at(60)).map(|announcement| announcement.wanted_bytes), Some(2 * PACKET));
        sender.on_backlog(at(70), 0);
        assert_eq!(sender.announcement(at(70)).map(|announcement| announcement.wanted_bytes), Some(0), "withdrawn");
    }

    #[test]
    fn unused_credit_ends() {
        let mut sender = Credit::new(&facts());
        sender.on_credit(at(0), 5 * PACKET);
        assert_eq!(sender.next_deadline(), Some(at(80)));
        sender.on_deadline(at(80));
        assert_eq!((sender.window_bytes(), sender.next_deadline()), (0, None));
        sender.on_credit(at(100), 5 * PACKET);
        sender.on_credit(at(300), PACKET);
        assert_eq!(sender.window_bytes(), PACKET, "even when the driver comes late");
    }
}
