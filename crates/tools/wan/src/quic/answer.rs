//! What the receiver says about a stream whose last byte has arrived.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quinn::RecvStream;

use super::contents::Contents;
use super::error::{Cause, QuicError};
use crate::clock::now;

const BYTES: usize = 17;

/// The receiver's answer to one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) is_right: bool,
    pub(super) bytes: u64,
    /// When the last byte arrived, by the receiver's monotonic clock.
    arrived: Duration,
}

impl Answer {
    /// Reads a stream to its end. `flow` counts its bytes while they arrive.
    pub(super) async fn to(stream: &mut RecvStream, contents: &Contents, flow: &AtomicU64) -> Result<Self, Cause> {
        let (mut is_right, mut bytes) = (true, 0);
        while let Some(chunk) = stream.read_chunk(usize::MAX, true).await? {
            is_right &= contents.has(bytes, &chunk.bytes);
            bytes += chunk.bytes.len() as u64;
            flow.fetch_add(chunk.bytes.len() as u64, Ordering::Relaxed);
        }
        Ok(Answer { is_right, bytes, arrived: now() })
    }

    pub(super) fn to_bytes(self) -> [u8; BYTES] {
        let mut text = [0; BYTES];
        text[0] = self.is_right.into();
        text[1..9].copy_from_slice(&self.bytes.to_be_bytes());
        text[9..].copy_from_slice(&(self.arrived.as_nanos() as u64).to_be_bytes());
        text
    }

    fn from_bytes(text: [u8; BYTES]) -> Self {
        let number = |at: usize| u64::from_be_bytes(text[at..at + 8].try_into().expect("eight bytes"));
        Answer { is_right: text[0] == 1, bytes: number(1), arrived: Duration::from_nanos(number(9)) }
    }

    pub(super) async fn read(stream: &mut RecvStream) -> Result<Self, Cause> {
        let mut text = [0; BYTES];
        stream.read_exact(&mut text).await?;
        Ok(Answer::from_bytes(text))
    }
}

/// A stream that has arrived whole.
///
/// The completion time runs from just before the stream was opened until the receiver's program has the last byte. The
/// receiver says when that was by its monotonic clock, which is the sender's too if both are on one machine.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// Bytes of the stream.
    pub bytes: u64,
    /// Until the receiver had the last byte; `None` if the ends have different clocks.
    pub completion: Option<Duration>,
    /// Until the receiver's answer was here: half a round trip more, at least.
    pub answered: Duration,
}

impl Delivery {
    /// Of a stream that was begun at `posted` and has just been answered.
    pub(super) fn new(sent: u64, posted: Duration, answer: Answer) -> Result<Self, QuicError> {
        if !answer.is_right || answer.bytes != sent {
            return Err(QuicError::Contents { sent, arrived: answer.bytes, is_right: answer.is_right });
        }
        let answered = now();
        // Another machine's clock began when that one booted.
        let has_one_clock = (posted..=answered).contains(&answer.arrived);
        let completion = has_one_clock.then(|| answer.arrived - posted);
        Ok(Delivery { bytes: sent, completion, answered: answered - posted })
    }

    /// The completion time, or that of the answer where the ends have different clocks.
    pub fn time(&self) -> Duration {
        self.completion.unwrap_or(self.answered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let answer = Answer { is_right: true, bytes: 1 << 40, arrived: Duration::from_nanos(123_456_789_012) };
        assert_eq!(Answer::from_bytes(answer.to_bytes()), answer);
        let wrong = Answer { is_right: false, ..answer };
        assert_eq!(Answer::from_bytes(wrong.to_bytes()), wrong);
    }

    #[test]
    fn only_a_clock_that_both_ends_have_counts() {
        let posted = now();
        let answer = |arrived| Answer { is_right: true, bytes: 7, arrived };
        let delivery = Delivery::new(7, posted, answer(posted + Duration::from_nanos(1))).expect("whole");
        assert_eq!(delivery.completion, Some(Duration::from_nanos(1)));
        for other in [Duration::from_secs(1), posted + Duration::from_secs(1000)] {
            let delivery = Delivery::new(7, posted, answer(other)).expect("whole");
            assert_eq!((delivery.completion, delivery.time()), (None, delivery.answered));
        }
        assert!(matches!(Delivery::new(8, posted, answer(posted)), Err(QuicError::Contents { arrived: 7, .. })));
    }
}
