//! Bare UDP: the limit of everything that is carried by it.
//!
//! Datagrams as long as RoCE packets, as many of them in a call, from and into buffers as large as those of the RDMA
//! measurements, with the same socket buffers; but no headers to make, no ICRC, no queue pairs, no acknowledgements.
//! What counts is payload that arrived.

use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};

use super::measurement::{Buffers, Measurement, SharedBuffer, StopSign};
use super::orders::{Contact, Outcome, Role, Settings};
use super::stopwatch::{READ_PATIENCE, ReceiverWatch, SenderWatch, is_nothing_there};
use crate::error::PerfError;

/// The headers around a RoCE packet's payload that are UDP payload: BTH before it, ICRC behind it.
const HEADER_BYTES: usize = 12 + 4;
/// The most that one datagram, and so one call, may carry.
const CALL_BYTES_MAX: usize = 65_507;
/// The most segments of one call that every kernel takes.
const CALL_SEGMENTS_MAX: usize = 64;
/// Bytes of a datagram of the ping-pong: a RoCE packet with 2 bytes of payload, padded to 4.
const PING_BYTES: usize = HEADER_BYTES + 4;
/// A ping that has not come back after this long was lost.
const PING_PATIENCE: Duration = Duration::from_millis(20);

/// Sender or receiver of a stream of datagrams.
pub(super) fn prepare(settings: &Settings, buffers: &mut Buffers) -> Result<Box<dyn Measurement>, PerfError> {
    let socket = open(settings.address)?;
    let segment_bytes = settings.payload_bytes as usize + HEADER_BYTES;
    let buffer = buffers.plain(settings.buffer_bytes);
    match settings.role {
        Role::Sender => {
            // As large as the software RNIC's: more than the limit where that is allowed, else as much as is. What
            // the kernel refuses here, it refuses there as well.
            let _ = setsockopt(&socket, sockopt::SndBufForce, &settings.send_buffer_bytes)
                .or_else(|_| setsockopt(&socket, sockopt::SndBuf, &settings.send_buffer_bytes));
            let length = segment_bytes as i32;
            setsockopt(&socket, sockopt::UdpGsoSegment, &length).map_err(|error| lacks("UDP_SEGMENT", error))?;
            let call_segments = (CALL_BYTES_MAX / segment_bytes).min(CALL_SEGMENTS_MAX);
            Ok(Box::new(Sender { socket, buffer, segment_bytes, call_bytes: segment_bytes * call_segments, at: 0 }))
        }
        Role::Receiver => {
            let _ = setsockopt(&socket, sockopt::RcvBufForce, &settings.receive_buffer_bytes)
                .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &settings.receive_buffer_bytes));
            setsockopt(&socket, sockopt::UdpGroSegment, &true).map_err(|error| lacks("UDP_GRO", error))?;
            Ok(Box::new(Receiver { socket, buffer, segment_bytes, at: 0 }))
        }
    }
}

fn open(address: IpAddr) -> Result<UdpSocket, PerfError> {
    UdpSocket::bind((address, 0))
        .map_err(|error| PerfError::missing(format!("cannot bind a UDP socket to {address}"), error))
}

fn lacks(option: &str, error: nix::Error) -> PerfError {
    PerfError::Missing(format!("this kernel has no {option} ({error}); Linux has it since 5.0"))
}

fn local(socket: &UdpSocket) -> Contact {
    Contact { socket: socket.local_addr().ok(), ..Contact::default() }
}

fn connect(socket: &UdpSocket, peer: &Contact) -> Result<(), PerfError> {
    let peer = peer.socket.ok_or_else(|| PerfError::Failed("the other end has no UDP socket".to_owned()))?;
    socket.connect(peer).map_err(|error| PerfError::failed(format!("cannot connect to {peer}"), error))
}

struct Sender {
    socket: UdpSocket,
    buffer: SharedBuffer,
    segment_bytes: usize,
    call_bytes: usize,
    at: usize,
}

impl Measurement for Sender {
    fn contact(&self) -> Contact {
        local(&self.socket)
    }

    fn connect(&mut self, peer: &Contact) -> Result<(), PerfError> {
        connect(&self.socket, peer)
    }

    fn run(&mut self, duration: Duration, _stop: &StopSign) -> Result<Outcome, PerfError> {
        let buffer = self.buffer.borrow();
        let watch = SenderWatch::start();
        let mut calls = 0;
        while watch.elapsed() < duration {
            if self.at + self.call_bytes > buffer.len() {
                self.at = 0;
            }
            match self.socket.send(&buffer[self.at..self.at + self.call_bytes]) {
                Ok(_) => calls += 1,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(PerfError::failed("cannot send a datagram", error)),
            }
            self.at += self.call_bytes;
        }
        let packets = calls * (self.call_bytes / self.segment_bytes) as u64;
        Ok(watch.outcome(packets * (self.segment_bytes - HEADER_BYTES) as u64, packets))
    }
}

