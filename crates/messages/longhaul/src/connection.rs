//! A connection as programs hold it.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Arc;

use longhaul_congestion::ControllerName;
use longhaul_reliable::{
    Bound, Choice, Connection as Reliable, ConnectionError, Deadline, Fill, MessageError, MessageReport, ReceiveTicket,
    Sent,
};
use longhaul_runtime::{Attending, End, Shared, Waiting, with_sources};
use longhaul_sdr::{Memory, QueuePair, RoundTripTime};
use longhaul_verbs::RegisterError;

use crate::chosen::Chosen;
use crate::lifeline::TcpLifeline;
use crate::message::{BufferPool, Message};
use crate::options::Options;
use crate::pending::{Pending, Promised, wait_until};
use crate::runtime::{Runtime, is_driver_thread};
use crate::statistics::Statistics;
use crate::transfer_error::TransferError;

/// A connection: messages in both directions, each brought over by a scheme that its sender chooses ([`Connection::choose`]).
///
/// It can be used by any number of threads (`&self` is enough for everything). Messages of one direction take the
/// receives of the other end in the order in which both were begun.
///
/// When it is dropped, messages that are not over fail with [`TransferError::Closed`]. Dropping waits for a moment if a
/// message was received just before (eight times the patience for an answer, at most 2 seconds; on a local network 16
/// milliseconds), so that its sender hears that it is done even if that is lost and has to be said again. A message
/// whose [`Connection::write`] has completed has arrived: it needs no such care. Asynchronous programs, which must not
/// block, have [`Connection::close`].
pub struct Connection {
    shared: Arc<Shared>,
    pool: Arc<BufferPool>,
    schemes: String,
    ends: PathEnds,
    runtime: Arc<Runtime>,
    /// Somebody else waits until it is closed.
    is_closing: bool,
}

/// The devices between which the packets of a connection pass: addresses and UDP ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathEnds {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
}

impl Connection {
    /// Over a queue pair that is connected, and was made in a context of the runtime.
    pub(crate) fn start(runtime: Arc<Runtime>, queue_pair: QueuePair, options: &Options, ends: PathEnds) -> Self {
        let mut attributes = longhaul_reliable::Attributes::default();
        attributes.message_timeout = options.message_timeout;
        attributes.message_deadline = options.message_deadline;
        attributes.waiting_max = options.waiting_max;
        attributes.checksum = options.checksum;
        let reliable = Reliable::new(queue_pair, options.scheme.clone(), attributes);
        let reliable = reliable.with_others(options.other_schemes.iter().cloned());
        let mailbox = runtime.mailbox_of(reliable.queue_pair().context()).clone();
        let shared = Shared::start(reliable, mailbox, options.message_timeout, ends.peer);
        if let Some(coding) = runtime.coding() {
            shared.set_workers(coding.clone());
        }
        Connection {
            shared,
            pool: BufferPool::new(),
            schemes: options.scheme_names(),
            ends,
            runtime,
            is_closing: false,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// When this TCP connection goes, the peer has gone.
    pub(crate) fn watch(&self, stream: Arc<TcpStream>) -> io::Result<()> {
        let mailbox = self.runtime.mailbox_of(self.shared.context()).clone();
        self.shared.set_lifeline(Arc::new(TcpLifeline::new(stream, mailbox)?))
    }

    /// Messages with a scheme and chunks of their own, among what the ends have agreed on ([`Options::other_schemes`]); what is written without
    /// has the first scheme. The receiver needs to know nothing of that, and no round trip is spent on it.
    ///
    /// ```no_run
    /// # fn example(connection: &longhaul::Connection) -> Result<(), Box<dyn std::error::Error>> {
    /// use longhaul::Choice;
    /// connection.choose(Choice::scheme("ec:mds:32,8")).write(vec![7; 1 << 20]).wait()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn choose(&self, choice: Choice) -> Chosen<'_> {
        Chosen::new(self, choice)
    }

    /// Write bytes as one message; over when the other end has all of it. Memory of other forms is copied or moved:
    /// `Vec<u8>` is moved.
    pub fn write(&self, bytes: impl Into<Vec<u8>>) -> Pending<MessageReport, TransferError> {
        self.choose(Choice::default()).write(bytes)
    }

    /// Write bytes of registered memory as one message, from where they lie. They cannot be changed until it has
    /// completed.
    pub fn write_from(&self, memory: &Memory, range: Range<usize>) -> Pending<MessageReport, TransferError> {
        self.choose(Choice::default()).write_from(memory, range)
    }

    /// Receive the peer's next message, of at most `bytes_max` bytes. A longer one fails, at both ends. What this gives is all of the message: one
    /// that ends with bytes missing, because its sender has chosen best effort, fails at both ends with
    /// [`MessageError::Incomplete`](longhaul_reliable::MessageError::Incomplete), which names them. [`Connection::receive_bounded`] and
    /// [`Connection::receive_partial`] are for messages that may end so.
    ///
    /// The sender waits until it knows where its message goes: keep several receives posted for a stream of messages. A
    /// receive that was begun stays so; dropping the value gives the message away.
    pub fn receive(&self, bytes_max: usize) -> Pending<Message, TransferError> {
        match self.pool.take(self.shared.context(), bytes_max) {
            Ok(memory) => self.post_receive(&memory, 0..bytes_max, Some(self.pool.clone())),
            Err(error) => Pending::ready(Err(error)),
        }
    }

    /// The peer's messages one after another, of at most `bytes_max` bytes each, with `ahead` receives posted so that
    /// the sender need not wait for each. It ends when the peer closes the connection.
    pub fn incoming(&self, bytes_max: usize, ahead: usize) -> Incoming<'_> {
        Incoming { connection: self, bytes_max, ahead: ahead.max(1), under_way: VecDeque::new() }
    }

