//! The software RNIC: UC and RC WRITEs and RC READs of 1 MiB, and RC SENDs of 2 bytes back and forth. One device an
//! end, opened when it is first needed.

use std::time::Duration;

use longhaul_softnic_udp::UdpConfig;
use longhaul_verbs::{Access, Mtu};

use super::measurement::{Buffers, Measurement, StopSign};
use super::orders::{Contact, MESSAGE_BYTES, Outcome, Role, Settings, Subject};
use crate::connection::{Connection, Group, GroupOptions};
use crate::device::{DeviceChoice, OpenedDevice, Towards};
use crate::error::PerfError;
use crate::nic::Nic;
use crate::operation::Operation;
use crate::ping_pong::PingPong;
use crate::randomness::random_number;
use crate::stream::{Bound, Receiver, Run, Sender};

/// RC: WRITEs or READs of 1 MiB in flight.
const MESSAGES_AT_ONCE: u32 = 8;
/// Messages of the measurement with many queue pairs, each of which has one in flight.
const MANY_MESSAGE_BYTES: usize = 64 << 10;
/// Acknowledgement time-out: 4.096 µs · 2^14 = 67 ms, perftest's.
const TIMEOUT: u8 = 14;
/// Bytes of a ping.
const PING_BYTES: u32 = 2;

/// Either half of one of them.
pub(super) fn prepare(
    subject: Subject,
    settings: &Settings,
    buffers: &mut Buffers,
) -> Result<Box<dyn Measurement>, PerfError> {
    let nic = buffers.nic(settings)?;
    let (connection, [send_depth, receive_depth]) = match (subject, settings.role) {
        (Subject::RcWriteMany, _) => (Connection::Rc, [1, 1]),
        (Subject::RcWrite | Subject::RcRead, _) => (Connection::Rc, [MESSAGES_AT_ONCE, 1]),
        (Subject::RcSendPingPong | Subject::RcSendEvents, _) => (Connection::Rc, [64, 16]),
        (_, Role::Sender) => (Connection::Uc, [64, 64]),
        (_, Role::Receiver) => (Connection::Uc, [64, 256]),
    };
    let operation = match subject {
        Subject::RcRead => Operation::Read,
        Subject::RcSendPingPong | Subject::RcSendEvents => Operation::Send,
        _ => Operation::Write,
    };
    let options = GroupOptions {
        connection,
        queue_pairs: if subject == Subject::RcWriteMany { settings.queue_pairs } else { 1 },
        send_depth,
        receive_depth,
        outstanding_reads: if operation == Operation::Read { u8::MAX } else { 0 },
        remote_access: operation.remote_access(),
        sleeps: subject == Subject::RcSendEvents,
        timeout: TIMEOUT,
        rate_bits_per_second: None,
        seed: random_number()?,
    };
    let group = nic.create_group(options)?;
    let mtu = Mtu::largest_within(settings.payload_bytes).unwrap_or_default().min(nic.device.mtu()?);
    let contact = Contact { verbs: Some(group.contact(mtu)), ..Contact::default() };
    let half = match (subject, settings.role) {
        (Subject::RcSendPingPong | Subject::RcSendEvents, Role::Sender) => Half::Ping(PingPong::new(group)),
        (Subject::RcSendPingPong | Subject::RcSendEvents, Role::Receiver) => Half::Pong(PingPong::new(group)),
        (_, Role::Sender) => Half::Sender(Sender::new(group)),
        (_, Role::Receiver) => Half::Receiver(Receiver::new(group)),
    };
    let message_bytes = if subject == Subject::RcWriteMany { MANY_MESSAGE_BYTES } else { MESSAGE_BYTES };
    Ok(Box::new(Softnic { contact, mtu, half, operation, message_bytes }))
}

enum Half {
    Sender(Sender),
    Receiver(Receiver),
    Ping(PingPong),
    Pong(PingPong),
}

impl Half {
    fn group(&mut self) -> &mut Group {
        match self {
            Half::Sender(sender) => sender.group(),
            Half::Receiver(receiver) => receiver.group(),
            Half::Ping(ping_pong) | Half::Pong(ping_pong) => ping_pong.group(),
        }
    }
}

