//! Until death: an end writes over RC, and its peer is ended in the middle of it. The survivor must get every
//! completion, in order and once: a number of successes; then, for the first request that was outstanding, that the
//! peer does not answer; then that all others are flushed. The queue pair is then in the error state, and its receives
//! are flushed as well.

use std::time::{Duration, Instant};

use longhaul_verbs::{
    Access, CompletionStatus, Mtu, QueuePairState, ReceiveRequest, RemoteMemory, SendOperation, SendRequest,
    WorkCompletion,
};
use serde::Serialize;

use crate::contents::{Layout, memory_bytes};
use crate::control::Control;
use crate::endpoint::Endpoint;
use crate::fault::Fault;
use crate::ledger::{Order, Queue};
use crate::messages::{EndInfo, PairInfo, SessionPlan};
use crate::pace::Pace;
use crate::pair::{Pair, PairOptions, RETRIES_UNTIL_DEATH};
use crate::plan::{Check, Connection, Operation};

/// Requests in flight: those that must complete at an end after its peer has died.
const WINDOW: u32 = 16;
/// Receives that wait for nothing.
const RECEIVES: u32 = 16;
/// Bytes of a WRITE: several packets, so that one is cut short.
const WRITE_BYTES: u32 = 16 << 10;
/// Successes after which the transfer counts as in progress.
const UNDER_WAY: u64 = 50;
/// How long the peer may live.
const LIFE: Duration = Duration::from_secs(180);
/// How long after its death RC may try to reach it.
const GIVING_UP: Duration = Duration::from_secs(60);
/// How long flushed requests may take.
const FLUSH: Duration = Duration::from_secs(10);

/// Memory that this needs at either end.
pub(crate) const MEMORY_BYTES: usize = (WRITE_BYTES as usize + 256) * WINDOW as usize;

/// What the survivor saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeathReport {
    /// Whether this end was writing.
    pub was_writing: bool,
    /// Requests that completed before.
    pub succeeded: u64,
    /// How the first outstanding request ended.
    pub failure_status: Option<String>,
    /// Requests behind it.
    pub flushed: u64,
    /// Receives.
    pub receives_flushed: u64,
    /// From the moment that the peer's TCP connection closed to the first failed completion.
    pub milliseconds_to_failure: Option<u64>,
    /// What is not as it must be.
    pub problem: Option<String>,
}

/// What an end does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Role {
    pub(crate) writes: bool,
    pub(crate) mtu: Mtu,
    pub(crate) rate_bits_per_second: Option<u64>,
}

/// The end of a send queue, completion by completion.
#[derive(Clone, Copy, Debug)]
struct SendQueueEnd {
    order: Order,
    succeeded: u64,
    failure: Option<CompletionStatus>,
    flushed: u64,
}

impl SendQueueEnd {
    const fn new() -> SendQueueEnd {
        SendQueueEnd { order: Order::new(Queue::Send), succeeded: 0, failure: None, flushed: 0 }
    }

    fn take(&mut self, completion: &WorkCompletion) -> Result<(), String> {
        let number = self.order.take(completion)?;
        match (self.failure, completion.status) {
            (None, CompletionStatus::Success) => self.succeeded += 1,
            (None, CompletionStatus::RetryExceededError) => self.failure = Some(completion.status),
            (None, status) => {
                self.failure = Some(status);
                return Err(format!(
                    "request {number}, the first that did not succeed: expected RetryExceededError, got {status:?}"
                ));
            }
            (Some(_), CompletionStatus::FlushedError) => self.flushed += 1,
            (Some(first), status) => {
                return Err(format!(
                    "request {number}, after one with {first:?}: expected FlushedError, got {status:?}"
                ));
            }
        }
        Ok(())
    }

    /// What is missing at the end.
    fn verify(&self) -> Result<(), String> {
        match (self.failure, self.order.outstanding()) {
            (None, _) => {
                Err(format!("expected a request with RetryExceededError after {} successes, got none", self.succeeded))
            }
            (Some(_), 0) => Ok(()),
            (Some(_), lost) => Err(format!("expected completions of all requests, got none of the last {lost}")),
        }
    }
}

/// The end of a receive queue.
fn verify_flushed_receives(
    order: &mut Order,
    completions: &mut dyn Iterator<Item = WorkCompletion>,
) -> Result<(), String> {
    for completion in completions {
        let number = order.take(&completion)?;
        if completion.status != CompletionStatus::FlushedError {
            return Err(format!("receive {number}: expected FlushedError, got {:?}", completion.status));
        }
    }
    Ok(())
}

/// One end of a session until death.
pub(crate) struct Survivor<'a> {
    endpoint: &'a Endpoint,
    role: Role,
    layout: Layout,
    pair: Pair,
    sends: SendQueueEnd,
    receives: Order,
}

