//! Queue pairs.
//!
//! A queue pair has three locks: one for what is asked and changed, one for sends, one for receives. Each call takes
//! the one that it needs; changing the state takes all three, because drivers then touch the queues too; and so does
//! destroying, after which every call answers `Gone`. They are always taken in that order, and before those of windows
//! and regions.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use longhaul_verbs::raw::{self, QueuePairInit};
use longhaul_verbs::{
    AttributeMask, Capabilities, CreateError, DestroyError, Gid, ModifyError, MulticastError, NotSupported, PostError,
    PostErrorKind, QueryError, QueuePairAttributes, QueuePairLimits, QueuePairNumber, QueuePairState, ReceiveRequest,
    SendRequest, Transport, WriteBurst,
};
use nix::libc::ENOMEM;

use crate::answer::{check, is_not_supported};
use crate::attributes::positive;
use crate::completion::{CompletionQueue, QueueHandle};
use crate::context::Context;
use crate::domain::{Domain, check_bounds};
use crate::handle::{Handle, Owned, lock, own};
use crate::membership::Membership;
use crate::modify::check_values;
use crate::path::gid_to_c;
use crate::post::SendSide;
use crate::queue_pair_attributes::{
    QUERY_ALL, attributes_from_c, attributes_to_c, limits_to_c, state_from_c, transport_to_c,
};
use crate::queue_pair_creation::{Created, create, real_limits};
use crate::request_check::Bounds;
use crate::request_list::ReceiveList;
use crate::shared_receive_queue::{SharedQueue, SharedReceiveQueue};
use longhaul_verbs_abi::{IBV_QP_STATE, IBV_QPS_ERR, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_rate_limit_attr};

/// A queue pair. What it uses goes after it.
pub(crate) struct QueuePair {
    number: QueuePairNumber,
    transport: Transport,
    limits: QueuePairLimits,
    control: Mutex<Control>,
    /// `None` once it has been destroyed; so is `receive`.
    send: Mutex<Option<SendSide>>,
    receive: Mutex<Option<ReceiveSide>>,
    domain: Arc<Domain>,
    _completion_queues: [Arc<QueueHandle>; 2],
    shared_receive_queue: Option<Arc<SharedQueue>>,
}

struct Control {
    /// `None` once it has been destroyed.
    queue_pair: Option<Handle<ibv_qp>>,
    /// The attributes set since it was reset.
    given: AttributeMask,
    rate_limit_kilobits_per_second: u32,
    /// The kernel does not destroy a member of a group.
    groups: Vec<Member>,
}

/// That it is a member of a group.
struct Member {
    group: Gid,
    lid: u16,
    _membership: Option<Membership>,
}

/// The receiving half.
struct ReceiveSide {
    queue_pair: Handle<ibv_qp>,
    state: QueuePairState,
    list: ReceiveList,
}

impl QueuePair {
    /// `ibv_create_qp_ex` or `ibv_create_qp`
    pub(crate) fn create(domain: &Arc<Domain>, init: &QueuePairInit<'_>) -> Result<Self, CreateError> {
        Self::create_with(domain, init, true)
    }

