//! A queue pair of a check, its completions, and how to wait for them.

use std::collections::VecDeque;
use std::time::Duration;

use longhaul_verbs::{
    Access, AddressHandle, Capabilities, CompletionChannel, CompletionQueue, Mtu, QueuePair, QueuePairAttributes,
    QueuePairLimits, QueuePairNumber, QueuePairOptions, QueuePairState, ReceiveRequest, SendRequest, WorkCompletion,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::control::Control;
use crate::endpoint::Endpoint;
use crate::fault::{Fault, refused_by_device};
use crate::ledger::Numbers;
use crate::messages::{EndInfo, PairInfo, SessionPlan};
use crate::plan::Connection;

/// The key that datagrams carry.
const QUEUE_KEY: u32 = 0x4c6f_6e67;
/// Receiver-not-ready timer of 0.64 ms, as the specification encodes it.
const NOT_READY_TIMER: u8 = 12;
/// Try again for ever while the receiver is not ready: it will be.
const NOT_READY_RETRIES: u8 = 7;
/// Times to send again before the peer is given up: the most there are, for an end that may only be slow.
pub(crate) const RETRIES: u8 = 7;
/// And when the peer is to be given up. Soft-RoCE takes 7 for "for ever", as if it were about receivers that are not
/// ready.
pub(crate) const RETRIES_UNTIL_DEATH: u8 = 6;
/// READs and atomics that may be outstanding, if both devices can.
const OUTSTANDING_MAX: u8 = 16;
/// Sleep this long at most when there is nothing to be woken by.
const BLIND_SLEEP: Duration = Duration::from_millis(1);
/// Completions taken at a time.
const BATCH: usize = 32;

/// Sizes and rights of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PairOptions {
    pub(crate) connection: Connection,
    pub(crate) send_requests: u32,
    pub(crate) receive_requests: u32,
    pub(crate) remote_access: Access,
    pub(crate) first_psn: u32,
    /// RC: how often to send again.
    pub(crate) retries: u8,
}

/// A queue pair, with a completion queue for each of its halves.
pub(crate) struct Pair {
    connection: Connection,
    first_psn: u32,
    retries: u8,
    queue_pair: QueuePair,
    send_queue: CompletionQueue,
    receive_queue: CompletionQueue,
    /// Where to sleep, if the device has channels.
    channel: Option<CompletionChannel>,
    /// Where datagrams go.
    datagrams: Option<(AddressHandle, QueuePairNumber)>,
    /// Completions that have been taken from the device and not been looked at.
    pub(crate) sent: VecDeque<WorkCompletion>,
    pub(crate) received: VecDeque<WorkCompletion>,
}

impl Pair {
    pub(crate) fn create(endpoint: &Endpoint, options: PairOptions) -> Result<Pair, Fault> {
        let device = &endpoint.end.device;
        let failed = refused_by_device("create a queue");
        let sleeps = endpoint.has(Capabilities::COMPLETION_CHANNEL | Capabilities::EVENT_DESCRIPTORS);
        let channel = sleeps.then(|| device.create_completion_channel()).transpose().map_err(&failed)?;
        let create = |entries: u32, token: u64| match &channel {
            Some(channel) => device.create_completion_queue_on(entries, channel, token),
            None => device.create_completion_queue(entries),
        };
        let send_queue = create(options.send_requests.max(1), 0).map_err(&failed)?;
        let receive_queue = create(options.receive_requests.max(1), 1).map_err(&failed)?;
        let limits = QueuePairLimits {
            send_requests: options.send_requests.max(1),
            receive_requests: options.receive_requests.max(1),
            send_entries: 1,
            receive_entries: 1,
            inline_bytes: 0,
        };
        let queue_options = QueuePairOptions { limits, signal_all: false, shared_receive_queue: None };
        let transport = options.connection.transport();
        let queue_pair = endpoint.domain.create_queue_pair(transport, &send_queue, &receive_queue, &queue_options);
        let queue_pair = queue_pair.map_err(&failed)?;
        let attributes = match options.connection {
            Connection::Ud => QueuePairAttributes::init_datagram(QUEUE_KEY),
            Connection::Rc | Connection::Uc => QueuePairAttributes::init_connected(options.remote_access),
        };
        let attributes = QueuePairAttributes { port: Some(endpoint.end.port), ..attributes };
        queue_pair.modify(&attributes).map_err(refused_by_device("initialize a queue pair"))?;
        Ok(Pair {
            connection: options.connection,
            first_psn: options.first_psn & 0xff_ffff,
            retries: options.retries,
            queue_pair,
            send_queue,
            receive_queue,
            channel,
            datagrams: None,
            sent: VecDeque::new(),
            received: VecDeque::new(),
        })
    }

    pub(crate) fn info(&self, mtu: Mtu) -> PairInfo {
        let number = self.queue_pair.number().value();
        PairInfo { number, first_psn: self.first_psn, mtu_bytes: mtu.byte_count() }
    }

    pub(crate) fn numbers(&self, peer: &PairInfo) -> Numbers {
        Numbers { own: self.queue_pair.number(), peer: QueuePairNumber::new(peer.number) }
    }

