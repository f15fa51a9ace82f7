//! Devices on real sockets: messages arrive, ends that never poll are served, idle devices sleep.

use crate::udp_ends;

use std::time::Duration;

use longhaul_verbs::{CompletionStatus, Transport};
use udp_ends::{device, pair, pair_on, pattern};

const MIB: usize = 1 << 20;

#[test]
fn a_long_write_arrives_whole() {
    for transport in [Transport::ReliableConnection, Transport::UnreliableConnection] {
        let (one, two) = pair(transport, MIB);
        let bytes = pattern(1, MIB);
        one.region.copy_in(0, &bytes);
        one.post_write(1, MIB, &two);
        assert_eq!(one.wait().status, CompletionStatus::Success);
        // An unreliable write is complete when it has left: the end that never polls needs a moment more.
        let is_whole = || two.region.to_vec(0..MIB) == bytes;
        for _ in 0..100 {
            if is_whole() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(is_whole(), "{transport:?}: contents differ");
    }
}

#[test]
fn sends_of_all_sizes_arrive_over_both_families() {
    for (first, second) in [("127.0.0.1", "127.0.0.2"), ("::1", "::1")] {
        let (one, two) = pair_on(&device(first), &device(second), Transport::ReliableConnection, MIB);
        for length in [0, 1, 2, 3, 511, 512, 513, 4095, 4096, 4097, 65_536, 200_001] {
            let bytes = pattern(length as u64, length);
            one.region.copy_in(0, &bytes);
            two.post_receive(7, length);
            one.post_send(8, length);
            let received = two.wait();
            assert_eq!((received.status, received.byte_count), (CompletionStatus::Success, length as u32));
            assert!(two.region.to_vec(0..length) == bytes, "{first}, {length} bytes: contents differ");
            let sent = one.wait().status;
            let counters = |end: &udp_ends::End| {
                end.device
                    .verbs()
                    .counters()
                    .into_iter()
                    .filter(|c| c.value > 0)
                    .map(|c| format!("{}={}", c.name, c.value))
                    .collect::<Vec<_>>()
            };
            assert_eq!(sent, CompletionStatus::Success, "{first} {length} {:?} {:?}", counters(&one), counters(&two));
        }
    }
}
