//! The verified exchange between two software RNICs on loopback, in one process: right devices pass, and each planted
//! mistake is found by the check that is about it.

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};

use longhaul_impair::{Loss, Profile};
use longhaul_interop::{
    Check, CheckResult, Client, ClientOptions, Connection, DeathReport, End, InteropError, Operation, ReliableOptions,
    ServerOutcome, Size, Summary, serve,
};
use longhaul_softnic::{Config, Mutation};
use longhaul_softnic_udp::{Impair, UdpConfig, UdpDevice, UdpPortChoice};
use longhaul_verbs::Mtu;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// What is wrong with the two devices, and with the wire between them.
#[derive(Clone, Default)]
struct Wrong {
    client: Option<Mutation>,
    server: Option<Mutation>,
    wire: Profile,
}

fn open(mutation: Option<Mutation>, wire: &Profile, seed: u8) -> UdpDevice {
    let mut config = Config::new(format!("softnic{seed}"), vec![LOOPBACK], [seed; 32]);
    config.mutation = mutation;
    let mut udp = UdpConfig::default();
    udp.udp_port = UdpPortChoice::Free;
    udp.impair = Some(Impair { profile: wire.clone(), seed: u64::from(seed) });
    UdpDevice::open(config, udp).expect("loopback has sockets")
}

fn end(device: &UdpDevice) -> End {
    End {
        device: device.verbs(),
        description: "softnic".to_owned(),
        address: LOOPBACK,
        gid_index: 0,
        port: 1,
        udp_port: device.udp_port(),
    }
}

fn options(connection: Connection, only: &[Operation]) -> ClientOptions {
    ClientOptions {
        connection,
        mtu: Some(Mtu::Bytes1024),
        sizes: Size::DEFAULT.to_vec(),
        operations: 60,
        large_bytes: 100_000,
        large_operations: 5,
        only: only.to_vec(),
        rate_bits_per_second: (connection != Connection::Rc).then_some(400_000_000),
        timeout: 12,
        seed: 77,
    }
}

/// A connection over which a server serves on a thread.
fn server(device: &UdpDevice) -> (TcpStream, std::thread::JoinHandle<Result<ServerOutcome, InteropError>>) {
    let listener = TcpListener::bind((LOOPBACK, 0)).expect("a port is free");
    let stream = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
    let end = end(device);
    let thread = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("the client has connected");
        serve(stream, end, &mut |_: &CheckResult| {}, &mut |_| {})
    });
    (stream, thread)
}

fn run(options: ClientOptions, wrong: &Wrong) -> Summary {
    run_client(options, wrong, |client| client.run(&mut |_| {}))
}

fn run_client(
    options: ClientOptions,
    wrong: &Wrong,
    run: impl FnOnce(Client) -> Result<Summary, InteropError>,
) -> Summary {
    let devices = [open(wrong.client, &wrong.wire, 1), open(wrong.server, &wrong.wire, 2)];
    let (stream, server) = server(&devices[1]);
    let client = Client::connect(stream, end(&devices[0]), options).expect("the server welcomes it");
    let summary = run(client).expect("the session does not break");
    match server.join().expect("the server does not panic") {
        Ok(ServerOutcome::Checked(checks)) => assert_eq!(checks.len(), summary.checks.len()),
        other => panic!("expected checks, got {other:?}"),
    }
    summary
}

#[track_caller]
fn passes(summary: &Summary, checks: usize) {
    let failed: Vec<_> = summary.checks.iter().filter(|check| !check.passed).collect();
    assert!(failed.is_empty() && summary.skipped.is_empty(), "{failed:?} {:?}", summary.skipped);
    assert_eq!(summary.checks.len(), checks);
}

/// What was said of the first check that failed.
#[track_caller]
fn failure(summary: &Summary) -> String {
    let failed = summary.checks.iter().find(|check| !check.passed).expect("the mistake is found");
    format!("{}: {}", failed.name, failed.message.as_deref().unwrap_or("without a word"))
}

#[test]
fn right_devices_pass_over_every_transport() {
    for (connection, checks) in [(Connection::Rc, 31), (Connection::Uc, 23), (Connection::Ud, 8)] {
        passes(&run(options(connection, &Operation::ALL), &Wrong::default()), checks);
    }
}

#[test]
fn rc_loses_nothing_and_repeats_nothing_on_a_bad_wire() {
    let wire = Profile::default()
        .with_loss(Loss::Independent { probability: 0.02 })
        .with_duplication(0.05)
        .with_reordering(0.02, std::time::Duration::from_micros(500));
    passes(&run(options(Connection::Rc, &Operation::ALL), &Wrong { wire, ..Wrong::default() }), 31);
}

#[test]
fn messages_of_every_scheme_arrive_on_a_bad_wire_in_both_directions() {
    let wire = Profile::default()
        .with_loss(Loss::Independent { probability: 0.02 })
        .with_duplication(0.05)
        .with_reordering(0.02, std::time::Duration::from_micros(500));
    let reliable = ReliableOptions { schemes: Vec::new(), sizes: vec![0, 1, 5000, 300_000], messages: 10 };
    let run = |client: Client| client.run_reliable(&reliable, &mut |_| {});
    let summary = run_client(options(Connection::Uc, &[]), &Wrong { wire, ..Wrong::default() }, run);
    passes(&summary, 6 * 4 * 2);
    assert_eq!(summary.checks[1].name, "sr:rto/0/from-server");
}

