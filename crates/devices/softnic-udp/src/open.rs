//! Opening a device: sockets, their options, and what the host refuses.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Weak;

use longhaul_softnic::{Config, Device, Direction, ImpairmentLayer, Layer, ShimLayer, Stack};
use longhaul_verbs::Mtu;
use longhaul_wire::UDP_PORT_ROCE;
use nix::libc;

use crate::capture::CaptureLayer;
use crate::config::{UdpConfig, UdpPortChoice};
use crate::driver::Driver;
use crate::path;
use crate::port::UdpPort;
use crate::socket::Socket;

/// Why a device could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No address was given.
    #[error("expected at least one address of this host to open a device at, got none")]
    NoAddress,
    /// Somebody else has the port.
    #[error(
        "UDP port {port} of {address} is taken, by another process or by the kernel's Soft-RoCE: end that, or take a free \
         port (then only softnics can be peers)"
    )]
    PortTaken {
        /// Of this address.
        address: IpAddr,
        /// This port.
        port: u16,
    },
    /// The sockets that were handed over cannot be used.
    #[error(
        "the sockets handed over for {addresses:?} cannot be used: expected one UDP socket bound to each address, all at one port"
    )]
    UnusableSockets {
        /// The device's addresses.
        addresses: Vec<IpAddr>,
    },
    /// The address is not one of this host's.
    #[error("{address} is not an address of this host: give one that `longhaul devices` lists")]
    NotOurAddress {
        /// The address.
        address: IpAddr,
    },
    /// Packets cannot be told apart by such an address.
    #[error(
        "{address} does not name one interface of this host (it is unspecified, multicast or link-local): give an address that \
         `longhaul devices` lists"
    )]
    UnusableAddress {
        /// The address.
        address: IpAddr,
    },
    /// The port's packets cannot be carried.
    #[error(
        "the interface of {address} has an MTU of {mtu_bytes} bytes, and the smallest RoCE packet needs {needed_bytes}: raise it"
    )]
    MtuTooSmall {
        /// Of this address.
        address: IpAddr,
        /// What its interface takes.
        mtu_bytes: u32,
        /// What is needed.
        needed_bytes: u32,
    },
    /// The forward error correction cannot work.
    #[error("the forward error correction cannot be used")]
    Fec(#[from] longhaul_shim::ConfigError),
    /// The bad network makes no sense.
    #[error("the profile of the impairment cannot be used")]
    Impair(#[from] longhaul_impair::ProfileError),
    /// The capture cannot be written.
    #[error("cannot write a capture to {}: is its folder there, and writable?", path.display())]
    Capture {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {what} for {address}")]
    System {
        /// What was tried.
        what: &'static str,
        /// For this address.
        address: IpAddr,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// Something on this host that costs speed or reach, and how to fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warning {
    /// What is not as it should be.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}; {}", self.problem, self.remedy)
    }
}

/// A device that has been opened.
pub(crate) struct Opened {
    pub(crate) device: Device,
    pub(crate) driver: Weak<Driver>,
    pub(crate) udp_port: u16,
    pub(crate) overhead_bytes: u32,
    pub(crate) warnings: Vec<Warning>,
}

/// Open a device, at sockets of its own or at those of a port that it shares.
pub(crate) fn open(
    mut config: Config,
    udp: &UdpConfig,
    layers: Vec<Box<dyn Layer>>,
    shared: Option<Vec<OwnedFd>>,
) -> Result<Opened, OpenError> {
    let impairment = |direction| udp.impair.as_ref().map(|impair| ImpairmentLayer::new(impair, direction)).transpose();
    let (outgoing, incoming) = (impairment(Direction::Outgoing)?, impairment(Direction::Incoming)?);
    let mut stack = Stack::new(layers);
    if let Some(fec) = &udp.fec {
        // Flows of a device that is opened again begin with other epochs.
        let words = config.random_seed.chunks_exact(8).flat_map(<[u8; 8]>::try_from).map(u64::from_le_bytes);
        let seed = words.fold(0, |folded: u64, word| folded.rotate_left(17) ^ word);
        let shim = longhaul_shim::Config { peers: udp.fec_gateways.clone(), ..longhaul_shim::Config::of(fec) };
        stack.push(Box::new(ShimLayer::new(shim, seed)?));
    }
    let overhead_bytes = u32::try_from(stack.overhead_bytes()).unwrap_or(u32::MAX);
    let shares_port = shared.is_some();
    let listeners = match shared {
        Some(sockets) => adopt_all(&config.addresses, sockets)?,
        None => bind_all(&config.addresses, udp.udp_port)?,
    };
    let udp_port = listeners[0].local().port();
    let mut warnings = Vec::new();
    let mut offload = udp.offload;
    let (mut receive_buffer_bytes, mut send_buffer_bytes) = (usize::MAX, usize::MAX);
    for listener in &listeners {
        let address = listener.local().ip();
        let failed = |what| move |source| OpenError::System { what, address, source };
        let (receive_bytes, send_bytes) = listener
            .set_buffers(udp.receive_buffer_bytes, udp.send_buffer_bytes)
            .map_err(failed("set the socket buffers"))?;
        receive_buffer_bytes = receive_buffer_bytes.min(receive_bytes);
        send_buffer_bytes = send_buffer_bytes.min(send_bytes);
        if udp.offload && !listener.has_segmentation_offload() {
            offload = false;
        }
        if udp.offload && listener.enable_receive_offload().is_err() {
            warnings.push(Warning {
                problem: "this kernel does not join arriving datagrams (UDP_GRO), so each costs a system call".into(),
                remedy: "use Linux 5.0 or later".into(),
            });
        }
        if let Some(mtu) = mtu_at(address, overhead_bytes, &mut warnings)? {
            config.mtu = config.mtu.min(mtu);
        }
    }
    if udp.offload && !offload {
        warnings.push(Warning {
            problem: "this kernel does not cut datagrams (UDP_SEGMENT), so each costs a system call".into(),
            remedy: "use Linux 4.18 or later".into(),
        });
    }
    if receive_buffer_bytes < udp.receive_buffer_bytes {
        warnings.push(Warning {
            problem: format!(
                "the system allows socket buffers of {receive_buffer_bytes} bytes, and {} were asked for: bursts from \
                 several peers will be lost",
                udp.receive_buffer_bytes
            ),
            remedy: format!("run: sysctl -w net.core.rmem_max={}", udp.receive_buffer_bytes),
        });
    }
    if send_buffer_bytes < udp.send_buffer_bytes {
        warnings.push(Warning {
            problem: format!(
                "the system allows socket buffers of {send_buffer_bytes} bytes, and {} were asked for: a slow link holds up \
                 everything that is sent",
                udp.send_buffer_bytes
            ),
            remedy: format!("run: sysctl -w net.core.wmem_max={}", udp.send_buffer_bytes),
        });
    }
    if udp_port != UDP_PORT_ROCE && udp.udp_port == UdpPortChoice::RoceOrFree {
        warnings.push(Warning {
            problem: format!(
                "port 4791 is taken, so this device listens at {udp_port}: only softnics can be its peers"
            ),
            remedy: "end the process that has 4791, to speak with RNICs and the kernel's Soft-RoCE".into(),
        });
    }
    // Whole batches: fifteen of the largest packets fill a call.
    config.turn_packets = config.turn_packets.max(60);
    config.local_addresses = path::host_addresses();
    // The peer's socket is taken to be like ours.
    config.peer_window_bytes.get_or_insert(receive_buffer_bytes as u64);
    config.congestion = config.congestion.or(udp.off_host_congestion);
    config.unacknowledged_bits_per_second = config.unacknowledged_bits_per_second.or(udp.off_host_rate_bits_per_second);
    let address = config.addresses[0];
    let port = UdpPort::new(listeners, offload, shares_port, udp).map_err(|source| OpenError::System {
        what: "watch the sockets",
        address,
        source,
    })?;
    let capture = udp.capture.as_ref().map(|path| {
        CaptureLayer::create(path, &config.name).map_err(|source| OpenError::Capture { path: path.clone(), source })
    });
    // Between the two directions of the bad network: what it shows has been through it.
    outgoing.into_iter().for_each(|layer| stack.push(Box::new(layer)));
    capture.transpose()?.into_iter().for_each(|layer| stack.push(Box::new(layer)));
    incoming.into_iter().for_each(|layer| stack.push(Box::new(layer)));
    let (device, driver) = Driver::start(config, port, stack, udp.background).map_err(|source| OpenError::System {
        what: "start the background thread",
        address,
        source,
    })?;
    Ok(Opened { device, driver, udp_port, overhead_bytes, warnings })
}

/// The sockets that were handed over, one for each address.
fn adopt_all(addresses: &[IpAddr], sockets: Vec<OwnedFd>) -> Result<Vec<Socket>, OpenError> {
    let first = *addresses.first().ok_or(OpenError::NoAddress)?;
    let failed = |source| OpenError::System { what: "set up the socket handed over", address: first, source };
    let sockets = sockets.into_iter().map(Socket::adopt).collect::<io::Result<Vec<_>>>().map_err(failed)?;
    let local = sockets.iter().map(|socket| socket.local().ip());
    let has_one_port = sockets.windows(2).all(|pair| pair[0].local().port() == pair[1].local().port());
    match local.eq(addresses.iter().copied()) && has_one_port {
        true => Ok(sockets),
        false => Err(OpenError::UnusableSockets { addresses: addresses.to_vec() }),
    }
}

/// One listening socket for each address, all at the same port.
fn bind_all(addresses: &[IpAddr], choice: UdpPortChoice) -> Result<Vec<Socket>, OpenError> {
    let first = *addresses.first().ok_or(OpenError::NoAddress)?;
    match choice {
        UdpPortChoice::Roce => bind_at(addresses, UDP_PORT_ROCE),
        UdpPortChoice::Exactly(port) => bind_at(addresses, port),
        UdpPortChoice::RoceOrFree => match bind_at(addresses, UDP_PORT_ROCE) {
            Err(OpenError::PortTaken { .. }) => bind_all(addresses, UdpPortChoice::Free),
            result => result,
        },
        UdpPortChoice::Free => {
            // A port that is free at one address may be taken at another.
            let mut last = Err(OpenError::NoAddress);
            for _ in 0..16 {
                let probe = bind(first, 0)?;
                let port = probe.local().port();
                let rest = bind_at(&addresses[1..], port);
                match rest {
                    Ok(rest) => return Ok(std::iter::once(probe).chain(rest).collect()),
                    Err(OpenError::PortTaken { .. }) => last = rest,
                    Err(error) => return Err(error),
                }
            }
            last
        }
    }
}

fn bind_at(addresses: &[IpAddr], port: u16) -> Result<Vec<Socket>, OpenError> {
    addresses.iter().map(|&address| bind(address, port)).collect()
}

fn bind(address: IpAddr, port: u16) -> Result<Socket, OpenError> {
    let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
    if address.is_unspecified() || address.is_multicast() || is_link_local {
        return Err(OpenError::UnusableAddress { address });
    }
    Socket::bind(SocketAddr::new(address, port)).map_err(|source| match source.raw_os_error() {
        Some(libc::EADDRINUSE) => OpenError::PortTaken { address, port },
        Some(libc::EADDRNOTAVAIL) => OpenError::NotOurAddress { address },
        _ => OpenError::System { what: "bind a socket", address, source },
    })
}

/// What the interface of an address carries besides what layers add; `None` when it cannot be found out.
fn mtu_at(address: IpAddr, overhead_bytes: u32, warnings: &mut Vec<Warning>) -> Result<Option<Mtu>, OpenError> {
    let Some((name, mtu_bytes)) = path::interface_of(address) else {
        warnings.push(Warning {
            problem: format!("the MTU of the interface with {address} cannot be found out"),
            remedy: "choose a path MTU that fits when connecting".into(),
        });
        return Ok(None);
    };
    let added_bytes = path::header_bytes_max(address.is_ipv6()).saturating_add(overhead_bytes);
    let Some(mtu) = path::largest_mtu(mtu_bytes.saturating_sub(overhead_bytes), address.is_ipv6()) else {
        let needed_bytes = added_bytes.saturating_add(Mtu::Bytes256.byte_count());
        return Err(OpenError::MtuTooSmall { address, mtu_bytes, needed_bytes });
    };
    if mtu < Mtu::Bytes4096 {
        let wanted = added_bytes + Mtu::Bytes4096.byte_count();
        warnings.push(Warning {
            problem: format!(
                "interface {name} has an MTU of {mtu_bytes} bytes, so packets carry {} bytes instead of 4096",
                mtu.byte_count()
            ),
            remedy: format!(
                "if the network carries larger packets, run: ip link set {name} mtu {}",
                wanted.next_multiple_of(100)
            ),
        });
    }
    Ok(Some(mtu))
}
