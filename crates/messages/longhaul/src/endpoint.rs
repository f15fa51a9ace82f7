//! An open device, and how it is addressed towards a peer.
//!
//! Opening needs to know the peer: it decides which address of the host, and so which row of the GID table, is ours.

use std::io;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use longhaul_rdmacore::RdmaDevice;
use longhaul_runtime::with_sources;
use longhaul_sdr::Memory;
use longhaul_softnic::Config;
use longhaul_softnic_udp::{self as udp, UdpConfig, UdpDevice, path};
use longhaul_verbs::{
    Capabilities, Device, Gid, GidChoice, GidChoiceError, Mtu, PathAttributes, QueryError, RegisterError,
};
use thiserror::Error;

use crate::coding_pool::CodingPool;
use crate::device::{DeviceName, SOFTNIC};
use crate::randomness::random;
use crate::runtime::{Runtime, StartError};
use crate::statistics::Statistics;

/// RoCEv2's UDP port: the only one that devices of libibverbs have.
pub const UDP_PORT_ROCE: u16 = 4791;

/// Where the peer is, and what the user says about the path to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Towards {
    /// Our address towards the peer, as a TCP connection to it uses it.
    pub local: IpAddr,
    /// The peer's.
    pub peer: IpAddr,
    /// Row of the GID table, when the user gives one.
    pub gid_index: Option<u8>,
}

