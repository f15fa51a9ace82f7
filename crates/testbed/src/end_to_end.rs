//! The end-to-end suite of reliability schemes: messages of many sizes over bad links, contents verified.
//!
//! A [`Ground`] is two ends of a connection and the network between them: on virtual time ([`VirtualGround`]), or whatever else can carry
//! messages. A [`Case`] is what is sent over it. The same cases run on every ground.

mod virtual_time;

use std::collections::VecDeque;

use longhaul_reliable::{Connection, MessageReport, ReceiveTicket, SendTicket};
use longhaul_sdr::Memory;
use longhaul_time::{Duration, Instant};
use thiserror::Error;

pub use virtual_time::{GroundOptions, VirtualGround};

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

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Messages.
    pub messages: usize,
    /// Bytes of each.
    pub message_bytes: usize,
    /// Messages under way at a time, as far as there is memory for them.
    pub in_flight: usize,
    /// How much longer than its message a receive is.
    pub slack_bytes: usize,
    /// All of it must be done within this.
    pub limit: Duration,
}

impl Case {
    /// So many messages of so many bytes, a few at a time.
    pub fn new(messages: usize, message_bytes: usize) -> Self {
        Case { messages, message_bytes, in_flight: 8, slack_bytes: 0, limit: Duration::from_secs(120) }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Of each message, as its sender saw it.
    pub sent: Vec<MessageReport>,
    /// Of each message, as its receiver saw it.
    pub received: Vec<MessageReport>,
}

/// What went wrong.
#[derive(Debug, Error)]
pub enum CaseError {
    /// Nothing more happened.
    #[error("{done} of {messages} messages were done within {limit:?}")]
    Hung {
        /// Messages that were done.
        done: usize,
        /// All.
        messages: usize,
        /// The time they had.
        limit: Duration,
    },
    /// Other bytes came than were sent.
    #[error("message {message}: byte {place} is not what was sent")]
    Contents {
        /// Which.
        message: usize,
        /// The first that is wrong.
        place: usize,
    },
    /// Something is missing, or too much came.
    #[error("message {message}: {received} bytes of {sent} came, {missing} ranges are missing")]
    Incomplete {
        /// Which.
        message: usize,
        /// Its bytes.
        sent: usize,
        /// What came.
        received: usize,
        /// Ranges.
        missing: usize,
    },
    /// A message has failed, or could not be posted.
    #[error("message {message}: {why}")]
    Failed {
        /// Which.
        message: usize,
        /// What was said.
        why: String,
    },
    /// The ground gave way.
    #[error("{0}")]
    Ground(String),
}

struct UnderWay {
    message: usize,
    send: SendTicket,
    receive: ReceiveTicket,
    sent: Option<MessageReport>,
    received: Option<MessageReport>,
}

/// Send the messages of a case, and look whether they arrive as they were sent.
pub fn run_case(ground: &mut impl Ground, case: &Case) -> Result<Outcome, CaseError> {
    let limit = ground.now() + case.limit;
    let place_bytes = case.message_bytes + case.slack_bytes;
    let memory_bytes = ground.sender().1.len().min(ground.receiver().1.len());
    let places = memory_bytes.checked_div(place_bytes).unwrap_or(case.in_flight).clamp(1, case.in_flight);
    let mut free: VecDeque<usize> = (0..places).collect();
    let mut under_way: VecDeque<(usize, UnderWay)> = VecDeque::new();
    let mut outcome = Outcome::default();
    let mut next = 0;
    while outcome.sent.len() < case.messages {
        while next < case.messages
            && let Some(place) = free.pop_front()
        {
            let started = start(ground, case, next, place * place_bytes)?;
            under_way.push_back((place, started));
            next += 1;
        }
        if ground.now() >= limit {
            return Err(CaseError::Hung { done: outcome.sent.len(), messages: case.messages, limit: case.limit });
        }
        ground.step(limit)?;
        for (_, message) in &mut under_way {
            look(message, case)?;
        }
        while let Some((place, message)) = under_way.front()
            && let (Some(sent), Some(received)) = (message.sent, message.received)
        {
            outcome.sent.push(sent);
            outcome.received.push(received);
            free.push_back(*place);
            under_way.pop_front();
        }
    }
    Ok(outcome)
}

fn start(ground: &mut impl Ground, case: &Case, message: usize, at: usize) -> Result<UnderWay, CaseError> {
    let failed = |why: String| CaseError::Failed { message, why };
    let now = ground.now();
    let (receiver, memory) = ground.receiver();
    let room = at..at + case.message_bytes + case.slack_bytes;
    memory.write(room.clone()).map_err(|error| failed(error.to_string()))?.fill(0);
    let receive = receiver.post_receive(memory, room).map_err(|error| failed(error.to_string()))?;
    let (sender, memory) = ground.sender();
    let range = at..at + case.message_bytes;
    fill(&mut memory.write(range.clone()).map_err(|error| failed(error.to_string()))?, message as u64);
    let send = sender.send(memory, range, now).map_err(|error| failed(error.to_string()))?;
    Ok(UnderWay { message, send, receive, sent: None, received: None })
}

/// See whether an end is done with a message.
fn look(under_way: &mut UnderWay, case: &Case) -> Result<(), CaseError> {
    let message = under_way.message;
    let failed = |error: &dyn std::error::Error| CaseError::Failed { message, why: error.to_string() };
    if let Some(result) = under_way.send.take() {
        under_way.sent = Some(result.map_err(|error| failed(&error))?);
    }
    if let Some(result) = under_way.receive.take() {
        let received = result.map_err(|error| failed(&error))?;
        let (bytes, missing) = (received.bytes(), received.missing().len());
        if bytes.len() != case.message_bytes || missing > 0 {
            let (sent, received) = (case.message_bytes, bytes.len());
            return Err(CaseError::Incomplete { message, sent, received, missing });
        }
        if let Some(place) = first_wrong(bytes, message as u64) {
            return Err(CaseError::Contents { message, place });
        }
        under_way.received = Some(*received.report());
    }
    Ok(())
}

/// Eight bytes that tell a message and a place in it.
fn word(message: u64, index: usize) -> [u8; 8] {
    (message.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (index as u64 + 1).wrapping_mul(0xd6e8_feb8_6659_fd93)).to_le_bytes()
}

fn fill(bytes: &mut [u8], message: u64) {
    for (index, bytes) in bytes.chunks_mut(8).enumerate() {
        bytes.copy_from_slice(&word(message, index)[..bytes.len()]);
    }
}

fn first_wrong(bytes: &[u8], message: u64) -> Option<usize> {
    let is_wrong = |(index, bytes): &(usize, &[u8])| *bytes != &word(message, *index)[..bytes.len()];
    bytes.chunks(8).enumerate().find(is_wrong).map(|(index, _)| index * 8)
}
