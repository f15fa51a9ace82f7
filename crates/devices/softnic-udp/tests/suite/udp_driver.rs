//! Who polls, and who sleeps: descriptors wake programs, idle devices cost nothing, ends that never poll are served, and
//! closing leaves nothing behind.

use crate::udp_ends;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use longhaul_softnic_udp::{Background, UdpConfig, UdpDevice};
use longhaul_verbs::{
    Access, AsyncEventKind, CompletionChannel, CompletionOperation, CompletionStatus, Gid, Mtu, PathAttributes,
    QueuePairAttributes, Transport, WorkCompletion,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::time::{ClockId, clock_gettime};
use udp_ends::{End, PSN, device, device_with, pair, pair_on, pattern};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// Longer than anything here takes on a busy machine, and an end to what hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Processor time, descriptors and threads are counted for the whole process: one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn both_backgrounds() -> [Background; 2] {
    [Background::Sleep, Background::Spin(Duration::from_micros(200))]
}

fn devices(background: Background) -> (UdpDevice, UdpDevice) {
    let open = |address| {
        let mut udp = UdpConfig::default();
        udp.background = background;
        device_with(address, udp)
    };
    (open("127.0.0.1"), open("127.0.0.2"))
}

fn is_readable(descriptor: BorrowedFd<'_>, patience: Duration) -> bool {
    let mut waits = [PollFd::new(descriptor, PollFlags::POLLIN)];
    poll(&mut waits, PollTimeout::try_from(patience).unwrap()).unwrap() > 0
}

/// An end whose completions raise events.
struct ToldEnd {
    end: End,
    channel: CompletionChannel,
}

const TOKEN: u64 = 42;

impl ToldEnd {
    fn new(device: &UdpDevice) -> ToldEnd {
        let channel = device.verbs().create_completion_channel().unwrap();
        let completions = device.verbs().create_completion_queue_on(1024, &channel, TOKEN).unwrap();
        ToldEnd { end: End::with_completions(device, Transport::ReliableConnection, 64 * KIB, completions), channel }
    }

    fn pair(one: &UdpDevice, two: &UdpDevice) -> (ToldEnd, ToldEnd) {
        let (one, two) = (ToldEnd::new(one), ToldEnd::new(two));
        one.end.connect(&two.end, Mtu::Bytes4096);
        two.end.connect(&one.end, Mtu::Bytes4096);
        (one, two)
    }

    fn is_told(&self, patience: Duration) -> bool {
        is_readable(self.channel.descriptor().unwrap(), patience)
    }

    /// As programs do it: look a few times, ask to be told, look once more, sleep.
    fn sleep_until_completion(&self, looks: usize) -> WorkCompletion {
        loop {
            for _ in 0..looks {
                if let Some(completion) = self.end.completions.poll_one().unwrap() {
                    return completion;
                }
            }
            self.end.completions.request_notification(false).unwrap();
            if let Some(completion) = self.end.completions.poll_one().unwrap() {
                return completion;
            }
            assert!(self.is_told(PATIENCE), "armed, polled, and never woken");
            while let Some(token) = self.channel.next_event().unwrap() {
                assert_eq!(token, TOKEN);
            }
        }
    }
}

// --- an idle device costs no core ------------------------------------------------------------------------------------

fn process_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap().into()
}

fn assert_idle(when: &str) {
    let before = process_time();
    thread::sleep(Duration::from_secs(1));
    let used = process_time() - before;
    assert!(used < Duration::from_millis(20), "{when}: {used:?} of processor time in a second of idleness");
}

#[test]
fn an_idle_device_costs_no_core() {
    let _alone = alone();
    for background in both_backgrounds() {
        let (one, two) = devices(background);
        assert_idle(&format!("{background:?}, open"));
        let (one, two) = pair_on(&one, &two, Transport::ReliableConnection, MIB);
        assert_idle(&format!("{background:?}, connected"));
        // Callers that poll all the time: the threads leave it to them. Then they stop.
        for round in 0..200 {
            two.post_receive(round, 4 * KIB);
            one.post_send(round, 4 * KIB);
            assert_eq!(two.wait().status, CompletionStatus::Success);
            assert_eq!(one.wait().status, CompletionStatus::Success);
        }
        let _ = one.wait_for(Duration::from_millis(20));
        thread::sleep(Duration::from_millis(20));
        assert_idle(&format!("{background:?}, after callers stopped polling"));
        // Work that nobody waits for.
        one.post_write(1, MIB, &two);
        thread::sleep(Duration::from_millis(300));
        assert_idle(&format!("{background:?}, after a write that nobody polled for"));
        assert_eq!(one.wait().status, CompletionStatus::Success);
    }
}

// --- descriptors -------------------------------------------------------------------------------------------------------

