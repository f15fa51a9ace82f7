//! Answers that take many frames are told a few frames at a time.
//!
//! What a part lacks may be thousands of ranges, which take hundreds of frames. Sent at once they would push the packets of other
//! messages out of queues on the path, and themselves out of the peer's.

use std::collections::VecDeque;

use longhaul_scheme::timers::Period;
use longhaul_time::{Duration, Instant};

use crate::answers::Answers;
use crate::moment::Moment;
use crate::terms::Terms;

/// How many frames of all long answers of a connection leave together.
const FRAMES_A_TURN: usize = 4;
/// How far apart. The longest answer (16,384 ranges, 322 frames) takes little more than a round trip so.
const TURNS: Period = Period { per_round_trip: 64, least: Duration::from_micros(50) };

#[derive(Debug, Default)]
pub(crate) struct LongAnswers {
    /// Parts and the first of their ranges that has not been told, in the order in which they are told.
    queue: VecDeque<(u64, usize)>,
    next_turn: Instant,
}

impl LongAnswers {
    /// Tell the sender what a part lacks that has ended: the first frame now, others in turns. Nothing is told again while it is being told.
    pub(crate) fn begin(&mut self, number: u64, answers: &mut Answers, moment: &Moment, terms: &Terms) {
        let Some(ended) = answers.ended_mut(number) else { return };
        if self.is_telling(number) {
            return;
        }
        match ended.tell(number, 0, terms) {
            None => ended.on_answered(moment.now),
            Some(next) => {
                if self.queue.is_empty() {
                    self.next_turn = self.next_turn.max(moment.now + TURNS.after(moment.round_trip));
                }
                self.queue.push_back((number, next));
            }
        }
    }

    pub(crate) fn is_telling(&self, number: u64) -> bool {
        self.queue.iter().any(|(told, _)| *told == number)
    }

    /// Take a turn if it is time. A part whose sender no longer asks is told no further.
    pub(crate) fn poll(&mut self, answers: &mut Answers, moment: &Moment, terms: &Terms) {
        if self.queue.is_empty() || self.next_turn > moment.now {
            return;
        }
        self.next_turn = moment.now + TURNS.after(moment.round_trip);
        let mut frames = 0;
        while frames < FRAMES_A_TURN
            && let Some((number, first)) = self.queue.pop_front()
        {
            let Some(ended) = answers.ended_mut(number) else { continue };
            frames += 1;
            match ended.tell(number, first, terms) {
                None => ended.on_answered(moment.now),
                Some(next) => self.queue.push_front((number, next)),
            }
        }
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        (!self.queue.is_empty()).then_some(self.next_turn)
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }
}
