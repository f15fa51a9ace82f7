//! A path whose MTU shrinks under a connection, at the sender's own interface and at a router further on. The packets do not
//! fit any more and are never cut: requests end in error, and a message names the cause.
//!
//! In network namespaces that the test makes for itself, which takes root or user namespaces:
//!
//! ```text
//!   near ── veth, MTU 4200 ── router ── veth, MTU 4200 ── far
//! ```

mod udp_ends;
mod udp_processes;

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span;
use udp_processes::Process;

/// Set in the process that has namespaces of its own.
const INSIDE: &str = "LONGHAUL_TEST_INSIDE";

/// Prints what is logged.
struct Printer;

impl tracing::Subscriber for Printer {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl Visit for Text {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                write!(self.0, "{field}={value:?} ").unwrap();
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        println!("\nLOGGED {}", text.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn child() {
    // Another test of this process may have set it: there is none.
    let _ = tracing::subscriber::set_global_default(Printer);
    udp_processes::child_main();
}

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("ip (iproute2) can be run");
    assert!(status.success(), "ip {arguments}: {status}");
}

/// This program in a namespace.
fn within(namespace: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace]).arg(std::env::current_exe().unwrap());
    command
}

/// Three namespaces in a row. Everything goes with the process's own mount namespace.
fn lay_out() {
    let status = Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/run"]).status().expect("mount can be run");
    assert!(status.success(), "a private /run");
    for namespace in ["near", "router", "far"] {
        ip(&format!("netns add {namespace}"));
        ip(&format!("-n {namespace} link set lo up"));
    }
    for (end, network) in [("near", 1), ("far", 2)] {
        ip(&format!("link add {end}0 mtu 4200 netns {end} type veth peer name to-{end} mtu 4200 netns router"));
        ip(&format!("-n {end} address add 10.47.{network}.2/24 dev {end}0"));
        ip(&format!("-n router address add 10.47.{network}.1/24 dev to-{end}"));
        ip(&format!("-n {end} link set {end}0 up"));
        ip(&format!("-n router link set to-{end} up"));
        ip(&format!("-n {end} route add default via 10.47.{network}.1"));
    }
    let forward = ["netns", "exec", "router", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"];
    assert!(Command::new("ip").args(forward).status().unwrap().success(), "the router forwards");
}

/// Shrinks the path under a transfer, and looks at how it ends.
fn shrink(by: &str) {
    let mut target = Process::start_by(within("far"), "target", "10.47.2.2");
    let mut writer = Process::start_by(within("near"), "writer", "10.47.1.2");
    target.meet(&writer.end);
    target.line("CONNECTED");
    writer.meet(&target.end);
    writer.line("IN FLIGHT");
    ip(by);
    let logged = writer.line("LOGGED");
    for part in ["do not fit the path to 10.47.2.2", "its MTU is 1500 bytes", "connect again with a smaller MTU"] {
        assert!(logged.contains(part), "{part:?} in {logged:?} after {by}");
    }
    let ended = writer.line("ED ");
    assert!(ended.contains("ENDED"), "said once, not for each packet: {ended:?}");
    assert!(ended.contains("RetryExceededError"), "{ended:?} after {by}");
    let before = target.processor_time();
    std::thread::sleep(Duration::from_millis(500));
    let ran = target.processor_time() - before;
    assert!(ran < Duration::from_millis(20), "the target ran for {ran:?} in half a second");
}

#[test]
fn a_path_that_shrinks() {
    if std::env::var_os(INSIDE).is_some() {
        lay_out();
        shrink("-n near link set near0 mtu 1500");
        ip("-n near link set near0 mtu 4200");
        shrink("-n router link set to-far mtu 1500");
        return;
    }
    let probe = |flags: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(flags).args(["--net", "--mount"]);
        let tries = ["sh", "-c", "mount -t tmpfs tmpfs /run && ip netns add probe"];
        let mut trial = Command::new("unshare");
        trial.args(flags).args(["--net", "--mount"]).args(tries).stdout(Stdio::null()).stderr(Stdio::null());
        trial.status().is_ok_and(|status| status.success()).then_some(command)
    };
    let Some(mut command) = probe(&[]).or_else(|| probe(&["--user", "--map-root-user"])) else {
        eprintln!(
            "SKIPPED: no network namespaces here (root or user namespaces, iproute2): no path was made to shrink"
        );
        return;
    };
    command.arg(std::env::current_exe().unwrap()).args(["--exact", "a_path_that_shrinks", "--nocapture"]);
    let output = command.env(INSIDE, "1").output().unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
