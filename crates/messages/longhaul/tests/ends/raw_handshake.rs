//! The handshake as a stranger makes it: messages of a real end, with fields changed, on a TCP connection of its own.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use longhaul::{Connecting, DeviceChoice, Endpoint, Meeting, Options, Towards};

/// Tags of the handshake's messages.
pub(crate) const PATH: u16 = 4;
pub(crate) const CHUNK_BYTES: u16 = 6;
pub(crate) const MESSAGE_BYTES_MAX: u16 = 7;
pub(crate) const QUEUE_PAIR: u16 = 12;
/// Tags of the queue pair's info in them.
pub(crate) const SDR_ADDRESS: u16 = 2;
pub(crate) const SDR_WINDOW: u16 = 5;
pub(crate) const SDR_MESSAGE_BYTES_MAX: u16 = 8;

pub(crate) fn endpoint(choice: DeviceChoice) -> Endpoint {
    let address = "127.0.0.1".parse().expect("an address");
    Endpoint::open(&choice.name, Towards { local: address, peer: address, gid_index: None }, choice.udp)
        .expect("it opens")
}

/// The same message with another value in one of its fields.
pub(crate) fn with_field(message: &[u8], tag: u16, value: &[u8]) -> Vec<u8> {
    let (mut changed, mut rest, mut count) = (message[..4].to_vec(), &message[4..], 0);
    while !rest.is_empty() {
        let length = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
        let (field, after) = rest.split_at(4 + length);
        if u16::from_be_bytes([field[0], field[1]]) == tag {
            changed.extend(tag.to_be_bytes());
            changed.extend((value.len() as u16).to_be_bytes());
            changed.extend(value);
            count += 1;
        } else {
            changed.extend(field);
        }
        rest = after;
    }
    assert_eq!(count, 1, "the message has the field once");
    changed
}

pub(crate) fn field(message: &[u8], tag: u16) -> Vec<u8> {
    let mut rest = &message[4..];
    while !rest.is_empty() {
        let (field, after) = rest.split_at(4 + usize::from(u16::from_be_bytes([rest[2], rest[3]])));
        if u16::from_be_bytes([field[0], field[1]]) == tag {
            return field[4..].to_vec();
        }
        rest = after;
    }
    panic!("the message has no field {tag}")
}

/// With another value in a field of the queue pair's info.
pub(crate) fn with_sdr_field(message: &[u8], tag: u16, value: &[u8]) -> Vec<u8> {
    with_field(message, QUEUE_PAIR, &with_field(&field(message, QUEUE_PAIR), tag, value))
}

/// A path as both kinds of fields have it.
pub(crate) fn path_bytes(address: SocketAddr) -> Vec<u8> {
    let IpAddr::V4(v4) = address.ip() else { panic!("an IPv4 address") };
    [&v4.to_ipv6_mapped().octets()[..], &address.port().to_be_bytes()].concat()
}

/// A stranger's TCP connection to a listener.
pub(crate) struct Stranger {
    pub(crate) stream: TcpStream,
    pub(crate) connecting: Connecting,
}

impl Stranger {
    pub(crate) fn new(to: SocketAddr, endpoint: &Endpoint, options: &Options, token: Option<[u8; 16]>) -> Self {
        let stream = TcpStream::connect(to).expect("it connects");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
        let addresses = [stream.local_addr(), stream.peer_addr()].map(|address| address.expect("an address").ip());
        let meeting = Meeting { addresses: Some(addresses.into()), token };
        Stranger { stream, connecting: Connecting::new(endpoint, options, &meeting).expect("it begins") }
    }

    pub(crate) fn send(&mut self, message: &[u8]) {
        self.stream.write_all(&(message.len() as u32).to_be_bytes()).expect("it is sent");
        self.stream.write_all(message).expect("it is sent");
    }

    /// The next message, or nothing if the listener closes the connection.
    pub(crate) fn receive(&mut self) -> Option<Vec<u8>> {
        read_message(&self.stream)
    }
}

/// Relays the handshake of one connection, each message changed; the address at which to connect.
pub(crate) fn relay(to: SocketAddr, change: impl Fn(Vec<u8>) -> Vec<u8> + Copy + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        let (one, _) = listener.accept().expect("somebody connects");
        let other = TcpStream::connect(to).expect("it connects");
        let pass = move |from: TcpStream, to: TcpStream| {
            while let Some(message) = read_message(&from) {
                let message = change(message);
                let frame = [&(message.len() as u32).to_be_bytes()[..], &message].concat();
                if (&to).write_all(&frame).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        };
        let (from, back) = (one.try_clone().expect("a socket"), other.try_clone().expect("a socket"));
        let there = thread::spawn(move || pass(from, other));
        pass(back, one);
        there.join().expect("it ends");
    });
    address
}

/// Which message it is: a hello is 1, an answer 2, an info 3.
pub(crate) fn kind(message: &[u8]) -> u8 {
    message[8]
}

fn read_message(mut stream: &TcpStream) -> Option<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut message = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut message).ok()?;
    Some(message)
}
