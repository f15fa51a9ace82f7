//! Two queue pairs, one at each end, connected to each other (or, for datagrams, each knowing the path to the other).

use longhaul_time::Duration;
use longhaul_verbs::{
    Access, AddressHandle, CompletionOperation, CompletionQueue, CompletionStatus, Gid, Mtu, PathAttributes,
    ProtectionDomain, QueuePair, QueuePairAttributes, QueuePairLimits, QueuePairNumber, QueuePairOptions,
    QueuePairState, ReceiveRequest, RemoteMemory, ScatterGatherEntry, SendOperation, SendRequest, Transport,
    WorkCompletion,
};

use super::context::Context;
use super::failure::{Failure, Outcome, equal, status};

/// Bytes at the start of a datagram's receive that hold the global route header.
pub(super) const GRH_BYTES: usize = 40;

/// Acknowledgement time-out of connections that must not fail: 4.096 µs · 2^14 = 67 ms.
const PATIENT_TIMEOUT: u8 = 14;
/// Acknowledgement time-out of connections that wait for a peer which is not ready yet, also on a busy host:
/// 4.096 µs · 2^16 = 268 ms.
const UNHURRIED_TIMEOUT: u8 = 16;
/// Acknowledgement time-out of connections that are to fail soon: 4.096 µs · 2^10 = 4.2 ms.
pub(super) const HASTY_TIMEOUT: u8 = 10;
/// How often they try again.
pub(super) const HASTY_RETRIES: u8 = 1;
/// Receiver-not-ready timer of 0.64 ms, as the specification encodes it.
const NOT_READY_TIMER: u8 = 12;
pub(super) const NOT_READY_PAUSE: Duration = Duration::from_micros(640);

/// What an acknowledgement time-out means: 4.096 µs · 2^n.
pub(super) fn acknowledge_timeout(encoded: u8) -> Duration {
    Duration::from_nanos(4096 << encoded)
}

/// How a pair is made.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) transport: Transport,
    pub(super) limits: QueuePairLimits,
    pub(super) signal_all: bool,
    /// What each queue pair lets its peer do.
    pub(super) access: Access,
    pub(super) timeout: u8,
    pub(super) retry_count: u8,
    pub(super) receiver_not_ready_retry: u8,
    /// First sequence number that each end sends.
    pub(super) first_psn: [u32; 2],
    pub(super) completion_entries: u32,
    pub(super) queue_key: u32,
    /// READs and atomics that each end may have outstanding, as far as the devices can.
    pub(super) read_atomic: u8,
    /// How many each end takes from its peer; as many as the peer sends by default.
    pub(super) destination_read_atomic: Option<u8>,
}

impl Setup {
    /// A patient connection with everything allowed that this suite does over it.
    pub(super) fn new(transport: Transport) -> Self {
        Setup {
            transport,
            limits: QueuePairLimits::default(),
            signal_all: false,
            access: Access::REMOTE_WRITE,
            timeout: PATIENT_TIMEOUT,
            retry_count: 7,
            receiver_not_ready_retry: 7,
            first_psn: [0x12_3456, 0x65_4321],
            completion_entries: 1024,
            queue_key: 0x0123_4567,
            read_atomic: 1,
            destination_read_atomic: None,
        }
    }

    /// The same, with time for a peer that is not ready yet.
    pub(super) fn unhurried(self) -> Self {
        Setup { timeout: UNHURRIED_TIMEOUT, ..self }
    }

    /// A connection that gives up on a peer that has gone, but also on a busy host not on one that is there.
    pub(super) fn resigned(transport: Transport) -> Self {
        Setup { retry_count: HASTY_RETRIES, ..Setup::new(transport) }
    }

    /// A connection that gives up soon: on a busy host also when its peer is there. Only for messages that must not
    /// arrive.
    pub(super) fn hasty(transport: Transport) -> Self {
        Setup {
            timeout: HASTY_TIMEOUT,
            retry_count: HASTY_RETRIES,
            receiver_not_ready_retry: 1,
            ..Setup::new(transport)
        }
    }
}

