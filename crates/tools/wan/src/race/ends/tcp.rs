//! The kernel's TCP. A stream of messages; where they are sent one at a time, the receiver answers each with a byte.

use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use longhaul_link::namespaces::Side;
use nix::sys::socket::{setsockopt, sockopt};

use crate::clock::now;
use crate::race::end_error::EndError;
use crate::race::orders::{Contact, Measure, Work};
use crate::race::prepared::{End, PATIENCE};
use crate::race::tally::{Tally, sleep_until};

const BUFFER_BYTES: usize = 256 << 10;

struct Receiver {
    listener: TcpListener,
    work: Work,
}

pub(super) fn receiver(work: &Work) -> Result<(Contact, Box<dyn End>), EndError> {
    let failed = EndError::failed::<io::Error>("listen for TCP");
    let listener = TcpListener::bind((Side::Right.address(), 0)).map_err(&failed)?;
    let address = listener.local_addr().map_err(&failed)?.to_string();
    Ok((Contact { address, ..Contact::default() }, Box::new(Receiver { listener, work: work.clone() })))
}

impl End for Receiver {
    fn start(&mut self, _: Duration, _: Duration, tally: &Arc<Tally>) -> Result<(), EndError> {
        for _ in 0..self.work.connections {
            // The sender has connected: they all wait here.
            let (stream, _) = self.listener.accept().map_err(EndError::failed("accept a TCP connection"))?;
            let work = self.work.clone();
            tally.spawn(move |tally| receive(stream, &work, tally).map_err(EndError::failed("receive over TCP")));
        }
        Ok(())
    }
}

fn receive(mut stream: TcpStream, work: &Work, tally: &Tally) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let Measure::Completion(count) = work.measure else {
        let flow = tally.meter.flow();
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(()),
                bytes => flow.fetch_add(bytes as u64, Ordering::Relaxed),
            };
        }
    };
    stream.set_nodelay(true)?;
    for _ in 0..count {
        let mut left = work.message_bytes;
        while left > 0 {
            let room = left.min(BUFFER_BYTES);
            match stream.read(&mut buffer[..room])? {
                // The sender had no time for more.
                0 => return Ok(()),
                bytes => left -= bytes,
            }
        }
        tally.stamp();
        stream.write_all(&[1])?;
    }
    tally.end();
    Ok(())
}

struct Sender {
    streams: Vec<TcpStream>,
    work: Work,
}

pub(super) fn sender(work: &Work, contact: &Contact) -> Result<Box<dyn End>, EndError> {
    let address: SocketAddr = contact.address.parse().map_err(EndError::failed("understand an address"))?;
    let name = work.system.tcp_congestion().unwrap_or_default();
    let mut streams = Vec::new();
    for _ in 0..work.connections {
        let stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(EndError::failed("connect over TCP"))?;
        setsockopt(&stream, sockopt::TcpCongestion, &OsString::from(name)).map_err(|error| {
            EndError::Missing(format!("this kernel does not let TCP use {name}: {error} (modprobe tcp_{name}?)"))
        })?;
        stream.set_nodelay(true).map_err(EndError::failed("send over TCP at once"))?;
        streams.push(stream);
    }
    Ok(Box::new(Sender { streams, work: work.clone() }))
}

impl End for Sender {
    fn start(&mut self, start: Duration, until: Duration, tally: &Arc<Tally>) -> Result<(), EndError> {
        for stream in self.streams.drain(..) {
            let work = self.work.clone();
            tally.spawn(move |tally| {
                sleep_until(start);
                send(stream, &work, until, tally).map_err(EndError::failed("send over TCP"))
            });
        }
        Ok(())
    }
}

fn send(mut stream: TcpStream, work: &Work, until: Duration, tally: &Tally) -> io::Result<()> {
    match work.measure {
        Measure::Bulk => {
            let buffer = vec![0x5a; BUFFER_BYTES];
            while now() < until {
                stream.write_all(&buffer)?;
            }
        }
        Measure::Completion(count) => {
            let message = vec![0x5a; work.message_bytes];
            for _ in 0..count {
                if now() >= until {
                    break;
                }
                tally.stamp();
                stream.write_all(&message)?;
                stream.read_exact(&mut [0])?;
            }
            tally.end();
        }
    }
    Ok(())
}
