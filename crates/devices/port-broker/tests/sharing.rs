//! Processes that share an address: who receives what, how many fit, what is left behind, and what outlives what.

mod brokers;

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use brokers::{Brokers, marks, packet, receiver, send, wait_until};
use longhaul_port_broker::{Lease, LeaseError, PORT, PROCESSES, Refusal};
use nix::errno::Errno;
use nix::sys::socket::sockopt::UdpGroSegment;
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg, setsockopt};
use nix::sys::wait::{WaitPidFlag, waitpid};

#[test]
fn broker_child() {
    brokers::be_broker();
}

/// The loopback interface has one address of IPv6; tests that run at the same time have it one after another.
fn lease_when_free(brokers: &Brokers, address: &str) -> Lease {
    let start = Instant::now();
    loop {
        match brokers.ask(address) {
            Err(LeaseError::Refused { refusal: Refusal::Taken | Refusal::Orphaned, .. })
                if start.elapsed() < Duration::from_secs(60) =>
            {
                std::thread::sleep(Duration::from_millis(100));
            }
            result => return result.unwrap(),
        }
    }
}

#[test]
fn each_receives_what_is_for_its_part() {
    let brokers = Brokers::new("steer");
    for text in ["127.0.12.1", "::1"] {
        let address: IpAddr = text.parse().unwrap();
        let leases = [lease_when_free(&brokers, text), brokers.lease(text), brokers.lease(text)];
        let sockets = leases.each_ref().map(receiver);
        for socket in &sockets {
            assert_eq!(socket.local_addr().unwrap(), SocketAddr::new(address, PORT));
        }
        for part in 0..64 {
            send(address, part, part);
        }
        // Too short to say whom it is for.
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        UdpSocket::bind(any).unwrap().send_to(&[9; 5], (address, PORT)).unwrap();
        for (lease, socket) in leases.iter().zip(&sockets) {
            assert_eq!(marks(socket), [lease.part()], "{text}");
        }
        // Many datagrams of one call, handed over as they came, or one by one.
        for is_joined in [true, false] {
            for (lease, socket) in leases.iter().zip(&sockets) {
                setsockopt(socket, UdpGroSegment, &is_joined).unwrap();
                let call: Vec<u8> = (0..40).flat_map(|mark| packet(lease.part(), mark)).collect();
                let sender = UdpSocket::bind(any).unwrap();
                let (to, control) = (SocketAddr::new(address, PORT), [ControlMessage::UdpGsoSegments(&16)]);
                let to = Some(SockaddrStorage::from(to));
                sendmsg(sender.as_raw_fd(), &[IoSlice::new(&call)], &control, MsgFlags::empty(), to.as_ref()).unwrap();
            }
            for socket in &sockets {
                let mut buffer = [0; 2048];
                let sizes: Vec<_> = std::iter::from_fn(|| socket.recv(&mut buffer).ok()).collect();
                let expected = if is_joined { vec![640] } else { vec![16; 40] };
                assert_eq!(sizes, expected, "{text}");
            }
        }
    }
}

#[test]
fn sixty_three_fit_and_the_next_hears_of_the_limit() {
    let brokers = Brokers::new("full");
    let mut leases: Vec<Lease> = (0..PROCESSES).map(|_| brokers.lease("127.0.12.2")).collect();
    let error = brokers.ask("127.0.12.2").unwrap_err();
    assert!(matches!(error, LeaseError::Refused { refusal: Refusal::Full, .. }), "{error}");
    for part in ["63 processes", "4791", "127.0.12.2", "limit", "another address"] {
        assert!(error.to_string().contains(part), "{part:?} in {error}");
    }
    // What has arrived for one that leaves is not for the next.
    let address = "127.0.12.2".parse().unwrap();
    let left = leases.remove(40);
    let part = left.part();
    let others = receiver(&leases[7]);
    (0..100).for_each(|_| send(address, part, 1));
    send(address, leases[7].part(), 2);
    drop(left);
    wait_until("a part is free", || {
        send(address, part, 3);
        match brokers.ask("127.0.12.2") {
            Ok(next) => {
                assert_eq!(next.part(), part);
                let socket = receiver(&next);
                assert_eq!(marks(&socket), [], "something is left of the last owner");
                send(address, part, 4);
                assert_eq!(marks(&socket), [4]);
                true
            }
            Err(error) => {
                assert!(matches!(error, LeaseError::Refused { refusal: Refusal::Full, .. }), "{error}");
                false
            }
        }
    });
    assert_eq!(marks(&others), [2], "nobody else's packets have moved");
}

