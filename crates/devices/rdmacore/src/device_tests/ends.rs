//! The end of things: destroying, and what answers afterwards.

use longhaul_verbs::{
    DestroyError, ModifyError, PostErrorKind, QueryError, QueuePairAttributes, QueuePairState, SendOperation,
    SendRequest, Transport,
};

use super::{BOTH_WAYS, Way, bench};

#[test]
fn after_the_end_everything_answers_gone() {
    let Some(bench) = bench("after_the_end_everything_answers_gone") else { return };
    for transport in Transport::ALL {
        let [from, _to] = bench.pair(transport, Way::Calls);
        let queue_pair = from.raw();
        queue_pair.destroy().unwrap();
        assert!(matches!(queue_pair.destroy(), Err(DestroyError::Gone)));
        assert!(matches!(queue_pair.query(), Err(QueryError::Gone)));
        assert_eq!(queue_pair.state(), QueuePairState::Error);
        let reset = QueuePairAttributes::to_state(QueuePairState::Reset);
        assert!(matches!(queue_pair.modify(&reset), Err(ModifyError::Gone)));
        let error = from.try_post(&[SendRequest::new(1, SendOperation::Send, &[])]).unwrap_err();
        assert!(matches!(error.kind, PostErrorKind::Gone), "{error}");
    }
}

#[test]
fn a_queue_pair_outlives_who_made_it() {
    let Some(bench) = bench("a_queue_pair_outlives_who_made_it") else { return };
    let [from, to] = bench.pair(Transport::ReliableConnection, Way::Calls);
    let queue = bench.queue.clone();
    // Device, domain and the other references to the completion queue go first.
    drop(bench);
    from.post(SendRequest::new(1, SendOperation::Write(to.region.remote(0)), &[from.region.entry(0..8)]));
    let start = std::time::Instant::now();
    while queue.poll_one().unwrap().is_none() {
        assert!(start.elapsed() < super::PATIENCE);
    }
}

#[test]
fn one_thread_posts_while_another_destroys() {
    let Some(bench) = bench("one_thread_posts_while_another_destroys") else { return };
    for way in BOTH_WAYS {
        for _ in 0..5 {
            let [from, to] = bench.pair(Transport::ReliableConnection, way);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let entry = [from.region.entry(0..8)];
                    let request = SendRequest::new(1, SendOperation::Write(to.region.remote(0)), &entry);
                    loop {
                        match from.try_post(&[request.with_flags(Default::default()); 3]) {
                            Ok(()) => {}
                            Err(error) if matches!(error.kind, PostErrorKind::Gone) => break,
                            Err(error) if matches!(error.kind, PostErrorKind::QueueFull { .. }) => {
                                std::thread::yield_now();
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                });
                std::thread::sleep(std::time::Duration::from_millis(5));
                from.raw().destroy().unwrap();
            });
        }
        // Whatever completed before the end may come; nothing else is checked here.
        while bench.queue.poll_one().unwrap().is_some() {}
    }
}
