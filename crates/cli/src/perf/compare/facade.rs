//! What programs use: the library's own endpoint, connection and messages. 64 bytes back and forth.

use std::time::{Duration, Instant};

use longhaul::{Connection, Endpoint, Listener, Memory, Message, Options, Pending, TransferError};
use longhaul_verbs::Mtu;

use super::end::{Buffers, Measurement, StopSign};
use super::orders::{Contact, Outcome, Role, Settings};
use crate::perf::processor;
use crate::stop::Stop;

/// Bytes of a ping.
const PING_BYTES: usize = 64;
/// How often the end that answers looks whether it is told to stop.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Either half of it.
pub(super) fn prepare(settings: &Settings, buffers: &mut Buffers) -> Result<Box<dyn Measurement>, Stop> {
    let endpoint = buffers.nic(settings)?.device.endpoint().clone();
    let mut options = Options::default();
    options.mtu = Mtu::largest_within(settings.payload_bytes).unwrap_or_default();
    // The other end is a process of this program, in another namespace.
    options.allow_without_token = true;
    let listener = match settings.role {
        Role::Sender => None,
        Role::Receiver => {
            let listener = endpoint.listen((settings.address, 0), &options);
            Some(listener.map_err(|error| Stop::failed("cannot listen", error))?)
        }
    };
    let memory = endpoint.register(vec![0x5a; 2 * PING_BYTES]);
    let memory = memory.map_err(|error| Stop::failed("cannot register memory", error))?;
    Ok(Box::new(Facade { endpoint, options, listener, connection: None, memory, ping: None }))
}

struct Facade {
    endpoint: Endpoint,
    options: Options,
    /// Of the end that answers.
    listener: Option<Listener>,
    connection: Option<Connection>,
    memory: Memory,
    /// The receive of the next ping, between rounds too.
    ping: Option<Pending<Message, TransferError>>,
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
                connecting.wait().map_err(|error| Stop::failed("cannot connect", error))?
            }
            (None, None) => return Err(Stop::Failed("the other end does not listen".to_owned())),
        };
        self.connection = Some(connection);
        Ok(())
    }

    fn run(&mut self, duration: Duration, stop: &StopSign) -> Result<Outcome, Stop> {
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
    fn ping(&mut self, duration: Duration) -> Result<Outcome, Stop> {
        let mut outcome = Outcome::default();
        let (memory, connection) = (&self.memory, made(&self.connection)?);
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
        let (memory, connection) = (&self.memory, made(&self.connection)?);
        let mut ping = self.ping.take();
        loop {
            let waiting = ping.take().unwrap_or_else(|| connection.receive_into(memory, PING_BYTES..2 * PING_BYTES));
            match waiting.wait_for(LOOK_EVERY) {
                Ok(message) => {
                    message.map_err(lost)?;
                    connection.write_from(memory, 0..PING_BYTES).wait().map_err(lost)?;
                }
                Err(waiting) if stop.is_up() => {
                    self.ping = Some(waiting);
                    return Ok(Outcome::default());
                }
                Err(waiting) => ping = Some(waiting),
            }
        }
    }
}
