//! The sender's core of every scheme that repeats: what has been acknowledged, what is on its way, what is due again.
//!
//! Chunks are queued, leave the device, and are waited for. A chunk's time begins when it leaves, not when it is queued. There is one
//! queue in the order of leaving, not a timer for each chunk, so that the next timeout is always at its front.

use std::collections::VecDeque;
use std::ops::Range;

use longhaul_time::{Duration, Instant};

use crate::acknowledgement::Acknowledgement;
use crate::chunk_set::ChunkSet;
use crate::scheme::SendIo;

/// Chunks that left within this part of a round trip are waited for together.
const MOMENTS_A_ROUND_TRIP: u32 = 64;

#[derive(Debug)]
pub(crate) struct Repeater {
    chunk_count: u32,
    chunk_bytes: u64,
    acknowledged: ChunkSet,
    /// Queued and not left, in order, each with the bytes that had been queued before it and with it.
    queued: VecDeque<(Range<u64>, Range<u32>)>,
    /// Left, in order, each with when: the first and the last of its chunks.
    left: VecDeque<(Instant, Instant, Range<u32>)>,
    /// When each chunk left last; [`Instant::FAR_FUTURE`] while it has not.
    left_at: Vec<Instant>,
    has_timeouts: bool,
}

impl Repeater {
    /// For so many chunks. Without timeouts only what the receiver asks for is repeated.
    pub(crate) fn new(chunk_count: u32, chunk_bytes: u32, has_timeouts: bool) -> Self {
        Repeater {
            chunk_count,
            chunk_bytes: chunk_bytes.into(),
            acknowledged: ChunkSet::new(chunk_count),
            queued: VecDeque::new(),
            left: VecDeque::new(),
            left_at: vec![Instant::FAR_FUTURE; chunk_count as usize],
            has_timeouts,
        }
    }

    /// Chunks were queued: the bytes `at` of all that was.
    pub(crate) fn on_queued(&mut self, chunks: Range<u32>, at: Range<u64>) {
        self.left_at[chunks.start as usize..chunks.end as usize].fill(Instant::FAR_FUTURE);
        self.queued.push_back((at, chunks));
    }

    /// So many bytes of what was queued have left the device.
    pub(crate) fn on_left(&mut self, bytes: u64, now: Instant, round_trip: Duration) {
        while let Some((at, chunks)) = self.queued.front_mut() {
            let count = match bytes {
                bytes if bytes >= at.end => chunks.end - chunks.start,
                bytes => (bytes.saturating_sub(at.start) / self.chunk_bytes) as u32,
            };
            if count == 0 {
                return;
            }
            let gone = chunks.start..chunks.start + count;
            (at.start, chunks.start) = (at.start + u64::from(count) * self.chunk_bytes, gone.end);
            if chunks.start == chunks.end {
                self.queued.pop_front();
            }
            self.left_at[gone.start as usize..gone.end as usize].fill(now);
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
    ) -> Vec<Range<u32>> {
        self.acknowledged.insert_below(acknowledgement.cumulative);
        acknowledgement.words().for_each(|(index, word)| self.acknowledged.insert_word(index, word));
        let covered = acknowledgement.covered();
        let range = covered.start..covered.end.min(acknowledgement.lost_below).min(self.chunk_count);
        // What the receiver told before it could know comes back within a round trip. The measured one is a mean, and what has left
        // is noticed a little late: hence not quite all of it.
        let away = round_trip * 63 / 64;
        let left_at = &self.left_at;
        self.acknowledged.absent(range, |chunk| left_at[chunk as usize] + away <= now)
    }

    /// What left so long ago that it must be taken for lost, and has not been acknowledged.
    pub(crate) fn expire(&mut self, now: Instant, timeout: Duration) -> Vec<Range<u32>> {
        let mut runs = Vec::new();
        while let Some((since, ..)) = self.left.front()
            && *since + timeout <= now
            && let Some((_, until, chunks)) = self.left.pop_front()
        {
            // One that was repeated meanwhile has a newer entry.
            let left_at = &self.left_at;
            runs.extend(self.acknowledged.absent(chunks, |chunk| left_at[chunk as usize] <= until));
        }
        runs
    }

    /// When something must be taken for lost.
    pub(crate) fn next_deadline(&self, timeout: Duration) -> Option<Instant> {
        self.left.front().map(|(since, ..)| *since + timeout)
    }

    /// Send chunks and wait for them.
    pub(crate) fn send(&mut self, runs: Vec<Range<u32>>, io: &mut SendIo<'_>) {
        for run in runs {
            let before = io.queued_data_bytes();
            io.send_chunks(run.clone());
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
        let records = encode(cumulative, lost_below, repeater.chunk_count, 100, |_| word);
        let read = Acknowledgement::decode(&records[0]).expect("it is whole");
        repeater.on_acknowledgement(&read, at(now), ROUND_TRIP)
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
        assert_eq!(repeater.next_deadline(TIMEOUT), None);
        repeater.on_left(39, at(5), ROUND_TRIP);
        repeater.on_left(95, at(50), ROUND_TRIP);
        assert_eq!(repeater.next_deadline(TIMEOUT), Some(at(105)));
        assert_eq!(repeater.expire(at(104), TIMEOUT), []);
        assert_eq!(repeater.expire(at(105), TIMEOUT), [0..3]);
        assert_eq!(repeater.next_deadline(TIMEOUT), Some(at(150)));
        assert_eq!(repeater.expire(at(150), TIMEOUT), [3..10]);
        assert_eq!(repeater.next_deadline(TIMEOUT), None);
    }

    #[test]
    fn only_what_is_not_acknowledged_is_due() {
        let mut repeater = repeater();
        repeater.on_left(95, at(0), ROUND_TRIP);
        assert_eq!(acknowledge(&mut repeater, 2, 0, 0b11_0111_0011, 50), []);
        assert_eq!(repeater.expire(at(100), TIMEOUT), [2..4, 7..8]);
        repeater.on_queued(2..4, 95..115);
        repeater.on_queued(7..8, 115..125);
        // An old acknowledgement takes nothing back.
        acknowledge(&mut repeater, 0, 0, 0, 101);
        repeater.on_left(125, at(110), ROUND_TRIP);
        assert_eq!(repeater.next_deadline(TIMEOUT), Some(at(210)));
        acknowledge(&mut repeater, 10, 0, 0, 150);
        assert_eq!(repeater.expire(at(300), TIMEOUT), []);
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
        assert_eq!(repeater.expire(at(100), TIMEOUT), [1..10]);
        assert_eq!(repeater.expire(at(170), TIMEOUT), [0..1]);
    }
}
