//! Questions to the kernel on a netlink socket: one request, one answer. No rights are needed and nothing is changed.
//!
//! A message is a header, a header of its family and attributes; an attribute is `{length: u16, kind: u16, value}`,
//! padded to four bytes, and may hold attributes itself. Numbers are in the byte order of the machine.

use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::libc;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

const HEADER_BYTES: usize = 16;
/// The kernel answers within the call that asks; this is for the day that it does not.
const ANSWER_SECONDS_MAX: i64 = 1;
const ANSWER_BYTES_MAX: usize = 1 << 16;
/// Says of an attribute's kind that the value is attributes.
const NESTED: u16 = libc::NLA_F_NESTED as u16;
const KIND_MASK: u16 = libc::NLA_TYPE_MASK as u16;

/// A socket to ask with.
pub(crate) struct Client {
    socket: OwnedFd,
}

impl Client {
    /// A socket to one of the kernel's parts.
    pub(crate) fn connect(protocol: SockProtocol) -> nix::Result<Client> {
        let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::seconds(ANSWER_SECONDS_MAX))?;
        Ok(Client { socket })
    }

    /// Ask, and return the attributes of the answer; `None` when the kernel refuses.
    pub(crate) fn ask(&self, message_type: u16, family_header: &[u8], attributes: &[u8]) -> Option<Vec<u8>> {
        let length = u32::try_from(HEADER_BYTES + family_header.len() + attributes.len()).ok()?;
        let mut request = Vec::new();
        request.extend(length.to_ne_bytes());
        request.extend(message_type.to_ne_bytes());
        request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
        // Sequence number and sender: there is one request at a time, and the kernel knows the socket.
        request.extend([0; 8]);
        request.extend(family_header);
        request.extend(attributes);
        let descriptor = self.socket.as_raw_fd();
        sendto(descriptor, &request, &NetlinkAddr::new(0, 0), MsgFlags::empty()).ok()?;
        let mut answer = vec![0; ANSWER_BYTES_MAX];
        let length = recv(descriptor, &mut answer, MsgFlags::empty()).ok()?;
        answer.truncate(length);
        attributes_of(&answer, family_header.len()).map(<[u8]>::to_vec)
    }
}

/// The attributes of an answer, unless it is an error or cut short.
fn attributes_of(answer: &[u8], family_header_bytes: usize) -> Option<&[u8]> {
    let length = number(answer)? as usize;
    let message_type = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    if message_type == libc::NLMSG_ERROR as u16 {
        return None;
    }
    answer.get(HEADER_BYTES + family_header_bytes..length)
}

/// A number of 32 bits that a value begins with.
pub(crate) fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(value.get(..4)?.try_into().ok()?))
}

/// An attribute.
pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    // Values here are an interface's name and what holds it: far below 64 KiB.
    let length = (4 + value.len()) as u16;
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// An attribute that holds attributes.
pub(crate) fn nest(kind: u16, attributes: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, attributes)
}

/// Text as the kernel takes it, with a zero at the end.
pub(crate) fn text(kind: u16, text: &str) -> Vec<u8> {
    attribute(kind, &[text.as_bytes(), &[0]].concat())
}

/// Kind and value of each attribute in a row; ends at the first that does not fit.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?) & KIND_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The first attribute of a kind.
pub(crate) fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_are_written() {
        let bytes = [text(2, "eth0"), nest(7, &attribute(1, &[9]))].concat();
        let expected: [(u16, &[u8]); 2] = [(2, b"eth0\0"), (7, &attribute(1, &[9]))];
        assert_eq!(attributes(&bytes).collect::<Vec<_>>(), expected);
        assert_eq!(find(find(&bytes, 7).unwrap(), 1), Some(&[9][..]));
        assert_eq!(find(&bytes, 3), None);
    }

    #[test]
    fn attributes_that_do_not_fit_end_the_list() {
        assert_eq!(attributes(&[]).count(), 0);
        let header = |length: u16| [length.to_ne_bytes(), 1_u16.to_ne_bytes()].concat();
        assert_eq!(attributes(&header(2)).count(), 0, "shorter than its own header");
        assert_eq!(attributes(&[header(200), vec![5]].concat()).count(), 0, "longer than the message");
        assert_eq!(attributes(&header(4)).count(), 1, "empty");
    }

    #[test]
    fn an_error_is_no_answer() {
        let mut answer = vec![0; 36];
        answer[..4].copy_from_slice(&36_u32.to_ne_bytes());
        answer[4..6].copy_from_slice(&(libc::NLMSG_ERROR as u16).to_ne_bytes());
        assert_eq!(attributes_of(&answer, 4), None);
        answer[4..6].copy_from_slice(&21_u16.to_ne_bytes());
        assert_eq!(attributes_of(&answer, 4).map(<[u8]>::len), Some(16));
        assert_eq!(attributes_of(&answer[..30], 4), None, "cut short");
    }
}
