//! Messages between two programs over RDMA, or over any IP network, with the reliability scheme of your choice.

mod carrier;
mod connect;
mod connection;
mod device;
mod driver;
mod endpoint;
mod fields;
mod handle;
mod handshake;
mod handshake_bytes;
mod listener;
mod message;
mod options;
mod pending;
mod randomness;

pub use carrier::CarrierError;
pub use connect::{ConnectError, Destination, connect};
pub use connection::{Connection, TransferError};
pub use device::{DeviceChoice, DeviceName, DeviceNameError, SOFTNIC};
pub use endpoint::{Endpoint, OpenError, Towards, UDP_PORT_ROCE};
pub use fields::FieldError;
pub use handle::ListenHandle;
pub use handshake::{Accepting, Connecting, HandshakeError, Meeting};
pub use listener::{AcceptError, ListenError, Listener};
pub use longhaul_reliable::{MessageReport, NamedScheme, Scheme, SchemeNameError};
pub use longhaul_sdr::Memory;
pub use message::Message;
pub use options::Options;
pub use pending::Pending;
