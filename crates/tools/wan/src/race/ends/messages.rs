//! Longhaul's messages, as programs send them: the library with its defaults, only the scheme is chosen.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use longhaul::{Connection, Listener, Memory, Options, Pending, TransferError};
use longhaul_link::namespaces::Side;

use crate::clock::now;
use crate::race::end_error::EndError;
use crate::race::orders::{Contact, Measure, Work};
use crate::race::prepared::{End, PATIENCE};
use crate::race::tally::{Tally, sleep_until};

const DEVICE: &str = "softnic";
/// Receives that are posted beyond what the sender posts.
const SPARE_RECEIVES: usize = 2;

fn options(work: &Work) -> Result<Options, EndError> {
    let scheme = work.scheme.as_deref().unwrap_or_default();
    Options::with_scheme(scheme).map_err(EndError::failed("find the scheme"))
}

struct Receiver {
    listener: Listener,
    work: Work,
}

pub(super) fn receiver(work: &Work) -> Result<(Contact, Box<dyn End>), EndError> {
    let listener = Listener::bind((Side::Right.address(), 0), DEVICE, &options(work)?);
    let listener = listener.map_err(EndError::failed("listen"))?;
    let contact = Contact { address: listener.handle().to_string(), ..Contact::default() };
    Ok((contact, Box::new(Receiver { listener, work: work.clone() })))
}

impl End for Receiver {
    fn start(&mut self, _: Duration, until: Duration, tally: &Arc<Tally>) -> Result<(), EndError> {
        for _ in 0..self.work.connections {
            let accepted = self.listener.accept().wait_for(PATIENCE);
            let accepted = accepted.map_err(|_| EndError::failed("accept a connection")("nobody connects"))?;
            let connection = accepted.map_err(EndError::failed("accept a connection"))?;
            let work = self.work.clone();
            tally.spawn(move |tally| receive(&connection, &work, until, tally));
        }
        Ok(())
    }
}

fn receive(connection: &Connection, work: &Work, until: Duration, tally: &Tally) -> Result<(), EndError> {
    let flow = tally.meter.flow();
    let mut posted = VecDeque::new();
    let mut arrived = 0;
    loop {
        while posted.len() < work.depth() + SPARE_RECEIVES {
            posted.push_back(connection.receive(work.message_bytes));
        }
        let Some(next) = posted.pop_front() else { return Ok(()) };
        let Some(message) = sleep(next, until) else { return Ok(()) };
        let message = match message {
            // The sender has no time left, and ends.
            Err(TransferError::PeerClosed) if now() + PATIENCE >= until => return Ok(()),
            message => message.map_err(EndError::failed("receive a message"))?,
        };
        if message.bytes().len() != work.message_bytes || !message.missing().is_empty() {
            return Err(EndError::failed("receive a message")("bytes are missing"));
        }
        flow.fetch_add(work.message_bytes as u64, Ordering::Relaxed);
        arrived += 1;
        if let Measure::Completion(count) = work.measure {
            tally.stamp();
            if arrived == count {
                tally.end();
                // The sender still has to hear of the last one.
                sleep_until(until);
                return Ok(());
            }
        }
    }
}

struct Sender {
    connections: Vec<Arc<Connection>>,
    work: Work,
}

pub(super) fn sender(work: &Work, contact: &Contact) -> Result<Box<dyn End>, EndError> {
    let options = options(work)?;
    let connecting: Vec<_> =
        (0..work.connections).map(|_| longhaul::connect(&contact.address, DEVICE, &options)).collect();
    let connections = connecting.into_iter().map(|connecting| connecting.wait().map(Arc::new));
    let connections = connections.collect::<Result<_, _>>().map_err(EndError::failed("connect"))?;
    Ok(Box::new(Sender { connections, work: work.clone() }))
}

impl End for Sender {
    fn start(&mut self, start: Duration, until: Duration, tally: &Arc<Tally>) -> Result<(), EndError> {
        for connection in &self.connections {
            let memory = connection.register(vec![0x5a; self.work.message_bytes]);
            let memory = memory.map_err(EndError::failed("register memory"))?;
            let (connection, work) = (connection.clone(), self.work.clone());
            tally.spawn(move |tally| {
                sleep_until(start);
                send(&connection, &memory, &work, until, tally)
            });
        }
        Ok(())
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let all = self.connections.iter().map(|connection| connection.statistics());
        all.flat_map(|counted| counted.iter().map(|(name, count)| (name.to_owned(), count)).collect::<Vec<_>>())
            .collect()
    }
}

fn send(connection: &Connection, memory: &Memory, work: &Work, until: Duration, tally: &Tally) -> Result<(), EndError> {
    let most = match work.measure {
        Measure::Bulk => usize::MAX,
        Measure::Completion(count) => count,
    };
    let (mut posted, mut begun) = (VecDeque::new(), 0);
    loop {
        while posted.len() < work.depth() && begun < most && now() < until {
            if let Measure::Completion(_) = work.measure {
                tally.stamp();
            }
            posted.push_back(connection.write_from(memory, 0..work.message_bytes));
            begun += 1;
        }
        let Some(next) = posted.pop_front() else { break };
        let Some(sent) = sleep(next, until) else { break };
        sent.map_err(EndError::failed("send a message"))?;
    }
    if let Measure::Completion(_) = work.measure {
        tally.end();
    }
    Ok(())
}

/// Waits without driving the connection from here: its own thread does, and this one sleeps. `None` when time is over.
fn sleep<T>(mut pending: Pending<T, TransferError>, until: Duration) -> Option<Result<T, TransferError>> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(result) = Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)) {
            return Some(result);
        }
        let left = until.saturating_sub(now());
        if left.is_zero() {
            return None;
        }
        thread::park_timeout(left);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
