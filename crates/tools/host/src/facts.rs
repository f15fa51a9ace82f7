//! What this host is like, gathered without changing it: interfaces and their addresses, limits, offloads, who holds
//! UDP port 4791, and the RDMA devices that the kernel knows. What it means is said in [`problems`](crate::problems),
//! which sees only this.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;

use longhaul_softnic_udp::path;
use longhaul_verbs::Mtu;
use longhaul_wire::UDP_PORT_ROCE;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{getsockopt, setsockopt, sockopt};

use crate::link::{self, Link};
use crate::port_owner::{self, Owner};

/// What this host is like.
#[derive(Clone, Debug, Default)]
pub struct HostFacts {
    /// Interfaces with their addresses, in the kernel's order.
    pub interfaces: Vec<Interface>,
    /// Whether the kernel cuts one send into many datagrams (UDP_SEGMENT).
    pub segmentation_offload: bool,
    /// Whether the kernel hands over many datagrams in one receive (UDP_GRO).
    pub receive_offload: bool,
    /// `None` when no socket could be asked.
    pub receive_buffer: Option<SocketBuffer>,
    /// `None` when no socket could be asked.
    pub send_buffer: Option<SocketBuffer>,
    /// `None` when the kernel does not report it.
    pub locked_memory: Option<LockedMemory>,
    /// RDMA devices of the kernel: hardware, rxe, siw.
    pub rdma_devices: Vec<RdmaDevice>,
    /// What the kernel has counted of UDP since the host (or this network namespace) started, by the names in
    /// `/proc/net/snmp`.
    pub udp_counters: BTreeMap<String, u64>,
}

/// A network interface.
#[derive(Clone, Debug, Default)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Switched on.
    pub is_up: bool,
    /// Has a link.
    pub has_carrier: bool,
    /// What the kernel reports about it.
    pub link: Link,
    /// Its addresses.
    pub addresses: Vec<Address>,
}

/// An address of an interface.
#[derive(Clone, Debug)]
pub struct Address {
    /// The address.
    pub ip: IpAddr,
    /// UDP port 4791 at this address.
    pub roce_port: RocePort,
}

/// What became of binding a socket to UDP port 4791 of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RocePort {
    /// It worked.
    Free,
    /// Somebody has it.
    Taken(Owner),
    /// It failed for another reason.
    Refused(String),
}

/// A socket buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketBuffer {
    /// What softnic asks for.
    pub asked_bytes: usize,
    /// What the kernel grants to this process.
    pub granted_bytes: usize,
    /// What it grants to any process, if it reports that (net.core.rmem_max, wmem_max).
    pub limit_bytes: Option<usize>,
}

/// How much memory a process may lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedMemory {
    /// `None` is no limit.
    pub limit_bytes: Option<u64>,
    /// This process may lock more than the limit (CAP_IPC_LOCK).
    pub is_exempt: bool,
}

/// An RDMA device of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RdmaDevice {
    /// Its name.
    pub name: String,
    /// Made by rxe, RoCE in the kernel's software.
    pub is_rxe: bool,
    /// Interfaces at whose addresses it speaks RoCEv2.
    pub roce_interfaces: Vec<String>,
}

impl HostFacts {
    /// Look at this host; socket buffers are tried with these sizes.
    pub fn gather(receive_buffer_bytes: usize, send_buffer_bytes: usize) -> io::Result<HostFacts> {
        let root = Path::new("/");
        let mut facts = HostFacts::from_files(root);
        facts.interfaces = interfaces(root, &facts.rdma_devices)?;
        facts.probe_sockets(root, receive_buffer_bytes, send_buffer_bytes);
        Ok(facts)
    }

    /// What files report; the root is the folder that holds `proc` and `sys`.
    fn from_files(root: &Path) -> HostFacts {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let mut udp_counters = udp_counters(&read("proc/self/net/snmp"));
        udp_counters.extend(udp6_counters(&read("proc/self/net/snmp6")));
        HostFacts {
            locked_memory: locked_memory(
                &read("proc/self/limits"),
                &read("proc/self/status"),
                &read("proc/self/uid_map"),
            ),
            rdma_devices: rdma_devices(root),
            udp_counters,
            ..HostFacts::default()
        }
    }

