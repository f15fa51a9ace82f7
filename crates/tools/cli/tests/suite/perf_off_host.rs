//! `longhaul perf` to a peer that is not on this host: RC has congestion control, the rest is careful by default. The other host is a network namespace,
//! made inside a namespace of the test's own; where that is not allowed the test says that it was skipped.

use std::process::{Command, Stdio};

use serde_json::Value;

/// In a namespace of its own, with another one next to it, and a veth between them. The other one, and the server in
/// it, end with this shell.
const SCRIPT: &str = r#"
set -e
unshare --net sleep 50 &
other=$!
server=
trap 'kill $other $server 2>/dev/null || true' EXIT
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.01; done
ip link set lo up
ip link add here mtu 4200 type veth peer name there mtu 4200 netns $other
ip address add 198.18.0.1/24 dev here
ip link set here up
nsenter --target $other --net ip address add 198.18.0.2/24 dev there
nsenter --target $other --net ip link set there up
echo made >&2
nsenter --target $other --net "$LONGHAUL" perf server --address 198.18.0.2 >/dev/null 2>&1 &
server=$!
for attempt in $(seq 100); do
    status=0
    "$LONGHAUL" perf client 198.18.0.2 write_bw -c "$CONNECTION" -n 500 -s 65536 --json || status=$?
    # 3 is nobody there: not yet.
    [ $status = 3 ] || exit $status
    sleep 0.1
done
exit 3
"#;

fn in_namespace(connection: &str, options: &[&str]) -> Option<(Value, String)> {
    let mut command = Command::new("unshare");
    command.args(options).args(["timeout", "40", "sh", "-c", SCRIPT]);
    command.env("LONGHAUL", env!("CARGO_BIN_EXE_longhaul")).env("CONNECTION", connection);
    let output = command.stdin(Stdio::null()).output().ok()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !said.contains("made\n") {
        eprintln!("{options:?}: {said}");
        return None;
    }
    assert!(output.status.success(), "{:?}: {said}", output.status);
    // Every try before the server listened has an error in a line of its own.
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = stdout.lines().last().unwrap_or_default();
    Some((serde_json::from_str(last).expect("one JSON object"), said))
}

fn measured(connection: &str) -> Option<(Value, String)> {
    let measured = in_namespace(connection, &["--net"])
        .or_else(|| in_namespace(connection, &["--user", "--map-root-user", "--net"]));
    if measured.is_none() {
        eprintln!("SKIPPED: no network namespaces here, so there is no other host to send to");
    }
    measured
}

#[test]
fn unreliable_sending_off_host_is_paced() {
    let Some((value, said)) = measured("UC") else { return };
    assert!(said.contains("not on this host, so sending is paced at 1 Gbit/s"), "{said}");
    // 32 MiB take 0.26 s at this rate. Unpaced, a veth carries several times as much.
    let gbps = value["results"][0]["bw_average_gbps"].as_f64().expect("a number");
    assert!(gbps < 1.2, "{gbps} Gbit/s instead of 1");
    assert_eq!(value["rate_limit_bits_per_second"], 1_000_000_000, "{value}");
    assert_eq!(value["congestion"], Value::Null, "{value}");
}

#[test]
fn reliable_sending_off_host_has_congestion_control() {
    let Some((value, said)) = measured("RC") else { return };
    assert!(said.contains("not on this host, so congestion control (wan) finds the rate"), "{said}");
    assert_eq!(value["rate_limit_bits_per_second"], Value::Null, "{value}");
    assert_eq!(value["congestion"], "wan", "{value}");
    let gbps = value["results"][0]["bw_average_gbps"].as_f64().expect("a number");
    println!("{gbps} Gbit/s");
    assert!(gbps > 0.02, "{gbps} Gbit/s over a veth");
}
