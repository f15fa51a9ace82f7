//! Rules about the source text that neither the compiler nor clippy checks: where `unsafe` may stand, how long a file
//! may be, which crate may use which, how many files import each other in a circle (in `imports`), and that protocol
//! code reads no clock, starts no thread and opens no socket and no file.
//!
//! Each rule is a function from text to the violations in it, tested below on planted violations; one test at the
//! end of each group runs it over the repository. To permit something, change a list here: a reviewer sees it.

#[path = "source_rules/imports.rs"]
mod imports;

use longhaul_rules::{Layers, assert_none, crate_and_path, files, is_word, paths, rust_files, tokens};

/// The only files with `unsafe` in them. A file that no longer needs it must leave the list.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/bindings/verbs-dropin/src/address_handle.rs",
    "crates/bindings/verbs-dropin/src/calls_tests.rs",
    "crates/bindings/verbs-dropin/src/cancellation.rs",
    "crates/bindings/verbs-dropin/src/completion.rs",
    "crates/bindings/verbs-dropin/src/context.rs",
    "crates/bindings/verbs-dropin/src/events.rs",
    "crates/bindings/verbs-dropin/src/extended_polling.rs",
    "crates/bindings/verbs-dropin/src/extended_tests.rs",
    "crates/bindings/verbs-dropin/src/listing.rs",
    "crates/bindings/verbs-dropin/src/mailbox.rs",
    "crates/bindings/verbs-dropin/src/memory.rs",
    "crates/bindings/verbs-dropin/src/opening.rs",
    "crates/bindings/verbs-dropin/src/parent_domains.rs",
    "crates/bindings/verbs-dropin/src/post.rs",
    "crates/bindings/verbs-dropin/src/query.rs",
    "crates/bindings/verbs-dropin/src/queue_pair.rs",
    "crates/bindings/verbs-dropin/src/queue_pair_creation.rs",
    "crates/bindings/verbs-dropin/src/send_builder.rs",
    "crates/bindings/verbs-dropin/src/shared_receive_queue.rs",
    "crates/bindings/verbs-dropin/src/waiter.rs",
    "crates/bindings/verbs-dropin/src/windows.rs",
    "crates/tools/cli/src/counting_allocator.rs",
    "crates/tools/perf/src/coding/isal.rs",
    "crates/base/coding/src/hadamard/x86.rs",
    "crates/base/coding/src/hadamard/x86_memory.rs",
    "crates/base/coding/src/kernel/x86.rs",
    "crates/messages/longhaul/src/own_memory.rs",
    "crates/messages/longhaul/tests/own_memory.rs",
    "crates/devices/port-broker/src/descriptors.rs",
    "crates/devices/port-broker/src/start.rs",
    "crates/devices/rdmacore/src/address_handle.rs",
    "crates/devices/rdmacore/src/channel.rs",
    "crates/devices/rdmacore/src/completion.rs",
    "crates/devices/rdmacore/src/context.rs",
    "crates/devices/rdmacore/src/device.rs",
    "crates/devices/rdmacore/src/device_tests.rs",
    "crates/devices/rdmacore/src/device_tests/shared_receives.rs",
    "crates/devices/rdmacore/src/device_tests/windows.rs",
    "crates/devices/rdmacore/src/domain.rs",
    "crates/devices/rdmacore/src/events.rs",
    "crates/devices/rdmacore/src/extended_post.rs",
    "crates/devices/rdmacore/src/handle.rs",
    "crates/devices/rdmacore/src/library.rs",
    "crates/devices/rdmacore/src/listing.rs",
    "crates/devices/rdmacore/src/memory.rs",
    "crates/devices/rdmacore/src/path.rs",
    "crates/devices/rdmacore/src/post.rs",
    "crates/devices/rdmacore/src/probe.rs",
    "crates/devices/rdmacore/src/protection_domain.rs",
    "crates/devices/rdmacore/src/queue_pair.rs",
    "crates/devices/rdmacore/src/queue_pair_creation.rs",
    "crates/devices/rdmacore/src/request_list.rs",
    "crates/devices/rdmacore/src/shared_receive_queue.rs",
    "crates/devices/rdmacore/src/windows.rs",
    "crates/devices/verbs-abi/src/completion.rs",
    "crates/devices/verbs-abi/src/context.rs",
    "crates/devices/verbs-abi/src/lib.rs",
    "crates/devices/verbs-abi/src/memory.rs",
    "crates/devices/verbs-abi/src/queue_pair.rs",
    "crates/messages/sdr/src/memory.rs",
    "crates/messages/sdr/src/message.rs",
    "crates/devices/softnic-udp/src/batch.rs",
    "crates/devices/softnic-udp/src/receive.rs",
    "crates/devices/softnic-udp/src/socket.rs",
    "crates/devices/softnic-udp/tests/udp_foreign.rs",
    "crates/devices/softnic/src/device/domain.rs",
    "crates/devices/softnic/src/device/queue_pair.rs",
    "crates/devices/softnic/src/device/shared_receive.rs",
    "crates/devices/softnic/src/memory/copy.rs",
    "crates/devices/softnic/src/memory/region.rs",
    "crates/devices/softnic/src/nic/guard.rs",
    "crates/devices/softnic/tests/queue_pair_memory.rs",
    "crates/network/forward/src/offloads.rs",
    "crates/network/forward/src/priority.rs",
    "crates/network/forward/src/ring.rs",
    "crates/network/forward/src/tap.rs",
    "crates/testing/world/tests/shift_hosts/mod.rs",
    "crates/base/verbs/src/raw.rs",
    "crates/base/verbs/src/safe.rs",
    "crates/base/verbs/src/safe/memory.rs",
];

