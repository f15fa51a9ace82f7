//! What is reported as memory is what the process needs.

mod ends;

use ends::{Flow, at, config, decode, encode, with};
use longhaul_shim::Config;
use longhaul_wire::Position;

/// Resident bytes of this process, where the system reports them.
fn resident_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<usize>().ok().map(|kilobytes| kilobytes * 1024)
}

#[test]
fn packets_behind_a_missing_one_cost_what_is_reported() {
    const FLOWS: u32 = 1000;
    let (mut sender, mut receiver) = with(Config { held_packets_max: 4096, ..config("xor:255,1") });
    let Some(before) = resident_bytes() else { return };
    for queue_pair in 1..=FLOWS {
        let flow = Flow::writes(queue_pair, 100);
        let first = flow.packet(100, Position::First, 256);
        decode(&mut receiver, &encode(&mut sender, &[first], at(0)), at(0));
        decode(&mut receiver, &[flow.packet(100 + 15, Position::Middle, 256)], at(0));
    }
    assert_eq!(receiver.decoder().held_packets(), FLOWS as usize);
    let grown = resident_bytes().unwrap_or(before).saturating_sub(before);
    let reported = receiver.memory_bytes() + sender.memory_bytes();
    // The tests' own packets, and what an allocator needs.
    let slack = 16 << 20;
    assert!(grown <= 2 * reported + slack, "{grown} bytes, {reported} reported");
}
