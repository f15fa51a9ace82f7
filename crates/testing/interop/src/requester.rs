//! The client's side of a check: posts every operation, and holds its completions, and what READs and atomics bring,
//! against what must come.

use std::time::{Duration, Instant};

use longhaul_verbs::{Access, Mtu, RemoteMemory, SendOperation, SendRequest};

use crate::contents::{Contents, Layout, immediate};
use crate::control::Control;
use crate::endpoint::Endpoint;
use crate::fault::{Fault, InteropError};
use crate::ledger::{Numbers, Order, Queue, verify_request};
use crate::messages::{EndInfo, Reply, SessionPlan};
use crate::pace::{Pace, credit};
use crate::pair::{Pair, PairOptions, RETRIES};
use crate::plan::{Check, Connection, Operation};
use crate::words::Words;

/// Operations in flight.
const WINDOW: u32 = 32;
/// And bytes, beyond the first operation: long messages must not fill the queues of the network.
const WINDOW_BYTES: u32 = 256 << 10;
/// What has not arrived by then is lost; the check has failed, and goes on to count.
const ARRIVAL_PATIENCE: Duration = Duration::from_secs(2);
/// RC gives up after some seconds; by then something must have completed, well or badly.
const PATIENCE: Duration = Duration::from_secs(30);

/// The client's half of a check.
pub(crate) struct Requester<'a> {
    endpoint: &'a Endpoint,
    check: Check,
    layout: Layout,
    mtu: Mtu,
    pub(crate) pair: Pair,
    order: Order,
    words: Words,
    /// What the atomics in flight must bring back.
    olds: Vec<u64>,
}

impl<'a> Requester<'a> {
    pub(crate) fn new(endpoint: &'a Endpoint, check: Check, mtu: Mtu, first_psn: u32) -> Result<Self, Fault> {
        let layout = Layout::of(&check);
        let options = PairOptions {
            connection: check.connection,
            send_requests: WINDOW,
            receive_requests: 1,
            remote_access: Access::empty(),
            first_psn,
            retries: RETRIES,
        };
        let pair = Pair::create(endpoint, options)?;
        // What is sent is there from the start; where answers go is nothing yet.
        endpoint.fill(&check, &layout, |number| match check.operation.is_answered() {
            true => Contents::Untouched,
            false => Contents::Message(number),
        });
        let order = Order::new(Queue::Send);
        Ok(Requester { endpoint, check, layout, mtu, pair, order, words: Words::new(&check), olds: Vec::new() })
    }

    pub(crate) const fn completed(&self) -> u64 {
        self.order.completed()
    }

    /// Carries out all operations.
    pub(crate) fn run(
        &mut self,
        plan: &SessionPlan,
        peer: &EndInfo,
        numbers: Numbers,
        control: &mut Control,
    ) -> Result<(), Fault> {
        let count = u64::from(self.check.operations);
        let window = u64::from((WINDOW_BYTES / self.check.bytes.max(1) + 1).min(WINDOW));
        // A reliable connection slows down by itself, if the device does not do it anyhow.
        let paced = plan.rate_bits_per_second.filter(|_| self.check.connection != Connection::Rc);
        let mut pace = Pace::new(paced, Instant::now());
        let credit = match self.check.connection {
            Connection::Rc => u64::MAX,
            Connection::Uc | Connection::Ud => credit(self.check.bytes),
        };
        // What is known to have arrived, or given up.
        let (mut arrived, mut last_arrival) = (0, Instant::now());
        let mut last_progress = Instant::now();
        while self.order.completed() < count {
            let now = Instant::now();
            if last_arrival.elapsed() > ARRIVAL_PATIENCE {
                (arrived, last_arrival) = (self.order.posted(), now);
            }
            let may_post = |order: &Order| {
                order.posted() < count
                    && order.outstanding() < window
                    && order.posted() - arrived.min(order.posted()) < credit
            };
            while may_post(&self.order) && pace.delay(now).is_zero() {
                self.post(peer)?;
                pace.spend(self.check.bytes, self.mtu.byte_count(), now);
            }
            let longest = if may_post(&self.order) { pace.delay(now) } else { Duration::from_secs(1) };
            self.pair.wait(control, longest)?;
            while let Some(reply) = control.try_receive("operations were in flight")? {
                match reply {
                    Reply::Arrived(number) => (arrived, last_arrival) = (arrived.max(number), Instant::now()),
                    Reply::Refused { reason, .. } => return Err(InteropError::Refused { reason }.into()),
                    other => {
                        let got = format!("{other:?}");
                        return Err(InteropError::Unexpected { expected: "nothing but what has arrived", got }.into());
                    }
                }
            }
            while let Some(completion) = self.pair.sent.pop_front() {
                last_progress = Instant::now();
                let number = verify_request(&self.check, numbers, &mut self.order, &completion)?;
                self.verify_answer(number)?;
            }
            if last_progress.elapsed() > PATIENCE {
                return Err(Fault::Check(format!(
                    "no completion for {} s: {} of {count} operations have completed, {} are outstanding",
                    PATIENCE.as_secs(),
                    self.order.completed(),
                    self.order.outstanding()
                )));
            }
        }
        self.verify_end(numbers)
    }

