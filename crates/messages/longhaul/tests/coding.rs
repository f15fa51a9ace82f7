//! Erasure codes and checksums are computed by threads of the endpoint, and hold nobody up.

mod ends;

use std::fs;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ends::{device, pattern};
use longhaul::scheme::{
    Arrivals, Instant, MessageShape, NamedScheme, Progress, ReceiveHalf, ReceiveIo, Scheme, SendHalf, scheme_named,
};
use longhaul::softnic::{Impair, Loss, Profile};
use longhaul::{Connection, Endpoint, MessageReport, Options, Towards, TransferError};

const LONG_ENOUGH: Duration = Duration::from_secs(30);

fn endpoint(profile: Option<Profile>, coding_threads: usize) -> Endpoint {
    let local: IpAddr = "127.0.0.1".parse().expect("an address");
    let mut choice = device();
    choice.udp.impair = profile.map(|profile| Impair { profile, seed: 7 });
    let towards = Towards { local, peer: local, gid_index: None };
    Endpoint::open(&choice.name, towards, choice.udp).expect("it opens").with_coding_threads(coding_threads)
}

/// Connections from end to end: the connecting one first.
fn connections<const COUNT: usize>(ends: [&Endpoint; 2], options: &Options) -> [(Connection, Connection); COUNT] {
    let listener = ends[1].listen("127.0.0.1:0", options).expect("it listens");
    std::array::from_fn(|_| {
        let connecting = ends[0].connect(listener.local_address(), options);
        let accepted = listener.accept().wait().expect("it accepts");
        (connecting.wait().expect("it connects"), accepted)
    })
}

/// Threads of this process that encode and decode.
fn coding_threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux");
    let names = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "longhaul-coding").count()
}

/// One test counts threads, so the others must not run meanwhile.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn lossy_messages_are_coded_on_any_number_of_threads() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|error| error.into_inner());
    for coding_threads in [0, 1, 3] {
        for (scheme, has_checksum) in [("ec:mds:32,8", false), ("ec:xor:32,8", true)] {
            let lossy = Profile { loss: Loss::Independent { probability: 0.01 }, ..Profile::default() };
            let ends = [endpoint(Some(lossy), coding_threads), endpoint(None, coding_threads)];
            let mut options = Options::with_scheme(scheme).expect("a scheme");
            options.checksum = has_checksum;
            let [(one, other), (two, another)] = connections([&ends[0], &ends[1]], &options);
            let lengths = [3 << 20, 70_000, 5, 9 << 20, 1 << 20];
            let receives: Vec<_> =
                lengths.iter().map(|_| (other.receive(16 << 20), another.receive(16 << 20))).collect();
            let writes: Vec<_> =
                lengths.iter().map(|length| (one.write(pattern(*length, 1)), two.write(pattern(*length, 2)))).collect();
            let mut recovered = 0;
            for (length, (first, second)) in lengths.into_iter().zip(receives) {
                for (seed, receive) in [(1, first), (2, second)] {
                    let message = receive.wait().expect("it is received");
                    assert!(message.bytes() == pattern(length, seed), "{scheme}, {coding_threads} threads: {length}");
                    recovered += message.report().chunks_recovered;
                }
            }
            assert!(recovered > 0, "nothing was lost");
            for (first, second) in writes {
                first.wait().expect("it is written");
                second.wait().expect("it is written");
            }
        }
    }
}

#[test]
fn threads_are_started_when_there_is_something_to_code() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|error| error.into_inner());
    let ends = [endpoint(None, 2), endpoint(None, 2)];
    let before = coding_threads();
    let transfer = |scheme: &str| {
        let options = Options::with_scheme(scheme).expect("a scheme");
        let [(one, other)] = connections([&ends[0], &ends[1]], &options);
        let receiving = other.receive(4 << 20);
        one.write(pattern(4 << 20, 1)).wait().expect("it is written");
        receiving.wait().expect("it is received");
        (one, other)
    };
    let _uncoded = transfer("sr:nack");
    assert_eq!(coding_threads(), before);
    let _coded = transfer("ec:mds:32,8");
    assert!((before + 1..=before + 4).contains(&coding_threads()), "{} threads", coding_threads());
}

/// Selective repeat that computes something for as long as the test says.
struct Slow {
    inner: Arc<dyn Scheme>,
    begins: Sender<()>,
    goes_on: Arc<Mutex<Receiver<After>>>,
}

enum After {
    Ends,
    Panics,
    WaitsUntilUnwanted,
}

struct SlowReceiver {
    inner: Box<dyn ReceiveHalf>,
    begins: Sender<()>,
    goes_on: Arc<Mutex<Receiver<After>>>,
}

impl Scheme for Slow {
    fn name(&self) -> String {
        "slow".to_owned()
    }

    fn sender(&self, shape: &MessageShape) -> Box<dyn SendHalf> {
        self.inner.sender(shape)
    }

    fn receiver(&self, shape: &MessageShape) -> Box<dyn ReceiveHalf> {
        let inner = self.inner.receiver(shape);
        Box::new(SlowReceiver { inner, begins: self.begins.clone(), goes_on: self.goes_on.clone() })
    }
}

impl ReceiveHalf for SlowReceiver {
    fn poll(&mut self, io: &mut ReceiveIo<'_>) -> Progress {
        self.inner.poll(io)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline()
    }