    /// Connects with the peer's queue pair.
    pub(crate) fn connect(
        &mut self,
        endpoint: &Endpoint,
        plan: &SessionPlan,
        (peer, pair): (&EndInfo, &PairInfo),
        mtu: Mtu,
    ) -> Result<(), Fault> {
        let path = endpoint.path_to(peer);
        let number = QueuePairNumber::new(pair.number);
        let attributes = &endpoint.attributes;
        let incoming = attributes.max_destination_read_atomic.min(peer.max_read_atomic).min(OUTSTANDING_MAX);
        let outgoing = attributes.max_read_atomic.min(peer.max_destination_read_atomic).min(OUTSTANDING_MAX);
        let receive = QueuePairAttributes::ready_to_receive(path, mtu, number, pair.first_psn);
        let kilobits = |rate: u64| u32::try_from(rate / 1000).unwrap_or(u32::MAX).max(1);
        let can_limit = endpoint.has(Capabilities::RATE_LIMIT);
        let send = QueuePairAttributes {
            rate_limit_kilobits_per_second: plan.rate_bits_per_second.filter(|_| can_limit).map(kilobits),
            ..QueuePairAttributes::ready_to_send(self.first_psn)
        };
        let (receive, send) = match self.connection {
            Connection::Rc => (
                receive.reliable_receive(incoming, NOT_READY_TIMER),
                send.reliable_send(plan.timeout, self.retries, NOT_READY_RETRIES, outgoing),
            ),
            Connection::Uc => (receive, send),
            Connection::Ud => (QueuePairAttributes::to_state(QueuePairState::ReadyToReceive), send),
        };
        self.queue_pair.modify(&receive).map_err(refused_by_device("make a queue pair ready to receive"))?;
        self.queue_pair.modify(&send).map_err(refused_by_device("make a queue pair ready to send"))?;
        if self.connection == Connection::Ud {
            let handle = endpoint.domain.create_address_handle(&path);
            self.datagrams = Some((handle.map_err(refused_by_device("make an address handle"))?, number));
        }
        Ok(())
    }

    pub(crate) fn post_send(&self, request: SendRequest<'_>) -> Result<(), Fault> {
        let request = match &self.datagrams {
            Some((handle, number)) => request.to(handle.destination(*number, QUEUE_KEY)),
            None => request,
        };
        self.queue_pair.post_send(&[request]).map_err(refused_by_device("post a request"))
    }

    pub(crate) fn post_receive(&self, request: ReceiveRequest<'_>) -> Result<(), Fault> {
        self.queue_pair.post_receive(&[request]).map_err(refused_by_device("post a receive"))
    }

    pub(crate) fn state(&self) -> QueuePairState {
        self.queue_pair.state()
    }

    pub(crate) fn stop(&self) -> Result<(), Fault> {
        let attributes = QueuePairAttributes::to_state(QueuePairState::Error);
        self.queue_pair.modify(&attributes).map_err(refused_by_device("move a queue pair to the error state"))
    }

    /// Takes what has completed.
    pub(crate) fn collect(&mut self) -> Result<bool, Fault> {
        let failed = refused_by_device("poll completions");
        let mut room = [WorkCompletion::default(); BATCH];
        let mut has_some = !self.sent.is_empty() || !self.received.is_empty();
        for (queue, taken) in [(&self.send_queue, &mut self.sent), (&self.receive_queue, &mut self.received)] {
            loop {
                let count = queue.poll(&mut room).map_err(&failed)?;
                taken.extend(&room[..count]);
                has_some |= count > 0;
                if count < BATCH {
                    break;
                }
            }
        }
        Ok(has_some)
    }

    /// Sleeps until something has completed, the other end has said something or is gone, or time is up.
    pub(crate) fn wait(&mut self, control: &Control, longest: Duration) -> Result<(), Fault> {
        if self.collect()? {
            return Ok(());
        }
        if let Some(channel) = &self.channel {
            let failed = refused_by_device("ask for completion events");
            self.send_queue.request_notification(false).map_err(&failed)?;
            self.receive_queue.request_notification(false).map_err(&failed)?;
            let channel = channel.clone();
            // A completion from before the notification was requested makes no event.
            if self.collect()? {
                return Ok(());
            }
            sleep(channel.descriptor(), control, longest)?;
            let failed = refused_by_device("read a completion event");
            while channel.next_event().map_err(&failed)?.is_some() {}
        } else {
            sleep(None, control, longest.min(BLIND_SLEEP))?;
        }
        self.collect().map(|_| ())
    }
}

/// Sleeps until a descriptor is readable or time is up.
fn sleep(channel: Option<std::os::fd::BorrowedFd<'_>>, control: &Control, longest: Duration) -> Result<(), Fault> {
    let descriptors = channel.into_iter().chain(control.descriptor());
    let mut waits: Vec<_> = descriptors.map(|descriptor| PollFd::new(descriptor, PollFlags::POLLIN)).collect();
    // Times are whole milliseconds, rounded up: a sleep that is cut to nothing would be no sleep.
    let timeout = PollTimeout::try_from(longest + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
    match poll(&mut waits, timeout) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(Fault::Check(format!("cannot sleep until there are completions: {error}"))),
    }
}
