//! Messages on real sockets of the loopback interface.

mod ends;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ends::{device, impaired_device, pair, pair_of, pattern};
use longhaul::{Connection, ConnectionError, Listener, Options, TransferError, connect};
use longhaul_impair::{Loss, Profile, Reordering};

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

#[test]
fn what_cannot_be_taken_costs_only_its_own_message() {
    let mut options = Options::default();
    options.round_trip_guess = Duration::MAX;
    let (one, other) = pair(&options);
    let (foreign, _its_peer) = pair(&Options::default());
    let memory = foreign.register(pattern(100, 1)).expect("memory");
    for error in [
        one.write_from(&memory, 0..100).wait().map(drop).expect_err("it is another connection's"),
        one.receive_into(&memory, 0..100).wait().map(drop).expect_err("it is another connection's"),
    ] {
        assert!(matches!(error, TransferError::Refused(ConnectionError::ForeignMemory)), "{error:?}");
    }
    for bytes in [usize::MAX, isize::MAX as usize, 1 << 60] {
        let error = one.receive(bytes).wait().map(drop).expect_err("nobody has so much");
        assert!(matches!(error, TransferError::NoMemory(_)), "{error:?}");
    }
    let receiving = other.receive(100);
    one.write("still there").wait().expect("it is written");
    assert_eq!(receiving.wait().expect("it is received").bytes(), b"still there");
}

#[test]
fn a_connection_whose_peer_has_gone_is_not_accepted() {
    let listener = Listener::bind("127.0.0.1:0", device(), &Options::default()).expect("it listens");
    let gone = connect(listener.local_address(), device(), &Options::default()).wait().expect("it connects");
    drop(gone);
    let stays = connect(listener.local_address(), device(), &Options::default()).wait().expect("it connects");
    // Time for the listener to notice.
    std::thread::sleep(Duration::from_millis(500));
    let accepted = listener.accept().wait().expect("it accepts");
    let receiving = accepted.receive(10);
    stays.write("hello").wait().expect("it is written");
    assert_eq!(receiving.wait().expect("it is received").bytes(), b"hello");
}

#[test]
fn registered_memory_is_used_where_it_lies() {
    let (one, other) = pair(&Options::default());
    let source = one.register(pattern(300_000, 2)).expect("memory");
    let target = other.register(vec![0; 400_000]).expect("memory");
    let parts = [0..100_000, 100_000..150_000, 150_000..300_000];
    let receiving: Vec<_> = parts.iter().map(|part| other.receive_into(&target, part.clone())).collect();
    let in_use = other.receive_into(&target, 50..100).wait();
    assert!(matches!(in_use, Err(TransferError::Refused(_))), "{in_use:?}");
    let writing: Vec<_> = parts.iter().map(|part| one.write_from(&source, part.clone())).collect();
    for ((writing, receiving), part) in writing.into_iter().zip(receiving).zip(&parts) {
        writing.wait().expect("it is written");
        let message = receiving.wait().expect("it comes");
        assert!(message.bytes() == &pattern(300_000, 2)[part.clone()]);
    }
    assert!(*target.read(0..300_000).expect("nobody uses it now") == pattern(300_000, 2)[..]);
}

#[test]
fn schemes_mend_what_a_bad_network_does() {
    let profile = Profile {
        propagation_delay: Duration::from_micros(500),
        loss: Loss::Independent { probability: 0.05 },
        reordering: Reordering { probability: 0.02, extra_delay: Duration::from_micros(300) },
        duplication_probability: 0.01,
        ..Profile::default()
    };
    for (scheme, seed) in [("sr:rto", 1), ("sr:nack", 2), ("ec:mds:8,4", 3)] {
        let options = Options::with_scheme(scheme).expect("a scheme");
        let (one, other) = pair_of([impaired_device(profile.clone(), seed), device()], &options);
        let mut repeated = 0;
        for (from, to) in [(&one, &other), (&other, &one)] {
            let receiving: Vec<_> = (0..8).map(|_| to.receive(300_000)).collect();
            let writing: Vec<_> = (0..8).map(|seed| from.write(pattern(200_000 + seed, seed as u64))).collect();
            for (seed, (writing, receiving)) in writing.into_iter().zip(receiving).enumerate() {
                let message = receiving.wait().expect("it comes");
                assert!(message.bytes() == pattern(200_000 + seed, seed as u64), "{scheme}");
                let report = writing.wait().expect("it is written");
                repeated += report.data_packets_repeated + message.report().chunks_recovered;
            }
        }
        assert!(repeated > 0, "{scheme}: the network was good");
    }
}

