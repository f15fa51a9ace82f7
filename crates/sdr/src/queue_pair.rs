//! The SDR queue pair: messages in both directions between two ends.
//!
//! Below it are queue pairs of an unreliable connection: one for each generation and channel for data, and one for control messages.
//! It is driven: [`QueuePair::poll`] carries out what is due, [`QueuePair::next_deadline`] says when it must be called at the latest.
//! Data that arrives is put into bitmaps by [`Context::poll_channel`], by any thread, without this one's lock.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longhaul_time::{Duration, Instant};
use longhaul_verbs::{
    Access, Capabilities, CompletionOperation, CompletionQueue, CompletionStatus, CreateError, Gid, ModifyError, Mtu,
    PathAttributes, PollError, PostError, QueryError, QueuePair as VerbsQueuePair,
    QueuePairAttributes as VerbsAttributes, QueuePairLimits, QueuePairOptions, RegisterError, SlottedRegion, Transport,
    WorkCompletion,
};
use thiserror::Error;

use crate::context::Context;
use crate::control::{self, FrameError, FrameReader, FrameWriter, Header, Record};
use crate::control_path::{ControlPath, ControlPathError};
use crate::immediate::ImmediateLayout;
use crate::info::QueuePairInfo;
use crate::link_estimate::RoundTripTime;
use crate::receive_table::{ReceiveCounters, ReceiveTable};
use crate::receiving::Receiving;
use crate::sending::{SendCounters, Sending, Shape};

/// Marks ids of control messages that leave; those of data are numbers of internal queue pairs.
const CONTROL_SEND: u64 = 1 << 63;
/// Completions that are taken at a time.
const BATCH: usize = 32;
/// Frames of the scheme above that wait to be taken. More are dropped, as the network might have.
const SCHEME_FRAMES_MAX: usize = 1024;

/// What a queue pair is made with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct QueuePairAttributes {
    /// Our address, for the peer, and the UDP port there.
    pub gid: Gid,
    /// See [`QueuePairAttributes::gid`].
    pub udp_port: u16,
    /// The way to the peer; its destination comes with the peer's info.
    pub path: PathAttributes,
    /// Payload of a packet; the smaller of the two ends' counts.
    pub mtu: Mtu,
    /// Bytes of a chunk, a multiple of the MTU: what a bit of the bitmap stands for.
    pub chunk_bytes: u32,
    /// The longest message.
    pub message_bytes_max: u64,
    /// How the immediate is divided.
    pub layout: ImmediateLayout,
    /// Generations of internal queue pairs: a packet may be late by one less than that many rounds of the message table.
    pub generations: u8,
    /// Packets in one write: 1 survives reordering; more save completions where the network keeps order.
    pub packets_per_write: u32,
    /// Receives posted to each internal queue pair, and so the data packets that may be on their way.
    pub receive_depth: u32,
    /// Writes in the send queue of each internal queue pair.
    pub send_depth: u32,
    /// What data is sent at most, on devices that can limit it.
    pub rate_bits_per_second: Option<u64>,
    /// Taken for the round-trip time until it has been measured.
    pub round_trip_guess: Duration,
    /// Random: keeps control messages of an earlier connection from being taken for this one's, and gives first sequence numbers.
    pub random: u64,
}

impl QueuePairAttributes {
    /// For an address of ours, with the paper's numbers.
    pub fn new(gid: Gid, udp_port: u16, mtu: Mtu) -> Self {
        QueuePairAttributes {
            gid,
            udp_port,
            path: PathAttributes::to(Gid::default()),
            mtu,
            chunk_bytes: 16 * mtu.byte_count(),
            message_bytes_max: 64 << 20,
            layout: ImmediateLayout::default(),
            generations: 4,
            packets_per_write: 1,
            receive_depth: 2048,
            send_depth: 512,
            rate_bits_per_second: None,
            round_trip_guess: Duration::from_millis(50),
            random: 0,
        }
    }