/// A file that is longer is two files.
const LINES_MOST: usize = 600;
/// Longer ones, each with the reason.
const LONG_FILES: &[(&str, &str)] = &[];

/// Names that say nothing; what would go there belongs to the crate that it is about.
const DRAWER_NAMES: &[&str] = &["utils", "util", "common", "helpers", "misc"];

/// Which crate may use which other crates of ours. Everything runs downwards.
const DEPENDENCIES: &[(&str, &[&str])] = &[
    ("rules", &[]),
    ("time", &[]),
    ("wire", &[]),
    ("verbs", &[]),
    ("coding", &[]),
    ("scheme", &["coding"]),
    ("plan", &["scheme"]),
    ("congestion", &["time", "units"]),
    ("impair", &["time"]),
    ("capture", &["time"]),
    ("forward", &["time"]),
    ("link", &["time", "impair", "capture", "forward"]),
    ("wan", &["time", "verbs", "impair", "wire", "forward", "link", "gateway", "plan", "longhaul"]),
    ("netsim", &["time", "impair", "capture"]),
    // Below softnic and shim: a gateway has no device.
    ("datagram", &["wire"]),
    ("shim", &["time", "wire", "coding", "datagram"]),
    ("gateway", &["time", "wire", "forward", "datagram", "shim"]),
    ("softnic", &["time", "wire", "verbs", "congestion", "impair", "datagram", "shim"]),
    ("softnic-udp", &["time", "wire", "verbs", "congestion", "impair", "capture", "shim", "softnic"]),
    ("sdr", &["time", "wire", "verbs", "congestion"]),
    ("reliable", &["time", "wire", "sdr", "coding", "scheme"]),
    // The soak of messages drives connections with it on virtual time, as the facade does with threads.
    ("runtime", &["time", "verbs", "congestion", "sdr", "reliable"]),
    ("verbs-abi", &[]),
    ("rdmacore", &["verbs", "verbs-abi"]),
    ("port-broker", &[]),
    ("verbs-dropin", &["verbs", "verbs-abi", "softnic", "softnic-udp", "port-broker"]),
    ("units", &["time"]),
    ("charts", &[]),
    (
        "longhaul",
        &[
            "time",
            "wire",
            "verbs",
            "congestion",
            "impair",
            "softnic",
            "softnic-udp",
            "sdr",
            "reliable",
            "runtime",
            "rdmacore",
        ],
    ),
    ("world", &["time", "wire", "verbs", "impair", "netsim", "shim", "softnic"]),
    // Pure: reports in, deadlines out. The collectives that come later use it.
    ("deadline", &[]),
    ("deadline-testing", &["deadline"]),
    ("congestion-testing", &["time", "congestion", "impair"]),
    // For makers of devices: nothing of messages, schemes or the library.
    ("conformance", &["time", "wire", "verbs", "impair", "shim", "softnic", "softnic-udp", "world"]),
    (
        "scheme-testing",
        // The library too: on real time, suites run on what programs use.
        &[
            "time",
            "wire",
            "verbs",
            "coding",
            "impair",
            "softnic",
            "softnic-udp",
            "sdr",
            "scheme",
            "reliable",
            "runtime",
            "plan",
            "longhaul",
            "world",
            "conformance",
        ],
    ),
    ("interop", &["verbs", "runtime", "longhaul", "conformance", "scheme-testing"]),
    ("host", &["wire", "verbs", "softnic", "softnic-udp", "rdmacore", "longhaul", "units"]),
    (
        "perf",
        &[
            "time",
            "wire",
            "verbs",
            "coding",
            "congestion",
            "impair",
            "softnic-udp",
            "sdr",
            "reliable",
            "longhaul",
            "units",
        ],
    ),
    (
        "cli",
        &[
            "time",
            "wire",
            "verbs",
            "coding",
            "congestion",
            "impair",
            "forward",
            "link",
            "gateway",
            "wan",
            "netsim",
            "softnic",
            "softnic-udp",
            "sdr",
            "scheme",
            "reliable",
            "plan",
            "port-broker",
            "rdmacore",
            "longhaul",
            "world",
            "congestion-testing",
            "deadline-testing",
            "conformance",
            "scheme-testing",
            "interop",
            "units",
            "charts",
            "host",
            "perf",
        ],
    ),
];