    /// What a socket reports that is never bound and never sends.
    fn probe_sockets(&mut self, root: &Path, receive_buffer_bytes: usize, send_buffer_bytes: usize) {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
        let open = |family| socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None);
        let Ok(socket) = open(AddressFamily::Inet).or_else(|_| open(AddressFamily::Inet6)) else {
            return;
        };
        self.segmentation_offload = setsockopt(&socket, sockopt::UdpGsoSegment, &1024).is_ok();
        self.receive_offload = setsockopt(&socket, sockopt::UdpGroSegment, &true).is_ok();
        // As softnic asks: by force, which needs CAP_NET_ADMIN and is not bound by the limit, or else politely. The
        // kernel answers with twice what it grants, because its bookkeeping is counted too.
        let limit =
            |name: &str| fs::read_to_string(root.join("proc/sys/net/core").join(name)).ok()?.trim().parse().ok();
        let buffer = |asked_bytes, granted: nix::Result<usize>, limit_name| {
            Some(SocketBuffer { asked_bytes, granted_bytes: granted.ok()? / 2, limit_bytes: limit(limit_name) })
        };
        let receive = setsockopt(&socket, sockopt::RcvBufForce, &receive_buffer_bytes)
            .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &receive_buffer_bytes))
            .and_then(|()| getsockopt(&socket, sockopt::RcvBuf));
        let send = setsockopt(&socket, sockopt::SndBufForce, &send_buffer_bytes)
            .or_else(|_| setsockopt(&socket, sockopt::SndBuf, &send_buffer_bytes))
            .and_then(|()| getsockopt(&socket, sockopt::SndBuf));
        self.receive_buffer = buffer(receive_buffer_bytes, receive, "rmem_max");
        self.send_buffer = buffer(send_buffer_bytes, send, "wmem_max");
    }
}

impl Interface {
    /// Bytes of the IP packets that a path MTU needs.
    pub fn packet_bytes(address: IpAddr, mtu: Mtu) -> u32 {
        mtu.byte_count() + path::header_bytes_max(address.is_ipv6())
    }

    /// The largest path MTU whose packets fit; `None` when the interface carries none, or does not report its MTU.
    pub fn fitting_mtu(&self, address: IpAddr) -> Option<Mtu> {
        path::largest_mtu(self.link.mtu_bytes?, address.is_ipv6())
    }
}

/// Why softnic cannot use an address, if it cannot.
pub fn unusable(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            Some("link-local: a GID has no room for the interface that it belongs to")
        }
        _ if address.is_multicast() || address.is_unspecified() => Some("not the address of one interface"),
        _ => None,
    }
}

fn interfaces(root: &Path, rdma_devices: &[RdmaDevice]) -> io::Result<Vec<Interface>> {
    let rxe: Vec<String> = rdma_devices.iter().filter(|rdma| rdma.is_rxe).map(|rdma| rdma.name.clone()).collect();
    let mut interfaces: Vec<Interface> = Vec::new();
    for entry in getifaddrs()? {
        // An alias (eth0:1) is an address of its interface.
        let name = entry.interface_name.split(':').next().unwrap_or_default();
        let position = interfaces.iter().position(|known| known.name == name).unwrap_or_else(|| {
            interfaces.push(Interface {
                name: name.to_owned(),
                is_up: entry.flags.contains(InterfaceFlags::IFF_UP),
                has_carrier: entry.flags.contains(InterfaceFlags::IFF_RUNNING),
                link: link::of_interface(name),
                addresses: Vec::new(),
            });
            interfaces.len() - 1
        });
        let ip = entry.address.and_then(|address| match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => Some(IpAddr::V4(v4.ip())),
            (_, Some(v6)) => Some(IpAddr::V6(v6.ip())),
            _ => None,
        });
        let is_known = |ip: &IpAddr| interfaces.iter().flat_map(|known| &known.addresses).any(|known| known.ip == *ip);
        if let Some(ip) = ip.filter(|ip| !is_known(ip)) {
            interfaces[position].addresses.push(Address { ip, roce_port: roce_port(root, ip, &rxe) });
        }
    }
    Ok(interfaces)
}

