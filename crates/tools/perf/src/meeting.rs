//! How two ends find each other: TCP, at the address of the device or at all addresses.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use crate::error::PerfError;

/// How long to wait for the TCP connection.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

/// At the address given, or at all addresses.
pub fn listen(address: Option<IpAddr>, port: u16) -> Result<TcpListener, PerfError> {
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
            PerfError::Missing(format!(
                "{address} is no address of this host ({error}); `ip address` lists those that are"
            ))
        }
        ErrorKind::AddrInUse => PerfError::missing(
            format!("cannot listen on TCP port {port} (another server? then take another port with -p)"),
            error,
        ),
        _ => PerfError::missing(format!("cannot listen on TCP port {port}"), error),
    })
}

/// To the program that should run there. The host may be followed by a port, which then counts: `host:18515`,
/// `[::1]:18515`.
pub fn connect(host: &str, port: u16, program: &str) -> Result<TcpStream, PerfError> {
    let addresses = resolve(host, port)?;
    let mut last = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    let why = last.map_or_else(|| "it has no address".to_owned(), |error| error.to_string());
    let (host, port) = split_port(host, port)?;
    Err(PerfError::Missing(format!("cannot connect to {host} port {port}: {why}; does {program} run there?")))
}

/// The addresses of a host, which may be followed by a port, which then counts.
pub fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, PerfError> {
    let (host, port) = split_port(host, port)?;
    let addresses = (host, port).to_socket_addrs().map_err(|error| {
        PerfError::Missing(format!(
            "cannot find the host \"{host}\": {error}; give its name or its address, and the port after it (host:port, [::1]:port) or with -p"
        ))
    })?;
    Ok(addresses.collect())
}

/// The host without brackets and port, and the port: its own, or the other one.
fn split_port(host: &str, port: u16) -> Result<(&str, u16), PerfError> {
    let (name, own) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, "")) => (address, None),
        Some((address, rest)) => (address, Some(rest.strip_prefix(':').unwrap_or_default())),
        // More than one colon is an IPv6 address without brackets.
        None => match host.split_once(':').filter(|(_, own)| !own.contains(':')) {
            Some((name, own)) => (name, Some(own)),
            None => (host, None),
        },
    };
    let Some(own) = own else { return Ok((name, port)) };
    let own = own.parse().ok().filter(|own| *own != 0);
    let own = own.ok_or_else(|| {
        PerfError::Request(format!(
            "expected a host, host:port or [address]:port with a port of 1 to 65535, got \"{host}\""
        ))
    })?;
    Ok((name, own))
}

/// Our address towards the peer, and the peer's.
pub fn addresses(stream: &TcpStream) -> Result<(IpAddr, IpAddr), PerfError> {
    let failed = |error| PerfError::failed("cannot use the TCP connection", error);
    let local = stream.local_addr().map_err(failed)?.ip().to_canonical();
    let peer = stream.peer_addr().map_err(failed)?.ip().to_canonical();
    Ok((local, peer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_may_have_its_port() {
        for (host, expected) in [
            ("host", ("host", 7)),
            ("host:80", ("host", 80)),
            ("127.0.0.1:80", ("127.0.0.1", 80)),
            ("::1", ("::1", 7)),
            ("[::1]", ("::1", 7)),
            ("[2001:db8::1]:80", ("2001:db8::1", 80)),
        ] {
            assert_eq!(split_port(host, 7).expect(host), expected);
        }
        for host in ["host:", "host:0", "host:70000", "host:http", "[::1]80", "[::1]:"] {
            assert!(
                matches!(split_port(host, 7), Err(PerfError::Request(text)) if text.contains("host:port")),
                "{host}"
            );
        }
    }
}