struct Receiver {
    socket: UdpSocket,
    buffer: SharedBuffer,
    segment_bytes: usize,
    at: usize,
}

impl Measurement for Receiver {
    fn contact(&self) -> Contact {
        local(&self.socket)
    }

    fn connect(&mut self, peer: &Contact) -> Result<(), PerfError> {
        connect(&self.socket, peer)?;
        let patience = self.socket.set_read_timeout(Some(READ_PATIENCE));
        patience.map_err(|error| PerfError::failed("cannot receive", error))
    }

    fn run(&mut self, _duration: Duration, stop: &StopSign) -> Result<Outcome, PerfError> {
        let mut buffer = self.buffer.borrow_mut();
        let mut watch = ReceiverWatch::new();
        loop {
            if self.at + CALL_BYTES_MAX > buffer.len() {
                self.at = 0;
            }
            match self.socket.recv(&mut buffer[self.at..self.at + CALL_BYTES_MAX]) {
                Ok(byte_count) => {
                    let packets = byte_count.div_ceil(self.segment_bytes);
                    watch.arrived((byte_count - packets * HEADER_BYTES) as u64, packets as u64);
                    self.at += byte_count;
                }
                Err(error) if is_nothing_there(&error) => {
                    if stop.is_up() {
                        break;
                    }
                }
                Err(error) => return Err(PerfError::failed("cannot receive a datagram", error)),
            }
        }
        Ok(watch.outcome())
    }
}

/// Either half of a ping-pong in which both ends look for datagrams without ever sleeping.
pub(super) fn prepare_ping_pong(settings: &Settings) -> Result<Box<dyn Measurement>, PerfError> {
    let socket = open(settings.address)?;
    socket.set_nonblocking(true).map_err(|error| PerfError::failed("cannot receive", error))?;
    Ok(Box::new(PingPong { socket, role: settings.role, number: 0 }))
}

struct PingPong {
    socket: UdpSocket,
    role: Role,
    number: u64,
}

impl Measurement for PingPong {
    fn contact(&self) -> Contact {
        local(&self.socket)
    }

    fn connect(&mut self, peer: &Contact) -> Result<(), PerfError> {
        connect(&self.socket, peer)
    }

    fn run(&mut self, duration: Duration, stop: &StopSign) -> Result<Outcome, PerfError> {
        match self.role {
            Role::Sender => self.ping(duration),
            Role::Receiver => self.pong(stop),
        }
    }
}

impl PingPong {
    fn ping(&mut self, duration: Duration) -> Result<Outcome, PerfError> {
        let mut datagram = [0; PING_BYTES];
        let mut round_trips_nanoseconds = Vec::new();
        let begin = Instant::now();
        let mut sent = begin;
        while sent.duration_since(begin) < duration {
            // Numbered, so that an answer that comes too late is not taken for that of the next one.
            self.number += 1;
            let number = self.number.to_le_bytes();
            datagram[..number.len()].copy_from_slice(&number);
            self.send(&datagram)?;
            let answered = loop {
                if self.receive(&mut datagram)? && datagram.starts_with(&number) {
                    break true;
                }
                if sent.elapsed() > PING_PATIENCE {
                    break false;
                }
            };
            let now = Instant::now();
            if answered {
                round_trips_nanoseconds.push(now.duration_since(sent).as_nanos() as u32);
            }
            sent = now;
        }
        Ok(Outcome { round_trips_nanoseconds, ..Outcome::default() })
    }

    fn pong(&self, stop: &StopSign) -> Result<Outcome, PerfError> {
        let mut datagram = [0; PING_BYTES];
        while !stop.is_up() {
            if self.receive(&mut datagram)? {
                self.send(&datagram)?;
            }
        }
        Ok(Outcome::default())
    }

    fn send(&self, datagram: &[u8]) -> Result<(), PerfError> {
        match self.socket.send(datagram) {
            Err(error) if !is_nothing_there(&error) => Err(PerfError::failed("cannot send a datagram", error)),
            _ => Ok(()),
        }
    }

    /// Whether a datagram was there.
    fn receive(&self, datagram: &mut [u8]) -> Result<bool, PerfError> {
        match self.socket.recv(datagram) {
            Ok(_) => Ok(true),
            Err(error) if is_nothing_there(&error) => Ok(false),
            Err(error) => Err(PerfError::failed("cannot receive a datagram", error)),
        }
    }
}