/// Bind a socket for a moment. Nothing is sent, and what others have bound is not disturbed.
fn roce_port(root: &Path, address: IpAddr, rxe_devices: &[String]) -> RocePort {
    match UdpSocket::bind((address, UDP_PORT_ROCE)) {
        Ok(_) => RocePort::Free,
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            RocePort::Taken(port_owner::of(root, address, UDP_PORT_ROCE, rxe_devices))
        }
        Err(error) => RocePort::Refused(error.to_string()),
    }
}

/// From `/proc/self/limits`, the effective capabilities in `/proc/self/status`, and `/proc/self/uid_map`: who is root
/// in a user namespace of its own has all capabilities, and not this one.
fn locked_memory(limits: &str, status: &str, user_map: &str) -> Option<LockedMemory> {
    const CAP_IPC_LOCK: u64 = 1 << 14;
    const ALL_USERS: [&str; 3] = ["0", "0", "4294967295"];
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let soft = limit.split_ascii_whitespace().next()?;
    let limit_bytes = if soft == "unlimited" { None } else { Some(soft.parse().ok()?) };
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or_default();
    let is_first_namespace = user_map.split_ascii_whitespace().eq(ALL_USERS);
    Some(LockedMemory { limit_bytes, is_exempt: capabilities & CAP_IPC_LOCK != 0 && is_first_namespace })
}

/// The `Udp:` lines of `/proc/net/snmp`: one of names, one of numbers.
fn udp_counters(table: &str) -> BTreeMap<String, u64> {
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("Udp:"));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let pairs = names.split_ascii_whitespace().zip(values.split_ascii_whitespace());
    pairs.filter_map(|(name, value)| Some((format!("Udp{name}"), value.parse().ok()?))).collect()
}

/// The `Udp6…` lines of `/proc/net/snmp6`: a name and a number each.
fn udp6_counters(table: &str) -> BTreeMap<String, u64> {
    let pair = |line: &str| {
        let (name, value) = line.split_once(char::is_whitespace)?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    table.lines().filter(|line| line.starts_with("Udp6")).filter_map(pair).collect()
}

/// The kernel's RDMA devices, by name.
fn rdma_devices(root: &Path) -> Vec<RdmaDevice> {
    let folder = root.join("sys/class/infiniband");
    let mut devices: Vec<RdmaDevice> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| rdma_device(&entry.path())).collect();
    devices.sort_by(|left, right| left.name.cmp(&right.name));
    devices
}

