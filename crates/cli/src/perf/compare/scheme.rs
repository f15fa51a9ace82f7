//! Messages of 16 MiB with a reliability scheme over the software RNIC: selective repeat, and erasure coding.

use std::time::Duration;

use longhaul_reliable::NamedScheme;
use longhaul_verbs::Mtu;

use super::end::{Buffers, Measurement, StopSign};
use super::orders::{Contact, Outcome, Role, Settings, Subject};
use crate::perf::operation::Operation;
use crate::perf::scheme_end::{SchemeEnd, SchemeOptions};
use crate::perf::scheme_stream::{SchemeReceiver, SchemeSender, SchemeSent};
use crate::perf::stream::{Bound, Run};
use crate::stop::Stop;

/// Bytes of a message.
pub(super) const MESSAGE_BYTES: u32 = 16 << 20;

/// Either half of one of them.
pub(super) fn prepare(
    subject: Subject,
    settings: &Settings,
    buffers: &mut Buffers,
) -> Result<Box<dyn Measurement>, Stop> {
    let device = buffers.nic(settings)?.device.clone();
    let mtu = Mtu::largest_within(settings.payload_bytes).unwrap_or_default().min(device.mtu()?);
    let name = subject.scheme().unwrap_or_default();
    let scheme: NamedScheme = name.parse().map_err(|error| Stop::failed("there is no such scheme", error))?;
    let options = SchemeOptions {
        scheme,
        mtu,
        chunk_bytes: None,
        buffer_bytes: settings.buffer_bytes,
        message_bytes_max: MESSAGE_BYTES,
        rate_bits_per_second: None,
        checksum: false,
    };
    let end = SchemeEnd::create(&device, &options)?;
    let half = match settings.role {
        Role::Sender => Half::Sender(SchemeSender::new(end, MESSAGE_BYTES, None)),
        Role::Receiver => Half::Receiver(SchemeReceiver::new(end, MESSAGE_BYTES, None)),
    };
    Ok(Box::new(Scheme { half, mtu }))
}

enum Half {
    Sender(SchemeSender),
    Receiver(SchemeReceiver),
}

struct Scheme {
    half: Half,
    mtu: Mtu,
}

impl Scheme {
    fn end(&self) -> &SchemeEnd {
        match &self.half {
            Half::Sender(sender) => &sender.end,
            Half::Receiver(receiver) => &receiver.end,
        }
    }
}

impl Measurement for Scheme {
    fn contact(&self) -> Contact {
        Contact { sdr: Some(self.end().contact().info), ..Contact::default() }
    }

    fn connect(&mut self, peer: &Contact) -> Result<(), Stop> {
        let end = match &mut self.half {
            Half::Sender(sender) => &mut sender.end,
            Half::Receiver(receiver) => &mut receiver.end,
        };
        let info = peer.sdr.as_ref().ok_or_else(|| Stop::Failed("the other end has no SDR queue pair".to_owned()))?;
        end.connect(info)?;
        match &mut self.half {
            Half::Sender(_) => Ok(()),
            Half::Receiver(receiver) => receiver.start(),
        }
    }

    fn run(&mut self, duration: Duration, stop: &StopSign) -> Result<Outcome, Stop> {
        let (operation, message_bytes, bound) = (Operation::Write, MESSAGE_BYTES, Bound::Time(duration));
        let run = Run { operation, message_bytes, bound, verify_seed: None };
        let mut outcome = Outcome::default();
        match &mut self.half {
            Half::Sender(sender) => {
                // A coordinator without the other end tells nobody to run.
                let SchemeSent { sent, totals, .. } = sender.run(&run, &|| false)?;
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
        }
        outcome.packets = outcome.payload_bytes / u64::from(self.mtu.byte_count());
        Ok(outcome)
    }
}