    fn recover(
        &mut self,
        data: &mut [u8],
        arrived: Arrivals<'_>,
        parity: Option<(&[u8], Arrivals<'_>)>,
        report: &mut MessageReport,
        is_wanted: &dyn Fn() -> bool,
    ) -> Vec<Range<u32>> {
        if data.len() >= LONG_MESSAGE {
            let _ = self.begins.send(());
            let after = self.goes_on.lock().expect("no panic").recv_timeout(LONG_ENOUGH);
            match after {
                Ok(After::Ends) => {}
                Ok(After::Panics) => panic!("the scheme has a mistake"),
                Ok(After::WaitsUntilUnwanted) => {
                    while is_wanted() {
                        std::thread::yield_now();
                    }
                }
                Err(_) => panic!("the test has not gone on"),
            }
        }
        self.inner.recover(data, arrived, parity, report, is_wanted)
    }
}

const LONG_MESSAGE: usize = 1 << 20;

/// Options of connections that compute something of each long message, a receiver that hears when that begins, and how
/// to end it.
fn slow() -> (Options, Receiver<()>, Sender<After>) {
    let ((begins, begun), (go_on, goes_on)) = (channel(), channel());
    let inner = scheme_named(NamedScheme::NegativeAcknowledgements);
    let mut options = Options::default();
    options.scheme = Arc::new(Slow { inner, begins, goes_on: Arc::new(Mutex::new(goes_on)) });
    // Something is computed of every message then.
    options.checksum = true;
    (options, begun, go_on)
}

#[test]
fn a_message_that_takes_long_to_compute_holds_up_no_other_connection() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|error| error.into_inner());
    let (options, begun, go_on) = slow();
    let ends = [endpoint(None, 1), endpoint(None, 1)];
    let [(one, other), (two, another)] = connections([&ends[0], &ends[1]], &options);
    let long = other.receive(LONG_MESSAGE);
    let written = one.write(pattern(LONG_MESSAGE, 3));
    begun.recv_timeout(LONG_ENOUGH).expect("it is computed");
    // On another connection of the same driver, and on the same connection.
    for (from, to) in [(&two, &another), (&one, &other)] {
        let receiving = to.receive(100);
        from.write("meanwhile").wait_for(LONG_ENOUGH).expect("in time").expect("it is written");
        let message = receiving.wait_for(LONG_ENOUGH).expect("in time").expect("it is received");
        assert_eq!(message.bytes(), b"meanwhile");
    }
    go_on.send(After::Ends).expect("somebody waits");
    assert!(long.wait().expect("it is received").bytes() == pattern(LONG_MESSAGE, 3));
    written.wait().expect("it is written");
}

#[test]
fn a_message_may_take_longer_to_compute_than_its_timeout() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|error| error.into_inner());
    let (mut options, begun, go_on) = slow();
    options.message_timeout = std::time::Duration::from_secs(1);
    let ends = [endpoint(None, 1), endpoint(None, 1)];
    let [(one, other)] = connections([&ends[0], &ends[1]], &options);
    let receiving = other.receive(LONG_MESSAGE);
    let written = one.write(pattern(LONG_MESSAGE, 7));
    begun.recv_timeout(LONG_ENOUGH).expect("it is computed");
    std::thread::sleep(2 * options.message_timeout);
    go_on.send(After::Ends).expect("somebody waits");
    assert!(receiving.wait().expect("it is received").bytes() == pattern(LONG_MESSAGE, 7));
    written.wait().expect("the sender has waited");
}

#[test]
fn a_connection_that_ends_takes_its_work_with_it() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|error| error.into_inner());
    let (options, begun, go_on) = slow();
    let ends = [endpoint(None, 1), endpoint(None, 1)];
    let [(one, other)] = connections([&ends[0], &ends[1]], &options);
    let memory = ends[1].register(vec![0; LONG_MESSAGE]).expect("it is registered");
    let receiving = other.receive_into(&memory, 0..LONG_MESSAGE);
    let written = one.write(pattern(LONG_MESSAGE, 4));
    begun.recv_timeout(LONG_ENOUGH).expect("it is computed");
    go_on.send(After::WaitsUntilUnwanted).expect("somebody waits");
    drop(other);
    assert!(matches!(receiving.wait(), Err(TransferError::Closed)));
    assert!(memory.write(0..LONG_MESSAGE).is_ok(), "nobody uses the bytes any more");
    assert!(written.wait().is_err());
    assert!(memory.into_buffer().is_ok());
}

#[test]
fn a_panic_of_a_coding_thread_is_its_connections_end() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|error| error.into_inner());
    let (options, begun, go_on) = slow();
    let ends = [endpoint(None, 1), endpoint(None, 1)];
    let [(one, other), (two, another)] = connections([&ends[0], &ends[1]], &options);
    let receiving = other.receive(LONG_MESSAGE);
    let written = one.write(pattern(LONG_MESSAGE, 5));
    begun.recv_timeout(LONG_ENOUGH).expect("it is computed");
    go_on.send(After::Panics).expect("somebody waits");
    let reason = receiving.wait().map(|_| ()).expect_err("it has failed").to_string();
    assert!(reason.contains("the scheme has a mistake"), "{reason}");
    assert!(written.wait().is_err());
    // The thread goes on.
    let receiving = another.receive(LONG_MESSAGE);
    let written = two.write(pattern(LONG_MESSAGE, 6));
    begun.recv_timeout(LONG_ENOUGH).expect("it is computed");
    go_on.send(After::Ends).expect("somebody waits");
    assert!(receiving.wait().expect("it is received").bytes() == pattern(LONG_MESSAGE, 6));
    written.wait().expect("it is written");
}
