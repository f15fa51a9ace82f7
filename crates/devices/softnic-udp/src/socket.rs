//! The system calls of a UDP socket that sends from, and receives into, many pieces of memory at once.
//!
//! Written on libc: the safe wrappers (rustix, nix, socket2) take slices, and memory of programs is never a slice; quinn-udp
//! wants a datagram in one piece, which is a copy on each side (docs/PERFORMANCE.md has the figure).
//!
//! The socket is never connected and sets "don't fragment": then Linux sends identification 0, and 0, 1, 2, … within one
//! call with segmentation offload, and the ICRC can be computed.
#![allow(unsafe_code, reason = "sendmsg, recvmsg and socket options on raw memory")]

use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::libc::{self, c_int, c_void};

/// RFC 863's port: never sent to, only used to look up the route.
const UDP_PORT_DISCARD: u16 = 9;

/// A piece of memory, as `sendmsg` and `recvmsg` take it.
pub(crate) type Part = libc::iovec;

/// `length` bytes at `memory`.
pub(crate) fn part(memory: *mut u8, length: usize) -> Part {
    libc::iovec { iov_base: memory.cast(), iov_len: length }
}

/// A UDP socket that is bound and not connected.
pub(crate) struct Socket {
    descriptor: OwnedFd,
    local: SocketAddr,
}

/// What one call received: one datagram, or several of one sender that are all of `segment_bytes` but for the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) bytes: usize,
    pub(crate) segment_bytes: usize,
    pub(crate) source: SocketAddr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

/// Control messages of one call: type of service, time to live, segment size, and room to spare.
#[repr(C, align(8))]
struct Control([u8; 128]);

