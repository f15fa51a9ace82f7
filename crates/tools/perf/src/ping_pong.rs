//! Latency: one message there and back, again and again, both ends polling.
//!
//! Messages have numbers, and the answer has the number of its message. With SENDs over UC and UD it is the immediate;
//! over RC nothing is lost, so counting is enough; with WRITEs, where the receiver gets no completion and looks at its
//! memory, it is the message's last byte, as in perftest.

use std::time::{Duration, Instant};

use longhaul_verbs::{ReceiveRequest, SendFlags, SendOperation, SendRequest, WorkCompletion};

use crate::connection::Group;
use crate::error::PerfError;
use crate::operation::Operation;
use crate::patience::Patience;
use crate::pattern::Pattern;
use crate::stream::{Bound, Run};

/// A reliable message that has not come back after this long: is the other end still there?
const SILENCE: Duration = Duration::from_millis(20);
/// One in this many sends is signaled, which frees its predecessors' places in the send queue.
const SIGNAL_EVERY: u64 = 16;
/// Messages up to this size are copied while they are posted, as perftest does it.
const INLINE_BYTES: usize = 64;
/// Set in the id of receives.
const RECEIVE: u64 = 1 << 63;
/// Polls between two looks at the clock, or at whether to stop.
const LOOK_EVERY: u32 = 32;

/// What the end that begins saw.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundTrips {
    pub(crate) nanoseconds: Vec<u32>,
    pub(crate) lost: u64,
    pub(crate) elapsed: Duration,
    /// The first contents that were wrong.
    pub(crate) mismatch: Option<String>,
}

/// Either end.
pub(crate) struct PingPong {
    group: Group,
    /// Number of the next message; goes on from run to run.
    next: u64,
    posted: u64,
    /// Sends that hold a place in the send queue.
    in_queue: u64,
    patience: Patience,
    scratch: Vec<u8>,
    mismatch: Option<String>,
}

impl PingPong {
    pub(crate) fn new(group: Group) -> Self {
        PingPong {
            group,
            next: 0,
            posted: 0,
            in_queue: 0,
            patience: Patience::default(),
            scratch: Vec::new(),
            mismatch: None,
        }
    }

    pub(crate) fn group(&mut self) -> &mut Group {
        &mut self.group
    }

    /// Posts the receives. To be called once, after connecting and before the peer sends.
    pub(crate) fn start(&self, message_bytes_max: usize) -> Result<(), PerfError> {
        // Of long messages fewer fit, and one is enough: it is posted again before the peer is answered.
        let fitting = self.outgoing() / self.stride(message_bytes_max);
        for slot in 0..(self.group.options.receive_depth as usize).min(fitting).max(1) {
            self.post_receive(message_bytes_max, slot as u64)?;
        }
        Ok(())
    }

    /// From one receive's place to the next one's.
    fn stride(&self, message_bytes_max: usize) -> usize {
        (message_bytes_max + self.group.header_bytes()).next_multiple_of(64)
    }

    /// Each receive has a place of its own: a message that comes late or twice must not overwrite the one just
    /// received.
    fn post_receive(&self, message_bytes_max: usize, slot: u64) -> Result<(), PerfError> {
        let from = slot as usize * self.stride(message_bytes_max);
        let entry = [self.group.region.entry(from..from + message_bytes_max + self.group.header_bytes())];
        let posted = self.group.queue_pairs[0].post_receive(&[ReceiveRequest { id: RECEIVE | slot, local: &entry }]);
        posted.map_err(|error| PerfError::failed("cannot post a receive", error))
    }

    /// To be called before each run, before the peer begins: memory looks as if the previous message had just come.
    pub(crate) fn prepare(&self, run: &Run) {
        if run.operation == Operation::Write {
            self.group.region.copy_in(run.message_bytes as usize - 1, &[last_byte(self.next.wrapping_sub(1))]);
        }
    }

