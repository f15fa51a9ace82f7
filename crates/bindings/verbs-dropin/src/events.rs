//! Asynchronous events.
#![allow(unsafe_code, reason = "writes structures of C")]

use std::ffi::{c_int, c_uint};

use longhaul_verbs::{AsyncEventKind, EventSource};
use longhaul_verbs_abi::{self as abi, ibv_async_event, ibv_context};
use nix::errno::Errno;

use crate::cancellation::NotCancelled;
use crate::completion::CompletionQueue;
use crate::context::{Context, context};
use crate::device::Device;
use crate::errors::minus_one;
use crate::queue_pair::QueuePair;
use crate::shared_receive_queue::SharedReceiveQueue;

/// What the device has reported, to those whom it concerns: all contexts, or the one that made the object.
fn distribute(device: &Device) -> Result<(), Errno> {
    while let Some(event) = device.raw.next_event().map_err(|_| Errno::EIO)? {
        let owners = device.owners();
        let owner = match event.source {
            EventSource::QueuePair(number) => owners.queue_pairs.get(&number.value()),
            EventSource::CompletionQueue(handle) => owners.completion_queues.get(&handle),
            EventSource::SharedReceiveQueue(handle) => owners.shared_receive_queues.get(&handle),
            EventSource::Port(_) | EventSource::Device => {
                device.for_each_mailbox(|mailbox| mailbox.put(event));
                continue;
            }
            _ => None,
        };
        // Without an owner the object is gone already.
        if let Some(owner) = owner {
            owner.mailbox.put(event);
        }
    }
    Ok(())
}

/// As with `ibv_get_cq_event`: nothing in it may need to be dropped.
pub(crate) unsafe extern "C-unwind" fn get_async_event(from: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    loop {
        // SAFETY: a context of ours.
        match next_event(unsafe { context(from) }) {
            Ok(Some(found)) => {
                // SAFETY: the program gives room for one.
                unsafe { event.write(found) };
                return 0;
            }
            Ok(None) => {}
            Err(errno) => return minus_one(errno),
        }
        // SAFETY: as above.
        if let Err(errno) = unsafe { context(from) }.events.wait() {
            return minus_one(errno);
        }
    }
}

/// Take an event if there is one.
fn next_event(context: &Context) -> Result<Option<ibv_async_event>, Errno> {
    let _not_cancelled = NotCancelled::begin();
    let session = &context.session;
    distribute(&session.device)?;
    while let Some(ours) = session.mailbox.take() {
        let Some(event_type) = event_type(ours.kind) else { continue };
        let mut theirs = ibv_async_event { event_type, ..ibv_async_event::zeroed() };
        let owners = session.device.owners();
        let owner = match ours.source {
            EventSource::QueuePair(number) => owners.queue_pairs.get(&number.value()),
            EventSource::CompletionQueue(handle) => owners.completion_queues.get(&handle),
            EventSource::SharedReceiveQueue(handle) => owners.shared_receive_queues.get(&handle),
            EventSource::Port(port) => {
                // The number of a port is an int in the same place.
                theirs.element = std::ptr::without_provenance_mut(usize::from(port));
                None
            }
            EventSource::Device => None,
            _ => continue,
        };
        match (owner, ours.source) {
            (Some(owner), _) => {
                theirs.element = owner.object;
                owner.outstanding.add();
            }
            (None, EventSource::Port(_) | EventSource::Device) => {}
            // Destroyed since.
            _ => continue,
        }
        return Ok(Some(theirs));
    }
    Ok(None)
}

pub(crate) unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    let _not_cancelled = NotCancelled::begin();
    // SAFETY: an event of `get_async_event`, whose object waits for this before it goes.
    unsafe {
        let ibv_async_event { element, event_type } = event.read();
        match event_type {
            abi::IBV_EVENT_SRQ_ERR | abi::IBV_EVENT_SRQ_LIMIT_REACHED => {
                (*element.cast::<SharedReceiveQueue>()).asynchronous.acknowledge(1);
            }
            abi::IBV_EVENT_CQ_ERR => (*element.cast::<CompletionQueue>()).asynchronous.acknowledge(1),
            abi::IBV_EVENT_QP_FATAL
            | abi::IBV_EVENT_QP_REQ_ERR
            | abi::IBV_EVENT_QP_ACCESS_ERR
            | abi::IBV_EVENT_COMM_EST
            | abi::IBV_EVENT_SQ_DRAINED
            | abi::IBV_EVENT_PATH_MIG
            | abi::IBV_EVENT_PATH_MIG_ERR
            | abi::IBV_EVENT_QP_LAST_WQE_REACHED => (*element.cast::<QueuePair>()).asynchronous.acknowledge(1),
            _ => {}
        }
    }
}

/// `None` for one that C has no number for.
fn event_type(kind: AsyncEventKind) -> Option<c_uint> {
    use AsyncEventKind as K;
    Some(match kind {
        K::CompletionQueueError => abi::IBV_EVENT_CQ_ERR,
        K::QueuePairFatal => abi::IBV_EVENT_QP_FATAL,
        K::QueuePairRequestError => abi::IBV_EVENT_QP_REQ_ERR,
        K::QueuePairAccessError => abi::IBV_EVENT_QP_ACCESS_ERR,
        K::CommunicationEstablished => abi::IBV_EVENT_COMM_EST,
        K::SendQueueDrained => abi::IBV_EVENT_SQ_DRAINED,
        K::PathMigrated => abi::IBV_EVENT_PATH_MIG,
        K::PathMigrationError => abi::IBV_EVENT_PATH_MIG_ERR,
        K::SharedReceiveQueueError => abi::IBV_EVENT_SRQ_ERR,
        K::SharedReceiveQueueLimitReached => abi::IBV_EVENT_SRQ_LIMIT_REACHED,
        K::LastWorkRequestReached => abi::IBV_EVENT_QP_LAST_WQE_REACHED,
        K::PortActive => abi::IBV_EVENT_PORT_ACTIVE,
        K::PortError => abi::IBV_EVENT_PORT_ERR,
        K::GidTableChanged => abi::IBV_EVENT_GID_CHANGE,
        K::LidChanged => abi::IBV_EVENT_LID_CHANGE,
        K::PartitionKeyTableChanged => abi::IBV_EVENT_PKEY_CHANGE,
        K::SubnetManagerChanged => abi::IBV_EVENT_SM_CHANGE,
        K::ClientReregister => abi::IBV_EVENT_CLIENT_REREGISTER,
        K::DeviceFatal => abi::IBV_EVENT_DEVICE_FATAL,
        _ => return None,
    })
}