/// One end of a pair.
pub(super) struct End {
    pub(super) domain: ProtectionDomain,
    pub(super) send_queue: CompletionQueue,
    pub(super) receive_queue: CompletionQueue,
    pub(super) queue_pair: QueuePair,
    /// Datagrams: the path to the other end.
    to_peer: Option<AddressHandle>,
    peer: QueuePairNumber,
    queue_key: u32,
}

impl End {
    /// A signalled request; a datagram goes to the other end of the pair.
    pub(super) fn request<'a>(
        &'a self,
        id: u64,
        operation: SendOperation,
        local: &'a [ScatterGatherEntry],
    ) -> SendRequest<'a> {
        let request = SendRequest::new(id, operation, local);
        match &self.to_peer {
            Some(handle) => request.to(handle.destination(self.peer, self.queue_key)),
            None => request,
        }
    }

    /// Posts one signalled request.
    pub(super) fn send(&self, id: u64, operation: SendOperation, local: &[ScatterGatherEntry]) -> Outcome {
        Ok(self.queue_pair.post_send(&[self.request(id, operation, local)])?)
    }

    /// Posts one receive.
    pub(super) fn receive(&self, id: u64, local: &[ScatterGatherEntry]) -> Outcome {
        Ok(self.queue_pair.post_receive(&[ReceiveRequest { id, local }])?)
    }

    pub(super) fn number(&self) -> QueuePairNumber {
        self.queue_pair.number()
    }

    /// Fails unless the queue pair is in this state.
    pub(super) fn is_in(&self, state: QueuePairState) -> Outcome {
        equal("state of the queue pair", state, self.queue_pair.state())
    }

    /// Moves to ERR or RESET.
    pub(super) fn go(&self, state: QueuePairState) -> Outcome {
        Ok(self.queue_pair.modify(&QueuePairAttributes::to_state(state))?)
    }

    /// Bytes that a receive must have before the message.
    pub(super) fn header_bytes(&self) -> usize {
        match self.queue_pair.transport() {
            Transport::UnreliableDatagram => GRH_BYTES,
            _ => 0,
        }
    }
}

/// Two queue pairs.
pub(super) struct Pair {
    pub(super) ends: [End; 2],
    pub(super) setup: Setup,
    ports: [u8; 2],
    /// InfiniBand's addresses; 0 with RoCE.
    lids: [u16; 2],
    gids: [Gid; 2],
    gid_indexes: [u8; 2],
    udp_ports: [u16; 2],
    mtu: Mtu,
    /// READs and atomics that each end may have outstanding.
    read_atomic: [u8; 2],
}

impl Pair {
    /// Two queue pairs, connected and ready to send.
    pub(super) fn new(context: &mut Context<'_>, setup: &Setup) -> Outcome<Self> {
        let pair = Pair::unconnected(context, setup)?;
        for end in [0, 1] {
            pair.advance(end, QueuePairState::ReadyToSend)?;
        }
        Ok(pair)
    }

    /// The usual pair of a transport.
    pub(super) fn of(context: &mut Context<'_>, transport: Transport) -> Outcome<Self> {
        Pair::new(context, &Setup::new(transport))
    }

    /// Two queue pairs in RESET.
    pub(super) fn unconnected(context: &mut Context<'_>, setup: &Setup) -> Outcome<Self> {
        let ends = [Pair::end(context, setup, 0)?, Pair::end(context, setup, 1)?];
        let depth = |end: usize| -> Outcome<u8> {
            let (ours, peers) = (context.device_attributes(end)?, context.device_attributes(1 - end)?);
            Ok(setup.read_atomic.min(ours.max_read_atomic).min(peers.max_destination_read_atomic))
        };
        let mut pair = Pair {
            ends,
            setup: setup.clone(),
            ports: [context.port(0), context.port(1)],
            lids: [context.lid(0)?, context.lid(1)?],
            gids: [context.gid(0)?, context.gid(1)?],
            gid_indexes: [context.gid_index(0), context.gid_index(1)],
            udp_ports: [context.udp_port(0), context.udp_port(1)],
            mtu: context.path_mtu(),
            read_atomic: [depth(0)?, depth(1)?],
        };
        pair.meet()?;
        Ok(pair)
    }

