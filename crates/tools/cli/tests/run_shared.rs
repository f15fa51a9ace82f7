//! Several programs of `longhaul run` on one address: they talk to each other, 63 fit, and they survive their broker and each other.
//! With programs of Debian's packages ibverbs-utils and perftest; one that is not installed is skipped, loudly. Each test has a
//! broker of its own, by its name.
#![cfg(target_arch = "x86_64")]

use std::net::UdpSocket;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A program that takes longer is killed, and the test fails.
const PATIENCE_SECONDS: &str = "40";

/// Programs that share a broker, and nothing with other tests.
struct Shared {
    name: String,
}

impl Shared {
    fn new(test: &str) -> Shared {
        Shared { name: format!("longhaul-test-run-{test}-{}", std::process::id()) }
    }

    fn run(&self, address: &str, program: &[&str]) -> Command {
        let own = Path::new(env!("CARGO_BIN_EXE_longhaul"));
        let library = own.parent().expect("a folder").join("deps").join("liblonghaul_verbs_dropin.so");
        let mut command = Command::new(own);
        command.env("LONGHAUL_VERBS_LIBRARY", library).env("LONGHAUL_RUN_BROKER_NAME", &self.name);
        command.env_remove("LD_PRELOAD").env_remove("LONGHAUL_RUN_BROKER");
        command.args(["run", "-d", address, "--", "timeout", "-k", "1", PATIENCE_SECONDS]).args(program);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
        command
    }

    fn start(&self, address: &str, program: &[&str]) -> Running {
        Running(Some(self.run(address, program).spawn().expect("it starts")))
    }

    /// The broker's process.
    fn broker(&self) -> Option<i32> {
        let entries = std::fs::read_dir("/proc").expect("a folder").flatten();
        let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let is_it = |number: &i32| {
            let words = std::fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
            words.split(|byte| *byte == 0).any(|word| word == self.name.as_bytes())
        };
        let brokers: Vec<i32> = numbers.filter(is_it).collect();
        assert!(brokers.len() <= 1, "{} brokers", brokers.len());
        brokers.first().copied()
    }

    fn has_name(&self) -> bool {
        let names = std::fs::read_to_string("/proc/net/unix").expect("a file of the kernel");
        names.lines().any(|line| line.ends_with(&format!("@{}", self.name)))
    }

    #[track_caller]
    fn expect_nothing_left(&self, address: &str) {
        wait_until("the broker has ended", || self.broker().is_none() && !self.has_name());
        // A process that ends gives up its memory, by which it was found, before its descriptors.
        wait_until("the port is free", || UdpSocket::bind((address, 4791)).is_ok());
    }
}

/// A program that is ended with the test.
struct Running(Option<Child>);

impl Running {
    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("it is there until it is waited for")
    }

    fn output(mut self) -> Output {
        self.0.take().expect("it is there").wait_with_output().expect("it ends")
    }

    /// End the program, which `timeout` has started.
    fn kill(&mut self, signal: Signal) {
        let timeout = self.child().id();
        let programs = std::fs::read_to_string(format!("/proc/{timeout}/task/{timeout}/children")).unwrap_or_default();
        for program in programs.split_whitespace().filter_map(|number| number.parse().ok()) {
            let _ = kill(Pid::from_raw(program), signal);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.is_some() {
            self.kill(Signal::SIGKILL);
            let _ = self.child().kill();
            let _ = self.child().wait();
        }
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    if !found {
        eprintln!("SKIPPED: {program} is not installed (Debian packages ibverbs-utils and perftest)");
    }
    found
}

#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(30), "never so: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A TCP port that nobody has at the moment.
fn free_port() -> String {
    let listener = std::net::TcpListener::bind("0.0.0.0:0").expect("a free port");
    listener.local_addr().expect("its address").port().to_string()
}

fn listens(port: &str) -> bool {
    let port: u16 = port.parse().expect("a port");
    let is_it = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().unwrap_or_default().ends_with(&format!(":{port:04X}")) && words.nth(1) == Some("0A")
    };
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .any(|table| std::fs::read_to_string(table).is_ok_and(|table| table.lines().any(is_it)))
}