fn rdma_device(folder: &Path) -> RdmaDevice {
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // Only rxe names its network interface in this file.
    let parent = fs::read_to_string(folder.join("parent")).ok().map(|parent| parent.trim().to_owned());
    let is_rxe = parent.is_some();
    let mut roce_interfaces: Vec<String> = parent.into_iter().collect();
    for port in fs::read_dir(folder.join("ports")).into_iter().flatten().flatten() {
        let table = port.path().join("gid_attrs");
        // Reading an empty row of the GID table is an error.
        let cell = |path: &Path| Some(fs::read_to_string(path).ok()?.trim().to_owned());
        let rows = fs::read_dir(table.join("types")).into_iter().flatten().flatten();
        let roce_rows = rows.filter(|row| cell(&row.path()).is_some_and(|kind| kind == "RoCE v2"));
        roce_interfaces.extend(roce_rows.filter_map(|row| cell(&table.join("ndevs").join(row.file_name()))));
    }
    roce_interfaces.sort();
    roce_interfaces.dedup();
    RdmaDevice { name, is_rxe, roce_interfaces }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units     \n\
        Max processes             15000                15000                processes \n\
        Max locked memory         8388608              unlimited            bytes     \n";

    #[test]
    fn the_locked_memory_limit_is_the_soft_one() {
        let (everybody, somebody) = ("         0          0 4294967295\n", "         0       1000          1\n");
        let (ordinary, root) = ("CapEff:\t0000000000000000\n", "CapPrm:\t0\nCapEff:\t000001ffffffffff\n");
        let expected = LockedMemory { limit_bytes: Some(8 << 20), is_exempt: false };
        assert_eq!(locked_memory(LIMITS, ordinary, everybody), Some(expected));
        assert_eq!(locked_memory(LIMITS, root, everybody), Some(LockedMemory { is_exempt: true, ..expected }));
        assert_eq!(locked_memory(LIMITS, root, somebody), Some(expected));
        let unlimited = LIMITS.replace("8388608 ", "unlimited ");
        assert_eq!(locked_memory(&unlimited, ordinary, everybody).and_then(|limit| limit.limit_bytes), None);
        assert_eq!(locked_memory("", "", ""), None);
    }

    #[test]
    fn udp_counters_are_read_by_name() {
        let table = "Tcp: A B\nTcp: 1 2\nUdp: InDatagrams RcvbufErrors\nUdp: 55 7\nUdpLite: InDatagrams\nUdpLite: 3\n";
        let expected = BTreeMap::from([("UdpInDatagrams".to_owned(), 55), ("UdpRcvbufErrors".to_owned(), 7)]);
        assert_eq!(udp_counters(table), expected);
        let table = "Ip6InReceives   \t9\nUdp6RcvbufErrors                \t12\n";
        assert_eq!(udp6_counters(table), BTreeMap::from([("Udp6RcvbufErrors".to_owned(), 12)]));
    }

    #[test]
    fn path_mtus_fit_below_the_headers() {
        let fits = |mtu_bytes: u32, address: &str| {
            let link = Link { mtu_bytes: Some(mtu_bytes), ..Link::default() };
            Interface { link, ..Interface::default() }.fitting_mtu(address.parse().unwrap())
        };
        assert_eq!(fits(4168, "10.0.0.1"), Some(Mtu::Bytes4096));
        assert_eq!(fits(4167, "10.0.0.1"), Some(Mtu::Bytes2048));
        assert_eq!(fits(4188, "fd00::1"), Some(Mtu::Bytes4096));
        assert_eq!(fits(4187, "fd00::1"), Some(Mtu::Bytes2048));
        assert_eq!(fits(1500, "10.0.0.1"), Some(Mtu::Bytes1024));
        assert_eq!(fits(300, "10.0.0.1"), None);
        assert_eq!(fits(20, "10.0.0.1"), None);
    }

    #[test]
    fn link_local_addresses_are_not_used() {
        assert!(unusable("fe80::1".parse().unwrap()).is_some());
        for address in ["127.0.0.1", "::1", "10.0.0.1", "169.254.0.1", "fd00::1"] {
            assert_eq!(unusable(address.parse().unwrap()), None, "{address}");
        }
    }

    #[test]
    fn rdma_devices_are_told_apart() {
        let root = std::env::temp_dir().join(format!("longhaul-devices-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join("sys/class/infiniband").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("rxe_a/parent", "eth0\n");
        for (row, kind, interface) in [(0, "RoCE v2", "eth1"), (1, "RoCE v2", "eth1"), (2, "IB/RoCE v1", "eth2")] {
            write(&format!("mlx5_0/ports/1/gid_attrs/types/{row}"), &format!("{kind}\n"));
            write(&format!("mlx5_0/ports/1/gid_attrs/ndevs/{row}"), &format!("{interface}\n"));
        }
        let found = HostFacts::from_files(&root).rdma_devices;
        fs::remove_dir_all(&root).unwrap();
        let device = |name: &str, is_rxe, interface: &str| RdmaDevice {
            name: name.to_owned(),
            is_rxe,
            roce_interfaces: vec![interface.to_owned()],
        };
        assert_eq!(found, [device("mlx5_0", false, "eth1"), device("rxe_a", true, "eth0")]);
    }

    #[test]
    fn a_port_that_is_held_is_found_taken() {
        // A loopback address that no other test uses. Where rxe has the port at all addresses, it is taken already.
        let address = IpAddr::from([127, 93, 7, 41]);
        let _holder = UdpSocket::bind((address, UDP_PORT_ROCE));
        assert!(matches!(roce_port(Path::new("/"), address, &[]), RocePort::Taken(_)));
        // Addresses of a documentation network are nobody's.
        assert!(matches!(roce_port(Path::new("/"), [203, 0, 113, 99].into(), &[]), RocePort::Refused(_)));
    }
}
