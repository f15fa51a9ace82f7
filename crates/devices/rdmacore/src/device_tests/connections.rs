//! Connected queue pairs: every operation, both ways of posting.

use longhaul_verbs::{
    CompletionOperation, CompletionStatus, PostErrorKind, QueuePairLimits, QueuePairState, ScatterGatherEntry,
    SendFlags, SendOperation, SendRequest, Transport, WriteBurst,
};

use super::{BOTH_WAYS, End, QueuePairAttributes, Way, bench, pattern};

const RC: Transport = Transport::ReliableConnection;
const UC: Transport = Transport::UnreliableConnection;

#[test]
fn messages_arrive_with_what_they_carry() {
    let Some(bench) = bench("messages_arrive_with_what_they_carry") else { return };
    for (transport, way) in [RC, UC].into_iter().flat_map(|transport| BOTH_WAYS.map(|way| (transport, way))) {
        let [from, to] = bench.pair(transport, way);
        for (round, length) in [0, 1, 1023, 1024, 1025, 5000].into_iter().enumerate() {
            let data = pattern(length, round as u8);
            from.region.copy_in(0, &data);
            to.receive(1, 0..8192);
            let entry = [from.region.entry(0..length)];
            let immediate = 0x0102_0300 + round as u32;
            from.post(SendRequest::new(2, SendOperation::SendWithImmediate(immediate), &entry));
            let (sent, received) = bench.message(2);
            assert_eq!(sent.operation, CompletionOperation::Send, "{transport:?} {way:?}");
            assert_eq!(received.operation, CompletionOperation::Receive);
            assert_eq!((received.id, received.byte_count), (1, length as u32));
            assert_eq!(received.immediate(), Some(immediate), "{transport:?} {way:?}");
            assert_eq!(received.queue_pair, to.raw().number());
            assert_eq!(to.region.to_vec(0..length), data, "{transport:?} {way:?} {length}");
        }
    }
}

#[test]
fn writes_arrive_where_they_should() {
    let Some(bench) = bench("writes_arrive_where_they_should") else { return };
    for (transport, way) in [RC, UC].into_iter().flat_map(|transport| BOTH_WAYS.map(|way| (transport, way))) {
        let [from, to] = bench.pair(transport, way);
        from.region.copy_in(0, &pattern(3000, 5));
        let entries = [from.region.entry(0..1000), from.region.entry(1000..1001), from.region.entry(1001..3000)];
        to.receive(1, 0..16);
        // The silent one first: when the other has arrived, so has it.
        from.post(SendRequest::new(2, SendOperation::Write(to.region.remote(100)), &entries[..2]));
        from.post(SendRequest::new(3, SendOperation::WriteWithImmediate(to.region.remote(1101), 77), &entries[2..]));
        let completions = bench.completions(3);
        let received = completions.iter().find(|completion| completion.id == 1).unwrap();
        assert_eq!(received.operation, CompletionOperation::ReceiveWriteWithImmediate);
        assert_eq!(received.immediate(), Some(77), "{transport:?} {way:?}");
        assert_eq!(to.region.to_vec(100..3100), pattern(3000, 5), "{transport:?} {way:?}");
        assert_eq!(to.region.to_vec(0..100), vec![0; 100], "nothing outside");
    }
}

#[test]
fn reads_and_atomics_bring_back_what_is_there() {
    let Some(bench) = bench("reads_and_atomics_bring_back_what_is_there") else { return };
    for way in BOTH_WAYS {
        let [from, to] = bench.pair(RC, way);
        to.region.copy_in(0, &pattern(5000, 9));
        from.post(SendRequest::new(1, SendOperation::Read(to.region.remote(0)), &[from.region.entry(64..5064)]));
        let read = bench.completions(1)[0];
        assert_eq!(read.operation, CompletionOperation::Read);
        assert_eq!(from.region.to_vec(64..5064), pattern(5000, 9), "{way:?}");

        to.region.copy_in(8192, &5u64.to_ne_bytes());
        let remote = to.region.remote(8192);
        let old = [from.region.entry(0..8)];
        let value_of =
            |end: &End, offset| u64::from_ne_bytes(end.region.to_vec(offset..offset + 8).try_into().unwrap());
        from.post(SendRequest::new(2, SendOperation::FetchAndAdd { remote, add: 7 }, &old));
        assert_eq!(bench.completions(1)[0].operation, CompletionOperation::FetchAndAdd);
        assert_eq!((value_of(&from, 0), value_of(&to, 8192)), (5, 12), "{way:?}");
        from.post(SendRequest::new(3, SendOperation::CompareAndSwap { remote, compare: 12, swap: 99 }, &old));
        assert_eq!(bench.completions(1)[0].operation, CompletionOperation::CompareAndSwap);
        assert_eq!((value_of(&from, 0), value_of(&to, 8192)), (12, 99), "{way:?}");
        from.post(SendRequest::new(4, SendOperation::CompareAndSwap { remote, compare: 12, swap: 1 }, &old));
        bench.completions(1);
        assert_eq!((value_of(&from, 0), value_of(&to, 8192)), (99, 99), "{way:?}");
    }
}

