//! The server's side of a check: posts receives, and holds what comes into them and into its memory against what must
//! come.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use longhaul_verbs::{Mtu, ReceiveRequest};

use crate::contents::{Contents, FILL, Layout, verify_header};
use crate::control::Control;
use crate::endpoint::Endpoint;
use crate::fault::{Fault, InteropError};
use crate::ledger::{Numbers, Order, Queue, verify_receive};
use crate::messages::{PairInfo, Reply, Request};
use crate::pace::credit;
use crate::pair::{Pair, PairOptions, RETRIES};
use crate::plan::{Check, Connection, Operation};
use crate::words::Words;

/// Receives that are posted ahead on RC: fewer than the client may have operations in flight, so that now and then the
/// receiver is not ready and says so.
const RECEIVES_RELIABLE: u32 = 24;
/// And on the others, which lose what comes when there is none.
const RECEIVES_UNRELIABLE: u32 = 4096;
/// How long what was sent may take to arrive after the client knows that it is done.
const ARRIVAL_PATIENCE: Duration = Duration::from_secs(5);
/// How often memory is polled for WRITEs, which make no completion.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// What this end is doing.
const DURING: &str = "operations were in flight";
/// How long a client may be silent during a check.
const CLIENT_PATIENCE: Duration = Duration::from_secs(120);

/// The server's half of a check.
pub(crate) struct Responder<'a> {
    endpoint: &'a Endpoint,
    check: Check,
    /// Where the client's operations go, or where receives are.
    layout: Layout,
    pub(crate) pair: Pair,
    order: Order,
    addresses: Option<(IpAddr, IpAddr)>,
    /// The first thing that was wrong.
    failure: Option<String>,
    /// Receives that have completed, rightly or not.
    arrived: u64,
    last_arrival: Instant,
    /// WRITEs that show in memory, as far as was looked.
    shown: u64,
    /// The number last reported to the client.
    reported: u64,
}

impl<'a> Responder<'a> {
    pub(crate) fn new(endpoint: &'a Endpoint, check: Check, peer: IpAddr, first_psn: u32) -> Result<Self, Fault> {
        let layout = if check.operation.is_send() { Layout::of_receives(&check) } else { Layout::of(&check) };
        if layout.bytes() > endpoint.memory.len() {
            let (needed, there) = (layout.bytes(), endpoint.memory.len());
            return Err(Fault::Check(format!(
                "the check needs {needed} bytes of memory, the client asked for {there}"
            )));
        }
        let most = match check.connection {
            Connection::Rc => RECEIVES_RELIABLE,
            Connection::Uc | Connection::Ud => RECEIVES_UNRELIABLE,
        };
        let receives = match check.operation.consumes_receive() {
            true => check.operations.min(most).min(endpoint.attributes.max_work_requests),
            false => 1,
        };
        let options = PairOptions {
            connection: check.connection,
            send_requests: 1,
            receive_requests: receives,
            remote_access: check.operation.remote_access(),
            first_psn,
            retries: RETRIES,
        };
        let pair = Pair::create(endpoint, options)?;
        let words = Words::new(&check);
        endpoint.fill(&check, &layout, |number| match check.operation {
            Operation::Read => Contents::Message(number),
            operation if operation.is_atomic() => word(&words, number),
            _ => Contents::Untouched,
        });
        let addresses = (check.connection == Connection::Ud).then_some((peer, endpoint.end.address));
        let order = Order::new(Queue::Receive);
        let mut responder = Responder {
            endpoint,
            check,
            layout,
            pair,
            order,
            addresses,
            failure: None,
            arrived: 0,
            last_arrival: Instant::now(),
            shown: 0,
            reported: 0,
        };
        if check.operation.consumes_receive() {
            for _ in 0..receives {
                responder.post_receive()?;
            }
        }
        Ok(responder)
    }

    pub(crate) fn info(&self, mtu: Mtu) -> PairInfo {
        self.pair.info(mtu)
    }

    fn post_receive(&mut self) -> Result<(), Fault> {
        if self.order.posted() == u64::from(self.check.operations) {
            return Ok(());
        }
        let number = self.order.post();
        let range = self.layout.receive(number);
        // A WRITE says itself where it goes; and to some devices an entry without bytes is one of 2 GiB.
        let has_memory = self.check.operation.is_send() && !range.is_empty();
        let local = [self.endpoint.memory.entry(range)];
        let local = if has_memory { &local[..] } else { &[] };
        self.pair.post_receive(ReceiveRequest { id: Queue::Receive.id(number), local })
    }

    /// Takes part until the client is done; then whether everything has come as it must.
    pub(crate) fn run(&mut self, numbers: Numbers, control: &mut Control) -> Result<(), Fault> {
        let (completed, client_failure) = match self.until_done(numbers, control) {
            Ok(done) => done,
            Err(Fault::Check(message)) => {
                // The client learns of it when it is done.
                while !matches!(control.receive(CLIENT_PATIENCE, DURING)?, Request::Done { .. }) {}
                return Err(Fault::Check(message));
            }
            Err(session) => return Err(session),
        };
        if let Some(failure) = client_failure {
            // The client has said why; what has come may be anything.
            let ours = self.failure.take().unwrap_or_else(|| "nothing wrong was seen here".to_owned());
            return Err(Fault::Check(format!("{ours}; the client stopped after {completed} operations: {failure}")));
        }
        self.wait_for_the_rest(numbers, control)?;
        self.verify_end()
    }

