//! The TCP connection between the two ends: lines of JSON, and a descriptor to sleep on, so that an end that waits for
//! completions hears at once when the other end has something to say, or is gone.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};

use crate::fault::InteropError;
use crate::messages::{Reply, VERSION};

/// The longest line. There is no reason for long ones.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Seconds without any answer from the other host before it is asked whether it is there, then again and again.
const KEEPALIVE_SECONDS: u32 = 5;
/// How long a line may take to be taken by the kernel.
const SEND_PATIENCE: Duration = Duration::from_secs(10);

/// One end of the connection.
pub(crate) struct Control {
    stream: TcpStream,
    /// What has come and is not a whole line yet, or not asked for.
    unread: Vec<u8>,
    is_closed: bool,
}

impl Control {
    pub(crate) fn new(stream: TcpStream) -> Result<Control, InteropError> {
        let failed = |source| InteropError::Tcp { doing: "set options of", source };
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_write_timeout(Some(SEND_PATIENCE)).map_err(failed)?;
        // A host that loses its power says nothing; without this the other end would wait for ever.
        let _ = setsockopt(&stream, sockopt::KeepAlive, &true);
        let _ = setsockopt(&stream, sockopt::TcpKeepIdle, &KEEPALIVE_SECONDS);
        let _ = setsockopt(&stream, sockopt::TcpKeepInterval, &KEEPALIVE_SECONDS);
        let _ = setsockopt(&stream, sockopt::TcpKeepCount, &3);
        Ok(Control { stream, unread: Vec::new(), is_closed: false })
    }

    /// Our address towards the other end.
    pub(crate) fn local_address(&self) -> Result<IpAddr, InteropError> {
        let address =
            self.stream.local_addr().map_err(|source| InteropError::Tcp { doing: "ask for the address of", source });
        Ok(address?.ip().to_canonical())
    }

    /// Readable when there is something to look at. `None` when the other end is gone: then it would be readable for
    /// ever.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_closed).then(|| self.stream.as_fd())
    }

    /// Whether the other end has closed the connection or vanished, as far as is known.
    pub(crate) fn is_gone(&mut self) -> Result<bool, InteropError> {
        self.read_what_is_there(Duration::ZERO)?;
        Ok(self.is_closed)
    }

    pub(crate) fn send(&mut self, message: &impl Serialize) -> Result<(), InteropError> {
        let mut line = serde_json::to_string(message).expect("messages have names and numbers only");
        line.push('\n');
        match self.stream.write_all(line.as_bytes()) {
            Ok(()) => Ok(()),
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                Err(InteropError::Gone { during: "this end was sending to it" })
            }
            Err(source) => Err(InteropError::Tcp { doing: "send over", source }),
        }
    }

    /// The next message, if there is one now.
    pub(crate) fn try_receive<T: for<'a> Deserialize<'a>>(
        &mut self,
        during: &'static str,
    ) -> Result<Option<T>, InteropError> {
        self.read_what_is_there(Duration::ZERO)?;
        self.next_message(during)
    }

    /// The next message, within this time.
    pub(crate) fn receive<T: for<'a> Deserialize<'a>>(
        &mut self,
        patience: Duration,
        during: &'static str,
    ) -> Result<T, InteropError> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(message) = self.next_message(during)? {
                return Ok(message);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(InteropError::Silent { seconds: patience.as_secs(), during });
            }
            self.read_what_is_there(left)?;
        }
    }

    fn next_message<T: for<'a> Deserialize<'a>>(&mut self, during: &'static str) -> Result<Option<T>, InteropError> {
        let Some(end) = self.unread.iter().position(|&byte| byte == b'\n') else {
            return match self.is_closed {
                true => Err(InteropError::Gone { during }),
                false => Ok(None),
            };
        };
        let line: Vec<u8> = self.unread.drain(..=end).collect();
        let line = String::from_utf8_lossy(&line);
        serde_json::from_str(&line).map(Some).map_err(|_| not_ours(&line, during))
    }

    /// Takes over what has come; waits for it if nothing has.
    fn read_what_is_there(&mut self, longest: Duration) -> Result<(), InteropError> {
        if self.is_closed || self.unread.len() > LINE_BYTES_MAX {
            return Ok(());
        }
        let timeout = PollTimeout::try_from(longest).unwrap_or(PollTimeout::MAX);
        let mut waits = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
        match poll(&mut waits, timeout) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(InteropError::Tcp { doing: "wait for", source: error.into() }),
        }
        let mut bytes = [0; 4096];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.is_closed = true,
            Ok(count) => self.unread.extend_from_slice(&bytes[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            // Reset, or no answer to the questions whether it is there.
            Err(_) => self.is_closed = true,
        }
        if self.unread.len() > LINE_BYTES_MAX && !self.unread.contains(&b'\n') {
            return Err(InteropError::Version { expected: VERSION, got: "a line without end".to_owned() });
        }
        Ok(())
    }
}

/// Refuses a client, with the reason.
pub fn refuse(stream: TcpStream, reason: &str) {
    // If it is gone, it does not matter.
    if let Ok(mut control) = Control::new(stream) {
        let _ = control.send(&Reply::Refused { version: VERSION, reason: reason.to_owned() });
    }
}

/// Somebody speaks another version, or another language altogether.
fn not_ours(line: &str, during: &'static str) -> InteropError {
    let line: String = line.trim().chars().take(120).collect();
    let theirs: Option<String> =
        line.split("\"version\":").nth(1).map(|rest| rest.chars().take_while(char::is_ascii_digit).collect());
    match theirs {
        Some(version) if version != VERSION.to_string() => {
            InteropError::Version { expected: VERSION, got: format!("version {version}") }
        }
        Some(_) => InteropError::Unexpected { expected: during, got: format!("\"{line}\"") },
        None => InteropError::Version { expected: VERSION, got: format!("\"{line}\"") },
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::messages::Request;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn connected() -> (TcpStream, Control) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let one = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
        let (other, _) = listener.accept().expect("it has connected");
        (one, Control::new(other).expect("options can be set"))
    }

    #[test]
    fn messages_come_whole_however_they_were_cut() {
        let (mut peer, mut control) = connected();
        peer.write_all(b"\"Good").expect("it is read");
        assert!(control.try_receive::<Request>("x").expect("no error").is_none());
        peer.write_all(b"bye\"\n{\"Done\":{\"completed\":7,\"failure\":null}}\n").expect("it is read");
        assert!(matches!(control.receive(PATIENCE, "x"), Ok(Request::Goodbye)));
        assert!(matches!(control.receive(PATIENCE, "x"), Ok(Request::Done { completed: 7, failure: None })));
        drop(peer);
        let gone = control.receive::<Request>(PATIENCE, "waiting for a test");
        assert!(gone.is_err_and(|error| error.to_string().contains("waiting for a test")));
        assert!(control.is_gone().expect("no error") && control.descriptor().is_none());
    }

    #[test]
    fn others_are_told_apart() {
        let (mut peer, mut control) = connected();
        for (line, word) in [
            ("{\"Hello\":{\"version\":999,\"news\":1}}", "version 999"),
            ("GET / HTTP/1.1", "GET /"),
            ("{\"Sing\":{}}", "Sing"),
        ] {
            writeln!(peer, "{line}").expect("it is read");
            let error = control.receive::<Request>(PATIENCE, "a hello").expect_err(line);
            assert!(error.to_string().contains(word), "{error}");
        }
        let silent = control.receive::<Request>(Duration::from_millis(10), "a hello");
        assert!(matches!(silent, Err(InteropError::Silent { .. })));
    }
}
