//! One direction of a link: frames in, and out again when their time has come.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use longhaul_forward::{Arrival, Fate, Outbox};
use longhaul_impair::{Counters as Impaired, Delivery, Impairment, Profile, ProfileError, Verdict};
use longhaul_time::Instant;

use crate::frame;

/// What one direction does to frames.
#[derive(Clone, Debug)]
pub struct DirectionOptions {
    /// What happens to frames.
    pub profile: Arc<Profile>,
    /// Decides which of them it happens to.
    pub seed: u64,
    /// Bytes of memory for frames that are kept until their time has come: those that wait for the wire, and those on it. More
    /// are dropped, and counted apart.
    pub kept_bytes_max: u64,
}

/// What one direction has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionCounters {
    /// What happened to frames by the profile.
    pub impaired: Impaired,
    /// Frames that were dropped because too many bytes were kept.
    pub no_memory: u64,
    /// Frames that were to be marked, and went on without a mark: they are not of IP, or their ends do not know marks.
    pub not_markable: u64,
    /// Frames that were marked.
    pub marked: u64,
    /// Frames that are kept now.
    pub kept: u64,
    /// The memory that they take.
    pub kept_bytes: u64,
}

pub(crate) struct Direction {
    impairment: Impairment,
    /// Frames by the time at which they leave; those of one time in the order in which they came.
    kept: BinaryHeap<Reverse<Kept>>,
    kept_bytes: u64,
    kept_bytes_max: u64,
    next_order: u64,
    /// Where frames leave.
    to: usize,
    /// The last arrival: time does not go back for the impairment.
    now: Instant,
    no_memory: u64,
    not_markable: u64,
    marked: u64,
}

/// What a frame that is kept takes in addition to its bytes: its places in the heap, which may be half empty, and the allocator's own.
const KEPT_OVERHEAD_BYTES: u64 = 128;

fn memory_of(frame: &Vec<u8>) -> u64 {
    frame.capacity() as u64 + KEPT_OVERHEAD_BYTES
}

struct Kept {
    at: Instant,
    order: u64,
    frame: Vec<u8>,
}

impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Kept {}

impl PartialOrd for Kept {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Kept {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl Direction {
    pub(crate) fn new(options: &DirectionOptions, to: usize) -> Result<Self, ProfileError> {
        Ok(Direction {
            impairment: Impairment::new(options.profile.clone(), options.seed)?,
            kept: BinaryHeap::new(),
            kept_bytes: 0,
            kept_bytes_max: options.kept_bytes_max,
            next_order: 0,
            to,
            now: Instant::ZERO,
            no_memory: 0,
            not_markable: 0,
            marked: 0,
        })
    }

    /// Frames in flight stay as they are.
    pub(crate) fn set_profile(&mut self, profile: Arc<Profile>, now: Instant) -> Result<(), ProfileError> {
        self.now = self.now.max(now);
        self.impairment.set_profile(profile, self.now)
    }

    pub(crate) fn counters(&self) -> DirectionCounters {
        DirectionCounters {
            impaired: self.impairment.counters(),
            no_memory: self.no_memory,
            not_markable: self.not_markable,
            marked: self.marked,
            kept: self.kept.len() as u64,
            kept_bytes: self.kept_bytes,
        }
    }

    /// A frame enters. Returns what becomes of it, at once or later.
    pub(crate) fn enter(&mut self, arrival: &mut Arrival<'_>, outbox: &mut Outbox) -> Fate {
        self.now = self.now.max(arrival.at);
        let bytes = u32::try_from(arrival.bytes.len()).unwrap_or(u32::MAX);
        match self.impairment.handle(bytes, self.now) {
            Verdict::Dropped(_) => Fate::Taken,
            Verdict::Once(delivery) => {
                if delivery.at <= self.now && self.kept.is_empty() {
                    self.alter(arrival.bytes, &delivery);
                    return Fate::Forward(self.to);
                }
                self.keep(arrival.bytes, &delivery, outbox);
                Fate::Taken
            }
            Verdict::Twice(first, second) => {
                self.keep(arrival.bytes, &first, outbox);
                self.keep(arrival.bytes, &second, outbox);
                Fate::Taken
            }
        }
    }

    /// Do to a frame what happens to its bytes.
    fn alter(&mut self, frame: &mut [u8], delivery: &Delivery) {
        if delivery.ecn_mark {
            match frame::mark_congestion(frame) {
                true => self.marked += 1,
                false => self.not_markable += 1,
            }
        }
        if let Some(corruption) = delivery.corruption {
            frame::corrupt(frame, corruption);
        }
    }

    fn keep(&mut self, frame: &[u8], delivery: &Delivery, outbox: &mut Outbox) {
        let mut copy = outbox.copy(frame);
        // Memory is used again, and may be longer than the frame.
        if self.kept_bytes + memory_of(&copy) > self.kept_bytes_max {
            self.no_memory += 1;
            outbox.give_back(copy);
            return;
        }
        self.alter(&mut copy, delivery);
        self.kept_bytes += memory_of(&copy);
        self.kept.push(Reverse(Kept { at: delivery.at, order: self.next_order, frame: copy }));
        self.next_order += 1;
    }

    /// Frames whose time has come leave.
    pub(crate) fn leave(&mut self, now: Instant, outbox: &mut Outbox, mut left: impl FnMut(&[u8])) {
        while let Some(Reverse(next)) = self.kept.peek()
            && next.at <= now
            && let Some(Reverse(kept)) = self.kept.pop()
        {
            self.kept_bytes -= memory_of(&kept.frame);
            left(&kept.frame);
            outbox.send(self.to, kept.frame, kept.at);
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.kept.peek().map(|Reverse(kept)| kept.at)
    }
}
