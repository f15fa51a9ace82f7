//! What the kernel reports about an interface: MTU, counters, link rate, and which offloads are switched on, as
//! `ip -s link` and `ethtool` show them. Asked over netlink rather than read from sysfs, which in a container or after
//! `unshare` may show another network namespace; and no program need be installed.
//!
//! ```text
//!   RTM_GETLINK    {IFNAME "eth0"}             ─▶ {MTU, STATS64, PARENT_DEV_NAME, …}
//!   LINKMODES_GET  {HEADER {DEV_NAME "eth0"}}  ─▶ {HEADER …, SPEED, …}
//!   FEATURES_GET   {HEADER {DEV_NAME "eth0"}}  ─▶ {HEADER …, HW {BITS {BIT {INDEX, NAME "rx-gro", VALUE}, …}}, WANTED {…},
//!                                                 ACTIVE {NOMASK, BITS {BIT {INDEX, NAME "rx-gro"}, …}}, …}
//! ```

use std::collections::BTreeMap;

use nix::libc;
use nix::sys::socket::SockProtocol;

use crate::netlink::{Client, attributes, find, nest, number, text};

/// What the kernel reports about an interface; what it does not report is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Largest IP packet in bytes.
    pub mtu_bytes: Option<u32>,
    /// Rate of the link.
    pub rate_bits_per_second: Option<u64>,
    /// Stands for a NIC, real or virtual, rather than for software. Linux before 5.14 does not tell.
    pub is_hardware: bool,
    /// Offloads. Linux before 5.7 does not tell.
    pub features: Option<Features>,
    /// What it has counted, by the names in sysfs.
    pub counters: BTreeMap<String, u64>,
}

/// Names of an interface's features (`rx-gro`, `tx-udp-segmentation`, …), as `ethtool -k` prints the finer ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Those that the driver lets users switch.
    pub changeable: Vec<String>,
    /// Those that are on.
    pub active: Vec<String>,
}

impl Features {
    /// Whether a feature is on.
    pub fn is_on(&self, name: &str) -> bool {
        self.active.iter().any(|active| active == name)
    }

    /// Whether a feature is off though it could be on.
    pub fn is_switched_off(&self, name: &str) -> bool {
        !self.is_on(name) && self.changeable.iter().any(|changeable| changeable == name)
    }
}

/// Ask about an interface.
pub(crate) fn of_interface(name: &str) -> Link {
    let mut link = ask_route(name).unwrap_or_default();
    if let Some(ethtool) = Ethtool::connect() {
        link.rate_bits_per_second = ethtool.rate_bits_per_second(name);
        link.features = ethtool.features(name);
    }
    link
}

/// In the order of the kernel's `rtnl_link_stats64`, of which they are the beginning.
const COUNTERS: [&str; 8] =
    ["rx_packets", "tx_packets", "rx_bytes", "tx_bytes", "rx_errors", "tx_errors", "rx_dropped", "tx_dropped"];
/// Family, type, index, flags and change mask: all left open, the interface is named.
const LINK_HEADER: [u8; 16] = [0; 16];

fn ask_route(name: &str) -> Option<Link> {
    let client = Client::connect(SockProtocol::NetlinkRoute).ok()?;
    let answer = client.ask(libc::RTM_GETLINK, &LINK_HEADER, &text(libc::IFLA_IFNAME, name))?;
    let (values, _) = find(&answer, libc::IFLA_STATS64).unwrap_or_default().as_chunks();
    let counters = COUNTERS.iter().zip(values).map(|(name, value)| ((*name).to_owned(), u64::from_ne_bytes(*value)));
    Some(Link {
        mtu_bytes: find(&answer, libc::IFLA_MTU).and_then(number),
        is_hardware: find(&answer, libc::IFLA_PARENT_DEV_NAME).is_some(),
        counters: counters.collect(),
        ..Link::default()
    })
}

/// Numbers of linux/ethtool_netlink.h.
mod ethtool {
    pub(super) const LINK_MODES_GET: u8 = 4;
    pub(super) const LINK_MODES_SPEED: u16 = 5;
    pub(super) const FEATURES_GET: u8 = 11;
    pub(super) const FEATURES_HARDWARE: u16 = 2;
    pub(super) const FEATURES_ACTIVE: u16 = 4;
    /// Of all requests.
    pub(super) const HEADER: u16 = 1;
    pub(super) const HEADER_DEVICE_NAME: u16 = 2;
    pub(super) const BITSET_NO_MASK: u16 = 1;
    pub(super) const BITSET_BITS: u16 = 3;
    pub(super) const BIT_NAME: u16 = 2;
    pub(super) const BIT_VALUE: u16 = 3;
}

/// The kernel's part behind the program `ethtool`.
struct Ethtool {
    client: Client,
    family: u16,
}

