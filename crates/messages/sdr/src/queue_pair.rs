//! The SDR queue pair: messages in both directions between two ends.
//!
//! Below it are queue pairs of an unreliable connection: one for each generation and channel for data, and one for control messages.
//! It is driven: [`QueuePair::poll`] carries out what is due, [`QueuePair::next_deadline`] says when it must be called at the latest.
//! Data that arrives is put into bitmaps by [`Context::poll_channel`], by any thread, without this one's lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longhaul_congestion::{ControllerName, Standing};
use longhaul_time::Instant;
use longhaul_verbs::{
    Access, Capabilities, CompletionQueue, PathAttributes, PollError, QueuePair as VerbsQueuePair,
    QueuePairAttributes as VerbsAttributes, QueuePairLimits, QueuePairOptions, SlottedRegion, Transport,
};
use longhaul_wire::control;
use longhaul_wire::immediate_layout::ImmediateLayout;

use crate::attributes::QueuePairAttributes;
use crate::context::Context;
use crate::control_path::ControlPath;
use crate::credit::CreditNews;
use crate::dialogue::{ControlCounters, Peer, Saying, State};
use crate::info::QueuePairInfo;
use crate::memory::{GuardByte, Memory};
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::path::Path;
use crate::queue_pair_error::{ConnectError, CreateQueuePairError, QueuePairError};
use crate::receive_table::{ReceiveCounters, ReceiveTable};
use crate::receiving::Receiving;
use crate::round_trip::RoundTripTime;
use crate::sending::{PeerReceive, SendCounters, Sending};
use crate::shape::Shape;

