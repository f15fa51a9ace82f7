//! The system calls for which there is no safe wrapper: filters of sockets, and descriptors that come with a message.
#![allow(unsafe_code, reason = "setsockopt with programs of the packet filter, and recvmsg with descriptors")]

use std::ffi::c_int;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::libc::{self, sock_filter, sock_fprog};

/// Reads the top six bits of the destination queue pair number in the base transport header, which the UDP header precedes. A
/// packet that is too short ends the program with 0.
const STEER: [sock_filter; 3] = [
    instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 5),
    instruction(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 2),
    instruction(libc::BPF_RET | libc::BPF_A, 0),
];

/// Takes nothing of any packet.
const DROP: [sock_filter; 1] = [instruction(libc::BPF_RET | libc::BPF_K, 0)];

/// `BPF_A` is 0x10 of the source of a return.
const fn instruction(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Have the kernel steer packets to the members of a group of sockets.
pub(crate) fn steer(member: &impl AsFd) -> io::Result<()> {
    attach(member, libc::SO_ATTACH_REUSEPORT_CBPF, &STEER)
}

/// Have the kernel drop what arrives for a socket.
pub(crate) fn drop_all(socket: &impl AsFd) -> io::Result<()> {
    attach(socket, libc::SO_ATTACH_FILTER, &DROP)
}

/// And drop it no more.
pub(crate) fn drop_nothing(socket: &impl AsFd) -> io::Result<()> {
    let unused: c_int = 0;
    set(socket, libc::SO_DETACH_FILTER, &unused)
}

fn attach(socket: &impl AsFd, option: c_int, program: &'static [sock_filter]) -> io::Result<()> {
    let program = sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    set(socket, option, &program)
}

fn set<T>(socket: &impl AsFd, option: c_int, value: &T) -> io::Result<()> {
    let (raw, length) = (socket.as_fd().as_raw_fd(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the value is there until the call returns, and so is the program that it may point to; the kernel only reads.
    let result = unsafe { libc::setsockopt(raw, libc::SOL_SOCKET, option, (&raw const *value).cast(), length) };
    Errno::result(result)?;
    Ok(())
}

/// Room for control messages with as many descriptors as a message can have.
#[repr(C, align(8))]
struct Control([u8; 2048]);

/// What came in one message.
pub(crate) struct Message {
    pub(crate) bytes: usize,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// This process could take no more descriptors.
    pub(crate) is_cut: bool,
}

/// Receive what is there, and the descriptors with it. It does not wait.
pub(crate) fn receive(socket: &impl AsFd, buffer: &mut [u8]) -> Result<Message, Errno> {
    let mut control = Control([0; 2048]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: all zeroes is a header without anything.
    let mut header: libc::msghdr = unsafe { zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    (header.msg_control, header.msg_controllen) = ((&raw mut control).cast(), size_of::<Control>());
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: the header points to live values above and to the buffer, as long as they are.
    let received = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut header, flags) };
    let bytes = Errno::result(received)? as usize;
    let mut descriptors = Vec::new();
    // SAFETY: the kernel has filled the control buffer and set its length; the macros walk inside of that.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(&raw const header);
        while !message.is_null() {
            let is_rights = ((*message).cmsg_level, (*message).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            let data_bytes = (*message).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            let data = libc::CMSG_DATA(message).cast::<c_int>();
            for index in 0..if is_rights { data_bytes / size_of::<c_int>() } else { 0 } {
                // Each was just made for this process, and nobody else has it.
                descriptors.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
            }
            message = libc::CMSG_NXTHDR(&raw const header, message);
        }
    }
    Ok(Message { bytes, descriptors, is_cut: header.msg_flags & libc::MSG_CTRUNC != 0 })
}
