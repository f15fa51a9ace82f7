//! Messages on real sockets of the loopback interface.

mod ends;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ends::{pair, pattern};
use longhaul::{Connection, Options, TransferError};

#[test]
fn a_connection_can_be_shared_by_threads() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Connection>();
    is_shared::<longhaul::Listener>();
    is_shared::<Arc<longhaul::Message>>();
}

#[test]
fn messages_of_all_sizes_arrive_in_both_directions() {
    for scheme in ["sr:rto", "sr:nack", "ec:mds:8,2", "ec:xor:8,2"] {
        let (one, other) = pair(&Options::with_scheme(scheme).expect("a scheme"));
        assert_eq!((one.scheme(), other.scheme()), (scheme, scheme));
        for (from, to) in [(&one, &other), (&other, &one)] {
            for length in [1, 7, 4096, 4097, 100_000, 3 << 20, 0] {
                let receiving = to.receive(4 << 20);
                let report = from.write(pattern(length, 1)).wait().expect("it is written");
                assert_eq!(report.message_bytes, length as u64);
                let message = receiving.wait().expect("it is received");
                assert!(message.bytes() == pattern(length, 1), "{scheme}: {length} bytes");
                assert!(message.missing().is_empty());
                assert_eq!(message.into_vec().len(), length);
            }
        }
    }
}

#[test]
fn a_peer_that_closes_ends_what_is_under_way() {
    let (one, other) = pair(&Options::default());
    let written = one.write("hello");
    let receiving = other.receive(10);
    assert_eq!(receiving.wait().expect("it is received").bytes(), b"hello");
    let nothing = one.receive(10);
    let unheard = one.write("nobody receives this");
    let begun = Instant::now();
    drop(other);
    written.wait().expect("it was received before");
    assert!(matches!(nothing.wait(), Err(TransferError::PeerClosed)));
    assert!(matches!(unheard.wait(), Err(TransferError::PeerClosed)));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(one.is_over());
    assert!(matches!(one.write("more").wait(), Err(TransferError::PeerClosed)));
}
