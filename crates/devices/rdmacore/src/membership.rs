//! Membership of a multicast group at the IP level. `ibv_attach_mcast` makes the device accept an Ethernet group. On
//! RoCEv2 that is only half of it: the kernel's IP layer drops datagrams to a group that nobody on the interface has
//! joined (and lets no switch know that somebody listens), so that Soft-RoCE receives nothing. Programs with rdma_cm
//! have that done for them. Here a socket, which receives nothing itself, joins for as long as the queue pair is
//! attached.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use longhaul_verbs::{Gid, GidType};

use crate::sysfs::DeviceFolder;

/// Rows of a GID table that are looked at.
const ROWS: u32 = 64;

/// A group, joined on the network interface of a port until this is dropped.
pub(crate) struct Membership {
    _socket: UdpSocket,
}

impl Membership {
    /// Joins on the interface behind the first port; `None` where that is no network interface, as with InfiniBand.
    pub(crate) fn join(folder: &DeviceFolder, group: Gid) -> io::Result<Option<Self>> {
        const PORT: u8 = 1;
        let Some(interface) = folder.interface(PORT) else {
            return Ok(None);
        };
        let socket = match group.to_ip() {
            IpAddr::V4(group) => {
                let rows = (0..ROWS).filter_map(|row| folder.gid(PORT, row).ok());
                let address =
                    rows.filter(|row| row.gid_type == GidType::RoceV2).find_map(|row| match row.gid.to_ip() {
                        IpAddr::V4(address) => Some(address),
                        IpAddr::V6(_) => None,
                    });
                let Some(address) = address else {
                    return Ok(None);
                };
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
                socket.join_multicast_v4(&group, &address)?;
                socket
            }
            IpAddr::V6(group) => {
                let index = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex"))?;
                let index = index.trim().parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
                socket.join_multicast_v6(&group, index)?;
                socket
            }
        };
        Ok(Some(Membership { _socket: socket }))
    }
}