struct Softnic {
    contact: Contact,
    mtu: Mtu,
    half: Half,
    operation: Operation,
    message_bytes: usize,
}

impl Softnic {
    fn stream_run(&self, duration: Duration) -> Run {
        let (message_bytes, bound) = (self.message_bytes as u32, Bound::Time(duration));
        Run { operation: self.operation, message_bytes, bound, verify_seed: None }
    }

    fn packets(&self, bytes: u64) -> u64 {
        bytes / u64::from(self.mtu.byte_count())
    }
}

impl Measurement for Softnic {
    fn contact(&self) -> Contact {
        self.contact.clone()
    }

    fn connect(&mut self, peer: &Contact) -> Result<(), PerfError> {
        let peer =
            peer.verbs.as_ref().ok_or_else(|| PerfError::Failed("the other end has no queue pair".to_owned()))?;
        self.mtu = Mtu::largest_within(peer.mtu_bytes).unwrap_or_default().min(self.mtu);
        self.half.group().connect(peer, self.mtu)?;
        let run = self.stream_run(Duration::ZERO);
        match &mut self.half {
            Half::Sender(sender) => sender.start(),
            Half::Receiver(receiver) => receiver.start(&run, self.message_bytes),
            Half::Ping(ping_pong) | Half::Pong(ping_pong) => ping_pong.start(PING_BYTES as usize),
        }
    }

    fn run(&mut self, duration: Duration, stop: &StopSign) -> Result<Outcome, PerfError> {
        let is_stopped = || stop.is_up();
        let never = || false; // A coordinator without the other end orders nobody to run.
        let stream_run = self.stream_run(duration);
        let mut outcome = Outcome::default();
        match &mut self.half {
            Half::Sender(sender) => {
                let sent = sender.run(&stream_run, &never)?;
                outcome.payload_bytes = sent.messages * self.message_bytes as u64;
                outcome.nanoseconds = sent.elapsed.as_nanos() as u64;
                outcome.processor_nanoseconds = sent.processor.as_nanos() as u64;
            }
            Half::Receiver(receiver) => {
                let received = receiver.run(&stream_run, self.message_bytes, &is_stopped)?;
                outcome.payload_bytes = received.timed_bytes;
                outcome.early_bytes = received.bytes - received.timed_bytes;
                outcome.nanoseconds = received.elapsed.as_nanos() as u64;
                outcome.processor_nanoseconds = received.processor.as_nanos() as u64;
            }
            Half::Ping(ping_pong) => {
                let trips = ping_pong.ping(&ping_run(duration), PING_BYTES as usize, &never)?;
                outcome.round_trips_nanoseconds = trips.nanoseconds;
            }
            Half::Pong(ping_pong) => {
                ping_pong.pong(&ping_run(duration), PING_BYTES as usize, &is_stopped)?;
            }
        }
        outcome.packets = self.packets(outcome.payload_bytes);
        Ok(outcome)
    }
}

fn ping_run(duration: Duration) -> Run {
    Run { operation: Operation::Send, message_bytes: PING_BYTES, bound: Bound::Time(duration), verify_seed: None }
}

/// The device of this end.
pub(super) fn open(settings: &Settings, note: fn(String)) -> Result<Nic, PerfError> {
    let mut udp = UdpConfig::default();
    udp.receive_buffer_bytes = settings.receive_buffer_bytes;
    udp.send_buffer_bytes = settings.send_buffer_bytes;
    // The other end is in another network namespace, but not on another host.
    udp.off_host_congestion = None;
    udp.off_host_rate_bits_per_second = None;
    // One end's warnings are the other's. And that the link carries small packets is no surprise to who asked for it.
    let is_quiet = settings.role == Role::Sender || settings.payload_bytes < Mtu::Bytes4096.byte_count();
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let choice = DeviceChoice::softnic_at(settings.address);
    let towards = Towards { local: settings.address, peer: settings.peer, gid_index: None };
    let device = OpenedDevice::open(&choice, towards, udp)?;
    if !is_quiet {
        device.warnings().for_each(|warning| note(format!("warning: {warning}")));
    }
    Nic::new(device, settings.buffer_bytes, access)
}
