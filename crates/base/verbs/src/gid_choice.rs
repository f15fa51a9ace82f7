//! Which row of which GID table to send from, found automatically.
//!
//! Programs name a peer by its IP address, verbs want the row of a port's GID table that holds the source address. The
//! rule: RoCEv2 rows of the peer's address family; among them the address from which the host's routing reaches the
//! peer, if the caller has asked for it; otherwise the only one that there is. When the rule leaves none or several,
//! nothing is guessed: a wrong source address is dropped far away without a word. The error lists the available rows
//! and says what to do.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use crate::{Device, Gid, GidEntry, GidType, QueryError};

/// Rows that an error lists; tables of some devices have hundreds.
const ROWS_LISTED: usize = 16;

/// Where to send from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidChoice {
    /// The port, counted from 1.
    pub port: u8,
    /// The row of its GID table.
    pub index: u32,
    /// What is there.
    pub gid: Gid,
    /// The IP address that it stands for.
    pub address: IpAddr,
}

/// No row could be chosen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GidChoiceError {
    /// The tables are empty.
    #[error("the device has no GID: its interface has no address yet, or is down; give it one (ip address add)")]
    Empty,
    /// There are rows, but no RoCEv2.
    #[error("the device has no RoCEv2 GID, which IP peers need; it has {rows}; give a row by its index if one fits")]
    NoRoceV2 {
        /// The rows of the table.
        rows: GidRows,
    },
    /// The peer's address family has no row.
    #[error(
        "the peer {peer} is {}, and the device has no RoCEv2 GID of that kind; it has {rows}; give its interface such an \
         address, or name the peer by another",
        kind_of(*peer)
    )]
    OtherFamily {
        /// Who was to be reached.
        peer: IpAddr,
        /// The rows of the table.
        rows: GidRows,
    },
    /// The host would send from another interface.
    #[error(
        "this host reaches {peer} from {local}, which is no RoCEv2 GID of the device; it has {rows}; use the device on that \
         interface, change the route, or give a row by its index"
    )]
    NotLocal {
        /// From where the host reaches the peer.
        local: IpAddr,
        /// Who was to be reached.
        peer: IpAddr,
        /// The rows of the table.
        rows: GidRows,
    },
    /// Several would do.
    #[error(
        "several GIDs of the device could reach {peer}: {rows}; give a row by its index, or the address to send from"
    )]
    Several {
        /// Who was to be reached.
        peer: IpAddr,
        /// Those that would do.
        rows: GidRows,
    },
    /// A table could not be read.
    #[error("the device's GIDs could not be read")]
    Query(#[from] QueryError),
}

/// Rows of GID tables, for people: `port 1 row 3 192.0.2.1 (RoCEv2)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidRows(pub Vec<(u8, GidEntry)>);

impl fmt::Display for GidRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (port, row)) in self.0.iter().take(ROWS_LISTED).enumerate() {
            let separator = if nth > 0 { ", " } else { "" };
            write!(f, "{separator}port {port} row {} ", row.index)?;
            match row.gid_type {
                GidType::InfiniBand => write!(f, "{} (InfiniBand)", row.gid)?,
                GidType::RoceV1 => write!(f, "{} (RoCEv1)", row.gid.to_ip())?,
                GidType::RoceV2 => write!(f, "{} (RoCEv2)", row.gid.to_ip())?,
            }
        }
        match self.0.len().saturating_sub(ROWS_LISTED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// The row to send from to `peer`. `local` is the address from which the host's routing reaches it, if known. Empty
/// rows (all zeros) may be among `rows`.
pub fn choose_gid(rows: &[(u8, GidEntry)], local: Option<IpAddr>, peer: IpAddr) -> Result<GidChoice, GidChoiceError> {
    let (local, peer) = (local.map(|local| local.to_canonical()), peer.to_canonical());
    let used: Vec<(u8, GidEntry)> = rows.iter().filter(|(_, row)| row.gid != Gid::default()).copied().collect();
    if used.is_empty() {
        return Err(GidChoiceError::Empty);
    }
    let only = |rows: &[(u8, GidEntry)], fits: &dyn Fn(&GidEntry) -> bool| -> Vec<(u8, GidEntry)> {
        rows.iter().filter(|(_, row)| fits(row)).copied().collect()
    };
    let version_2 = only(&used, &|row| row.gid_type == GidType::RoceV2);
    if version_2.is_empty() {
        return Err(GidChoiceError::NoRoceV2 { rows: GidRows(used) });
    }
    let of_family = only(&version_2, &|row| family(row.gid.to_ip()) == family(peer));
    if of_family.is_empty() {
        return Err(GidChoiceError::OtherFamily { peer, rows: GidRows(version_2) });
    }
    let fitting = match local {
        Some(local) => {
            let fitting = only(&of_family, &|row| row.gid.to_ip() == local);
            if fitting.is_empty() {
                return Err(GidChoiceError::NotLocal { local, peer, rows: GidRows(version_2) });
            }
            fitting
        }
        None => {
            // A peer on this host is reached from its own address.
            let own = only(&of_family, &|row| row.gid.to_ip() == peer);
            if own.is_empty() { of_family } else { own }
        }
    };
    // The same address in several rows of one port is the same way out.
    let (port, first) = fitting[0];
    if fitting.iter().any(|(other, row)| *other != port || row.gid != first.gid) {
        return Err(GidChoiceError::Several { peer, rows: GidRows(fitting) });
    }
    Ok(GidChoice { port, index: first.index, gid: first.gid, address: first.gid.to_ip() })
}

/// Addresses that can reach one another.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    Ipv4,
    /// `fe80::/10`: on one link only, and such a source is of no use beyond it.
    Ipv6LinkLocal,
    Ipv6,
}

