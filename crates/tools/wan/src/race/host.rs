//! What the host offers to TCP, and what is set for it.

use std::fs;

use super::plan::Path;

/// TCP's buffers are at least this large, as Linux has it by default.
const BUFFER_BYTES_MIN: u64 = 16 << 20;
/// Of the bandwidth-delay product with the queue: half of a receive buffer is window, and the window must be twice the product.
const BUFFER_PRODUCTS: u64 = 4;

/// Bytes that TCP's buffers may grow to.
pub(super) fn buffer_bytes(path: &Path) -> u64 {
    BUFFER_BYTES_MIN.max(BUFFER_PRODUCTS * path.bytes_in(path.round_trip + path.queue()))
}

/// In this namespace: buffers that a sender can fill the path from, and nothing remembered from one row to the next. What
/// the kernel does not accept is an error: TCP would be slower than it has to be.
pub(super) fn set_buffers(path: &Path) -> Result<(), String> {
    let most = buffer_bytes(path);
    for (name, value) in [
        ("tcp_rmem", format!("4096 131072 {most}")),
        ("tcp_wmem", format!("4096 65536 {most}")),
        ("tcp_no_metrics_save", "1".to_owned()),
    ] {
        let file = format!("/proc/sys/net/ipv4/{name}");
        let written = fs::write(&file, &value);
        let kept = fs::read_to_string(&file).unwrap_or_default();
        if !is_set(&value, &kept) {
            let why = written.err().map(|error| format!(": {error}")).unwrap_or_default();
            return Err(format!(
                "TCP's rows need net.ipv4.{name} \"{value}\", and the kernel keeps \"{}\"{why}; run it as root, or \
                 choose a lower --rate or a shorter --rtt",
                kept.split_whitespace().collect::<Vec<_>>().join(" ")
            ));
        }
    }
    Ok(())
}

/// Whether the kernel has the value that was written; it puts tabs between numbers.
fn is_set(written: &str, kept: &str) -> bool {
    kept.split_whitespace().eq(written.split_whitespace())
}

/// Which bbr this kernel has, as far as it can be found out; `None` if it has none.
pub(super) fn bbr_version() -> Option<String> {
    let offered = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let kernel = kernel.trim();
    // Version 3 says so; mainline's, which says nothing, is version 1.
    let version = fs::read_to_string("/sys/module/tcp_bbr/version").ok();
    let version =
        version.map_or_else(|| "1 (mainline's; the module names no version)".to_owned(), |text| text.trim().to_owned());
    offered.split_whitespace().any(|name| name == "bbr").then(|| format!("bbr version {version}, Linux {kernel}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_read_back() {
        assert!(is_set("4096 131072 16777216", "4096\t131072\t16777216\n") && is_set("1", "1\n"));
        assert!(!is_set("4096 131072 16777216", "4096\t131072\t6291456\n") && !is_set("1", ""));
    }
}