#[test]
fn a_broker_that_is_killed_leaves_everyone_who_has_a_part() {
    let brokers = Brokers::new("killed");
    let address = "127.0.12.3".parse().unwrap();
    let [one, two] = [brokers.lease("127.0.12.3"), brokers.lease("127.0.12.3")];
    brokers.kill();
    let (first, second) = (receiver(&one), receiver(&two));
    send(address, one.part(), 1);
    send(address, two.part(), 2);
    assert_eq!((marks(&first), marks(&second)), (vec![1], vec![2]));
    // Another one cannot join them, and says why. It serves at other addresses.
    let error = brokers.ask("127.0.12.3").unwrap_err();
    assert!(matches!(error, LeaseError::Refused { refusal: Refusal::Orphaned, .. }), "{error}");
    for part in ["killed", "127.0.12.3", "another address"] {
        assert!(error.to_string().contains(part), "{part:?} in {error}");
    }
    let elsewhere = brokers.lease("127.0.12.4");
    // A process that leaves moves nobody's packets.
    drop((one, first));
    send(address, two.part(), 3);
    assert_eq!(marks(&second), [3]);
    drop((two, second));
    assert!(brokers.ask("127.0.12.3").is_ok(), "the last of the old ones has left");
    drop(elsewhere);
}

#[test]
fn a_port_that_somebody_has_is_named() {
    let brokers = Brokers::new("taken");
    let taken = UdpSocket::bind(("127.0.12.5", PORT)).unwrap();
    let error = brokers.ask("127.0.12.5").unwrap_err();
    assert!(matches!(error, LeaseError::Refused { refusal: Refusal::Taken, .. }), "{error}");
    for part in ["4791", "127.0.12.5", "Soft-RoCE", "another user"] {
        assert!(error.to_string().contains(part), "{part:?} in {error}");
    }
    drop(taken);
    brokers.lease("127.0.12.5");
    for nowhere in ["192.0.2.1", "0.0.0.0", "224.0.0.1"] {
        let error = brokers.ask(nowhere).unwrap_err();
        assert!(matches!(error, LeaseError::Refused { refusal: Refusal::NotOurAddress, .. }), "{error}");
    }
}

#[test]
fn nothing_is_left_behind() {
    let brokers = Brokers::new("ends");
    let lease = brokers.lease("127.0.12.6");
    assert!(brokers.has_name());
    let process = brokers.process();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(brokers.process(), process, "it stays while somebody has a part");
    drop(lease);
    wait_until("the broker has ended", || brokers.processes().is_empty());
    // A process that ends gives up its memory, by which it was found, before its descriptors.
    wait_until("its name is free", || !brokers.has_name());
    wait_until("the port is free", || UdpSocket::bind(("127.0.12.6", PORT)).is_ok());
}

#[test]
fn the_program_does_not_notice_its_broker() {
    let brokers = Brokers::new("hidden");
    // A descriptor that programs started from here would have.
    let (reader, writer) = nix::unistd::pipe().unwrap();
    let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let lease = brokers.lease("127.0.12.7");
    let process = brokers.process();
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let words: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    assert_ne!(words[1], std::process::id().to_string(), "it is nobody's child here");
    assert_eq!(words[3], process.to_string(), "it has a session of its own");
    let any_child = waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL));
    assert_eq!(any_child, Err(Errno::ECHILD), "nothing is there to wait for");
    // The shell of the test's script may add its own.
    let environment = String::from_utf8(std::fs::read(format!("/proc/{process}/environ")).unwrap()).unwrap();
    assert!(
        environment.split('\0').all(|entry| !entry.starts_with("PATH=") && !entry.contains("CARGO")),
        "{environment}"
    );
    assert_eq!(std::fs::read_link(format!("/proc/{process}/fd/1")).unwrap().to_str(), Some("/dev/null"));
    drop(writer);
    assert_eq!(nix::unistd::read(&reader, &mut [0; 1]), Ok(0), "it has none of the program's descriptors");
    drop(lease);
    let after = std::fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(after <= before, "{after} descriptors, {before} before");
}

#[test]
fn a_program_that_is_no_broker_is_named() {
    let brokers = Brokers::new("wrong");
    let ask = |program: &str| {
        let error = Lease::ask(&brokers.name, Some(program.as_ref()), "127.0.12.8".parse().unwrap()).unwrap_err();
        assert!(matches!(error, LeaseError::NoBroker { .. }), "{error}");
        error.to_string()
    };
    let missing = ask("/nowhere/longhaul");
    assert!(missing.contains("/nowhere/longhaul") && missing.contains("No such file"), "{missing}");
    let wrong = ask("/bin/true");
    assert!(wrong.contains("/bin/true") && wrong.contains("ends at once"), "{wrong}");
    let none = Lease::ask(&brokers.name, None, "127.0.12.8".parse().unwrap()).unwrap_err();
    assert!(matches!(none, LeaseError::NoBroker { .. }), "{none}");
}

#[test]
fn many_ask_at_once_where_there_is_no_broker() {
    let brokers = Brokers::new("race");
    let ask = || brokers.lease("127.0.12.9");
    let leases: Vec<Lease> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut parts: Vec<u8> = leases.iter().map(Lease::part).collect();
    parts.sort_unstable();
    parts.dedup();
    assert_eq!(parts.len(), 16, "one broker has served all");
    brokers.process();
}

#[test]
fn sockets_of_a_lease_close_with_it() {
    let brokers = Brokers::new("close");
    let lease = brokers.lease("127.0.12.10");
    let copy: OwnedFd = lease.socket().unwrap();
    drop(lease);
    assert!(UdpSocket::from(copy).local_addr().is_ok(), "a copy is the caller's");
}
