//! Where the ends live: two network namespaces joined by a veth, which vanish with the processes in them, however
//! those end. Nothing of them is visible outside, so that names need not be unique and any number of comparisons
//! can run side by side.
//!
//! Root makes network namespaces as they are. Anybody else first makes a user namespace, in which he is root; the
//! second end joins that of the first, because a veth joins only namespaces of one owner.

use std::fs::{self, File};
use std::net::IpAddr;
use std::process::Command;

use nix::sched::{CloneFlags, setns, unshare};
use nix::unistd::{getgid, getuid};
use serde::{Deserialize, Serialize};

use super::orders::Link;
use crate::error::PerfError;

/// The interface, in each of the two namespaces.
const INTERFACE: &str = "longhaul0";

/// Where an end is to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Where it was started.
    Host,
    /// In a network namespace of its own.
    Own,
    /// The same, with the owner of this process's.
    NextTo(u32),
}

impl std::str::FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "host" => Ok(Place::Host),
            None if text == "own" => Ok(Place::Own),
            Some(("next-to", process)) => process.parse().map(Place::NextTo).map_err(|error| error.to_string()),
            _ => Err("expected host, own or next-to=PROCESS".to_owned()),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Host => f.write_str("host"),
            Place::Own => f.write_str("own"),
            Place::NextTo(process) => write!(f, "next-to={process}"),
        }
    }
}

/// What an end lives in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// No namespace of its own.
    Host,
    /// A network namespace.
    Network,
    /// A network namespace in a user namespace.
    UserNetwork,
}

/// Moves this process, which must have one thread only, to its place.
pub(super) fn enter(place: Place) -> Result<Kind, PerfError> {
    match place {
        Place::Host => Ok(Kind::Host),
        Place::Own => match unshare(CloneFlags::CLONE_NEWNET) {
            Ok(()) => Ok(Kind::Network),
            Err(_) => {
                let (user, group) = (getuid(), getgid());
                unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET)
                    .map_err(|error| PerfError::missing("cannot make a user and network namespace", error))?;
                let maps = [
                    ("/proc/self/setgroups", "deny".to_owned()),
                    ("/proc/self/uid_map", format!("0 {user} 1")),
                    ("/proc/self/gid_map", format!("0 {group} 1")),
                ];
                for (file, text) in maps {
                    fs::write(file, text).map_err(|error| PerfError::missing(format!("cannot write {file}"), error))?;
                }
                Ok(Kind::UserNetwork)
            }
        },
        Place::NextTo(process) => {
            let theirs = format!("/proc/{process}/ns/user");
            let failed =
                |error: std::io::Error| PerfError::missing("cannot enter the other end's user namespace", error);
            let differs =
                fs::read_link(&theirs).map_err(failed)? != fs::read_link("/proc/self/ns/user").map_err(failed)?;
            if differs {
                let namespace = File::open(&theirs).map_err(failed)?;
                setns(namespace, CloneFlags::CLONE_NEWUSER).map_err(|error| failed(error.into()))?;
            }
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(|error| PerfError::missing("cannot make a network namespace", error))?;
            Ok(if differs { Kind::UserNetwork } else { Kind::Network })
        }
    }
}

/// Makes this end's side of the link, and before that the link, if asked.
pub(super) fn configure(link: &Link) -> Result<(), PerfError> {
    let mtu = link.mtu.to_string();
    if let Some(process) = link.create_towards {
        let process = process.to_string();
        let make = ["link", "add", "name", INTERFACE, "mtu", &mtu, "type", "veth"];
        let peer = ["peer", "name", INTERFACE, "mtu", &mtu, "netns", &process];
        ip(&[&make[..], &peer[..]].concat())?;
    }
    let (address, without_probing) = match link.address {
        // Duplicate address detection would keep the address back for a second.
        IpAddr::V6(address) => (format!("{address}/64"), &["nodad"][..]),
        IpAddr::V4(address) => (format!("{address}/24"), &[][..]),
    };
    ip(&["link", "set", "dev", "lo", "up"])?;
    ip(&[&["address", "add", &address, "dev", INTERFACE][..], without_probing].concat())?;
    ip(&["link", "set", "dev", INTERFACE, "up"])
}

fn ip(arguments: &[&str]) -> Result<(), PerfError> {
    let command = format!("ip {}", arguments.join(" "));
    let output = Command::new("ip").args(arguments).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(PerfError::missing(format!("`{command}` failed"), said.trim()))
        }
        Err(error) => Err(PerfError::missing(format!("cannot run `{command}` (package iproute2)"), error)),
    }
}
