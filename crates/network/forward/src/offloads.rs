//! What the driver of an interface leaves to hardware, and its MTU.
//!
//! A program that sends over an interface whose driver computes checksums or cuts segments gives the kernel frames that
//! are not finished, and on a virtual interface nobody finishes them. So at the ends where frames of programs enter a link,
//! transmit offloads must be off; and where frames arrive for a forwarder, received frames must not be joined (GRO).
#![allow(unsafe_code, reason = "ioctl calls that nix does not know")]

use std::ffi::{c_char, c_int};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use nix::net::if_::InterfaceFlags;

/// Something that an interface's driver can be told to leave alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Checksums of frames that are sent (`ethtool -K … tx`). Cutting of segments needs it, and is off without it.
    TransmitChecksum,
    /// Joining of frames that are received (`gro`).
    ReceiveJoining,
}

// From linux/ethtool.h.
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_SGRO: u32 = 0x2c;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

impl Offload {
    fn commands(self) -> (u32, u32) {
        match self {
            Offload::TransmitChecksum => (ETHTOOL_GTXCSUM, ETHTOOL_STXCSUM),
            Offload::ReceiveJoining => (ETHTOOL_GGRO, ETHTOOL_SGRO),
        }
    }
}

/// Whether it is on.
pub fn is_on(interface: &str, offload: Offload) -> io::Result<bool> {
    let mut value = Value { command: offload.commands().0, data: 0 };
    ethtool(interface, &mut value)?;
    Ok(value.data != 0)
}

/// Switch it off, or on again.
pub fn set(interface: &str, offload: Offload, is_on: bool) -> io::Result<()> {
    ethtool(interface, &mut Value { command: offload.commands().1, data: is_on.into() })
}

/// The longest packet that the interface takes, without Ethernet's header.
pub fn mtu(interface: &str) -> io::Result<usize> {
    let mut request = request_for(interface)?;
    call(libc::SIOCGIFMTU, &mut request)?;
    // SAFETY: the kernel has written the number.
    let mtu = unsafe { request.ifr_ifru.ifru_mtu };
    usize::try_from(mtu).map_err(io::Error::other)
}

/// Whether the interface is up.
pub fn is_up(interface: &str) -> io::Result<bool> {
    let mut request = request_for(interface)?;
    call(libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: the kernel has written the flags.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    Ok(InterfaceFlags::from_bits_truncate(c_int::from(flags)).contains(InterfaceFlags::IFF_UP))
}

/// An interface that does not join frames: several would be lost and delayed as one. Dropped, it does again what it did before.
#[derive(Debug)]
pub struct OneByOne {
    interface: String,
    did_join: bool,
}

impl OneByOne {
    /// Switches joining off, if it is on.
    pub fn of(interface: &str) -> io::Result<Self> {
        // Drivers that cannot join frames may not know the question.
        let did_join = is_on(interface, Offload::ReceiveJoining).unwrap_or(false);
        if did_join {
            tracing::info!(interface, "switching off that received frames are joined (gro)");
            set(interface, Offload::ReceiveJoining, false)?;
        }
        Ok(OneByOne { interface: interface.to_owned(), did_join })
    }
}

impl Drop for OneByOne {
    fn drop(&mut self) {
        if self.did_join {
            // It may be gone.
            let _ = set(&self.interface, Offload::ReceiveJoining, true);
        }
    }
}

fn ethtool(interface: &str, value: &mut Value) -> io::Result<()> {
    let mut request = request_for(interface)?;
    request.ifr_ifru.ifru_data = (value as *mut Value).cast::<c_char>();
    call(libc::SIOCETHTOOL, &mut request)
}

/// A request about an interface.
pub(crate) fn request_for(interface: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all bytes zero is a request.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if interface.len() >= request.ifr_name.len() || interface.contains('\0') {
        return Err(io::ErrorKind::NotFound.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as c_char;
    }
    Ok(request)
}

fn call(number: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was made just now and is nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: the request is alive, and what it points at too; each of the numbers used here reads and writes no more than these.
    let called = unsafe { libc::ioctl(socket.as_raw_fd(), number as _, request as *mut libc::ifreq) };
    if called < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_up_and_has_an_mtu() {
        assert!(mtu("lo").expect("there is one") >= 1500);
        is_up("lo").expect("it is known");
        is_on("lo", Offload::TransmitChecksum).expect("it is known");
        for name in ["no-such-if", "a-name-that-is-too-long-for-an-interface", "zero\0"] {
            assert!(mtu(name).is_err(), "{name}");
        }
    }
}