    /// Receive the peer's next message into registered memory. It has exclusive access to the bytes until it has
    /// completed and the message dropped.
    pub fn receive_into(&self, memory: &Memory, range: Range<usize>) -> Pending<Message, TransferError> {
        self.post_receive(memory, range, None)
    }

    /// Receive what arrives of the peer's next message, of at most `bytes_max` bytes: [`Message::missing`] names the bytes that did not, which are zero.
    /// For best-effort messages that are too long to be bounded; it has no deadline.
    pub fn receive_partial(&self, bytes_max: usize) -> Pending<Message, TransferError> {
        match self.pool.take(self.shared.context(), bytes_max) {
            Ok(memory) => {
                let posted = self.shared.post_receive_partial(&memory, 0..bytes_max);
                self.receiving(posted, &memory, Some(self.pool.clone()))
            }
            Err(error) => Pending::ready(Err(error)),
        }
    }

    /// The same into registered memory.
    pub fn receive_partial_into(&self, memory: &Memory, range: Range<usize>) -> Pending<Message, TransferError> {
        self.receiving(self.shared.post_receive_partial(memory, range), memory, None)
    }

    /// Write bytes as one message that ends by a deadline, whatever has arrived then; returns what is known of that. Best for the schemes `be`
    /// and `be+ec:…`, which send everything once; others repeat what is lost until the deadline. At most
    /// [`Connection::bounded_bytes_max`] bytes.
    pub fn write_bounded(&self, bytes: impl Into<Vec<u8>>, deadline: Deadline) -> Pending<Sent, TransferError> {
        self.choose(Choice::default()).write_bounded(bytes, deadline)
    }

    /// The same from registered memory, from where the bytes lie.
    pub fn write_bounded_from(
        &self,
        memory: &Memory,
        range: Range<usize>,
        deadline: Deadline,
    ) -> Pending<Sent, TransferError> {
        self.choose(Choice::default()).write_bounded_from(memory, range, deadline)
    }

    /// Receive the peer's next message, of at most `bytes` bytes, and end by a deadline with what has arrived, also when nothing was ever heard
    /// of it: [`Message::missing`] names the bytes that did not arrive, [`Message::ending`] says what ended it. Its bytes are new ones, so that
    /// [`Fill::Stale`] means zero here.
    pub fn receive_bounded(&self, bytes: usize, bound: Bound) -> Pending<Message, TransferError> {
        let fill = if bound.fill == Fill::Stale { Fill::Zero } else { bound.fill };
        match self.pool.take(self.shared.context(), bytes) {
            Ok(memory) => {
                let posted = self.shared.receive_bounded(&memory, 0..bytes, Bound { fill, ..bound });
                self.receiving(posted, &memory, Some(self.pool.clone()))
            }
            Err(error) => Pending::ready(Err(error)),
        }
    }

