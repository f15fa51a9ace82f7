//! Ends in processes of their own: the test's own program started again, doing one thing and told its peer over pipes.
//!
//! A test file that uses this has a test named `child` that calls [`child_main`]; in an ordinary run it does nothing.

#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use longhaul_softnic::Config;
use longhaul_softnic_udp::{UdpConfig, UdpDevice, UdpPortChoice};
use longhaul_verbs::{
    Access, CompletionStatus, Gid, Mtu, PathAttributes, QueuePairAttributes, QueuePairNumber, RemoteMemory,
    SendOperation, SendRequest, Transport,
};

use super::udp_ends::End;

const ROLE: &str = "LONGHAUL_TEST_ROLE";
const ADDRESS: &str = "LONGHAUL_TEST_ADDRESS";
pub(crate) const PSN: u32 = 9;
pub(crate) const REGION_BYTES: usize = 4 << 20;
/// 4.096 µs · 2^14 = 67 ms, four times.
pub(crate) const TIMEOUT: u8 = 14;
pub(crate) const RETRIES: u8 = 3;

/// What one end must know of the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Introduction {
    pub(crate) address: std::net::IpAddr,
    pub(crate) udp_port: u16,
    pub(crate) queue_pair: u32,
    pub(crate) remote: RemoteMemory,
}

impl Introduction {
    pub(crate) fn of(end: &End) -> Introduction {
        let (udp_port, queue_pair) = (end.device.udp_port(), end.queue_pair.number().value());
        Introduction { address: end.address, udp_port, queue_pair, remote: end.region.remote(0) }
    }

    fn to_line(self) -> String {
        let Introduction { address, udp_port, queue_pair, remote } = self;
        format!("END {address} {udp_port} {queue_pair} {} {}", remote.address, remote.key)
    }

    fn from_line(line: &str) -> Option<Introduction> {
        // The test runner's own words may stand before it in the line.
        let mut words = line.split("END ").nth(1)?.split_whitespace();
        Some(Introduction {
            address: words.next()?.parse().ok()?,
            udp_port: words.next()?.parse().ok()?,
            queue_pair: words.next()?.parse().ok()?,
            remote: RemoteMemory { address: words.next()?.parse().ok()?, key: words.next()?.parse().ok()? },
        })
    }
}

pub(crate) fn open(address: &str) -> UdpDevice {
    let mut udp = UdpConfig::default();
    udp.udp_port = UdpPortChoice::Free;
    let mut seed = [1; 32];
    seed[..4].copy_from_slice(&std::process::id().to_le_bytes());
    UdpDevice::open(Config::new(address, vec![address.parse().unwrap()], seed), udp).unwrap()
}

pub(crate) fn connect(end: &End, peer: &Introduction, mtu: Mtu) {
    connect_with(end, peer, mtu, TIMEOUT, RETRIES);
}

/// With a timeout of 4.096 µs · 2^`timeout`, and this many retries.
pub(crate) fn connect_with(end: &End, peer: &Introduction, mtu: Mtu, timeout: u8, retries: u8) {
    let mut path = PathAttributes::to(Gid::from_ip(peer.address));
    path.udp_port = peer.udp_port;
    let number = QueuePairNumber::new(peer.queue_pair);
    let receive = QueuePairAttributes::ready_to_receive(path, mtu, number, PSN).reliable_receive(0, 12);
    let send = QueuePairAttributes::ready_to_send(PSN).reliable_send(timeout, retries, 7, 0);
    end.queue_pair.modify(&QueuePairAttributes::init_connected(Access::LOCAL_WRITE | Access::REMOTE_WRITE)).unwrap();
    end.queue_pair.modify(&receive).unwrap();
    end.queue_pair.modify(&send).unwrap();
}

/// Keep this many WRITEs of the whole region in flight, until one fails or `is_over`. How many have completed, and how
/// it ended.
pub(crate) fn write_on(
    end: &End,
    remote: RemoteMemory,
    is_over: impl Fn(u64) -> bool,
) -> (u64, Option<CompletionStatus>) {
    let mut completed = 0;
    let entry = [end.region.entry(0..REGION_BYTES)];
    let post = || end.queue_pair.post_send(&[SendRequest::new(1, SendOperation::Write(remote), &entry)]).unwrap();
    (0..OUTSTANDING).for_each(|_| post());
    while !is_over(completed) {
        match end.completions.poll_one().unwrap() {
            Some(completion) if completion.status == CompletionStatus::Success => {
                completed += 1;
                post();
            }
            Some(completion) => return (completed, Some(completion.status)),
            None => {}
        }
    }
    (completed, None)
}

