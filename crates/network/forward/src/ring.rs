//! An interface through packet sockets: frames arrive in a ring of slots that the kernel fills in shared memory
//! (`TPACKET_V2`), and leave many in a call (`sendmmsg`).
//!
//! Of the ways to move frames that Linux offers, this came out best or equal in throughput, needs no BPF program and no
//! right beyond `CAP_NET_RAW`, takes jumbo frames, and says when each frame arrived. (`TPACKET_V3` is slower by half a
//! millisecond: it hands frames out in blocks.)
//!
//! A slot belongs to the kernel or to us, as its status says:
//!
//! ```text
//!   kernel ── a frame arrives: status USER ──▶ us ── receive(), the next call: status KERNEL ──▶ kernel
//! ```
#![allow(unsafe_code, reason = "memory that the kernel shares, and socket options that nix does not know")]

use std::ffi::c_int;
use std::io;
use std::mem;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::net::if_::if_nametoindex;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::socket::{setsockopt, sockopt};

use crate::clock::Clock;
use crate::error::ForwardError;
use crate::interface::{Arrival, Interface, Sink, Source, SourceCounters};
use crate::offloads;

/// Bytes of a ring, by default. A ring is what the loop may be late by: a fifth of a second at 1 Gbit/s.
const RING_BYTES: usize = 32 << 20;
/// Bytes that the kernel allocates at once.
const BLOCK_BYTES: usize = 1 << 16;
/// In addition to the MTU: Ethernet's header with two VLAN tags.
const HEADERS_BYTES: usize = 14 + 8;
const VLAN_TAG_BYTES: usize = 4;
/// Both addresses, before the tag.
const ADDRESSES_BYTES: usize = 12;
const ETHERTYPE_VLAN: u16 = 0x8100;

/// What becomes of frames that arrive without their checksum, because their sender leaves it to hardware that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// They are an error, which says what helps.
    Refuse,
    /// They are dropped and counted; the first one is warned about.
    Drop,
}

/// Opens an interface: all frames that arrive at it, whatever their destination, and none that it sends.
pub fn open(name: &str, clock: Clock, unfinished: Unfinished) -> Result<Interface, ForwardError> {
    let source = RingSource { unfinished, ..RingSource::open(name, clock, RING_BYTES)? };
    let sink = RawSink::open(name)?;
    Ok(Interface { source: Box::new(source), sink: Box::new(sink) })
}

/// A packet socket, which gets no frames before it is bound to a protocol.
fn packet_socket(name: &str) -> Result<OwnedFd, ForwardError> {
    // SAFETY: no memory is passed.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) };
    if socket < 0 {
        let source = io::Error::last_os_error();
        return Err(match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => ForwardError::NotAllowed { interface: name.to_owned(), source },
            _ => ForwardError::Open { interface: name.to_owned(), what: "no packet socket", source },
        });
    }
    // SAFETY: the descriptor was made just now and is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

fn index_of(name: &str) -> Result<c_int, ForwardError> {
    let index = if_nametoindex(name).map_err(|_| ForwardError::NoInterface(name.to_owned()))?;
    c_int::try_from(index).map_err(|_| ForwardError::NoInterface(name.to_owned()))
}

/// Bind a packet socket to an interface; with protocol 0 it gets no frames.
fn bind(socket: &OwnedFd, index: c_int, protocol: u16) -> io::Result<()> {
    // SAFETY: all bytes zero is an address.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index;
    let length = mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: the address is alive, and as long as is said.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if bound == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Milliseconds that a frame waits for an interface that has too much to send.
const SEND_PATIENCE_MILLIS: u8 = 2;
/// Bytes that may wait in an interface until it has sent them.
const SEND_BYTES: usize = 64 << 20;

/// A plain value whose bytes the kernel reads.
trait Plain: Copy {}
impl Plain for c_int {}
impl Plain for libc::tpacket_req {}
impl Plain for libc::packet_mreq {}

fn set_option<T: Plain>(socket: &OwnedFd, option: c_int, value: T) -> io::Result<()> {
    let length = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the value is alive, and as long as is said.
    let set =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, (&raw const value).cast(), length) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Frames that arrive at an interface, in a ring.
pub struct RingSource {
    name: String,
    index: c_int,
    socket: OwnedFd,
    memory: Mapped,
    slot_bytes: usize,
    slot_count: usize,
    /// Slots that were handed out by the last call, the first of them here.
    first: usize,
    held: usize,
    /// The longest frame that a slot has room for.
    frame_bytes_max: usize,
    unfinished: Unfinished,
    clock: Clock,
    counters: SourceCounters,
}

/// Shared memory of the kernel's, until it is dropped.
struct Mapped {
    start: NonNull<u8>,
    bytes: NonZeroUsize,
}

// SAFETY: it is memory like any other; its owner may use it on any thread.
unsafe impl Send for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing points there any more: frames borrow their source.
        let _ = unsafe { munmap(self.start.cast(), self.bytes.get()) };
    }
}