/// Crates that are driven: time and packets come in as arguments.
const DRIVEN_CRATES: &[&str] = &[
    "time",
    "wire",
    "verbs",
    "coding",
    "plan",
    "congestion",
    "impair",
    "capture",
    "link",
    "gateway",
    "netsim",
    "datagram",
    "shim",
    "softnic",
    "softnic-udp",
    "sdr",
    "scheme",
    "reliable",
    "runtime",
    "deadline",
];
/// What a driven crate may not name, nor anything below it. Importing all of a parent counts as naming it.
const DRIVERS_ONLY: &[&str] = &[
    "std::time::Instant",
    "std::time::SystemTime",
    "std::fs",
    "std::thread",
    "std::net::UdpSocket",
    "std::net::TcpStream",
    "std::net::TcpListener",
];
/// Files of driven crates that may all the same, each with the reason.
const DRIVERS: &[(&str, &str)] = &[
    ("crates/base/coding/src/message.rs", "encodes on several threads when asked; they end with the call"),
    ("crates/messages/plan/src/question.rs", "compares schemes on several threads; they end with the call"),
    ("crates/messages/plan/src/twin.rs", "draws samples on several threads; they end with the call"),
    ("crates/network/link/src/control.rs", "the socket by which other processes talk to a link that runs"),
    ("crates/network/link/src/namespaces.rs", "makes network namespaces, with files of the kernel and other programs"),
    ("crates/network/link/src/running.rs", "runs a link on a thread, and writes its capture to a file"),
    ("crates/network/gateway/src/metrics.rs", "answers who asks for metrics, on a socket and a thread"),
    ("crates/network/gateway/src/running.rs", "runs a gateway on a thread"),
    ("crates/devices/softnic-udp/src/capture.rs", "writes a capture to a file"),
    (
        "crates/devices/softnic-udp/src/driver.rs",
        "drives a device on sockets: the clock and the background thread are here",
    ),
    ("crates/devices/softnic-udp/src/socket.rs", "asks a scratch socket for the MTU of a path"),
];

/// Where one machine keeps things; such a path in the repository works nowhere else.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/")];

// --- the rules ------------------------------------------------------------------------------------------------------