/// WRITEs that [`write_on`] keeps in flight.
pub(crate) const OUTSTANDING: u64 = 4;

/// A process with one end in it.
pub(crate) struct Process {
    pub(crate) child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub(crate) end: Introduction,
}

impl Process {
    pub(crate) fn start(role: &str, address: &str) -> Process {
        Process::start_by(Command::new(std::env::current_exe().unwrap()), role, address)
    }

    /// By a command whose last words are this program.
    pub(crate) fn start_by(mut command: Command, role: &str, address: &str) -> Process {
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]).env(ROLE, role).env(ADDRESS, address);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the child starts");
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let nobody = RemoteMemory { address: 0, key: 0 };
        let nowhere = Introduction { address: [0; 4].into(), udp_port: 0, queue_pair: 0, remote: nobody };
        let mut process = Process { child, input, output, end: nowhere };
        let line = process.line("END ");
        process.end = Introduction::from_line(&line).unwrap_or_else(|| panic!("an introduction in {line}"));
        process
    }

    pub(crate) fn meet(&mut self, peer: &Introduction) {
        writeln!(self.input, "{}", peer.to_line()).unwrap();
    }

    /// The next line with these words in it.
    #[track_caller]
    pub(crate) fn line(&mut self, words: &str) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).expect("the child speaks") > 0 {
            if line.contains(words) {
                return line;
            }
            line.clear();
        }
        panic!("the child has ended and never said {words:?}: {:?}", self.child.wait());
    }

    /// Kill -9.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Time that all threads of it have run so far.
    pub(crate) fn processor_time(&self) -> Duration {
        threads_time(self.child.id(), |_| true)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Time that threads of a process have run so far, those whose name is wanted.
pub(crate) fn threads_time(process: u32, is_wanted: impl Fn(&str) -> bool) -> Duration {
    let mut nanos = 0;
    for thread in std::fs::read_dir(format!("/proc/{process}/task")).unwrap() {
        let folder = thread.unwrap().path();
        // It may have ended just now.
        let (Ok(name), Ok(times)) =
            (std::fs::read_to_string(folder.join("comm")), std::fs::read_to_string(folder.join("schedstat")))
        else {
            continue;
        };
        if is_wanted(name.trim()) {
            nanos += times.split_whitespace().next().unwrap().parse::<u64>().unwrap();
        }
    }
    Duration::from_nanos(nanos)
}

/// What the process does that [`Process::start`] has started; nothing in any other.
pub(crate) fn child_main() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let end = End::new(&open(&std::env::var(ADDRESS).unwrap()), Transport::ReliableConnection, REGION_BYTES);
    println!("\n{}", Introduction::of(&end).to_line());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let peer = Introduction::from_line(&line).expect("the peer is introduced");
    connect(&end, &peer, Mtu::Bytes4096);
    println!("\nCONNECTED");
    match role.as_str() {
        // Lends its memory and does nothing, until the other end of the pipe is gone.
        "target" => while std::io::stdin().read_line(&mut line).is_ok_and(|bytes| bytes > 0) {},
        "writer" => {
            let start = Instant::now();
            let (completed, status) = write_on(&end, peer.remote, |completed| {
                if completed == 3 {
                    println!("\nIN FLIGHT");
                }
                start.elapsed() > Duration::from_secs(60)
            });
            println!("\nENDED after {completed} with {status:?}");
        }
        _ => panic!("no role {role}"),
    }
}

/// A process that was told to stop goes on until the processors of all its threads hear of it.
pub(crate) fn wait_until_stopped(process: i32) {
    for _ in 0..1000 {
        let mut threads = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
        if threads.all(|thread| is_stopped(&thread.unwrap().path())) {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("process {process} has not stopped in a second");
}

fn is_stopped(thread: &Path) -> bool {
    let status = std::fs::read_to_string(thread.join("stat")).unwrap();
    // The state stands behind the name, which is in parentheses.
    status.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
}
