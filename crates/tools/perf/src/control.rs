//! What two ends exchange apart from the measurement: lines of JSON over TCP, as perftest's ends exchange their queue
//! pairs. The first line of either end names the version.
//!
//! ```text
//!   client → server    Hello             what is to be measured
//!   server → client    Waiting           only if another client is being measured
//!   server → client    Contact           queue pairs and memory
//!   client → server    Contact
//!   server → client    Ready             connected
//!   client → server    Run               one size                      again for each size
//!   server → client    Running           receives are posted
//!   client → server    Stop              this many messages were sent
//!   server → client    Received          what has arrived
//! ```
//!
//! With a reliability scheme, `Contact` is `SchemeContact`: the server listens with the library's endpoint and sends
//! the handle, the client connects to it as programs do. `Received` is `SchemeReceived`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use longhaul::Listener;
use longhaul_softnic_udp::path::is_of_this_host;
use longhaul_softnic_udp::{CAREFUL_BITS_PER_SECOND, Fec};
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};

use crate::connection::{Connection, Contact};
use crate::device::OpenedDevice;
use crate::error::PerfError;
use crate::operation::Operation;
use crate::scheme_stream::SchemeTotals;
use crate::stream::{Received, Run};

/// The version of this exchange. It changes when older programs could not take part.
pub(crate) const VERSION: u32 = 8;
/// Repair packets of a block that the shim's default configuration takes.
pub const FEC_REPAIR_PACKETS_MAX: u8 = 32;
/// The longest line: room for a quarter of a million queue pairs.
const LINE_BYTES_MAX: u64 = 16 << 20;
/// Lines that wait to be read; there is never more than one by the protocol.
const LINES_MAX: usize = 4;
/// How long the other end may leave a line unread.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);
/// Seconds without any answer from the other host before it is asked whether it is there, then three times. A connection
/// that is measured gives a message up before that, and says why.
const KEEPALIVE_SECONDS: u32 = 20;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// Bandwidth of WRITEs
    WriteBw,
    /// Latency of WRITEs
    WriteLat,
    /// Bandwidth of SENDs
    SendBw,
    /// Latency of SENDs
    SendLat,
    /// Bandwidth of READs
    ReadBw,
    /// Latency of READs
    ReadLat,
    /// Bandwidth of atomics
    AtomicBw,
    /// Latency of atomics
    AtomicLat,
}

impl Test {
    /// One message at a time.
    pub const fn is_latency(self) -> bool {
        matches!(self, Test::WriteLat | Test::SendLat | Test::ReadLat | Test::AtomicLat)
    }

    /// Whether its messages are atomics.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Test::AtomicBw | Test::AtomicLat)
    }

    /// As on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Test::WriteBw => "write_bw",
            Test::WriteLat => "write_lat",
            Test::SendBw => "send_bw",
            Test::SendLat => "send_lat",
            Test::ReadBw => "read_bw",
            Test::ReadLat => "read_lat",
            Test::AtomicBw => "atomic_bw",
            Test::AtomicLat => "atomic_lat",
        }
    }
}

/// How fast to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rate {
    /// As the user says.
    BitsPerSecond(u64),
    /// As fast as it goes.
    Unlimited,
    /// As fast as it goes to peers on this host, carefully to others.
    Careful,
}

/// What both ends have to know of a measurement. The client decides.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// What is measured.
    pub test: Test,
    /// What the messages are.
    pub operation: Operation,
    /// The transport.
    pub connection: Connection,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Bytes of the largest message.
    pub message_bytes_max: u32,
    /// Send queue depth.
    pub send_depth: u32,
    /// Receive queue depth.
    pub receive_depth: u32,
    /// READs and atomics that each queue pair may have outstanding, if the devices can.
    pub outstanding_reads: u8,
    /// Both ends sleep until a completion arrives.
    pub sleeps: bool,
    /// Acknowledgement timeout, 4.096 µs · 2^N.
    pub timeout: u8,
    /// How fast each end sends, all its queue pairs together.
    pub rate: Rate,
    /// Messages are filled with the pattern of this seed, and checked.
    pub verify_seed: Option<u64>,
    /// Forward error correction below the transport, by its name.
    pub fec: Option<String>,
    /// Messages have a reliability scheme above SDR, instead of a connection type.
    pub scheme: Option<SchemePlan>,
}

impl Plan {
    /// What an end sends at most to a peer at this address, all its queue pairs together.
    pub fn rate_towards(&self, peer: IpAddr) -> Option<u64> {
        match self.rate {
            Rate::BitsPerSecond(rate) => Some(rate),
            Rate::Careful if !is_of_this_host(peer) => Some(CAREFUL_BITS_PER_SECOND),
            Rate::Unlimited | Rate::Careful => None,
        }
    }

    /// The forward error correction that the ends agree on, if there is any.
    pub(crate) fn agreed_fec(&self) -> Result<Option<Fec>, PerfError> {
        let Some(name) = &self.fec else { return Ok(None) };
        let fec: Fec = name.parse().map_err(|error| PerfError::Request(format!("--fec {error}")))?;
        if fec.first_code().repair_packets() > FEC_REPAIR_PACKETS_MAX {
            return Err(PerfError::Request(format!(
                "--fec {name}: a block has at most {FEC_REPAIR_PACKETS_MAX} repair packets here; use fewer"
            )));
        }
        Ok(Some(fec))
    }

    /// The rate that the user has set. Connections of the library find one by themselves below it.
    pub const fn rate_max(&self) -> Option<u64> {
        match self.rate {
            Rate::BitsPerSecond(rate) => Some(rate),
            Rate::Unlimited | Rate::Careful => None,
        }
    }
}