impl RingSource {
    /// Opens an interface with a ring of about this many bytes.
    pub fn open(name: &str, clock: Clock, ring_bytes: usize) -> Result<Self, ForwardError> {
        let index = index_of(name)?;
        let failed = |what| {
            let interface = name.to_owned();
            move |source: io::Error| ForwardError::Open { interface, what, source }
        };
        let mtu = offloads::mtu(name).map_err(failed("its MTU cannot be read"))?;
        let socket = packet_socket(name)?;
        let version = libc::tpacket_versions::TPACKET_V2 as c_int;
        set_option(&socket, libc::PACKET_VERSION, version).map_err(failed("no packet ring of version 2"))?;
        set_option(&socket, libc::PACKET_IGNORE_OUTGOING, 1).map_err(failed("it shows frames that it sends"))?;
        let frame_bytes_max = mtu + HEADERS_BYTES;
        // The kernel's header of a slot, the address after it, and room for a tag before the frame.
        let slot_bytes = (frame_bytes_max + libc::TPACKET2_HDRLEN + 64).next_power_of_two().max(2048);
        let block_bytes = slot_bytes.max(BLOCK_BYTES);
        let block_count = (ring_bytes / block_bytes).max(2);
        let slot_count = block_count * (block_bytes / slot_bytes);
        let request = libc::tpacket_req {
            tp_block_size: block_bytes as u32,
            tp_block_nr: block_count as u32,
            tp_frame_size: slot_bytes as u32,
            tp_frame_nr: slot_count as u32,
        };
        set_option(&socket, libc::PACKET_RX_RING, request).map_err(failed("no memory for a packet ring"))?;
        let bytes = NonZeroUsize::new(block_bytes * block_count).expect("there are two blocks");
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, at no address in particular.
        let start = unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, socket.as_fd(), 0) };
        let start = start.map_err(|error| failed("its packet ring cannot be mapped")(error.into()))?;
        let memory = Mapped { start: start.cast(), bytes };
        // SAFETY: all bytes zero is a request.
        let mut everything: libc::packet_mreq = unsafe { mem::zeroed() };
        everything.mr_ifindex = index;
        everything.mr_type = libc::PACKET_MR_PROMISC as u16;
        set_option(&socket, libc::PACKET_ADD_MEMBERSHIP, everything)
            .map_err(failed("no frames that are for others"))?;
        bind(&socket, index, libc::ETH_P_ALL as u16).map_err(failed("the socket cannot be bound to it"))?;
        Ok(RingSource {
            name: name.to_owned(),
            index,
            socket,
            memory,
            slot_bytes,
            slot_count,
            first: 0,
            held: 0,
            frame_bytes_max,
            unfinished: Unfinished::Refuse,
            clock,
            counters: SourceCounters::default(),
        })
    }

    fn slot(&self, position: usize) -> NonNull<u8> {
        let offset = (position % self.slot_count) * self.slot_bytes;
        // SAFETY: slots lie side by side in the mapping, and there are `slot_count` of them.
        unsafe { self.memory.start.add(offset) }
    }

    /// Who a slot belongs to. The kernel writes this word while we read it.
    fn status(&self, position: usize) -> &AtomicU32 {
        // SAFETY: a slot begins with its status, aligned as the slot is, in memory that lives as long as `self`; both sides use it as
        // one word only.
        unsafe { AtomicU32::from_ptr(self.slot(position).cast::<u32>().as_ptr()) }
    }

    /// Give the kernel back what the last call has handed out.
    fn release(&mut self) {
        for position in self.first..self.first + self.held {
            self.status(position).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        }
        self.first = (self.first + self.held) % self.slot_count;
        self.held = 0;
    }

    /// The frame in a slot that is ours, with its VLAN tag, if it is finished and of a length that we take.
    fn frame(&mut self, position: usize, status: u32) -> Result<Option<(NonNull<u8>, usize, Duration)>, ForwardError> {
        let slot = self.slot(position);
        // SAFETY: the slot is ours, and begins with this header, which has only numbers.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        let (start, bytes) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        let whole_bytes = header.tp_len as usize;
        if status & libc::TP_STATUS_CSUMNOTREADY != 0 {
            let problem = "without its checksum";
            let offloaded = ForwardError::Offloaded { interface: self.name.clone(), bytes: whole_bytes, problem };
            if self.unfinished == Unfinished::Refuse {
                return Err(offloaded);
            }
            if self.counters.unfinished == 0 {
                tracing::warn!("{offloaded}. It is dropped, and so are all others; they are counted");
            }
            self.counters.unfinished += 1;
            return Ok(None);
        }
        let is_in_slot =
            start >= mem::size_of::<libc::tpacket2_hdr>() + VLAN_TAG_BYTES && start + bytes <= self.slot_bytes;
        if whole_bytes > self.frame_bytes_max || bytes < whole_bytes || bytes < ADDRESSES_BYTES + 2 || !is_in_slot {
            self.counters.too_long += 1;
            return Ok(None);
        }
        let stamp = Duration::new(header.tp_sec.into(), header.tp_nsec);
        // SAFETY: the frame lies inside the slot, as was checked.
        let frame = unsafe { slot.add(start) };
        if status & libc::TP_STATUS_VLAN_VALID == 0 {
            return Ok(Some((frame, bytes, stamp)));
        }
        // The kernel has taken the tag out of the frame. There is room for it: what lies before a frame is the kernel's own notes,
        // which nobody reads after this.
        let has_protocol = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
        let protocol = if has_protocol { header.tp_vlan_tpid } else { ETHERTYPE_VLAN };
        let [p0, p1] = protocol.to_be_bytes();
        let [t0, t1] = header.tp_vlan_tci.to_be_bytes();
        // SAFETY: the four bytes before the frame lie in the slot, which is ours, and the frame has both addresses.
        unsafe {
            let tagged = frame.sub(VLAN_TAG_BYTES);
            frame.copy_to(tagged, ADDRESSES_BYTES);
            tagged.add(ADDRESSES_BYTES).cast::<[u8; VLAN_TAG_BYTES]>().write_unaligned([p0, p1, t0, t1]);
            Ok(Some((tagged, bytes + VLAN_TAG_BYTES, stamp)))
        }
    }

    /// The index that the interface's name has now. Through a socket that is open: a process that has no more descriptors can ask too.
    fn ask_index(&self) -> io::Result<c_int> {
        // SAFETY: all bytes zero is a request.
        let mut request: libc::ifreq = unsafe { mem::zeroed() };
        // The last byte stays zero.
        let room = request.ifr_name.len() - 1;
        for (place, byte) in request.ifr_name.iter_mut().take(room).zip(self.name.bytes()) {
            *place = byte as libc::c_char;
        }
        // SAFETY: the request is alive, and of the kind that this call reads and writes.
        let asked = unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFINDEX, &raw mut request) };
        if asked < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has written this member.
        Ok(unsafe { request.ifr_ifru.ifru_ifindex })
    }

    fn forget_error(&self) {
        let (mut error, mut length): (c_int, _) = (0, mem::size_of::<c_int>() as libc::socklen_t);
        // SAFETY: both are alive, and the number is as long as is said.
        unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ERROR,
                (&raw mut error).cast(),
                &raw mut length,
            );
        }
    }
}

