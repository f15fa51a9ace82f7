//! `longhaul run` as users run it: with programs of Debian's packages ibverbs-utils and perftest, which know nothing of it. One
//! that is not installed is skipped, loudly.
#![cfg(target_arch = "x86_64")]

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A program that takes longer is killed, and the test fails.
const PATIENCE_SECONDS: &str = "25";

/// The library as this build made it.
fn library() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_longhaul")).parent().expect("a folder");
    folder.join("deps").join("liblonghaul_verbs_dropin.so")
}

fn run(device: Option<&str>, program: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    command.arg("run").env("LONGHAUL_VERBS_LIBRARY", library()).env_remove("LD_PRELOAD");
    if let Some(device) = device {
        command.args(["-d", device]);
    }
    command.arg("--").args(program).stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
    command
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    if !found {
        eprintln!("SKIPPED: {program} is not installed (Debian packages ibverbs-utils and perftest)");
    }
    found
}

/// A TCP port that nobody has at the moment.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("0.0.0.0:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// Whether somebody listens there; a connection to find out would be taken for the client.
fn listens(port: u16) -> bool {
    let is_it = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next().unwrap_or_default();
        local.ends_with(&format!(":{port:04X}")) && words.nth(1) == Some("0A")
    };
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .any(|table| std::fs::read_to_string(table).is_ok_and(|table| table.lines().any(is_it)))
}

fn wait_for_listener(port: u16, server: &mut Child) {
    let start = Instant::now();
    while !listens(port) {
        assert!(start.elapsed() < Duration::from_secs(20), "the server does not listen");
        assert!(server.try_wait().expect("a child").is_none(), "the server has ended");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A program as server and as client, on a device each; what both said.
fn both(network: u8, program: &[&str]) -> Option<[String; 2]> {
    if !is_installed(program[0]) {
        return None;
    }
    let port = free_port();
    let text = port.to_string();
    let [server, client] = [1, 2].map(|host| format!("127.0.{network}.{host}"));
    let limited = ["timeout", "-k", "1", PATIENCE_SECONDS];
    let server_command = [&limited, program, &["-p", &text]].concat();
    let mut server_child = run(Some(&server), &server_command).spawn().expect("the server starts");
    wait_for_listener(port, &mut server_child);
    let client_command = [&limited, program, &["-p", &text, &server]].concat();
    let client = run(Some(&client), &client_command).output().expect("the client runs");
    let server = server_child.wait_with_output().expect("the server ends");
    Some([said(&server), said(&client)])
}

#[track_caller]
fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn pingpong_of_rdma_core() {
    for (network, program) in [(80, "ibv_rc_pingpong"), (81, "ibv_uc_pingpong")] {
        for more in [&[][..], &["-e"]] {
            let program = [&[program, "-g", "0", "-n", "50", "-c"], more].concat();
            let Some(texts) = both(network, &program) else { continue };
            for text in texts {
                assert!(text.contains("50 iters in "), "{text}");
            }
        }
    }
}

#[test]
fn datagrams_and_shared_receives_of_rdma_core() {
    for (network, program) in [
        (85, &["ibv_ud_pingpong", "-g", "0", "-n", "50", "-s", "1000"][..]),
        (86, &["ibv_srq_pingpong", "-g", "0", "-n", "50", "-q", "4", "-e"]),
    ] {
        let Some(texts) = both(network, program) else { continue };
        for text in texts {
            assert!(text.contains(" iters in "), "{text}");
        }
    }
}

#[test]
fn bandwidth_and_latency_of_perftest() {
    for (program, more) in [
        ("ib_write_bw", &["-n", "200", "-s", "65536"][..]),
        ("ib_write_bw", &["-n", "200", "-s", "4000", "-c", "UC"]),
        ("ib_send_bw", &["-n", "200", "-s", "65536"]),
        ("ib_send_bw", &["-n", "200", "-s", "1000", "-c", "UD"]),
        ("ib_write_lat", &["-n", "50"]),
    ] {
        let Some(texts) = both(82, &[&[program, "-F"], more].concat()) else { continue };
        // The row of figures begins with the size and the number of iterations.
        let size = more.iter().position(|word| *word == "-s").map_or("2", |at| more[at + 1]);
        let row = |line: &&str| line.split_whitespace().take(2).eq([size, more[1]]);
        let figures: Vec<&str> = texts[1].lines().filter(row).collect();
        assert_eq!(figures.len(), 1, "{program}: {}", texts[1]);
        let average: f64 = figures[0].split_whitespace().nth(3).and_then(|word| word.parse().ok()).expect("a number");
        assert!(average > 0.0, "{program}: {}", figures[0]);
    }
}

#[test]
fn devices_are_those_that_were_asked_for() {
    if !is_installed("ibv_devinfo") {
        return;
    }
    // Through a shell: what the program starts has the devices too.
    let output = run(Some("127.0.83.1,softnic:127.0.83.2"), &["sh", "-c", "ibv_devices && ibv_devinfo -v"]).output();
    let text = said(&output.expect("it runs"));
    for device in ["softnic_127_0_83_1", "softnic_127_0_83_2"] {
        assert!(text.lines().any(|line| line.split_whitespace().next() == Some(device)), "{text}");
        assert!(text.lines().any(|line| line.starts_with("hca_id:") && line.ends_with(device)), "{text}");
    }
    assert!(text.contains("PORT_ACTIVE") && text.contains("::ffff:127.0.83.2"), "{text}");
    assert!(text.contains("atomic_cap:\t\t\tATOMIC_NONE"), "what is not there is not shown: {text}");
    let all = said(&run(None, &["ibv_devices"]).output().expect("it runs"));
    assert!(all.contains("softnic_127_0_0_1"), "{all}");
}

#[test]
fn an_address_that_is_taken_is_named() {
    if !is_installed("ibv_devinfo") {
        return;
    }
    let taken = std::net::UdpSocket::bind("127.0.84.1:4791").expect("a socket");
    let output = run(Some("127.0.84.1"), &["ibv_devinfo"]).output().expect("it runs");
    drop(taken);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(text.contains("UDP port 4791 of 127.0.84.1 is taken") && text.contains("longhaul run -d"), "{text}");
}

#[test]
fn the_status_is_the_programs() {
    let status = |program: &[&str]| run(None, program).output().expect("it runs").status.code();
    assert_eq!(status(&["true"]), Some(0));
    assert_eq!(status(&["sh", "-c", "exit 7"]), Some(7));
    let killed = run(None, &["sh", "-c", "kill -KILL $$"]).output().expect("it runs").status;
    assert_eq!(killed.signal(), Some(9), "a death by signal is the program's own, which shells show as 137");
    let missing = run(None, &["no-such-program-here"]).output().expect("it runs");
    assert_eq!(missing.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("no-such-program-here"));
    let unknown = run(Some("rxe0"), &["true"]).output().expect("it runs");
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("rxe0"));
}

#[test]
fn signals_reach_the_program() {
    let script = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done";
    let mut child = run(None, &["sh", "-c", script]).spawn().expect("it starts");
    let mut ready = [0; 6];
    let output = child.stdout.as_mut().expect("a pipe");
    std::io::Read::read_exact(output, &mut ready).expect("the script has begun");
    kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("it is there");
    assert_eq!(child.wait().expect("it ends").code(), Some(5));
}

#[test]
fn signals_that_the_program_does_not_catch_end_it() {
    // What the program starts with: nothing blocked, and SIGPIPE, which Rust ignores, as it was.
    let output = run(None, &["grep", "-E", "^Sig(Blk|Ign):", "/proc/self/status"]).output().expect("it runs");
    let text = said(&output);
    let mask = |name: &str| {
        let hexadecimal = text.lines().find_map(|line| line.strip_prefix(name)).expect("a line").trim();
        u64::from_str_radix(hexadecimal, 16).expect("a number")
    };
    assert_eq!(mask("SigBlk:"), 0, "{text}");
    assert_eq!(mask("SigIgn:") >> (Signal::SIGPIPE as u32 - 1) & 1, 0, "{text}");
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGUSR1] {
        let mut child = run(None, &["sh", "-c", "echo ready; exec sleep 20"]).spawn().expect("it starts");
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().expect("a pipe"), &mut ready).expect("it has begun");
        kill(Pid::from_raw(child.id() as i32), signal).expect("it is there");
        assert_eq!(child.wait().expect("it ends").signal(), Some(signal as i32));
    }
}