/// `unsafe` only where the list allows it, and each block and impl with its reason.
fn unsafe_violations(file: &str, layers: &Layers, allowed: &[&str]) -> Vec<String> {
    let mut violations = Vec::new();
    let mut uses = 0;
    for (index, line) in layers.code.iter().enumerate() {
        let words = tokens(line);
        for (at, _) in words.iter().enumerate().filter(|(_, word)| **word == "unsafe") {
            uses += 1;
            let line_after = layers.code[index + 1..].iter().find(|line| !line.trim().is_empty());
            let next = words.get(at + 1).copied();
            let next = next.or_else(|| tokens(line_after?).first().copied());
            if matches!(next, Some("{" | "impl")) && !has_safety_comment(layers, index) {
                violations.push(format!("{file}:{}: unsafe without a SAFETY comment above it", index + 1));
            }
        }
    }
    match (uses, allowed.contains(&file)) {
        (1.., false) => violations.push(format!("{file}: unsafe in a file that is not on the list")),
        (0, true) => violations.push(format!("{file}: on the list of files with unsafe, but has none")),
        _ => {}
    }
    violations
}

/// Whether the statement that line `index` belongs to has a comment with `SAFETY:` on it or just above it.
fn has_safety_comment(layers: &Layers, index: usize) -> bool {
    let has_reason = |line: usize| layers.comments[line].contains("SAFETY:");
    if has_reason(index) {
        return true;
    }
    let mut above = (0..index).rev().peekable();
    // Up to where the statement begins …
    while let Some(&line) = above.peek() {
        let code = layers.code[line].trim();
        if code.is_empty() || code.ends_with([';', '{', '}']) {
            break;
        }
        above.next();
    }
    // … and through the comment there.
    above
        .take_while(|&line| layers.code[line].trim().is_empty() && !layers.comments[line].trim().is_empty())
        .any(has_reason)
}

fn length_violations(file: &str, source: &str, exceptions: &[(&str, &str)]) -> Vec<String> {
    let lines = source.lines().count();
    let excepted = exceptions.iter().any(|(name, _)| *name == file);
    match (lines > LINES_MOST, excepted) {
        (true, false) => vec![format!("{file}: {lines} lines, at most {LINES_MOST}")],
        (false, true) => vec![format!("{file}: on the list of long files, but has only {lines} lines")],
        _ => Vec::new(),
    }
}

/// What a crate's manifest says against the table of directions. Tests may use what they like.
fn dependency_violations(name: &str, manifest: &str, table: &[(&str, &[&str])]) -> Vec<String> {
    if DRAWER_NAMES.contains(&name) {
        return vec![format!("{name}: a name that says nothing")];
    }
    let Some((_, allowed)) = table.iter().find(|(known, _)| *known == name) else {
        return vec![format!("{name}: not in the table of dependencies; add it there")];
    };
    let mut violations = Vec::new();
    let mut section = "";
    for line in manifest.lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
        }
        let in_dependencies = section.ends_with("dependencies") && !section.ends_with("dev-dependencies");
        let own_table = section.rsplit_once("dependencies.").filter(|(kind, _)| *kind != "dev-");
        let entry = match own_table {
            Some((_, entry)) if line.starts_with('[') => entry,
            None if in_dependencies => line,
            _ => continue,
        };
        let entry = entry.trim_matches('"');
        let full_name = entry.split(|c: char| !is_word(c) && c != '-').next().unwrap_or(entry);
        // The facade has the project's name.
        let other = match full_name.strip_prefix("longhaul-") {
            Some(other) => other,
            None if full_name == "longhaul" => full_name,
            None => continue,
        };
        if !allowed.contains(&other) {
            violations.push(format!("{name} may not depend on {other}: dependencies run downwards"));
        }
    }
    violations
}

/// Clocks, threads and sockets in code that must be driven.
fn driving_violations(file: &str, layers: &Layers, exceptions: &[(&str, &str)]) -> Vec<String> {
    if exceptions.iter().any(|(name, _)| *name == file) {
        return Vec::new();
    }
    let is_banned = |path: &String| {
        let whole = path.trim_end_matches("::*");
        let is_or_is_below = |banned: &&str| *whole == **banned || whole.starts_with(&format!("{banned}::"));
        let is_parent = |banned: &&str| banned.rsplit_once("::").is_some_and(|(parent, _)| parent == whole);
        // `std` alone stands in `use std::…` only with `*`; `std::time` alone would let `time::Instant` pass.
        DRIVERS_ONLY.iter().any(is_or_is_below)
            || whole != "std" && DRIVERS_ONLY.iter().any(is_parent)
            || path == "std::*"
    };
    let found = paths(&layers.code_before_tests());
    found
        .into_iter()
        .filter(is_banned)
        .map(|path| format!("{file}: {path} in code that is driven; time and packets come in as arguments"))
        .collect()
}

