//! What the interfaces of a gateway must be. All of it is looked at before anything is changed.

use longhaul_forward::ForwardError;
use longhaul_forward::names::{is_above, primary_name};
use nix::net::if_::if_nametoindex;
use thiserror::Error;

use crate::ip::{IpError, ip, master_of};
use crate::settings::Settings;

/// Why interfaces cannot be those of a gateway.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InterfaceError {
    /// Both sides are one interface.
    #[error("site and wide are both {0}: a gateway stands between two interfaces")]
    Same(String),
    /// Both sides are one pair.
    #[error("{} and {} are the two ends of one pair: frames would circle between them; use one end each of two pairs", .0[0], .0[1])]
    Pair([String; 2]),
    /// One side is built on the other.
    #[error(
        "{upper} is built on {lower}: what leaves by one would arrive at the other again; use two interfaces that have nothing in common"
    )]
    Stacked {
        /// A VLAN, say.
        upper: String,
        /// The interface below it.
        lower: String,
    },
    /// It is a port already.
    #[error(
        "{interface} is a port of {master}, which would take its frames as well; use another interface, set bridge to {master} if that is \
         a gateway's, or take it out: ip link set {interface} nomaster"
    )]
    Port {
        /// The interface.
        interface: String,
        /// The bridge or bond.
        master: String,
    },
    /// This host is reached by it.
    #[error(
        "{interface} has the address {address}, and an interface of a gateway has none: this host could not be reached there any more; \
         use another interface, or remove the address: ip address del {address} dev {interface}"
    )]
    Address {
        /// The interface.
        interface: String,
        /// Its address, with the length of its network's prefix.
        address: String,
    },
    /// The bridge is one of the sides.
    #[error("bridge is {0}, which is an interface of this gateway already: set bridge to another name")]
    BridgeIsSide(String),
    /// There is an interface of this name.
    #[error("bridge is {0}, but the interface {0} is there and is no bridge: set bridge to another name")]
    NoBridge(String),
    /// The bridge joins others.
    #[error("the bridge {bridge} has the port {port}, which is not this gateway's: set bridge to another name")]
    OtherPort {
        /// The bridge.
        bridge: String,
        /// Its port.
        port: String,
    },
    /// They cannot be looked at.
    #[error(transparent)]
    Ip(#[from] IpError),
    /// There is no such interface.
    #[error(transparent)]
    Forward(#[from] ForwardError),
}

/// Settings with the primary names of interfaces, which are fit for a gateway. What only `ip` can say is not looked at where it is
/// not installed, unless there is to be a bridge.
pub(crate) fn checked(settings: &Settings) -> Result<Settings, InterfaceError> {
    let mut settings = settings.clone();
    let is_same = |settings: &Settings| settings.site == settings.wide;
    if is_same(&settings) {
        return Err(InterfaceError::Same(settings.site));
    }
    settings.site = primary_name(&settings.site)?;
    settings.wide = primary_name(&settings.wide)?;
    // It may not be there yet.
    settings.bridge = primary_name(&settings.bridge).unwrap_or(settings.bridge);
    if is_same(&settings) {
        return Err(InterfaceError::Same(settings.site));
    }
    let Settings { site, wide, bridge, .. } = &settings;
    if [site, wide].contains(&bridge) {
        return Err(InterfaceError::BridgeIsSide(bridge.clone()));
    }
    let stacked =
        |upper: &String, lower: &String| InterfaceError::Stacked { upper: upper.clone(), lower: lower.clone() };
    match (is_above(site, wide), is_above(wide, site)) {
        (true, true) => return Err(InterfaceError::Pair([site.clone(), wide.clone()])),
        (true, false) => return Err(stacked(site, wide)),
        (false, true) => return Err(stacked(wide, site)),
        (false, false) => {}
    }
    check_bridge(bridge, [site, wide])?;
    for interface in [site, wide] {
        match check_use(interface, bridge) {
            Err(InterfaceError::Ip(IpError::NoProgram(_))) if bridge.is_empty() => {}
            checked => checked?,
        }
    }
    Ok(settings)
}

/// If the bridge is there, it joins no others: frames of this gateway would leave there too.
fn check_bridge(bridge: &str, sides: [&str; 2]) -> Result<(), InterfaceError> {
    if if_nametoindex(bridge).is_err() {
        return Ok(());
    }
    if ip(&format!("link show dev {bridge} type bridge"))?.is_empty() {
        return Err(InterfaceError::NoBridge(bridge.to_owned()));
    }
    let ports = ip(&format!("-o link show master {bridge}"))?;
    match ports.lines().filter_map(name_in).find(|port| !sides.contains(port)) {
        Some(port) => Err(InterfaceError::OtherPort { bridge: bridge.to_owned(), port: port.to_owned() }),
        None => Ok(()),
    }
}

/// Nobody else uses the interface.
fn check_use(interface: &str, bridge: &str) -> Result<(), InterfaceError> {
    if let Some(master) = master_of(interface)?
        && master != bridge
    {
        return Err(InterfaceError::Port { interface: interface.to_owned(), master });
    }
    let addresses = ip(&format!("-o address show dev {interface}"))?;
    match addresses.lines().find_map(address_in) {
        Some(address) => Err(InterfaceError::Address { interface: interface.to_owned(), address: address.to_owned() }),
        None => Ok(()),
    }
}

/// The address in a line of `ip -o address`: "5: eth1    inet 10.0.0.1/24 …". Those that the kernel gives to every interface do
/// not count.
fn address_in(line: &str) -> Option<&str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        [_, _, "inet", address, ..] => Some(address),
        [_, _, "inet6", address, ..] if !address.starts_with("fe80:") => Some(address),
        _ => None,
    }
}

/// The name in a line of `ip -o link`: "5: eth1@if4: <…".
fn name_in(line: &str) -> Option<&str> {
    line.split(": ").nth(1)?.split('@').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ip_shows_is_understood() {
        assert_eq!(name_in("5: eth1@if4: <UP> mtu 1500 qdisc noqueue master br state UP"), Some("eth1"));
        assert_eq!(address_in("1: lo    inet 127.0.0.1/8 scope host lo\\ valid_lft forever"), Some("127.0.0.1/8"));
        assert_eq!(address_in("4: e    inet6 2001:db8::1/64 scope global"), Some("2001:db8::1/64"));
        assert_eq!(address_in("4: e    inet6 fe80::1/64 scope link"), None);
        assert_eq!(address_in(""), None);
    }
}