    /// The same; only with the list interface for sends unless `wants_extended`.
    pub(crate) fn create_with(
        domain: &Arc<Domain>,
        init: &QueuePairInit<'_>,
        wants_extended: bool,
    ) -> Result<Self, CreateError> {
        let context = domain.context();
        let own_queue = |queue, what| {
            let queue = own::<CompletionQueue>(context, queue).ok_or(CreateError::ForeignObject { what })?;
            Ok::<_, CreateError>(queue.object().clone())
        };
        let send_queue = own_queue(init.send_queue, "send completion queue")?;
        let receive_queue = own_queue(init.receive_queue, "receive completion queue")?;
        let shared_receive_queue = match init.shared_receive_queue {
            None => None,
            Some(queue) => Some(own_shared_receive_queue(domain, queue)?),
        };
        let transport = init.transport;
        let unsupported = NotSupported { capability: transport.capability() };
        let mut limits = init.limits;
        if shared_receive_queue.is_some() {
            // It has no receive queue of its own.
            (limits.receive_requests, limits.receive_entries) = (0, 0);
        }
        let device = domain.attributes();
        check_bounds(&[
            ("send requests", limits.send_requests, positive(device.max_qp_wr)),
            ("receive requests", limits.receive_requests, positive(device.max_qp_wr)),
            ("send scatter-gather entries", limits.send_entries, positive(device.max_sge)),
            ("receive scatter-gather entries", limits.receive_entries, positive(device.max_sge)),
        ])?;
        let mut attributes = ibv_qp_init_attr {
            send_cq: send_queue.as_ptr(),
            recv_cq: receive_queue.as_ptr(),
            srq: shared_receive_queue.as_ref().map_or(std::ptr::null_mut(), |queue| queue.as_ptr()),
            cap: limits_to_c(&limits),
            qp_type: transport_to_c(transport).ok_or(unsupported)?,
            sq_sig_all: init.signal_all.into(),
            ..ibv_qp_init_attr::zeroed()
        };
        // SAFETY: all objects are of this device, and held here.
        let created = unsafe { create(domain, &mut attributes, transport, wants_extended) };
        let Created { queue_pair, extended } = created.map_err(|error| match is_not_supported(&error) {
            true => unsupported.into(),
            false => CreateError::System(error),
        })?;
        // SAFETY: just made.
        let mut limits = unsafe { real_limits(domain, queue_pair, &attributes.cap) };
        if shared_receive_queue.is_some() {
            (limits.receive_requests, limits.receive_entries) = (0, 0);
        }
        // SAFETY: just made; the number does not change.
        let number = QueuePairNumber::new(unsafe { (*queue_pair.as_ptr()).qp_num });
        let message_bytes = message_bytes(context, transport, 1);
        let bounds = Bounds { transport, limits, message_bytes };
        let receive = ReceiveSide { queue_pair, state: QueuePairState::Reset, list: ReceiveList::default() };
        Ok(QueuePair {
            number,
            transport,
            limits,
            control: Mutex::new(Control {
                queue_pair: Some(queue_pair),
                given: AttributeMask::empty(),
                rate_limit_kilobits_per_second: 0,
                groups: Vec::new(),
            }),
            send: Mutex::new(Some(SendSide::new(context, queue_pair, bounds, extended))),
            receive: Mutex::new(Some(receive)),
            domain: domain.clone(),
            _completion_queues: [send_queue, receive_queue],
            shared_receive_queue,
        })
    }

    /// Whether sends go by calls instead of lists.
    #[cfg(test)]
    pub(crate) fn posts_by_calls(&self) -> bool {
        lock(&self.send).as_ref().is_some_and(SendSide::posts_by_calls)
    }

    pub(crate) fn is_datagram(&self) -> bool {
        self.transport == Transport::UnreliableDatagram
    }

    /// Have `call` post one send in its own way, while nobody else posts; it gets the queue pair and the queue's depth.
    pub(crate) fn post_one(
        &self,
        call: impl FnOnce(*mut ibv_qp, u32) -> Result<(), PostErrorKind>,
    ) -> Result<(), PostErrorKind> {
        lock(&self.send).as_ref().ok_or(PostErrorKind::Gone)?.post_one(call)
    }

    fn library(&self) -> &crate::library::Library {
        self.domain.context().library()
    }

    fn ask(&self, queue_pair: Handle<ibv_qp>) -> io::Result<ibv_qp_attr> {
        let mut attributes = ibv_qp_attr::zeroed();
        let mut init = ibv_qp_init_attr::zeroed();
        // SAFETY: alive, as the caller holds the lock under which it is destroyed; there is room for the answers.
        let answer =
            unsafe { (self.library().ibv_query_qp)(queue_pair.as_ptr(), &mut attributes, QUERY_ALL, &mut init) };
        check(answer)?;
        Ok(attributes)
    }

    /// The state that the device is in now; it goes to error states by itself.
    fn ask_state(&self, queue_pair: Handle<ibv_qp>) -> io::Result<QueuePairState> {
        let number = self.ask(queue_pair)?.qp_state;
        state_from_c(number).ok_or_else(|| io::Error::other(format!("the device is in state {number}, which is none")))
    }