    /// Lets each end know the other one; again after a queue pair has been replaced.
    pub(super) fn meet(&mut self) -> Outcome {
        for end in [0, 1] {
            self.ends[end].peer = self.ends[1 - end].number();
            if self.setup.transport == Transport::UnreliableDatagram {
                let path = self.path(end);
                self.ends[end].to_peer = Some(self.ends[end].domain.create_address_handle(&path)?);
            }
        }
        Ok(())
    }

    fn end(context: &Context<'_>, setup: &Setup, end: usize) -> Outcome<End> {
        let device = context.device(end);
        let most = device.attributes()?;
        let entries = setup.completion_entries.min(most.max_completion_queue_entries);
        let domain = device.allocate_protection_domain()?;
        let send_queue = device.create_completion_queue(entries)?;
        let receive_queue = device.create_completion_queue(entries)?;
        let queue_pair = create(&domain, &send_queue, &receive_queue, setup)?;
        Ok(End {
            peer: queue_pair.number(),
            domain,
            send_queue,
            receive_queue,
            queue_pair,
            to_peer: None,
            queue_key: setup.queue_key,
        })
    }

    pub(super) fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// READs and atomics that an end may have outstanding.
    pub(super) fn read_atomic(&self, end: usize) -> u8 {
        self.read_atomic[end]
    }

    /// The path from one end to the other.
    pub(super) fn path(&self, from: usize) -> PathAttributes {
        PathAttributes {
            port: self.ports[from],
            source_gid_index: self.gid_indexes[from],
            destination_lid: self.lids[1 - from],
            udp_port: self.udp_ports[1 - from],
            ..PathAttributes::to(self.gids[1 - from])
        }
    }

    /// The attributes with which an end enters a state, all that are required and no others.
    pub(super) fn attributes(&self, end: usize, state: QueuePairState) -> QueuePairAttributes {
        let setup = &self.setup;
        let reliable = setup.transport == Transport::ReliableConnection;
        let datagram = setup.transport == Transport::UnreliableDatagram;
        match state {
            QueuePairState::Initialized => {
                let attributes = match datagram {
                    true => QueuePairAttributes::init_datagram(setup.queue_key),
                    false => QueuePairAttributes::init_connected(setup.access),
                };
                QueuePairAttributes { port: Some(self.ports[end]), ..attributes }
            }
            QueuePairState::ReadyToReceive if datagram => QueuePairAttributes::to_state(state),
            QueuePairState::ReadyToReceive => {
                let attributes = QueuePairAttributes::ready_to_receive(
                    self.path(end),
                    self.mtu,
                    self.ends[1 - end].number(),
                    setup.first_psn[1 - end],
                );
                let taken = setup.destination_read_atomic.unwrap_or(self.read_atomic[1 - end]);
                match reliable {
                    true => attributes.reliable_receive(taken, NOT_READY_TIMER),
                    false => attributes,
                }
            }
            QueuePairState::ReadyToSend => {
                let attributes = QueuePairAttributes::ready_to_send(setup.first_psn[end]);
                match reliable {
                    true => attributes.reliable_send(
                        setup.timeout,
                        setup.retry_count,
                        setup.receiver_not_ready_retry,
                        self.read_atomic[end],
                    ),
                    false => attributes,
                }
            }
            _ => QueuePairAttributes::to_state(state),
        }
    }

    /// Moves an end from RESET (or a state in between) up to INIT, RTR or RTS.
    pub(super) fn advance(&self, end: usize, goal: QueuePairState) -> Outcome {
        let queue_pair = &self.ends[end].queue_pair;
        for state in [QueuePairState::Initialized, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend] {
            let here = queue_pair.state() as u8;
            if here < state as u8 && state as u8 <= goal as u8 {
                queue_pair
                    .modify(&self.attributes(end, state))
                    .map_err(|error| Failure::from(error).context(format_args!("to {state:?}")))?;
                self.ends[end].is_in(state)?;
            }
        }
        Ok(())
    }

    /// Both ends back to RESET and connected anew.
    pub(super) fn reconnect(&self) -> Outcome {
        for end in [0, 1] {
            self.ends[end].go(QueuePairState::Reset)?;
        }
        for end in [0, 1] {
            self.advance(end, QueuePairState::ReadyToSend)?;
        }
        Ok(())
    }
}

