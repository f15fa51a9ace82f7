//! The side of a process: asks the broker for a part of an address, and starts one if there is none.

use std::net::IpAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, send, socket};

use crate::decisions::Bounds;
use crate::descriptors::{self, Message};
use crate::letters::{self, ANSWER_BYTES, REQUEST_BYTES, Refusal};
use crate::parts::{PARTS, PORT, PROCESSES};
use crate::start::start;
use crate::user::{is_of_same_user, own_user};

/// How long to wait for a broker's answer: it is there at once, unless it is stopped, or the host is very busy.
const PATIENCE: Duration = Duration::from_secs(5);
/// Before another try, when a broker has just ended or begins.
const PAUSE: Duration = Duration::from_millis(2);
/// A broker that ends as soon as it is started will not do better next time.
const STARTS_MAX: u32 = 3;

/// A part of an address, for as long as this is there.
#[derive(Debug)]
pub struct Lease {
    part: u8,
    /// Of all parts, so that the kernel moves none when other processes end. They close before the connection.
    sockets: Vec<OwnedFd>,
    _connection: UnixStream,
}

/// Why a process gets no part of an address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// There is no broker, so nobody shares the port; a process may have it alone.
    #[error("it cannot be shared with other processes: {reason}")]
    NoBroker {
        /// Why there is none.
        reason: String,
    },
    /// The broker has refused.
    #[error("{}", explain(*address, *refusal))]
    Refused {
        /// The address that was asked for.
        address: IpAddr,
        /// Why.
        refusal: Refusal,
    },
    /// This process can open too little.
    #[error("a device takes {} descriptors, and this process may not open as many more: raise `ulimit -n`", u16::from(PARTS) + 8)]
    Descriptors,
}

fn explain(address: IpAddr, refusal: Refusal) -> String {
    match refusal {
        Refusal::Full => format!(
            "{PROCESSES} processes share UDP port {PORT} of {address} already, and that is the limit: end one, or take another \
             address"
        ),
        Refusal::Taken => format!(
            "UDP port {PORT} of {address} is taken, by another user's process, by one that does not share it, or by the \
             kernel's Soft-RoCE: end that, or take another address"
        ),
        Refusal::Orphaned => format!(
            "UDP port {PORT} of {address} is taken by processes of yours whose port broker was killed; they go on, but no \
             other can join them: wait for their end, or take another address"
        ),
        Refusal::TooManyAddresses => format!(
            "your processes use {} addresses already, which is all that the port broker opens: take one of those",
            Bounds::default().addresses
        ),
        Refusal::NotOurAddress => format!("{address} is not an address of this host that a device can have"),
        Refusal::Malformed => "the port broker did not understand the request".to_owned(),
        Refusal::System(errno) => {
            format!("the port broker cannot open or hand over its sockets at {address}: {}", errno.desc())
        }
    }
}

fn no_broker(reason: impl Into<String>) -> LeaseError {
    LeaseError::NoBroker { reason: reason.into() }
}

/// The name by which processes of this user find their broker, in the abstract namespace.
pub fn default_name() -> String {
    format!("longhaul-port-broker-{}", nix::unistd::Uid::effective())
}

impl Lease {
    /// Get a part of an address from the broker with this name. If there is none, `program` is run to be one, with the arguments
    /// `port-broker` and the name, and a listening socket as its standard input.
    pub fn ask(name: &str, program: Option<&Path>, address: IpAddr) -> Result<Lease, LeaseError> {
        if own_user().is_none() {
            return Err(no_broker("this process's user stands for several in this user namespace"));
        }
        let deadline = Instant::now() + PATIENCE;
        let mut starts = 0;
        loop {
            match connected(name) {
                Ok(stream) if !is_of_same_user(&stream) => {
                    return Err(no_broker(format!("another user has the port broker's name, \"{name}\"")));
                }
                Ok(stream) => match talk(stream, address, deadline)? {
                    Some(lease) => return Ok(lease),
                    // It was just about to end.
                    None => std::thread::sleep(PAUSE),
                },
                Err(Errno::ECONNREFUSED) => {
                    let program =
                        program.ok_or_else(|| no_broker("no port broker runs, and no program for it is named"))?;
                    if starts == STARTS_MAX {
                        return Err(no_broker(format!("the port broker, {}, ends at once", program.display())));
                    }
                    starts += u32::from(try_start(name, program)?);
                }
                // More clients wait than may.
                Err(Errno::EAGAIN | Errno::EINTR) => std::thread::sleep(PAUSE),
                Err(errno) => return Err(no_broker(format!("cannot connect to the port broker: {}", errno.desc()))),
            }
            if Instant::now() >= deadline {
                return Err(silent());
            }
        }
    }

    /// Which part of the queue pair numbers this is, from 1 to 63: their top six bits.
    pub fn part(&self) -> u8 {
        self.part
    }

    /// The socket that receives for this part.
    pub fn socket(&self) -> std::io::Result<OwnedFd> {
        self.sockets[usize::from(self.part)].try_clone()
    }
}

fn silent() -> LeaseError {
    no_broker(format!(
        "the port broker has not answered for {} seconds; if it is stopped (`longhaul port-broker`), continue or kill it",
        PATIENCE.as_secs()
    ))
}

fn connected(name: &str) -> Result<UnixStream, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?)?;
    Ok(socket.into())
}

/// Start a broker. `false` if somebody else has just done so.
fn try_start(name: &str, program: &Path) -> Result<bool, LeaseError> {
    let listener = SocketAddr::from_abstract_name(name).and_then(|address| UnixListener::bind_addr(&address));
    let listener = match listener {
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            std::thread::sleep(PAUSE);
            return Ok(false);
        }
        listener => listener.map_err(|error| no_broker(format!("cannot listen for a port broker: {error}")))?,
    };
    let started = start(program, &listener, name);
    started.map_err(|error| no_broker(format!("the port broker {} cannot be started: {error}", program.display())))?;
    Ok(true)
}

/// Ask a broker for a part of an address; `None` if it ends without an answer.
fn talk(stream: UnixStream, address: IpAddr, deadline: Instant) -> Result<Option<Lease>, LeaseError> {
    // A connection that is new has room for it. One that has ended must not send SIGPIPE to the program.
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    if send(stream.as_raw_fd(), &letters::request(address), flags) != Ok(REQUEST_BYTES) {
        return Ok(None);
    }
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut descriptor = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        let wait = PollTimeout::try_from(left.as_millis() as i32 + 1).unwrap_or(PollTimeout::MAX);
        match poll(&mut descriptor, wait) {
            Ok(0) => return Err(silent()),
            Ok(_) => break,
            Err(Errno::EINTR) if Instant::now() < deadline => {}
            Err(Errno::EINTR) => return Err(silent()),
            Err(errno) => return Err(no_broker(format!("cannot wait for the port broker: {}", errno.desc()))),
        }
    }
    let mut letter = [0; ANSWER_BYTES + 1];
    let Ok(Message { bytes, descriptors, is_cut }) = descriptors::receive(&stream, &mut letter) else {
        return Ok(None);
    };
    if bytes == 0 {
        return Ok(None);
    }
    if is_cut {
        return Err(LeaseError::Descriptors);
    }
    match letters::answered(&letter[..bytes]) {
        Some(Ok(part)) if descriptors.len() == usize::from(PARTS) => {
            Ok(Some(Lease { part, sockets: descriptors, _connection: stream }))
        }
        Some(Err(refusal)) => Err(LeaseError::Refused { address, refusal }),
        _ => Err(no_broker("the port broker speaks another version; wait until its programs have ended")),
    }
}
