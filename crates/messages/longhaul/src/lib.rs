//! Messages between two programs over RDMA, or over any IP network, with the reliability scheme of your choice.
//!
//! ```text
//!   Listener ─ accept ─▶ Connection ◀═══ messages, both ways ═══▶ Connection ◀─ connect
//!                            │                                        │
//!                    softnic, rxe0, mlx5_0, …                 softnic, rxe0, mlx5_0, …
//! ```
//!
//! Two programs, the receiving one first (`docs/GUIDE.md` takes you from here to schemes and devices):
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let mut device: longhaul::DeviceChoice = "softnic".parse()?;
//! # device.udp.udp_port = longhaul::softnic::UdpPortChoice::Free;
//! use longhaul::{Listener, Options};
//!
//! let listener = Listener::bind("127.0.0.1:0", "softnic", &Options::default())?;
//! # let address = listener.local_address();
//! # let sender = std::thread::spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! # let connection = longhaul::connect(address, device, &Options::default()).wait()?;
//! # connection.write("hello").wait()?;
//! # Ok(())
//! # });
//! let connection = listener.accept().wait()?;
//! let message = connection.receive(1024).wait()?;
//! assert_eq!(message.bytes(), b"hello");
//! assert!(message.missing().is_empty());
//! # sender.join().expect("it ends").expect("it sends");
//! # Ok(())
//! # }
//! ```
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let connection = longhaul::connect("127.0.0.1:7471", "softnic", &longhaul::Options::default()).wait()?;
//! connection.write("hello").wait()?;
//! # Ok(())
//! # }
//! ```
//!
//! Everything that takes time returns a [`Pending`]: `.wait()` blocks, `.await` works on every executor.
//!
//! From another host, connect with the listener's handle ([`Listener::handle`]) instead of its address: it has the
//! token that the listener requires of everybody who is not on its own host.
//!
//! # From the outside in
//!
//! - [`Listener`], [`connect`], [`ListenHandle`]: two ends find each other over TCP, which is then kept to see when the
//!   peer goes, and make sure that UDP packets pass between their devices.
//! - [`Connecting`], [`Accepting`]: the same three messages as bytes, for a carrier of your own.
//! - [`Connection`], [`Message`], [`Memory`]: messages, copied or from registered memory where they lie. One thread
//!   drives all connections of an endpoint ([`Endpoint::with_driver_threads`] for more). Erasure codes are computed by
//!   others ([`Endpoint::with_coding_threads`]).
//! - [`Connection::receive_bounded`], [`Connection::write_bounded`]: messages that end by a deadline and say which bytes
//!   are missing (`docs/BOUNDED.md`).
//! - [`Options`], [`scheme`]: how messages are brought over; a scheme of your own is a trait away. One connection may
//!   have several, and [`Connection::choose`] one for each message.
//! - [`Endpoint`], [`DeviceChoice`]: devices by their names, or opened already; [`softnic`] has what only the software
//!   RNIC can.
//!
//! The protocol is in `longhaul-reliable` (schemes), `longhaul-sdr` (messages that complete in part) and in the
//! devices; formats are in `longhaul-wire`. Only the handshake is here.

mod admission;
mod agreement;
mod carrier;
mod chosen;
mod coding_pool;
mod connect;
mod connection;
mod device;
mod endpoint;
#[doc(hidden)]
pub mod fuzzing;
mod handle;
mod handshake;
mod handshake_error;
mod lifeline;
mod listener;
mod mailbox;
mod message;
mod options;
mod own_memory;
mod path_check;
mod peer_claims;
mod pending;
mod randomness;
mod runtime;
mod statistics;
mod transfer_error;

pub use agreement::Meeting;
pub use carrier::CarrierError;
pub use chosen::Chosen;
pub use connect::{ConnectError, Destination, connect};
pub use connection::{Connection, Incoming};
pub use device::{DeviceChoice, DeviceName, DeviceNameError, FecOnMessagesError, SOFTNIC};
pub use endpoint::{Endpoint, OpenError, RegisterMemoryError, Towards, UDP_PORT_ROCE};
pub use handle::ListenHandle;
pub use handshake::{Accepting, Connecting};
pub use handshake_error::HandshakeError;
pub use listener::{AcceptError, ListenError, Listener};
pub use longhaul_congestion::{ControllerName, ControllerNameError};
pub use longhaul_reliable::{
    Bound, Choice, ChoiceError, ConnectionError, Deadline, Delivery, Ending, Fill, MessageError, MessageReport, Sent,
};
pub use longhaul_runtime::with_sources;
pub use longhaul_sdr::memory::{BorrowError, ReadGuard, WriteGuard};
pub use longhaul_sdr::{Memory, RoundTripTime};
pub use longhaul_verbs::Mtu;
pub use longhaul_wire::fields::{FieldError, FieldProblem};
pub use message::Message;
pub use options::{Options, SchemeNamesTooLong};
pub use own_memory::{ScopedMemory, ScopedMessage, ScopedReceive};
pub use path_check::{LostDirection, PathError};
pub use pending::Pending;
pub use runtime::StartError;
pub use statistics::Statistics;
pub use transfer_error::TransferError;

/// What a reliability scheme is, and those that there are.
pub mod scheme {
    pub use longhaul_reliable::{
        Arrivals, BestEffort, Erasure, MessageShape, NamedScheme, Progress, ReceiveHalf, ReceiveIo, Scheme, SchemeList,
        SchemeNameError, SelectiveRepeat, SendHalf, SendIo, Task, scheme_named,
    };
    pub use longhaul_time::{Duration, Instant};
}

/// What only the software RNIC has: a choice of its UDP port, a bad network in process, captures, and forward error correction
/// for queue pairs of RC and UC ([`UdpDevice::protect_queue_pair`](softnic::UdpDevice::protect_queue_pair)).
pub mod softnic {
    pub use longhaul_impair::{Loss, Profile, Reordering};
    pub use longhaul_softnic_udp::{
        Auto, Background, DecoderCounters, EncoderCounters, Fec, FecError, FecPeer, Impair, Lowar, ProtectError,
        Protection, UdpConfig, UdpDevice, UdpPortChoice,
    };
}

/// Queue pairs, memory regions and completions of a device, for programs that use an [`Endpoint`] as an RDMA NIC
/// ([`Endpoint::device`]): the calls of libibverbs by other names.
pub use longhaul_verbs as verbs;
