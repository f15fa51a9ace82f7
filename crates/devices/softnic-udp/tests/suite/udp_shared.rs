//! A port that several processes share, each with a part of the queue pair numbers: one call of a sender is for one part, and a
//! receiver to whom parts come mixed has the kernel join no more.

use crate::udp_ends;

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use longhaul_softnic::Config;
use longhaul_softnic_udp::sharing::queue_pair_numbers;
use longhaul_softnic_udp::{OpenError, UdpConfig, UdpDevice};
use longhaul_verbs::{
    Access, CompletionStatus, Gid, PathAttributes, QueuePairAttributes, QueuePairNumber, QueuePairOptions,
    QueuePairState, SendOperation, SendRequest, Transport,
};
use nix::sys::socket::sockopt::UdpGroSegment;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, getsockopt, recvmsg, sendmsg, setsockopt,
};
use udp_ends::{PSN, device, pair_on, pattern};

fn open_shared(socket: &UdpSocket, part: u8) -> UdpDevice {
    let address = socket.local_addr().unwrap().ip();
    let mut config = Config::new("shared", vec![address], [part; 32]);
    config.queue_pair_numbers = queue_pair_numbers(part);
    config.queue_pairs_max = 1 << 10;
    let sockets = vec![OwnedFd::from(socket.try_clone().unwrap())];
    UdpDevice::open_shared(config, UdpConfig::default(), sockets).unwrap()
}

/// Base transport header of a packet to a queue pair, and enough of the rest.
fn packet_to(number: u32) -> Vec<u8> {
    let mut packet = vec![0; 64];
    (packet[0], packet[2], packet[3]) = (0x64, 0xff, 0xff);
    packet[5..8].copy_from_slice(&number.to_be_bytes()[1..]);
    packet
}

#[test]
fn a_device_on_a_socket_of_somebody_else() {
    for (address, other) in [("127.0.12.21", "127.0.12.22"), ("::1", "::1")] {
        let socket = UdpSocket::bind((address, 0)).unwrap();
        let shared = open_shared(&socket, 9);
        assert_eq!(shared.udp_port(), socket.local_addr().unwrap().port());
        let (one, two) = pair_on(&shared, &device(other), Transport::ReliableConnection, 1 << 20);
        assert!(queue_pair_numbers(9).contains(&one.queue_pair.number().value()));
        let bytes = pattern(3, 1 << 20);
        one.region.copy_in(0, &bytes);
        one.post_write(1, 1 << 20, &two);
        assert_eq!(one.wait().status, CompletionStatus::Success);
        two.post_write(2, 1 << 19, &one);
        assert_eq!(two.wait().status, CompletionStatus::Success);
        assert!(two.region.to_vec(0..1 << 20) == bytes);
    }
}

#[test]
fn sockets_that_do_not_fit_are_refused() {
    let refused = |address: &str, sockets: Vec<OwnedFd>| {
        let config = Config::new("shared", vec![address.parse().unwrap()], [1; 32]);
        UdpDevice::open_shared(config, UdpConfig::default(), sockets).err().expect("sockets that do not fit")
    };
    let udp = || OwnedFd::from(UdpSocket::bind("127.0.12.23:0").unwrap());
    assert!(matches!(refused("127.0.12.24", vec![udp()]), OpenError::UnusableSockets { .. }));
    assert!(matches!(refused("127.0.12.23", vec![udp(), udp()]), OpenError::UnusableSockets { .. }));
    assert!(matches!(refused("127.0.12.23", Vec::new()), OpenError::UnusableSockets { .. }));
    let tcp = std::net::TcpListener::bind("127.0.12.23:0").unwrap();
    assert!(matches!(refused("127.0.12.23", vec![tcp.into()]), OpenError::System { .. }));
}

