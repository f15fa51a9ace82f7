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

#[test]
fn flows_that_remember_all_that_they_can_keep_to_the_bound() {
    const FLOWS: usize = 16;
    let base = Config { units_max: 64, held_packets_max: 64, flows_max: FLOWS, ..config("mds:4,1") };
    let (mut sender, mut receiver) = with(base.clone());
    let bound = base.memory_bytes_max();
    let flow_bytes_max = (bound - Config { flows_max: 1, ..base.clone() }.memory_bytes_max()) / (FLOWS - 1);
    let mut most_bytes = 0;
    for queue_pair in 1..=FLOWS as u32 {
        let begin = 100_000 * u64::from(queue_pair);
        // Nothing waits any more.
        ends::poll(&mut receiver, at(begin));
        let mut flow = ends::unreliable(queue_pair, 100);
        // Restored, and the originals do not come.
        for round in 0..300 {
            let now = at(begin + round);
            let mut sent = encode(&mut sender, &flow.message(4), now);
            let second = flow.psn - 3;
            sent.retain(|packet| ends::is_repair(packet) || ends::psn(packet) != second);
            decode(&mut receiver, &sent, now);
        }
        // Far ahead, and handed on.
        for place in 0..300 {
            let far = flow.packet(flow.psn + 2000 + 3 * place, Position::Middle, 64);
            decode(&mut receiver, &[far], at(begin + 300));
        }
        // Every second one is lost.
        for place in 0..200 {
            decode(&mut receiver, &[flow.packet(flow.psn + 2 * place, Position::Middle, 64)], at(begin + 300));
        }
        let now = receiver.memory_bytes();
        most_bytes = most_bytes.max(now);
        assert!(now + sender.memory_bytes() <= bound, "{now} bytes of {bound}");
    }
    let counters = receiver.decoder().counters();
    assert!(counters.restored >= 256 * FLOWS as u64 && counters.far_ahead >= 256 * FLOWS as u64, "{counters:?}");
    assert!(most_bytes > FLOWS * flow_bytes_max / 2, "{most_bytes} bytes, {flow_bytes_max} a flow");
    println!("{most_bytes} bytes of {bound}, {flow_bytes_max} for each of {FLOWS} flows");
}

#[test]
fn acknowledgements_that_have_waited_cost_nothing_afterwards() {
    let (mut sender, mut receiver) = with(config("mds:4,1"));
    let message = Flow::reads(7, 100).message(20);
    let sent = encode(&mut sender, &message, at(0));
    decode(&mut receiver, &sent[..10], at(0));
    let before = receiver.memory_bytes();
    let waiting: Vec<_> = (0..1000).map(|_| ends::acknowledgement(7, 118)).collect();
    assert!(decode(&mut receiver, &waiting, at(1)).is_empty());
    assert!(receiver.memory_bytes() > before + 1000 * 64);
    decode(&mut receiver, &sent[10..], at(2));
    assert_eq!(receiver.decoder().held_packets(), 0);
    // But for sums.
    assert!(receiver.memory_bytes() < before + 4096, "{} bytes, {before} before", receiver.memory_bytes());
}