    /// Begins, and takes the time.
    pub(crate) fn ping(
        &mut self,
        run: &Run,
        message_bytes_max: usize,
        is_peer_gone: &dyn Fn() -> bool,
    ) -> Result<RoundTrips, PerfError> {
        let reliable = self.group.options.connection.is_reliable();
        let mut trips = RoundTrips::default();
        let begin = Instant::now();
        let (mut sent, mut last_answer) = (begin, begin);
        let mut count = 0;
        while match run.bound {
            Bound::Messages(wanted) => count < wanted,
            Bound::Time(duration) => sent.duration_since(begin) < duration,
        } {
            let number = self.next;
            self.send(run, number)?;
            // A message that was lost does not come back, on either way.
            let limit = if reliable { SILENCE } else { self.patience.limit() };
            let silence_limit = self.group.silence_limit(2 * u64::from(run.message_bytes));
            let give_up = || {
                let waited = sent.elapsed();
                waited > limit && (!reliable || is_peer_gone() || waited > silence_limit)
            };
            let got = self.receive(run, message_bytes_max, Some(number), &give_up)?;
            let now = Instant::now();
            match got {
                Some(_) => {
                    let round_trip = now.duration_since(sent);
                    last_answer = now;
                    self.patience.learn(round_trip);
                    trips.nanoseconds.push(round_trip.as_nanos().min(u128::from(u32::MAX)) as u32);
                }
                None if is_peer_gone() => return Err(PerfError::peer_gone()),
                None => {
                    trips.lost += 1;
                    self.group.check_silence(now.duration_since(last_answer), 2 * u64::from(run.message_bytes))?;
                }
            }
            sent = now;
            count += 1;
            self.next = number + 1;
        }
        trips.elapsed = begin.elapsed();
        trips.mismatch = self.mismatch.take();
        Ok(trips)
    }

