//! TCP as the carrier of the handshake: frames of `length 4 · bytes`, of bounded length, within a time.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_wire::handshake::{BYTES_MAX, Message};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeSpec;
use thiserror::Error;

/// Why the other end of the TCP connection does not say what it should.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CarrierError {
    /// It takes too long.
    #[error("the other end said nothing for {0:?}; is it a longhaul listener?")]
    TimedOut(Duration),
    /// It has closed the TCP connection.
    #[error("the other end closed the TCP connection while connecting; is it a longhaul listener, and did it refuse?")]
    Closed,
    /// Too long for a message of the handshake.
    #[error(
        "the other end announced {0} bytes, more than any message of the handshake has; is it a longhaul listener?"
    )]
    TooLong(usize),
    /// The system said so.
    #[error("the TCP connection failed")]
    System(#[source] io::Error),
}

/// A longer wait is cut to this: adding `Duration::MAX` would overflow the clock.
const PATIENCE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The end of what may take so long from now on.
pub(crate) fn deadline_in(patience: Duration) -> Instant {
    Instant::now() + patience.min(PATIENCE_MAX)
}

/// A TCP connection while the handshake is made on it.
pub(crate) struct Carrier {
    stream: Arc<TcpStream>,
    patience: Duration,
    deadline: Instant,
}

impl Carrier {
    /// All of the handshake must be done within `patience`.
    pub(crate) fn new(stream: Arc<TcpStream>, patience: Duration) -> Result<Self, CarrierError> {
        stream.set_nodelay(true).map_err(CarrierError::System)?;
        stream.set_nonblocking(false).map_err(CarrierError::System)?;
        Ok(Carrier { stream, patience, deadline: deadline_in(patience) })
    }

    /// From now on, everything that follows must be done within this.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        (self.patience, self.deadline) = (patience, deadline_in(patience));
    }

    /// Our address and the peer's.
    pub(crate) fn addresses(&self) -> Result<(IpAddr, IpAddr), CarrierError> {
        let local = self.stream.local_addr().map_err(CarrierError::System)?.ip().to_canonical();
        let peer = self.stream.peer_addr().map_err(CarrierError::System)?.ip().to_canonical();
        Ok((local, peer))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), CarrierError> {
        let mut frame = (bytes.len() as u32).to_be_bytes().to_vec();
        frame.extend(bytes);
        let left = self.left()?;
        self.stream.set_write_timeout(Some(left)).map_err(CarrierError::System)?;
        (&*self.stream).write_all(&frame).map_err(|error| self.failed(error))
    }

    pub(crate) fn receive(&mut self) -> Result<Vec<u8>, CarrierError> {
        let mut length = [0; 4];
        self.read(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > BYTES_MAX {
            return Err(CarrierError::TooLong(length));
        }
        let mut bytes = vec![0; length];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    /// Somebody who sends a byte now and then does not get more time for it.
    fn read(&mut self, mut bytes: &mut [u8]) -> Result<(), CarrierError> {
        while !bytes.is_empty() {
            let left = self.left()?;
            self.stream.set_read_timeout(Some(left)).map_err(CarrierError::System)?;
            match (&*self.stream).read(bytes) {
                Ok(0) => return Err(CarrierError::Closed),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(())
    }

    /// Whether the time is up.
    pub(crate) fn is_late(&self) -> bool {
        self.left().is_err()
    }

    /// Whether the other end says something, or closes, within this time.
    pub(crate) fn is_readable_within(&self, time: Duration) -> Result<bool, CarrierError> {
        let mut watched = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut watched, Some(TimeSpec::from_duration(time)), None) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::EINTR) => Ok(false),
            Err(error) => Err(CarrierError::System(error.into())),
        }
    }

    fn left(&self) -> Result<Duration, CarrierError> {
        match self.deadline.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(CarrierError::TimedOut(self.patience)),
            left => Ok(left),
        }
    }

    fn failed(&self, error: io::Error) -> CarrierError {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => CarrierError::TimedOut(self.patience),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => {
                CarrierError::Closed
            }
            _ => CarrierError::System(error),
        }
    }

    /// The TCP connection, which is kept to see when the peer goes; a host that goes without a word shows after
    /// `silence`.
    pub(crate) fn into_lifeline(self, silence: Duration) -> Arc<TcpStream> {
        let stream = self.stream;
        let _ = stream.set_read_timeout(None);
        // Three unanswered questions in that time. Where the system has no such option, only the end of the process
        // shows.
        let seconds = u32::try_from(silence.as_secs() / 4).unwrap_or(u32::MAX).clamp(1, 3600);
        let _ = setsockopt(&*stream, sockopt::KeepAlive, &true);
        let _ = setsockopt(&*stream, sockopt::TcpKeepIdle, &seconds);
        let _ = setsockopt(&*stream, sockopt::TcpKeepInterval, &seconds);
        let _ = setsockopt(&*stream, sockopt::TcpKeepCount, &3);
        stream
    }
}

/// A message as bytes for its carrier.
pub(crate) fn to_bytes(message: &Message<'_>) -> Vec<u8> {
    let mut bytes = vec![0; message.byte_count()];
    message.emit(&mut bytes).expect("it has the size of the message");
    bytes
}
