//! How two ends find each other, and what is said when they do not.

use crate::ends;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ends::{device, pair, pattern};
use longhaul::{
    Accepting, CarrierError, ConnectError, Connecting, DeviceChoice, Endpoint, HandshakeError, ListenHandle, Listener,
    Meeting, Options, Towards, connect,
};
use longhaul_verbs::Mtu;

fn endpoint() -> Endpoint {
    let address = "127.0.0.1".parse().expect("an address");
    let DeviceChoice { name, udp, .. } = device();
    Endpoint::open(&name, Towards { local: address, peer: address, gid_index: None }, udp).expect("it opens")
}

#[test]
fn any_carrier_takes_the_handshake() {
    let (one, other) = (endpoint(), endpoint());
    let mut small = Options::default();
    small.mtu = Mtu::Bytes1024;
    let connecting = Connecting::new(&one, &Options::default(), &Meeting::default()).expect("it begins");
    let hello = connecting.hello().to_vec();
    let (accepting, answer) =
        Accepting::on_hello(&other, &small, &Meeting::default(), false, &hello).expect("it answers");
    let (one, info) = connecting.on_answer(&answer).expect("it is connected");
    // Written before the other end is ready.
    let written = one.write(pattern(50_000, 1));
    let other = accepting.on_info(&info).expect("it is connected");
    assert_eq!(other.receive(50_000).wait().expect("it comes").bytes(), pattern(50_000, 1));
    written.wait().expect("it was received");
    assert_eq!((one.mtu_bytes(), other.mtu_bytes()), (Some(1024), Some(1024)), "the smaller of both");
    assert!(hello.len() < 512 && answer.len() < 512 && info.len() < 512, "they are small");
}

#[test]
fn every_changed_or_missing_byte_of_a_message_is_an_error_or_harmless() {
    let (one, other) = (endpoint(), endpoint());
    let options = Options::default();
    let connecting = || Connecting::new(&one, &options, &Meeting::default()).expect("it begins");
    let hello = connecting().hello().to_vec();
    let accept = |hello: &[u8]| Accepting::on_hello(&other, &options, &Meeting::default(), false, hello);
    let (_, answer) = accept(&hello).expect("it answers");
    for length in 0..hello.len() {
        assert!(accept(&hello[..length]).is_err(), "{length} bytes of a hello");
    }
    for length in 0..answer.len() {
        assert!(connecting().on_answer(&answer[..length]).is_err(), "{length} bytes of an answer");
    }
    // Not every change can be seen (another queue pair's number); none may panic, or make it take more than it asked
    // for.
    for place in 0..answer.len() {
        let mut changed = answer.clone();
        changed[place] ^= 0x81;
        if let Ok((connection, _)) = connecting().on_answer(&changed) {
            assert!(connection.mtu_bytes() <= Some(4096));
        }
    }
    let mut version = hello;
    version[3] = 2;
    let refused = accept(&version).err().expect("another version");
    let reason = connecting().on_answer(&refused.to_refusal()).expect_err("it is refused").to_string();
    assert!(reason.contains("version 1") && reason.contains("version 2"), "{reason}");
}

#[test]
fn a_handle_leads_to_its_listener_and_to_no_other() {
    let options = Options::default();
    let listener = Listener::bind("0.0.0.0:0", device(), &options).expect("it listens");
    listener.require_token();
    let bytes = listener.handle().to_bytes();
    assert!(bytes.len() <= ListenHandle::BYTES_MAX);
    let handle = ListenHandle::from_bytes(&bytes).expect("a handle");
    let loopback = handle.addresses().filter(|address| address.ip().is_loopback()).count();
    assert!(loopback > 0, "{handle:?}");
    let connecting = connect(handle, device(), &options);
    let accepted = listener.accept().wait().expect("it accepts");
    let connection = connecting.wait().expect("it connects");
    let receiving = accepted.receive(10);
    connection.write("hello").wait().expect("it is written");
    assert_eq!(receiving.wait().expect("it comes").bytes(), b"hello");

    let port = listener.local_address().port();
    let without = connect(&format!("127.0.0.1:{port}"), device(), &options).wait();
    assert!(matches!(without, Err(ConnectError::Handshake(HandshakeError::NoToken))), "{without:?}");
    let text = listener.handle().to_string();
    // Kept: one that goes before the listener has seen that packets pass counts as refused.
    let _kept = connect(&text, device(), &options).wait().expect("the text of a handle does as well");
    let broken = connect(&text[..text.len() - 1], device(), &options).wait();
    assert!(matches!(broken, Err(ConnectError::Handle(_))), "{broken:?}");
    let elsewhere = Listener::bind("127.0.0.1:0", device(), &options).expect("it listens");
    let mut foreign = elsewhere.handle().to_bytes();
    // The other listener's handle, but this one's port: as if it had been started again.
    foreign[8..10].copy_from_slice(&port.to_be_bytes());
    let foreign = ListenHandle::from_bytes(&foreign).expect("a handle");
    let refused = connect(foreign, device(), &options).wait();
    let refused = refused.expect_err("another listener's token");
    assert!(matches!(refused, ConnectError::Handshake(HandshakeError::WrongToken)), "{refused:?}");
    let text = std::iter::successors(Some(&refused as &dyn std::error::Error), |error| error.source());
    assert!(text.into_iter().any(|error| error.to_string().contains("the listener refused the token")), "{refused}");
    assert_eq!(listener.refused_count(), 2);
}

