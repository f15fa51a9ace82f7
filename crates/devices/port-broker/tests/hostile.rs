//! Clients that mean ill: garbage, a thousand connections, silence, answers that nobody reads, other users.

mod brokers;

use std::io::{Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use brokers::{Brokers, marks, receiver, send, wait_until};
use longhaul_port_broker::{LeaseError, Refusal};

/// Which program a child asks for, and under which name.
const CHILD: &str = "LONGHAUL_TEST_CHILD";

#[test]
fn broker_child() {
    brokers::be_broker();
}

fn connect(brokers: &Brokers) -> UnixStream {
    let address = SocketAddr::from_abstract_name(&brokers.name).unwrap();
    UnixStream::connect_addr(&address).unwrap()
}

/// A letter that asks for an address, as the library writes it.
fn request(last: u8) -> [u8; 24] {
    let mut letter = *b"LHB\x01\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\x7f\0\x0c\0";
    letter[23] = last;
    letter
}

/// Whether the broker is as it was, and serves within a moment.
fn is_served(brokers: &Brokers, process: i32, address: &str) {
    let start = Instant::now();
    brokers.lease(address);
    assert!(start.elapsed() < Duration::from_secs(1), "served after {:?}", start.elapsed());
    assert_eq!(brokers.process(), process, "it is still the same");
}

fn processor_ticks(process: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let words: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    words[11].parse::<u64>().unwrap() + words[12].parse::<u64>().unwrap()
}

#[test]
fn garbage_is_answered_and_ended() {
    let brokers = Brokers::new("garbage");
    let lease = brokers.lease("127.0.12.31");
    let process = brokers.process();
    let mut wrong_version = request(31);
    wrong_version[3] = 9;
    let long = vec![0xff; 1 << 16];
    for garbage in [&b""[..], b"x", b"GET / HTTP/1.0\r\n\r\n", &request(31)[..23], &wrong_version, &long] {
        let mut stream = connect(&brokers);
        stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
        let _ = stream.write_all(garbage);
        if garbage.is_empty() {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        }
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut answer = Vec::new();
        // The connection ends, at worst as one whose letter was not read to its end.
        match stream.read_to_end(&mut answer) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
        assert!(matches!(answer.get(4), None | Some(6)), "{answer:?}");
        is_served(&brokers, process, "127.0.12.31");
    }
    // A client that has a part and goes on talking is not listened to.
    let mut talker = connect(&brokers);
    talker.write_all(&request(31)).unwrap();
    talker.read_exact(&mut [0; 12]).unwrap();
    let before = processor_ticks(process);
    for _ in 0..100 {
        let _ = talker.write(&request(31));
    }
    std::thread::sleep(Duration::from_millis(500));
    assert!(processor_ticks(process) - before <= 10, "it listens all the time");
    is_served(&brokers, process, "127.0.12.31");
    drop(lease);
}

#[test]
fn a_thousand_connections_keep_nobody_out() {
    let brokers = Brokers::new("thousand");
    let lease = brokers.lease("127.0.12.32");
    let process = brokers.process();
    let silent: Vec<UnixStream> = (0..1000).map(|_| connect(&brokers)).collect();
    is_served(&brokers, process, "127.0.12.32");
    let descriptors = || std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    assert!(descriptors() < 250, "{} descriptors", descriptors());
    wait_until("silent clients are ended", || descriptors() < 80);
    let before = processor_ticks(process);
    std::thread::sleep(Duration::from_secs(1));
    assert!(processor_ticks(process) - before <= 5, "it runs without anything to do");
    is_served(&brokers, process, "127.0.12.32");
    drop((silent, lease));
}

/// A process that is stopped has its part, and the broker waits for nothing of it.
#[test]
fn clients_that_read_no_answer_hold_up_nobody() {
    let brokers = Brokers::new("frozen");
    let lease = brokers.lease("127.0.12.33");
    let process = brokers.process();
    let mut frozen = Vec::new();
    for _ in 0..61 {
        let mut stream = connect(&brokers);
        stream.write_all(&request(33)).unwrap();
        frozen.push(stream);
    }
    is_served(&brokers, process, "127.0.12.33");
    frozen.push(connect(&brokers));
    frozen[61].write_all(&request(33)).unwrap();
    wait_until("all parts are taken", || {
        matches!(brokers.ask("127.0.12.33"), Err(LeaseError::Refused { refusal: Refusal::Full, .. }))
    });
    is_served(&brokers, process, "127.0.12.34");
    // Descriptors in flight are few per user: frozen ones may use them up, which is an error for others, and passes.
    let mut elsewhere = Vec::new();
    for index in 0..600 {
        let mut stream = connect(&brokers);
        let _ = stream.write_all(&request(100 + (index / 60) as u8));
        elsewhere.push(stream);
    }
    match brokers.ask("127.0.12.34") {
        Ok(_) | Err(LeaseError::Refused { refusal: Refusal::System(_), .. }) => {}
        Err(error) => panic!("{error}"),
    }
    drop((frozen, elsewhere));
    wait_until("it is as before", || brokers.ask("127.0.12.33").is_ok());
    assert_eq!(brokers.process(), process);
    let socket = receiver(&lease);
    send("127.0.12.33".parse().unwrap(), lease.part(), 7);
    assert_eq!(marks(&socket), [7]);
}

/// What a child asks for that a test has started; nothing in an ordinary run.
#[test]
fn asking_child() {
    let Ok(words) = std::env::var(CHILD) else { return };
    let (name, address) = words.split_once(' ').unwrap();
    match longhaul_port_broker::Lease::ask(name, None, address.parse().unwrap()) {
        Ok(lease) => println!("\nGOT {}", lease.part()),
        Err(error) => println!("\nREFUSED {error}"),
    }
}

fn asking_child_of(brokers: &Brokers, address: &str, command: &mut Command) -> String {
    command.env(CHILD, format!("{} {address}", brokers.name));
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find(|line| line.starts_with("GOT") || line.starts_with("REFUSED")).unwrap_or(&text).to_owned()
}

#[test]
fn a_process_with_few_descriptors_hears_of_its_limit() {
    let brokers = Brokers::new("descriptors");
    let lease = brokers.lease("127.0.12.35");
    let process = brokers.process();
    let script = "ulimit -n \"$0\"; exec \"$1\" --exact asking_child --nocapture";
    let ask = |limit: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script, limit]).arg(std::env::current_exe().unwrap());
        asking_child_of(&brokers, "127.0.12.35", &mut command)
    };
    for limit in ["12", "40", "66"] {
        let text = ask(limit);
        assert!(text.contains("ulimit -n"), "{limit}: {text}");
    }
    assert!(ask("100").starts_with("GOT"));
    is_served(&brokers, process, "127.0.12.35");
    drop(lease);
}

#[test]
fn another_user_gets_nothing() {
    if !nix::unistd::Uid::effective().is_root() {
        eprintln!("SKIPPED: only root can be two users");
        return;
    }
    let brokers = Brokers::new("users");
    let lease = brokers.lease("127.0.12.36");
    let process = brokers.process();
    // The program must be where others may read it.
    let program = std::env::temp_dir().join(format!("{}-child", brokers.name));
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = Command::new(&program);
    command.args(["--exact", "asking_child", "--nocapture"]).uid(4711).gid(4711);
    let text = asking_child_of(&brokers, "127.0.12.36", &mut command);
    std::fs::remove_file(&program).unwrap();
    assert!(text.contains("REFUSED") && text.contains("another user"), "{text}");
    is_served(&brokers, process, "127.0.12.36");
    drop(lease);
}
