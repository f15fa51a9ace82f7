//! Hosts, gateways and a link in network namespaces of a test's own.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use longhaul_forward::clock::Clock;
use longhaul_forward::offloads::{self, Offload};
use longhaul_forward::ring::RingSource;
use longhaul_forward::{Arrival, Source as _};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Set in the process that is in the namespace.
const INSIDE: &str = "LONGHAUL_GATEWAY_TEST_INSIDE";
/// No step of these tests takes nearly this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const MTU: usize = 1500;

/// Runs a test in a network namespace of its own, by starting this program again in one. Says so where that is not allowed.
pub(crate) fn in_namespace(test: &str, work: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return work();
    }
    let program = std::env::current_exe().expect("this program");
    let how = if nix::unistd::geteuid().is_root() { "-n" } else { "-Urn" };
    let mut command = Command::new("timeout");
    command.args(["150", "unshare", how]).arg(&program).args([test, "--exact", "--nocapture"]).env(INSIDE, "1");
    let output = command.stdin(Stdio::null()).output().expect("timeout and unshare are there");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if said.contains("unshare failed") || said.contains("unshare: ") {
        eprintln!("SKIPPED: no network namespace can be made here: {said}");
        return;
    }
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is there");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A process that ends with the test.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }

    /// And what a shell does to a process in the background.
    pub(crate) fn press_ctrl_z(&self) {
        for stop in [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU] {
            kill(Pid::from_raw(self.0.id() as i32), stop).expect("it runs");
        }
    }

    pub(crate) fn interrupt(&mut self) {
        kill(Pid::from_raw(self.0.id() as i32), Signal::SIGINT).expect("it runs");
        assert!(self.0.wait().expect("it ends").success());
    }

    /// What a client reports; it must succeed.
    pub(crate) fn wait(mut self) -> Value {
        let mut text = String::new();
        self.0.stdout.take().expect("a pipe").read_to_string(&mut text).expect("UTF-8");
        let status = self.0.wait().expect("it ends");
        assert!(status.success(), "{status}: {text}");
        serde_json::from_str(&text).expect("one JSON object")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) struct Ground {
    folder: PathBuf,
    name: String,
    /// They hold the namespaces of the hosts.
    hosts: [Running; 2],
}

fn index(host: char) -> usize {
    usize::from(host == 'b')
}

fn address(host: char) -> String {
    format!("10.77.{}.1", index(host) + 1)
}

