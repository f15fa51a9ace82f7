//! Kill -9 of either end in mid-transfer. Who writes to the dead is told, in time, request by request; whose memory was
//! written to notices nothing and costs nothing; and both can put everything away.

mod udp_ends;
mod udp_processes;

use std::time::{Duration, Instant};

use longhaul_verbs::{CompletionStatus, Mtu, QueuePairState, Transport};
use udp_ends::End;
use udp_processes::{Introduction, OUTSTANDING, Process, REGION_BYTES, connect, open, threads_time, write_on};

#[test]
fn child() {
    udp_processes::child_main();
}

fn end_at(address: &str) -> End {
    End::new(&open(address), Transport::ReliableConnection, REGION_BYTES)
}

#[test]
fn a_writer_whose_target_was_killed_is_told() {
    let end = end_at("127.0.11.1");
    let mut target = Process::start("target", "127.0.11.2");
    connect(&end, &target.end, Mtu::Bytes4096);
    target.meet(&Introduction::of(&end));
    target.line("CONNECTED");
    let remote = target.end.remote;
    let mut killed_at = None;
    let (completed, status) = {
        let target = std::cell::RefCell::new(&mut target);
        let killed_at = std::cell::RefCell::new(&mut killed_at);
        write_on(&end, remote, |completed| {
            if completed == 5 && killed_at.borrow().is_none() {
                target.borrow_mut().kill();
                **killed_at.borrow_mut() = Some(Instant::now());
            }
            killed_at.borrow().is_some_and(|at| at.elapsed() > Duration::from_secs(20))
        })
    };
    let elapsed = killed_at.expect("it was killed").elapsed();
    assert!(completed >= 5);
    assert_eq!(status, Some(CompletionStatus::RetryExceededError), "after {elapsed:?}");
    // Four times 67 ms, of which some may have passed before on a busy machine, where a target is slow before it is dead; it may
    // also take longer there.
    assert!((Duration::from_millis(60)..Duration::from_secs(5)).contains(&elapsed), "{elapsed:?}");
    for _ in 1..OUTSTANDING {
        assert_eq!(end.wait().status, CompletionStatus::FlushedError, "each other request comes back, flushed");
    }
    assert!(end.completions.poll_one().unwrap().is_none(), "and each only once");
    assert_eq!(end.queue_pair.state(), QueuePairState::Error);
    assert_eq!(end.counter("retry_exceeded_err"), 1);
    // Nothing goes on in the background.
    let sent = end.counter("sent_pkts");
    let driver = || threads_time(std::process::id(), |name| name.starts_with("127.0.11.1 driv"));
    let before = driver();
    std::thread::sleep(Duration::from_millis(1000));
    assert_eq!(end.counter("sent_pkts"), sent, "nobody is written to any more");
    let ran = driver() - before;
    assert!(ran < Duration::from_millis(30), "the background thread ran for {ran:?} in a second");
    // All that the program had can be put away, and the device closes.
    let End { device, region, queue_pair, .. } = end;
    queue_pair.destroy().unwrap();
    assert_eq!(region.into_buffer().unwrap().len(), REGION_BYTES);
    drop((queue_pair, device));
}

#[test]
fn a_target_whose_writer_was_killed_stays_idle() {
    let mut writer = Process::start("writer", "127.0.11.3");
    // In a process of its own, whose time is its own.
    let mut target = Process::start("target", "127.0.11.4");
    target.meet(&writer.end);
    target.line("CONNECTED");
    writer.meet(&target.end);
    writer.line("IN FLIGHT");
    let busy = target.processor_time();
    writer.kill();
    std::thread::sleep(Duration::from_millis(300));
    let before = target.processor_time();
    assert!(before > busy || busy > Duration::from_millis(1), "it has received something");
    std::thread::sleep(Duration::from_millis(1000));
    let ran = target.processor_time() - before;
    assert!(ran < Duration::from_millis(30), "a target with nobody to write to it ran for {ran:?} in a second");
    assert!(target.child.try_wait().unwrap().is_none(), "it lives");
}

#[test]
fn a_target_in_this_process_serves_the_next_writer() {
    let device = open("127.0.11.6");
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut counts = Vec::new();
    for _ in 0..3 {
        let end = End::new(&device, Transport::ReliableConnection, REGION_BYTES);
        let mut writer = Process::start("writer", "127.0.11.5");
        connect(&end, &writer.end, Mtu::Bytes4096);
        writer.meet(&Introduction::of(&end));
        writer.line("IN FLIGHT");
        writer.kill();
        // In the middle of a message, most likely. The memory comes back all the same, and stays as it is.
        let End { region, queue_pair, .. } = end;
        let buffer = region.into_buffer().unwrap();
        let copy = buffer.clone();
        std::thread::sleep(Duration::from_millis(20));
        assert!(buffer == copy, "memory that was taken back changes");
        queue_pair.destroy().unwrap();
        drop(writer);
        counts.push(descriptors());
    }
    // Other tests of this process have descriptors too.
    assert!(counts[2] <= counts[0] + 100, "descriptors leak: {counts:?}");
}