fn family(address: IpAddr) -> Family {
    match address {
        IpAddr::V4(_) => Family::Ipv4,
        IpAddr::V6(address) if address.is_unicast_link_local() || is_link_local_group(address) => Family::Ipv6LinkLocal,
        IpAddr::V6(_) => Family::Ipv6,
    }
}

/// `ff02::/16`
fn is_link_local_group(address: Ipv6Addr) -> bool {
    address.octets()[0] == 0xff && address.octets()[1] & 0xf == 2
}

fn kind_of(address: IpAddr) -> &'static str {
    match family(address) {
        Family::Ipv4 => "an IPv4 address",
        Family::Ipv6LinkLocal => "an IPv6 address of the link",
        Family::Ipv6 => "an IPv6 address",
    }
}

impl Device {
    /// The row of the GID tables to send from to `peer`: a RoCEv2 row of the peer's address family that is `local`, the
    /// address from which the host's routing reaches the peer (ask an unsent UDP socket), or the only such row. The
    /// error says why there is none, and lists the rows of the table. A caller that knows better gives an index
    /// instead.
    pub fn choose_gid(&self, local: Option<IpAddr>, peer: IpAddr) -> Result<GidChoice, GidChoiceError> {
        let mut rows = Vec::new();
        for port in 1..=self.attributes()?.port_count {
            for index in 0..self.port_attributes(port)?.gid_table_length {
                rows.push((port, self.gid(port, index)?));
            }
        }
        choose_gid(&rows, local, peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn rows(table: &[(u8, u32, GidType, &str)]) -> Vec<(u8, GidEntry)> {
        let row = |&(port, index, gid_type, address): &(u8, u32, GidType, &str)| {
            (port, GidEntry { gid: Gid::from_ip(ip(address)), gid_type, index })
        };
        table.iter().map(row).collect()
    }

    /// What an rxe or mlx5 port shows: both versions of each address, and room for more.
    fn usual() -> Vec<(u8, GidEntry)> {
        rows(&[
            (1, 0, GidType::RoceV1, "fe80::1"),
            (1, 1, GidType::RoceV2, "fe80::1"),
            (1, 2, GidType::RoceV1, "192.0.2.1"),
            (1, 3, GidType::RoceV2, "192.0.2.1"),
            (1, 4, GidType::RoceV2, "2001:db8::1"),
            (1, 5, GidType::InfiniBand, "::"),
        ])
    }

    fn chosen(table: &[(u8, GidEntry)], local: Option<&str>, peer: &str) -> Result<(u8, u32), String> {
        let choice = choose_gid(table, local.map(ip), ip(peer)).map_err(|error| error.to_string())?;
        let row = table.iter().find(|(port, row)| (*port, row.index) == (choice.port, choice.index)).unwrap().1;
        assert_eq!((choice.gid, choice.address), (row.gid, row.gid.to_ip()));
        Ok((choice.port, choice.index))
    }

    #[test]
    fn version_and_family_decide_when_one_row_is_left() {
        assert_eq!(chosen(&usual(), None, "192.0.2.9"), Ok((1, 3)));
        assert_eq!(chosen(&usual(), None, "2001:db8::9"), Ok((1, 4)));
        assert_eq!(chosen(&usual(), None, "fe80::9"), Ok((1, 1)));
        assert_eq!(chosen(&usual(), None, "ff02::1"), Ok((1, 1)), "a group of the link");
        assert_eq!(chosen(&usual(), None, "::ffff:192.0.2.9"), Ok((1, 3)), "IPv4, written as IPv6");
    }

    #[test]
    fn where_the_host_sends_from_decides_among_several() {
        let mut table = usual();
        table.extend(rows(&[(1, 6, GidType::RoceV2, "198.51.100.1"), (2, 0, GidType::RoceV2, "203.0.113.1")]));
        assert_eq!(chosen(&table, Some("198.51.100.1"), "198.51.100.9"), Ok((1, 6)));
        assert_eq!(chosen(&table, Some("203.0.113.1"), "8.8.8.8"), Ok((2, 0)));
        assert_eq!(chosen(&table, None, "203.0.113.1"), Ok((2, 0)), "oneself");
        assert_eq!(
            chosen(&table, None, "192.0.2.9").unwrap_err(),
            "several GIDs of the device could reach 192.0.2.9: port 1 row 3 192.0.2.1 (RoCEv2), port 1 row 6 198.51.100.1 \
             (RoCEv2), port 2 row 0 203.0.113.1 (RoCEv2); give a row by its index, or the address to send from"
        );
    }

    #[test]
    fn one_address_in_two_rows_is_the_same_way_out_but_not_on_two_ports() {
        let twice = rows(&[(1, 2, GidType::RoceV2, "192.0.2.1"), (1, 7, GidType::RoceV2, "192.0.2.1")]);
        assert_eq!(chosen(&twice, Some("192.0.2.1"), "192.0.2.9"), Ok((1, 2)));
        let on_two = rows(&[(1, 2, GidType::RoceV2, "192.0.2.1"), (2, 2, GidType::RoceV2, "192.0.2.1")]);
        let text = chosen(&on_two, Some("192.0.2.1"), "192.0.2.9").unwrap_err();
        assert!(text.starts_with("several GIDs of the device could reach 192.0.2.9: port 1 row 2 "), "{text}");
    }

    #[test]
    fn empty_tables_are_told() {
        let text = chosen(&[], None, "192.0.2.9").unwrap_err();
        assert!(text.starts_with("the device has no GID: its interface has no address yet"), "{text}");
        let empty_rows = rows(&[(1, 0, GidType::InfiniBand, "::"), (1, 1, GidType::RoceV2, "::")]);
        assert_eq!(chosen(&empty_rows, None, "192.0.2.9").unwrap_err(), text);
    }

    #[test]
    fn other_networks_are_told() {
        let table = rows(&[(1, 0, GidType::RoceV1, "192.0.2.1"), (1, 1, GidType::InfiniBand, "fe80::1")]);
        assert_eq!(
            chosen(&table, Some("192.0.2.1"), "192.0.2.9").unwrap_err(),
            "the device has no RoCEv2 GID, which IP peers need; it has port 1 row 0 192.0.2.1 (RoCEv1), port 1 row 1 fe80::1 \
             (InfiniBand); give a row by its index if one fits"
        );
    }

    #[test]
    fn another_family_is_told() {
        let table = rows(&[(1, 3, GidType::RoceV2, "192.0.2.1"), (1, 4, GidType::RoceV2, "fe80::1")]);
        assert_eq!(
            chosen(&table, None, "2001:db8::9").unwrap_err(),
            "the peer 2001:db8::9 is an IPv6 address, and the device has no RoCEv2 GID of that kind; it has port 1 row 3 \
             192.0.2.1 (RoCEv2), port 1 row 4 fe80::1 (RoCEv2); give its interface such an address, or name the peer by \
             another"
        );
        let text = chosen(&table[1..], None, "192.0.2.9").unwrap_err();
        assert!(text.starts_with("the peer 192.0.2.9 is an IPv4 address, and"), "{text}");
        let text = chosen(&table[..1], None, "fe80::9").unwrap_err();
        assert!(text.starts_with("the peer fe80::9 is an IPv6 address of the link, and"), "{text}");
    }

    #[test]
    fn another_interface_is_told() {
        assert_eq!(
            chosen(&usual()[2..4], Some("10.0.0.1"), "10.0.0.9").unwrap_err(),
            "this host reaches 10.0.0.9 from 10.0.0.1, which is no RoCEv2 GID of the device; it has port 1 row 3 192.0.2.1 \
             (RoCEv2); use the device on that interface, change the route, or give a row by its index"
        );
    }

    #[test]
    fn long_tables_are_cut() {
        let table: Vec<(u8, GidEntry)> = (1..=20)
            .map(|last| {
                let gid = Gid::from_ip(IpAddr::from([192, 0, 2, last]));
                (1, GidEntry { gid, gid_type: GidType::RoceV2, index: u32::from(last) })
            })
            .collect();
        let text = chosen(&table, None, "192.0.2.99").unwrap_err();
        assert!(text.contains("port 1 row 16 192.0.2.16 (RoCEv2) and 4 more; give"), "{text}");
    }
}