#[test]
fn a_device_that_fails_messages_is_found_and_the_next_scheme_goes_on() {
    let schemes = ["sr:rto", "sr:nack"].map(str::to_owned).to_vec();
    let reliable = ReliableOptions { schemes, sizes: vec![1, 5000, 1], messages: 3 };
    let wrong = Wrong { client: Some(Mutation::FailsBursts), ..Wrong::default() };
    let run = |client: Client| client.run_reliable(&reliable, &mut |_| {});
    let summary = run_client(options(Connection::Uc, &[]), &wrong, run);
    let verdicts: Vec<(&str, bool)> = summary.checks.iter().map(|check| (&check.name[..], check.passed)).collect();
    let expected = ["sr:rto", "sr:nack"].map(|scheme| {
        [("1/to-server", true), ("1/from-server", true), ("5000/to-server", false)]
            .map(|(name, passed)| (format!("{scheme}/{name}"), passed))
    });
    assert!(verdicts.into_iter().eq(expected.iter().flatten().map(|(name, passed)| (&name[..], *passed))));
    let said = failure(&summary);
    assert!(said.contains("client: ") && said.contains("an internal queue pair has failed"), "{said}");
}

#[test]
fn what_a_bad_wire_does_to_others_is_counted() {
    let wire = Profile::default().with_loss(Loss::Independent { probability: 0.2 });
    for operation in [Operation::SendImmediate, Operation::WriteImmediate, Operation::Write] {
        let options = ClientOptions {
            sizes: vec![Size::Bytes(100)],
            large_operations: 0,
            ..options(Connection::Uc, &[operation])
        };
        let said = failure(&run(options, &Wrong { wire: wire.clone(), ..Wrong::default() }));
        assert!(said.contains("of 60"), "{said}");
    }
    let wire = Profile::default().with_duplication(0.5);
    let options =
        ClientOptions { sizes: vec![Size::Bytes(100)], ..options(Connection::Ud, &[Operation::SendImmediate]) };
    let said = failure(&run(options, &Wrong { wire, ..Wrong::default() }));
    assert!(said.contains("which has come already"), "{said}");
}

#[test]
fn an_atomic_that_happens_twice_is_found() {
    let wire = Profile::default().with_duplication(0.5);
    let wrong = Wrong { server: Some(Mutation::AtomicTwice), wire, ..Wrong::default() };
    let said = failure(&run(options(Connection::Rc, &[Operation::FetchAndAdd]), &wrong));
    assert!(said.contains("old value") || said.contains("server's memory at the end"), "{said}");
}

#[test]
fn a_write_that_is_acknowledged_and_not_there_is_found() {
    let wrong = Wrong { server: Some(Mutation::AcknowledgeBeforePlacement), ..Wrong::default() };
    let said = failure(&run(options(Connection::Rc, &[Operation::Write]), &wrong));
    assert!(said.contains("never written"), "{said}");
}

#[test]
fn completions_out_of_order_are_found() {
    let wrong = Wrong { client: Some(Mutation::CompletionOutOfOrder), ..Wrong::default() };
    let said = failure(&run(options(Connection::Rc, &[Operation::Write]), &wrong));
    assert!(said.contains("out of order"), "{said}");
}

#[test]
fn what_is_never_sent_is_found() {
    let wrong = Wrong { client: Some(Mutation::DropsWithoutImmediate), ..Wrong::default() };
    let options = ClientOptions {
        sizes: vec![Size::Bytes(1)],
        large_operations: 0,
        ..options(Connection::Ud, &[Operation::Send])
    };
    let said = failure(&run(options, &wrong));
    assert!(said.contains("expected 60 receives to complete, got 0"), "{said}");
}

/// The wire is cut when the WRITEs are in flight; what both ends then say.
fn cut(wrong: &Wrong) -> (DeathReport, DeathReport) {
    let devices = [open(wrong.client, &wrong.wire, 1), open(wrong.server, &wrong.wire, 2)];
    let (stream, server) = server(&devices[1]);
    // Seven times 4 ms: short enough to wait for.
    let options = ClientOptions { timeout: 10, ..options(Connection::Rc, &Operation::ALL) };
    let client = Client::connect(stream, end(&devices[0]), options).expect("the server welcomes it");
    let everything = Profile::default().with_loss(Loss::Independent { probability: 1.0 });
    let mut in_progress = |_: u64| devices[0].set_impairment(&everything).expect("a profile");
    let ours = client.run_until_death(true, &mut in_progress).expect("the session does not break");
    match server.join().expect("the server does not panic") {
        Ok(ServerOutcome::Died(theirs)) => (ours, theirs),
        other => panic!("expected an end by death, got {other:?}"),
    }
}

#[test]
fn survivors_are_told_everything_once() {
    let (ours, theirs) = cut(&Wrong::default());
    for report in [ours, theirs] {
        assert_eq!(report.problem, None, "{report:?}");
        assert_eq!(report.failure_status.as_deref(), Some("RetryExceededError"));
        assert_eq!((report.flushed, report.receives_flushed), (15, 16), "{report:?}");
    }
}

#[test]
fn a_flush_that_loses_a_request_is_found() {
    let (ours, theirs) = cut(&Wrong { client: Some(Mutation::FlushLosesRequest), ..Wrong::default() });
    let problem = ours.problem.expect("the mistake is found");
    assert!(problem.contains("flushed within"), "{problem}");
    assert_eq!(theirs.problem, None);
}

#[test]
fn a_check_has_a_name() {
    let check =
        Check { connection: Connection::Uc, operation: Operation::WriteImmediate, bytes: 1025, operations: 1, seed: 0 };
    assert_eq!(check.name(), "uc/write-immediate/1025");
}
