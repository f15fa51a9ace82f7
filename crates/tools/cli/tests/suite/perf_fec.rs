//! `longhaul perf client --fec`: forward error correction between two processes, over sockets that lose.

use crate::perf_server;

use perf_server::Server;
use serde_json::Value;

/// Both directions lose 0.3 % of packets, 2 ms away.
const IMPAIR: [&str; 2] = ["--impair", "loss=0.3%,delay=1ms"];

fn count(report: &Value, name: &str) -> u64 {
    report["fec_counters"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {report}"))
}

fn seconds(report: &Value) -> f64 {
    report["results"][0]["seconds"].as_f64().unwrap_or_else(|| panic!("no time in {report}"))
}

#[test]
fn rc_is_repaired_before_it_has_to_repeat() {
    let server = Server::start(&IMPAIR);
    for test in ["write_bw", "send_bw", "read_bw"] {
        let options = [test, "-s", "65536", "-n", "300", "--verify", "--mtu", "1024"];
        let plain = server.measure(&options);
        assert!(plain["fec"].is_null() && plain["fec_counters"].is_null(), "{plain}");
        let repaired = server.measure(&[&options[..], &["--fec", "lowar:mds:32,4"]].concat());
        assert_eq!(repaired["fec"], "lowar:mds:32,4");
        // READs are answered by the server, and what it sends is restored here.
        let name = if test == "read_bw" { "restored_packets" } else { "repair_packets" };
        assert!(count(&repaired, name) > 0, "{repaired}");
        assert_eq!(repaired["results"][0]["messages_verified"], plain["results"][0]["messages_verified"]);
        let (plain, repaired) = (seconds(&plain), seconds(&repaired));
        assert!(repaired < plain, "{test}: {plain} s without, {repaired} s with repair");
    }
}

#[test]
fn uc_loses_nothing() {
    let server = Server::start(&IMPAIR);
    let options = ["send_bw", "-c", "UC", "-s", "65536", "-n", "200", "--verify", "--rate", "500Mbps", "--mtu", "1024"];
    // Without repair some 35 messages of each run are lost. A busy machine may keep an end from working for longer than
    // a packet waits for those before it; then one or two are.
    let mut lost = Vec::new();
    while lost.len() < 8 && lost.last() != Some(&0) {
        let report = server.measure(&[&options[..], &["--fec", "lowar:mds:32,8"]].concat());
        lost.push(report["results"][0]["messages_lost"].as_u64().expect("a count"));
    }
    assert_eq!(lost.last(), Some(&0), "{lost:?}");
}

#[test]
fn the_code_follows_the_link_and_every_change_is_explained() {
    let server = Server::start(&["--impair", "loss=1%,delay=1ms"]);
    // READs: the server sends. WRITEs: the client does, and prints why it chose what it chose.
    let options = ["-s", "262144", "-D", "2", "--verify", "--mtu", "1024", "--fec", "auto:mds,overhead=30%"];
    let report = server.measure(&[&["write_bw", "--impair", "loss=1%,delay=1ms"], &options[..]].concat());
    assert_eq!((&report["fec"], &report["fec_peer"]), (&"auto:mds,overhead=30%".into(), &"softnic".into()));
    assert!(count(&report, "reports_used") > 0 && count(&report, "reports_refused") == 0, "{report}");
    let paths = report["fec_paths"].as_array().expect("paths");
    assert_eq!(paths.len(), 1, "{report}");
    assert_eq!(paths[0]["peer"], "127.0.0.1");
    let changes = paths[0]["changes"].as_array().expect("changes");
    assert_eq!(changes.len() as u64, count(&report, "code_changes"));
    // Both ends impair both directions: 2 %.
    let loss = paths[0]["loss"].as_f64().expect("a share");
    assert!((0.012..0.03).contains(&loss), "{report}");
    for change in changes {
        assert!(change["reason"] == "too_weak" || change["reason"] == "too_costly", "{change}");
        assert!(change["sample_packets"].as_u64() > Some(0) && change["overhead"]["after"].as_f64() <= Some(0.3));
    }
    let read = server.measure(&[&["read_bw"], &options[..]].concat());
    assert!(count(&read, "restored_packets") > 0 && count(&read, "reports_sent") > 0, "{read}");
}

#[test]
fn a_gateway_before_the_peer_is_not_asked() {
    let gateway = ["--fec", "lowar:mds:32,4", "--fec-peer", "gateway"];
    let options = ["-s", "65536", "-n", "200", "--verify", "--mtu", "1024"];
    // Each end takes the place of the gateway before the other.
    let server = Server::start(&[&IMPAIR[..], &gateway[..]].concat());
    for test in ["write_bw", "read_bw"] {
        let report = server.measure(&[&[test], &options[..], &gateway[..]].concat());
        assert_eq!((&report["fec"], &report["fec_peer"]), (&"lowar:mds:32,4".into(), &"gateway".into()));
        let name = if test == "read_bw" { "restored_packets" } else { "repair_packets" };
        assert!(count(&report, name) > 0, "{report}");
    }
    // It would be repaired twice.
    let output = server.client(&["--fec", "lowar:32,1"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("--fec-peer gateway"), "{output:?}");
    // Messages of single packets would be sent twice.
    let output = server.client(&["--scheme", "sr:nack", "-s", "65536", "-n", "10"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("single packets"), "{output:?}");
    // With no gateway there, repair packets are of no use, and do no harm.
    let plain = Server::start(&[]);
    let report = plain.measure(&[&["write_bw"], &options[..], &gateway[..]].concat());
    assert!(count(&report, "repair_packets") > 0, "{report}");
}

#[test]
fn what_it_cannot_protect_is_a_usage_error() {
    let server = Server::start(&[]);
    let output = server.client(&["send_bw", "-c", "UD", "--fec", "lowar:32,1"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    for arguments in [
        &["--fec", "lowar:0,0"][..],
        &["--fec", "auto:fountain"],
        &["--fec", "auto,overhead=200%"],
        &["--fec-peer", "gateway"],
        &["--fec", "auto", "--scheme", "sr:nack"],
        &["--fec", "auto", "--fec-peer", "gateway", "--scheme", "sr:nack"],
    ] {
        let output = server.client(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {output:?}");
    }
    let output = perf_server::finish(perf_server::perf(&["server", "-p", "0", "--fec", "lowar:32,1"]));
    assert_eq!(output.status.code(), Some(2), "the client decides: {output:?}");
}
