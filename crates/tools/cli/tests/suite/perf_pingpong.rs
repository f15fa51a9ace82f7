//! `longhaul perf pingpong` as users run it, both ends ours, on the loopback device. rdma-core's own programs are the
//! other end in the lab.

use crate::perf_server;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use perf_server::{finish, finish_child, number, perf};
use serde_json::Value;

/// A server that takes one client, and the port at which it waits.
fn start_server(arguments: &[&str]) -> (Child, String) {
    let start = ["pingpong", "-p", "0"];
    let mut command = perf(&[&start, arguments].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the server starts");
    let mut log = BufReader::new(child.stderr.as_mut().expect("it was asked for as a pipe"));
    let mut line = String::new();
    log.read_line(&mut line).expect("the server says where it waits");
    let port = line.split("TCP port ").nth(1).and_then(|rest| rest.split(' ').next());
    let port = port.unwrap_or_else(|| panic!("a port in {line}")).to_owned();
    (child, port)
}

fn both(client: &[&str], server: &[&str]) -> (Output, Output) {
    let (child, port) = start_server(server);
    let client = finish(perf(&[&["pingpong", "127.0.0.1", "-p", &port], client].concat()));
    (client, finish_child(child))
}

#[track_caller]
fn value(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    serde_json::from_str(&text).expect("one JSON object")
}

#[test]
fn every_connection_type_polling_and_sleeping() {
    for connection in ["RC", "UC", "UD"] {
        for events in [&[][..], &["-e"]] {
            let options = [&["-c", connection, "-n", "50", "-s", "1000", "--chk", "--json"], events].concat();
            let (client, server) = both(&options, &options);
            for (output, role) in [(client, "client"), (server, "server")] {
                let value = value(&output);
                assert_eq!((&value["schema"], &value["role"]), (&1.into(), &role.into()));
                assert_eq!((&value["connection"], &value["iterations"]), (&connection.into(), &50.into()));
                assert_eq!(value["messages_verified"], 50, "{value}");
                assert!(value["device"].as_str().is_some_and(|device| device.starts_with("softnic:127.0.0.1")));
                assert!(number(&value, "iteration_us") > 0.0, "{value}");
            }
        }
    }
}

#[test]
fn the_table_is_rdma_cores() {
    // More messages than receives, so that they are posted again; messages of several packets and pages.
    let options = ["-n", "20", "-r", "4", "-s", "10000", "-m", "4096"];
    let (client, server) = both(&options, &options);
    for output in [client, server] {
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("  local address:  LID 0x"), "{text}");
        assert!(lines[1].starts_with("  remote address: LID 0x") && lines[1].ends_with("::ffff:127.0.0.1"), "{text}");
        assert!(lines[2].starts_with("400000 bytes in "), "{text}");
        assert!(lines[3].starts_with("20 iters in ") && lines[3].ends_with(" usec/iter"), "{text}");
    }
}

#[test]
fn what_is_lost_ends_it_and_is_told() {
    let short = ["-c", "UC", "-n", "1000", "--patience", "0.5"];
    let (client, server) = both(&[&short[..], &["--impair", "loss=20%"]].concat(), &short);
    for output in [client, server] {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("of 1000 messages received") && said.contains("lost"), "{said}");
    }
    // RC repeats.
    let (client, server) = both(&["-n", "50", "--chk", "--impair", "loss=5%"], &["-n", "50", "--chk"]);
    assert!(client.status.success() && server.status.success(), "{client:?} {server:?}");
}

#[test]
fn ends_that_do_not_agree_say_so() {
    let (client, server) = both(&["-n", "20", "--patience", "0.5"], &["-n", "10"]);
    assert!(server.status.success(), "{server:?}");
    let said = String::from_utf8_lossy(&client.stderr).into_owned();
    assert_eq!(client.status.code(), Some(1), "{said}");
    assert!(said.contains("10 of 20 messages received") && said.contains("-n"), "{said}");
    let (client, server) =
        both(&["-c", "UC", "-s", "100", "--patience", "0.5"], &["-c", "UC", "-s", "200", "--patience", "0.5"]);
    let said = String::from_utf8_lossy(&server.stderr).into_owned();
    assert_eq!((client.status.code(), server.status.code()), (Some(1), Some(1)));
    assert!(said.contains("expected messages of 200 bytes, got one of 100"), "{said}");
}

/// The other end, word for word: what rdma-core's client says and waits for, and what becomes of a wrong one.
#[test]
fn the_exchange_is_rdma_cores() {
    let (child, port) = start_server(&["--patience", "0.2"]);
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("the server listens");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a time-out can be set");
    stream.write_all(b"0000:000011:abcdef:00000000000000000000ffff7f000001\0").expect("the server reads");
    let mut answer = [0; 52];
    stream.read_exact(&mut answer).expect("the server answers");
    assert!(answer.ends_with(b":00000000000000000000ffff7f000001\0"), "{}", answer.escape_ascii());
    stream.write_all(b"done\0").expect("the server reads");
    let said = String::from_utf8_lossy(&finish_child(child).stderr).into_owned();
    assert!(said.contains("0 of 1000 messages received"), "nobody sends: {said}");

    let refused = |words: &[u8], reason: &str| {
        let (child, port) = start_server(&[]);
        let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("the server listens");
        stream.write_all(words).expect("the server reads");
        drop(stream);
        let output = finish_child(child);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(reason), "{reason} in {said}");
    };
    refused(b"0000:000011:abcdef:00000000000000000000000000000000\0", "-g INDEX");
    refused(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: something\r\n\r\n", "LID:QPN:PSN:GID");
    refused(b"0000:", "its address");

    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it has one").port().to_string();
    let client = perf(&["pingpong", "127.0.0.1", "-p", &port, "--patience", "0.2", "-c", "UC"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the client starts");
    let (mut stream, _) = listener.accept().expect("the client comes");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a time-out can be set");
    let mut question = [0; 52];
    stream.read_exact(&mut question).expect("the client asks");
    stream.write_all(b"0000:000011:abcdef:00000000000000000000ffff7f000001\0").expect("the client reads");
    let mut done = [0; 5];
    stream.read_exact(&mut done).expect("the client is done");
    assert_eq!(&done, b"done\0");
    let said = String::from_utf8_lossy(&finish_child(client).stderr).into_owned();
    assert!(said.contains("0 of 1000 messages received"), "nobody answers: {said}");
}

#[test]
fn usage_errors_have_their_status() {
    let check = |arguments: &[&str], status: i32, word: &str| {
        let output = finish(perf(&[&["pingpong"], arguments].concat()));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?}: {word} in {said}");
    };
    check(&["127.0.0.1", "-p", "1"], 3, "ibv_rc_pingpong");
    check(&["127.0.0.1", "-g", "0", "-x", "0"], 2, "--gid-index");
    check(&["127.0.0.1", "-m", "1000"], 2, "4096");
    check(&["127.0.0.1", "-d", "mlx5_0"], 3, "mlx5_0");
    let (child, port) = start_server(&["-c", "UD", "-s", "5000"]);
    check(&["127.0.0.1", "-p", &port, "-c", "UD", "-s", "5000"], 2, "single packets");
    assert_eq!(finish_child(child).status.code(), Some(2));
}