    /// Have receives flushed that were posted in the error state. Soft-RoCE does not look at its receive queue by
    /// itself then, but does so each time it is put into that state.
    fn have_flushed(&self, queue_pair: Handle<ibv_qp>) {
        let mut error = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::zeroed() };
        // SAFETY: alive, as the caller holds a lock under which it is destroyed.
        let answer = unsafe { (self.library().ibv_modify_qp)(queue_pair.as_ptr(), &mut error, IBV_QP_STATE) };
        if let Err(error) = check(answer) {
            tracing::debug!(%error, "receives may not be flushed");
        }
    }

    fn limit_rate(&self, queue_pair: Handle<ibv_qp>, kilobits_per_second: u32) -> Result<(), ModifyError> {
        let mut attributes = ibv_qp_rate_limit_attr::zeroed();
        attributes.rate_limit = kilobits_per_second;
        // SAFETY: alive, as the caller holds the lock under which it is destroyed.
        let answer = unsafe { self.domain.context().modify_qp_rate_limit(queue_pair.as_ptr(), &mut attributes) };
        answer.map_err(|error| match is_not_supported(&error) {
            true => NotSupported { capability: Capabilities::RATE_LIMIT }.into(),
            false => ModifyError::System(error),
        })
    }

    fn leave_groups(&self, control: &mut Control, queue_pair: Handle<ibv_qp>) {
        for Member { group, lid, .. } in control.groups.drain(..) {
            let group = gid_to_c(group);
            // SAFETY: alive, as the caller holds the lock under which it is destroyed.
            let answer = unsafe { (self.library().ibv_detach_mcast)(queue_pair.as_ptr(), &group, lid) };
            if let Err(error) = check(answer) {
                tracing::debug!(%error, "a queue pair could not leave a group");
            }
        }
    }
}

/// The longest message of a queue pair on this port.
fn message_bytes(context: &Context, transport: Transport, port: u8) -> u64 {
    match context.query_port(port) {
        Ok(attributes) if transport == Transport::UnreliableDatagram => 128 << attributes.active_mtu.min(5),
        Ok(attributes) => attributes.max_msg_sz.into(),
        Err(_) => 1 << 31,
    }
}

fn own_shared_receive_queue(
    domain: &Arc<Domain>,
    queue: &dyn raw::SharedReceiveQueue,
) -> Result<Arc<SharedQueue>, CreateError> {
    let what = "shared receive queue";
    let queue = own::<SharedReceiveQueue>(domain.context(), queue).ok_or(CreateError::ForeignObject { what })?;
    if !Arc::ptr_eq(queue.queue().domain(), domain) {
        return Err(CreateError::InvalidArgument { what, expected: "one of the queue pair's protection domain" });
    }
    Ok(queue.queue().clone())
}

impl Owned for QueuePair {
    fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }
}

impl raw::QueuePair for QueuePair {
    fn number(&self) -> QueuePairNumber {
        self.number
    }

    fn transport(&self) -> Transport {
        self.transport
    }

    fn state(&self) -> QueuePairState {
        let control = lock(&self.control);
        let state = control.queue_pair.and_then(|queue_pair| self.ask_state(queue_pair).ok());
        state.unwrap_or(QueuePairState::Error)
    }

    fn modify(&self, attributes: &QueuePairAttributes) -> Result<(), ModifyError> {
        let mut control = lock(&self.control);
        let queue_pair = control.queue_pair.ok_or(ModifyError::Gone)?;
        let from = self.ask_state(queue_pair)?;
        let to = attributes.state.unwrap_or(from);
        check_values(&self.domain, self.transport, from, attributes)?;
        let mut send = lock(&self.send);
        let mut receive = lock(&self.receive);
        let (mut c, mask) = attributes_to_c(attributes);
        // SAFETY: alive, and nobody posts to it.
        check(unsafe { (self.library().ibv_modify_qp)(queue_pair.as_ptr(), &mut c, mask) })?;
        if let Some(send) = &mut *send {
            send.state = to;
            if let Some(port) = attributes.port {
                send.bounds.message_bytes = message_bytes(self.domain.context(), self.transport, port);
            }
            match (from, to) {
                (_, QueuePairState::Reset) => send.forget(),
                (QueuePairState::SendQueueDrained, QueuePairState::ReadyToSend) => send.ring_doorbell(),
                _ => {}
            }
        }
        if let Some(receive) = &mut *receive {
            receive.state = to;
        }
        match to {
            QueuePairState::Reset => control.given = AttributeMask::empty(),
            _ => control.given |= attributes.mask() - AttributeMask::RATE_LIMIT,
        }
        if let Some(limit) = attributes.rate_limit_kilobits_per_second {
            self.limit_rate(queue_pair, limit)?;
            control.given |= AttributeMask::RATE_LIMIT;
            control.rate_limit_kilobits_per_second = limit;
        }
        Ok(())
    }

    fn query(&self) -> Result<QueuePairAttributes, QueryError> {
        let control = lock(&self.control);
        let queue_pair = control.queue_pair.ok_or(QueryError::Gone)?;
        let attributes = attributes_from_c(&self.ask(queue_pair)?, control.given);
        let rate = control.rate_limit_kilobits_per_second;
        Ok(QueuePairAttributes {
            // As the driver gave them; what the kernel knows may be less.
            limits: Some(self.limits),
            rate_limit_kilobits_per_second: attributes.rate_limit_kilobits_per_second.and(Some(rate)),
            ..attributes
        })
    }