impl Source for RingSource {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn receive<'a>(&'a mut self, most: usize, arrivals: &mut Vec<Arrival<'a>>) -> Result<(), ForwardError> {
        self.release();
        let mut translation = None;
        while self.held < most.min(self.slot_count) {
            let position = self.first + self.held;
            let status = self.status(position).load(Ordering::Acquire);
            if status & libc::TP_STATUS_USER == 0 {
                break;
            }
            self.held += 1;
            let Some((frame, bytes, stamp)) = self.frame(position, status)? else { continue };
            self.counters.frames += 1;
            let translation = *translation.get_or_insert_with(|| self.clock.translation());
            // SAFETY: the slot is ours until `release`, which is called by the next `receive` and by nobody else; that needs this borrow to
            // have ended. Each slot is handed out once.
            let bytes = unsafe { std::slice::from_raw_parts_mut(frame.as_ptr(), bytes) };
            arrivals.push(Arrival { bytes, at: translation.instant_of(stamp) });
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), ForwardError> {
        match is_there(self.ask_index(), self.index) {
            // It may be down for a while. Until the error is read, the socket reports it at every look.
            Some(true) => self.forget_error(),
            Some(false) => return Err(ForwardError::Gone(self.name.clone())),
            // The error stays, and with it the next look.
            None => {}
        }
        Ok(())
    }

    fn counters(&mut self) -> SourceCounters {
        let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = mem::size_of_val(&statistics) as libc::socklen_t;
        // SAFETY: both are alive, and the structure is as long as is said.
        let read = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut length,
            )
        };
        if read == 0 {
            // The kernel starts at zero again after each look.
            self.counters.no_room += u64::from(statistics.tp_drops);
        }
        self.counters
    }
}