#[test]
fn a_channel_is_readable_from_the_completion_on_and_not_before() {
    let _alone = alone();
    let (one, two) = devices(Background::Sleep);
    let (one, two) = ToldEnd::pair(&one, &two);
    let moment = Duration::from_millis(100);
    for round in 0..3 {
        two.end.completions.request_notification(false).unwrap();
        two.end.post_receive(round, 8);
        assert!(!two.is_told(moment), "nothing has been sent yet");
        one.end.post_send(round, 8);
        assert!(two.is_told(PATIENCE));
        assert!(two.is_told(Duration::ZERO), "it stays readable until the event is taken");
        assert_eq!(two.channel.next_event().unwrap(), Some(TOKEN));
        assert_eq!(two.channel.next_event().unwrap(), None);
        assert!(!two.is_told(Duration::ZERO));
        assert_eq!(two.end.completions.poll_one().unwrap().unwrap().id, round);
        // One was asked for. The next comes quietly.
        two.end.post_receive(round, 8);
        one.end.post_send(round, 8);
        two.end.wait();
        assert!(!two.is_told(Duration::ZERO), "nobody has asked to be told");
        one.end.wait();
        one.end.wait();
    }
}

#[test]
fn the_event_descriptor_is_readable_while_there_are_events() {
    let _alone = alone();
    let (one, two) = (device("127.0.0.1"), device("127.0.0.2"));
    let (one, two) =
        (End::new(&one, Transport::ReliableConnection, 64), End::new(&two, Transport::ReliableConnection, 64));
    one.connect(&two, Mtu::Bytes4096);
    // The other end only gets ready to receive: its first packet is an event.
    let mut path = PathAttributes::to(Gid::from_ip(one.address));
    path.udp_port = one.device.udp_port();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    two.queue_pair.modify(&QueuePairAttributes::init_connected(access)).unwrap();
    let receive = QueuePairAttributes::ready_to_receive(path, Mtu::Bytes4096, one.queue_pair.number(), PSN);
    two.queue_pair.modify(&receive.reliable_receive(0, 12)).unwrap();
    let verbs = two.device.verbs();
    assert!(!is_readable(verbs.event_descriptor().unwrap(), Duration::from_millis(100)), "nothing has happened yet");
    one.post_write(1, 64, &two);
    assert!(is_readable(verbs.event_descriptor().unwrap(), PATIENCE));
    assert_eq!(verbs.next_event().unwrap().unwrap().kind, AsyncEventKind::CommunicationEstablished);
    assert!(verbs.next_event().unwrap().is_none());
    assert!(!is_readable(verbs.event_descriptor().unwrap(), Duration::ZERO));
}

#[test]
fn programs_that_arm_and_sleep_are_always_woken() {
    let _alone = alone();
    // Threads that spin are slow where there are not enough cores for them.
    for (background, rounds) in both_backgrounds().into_iter().zip([10_000, 1_000]) {
        let (one, two) = devices(background);
        let (one, two) = ToldEnd::pair(&one, &two);
        let started = Instant::now();
        // `first` sends, the other answers. Acknowledgements come when they come.
        let play = |told: &ToldEnd, first: bool| {
            let (mut sent, mut received) = (0, 0);
            let mut sleep_until = |is_enough: &dyn Fn(u64, u64) -> bool, looks| {
                while !is_enough(sent, received) {
                    let completion = told.sleep_until_completion(looks);
                    assert_eq!(completion.status, CompletionStatus::Success);
                    let count =
                        if completion.operation == CompletionOperation::Receive { &mut received } else { &mut sent };
                    assert_eq!(completion.id, *count);
                    *count += 1;
                }
            };
            for round in 0..rounds {
                // At times it sleeps at once, at times it looks so often before that the driver relies on it.
                let looks = [0, 1, 3, 40][(round / 7 % 4) as usize];
                if first {
                    told.end.post_receive(round, 8);
                    told.end.post_send(round, 8);
                }
                sleep_until(&|_, received| received > round, looks);
                if !first {
                    // For the next message, which comes as soon as this is answered.
                    told.end.post_receive(round + 1, 8);
                    told.end.post_send(round, 8);
                }
            }
            sleep_until(&|sent, _| sent == rounds, 0);
        };
        two.end.post_receive(0, 8);
        thread::scope(|scope| {
            scope.spawn(|| play(&two, false));
            play(&one, true);
        });
        println!("{background:?}: {:.1} µs a round", started.elapsed().as_secs_f64() * 1e6 / rounds as f64);
    }
}

// --- ends that never poll ----------------------------------------------------------------------------------------------