impl Ground {
    pub(crate) fn make() -> Ground {
        // Frames are those of the test.
        let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        ip("link set lo up");
        let holder =
            || Running(Command::new("unshare").args(["-n", "sleep", "140"]).spawn().expect("unshare is there"));
        let hosts = [holder(), holder()];
        let own = std::fs::read_link("/proc/self/ns/net").expect("a namespace");
        for (host, holder) in ['a', 'b'].into_iter().zip(&hosts) {
            let process = holder.0.id();
            let begun = Instant::now();
            while std::fs::read_link(format!("/proc/{process}/ns/net")).is_ok_and(|of| of == own) {
                assert!(begun.elapsed() < PATIENCE);
                std::thread::sleep(Duration::from_millis(5));
            }
            ip(&format!("link add {host}0 mtu {MTU} type veth peer name {host}1 mtu {MTU}"));
            ip(&format!("link add {host}2 mtu {MTU} type veth peer name {host}3 mtu {MTU}"));
            offloads::set(&format!("{host}0"), Offload::TransmitChecksum, false).expect("it can be switched off");
            (1..4).for_each(|number| ip(&format!("link set {host}{number} up")));
            ip(&format!("link set {host}0 netns {process}"));
        }
        let name = std::process::id().to_string();
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("gateway-{name}"));
        std::fs::create_dir_all(&folder).expect("a folder");
        let ground = Ground { folder, name, hosts };
        for host in ['a', 'b'] {
            ground.at(host, "ip", "link set lo up");
            ground.at(host, "ip", &format!("link set {host}0 up"));
            ground.at(host, "ip", &format!("address add {}/16 dev {host}0", address(host)));
        }
        ground
    }

    fn inside(&self, host: char, program: &str, arguments: &str) -> Command {
        let process = self.hosts[index(host)].0.id().to_string();
        let mut command = Command::new("nsenter");
        command.args(["--target", &process, "--net", program]).args(arguments.split(' ')).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", &self.folder);
        command
    }

    fn at(&self, host: char, program: &str, arguments: &str) {
        let output = self.inside(host, program, arguments).output().expect("nsenter is there");
        assert!(output.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn longhaul(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
        command.args(arguments).env("XDG_RUNTIME_DIR", &self.folder).stdin(Stdio::null());
        command
    }

    /// Starts a command that says on standard error that it runs.
    fn start(mut command: Command, word: &str) -> Running {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut all = String::new();
        while !all.contains(word) {
            assert!(said.read_line(&mut all).expect("UTF-8") > 0, "it has ended: {all}");
        }
        // Nobody reads the rest, but it must be able to write it.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Running(child)
    }

    pub(crate) fn link(&self, settings: &str) -> Running {
        let name = format!("--name={}", self.name);
        let command = self.longhaul(&["link", "run", "a3", "b3", "--seed", "5", "--impair", settings, &name]);
        Ground::start(command, "Ctrl-C")
    }

    fn configuration(&self, side: char) -> PathBuf {
        let other = if side == 'a' { 'b' } else { 'a' };
        let text = format!(
            "site = \"{side}1\"\nwide = \"{side}2\"\ncode = \"lowar:mds:32,4\"\npeer = \"{}/24\"\nname = \"{side}-{}\"\n\
             bridge = \"bridge-{side}\"\nmetrics = \"127.0.0.1:{}\"\n",
            address(other),
            self.name,
            9500 + index(side),
        );
        let path = self.folder.join(format!("{side}.toml"));
        std::fs::write(&path, text).expect("a file");
        path
    }

    pub(crate) fn gateway(&self, side: char) -> Running {
        let file = self.configuration(side);
        Ground::start(self.longhaul(&["gateway", "run", file.to_str().expect("UTF-8")]), "is running")
    }

    /// The exit status and what is said of a gateway that cannot be started.
    pub(crate) fn try_gateway(&self, side: char) -> (i32, String) {
        let file = self.configuration(side);
        let output = self.longhaul(&["gateway", "run", file.to_str().expect("UTF-8")]).output().expect("it runs");
        (output.status.code().expect("it exits"), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// The same of one with another name, and the bridge of the other side's gateway.
    pub(crate) fn try_gateway_with_bridge_of(&self, side: char, other: char) -> (i32, String) {
        let path = self.folder.join("other-bridge.toml");
        let text = std::fs::read_to_string(self.configuration(side)).expect("it was written");
        let text = text
            .replace(&format!("bridge-{side}"), &format!("bridge-{other}"))
            .replace(&format!("\"{side}-"), "\"another-")
            .replace(&format!("127.0.0.1:{}", 9500 + index(side)), "");
        std::fs::write(&path, text).expect("a file");
        let output = self.longhaul(&["gateway", "run", path.to_str().expect("UTF-8")]).output().expect("it runs");
        (output.status.code().expect("it exits"), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    pub(crate) fn status(&self, side: char) -> Value {
        let name = format!("--name={side}-{}", self.name);
        let output = self.longhaul(&["gateway", "status", "--json", &name]).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let all: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        let table = self.longhaul(&["gateway", "status", &name]).output().expect("it runs").stdout;
        assert!(String::from_utf8_lossy(&table).contains("site to wide"));
        all["gateways"][0].clone()
    }

    /// Of gateway a, which is in this process's namespace.
    pub(crate) fn metrics(&self) -> String {
        let mut stream = TcpStream::connect("127.0.0.1:9500").expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        text
    }

    pub(crate) fn server(&self) -> Running {
        let arguments = format!("perf server --address {}", address('b'));
        Ground::start(self.inside('b', env!("CARGO_BIN_EXE_longhaul"), &arguments), "TCP port")
    }

    pub(crate) fn client(&self, arguments: &str) -> Running {
        let arguments = format!("perf client {} {arguments} --json", address('b'));
        let mut command = self.inside('a', env!("CARGO_BIN_EXE_longhaul"), &arguments);
        Running(command.stdout(Stdio::piped()).spawn().expect("it starts"))
    }

    /// Does something in a host's namespace, on a thread of its own.
    fn within<T: Send + 'static>(
        &self,
        host: char,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        let process = self.hosts[index(host)].0.id();
        std::thread::spawn(move || {
            let namespace = File::open(format!("/proc/{process}/ns/net")).expect("it is there");
            setns(namespace, CloneFlags::CLONE_NEWNET).expect("it can be entered");
            work()
        })
    }

    /// Sends datagrams to a socket at the other host. Returns how many arrive, duplicates included.
    pub(crate) fn exchange(&self, count: u32) -> u32 {
        let (from, to) = (address('a'), address('b'));
        let receiver =
            self.within('b', move || UdpSocket::bind((&*to, 7000)).expect("a socket")).join().expect("a socket");
        let sender =
            self.within('a', move || UdpSocket::bind((&*from, 0)).expect("a socket")).join().expect("a socket");
        receiver.set_read_timeout(Some(Duration::from_millis(500))).expect("a time-out can be set");
        let to = receiver.local_addr().expect("an address");
        let mut arrived = 0;
        for number in 0..count {
            sender.send_to(&number.to_be_bytes(), to).expect("it is sent");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut buffer = [0; 64];
        while receiver.recv(&mut buffer).is_ok() {
            arrived += 1;
        }
        arrived
    }

    /// Counts what arrives at a host's interface.
    pub(crate) fn count(&self, host: char) -> Witness {
        let counts = Arc::new(Counts::default());
        let own = counts.clone();
        let (opened, is_open) = std::sync::mpsc::channel();
        self.within(host, move || {
            let mut source = RingSource::open(&format!("{host}0"), Clock::start(), 8 << 20).expect("a source");
            let _ = opened.send(());
            while !own.is_over.load(Ordering::Relaxed) {
                let mut polled = [PollFd::new(source.descriptor(), PollFlags::POLLIN)];
                let _ = poll(&mut polled, PollTimeout::from(50_u16));
                let mut arrivals: Vec<Arrival<'_>> = Vec::new();
                source.receive(256, &mut arrivals).expect("frames");
                for arrival in &arrivals {
                    // Ethernet, IPv4 without options, UDP to port 4791, and the opcode.
                    let is_roce =
                        arrival.bytes.get(23) == Some(&17) && arrival.bytes.get(36..38) == Some(&[0x12, 0xb7]);
                    own.packets.fetch_add(is_roce.into(), Ordering::Relaxed);
                    own.repairs.fetch_add((is_roce && arrival.bytes.get(42) == Some(&0x1f)).into(), Ordering::Relaxed);
                }
            }
        });
        is_open.recv().expect("it opens");
        Witness(counts)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[derive(Default)]
struct Counts {
    packets: AtomicU64,
    repairs: AtomicU64,
    is_over: AtomicBool,
}

/// Counts RoCEv2 packets that arrive at a host.
pub(crate) struct Witness(Arc<Counts>);

impl Witness {
    pub(crate) fn packets(&self) -> u64 {
        self.0.packets.load(Ordering::Relaxed)
    }

    /// Repair packets among them.
    pub(crate) fn repairs(&self) -> u64 {
        self.0.repairs.load(Ordering::Relaxed)
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}
