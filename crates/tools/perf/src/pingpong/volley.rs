//! The messages themselves: one at a time, there and back, as often as was asked for.

use std::time::{Duration, Instant};

use longhaul_verbs::{ReceiveRequest, SendFlags, SendOperation, SendRequest, WorkCompletion};

use super::contents;
use crate::connection::Group;
use crate::error::PerfError;

/// Ids of requests.
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
/// Polls between two looks at the clock.
const LOOK_EVERY: u32 = 64;

/// One end's part of it.
pub(super) struct Volley<'a> {
    pub(super) group: &'a Group,
    pub(super) message_bytes: usize,
    pub(super) iterations: u64,
    /// The client sends first.
    pub(super) is_client: bool,
    /// Check what comes.
    pub(super) is_checked: bool,
    /// How long nothing may come.
    pub(super) patience: Duration,
}

/// What it took.
pub struct Outcome {
    /// From the first message to the last.
    pub elapsed: Duration,
    /// Messages whose contents were checked.
    pub verified: u64,
    /// The first contents that were wrong.
    pub mismatch: Option<String>,
}

/// How far it has come.
#[derive(Default)]
struct Progress {
    posted_receives: u64,
    posted_sends: u64,
    sent: u64,
    received: u64,
    verified: u64,
    mismatch: Option<String>,
}

impl Volley<'_> {
    /// Posts the receives; to be done before the other end may send.
    pub(super) fn prepare(&self) -> Result<(), PerfError> {
        self.post_receives(u64::from(self.group.options.receive_depth))
    }

    /// There and back until all is done.
    pub(super) fn run(&self) -> Result<Outcome, PerfError> {
        let mut progress =
            Progress { posted_receives: u64::from(self.group.options.receive_depth), ..Progress::default() };
        let begin = Instant::now();
        if self.is_client {
            self.serve(&mut progress)?;
        }
        let mut last_sign = begin;
        let mut polls = 0_u32;
        let mut room = [WorkCompletion::default(); 4];
        while progress.sent < self.iterations || progress.received < self.iterations {
            let taken = self.group.poll(&mut room, true)?;
            if taken.is_empty() {
                polls += 1;
                if (self.group.options.sleeps || polls.is_multiple_of(LOOK_EVERY))
                    && last_sign.elapsed() > self.patience
                {
                    return Err(self.silence(&progress));
                }
                continue;
            }
            last_sign = Instant::now();
            for completion in taken {
                self.take(completion, &mut progress)?;
                // A message goes when the one before has gone, and its answer, or to a server the next, has come.
                let answered = progress.posted_sends + u64::from(!self.is_client);
                if progress.posted_sends < self.iterations
                    && progress.sent == progress.posted_sends
                    && progress.received >= answered
                {
                    self.serve(&mut progress)?;
                }
            }
        }
        let Progress { verified, mismatch, .. } = progress;
        Ok(Outcome { elapsed: begin.elapsed(), verified, mismatch })
    }

    fn take(&self, completion: &WorkCompletion, progress: &mut Progress) -> Result<(), PerfError> {
        if completion.id == SEND {
            progress.sent += 1;
            return Ok(());
        }
        let expected = self.message_bytes + self.group.header_bytes();
        if completion.byte_count as usize != expected {
            let got = (completion.byte_count as usize).saturating_sub(self.group.header_bytes());
            return Err(PerfError::Failed(format!(
                "expected messages of {} bytes, got one of {got}: give both ends the same size with -s",
                self.message_bytes
            )));
        }
        if self.is_checked {
            let mut message = vec![0; self.message_bytes];
            self.group.region.copy_out(self.group.header_bytes(), &mut message);
            match contents::check(&message, progress.received, self.is_client) {
                Ok(()) => progress.verified += 1,
                Err(mismatch) => {
                    progress.mismatch.get_or_insert(mismatch);
                }
            }
        }
        progress.received += 1;
        progress.posted_receives -= 1;
        let depth = u64::from(self.group.options.receive_depth);
        if progress.posted_receives <= 1 {
            self.post_receives(depth - progress.posted_receives)?;
            progress.posted_receives = depth;
        }
        Ok(())
    }

    /// All receives are of the same memory, from which is also sent: there is one message at a time.
    fn post_receives(&self, count: u64) -> Result<(), PerfError> {
        let entry = [self.group.region.entry(0..self.group.header_bytes() + self.message_bytes)];
        for _ in 0..count {
            let posted = self.group.queue_pairs[0].post_receive(&[ReceiveRequest { id: RECEIVE, local: &entry }]);
            posted.map_err(|error| PerfError::failed("cannot post a receive", error))?;
        }
        Ok(())
    }

    /// The next message of the client, or what the server has received.
    fn serve(&self, progress: &mut Progress) -> Result<(), PerfError> {
        let from = self.group.header_bytes();
        if self.is_client && (self.is_checked || progress.posted_sends == 0) {
            let mut message = vec![0; self.message_bytes];
            contents::fill(&mut message, progress.posted_sends, self.is_checked);
            self.group.region.copy_in(from, &message);
        }
        let entry = [self.group.region.entry(from..from + self.message_bytes)];
        let request = SendRequest::new(SEND, SendOperation::Send, &entry).with_flags(SendFlags::SIGNALED);
        let request = self.group.addressed(0, request);
        let posted = self.group.queue_pairs[0].post_send(&[request]);
        posted.map_err(|error| PerfError::failed("cannot post a message", error))?;
        progress.posted_sends += 1;
        Ok(())
    }

    /// Nothing has come for too long.
    fn silence(&self, progress: &Progress) -> PerfError {
        let Progress { sent, received, .. } = progress;
        let why = match self.group.options.connection.is_reliable() {
            true => "the other end has ended or hangs, or the two do not agree on -n",
            false => {
                "a message was lost, which neither UC nor UD nor rdma-core's programs repeat; or the other end has ended, or \
                 the two do not agree on -n"
            }
        };
        let (iterations, seconds) = (self.iterations, self.patience.as_secs_f64());
        PerfError::Failed(format!(
            "no message arrived for {seconds} s: {received} of {iterations} messages received, {sent} sent; {why}"
        ))
    }
}