#[test]
fn ends_that_never_poll_are_served() {
    let _alone = alone();
    for background in both_backgrounds() {
        let (one, two) = devices(background);
        let (one, two) = pair_on(&one, &two, Transport::ReliableConnection, MIB);
        for round in 0..20 {
            let bytes = pattern(round, MIB);
            one.region.copy_in(0, &bytes);
            one.post_write(round, MIB, &two);
            assert_eq!(one.wait_for(PATIENCE).unwrap().status, CompletionStatus::Success);
            assert!(two.region.to_vec(0..MIB) == bytes, "{background:?}, round {round}: contents differ");
        }
        // Nor need the sender poll: its background thread sends the rest.
        let bytes = pattern(99, MIB);
        one.region.copy_in(0, &bytes);
        one.post_write(99, MIB, &two);
        let started = Instant::now();
        while two.region.to_vec(MIB - 8..MIB) != bytes[MIB - 8..] {
            assert!(started.elapsed() < PATIENCE, "{background:?}: what nobody polls for does not arrive");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

// --- several threads -----------------------------------------------------------------------------------------------------

#[test]
fn threads_may_post_and_poll_on_one_device_at_once() {
    const MESSAGES: u64 = 200;
    let _alone = alone();
    let (one, two) = devices(Background::Sleep);
    let pairs: Vec<_> = (0..2).map(|_| pair_on(&one, &two, Transport::ReliableConnection, 256 * KIB)).collect();
    thread::scope(|scope| {
        for (lane, (sender, receiver)) in pairs.iter().enumerate() {
            let contents = move |round: u64| pattern(round * 2 + lane as u64, 1 + (round as usize * 997) % (200 * KIB));
            // The sender waits until its message has been looked at.
            let (looked, may_go_on) = std::sync::mpsc::channel();
            scope.spawn(move || {
                for round in 0..MESSAGES {
                    let bytes = contents(round);
                    receiver.post_receive(round, bytes.len());
                    looked.send(()).unwrap();
                    let completion = receiver.wait_for(PATIENCE).expect("a message");
                    assert_eq!((completion.id, completion.byte_count as usize), (round, bytes.len()));
                    assert!(receiver.region.to_vec(0..bytes.len()) == bytes, "lane {lane}, round {round}: differs");
                }
            });
            scope.spawn(move || {
                for round in 0..MESSAGES {
                    may_go_on.recv().unwrap();
                    let bytes = contents(round);
                    sender.region.copy_in(0, &bytes);
                    sender.post_send(round, bytes.len());
                    let completion = sender.wait_for(PATIENCE).expect("a completion");
                    assert_eq!((completion.id, completion.status), (round, CompletionStatus::Success));
                }
            });
        }
    });
}

/// A background thread that receives without a pause must let callers in.
#[test]
fn callers_are_not_kept_out_by_a_busy_background_thread() {
    let _alone = alone();
    let (one, two) = (device("127.0.0.1"), device("127.0.0.2"));
    let (writer, target) = pair_on(&one, &two, Transport::ReliableConnection, 4 * MIB);
    let bystander = End::new(&two, Transport::ReliableConnection, 64);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    bystander.queue_pair.modify(&QueuePairAttributes::init_connected(access)).unwrap();
    let is_over = AtomicBool::new(false);
    let percentile = |times: &mut Vec<Duration>, part: usize| {
        times.sort();
        times[times.len() * part / 100]
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                if is_over.load(Ordering::Relaxed) && round > 2 {
                    break;
                }
                writer.post_write(round, 4 * MIB, &target);
                if round > 1 {
                    assert_eq!(writer.wait_for(PATIENCE).unwrap().status, CompletionStatus::Success);
                }
            }
        });
        let (mut posts, mut naps) = (Vec::new(), Vec::new());
        let received_before = target.counter("rcvd_pkts");
        for _ in 0..500 {
            // What the machine itself is late by, loaded as it is.
            let nap = Instant::now();
            thread::sleep(Duration::from_millis(1));
            naps.push(nap.elapsed() - Duration::from_millis(1));
            let post = Instant::now();
            let entry = [bystander.region.entry(0..8)];
            let refused = bystander.queue_pair.post_receive(&[longhaul_verbs::ReceiveRequest { id: 1, local: &entry }]);
            posts.push(post.elapsed());
            // The receive queue fills up; that takes the lock as well.
            let _ = refused;
        }
        let received = target.counter("rcvd_pkts") - received_before;
        is_over.store(true, Ordering::Relaxed);
        let (half, most, longest) = (percentile(&mut posts, 50), percentile(&mut posts, 99), posts[posts.len() - 1]);
        let late = percentile(&mut naps, 99);
        println!(
            "post while {received} packets come: p50 {half:?}, p99 {most:?}, longest {longest:?}; naps late by {late:?}"
        );
        assert!(received > 1000, "only {received} packets came: that is no busy thread");
        assert!(most < Duration::from_millis(5) + 4 * late, "p99 of a post: {most:?}; naps are late by {late:?}");
    });
}

