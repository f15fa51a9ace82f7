//! Decisions prepared for live use: a connection that measures its loss asks for each message, and has no time to
//! compute.
//!
//! For one link's rate and round trip, all message sizes and losses are laid out in a grid, and the recommendation for
//! the middle of each cell is computed beforehand. A lookup is two logarithms and an index.

use crate::link::{Link, MESSAGE_BYTES_MAX, PlanError};
use crate::question::Question;
use crate::scheme::Scheme;

/// Sizes: cells of a factor of 2 from 1 KiB to 2 TiB.
const SIZE_FIRST: u32 = 10;
const SIZE_LAST: u32 = 41;
/// Losses: half decades from 1e-8 to 0.3. What is less is no loss.
const LOSS_FIRST: i32 = -16;
const LOSS_LAST: i32 = -1;

/// One decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Which scheme.
    pub scheme: Scheme,
    /// In which chunks.
    pub chunk_bytes: u32,
    /// How long it is expected to take, in the middle of the cell.
    pub mean_seconds: f64,
    /// How much longer the best of another kind takes; a live connection changes its scheme only for a margin worth it.
    pub margin: f64,
}

/// Decisions for every size and loss on a link.
#[derive(Clone, Debug)]
pub struct DecisionTable {
    /// [loss][size]; the first row is for no loss.
    decisions: Vec<Vec<Decision>>,
}

impl DecisionTable {
    /// Compute all decisions for a question's link (but its loss), candidates and chunk: its message does not matter.
    /// Some seconds when code and chunk are left open, much less when not.
    pub fn prepare(question: &Question) -> Result<Self, PlanError> {
        let steps = (LOSS_FIRST..=LOSS_LAST).map(|step| 10_f64.powf(f64::from(step) / 2.0));
        let mut decisions: Vec<Vec<Decision>> = Vec::new();
        for loss in std::iter::once(0.0).chain(steps) {
            let mut row = Vec::new();
            for size in SIZE_FIRST..=SIZE_LAST {
                let link = Link { loss: question.link.loss.with_mean(loss), ..question.link };
                let message_bytes = (1_u64 << size).min(MESSAGE_BYTES_MAX);
                let cell =
                    Question { link, message_bytes, ring_sites: None, deadline_seconds: None, ..question.clone() };
                row.push(match (decide(&cell), decisions.last()) {
                    // Where nothing works any more, what worked last is as good as anything.
                    (Err(PlanError::NoScheme(_)), Some(better)) => better[row.len()],
                    (decision, _) => decision?,
                });
            }
            decisions.push(row);
        }
        Ok(DecisionTable { decisions })
    }

    /// What to do with a message, at the loss that is measured now.
    pub fn decide(&self, message_bytes: u64, loss: f64) -> Decision {
        let size = (message_bytes.max(1) as f64).log2().round() as u32;
        let column = size.clamp(SIZE_FIRST, SIZE_LAST) - SIZE_FIRST;
        let row = match loss > 0.0 {
            true => {
                (2.0 * loss.log10()).round().clamp(f64::from(LOSS_FIRST - 1), f64::from(LOSS_LAST)) as i32 - LOSS_FIRST
                    + 1
            }
            false => 0,
        };
        self.decisions[row as usize][column as usize]
    }
}

fn decide(question: &Question) -> Result<Decision, PlanError> {
    let answer = question.answer()?;
    Ok(Decision {
        scheme: answer.recommendation.scheme,
        chunk_bytes: answer.recommendation.chunk_bytes,
        mean_seconds: answer.recommended().map_or(0.0, |row| row.completion.mean),
        margin: answer.recommendation.margin,
    })
}