    /// Answers until the order to stop; the first contents that were wrong.
    pub(crate) fn pong(
        &mut self,
        run: &Run,
        message_bytes_max: usize,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Option<String>, PerfError> {
        while let Some(number) = self.receive(run, message_bytes_max, None, is_stopped)? {
            self.next = number + 1;
            self.send(run, number)?;
        }
        Ok(self.mismatch.take())
    }

    /// Where messages are sent from: the second half of the memory. The first half is received into.
    fn outgoing(&self) -> usize {
        self.group.region.len() / 2
    }

    fn send(&mut self, run: &Run, number: u64) -> Result<(), PerfError> {
        let (from, byte_count) = (self.outgoing(), run.message_bytes as usize);
        let region = &self.group.region;
        if let Some(seed) = run.verify_seed {
            self.scratch.resize(byte_count, 0);
            Pattern::new(seed).fill(number, &mut self.scratch);
            region.copy_in(from, &self.scratch);
        }
        let entry = [region.entry(from..from + byte_count)];
        let operation = match run.operation {
            Operation::Send if self.group.options.connection.is_reliable() => SendOperation::Send,
            Operation::Send => SendOperation::SendWithImmediate(number as u32),
            Operation::Write => {
                region.copy_in(from + byte_count - 1, &[last_byte(number)]);
                SendOperation::Write(self.group.remote(0))
            }
            Operation::Read | Operation::CompareAndSwap | Operation::FetchAndAdd => {
                unreachable!("nobody answers these: the peer's device does")
            }
        };
        let flags = if self.in_queue + 1 >= SIGNAL_EVERY { SendFlags::SIGNALED } else { SendFlags::empty() };
        let request = SendRequest::new(self.posted, operation, &entry).with_flags(flags);
        let request = self.group.addressed(0, request);
        let queue_pair = &self.group.queue_pairs[0];
        let posted = match byte_count <= INLINE_BYTES {
            true => {
                let mut bytes = [0; INLINE_BYTES];
                region.copy_out(from, &mut bytes[..byte_count]);
                queue_pair.post_send_inline(&request, &bytes[..byte_count])
            }
            false => queue_pair.post_send(&[request]),
        };
        posted.map_err(|error| PerfError::failed("cannot post a message", error))?;
        self.posted += 1;
        self.in_queue += 1;
        Ok(())
    }

    /// The number of the next message, or of this one if only this one will do; `None` when `give_up` said so first.
    fn receive(
        &mut self,
        run: &Run,
        message_bytes_max: usize,
        only: Option<u64>,
        give_up: &dyn Fn() -> bool,
    ) -> Result<Option<u64>, PerfError> {
        let mut room = [WorkCompletion::default(); 8];
        let mut polls = 0_u32;
        loop {
            let mut got = None;
            for completion in self.group.poll(&mut room, run.operation == Operation::Send)? {
                if completion.id & RECEIVE == 0 {
                    self.in_queue = self.posted - completion.id - 1;
                    continue;
                }
                let number = match completion.immediate() {
                    Some(number) => {
                        self.next.saturating_add_signed(i64::from(number.wrapping_sub(self.next as u32) as i32))
                    }
                    None => self.next,
                };
                let slot = completion.id & !RECEIVE;
                // One that comes late or twice was counted long ago.
                if number >= self.next && only.is_none_or(|only| only == number) {
                    let from = slot as usize * self.stride(message_bytes_max) + self.group.header_bytes();
                    self.verify(run, number, from);
                    got = Some(number);
                }
                self.post_receive(message_bytes_max, slot)?;
            }
            if run.operation == Operation::Write {
                let mut byte = [0];
                self.group.region.copy_out(run.message_bytes as usize - 1, &mut byte);
                let ahead = byte[0].wrapping_sub(last_byte(self.next.wrapping_sub(1)));
                got = number_ahead(self.next, ahead).filter(|&number| only.is_none_or(|only| only == number));
                if let Some(number) = got {
                    self.verify(run, number, 0);
                }
            }
            if got.is_some() {
                return Ok(got);
            }
            polls += 1;
            if (self.group.options.sleeps || polls.is_multiple_of(LOOK_EVERY)) && give_up() {
                return Ok(None);
            }
        }
    }

    /// Checks the message at a place in memory.
    fn verify(&mut self, run: &Run, number: u64, from: usize) {
        let Some(seed) = run.verify_seed else {
            return;
        };
        self.scratch.resize(run.message_bytes as usize, 0);
        self.group.region.copy_out(from, &mut self.scratch);
        // The last byte of a WRITE is its number. If it is another one by now, an older message has come once more,
        // which over an unreliable connection may be, and lies where this one lay.
        if run.operation == Operation::Write && self.scratch.pop() != Some(last_byte(number)) {
            return;
        }
        if let Err(error) = Pattern::new(seed).check(number, &self.scratch) {
            self.mismatch.get_or_insert(error.to_string());
        }
    }
}

/// The message that the last byte of a WRITE stands for, when it is this far ahead of that of the message before
/// `next`. One that seems to be very far ahead is an old one that has come late or twice.
const fn number_ahead(next: u64, ahead: u8) -> Option<u64> {
    match ahead {
        0 | 128.. => None,
        ahead => Some(next + ahead as u64 - 1),
    }
}

/// What the last byte of a WRITE says.
const fn last_byte(number: u64) -> u8 {
    number.wrapping_add(1) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_comes_late_is_not_taken_for_a_new_one() {
        let seen = |next: u64, number: u64| {
            let ahead = last_byte(number).wrapping_sub(last_byte(next.wrapping_sub(1)));
            number_ahead(next, ahead)
        };
        assert_eq!(seen(1000, 999), None, "the one before is still there");
        assert_eq!(seen(1000, 1000), Some(1000));
        assert_eq!(seen(1000, 1005), Some(1005), "five were lost");
        assert_eq!(seen(1000, 998), None, "an old one once more");
        assert_eq!(seen(1000, 900), None, "a very old one");
    }
}
