//! The software RNIC: UC and RC WRITEs of 1 MiB, and RC SENDs of 2 bytes back and forth. One device an end, opened when it is
//! first needed.

use std::time::Duration;

use longhaul_softnic::udp::UdpConfig;
use longhaul_verbs::Mtu;

use super::MESSAGE_BYTES;
use super::end::{Buffers, Measurement, StopSign};
use super::orders::{Contact, Outcome, Role, Settings, Subject};
use crate::perf::connection::{Connection, Group, GroupOptions};
use crate::perf::nic::Nic;
use crate::perf::ping_pong::PingPong;
use crate::perf::stop::Stop;
use crate::perf::stream::{Bound, Operation, Receiver, Run, Sender};

/// RC: WRITEs of 1 MiB that are on their way at once.
const WRITES_AT_ONCE: u32 = 16;
/// Acknowledgement time-out: 4.096 µs · 2^14 = 67 ms, perftest's.
const TIMEOUT: u8 = 14;
/// Bytes of a ping.
const PING_BYTES: u32 = 2;

/// Either half of one of the three.
pub(super) fn prepare(
    subject: Subject,
    settings: &Settings,
    buffers: &mut Buffers,
) -> Result<Box<dyn Measurement>, Stop> {
    let nic = buffers.nic(settings)?;
    let (connection, [send_depth, receive_depth]) = match (subject, settings.role) {
        (Subject::RcWrite, _) => (Connection::Rc, [WRITES_AT_ONCE, 1]),
        (Subject::RcSendPingPong, _) => (Connection::Rc, [64, 16]),
        (_, Role::Sender) => (Connection::Uc, [64, 64]),
        (_, Role::Receiver) => (Connection::Uc, [64, 256]),
    };
    let options = GroupOptions {
        connection,
        queue_pairs: 1,
        send_depth,
        receive_depth,
        timeout: TIMEOUT,
        gid_index: 0,
        seed: u64::from_le_bytes(crate::perf::nic::random()?),
    };
    let group = nic.create_group(options)?;
    let mtu = Mtu::largest_within(settings.payload_bytes).unwrap_or_default().min(nic.mtu()?);
    let contact = Contact { verbs: Some(group.contact(settings.address, nic.device.udp_port(), mtu)), socket: None };
    let half = match (subject, settings.role) {
        (Subject::RcSendPingPong, Role::Sender) => Half::Ping(PingPong::new(group)),
        (Subject::RcSendPingPong, Role::Receiver) => Half::Pong(PingPong::new(group)),
        (_, Role::Sender) => Half::Sender(Sender::new(group)),
        (_, Role::Receiver) => Half::Receiver(Receiver::new(group)),
    };
    Ok(Box::new(Softnic { contact, mtu, half }))
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
}

impl Softnic {
    fn packets(&self, bytes: u64) -> u64 {
        bytes / u64::from(self.mtu.byte_count())
    }
}

impl Measurement for Softnic {
    fn contact(&self) -> Contact {
        self.contact.clone()
    }

    fn connect(&mut self, peer: &Contact) -> Result<(), Stop> {
        let peer = peer.verbs.as_ref().ok_or_else(|| Stop::Failed("the other end has no queue pair".to_owned()))?;
        self.mtu = Mtu::largest_within(peer.mtu_bytes).unwrap_or_default().min(self.mtu);
        self.half.group().connect(peer, self.mtu)?;
        match &mut self.half {
            Half::Sender(sender) => sender.start(),
            Half::Receiver(receiver) => receiver.start(&stream_run(Duration::ZERO), MESSAGE_BYTES),
            Half::Ping(ping_pong) | Half::Pong(ping_pong) => ping_pong.start(PING_BYTES as usize),
        }
    }

    fn run(&mut self, duration: Duration, stop: &StopSign) -> Result<Outcome, Stop> {
        let is_stopped = || stop.is_up();
        let never = || false; // A coordinator without the other end tells nobody to run.
        let mut outcome = Outcome::default();
        match &mut self.half {
            Half::Sender(sender) => {
                let sent = sender.run(&stream_run(duration), &never)?;
                outcome.payload_bytes = sent.messages * MESSAGE_BYTES as u64;
                outcome.nanoseconds = sent.elapsed.as_nanos() as u64;
                outcome.processor_nanoseconds = sent.processor.as_nanos() as u64;
            }
            Half::Receiver(receiver) => {
                let received = receiver.run(&stream_run(duration), MESSAGE_BYTES, &is_stopped)?;
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

fn stream_run(duration: Duration) -> Run {
    let message_bytes = MESSAGE_BYTES as u32;
    Run { operation: Operation::Write, message_bytes, bound: Bound::Time(duration), verify_seed: None }
}

fn ping_run(duration: Duration) -> Run {
    Run { operation: Operation::Send, message_bytes: PING_BYTES, bound: Bound::Time(duration), verify_seed: None }
}

/// The device of this end.
pub(super) fn open(settings: &Settings) -> Result<Nic, Stop> {
    let mut udp = UdpConfig::default();
    udp.receive_buffer_bytes = settings.receive_buffer_bytes;
    udp.send_buffer_bytes = settings.send_buffer_bytes;
    Nic::open(&[settings.address], None, udp, settings.buffer_bytes)
}