/// A program as server and as client, both on one device.
fn pair(shared: &Shared, address: &str, program: &[&str]) -> [Running; 2] {
    let port = free_port();
    let words = [program, &["-p", &port]].concat();
    let server = shared.start(address, &words);
    wait_until("the server listens", || listens(&port));
    // What they say on TCP is between addresses of IPv4.
    let host = if address.contains(':') { "127.0.0.1" } else { address };
    let client = shared.start(address, &[&words[..], &[host]].concat());
    [server, client]
}

#[track_caller]
fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn two_programs_on_one_address() {
    let shared = Shared::new("two");
    for (program, words) in [
        (&["ibv_rc_pingpong", "-g", "0", "-n", "50", "-c"][..], "50 iters in "),
        (&["ibv_ud_pingpong", "-g", "0", "-n", "50", "-s", "1000"], "50 iters in "),
        (&["ib_write_bw", "-F", "-n", "200", "-s", "65536", "-q", "4"], "65536"),
        (&["ib_send_bw", "-F", "-n", "200", "-s", "4000", "-c", "UC", "-b"], "4000"),
        (&["ib_read_bw", "-F", "-n", "50", "-s", "100000"], "100000"),
    ] {
        if !is_installed(program[0]) {
            continue;
        }
        for output in pair(&shared, "127.0.12.71", program).map(Running::output) {
            let text = said(&output);
            assert!(text.contains(words), "{program:?}: {text}");
        }
    }
    shared.expect_nothing_left("127.0.12.71");
}

#[test]
fn two_programs_on_one_address_of_ipv6() {
    let shared = Shared::new("ipv6");
    for (program, words) in [
        (&["ibv_rc_pingpong", "-g", "0", "-n", "50", "-c"][..], "50 iters in "),
        (&["ib_write_bw", "-F", "-n", "200"], "65536"),
    ] {
        if !is_installed(program[0]) {
            continue;
        }
        // The loopback interface has one address of IPv6, and another test may have it now.
        wait_until("::1 is free", || UdpSocket::bind("[::1]:4791").is_ok() || shared.broker().is_some());
        for output in pair(&shared, "::1", program).map(Running::output) {
            let text = said(&output);
            assert!(text.contains(words), "{program:?}: {text}");
        }
    }
}

