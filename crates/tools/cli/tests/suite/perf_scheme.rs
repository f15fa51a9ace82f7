//! `longhaul perf client --scheme`: messages with a reliability scheme, on the loopback device, contents verified.

use crate::perf_server;

use std::process::Stdio;

use perf_server::{Server, finish_child, number, perf, wait_for};
use serde_json::Value;

/// The times that users wait for their messages, in order, and the same where there is one result.
#[track_caller]
fn check_completion(value: &Value) {
    let times = ["p50", "p99", "p999", "max"].map(|name| number(&value["completion_us"], name));
    assert!(times[0] > 0.0 && times.is_sorted(), "{value}");
    let result = &value["results"][0];
    assert_eq!(result["completion_us"]["max"], value["completion_us"]["max"], "{value}");
    for name in ["repeated", "duplicates"] {
        assert_eq!(result[name], value[name], "{value}");
    }
    assert_eq!(value["repeated"], result["data_packets_repeated"], "{value}");
}

#[test]
fn every_scheme_over_every_link() {
    let server = Server::start(&[]);
    for scheme in ["sr:rto", "sr:nack", "ec:mds:8,2", "ec:xor:8,2"] {
        for link in [&[][..], &["--impair", "loss=1%,reorder=2%,hold=500us,duplicate=1%"]] {
            let arguments = [&["--scheme", scheme, "-s", "300000", "-n", "20", "--verify"], link].concat();
            let value = server.measure(&arguments);
            assert_eq!((&value["scheme"], &value["test"]), (&scheme.into(), &"write_bw".into()), "{value}");
            assert_eq!(value["chunk_bytes"], value["mtu_bytes"]);
            let result = &value["results"][0];
            assert_eq!((&result["bytes"], &result["iterations"]), (&300_000.into(), &20.into()), "{result}");
            assert_eq!((&result["messages_lost"], &result["messages_verified"]), (&0.into(), &20.into()), "{result}");
            assert!(number(result, "bw_average_gbps") > 0.0 && number(result, "round_trip_us") > 0.0, "{result}");
            let packets = 300_000_u64.div_ceil(value["mtu_bytes"].as_u64().expect("an MTU")) * 20;
            let (sent, again) = (number(result, "data_packets_sent"), number(result, "data_packets_repeated"));
            assert_eq!(sent - again, packets as f64, "every packet once, and some again: {result}");
            assert_eq!(number(result, "parity_packets_sent") > 0.0, scheme.starts_with("ec"), "{result}");
            // Of a hundred packets one is lost, of 1500; whatever the scheme does about it, something it does.
            let repaired = again + number(result, "chunks_recovered");
            assert!(link.is_empty() || repaired > 0.0, "{result}");
            check_completion(&value);
            // What the server saw twice reaches the client: the link duplicates one packet of a hundred.
            assert!(link.is_empty() || number(&value, "duplicates") > 0.0, "{value}");
        }
    }
}