impl<'a> Survivor<'a> {
    pub(crate) fn new(endpoint: &'a Endpoint, role: Role, first_psn: u32) -> Result<Self, Fault> {
        let writes = Check {
            connection: Connection::Rc,
            operation: Operation::Write,
            bytes: WRITE_BYTES,
            operations: WINDOW,
            seed: 0,
        };
        assert!(memory_bytes(&writes) <= MEMORY_BYTES, "the memory holds a window of WRITEs");
        let options = PairOptions {
            connection: Connection::Rc,
            send_requests: WINDOW,
            receive_requests: RECEIVES,
            remote_access: Access::REMOTE_WRITE,
            first_psn,
            retries: RETRIES_UNTIL_DEATH,
        };
        let pair = Pair::create(endpoint, options)?;
        let layout = Layout::of(&writes);
        let mut receives = Order::new(Queue::Receive);
        for _ in 0..RECEIVES {
            pair.post_receive(ReceiveRequest { id: Queue::Receive.id(receives.post()), local: &[] })?;
        }
        Ok(Survivor { endpoint, role, layout, pair, sends: SendQueueEnd::new(), receives })
    }

    pub(crate) fn info(&self) -> PairInfo {
        self.pair.info(self.role.mtu)
    }

    pub(crate) fn connect(&mut self, plan: &SessionPlan, peer: (&EndInfo, &PairInfo)) -> Result<(), Fault> {
        self.pair.connect(self.endpoint, plan, peer, self.role.mtu)
    }

    /// Goes on until the peer dies, and says what this end then saw.
    pub(crate) fn run(
        &mut self,
        peer: &EndInfo,
        control: &mut Control,
        in_progress: &mut dyn FnMut(u64),
    ) -> Result<DeathReport, Fault> {
        let (mut died, mut failed) = (None, None);
        let mut problem = self.write_until_failure(peer, control, in_progress, (&mut died, &mut failed)).err();
        if self.role.writes && problem.is_none() {
            problem = self.verify_failed_queue_pair().err();
        }
        // The queue pair of an end that only receives never reports it; the program stops that end.
        let flushed = self.flush_receives(control);
        let problem = problem.or(flushed.err());
        let problem = match problem {
            Some(Fault::Check(message)) => Some(message),
            Some(Fault::Session(error)) => return Err(Fault::Session(error)),
            None => None,
        };
        let milliseconds =
            |(died, failed): (Instant, Instant)| failed.saturating_duration_since(died).as_millis() as u64;
        Ok(DeathReport {
            was_writing: self.role.writes,
            succeeded: self.sends.succeeded,
            failure_status: self.sends.failure.map(|status| format!("{status:?}")),
            flushed: self.sends.flushed,
            receives_flushed: self.receives.completed(),
            milliseconds_to_failure: died.zip(failed).map(milliseconds),
            problem,
        })
    }

    /// Until all requests have completed, the last of them badly; or, without requests, until the peer is gone.
    fn write_until_failure(
        &mut self,
        peer: &EndInfo,
        control: &mut Control,
        in_progress: &mut dyn FnMut(u64),
        (died, failed): (&mut Option<Instant>, &mut Option<Instant>),
    ) -> Result<(), Fault> {
        let begin = Instant::now();
        let mut pace = Pace::new(self.role.rate_bits_per_second, begin);
        let mut is_told = false;
        loop {
            let now = Instant::now();
            let mut longest = Duration::from_millis(200);
            while self.role.writes && failed.is_none() && self.sends.order.outstanding() < u64::from(WINDOW) {
                if !pace.delay(now).is_zero() {
                    longest = pace.delay(now);
                    break;
                }
                self.post(peer)?;
                pace.spend(WRITE_BYTES, self.role.mtu.byte_count(), now);
            }
            self.pair.wait(control, longest)?;
            while let Some(completion) = self.pair.sent.pop_front() {
                self.sends.take(&completion)?;
            }
            if self.sends.failure.is_some() {
                failed.get_or_insert(now);
            }
            if died.is_none() && control.is_gone()? {
                *died = Some(now);
            }
            if !is_told && (!self.role.writes || self.sends.succeeded >= UNDER_WAY) {
                is_told = true;
                in_progress(self.sends.succeeded);
            }
            let (waited, most, what) = match (*failed, *died) {
                (Some(_), _) if self.sends.order.outstanding() == 0 => return Ok(()),
                (None, Some(_)) if !self.role.writes => return Ok(()),
                (Some(failed), _) => (failed.elapsed(), FLUSH, "the other requests to be flushed"),
                (None, Some(died)) => (died.elapsed(), GIVING_UP, "RetryExceededError after the peer's end"),
                (None, None) => (begin.elapsed(), LIFE, "the peer to die"),
            };
            if waited > most {
                return Err(Fault::Check(format!(
                    "expected {what} within {} s, got nothing: {} requests succeeded, {} are outstanding",
                    most.as_secs(),
                    self.sends.succeeded,
                    self.sends.order.outstanding()
                )));
            }
        }
    }

