//! Whether the link behind a device's addresses is up, and how the driver hears that it has changed.
//!
//! The kernel sends word of every change of an interface or an address to a netlink socket. What it says is not read: after a
//! change everything is asked for anew, which is right also when some of the words were lost.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use longhaul_verbs::LinkState;
use nix::errno::Errno;
use nix::libc;
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket};

use crate::path;

/// Links, and addresses of both families.
const GROUPS: i32 = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;

/// Watches the interfaces of some addresses.
pub(crate) struct LinkWatch {
    changes: OwnedFd,
    addresses: Vec<IpAddr>,
}

impl LinkWatch {
    pub(crate) fn new(addresses: &[IpAddr]) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let changes = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
        bind(changes.as_raw_fd(), &NetlinkAddr::new(0, GROUPS as u32))?;
        Ok(LinkWatch { changes, addresses: addresses.to_vec() })
    }

    /// Readable when something has changed.
    pub(crate) fn changes(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }

    /// The state now; what has changed so far is known with it. An error says nothing about the link: no descriptor is free, say.
    pub(crate) fn state(&self) -> io::Result<LinkState> {
        // Read first and ask then: what changes in between is asked about once more. Words that are cut short or lost (ENOBUFS)
        // are words all the same.
        let mut word = [0; 64];
        while let Ok(_) | Err(Errno::ENOBUFS | Errno::EINTR) =
            recv(self.changes.as_raw_fd(), &mut word, MsgFlags::MSG_DONTWAIT)
        {}
        link_state(&self.addresses)
    }
}

/// Up while one of the addresses is on an interface that is up and has a carrier.
fn link_state(addresses: &[IpAddr]) -> io::Result<LinkState> {
    let running = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
    let is_up = nix::ifaddrs::getifaddrs()?.any(|interface| {
        interface.flags.contains(running) && addresses.iter().any(|&address| path::has_address(&interface, address))
    });
    Ok(if is_up { LinkState::Active } else { LinkState::Down })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_up_and_an_address_of_nobody_is_down() {
        let ours: IpAddr = "127.0.0.7".parse().unwrap();
        let nobodys: IpAddr = "192.0.2.1".parse().unwrap();
        assert_eq!(link_state(&[ours]).unwrap(), LinkState::Active);
        assert_eq!(link_state(&[nobodys]).unwrap(), LinkState::Down);
        assert_eq!(link_state(&[nobodys, ours]).unwrap(), LinkState::Active);
        assert_eq!(LinkWatch::new(&[nobodys]).unwrap().state().unwrap(), LinkState::Down);
    }
}
