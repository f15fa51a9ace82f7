//! What somebody can do who reaches a listener's TCP port, or answers in a listener's place: nothing to others.

use crate::ends;

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use ends::device;
use ends::raw_handshake::{self as raw, Stranger, endpoint, path_bytes, with_field, with_sdr_field};
use longhaul::{Accepting, Connecting, HandshakeError, Listener, Meeting, Options, connect};
use nix::sys::socket::{SockaddrIn, getsockname};

fn silent(address: SocketAddr, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| TcpStream::connect(address).expect("it connects")).collect()
}

/// Connects with the listener's handle, and sends a message.
fn is_served(listener: &Listener, options: &Options) -> Duration {
    let begun = Instant::now();
    let connecting = connect(listener.handle(), device(), options);
    let connection = connecting.wait().expect("it connects");
    let accepted = listener.accept().wait().expect("it accepts");
    let took = begun.elapsed();
    let receiving = accepted.receive(10);
    connection.write("hello").wait().expect("it is written");
    assert_eq!(receiving.wait().expect("it comes").bytes(), b"hello");
    took
}

#[test]
fn silent_connections_shut_nobody_out() {
    let options = Options::default();
    let listener = Listener::bind("127.0.0.1:0", device(), &options).expect("it listens");
    listener.require_token();
    let silent = silent(listener.local_address(), 200);
    let took = is_served(&listener, &options);
    assert!(took < Duration::from_secs(2), "{took:?}");
    // All that are left are given up soon, and not only when somebody needs their place.
    let begun = Instant::now();
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(8))).expect("a socket");
        // The end of the stream, or a reset.
        assert!(!matches!(stream.read(&mut [0]), Ok(1..)), "nothing is said to it");
        assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    }
}

#[test]
fn one_byte_now_and_then_is_silence_too() {
    let options = Options::default();
    let listener = Listener::bind("127.0.0.1:0", device(), &options).expect("it listens");
    let mut slow = TcpStream::connect(listener.local_address()).expect("it connects");
    slow.write_all(&256_u32.to_be_bytes()).expect("it is sent");
    let begun = Instant::now();
    while slow.write_all(&[0]).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(6), "it may still send after {:?}", begun.elapsed());
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(begun.elapsed() > Duration::from_secs(1), "it has some time");
    is_served(&listener, &options);
}

/// Somewhere that never asked for anything.
fn bystander() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.77:0").expect("all of 127.0.0.0/8 is here");
    socket.set_nonblocking(true).expect("a socket");
    socket
}

/// Packets that it has got.
fn packets(socket: &UdpSocket) -> usize {
    std::iter::from_fn(|| socket.recv(&mut [0; 4096]).ok()).count()
}

fn hasty() -> Options {
    let mut options = Options::default();
    options.connect_timeout = Duration::from_secs(1);
    options
}

