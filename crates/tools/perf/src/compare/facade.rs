//! What programs use: the library's own endpoint, connection and messages. 64 bytes back and forth.

use std::collections::VecDeque;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use longhaul::{Connection, Endpoint, Listener, Memory, Message, MessageReport, Options, Pending, TransferError};
use longhaul_verbs::Mtu;

use super::measurement::{Buffers, Measurement, StopSign};
use super::orders::{Contact, Outcome, Role, Settings};
use crate::error::PerfError;
use crate::processor;

/// Bytes of a ping.
const PING_BYTES: usize = 64;
/// Where it is sent from; the rest of the memory is received into.
const PING: Range<usize> = 0..PING_BYTES;
/// Receives that are posted ahead, so that neither end has to wait for the other's. RC has more of them.
const PINGS_AHEAD: usize = 4;
/// An answer comes within this time, or the other end has failed.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// How often the answering end checks for the order to stop.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Either half of it.
pub(super) fn prepare(
    wait: Wait,
    settings: &Settings,
    buffers: &mut Buffers,
) -> Result<Box<dyn Measurement>, PerfError> {
    let endpoint = buffers.nic(settings)?.device.endpoint().clone();
    let mut options = Options::default();
    options.mtu = Mtu::largest_within(settings.payload_bytes).unwrap_or_default();
    // The other end is a process of this program, in another namespace.
    options.allow_without_token = true;
    let listener = match settings.role {
        Role::Sender => None,
        Role::Receiver => {
            let listener = endpoint.listen((settings.address, 0), &options);
            Some(listener.map_err(|error| PerfError::failed("cannot listen", error))?)
        }
    };
    let memory = endpoint.register(vec![0x5a; (1 + PINGS_AHEAD) * PING_BYTES]);
    let memory = memory.map_err(|error| PerfError::failed("cannot register memory", error))?;
    let receives = VecDeque::new();
    Ok(Box::new(Facade { endpoint, options, listener, connection: None, memory, next_place: 0, receives, wait }))
}

struct Facade {
    endpoint: Endpoint,
    options: Options,
    /// Of the end that answers.
    listener: Option<Listener>,
    connection: Option<Connection>,
    memory: Memory,
    /// Where the next receive goes.
    next_place: usize,
    /// Posted, between rounds too.
    receives: VecDeque<Pending<Message, TransferError>>,
    wait: Wait,
}

/// How a thread waits for a message.
#[derive(Clone, Copy)]
pub(super) enum Wait {
    /// It drives the connection.
    Drives,
    /// It leaves that to the endpoint, as an asynchronous program does.
    Sleeps,
}

impl Wait {
    fn wait<T>(self, mut pending: Pending<T, TransferError>, patience: Duration) -> Waited<T> {
        if let Wait::Drives = self {
            return pending.wait_for(patience);
        }
        let deadline = Instant::now() + patience;
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        loop {
            if let Poll::Ready(result) = Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)) {
                return Ok(result);
            }
            match deadline.checked_duration_since(Instant::now()) {
                None | Some(Duration::ZERO) => return Err(pending),
                Some(left) => thread::park_timeout(left),
            }
        }
    }
}

type Waited<T> = Result<Result<T, TransferError>, Pending<T, TransferError>>;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn made(connection: &Option<Connection>) -> Result<&Connection, PerfError> {
    connection.as_ref().ok_or_else(|| PerfError::Failed("the connection has not been made".to_owned()))
}

fn in_time<T>(waited: Waited<T>) -> Result<T, PerfError> {
    waited.map_err(|_| PerfError::Failed("the other end does not answer".to_owned()))?.map_err(lost)
}

fn lost(error: TransferError) -> PerfError {
    PerfError::failed("a message was lost", error)
}

impl Measurement for Facade {
    fn contact(&self) -> Contact {
        Contact { socket: self.listener.as_ref().map(Listener::local_address), ..Contact::default() }
    }

    fn connect(&mut self, peer: &Contact) -> Result<(), PerfError> {
        let connection = match (&self.listener, peer.socket) {
            (Some(listener), _) => {
                listener.accept().wait().map_err(|error| PerfError::failed("nobody was accepted", error))?
            }
            (None, Some(to)) => {
                let connecting = self.endpoint.connect(to, &self.options);
                connecting.wait().map_err(|error| PerfError::failed("cannot connect", error))?
            }
            (None, None) => return Err(PerfError::Failed("the other end does not listen".to_owned())),
        };
        self.connection = Some(connection);
        (0..PINGS_AHEAD).try_for_each(|_| self.post_receive())
    }

    fn run(&mut self, duration: Duration, stop: &StopSign) -> Result<Outcome, PerfError> {
        let processor_before = processor::time_used();
        let mut outcome = match self.listener {
            None => self.ping(duration)?,
            Some(_) => self.pong(stop)?,
        };
        outcome.processor_nanoseconds = processor::time_used().saturating_sub(processor_before).as_nanos() as u64;
        Ok(outcome)
    }
}

impl Facade {
    fn post_receive(&mut self) -> Result<(), PerfError> {
        let start = PING.end + self.next_place * PING_BYTES;
        self.next_place = (self.next_place + 1) % PINGS_AHEAD;
        self.receives.push_back(made(&self.connection)?.receive_into(&self.memory, start..start + PING_BYTES));
        Ok(())
    }

    /// The one that completes next.
    fn next_receive(&mut self) -> Result<Pending<Message, TransferError>, PerfError> {
        self.receives.pop_front().ok_or_else(|| PerfError::Failed("no receive is posted".to_owned()))
    }

    fn ping(&mut self, duration: Duration) -> Result<Outcome, PerfError> {
        let mut outcome = Outcome::default();
        let mut ping: Option<Pending<MessageReport, TransferError>> = None;
        let begun = Instant::now();
        while begun.elapsed() < duration {
            let trip = Instant::now();
            let next = made(&self.connection)?.write_from(&self.memory, PING);
            let answer = self.next_receive()?;
            in_time(self.wait.wait(answer, ANSWER_PATIENCE))?;
            let nanoseconds = u32::try_from(trip.elapsed().as_nanos()).unwrap_or(u32::MAX);
            outcome.round_trips_nanoseconds.push(nanoseconds);
            self.post_receive()?;
            if let Some(ping) = ping.replace(next) {
                in_time(self.wait.wait(ping, ANSWER_PATIENCE))?;
            }
        }
        if let Some(ping) = ping {
            in_time(self.wait.wait(ping, ANSWER_PATIENCE))?;
        }
        Ok(outcome)
    }

    fn pong(&mut self, stop: &StopSign) -> Result<Outcome, PerfError> {
        let mut pong: Option<Pending<MessageReport, TransferError>> = None;
        loop {
            let ping = self.next_receive()?;
            match self.wait.wait(ping, LOOK_EVERY) {
                Ok(message) => {
                    message.map_err(lost)?;
                    // What both have to send to the other end goes in one packet.
                    self.post_receive()?;
                    let next = made(&self.connection)?.write_from(&self.memory, PING);
                    if let Some(pong) = pong.replace(next) {
                        in_time(self.wait.wait(pong, ANSWER_PATIENCE))?;
                    }
                }
                Err(waiting) => {
                    self.receives.push_front(waiting);
                    if stop.is_up() {
                        return Ok(Outcome::default());
                    }
                }
            }
        }
    }
}
