//! Connecting: from an address or a handle to a connection.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use longhaul_runtime::catch;
use longhaul_wire::fields::FieldError;
use thiserror::Error;

use crate::agreement::Meeting;
use crate::carrier::{Carrier, CarrierError, deadline_in};
use crate::connection::Connection;
use crate::device::{DeviceChoice, DeviceNameError, check_fec};
use crate::endpoint::{Endpoint, OpenError, Towards};
use crate::handle::{self, ListenHandle};
use crate::handshake::Connecting;
use crate::handshake_error::HandshakeError;
use crate::options::Options;
use crate::path_check::{self, PathError, VerifyError};
use crate::pending::{Pending, Promised};
use crate::transfer_error::TransferError;

/// Why there is no connection.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The device's name stands for nothing.
    #[error(transparent)]
    DeviceName(#[from] DeviceNameError),
    /// The device does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The handle is none.
    #[error("these bytes are no listen handle")]
    Handle(#[source] FieldError),
    /// The host has no address.
    #[error("cannot find the host of {to}, expected HOST:PORT")]
    Resolve {
        /// Where to.
        to: String,
        /// What the system said.
        source: io::Error,
    },
    /// Nobody listens there.
    #[error("cannot connect to {to}; does a program listen there?")]
    Unreachable {
        /// Where to.
        to: String,
        /// What the system said.
        source: io::Error,
    },
    /// TCP has failed, or the other end does not answer.
    #[error(transparent)]
    Carrier(#[from] CarrierError),
    /// The ends do not agree.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// UDP packets do not pass.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The connection ended while its path was being verified.
    #[error("the connection ended while its UDP path was being verified")]
    Ended(#[source] TransferError),
    /// The scheme panicked while connecting.
    #[error("connecting ended in {0}")]
    Panicked(String),
    /// No thread.
    #[error("a thread for connecting cannot be started")]
    Start(#[source] io::Error),
}

/// Where a listener is: `"HOST:PORT"`, or the handle that it gave, as itself or as text. Another host's listener needs
/// the handle, unless it has [`Options::allow_without_token`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A host and a TCP port, or the text of a handle.
    Host(String),
    /// A listener's handle.
    Handle(ListenHandle),
}

impl From<&str> for Destination {
    fn from(host: &str) -> Self {
        Destination::Host(host.to_owned())
    }
}

impl From<&String> for Destination {
    fn from(host: &String) -> Self {
        Destination::Host(host.clone())
    }
}

impl From<SocketAddr> for Destination {
    fn from(address: SocketAddr) -> Self {
        Destination::Host(address.to_string())
    }
}

impl From<ListenHandle> for Destination {
    fn from(handle: ListenHandle) -> Self {
        Destination::Handle(handle)
    }
}

/// Connect with a listener, from a device by its name, which is opened for this connection: `connect("host:7471",
/// "softnic", &options)`.
pub fn connect<D>(to: impl Into<Destination>, device: D, options: &Options) -> Pending<Connection, ConnectError>
where
    D: TryInto<DeviceChoice>,
    D::Error: Into<DeviceNameError>,
{
    match device.try_into() {
        Ok::<DeviceChoice, _>(choice) => begin(to.into(), Device::Closed(Box::new(choice)), options.clone()),
        Err(error) => Pending::ready(Err(error.into().into())),
    }
}

impl Endpoint {
    /// Connect with a listener, from this device.
    pub fn connect(&self, to: impl Into<Destination>, options: &Options) -> Pending<Connection, ConnectError> {
        begin(to.into(), Device::Open(self.clone()), options.clone())
    }
}

enum Device {
    Closed(Box<DeviceChoice>),
    Open(Endpoint),
}

/// On a thread of its own, since names are looked up and TCP is spoken.
fn begin(to: Destination, device: Device, options: Options) -> Pending<Connection, ConnectError> {
    let promised = Promised::new();
    let result = promised.clone();
    let connect = move || {
        let connected = catch(|| connect_now(&to, device, &options));
        result.give(connected.unwrap_or_else(|panicked| Err(ConnectError::Panicked(panicked.to_string()))));
    };
    match thread::Builder::new().name("longhaul-connect".to_owned()).spawn(connect) {
        Ok(_) => Pending::new(promised.taken()),
        Err(error) => Pending::ready(Err(ConnectError::Start(error))),
    }
}

impl From<VerifyError> for ConnectError {
    fn from(error: VerifyError) -> Self {
        match error {
            VerifyError::Path(error) => ConnectError::Path(error),
            VerifyError::Carrier(error) => ConnectError::Carrier(error),
            VerifyError::Ended(error) => ConnectError::Ended(error),
        }
    }
}

fn connect_now(to: &Destination, device: Device, options: &Options) -> Result<Connection, ConnectError> {
    let text = match to {
        Destination::Host(text) if text.starts_with(handle::TEXT_PREFIX) => Some(text),
        _ => None,
    };
    let from_text = text.map(|text| ListenHandle::from_text(text)).transpose().map_err(ConnectError::Handle)?;
    let from_text = from_text.map(Destination::Handle);
    let to = from_text.as_ref().unwrap_or(to);
    // Before anybody is bothered.
    check_fec(match &device {
        Device::Open(endpoint) => endpoint.fec(),
        Device::Closed(choice) => choice.udp.fec,
    })
    .map_err(HandshakeError::Fec)?;
    options.check_names().map_err(HandshakeError::from)?;
    let deadline = deadline_in(options.connect_timeout);
    let stream = reach(to, deadline)?;
    let mut carrier = Carrier::new(Arc::new(stream), deadline.saturating_duration_since(Instant::now()))?;
    let (local, peer) = carrier.addresses()?;
    let endpoint = match device {
        Device::Open(endpoint) => endpoint,
        Device::Closed(choice) => {
            let towards = Towards { local, peer, gid_index: choice.gid_index };
            Endpoint::open(&choice.name, towards, choice.udp)?
        }
    };
    let token = match to {
        Destination::Handle(handle) => Some(handle.token()),
        Destination::Host(_) => None,
    };
    let meeting = Meeting { addresses: Some((local, peer)), token };
    let connecting = Connecting::new(&endpoint, options, &meeting)?;
    carrier.send(connecting.hello())?;
    let answer = carrier.receive()?;
    let (connection, info) = connecting.on_answer(&answer)?;
    carrier.send(&info)?;
    path_check::verify(&connection, &mut carrier)?;
    let lifeline = carrier.into_lifeline(options.message_timeout);
    connection.watch(lifeline).map_err(CarrierError::System)?;
    Ok(connection)
}

fn reach(to: &Destination, deadline: Instant) -> Result<TcpStream, ConnectError> {
    let (name, addresses): (String, Vec<SocketAddr>) = match to {
        Destination::Host(host) => {
            let addresses = host.to_socket_addrs();
            let addresses = addresses.map_err(|source| ConnectError::Resolve { to: host.clone(), source })?;
            (host.clone(), addresses.collect())
        }
        Destination::Handle(handle) => {
            let addresses: Vec<_> = handle.addresses().collect();
            let names: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            (names.join(", "), addresses)
        }
    };
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for (index, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        // One that does not answer leaves time for the others.
        let share = left / (addresses.len() - index) as u32;
        match TcpStream::connect_timeout(address, share) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(ConnectError::Unreachable { to: name, source: last })
}
