//! Why nothing was sent or received over QUIC.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;

/// A cause that has several types.
pub(super) type Cause = Box<dyn Error + Send + Sync>;

/// Why nothing was sent or received over QUIC.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum QuicError {
    /// Packets of this length are too short for QUIC, or too long for our settings.
    #[error("QUIC needs a link MTU of {least} to {most} bytes, got {got}")]
    Mtu {
        /// As set.
        got: u16,
        /// The shortest.
        least: u16,
        /// The longest.
        most: u16,
    },
    /// The asynchronous runtime did not start.
    #[error("cannot start the asynchronous runtime")]
    Runtime(#[source] io::Error),
    /// No socket.
    #[error("cannot open a UDP socket at {0}")]
    Socket(SocketAddr, #[source] io::Error),
    /// The receiver has no certificate.
    #[error("cannot make a certificate")]
    MakeCertificate(#[source] Cause),
    /// What the sender was given.
    #[error("the certificate is not one that QUIC can use; expected X.509 in DER form")]
    NotACertificate(#[source] Cause),
    /// The receiver is not the one whose certificate was given.
    #[error("the receiver at {0} has another certificate than the one given; is that from an earlier run?")]
    WrongCertificate(SocketAddr, #[source] Cause),
    /// The handshake did not complete in time.
    #[error("no QUIC connection with {0} within {1:?}; does a receiver listen there?")]
    NoAnswer(SocketAddr, Duration),
    /// The handshake failed.
    #[error("cannot connect to {0} over QUIC")]
    Connect(SocketAddr, #[source] Cause),
    /// A connection ended before everything had been sent.
    #[error("the QUIC connection with {0} has ended early")]
    Ended(SocketAddr, #[source] Cause),
    /// It took too long.
    #[error("{doing} over QUIC did not complete within {limit:?}")]
    OutOfTime {
        /// What was being done.
        doing: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// Other bytes arrived than were sent, or fewer.
    #[error("{sent} bytes were sent over QUIC, {arrived} arrived, and {}", if *.is_right { "those were right" } else { "they were wrong" })]
    Contents {
        /// Bytes that the sender wrote.
        sent: u64,
        /// Bytes that the receiver read.
        arrived: u64,
        /// Whether those were the ones that were sent.
        is_right: bool,
    },
}

impl QuicError {
    /// A connection that ended early, for any of the reasons that quinn has.
    pub(super) fn ended<E: Into<Cause>>(peer: SocketAddr) -> impl Fn(E) -> QuicError {
        move |error| QuicError::Ended(peer, error.into())
    }
}
