//! Every waiter is woken, without a lock held and whatever happens to the thread that would do it.

use crate::ends;

use std::future::Future as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use ends::{device, pair, pattern};
use longhaul::scheme::{
    Instant, MessageShape, NamedScheme, Progress, ReceiveHalf, ReceiveIo, Scheme, SendHalf, SendIo, scheme_named,
};
use longhaul::{ConnectError, Connection, Listener, Options, Pending, TransferError, connect};

const LONG_ENOUGH: Duration = Duration::from_secs(5);

/// Asks the connection something when it is called, as an executor may that polls its task at once.
struct AsksWhenWoken {
    connection: Arc<Connection>,
    answers: Mutex<Sender<bool>>,
}

impl AsksWhenWoken {
    fn new(connection: &Arc<Connection>) -> (Arc<Self>, Receiver<bool>) {
        let (answers, answered) = channel();
        (Arc::new(AsksWhenWoken { connection: connection.clone(), answers: Mutex::new(answers) }), answered)
    }
}

impl Wake for AsksWhenWoken {
    fn wake(self: Arc<Self>) {
        let is_over = self.connection.is_over();
        let _ = self.connection.round_trip_time();
        let _ = self.answers.lock().expect("nobody panics").send(is_over);
    }
}

fn poll_once<T, E>(pending: &mut Pending<T, E>, waker: &Waker) -> Poll<Result<T, E>> {
    Pin::new(pending).poll(&mut Context::from_waker(waker))
}

#[test]
fn a_waker_may_use_the_connection() {
    let (one, other) = pair(&Options::default());
    let (one, other) = (Arc::new(one), Arc::new(other));
    let (asks_one, answers_one) = AsksWhenWoken::new(&one);
    let (asks_other, answers_other) = AsksWhenWoken::new(&other);
    let mut receiving = other.receive(100_000);
    assert!(poll_once(&mut receiving, &Waker::from(asks_other)).is_pending());
    let mut writing = one.write(pattern(100_000, 4));
    assert!(poll_once(&mut writing, &Waker::from(asks_one)).is_pending());
    assert_eq!(answers_other.recv_timeout(LONG_ENOUGH), Ok(false), "the receiver's waker was called");
    assert_eq!(answers_one.recv_timeout(LONG_ENOUGH), Ok(false), "the sender's waker was called");
    assert_eq!(receiving.wait().expect("it has come").bytes(), pattern(100_000, 4));
    writing.wait().expect("it was written");
}