    fn post(&mut self, peer: &EndInfo) -> Result<(), Fault> {
        let number = self.order.post();
        // The server's slots are where ours are, but for those that receives describe.
        let remote = |slot: u64| RemoteMemory {
            address: peer.memory_address + self.layout.message(slot).start as u64,
            key: peer.memory_key,
        };
        let bits = immediate(&self.check, number);
        let operation = match self.check.operation {
            Operation::Send => SendOperation::Send,
            Operation::SendImmediate => SendOperation::SendWithImmediate(bits),
            Operation::Write => SendOperation::Write(remote(number)),
            Operation::WriteImmediate => SendOperation::WriteWithImmediate(remote(number), bits),
            Operation::Read => SendOperation::Read(remote(number)),
            Operation::CompareAndSwap | Operation::FetchAndAdd => {
                let step = self.words.step(&self.check, number);
                self.olds.push(step.old);
                step.operation(remote(step.word))
            }
        };
        let local = [self.endpoint.memory.entry(self.layout.message(number))];
        // A message without bytes needs no memory.
        let local = if self.check.bytes == 0 { &[][..] } else { &local };
        self.pair.post_send(SendRequest::new(Queue::Send.id(number), operation, local))
    }

    /// What an operation that has just completed must have brought.
    fn answer(&self, number: u64) -> Contents {
        match self.check.operation {
            operation if operation.is_atomic() => Contents::Word(self.olds[number as usize]),
            _ => Contents::Message(number),
        }
    }

    fn verify_answer(&self, number: u64) -> Result<(), Fault> {
        if !self.check.operation.is_answered() {
            return Ok(());
        }
        let verified = self.endpoint.verify_slot(&self.check, &self.layout, number, self.answer(number));
        Ok(verified.map_err(|error| match self.check.operation.is_atomic() {
            true => format!("the old value that atomic {number} has brought is wrong: {error}"),
            false => format!("what READ {number} has brought is wrong: {error}"),
        })?)
    }

    /// Nothing completes twice, and nobody has written anywhere else.
    fn verify_end(&mut self, numbers: Numbers) -> Result<(), Fault> {
        self.pair.collect()?;
        if let Some(completion) = self.pair.sent.pop_front() {
            verify_request(&self.check, numbers, &mut self.order, &completion)?;
        }
        if let Some(completion) = self.pair.received.pop_front() {
            return Err(Fault::Check(format!("expected no receive to complete at the client, got {completion:?}")));
        }
        let verified = self.endpoint.verify(&self.check, &self.layout, |number| self.answer(number));
        Ok(verified.map_err(|error| format!("the client's memory at the end: {error}"))?)
    }
}