/// The kernel looks at the first datagram of a call only.
#[test]
fn one_call_is_for_one_part() {
    let receiver = UdpSocket::bind("127.0.12.25:0").unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    setsockopt(&receiver, UdpGroSegment, &true).unwrap();
    let sender = device("127.0.12.26");
    let verbs = sender.verbs();
    let domain = verbs.allocate_protection_domain().unwrap();
    let completions = verbs.create_completion_queue(64).unwrap();
    let options = QueuePairOptions::default();
    let transport = Transport::UnreliableDatagram;
    let queue_pair = domain.create_queue_pair(transport, &completions, &completions, &options).unwrap();
    let mut attributes = QueuePairAttributes::init_datagram(7);
    for next in [QueuePairAttributes::to_state(QueuePairState::ReadyToReceive), QueuePairAttributes::ready_to_send(PSN)]
    {
        queue_pair.modify(&attributes).unwrap();
        attributes = next;
    }
    queue_pair.modify(&attributes).unwrap();
    let region = domain.register_zeroed(1024, Access::LOCAL_WRITE).unwrap();
    let mut path = PathAttributes::to(Gid::from_ip(receiver.local_addr().unwrap().ip()));
    path.udp_port = receiver.local_addr().unwrap().port();
    let handle = domain.create_address_handle(&path).unwrap();
    let numbers = [0x04_0002, 0x04_0003, 0x07_ffff, 0x08_0002, 0x08_0003, 0x04_0002, 0xff_fffe, 0xff_fffd];
    let entry = [region.entry(0..1024)];
    let request = |&number: &u32| {
        SendRequest::new(1, SendOperation::Send, &entry).to(handle.destination(QueuePairNumber::new(number), 7))
    };
    let requests: Vec<_> = numbers.iter().map(request).collect();
    queue_pair.post_send(&requests).unwrap();
    let mut calls: Vec<Vec<u32>> = Vec::new();
    while calls.iter().map(Vec::len).sum::<usize>() < numbers.len() {
        let (bytes, segment_bytes) = receive_joined(&receiver);
        calls.push(bytes.chunks(segment_bytes).map(destination).collect());
    }
    let expected: [&[u32]; 4] = [&numbers[..3], &numbers[3..5], &numbers[5..6], &numbers[6..]];
    assert_eq!(calls, expected, "in order, and joined as far as the part is the same");
}

fn destination(datagram: &[u8]) -> u32 {
    u32::from_be_bytes([0, datagram[5], datagram[6], datagram[7]])
}

fn receive_joined(socket: &UdpSocket) -> (Vec<u8>, usize) {
    let mut buffer = vec![0; 1 << 16];
    let mut control = nix::cmsg_space!(i32);
    let mut parts = [IoSliceMut::new(&mut buffer)];
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty()).unwrap();
    let segment_bytes = message.cmsgs().unwrap().find_map(|message| match message {
        ControlMessageOwned::UdpGroSegments(bytes) => Some(bytes as usize),
        _ => None,
    });
    let bytes = message.bytes;
    buffer.truncate(bytes);
    (buffer, segment_bytes.unwrap_or(bytes))
}

/// As it happens when a network card joins what two senders' calls, or two queue pairs with one source port, have sent.
#[test]
fn a_receiver_of_mixed_parts_has_the_kernel_join_no_more() {
    let socket = UdpSocket::bind("127.0.12.27:0").unwrap();
    let shared = open_shared(&socket, 9);
    assert!(getsockopt(&socket, UdpGroSegment).unwrap());
    let joined = |numbers: &[u32]| {
        let packets: Vec<u8> = numbers.iter().flat_map(|&number| packet_to(number)).collect();
        let sender = UdpSocket::bind("127.0.12.28:0").unwrap();
        let to = SockaddrStorage::from(SocketAddr::new("127.0.12.27".parse::<IpAddr>().unwrap(), shared.udp_port()));
        let control = [ControlMessage::UdpGsoSegments(&64)];
        sendmsg(sender.as_raw_fd(), &[IoSlice::new(&packets)], &control, MsgFlags::empty(), Some(&to)).unwrap();
    };
    let refused = |expected: u64| {
        let start = Instant::now();
        let count =
            || shared.verbs().counters().iter().find(|counter| counter.name == "rx_icrc_encapsulated").map(|c| c.value);
        while count() != Some(expected) {
            assert!(start.elapsed() < Duration::from_secs(5), "{:?} of {expected}", count());
        }
    };
    let ours = queue_pair_numbers(9).start;
    joined(&[ours, ours + 1, ours + 2]);
    refused(3);
    assert!(getsockopt(&socket, UdpGroSegment).unwrap(), "all for one part");
    joined(&[ours, ours + 1, queue_pair_numbers(10).start]);
    refused(6);
    assert!(!getsockopt(&socket, UdpGroSegment).unwrap(), "joined for two parts");
    // It works without.
    let (one, two) = pair_on(&shared, &device("127.0.12.29"), Transport::ReliableConnection, 1 << 20);
    two.post_write(2, 1 << 20, &one);
    assert_eq!(two.wait().status, CompletionStatus::Success);
}