#[test]
fn a_waker_may_use_a_connection_that_has_ended() {
    let (one, other) = pair(&Options::default());
    let one = Arc::new(one);
    let (asks, answers) = AsksWhenWoken::new(&one);
    let mut receiving = one.receive(10);
    assert!(poll_once(&mut receiving, &Waker::from(asks)).is_pending());
    drop(other);
    assert_eq!(answers.recv_timeout(LONG_ENOUGH), Ok(true));
    assert!(matches!(receiving.wait(), Err(TransferError::PeerClosed)));
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PanicsIn {
    Sender,
    Receiver,
    Name,
}

/// Selective repeat that panics while `armed`.
struct Panics {
    place: PanicsIn,
    armed: Arc<AtomicBool>,
    inner: Arc<dyn Scheme>,
}

struct PanicsSending {
    armed: Arc<AtomicBool>,
    inner: Box<dyn SendHalf>,
}

struct PanicsReceiving {
    armed: Arc<AtomicBool>,
    inner: Box<dyn ReceiveHalf>,
}

fn panic_if(armed: &AtomicBool) {
    assert!(!armed.load(Ordering::SeqCst), "the scheme has a mistake");
}

impl Scheme for Panics {
    fn name(&self) -> String {
        if self.place == PanicsIn::Name {
            panic_if(&self.armed);
        }
        "panics".to_owned()
    }

    fn sender(&self, shape: &MessageShape) -> Box<dyn SendHalf> {
        match self.place {
            PanicsIn::Sender => Box::new(PanicsSending { armed: self.armed.clone(), inner: self.inner.sender(shape) }),
            _ => self.inner.sender(shape),
        }
    }

    fn receiver(&self, shape: &MessageShape) -> Box<dyn ReceiveHalf> {
        match self.place {
            PanicsIn::Receiver => {
                Box::new(PanicsReceiving { armed: self.armed.clone(), inner: self.inner.receiver(shape) })
            }
            _ => self.inner.receiver(shape),
        }
    }
}

impl SendHalf for PanicsSending {
    fn poll(&mut self, io: &mut SendIo<'_>) {
        panic_if(&self.armed);
        self.inner.poll(io);
    }

    fn on_feedback(&mut self, bytes: &[u8], io: &mut SendIo<'_>) {
        self.inner.on_feedback(bytes, io);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline()
    }
}

impl ReceiveHalf for PanicsReceiving {
    fn poll(&mut self, io: &mut ReceiveIo<'_>) -> Progress {
        panic_if(&self.armed);
        self.inner.poll(io)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.inner.next_deadline()
    }
}

fn panics_in(place: PanicsIn) -> (Options, Arc<AtomicBool>) {
    let armed = Arc::new(AtomicBool::new(false));
    let inner = scheme_named(NamedScheme::NegativeAcknowledgements);
    let mut options = Options::default();
    options.scheme = Arc::new(Panics { place, armed: armed.clone(), inner });
    (options, armed)
}

/// A shorter message might travel in its offer, past the scheme.
const SEEN_BY_THE_SCHEME: &[u8] = &[7; 1000];

/// Neither thread of the program drives the connection: only the driver does.
fn end_of<T, E: std::fmt::Debug>(pending: Pending<T, E>) -> Result<T, E> {
    pending.wait_for(LONG_ENOUGH).unwrap_or_else(|_| panic!("it is still pending"))
}

#[test]
fn a_panic_in_the_driver_ends_its_connection_and_no_other() {
    let (options, armed) = panics_in(PanicsIn::Receiver);
    let listener = Listener::bind("127.0.0.1:0", device(), &options).expect("it listens");
    let connect = || {
        let connecting = connect(listener.local_address(), device(), &options);
        (listener.accept().wait().expect("it accepts"), connecting.wait().expect("it connects"))
    };
    let ((accepted, one), (other_accepted, other)) = (connect(), connect());
    let (receiving, later) = (accepted.receive(1000), accepted.receive(1000));
    armed.store(true, Ordering::SeqCst);
    let written = one.write(SEEN_BY_THE_SCHEME);
    for pending in [receiving, later] {
        let reason = end_of(pending).expect_err("the scheme panics").to_string();
        assert!(reason.contains("the scheme has a mistake"), "{reason}");
    }
    assert!(end_of(written).is_err(), "its peer has gone");
    assert!(accepted.is_over());
    let reason = accepted.write("more").wait().expect_err("it has failed").to_string();
    assert!(reason.contains("the scheme has a mistake"), "{reason}");
    armed.store(false, Ordering::SeqCst);
    let receiving = other_accepted.receive(1000);
    end_of(other.write("still here")).expect("the other connection goes on");
    assert_eq!(end_of(receiving).expect("it comes").bytes(), b"still here");
}

#[test]
fn a_panic_while_posting_is_the_connections_end_too() {
    let (options, armed) = panics_in(PanicsIn::Sender);
    let (one, other) = pair(&options);
    let before = one.receive(10);
    let waiting = other.receive(1000);
    // So that the message can be sent at once, on the thread that writes.
    std::thread::sleep(Duration::from_millis(100));
    armed.store(true, Ordering::SeqCst);
    let reason = end_of(one.write(SEEN_BY_THE_SCHEME)).expect_err("the scheme panics").to_string();
    assert!(reason.contains("the scheme has a mistake"), "{reason}");
    let reason = end_of(before).expect_err("the connection has failed").to_string();
    assert!(reason.contains("the scheme has a mistake"), "{reason}");
    assert!(matches!(end_of(waiting), Err(TransferError::PeerClosed)));
}

#[test]
fn a_panic_while_connecting_is_an_error() {
    let (options, armed) = panics_in(PanicsIn::Name);
    let listener = Listener::bind("127.0.0.1:0", device(), &options).expect("it listens");
    armed.store(true, Ordering::SeqCst);
    let refused = end_of(connect(listener.local_address(), device(), &options)).expect_err("the scheme panics");
    assert!(matches!(&refused, ConnectError::Panicked(reason) if reason.contains("a mistake")), "{refused:?}");
    armed.store(false, Ordering::SeqCst);
    let connected = end_of(connect(listener.local_address(), device(), &options));
    connected.expect("the listener still listens");
}

struct CountsReferences;

impl Wake for CountsReferences {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn what_is_dropped_keeps_no_waker() {
    let listener = Listener::bind("127.0.0.1:0", device(), &Options::default()).expect("it listens");
    let (one, _other) = pair(&Options::default());
    let wakers: Vec<_> = (0..100).map(|_| Arc::new(CountsReferences)).collect();
    for counted in &wakers {
        let mut accepting = listener.accept();
        assert!(poll_once(&mut accepting, &Waker::from(counted.clone())).is_pending());
        assert!(Arc::strong_count(counted) > 1);
        drop(accepting);
        assert_eq!(Arc::strong_count(counted), 1, "the listener has forgotten it");
        let mut receiving = one.receive(10);
        assert!(poll_once(&mut receiving, &Waker::from(counted.clone())).is_pending());
        drop(receiving);
        assert_eq!(Arc::strong_count(counted), 1, "the connection has forgotten it");
    }
}
