//! Messages of 16 MiB with a reliability scheme, through the library as programs use it: selective repeat, and erasure
//! coding.

use std::time::Duration;

use longhaul::{Endpoint, Listener};
use longhaul_reliable::SchemeList;
use longhaul_verbs::Mtu;

use super::measurement::{Buffers, Measurement, StopSign};
use super::orders::{Contact, Outcome, Role, Settings, Subject};
use crate::error::PerfError;
use crate::operation::Operation;
use crate::scheme_end::{SchemeEnd, SchemeOptions};
use crate::scheme_stream::{SchemeReceiver, SchemeSender, SchemeSent};
use crate::settings::Congestion;
use crate::stream::{Bound, Run};

/// Bytes of a message.
const MESSAGE_BYTES: u32 = 16 << 20;
/// How long the other end may take to connect.
const ACCEPT_PATIENCE: Duration = Duration::from_secs(30);

/// Either half of one of them.
pub(super) fn prepare(
    subject: Subject,
    settings: &Settings,
    buffers: &mut Buffers,
) -> Result<Box<dyn Measurement>, PerfError> {
    let device = buffers.nic(settings)?.device.clone();
    let mtu = Mtu::largest_within(settings.payload_bytes).unwrap_or_default().min(device.mtu()?);
    let endpoint = match subject {
        Subject::SdrErasureInline => device.endpoint().clone().with_coding_threads(0),
        _ => device.endpoint().clone(),
    };
    let name = subject.scheme().unwrap_or_default();
    let schemes: SchemeList = name.parse().map_err(|error| PerfError::failed("there is no such scheme", error))?;
    let options = SchemeOptions {
        schemes,
        mtu,
        chunk_bytes: None,
        congestion: Congestion::Default,
        rate_bits_per_second: None,
        checksum: false,
    };
    let half = match settings.role {
        Role::Sender => Half::Connecting,
        Role::Receiver => {
            let mut options = options.for_library();
            // The other end is a process of this program, in another namespace.
            options.allow_without_token = true;
            let listener = endpoint.listen((settings.address, 0), &options);
            Half::Listening(listener.map_err(|error| PerfError::failed("cannot listen", error))?)
        }
    };
    let is_coded = subject != Subject::SdrSelectiveRepeat;
    Ok(Box::new(Scheme { half, endpoint, options, buffer_bytes: settings.buffer_bytes, is_coded }))
}

enum Half {
    Connecting,
    Listening(Listener),
    Sender(Box<SchemeSender>),
    Receiver(Box<SchemeReceiver>),
}

struct Scheme {
    half: Half,
    endpoint: Endpoint,
    options: SchemeOptions,
    buffer_bytes: usize,
    is_coded: bool,
}

impl Measurement for Scheme {
    fn contact(&self) -> Contact {
        let socket = match &self.half {
            Half::Listening(listener) => Some(listener.local_address()),
            _ => None,
        };
        Contact { socket, ..Contact::default() }
    }

    fn connect(&mut self, peer: &Contact) -> Result<(), PerfError> {
        let Scheme { half, endpoint, options, buffer_bytes, .. } = self;
        *half = match (&half, peer.socket) {
            (Half::Listening(listener), _) => {
                let end = SchemeEnd::accept(endpoint, listener, *buffer_bytes, ACCEPT_PATIENCE, &|| false)?;
                Half::Receiver(Box::new(SchemeReceiver::new(end, MESSAGE_BYTES, None, None)))
            }
            (_, Some(to)) => {
                let end = SchemeEnd::connect(endpoint, &to.to_string(), options, *buffer_bytes)?;
                Half::Sender(Box::new(SchemeSender::new(end, MESSAGE_BYTES, None, None)))
            }
            (_, None) => return Err(PerfError::Failed("the other end does not listen".to_owned())),
        };
        Ok(())
    }

    fn run(&mut self, duration: Duration, stop: &StopSign) -> Result<Outcome, PerfError> {
        let (operation, message_bytes, bound) = (Operation::Write, MESSAGE_BYTES, Bound::Time(duration));
        let run = Run { operation, message_bytes, bound, verify_seed: None };
        let mut outcome = Outcome::default();
        match &mut self.half {
            Half::Sender(sender) => {
                let SchemeSent { sent, totals, .. } = sender.run(&run)?;
                outcome.payload_bytes = sent.messages * u64::from(MESSAGE_BYTES);
                outcome.nanoseconds = sent.elapsed.as_nanos() as u64;
                outcome.processor_nanoseconds = sent.processor.as_nanos() as u64;
                outcome.repeated_packets = totals.data_packets_repeated;
            }
            Half::Receiver(receiver) => {
                let (received, _) = receiver.run(&run, &|| stop.is_up())?;
                outcome.payload_bytes = received.timed_bytes;
                outcome.early_bytes = received.bytes - received.timed_bytes;
                outcome.nanoseconds = received.elapsed.as_nanos() as u64;
                outcome.processor_nanoseconds = received.processor.as_nanos() as u64;
            }
            Half::Connecting | Half::Listening(_) => return Err(PerfError::Failed("it is not connected".to_owned())),
        }
        outcome.packets = outcome.payload_bytes / u64::from(self.options.mtu.byte_count());
        outcome.coding_threads = self.is_coded.then(|| self.endpoint.coding_threads());
        Ok(outcome)
    }
}
