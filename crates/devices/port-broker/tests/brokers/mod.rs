//! Brokers in processes of their own: the test's own program started again. Each test has a name and addresses of its own.
//!
//! A test file that uses this has a test named `broker_child` that calls [`be_broker`]; in an ordinary run it does nothing.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longhaul_port_broker::{Bounds, Lease, LeaseError, PORT, serve};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::AcceptConn;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A name for a broker, and the program that is run to be it.
pub(crate) struct Brokers {
    pub(crate) name: String,
    program: PathBuf,
}

impl Brokers {
    pub(crate) fn new(test: &str) -> Brokers {
        let name = format!("longhaul-test-{test}-{}", std::process::id());
        let program = std::env::temp_dir().join(format!("{name}.sh"));
        let own = std::env::current_exe().unwrap();
        // The name makes it findable.
        let script = format!("#!/bin/sh\nexec '{}' --exact broker_child --nocapture \"$2\"\n", own.display());
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        Brokers { name, program }
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    pub(crate) fn ask(&self, address: &str) -> Result<Lease, LeaseError> {
        Lease::ask(&self.name, Some(&self.program), address.parse().unwrap())
    }

    #[track_caller]
    pub(crate) fn lease(&self, address: &str) -> Lease {
        self.ask(address).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Processes that are it.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let numbers = std::fs::read_dir("/proc").unwrap().flatten();
        let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_it = |number: &i32| {
            let words = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).any(|word| word == self.name.as_bytes())
        };
        numbers.filter(is_it).collect()
    }

    pub(crate) fn process(&self) -> i32 {
        let processes = self.processes();
        assert_eq!(processes.len(), 1, "one broker");
        processes[0]
    }

    pub(crate) fn kill(&self) {
        let process = nix::unistd::Pid::from_raw(self.process());
        nix::sys::signal::kill(process, nix::sys::signal::Signal::SIGKILL).unwrap();
        wait_until("the broker has gone", || self.processes().is_empty() && !self.has_name());
    }

    /// Whether somebody listens under the name.
    pub(crate) fn has_name(&self) -> bool {
        std::fs::read_to_string("/proc/net/unix")
            .unwrap()
            .lines()
            .any(|line| line.ends_with(&format!("@{}", self.name)))
    }
}

impl Drop for Brokers {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.program);
    }
}

/// What the process does that a test has started as broker; nothing in any other.
pub(crate) fn be_broker() {
    let standard_input = std::io::stdin();
    if getsockopt(&standard_input, AcceptConn).unwrap_or(false) {
        let listener = UnixListener::from(standard_input.as_fd().try_clone_to_owned().unwrap());
        serve(listener, Bounds::default()).unwrap();
        std::process::exit(0);
    }
}

#[track_caller]
pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "never so: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The receiving socket of a lease; it does not wait.
pub(crate) fn receiver(lease: &Lease) -> UdpSocket {
    let socket = UdpSocket::from(lease.socket().unwrap());
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Send a packet to a queue pair of a part, with a byte to know it by.
pub(crate) fn send(address: IpAddr, part: u8, mark: u8) {
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    UdpSocket::bind(any).unwrap().send_to(&packet(part, mark), (address, PORT)).unwrap();
}

pub(crate) fn packet(part: u8, mark: u8) -> [u8; 16] {
    let mut packet = [0; 16];
    (packet[5], packet[6], packet[15]) = (part << 2 | 3, 0x5a, mark);
    packet
}

/// The marks of what has arrived.
pub(crate) fn marks(socket: &UdpSocket) -> Vec<u8> {
    let mut buffer = [0; 2048];
    std::iter::from_fn(|| socket.recv(&mut buffer).ok().map(|bytes| buffer[bytes - 1])).collect()
}