    /// Takes what comes until the client says how many operations have completed, and what was wrong there.
    fn until_done(&mut self, numbers: Numbers, control: &mut Control) -> Result<(u64, Option<String>), Fault> {
        // Plain WRITEs make no completion here.
        let must_look = self.check.connection == Connection::Uc && self.check.operation == Operation::Write;
        let longest = if must_look { LOOK_AGAIN } else { Duration::from_secs(1) };
        let begin = Instant::now();
        loop {
            match control.try_receive(DURING)? {
                Some(Request::Done { completed, failure }) => return Ok((completed, failure)),
                Some(other) => {
                    let got = format!("{other:?}");
                    return Err(InteropError::Unexpected { expected: "that the check is done", got }.into());
                }
                None => {}
            }
            if self.last_arrival.max(begin).elapsed() > CLIENT_PATIENCE {
                let seconds = CLIENT_PATIENCE.as_secs();
                return Err(InteropError::Silent { seconds, during: DURING }.into());
            }
            self.pair.wait(control, longest)?;
            self.take_arrivals(numbers)?;
            self.tell_arrivals(must_look, control)?;
        }
    }

    /// Lets the client go on with an unreliable transport.
    fn tell_arrivals(&mut self, must_look: bool, control: &mut Control) -> Result<(), Fault> {
        if self.check.connection == Connection::Rc {
            return Ok(());
        }
        let count = u64::from(self.check.operations);
        while must_look && self.shown < count && self.shows(self.shown) {
            self.shown += 1;
            self.last_arrival = Instant::now();
        }
        let arrived = if must_look { self.shown } else { self.arrived };
        if arrived - self.reported >= credit(self.check.bytes).div_ceil(4) {
            self.reported = arrived;
            control.send(&Reply::Arrived(arrived))?;
        }
        Ok(())
    }

    /// Whether a WRITE seems to have come: its last bytes are no longer what was there before. Short ones cannot be
    /// informed, and are not held up.
    fn shows(&self, number: u64) -> bool {
        let message = self.layout.message(number);
        message.len() < 8 || self.endpoint.memory.to_vec(message.end - 8..message.end) != [FILL; 8]
    }

    fn take_arrivals(&mut self, numbers: Numbers) -> Result<(), Fault> {
        while let Some(completion) = self.pair.received.pop_front() {
            self.arrived += 1;
            self.last_arrival = Instant::now();
            // One wrong completion makes all behind it wrong; from there on they are counted.
            if self.failure.is_none() {
                let verified = verify_receive(&self.check, numbers, &mut self.order, &completion)
                    .and_then(|number| self.verify_arrival(number));
                self.failure = verified.err();
            }
            self.post_receive()?;
        }
        if let Some(completion) = self.pair.sent.pop_front() {
            let message = format!("expected no request to complete at the server, got {completion:?}");
            self.failure.get_or_insert(message);
        }
        Ok(())
    }

    /// The bytes must be there when the completion is.
    fn verify_arrival(&self, number: u64) -> Result<(), String> {
        let in_context = |error: String| format!("receive {number} got the wrong message: {error}");
        let contents = Contents::Message(number);
        self.endpoint.verify_slot(&self.check, &self.layout, number, contents).map_err(in_context)?;
        if let Some((source, destination)) = self.addresses {
            let start = self.layout.receive(number).start;
            let header = self.endpoint.memory.to_vec(start..start + Connection::Ud.header_bytes());
            verify_header(&header, source, destination).map_err(in_context)?;
        }
        Ok(())
    }

    /// Unreliable transports do not report arrivals to the client.
    fn wait_for_the_rest(&mut self, numbers: Numbers, control: &Control) -> Result<(), Fault> {
        let count = u64::from(self.check.operations);
        self.last_arrival = Instant::now();
        if self.check.operation.consumes_receive() {
            while self.arrived < count && self.last_arrival.elapsed() < ARRIVAL_PATIENCE {
                self.pair.wait(control, Duration::from_millis(100))?;
                self.take_arrivals(numbers)?;
            }
        } else if self.check.connection != Connection::Rc {
            // WRITEs make no completion here: they show in memory.
            while self.verify_memory().is_err() && self.last_arrival.elapsed() < ARRIVAL_PATIENCE {
                std::thread::sleep(LOOK_AGAIN);
            }
        }
        // What would come twice.
        self.pair.collect()?;
        self.take_arrivals(numbers)
    }

    fn verify_end(&mut self) -> Result<(), Fault> {
        let count = u64::from(self.check.operations);
        let is_counted = self.check.operation.consumes_receive();
        let expected = if is_counted { count } else { 0 };
        let counts = match self.arrived == expected {
            true => String::new(),
            false => format!(" ({} of {expected} arrived)", self.arrived),
        };
        if let Some(failure) = self.failure.take() {
            return Err(Fault::Check(format!("{failure}{counts}")));
        }
        if self.arrived != expected {
            return Err(Fault::Check(format!("expected {expected} receives to complete, got {}", self.arrived)));
        }
        let missing = || {
            let is_missing = |&number: &u64| {
                let contents = self.final_contents()(number);
                self.endpoint.verify_slot(&self.check, &self.layout, number, contents).is_err()
            };
            (0..count).filter(is_missing).count()
        };
        let verified = self.verify_memory();
        Ok(verified.map_err(|error| {
            format!("the server's memory at the end: {error}; slots that are wrong: {} of {count}", missing())
        })?)
    }

    /// What each slot must hold at the end.
    fn final_contents(&self) -> impl Fn(u64) -> Contents {
        let words = self.check.operation.is_atomic().then(|| Words::after_all(&self.check));
        move |number| match &words {
            Some(words) => word(words, number),
            None => Contents::Message(number),
        }
    }

    fn verify_memory(&self) -> Result<(), String> {
        self.endpoint.verify(&self.check, &self.layout, self.final_contents())
    }
}

/// What the slot of a word holds; the others are not used.
fn word(words: &Words, slot: u64) -> Contents {
    words.value(slot).map_or(Contents::Untouched, Contents::Word)
}