    fn check(&self) -> Result<(), CreateQueuePairError> {
        let wrong = |what, expected: String| Err(CreateQueuePairError::Attribute { what, expected });
        let mtu = self.mtu.byte_count();
        if self.chunk_bytes == 0 || !self.chunk_bytes.is_multiple_of(mtu) {
            return wrong("chunk_bytes", format!("a multiple of the MTU, {mtu}"));
        }
        let most = u64::from(self.layout.packet_count_max()) * u64::from(mtu);
        if self.message_bytes_max == 0 || self.message_bytes_max > most {
            return wrong("message_bytes_max", format!("1 to {most}: the packets that the immediate can count"));
        }
        if self.generations == 0 || self.packets_per_write == 0 || self.receive_depth == 0 || self.send_depth == 0 {
            return wrong("generations, packets_per_write, receive_depth, send_depth", "more than 0".to_owned());
        }
        if self.packets_per_write > self.chunk_bytes / mtu {
            return wrong("packets_per_write", "at most a chunk's packets".to_owned());
        }
        Ok(())
    }
}

/// Why a queue pair could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CreateQueuePairError {
    /// An attribute does not fit.
    #[error("{what}: expected {expected}")]
    Attribute {
        /// Which.
        what: &'static str,
        /// What it may be.
        expected: String,
    },
    /// The channels have no room for its completions.
    #[error("the context's channels have no room for {entries} more completions each; create it with more")]
    NoRoom {
        /// What is needed.
        entries: u32,
    },
    /// The device refused.
    #[error("the device refused to make a queue")]
    Create(#[from] CreateError),
    /// The device refused memory.
    #[error("the device refused the root key")]
    Register(#[from] RegisterError),
    /// Control messages have no way.
    #[error(transparent)]
    ControlPath(#[from] ControlPathError),
    /// The device does not tell what it can do.
    #[error("the device does not tell what it can do")]
    Query(#[from] QueryError),
    /// A queue pair cannot be initialized.
    #[error("an internal queue pair cannot be initialized")]
    Modify(#[from] ModifyError),
}

/// Why two ends cannot be connected.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The ends were made differently.
    #[error("the ends do not fit: {what} is {ours} here and {theirs} at the peer; make both with the same")]
    Mismatch {
        /// What.
        what: &'static str,
        /// Here.
        ours: String,
        /// There.
        theirs: String,
    },
    /// The device refused.
    #[error("an internal queue pair cannot be connected")]
    Modify(#[from] ModifyError),
    /// Receives cannot be posted.
    #[error("receives cannot be posted")]
    Post(#[from] PostError),
    /// Twice.
    #[error("it is connected already")]
    AlreadyConnected,
}

/// Why a queue pair cannot go on.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum QueuePairError {
    /// It has no peer yet.
    #[error("not connected yet")]
    NotConnected,
    /// An internal queue pair has failed.
    #[error("an internal queue pair has failed: {0:?}")]
    Failed(CompletionStatus),
    /// Completions cannot be taken.
    #[error("completions cannot be taken")]
    Poll(#[from] PollError),
    /// The device refused a request.
    #[error("the device refused a request")]
    Post(#[from] PostError),
    /// The peer speaks another version of control messages.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// A queue pair. Clones are the same one.
#[derive(Clone)]
pub struct QueuePair {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) context: Context,
    pub(crate) attributes: QueuePairAttributes,
    pub(crate) shape: Shape,
    pub(crate) table: Arc<ReceiveTable>,
    /// On devices that have it.
    pub(crate) root: Option<SlottedRegion>,
    /// Generation 0's, one for each channel, then generation 1's, …
    data: Vec<VerbsQueuePair>,
    completions: CompletionQueue,
    state: Mutex<State>,
    #[cfg(feature = "mutations")]
    pub(crate) mutation: Option<Mutation>,
}

pub(crate) struct State {
    pub(crate) sending: Sending,
    pub(crate) receiving: Receiving,
    control: ControlPath,
    peer: Option<Peer>,
    round_trip: RoundTripTime,
    /// Receives consumed, as the peer was told last.
    reported: u64,
    owes_answer: bool,
    /// When the window was asked for last.
    asked: Option<Instant>,
    to_scheme: VecDeque<Vec<u8>>,
    from_scheme: VecDeque<Vec<u8>>,
    failure: Option<CompletionStatus>,
    counters: ControlCounters,
}

struct Peer {
    receiver: u32,
    /// The newest time stamp of its frames, and when it came.
    echo: Option<(u64, Instant)>,
}

/// What became of control messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlCounters {
    /// Sent.
    pub sent: u64,
    /// Received, and for this connection.
    pub received: u64,
    /// Received, but not readable or not for this connection.
    pub ignored: u64,
    /// Of the scheme above, dropped because nobody took them.
    pub dropped: u64,
}

/// Deliberate mistakes, for testing the checkers.
#[cfg(feature = "mutations")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A packet of an earlier generation sets a bit.
    SkipGenerationCheck,
    /// A message's key stays valid when it is complete.
    SkipKeyChange,
}

impl QueuePair {
    /// Make a queue pair (the paper's `qp_create`).
    pub fn create(context: &Context, attributes: &QueuePairAttributes) -> Result<Self, CreateQueuePairError> {
        let table = Self::make_table(attributes);
        Self::create_with(context, attributes, table, |_| ())
    }

    /// Make one with a mistake in it.
    #[cfg(feature = "mutations")]
    pub fn create_mutated(
        context: &Context,
        attributes: &QueuePairAttributes,
        mutation: Mutation,
    ) -> Result<Self, CreateQueuePairError> {
        let mut table = Self::make_table(attributes);
        if mutation == Mutation::SkipGenerationCheck {
            table.skip_generation_check();
        }
        Self::create_with(context, attributes, table, |shared| shared.mutation = Some(mutation))
    }

    fn make_table(attributes: &QueuePairAttributes) -> ReceiveTable {
        ReceiveTable::new(attributes.layout, attributes.generations.into(), attributes.mtu.byte_count())
    }

    fn create_with(
        context: &Context,
        attributes: &QueuePairAttributes,
        table: ReceiveTable,
        change: impl FnOnce(&mut Shared),
    ) -> Result<Self, CreateQueuePairError> {
        attributes.check()?;
        let entries = attributes.receive_depth * u32::from(attributes.generations);
        if !context.reserve(entries) {
            return Err(CreateQueuePairError::NoRoom { entries });
        }
        let made = Shared::create(context, attributes, table);
        match made {
            Ok(mut shared) => {
                change(&mut shared);
                Ok(QueuePair { shared: Arc::new(shared) })
            }
            Err(error) => {
                context.release(entries);
                Err(error)
            }
        }
    }

    /// What the peer has to know (the paper's `qp_info_get`).
    pub fn info(&self) -> QueuePairInfo {
        let Shared { attributes, data, .. } = &*self.shared;
        let psn = attributes.first_psn();
        QueuePairInfo {
            receiver: attributes.receiver(),
            gid: attributes.gid,
            udp_port: attributes.udp_port,
            layout: attributes.layout,
            mtu: attributes.mtu,
            window: attributes.receive_depth,
            control: (self.shared.state().control.queue_pair().number(), psn),
            generations: attributes.generations,
            data: data.iter().map(|queue_pair| (queue_pair.number(), psn)).collect(),
        }
    }

    /// Connect with the peer whose info this is (the paper's `qp_connect`).
    pub fn connect(&self, peer: &QueuePairInfo) -> Result<(), ConnectError> {
        let Shared { attributes, data, shape, context, table, .. } = &*self.shared;
        fit("the division of the immediate", attributes.layout.bits(), peer.layout.bits())?;
        fit("the number of generations", attributes.generations, peer.generations)?;
        fit("the number of channels", shape.channels, peer.channels())?;
        fit("the MTU", attributes.mtu.byte_count(), peer.mtu.byte_count())?;
        let mut state = self.shared.state();
        if state.peer.is_some() {
            return Err(ConnectError::AlreadyConnected);
        }
        let path = PathAttributes { destination: peer.gid, udp_port: peer.udp_port, ..attributes.path };
        let connect = |queue_pair: &VerbsQueuePair, (number, psn), rate: Option<u64>| {
            queue_pair.modify(&VerbsAttributes::ready_to_receive(path, attributes.mtu, number, psn))?;
            let kilobits = |rate: u64| u32::try_from(rate / 1000).unwrap_or(u32::MAX).max(1);
            queue_pair.modify(&VerbsAttributes {
                rate_limit_kilobits_per_second: rate.map(kilobits),
                ..VerbsAttributes::ready_to_send(attributes.first_psn())
            })
        };
        // Before the peer can send anything.
        state.control.post_receives()?;
        for (index, queue_pair) in data.iter().enumerate() {
            let generation = (index / shape.channels) as u32;
            let (channel, depth) = (index % shape.channels, attributes.receive_depth as usize);
            context.add_receiver(channel, queue_pair.clone(), table, generation, depth)?;
        }
        connect(state.control.queue_pair(), peer.control, None)?;
        let rate = attributes.rate_bits_per_second.map(|rate| rate / shape.channels as u64);
        for (queue_pair, peer) in data.iter().zip(&peer.data) {
            connect(queue_pair, *peer, rate)?;
        }
        state.sending.window.on_report(0, peer.window, Instant::ZERO, Duration::MAX);
        state.peer = Some(Peer { receiver: peer.receiver, echo: None });
        Ok(())
    }

    /// Carry out what is due: take completions, tell the peer what it has to know, send what can be sent.
    pub fn poll(&self, now: Instant) -> Result<(), QueuePairError> {
        self.shared.poll(now)
    }

    /// When [`QueuePair::poll`] must be called if nothing completes before.
    pub fn next_deadline(&self) -> Option<Instant> {
        let state = self.shared.state();
        let patience = state.patience(&self.shared.attributes);
        let asking = state.sending.waits_for_window().then(|| match state.asked {
            Some(asked) => asked + patience,
            None => Instant::ZERO,
        });
        Instant::earlier_of(asking, state.receiving.next_deadline(patience))
    }

    /// The round-trip time, as far as it has been measured.
    pub fn round_trip_time(&self) -> RoundTripTime {
        self.shared.state().round_trip
    }

    /// Queue bytes of a scheme for the peer's scheme, at most [`QueuePair::scheme_bytes_max`] of them. They may be lost, come twice or
    /// in another order. Sent with the next [`QueuePair::poll`].
    pub fn send_to_peer(&self, bytes: Vec<u8>) {
        assert!(bytes.len() <= self.scheme_bytes_max(), "{} bytes do not fit a control message", bytes.len());
        let mut state = self.shared.state();
        // The newest state is what counts.
        if state.from_scheme.len() == SCHEME_FRAMES_MAX {
            state.from_scheme.pop_front();
            state.counters.dropped += 1;
        }
        state.from_scheme.push_back(bytes);
    }

    /// The next bytes of the peer's scheme, if some have come.
    pub fn take_from_peer(&self) -> Option<Vec<u8>> {
        self.shared.state().to_scheme.pop_front()
    }

    /// The most that one control message carries for a scheme.
    pub fn scheme_bytes_max(&self) -> usize {
        self.shared.frame_bytes() - control::HEADER_BYTES - control::RECORD_HEADER_BYTES
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// What it was made with.
    pub fn attributes(&self) -> &QueuePairAttributes {
        &self.shared.attributes
    }

    /// What has been counted.
    pub fn counters(&self) -> (SendCounters, ReceiveCounters, ControlCounters) {
        let state = self.shared.state();
        (state.sending.counters(), self.shared.table.counters(), state.counters)
    }
}

fn fit<T: PartialEq + std::fmt::Debug>(what: &'static str, ours: T, theirs: T) -> Result<(), ConnectError> {
    if ours == theirs {
        return Ok(());
    }
    Err(ConnectError::Mismatch { what, ours: format!("{ours:?}"), theirs: format!("{theirs:?}") })
}

impl QueuePairAttributes {
    fn receiver(&self) -> u32 {
        (self.random >> 32) as u32
    }

    fn first_psn(&self) -> u32 {
        self.random as u32 & 0xff_ffff
    }
}

impl Shared {
    fn create(
        context: &Context,
        attributes: &QueuePairAttributes,
        table: ReceiveTable,
    ) -> Result<Shared, CreateQueuePairError> {
        let domain = context.domain();
        let device = domain.device();
        let capabilities = device.attributes()?.capabilities;
        let channels = context.channel_count();
        let lanes = channels * usize::from(attributes.generations);
        let own = ControlPath::COMPLETIONS + lanes as u32 * attributes.send_depth;
        let completions = device.create_completion_queue(own)?;
        let frame_bytes = attributes.mtu.byte_count().min(1024) as usize;
        let control = ControlPath::create(domain, &completions, frame_bytes)?;
        let limits = QueuePairLimits {
            send_requests: attributes.send_depth,
            receive_requests: attributes.receive_depth,
            send_entries: 1,
            receive_entries: 1,
            inline_bytes: 0,
        };
        let options = QueuePairOptions { limits, signal_all: false, shared_receive_queue: None };
        let transport = Transport::UnreliableConnection;
        let make =
            |lane| domain.create_queue_pair(transport, &completions, context.completions(lane % channels), &options);
        let data = (0..lanes).map(make).collect::<Result<Vec<_>, _>>()?;
        control.queue_pair().modify(&VerbsAttributes::init_connected(Access::empty()))?;
        for queue_pair in &data {
            queue_pair.modify(&VerbsAttributes::init_connected(Access::REMOTE_WRITE))?;
        }
        let root = match capabilities.contains(Capabilities::SLOTTED_REGION) {
            true => {
                let slots = attributes.layout.slot_count();
                Some(domain.allocate_slotted_region(slots, attributes.message_bytes_max, Access::REMOTE_WRITE)?)
            }
            false => None,
        };
        let shape = Shape {
            layout: attributes.layout,
            packet_bytes: attributes.mtu.byte_count(),
            packets_per_write: attributes.packets_per_write,
            generations: attributes.generations.into(),
            channels,
        };
        let state = State {
            sending: Sending::new(shape, data.clone(), attributes.send_depth),
            receiving: Receiving::default(),
            control,
            peer: None,
            round_trip: RoundTripTime::default(),
            reported: 0,
            owes_answer: false,
            asked: None,
            to_scheme: VecDeque::new(),
            from_scheme: VecDeque::new(),
            failure: None,
            counters: ControlCounters::default(),
        };
        Ok(Shared {
            context: context.clone(),
            attributes: attributes.clone(),
            shape,
            table: Arc::new(table),
            root,
            data,
            completions,
            state: Mutex::new(state),
            #[cfg(feature = "mutations")]
            mutation: None,
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn frame_bytes(&self) -> usize {
        self.state().control.frame_bytes()
    }

    fn poll(&self, now: Instant) -> Result<(), QueuePairError> {
        let mut state = self.state();
        if state.peer.is_none() {
            return Err(QueuePairError::NotConnected);
        }
        state.take_completions(&self.completions, now, &self.attributes)?;
        if let Some(status) = state.failure.or(self.table.failure()) {
            return Err(QueuePairError::Failed(status));
        }
        let horizon = 2 * state.patience(&self.attributes);
        state.sending.pump(now, horizon)?;
        state.send_frames(now, &self.attributes, self.table.arrived())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The queue pairs go first: what they send from and receive into is given back by the fields that are dropped afterwards.
        for (index, queue_pair) in self.data.iter().enumerate() {
            self.context.remove_receiver(index % self.shape.channels, queue_pair.number());
            // One that is gone already is as good.
            let _ = queue_pair.destroy();
        }
        let _ = self.state().control.queue_pair().destroy();
        self.context.release(self.attributes.receive_depth * u32::from(self.attributes.generations));
    }
}

impl State {
    fn patience(&self, attributes: &QueuePairAttributes) -> Duration {
        self.round_trip.patience(attributes.round_trip_guess)
    }

    fn take_completions(
        &mut self,
        queue: &CompletionQueue,
        now: Instant,
        attributes: &QueuePairAttributes,
    ) -> Result<(), QueuePairError> {
        let mut taken = [WorkCompletion::default(); BATCH];
        let mut frame = Vec::new();
        loop {
            let count = queue.poll(&mut taken)?;
            for completion in &taken[..count] {
                if !completion.is_success() {
                    self.failure.get_or_insert(completion.status);
                } else if completion.operation == CompletionOperation::Receive {
                    self.control.take(completion.id, completion.byte_count, &mut frame)?;
                    self.handle_frame(&frame, now, attributes)?;
                } else if completion.id & CONTROL_SEND != 0 {
                    self.control.on_sent(completion.id & !CONTROL_SEND);
                } else {
                    self.sending.on_sent(completion.id as usize);
                }
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    fn handle_frame(
        &mut self,
        bytes: &[u8],
        now: Instant,
        attributes: &QueuePairAttributes,
    ) -> Result<(), QueuePairError> {
        let frame = match FrameReader::parse(bytes) {
            Ok(frame) => frame,
            Err(error @ FrameError::Version(_)) => return Err(error.into()),
            Err(_) => {
                self.counters.ignored += 1;
                return Ok(());
            }
        };
        let header = frame.header;
        let Some(peer) = self.peer.as_mut().filter(|_| header.receiver == attributes.receiver()) else {
            self.counters.ignored += 1;
            return Ok(());
        };
        self.counters.received += 1;
        if peer.echo.is_none_or(|(newest, _)| header.sent_at > newest) {
            peer.echo = Some((header.sent_at, now));
        }
        if header.echo != 0 {
            let away = now.saturating_since(Instant::from_nanos(header.echo));
            self.round_trip.measure(away.saturating_sub(header.held()));
        }
        self.owes_answer |= header.wants_answer;
        let horizon = 2 * self.patience(attributes);
        self.sending.window.on_report(header.consumed, header.window, now, horizon);
        self.sending.on_open_from(header.open_from);
        self.receiving.on_cleared_through(header.cleared_through);
        for record in frame.records() {
            match record {
                Ok(Record::ClearToSend(clear)) => {
                    self.sending.on_clear(&clear);
                    // The receiver repeats it until it knows that it has come.
                    self.owes_answer = true;
                }
                Ok(Record::Scheme(bytes)) if self.to_scheme.len() < SCHEME_FRAMES_MAX => {
                    self.to_scheme.push_back(bytes.to_vec());
                }
                Ok(Record::Scheme(_)) => self.counters.dropped += 1,
                Err(_) => self.counters.ignored += 1,
            }
        }
        Ok(())
    }

    fn send_frames(
        &mut self,
        now: Instant,
        attributes: &QueuePairAttributes,
        arrived: u64,
    ) -> Result<(), QueuePairError> {
        let patience = self.patience(attributes);
        let mut bytes = vec![0; self.control.frame_bytes()];
        let mut numbers = Vec::new();
        while self.control.can_send() {
            let asks = self.sending.waits_for_window() && self.asked.is_none_or(|asked| asked + patience <= now);
            let clears: Vec<_> = self.receiving.due(now, patience).copied().collect();
            // Often enough that the window never closes for want of a report.
            let reports = arrived - self.reported >= u64::from(attributes.receive_depth).div_ceil(4);
            if !(asks || reports || self.owes_answer || !clears.is_empty() || !self.from_scheme.is_empty()) {
                break;
            }
            let Some(peer) = &self.peer else { break };
            let header = Header {
                wants_answer: asks || !clears.is_empty(),
                receiver: peer.receiver,
                // 0 means none.
                sent_at: now.as_nanos().max(1),
                echo: peer.echo.map_or(0, |(echo, _)| echo),
                held_ns: peer.echo.map_or(0, |(_, came)| now.saturating_since(came).as_nanos() as u64),
                consumed: arrived,
                window: attributes.receive_depth,
                cleared_through: self.sending.cleared_through(),
                open_from: self.receiving.open_from(),
            };
            let mut writer = FrameWriter::new(&mut bytes, &header);
            numbers.clear();
            numbers.extend(
                clears.iter().take_while(|clear| writer.push(&Record::ClearToSend(**clear))).map(|clear| clear.number),
            );
            let mut scheme_frames = 0;
            while let Some(frame) = self.from_scheme.get(scheme_frames)
                && writer.push(&Record::Scheme(frame))
            {
                scheme_frames += 1;
            }
            let length = writer.finish();
            if !self.control.send(&bytes[..length], CONTROL_SEND)? {
                break;
            }
            self.counters.sent += 1;
            self.receiving.told(&numbers, now);
            self.from_scheme.drain(..scheme_frames);
            self.reported = arrived;
            self.owes_answer = false;
            if asks {
                self.asked = Some(now);
            }
        }
        Ok(())
    }
}
