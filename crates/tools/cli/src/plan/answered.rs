//! What is shown of a plan.

use longhaul_plan::question::{Answer, Question};

/// A question with its answer.
pub(super) struct Answered {
    pub(super) question: Question,
    pub(super) answer: Answer,
}