/// Whether an interface is there, by the index that its name has now. `None` if the system did not say.
fn is_there(asked: io::Result<c_int>, index: c_int) -> Option<bool> {
    match asked {
        Ok(now) => Some(now == index),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => Some(false),
        // No memory, or an interruption: that says nothing of the interface.
        Err(_) => None,
    }
}

/// Whether an interface has not taken one frame, and may take others: the frame is too long or malformed, there is no room or memory, or
/// the interface is down.
fn is_refusal(error: c_int) -> bool {
    matches!(error, libc::EMSGSIZE | libc::EINVAL | libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::ENETDOWN)
}

/// Frames that leave by an interface.
pub struct RawSink {
    name: String,
    socket: OwnedFd,
    // Kept between calls, so that their memory is.
    parts: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
}

// SAFETY: what the pointers in it point at is used only within a call of `send`.
unsafe impl Send for RawSink {}

/// Frames that one call takes.
const FRAMES_A_CALL: usize = 1024;

impl RawSink {
    /// Opens an interface.
    pub fn open(name: &str) -> Result<Self, ForwardError> {
        let index = index_of(name)?;
        let socket = packet_socket(name)?;
        bind(&socket, index, 0).map_err(|source| ForwardError::Open {
            interface: name.to_owned(),
            what: "the socket cannot be bound to it",
            source,
        })?;
        // Only root may have more than the system's limit; others get that limit.
        let larger = setsockopt(&socket, sockopt::SndBufForce, &SEND_BYTES);
        let _ = larger.or_else(|_| setsockopt(&socket, sockopt::SndBuf, &SEND_BYTES));
        Ok(RawSink { name: name.to_owned(), socket, parts: Vec::new(), messages: Vec::new() })
    }

    /// Whether there is room in the interface, after waiting a little.
    fn has_room(&self) -> bool {
        let mut polled = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
        poll(&mut polled, PollTimeout::from(SEND_PATIENCE_MILLIS)).is_ok_and(|ready| ready > 0)
    }

    /// Returns how many were taken, at least one unless there is an error.
    fn send_some(&mut self, frames: &[&[u8]]) -> io::Result<usize> {
        let frames = &frames[..frames.len().min(FRAMES_A_CALL)];
        self.parts.clear();
        let part = |frame: &&[u8]| libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
        self.parts.extend(frames.iter().map(part));
        self.messages.clear();
        for part in &mut self.parts {
            // SAFETY: all bytes zero is a message.
            let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            self.messages.push(message);
        }
        let count = self.messages.len() as u32;
        // SAFETY: messages, parts and frames are alive, and do not move before the call returns. The kernel only reads the frames.
        let sent = unsafe { libc::sendmmsg(self.socket.as_raw_fd(), self.messages.as_mut_ptr(), count, 0) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

impl Sink for RawSink {
    fn send(&mut self, mut frames: &[&[u8]]) -> Result<u64, ForwardError> {
        let (mut refused, mut may_wait) = (0, true);
        while !frames.is_empty() {
            match self.send_some(frames) {
                Ok(sent) => frames = &frames[sent..],
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // Once a call: others wait for the loop.
                    Some(libc::EAGAIN | libc::ENOBUFS) if may_wait => may_wait = self.has_room(),
                    Some(error) if is_refusal(error) => {
                        refused += 1;
                        frames = &frames[1..];
                    }
                    Some(libc::ENXIO | libc::ENODEV) => return Err(ForwardError::Gone(self.name.clone())),
                    _ => return Err(ForwardError::Send { interface: self.name.clone(), source: error }),
                },
            }
        }
        Ok(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_interface_that_is_not_there_is_gone() {
        let error = |number| Err(io::Error::from_raw_os_error(number));
        assert_eq!([is_there(Ok(7), 7), is_there(Ok(8), 7)], [Some(true), Some(false)]);
        assert_eq!([is_there(error(libc::ENODEV), 7), is_there(error(libc::ENXIO), 7)], [Some(false), Some(false)]);
        for number in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS, libc::EINTR] {
            assert_eq!(is_there(error(number), 7), None, "{number}");
        }
    }

    #[test]
    fn a_frame_that_there_is_no_memory_for_is_refused() {
        assert!(is_refusal(libc::ENOMEM) && is_refusal(libc::ENOBUFS));
        assert!(!is_refusal(libc::ENODEV) && !is_refusal(libc::ENXIO) && !is_refusal(libc::EBADF));
    }
}
