//! How fast a core codes, as `longhaul plan` keeps it: with a speed of the test's own, its output does not depend on the machine.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::PathBuf;
use std::time::SystemTime;

/// Two days ago, a month ago, …
pub(crate) fn days_ago(days: u64) -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock");
    now.as_secs() - days * 86_400
}

/// A directory of its own for what is kept, with a speed of coding in it: the output does not depend on the machine.
pub(crate) fn kept(name: &str, measured_at: u64) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("longhaul-plan-{name}-{}", std::process::id()));
    std::fs::create_dir_all(directory.join("longhaul")).expect("a directory");
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = cpuinfo.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
    let text = serde_json::json!({
        "processor": processor.map_or("", |(_, name)| name.trim()),
        "version": format!("{}{}", env!("CARGO_PKG_VERSION"), if cfg!(debug_assertions) { " debug" } else { "" }),
        "measured_at": measured_at,
        "mds_bytes_per_second": 9.9e9,
        "xor_bytes_per_second": 14.2e9,
    });
    std::fs::write(directory.join("longhaul").join("coding-speed.json"), text.to_string()).expect("a file");
    directory
}