#[test]
fn the_last_message_is_told_although_its_receiver_closes() {
    let profile = Profile { loss: Loss::Independent { probability: 0.1 }, ..Profile::default() };
    for seed in 0..20 {
        let (one, other) = pair_of([device(), impaired_device(profile.clone(), seed)], &Options::default());
        let receiving = other.receive(10);
        let writing = one.write("last words");
        assert_eq!(receiving.wait().expect("it comes").bytes(), b"last words");
        drop(other);
        writing.wait().expect("its receiver said so before it closed");
    }
}

#[test]
fn many_threads_use_one_connection() {
    let (one, other) = pair(&Options::default());
    let (one, other) = (Arc::new(one), Arc::new(other));
    let threads: Vec<_> = (0..8_u64)
        .flat_map(|thread| {
            let (from, to) = if thread % 2 == 0 { (&one, &other) } else { (&other, &one) };
            let (from, to) = (from.clone(), to.clone());
            let write = move || (0..50).for_each(|_| assert!(from.write(pattern(3000, 9)).wait().is_ok()));
            let read = move || {
                (0..50).for_each(|_| assert!(to.receive(5000).wait().expect("it comes").bytes() == pattern(3000, 9)))
            };
            [std::thread::spawn(write), std::thread::spawn(read)]
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("it ends well"));
}

#[test]
fn dropping_in_the_middle_ends_both() {
    let (one, other) = pair(&Options::default());
    let receiving = other.receive(64 << 20);
    let writing = one.write(vec![1; 64 << 20]);
    let begun = Instant::now();
    drop(one);
    assert!(matches!(writing.wait(), Err(TransferError::Closed)));
    assert!(matches!(receiving.wait(), Err(TransferError::PeerClosed)));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn a_message_that_is_too_long_is_refused_at_both_ends() {
    let (one, other) = pair(&Options::default());
    let receiving = other.receive(10);
    let writing = one.write(vec![1; 11]);
    assert!(matches!(receiving.wait(), Err(TransferError::Message(_))));
    assert!(matches!(writing.wait(), Err(TransferError::Message(_))));
    let receiving = other.receive(10);
    one.write(vec![2; 10]).wait().expect("the next one arrives");
    assert_eq!(receiving.wait().expect("it comes").bytes(), [2; 10]);
}

#[test]
fn futures_need_no_executor_of_a_kind() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let options = Options::default();
        let listener = Listener::bind("127.0.0.1:0", device(), &options).expect("it listens");
        let connecting = connect(listener.local_address(), device(), &options);
        let (one, other) = (connecting.await.expect("it connects"), listener.accept().await.expect("it accepts"));
        let (one, other) = (Arc::new(one), Arc::new(other));
        let echo = tokio::spawn({
            let other = other.clone();
            async move {
                for _ in 0..20 {
                    let message = other.receive(10_000).await.expect("it comes");
                    other.write(message.bytes()).await.expect("it is written");
                }
            }
        });
        for length in (0..20).map(|index| index * 500) {
            let (echoed, written) = tokio::join!(one.receive(10_000), one.write(pattern(length, 5)));
            written.expect("it is written");
            assert!(echoed.expect("it comes").bytes() == pattern(length, 5));
        }
        echo.await.expect("it ends well");
    });
}

/// Not a test by itself: the end that is killed.
#[test]
#[ignore = "started by a_killed_peer_is_noticed"]
fn killed_peer() {
    let address = std::env::var("LONGHAUL_TEST_ADDRESS").expect("started by another test");
    let connection = connect(&address, device(), &Options::default()).wait().expect("it connects");
    connection.write("I am here").wait().expect("it is written");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_killed_peer_is_noticed() {
    let listener = Listener::bind("127.0.0.1:0", device(), &Options::default()).expect("it listens");
    let mut child = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["--ignored", "--exact", "killed_peer"])
        .env("LONGHAUL_TEST_ADDRESS", listener.local_address().to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    let connection = listener.accept().wait().expect("it accepts");
    connection.receive(100).wait().expect("it is there");
    let (receiving, writing) = (connection.receive(100), connection.write("are you there?"));
    child.kill().expect("it is killed");
    child.wait().expect("it has ended");
    let begun = Instant::now();
    assert!(matches!(receiving.wait(), Err(TransferError::PeerClosed)));
    assert!(matches!(writing.wait(), Err(TransferError::PeerClosed)));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn messages_come_one_after_another_until_the_peer_closes() {
    let (one, other) = pair(&Options::default());
    let reader = std::thread::spawn(move || {
        let lengths: Vec<usize> = other.incoming(2000, 4).map(|message| message.expect("it comes").len()).collect();
        lengths
    });
    let writing: Vec<_> = (0..100).map(|index| one.write(vec![3; index * 10])).collect();
    writing.into_iter().for_each(|pending| assert!(pending.wait().is_ok()));
    let begun = Instant::now();
    one.close().wait().expect("it closes");
    assert_eq!(reader.join().expect("it ends well"), (0..100).map(|index| index * 10).collect::<Vec<_>>());
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}
