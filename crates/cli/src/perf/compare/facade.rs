//! What programs use: the library's own endpoint, connection and messages. 16 MiB at a time with selective repeat and with erasure coding, and 64
//! bytes back and forth.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use longhaul::{Connection, Endpoint, Listener, Memory, Message, Options, Pending, TransferError};
use longhaul_verbs::Mtu;

use super::end::{Buffers, Measurement, StopSign};
use super::orders::{Contact, Outcome, Role, Settings, Subject};
use super::scheme;
use crate::perf::processor;
use crate::stop::Stop;

/// Messages that are under way at once, as `scheme` has them.
const MESSAGES_AT_ONCE: usize = 3;
/// Bytes of a ping.
const PING_BYTES: usize = 64;
/// How often a receiver looks whether it is told to stop.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Either half of one of them.
pub(super) fn prepare(
    subject: Subject,
    settings: &Settings,
    buffers: &mut Buffers,
) -> Result<Box<dyn Measurement>, Stop> {
    let mut endpoint = buffers.nic(settings)?.device.endpoint().clone();
    if subject == Subject::FacadeErasureInline {
        endpoint = endpoint.with_coding_threads(0);
    }
    let is_coded = matches!(subject, Subject::FacadeErasure | Subject::FacadeErasureInline);
    let mut options = match subject.scheme() {
        Some(name) => Options::with_scheme(name).map_err(|error| Stop::failed("there is no such scheme", error))?,
        None => Options::default(),
    };
    options.mtu = Mtu::largest_within(settings.payload_bytes).unwrap_or_default();
    // The other end is a process of this program, in another namespace.
    options.allow_without_token = true;
    let listener = match settings.role {
        Role::Sender => None,
        Role::Receiver => {
            let listener = endpoint.listen((settings.address, 0), &options);
            Some(listener.map_err(|error| Stop::failed("nobody can listen", error))?)
        }
    };
    let is_ping_pong = subject == Subject::FacadePingPong;
    let (message_bytes, buffer_bytes) = match is_ping_pong {
        true => (PING_BYTES, 2 * PING_BYTES),
        false => (scheme::MESSAGE_BYTES as usize, settings.buffer_bytes),
    };
    // Not zeros, of which there would be only one page.
    let memory = endpoint.register(vec![0x5a; buffer_bytes]);
    let memory = memory.map_err(|error| Stop::failed("memory cannot be registered", error))?;
    let packet_bytes = u64::from(options.mtu.byte_count());
    let ring = Ring { memory, message_bytes, messages: buffer_bytes / message_bytes, next: 0 };
    Ok(Box::new(Facade {
        endpoint,
        options,
        listener,
        connection: None,
        ring,
        packet_bytes,
        is_ping_pong,
        is_coded,
        receives: VecDeque::new(),
    }))
}

struct Facade {
    endpoint: Endpoint,
    options: Options,
    /// Of the receiver.
    listener: Option<Listener>,
    connection: Option<Connection>,
    ring: Ring,
    packet_bytes: u64,
    is_ping_pong: bool,
    is_coded: bool,
    /// That are under way, between rounds too.
    receives: VecDeque<Pending<Message, TransferError>>,
}

/// Registered memory, used one message after another.
struct Ring {
    memory: Memory,
    message_bytes: usize,
    messages: usize,
    next: usize,
}

impl Ring {
    fn next(&mut self) -> (&Memory, std::ops::Range<usize>) {
        let start = self.next * self.message_bytes;
        self.next = (self.next + 1) % self.messages;
        (&self.memory, start..start + self.message_bytes)
    }
}

fn made(connection: &Option<Connection>) -> Result<&Connection, Stop> {
    connection.as_ref().ok_or_else(|| Stop::Failed("the connection has not been made".to_owned()))
}

fn lost(error: TransferError) -> Stop {
    Stop::failed("a message was lost", error)
}

impl Measurement for Facade {
    fn contact(&self) -> Contact {
        Contact { socket: self.listener.as_ref().map(Listener::local_address), ..Contact::default() }
    }

