//! `longhaul perf server` and `client` as users run them, on the loopback device.

use crate::perf_server;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use perf_server::{Server, finish, finish_child, number, perf, wait_for};
use serde_json::Value;

#[test]
fn every_test_over_every_connection_type() {
    let server = Server::start(&[]);
    for connection in ["RC", "UC", "UD"] {
        for test in ["write_bw", "send_bw", "write_lat", "send_lat"] {
            if connection == "UD" && test.starts_with("write") {
                continue;
            }
            let value = server.measure(&[test, "-c", connection, "-n", "100", "-s", "1000", "--verify"]);
            assert_eq!(value["test"], test);
            assert_eq!(value["connection"], connection);
            assert_eq!(value["results"].as_array().map(Vec::len), Some(1), "{value}");
            let result = &value["results"][0];
            assert_eq!(result["bytes"], 1000);
            if test.ends_with("bw") {
                assert_eq!(result["iterations"], 100);
                assert!(number(result, "bw_average_gbps") > 0.0, "{result}");
                assert!(number(result, "bw_peak_gbps") >= number(result, "bw_average_gbps"), "{result}");
                let lost = number(result, "messages_lost");
                assert!(connection != "RC" || lost == 0.0, "{result}");
                assert_eq!(number(result, "messages_verified"), 100.0 - lost, "{result}");
            } else {
                assert_eq!(number(result, "iterations"), 100.0 - number(result, "messages_lost"), "{result}");
                let names = ["t_min_us", "t_typical_us", "p99_us", "p99_9_us", "t_max_us"];
                let times = names.map(|name| number(result, name));
                assert!(times[0] > 0.0 && times.is_sorted(), "{result}");
            }
        }
    }
}

#[test]
fn all_sizes_and_several_queue_pairs() {
    let server = Server::start(&[]);
    let value = server.measure(&["send_bw", "-c", "UD", "-a", "-n", "20", "--verify"]);
    let sizes: Vec<u64> =
        value["results"].as_array().expect("results").iter().filter_map(|one| one["bytes"].as_u64()).collect();
    let mtu = value["mtu_bytes"].as_u64().expect("an MTU");
    assert_eq!(sizes, (1..=mtu.ilog2()).map(|power| 1 << power).collect::<Vec<u64>>(), "powers of two up to a packet");
    let value = server.measure(&["write_bw", "-q", "50", "-n", "4", "-s", "5000", "--verify"]);
    assert_eq!(value["queue_pairs"], 50);
    assert_eq!(value["results"][0]["iterations"], 200);
    assert_eq!(value["results"][0]["messages_verified"], 200);
    // Queue pairs overtake each other, the more so when one of them has to send again.
    let arguments = ["send_bw", "-q", "4", "-n", "200", "-s", "5000", "--verify", "-u", "12", "--impair", "loss=1%"];
    let value = server.measure(&arguments);
    assert_eq!(value["results"][0]["messages_verified"], 800);
}

#[test]
fn what_comes_twice_or_late_counts_once_and_is_not_corrupt() {
    let server = Server::start(&[]);
    let bad = ["-s", "1000", "--verify", "--impair", "duplicate=50%,reorder=5%,hold=2ms,loss=5%"];
    for connection in ["UC", "UD"] {
        let value = server.measure(&[&["send_bw", "-c", connection, "-n", "1000"][..], &bad].concat());
        let result = &value["results"][0];
        // If duplicates counted as arrivals, they would hide the losses.
        let lost = number(result, "messages_lost");
        assert!(lost > 0.0, "{value}");
        assert_eq!(number(result, "messages_verified"), 1000.0 - lost, "{value}");
        server.measure(&[&["send_lat", "-c", connection, "-n", "200"][..], &bad].concat());
    }
    server.measure(&[&["write_lat", "-c", "UC", "-n", "200"][..], &bad].concat());
}