#[test]
fn a_parent_that_ignores_sigchld_changes_nothing() {
    // Shells do not ignore it when they are asked to.
    let status = Command::new("timeout")
        .args(["-k", "1", PATIENCE_SECONDS, "env", "--ignore-signal=CHLD", env!("CARGO_BIN_EXE_longhaul"), "run", "--"])
        .args(["sh", "-c", "exit 4"])
        .env("LONGHAUL_VERBS_LIBRARY", library())
        .status();
    assert_eq!(status.expect("it runs").code(), Some(4));
}

#[test]
fn a_library_that_the_loader_would_not_find_is_refused() {
    let folder = std::env::temp_dir().join(format!("longhaul run {}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let copy = folder.join("library.so");
    std::fs::write(&copy, "").expect("a file");
    let output = run(None, &["true"]).env("LONGHAUL_VERBS_LIBRARY", &copy).output().expect("it runs");
    std::fs::remove_dir_all(&folder).expect("the folder is there");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains(&*copy.to_string_lossy()) && text.contains("space or a colon"), "{text}");
}

#[test]
fn symbols_have_libibverbs_versions() {
    let Ok(output) = Command::new("readelf").args(["-W", "--dyn-syms"]).arg(library()).output() else {
        eprintln!("SKIPPED: readelf is not installed (Debian package binutils)");
        return;
    };
    let text = said(&output);
    for symbol in [
        "ibv_create_comp_channel@@IBVERBS_1.0",
        "ibv_open_device@@IBVERBS_1.1",
        "ibv_get_pkey_index@@IBVERBS_1.5",
        "ibv_reg_mr_iova2@@IBVERBS_1.8",
        "_ibv_query_gid_ex@@IBVERBS_1.11",
        "ibv_query_gid_type@@IBVERBS_PRIVATE_34",
    ] {
        assert!(text.split_whitespace().any(|word| word == symbol), "{symbol} is missing");
    }
    let defined = text.lines().filter(|line| line.contains("GLOBAL DEFAULT") && !line.contains(" UND "));
    let foreign: Vec<&str> = defined.filter(|line| !line.contains("IBVERBS_")).collect();
    assert!(foreign.is_empty(), "nothing else gets in front of the program's own symbols: {foreign:?}");
}