#[test]
fn ends_with_different_schemes_are_told_both() {
    let options = |name| Options::with_scheme(name).expect("a scheme");
    let listener = Listener::bind("127.0.0.1:0", device(), &options("ec:mds:8,2")).expect("it listens");
    let refused = connect(listener.local_address(), device(), &options("sr:rto")).wait();
    let text = refused.expect_err("they differ").to_string();
    assert!(text.contains("sr:rto here, ec:mds:8,2 at the peer"), "{text}");
    let mut chunks = options("ec:mds:8,2");
    chunks.chunk_bytes = Some(8192);
    let mut others = chunks.clone();
    others.chunk_bytes = Some(16_384);
    let listener = Listener::bind("127.0.0.1:0", device(), &others).expect("it listens");
    let text = connect(listener.local_address(), device(), &chunks).wait().expect_err("they differ").to_string();
    assert!(text.contains("8192 bytes here, 16384 bytes at the peer"), "{text}");
    // One end says it, the other takes it.
    connect(listener.local_address(), device(), &options("ec:mds:8,2")).wait().expect("it connects");
}

#[test]
fn a_nat_is_named() {
    let (one, other) = (endpoint(), endpoint());
    let address = |text: &str| text.parse().expect("an address");
    let options = Options::default();
    let inside = Meeting { addresses: Some((address("10.0.0.2"), address("192.0.2.1"))), token: None };
    let outside = Meeting { addresses: Some((address("192.0.2.1"), address("198.51.100.7"))), token: None };
    let connecting = Connecting::new(&one, &options, &inside).expect("it begins");
    let refused = Accepting::on_hello(&other, &options, &outside, false, connecting.hello());
    let text = refused.err().expect("it is refused").to_string();
    assert!(text.contains("NAT") && text.contains("10.0.0.2") && text.contains("198.51.100.7"), "{text}");
}

#[test]
fn strangers_keep_nobody_waiting() {
    let options = Options::default();
    let listener = Listener::bind("127.0.0.1:0", device(), &options).expect("it listens");
    let address = listener.local_address();
    let _silent: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(address).expect("it connects")).collect();
    let mut loud = TcpStream::connect(address).expect("it connects");
    loud.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").expect("it is sent");
    let mut wrong = TcpStream::connect(address).expect("it connects");
    wrong.write_all(b"\x00\x00\x00\x05hello").expect("it is sent");
    wrong.set_read_timeout(Some(Duration::from_secs(5))).expect("a socket");
    let mut answer = [0; 4];
    wrong.read_exact(&mut answer).expect("a refusal");
    let begun = Instant::now();
    let connection = connect(address, device(), &options).wait().expect("it connects");
    let accepted = listener.accept().wait().expect("it accepts");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let receiving = accepted.receive(10);
    connection.write("hello").wait().expect("it is written");
    receiving.wait().expect("it comes");
}

#[test]
fn what_is_said_when_nobody_answers() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = closed.local_addr().expect("an address");
    drop(closed);
    let refused = connect(address, device(), &Options::default()).wait().expect_err("nobody is there");
    assert!(matches!(refused, ConnectError::Unreachable { .. }), "{refused:?}");

    let mut hasty = Options::default();
    hasty.connect_timeout = Duration::from_millis(200);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let refused = connect(silent.local_addr().expect("an address"), device(), &hasty).wait().expect_err("silence");
    assert!(matches!(refused, ConnectError::Carrier(CarrierError::TimedOut(_))), "{refused:?}");

    let refused = connect("127.0.0.1:1", "softnic:here", &hasty).wait().expect_err("no device");
    assert!(refused.to_string().contains("\"here\""), "{refused}");
    let refused = connect("nowhere", device(), &hasty).wait().expect_err("no port");
    assert!(matches!(refused, ConnectError::Resolve { .. }), "{refused:?}");
}

#[test]
fn a_listener_that_is_dropped_listens_no_more() {
    let listener = Listener::bind("127.0.0.1:0", device(), &Options::default()).expect("it listens");
    let address = listener.local_address();
    let waiting = listener.accept();
    let waiter = std::thread::spawn(move || waiting.wait());
    drop(listener);
    assert!(waiter.join().expect("it ends").is_err());
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn one_device_serves_many_connections() {
    let options = Options::default();
    let (one, other) = (endpoint(), endpoint());
    let listener = other.listen("127.0.0.1:0", &options).expect("it listens");
    let connecting: Vec<_> = (0..5).map(|_| one.connect(listener.local_address(), &options)).collect();
    let accepted: Vec<_> = (0..5).map(|_| listener.accept().wait().expect("it accepts")).collect();
    let connected: Vec<_> = connecting.into_iter().map(|pending| pending.wait().expect("it connects")).collect();
    let receiving: Vec<_> = accepted.iter().map(|connection| connection.receive(100_000)).collect();
    let written: Vec<_> = connected.iter().map(|connection| connection.write(pattern(100_000, 3))).collect();
    written.into_iter().for_each(|pending| assert!(pending.wait().is_ok()));
    receiving.into_iter().for_each(|pending| assert!(pending.wait().expect("it comes").bytes() == pattern(100_000, 3)));
}

#[test]
fn the_peers_end_is_noticed_although_nothing_is_under_way() {
    let (one, other) = pair(&Options::default());
    drop(other);
    let begun = Instant::now();
    while !one.is_over() {
        assert!(begun.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn whoever_waits_for_ever_is_served_too() {
    let mut options = Options::default();
    options.connect_timeout = Duration::MAX;
    let (one, other) = pair(&options);
    let written = one.write("hello");
    assert_eq!(other.receive(10).wait().expect("it comes").bytes(), b"hello");
    written.wait().expect("it was received");
}