    /// The same into registered memory.
    pub fn receive_bounded_into(
        &self,
        memory: &Memory,
        range: Range<usize>,
        bound: Bound,
    ) -> Pending<Message, TransferError> {
        self.receiving(self.shared.receive_bounded(memory, range, bound), memory, None)
    }

    /// The longest message that can be bounded; `None` when the connection has ended.
    pub fn bounded_bytes_max(&self) -> Option<u64> {
        self.shared.bounded_bytes_max()
    }

    /// A deadline for several messages: counted from one moment, and not from the posting of each.
    pub fn deadline_at(&self, at: std::time::Instant) -> Deadline {
        let from_now = at.saturating_duration_since(std::time::Instant::now());
        Deadline::At(self.shared.now() + from_now)
    }

    fn post_receive(
        &self,
        memory: &Memory,
        range: Range<usize>,
        pool: Option<Arc<BufferPool>>,
    ) -> Pending<Message, TransferError> {
        self.receiving(self.shared.post_receive(memory, range), memory, pool)
    }

    fn receiving(
        &self,
        posted: Result<Result<ReceiveTicket, ConnectionError>, End>,
        memory: &Memory,
        pool: Option<Arc<BufferPool>>,
    ) -> Pending<Message, TransferError> {
        let memory = memory.clone();
        when_ended(&self.shared, posted, |received| Message::new(received, memory, pool))
    }

    /// Register bytes that messages are written from and received into, without a copy.
    pub fn register(&self, buffer: Vec<u8>) -> Result<Memory, RegisterError> {
        self.shared.context().register(buffer)
    }

    /// The name of its scheme, or of those that its messages may have: the first is that of messages whose sender chooses none.
    pub fn scheme(&self) -> &str {
        &self.schemes
    }

    /// The round-trip time, as far as it has been measured; `None` when the connection has ended.
    pub fn round_trip_time(&self) -> Option<RoundTripTime> {
        self.shared.look_at(|reliable| reliable.queue_pair().round_trip_time())
    }

    /// What this end has counted in every layer, so far or until the connection ended.
    pub fn statistics(&self) -> Statistics {
        self.shared.counters().into_iter().collect()
    }

    /// Payload of a packet; `None` when the connection has ended.
    pub fn mtu_bytes(&self) -> Option<u32> {
        self.shared.look_at(|reliable| reliable.queue_pair().attributes().mtu.byte_count())
    }

    /// Bytes of a chunk, as the ends have agreed; `None` when the connection has ended.
    pub fn chunk_bytes(&self) -> Option<u32> {
        self.shared.look_at(|reliable| reliable.queue_pair().attributes().chunk_bytes)
    }

    /// What controls the send rate, if anything does; `None` also when the connection has ended.
    pub fn congestion(&self) -> Option<ControllerName> {
        self.shared.look_at(|reliable| reliable.queue_pair().attributes().congestion).flatten()
    }

    /// The rate at which data is sent now, in bits per second on the wire, headers included; `None` when it is not
    /// limited, and when the connection has ended.
    pub fn send_bits_per_second(&self) -> Option<u64> {
        self.shared.look_at(|reliable| reliable.queue_pair().bits_per_second()).flatten()
    }

    /// Our device's address and UDP port.
    pub fn local_udp(&self) -> SocketAddr {
        self.ends.local
    }

    /// The address and UDP port of the peer's device.
    pub fn peer_udp(&self) -> SocketAddr {
        self.ends.peer
    }

    /// Whether UDP packets have passed in both directions. [`crate::connect`] and [`crate::Listener::accept`] return
    /// connections of which that is true; with a carrier of your own ([`crate::Connecting`]), wait for it before you
    /// rely on the connection.
    pub fn is_path_verified(&self) -> bool {
        self.shared.look_at(|reliable| reliable.queue_pair().is_path_verified()).unwrap_or(false)
    }