#[test]
fn a_second_client_is_told_that_it_waits() {
    let mut server = Server::start(&[]);
    let first = ["client", "127.0.0.1", "-p", &server.port, "send_lat", "-D", "2"];
    let first = perf(&first).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the client starts");
    wait_for(&mut server.log, "over");
    let output = server.client(&["send_lat", "-n", "10"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("another client"), "{said}");
    assert!(finish_child(first).status.success());
}

#[test]
fn a_device_is_taken_by_the_name_that_devices_prints() {
    let mut command = perf(&["server", "-p", "0", "-d", "softnic:127.0.0.1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the server starts");
    let mut log = BufReader::new(child.stderr.take().expect("it was asked for as a pipe"));
    let mut line = String::new();
    log.read_line(&mut line).expect("the server says where it waits");
    let port = line.split("TCP port ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a port").to_owned();
    let server = Server { child, port, log };
    let value = server.measure(&["send_lat", "-n", "10", "-d", "softnic:127.0.0.9"]);
    assert_eq!((&value["local"]["address"], &value["remote"]["address"]), (&"127.0.0.9".into(), &"127.0.0.1".into()));
}

#[test]
fn help_for_impairments_is_no_error() {
    for end in [&["server"][..], &["client", "127.0.0.1"]] {
        let output = finish(perf(&[end, &["--impair", "help"]].concat()));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("duplicate="), "{output:?}");
    }
}

#[test]
fn the_table_has_perftests_columns() {
    let server = Server::start(&["--once"]);
    let output = server.client(&["send_bw", "-n", "20", "--report_gbits"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(text.contains("Rate limit      : none"), "on this host there is none: {text}");
    for column in
        ["#bytes", "#iterations", "BW peak[Gb/sec]", "BW average[Gb/sec]", "MsgRate[Mpps]", "\n 65536      20 "]
    {
        assert!(text.contains(column), "{column} in {text}");
    }
    let server = Server::start(&["--once"]);
    let output = server.client(&["send_lat", "-n", "20"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for column in [
        "t_min[usec]",
        "t_typical[usec]",
        "t_avg[usec]",
        "99% percentile[usec]",
        "99.9% percentile[usec]",
        "\n 2          20 ",
    ] {
        assert!(text.contains(column), "{column} in {text}");
    }
}

#[test]
fn a_bad_network_in_process() {
    let server = Server::start(&[]);
    let bad = ["--impair", "loss=5%,delay=200us,duplicate=1%"];
    let arguments = ["write_bw", "-n", "100", "-s", "20000", "-u", "12", "--verify"];
    let value = server.measure(&[&arguments[..], &bad].concat());
    assert_eq!(value["results"][0]["messages_lost"], 0, "RC sends again: {value}");
    assert_eq!(value["results"][0]["messages_verified"], 100);
    // Of 200 messages of five packets, 45 are lost on average; the chance that none is, is 10^-22.
    let value = server.measure(&[&["write_bw", "-c", "UC", "-n", "200", "-s", "20000", "--verify"][..], &bad].concat());
    let lost = number(&value["results"][0], "messages_lost");
    assert!(lost > 0.0 && lost < 200.0, "{value}");
    let value = server.measure(&[&["send_lat", "-c", "UD", "-n", "50"][..], &bad].concat());
    assert!(number(&value["results"][0], "t_min_us") >= 200.0, "the delay is there: {value}");
}

#[test]
fn a_rate_limit_is_kept() {
    let server = Server::start(&[]);
    // Two queue pairs together: 40 messages of 50,000 bytes are 16 Mbit, which take 0.8 s, less what may go at once.
    let value = server.measure(&["write_bw", "-q", "2", "-n", "20", "-s", "50000", "--rate_limit", "0.02"]);
    let gbps = number(&value["results"][0], "bw_average_gbps");
    assert!(gbps < 0.03, "{gbps} Gbit/s instead of 0.02");
    assert!(gbps > 0.004, "{gbps} Gbit/s instead of 0.02: not even a fifth");
}

#[test]
fn a_capture_is_written() {
    let path = std::env::temp_dir().join(format!("longhaul-perf-{}.pcapng", std::process::id()));
    let server = Server::start(&[]);
    server.measure(&["send_bw", "-n", "20", "--capture", path.to_str().expect("a plain path")]);
    let bytes = std::fs::read(&path).expect("the capture is there");
    std::fs::remove_file(&path).expect("the capture can be removed");
    assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a], "pcapng");
    assert!(bytes.len() > 20 * 65_536, "{} bytes cannot hold 20 messages", bytes.len());
}

#[test]
fn what_cannot_be_is_refused_with_its_reason() {
    let server = Server::start(&[]);
    let plan = r#"{"test":"write_bw","operation":"write","connection":"Rc","queue_pairs":1,"message_bytes_max":1,"send_depth":1,"receive_depth":1,"outstanding_reads":0,"sleeps":false,"timeout":14,"rate":"Careful","verify_seed":null}"#;
    let hello = |version: u32, client: &str| {
        server.say(&format!(
            r#"{{"Hello":{{"version":{version},"client":"{client}","server":"127.0.0.1","plan":{plan}}}}}"#
        ))
    };
    let answer = hello(8, "10.1.2.3");
    assert!(answer.contains("NAT") && answer.contains("10.1.2.3") && answer.contains("127.0.0.1"), "{answer}");
    let answer = hello(99, "127.0.0.1");
    assert!(answer.contains("version 8 ") && answer.contains("version 99"), "{answer}");
    let answer = server.say("0000:000011:0b3c4d:0000:00000000");
    assert!(answer.contains("Refused") && answer.contains("perftest"), "{answer}");
    let greedy = plan.replace("\"message_bytes_max\":1,", "\"message_bytes_max\":4000000000,");
    let answer = server
        .say(&format!(r#"{{"Hello":{{"version":8,"client":"127.0.0.1","server":"127.0.0.1","plan":{greedy}}}}}"#));
    assert!(answer.contains("Refused"), "{answer}");
    let large = plan.replace("\"message_bytes_max\":1,", "\"message_bytes_max\":1073741824,");
    let answer =
        server.say(&format!(r#"{{"Hello":{{"version":8,"client":"127.0.0.1","server":"127.0.0.1","plan":{large}}}}}"#));
    assert!(answer.contains("Refused") && answer.contains("512 MiB"), "{answer}");
    // And the server is still there for the next one.
    server.measure(&["send_lat", "-n", "10"]);
}

#[test]
fn usage_errors_have_their_status() {
    let check = |arguments: &[&str], status: i32, word: &str| {
        let output = finish(perf(arguments));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?}: {word} in {said}");
    };
    check(&["client", "127.0.0.1", "write_bw", "-c", "UD"], 2, "UD");
    check(&["client", "127.0.0.1", "--impair", "lost=1%"], 2, "lost");
    check(&["client", "127.0.0.1", "-m", "1000"], 2, "4096");
    check(&["client", "127.0.0.1", "-d", "mlx5_0"], 3, "softnic");
    check(&["client", "127.0.0.1", "send_lat", "-q", "2"], 2, "-q");
    // Port 1 is nobody's.
    check(&["client", "127.0.0.1", "-p", "1"], 3, "longhaul perf server");
    let server = Server::start(&[]);
    check(&["server", "-p", &server.port, "--address", "127.0.0.1"], 3, "another server");
    // Set aside for examples, so nobody's.
    check(&["server", "-p", "0", "--address", "192.0.2.1"], 3, "no address of this host");
    check(&["client", "127.0.0.1", "-p", &server.port, "-x", "3"], 2, "GID table");
}

#[test]
fn the_death_of_either_end_is_noticed() {
    let mut server = Server::start(&[]);
    // A client that dies in the middle: the server goes on with the next.
    for connection in ["RC", "UC"] {
        let mut client = perf(&["client", "127.0.0.1", "-p", &server.port, "write_bw", "-D", "60", "-c", connection]);
        let mut client = client.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the client starts");
        wait_for(&mut server.log, "over");
        std::thread::sleep(Duration::from_millis(200));
        client.kill().expect("it can be killed");
        client.wait().expect("it is dead");
        server.measure(&["send_lat", "-n", "10"]);
    }
    // A server that dies in the middle: the client says so.
    for connection in ["RC", "UC"] {
        let mut server = Server::start(&[]);
        let mut client =
            perf(&["client", "127.0.0.1", "-p", &server.port, "write_bw", "-D", "60", "-c", connection, "-u", "10"]);
        let client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the client starts");
        wait_for(&mut server.log, "over");
        std::thread::sleep(Duration::from_millis(200));
        server.child.kill().expect("it can be killed");
        let output = finish_child(client);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("gone"), "{said}");
    }
}

#[test]
fn a_server_for_one_client_prints_json() {
    let mut server = Server::start(&["--once", "--json"]);
    server.measure(&["send_bw", "-n", "10", "-s", "100", "--verify"]);
    let mut text = String::new();
    let mut stdout = server.child.stdout.take().expect("it was asked for as a pipe");
    stdout.read_to_string(&mut text).expect("the server's output can be read");
    assert!(server.child.wait().expect("it ends").success());
    let value: Value = serde_json::from_str(&text).expect("one JSON object");
    assert_eq!((&value["schema"], &value["test"]), (&1.into(), &"send_bw".into()));
    assert_eq!(value["results"][0]["messages_verified"], 10);
}

#[test]
fn a_host_may_be_followed_by_its_port() {
    let server = Server::start(&[]);
    for host in [format!("127.0.0.1:{}", server.port), format!("[::ffff:127.0.0.1]:{}", server.port)] {
        // The port that is given with -p is another one, where nobody listens.
        let output = finish(perf(&["client", &host, "-p", "1", "-n", "10", "-s", "4KiB", "--json"]));
        assert!(output.status.success(), "{output:?}");
        let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(value["results"][0]["bytes"], 4096, "{value}");
    }
    let output = finish(perf(&["client", "127.0.0.1:many", "-n", "1"]));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && text.contains("host:port"), "{text}");
}

#[test]
fn what_an_impairment_did_is_reported() {
    let server = Server::start(&[]);
    let lossy = ["send_bw", "-c", "UD", "-n", "500", "-s", "1000", "--impair", "loss=20%,corrupt=5%"];
    let output = server.client(&[&lossy[..], &["--json"]].concat());
    let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let sent = &value["impairment"]["sent"];
    assert!(number(sent, "packets") >= 500.0 && number(sent, "lost") > 0.0, "{value}");
    assert!(number(sent, "corrupted") > 0.0 && number(sent, "queue_full") == 0.0, "{value}");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(&format!("packets sent, {} lost", number(sent, "lost"))), "{text}");
    // As a result that shows an error: lost messages are a failure.
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(server.measure(&["send_bw", "-n", "10"])["impairment"].is_null());
}

#[test]
fn a_full_disk_is_an_error() {
    let server = Server::start(&[]);
    for scheme in [&[][..], &["--scheme", "sr:nack"]] {
        let output = server.client(&[&["-n", "50", "--capture", "/dev/full", "--json"], scheme].concat());
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let value: Value = serde_json::from_slice(&output.stdout).expect("one line of JSON");
        let error = value["error"].as_str().unwrap_or_default();
        assert!(error.contains("--capture") && error.contains("No space left"), "{error}");
        assert_eq!(value["results"].as_array().map(Vec::len), Some(1), "the result is there all the same: {value}");
    }
    let full = std::fs::File::options().write(true).open("/dev/full").expect("every Linux has it");
    let mut client = perf(&["client", "127.0.0.1", "-p", &server.port, "-n", "10", "--json"]);
    client.stdout(full);
    let output = client.output().expect("the command runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(text.contains("cannot be written") && !text.contains("panicked"), "{text}");
}

#[test]
fn running_out_of_descriptors_says_so() {
    let server = Server::start(&[]);
    let program = env!("CARGO_BIN_EXE_longhaul");
    let limited = |limit: u32| {
        let line = format!("ulimit -n {limit}; exec {program} perf client 127.0.0.1 -p {} -n 10", server.port);
        Command::new("sh").args(["-c", &line]).output().expect("the shell runs")
    };
    let mut failures = 0;
    for limit in 6..12 {
        let output = limited(limit);
        let text = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            failures += 1;
            assert_eq!(output.status.code(), Some(3), "{limit}: {text}");
            assert!(text.contains("Too many open files") && text.contains("ulimit -n"), "{limit}: {text}");
        }
    }
    assert!(failures > 0, "six descriptors are not enough for a device");
}