/// Paths that exist on one machine only.
fn machine_path_violations(file: &str, text: &str, machine_paths: &[&str]) -> Vec<String> {
    let mut violations = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for path in machine_paths {
            // `$folder/x/` and `a/x/` are something else: an absolute path has nothing before it.
            let is_absolute =
                |at: usize| !line[..at].ends_with(|c: char| is_word(c) || matches!(c, '-' | '.' | '}' | ')' | '*'));
            if line.match_indices(path).any(|(at, _)| is_absolute(at)) {
                violations.push(format!("{file}:{}: a path of one machine, {path}", index + 1));
            }
        }
    }
    violations
}

// --- the rules, on the repository -----------------------------------------------------------------------------------

#[test]
fn unsafe_stands_where_the_list_says_and_has_its_reason() {
    let files = rust_files();
    let mut violations = Vec::new();
    for (file, source) in &files {
        violations.extend(unsafe_violations(file, &Layers::of(source), UNSAFE_ALLOWED));
    }
    for listed in UNSAFE_ALLOWED {
        if !files.iter().any(|(file, _)| file == listed) {
            violations.push(format!("{listed}: on the list of files with unsafe, but does not exist"));
        }
    }
    assert_none(&violations);
}

#[test]
fn files_are_short() {
    let files = rust_files();
    let check = |(file, source): &(String, String)| length_violations(file, source, LONG_FILES);
    assert_none(&files.iter().flat_map(check).collect::<Vec<_>>());
}

#[test]
fn dependencies_run_downwards() {
    let mut violations = Vec::new();
    for (file, manifest) in files() {
        if let Some((name, "Cargo.toml")) = crate_and_path(&file) {
            violations.extend(dependency_violations(name, &manifest, DEPENDENCIES));
        }
    }
    assert_none(&violations);
}

#[test]
fn protocol_code_is_driven() {
    let mut violations = Vec::new();
    for (file, source) in rust_files() {
        if crate_and_path(&file).is_some_and(|(name, path)| DRIVEN_CRATES.contains(&name) && path.starts_with("src/")) {
            violations.extend(driving_violations(&file, &Layers::of(&source), DRIVERS));
        }
    }
    assert_none(&violations);
}

#[test]
fn no_path_of_one_machine_is_committed() {
    let check = |(file, text): &(String, String)| machine_path_violations(file, text, MACHINE_PATHS);
    assert_none(&files().iter().flat_map(check).collect::<Vec<_>>());
}

// --- the rules, on planted violations -------------------------------------------------------------------------------

#[test]
fn comments_and_literals_are_not_code() {
    let source = "let a = \"unsafe\"; // unsafe\n/* unsafe /* unsafe */ unsafe */ let b = r#\"\"unsafe\"#;\n\
                  let c = 'u'; let d: &'static str = b\"\\\"unsafe\"; let e = '\\''; let f = br\"unsafe\";";
    let layers = Layers::of(source);
    let code = layers.code.join("\n");
    assert!(!code.contains("unsafe"), "{code}");
    for word in ["a", "b", "c", "d", "e", "f", "static", "str"] {
        assert!(tokens(&code).contains(&word), "{word} is missing in {code}");
    }
    assert_eq!(layers.comments.join("\n").matches("unsafe").count(), 4);
    assert_eq!(layers.code.len(), 3);
}

