//! What a connection with the default controller does when the link under it fails: it goes on, without a flood and
//! without a busy loop. Where namespaces are not allowed, a test says that it was skipped.

mod link_user;

use std::io::Read as _;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use link_user::{User, exec};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// 30 Mbit/s, 25 ms there and back, 5 ms of queue.
const SETTINGS: &str = "rate=30mbit,delay=12500us,queue=5ms";
const RATE_MEGABITS: f64 = 30.0;

/// Verified messages over a link, from left to right.
struct Transfer {
    user: User,
    server: Program,
    client: Program,
}

/// A process that ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The result.
struct Outcome {
    report: Value,
    shown: Value,
}

impl Transfer {
    /// Sends for this many seconds; `None` where no link can be made.
    fn start(test: &str, seconds: u32) -> Option<Self> {
        let user = User::new(test);
        user.demo(&format!("--impair {SETTINGS}"))?;
        let longhaul = env!("CARGO_BIN_EXE_longhaul");
        let server = ["timeout", "180", longhaul, "perf", "server", "--address", "198.18.0.2", "--once"];
        let mut server = exec(&user, "right", &server);
        let server = Program(server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a server"));
        let options = format!("perf client 198.18.0.2 --scheme sr:nack -s 256KiB -r 16 --verify --json -D {seconds}");
        let client: Vec<&str> = ["timeout", "180", longhaul].into_iter().chain(options.split(' ')).collect();
        let begun = Instant::now();
        loop {
            let mut client = exec(&user, "left", &client);
            let mut client = Program(client.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().expect("a client"));
            // One that finds nobody has ended long before.
            std::thread::sleep(Duration::from_secs(3));
            if client.0.try_wait().expect("a status").is_none() {
                return Some(Transfer { user, server, client });
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "nobody listens");
        }
    }

    fn set(&self, settings: &str) {
        self.user.run(&format!("set --name NAME --impair {settings}"));
    }

    fn finish(mut self) -> Outcome {
        let mut said = String::new();
        let stdout = self.client.0.stdout.as_mut().expect("it was asked for as a pipe");
        stdout.read_to_string(&mut said).expect("UTF-8");
        let status = self.client.0.wait().expect("the client ends");
        assert!(status.success(), "{status:?}: {said}");
        let shown = self.user.json("show --name NAME --json")["links"][0].clone();
        self.server.0.wait().expect("the server ends");
        Outcome { report: serde_json::from_str(&said).expect("one JSON object"), shown }
    }
}

impl Outcome {
    fn number(&self, name: &str) -> f64 {
        self.report["results"][0][name].as_f64().unwrap_or_else(|| panic!("{name} in {}", self.report))
    }

    /// Everything arrived as it was sent, hardly anything was sent in vain, and the link was in use for this part of the
    /// time.
    #[track_caller]
    fn check(&self, in_use: f64) {
        let (sent, verified) = (self.number("iterations"), self.number("messages_verified"));
        assert_eq!(sent, verified, "{}", self.report);
        let (packets, repeated) = (self.number("data_packets_sent"), self.number("data_packets_repeated"));
        assert!(repeated < 0.05 * packets, "{repeated} of {packets} packets repeated: {}", self.report);
        let dropped = self.shown["forth"]["queue_full_frames"].as_f64().unwrap_or_else(|| panic!("{}", self.shown));
        assert!(dropped < 0.03 * packets, "{dropped} of {packets} packets did not fit the queue");
        let megabits = self.number("bw_average_gbps") * 1e3;
        assert!(megabits > 0.6 * in_use * RATE_MEGABITS, "{megabits} Mbit/s: {}", self.report);
    }
}

/// Processor time of a process and its children so far.
fn processor_seconds(process: u32) -> f64 {
    let children = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    let below: f64 = children.split_whitespace().filter_map(|child| child.parse().ok()).map(processor_seconds).sum();
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks: f64 = [11, 12].iter().filter_map(|index| fields.get(*index)?.parse::<f64>().ok()).sum();
    below + ticks / 100.0
}

fn cut(seconds: u32) {
    let Some(transfer) = Transfer::start(&format!("cut-{seconds}"), seconds + 8) else { return };
    transfer.set("loss=100%");
    std::thread::sleep(Duration::from_millis(500));
    let before = processor_seconds(transfer.client.0.id());
    std::thread::sleep(Duration::from_millis(u64::from(seconds) * 1000 - 500));
    let used = (processor_seconds(transfer.client.0.id()) - before) / (f64::from(seconds) - 0.5);
    transfer.set(SETTINGS);
    assert!(used < 0.9, "{used} processors busy with a link that is cut");
    transfer.finish().check(8.0 / (8.0 + f64::from(seconds)));
}

#[test]
fn a_cut_of_1_second() {
    cut(1);
}

#[test]
fn a_cut_of_5_seconds() {
    cut(5);
}

#[test]
#[ignore = "takes 45 s: run by .ci/run --long"]
fn a_cut_of_30_seconds() {
    cut(30);
}

#[test]
fn a_receiver_that_stands_still() {
    let Some(transfer) = Transfer::start("still", 12) else { return };
    // It has a process of its own below `longhaul link exec` and `timeout`.
    let mut process = transfer.server.0.id();
    while let Ok(below) = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")) {
        let Some(child) = below.split_whitespace().next().and_then(|child| child.parse().ok()) else { break };
        process = child;
    }
    kill(Pid::from_raw(process as i32), Signal::SIGSTOP).expect("it runs");
    std::thread::sleep(Duration::from_secs(4));
    kill(Pid::from_raw(process as i32), Signal::SIGCONT).expect("it is there");
    transfer.finish().check(8.0 / 12.0);
}

#[test]
fn a_path_that_carries_only_small_packets_for_a_while() {
    let Some(transfer) = Transfer::start("mtu", 12) else { return };
    let mtu = |bytes: &str| {
        let set = exec(&transfer.user, "left", &["ip", "link", "set", "dev", "eth0", "mtu", bytes]).status();
        assert!(set.expect("ip runs").success());
    };
    mtu("1000");
    std::thread::sleep(Duration::from_secs(4));
    mtu("1500");
    transfer.finish().check(8.0 / 12.0);
}

#[test]
fn a_rate_that_falls_tenfold_and_comes_back() {
    let Some(transfer) = Transfer::start("tenth", 14) else { return };
    transfer.set("rate=3mbit,delay=12500us,queue=5ms");
    std::thread::sleep(Duration::from_secs(4));
    transfer.set(SETTINGS);
    transfer.finish().check(9.0 / 14.0);
}
