//! What the two ends exchange over TCP before the first message, as the pingpong programs of rdma-core do it:
//!
//! ```text
//!   client → server    LID:QPN:PSN:GID    in hexadecimal, with the zero byte at its end: 52 bytes
//!   server → client    LID:QPN:PSN:GID    when its queue pair is connected
//!   client → server    done               with its zero byte
//! ```
//!
//! Then both close the connection. With RoCE there are no LIDs, and those programs ignore the field. It carries the UDP
//! port of a software RNIC that could not have RoCE's own, so that two ends of ours can do with one address; nobody
//! else can reach such a port anyway.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use longhaul_verbs::{Gid, QueuePairNumber};

use crate::error::PerfError;

/// An address as text, with its zero byte.
const ADDRESS_BYTES: usize = 52;
/// What the client says at the end.
const DONE: &[u8; 5] = b"done\0";
/// How long the other end may take for each of its words.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where a queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Of InfiniBand; of RoCE 0, or the UDP port of a software RNIC.
    pub lid: u16,
    /// Its number.
    pub queue_pair: QueuePairNumber,
    /// The first packet sequence number that it sends.
    pub psn: u32,
    /// Its address.
    pub gid: Gid,
}

impl Address {
    fn to_bytes(self) -> [u8; ADDRESS_BYTES] {
        let (number, psn) = (self.queue_pair.value(), self.psn & 0xff_ffff);
        let text = format!("{:04x}:{number:06x}:{psn:06x}:{:032x}\0", self.lid, u128::from_be_bytes(self.gid.0));
        text.into_bytes().try_into().expect("each field has its width")
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes.split(|byte| *byte == 0).next()?).ok()?;
        let mut fields = text.split(':');
        let lid = u16::from_str_radix(fields.next()?, 16).ok()?;
        let number = u32::from_str_radix(fields.next()?, 16).ok().filter(|number| *number < 1 << 24)?;
        let psn = u32::from_str_radix(fields.next()?, 16).ok().filter(|psn| *psn < 1 << 24)?;
        let gid = fields.next().filter(|digits| digits.len() == 32)?;
        let gid = Gid(u128::from_str_radix(gid, 16).ok()?.to_be_bytes());
        fields.next().is_none().then_some(Address { lid, queue_pair: QueuePairNumber::new(number), psn, gid })
    }

    /// Says it as those programs do.
    pub fn to_line(self, whose: &str) -> String {
        let Address { lid, queue_pair, psn, gid } = self;
        let whose = format!("{whose} address:");
        format!("  {whose:<15} LID {lid:#06x}, QPN {:#08x}, PSN {psn:#08x}, GID {gid:?}", queue_pair.value())
    }
}

/// The client's half: gives ours, takes theirs.
pub(super) fn ask(stream: &mut TcpStream, ours: Address) -> Result<Address, PerfError> {
    prepare(stream)?;
    send(stream, &ours.to_bytes())?;
    let theirs = receive_address(stream)?;
    send(stream, DONE)?;
    Ok(theirs)
}

/// The first part of the server's half.
pub(super) fn listen(stream: &mut TcpStream) -> Result<Address, PerfError> {
    prepare(stream)?;
    receive_address(stream)
}

/// The second, when the queue pair is connected. It ends when the client is connected too, or about to be.
pub(super) fn answer(stream: &mut TcpStream, ours: Address) -> Result<(), PerfError> {
    send(stream, &ours.to_bytes())?;
    let mut done = [0; DONE.len()];
    receive(stream, &mut done, "\"done\"")?;
    match &done {
        DONE => Ok(()),
        other => Err(PerfError::Failed(format!(
            "expected \"done\" from the client, got {:?}",
            other.escape_ascii().to_string()
        ))),
    }
}

fn prepare(stream: &TcpStream) -> Result<(), PerfError> {
    let set = stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_nodelay(true));
    set.map_err(|error| PerfError::failed("cannot use the TCP connection", error))
}

/// In one piece: those programs take what one `read` gives them.
fn send(stream: &mut TcpStream, bytes: &[u8]) -> Result<(), PerfError> {
    stream.write_all(bytes).map_err(|error| PerfError::failed("the other end is gone", error))
}

fn receive(stream: &mut TcpStream, bytes: &mut [u8], expected: &str) -> Result<(), PerfError> {
    let received = stream.read_exact(bytes);
    received.map_err(|error| {
        let why = match error.kind() {
            // What the system calls "try again".
            ErrorKind::WouldBlock => format!("for {} s", PATIENCE.as_secs()),
            ErrorKind::UnexpectedEof => "and has closed the connection".to_owned(),
            _ => format!("({error})"),
        };
        PerfError::Failed(format!(
            "expected {expected} from the other end, which said nothing more {why}; is it one of rdma-core's pingpong programs, or \
             longhaul perf pingpong?"
        ))
    })
}

fn receive_address(stream: &mut TcpStream) -> Result<Address, PerfError> {
    let mut bytes = [0; ADDRESS_BYTES];
    receive(stream, &mut bytes, "its address")?;
    let Some(address) = Address::from_bytes(&bytes) else {
        return Err(PerfError::Failed(format!(
            "expected an address as LID:QPN:PSN:GID, got \"{}\"; is the other end one of rdma-core's pingpong programs, or \
             longhaul perf pingpong?",
            bytes.escape_ascii()
        )));
    };
    if address.gid == Gid::default() {
        return Err(PerfError::Failed(
            "the other end has sent no GID, without which RoCE finds nobody: start it with -g INDEX, a row of its GID table \
             (`ibv_devinfo -v` or `longhaul devices` there lists the rows)"
                .to_owned(),
        ));
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Address {
        let gid = Gid::from("192.0.2.1".parse::<std::net::Ipv4Addr>().expect("an address"));
        Address { lid: 0, queue_pair: QueuePairNumber::new(0x11), psn: 0x00ab_cdef, gid }
    }

    #[test]
    fn addresses_are_written_as_rdma_core_writes_them() {
        let text = b"0000:000011:abcdef:00000000000000000000ffffc0000201\0";
        assert_eq!(&example().to_bytes(), text);
        assert_eq!(Address::from_bytes(text), Some(example()));
        let line = "  local address:  LID 0x0000, QPN 0x000011, PSN 0xabcdef, GID ::ffff:192.0.2.1";
        assert_eq!(example().to_line("local"), line);
    }

    #[test]
    fn an_end_that_says_nothing_is_told_in_words() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut stream = TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_millis(1))).expect("a time-out");
        let silent = receive(&mut stream, &mut [0], "its address").expect_err("nothing was sent").to_string();
        assert!(silent.contains("nothing more for 20 s") && !silent.contains("os error"), "{silent}");
        drop(listener.accept());
        let closed = receive(&mut stream, &mut [0], "its address").expect_err("nothing was sent").to_string();
        assert!(closed.contains("closed the connection") && closed.contains("pingpong programs"), "{closed}");
    }

    #[test]
    fn other_words_are_no_addresses() {
        for text in [
            "{\"Hello\":{\"version\":2}}",
            "0000:000011:abcdef",
            "0000:1000000:abcdef:00000000000000000000ffffc0000201",
            "0000:000011:abcdef:0000000000000000ffffc0000201",
            "0000:000011:abcdef:00000000000000000000ffffc0000201:0",
            "",
        ] {
            assert_eq!(Address::from_bytes(text.as_bytes()), None, "{text}");
        }
    }
}
