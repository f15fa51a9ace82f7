//! Many connections of one endpoint. Alone in its process, so that its threads and descriptors can be counted.

use crate::ends;

use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use ends::raw_handshake::endpoint;
use ends::{device, pattern};
use longhaul::{Connection, Endpoint, Listener, Options, TransferError};

const COUNT: usize = 150;

fn entries(directory: &str) -> usize {
    std::fs::read_dir(directory).expect("/proc is mounted").count()
}

/// Threads and descriptors of this process, when those that end have ended.
fn in_use() -> (usize, usize) {
    let mut last = (0, 0);
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(20));
        let now = (entries("/proc/self/task"), entries("/proc/self/fd"));
        if now == last {
            break;
        }
        last = now;
    }
    last
}

fn connect(endpoint: &Endpoint, listener: &Listener, count: usize) -> Vec<(Connection, Connection)> {
    let one = |_| {
        let connecting = endpoint.connect(listener.local_address(), &Options::default());
        let accepted = listener.accept().wait().expect("it accepts");
        (connecting.wait().expect("it connects"), accepted)
    };
    (0..count).map(one).collect()
}

/// One after another in one test, because all tests of a process would be counted together.
#[test]
fn connections_share_threads_descriptors_and_memory() {
    let (ours, theirs) = (endpoint(device()), endpoint(device()));
    let listener = theirs.listen("127.0.0.1:0", &Options::default()).expect("it listens");

    let first = connect(&ours, &listener, 1);
    let (threads, descriptors) = in_use();
    let mut pairs = connect(&ours, &listener, COUNT);
    let (threads_of_many, descriptors_of_many) = in_use();
    assert_eq!(threads_of_many, threads, "connections cost no thread");
    // Both ends are in this process. A device has some source ports, which its queue pairs share.
    let more = descriptors_of_many - descriptors;
    assert!(more <= 2 * (COUNT + 64), "{more} descriptors for the ends of {COUNT} connections");

    // All at once, with memory that was registered once.
    let bytes = pattern(20_000, 7);
    let memory = ours.register(bytes.clone()).expect("it is registered");
    let receiving: Vec<_> = pairs.iter().map(|(_, other)| other.receive(bytes.len())).collect();
    let writing: Vec<_> = pairs.iter().map(|(one, _)| one.write_from(&memory, 0..bytes.len())).collect();
    writing.into_iter().for_each(|pending| assert!(pending.wait().is_ok()));
    for pending in receiving {
        assert_eq!(*pending.wait().expect("it comes"), bytes[..]);
    }
    let foreign = theirs.register(vec![1; 10]).expect("it is registered");
    let refused = pairs[0].0.write_from(&foreign, 0..10).wait();
    assert!(matches!(refused, Err(TransferError::Refused(_))), "memory of another endpoint: {refused:?}");

    // Each layer's counts, of a connection and of the device below all of them.
    let counted = |connection: &Connection, name: &str| connection.statistics().get(name).expect("it is counted");
    let packets = counted(&pairs[1].0, "reliable.data_packets_sent");
    assert!(packets >= 5, "{packets} packets of 20,000 bytes");
    assert!(counted(&pairs[1].1, "sdr.packets_arrived") >= packets);
    let statistics = ours.statistics();
    let of_device = statistics.get("device.sent_pkts").expect("a softnic counts packets");
    assert!(of_device >= packets * COUNT as u64, "{statistics}");

    // A connection that ends disturbs no other, and what waits on it hears of it.
    let waiting = pairs[0].1.receive(10);
    let (one, other) = pairs.swap_remove(0);
    drop(one);
    assert!(matches!(waiting.wait(), Err(TransferError::PeerClosed)));
    assert!(counted(&other, "sdr.packets_arrived") >= packets, "what was counted until the end");
    drop(other);
    let receiving = pairs[0].1.receive(10);
    pairs[0].0.write("on").wait().expect("it is written");
    assert_eq!(*receiving.wait().expect("it comes"), b"on"[..]);

    a_waker_may_drop_another_connection(&mut pairs);
    a_waker_that_panics_when_a_connection_is_closed_disturbs_no_other(&mut pairs);

    // Closing them all takes as long as closing one.
    let begun = Instant::now();
    let closing: Vec<_> = pairs.into_iter().flat_map(|(one, other)| [one.close(), other.close()]).collect();
    closing.into_iter().for_each(|pending| pending.wait().expect("it closes"));
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    drop((first, listener, ours, theirs));

    several_drivers();
}

/// Drops what it holds when it is woken, on the driver's own thread.
struct DropsWhenWoken(std::sync::Mutex<Option<Connection>>, AtomicUsize);

impl Wake for DropsWhenWoken {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().expect("nobody panicked").take());
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

fn a_waker_may_drop_another_connection(pairs: &mut Vec<(Connection, Connection)>) {
    let (dropped, its_peer) = pairs.pop().expect("there are many");
    let waker = Arc::new(DropsWhenWoken(std::sync::Mutex::new(Some(dropped)), AtomicUsize::default()));
    let (one, other) = &pairs[0];
    let mut receiving = one.receive(10);
    let task = Waker::from(waker.clone());
    assert!(Pin::new(&mut receiving).poll(&mut Context::from_waker(&task)).is_pending());
    other.write("wake").wait().expect("it is written");
    let begun = Instant::now();
    while waker.1.load(Ordering::SeqCst) == 0 || !its_peer.is_over() {
        assert!(begun.elapsed() < Duration::from_secs(5), "the driver waits for itself");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(*receiving.wait().expect("it comes"), b"wake"[..]);
}

/// Panics when it is woken, as a task of an executor that has been shut down may.
struct PanicsWhenWoken;

impl Wake for PanicsWhenWoken {
    fn wake(self: Arc<Self>) {
        panic!("on purpose");
    }
}

fn a_waker_that_panics_when_a_connection_is_closed_disturbs_no_other(pairs: &mut Vec<(Connection, Connection)>) {
    let panics = Waker::from(Arc::new(PanicsWhenWoken));
    for _ in 0..2 {
        let (closed, other) = pairs.pop().expect("there are many");
        // Closing takes a moment, because something was just received.
        let receiving = closed.receive(10);
        other.write("last").wait().expect("it is written");
        receiving.wait().expect("it comes");
        let mut closing = closed.close();
        let _ = Pin::new(&mut closing).poll(&mut Context::from_waker(&panics));
        let begun = Instant::now();
        while !other.is_over() {
            assert!(begun.elapsed() < Duration::from_secs(5), "nobody closes it");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let receiving = pairs[0].1.receive(10);
    pairs[0].0.write("on").wait().expect("it is written");
    assert_eq!(*receiving.wait().expect("it comes"), b"on"[..]);
}

fn several_drivers() {
    let two = NonZeroUsize::new(2).expect("two");
    let (ours, theirs) = (endpoint(device()).with_driver_threads(two), endpoint(device()));
    let listener = theirs.listen("127.0.0.1:0", &Options::default()).expect("it listens");
    let pairs = connect(&ours, &listener, 5);
    let writing: Vec<_> = pairs.iter().map(|(one, _)| one.write(pattern(5000, 3))).collect();
    for (_, other) in &pairs {
        assert_eq!(*other.receive(5000).wait().expect("it comes"), pattern(5000, 3)[..]);
    }
    writing.into_iter().for_each(|pending| assert!(pending.wait().is_ok()));
}