// --- closing -------------------------------------------------------------------------------------------------------------

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn closing_amid_traffic_leaves_nothing_behind() {
    let _alone = alone();
    // The standard library keeps some for itself once it has needed them.
    drop(pair(Transport::ReliableConnection, 64));
    let before = open_descriptors();
    let threads_before = threads();
    for round in 0..100 {
        let (one, two) = {
            let (one, two) = devices(both_backgrounds()[round % 2]);
            pair_on(&one, &two, Transport::ReliableConnection, 256 * KIB)
        };
        for id in 0..8 {
            one.post_write(id, 256 * KIB, &two);
            two.post_write(id, 256 * KIB, &one);
        }
        for _ in 0..round % 5 {
            let _ = one.completions.poll_one().unwrap();
        }
        // At different moments of the transfer.
        thread::sleep(Duration::from_micros(round as u64 * 37 % 1000));
        match round % 3 {
            0 => drop((one, two)),
            1 => thread::spawn(move || drop((two, one))).join().unwrap(),
            _ => {
                let other = thread::spawn(move || drop(two));
                drop(one);
                other.join().unwrap();
            }
        }
        // Not a moment later: a program that has closed a device can open another at the same port.
        assert_eq!(open_descriptors(), before, "round {round}: descriptors are left open");
    }
    // A thread that has been joined may be listed a moment longer.
    let started = Instant::now();
    while threads() > threads_before {
        assert!(started.elapsed() < PATIENCE, "{} threads, {threads_before} before", threads());
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_peer_that_closes_is_an_error_and_no_hang() {
    let _alone = alone();
    let (one, two) = pair(Transport::ReliableConnection, MIB);
    let remote = two.region.remote(0);
    for id in 0..4 {
        one.post_write(id, MIB, &two);
    }
    drop(two);
    let entry = [one.region.entry(0..8)];
    let operation = longhaul_verbs::SendOperation::Write(remote);
    one.queue_pair.post_send(&[longhaul_verbs::SendRequest::new(9, operation, &entry)]).unwrap();
    let statuses: Vec<_> = (0..5).map(|_| one.wait_for(PATIENCE).expect("a completion").status).collect();
    let failed = statuses.iter().position(|status| *status != CompletionStatus::Success).expect("an error");
    assert_eq!(statuses[failed], CompletionStatus::RetryExceededError);
    assert!(statuses[failed + 1..].iter().all(|status| *status == CompletionStatus::FlushedError));
}

/// Answers are kept back for a moment while callers poll; who closes within that moment still owes them.
#[test]
fn what_was_completed_is_answered_although_its_end_closes_at_once() {
    let _alone = alone();
    for round in 0..20 {
        let (one, two) = pair(Transport::ReliableConnection, 4 * KIB);
        for id in 0..2 {
            two.post_receive(id, 4 * KIB);
        }
        // Arrivals amid many polls make the thread rely on the caller.
        let _ = two.wait_for(Duration::from_millis(2));
        one.post_send(0, 4 * KIB);
        two.wait();
        let _ = two.wait_for(Duration::from_micros(500));
        one.post_send(1, 4 * KIB);
        two.wait();
        drop(two);
        for _ in 0..2 {
            assert_eq!(one.wait_for(PATIENCE).unwrap().status, CompletionStatus::Success, "round {round}");
        }
    }
}

// --- a host that was stopped -------------------------------------------------------------------------------------------

/// Looking at this many datagrams takes four steps.
const JUNK_DATAGRAMS: usize = 1000;

#[test]
fn an_acknowledgement_behind_much_else_in_the_socket_is_no_time_out() {
    let _alone = alone();
    let (one, two) = pair(Transport::ReliableConnection, KIB);
    let target = SocketAddr::new(one.address, one.device.udp_port());
    let junk = UdpSocket::bind((one.address, 0)).unwrap();
    // Nobody answers until the first end is stopped, too.
    let second = two.device.device().nic();
    one.post_write(1, KIB, &two);
    let first = one.device.device().nic();
    (0..JUNK_DATAGRAMS).for_each(|_| assert_eq!(junk.send_to(&[0; 8], target).unwrap(), 8));
    drop(second);
    // Three time-outs.
    thread::sleep(Duration::from_millis(200));
    drop(first);
    assert_eq!(one.wait().status, CompletionStatus::Success);
    let counts = ["rx_malformed", "local_ack_timeout_err"].map(|name| one.counter(name));
    assert_eq!(counts, [JUNK_DATAGRAMS as u64, 0]);
}
