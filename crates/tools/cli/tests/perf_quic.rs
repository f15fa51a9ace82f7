//! `longhaul perf quic` as users run it: both ends on loopback, and without the feature.

mod perf_server;

use std::path::{Path, PathBuf};

use perf_server::{finish, perf};

fn certificate(test: &str) -> PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("quic-{test}-{}.der", std::process::id()));
    let _ = std::fs::remove_file(&file);
    file
}

#[cfg(not(feature = "quic"))]
#[test]
fn without_the_feature_it_says_how_to_get_it() {
    let file = certificate("none");
    let file = file.to_str().expect("text");
    for arguments in [&["quic", "--certificate", file, "--json"][..], &["quic", "::1", "--certificate", file, "--json"]]
    {
        let output = finish(perf(arguments));
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        let error = value["error"].as_str().unwrap_or_default();
        assert!(output.status.code() == Some(3) && error.contains("--features quic"), "{output:?}");
    }
}

#[cfg(feature = "quic")]
mod with_the_feature {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Child, Output, Stdio};

    use super::perf_server::{finish_child, number};
    use super::*;

    use serde_json::Value;

    /// A server that takes one client, and the port at which it waits.
    fn start_server(certificate: &str) -> (Child, String) {
        let arguments = ["quic", "--address", "127.0.0.1", "-p", "0", "--certificate", certificate, "--json"];
        let mut child = perf(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut line = String::new();
        let log = child.stderr.as_mut().expect("it was asked for as a pipe");
        BufReader::new(log).read_line(&mut line).expect("the server says where it waits");
        let port = line.split("UDP port ").nth(1).and_then(|rest| rest.split(' ').next());
        (child, port.unwrap_or_else(|| panic!("a port in {line}")).to_owned())
    }

    fn client(port: &str, certificate: &str, arguments: &str) -> Output {
        let ends = ["quic", "127.0.0.1", "-p", port, "--certificate", certificate];
        finish(perf(&ends.into_iter().chain(arguments.split_whitespace()).collect::<Vec<_>>()))
    }

    #[track_caller]
    fn value(output: &Output) -> Value {
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text.lines().count(), 1, "one line: {text}");
        let value: Value = serde_json::from_str(&text).expect("one JSON object");
        assert_eq!((&value["schema"], &value["test"]), (&1.into(), &"quic".into()));
        value
    }

    #[test]
    fn bulk_and_messages_arrive_whole() {
        let file = certificate("whole");
        let file = file.to_str().expect("text");
        for (arguments, bytes, streams) in
            [("-s 3MiB --connections 2 --json", 6 << 20, 2), ("-s 100KiB -n 5 --congestion bbr --json", 500 << 10, 5)]
        {
            let (server, port) = start_server(file);
            let client = value(&client(&port, file, arguments));
            let server = value(&finish_child(server));
            for (end, role) in [(&client, "client"), (&server, "server")] {
                assert_eq!(
                    (&end["role"], &end["bytes"], &end["streams"]),
                    (&role.into(), &bytes.into(), &streams.into())
                );
            }
            assert!(client["has_one_clock"] == true && number(&client["handshake_ms"], "min") > 0.0, "{client}");
            let is_message = arguments.contains("-n");
            assert_eq!(client["bw_average_gbps"].as_f64().is_some_and(|gbps| gbps > 0.0), !is_message, "{client}");
            assert_eq!(client["completion_us"]["p50"].as_f64().is_some_and(|time| time > 0.0), is_message, "{client}");
        }
        let (server, port) = start_server(file);
        let output = client(&port, file, "-s 1MiB");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("Mbit/s") && text.contains("lost"), "{text}");
        value(&finish_child(server));
    }

    #[test]
    fn mistakes_are_explained() {
        let (file, other) = (certificate("one"), certificate("other"));
        let (file, other) = (file.to_str().expect("text"), other.to_str().expect("text"));
        let (server, port) = start_server(file);
        let (mut another, _) = start_server(other);
        for (port, file, status, expected) in [
            (&*port, other, 1, "another certificate"),
            (&*port, "/proc/nowhere/file", 3, "cannot read --certificate"),
            (&*port, "/proc/version", 3, "expected X.509"),
            ("1", other, 3, "does a receiver listen there?"),
        ] {
            let output = client(port, file, "--patience 2");
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(status) && text.contains(expected), "{status}: {output:?}");
        }
        // Those who failed did not disturb the server.
        value(&client(&port, file, "-s 1 --json"));
        assert!(value(&finish_child(server))["connections_refused"].as_u64() >= Some(1));
        another.kill().expect("it runs");
        another.wait().expect("it ends");
    }
}