#[test]
fn bounded_messages_say_what_is_missing_and_contents_agree() {
    let server = Server::start(&[]);
    for scheme in ["be", "be+ec:mds:8,1", "sr:nack"] {
        let arguments = ["--scheme", scheme, "--deadline", "100ms", "-s", "300000", "-n", "40", "--impair", "loss=5%"];
        // Contents that do not agree with the ranges end it with an error.
        let value = server.measure(&arguments);
        assert_eq!((&value["deadline_us"], &value["verified"]), (&100_000.0.into(), &true.into()), "{value}");
        let result = &value["results"][0];
        assert_eq!((&result["iterations"], &result["messages_verified"]), (&40.into(), &40.into()), "{value}");
        let ended = ["whole", "quiet", "deadline"].map(|name| number(&value["ended"], name));
        assert_eq!(ended.iter().sum::<f64>(), 40.0, "{value}");
        let (bytes, ranges) = (number(&value, "missing_bytes"), number(&value, "missing_ranges"));
        let heard = &value["sender"];
        let known = ["whole", "partial", "unknown"].map(|name| number(heard, name));
        assert_eq!(known.iter().sum::<f64>(), 40.0, "{value}");
        if known[2] == 0.0 {
            assert_eq!((number(heard, "missing_bytes"), number(heard, "missing_ranges")), (bytes, ranges), "{value}");
            assert_eq!(known[0], ended[0], "{value}");
        }
        if scheme == "sr:nack" {
            assert!(ended[1] == 0.0 && number(&value, "repeated") > 0.0, "{value}");
        } else {
            // Of 74 packets four are lost, and of 40 messages hardly one arrives whole without parity.
            assert!(bytes > 0.0 && ranges > 0.0 && ended[1] > 0.0, "{value}");
            assert_eq!(number(&value, "repeated"), 0.0, "{value}");
        }
    }
    // Far too much for its time.
    let value = server.measure(&["--scheme", "be", "--deadline", "3ms", "-s", "67108864", "-n", "20"]);
    for times in ["late_us", "ended_late_us", "after_end_us"] {
        let late = ["p50", "p99", "max"].map(|name| number(&value[times], name));
        assert!(late[0] >= 0.0 && late.is_sorted(), "{times}: {value}");
    }
    // Of the time until messages are there, most is for filling tens of megabytes.
    assert!(number(&value["ended"], "deadline") > 15.0, "{value}");
    assert!(number(&value["late_us"], "p50") > number(&value["ended_late_us"], "p50"), "{value}");
    let output = server.client(&["--scheme", "be", "--deadline", "100ms", "-n", "5"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("ended: ") && text.contains("Deadline"), "{text}");
}

#[test]
fn small_messages_and_small_packets() {
    let server = Server::start(&[]);
    for arguments in
        [&["-s", "1", "-n", "200"][..], &["-s", "70001", "-n", "50", "-m", "256"], &["-s", "4096", "-D", "1"]]
    {
        let value = server.measure(&[&["--scheme", "sr:nack", "--verify"], arguments].concat());
        let result = &value["results"][0];
        assert!(number(result, "messages_verified") > 0.0, "{result}");
        assert_eq!(result["messages_verified"], result["iterations"], "{result}");
    }
    // And the rate is kept: 20 messages of a megabyte at 1 Gbit/s take 0.16 s.
    let value = server.measure(&["--scheme", "ec:mds:4,1", "-s", "1000000", "-n", "20", "--rate", "1"]);
    assert_eq!(value["rate_limit_bits_per_second"], 1_000_000_000);
    assert!(number(&value["results"][0], "bw_average_gbps") < 1.1, "{value}");
    // Plain WRITEs are measured by the same server as before.
    server.measure(&["write_bw", "-n", "10"]);
}

#[test]
fn depth_and_chunk_are_what_was_asked_for() {
    let server = Server::start(&[]);
    let value =
        server.measure(&["--scheme", "sr:nack", "-s", "64", "-r", "256", "-n", "3000", "--chunk", "8KiB", "--verify"]);
    assert_eq!((&value["messages_in_flight"], &value["chunk_bytes"]), (&256.into(), &8192.into()), "{value}");
    assert_eq!(value["results"][0]["messages_verified"], 3000, "{value}");
    check_completion(&value);
}

/// One message at a time over 5 ms each way: none can be done before its round trip.
#[test]
fn write_lat_is_the_time_until_a_message_is_done() {
    let server = Server::start(&[]);
    for scheme in ["sr:nack", "ec:mds:4,2"] {
        let arguments =
            ["write_lat", "--scheme", scheme, "-s", "10000", "-n", "20", "--impair", "delay=5ms", "--verify"];
        let value = server.measure(&arguments);
        assert_eq!((&value["test"], &value["messages_in_flight"]), (&"write_lat".into(), &1.into()), "{value}");
        assert_eq!(value["results"][0]["messages_verified"], 20, "{value}");
        assert!(number(&value["results"][0]["completion_us"], "min") >= 10_000.0, "{value}");
        check_completion(&value);
    }
}

#[test]
fn the_table_says_what_the_scheme_did() {
    let server = Server::start(&[]);
    let output = server.client(&["--scheme", "ec:mds:8,2", "-s", "1000000", "-n", "3", "--verify"]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for words in ["ec:mds:8,2", "SDR over UC", "data packets sent", "parity packets sent", "round trip", "p99.9"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

/// Every byte is verified by the server, which needs no option for it, and the cost is in the report.
#[test]
fn checksums_and_what_they_cost() {
    let server = Server::start(&[]);
    for scheme in ["sr:nack", "ec:mds:8,2"] {
        let arguments = ["--scheme", scheme, "-s", "300000", "-n", "20", "--verify", "--impair", "loss=1%"];
        let value = server.measure(&[&arguments[..], &["--checksum"]].concat());
        let result = &value["results"][0];
        assert_eq!((&value["checksum"], &result["messages_verified"]), (&true.into(), &20.into()), "{value}");
        for name in ["checksummed_bytes_sent", "checksummed_bytes_verified"] {
            assert_eq!(result[name], 6_000_000, "{name}: {value}");
        }
        let time = number(result, "checksum_ns_per_message");
        assert!(time > 0.0 && number(result, "checksum_over_message_time") > 0.0, "{value}");
        assert!((number(result, "checksum_ns_per_mebibyte") / time * 300_000.0 / 1_048_576.0 - 1.0).abs() < 1e-6);
        assert!((number(result, "checksum_bytes_per_second") * time / 3e14 - 1.0).abs() < 1e-6, "{value}");
        let without = server.measure(&arguments);
        assert_eq!(without["results"][0]["checksummed_bytes_verified"], 0, "{without}");
        assert!(without["results"][0]["checksum_ns_per_message"].is_null(), "{without}");
    }
    let output = server.client(&["--scheme", "sr:nack", "-n", "20", "--checksum"]);
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    for words in ["XXH3", "1310720 bytes verified", "a checksum takes", "each message took on average"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn a_server_that_is_ended_midway_is_told_with_what_to_look_at() {
    for options in [&["--scheme", "sr:nack"][..], &["--scheme", "ec:mds:4,2"], &[]] {
        let mut server = Server::start(&[]);
        let measure = ["client", "127.0.0.1", "-p", &server.port, "-D", "30", "--json"];
        let mut client = perf(&[&measure, options].concat());
        let client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the client starts");
        wait_for(&mut server.log, "server device");
        server.child.kill().expect("it can be ended");
        let output = finish_child(client);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let value: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        let error = value["error"].as_str().expect("an error");
        assert!(error.starts_with("the other end is gone"), "{error}");
    }
}

#[test]
fn messages_that_are_too_large_are_told_with_what_helps() {
    let server = Server::start(&[]);
    for (options, word) in [(&[][..], "-s"), (&["-r", "2"], "-r")] {
        let output = server.client(&[&["--scheme", "sr:nack", "-s", "1073741824"], options].concat());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && text.contains(word) && !text.contains("-q"), "{output:?}");
    }
}

#[test]
fn what_does_not_fit_is_a_usage_error() {
    let server = Server::start(&[]);
    for (arguments, why) in [
        (&["send_bw", "--scheme", "sr:rto"][..], "write_bw or write_lat"),
        (&["--scheme", "sr:rto", "-c", "UC"], "-c"),
        (&["--scheme", "sr:rto", "-e"], "-e"),
        (&["--scheme", "sr:sometimes"], "sr:nack"),
        (&["--scheme", "ec:mds:200,100"], "ec:mds"),
    ] {
        let output = server.client(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(why), "{arguments:?}: {text}");
    }
}