/// Why a device cannot be opened, or not used towards a peer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// libibverbs does not know it.
    #[error("there is no device \"{name}\" here: {}. {}", there_is(known), others())]
    NoSuchDevice {
        /// What was asked for.
        name: String,
        /// The available ones.
        known: Vec<String>,
    },
    /// There is no libibverbs to ask.
    #[error("there is no device \"{name}\" here: {}. {}", with_sources(error), others())]
    NoLibibverbs {
        /// What was asked for.
        name: String,
        /// Why not.
        error: longhaul_rdmacore::ListError,
    },
    /// The GID table ends before.
    #[error("there is no row {index}: the GID table has {rows} rows, counted from 0; give the device more addresses")]
    NoSuchRow {
        /// What was asked for.
        index: u8,
        /// The available ones.
        rows: usize,
    },
    /// The row cannot be read.
    #[error("row {index} of {name}'s GID table cannot be read")]
    Row {
        /// The device.
        name: String,
        /// The row.
        index: u8,
        /// What the device said.
        source: QueryError,
    },
    /// There is nothing in the row.
    #[error("row {index} of {name}'s GID table is empty; `longhaul devices -v` shows those that are not")]
    EmptyRow {
        /// The device.
        name: String,
        /// The row.
        index: u8,
    },
    /// No row leads to the peer, or several do.
    #[error("{name} cannot be used towards this peer")]
    GidChoice {
        /// The device.
        name: String,
        /// Why.
        source: GidChoiceError,
    },
    /// No request could name it.
    #[error("{name}: row {row} of the GID table is beyond 255, which no request can name")]
    RowBeyond {
        /// The device.
        name: String,
        /// The row.
        row: u32,
    },
    /// The software RNIC does not open.
    #[error("the software RNIC cannot be opened")]
    Softnic(#[from] udp::OpenError),
    /// The device of libibverbs does not open.
    #[error(transparent)]
    Libibverbs(#[from] longhaul_rdmacore::OpenError),
    /// Keys of the device must be random.
    #[error("cannot read /dev/urandom")]
    Randomness(#[source] io::Error),
}

/// Why memory was not registered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegisterMemoryError {
    /// There is nothing to register it with.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The device takes no memory.
    #[error("the device did not register the memory")]
    Register(#[from] RegisterError),
}

fn there_is(known: &[String]) -> String {
    match known {
        [] => "libibverbs finds no RDMA device on this host".to_owned(),
        known => format!("libibverbs finds {}", known.join(", ")),
    }
}

fn others() -> String {
    format!(
        "There are also {SOFTNIC}, and {SOFTNIC}:ADDRESS with an address of this host; `longhaul devices` shows them all"
    )
}

/// An open device, and how it is addressed. Connections of one endpoint share the device; clones are the same endpoint.
#[derive(Clone)]
pub struct Endpoint {
    device: Device,
    address: IpAddr,
    gid: Gid,
    gid_index: u8,
    port: u8,
    udp_port: u16,
    /// If it is the software RNIC, and was opened here.
    softnic: Option<UdpDevice>,
    warnings: Vec<String>,
    description: String,
    drivers: Arc<Drivers>,
}

/// What drives the connections of an endpoint, once there is one.
#[derive(Default)]
struct Drivers {
    threads: Option<NonZeroUsize>,
    coding_threads: Option<usize>,
    credit_bits_per_second: Option<u64>,
    runtime: Mutex<Option<Arc<Runtime>>>,
}

impl Endpoint {
    /// Open a device. `udp` is for the software RNIC alone.
    pub fn open(name: &DeviceName, towards: Towards, udp: UdpConfig) -> Result<Self, OpenError> {
        let endpoint = match name {
            DeviceName::Softnic { addresses } => Self::open_softnic(addresses, towards, udp)?,
            DeviceName::Libibverbs { name: device, address } => {
                name.check()?;
                Self::open_libibverbs(device, *address, towards)?
            }
        };
        tracing::info!(device = endpoint.describe(), "device opened");
        Ok(endpoint)
    }

    /// A device that is open already: the row of its GID table that is ours, its port (counted from 1), and the UDP
    /// port at which it listens, 4791 on everything but a softnic.
    pub fn new(device: Device, gid: Gid, gid_index: u8, port: u8, udp_port: u16) -> Self {
        let address = gid.to_ip();
        let description = format!("{} ({address})", device.name());
        Endpoint {
            device,
            address,
            gid,
            gid_index,
            port,
            udp_port,
            softnic: None,
            warnings: Vec::new(),
            description,
            drivers: Arc::default(),
        }
    }

    fn open_softnic(addresses: &[IpAddr], towards: Towards, udp: UdpConfig) -> Result<Self, OpenError> {
        let addresses = if addresses.is_empty() { vec![towards.local] } else { addresses.to_vec() };
        let gid_index = towards.gid_index.unwrap_or(0);
        let Some(&address) = addresses.get(usize::from(gid_index)) else {
            return Err(OpenError::NoSuchRow { index: gid_index, rows: addresses.len() });
        };
        let seed = random().map_err(OpenError::Randomness)?;
        let device = UdpDevice::open(Config::new(SOFTNIC, addresses, seed), udp)?;
        let udp_port = device.udp_port();
        Ok(Endpoint {
            device: device.verbs(),
            address,
            gid: Gid::from_ip(address),
            gid_index,
            port: 1,
            udp_port,
            warnings: device.warnings().iter().map(ToString::to_string).collect(),
            description: format!("{SOFTNIC}:{address} (UDP port {udp_port})"),
            softnic: Some(device),
            drivers: Arc::default(),
        })
    }

    fn open_libibverbs(name: &str, address: Option<IpAddr>, towards: Towards) -> Result<Self, OpenError> {
        let device = RdmaDevice::open(name)?;
        let verbs = device.verbs();
        let row = match towards.gid_index {
            Some(index) => given_row(&verbs, index)?,
            None => {
                // From the host's loopback address no device sends; its peer is another device of this host, or the
                // same one.
                let local = address.or(Some(towards.local).filter(|local| !local.is_loopback()));
                let chosen = verbs.choose_gid(local, towards.peer);
                chosen.map_err(|source| OpenError::GidChoice { name: name.to_owned(), source })?
            }
        };
        let Ok(gid_index) = u8::try_from(row.index) else {
            return Err(OpenError::RowBeyond { name: name.to_owned(), row: row.index });
        };
        let driver = device.driver().map_or_else(String::new, |driver| format!(", {driver}"));
        Ok(Endpoint {
            device: verbs,
            address: row.address,
            gid: row.gid,
            gid_index,
            port: row.port,
            udp_port: UDP_PORT_ROCE,
            softnic: None,
            warnings: Vec::new(),
            description: format!("{name} (libibverbs{driver})"),
            drivers: Arc::default(),
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The software RNIC, if this is one that [`Endpoint::open`] has opened: its bad network and its capture.
    pub fn softnic(&self) -> Option<&UdpDevice> {
        self.softnic.as_ref()
    }

    pub(crate) fn fec(&self) -> Option<udp::Fec> {
        self.softnic.as_ref().and_then(UdpDevice::fec)
    }

    /// Our address: what the peer's path leads to.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The GID that stands for it.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// Its row in the GID table.
    pub fn gid_index(&self) -> u8 {
        self.gid_index
    }

    /// The device's port, counted from 1.
    pub fn port(&self) -> u8 {
        self.port
    }

    /// The UDP port at which the device listens.
    pub fn udp_port(&self) -> u16 {
        self.udp_port
    }

    /// In one line for people: which device, of which kind.
    pub fn describe(&self) -> &str {
        &self.description
    }

    /// What the host lacks for this device to do its best, in lines for people.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The payload of a packet that the port can carry.
    pub fn mtu(&self) -> Result<Mtu, QueryError> {
        Ok(self.device.port_attributes(self.port)?.active_mtu)
    }

    /// The payload of a packet that the port and the route to a peer carry; `None` if they carry no RoCE packet at all.
    pub fn mtu_towards(&self, peer: IpAddr) -> Result<Option<Mtu>, QueryError> {
        let port = self.mtu()?;
        // What layers of the port add to each packet.
        let overhead_bytes = self.softnic.as_ref().map_or(0, UdpDevice::overhead_bytes);
        Ok(match path::route_mtu_bytes(self.address, peer) {
            Ok(bytes) => {
                path::largest_mtu(bytes.saturating_sub(overhead_bytes), peer.is_ipv6()).map(|route| route.min(port))
            }
            // The host does not know; the device may all the same.
            Err(_) => Some(port),
        })
    }

    /// The path to a peer's device, which listens at this UDP port.
    pub fn path_to(&self, peer: Gid, udp_port: u16) -> PathAttributes {
        PathAttributes { source_gid_index: self.gid_index, port: self.port, udp_port, ..PathAttributes::to(peer) }
    }

    /// The same device, with this many threads that drive its connections: each connection belongs to one of them. One
    /// is enough until it is busy all the time. Connections that there are already stay where they are.
    #[must_use]
    pub fn with_driver_threads(self, threads: NonZeroUsize) -> Self {
        self.with_drivers(|drivers| drivers.threads = Some(threads))
    }

    /// The same device, with at most this many threads that encode and decode for all its connections with erasure
    /// coding, and verify checksums of long messages. They are started when there is work for them. With 0 the threads
    /// that drive connections do it, and a long message holds up the other connections of its driver. By default: as
    /// many as the host has processors that drive no connections, one at least. Connections that there are already stay
    /// as they are.
    #[must_use]
    pub fn with_coding_threads(self, threads: usize) -> Self {
        self.with_drivers(|drivers| drivers.coding_threads = Some(threads))
    }

    /// The same device, which grants credit to senders that have the controller `credit` for this rate: what its port, or
    /// this host, takes from all of them together. By default the rate that the port reports, or 10 Gbit/s. Connections
    /// that there are already stay as they are, and share nothing with the new ones.
    #[must_use]
    pub fn with_credit_rate(self, bits_per_second: u64) -> Self {
        self.with_drivers(|drivers| drivers.credit_bits_per_second = Some(bits_per_second))
    }

    fn with_drivers(self, change: impl FnOnce(&mut Drivers)) -> Self {
        let Drivers { threads, coding_threads, credit_bits_per_second, .. } = *self.drivers;
        let mut drivers = Drivers { threads, coding_threads, credit_bits_per_second, runtime: Mutex::default() };
        change(&mut drivers);
        Endpoint { drivers: Arc::new(drivers), ..self }
    }

    fn credit_bits_per_second(&self) -> Result<Option<u64>, QueryError> {
        match self.drivers.credit_bits_per_second {
            None => Ok(self.device.port_attributes(self.port)?.rate_bits_per_second),
            rate => Ok(rate),
        }
    }

    /// Threads that encode and decode at most ([`Endpoint::with_coding_threads`]).
    pub fn coding_threads(&self) -> usize {
        self.drivers.coding_threads.unwrap_or_else(|| CodingPool::default_threads(self.driver_threads()))
    }

    fn driver_threads(&self) -> NonZeroUsize {
        self.drivers.threads.unwrap_or(NonZeroUsize::MIN)
    }

    /// Register bytes that messages are written from and received into, without a copy, on any connection of the
    /// endpoint. For memory that is not a `Vec`, see [`Endpoint::register_pointer`] and [`Endpoint::scope`].
    pub fn register(&self, buffer: Vec<u8>) -> Result<Memory, RegisterMemoryError> {
        Ok(Memory::register(self.runtime()?.domain(), buffer)?)
    }

    /// What the device has counted, for all that use it, and what the bad network in process has done, if there is one.
    pub fn statistics(&self) -> Statistics {
        let mut statistics = Statistics::default();
        for counter in self.device.counters() {
            statistics.add(format!("device.{}", counter.name), counter.value);
        }
        let impaired = self.softnic.as_ref().and_then(UdpDevice::impairment_counters);
        for (direction, counters) in ["sent", "received"].into_iter().zip(impaired.into_iter().flatten()) {
            statistics.add(format!("impairment.{direction}.packets"), counters.packets);
            statistics.add(format!("impairment.{direction}.lost"), counters.lost + counters.queue_full);
            statistics.add(format!("impairment.{direction}.reordered"), counters.reordered);
            statistics.add(format!("impairment.{direction}.duplicated"), counters.duplicated);
            statistics.add(format!("impairment.{direction}.corrupted"), counters.corrupted);
        }
        statistics
    }

    /// What drives its connections.
    pub(crate) fn runtime(&self) -> Result<Arc<Runtime>, StartError> {
        let mut runtime = self.drivers.runtime.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = runtime.as_ref().filter(|runtime| !runtime.has_failed()) {
            return Ok(runtime.clone());
        }
        let rate = self.credit_bits_per_second()?;
        let started = Runtime::start(&self.device, self.driver_threads(), self.coding_threads(), rate)?;
        Ok(runtime.insert(started).clone())
    }

    pub(crate) fn capabilities(&self) -> Result<Capabilities, QueryError> {
        Ok(self.device.attributes()?.capabilities)
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("Endpoint").field(&self.description).finish()
    }
}

/// The row of the first port's GID table that the user names.
fn given_row(verbs: &Device, index: u8) -> Result<GidChoice, OpenError> {
    let name = || verbs.name().to_owned();
    let row = verbs.gid(1, index.into()).map_err(|source| OpenError::Row { name: name(), index, source })?;
    if row.gid == Gid::default() {
        return Err(OpenError::EmptyRow { name: name(), index });
    }
    Ok(GidChoice { port: 1, index: row.index, gid: row.gid, address: row.gid.to_ip() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_software_rnic_is_open_towards_its_peer() {
        let local: IpAddr = "127.0.0.1".parse().expect("an address");
        let towards = Towards { local, peer: local, gid_index: None };
        let mut udp = UdpConfig::default();
        udp.udp_port = udp::UdpPortChoice::Free;
        let name: DeviceName = SOFTNIC.parse().expect("a name");
        let endpoint = Endpoint::open(&name, towards, udp.clone()).expect("it opens");
        assert_eq!((endpoint.address(), endpoint.gid_index(), endpoint.port()), (local, 0, 1));
        assert_eq!(endpoint.describe(), format!("softnic:127.0.0.1 (UDP port {})", endpoint.udp_port()));
        let refused = Endpoint::open(&name, Towards { gid_index: Some(1), ..towards }, udp);
        assert!(matches!(refused, Err(OpenError::NoSuchRow { index: 1, rows: 1 })));
    }
}
