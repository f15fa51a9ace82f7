//! The input of the judge, and what it keeps of each message, key and word.

use std::net::IpAddr;

use longhaul_time::{Duration, Instant};
use longhaul_verbs::{CompletionOperation, QueuePairNumber, QueuePairState, Transport, WorkCompletion};

use super::contents::MessageNumber;
use super::memory::{Place, RegionNumber};
use super::receive_queue::{Piece, PostedReceive, SharedQueueNumber};
use super::send_queue::Ending;
use super::words::{History, WordNumber};

/// One queue pair of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndNumber(pub usize);

/// One binding of a window or a slot. Binding it again makes another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyNumber(pub usize);

/// What stands behind a key when it is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyUse {
    /// A window: what comes through it later is refused.
    Window,
    /// A slot: what comes through it later is taken and not kept.
    Slot,
}

/// What the judge must know of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct EndFacts {
    /// Its transport.
    pub transport: Transport,
    /// Its number now.
    pub queue_pair: QueuePairNumber,
    /// Its IP address.
    pub address: IpAddr,
    /// Payload bytes of a full packet.
    pub packet_bytes: usize,
    /// RC: silence for so long is a time-out; zero is never.
    pub acknowledge_timeout: Duration,
    /// RC: how often a request is repeated after a time-out or a sequence error.
    pub retry_count: u8,
    /// How often a request is repeated when the peer has no receive; 7 is for ever.
    pub receiver_not_ready_retry: u8,
    /// RC: how long its peer is to wait when it has no receive.
    pub receiver_not_ready_delay: Duration,
    /// Every send makes a completion.
    pub signals_all: bool,
    /// The completion queue for its sends, by a number of the program's.
    pub send_completion_queue: usize,
    /// The completion queue for its receives.
    pub receive_completion_queue: usize,
    /// Receives come from here instead of its own queue.
    pub shared_queue: Option<SharedQueueNumber>,
}

/// What the network may do to a message that is posted now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkFacts {
    /// It loses packets (or breaks them), or is slower than the acknowledgement time-out.
    pub loses: bool,
    /// Packets overtake each other.
    pub reorders: bool,
    /// Packets come out twice.
    pub duplicates: bool,
    /// Now and then an answer takes longer than the acknowledgement time-out: on real time nobody promises anything
    /// else.
    pub is_slow: bool,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Into the peer's next receive.
    Send,
    /// Into the peer's memory.
    Write,
    /// From the peer's memory.
    Read,
    /// On a word of the peer's memory.
    FetchAndAdd,
    /// On a word of the peer's memory.
    CompareAndSwap,
    /// Binds a window of its own node's.
    BindWindow,
    /// Invalidates a window of its own node's.
    LocalInvalidate,
}

impl Kind {
    /// Something comes back from the peer.
    pub(super) fn has_response(self) -> bool {
        matches!(self, Kind::Read | Kind::FetchAndAdd | Kind::CompareAndSwap)
    }

    /// What its completion says on success.
    pub(super) fn completion_operation(self) -> CompletionOperation {
        match self {
            Kind::Send => CompletionOperation::Send,
            Kind::Write => CompletionOperation::Write,
            Kind::Read => CompletionOperation::Read,
            Kind::FetchAndAdd => CompletionOperation::FetchAndAdd,
            Kind::CompareAndSwap => CompletionOperation::CompareAndSwap,
            Kind::BindWindow => CompletionOperation::BindWindow,
            Kind::LocalInvalidate => CompletionOperation::LocalInvalidate,
        }
    }
}

/// What is wrong with a request, on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// The peer's key is wrong, revoked or not for this, or the range leaves the region.
    RemoteAccess,
    /// A local key is wrong.
    LocalKey,
    /// The datagram carries the wrong queue key.
    QueueKey,
    /// The word of an atomic is not aligned.
    Alignment,
}