/// In bits per second: no limit that anybody notices.
const RATE_UNLIMITED: u64 = u32::MAX as u64 * 1000;
/// Headers of a SEND over IPv4: IP, UDP, BTH, ICRC.
const SEND_OVERHEAD_BYTES: usize = 20 + 8 + 12 + 4;

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
    pub(crate) guard: GuardByte,
    /// Generation 0's, one for each channel, then generation 1's, …
    data: Vec<VerbsQueuePair>,
    completions: CompletionQueue,
    /// The longest control message.
    frame_bytes: usize,
    /// Its own limit is lifted: the path paces.
    can_limit_rate: bool,
    state: Mutex<State>,
    #[cfg(feature = "mutations")]
    pub(crate) mutation: Option<Mutation>,
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
        table.mutate(mutation);
        Self::create_with(context, attributes, table, |shared| {
            shared.mutation = Some(mutation);
            shared.state().mutate(mutation);
        })
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
        let control = self.shared.state().control.queue_pair().clone();
        let source_gid_index = attributes.path.source_gid_index;
        let queue_pairs = std::iter::once(&control).chain(data);
        let source_ports = queue_pairs.map(|queue_pair| queue_pair.source_port(source_gid_index).unwrap_or(0));
        QueuePairInfo {
            source_ports: source_ports.collect(),
            receiver: attributes.receiver(),
            gid: attributes.gid,
            udp_port: attributes.udp_port,
            layout: attributes.layout,
            mtu: attributes.mtu,
            window: attributes.receive_depth,
            control: (control.number(), psn),
            generations: attributes.generations,
            data: data.iter().map(|queue_pair| (queue_pair.number(), psn)).collect(),
            message_bytes_max: attributes.message_bytes_max,
            first_number: attributes.first_number,
            control_version: control::VERSION,
            grants_credit: attributes.grants_credit,
        }
    }

    /// Connect with the peer whose info this is (the paper's `qp_connect`).
    pub fn connect(&self, peer: &QueuePairInfo) -> Result<(), ConnectError> {
        let Shared { attributes, data, shape, context, table, .. } = &*self.shared;
        fit("the version of control messages", control::VERSION, peer.control_version)?;
        fit("the division of the immediate", division(attributes.layout), division(peer.layout))?;
        fit("the number of generations", attributes.generations, peer.generations)?;
        fit("the number of channels", shape.channels, peer.channels())?;
        fit("the number of the first message", attributes.first_number, peer.first_number)?;
        fit("the MTU", attributes.mtu.byte_count(), peer.mtu.byte_count())?;
        if attributes.congestion == Some(ControllerName::Credit) && !peer.grants_credit {
            return Err(ConnectError::NoCredit);
        }
        let mut state = self.shared.state();
        if state.peer.is_some() {
            return Err(ConnectError::AlreadyConnected);
        }
        let path = PathAttributes { destination: peer.gid, udp_port: peer.udp_port, ..attributes.path };
        let connect = |queue_pair: &VerbsQueuePair, (number, psn), peer_source_port, rate: Option<u64>| {
            let path = PathAttributes { peer_source_port, ..path };
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
        connect(state.control.queue_pair(), peer.control, peer.source_port(0), None)?;
        // The path paces what all of them send; a limit of the device's own would only add a queue.
        let rate = self.shared.can_limit_rate.then_some(RATE_UNLIMITED);
        for (index, (queue_pair, lane)) in data.iter().zip(&peer.data).enumerate() {
            connect(queue_pair, *lane, peer.source_port(1 + index), rate)?;
        }
        state.path.set_receives(peer.window);
        let QueuePairInfo { receiver, message_bytes_max, window, .. } = *peer;
        state.peer = Some(Peer { receiver, echo: None, message_bytes_max, window, is_verified: false });
        Ok(())
    }

    /// Carry out what is due: take completions, tell the peer what it has to know, send what can be sent.
    pub fn poll(&self, now: Instant) -> Result<(), QueuePairError> {
        self.poll_saying(now, Saying::All)
    }

    /// The same, but some of what the peer has to know may wait.
    pub fn poll_saying(&self, now: Instant, saying: Saying) -> Result<(), QueuePairError> {
        let mut state = self.shared.connected_state()?;
        state.take_completions(&self.shared.completions, now, &self.shared.attributes)?;
        self.shared.advance(&mut state, now, saying)
    }

    /// The same without taking completions, which costs a device on sockets a system call: after something was posted.
    pub fn advance(&self, now: Instant, saying: Saying) -> Result<(), QueuePairError> {
        let mut state = self.shared.connected_state()?;
        if state.control.lacks_place() {
            state.take_completions(&self.shared.completions, now, &self.shared.attributes)?;
        }
        self.shared.advance(&mut state, now, saying)
    }

    /// Raise an event ([`Context::events`]) when the next control message arrives, or something has left.
    pub fn request_notification(&self) -> Result<(), PollError> {
        self.shared.completions.request_notification(false)
    }

    /// When [`QueuePair::poll`] must be called if nothing completes before.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.shared.state().next_deadline(&self.shared.attributes)
    }

    /// Whether packets get through to the peer and back: a control message has come that echoes one of ours.
    ///
    /// From [`QueuePair::connect`] on, each [`QueuePair::poll`] sends one that asks for an answer and repeats it, less and less often but
    /// at least once a second or round trip, until this is true; no message has to be posted for that. It stays true.
    pub fn is_path_verified(&self) -> bool {
        self.shared.state().is_path_verified()
    }

    /// Ask the peer for a sign of life: any control message from it. The question is repeated until one has come.
    pub fn ask_peer(&self) {
        self.shared.state().waits_for_peer = true;
    }

    /// The round-trip time, as far as it has been measured.
    pub fn round_trip_time(&self) -> RoundTripTime {
        self.shared.state().path.round_trip
    }

    /// Queue bytes of a scheme for the peer's scheme, at most [`QueuePair::scheme_bytes_max`] of them. They may be lost, come twice or
    /// in another order. Sent with the next [`QueuePair::poll`].
    pub fn send_to_peer(&self, bytes: Vec<u8>) {
        self.assert_fits(&bytes);
        self.shared.state().send_to_peer(bytes);
    }

    fn assert_fits(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.scheme_bytes_max(), "{} bytes do not fit a control message", bytes.len());
    }

    /// The rate at which data is sent now, in bits per second on the wire; `None` when it is not limited.
    pub fn bits_per_second(&self) -> Option<u64> {
        self.shared.state().path.bits_per_second()
    }

    /// When the rate allows data to be sent with [`QueuePair::send_data_to_peer`].
    pub fn rate_free_at(&self) -> Instant {
        self.shared.state().path.rate_free_at()
    }

    /// The same as [`QueuePair::send_to_peer`], for bytes that are data of a message and count against the rate.
    pub fn send_data_to_peer(&self, bytes: Vec<u8>, now: Instant) {
        self.assert_fits(&bytes);
        let mut state = self.shared.state();
        // As if it had a frame of its own, which it may share.
        let wire_bytes = SEND_OVERHEAD_BYTES + control::HEADER_BYTES + control::RECORD_HEADER_BYTES + bytes.len();
        state.path.on_data_in_control(wire_bytes as u64, now);
        state.send_to_peer(bytes);
    }

    /// The next bytes of the peer's scheme, if some have come.
    pub fn take_from_peer(&self) -> Option<Vec<u8>> {
        self.shared.state().to_scheme.pop()
    }

    /// Numbers of messages that are being sent and were cleared, have bytes that left the device, are over, or turned out too long since this was
    /// asked last. They are remembered from the first call on.
    pub fn take_send_news(&self) -> Vec<u64> {
        self.shared.state().sending.take_news()
    }

    /// The first message about which the layer above may still ask the peer; `None` when it will ask about none that it has begun. Until a
    /// message is below this (and nothing more is sent of it), the peer can rely on being asked: see [`QueuePair::peer_sends_from`].
    pub fn set_asks_from(&self, number: Option<u64>) {
        self.shared.state().sending.set_asks_from(number);
    }

    /// The peer neither sends messages below this nor asks about them, so what became of them can be forgotten. The peer may have at most
    /// as many messages from here on as the table has slots, times the generations: no more receives can be posted.
    pub fn peer_sends_from(&self) -> u64 {
        self.shared.state().receiving.peer_sends_from()
    }

    /// What the peer has done for a message of ours, as far as we know.
    pub fn peer_receive_of(&self, number: u64) -> PeerReceive {
        self.shared.state().sending.peer_receive_of(number)
    }

    /// Whether [`QueuePair::take_from_peer`] or [`QueuePair::take_send_news`] have something.
    pub fn has_news(&self) -> bool {
        let state = self.shared.state();
        !state.to_scheme.is_empty() || state.sending.has_news()
    }

    /// What the granter of the peer's credit must know, if something is new: the peer wants credit, or some of its data has arrived. To be
    /// asked after every poll, where [`QueuePairAttributes::grants_credit`] is set.
    pub fn take_credit_news(&self) -> Option<CreditNews> {
        let mut state = self.shared.state();
        let round_trip = state.path.round_trip.least;
        state.credit.take_news(self.shared.table.arrived_data().wire_bytes, round_trip)
    }

    /// The peer has been granted credit: this is all that it was granted. It hears of it with the next [`QueuePair::advance`].
    pub fn grant_credit(&self, standing: &Standing, now: Instant) {
        self.shared.state().credit.grant(standing, now);
    }

    /// The most that one control message carries for a scheme.
    pub fn scheme_bytes_max(&self) -> usize {
        self.shared.frame_bytes - control::HEADER_BYTES - control::RECORD_HEADER_BYTES
    }

    /// The context.
    pub fn context(&self) -> &Context {
        &self.shared.context
    }

    /// Whether the memory was registered with a context of the same protection domain.
    pub fn can_use(&self, memory: &Memory) -> bool {
        memory.is_of(self.shared.context.domain())
    }

    /// What it was made with.
    pub fn attributes(&self) -> &QueuePairAttributes {
        &self.shared.attributes
    }

    /// The longest message that both ends take, once they are connected.
    pub fn message_bytes_max(&self) -> Option<u64> {
        let theirs = self.shared.state().peer.as_ref()?.message_bytes_max;
        Some(theirs.min(self.shared.attributes.message_bytes_max))
    }

    /// Visit all that has been counted, by name.
    pub fn visit_counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let (sent, received, control) = self.counters();
        visit("sdr.writes_posted", sent.writes);
        visit("sdr.bytes_posted", sent.bytes);
        visit("sdr.writes_presumed_lost", sent.presumed_lost);
        visit("sdr.packets_arrived", received.arrived);
        visit("sdr.packets_late", received.late);
        visit("sdr.packets_stray", received.stray);
        visit("sdr.control_sent", control.sent);
        visit("sdr.control_received", control.received);
        visit("sdr.control_ignored", control.ignored);
        visit("sdr.control_other_version", control.other_version);
        visit("sdr.scheme_records_dropped", control.dropped);
    }

    /// What has been counted.
    pub fn counters(&self) -> (SendCounters, ReceiveCounters, ControlCounters) {
        let state = self.shared.state();
        (state.sending.counters(&state.path), self.shared.table.counters(), state.counters)
    }
}