/// A queue pair in RESET, its sizes cut down to what the device can give.
pub(super) fn create(
    domain: &ProtectionDomain,
    send_queue: &CompletionQueue,
    receive_queue: &CompletionQueue,
    setup: &Setup,
) -> Outcome<QueuePair> {
    let most = domain.device().attributes()?;
    let limits = QueuePairLimits {
        send_requests: setup.limits.send_requests.min(most.max_work_requests),
        receive_requests: setup.limits.receive_requests.min(most.max_work_requests),
        send_entries: setup.limits.send_entries.min(most.max_scatter_gather_entries),
        receive_entries: setup.limits.receive_entries.min(most.max_scatter_gather_entries),
        inline_bytes: setup.limits.inline_bytes.min(most.max_inline_bytes),
    };
    let options = QueuePairOptions { limits, signal_all: setup.signal_all, shared_receive_queue: None };
    Ok(domain.create_queue_pair(setup.transport, send_queue, receive_queue, &options)?)
}

/// The four forms of moving a message from one end to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Send,
    SendWithImmediate,
    Write,
    WriteWithImmediate,
}

impl Form {
    pub(super) const ALL: [Form; 4] = [Form::Send, Form::SendWithImmediate, Form::Write, Form::WriteWithImmediate];
    pub(super) const SENDS: [Form; 2] = [Form::Send, Form::SendWithImmediate];

    /// As it stands in the names of tests.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Form::Send => "send",
            Form::SendWithImmediate => "send-with-immediate",
            Form::Write => "write",
            Form::WriteWithImmediate => "write-with-immediate",
        }
    }

    pub(super) const fn operation(self, remote: RemoteMemory, immediate: u32) -> SendOperation {
        match self {
            Form::Send => SendOperation::Send,
            Form::SendWithImmediate => SendOperation::SendWithImmediate(immediate),
            Form::Write => SendOperation::Write(remote),
            Form::WriteWithImmediate => SendOperation::WriteWithImmediate(remote, immediate),
        }
    }

    pub(super) const fn is_write(self) -> bool {
        matches!(self, Form::Write | Form::WriteWithImmediate)
    }

    pub(super) const fn consumes_receive(self) -> bool {
        !matches!(self, Form::Write)
    }

    pub(super) const fn has_immediate(self) -> bool {
        matches!(self, Form::SendWithImmediate | Form::WriteWithImmediate)
    }

    const fn sent_as(self) -> CompletionOperation {
        match self.is_write() {
            true => CompletionOperation::Write,
            false => CompletionOperation::Send,
        }
    }

    const fn received_as(self) -> CompletionOperation {
        match self.is_write() {
            true => CompletionOperation::ReceiveWriteWithImmediate,
            false => CompletionOperation::Receive,
        }
    }

    /// Every field of the sender's completion.
    pub(super) fn check_sent(self, completion: &WorkCompletion, end: &End, id: u64) -> Outcome {
        status("sender", completion, id, CompletionStatus::Success)?;
        equal("sender's completion: operation", self.sent_as(), completion.operation)?;
        equal("sender's completion: queue pair", end.number(), completion.queue_pair)
    }

    /// Every field of the receiver's completion. `byte_count` is that of the message.
    pub(super) fn check_received(
        self,
        completion: &WorkCompletion,
        ends: (&End, &End),
        id: u64,
        byte_count: usize,
        immediate: u32,
    ) -> Outcome {
        let (sender, receiver) = ends;
        let byte_count = (byte_count + receiver.header_bytes()) as u32;
        let immediate = self.has_immediate().then_some(immediate);
        status("receiver", completion, id, CompletionStatus::Success)?;
        equal("receiver's completion: operation", self.received_as(), completion.operation)?;
        equal("receiver's completion: byte count", byte_count, completion.byte_count)?;
        equal("receiver's completion: queue pair", receiver.number(), completion.queue_pair)?;
        equal("receiver's completion: immediate", immediate, completion.immediate())?;
        equal("receiver's completion: invalidated key", None, completion.invalidated_key())?;
        if receiver.queue_pair.transport() == Transport::UnreliableDatagram {
            let source = completion.source_queue_pair;
            equal("receiver's completion: source queue pair", sender.number(), source)?;
        }
        Ok(())
    }
}
