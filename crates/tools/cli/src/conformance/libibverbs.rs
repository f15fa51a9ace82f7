//! Devices of libibverbs as the two ends of the suite: which port and which row of the GID table each of them uses.

use std::net::IpAddr;

use longhaul_conformance::{DeviceEnd, KnownDeparture, RealTime, known_departures};
use longhaul_rdmacore::RdmaDevice;
use longhaul_verbs::{Device, GidChoice, GidType};
use longhaul_wire::UDP_PORT_ROCE;

use longhaul::with_sources;

/// The two ends.
pub(super) struct Opened {
    pub(super) environment: RealTime,
    pub(super) drivers: [String; 2],
    pub(super) rdma_core: Option<String>,
}

/// Opens two devices, or one for both ends.
pub(super) fn open(names: &[String; 2], gid_indexes: Option<[u8; 2]>) -> Result<Opened, String> {
    let (ends, drivers) = open_ends(names, gid_indexes)?;
    let mut known: Vec<KnownDeparture> = known_departures(&drivers[0]);
    if drivers[1] != drivers[0] {
        known.extend(known_departures(&drivers[1]));
    }
    Ok(Opened { environment: RealTime::between(ends, known), drivers, rdma_core: rdma_core_version() })
}

/// The same as ends, and the names of their drivers.
pub(super) fn open_ends(
    names: &[String; 2],
    gid_indexes: Option<[u8; 2]>,
) -> Result<([DeviceEnd; 2], [String; 2]), String> {
    let [first, second] = names;
    let one = RdmaDevice::open(first).map_err(|error| with_sources(&error))?;
    let other = match first == second {
        true => one.clone(),
        false => RdmaDevice::open(second).map_err(|error| with_sources(&error))?,
    };
    let drivers = [&one, &other].map(|device| device.driver().unwrap_or_else(|| "unknown".to_owned()));
    let devices = [one.verbs(), other.verbs()];
    let ends = match gid_indexes {
        Some(indexes) => [0, 1].map(|end| DeviceEnd {
            device: devices[end].clone(),
            port: 1,
            gid_index: indexes[end],
            udp_port: UDP_PORT_ROCE,
        }),
        None => ends(&devices)?,
    };
    Ok((ends, drivers))
}

/// For every address of the second device, in the order of its table but IPv4 first: whether the first one can reach
/// it, and back.
fn ends(devices: &[Device; 2]) -> Result<[DeviceEnd; 2], String> {
    let [one, other] = devices;
    let is_one_device = one.name() == other.name();
    let mut addresses = addresses(other);
    addresses.sort_by_key(|address| !address.is_ipv4());
    let mut reasons = Vec::new();
    for peer in addresses {
        let local = is_one_device.then_some(peer);
        let both = one.choose_gid(local, peer).and_then(|ours| Ok((ours, other.choose_gid(Some(peer), ours.address)?)));
        match both {
            Ok((ours, theirs)) => {
                return Ok([end(one, ours)?, end(other, theirs)?]);
            }
            Err(error) => reasons.push(format!("towards {peer}: {}", with_sources(&error))),
        }
    }
    Err(match reasons.is_empty() {
        true => format!("{} has no address for RoCEv2 in its GID table: give its network interface one", other.name()),
        false => format!("no row of the GID tables fits; --gid-index chooses by hand; {}", reasons.join("; ")),
    })
}

fn end(device: &Device, choice: GidChoice) -> Result<DeviceEnd, String> {
    let gid_index = u8::try_from(choice.index).map_err(|_| {
        format!("row {} of the GID table of {}: paths name rows up to 255", choice.index, device.name())
    })?;
    Ok(DeviceEnd { device: device.clone(), port: choice.port, gid_index, udp_port: UDP_PORT_ROCE })
}

/// The addresses of a device under RoCEv2.
fn addresses(device: &Device) -> Vec<IpAddr> {
    let ports = device.attributes().map_or(0, |attributes| attributes.port_count);
    let mut addresses = Vec::new();
    for port in 1..=ports {
        let rows = device.port_attributes(port).map_or(0, |attributes| attributes.gid_table_length);
        for entry in (0..rows).filter_map(|row| device.gid(port, row).ok()) {
            let address = entry.gid.to_ip();
            if entry.gid_type == GidType::RoceV2 && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    addresses
}

/// libibverbs does not tell its version, but the file that was loaded has it in its name: `libibverbs.so.1.14.44.0` is
/// that of rdma-core 44.0.
fn rdma_core_version() -> Option<String> {
    version_in(&std::fs::read_to_string("/proc/self/maps").ok()?)
}

fn version_in(maps: &str) -> Option<String> {
    let file = maps
        .lines()
        .filter_map(|line| line.rsplit('/').next())
        .find_map(|file| file.strip_prefix("libibverbs.so.1."))?;
    // The first number is that of the interface.
    file.split_once('.').map(|(_, version)| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_rdma_core_is_in_the_name_of_the_file() {
        let maps = "7f00-7f01 r--p 00000000 08:01 7 /usr/lib/libc.so.6\n\
                    7f02-7f03 r-xp 00000000 08:01 9 /usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0\n";
        assert_eq!(version_in(maps).as_deref(), Some("44.0"));
        assert_eq!(version_in("7f00-7f01 r--p 00000000 08:01 7 /usr/lib/libc.so.6\n"), None);
    }
}