/// A send request as it was posted.
#[derive(Clone, Copy, Debug)]
pub struct SendFacts {
    /// The request's id.
    pub id: u64,
    /// To which queue pair.
    pub to: EndNumber,
    /// What it does.
    pub kind: Kind,
    /// Bytes.
    pub length: usize,
    /// With the message's immediate?
    pub has_immediate: bool,
    /// A write's place in the peer's memory, if the write is legal.
    pub target: Option<Place>,
    /// What is wrong with it.
    pub mistake: Option<Mistake>,
    /// It asks for a completion.
    pub is_signaled: bool,
    /// The key that a write goes through, if that can stop working.
    pub through: Option<KeyNumber>,
    /// The key that does not work any more when this has been carried out: a window is bound to something else, or is
    /// invalidated by its owner or by this message.
    pub ends_key: Option<KeyNumber>,
}

/// Where a READ reads, and where it brings the bytes.
#[derive(Clone, Debug)]
pub struct ReadFacts {
    /// The message whose bytes the peer's memory holds from before the posting until the end, and the first of them.
    pub contents: MessageNumber,
    /// Which byte of that message is the first one to be read.
    pub contents_offset: usize,
    /// The region of the peer's that holds them; `None` if the READ is not legal.
    pub source: Option<RegionNumber>,
    /// The program's own memory for them, in order. What lies behind it is for a null region.
    pub local: Vec<Piece>,
}

/// A completion as the program polled it.
#[derive(Clone, Copy, Debug)]
pub struct Observation {
    /// Of which queue pair.
    pub end: EndNumber,
    /// From which completion queue.
    pub completion_queue: usize,
    /// The completion.
    pub completion: WorkCompletion,
    /// The queue pair's state when the completion was polled.
    pub state: QueuePairState,
    /// The state of its peer (RC) at that moment.
    pub peer_state: QueuePairState,
}

pub(super) struct Message {
    pub(super) facts: SendFacts,
    pub(super) from: EndNumber,
    pub(super) network: NetworkFacts,
    /// Its place among the messages sent by its queue pair since the last reset.
    pub(super) position: usize,
    /// Its place among those of them that need a receive.
    pub(super) receive_index: Option<usize>,
    pub(super) posting: u64,
    pub(super) posted_at: Instant,
    pub(super) target: Target,
    pub(super) delivered_count: u32,
    pub(super) ending: Option<Ending>,
    pub(super) response: Response,
}

/// What comes back to a message's sender, and where it goes.
pub(super) enum Response {
    /// Nothing.
    None,
    /// What a READ brings.
    Read { source: Option<RegionNumber>, local: Vec<Piece> },
    /// The old value of a word; `None` if the request is not legal.
    Atomic { operation: Option<(WordNumber, usize)>, result: Vec<Piece> },
}

impl Message {
    /// Whether a delivery shows which message it is: by an immediate, or by bytes enough to hold its number.
    pub(super) fn is_unmistakable(&self) -> bool {
        self.facts.has_immediate || self.facts.length >= 8
    }
}

/// What has become of a write's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// It has none, or an illegal one.
    None,
    /// The message may arrive there.
    Open(Place),
    /// It has arrived.
    Settled,
    /// The key was revoked; had it arrived by then?
    Revoked { was_whole: bool },
}

/// What the judge keeps of a key.
pub(super) struct Key {
    pub(super) key_use: KeyUse,
    /// As peers name it.
    pub(super) value: u32,
    /// A request was posted that will end it: what is in flight through it may be refused.
    pub(super) may_be_dead: bool,
    pub(super) messages: Vec<MessageNumber>,
}

/// A word under watch.
pub(super) struct Word {
    pub(super) place: Place,
    pub(super) history: History,
    /// Requests of connections that have not been reset: by whom, and which.
    pub(super) live: Vec<(EndNumber, usize)>,
    /// Its key is gone, and nobody looks there any more.
    pub(super) is_retired: bool,
}

/// What ended with one call of [`Judge::observe`](super::Judge::observe).
#[derive(Debug, Default)]
pub struct Ended {
    /// Sends: which message, and how.
    pub sends: Vec<(MessageNumber, Ending)>,
    /// Receives: whose, and which.
    pub receives: Vec<(EndNumber, PostedReceive)>,
    /// Keys that do not work any more.
    pub keys: Vec<KeyNumber>,
}

/// Datagrams come with 40 bytes for the GRH in front.
pub(super) fn header_bytes(transport: Transport) -> usize {
    match transport {
        Transport::UnreliableDatagram => 40,
        _ => 0,
    }
}
