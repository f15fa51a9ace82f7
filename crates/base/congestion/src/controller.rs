//! What a controller is told, and what it decides.

use std::fmt;

use longhaul_time::{Duration, Instant};

/// Decides how much a sender may have in flight and how fast it may send.
pub trait Controller: Send + fmt::Debug {
    /// Bytes were given to the device; `in_flight_bytes` includes them.
    fn on_sent(&mut self, now: Instant, bytes: u64, in_flight_bytes: u64) {
        let _ = (now, bytes, in_flight_bytes);
    }

    /// The sender had nothing to send and nothing was in flight; now it sends again.
    fn on_restart(&mut self, now: Instant) {
        let _ = now;
    }

    /// The receiver has reported.
    fn on_sample(&mut self, sample: &Sample);

    /// The receiver's device has sent a congestion notification packet (CNP).
    fn on_notification(&mut self, now: Instant) {
        let _ = now;
    }

    /// Nothing was reported for so long that everything in flight is presumed lost.
    fn on_timeout(&mut self, now: Instant) {
        let _ = now;
    }

    /// The path's shortest round trip, measured by other messages than reports.
    fn on_round_trip(&mut self, least: Duration) {
        let _ = least;
    }

    /// The receiver has granted this many bytes more.
    fn on_credit(&mut self, now: Instant, bytes: u64) {
        let _ = (now, bytes);
    }

    /// The sender has this much to send, repeats included; what is sent afterwards is subtracted.
    fn on_backlog(&mut self, now: Instant, bytes: u64) {
        let _ = (now, bytes);
    }

    /// What is to be announced to the receiver now, if it grants credit.
    fn announcement(&mut self, now: Instant) -> Option<Announcement> {
        let _ = now;
        None
    }

    /// When [`on_deadline`](Self::on_deadline) is due, or an [`announcement`](Self::announcement).
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// The deadline has passed.
    fn on_deadline(&mut self, now: Instant) {
        let _ = now;
    }

    /// The most that may be in flight.
    fn window_bytes(&self) -> u64;

    /// The rate; `None` does not pace.
    fn bits_per_second(&self) -> Option<u64>;

    /// How long a burst may last at the rate. By default short against the queues of wide-area links, and long enough
    /// for segmentation offload.
    fn burst(&self) -> Duration {
        Duration::from_micros(500)
    }
}

/// What a sender announces to a receiver that grants credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Announcement {
    /// What it has to send and no credit for.
    pub wanted_bytes: u64,
    /// All credit that has come so far.
    pub received_bytes: u64,
    /// What it has sent without credit so far, with what is left of its first window.
    pub uncredited_bytes: u64,
    /// What is presumed lost of all that it has sent.
    pub lost_bytes: u64,
}

/// What is known about a path before anything was sent on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathFacts {
    /// A full packet on the wire, with all headers.
    pub packet_bytes: u32,
    /// The round trip, if something has measured it: a handshake, control messages.
    pub round_trip: Option<Duration>,
    /// The rate of the device's own port, if known. Controllers of private fabrics start with it.
    pub line_bits_per_second: Option<u64>,
    /// Controllers draw random numbers so that flows do not probe in step.
    pub seed: u64,
}

impl PathFacts {
    /// How long a burst may last in a private fabric, where 500 µs are many round trips: an eighth of one.
    pub(crate) fn fabric_burst(&self) -> Duration {
        self.round_trip.map_or(Duration::ZERO, |time| (time / 8).min(Duration::from_micros(500)))
    }
}

/// What one report of the receiver says about the path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When the report came.
    pub now: Instant,
    /// From sending the newest packet until its arrival was known, without the time that the receiver held the report;
    /// `None` when no packet is newer than that of earlier reports, or when it was sent more than once.
    pub round_trip: Option<Duration>,
    /// When the newest packet that has arrived was sent.
    pub sent_at: Instant,
    /// How fast packets were delivered between the sending of the newest one and now, in bits per second; `None` when
    /// that cannot be said.
    pub delivery_rate: Option<u64>,
    /// The time that rate is of. Shorter than a round trip it says nothing about the path.
    pub rate_interval: Duration,
    /// The sender had nothing to send during that time: the path may be faster.
    pub is_app_limited: bool,
    /// How fast packets arrived that were sent without a break since the sender last had nothing to send, in bits per second: what a
    /// message that is shorter than a round trip shows of the path. No faster than they were sent, except that packets that left at
    /// once count as sent in no time.
    pub train_rate: Option<u64>,
    /// Bytes of that train so far, or of the one before it if that was longer.
    pub train_bytes: u64,
    /// Newly delivered.
    pub delivered_packets: u64,
    /// Newly delivered.
    pub delivered_bytes: u64,
    /// Delivered since the flow began.
    pub delivered_bytes_total: u64,
    /// What `delivered_bytes_total` was when the newest packet was sent: a round is over when that passes the total at
    /// its beginning.
    pub delivered_bytes_at_sending: u64,
    /// Newly presumed lost.
    pub lost_packets: u64,
    /// Newly discarded by a receiver that takes packets in order only, because it misses one before them. They say
    /// nothing of the path; but more of them may have been lost than the one that is missing.
    pub discarded_packets: u64,
    /// Presumed lost before, and found delivered now.
    pub found_packets: u64,
    /// Presumed lost since the newest packet was sent.
    pub lost_packets_since_sending: u64,
    /// Newly delivered with a mark of congestion (ECN CE).
    pub marked_packets: u64,
    /// In flight when the newest packet was sent, with it.
    pub in_flight_bytes_at_sending: u64,
    /// The same in packets.
    pub in_flight_packets_at_sending: u64,
    /// In flight now.
    pub in_flight_bytes: u64,
}
