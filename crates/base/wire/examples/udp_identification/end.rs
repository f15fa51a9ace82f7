//! Our end: a plain UDP socket on RoCEv2's port.

use crate::Stop;
use crate::target::Target;
use longhaul_wire::UDP_PORT_ROCE;
use longhaul_wire::icrc::{ICRC_BYTES, IcrcScope};
use longhaul_wire::packet::{self, Headers, MAX_HEADER_BYTES};
use nix::errno::Errno;
use nix::sys::socket::{self, ControlMessage, ControlMessageOwned, MsgFlags, SetSockOpt, SockaddrStorage, sockopt};
use nix::{libc, setsockopt_impl, sockopt_impl};
use std::fmt::Debug;
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// Every Linux with UDP_SEGMENT takes 64 segments a call, newer ones more; and 64 KiB with headers.
const SEGMENT_COUNT_MAX: usize = 64;
const CALL_BYTES_MAX: usize = 65_507;

// What nix has no type for. These macros of its own make one; UDP_SEGMENT and UDP_GRO it has.
sockopt_impl!(
    /// Whether IPv4 may fragment
    MtuDiscover4,
    SetOnly,
    libc::IPPROTO_IP,
    libc::IP_MTU_DISCOVER,
    libc::c_int
);
sockopt_impl!(
    /// Whether IPv6 may fragment
    MtuDiscover6,
    SetOnly,
    libc::IPPROTO_IPV6,
    libc::IPV6_MTU_DISCOVER,
    libc::c_int
);
sockopt_impl!(
    /// Whether to send UDP checksum 0 over IPv6
    NoChecksumSent6,
    SetOnly,
    libc::IPPROTO_UDP,
    libc::UDP_NO_CHECK6_TX,
    bool
);
sockopt_impl!(
    /// Whether to take UDP checksum 0 over IPv6
    NoChecksumTaken6,
    SetOnly,
    libc::IPPROTO_UDP,
    libc::UDP_NO_CHECK6_RX,
    bool
);

fn set<T: SetSockOpt + Debug + Copy>(socket: &UdpSocket, option: T, value: &T::Val) -> Result<(), Stop> {
    socket::setsockopt(socket, option, value)
        .map_err(|error| Stop::Missing(format!("cannot set the socket option {option:?}: {error}")))
}

pub(crate) struct End {
    socket: UdpSocket,
    pub(crate) local: SocketAddr,
    peer: SocketAddr,
    /// Of what we send, with identification 0.
    pub(crate) scope: IcrcScope,
}

/// One packet before it has an ICRC.
pub(crate) type Content<'a> = (Headers, &'a [u8]);

impl End {
    pub(crate) fn open(address: IpAddr, target: &Target) -> Result<End, Stop> {
        let local = SocketAddr::new(address, UDP_PORT_ROCE);
        let peer = SocketAddr::new(target.address, UDP_PORT_ROCE);
        let scope = IcrcScope::between(local, peer)
            .ok_or_else(|| Stop::Usage(format!("{address} and {} are not of one family", target.address)))?;
        let socket = UdpSocket::bind(local).map_err(|error| Stop::Missing(format!("cannot bind {local}: {error}")))?;
        if local.is_ipv4() {
            set(&socket, MtuDiscover4, &libc::IP_PMTUDISC_DO)?;
        } else {
            set(&socket, MtuDiscover6, &libc::IPV6_PMTUDISC_DO)?;
            // Soft-RoCE sends UDP checksum 0, and over IPv6 that has to be allowed.
            set(&socket, NoChecksumTaken6, &true)?;
        }
        // No segments unless a call says so: this only asks whether the kernel can.
        set(&socket, sockopt::UdpGsoSegment, &0)?;
        set(&socket, sockopt::UdpGroSegment, &true)?;
        Ok(End { socket, local, peer, scope })
    }

