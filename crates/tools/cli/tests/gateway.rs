//! `longhaul gateway`, as an operator meets it: hosts in two network namespaces, whose RNICs know nothing of it, and between them
//! two gateways with a link that loses packets.
//!
//! ```text
//!   a0 (host) ═ veth ═ a1 gateway a2 ═ veth ═ a3 link b3 ═ veth ═ b2 gateway b1 ═ veth ═ b0 (host)
//! ```
//!
//! Where namespaces are not allowed, a test says that it was skipped.

mod gateway_ground;

use std::time::{Duration, Instant};

use gateway_ground::{Ground, in_namespace};

#[test]
fn lost_packets_are_repaired_and_a_gateway_that_is_killed_leaves_a_bridge() {
    in_namespace("lost_packets_are_repaired_and_a_gateway_that_is_killed_leaves_a_bridge", || {
        let ground = Ground::make();
        let _link = ground.link("loss=1%,delay=1ms");
        let (mut one, _other) = (ground.gateway('a'), ground.gateway('b'));
        let witnesses = [ground.count('a'), ground.count('b')];
        let _server = ground.server();
        let options = "-s 65536 -n 400 --verify --mtu 1024";
        for test in ["write_bw", "send_bw", "read_bw"] {
            let report = ground.client(&format!("{test} {options}")).wait();
            assert!(report["fec"].is_null() && report["results"][0]["messages_verified"] == 400, "{report}");
        }
        let (here, there) = (ground.status('a'), ground.status('b'));
        for (status, side) in [(&here, "a"), (&there, "b")] {
            assert_eq!(status["peer_heard"], true, "{status}");
            assert!(status["towards_site"]["restored_packets"].as_u64() > Some(20), "{side}: {status}");
            assert_eq!(status["towards_site"]["not_built_packets"], 0, "{side}: {status}");
        }
        assert!(ground.metrics().contains("longhaul_gateway_peer_heard 1\n"));
        assert_eq!(witnesses.each_ref().map(|witness| witness.repairs()), [0, 0], "no repair packet reaches a host");

        // Killed in mid-transfer: the bridge forwards, and the transfer goes on.
        let client = ground.client("write_bw -s 65536 -n 4000 --verify --mtu 1024");
        std::thread::sleep(Duration::from_millis(700));
        one.kill();
        std::thread::sleep(Duration::from_millis(300));
        let before = witnesses[1].packets();
        std::thread::sleep(Duration::from_millis(700));
        let meanwhile = witnesses[1].packets() - before;
        assert!(meanwhile > 100, "{meanwhile} packets arrived while the gateway was not there");
        // It takes over again from the bridge.
        let _one = ground.gateway('a');
        let report = client.wait();
        // As many as have room next to each other in the receiver's memory; later ones overwrite earlier ones.
        let result = &report["results"][0];
        assert!(result["messages_verified"].as_u64() >= Some(1000), "{report}");
        ground.client(&format!("write_bw {options}")).wait();
        let again = ground.status('a');
        assert!(again["peer_heard"] == true && again["towards_wide"]["repair_packets"].as_u64() > Some(0), "{again}");
        // Host a gets some through the bridge while its gateway is not there, and drops them.
        assert_eq!(witnesses[1].repairs(), 0);
    });
}

#[test]
fn a_bridge_joins_what_a_gateway_has_left_and_another_gateway_takes_over() {
    in_namespace("a_bridge_joins_what_a_gateway_has_left_and_another_gateway_takes_over", || {
        let ground = Ground::make();
        let _link = ground.link("delay=0ms");
        let mut other = ground.gateway('b');
        for _ in 0..3 {
            let mut one = ground.gateway('a');
            // Through the gateway, not through the bridge next to it: each datagram arrives once.
            assert_eq!(ground.exchange(20), 20);
            assert!(ground.status('a')["towards_wide"]["other_frames"].as_u64() >= Some(20));
            // Ctrl-Z does not stop it, which would block the link.
            one.press_ctrl_z();
            assert_eq!(ground.exchange(20), 20);
            let (status, said) = ground.try_gateway('a');
            assert!(status == 1 && said.contains("runs already"), "{status}: {said}");
            let (status, said) = ground.try_gateway_with_bridge_of('a', 'b');
            assert!(status == 3 && said.contains("has the port b1"), "{status}: {said}");
            one.kill();
            assert_eq!(ground.exchange(20), 20);
        }
        // In order, too.
        other.interrupt();
        let begun = Instant::now();
        assert_eq!(ground.exchange(20), 20);
        assert!(begun.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn mistakes_are_explained() {
    let said = |file: &str, text: &str| {
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gateway-mistake-{file}.toml"));
        std::fs::write(&path, text).expect("a file");
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_longhaul"))
            .args(["gateway", "run", path.to_str().expect("UTF-8"), "--json"])
            .output()
            .expect("it runs");
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let value: serde_json::Value = serde_json::from_str(&stdout).expect("one JSON object");
        (output.status.code().expect("it exits"), value["error"].as_str().expect("an error").to_owned())
    };
    let least = "wide = \"b\"\npeer = \"10.0.0.0/8\"\nmetrics = \"\"\n";
    for (file, text, status, expected) in [
        ("unknown", format!("site = \"a\"\ncolor = 1\n{least}"), 2, "unknown field `color`"),
        ("missing", least.to_owned(), 2, "missing field `site`"),
        ("same", format!("site = \"b\"\n{least}"), 2, "site and wide are both b"),
        ("none", format!("site = \"no-such-if\"\n{least}"), 3, "no interface no-such-if"),
    ] {
        let (got, said) = said(file, &text);
        assert!(got == status && said.contains(expected), "{file}: exit {got}, expected {status}: {said}");
    }
}