    /// Whether any packet has come from the peer.
    pub(crate) fn has_heard(&self) -> bool {
        self.shared.look_at(|reliable| reliable.queue_pair().counters().2.received > 0).unwrap_or(false)
    }

    /// Why it has ended, if it has.
    pub(crate) fn check(&self) -> Result<(), TransferError> {
        self.shared.end().map_or(Ok(()), |end| Err(end.into()))
    }

    /// Drive it from this thread until something is true, or nothing has happened for a moment.
    pub(crate) fn drive_until(&self, is_done: impl Fn(&Self) -> bool) {
        self.shared.attend(|| if is_done(self) { Attending::Done } else { Attending::Waits });
    }

    /// Close it without blocking; over when the peer has heard what it must (see [`Connection`]).
    pub fn close(mut self) -> Pending<(), Infallible> {
        self.is_closing = true;
        let closed = self.begin_close();
        // If this connection was the last one, its device is closed when this returns, and not some time later.
        let runtime = self.runtime.clone();
        Pending::new(async move {
            closed.taken().await;
            drop(runtime);
            Ok(())
        })
    }

    /// Have the driver close it. Until then there must be somebody to do it: the runtime is kept.
    fn begin_close(&self) -> Arc<Promised<()>> {
        let closed = Promised::new();
        let (promise, runtime) = (closed.clone(), self.runtime.clone());
        self.shared.close(Box::new(move || {
            // A waiting caller has it, too, and can wait for its threads, which a driver's thread cannot.
            drop(runtime);
            promise.give(());
        }));
        closed
    }

    /// Whether it has ended, here or at the peer.
    pub fn is_over(&self) -> bool {
        self.shared.end().is_some()
    }
}

/// What becomes of a message that was posted, once it has ended.
pub(crate) fn when_ended<T, R, U>(
    shared: &Arc<Shared>,
    posted: Result<Result<T, ConnectionError>, End>,
    then: impl FnOnce(R) -> U + Send + 'static,
) -> Pending<U, TransferError>
where
    T: Future<Output = Result<R, MessageError>> + Unpin + Send + 'static,
    U: Send + 'static,
{
    match posted {
        Ok(Ok(ticket)) => {
            let (ticket, of, shared) = (Waiting::new(ticket, shared), shared.clone(), shared.clone());
            Pending::of(of, async move { ticket.await.map(then).map_err(|error| error_of(&shared, error)) })
        }
        Ok(Err(error)) => Pending::ready(Err(error.into())),
        Err(end) => Pending::ready(Err(end.into())),
    }
}

/// Why a message ended without having arrived: it is closed with the connection, for the connection's reason.
fn error_of(shared: &Shared, error: MessageError) -> TransferError {
    match (error, shared.end()) {
        (MessageError::Closed, Some(end)) => end.into(),
        (MessageError::Closed, None) => TransferError::Closed,
        (error, _) => {
            tracing::debug!(peer = %shared.peer(), "message failed: {}", with_sources(&error));
            TransferError::Message(error)
        }
    }
}

/// The messages that come ([`Connection::incoming`]). As an iterator it blocks; [`Incoming::next_message`] is for both.
///
/// Receives that are posted when it is dropped stay posted, and the next messages are lost. Drain it before dropping
/// it.
pub struct Incoming<'a> {
    connection: &'a Connection,
    bytes_max: usize,
    ahead: usize,
    under_way: VecDeque<Pending<Message, TransferError>>,
}

impl Incoming<'_> {
    /// The next message.
    pub fn next_message(&mut self) -> Pending<Message, TransferError> {
        loop {
            self.under_way.push_back(self.connection.receive(self.bytes_max));
            if self.under_way.len() > self.ahead
                && let Some(next) = self.under_way.pop_front()
            {
                return next;
            }
        }
    }
}

impl Iterator for Incoming<'_> {
    type Item = Result<Message, TransferError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.next_message().wait() {
            Err(TransferError::PeerClosed) => None,
            result => Some(result),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.is_closing {
            return;
        }
        let closed = self.begin_close();
        // A waker that drops the connection may run on a driver's thread.
        if !is_driver_thread() {
            let _ = wait_until(std::pin::pin!(closed.taken()), None);
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Connection").field("scheme", &self.schemes).finish_non_exhaustive()
    }
}