    /// Sends packets in as few calls as possible. Says how many.
    pub(crate) fn send(&self, contents: &[Content<'_>]) -> Result<usize, Stop> {
        let mut rest = contents;
        let mut call_count = 0;
        while !rest.is_empty() {
            let (batch, after) = rest.split_at(segments_of_one_call(rest));
            // The identification starts from 0 with each call.
            let scopes = (0..).map(|identification| self.scope.with_identification(identification));
            let datagrams: Vec<Vec<u8>> =
                batch.iter().zip(scopes).map(|(content, scope)| datagram(content, &scope)).collect();
            self.send_in_one_call(&datagrams)?;
            call_count += 1;
            rest = after;
        }
        Ok(call_count)
    }

    /// Sends datagrams with segmentation offload when there are several, as `segments_of_one_call` wants them.
    pub(crate) fn send_in_one_call(&self, datagrams: &[Vec<u8>]) -> Result<(), Stop> {
        let bytes = datagrams.concat();
        let segment_bytes = datagrams[0].len() as u16;
        let segmented = [ControlMessage::UdpGsoSegments(&segment_bytes)];
        let control = if datagrams.len() > 1 { &segmented[..] } else { &[] };
        let peer = SockaddrStorage::from(self.peer);
        let sent =
            socket::sendmsg(self.socket.as_raw_fd(), &[IoSlice::new(&bytes)], control, MsgFlags::empty(), Some(&peer));
        match sent {
            Ok(sent_bytes) if sent_bytes == bytes.len() => Ok(()),
            Ok(sent_bytes) => Err(Stop::Missing(format!("sent {sent_bytes} of {} bytes", bytes.len()))),
            Err(error) => Err(Stop::Missing(format!(
                "cannot send {} segments of {segment_bytes} bytes: {error}",
                datagrams.len()
            ))),
        }
    }

    /// Source, bytes and bytes of each segment of what comes next; `None` when nothing does in time.
    pub(crate) fn receive(
        &self,
        buffer: &mut [u8],
        timeout: Duration,
    ) -> Result<Option<(SocketAddr, usize, usize)>, Stop> {
        let failed = |what: &str| Stop::Missing(format!("cannot receive: {what}"));
        self.socket.set_read_timeout(Some(timeout)).map_err(|error| failed(&error.to_string()))?;
        let mut control = nix::cmsg_space!(libc::c_int);
        let mut slices = [IoSliceMut::new(buffer)];
        let message = match socket::recvmsg::<SockaddrStorage>(
            self.socket.as_raw_fd(),
            &mut slices,
            Some(&mut control),
            MsgFlags::empty(),
        ) {
            Ok(message) => message,
            Err(Errno::EAGAIN) => return Ok(None),
            Err(error) => return Err(failed(error.desc())),
        };
        let mut control_messages = message.cmsgs().map_err(|error| failed(error.desc()))?;
        let segment_bytes = control_messages.find_map(|control| match control {
            ControlMessageOwned::UdpGroSegments(bytes) => usize::try_from(bytes).ok(),
            _ => None,
        });
        let source = message.address.as_ref().and_then(|address| {
            let v4 = address.as_sockaddr_in().map(|v4| SocketAddr::V4(SocketAddrV4::from(*v4)));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| SocketAddr::V6(SocketAddrV6::from(*v6))))
        });
        let source = source.ok_or_else(|| failed("no source address"))?;
        Ok(Some((source, message.bytes, segment_bytes.unwrap_or(message.bytes))))
    }

    /// Over IPv6, leaves out the UDP checksum as Soft-RoCE does. Not together with segmentation offload: Linux then
    /// refuses to send. Over IPv4 the checksum is always computed, and Soft-RoCE takes that too.
    pub(crate) fn leave_out_checksum(&self, yes: bool) -> Result<(), Stop> {
        if self.local.is_ipv4() { Ok(()) } else { set(&self.socket, NoChecksumSent6, &yes) }
    }
}

/// How many of the next packets can go in one call: all of one size, but for a shorter one at the end.
fn segments_of_one_call(contents: &[Content<'_>]) -> usize {
    let bytes = |(headers, payload): &Content<'_>| packet::datagram_bytes(headers.byte_count(), payload.len());
    let segment_bytes = bytes(&contents[0]);
    let most = SEGMENT_COUNT_MAX.min(CALL_BYTES_MAX / segment_bytes).max(1);
    let full = contents.iter().take(most).take_while(|content| bytes(content) == segment_bytes).count();
    let has_short_end = full < most && contents.get(full).is_some_and(|content| bytes(content) < segment_bytes);
    full + usize::from(has_short_end)
}

pub(crate) fn datagram((headers, payload): &Content<'_>, scope: &IcrcScope) -> Vec<u8> {
    let mut buffer = vec![0; MAX_HEADER_BYTES + payload.len() + 3 + ICRC_BYTES];
    let length = packet::write_datagram(headers, payload, scope, &mut buffer)
        .expect("the headers are what the opcode needs, and the buffer is large enough for any of them");
    buffer.truncate(length);
    buffer
}
