//! The TCP connection that the handshake was made on, kept to see when the peer goes.

use std::io::{self, Read as _};
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use longhaul_runtime::Lifeline;

use crate::mailbox::Mailbox;

/// A TCP connection that carries nothing any more but its end.
pub(crate) struct TcpLifeline {
    stream: Arc<TcpStream>,
    mailbox: Arc<Mailbox>,
}

impl TcpLifeline {
    /// Of a connection whose driver has this mailbox.
    pub(crate) fn new(stream: Arc<TcpStream>, mailbox: Arc<Mailbox>) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(TcpLifeline { stream, mailbox })
    }
}

impl Lifeline for TcpLifeline {
    fn watch(&self, id: u64) -> io::Result<()> {
        self.mailbox.watch(self.stream.as_fd(), id)
    }

    fn watch_no_longer(&self) {
        self.mailbox.watch_no_longer(self.stream.as_fd());
    }

    fn has_ended(&self) -> bool {
        match (&*self.stream).read(&mut [0; 64]) {
            Ok(1..) => false,
            Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
            Ok(0) => true,
        }
    }
}
