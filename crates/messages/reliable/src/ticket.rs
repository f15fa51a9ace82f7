//! What a program holds of a message in progress: whether it has ended, and how. Tickets are futures too.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use longhaul_sdr::memory::{ReceivedBytes, WriteGuard};
use longhaul_sdr::{CompleteError, QueuePairError, ReceiveError, RegisterError, SendError};
use longhaul_time::Duration;
use thiserror::Error;

use crate::bounded::{Delivery, Ending, Sent};
use crate::report::MessageReport;

/// Why a message has failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum MessageError {
    /// It made no progress for too long.
    #[error("the message made no progress for {0:?}; is the peer still there?")]
    TimedOut(Duration),
    /// It had not ended at its deadline.
    #[error("the message missed its deadline of {0:?}")]
    Deadline(Duration),
    /// The peer saw no progress for too long, or its deadline has passed.
    #[error("the peer gave up on the message, because it was not complete in time")]
    PeerTimedOut,
    /// The ends have different schemes.
    #[error("the ends have different schemes: {ours} here, {theirs} at the peer; give both the same")]
    OtherScheme {
        /// Here.
        ours: String,
        /// There.
        theirs: String,
    },
    /// Longer than the receive that was posted for it.
    #[error("a message of {bytes} bytes does not fit the receive of {room} bytes that was posted for it")]
    TooLong {
        /// The message.
        bytes: u64,
        /// The receive.
        room: u64,
    },
    /// Longer than the receive that was posted for it, says the peer.
    #[error("the message of {0} bytes does not fit the receive that the peer has posted for it")]
    TooLongForPeer(u64),
    /// It has ended without all of its bytes: its receive was bounded, or its scheme is best effort. Both ends fail with this, unless their programs
    /// allow it: a sender with a bounded send, a receiver with a bounded or a partial receive.
    #[error(
        "the message ended with {} of its bytes missing, in {} ranges, because its receive was bounded or its scheme sends everything once; send it          with another scheme, or bound both ends to accept that",
        crate::bounded::byte_count(.missing), .missing.len()
    )]
    Incomplete {
        /// The ranges, in order.
        missing: Vec<Range<u64>>,
    },
    /// The sender has given it up.
    #[error("the sender gave up on the message before it was complete")]
    Withdrawn,
    /// The scheme's parity is longer than any message may be.
    #[error(
        "the parity of {scheme} does not fit the longest message that both queue pairs take, {message_bytes_max} bytes; make both for longer ones"
    )]
    NoRoomForParity {
        /// Its name.
        scheme: String,
        /// The smaller of the two ends'.
        message_bytes_max: u64,
    },
    /// The message's chunks are so long that its parity does not fit the room that receivers have for it.
    #[error(
        "chunks of {chunk_bytes} bytes give a part of the message {parity_bytes} bytes of parity with {scheme}, and its receiver has room for \
         {room}; name shorter chunks, or connect with longer ones"
    )]
    ChunksTooLong {
        /// The message's scheme.
        scheme: String,
        /// Its chunks.
        chunk_bytes: u32,
        /// What they give.
        parity_bytes: u64,
        /// What fits.
        room: u64,
    },
    /// The bytes that arrived are not those that the sender computed the checksum of.
    #[error(
        "the message was damaged: bytes {range:?} have the checksum {got:016x}, the sender computed {expected:016x}; likely the sender's program \
         changed its buffer during the send, else memory or a device is faulty: check the program, then send the message again"
    )]
    Checksum {
        /// Which bytes of the message, a part of it or all.
        range: Range<u64>,
        /// What the sender computed before it sent them.
        expected: u64,
        /// What they have here.
        got: u64,
    },
    /// The bytes that arrived are not those that the checksum was computed of, says the peer.
    #[error(
        "the message arrived damaged, its checksum differs at the peer; likely this program changed the buffer during the send, else memory or a \
         device is faulty: leave the buffer alone until the send has ended, then send the message again"
    )]
    PeerChecksum,
    /// The peer's device has failed it.
    #[error("the peer's device has failed the message")]
    PeerFailed,
    /// It cannot be sent.
    #[error("cannot send the message")]
    Send(#[source] Arc<SendError>),
    /// The receive cannot be posted.
    #[error("cannot post the receive")]
    Receive(#[source] Arc<ReceiveError>),
    /// There is no memory for its parity.
    #[error("cannot register memory for the message's parity")]
    Parity(#[source] Arc<RegisterError>),
    /// Its memory was not given back.
    #[error("cannot complete the message")]
    Complete(#[source] Arc<CompleteError>),
    /// The queue pair has failed.
    #[error("the connection has failed")]
    Connection(#[source] Arc<QueuePairError>),
    /// The connection was dropped before the message was done.
    #[error("the connection was closed before the message was complete")]
    Closed,
}

/// A message that is being sent.
#[derive(Debug)]
pub struct SendTicket {
    cell: Arc<Cell<Sent>>,
}

/// A message that is being sent, and ends at its deadline, whole or not.
#[derive(Debug)]
pub struct BoundedSendTicket {
    cell: Arc<Cell<Sent>>,
}

/// A receive that was posted.
#[derive(Debug)]
pub struct ReceiveTicket {
    cell: Arc<Cell<Received>>,
}

#[derive(Debug)]
struct Cell<T> {
    state: Mutex<CellState<T>>,
}

#[derive(Debug)]
struct CellState<T> {
    outcome: Option<Result<T, MessageError>>,
    waker: Option<Waker>,
}

/// The connection's end of a ticket. When it is dropped, the message has failed.
#[derive(Debug)]
pub(crate) struct Promise<T> {
    cell: Arc<Cell<T>>,
}

pub(crate) fn send_ticket() -> (Promise<Sent>, SendTicket) {
    let cell = Arc::new(Cell::new());
    (Promise { cell: cell.clone() }, SendTicket { cell })
}

pub(crate) fn bounded_send_ticket() -> (Promise<Sent>, BoundedSendTicket) {
    let cell = Arc::new(Cell::new());
    (Promise { cell: cell.clone() }, BoundedSendTicket { cell })
}

/// What a sender hears who has not allowed that bytes are missing.
fn whole_or_error(sent: Result<Sent, MessageError>) -> Result<MessageReport, MessageError> {
    let Sent { report, delivery } = sent?;
    match delivery {
        Delivery::Partial { missing, .. } => Err(MessageError::Incomplete { missing }),
        Delivery::Whole | Delivery::Unknown => Ok(report),
    }
}

pub(crate) fn receive_ticket() -> (Promise<Received>, ReceiveTicket) {
    let cell = Arc::new(Cell::new());
    (Promise { cell: cell.clone() }, ReceiveTicket { cell })
}

impl<T> Cell<T> {
    fn new() -> Self {
        Cell { state: Mutex::new(CellState { outcome: None, waker: None }) }
    }

    fn state(&self) -> MutexGuard<'_, CellState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(&self, context: &Context<'_>) -> Poll<Result<T, MessageError>> {
        let mut state = self.state();
        match state.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> Promise<T> {
    /// The message is over.
    pub(crate) fn keep(self, outcome: Result<T, MessageError>) {
        self.settle(outcome);
    }

    fn settle(&self, outcome: Result<T, MessageError>) {
        let mut state = self.cell.state();
        if state.outcome.is_none() {
            state.outcome = Some(outcome);
        }
        if let Some(waker) = state.waker.take() {
            drop(state);
            waker.wake();
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        // After `keep` this changes nothing, unless the outcome has been taken: then nobody looks again.
        self.settle(Err(MessageError::Closed));
    }
}

impl SendTicket {
    /// Whether the message is over. Its memory can be changed then.
    pub fn is_over(&self) -> bool {
        self.cell.state().outcome.is_some()
    }

    /// How it ended, once it has; asking once gives it.
    pub fn take(&self) -> Option<Result<MessageReport, MessageError>> {
        self.cell.state().outcome.take().map(whole_or_error)
    }
}

impl BoundedSendTicket {
    /// Whether the message is over. Its memory can be changed then.
    pub fn is_over(&self) -> bool {
        self.cell.state().outcome.is_some()
    }

    /// How it ended, once it has; asking once gives it.
    pub fn take(&self) -> Option<Result<Sent, MessageError>> {
        self.cell.state().outcome.take()
    }
}

impl Future for BoundedSendTicket {
    type Output = Result<Sent, MessageError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.cell.poll(context)
    }
}

impl Future for SendTicket {
    type Output = Result<MessageReport, MessageError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.cell.poll(context).map(whole_or_error)
    }
}

impl ReceiveTicket {
    /// Whether the message is over.
    pub fn is_over(&self) -> bool {
        self.cell.state().outcome.is_some()
    }

    /// The message, or why there is none, once it has ended; only the first call returns it.
    pub fn take(&self) -> Option<Result<Received, MessageError>> {
        self.cell.state().outcome.take()
    }
}

impl Future for ReceiveTicket {
    type Output = Result<Received, MessageError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.cell.poll(context)
    }
}

/// A message that has been received, in the memory that was posted for it. That is free again when this is dropped.
pub struct Received {
    /// As long as the receive.
    bytes: Bytes,
    length: usize,
    missing: Vec<Range<u64>>,
    ending: Ending,
    report: MessageReport,
}

enum Bytes {
    Received(ReceivedBytes),
    /// The receive ended before any could come.
    Untouched(WriteGuard<'static>),
}

impl std::fmt::Debug for Received {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Received { length, missing, ending, report, .. } = self;
        let mut debug = formatter.debug_struct("Received");
        debug
            .field("length", length)
            .field("missing", missing)
            .field("ending", ending)
            .field("report", report)
            .finish_non_exhaustive()
    }
}

impl Received {
    pub(crate) fn new(
        bytes: ReceivedBytes,
        length: u64,
        missing: Vec<Range<u64>>,
        ending: Ending,
        report: MessageReport,
    ) -> Self {
        Received { bytes: Bytes::Received(bytes), length: length as usize, missing, ending, report }
    }

    /// Nothing came in time.
    pub(crate) fn of_nothing(bytes: WriteGuard<'static>, missing: Vec<Range<u64>>, report: MessageReport) -> Self {
        let length = bytes.len();
        Received { bytes: Bytes::Untouched(bytes), length, missing, ending: Ending::Deadline, report }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Received(bytes) => &bytes[..self.length],
            Bytes::Untouched(bytes) => &bytes[..self.length],
        }
    }

    /// The same, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.bytes {
            Bytes::Received(bytes) => &mut bytes[..self.length],
            Bytes::Untouched(bytes) => &mut bytes[..self.length],
        }
    }

    /// The ranges of bytes that did not arrive and could not be computed, in order and exact to the packet. There are none unless the receive
    /// was bounded or partial.
    pub fn missing(&self) -> &[Range<u64>] {
        &self.missing
    }

    /// What ended it.
    pub fn ending(&self) -> Ending {
        self.ending
    }

    /// What happened.
    pub fn report(&self) -> &MessageReport {
        &self.report
    }
}
