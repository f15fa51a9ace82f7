//! The kernel's TCP: what a program without RDMA would use. Large writes, the kernel's own choice of buffers.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use super::measurement::{Buffers, Measurement, SharedBuffer, StopSign};
use super::orders::{Contact, MESSAGE_BYTES, Outcome, Role, Settings};
use super::stopwatch::{READ_PATIENCE, ReceiverWatch, SenderWatch, is_nothing_there};
use crate::error::PerfError;

/// Sender or receiver of a stream.
pub(super) fn prepare(settings: &Settings, buffers: &mut Buffers) -> Result<Box<dyn Measurement>, PerfError> {
    let buffer = buffers.plain(settings.buffer_bytes);
    match settings.role {
        Role::Sender => Ok(Box::new(Sender { stream: None, buffer, at: 0, rest: 0 })),
        Role::Receiver => {
            let address = settings.address;
            let listener = TcpListener::bind((address, 0))
                .map_err(|error| PerfError::missing(format!("cannot listen on a TCP port of {address}"), error))?;
            Ok(Box::new(Receiver { listener, stream: None, buffer, at: 0 }))
        }
    }
}

struct Sender {
    stream: Option<TcpStream>,
    buffer: SharedBuffer,
    at: usize,
    rest: usize,
}

impl Measurement for Sender {
    fn contact(&self) -> Contact {
        Contact::default()
    }

    fn connect(&mut self, peer: &Contact) -> Result<(), PerfError> {
        let peer = peer.socket.ok_or_else(|| PerfError::Failed("the other end has no TCP socket".to_owned()))?;
        let stream = TcpStream::connect(peer);
        self.stream =
            Some(stream.map_err(|error| PerfError::failed(format!("cannot connect to {peer} by TCP"), error))?);
        Ok(())
    }

    fn run(&mut self, duration: Duration, _stop: &StopSign) -> Result<Outcome, PerfError> {
        let stream = self.stream.as_mut().ok_or_else(|| PerfError::Failed("TCP is not connected".to_owned()))?;
        let buffer = self.buffer.borrow();
        let watch = SenderWatch::start();
        let mut payload_bytes = 0;
        while watch.elapsed() < duration {
            if self.rest == 0 {
                self.rest = MESSAGE_BYTES;
                if self.at + MESSAGE_BYTES > buffer.len() {
                    self.at = 0;
                }
            }
            match stream.write(&buffer[self.at..self.at + self.rest]) {
                Ok(written) => {
                    self.at += written;
                    self.rest -= written;
                    payload_bytes += written as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(PerfError::failed("cannot send by TCP", error)),
            }
        }
        Ok(watch.outcome(payload_bytes, 0))
    }
}

struct Receiver {
    listener: TcpListener,
    stream: Option<TcpStream>,
    buffer: SharedBuffer,
    at: usize,
}

impl Measurement for Receiver {
    fn contact(&self) -> Contact {
        Contact { socket: self.listener.local_addr().ok(), ..Contact::default() }
    }

    /// The sender has connected when the receiver gets this order.
    fn connect(&mut self, _peer: &Contact) -> Result<(), PerfError> {
        let failed = |error| PerfError::failed("cannot accept a TCP connection", error);
        let (stream, _) = self.listener.accept().map_err(failed)?;
        stream.set_read_timeout(Some(READ_PATIENCE)).map_err(failed)?;
        self.stream = Some(stream);
        Ok(())
    }

    fn run(&mut self, _duration: Duration, stop: &StopSign) -> Result<Outcome, PerfError> {
        let stream = self.stream.as_mut().ok_or_else(|| PerfError::Failed("TCP is not connected".to_owned()))?;
        let mut buffer = self.buffer.borrow_mut();
        let mut watch = ReceiverWatch::new();
        loop {
            if self.at + MESSAGE_BYTES > buffer.len() {
                self.at = 0;
            }
            match stream.read(&mut buffer[self.at..self.at + MESSAGE_BYTES]) {
                Ok(0) => return Err(PerfError::Failed("the sender has closed the TCP connection".to_owned())),
                Ok(byte_count) => {
                    watch.arrived(byte_count as u64, 0);
                    self.at += byte_count;
                }
                Err(error) if is_nothing_there(&error) => {
                    if stop.is_up() {
                        break;
                    }
                }
                Err(error) => return Err(PerfError::failed("cannot receive by TCP", error)),
            }
        }
        Ok(watch.outcome())
    }
}
