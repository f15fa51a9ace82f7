//! The sockets of an address: one for each part of the queue pair numbers, all at one port.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::sockopt::{Ipv6V6Only, ReusePort};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, bind, recv, setsockopt, socket};

use crate::descriptors::{drop_all, drop_nothing, steer};
use crate::letters::Refusal;
use crate::parts::{PARTS, PORT};

/// What a socket's buffer can hold is less.
const STALE_DATAGRAMS_MAX: usize = 1 << 20;

/// Sockets that share an address and RoCEv2's port.
#[derive(Debug)]
pub struct Group {
    sockets: Vec<OwnedFd>,
}

impl Group {
    /// Open them. None receives anything before its part is given away.
    pub fn open(address: IpAddr) -> Result<Group, Refusal> {
        let address = SocketAddr::new(address, PORT);
        let system = |error: io::Error| Refusal::System(error.raw_os_error().map_or(Errno::EIO, Errno::from_raw));
        // The first one does not share yet, so that it fails if anybody has the port: a group that is there already would
        // take the others in and steer by an order that is not ours.
        let first = new_socket(address).map_err(system)?;
        match bind_to(&first, address) {
            Ok(()) => {}
            Err(Errno::EADDRINUSE) if has_group(address) => return Err(Refusal::Orphaned),
            Err(Errno::EADDRINUSE) => return Err(Refusal::Taken),
            Err(Errno::EADDRNOTAVAIL) => return Err(Refusal::NotOurAddress),
            Err(errno) => return Err(Refusal::System(errno)),
        }
        setsockopt(&first, ReusePort, &true).map_err(Refusal::System)?;
        let mut sockets = vec![first];
        while sockets.len() < usize::from(PARTS) {
            let next = new_socket(address).map_err(system)?;
            setsockopt(&next, ReusePort, &true).and_then(|()| bind_to(&next, address)).map_err(Refusal::System)?;
            sockets.push(next);
        }
        // Of all members; the first alone was not one yet.
        steer(&sockets[1]).map_err(system)?;
        Ok(Group { sockets })
    }

    /// All of them, in the order of the parts.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(|socket| socket.as_fd())
    }

    /// Let a part receive, and nothing that came before. It must have been closed.
    pub fn open_part(&self, part: u8) -> io::Result<()> {
        let socket = &self.sockets[usize::from(part)];
        // The filter is on, so this ends. An error is one of the last owner's packets, and is gone with the call.
        for _ in 0..STALE_DATAGRAMS_MAX {
            if recv(socket.as_raw_fd(), &mut [0], MsgFlags::MSG_DONTWAIT) == Err(Errno::EAGAIN) {
                break;
            }
        }
        drop_nothing(socket)
    }

    /// Let a part receive nothing any more.
    pub fn close_part(&self, part: u8) -> io::Result<()> {
        drop_all(&self.sockets[usize::from(part)])
    }
}

fn new_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    if address.is_ipv6() {
        setsockopt(&socket, Ipv6V6Only, &true)?;
    }
    drop_all(&socket)?;
    Ok(socket)
}

fn bind_to(socket: &OwnedFd, address: SocketAddr) -> Result<(), Errno> {
    bind(socket.as_raw_fd(), &SockaddrStorage::from(address))
}

/// Whether processes of this user share the port: only those take another one in. It comes last and leaves at once, which
/// moves no member.
fn has_group(address: SocketAddr) -> bool {
    let Ok(probe) = new_socket(address) else { return false };
    setsockopt(&probe, ReusePort, &true).is_ok() && bind_to(&probe, address).is_ok()
}