#[test]
fn packets_go_to_nobody_who_has_not_asked_for_them() {
    let (options, device_of_stranger) = (hasty(), endpoint(device()));
    let listener = Listener::bind("127.0.0.1:0", device(), &options).expect("it listens");
    let bystander = bystander();
    let elsewhere = path_bytes(bystander.local_addr().expect("an address"));

    // It says so from the beginning.
    let mut stranger = Stranger::new(listener.local_address(), &device_of_stranger, &options, None);
    stranger.send(&with_field(stranger.connecting.hello(), raw::PATH, &elsewhere));
    let refusal = stranger.receive().expect("a refusal");
    let refused = stranger.connecting.on_answer(&refusal).expect_err("it is refused").to_string();
    assert!(refused.contains("127.0.0.77") && refused.contains("127.0.0.1"), "{refused}");

    // It says so in the end, in one of the places or in both.
    for (in_path, in_queue_pair) in [(true, true), (true, false), (false, true)] {
        let mut stranger = Stranger::new(listener.local_address(), &device_of_stranger, &options, None);
        stranger.send(stranger.connecting.hello().to_vec().as_slice());
        let answer = stranger.receive().expect("an answer");
        let Stranger { stream, connecting } = stranger;
        let (_connection, mut info) = connecting.on_answer(&answer).expect("it is a good one");
        if in_path {
            info = with_field(&info, raw::PATH, &elsewhere);
        }
        if in_queue_pair {
            info = with_sdr_field(&info, raw::SDR_ADDRESS, &elsewhere);
        }
        let mut frame = (info.len() as u32).to_be_bytes().to_vec();
        frame.extend(info);
        (&stream).write_all(&frame).expect("it is sent");
        assert!(matches!((&stream).read(&mut [0]), Ok(0) | Err(_)), "the listener closes it");
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(packets(&bystander), 0);
    assert_eq!(listener.refused_count(), 4);
    is_served(&listener, &options);
}

#[test]
fn even_with_the_token_a_path_that_nobody_answers_gets_few_packets_and_no_connection() {
    let (options, device_of_stranger) = (hasty(), endpoint(device()));
    let listener = Listener::bind("127.0.0.1:0", device(), &options).expect("it listens");
    let bystander = bystander();
    let elsewhere = path_bytes(bystander.local_addr().expect("an address"));
    let token = Some(listener.handle().token());
    let mut stranger = Stranger::new(listener.local_address(), &device_of_stranger, &options, token);
    stranger.send(&with_field(stranger.connecting.hello(), raw::PATH, &elsewhere));
    let answer = stranger.receive().expect("an answer");
    let Stranger { stream, connecting } = stranger;
    let (_connection, info) = connecting.on_answer(&answer).expect("it is a good one");
    let info = with_sdr_field(&with_field(&info, raw::PATH, &elsewhere), raw::SDR_ADDRESS, &elsewhere);
    (&stream).write_all(&(info.len() as u32).to_be_bytes()).expect("it is sent");
    (&stream).write_all(&info).expect("it is sent");
    let accepted = listener.accept().wait_for(Duration::from_secs(3));
    assert!(accepted.is_err(), "nobody has answered there");
    let count = packets(&bystander);
    assert!((1..=12).contains(&count), "{count} packets in a second");
}

#[test]
fn a_stranger_does_not_choose_how_much_is_allocated() {
    let device_of_stranger = endpoint(device());
    for scheme in ["sr:nack", "ec:mds:32,8"] {
        let options = Options::with_scheme(scheme).expect("a scheme");
        let listener = Listener::bind("127.0.0.1:0", device(), &options).expect("it listens");
        for chunk_bytes in [u32::MAX, 1 << 30, 32 << 20, 128 << 10] {
            let mut greedy = options.clone();
            greedy.chunk_bytes = Some(chunk_bytes);
            let mut stranger = Stranger::new(listener.local_address(), &device_of_stranger, &greedy, None);
            stranger.send(stranger.connecting.hello().to_vec().as_slice());
            let refusal = stranger.receive().expect("a refusal");
            let refused = stranger.connecting.on_answer(&refusal).expect_err("it is refused").to_string();
            assert!(refused.contains(&chunk_bytes.to_string()) && refused.contains("65536"), "{refused}");
        }
        let mut stranger = Stranger::new(listener.local_address(), &device_of_stranger, &options, None);
        stranger.send(&with_field(stranger.connecting.hello(), raw::MESSAGE_BYTES_MAX, &1_u64.to_be_bytes()));
        let refusal = stranger.receive().expect("a refusal");
        let refused = stranger.connecting.on_answer(&refusal).expect_err("it is refused").to_string();
        assert!(refused.contains("longest message"), "{refused}");
    }
}

#[test]
fn who_answers_does_not_choose_how_much_is_allocated() {
    let (one, other) = (endpoint(device()), endpoint(device()));
    let options = Options::with_scheme("ec:mds:32,8").expect("a scheme");
    let connecting = || Connecting::new(&one, &options, &Meeting::default()).expect("it begins");
    let accepted = Accepting::on_hello(&other, &options, &Meeting::default(), false, connecting().hello());
    let answer = accepted.expect("it answers").1;
    let greedy = with_field(&answer, raw::CHUNK_BYTES, &(256_u32 << 20).to_be_bytes());
    let refused = connecting().on_answer(&greedy).expect_err("too large");
    assert!(matches!(refused, HandshakeError::ChunksTooLarge { bytes } if bytes == 256 << 20), "{refused:?}");
    let lies = [
        with_sdr_field(&answer, raw::SDR_WINDOW, &u32::MAX.to_be_bytes()),
        with_sdr_field(&answer, raw::SDR_WINDOW, &0_u32.to_be_bytes()),
        with_sdr_field(&answer, raw::SDR_MESSAGE_BYTES_MAX, &u64::MAX.to_be_bytes()),
        with_sdr_field(&answer, raw::SDR_MESSAGE_BYTES_MAX, &0_u64.to_be_bytes()),
        with_field(&answer, raw::MESSAGE_BYTES_MAX, &(1_u64 << 40).to_be_bytes()),
        with_field(&answer, raw::PATH, &path_bytes("127.0.0.1:53".parse().expect("an address"))),
    ];
    for (index, lie) in lies.iter().enumerate() {
        assert!(connecting().on_answer(lie).is_err(), "lie {index}");
    }
    connecting().on_answer(&answer).expect("the truth is believed");
}

#[test]
fn who_stops_in_the_middle_is_given_up() {
    let (options, device_of_stranger) = (hasty(), endpoint(device()));
    let listener = Listener::bind("127.0.0.1:0", device(), &options).expect("it listens");
    let mut strangers: Vec<_> = (0..40)
        .map(|_| {
            let mut stranger = Stranger::new(listener.local_address(), &device_of_stranger, &options, None);
            stranger.send(stranger.connecting.hello().to_vec().as_slice());
            stranger
        })
        .collect();
    // None of them goes on.
    let took = is_served(&listener, &options);
    assert!(took < Duration::from_secs(1), "{took:?}");
    for stranger in &mut strangers {
        while stranger.receive().is_some() {}
    }
    let begun = Instant::now();
    while listener.refused_count() < 40 {
        assert!(begun.elapsed() < Duration::from_secs(5), "{} of 40", listener.refused_count());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Addresses that begin with 127.77 at which this process has sockets, other than those of its listener's port. The
/// system's own table (/proc/net/udp) would not do: it may leave one out while other processes open and close theirs.
fn devices_at_77(port_of_listener: u16) -> usize {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("this process's descriptors");
    let numbers = descriptors.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
    let addresses = numbers.filter_map(|number| getsockname::<SockaddrIn>(number).ok());
    let devices =
        addresses.filter(|address| address.ip().octets()[..2] == [127, 77] && address.port() != port_of_listener);
    devices.map(|address| address.ip()).collect::<HashSet<_>>().len()
}

#[test]
fn a_stranger_who_comes_to_many_addresses_leaves_few_devices_behind() {
    let (options, device_of_stranger) = (hasty(), endpoint(device()));
    let listener = Listener::bind("0.0.0.0:0", device(), &options).expect("it listens");
    let port = listener.local_address().port();
    for index in 1..=60 {
        let to = SocketAddr::from(([127, 77, 0, index], port));
        let mut stranger = Stranger::new(to, &device_of_stranger, &options, None);
        stranger.send(stranger.connecting.hello().to_vec().as_slice());
        assert!(stranger.receive().is_some(), "an answer");
        if index == 1 {
            assert_eq!(devices_at_77(port), 1, "a device was opened");
        }
    }
    let begun = Instant::now();
    while devices_at_77(port) > 8 {
        assert!(begun.elapsed() < Duration::from_secs(5), "{} devices", devices_at_77(port));
        std::thread::sleep(Duration::from_millis(10));
    }
    is_served(&listener, &options);
}

#[test]
fn connections_that_nobody_accepted_and_that_are_over_keep_nobody_waiting() {
    let (mut options, device_of_stranger) = (Options::default(), endpoint(device()));
    options.connect_timeout = Duration::from_millis(500);
    let listener = Listener::bind("127.0.0.1:0", device(), &options).expect("it listens");
    let connect = || device_of_stranger.connect(listener.local_address(), &options).wait();
    // As many as may wait, and one more. All of them go.
    let waiting: Vec<_> = (0..400).map_while(|_| connect().ok()).collect();
    assert!(waiting.len() < 400, "too many connections wait to be accepted");
    drop(waiting);
    let begun = Instant::now();
    while connect().is_err() {
        assert!(begun.elapsed() < Duration::from_secs(8), "nobody can connect any more");
    }
}

#[test]
fn garbage_and_wrong_tokens_are_refused_and_others_served() {
    let (options, device_of_stranger) = (Options::default(), endpoint(device()));
    let listener = Listener::bind("127.0.0.1:0", device(), &options).expect("it listens");
    listener.require_token();
    let mut refused = 0;
    for length in [0_usize, 1, 3, 4, 100, 16_384] {
        let mut stranger = Stranger::new(listener.local_address(), &device_of_stranger, &options, None);
        stranger.send(&vec![0xa5; length]);
        let refusal = stranger.receive().expect("a refusal");
        assert!(stranger.connecting.on_answer(&refusal).is_err());
        refused += 1;
    }
    let mut endless = TcpStream::connect(listener.local_address()).expect("it connects");
    endless.write_all(&u32::MAX.to_be_bytes()).expect("it is sent");
    endless.set_read_timeout(Some(Duration::from_secs(2))).expect("a socket");
    assert!(matches!(endless.read(&mut [0]), Ok(0)), "it is not waited for");
    refused += 1;
    for token in [None, Some([0; 16]), Some(listener.handle().token().map(|byte| !byte))] {
        let mut stranger = Stranger::new(listener.local_address(), &device_of_stranger, &options, token);
        stranger.send(stranger.connecting.hello().to_vec().as_slice());
        let refusal = stranger.receive().expect("a refusal");
        let error = stranger.connecting.on_answer(&refusal).expect_err("it is refused");
        match token {
            None => assert!(matches!(error, HandshakeError::NoToken), "{error:?}"),
            Some(_) => assert!(matches!(error, HandshakeError::WrongToken), "{error:?}"),
        }
        refused += 1;
    }
    is_served(&listener, &options);
    assert_eq!(listener.refused_count(), refused);
}
