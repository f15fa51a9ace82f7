//! What the kernel reports about RDMA devices in `/sys/class/infiniband`: counters, the network interface of a port,
//! GIDs for libraries that are too old to report their type.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use longhaul_verbs::{Counter, Gid, GidEntry, GidType};

/// Whether the kernel has a device of this name, whatever libibverbs thinks of it.
pub(crate) fn kernel_has(name: &str) -> bool {
    let is_a_name = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    is_a_name && Path::new("/sys/class/infiniband").join(name).exists()
}

/// A device's folder.
#[derive(Clone, Debug)]
pub(crate) struct DeviceFolder {
    path: PathBuf,
}

impl DeviceFolder {
    /// `path` as libibverbs gives it (`ibdev_path`).
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        DeviceFolder { path: path.into() }
    }

    fn port(&self, port: u8) -> PathBuf {
        self.path.join("ports").join(port.to_string())
    }

    /// The driver in the kernel: that of the hardware (`mlx5_core`), or `rxe`, which has no hardware and is known by
    /// naming the interface that it sits on.
    pub(crate) fn driver(&self) -> Option<String> {
        match fs::read_link(self.path.join("device/driver")) {
            Ok(driver) => Some(driver.file_name()?.to_str()?.to_owned()),
            Err(_) => self.path.join("parent").exists().then(|| "rxe".to_owned()),
        }
    }

    /// The network interface behind a port.
    pub(crate) fn interface(&self, port: u8) -> Option<String> {
        let table = self.port(port).join("gid_attrs/ndevs");
        let mut rows: Vec<u32> = entries(&table).filter_map(|name| name.parse().ok()).collect();
        rows.sort_unstable();
        // A row that is not used has no interface, and reading it fails.
        let of_a_row = rows.into_iter().find_map(|row| read(&table.join(row.to_string())));
        of_a_row.or_else(|| read(&self.path.join("parent"))).or_else(|| entries(&self.path.join("device/net")).next())
    }

    /// A row of a port's GID table. An empty row has all zeros.
    pub(crate) fn gid(&self, port: u8, index: u32) -> io::Result<GidEntry> {
        let port = self.port(port);
        let text = fs::read_to_string(port.join(format!("gids/{index}")))?;
        let gid = parse_gid(text.trim()).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, format!("expected a GID in sysfs, found {:?}", text.trim()))
        })?;
        let gid_type = read(&port.join(format!("gid_attrs/types/{index}")));
        Ok(GidEntry { gid, gid_type: parse_gid_type(gid_type.as_deref()), index })
    }

    /// All counters, of the device and of its ports, by the names of their files. A device with several ports has the
    /// port's number in front.
    pub(crate) fn counters(&self, ports: u8) -> Vec<Counter> {
        let mut counters = Vec::new();
        read_counters(&self.path.join("hw_counters"), "", &mut counters);
        for port in 1..=ports {
            let prefix = if ports > 1 { format!("port{port}_") } else { String::new() };
            for folder in ["counters", "hw_counters"] {
                read_counters(&self.port(port).join(folder), &prefix, &mut counters);
            }
        }
        counters
    }
}

/// Names in a folder; none if there is no such folder.
fn entries(folder: &Path) -> impl Iterator<Item = String> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

/// A file's only line; `None` if there is nothing to read.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn read_counters(folder: &Path, prefix: &str, counters: &mut Vec<Counter>) {
    let mut names: Vec<String> = entries(folder).collect();
    names.sort_unstable();
    for name in names {
        // `lifespan` is how long the kernel keeps a reading, in milliseconds, and no counter.
        let value = read(&folder.join(&name)).filter(|_| name != "lifespan");
        if let Some(value) = value.and_then(|value| value.parse().ok()) {
            counters.push(Counter { name: Cow::Owned(format!("{prefix}{name}")), value });
        }
    }
}

fn parse_gid(text: &str) -> Option<Gid> {
    text.parse::<Ipv6Addr>().ok().map(Gid::from)
}

fn parse_gid_type(text: Option<&str>) -> GidType {
    match text {
        Some("RoCE v2") => GidType::RoceV2,
        // The kernel's name for both; with RoCE it says "RoCE v1" since 5.6.
        Some("IB/RoCE v1" | "RoCE v1") => GidType::RoceV1,
        _ => GidType::InfiniBand,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder such as the kernel shows for an rxe device.
    fn folder(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("longhaul-sysfs-{}-{name}", std::process::id()));
        let file = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        file("ports/1/gids/0", "fe80:0000:0000:0000:5054:00ff:fe12:3456\n");
        file("ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:c000:0201\n");
        file("ports/1/gids/2", "not a GID\n");
        file("ports/1/gid_attrs/types/0", "IB/RoCE v1\n");
        file("ports/1/gid_attrs/types/1", "RoCE v2\n");
        file("ports/1/gid_attrs/ndevs/0", "");
        file("ports/1/gid_attrs/ndevs/1", "eth0\n");
        file("ports/1/hw_counters/sent_pkts", "17\n");
        file("ports/1/hw_counters/lifespan", "10\n");
        file("ports/1/hw_counters/rcvd_pkts", "no number\n");
        file("ports/1/counters/port_xmit_data", "5\n");
        root
    }

    #[test]
    fn rows_and_interfaces_and_counters_are_read() {
        let root = folder("read");
        let device = DeviceFolder::new(&root);
        let row = device.gid(1, 1).unwrap();
        assert_eq!((row.gid.to_ip().to_string(), row.gid_type, row.index), ("192.0.2.1".into(), GidType::RoceV2, 1));
        assert_eq!(device.gid(1, 0).unwrap().gid_type, GidType::RoceV1);
        assert!(device.gid(1, 2).unwrap_err().to_string().contains("not a GID"));
        assert_eq!(device.gid(1, 3).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(device.interface(1).as_deref(), Some("eth0"));
        assert_eq!(device.interface(2), None);
        assert_eq!(device.driver(), None);
        fs::write(root.join("parent"), "eth0\n").unwrap();
        assert_eq!(device.driver().as_deref(), Some("rxe"));
        assert_eq!(device.interface(2).as_deref(), Some("eth0"));
        let counters = device.counters(1);
        let names: Vec<(&str, u64)> = counters.iter().map(|counter| (&*counter.name, counter.value)).collect();
        assert_eq!(names, [("port_xmit_data", 5), ("sent_pkts", 17)]);
        assert_eq!(device.counters(2)[0].name, "port1_port_xmit_data");
        fs::remove_dir_all(root).unwrap();
    }
}