#[test]
fn inline_data_is_free_after_posting() {
    let Some(bench) = bench("inline_data_is_free_after_posting") else { return };
    for (transport, way) in [RC, UC].into_iter().flat_map(|transport| BOTH_WAYS.map(|way| (transport, way))) {
        let [from, to] = bench.pair(transport, way);
        for pieces in 1..=3 {
            to.receive(1, 0..64);
            let mut data = pattern(12, pieces as u8);
            let expected = data.clone();
            let entries: Vec<_> = data
                .chunks(12 / pieces)
                .map(|piece| ScatterGatherEntry {
                    address: piece.as_ptr() as u64,
                    length: piece.len() as u32,
                    local_key: 0,
                })
                .collect();
            let flags = SendFlags::INLINE | SendFlags::SIGNALED;
            from.post(SendRequest::new(2, SendOperation::Send, &entries).with_flags(flags));
            data.fill(0xee);
            let (_, received) = bench.message(2);
            assert_eq!(received.byte_count, 12);
            assert_eq!(to.region.to_vec(0..12), expected, "{transport:?} {way:?} {pieces} pieces");
        }
    }
}

#[test]
fn only_what_asks_for_it_completes() {
    let Some(bench) = bench("only_what_asks_for_it_completes") else { return };
    for way in BOTH_WAYS {
        let [from, to] = bench.pair(RC, way);
        let entry = [from.region.entry(0..8)];
        let write = SendOperation::Write(to.region.remote(0));
        let silent = SendRequest::new(1, write, &entry).with_flags(SendFlags::empty());
        from.try_post(&[silent, silent, SendRequest::new(2, write, &entry), silent]).unwrap();
        assert_eq!(bench.completions(1)[0].id, 2, "{way:?}");
        bench.no_completion();
    }
}

#[test]
fn a_batch_is_posted_as_far_as_there_is_room() {
    let Some(bench) = bench("a_batch_is_posted_as_far_as_there_is_room") else { return };
    for way in BOTH_WAYS {
        // Nobody receives, so nothing leaves the send queue.
        let limits = QueuePairLimits { send_requests: 20, ..QueuePairLimits::default() };
        let from = bench.end_with(RC, way, limits, None);
        let to = bench.end(RC, way);
        from.connect(&to);
        to.connect(&from);
        let depth = from.raw().query().unwrap().limits.unwrap().send_requests as usize;
        assert!((20..600).contains(&depth), "{depth}");
        let entry = [from.region.entry(0..8)];
        let requests: Vec<_> =
            (0..depth as u64 + 10).map(|id| SendRequest::new(id, SendOperation::Send, &entry)).collect();
        let error = from.try_post(&requests).unwrap_err();
        assert_eq!(error.index, depth, "{way:?}");
        assert!(
            matches!(error.kind, PostErrorKind::QueueFull { depth: reported } if reported as usize == depth),
            "{error}"
        );
        for id in 0..depth as u64 {
            to.receive(1000 + id, 0..64);
            let (sent, received) = loop_until_pair(&bench);
            assert_eq!((sent, received), (id, 1000 + id), "{way:?}");
        }
        bench.no_completion();
    }
}

fn loop_until_pair(bench: &super::Bench) -> (u64, u64) {
    let both = bench.completions(2);
    let (first, second) = (both[0].id, both[1].id);
    (first.min(second), first.max(second))
}

#[test]
fn a_burst_is_its_single_writes() {
    let Some(bench) = bench("a_burst_is_its_single_writes") else { return };
    for (transport, way) in [RC, UC].into_iter().flat_map(|transport| BOTH_WAYS.map(|way| (transport, way))) {
        let [from, to] = bench.pair(transport, way);
        from.region.copy_in(0, &pattern(40_000, 3));
        let immediates: Vec<u32> = (500..540).collect();
        for id in 0..40 {
            to.receive(id, 0..0);
        }
        let burst = WriteBurst {
            id: 7777,
            local: from.region.entry(0..39_500),
            remote: to.region.remote(1000),
            stride: 1000,
            immediates: &immediates,
            flags: SendFlags::SIGNALED,
        };
        from.burst(&burst).unwrap();
        let completions = bench.completions(41);
        let (sent, received): (Vec<_>, Vec<_>) = completions.into_iter().partition(|completion| completion.id == 7777);
        assert_eq!(sent.len(), 1, "only the last one is signalled");
        let got: Vec<_> = received.iter().map(|completion| completion.immediate().unwrap()).collect();
        assert_eq!(got, immediates, "{transport:?} {way:?}");
        assert_eq!(received.last().unwrap().byte_count, 500);
        assert_eq!(to.region.to_vec(1000..40_500), pattern(39_500, 3), "{transport:?} {way:?}");
    }
}

