//! Who holds a UDP port: the kernel's table of sockets names each socket's inode, and the process that has it open has
//! a link to that inode among its descriptors. Other users' descriptors can be read by root only; then the table still
//! names the user.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// The owner of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// A process that we may look into.
    Process {
        /// Its name.
        name: String,
        /// Its number.
        id: u32,
    },
    /// The kernel's rxe driver, with the RDMA devices that it has.
    Rxe {
        /// Names of the devices.
        devices: Vec<String>,
    },
    /// A process that we may not look into, of this user.
    User(u32),
    /// Somebody.
    Unknown,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Process { name, id } => write!(f, "{name} (process {id})"),
            Owner::Rxe { devices } => write!(f, "the kernel's rxe driver ({})", devices.join(", ")),
            Owner::User(id) => write!(f, "a process of user {id}"),
            Owner::Unknown => write!(f, "another process"),
        }
    }
}

/// A row of the kernel's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    address: IpAddr,
    port: u16,
    user: u32,
    inode: u64,
}

/// Who holds a port at an address, or at all addresses; the root is the folder that holds `proc`.
pub(crate) fn of(root: &Path, address: IpAddr, port: u16, rxe_devices: &[String]) -> Owner {
    let table = |name: &str| fs::read_to_string(root.join("proc/self/net").join(name)).unwrap_or_default();
    let rows: Vec<Row> = [table("udp"), table("udp6")].iter().flat_map(|table| rows(table)).collect();
    // A socket at the address itself rather than one at all addresses, if there are both.
    let row = rows.iter().filter(|row| row.port == port && covers(row.address, address));
    let row = row.min_by_key(|row| row.address.is_unspecified());
    let process = row.and_then(|row| process_with(root, row.inode));
    match (process, row) {
        (Some(owner), _) => owner,
        (None, Some(row)) if row.user != 0 => Owner::User(row.user),
        // Sockets of the kernel belong to no process, and to user 0.
        (None, _) if !rxe_devices.is_empty() => Owner::Rxe { devices: rxe_devices.to_vec() },
        (None, Some(row)) => Owner::User(row.user),
        (None, None) => Owner::Unknown,
    }
}

/// Whether a socket bound to `bound` keeps others from `address`. One at all IPv6 addresses has all of IPv4 too, unless
/// it was set otherwise, which the table does not show.
fn covers(bound: IpAddr, address: IpAddr) -> bool {
    match bound {
        IpAddr::V6(v6) => v6 == Ipv6Addr::UNSPECIFIED || bound.to_canonical() == address,
        IpAddr::V4(v4) => bound == address || v4 == Ipv4Addr::UNSPECIFIED && address.is_ipv4(),
    }
}

fn rows(table: &str) -> Vec<Row> {
    table.lines().skip(1).filter_map(row).collect()
}

/// `sl local_address rem_address st tx_queue:rx_queue tr:when retrnsmt uid timeout inode …`
fn row(line: &str) -> Option<Row> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (address, port) = fields.get(1)?.split_once(':')?;
    Some(Row {
        address: parse_address(address)?,
        port: u16::from_str_radix(port, 16).ok()?,
        user: fields.get(7)?.parse().ok()?,
        inode: fields.get(9)?.parse().ok()?,
    })
}

/// Words of 32 bits, each printed as the machine's number that its bytes make.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    match text.len() {
        8 => Some(IpAddr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (index, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(8 * index)?);
            }
            Some(IpAddr::from(bytes))
        }
        _ => None,
    }
}

/// The process that has a socket open, among those whose descriptors we may read.
fn process_with(root: &Path, inode: u64) -> Option<Owner> {
    let wanted = format!("socket:[{inode}]");
    for process in fs::read_dir(root.join("proc")).ok()?.flatten() {
        let Some(id) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        let has = |path: &Path| fs::read_link(path).is_ok_and(|target| target.as_os_str() == wanted.as_str());
        if descriptors.flatten().any(|descriptor| has(&descriptor.path())) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some(Owner::Process { name: name.trim().to_owned(), id });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    const HEADING: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops";

    #[test]
    fn rows_are_read_as_the_kernel_writes_them() {
        let word = |address: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(address));
        let rest = "00000000:0000 07 00000000:00000000 00:00000000 00000000";
        let v4 = format!("  107: {}:12B7 {rest}  1000        0 31337 2 0000000000000000 0", word([10, 0, 0, 1]));
        let v6 = format!(
            "  108: {}{}{}{}:12B7 {rest}     0        0 7 2 0000000000000000 0",
            word([0xfd, 0, 0, 0]),
            word([0; 4]),
            word([0; 4]),
            word([0, 0, 0, 2])
        );
        let table = [HEADING, &v4, &v6, "nonsense"].join("\n");
        let expected = [
            Row { address: "10.0.0.1".parse().unwrap(), port: 4791, user: 1000, inode: 31337 },
            Row { address: "fd00::2".parse().unwrap(), port: 4791, user: 0, inode: 7 },
        ];
        assert_eq!(rows(&table), expected);
    }

    #[test]
    fn a_socket_at_all_addresses_covers_each() {
        let covers = |bound: &str, address: &str| covers(bound.parse().unwrap(), address.parse().unwrap());
        assert!(covers("0.0.0.0", "10.0.0.1"));
        assert!(covers("::", "10.0.0.1"));
        assert!(covers("::ffff:10.0.0.1", "10.0.0.1"));
        assert!(covers("fd00::2", "fd00::2"));
        assert!(!covers("0.0.0.0", "fd00::2"));
        assert!(!covers("10.0.0.2", "10.0.0.1"));
    }

    #[test]
    fn this_process_is_found() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let owner = of(Path::new("/"), address.ip(), address.port(), &[]);
        assert!(matches!(owner, Owner::Process { id, .. } if id == std::process::id()), "{owner:?}");
    }

    #[test]
    fn a_socket_of_no_process_is_rxes_where_there_is_one() {
        let nowhere = Path::new("/nonexistent");
        let address = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(of(nowhere, address, 4791, &[]), Owner::Unknown);
        let rxe = of(nowhere, address, 4791, &["rxe0".to_owned()]);
        assert_eq!(rxe.to_string(), "the kernel's rxe driver (rxe0)");
    }
}