    unsafe fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        let mut send = lock(&self.send);
        // SAFETY: the caller's promise; it has not been destroyed, and is not while we hold the lock.
        unsafe { send.as_mut().ok_or_else(|| PostErrorKind::Gone.at(0))?.post(requests) }
    }

    unsafe fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        let mut receive = lock(&self.receive);
        let ReceiveSide { queue_pair, state, list } = receive.as_mut().ok_or_else(|| PostErrorKind::Gone.at(0))?;
        if !state.takes_receives() {
            return Err(PostErrorKind::InvalidState { state: *state }.at(0));
        }
        if self.shared_receive_queue.is_some() {
            return Err(PostErrorKind::SharedReceives.at(0));
        }
        let (context, limits) = (self.domain.context(), &self.limits);
        let result = list.post(requests, limits.receive_entries, limits.receive_requests, |first, bad| {
            // SAFETY: alive, and the list is linked.
            unsafe { context.post_recv(queue_pair.as_ptr(), first, bad) }
        });
        if *state == QueuePairState::Error {
            self.have_flushed(*queue_pair);
        }
        result
    }

    unsafe fn post_write_burst(&self, burst: &WriteBurst<'_>) -> Result<(), PostError> {
        let mut send = lock(&self.send);
        // SAFETY: the caller's promise; it has not been destroyed, and is not while we hold the lock.
        unsafe { send.as_mut().ok_or_else(|| PostErrorKind::Gone.at(0))?.post_burst(burst) }
    }

    fn attach_multicast(&self, group: Gid, lid: u16) -> Result<(), MulticastError> {
        let most = positive(self.domain.attributes().max_mcast_grp);
        let unsupported = NotSupported { capability: Capabilities::MULTICAST };
        if most == 0 {
            return Err(unsupported.into());
        }
        if !self.is_datagram() {
            return Err(MulticastError::WrongTransport);
        }
        if !group.is_multicast() {
            return Err(MulticastError::NotAGroup);
        }
        let mut control = lock(&self.control);
        let queue_pair = control.queue_pair.ok_or(MulticastError::Gone)?;
        if control.groups.iter().any(|member| (member.group, member.lid) == (group, lid)) {
            return Ok(());
        }
        let _membership = Membership::join(&self.domain.context().folder(), group)?;
        let c = gid_to_c(group);
        // SAFETY: alive.
        let answer = unsafe { (self.library().ibv_attach_mcast)(queue_pair.as_ptr(), &c, lid) };
        check(answer).map_err(|error| match error.raw_os_error() {
            _ if is_not_supported(&error) => MulticastError::NotSupported(unsupported),
            Some(ENOMEM) => MulticastError::TooMany { most: most.into() },
            _ => MulticastError::System(error),
        })?;
        control.groups.push(Member { group, lid, _membership });
        Ok(())
    }

    fn detach_multicast(&self, group: Gid, lid: u16) -> Result<(), MulticastError> {
        let mut control = lock(&self.control);
        let queue_pair = control.queue_pair.ok_or(MulticastError::Gone)?;
        let position = control.groups.iter().position(|member| (member.group, member.lid) == (group, lid));
        let position = position.ok_or(MulticastError::NotAttached)?;
        let c = gid_to_c(group);
        // SAFETY: alive.
        check(unsafe { (self.library().ibv_detach_mcast)(queue_pair.as_ptr(), &c, lid) })?;
        control.groups.swap_remove(position);
        Ok(())
    }

    fn destroy(&self) -> Result<(), DestroyError> {
        let mut control: MutexGuard<'_, Control> = lock(&self.control);
        let queue_pair = control.queue_pair.ok_or(DestroyError::Gone)?;
        self.leave_groups(&mut control, queue_pair);
        let mut send = lock(&self.send);
        let mut receive = lock(&self.receive);
        // Waits for events that have been read and not acknowledged; the reader of one acknowledges it immediately.
        // SAFETY: alive, and with all three locks nobody uses it.
        check(unsafe { (self.library().ibv_destroy_qp)(queue_pair.as_ptr()) })?;
        (control.queue_pair, *send, *receive) = (None, None, None);
        Ok(())
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        match raw::QueuePair::destroy(self) {
            Ok(()) | Err(DestroyError::Gone) => {}
            Err(error) => tracing::warn!(%error, "a queue pair stays until the device is closed"),
        }
    }
}
