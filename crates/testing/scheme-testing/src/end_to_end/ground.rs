//! Two connected ends, and a case that is run on them.

use longhaul_reliable::Connection;
use longhaul_sdr::Memory;
use longhaul_time::Instant;

use super::case::{Case, CaseError, CaseRunner, Outcome};
use super::halves::{CaseReceiver, CaseSender};

/// Two connected ends: messages go from the first to the second.
pub trait Ground {
    /// The time.
    fn now(&self) -> Instant;

    /// The end that sends, and the memory it sends from.
    fn sender(&mut self) -> (&mut Connection, &Memory);

    /// The end that receives, and the memory it receives into.
    fn receiver(&mut self) -> (&mut Connection, &Memory);

    /// Let both ends do what is due, and time pass until something may have happened, but not beyond `limit`.
    fn step(&mut self, limit: Instant) -> Result<(), CaseError>;
}

impl<G: Ground> CaseRunner for G {
    fn run_case(&mut self, case: &Case) -> Result<Outcome, CaseError> {
        run_case(self, case)
    }
}

/// Send the messages of a case, and look whether they arrive as they were sent.
pub fn run_case(ground: &mut impl Ground, case: &Case) -> Result<Outcome, CaseError> {
    let limit = ground.now() + case.limit;
    let mut sending = CaseSender::new(case, ground.sender().1.len());
    let mut receiving = CaseReceiver::new(case, ground.receiver().1.len());
    loop {
        let now = ground.now();
        let (connection, memory) = ground.receiver();
        receiving.poll(connection, memory)?;
        let (connection, memory) = ground.sender();
        sending.poll(connection, memory, now)?;
        if sending.is_done() && receiving.is_done() {
            return Ok(Outcome { sent: sending.into_reports(), received: receiving.into_reports() });
        }
        if now >= limit {
            let done = sending.done_count().min(receiving.done_count());
            return Err(CaseError::Hung { done, messages: case.messages, limit: case.limit });
        }
        ground.step(limit)?;
    }
}