    fn connect(&mut self, peer: &Contact) -> Result<(), Stop> {
        let connection = match (&self.listener, peer.socket) {
            (Some(listener), _) => {
                listener.accept().wait().map_err(|error| Stop::failed("nobody was accepted", error))?
            }
            (None, Some(to)) => {
                let connecting = self.endpoint.connect(to, &self.options);
                connecting.wait().map_err(|error| Stop::failed("the connection cannot be made", error))?
            }
            (None, None) => return Err(Stop::Failed("the other end does not listen".to_owned())),
        };
        self.connection = Some(connection);
        if self.listener.is_some() && !self.is_ping_pong {
            (0..MESSAGES_AT_ONCE).try_for_each(|_| self.post_receive())?;
        }
        Ok(())
    }

    fn run(&mut self, duration: Duration, stop: &StopSign) -> Result<Outcome, Stop> {
        let processor_before = processor::time_used();
        let mut outcome = match (self.listener.is_some(), self.is_ping_pong) {
            (false, false) => self.send(duration)?,
            (true, false) => self.receive(stop)?,
            (false, true) => self.ping(duration)?,
            (true, true) => self.pong(stop)?,
        };
        outcome.processor_nanoseconds = processor::time_used().saturating_sub(processor_before).as_nanos() as u64;
        outcome.packets = outcome.payload_bytes / self.packet_bytes;
        outcome.coding_threads = self.is_coded.then(|| self.endpoint.coding_threads());
        Ok(outcome)
    }
}

impl Facade {
    fn post_receive(&mut self) -> Result<(), Stop> {
        let (memory, range) = self.ring.next();
        self.receives.push_back(made(&self.connection)?.receive_into(memory, range));
        Ok(())
    }

    fn send(&mut self, duration: Duration) -> Result<Outcome, Stop> {
        let mut outcome = Outcome::default();
        let mut writes = VecDeque::new();
        let begun = Instant::now();
        loop {
            while writes.len() < MESSAGES_AT_ONCE && begun.elapsed() < duration {
                let (memory, range) = self.ring.next();
                writes.push_back(made(&self.connection)?.write_from(memory, range));
            }
            let Some(write) = writes.pop_front() else { break };
            let report = write.wait().map_err(lost)?;
            outcome.payload_bytes += self.ring.message_bytes as u64;
            outcome.repeated_packets += report.data_packets_repeated;
        }
        outcome.nanoseconds = begun.elapsed().as_nanos() as u64;
        Ok(outcome)
    }

    fn receive(&mut self, stop: &StopSign) -> Result<Outcome, Stop> {
        let mut outcome = Outcome::default();
        while let Some(receive) = self.receives.pop_front() {
            match receive.wait_for(LOOK_EVERY) {
                Ok(message) => {
                    outcome.payload_bytes += message.map_err(lost)?.len() as u64;
                    self.post_receive()?;
                }
                Err(receive) => {
                    self.receives.push_front(receive);
                    if stop.is_up() {
                        break;
                    }
                }
            }
        }
        Ok(outcome)
    }

    fn ping(&mut self, duration: Duration) -> Result<Outcome, Stop> {
        let mut outcome = Outcome::default();
        let (memory, connection) = (&self.ring.memory, made(&self.connection)?);
        let begun = Instant::now();
        while begun.elapsed() < duration {
            let trip = Instant::now();
            let answer = connection.receive_into(memory, PING_BYTES..2 * PING_BYTES);
            let ping = connection.write_from(memory, 0..PING_BYTES);
            answer.wait().map_err(lost)?;
            let nanoseconds = u32::try_from(trip.elapsed().as_nanos()).unwrap_or(u32::MAX);
            outcome.round_trips_nanoseconds.push(nanoseconds);
            ping.wait().map_err(lost)?;
        }
        Ok(outcome)
    }

    fn pong(&mut self, stop: &StopSign) -> Result<Outcome, Stop> {
        let connection = made(&self.connection)?;
        let memory = &self.ring.memory;
        let mut ping = self.receives.pop_front();
        loop {
            let waiting = ping.take().unwrap_or_else(|| connection.receive_into(memory, PING_BYTES..2 * PING_BYTES));
            match waiting.wait_for(LOOK_EVERY) {
                Ok(message) => {
                    message.map_err(lost)?;
                    connection.write_from(memory, 0..PING_BYTES).wait().map_err(lost)?;
                }
                Err(waiting) if stop.is_up() => {
                    self.receives.push_front(waiting);
                    return Ok(Outcome::default());
                }
                Err(waiting) => ping = Some(waiting),
            }
        }
    }
}