#[test]
fn a_refused_access_completes_with_its_status() {
    let Some(bench) = bench("a_refused_access_completes_with_its_status") else { return };
    for way in BOTH_WAYS {
        let [from, to] = bench.pair(RC, way);
        let entry = [from.region.entry(0..8)];
        let beyond = to.region.remote(super::REGION_BYTES as u64);
        from.post(SendRequest::new(1, SendOperation::Write(beyond), &entry));
        from.post(SendRequest::new(2, SendOperation::Write(to.region.remote(0)), &entry));
        let first = bench.next_completion();
        assert_eq!((first.id, first.status), (1, CompletionStatus::RemoteAccessError), "{way:?}");
        let second = bench.next_completion();
        assert_eq!((second.id, second.status), (2, CompletionStatus::FlushedError), "{way:?}");
        assert_eq!(from.raw().state(), QueuePairState::Error);
        // Posting goes on, to be flushed.
        from.post(SendRequest::new(3, SendOperation::Write(to.region.remote(0)), &entry));
        let third = bench.next_completion();
        assert_eq!((third.id, third.status), (3, CompletionStatus::FlushedError), "{way:?}");
        // And it can be used again.
        for end in [&from, &to] {
            end.raw().modify(&QueuePairAttributes::to_state(QueuePairState::Reset)).unwrap();
        }
        from.connect(&to);
        to.connect(&from);
        from.post(SendRequest::new(4, SendOperation::Write(to.region.remote(0)), &entry));
        assert_eq!(bench.completions(1)[0].id, 4);
    }
}

#[test]
fn many_threads_post_to_one_queue_pair() {
    let Some(bench) = bench("many_threads_post_to_one_queue_pair") else { return };
    for way in BOTH_WAYS {
        let [from, to] = bench.pair(RC, way);
        let posted = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..3u64)
                .map(|worker| {
                    let (from, to) = (&from, &to);
                    scope.spawn(move || {
                        let entry = [from.region.entry(worker as usize * 8..worker as usize * 8 + 8)];
                        let write = SendOperation::Write(to.region.remote(worker * 8));
                        let batch = [SendRequest::new(worker, write, &entry); 4];
                        let mut posted = 0;
                        for _ in 0..20 {
                            match from.try_post(&batch) {
                                Ok(()) => posted += batch.len(),
                                Err(error) => posted += error.index,
                            }
                        }
                        posted
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum::<usize>()
        });
        assert!(posted >= 128, "{posted}");
        bench.completions(posted);
        bench.no_completion();
    }
}

#[test]
fn both_ways_are_really_there() {
    let Some(bench) = bench("both_ways_are_really_there") else { return };
    // Not every device has calls; Soft-RoCE does.
    let driver = crate::RdmaDevice::open(bench.device.name()).unwrap().driver();
    for transport in Transport::ALL {
        assert!(!bench.end(transport, Way::Lists).queue_pair.posts_by_calls());
        let has_calls = bench.end(transport, Way::Calls).queue_pair.posts_by_calls();
        assert!(has_calls || driver.as_deref() != Some("rxe"), "{transport:?} {driver:?}");
    }
}

#[test]
fn what_was_posted_while_drained_is_sent_afterwards() {
    let Some(bench) = bench("what_was_posted_while_drained_is_sent_afterwards") else { return };
    let [from, to] = bench.pair(RC, Way::Calls);
    let entry = [from.region.entry(0..8)];
    from.raw().modify(&QueuePairAttributes::to_state(QueuePairState::SendQueueDrained)).unwrap();
    from.post(SendRequest::new(1, SendOperation::Write(to.region.remote(0)), &entry));
    bench.no_completion();
    from.raw().modify(&QueuePairAttributes::to_state(QueuePairState::ReadyToSend)).unwrap();
    assert_eq!(bench.completions(1)[0].id, 1);
}

#[test]
fn everything_that_is_posted_in_the_error_state_is_flushed() {
    let Some(bench) = bench("everything_that_is_posted_in_the_error_state_is_flushed") else { return };
    for (transport, way) in [RC, UC].into_iter().flat_map(|transport| BOTH_WAYS.map(|way| (transport, way))) {
        let [end, _peer] = bench.pair(transport, way);
        end.raw().modify(&QueuePairAttributes::to_state(QueuePairState::Error)).unwrap();
        for id in 0..3 {
            end.receive(id, 0..8);
            let flushed = bench.next_completion();
            assert_eq!((flushed.id, flushed.status), (id, CompletionStatus::FlushedError), "{transport:?} {way:?}");
        }
        end.post(SendRequest::new(9, SendOperation::Send, &[end.region.entry(0..8)]));
        let flushed = bench.next_completion();
        assert_eq!((flushed.id, flushed.status), (9, CompletionStatus::FlushedError), "{transport:?} {way:?}");
    }
}
