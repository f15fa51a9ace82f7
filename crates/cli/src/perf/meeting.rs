//! How two ends find each other: TCP, at the address of the device or at all of them.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use crate::stop::Stop;

/// How long to wait for the TCP connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// At the address given, or at all of them.
pub(crate) fn listen(address: Option<IpAddr>, port: u16) -> Result<TcpListener, Stop> {
    let addresses: Vec<SocketAddr> = match address {
        Some(address) => vec![SocketAddr::new(address, port)],
        // One socket takes both families, unless the host has no IPv6.
        None => vec![
            SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port),
            SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port),
        ],
    };
    TcpListener::bind(&addresses[..]).map_err(|error| match error.kind() {
        ErrorKind::AddrNotAvailable => {
            let address = addresses[0].ip();
            Stop::Missing(format!("{address} is no address of this host ({error}); `ip address` lists those that are"))
        }
        ErrorKind::AddrInUse => Stop::missing(
            format!("cannot listen on TCP port {port} (another server? then take another port with -p)"),
            error,
        ),
        _ => Stop::missing(format!("cannot listen on TCP port {port}"), error),
    })
}

/// To the program that should run there.
pub(crate) fn connect(host: &str, port: u16, program: &str) -> Result<TcpStream, Stop> {
    let addresses = (host, port).to_socket_addrs();
    let addresses = addresses.map_err(|error| {
        Stop::Missing(format!(
            "cannot find the host \"{host}\": {error}; give its name or its address, and the port with -p"
        ))
    })?;
    let mut last = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    let why = last.map_or_else(|| "it has no address".to_owned(), |error| error.to_string());
    Err(Stop::Missing(format!("cannot connect to {host} port {port}: {why}; does {program} run there?")))
}

/// Our address on the way to the peer, and the peer's.
pub(crate) fn addresses(stream: &TcpStream) -> Result<(IpAddr, IpAddr), Stop> {
    let failed = |error| Stop::failed("cannot use the TCP connection", error);
    let local = stream.local_addr().map_err(failed)?.ip().to_canonical();
    let peer = stream.peer_addr().map_err(failed)?.ip().to_canonical();
    Ok((local, peer))
}
