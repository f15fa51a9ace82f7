//! The sender's core of every scheme that repeats: what has been acknowledged, what is in flight, what is due again.
//!
//! Packets are queued, leave the device, and are waited for. A packet's time begins when it leaves, not when it is queued. There is one
//! queue in the order of leaving, not a timer for each packet, so that the next timeout is always at its front.

use std::collections::VecDeque;
use std::ops::Range;

use longhaul_time::{Duration, Instant};
use longhaul_wire::acknowledgement::Acknowledgement;

use crate::chunk_set::ChunkSet;
use crate::scheme::SendIo;

/// Packets that left within this part of a round trip are waited for together.
const MOMENTS_A_ROUND_TRIP: u32 = 64;
/// A receiver that says that nothing arrives may be one whose device was kept off its processor, with the packets unread in a socket: on
/// a short path it is believed only of packets that left this long ago. (TCP waits as long before it probes for the loss of a tail,
/// RFC 8985.)
const SILENCE_BELIEVED: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct Repeater {
    packet_count: u32,
    packet_bytes: u64,
    acknowledged: ChunkSet,
    /// Queued and not left, in order, each with the bytes that had been queued before it and with it.
    queued: VecDeque<(Range<u64>, Range<u32>)>,
    /// Left, in order, each with when: the first and the last of its packets.
    left: VecDeque<(Instant, Instant, Range<u32>)>,
    /// When each packet left last; [`Instant::FAR_FUTURE`] while it has not.
    left_at: Vec<Instant>,
    /// Every packet below was sent once at least; those that were sent again.
    sent_below: u32,
    repeated: ChunkSet,
    /// None from here on has left yet.
    left_below: u32,
    /// After the last packet that has been acknowledged.
    arrived_below: u32,
    /// More has been acknowledged than when it was asked for last.
    has_news: bool,
    has_timeouts: bool,
}

impl Repeater {
    /// For this many packets. Without timeouts only what the receiver asks for is repeated.
    pub(crate) fn new(packet_count: u32, packet_bytes: u32, has_timeouts: bool) -> Self {
        Repeater {
            packet_count,
            packet_bytes: packet_bytes.into(),
            acknowledged: ChunkSet::new(packet_count),
            queued: VecDeque::new(),
            left: VecDeque::new(),
            left_at: vec![Instant::FAR_FUTURE; packet_count as usize],
            sent_below: 0,
            repeated: ChunkSet::new(packet_count),
            left_below: 0,
            arrived_below: 0,
            has_news: false,
            has_timeouts,
        }
    }

    /// Packets were queued: the bytes `at` of all that was.
    pub(crate) fn on_queued(&mut self, packets: Range<u32>, at: Range<u64>) {
        self.left_at[packets.start as usize..packets.end as usize].fill(Instant::FAR_FUTURE);
        for packet in packets.start..packets.end.min(self.sent_below) {
            self.repeated.insert(packet);
        }
        self.sent_below = self.sent_below.max(packets.end);
        self.queued.push_back((at, packets));
    }

    /// This many bytes of what was queued have left the device.
    pub(crate) fn on_left(&mut self, bytes: u64, now: Instant, round_trip: Duration) {
        while let Some((at, packets)) = self.queued.front_mut() {
            let count = match bytes {
                bytes if bytes >= at.end => packets.end - packets.start,
                bytes => (bytes.saturating_sub(at.start) / self.packet_bytes) as u32,
            };
            if count == 0 {
                return;
            }
            let gone = packets.start..packets.start + count;
            (at.start, packets.start) = (at.start + u64::from(count) * self.packet_bytes, gone.end);
            if packets.start == packets.end {
                self.queued.pop_front();
            }
            self.left_at[gone.start as usize..gone.end as usize].fill(now);
            self.left_below = self.left_below.max(gone.end);
            if !self.has_timeouts {
                continue;
            }
            match self.left.back_mut() {
                Some((since, until, before))
                    if before.end == gone.start && now - *since < round_trip / MOMENTS_A_ROUND_TRIP =>
                {
                    (*until, before.end) = (now, gone.end);
                }
                _ => self.left.push_back((now, now, gone)),
            }
        }
    }

