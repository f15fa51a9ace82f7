//! What can go wrong.

use std::io;

use thiserror::Error;

/// Why frames cannot be moved.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// There is no such interface.
    #[error("there is no interface {0} here; `ip link` lists those of this network namespace")]
    NoInterface(String),
    /// The interface was there and is not any more.
    #[error("the interface {0} is gone: was it deleted, or moved to another network namespace?")]
    Gone(String),
    /// Packet sockets need a right.
    #[error(
        "opening {interface} needs the right CAP_NET_RAW: run this as root, or in a user namespace with a network namespace of its own \
         (`unshare -Urn`)"
    )]
    NotAllowed {
        /// The interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// It cannot be opened.
    #[error("{interface} cannot be opened for frames: {what}")]
    Open {
        /// The interface.
        interface: String,
        /// The step that has failed.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// What arrived was no frame as it is on a wire.
    #[error(
        "a frame of {bytes} bytes {problem} arrived at {interface}: its sender leaves checksums or the cutting of segments to hardware that \
         is not there. Switch that off where the frames come from: ethtool -K INTERFACE tx off"
    )]
    Offloaded {
        /// Where it arrived.
        interface: String,
        /// Its length.
        bytes: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Frames cannot be received.
    #[error("frames cannot be received from {interface}")]
    Receive {
        /// The interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Frames cannot be sent.
    #[error("frames cannot be sent by {interface}")]
    Send {
        /// The interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Waiting for frames has failed.
    #[error("waiting for frames has failed")]
    Wait(#[source] io::Error),
}
