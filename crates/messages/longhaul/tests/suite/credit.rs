//! Several senders with `credit` to one endpoint, over real sockets: contents arrive, and a sender that goes leaves its
//! share to the others.

use crate::ends;

use std::thread;
use std::time::{Duration, Instant};

use ends::raw_handshake::endpoint;
use ends::{device, pattern};
use longhaul::{Connection, ControllerName, Endpoint, Listener, Options, TransferError};

const SENDERS: usize = 6;
const MESSAGES: usize = 20;
const BYTES: usize = 1 << 20;

fn options() -> Options {
    let mut options = Options::default();
    options.congestion = Some(ControllerName::Credit);
    options
}

fn connect(from: &Endpoint, listener: &Listener) -> (Connection, Connection) {
    let connecting = from.connect(listener.local_address(), &options());
    let accepted = listener.accept().wait().expect("it accepts");
    (connecting.wait().expect("it connects"), accepted)
}

#[test]
fn several_senders_share_one_endpoint() {
    let hub = endpoint(device());
    let listener = hub.listen("127.0.0.1:0", &Options::default()).expect("it listens");
    let senders: Vec<Endpoint> = (0..SENDERS).map(|_| endpoint(device())).collect();
    let mut pairs: Vec<_> = senders.iter().map(|from| connect(from, &listener)).collect();
    assert_eq!(pairs[0].0.congestion(), Some(ControllerName::Credit));
    assert_eq!(pairs[0].1.congestion(), None, "each end chooses for what it sends");

    let begun = Instant::now();
    thread::scope(|scope| {
        for (index, (one, other)) in pairs.iter().enumerate() {
            let seed = move |message: usize| (index * MESSAGES + message) as u64;
            scope.spawn(move || {
                let writing: Vec<_> = (0..MESSAGES).map(|message| one.write(pattern(BYTES, seed(message)))).collect();
                writing.into_iter().for_each(|pending| assert!(pending.wait().is_ok()));
            });
            scope.spawn(move || {
                let receiving: Vec<_> = (0..MESSAGES).map(|_| other.receive(BYTES)).collect();
                for (message, received) in receiving.into_iter().enumerate() {
                    assert!(
                        *received.wait().expect("it comes") == pattern(BYTES, seed(message))[..],
                        "{index} {message}"
                    );
                }
            });
        }
    });
    let bits = (SENDERS * MESSAGES * BYTES * 8) as f64;
    println!("{:.2} Gbit/s together", bits / begun.elapsed().as_secs_f64() / 1e9);
    let counted = |connection: &Connection, name: &str| connection.statistics().get(name).expect("it is counted");
    let lost: u64 = pairs.iter().map(|(one, _)| counted(one, "sdr.writes_presumed_lost")).sum();
    let writes: u64 = pairs.iter().map(|(one, _)| counted(one, "sdr.writes_posted")).sum();
    println!("{lost} of {writes} writes presumed lost");

    // One goes in the middle of a message; a new one takes its place.
    let waiting = pairs[0].1.receive(BYTES);
    let unfinished = pairs[0].0.write(vec![7; BYTES]);
    pairs.swap_remove(0);
    drop(unfinished);
    assert!(matches!(waiting.wait(), Ok(_) | Err(TransferError::PeerClosed | TransferError::Closed)));
    pairs.push(connect(&senders[0], &listener));
    let bytes = pattern(BYTES, 1);
    let receiving: Vec<_> = pairs.iter().map(|(_, other)| other.receive(BYTES)).collect();
    let writing: Vec<_> = pairs.iter().map(|(one, _)| one.write(bytes.clone())).collect();
    writing.into_iter().for_each(|pending| assert!(pending.wait().is_ok()));
    receiving.into_iter().for_each(|pending| assert!(*pending.wait().expect("it comes") == bytes[..]));
}

/// Small messages travel in control messages, and those of a few packets in the first window.
#[test]
fn short_messages_and_pauses() {
    let (ours, theirs) = (endpoint(device()), endpoint(device()).with_credit_rate(1_000_000_000));
    let listener = theirs.listen("127.0.0.1:0", &options()).expect("it listens");
    let (one, other) = connect(&ours, &listener);
    for (round, length) in [1, 500, 5000, 50_000, 500_000, 3, 70_000, 4096].into_iter().enumerate() {
        for (from, to) in [(&one, &other), (&other, &one)] {
            let receiving = to.receive(length);
            from.write(pattern(length, round as u64)).wait().expect("it is written");
            assert!(*receiving.wait().expect("it comes") == pattern(length, round as u64)[..], "{length}");
        }
        thread::sleep(Duration::from_millis(10));
    }
}