#[test]
fn planted_unsafe_is_found() {
    let check = |source: &str, allowed: &[&str]| unsafe_violations("a.rs", &Layers::of(source), allowed).len();
    let good = "// SAFETY: it is fine.\nlet x =\n    unsafe { f() };\n";
    assert_eq!(check(good, &["a.rs"]), 0);
    assert_eq!(check(good, &[]), 1);
    assert_eq!(check("fn safe() {}", &["a.rs"]), 1);
    assert_eq!(check("fn safe() {}", &[]), 0);
    assert_eq!(check("#![deny(unsafe_code)]", &[]), 0);
    // A declaration states its contract in its documentation; clippy checks that.
    assert_eq!(check("unsafe fn f();", &["a.rs"]), 0);
    assert_eq!(check("unsafe\n{ f() }", &["a.rs"]), 1);
    assert_eq!(check("unsafe impl Send for T {}", &["a.rs"]), 1);
    // Somebody else's reason does not count, nor one above a blank line.
    assert_eq!(check("// SAFETY: fine.\nunsafe { f() };\nunsafe { g() };", &["a.rs"]), 1);
    assert_eq!(check("// SAFETY: fine.\n\nunsafe { f() };", &["a.rs"]), 1);
}

#[test]
fn planted_long_files_are_found() {
    let long = "x\n".repeat(LINES_MOST + 1);
    assert_eq!(length_violations("a.rs", &long, &[]).len(), 1);
    assert_eq!(length_violations("a.rs", &long, &[("a.rs", "a table")]).len(), 0);
    assert_eq!(length_violations("a.rs", "x\n", &[("a.rs", "a table")]).len(), 1);
}

#[test]
fn planted_upward_dependencies_are_found() {
    let table: &[(&str, &[&str])] = &[("wire", &[]), ("softnic", &["wire"])];
    let check = |name: &str, manifest: &str| dependency_violations(name, manifest, table).len();
    assert_eq!(check("softnic", "[dependencies]\nlonghaul-wire.workspace = true\nserde = \"1\""), 0);
    assert_eq!(check("wire", "[dependencies]\nlonghaul-softnic.workspace = true"), 1);
    assert_eq!(check("wire", "[dependencies]\nlonghaul-softnic = { path = \"../softnic\" }"), 1);
    assert_eq!(check("wire", "[dependencies.longhaul-softnic]\nworkspace = true"), 1);
    assert_eq!(check("wire", "[build-dependencies]\nlonghaul-softnic.workspace = true"), 1);
    assert_eq!(check("wire", "[target.'cfg(unix)'.dependencies]\nlonghaul-softnic.workspace = true"), 1);
    assert_eq!(check("wire", "[dev-dependencies]\nlonghaul-softnic.workspace = true"), 0);
    assert_eq!(check("wire", "[dev-dependencies.longhaul-softnic]\nworkspace = true"), 0);
    assert_eq!(check("wire", "[dependencies]\nlonghaul.workspace = true"), 1, "the facade");
    assert_eq!(check("utils", ""), 1);
    assert_eq!(check("unknown", ""), 1);
}

#[test]
fn planted_clocks_threads_and_sockets_are_found() {
    let check = |source: &str| driving_violations("a.rs", &Layers::of(source), &[]).len();
    assert_eq!(check("use std::time::Instant;"), 1);
    assert_eq!(check("use std::{net::IpAddr, time::{Duration, SystemTime}};"), 1);
    assert_eq!(check("use std::time::{self, Duration};"), 1);
    assert_eq!(check("use std::time::*;"), 1);
    assert_eq!(check("let now = std :: time :: Instant :: now();"), 1);
    assert_eq!(check("std::thread::spawn(|| {});"), 1);
    assert_eq!(check("use std::{fmt, thread};"), 1);
    assert_eq!(check("use std::fs::File;"), 1);
    assert_eq!(check("use std::net::{IpAddr, UdpSocket as Socket};"), 1);
    let fine = "use std::time::Duration; use longhaul_time::Instant; use std::net::{IpAddr, Ipv4Addr}; // std::thread";
    assert_eq!(check(fine), 0);
    assert_eq!(check("fn f() {}\n#[cfg(test)]\nmod tests { use std::thread; }"), 0);
    let layers = Layers::of("use std::thread;");
    assert_eq!(driving_violations("a.rs", &layers, &[("a.rs", "the driver")]).len(), 0);
}

#[test]
fn planted_machine_paths_are_found() {
    let check = |text: &str| machine_path_violations("a.md", text, &["/home/me/"]).len();
    assert_eq!(check("see /home/me/notes\nand `/home/me/x`"), 2);
    assert_eq!(check("$root/home/me/x, a/home/me/"), 0);
}