impl Ethtool {
    fn connect() -> Option<Ethtool> {
        let client = Client::connect(SockProtocol::NetlinkGeneric).ok()?;
        let name = text(libc::CTRL_ATTR_FAMILY_NAME as u16, "ethtool");
        let header = generic_header(libc::CTRL_CMD_GETFAMILY as u8);
        let answer = client.ask(libc::GENL_ID_CTRL as u16, &header, &name)?;
        let family = find(&answer, libc::CTRL_ATTR_FAMILY_ID as u16)?;
        let family = u16::from_ne_bytes(family.get(..2)?.try_into().ok()?);
        Some(Ethtool { client, family })
    }

    fn ask(&self, command: u8, interface: &str) -> Option<Vec<u8>> {
        let header = nest(ethtool::HEADER, &text(ethtool::HEADER_DEVICE_NAME, interface));
        self.client.ask(self.family, &generic_header(command), &header)
    }

    fn rate_bits_per_second(&self, interface: &str) -> Option<u64> {
        let answer = self.ask(ethtool::LINK_MODES_GET, interface)?;
        rate(number(find(&answer, ethtool::LINK_MODES_SPEED)?)?)
    }

    fn features(&self, interface: &str) -> Option<Features> {
        let answer = self.ask(ethtool::FEATURES_GET, interface)?;
        Some(Features {
            changeable: bit_names(find(&answer, ethtool::FEATURES_HARDWARE)?),
            active: bit_names(find(&answer, ethtool::FEATURES_ACTIVE)?),
        })
    }
}

fn generic_header(command: u8) -> [u8; 4] {
    let version = 1;
    [command, version, 0, 0]
}

/// From megabits; all ones, or 0 with some virtual NICs, is no rate.
fn rate(megabits_per_second: u32) -> Option<u64> {
    let is_known = megabits_per_second != 0 && megabits_per_second != u32::MAX;
    is_known.then(|| u64::from(megabits_per_second) * 1_000_000)
}

/// The names of a bitset's set bits. A bitset without a mask lists those and no others; one with a mask lists the
/// mask's bits, and those that are set say so.
fn bit_names(bitset: &[u8]) -> Vec<String> {
    let bits = find(bitset, ethtool::BITSET_BITS).unwrap_or_default();
    let lists_only_set_bits = find(bitset, ethtool::BITSET_NO_MASK).is_some();
    let name = |bit: &[u8]| {
        let is_set = lists_only_set_bits || find(bit, ethtool::BIT_VALUE).is_some();
        let name = find(bit, ethtool::BIT_NAME).filter(|_| is_set)?;
        let name = name.strip_suffix(&[0]).unwrap_or(name);
        Some(String::from_utf8_lossy(name).into_owned())
    };
    attributes(bits).filter_map(|(_, bit)| name(bit)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute;

    #[test]
    fn names_are_found_in_an_answer() {
        let bit = |name: &str, rest: &[u8]| nest(1, &[&text(ethtool::BIT_NAME, name), rest].concat());
        let bits = [bit("rx-gro", &attribute(ethtool::BIT_VALUE, &[])), bit("tx-udp-segmentation", &[])].concat();
        let masked = [attribute(2, &[64, 0, 0, 0]), nest(ethtool::BITSET_BITS, &bits)].concat();
        assert_eq!(bit_names(&masked), ["rx-gro"]);
        let listed = [attribute(ethtool::BITSET_NO_MASK, &[]), masked].concat();
        assert_eq!(bit_names(&listed), ["rx-gro", "tx-udp-segmentation"]);
        assert_eq!(bit_names(&[]), [""; 0]);
        assert_eq!(bit_names(&listed[..listed.len() - 30]), [""; 0], "cut short");
    }

    #[test]
    fn switched_off_is_not_the_same_as_missing() {
        let features = Features { changeable: vec!["rx-gro".into(), "tx-gso".into()], active: vec!["rx-gro".into()] };
        assert!(features.is_on("rx-gro") && !features.is_switched_off("rx-gro"));
        assert!(features.is_switched_off("tx-gso"));
        assert!(!features.is_switched_off("tx-udp-segmentation"));
    }

    #[test]
    fn a_rate_that_is_not_known_is_none() {
        assert_eq!([0, u32::MAX, 25_000].map(rate), [None, None, Some(25_000_000_000)]);
    }

    /// The real kernel: what it says about the loopback interface.
    #[test]
    fn loopback_is_told_about() {
        let link = of_interface("lo");
        assert!(link.mtu_bytes.is_some_and(|bytes| bytes >= 1280), "{link:?}");
        assert_eq!(link.counters.len(), COUNTERS.len(), "{link:?}");
        assert!(!link.is_hardware);
        // If the kernel reports them.
        if let Some(features) = link.features {
            assert!(features.is_on("loopback"), "{features:?}");
            assert!(!features.changeable.iter().any(|name| name == "loopback"), "{features:?}");
        }
        assert_eq!(of_interface("no-such-interf"), Link::default());
    }
}