#[test]
fn sixty_three_programs_fit_and_the_next_is_told_of_the_limit() {
    if !is_installed("ibv_asyncwatch") || !is_installed("ibv_devinfo") {
        return;
    }
    let (shared, address) = (Shared::new("full"), "127.0.12.72");
    // Opens the device and waits.
    let watch = || shared.start(address, &["ibv_asyncwatch"]);
    let mut programs: Vec<Running> = (0..63).map(|_| watch()).collect();
    let info = || shared.run(address, &["ibv_devinfo"]).output().expect("it runs");
    let mut text = String::new();
    wait_until("all parts are taken", || {
        let output = info();
        text = String::from_utf8_lossy(&output.stderr).into_owned();
        !output.status.success()
    });
    for part in ["63 processes", "4791", address, "limit", "longhaul run -d"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    for program in &mut programs {
        assert!(
            program.child().try_wait().expect("a child").is_none(),
            "one has ended: {program:?}",
            program = program.0
        );
    }
    // Each of them has a part. One that is killed leaves it to the next.
    programs[30].kill(Signal::SIGKILL);
    wait_until("a part is free", || info().status.success());
    drop(programs);
    shared.expect_nothing_left(address);
}

#[test]
fn programs_go_on_when_their_broker_is_killed() {
    if !is_installed("ib_write_bw") || !is_installed("ibv_devinfo") {
        return;
    }
    let (shared, address) = (Shared::new("killed"), "127.0.12.73");
    let [server, mut client] = pair(&shared, address, &["ib_write_bw", "-F", "-D", "3", "-s", "65536"]);
    wait_until("both have a part", || shared.broker().is_some_and(|broker| leases(broker) == 2));
    std::thread::sleep(Duration::from_millis(500));
    assert!(client.child().try_wait().expect("a child").is_none(), "traffic goes on");
    let broker = shared.broker().expect("it runs");
    kill(Pid::from_raw(broker), Signal::SIGKILL).expect("it is there");
    wait_until("the broker has gone", || shared.broker().is_none());
    assert!(client.child().try_wait().expect("a child").is_none(), "traffic goes on");
    // A program that comes now is told.
    let late = shared.run(address, &["ibv_devinfo"]).output().expect("it runs");
    let text = String::from_utf8_lossy(&late.stderr);
    assert!(!late.status.success() && text.contains("was killed") && text.contains(address), "{text}");
    for running in [server, client] {
        assert!(said(&running.output()).contains("65536"));
    }
    let next = shared.run(address, &["ibv_devinfo"]).output().expect("it runs");
    assert!(next.status.success(), "{next:?}");
    shared.expect_nothing_left(address);
}

/// Connections of the broker, besides those to hand over.
fn leases(broker: i32) -> usize {
    let descriptors = std::fs::read_dir(format!("/proc/{broker}/fd")).map(Iterator::count).unwrap_or_default();
    // Three standard ones, the listener, the events, and the sockets of an address.
    descriptors.saturating_sub(5 + 64)
}

/// A program that is killed in the middle of what it does harms only its peer.
#[test]
fn a_program_that_is_killed_harms_no_other() {
    if !is_installed("ib_write_bw") {
        return;
    }
    let (shared, address) = (Shared::new("harm"), "127.0.12.74");
    let [server, client] = pair(&shared, address, &["ib_write_bw", "-F", "-D", "4", "-s", "65536"]);
    let [mut killed, peer] = pair(&shared, address, &["ib_write_bw", "-F", "-D", "10", "-s", "65536"]);
    wait_until("all have a part", || shared.broker().is_some_and(|broker| leases(broker) == 4));
    std::thread::sleep(Duration::from_millis(300));
    killed.kill(Signal::SIGKILL);
    assert!(killed.output().status.signal().is_some() || !peer.output().status.success());
    // The part is given away again while the others go on.
    let more = pair(&shared, address, &["ib_write_bw", "-F", "-n", "200", "-s", "65536"]);
    for running in more.into_iter().chain([server, client]) {
        assert!(said(&running.output()).contains("65536"));
    }
    shared.expect_nothing_left(address);
}

/// Without a broker a program has the port alone, and the next is told of both causes.
#[test]
fn without_a_broker_one_program_has_the_port_alone() {
    if !is_installed("ibv_asyncwatch") || !is_installed("ibv_devinfo") {
        return;
    }
    let (shared, address) = (Shared::new("alone"), "127.0.12.75");
    let run = |program: &[&str]| {
        let mut command = shared.run(address, program);
        command.env("LONGHAUL_RUN_BROKER", "/nowhere/longhaul");
        command
    };
    let alone = Running(Some(run(&["ibv_asyncwatch"]).spawn().expect("it starts")));
    wait_until("it has the port", || UdpSocket::bind((address, 4791)).is_err());
    let second = run(&["ibv_devinfo"]).output().expect("it runs");
    let text = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success());
    for part in ["UDP port 4791", address, "taken", "cannot be shared", "/nowhere/longhaul"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    // A program that has a broker hears that the port is not shared.
    let third = shared.run(address, &["ibv_devinfo"]).output().expect("it runs");
    let text = String::from_utf8_lossy(&third.stderr);
    assert!(!third.status.success() && text.contains("does not share it"), "{text}");
    drop(alone);
    shared.expect_nothing_left(address);
}