impl Socket {
    /// A socket bound to this address and no other. Port 0 takes a free one.
    pub(crate) fn bind(address: SocketAddr) -> io::Result<Socket> {
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain numbers in, a descriptor or -1 out.
        let descriptor = check(unsafe { libc::socket(family, kind, libc::IPPROTO_UDP) })?;
        // SAFETY: it was just opened and nobody else has it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let mut socket = Socket { descriptor, local: address };
        if address.is_ipv6() {
            socket.set(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
        }
        let (name, length) = to_c(address);
        // SAFETY: `name` holds an address of `length` bytes.
        check(unsafe { libc::bind(socket.raw(), (&raw const name).cast(), length) })?;
        socket.local = socket.local_address()?;
        socket.set_up()?;
        Ok(socket)
    }

    /// A UDP socket that somebody else has bound, and may have used before.
    pub(crate) fn adopt(descriptor: OwnedFd) -> io::Result<Socket> {
        let mut socket = Socket { descriptor, local: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0) };
        let is_udp = socket.get(libc::SOL_SOCKET, libc::SO_PROTOCOL)? == libc::IPPROTO_UDP
            && matches!(socket.get(libc::SOL_SOCKET, libc::SO_DOMAIN)?, libc::AF_INET | libc::AF_INET6);
        if !is_udp {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        socket.local = socket.local_address()?;
        socket.set_up()?;
        let receive_hop_limits = match socket.local {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVTTL),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT),
        };
        socket.set(receive_hop_limits.0, receive_hop_limits.1, 0)?;
        // A kernel without it refuses also to switch it off.
        let _ = socket.disable_receive_offload();
        Ok(socket)
    }

    /// What every socket of a device is set to.
    fn set_up(&self) -> io::Result<()> {
        let (level, discover, tos) = match self.local {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, (libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO), libc::IP_RECVTOS),
            SocketAddr::V6(_) => {
                (libc::IPPROTO_IPV6, (libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO), libc::IPV6_RECVTCLASS)
            }
        };
        self.set(level, discover.0, discover.1)?;
        self.set(level, tos, 1)?;
        if self.local.is_ipv6() {
            // RoCEv2 senders leave the UDP checksum out.
            self.set(libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
        }
        Ok(())
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Whether the kernel can cut one call into many datagrams.
    pub(crate) fn has_segmentation_offload(&self) -> bool {
        self.set(libc::IPPROTO_UDP, libc::UDP_SEGMENT, 0).is_ok()
    }

    /// Have the kernel hand over many datagrams in one call.
    pub(crate) fn enable_receive_offload(&self) -> io::Result<()> {
        self.set(libc::IPPROTO_UDP, libc::UDP_GRO, 1)
    }

    /// Have the kernel hand over each datagram by itself.
    pub(crate) fn disable_receive_offload(&self) -> io::Result<()> {
        self.set(libc::IPPROTO_UDP, libc::UDP_GRO, 0)
    }

    /// Have the kernel tell what is left of each datagram's time to live. Costs each call some 0.2 µs.
    pub(crate) fn report_hop_limits(&self) -> io::Result<()> {
        match self.local {
            SocketAddr::V4(_) => self.set(libc::IPPROTO_IP, libc::IP_RECVTTL, 1),
            SocketAddr::V6(_) => self.set(libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1),
        }
    }

    /// Ask for buffers of this size; what the kernel gives, in bytes. Above the system's limit only with CAP_NET_ADMIN.
    pub(crate) fn set_buffers(&self, receive_bytes: usize, send_bytes: usize) -> io::Result<(usize, usize)> {
        let mut given = [0; 2];
        let options = [
            (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, receive_bytes),
            (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, send_bytes),
        ];
        for (given, (force, polite, bytes)) in given.iter_mut().zip(options) {
            let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX / 2);
            if self.set(libc::SOL_SOCKET, force, bytes).is_err() {
                self.set(libc::SOL_SOCKET, polite, bytes)?;
            }
            // The kernel doubles what was asked, to have room for its own bookkeeping.
            *given = self.get(libc::SOL_SOCKET, polite)? as usize / 2;
        }
        Ok((given[0], given[1]))
    }

    /// DSCP and ECN bits of what is sent from now on.
    pub(crate) fn set_traffic_class(&self, traffic_class: u8) -> io::Result<()> {
        match self.local {
            SocketAddr::V4(_) => self.set(libc::IPPROTO_IP, libc::IP_TOS, traffic_class.into()),
            SocketAddr::V6(_) => self.set(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, traffic_class.into()),
        }
    }

    /// Time to live of what is sent from now on.
    pub(crate) fn set_hop_limit(&self, hop_limit: u8) -> io::Result<()> {
        match self.local {
            SocketAddr::V4(_) => self.set(libc::IPPROTO_IP, libc::IP_TTL, hop_limit.into()),
            SocketAddr::V6(_) => self.set(libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, hop_limit.into()),
        }
    }

    /// Send the parts, one after the other, as datagrams of `segment_bytes` (the last may be shorter), or as one datagram.
    ///
    /// # Safety
    ///
    /// Every part must be readable until this returns.
    pub(crate) unsafe fn send(
        &self,
        destination: SocketAddr,
        parts: &[Part],
        segment_bytes: Option<u16>,
    ) -> io::Result<()> {
        let (mut name, length) = to_c(destination);
        let mut control = Control([0; 128]);
        // SAFETY: all zeroes is a header without anything.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_name = (&raw mut name).cast();
        header.msg_namelen = length;
        header.msg_iov = parts.as_ptr().cast_mut();
        header.msg_iovlen = parts.len();
        if let Some(segment_bytes) = segment_bytes {
            header.msg_control = (&raw mut control).cast();
            // SAFETY: a computation on numbers.
            header.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<u16>() as u32) } as usize;
            // SAFETY: `header` has a control buffer with room for one message of two bytes, so the first message and
            // its data lie inside the buffer.
            unsafe {
                let message = libc::CMSG_FIRSTHDR(&raw const header);
                (*message).cmsg_level = libc::IPPROTO_UDP;
                (*message).cmsg_type = libc::UDP_SEGMENT;
                (*message).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as usize;
                libc::CMSG_DATA(message).cast::<u16>().write_unaligned(segment_bytes);
            }
        }
        // SAFETY: the header points to live values above and to parts that the caller vouches for.
        let sent = unsafe { libc::sendmsg(self.raw(), &raw const header, libc::MSG_DONTWAIT) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Receive into the parts, one after the other. `None` when nothing has arrived.
    ///
    /// # Safety
    ///
    /// Every part must be writable until this returns, and code that reads it must expect it to change.
    pub(crate) unsafe fn receive(&self, parts: &mut [Part]) -> io::Result<Option<Arrival>> {
        let mut name = MaybeUninit::<libc::sockaddr_in6>::uninit();
        let mut control = MaybeUninit::<Control>::uninit();
        // SAFETY: all zeroes is a header without anything.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_name = name.as_mut_ptr().cast();
        header.msg_namelen = size_of::<libc::sockaddr_in6>() as u32;
        header.msg_iov = parts.as_mut_ptr();
        header.msg_iovlen = parts.len();
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of::<Control>();
        // SAFETY: the header points to live values above and to parts that the caller vouches for.
        let received = unsafe { libc::recvmsg(self.raw(), &raw mut header, libc::MSG_DONTWAIT) };
        if received < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                _ => Err(error),
            };
        }
        let bytes = received as usize;
        // SAFETY: the kernel has written the sender's address, whose family says how long it is; both kinds fit.
        let source = unsafe { from_c(name.as_ptr()) };
        let mut arrival = Arrival { bytes, segment_bytes: bytes, source, traffic_class: 0, hop_limit: 0 };
        // SAFETY: the kernel has filled the control buffer and set its length; the macros walk inside of that, and each
        // value is read with the size that the kernel gives to messages of its type.
        unsafe {
            let mut message = libc::CMSG_FIRSTHDR(&raw const header);
            while !message.is_null() {
                let data = libc::CMSG_DATA(message);
                match ((*message).cmsg_level, (*message).cmsg_type) {
                    (libc::IPPROTO_UDP, libc::UDP_GRO) => {
                        arrival.segment_bytes = data.cast::<c_int>().read_unaligned() as usize;
                    }
                    (libc::IPPROTO_IP, libc::IP_TOS) => arrival.traffic_class = data.read(),
                    (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                        arrival.hop_limit = data.cast::<c_int>().read_unaligned() as u8;
                    }
                    (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                        arrival.traffic_class = data.cast::<c_int>().read_unaligned() as u8;
                    }
                    _ => {}
                }
                message = libc::CMSG_NXTHDR(&raw const header, message);
            }
        }
        Ok(Some(arrival))
    }

    /// Send one datagram.
    pub(crate) fn send_one(&self, destination: SocketAddr, datagram: &mut [u8]) -> io::Result<()> {
        // SAFETY: the slice is there until the call returns.
        unsafe { self.send(destination, &[part(datagram.as_mut_ptr(), datagram.len())], None) }
    }

    /// Receive into one buffer.
    pub(crate) fn receive_one(&self, buffer: &mut [u8]) -> io::Result<Option<Arrival>> {
        // SAFETY: the slice is ours alone until the call returns.
        unsafe { self.receive(&mut [part(buffer.as_mut_ptr(), buffer.len())]) }
    }

    fn local_address(&self) -> io::Result<SocketAddr> {
        let mut name = MaybeUninit::<libc::sockaddr_in6>::uninit();
        let mut length = size_of::<libc::sockaddr_in6>() as u32;
        // SAFETY: `name` has room for `length` bytes.
        check(unsafe { libc::getsockname(self.raw(), name.as_mut_ptr().cast(), &raw mut length) })?;
        // SAFETY: the kernel has written an address of the socket's family.
        Ok(unsafe { from_c(name.as_ptr()) })
    }

    fn set(&self, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
        let value_pointer: *const c_void = (&raw const value).cast();
        // SAFETY: all options used here take an int.
        check(unsafe { libc::setsockopt(self.raw(), level, option, value_pointer, size_of::<c_int>() as u32) })?;
        Ok(())
    }

    fn get(&self, level: c_int, option: c_int) -> io::Result<c_int> {
        let mut value: c_int = 0;
        let mut length = size_of::<c_int>() as u32;
        // SAFETY: all options used here give an int.
        check(unsafe { libc::getsockopt(self.raw(), level, option, (&raw mut value).cast(), &raw mut length) })?;
        Ok(value)
    }

    fn raw(&self) -> c_int {
        self.descriptor.as_raw_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The largest IP packet that the route to a peer carries, as far as the kernel knows now.
pub fn route_mtu_bytes(source: IpAddr, destination: IpAddr) -> io::Result<u32> {
    let socket = std::net::UdpSocket::bind((source, 0))?;
    // The one connected socket: nothing is ever sent on it.
    socket.connect((destination, UDP_PORT_DISCARD))?;
    let option = match destination {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let socket = Socket { local: socket.local_addr()?, descriptor: socket.into() };
    Ok(socket.get(option.0, option.1)?.max(0) as u32)
}

/// MTU of the interface with this name.
pub(crate) fn interface_mtu(name: &str) -> io::Result<u32> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: all zeroes is a request without a name.
    let mut request: libc::ifreq = unsafe { zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: this request reads the name and writes the MTU into `request`.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) })?;
    // SAFETY: the kernel has just written that field of the union.
    Ok(unsafe { request.ifr_ifru.ifru_mtu }.max(0) as u32)
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// An address as C has it, and its length. The larger struct holds either kind.
fn to_c(address: SocketAddr) -> (libc::sockaddr_in6, u32) {
    // SAFETY: all zeroes is a valid value of these plain structs.
    let mut name: libc::sockaddr_in6 = unsafe { zeroed() };
    match address {
        SocketAddr::V4(address) => {
            let v4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the smaller struct is written into the larger one, whose alignment is no less.
            unsafe { (&raw mut name).cast::<libc::sockaddr_in>().write(v4) };
            (name, size_of::<libc::sockaddr_in>() as u32)
        }
        SocketAddr::V6(address) => {
            name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
            name.sin6_port = address.port().to_be();
            name.sin6_addr.s6_addr = address.ip().octets();
            name.sin6_scope_id = address.scope_id();
            (name, size_of::<libc::sockaddr_in6>() as u32)
        }
    }
}

/// # Safety
///
/// `name` must point to an address whose family is IPv4 or IPv6, written as far as that kind goes.
unsafe fn from_c(name: *const libc::sockaddr_in6) -> SocketAddr {
    // SAFETY: the family stands at the same place in both kinds.
    let family = unsafe { (&raw const (*name).sin6_family).read() };
    if c_int::from(family) == libc::AF_INET {
        // SAFETY: it is of this kind, and the pointer is aligned for the larger struct.
        let v4 = unsafe { name.cast::<libc::sockaddr_in>().read() };
        let address = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
        SocketAddrV4::new(address, u16::from_be(v4.sin_port)).into()
    } else {
        // SAFETY: it is of this kind.
        let v6 = unsafe { name.read() };
        let address = Ipv6Addr::from(v6.sin6_addr.s6_addr);
        SocketAddrV6::new(address, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into()
    }
}