    /// The receiver has told what it has. Returns what it has told to be lost, and is: what left so lately that the receiver cannot have
    /// missed it yet is not.
    pub(crate) fn on_acknowledgement(
        &mut self,
        acknowledgement: &Acknowledgement<'_>,
        now: Instant,
        round_trip: Duration,
        variation: Duration,
    ) -> Vec<Range<u32>> {
        self.has_news |= self.acknowledged.insert_below(acknowledgement.header.cumulative);
        for (index, word) in acknowledgement.words() {
            self.has_news |= self.acknowledged.insert_word(index, word);
        }
        let covered = acknowledgement.covered();
        let range = covered.start..covered.end.min(acknowledgement.header.lost_below).min(self.left_below);
        if let Some((index, word)) = acknowledgement.words().filter(|(_, word)| *word != 0).last() {
            let end = (index as u32).saturating_mul(64).saturating_add(64 - word.leading_zeros());
            self.arrived_below = self.arrived_below.max(end.min(self.packet_count));
        }
        // What the receiver said before it could know comes back within a round trip. The measured one is a mean, and what has left
        // is noticed a little late: hence not quite all of it. Where later packets have come, that is enough. Where only nothing came for a
        // while, the packet may still be in flight, and for longer than the mean; so may one that was repeated.
        let away = round_trip * 63 / 64;
        let is_silence = acknowledgement.header.lost_below >= self.packet_count;
        let away_min = if is_silence && self.has_timeouts { SILENCE_BELIEVED } else { Duration::ZERO };
        let repeated_away = (away + variation.min(round_trip / 8)).max(away_min);
        // A receiver that asks has waited for a quarter of a round trip; refused, it asks again after more than a whole one.
        let variation_max = if self.has_timeouts { round_trip.max(away_min) } else { round_trip / 8 };
        let silent_away = (round_trip + variation.min(variation_max)).max(away_min);
        let overtaken_below = match is_silence {
            // A receiver that asks reports what it does not need as if it had it, so the order of arrival is not known.
            _ if !self.has_timeouts => 0,
            false => acknowledgement.header.lost_below,
            true => self.arrived_below,
        };
        let (left_at, repeated) = (&self.left_at, &self.repeated);
        self.acknowledged.absent(range, |packet| {
            let away = match packet < overtaken_below {
                _ if repeated.contains(packet) => repeated_away,
                true => away,
                false => silent_away,
            };
            left_at[packet as usize] + away <= now
        })
    }

    /// Whether more has been acknowledged since this was asked last.
    pub(crate) fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// What left so long ago that it must be taken for lost, and has not been acknowledged. The timeout is that of what left at a time; it
    /// does not become shorter.
    pub(crate) fn expire(&mut self, now: Instant, timeout: impl Fn(Instant) -> Duration) -> Vec<Range<u32>> {
        let mut runs = Vec::new();
        while let Some((since, ..)) = self.left.front()
            && *since + timeout(*since) <= now
            && let Some((_, until, packets)) = self.left.pop_front()
        {
            // One that was repeated meanwhile has a newer entry.
            let left_at = &self.left_at;
            runs.extend(self.acknowledged.absent(packets, |packet| left_at[packet as usize] <= until));
        }
        runs
    }

    /// When something must be taken for lost.
    pub(crate) fn next_deadline(&self, timeout: impl Fn(Instant) -> Duration) -> Option<Instant> {
        self.left.front().map(|(since, ..)| *since + timeout(*since))
    }