    fn post(&mut self, peer: &EndInfo) -> Result<(), Fault> {
        let number = self.sends.order.post();
        let slot = number % self.layout.count() as u64;
        let range = self.layout.message(slot);
        let remote = RemoteMemory { address: peer.memory_address + range.start as u64, key: peer.memory_key };
        let local = [self.endpoint.memory.entry(range)];
        self.pair.post_send(SendRequest::new(Queue::Send.id(number), SendOperation::Write(remote), &local))
    }

    fn verify_failed_queue_pair(&mut self) -> Result<(), Fault> {
        self.sends.verify()?;
        match self.pair.state() {
            QueuePairState::Error => Ok(()),
            state => Err(Fault::Check(format!("expected the queue pair in the error state, got {state:?}"))),
        }
    }

    fn flush_receives(&mut self, control: &Control) -> Result<(), Fault> {
        self.pair.stop()?;
        let deadline = Instant::now() + FLUSH;
        loop {
            verify_flushed_receives(&mut self.receives, &mut self.pair.received.drain(..))?;
            let left = deadline.saturating_duration_since(Instant::now());
            if self.receives.outstanding() == 0 || left.is_zero() {
                break;
            }
            self.pair.wait(control, left)?;
        }
        // What would come twice.
        self.pair.collect()?;
        verify_flushed_receives(&mut self.receives, &mut self.pair.received.drain(..))?;
        while let Some(completion) = self.pair.sent.pop_front() {
            self.sends.take(&completion)?;
        }
        match self.receives.outstanding() {
            0 => Ok(()),
            lost => Err(Fault::Check(format!(
                "expected all {RECEIVES} receives to be flushed, got none of the last {lost}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CompletionStatus::{FlushedError, LocalQueuePairError, RetryExceededError, Success};
    use super::*;

    /// What is said of completions with these numbers and statuses, of this number of requests.
    fn judge(posted: u64, completions: &[(u64, CompletionStatus)]) -> Result<(), String> {
        let mut end = SendQueueEnd::new();
        (0..posted).for_each(|_| assert!(end.order.post() < u64::MAX));
        for &(number, status) in completions {
            end.take(&WorkCompletion { id: Queue::Send.id(number), status, ..WorkCompletion::default() })?;
        }
        end.verify()
    }

    #[test]
    fn successes_then_one_failure_then_flushed() {
        let right = [(0, Success), (1, Success), (2, RetryExceededError), (3, FlushedError), (4, FlushedError)];
        assert_eq!(judge(5, &right), Ok(()));
        assert_eq!(judge(1, &[(0, RetryExceededError)]), Ok(()));
    }

    #[test]
    fn every_other_end_is_wrong() {
        for (posted, completions, words) in [
            (2, &[(0, Success), (1, Success)][..], "expected a request with RetryExceededError after 2"),
            (2, &[(0, Success), (1, FlushedError)], "expected RetryExceededError, got FlushedError"),
            (2, &[(0, LocalQueuePairError), (1, FlushedError)], "expected RetryExceededError, got LocalQueuePairError"),
            (2, &[(0, RetryExceededError), (1, Success)], "expected FlushedError, got Success"),
            (2, &[(0, RetryExceededError), (1, RetryExceededError)], "expected FlushedError, got RetryExceeded"),
            (3, &[(0, RetryExceededError), (1, FlushedError)], "none of the last 1"),
            (3, &[(0, RetryExceededError), (2, FlushedError)], "got that of request 2"),
            (3, &[(0, Success), (0, RetryExceededError)], "request 0 completed twice"),
            (2, &[(0, RetryExceededError), (1, FlushedError), (1, FlushedError)], "request 1 completed twice"),
            (1, &[(0, RetryExceededError), (1, FlushedError)], "after all 1"),
        ] {
            let error = judge(posted, completions).expect_err(words);
            assert!(error.contains(words), "\"{words}\" in: {error}");
        }
    }

    #[test]
    fn receives_are_flushed_in_order_and_once() {
        let judge = |completions: &[(u64, CompletionStatus)]| {
            let mut order = Order::new(Queue::Receive);
            (0..3).for_each(|_| assert!(order.post() < u64::MAX));
            let completion = |&(number, status): &(u64, CompletionStatus)| WorkCompletion {
                id: Queue::Receive.id(number),
                status,
                ..WorkCompletion::default()
            };
            verify_flushed_receives(&mut order, &mut completions.iter().map(completion))
        };
        assert_eq!(judge(&[(0, FlushedError), (1, FlushedError), (2, FlushedError)]), Ok(()));
        assert!(judge(&[(0, FlushedError), (2, FlushedError)]).is_err());
        assert!(judge(&[(0, Success)]).is_err_and(|error| error.contains("expected FlushedError, got Success")));
        assert!(judge(&[(0, FlushedError), (0, FlushedError)]).is_err());
    }
}
