//! Shared receive queues.

use longhaul_verbs::{
    AsyncEventKind, CreateError, EventSource, PostErrorKind, QueuePairLimits, ReceiveRequest, SendOperation,
    SendRequest, SharedReceiveQueueAttributes, SharedReceiveQueueChange, Transport,
};

use super::{BOTH_WAYS, bench, pattern};

#[test]
fn queue_pairs_take_their_receives_from_one_queue() {
    let Some(bench) = bench("queue_pairs_take_their_receives_from_one_queue") else { return };
    for way in BOTH_WAYS {
        let attributes = SharedReceiveQueueAttributes { requests: 16, entries: 2, limit: 0 };
        let shared = bench.domain.create_shared_receive_queue(attributes).unwrap();
        let sizes = shared.query().unwrap();
        assert!(sizes.requests >= 16 && sizes.entries >= 2, "{sizes:?}");
        let rc = Transport::ReliableConnection;
        let senders = [bench.end(rc, way), bench.end(rc, way)];
        let takers = [0, 1].map(|_| bench.end_with(rc, way, QueuePairLimits::default(), Some(&**shared.raw())));
        for (sender, taker) in senders.iter().zip(&takers) {
            sender.connect(taker);
            taker.connect(sender);
        }
        let pool = bench.region();
        let entries: Vec<_> = (0..8).map(|slot| [pool.entry(slot * 64..slot * 64 + 64)]).collect();
        let receives: Vec<_> =
            entries.iter().enumerate().map(|(id, entry)| ReceiveRequest { id: id as u64, local: entry }).collect();
        shared.post_receive(&receives).unwrap();
        shared.raw().modify(SharedReceiveQueueChange { requests: None, limit: Some(6) }).unwrap();
        for round in 0..8usize {
            let sender = &senders[round % 2];
            sender.region.copy_in(0, &pattern(32, round as u8));
            let entry = [sender.region.entry(0..32)];
            sender.post(SendRequest::new(100, SendOperation::Send, &entry));
            let (_, received) = bench.message(100);
            assert_eq!(received.queue_pair, takers[round % 2].raw().number(), "{way:?}");
            let at = received.id as usize * 64;
            assert_eq!(pool.to_vec(at..at + 32), pattern(32, round as u8), "{way:?} {round}");
        }
        let event = loop {
            let event = bench.next_event();
            if event.kind == AsyncEventKind::SharedReceiveQueueLimitReached {
                break event;
            }
        };
        assert_eq!(event.source, EventSource::SharedReceiveQueue(shared.handle()));
        let error = {
            let raw: &dyn longhaul_verbs::raw::QueuePair = takers[0].raw();
            // SAFETY: the device checks the entries.
            unsafe { raw.post_receive(&receives) }.unwrap_err()
        };
        assert!(matches!(error.kind, PostErrorKind::SharedReceives), "{error}");
    }
}

#[test]
fn a_shared_queue_says_when_it_is_full() {
    let Some(bench) = bench("a_shared_queue_says_when_it_is_full") else { return };
    let attributes = SharedReceiveQueueAttributes { requests: 10, entries: 1, limit: 0 };
    let shared = bench.domain.create_shared_receive_queue(attributes).unwrap();
    let depth = shared.query().unwrap().requests as usize;
    let region = bench.region();
    let entry = [region.entry(0..64), region.entry(64..128)];
    let requests = vec![ReceiveRequest { id: 1, local: &entry[..1] }; depth + 5];
    let error = shared.post_receive(&requests).unwrap_err();
    assert!(matches!(error.kind, PostErrorKind::QueueFull { .. }), "{error}");
    assert_eq!(error.index, depth);
    let most = shared.query().unwrap().entries as usize;
    let many = vec![entry[0]; most + 1];
    let error = shared.post_receive(&[ReceiveRequest { id: 1, local: &many }]).unwrap_err();
    assert!(matches!(error.kind, PostErrorKind::TooManyEntries { .. }), "{error}");
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    let Some(bench) = bench("sizes_that_cannot_be_are_refused") else { return };
    let create = |requests, entries, limit| {
        bench.domain.create_shared_receive_queue(SharedReceiveQueueAttributes { requests, entries, limit }).err()
    };
    assert!(matches!(create(u32::MAX, 1, 0), Some(CreateError::TooMany { .. })));
    assert!(matches!(create(1, u32::MAX, 0), Some(CreateError::TooMany { .. })));
    assert!(matches!(create(4, 1, 5), Some(CreateError::TooMany { .. })));
    assert!(matches!(create(0, 1, 0), Some(CreateError::InvalidArgument { .. })));
    let other = super::Bench::open(bench.device.name());
    let shared = other
        .domain
        .create_shared_receive_queue(SharedReceiveQueueAttributes { requests: 4, entries: 1, limit: 0 })
        .unwrap();
    let options = longhaul_verbs::QueuePairOptions { shared_receive_queue: Some(shared), ..Default::default() };
    let created = bench.domain.create_queue_pair(Transport::ReliableConnection, &bench.queue, &bench.queue, &options);
    assert!(matches!(created.err(), Some(CreateError::ForeignObject { what: "shared receive queue" })));
}