/// What both ends have to know of messages with a reliability scheme.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SchemePlan {
    /// The scheme.
    pub name: String,
    /// Bytes of a chunk, if not the default.
    pub chunk_bytes: Option<u32>,
    /// Receives to post ahead, if not the default.
    pub depth: Option<u32>,
    /// Messages are bounded: each receive ends this long after it was posted.
    pub deadline: Option<Duration>,
}

/// An end of messages with a reliability scheme.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SchemeContact {
    /// The device, for people.
    pub device: String,
    /// Its address.
    pub address: IpAddr,
    /// The UDP port at which it listens.
    pub udp_port: u16,
    /// Where the server listens: the text of a handle.
    pub listener: Option<String>,
}

impl SchemeContact {
    pub(crate) fn new(device: &OpenedDevice, listener: Option<&Listener>) -> Self {
        SchemeContact {
            device: device.describe().to_owned(),
            address: device.address,
            udp_port: device.udp_port,
            listener: listener.map(|listener| listener.handle().to_string()),
        }
    }
}

/// From the client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Hello {
        version: u32,
        /// The address that the client has, and the one that it believes the server to have. Addresses that
        /// differ from what the server sees show that somebody in between changes them.
        client: IpAddr,
        server: IpAddr,
        plan: Plan,
    },
    Contact(Contact),
    SchemeContact(SchemeContact),
    Run(Run),
    /// The messages of the run, by number: this many from the first.
    Stop {
        first: u64,
        count: u64,
    },
}

/// From the server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// Another client is being measured; this one's turn comes.
    Waiting {
        version: u32,
    },
    Contact {
        version: u32,
        contact: Contact,
    },
    SchemeContact {
        version: u32,
        contact: SchemeContact,
    },
    Ready,
    Running,
    Received(Received),
    /// The same of messages with a scheme, and what the scheme has counted.
    SchemeReceived(Received, Box<SchemeTotals>),
    /// It cannot or will not.
    Refused {
        version: u32,
        reason: String,
    },
}

/// One end of the TCP connection. A thread reads it all the time, so that news of the other end reach a loop that
/// polls.
pub(crate) struct Control {
    stream: TcpStream,
    lines: Receiver<String>,
    waiting: Arc<AtomicUsize>,
    gone: Arc<AtomicBool>,
}

impl Control {
    pub(crate) fn new(stream: TcpStream) -> Result<Self, PerfError> {
        let failed = |error| PerfError::failed("cannot use the TCP connection", error);
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_write_timeout(Some(WRITE_PATIENCE)).map_err(failed)?;
        // A host that loses its power says nothing; without this the other end would wait for ever.
        let _ = setsockopt(&stream, sockopt::KeepAlive, &true);
        let _ = setsockopt(&stream, sockopt::TcpKeepIdle, &KEEPALIVE_SECONDS);
        let _ = setsockopt(&stream, sockopt::TcpKeepInterval, &KEEPALIVE_SECONDS);
        let _ = setsockopt(&stream, sockopt::TcpKeepCount, &3);
        let reading = stream.try_clone().map_err(failed)?;
        let (sender, lines) = sync_channel(LINES_MAX);
        let (waiting, gone) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (waiting_here, gone_here) = (waiting.clone(), gone.clone());
        std::thread::spawn(move || {
            let mut reader = BufReader::new(reading);
            loop {
                let mut line = String::new();
                let read = reader.by_ref().take(LINE_BYTES_MAX).read_line(&mut line);
                if !matches!(read, Ok(1..)) || !line.ends_with('\n') {
                    break;
                }
                waiting_here.fetch_add(1, Ordering::Release);
                if sender.send(line).is_err() {
                    break;
                }
            }
            gone_here.store(true, Ordering::Release);
        });
        Ok(Control { stream, lines, waiting, gone })
    }

    /// Whether the other end has closed the connection or vanished.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Whether a line waits, or none will ever come: time to look.
    pub(crate) fn has_news(&self) -> bool {
        self.waiting.load(Ordering::Acquire) > 0 || self.is_gone()
    }

    pub(crate) fn send(&mut self, message: &impl Serialize) -> Result<(), PerfError> {
        let mut line =
            serde_json::to_string(message).map_err(|error| PerfError::failed("cannot write a message", error))?;
        line.push('\n');
        let sent = self.stream.write_all(line.as_bytes());
        sent.map_err(|error| PerfError::failed("the other end is gone", error))
    }

    /// The next message, which must come within this time.
    pub(crate) fn receive<T: for<'a> Deserialize<'a>>(&self, patience: Duration) -> Result<T, PerfError> {
        let line = self.lines.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => PerfError::Failed("the other end has not answered in time: it may hang or the network may have failed; check it and try again".to_owned()),
            RecvTimeoutError::Disconnected => PerfError::peer_gone(),
        })?;
        self.waiting.fetch_sub(1, Ordering::Release);
        serde_json::from_str(&line).map_err(|error| not_ours(&line, &error))
    }
}

/// Somebody speaks another version, or another language altogether.
fn not_ours(line: &str, error: &serde_json::Error) -> PerfError {
    let line: String = line.trim().chars().take(80).collect();
    let theirs: Option<String> =
        line.split("\"version\":").nth(1).map(|rest| rest.chars().take_while(char::is_ascii_digit).collect());
    match theirs {
        Some(version) if version != VERSION.to_string() => PerfError::Failed(different_versions(&version)),
        _ => PerfError::Failed(format!(
            "expected version {VERSION} of longhaul perf's exchange, got \"{line}\" ({error}); \
             is the other end a `longhaul perf`? perftest's own programs speak another language"
        )),
    }
}

/// What to say when the versions differ.
pub(crate) fn different_versions(theirs: &str) -> String {
    format!(
        "expected version {VERSION} of longhaul perf's exchange, got version {theirs}: use the same release at both ends"
    )
}
