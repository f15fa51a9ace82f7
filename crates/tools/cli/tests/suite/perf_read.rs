//! `longhaul perf` with READs and atomics: only the client does anything, the server's device answers.

use crate::perf_server;

use std::process::{Output, Stdio};
use std::time::Duration;

use perf_server::{Server, finish, finish_child, number, perf, wait_for};

const TESTS: [&[&str]; 3] = [&["read"], &["atomic"], &["atomic", "-A", "CMP_AND_SWAP"]];

/// The test's name, with its options behind it.
fn test<'a>(kind: &[&'a str], bandwidth: bool, room: &'a mut String) -> Vec<&'a str> {
    *room = format!("{}_{}", kind[0], if bandwidth { "bw" } else { "lat" });
    [&[room.as_str()], &kind[1..]].concat()
}

fn stdout(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn bandwidth_and_latency_with_contents_checked() {
    let server = Server::start(&[]);
    let operations = ["read", "fetch_and_add", "compare_and_swap"];
    for (kind, operation) in TESTS.into_iter().zip(operations) {
        let bytes = if operation == "read" { 3000 } else { 8 };
        let size = bytes.to_string();
        for bandwidth in [true, false] {
            let mut name = String::new();
            let arguments = test(kind, bandwidth, &mut name);
            let value = server.measure(&[&arguments[..], &["-n", "300", "-s", &size, "--verify"]].concat());
            assert_eq!((&value["test"], &value["operation"]), (&arguments[0].into(), &operation.into()));
            assert_eq!((&value["connection"], &value["verified"]), (&"RC".into(), &true.into()));
            assert!(number(&value, "outstanding_reads") >= 1.0, "{value}");
            let result = &value["results"][0];
            assert_eq!((&result["bytes"], &result["iterations"]), (&bytes.into(), &300.into()), "{result}");
            assert_eq!(result["messages_lost"], 0);
            if bandwidth {
                assert_eq!(result["messages_verified"], 300, "{result}");
                assert!(number(result, "bw_average_gbps") > 0.0, "{result}");
            } else {
                let names = ["t_min_us", "t_typical_us", "p99_us", "p99_9_us", "t_max_us"];
                let times = names.map(|name| number(result, name));
                assert!(times[0] > 0.0 && times.is_sorted(), "{result}");
            }
        }
    }
}

#[test]
fn several_queue_pairs_and_few_outstanding() {
    let server = Server::start(&[]);
    for kind in TESTS {
        let mut name = String::new();
        let arguments = test(kind, true, &mut name);
        for outstanding in ["1", "3"] {
            let value =
                server.measure(&[&arguments[..], &["-q", "20", "-n", "40", "-o", outstanding, "--verify"]].concat());
            assert_eq!(value["outstanding_reads"].to_string(), outstanding);
            assert_eq!(value["results"][0]["messages_verified"], 800, "{value}");
        }
        let value = server.measure(&[&arguments[..], &["-D", "1", "-q", "2", "--verify"]].concat());
        let result = &value["results"][0];
        assert_eq!(result["messages_verified"], result["iterations"], "{result}");
        assert!(number(result, "seconds") >= 0.9, "{result}");
    }
    let value = server.measure(&["read_bw", "-a", "-n", "5", "--verify"]);
    let results = value["results"].as_array().expect("results");
    assert_eq!((results.len(), &results[22]["bytes"]), (23, &(1 << 23).into()));
    assert!(results.iter().all(|result| result["messages_verified"] == 5), "{value}");
    server.measure(&["read_lat", "-e", "-n", "50", "--verify"]);
    server.measure(&["atomic_bw", "-e", "-n", "50", "--verify"]);
}

/// Requests and answers that are lost, come twice or late: READs bring what is there, and each atomic is carried out
/// once.
#[test]
fn exactly_once_over_a_bad_network() {
    let server = Server::start(&["--impair", "loss=1%,duplicate=5%,reorder=1%,hold=500us"]);
    let bad = ["--verify", "--impair", "loss=1%,duplicate=5%,reorder=1%,hold=500us"];
    for kind in TESTS {
        let mut name = String::new();
        let arguments = test(kind, true, &mut name);
        let value = server.measure(&[&arguments[..], &["-n", "100", "-q", "3"], &bad].concat());
        assert_eq!(value["results"][0]["messages_verified"], 300, "{value}");
        let arguments = test(kind, false, &mut name);
        let value = server.measure(&[&arguments[..], &["-n", "100"], &bad].concat());
        assert_eq!(value["results"][0]["iterations"], 100, "{value}");
    }
}

#[test]
fn latency_is_that_of_both_ways() {
    let server = Server::start(&[]);
    let slow = ["-n", "20", "--impair", "delay=2ms"];
    for name in ["read_lat", "atomic_lat"] {
        let value = server.measure(&[&[name][..], &slow].concat());
        let least = number(&value["results"][0], "t_min_us");
        assert!(least >= 4000.0, "2 ms there and 2 ms back are not halved: {value}");
    }
}

#[test]
fn tables_have_perftests_names() {
    let server = Server::start(&[]);
    let text = stdout(server.client(&["read_bw", "-n", "20", "-o", "2"]));
    for part in ["RDMA_Read BW Test", "Outstand reads  : 2", "BW peak[MiB/sec]", "\n 65536      20 "] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let text = stdout(server.client(&["atomic_lat", "-n", "20"]));
    for part in ["Atomic FETCH_AND_ADD Latency Test", "99.9% percentile[usec]", "\n 8          20 "] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let text = stdout(server.client(&["atomic_bw", "-A", "CMP_AND_SWAP", "-n", "20"]));
    assert!(text.contains("Atomic CMP_AND_SWAP BW Test"), "{text}");
    // Of which the rest is not changed.
    let text = stdout(server.client(&["write_bw", "-n", "20"]));
    assert!(!text.contains("Outstand"), "{text}");
    // More than the device can are as many as it can, and it is said.
    let output = server.client(&["read_bw", "-n", "20", "-o", "255"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("-o 255"), "{said}");
}

#[test]
fn a_capture_holds_what_was_read() {
    let path = std::env::temp_dir().join(format!("longhaul-perf-read-{}.pcapng", std::process::id()));
    let server = Server::start(&[]);
    server.measure(&["read_bw", "-n", "20", "--capture", path.to_str().expect("a plain path")]);
    let bytes = std::fs::read(&path).expect("the capture is there");
    std::fs::remove_file(&path).expect("the capture can be removed");
    assert!(bytes.len() > 20 * 65_536, "{} bytes cannot hold 20 messages", bytes.len());
}

#[test]
fn only_rc_reads() {
    let check = |arguments: &[&str], word: &str| {
        let output = finish(perf(&[&["client", "127.0.0.1"], arguments].concat()));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(word), "{arguments:?}: {word} in {said}");
    };
    for test in ["read_bw", "read_lat", "atomic_bw", "atomic_lat"] {
        check(&[test, "-c", "UC"], "only RC has READs and atomics");
        check(&[test, "-c", "UD"], "only RC has READs and atomics");
    }
    check(&["atomic_bw", "-s", "16"], "8 bytes");
    check(&["atomic_bw", "-a"], "8 bytes");
    check(&["write_bw", "-o", "4"], "-o");
    check(&["read_bw", "-A", "CMP_AND_SWAP"], "-A");
    check(&["atomic_bw", "-A", "MASKED"], "FETCH_AND_ADD");
    check(&["read_bw", "-o", "0"], "0");
    check(&["read_lat", "-q", "2"], "-q");
    // Nor does a server that gets another plan.
    let server = Server::start(&[]);
    let plan = r#"{"test":"read_bw","operation":"read","connection":"Uc","queue_pairs":1,"message_bytes_max":1,"send_depth":1,"receive_depth":1,"outstanding_reads":1,"sleeps":false,"timeout":14,"rate":"Careful","verify_seed":null}"#;
    let hello = format!(r#"{{"Hello":{{"version":8,"client":"127.0.0.1","server":"127.0.0.1","plan":{plan}}}}}"#);
    let answer = server.say(&hello);
    assert!(answer.contains("Refused") && answer.contains("need RC"), "{answer}");
}

#[test]
fn a_reader_notices_that_the_server_is_gone() {
    for test in ["read_bw", "read_lat", "atomic_bw"] {
        let mut server = Server::start(&[]);
        let mut client = perf(&["client", "127.0.0.1", "-p", &server.port, test, "-D", "60", "-u", "10"]);
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
