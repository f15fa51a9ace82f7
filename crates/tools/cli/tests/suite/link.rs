//! `longhaul link`, as a user meets it. Links are made in folders of the test's own, and namespaces of their own; where those are not
//! allowed, a test says that it was skipped.

use crate::link_user;

use std::time::{Duration, Instant};

use link_user::{User, exec};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

#[test]
fn two_namespaces_and_a_link_that_can_be_used_changed_and_removed() {
    let user = User::new("use");
    let Some(started) = user.demo("--impair delay=30ms --seed 5") else { return };
    assert_eq!((started["schema"].as_u64(), started["seed"].as_u64()), (Some(1), Some(5)));
    // `longhaul` itself is the program at both ends: it is there for certain.
    let server = exec(
        &user,
        "right",
        &["timeout", "30", env!("CARGO_BIN_EXE_longhaul"), "perf", "server", "--address", "198.18.0.2"],
    )
    .stdout(std::process::Stdio::null())
    .stderr(std::process::Stdio::null())
    .spawn();
    let mut server = server.expect("a server");
    let round_trip = |user: &User| -> f64 {
        let longhaul = env!("CARGO_BIN_EXE_longhaul");
        let options = "perf client 198.18.0.2 write_lat --json -n 5 -s 64".split(' ');
        let client: Vec<&str> = ["timeout", "30", longhaul].into_iter().chain(options).collect();
        let begun = Instant::now();
        loop {
            let output = exec(user, "left", &client).output().expect("a client");
            // 3 is nobody there: not yet.
            if output.status.code() == Some(3) && begun.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
            return report["results"][0]["t_typical_us"].as_f64().unwrap_or_else(|| panic!("{report}"));
        }
    };
    let before = round_trip(&user);
    assert!((30_000.0..60_000.0).contains(&before), "{before} us one way, 30 ms set");
    user.run("set --name NAME --impair delay=5ms");
    let after = round_trip(&user);
    assert!((5_000.0..29_000.0).contains(&after), "{after} us one way, 5 ms set");
    let shown = user.json("show --name NAME --json");
    let link = &shown["links"][0];
    assert_eq!(link["forth"]["settings"], "delay=5ms");
    assert!(link["forth"]["frames"].as_u64() > Some(10) && link["back"]["frames"].as_u64() > Some(10), "{link}");
    assert!(user.run("show --name NAME").contains("delay=5ms"));
    let (status, said) = user.fail("demo --name NAME");
    assert!(status == 1 && said.contains("runs already"), "{status}: {said}");
    user.run("clean --name NAME");
    let (status, said) = user.fail("show --name NAME");
    assert!(status == 3 && said.contains("no link named"), "{status}: {said}");
    let _ = kill(Pid::from_raw(server.id() as i32), Signal::SIGTERM);
    server.wait().expect("it ends");
}

#[test]
fn a_link_that_was_killed_leaves_nothing_that_clean_does_not_remove() {
    let user = User::new("killed");
    let Some(started) = user.demo("") else { return };
    let process = Pid::from_raw(started["process"].as_i64().expect("a process") as i32);
    kill(process, Signal::SIGKILL).expect("it is there");
    let begun = Instant::now();
    while kill(process, None).is_ok() && begun.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let (status, said) = user.fail("exec --name NAME left -- true");
    assert!(status == 3 && said.contains("no link named"), "{status}: {said}");
    let cleaned = user.json("clean --name NAME --json");
    assert_eq!(cleaned["links"][0]["was_running"], false);
    // The name is free.
    user.demo("").expect("as before");
    user.run("clean --name NAME");
}

#[test]
fn an_interrupt_ends_a_link_in_order() {
    let user = User::new("interrupt");
    let Some(started) = user.demo("") else { return };
    let process = Pid::from_raw(started["process"].as_i64().expect("a process") as i32);
    kill(process, Signal::SIGINT).expect("it is there");
    let begun = Instant::now();
    while user.fail("show --name NAME").0 != 3 {
        assert!(begun.elapsed() < Duration::from_secs(5), "it goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
    let (status, said) = user.fail("clean --name NAME");
    assert!(status == 3 && said.contains("no link named"), "nothing was left: {status}: {said}");
}

#[test]
fn mistakes_are_explained() {
    let user = User::new("mistakes");
    for (arguments, status, expected) in [
        ("run lo lo", 2, "joins two interfaces"),
        ("run lo no-such-if", 3, "no interface no-such-if"),
        ("run lo eth7 --impair loss=150%", 2, "loss"),
        ("run lo eth7 --impair speed=1", 2, "unknown setting \"speed\""),
        ("run lo eth7 --impair delay=1ms --forth loss=1%", 2, "cannot be used with"),
        ("set --name NAME", 2, "nothing to change"),
        ("set --name NAME --impair delay=1ms", 3, "no link named"),
        ("show --name ../etc/passwd", 2, "no name for a link"),
        ("exec --name NAME left -- true", 3, "no link named"),
        ("demo --mtu 100", 2, "576"),
        ("demo --memory 1", 2, "--memory"),
    ] {
        let (got, said) = user.fail(arguments);
        assert!(got == status && said.contains(expected), "link {arguments}: exit {got}, expected {status}: {said}");
    }
    let help = user.run("demo --impair help");
    assert!(help.contains("delay=5ms") && help.contains("burst=4"), "{help}");
}