    /// Send packets and wait for them.
    pub(crate) fn send(&mut self, runs: Vec<Range<u32>>, io: &mut SendIo<'_>) {
        for run in runs {
            let before = io.queued_data_bytes();
            io.send_packets(run.clone());
            self.on_queued(run, before..io.queued_data_bytes());
        }
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of runs, some with one run")]
mod tests {
    use super::*;
    use crate::acknowledgement::encode;

    const ROUND_TRIP: Duration = Duration::from_millis(60);
    const TIMEOUT: Duration = Duration::from_millis(100);

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn acknowledge(repeater: &mut Repeater, cumulative: u32, lost_below: u32, word: u64, now: u64) -> Vec<Range<u32>> {
        let records = encode(cumulative, lost_below, repeater.packet_count, 100, |_| word);
        let read = Acknowledgement::parse(&records[0]).expect("it is whole");
        repeater.on_acknowledgement(&read, at(now), ROUND_TRIP, Duration::ZERO)
    }

    /// Ten chunks of ten bytes, the last one shorter.
    fn repeater() -> Repeater {
        let mut repeater = Repeater::new(10, 10, true);
        repeater.on_queued(0..10, 0..95);
        repeater
    }

    #[test]
    fn time_begins_when_a_chunk_leaves() {
        let mut repeater = repeater();
        assert_eq!(repeater.next_deadline(|_| TIMEOUT), None);
        repeater.on_left(39, at(5), ROUND_TRIP);
        repeater.on_left(95, at(50), ROUND_TRIP);
        assert_eq!(repeater.next_deadline(|_| TIMEOUT), Some(at(105)));
        assert_eq!(repeater.expire(at(104), |_| TIMEOUT), []);
        assert_eq!(repeater.expire(at(105), |_| TIMEOUT), [0..3]);
        assert_eq!(repeater.next_deadline(|_| TIMEOUT), Some(at(150)));
        assert_eq!(repeater.expire(at(150), |_| TIMEOUT), [3..10]);
        assert_eq!(repeater.next_deadline(|_| TIMEOUT), None);
    }

    #[test]
    fn only_what_is_not_acknowledged_is_due() {
        let mut repeater = repeater();
        repeater.on_left(95, at(0), ROUND_TRIP);
        assert_eq!(acknowledge(&mut repeater, 2, 0, 0b11_0111_0011, 50), []);
        assert_eq!(repeater.expire(at(100), |_| TIMEOUT), [2..4, 7..8]);
        repeater.on_queued(2..4, 95..115);
        repeater.on_queued(7..8, 115..125);
        // An old acknowledgement takes nothing back.
        acknowledge(&mut repeater, 0, 0, 0, 101);
        repeater.on_left(125, at(110), ROUND_TRIP);
        assert_eq!(repeater.next_deadline(|_| TIMEOUT), Some(at(210)));
        acknowledge(&mut repeater, 10, 0, 0, 150);
        assert_eq!(repeater.expire(at(300), |_| TIMEOUT), []);
    }

    #[test]
    fn what_the_receiver_misses_is_lost_once_it_can_know() {
        let mut repeater = repeater();
        repeater.on_left(50, at(0), ROUND_TRIP);
        repeater.on_left(95, at(40), ROUND_TRIP);
        // Chunks 5 to 9 left too lately, and beyond 8 nothing is said to be lost.
        assert_eq!(acknowledge(&mut repeater, 1, 8, 0b101, 60), [1..2, 3..5]);
        repeater.on_queued(1..2, 95..105);
        repeater.on_queued(3..5, 105..125);
        // They are queued, so not lost again.
        assert_eq!(acknowledge(&mut repeater, 1, 8, 0b101, 70), []);
        repeater.on_left(125, at(80), ROUND_TRIP);
        assert_eq!(acknowledge(&mut repeater, 1, 8, 0b101, 100), [5..8]);
        repeater.on_queued(5..8, 125..155);
        repeater.on_left(155, at(101), ROUND_TRIP);
        assert_eq!(acknowledge(&mut repeater, 1, 8, 0b101, 140), [1..2, 3..5]);
    }

    #[test]
    fn a_chunk_that_was_repeated_is_not_due_by_its_first_time() {
        let mut repeater = repeater();
        repeater.on_left(95, at(0), ROUND_TRIP);
        assert_eq!(acknowledge(&mut repeater, 0, 1, 0, 70), [0..1]);
        repeater.on_queued(0..1, 95..105);
        repeater.on_left(105, at(70), ROUND_TRIP);
        assert_eq!(repeater.expire(at(100), |_| TIMEOUT), [1..10]);
        assert_eq!(repeater.expire(at(170), |_| TIMEOUT), [0..1]);
    }

    #[test]
    fn on_a_short_path_a_receiver_that_hears_nothing_is_not_believed_at_once() {
        let short = Duration::from_micros(100);
        let mut repeater = repeater();
        repeater.on_left(95, at(0), short);
        let mut acknowledge = |lost_below: u32, now: u64| {
            let records = encode(0, lost_below, 10, 100, |_| 0b1010);
            let read = Acknowledgement::parse(&records[0]).expect("it is whole");
            repeater.on_acknowledgement(&read, at(now), short, Duration::ZERO)
        };
        assert_eq!(acknowledge(3, 1), [0..1, 2..3], "overtaken");
        assert_eq!(acknowledge(10, 9), [0..1, 2..3]);
        assert_eq!(acknowledge(10, 10), [0..1, 2..3, 4..10]);
    }

    #[test]
    fn a_receiver_that_asks_is_refused_no_longer_than_it_waits() {
        let mut repeater = Repeater::new(10, 10, false);
        repeater.on_queued(0..10, 0..95);
        repeater.on_left(95, at(0), ROUND_TRIP);
        let mut asked = |now: u64| {
            let records = encode(0, 10, 10, 100, |_| 0b1010);
            let read = Acknowledgement::parse(&records[0]).expect("it is whole");
            repeater.on_acknowledgement(&read, at(now), ROUND_TRIP, ROUND_TRIP)
        };
        assert_eq!(asked(67), []);
        // A round trip, and the quarter of one that the receiver waits.
        assert_eq!(asked(75), [0..1, 2..3, 4..10]);
    }

    #[test]
    fn what_may_still_be_in_flight_is_not_repeated_where_the_round_trip_varies() {
        let variation = Duration::from_millis(30);
        let mut repeater = repeater();
        repeater.on_left(95, at(0), ROUND_TRIP);
        let mut acknowledge = |word: u64, now: u64| {
            let records = encode(0, 10, 10, 100, |_| word);
            let read = Acknowledgement::parse(&records[0]).expect("it is whole");
            repeater.on_acknowledgement(&read, at(now), ROUND_TRIP, variation)
        };
        // Packets 0 and 2 were overtaken; whether those from 4 on are lost is not known yet.
        assert_eq!(acknowledge(0b1010, 60), [0..1, 2..3]);
        assert_eq!(acknowledge(0b1010, 91), [0..1, 2..3, 4..10]);
    }
}