/// How many bits of the immediate are for slot, packet and user.
fn division(layout: ImmediateLayout) -> String {
    let (slot, packet, user) = layout.bits();
    format!("{slot}+{packet}+{user} bits")
}

fn fit<T: PartialEq + ToString>(what: &'static str, ours: T, theirs: T) -> Result<(), ConnectError> {
    if ours == theirs {
        return Ok(());
    }
    Err(ConnectError::Mismatch { what, ours: ours.to_string(), theirs: theirs.to_string() })
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
        let completions = context.create_completion_queue(own)?;
        let control = ControlPath::create(context.control_memory(), &completions, attributes.mtu.byte_count())?;
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
        let first = attributes.first_number;
        let can_limit_rate = capabilities.contains(Capabilities::RATE_LIMIT);
        let sending = Sending::new(shape, data.clone(), attributes.send_depth, first);
        let frame_bytes = control.frame_bytes();
        let path = Path::new(attributes, shape);
        let state = State::new(sending, Receiving::new(first), control, path);
        Ok(Shared {
            context: context.clone(),
            attributes: attributes.clone(),
            shape,
            table: Arc::new(table),
            root,
            guard: GuardByte::new(domain)?,
            data,
            completions,
            frame_bytes,
            can_limit_rate,
            state: Mutex::new(state),
            #[cfg(feature = "mutations")]
            mutation: None,
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connected_state(&self) -> Result<MutexGuard<'_, State>, QueuePairError> {
        let state = self.state();
        if state.peer.is_none() {
            return Err(QueuePairError::NotConnected);
        }
        Ok(state)
    }

    fn advance(&self, state: &mut State, now: Instant, saying: Saying) -> Result<(), QueuePairError> {
        if let Some(status) = state.failure.or(self.table.failure()) {
            return Err(QueuePairError::Failed(status));
        }
        state.post_control_receives()?;
        state.note_silence(now, &self.attributes);
        let State { sending, path, .. } = &mut *state;
        path.on_deadline(now);
        sending.pump(path, now)?;
        if path.announces()
            && let Some(announcement) = path.on_backlog(sending.waiting_writes(), now)
        {
            state.credit.announce(&announcement);
        }
        state.send_frames(now, &self.attributes, self.table.arrived_data(), saying)
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
