//! Asynchronous events: read without waiting, turned into values, and acknowledged at once.
#![allow(unsafe_code, reason = "calls libibverbs and follows the pointer in an event")]

use longhaul_verbs::{AsyncEvent, AsyncEventKind, EventError, EventSource, QueuePairNumber};

use crate::channel::has_event;
use crate::context::Context;
use longhaul_verbs_abi::{self as abi, ibv_async_event, ibv_cq, ibv_qp, ibv_srq};

/// The next event that the boundary has a name for.
pub(crate) fn next(context: &Context) -> Result<Option<AsyncEvent>, EventError> {
    loop {
        let mut theirs = ibv_async_event::zeroed();
        // SAFETY: the device is open.
        let answer = unsafe { (context.library().ibv_get_async_event)(context.as_ptr(), &mut theirs) };
        if !has_event(answer)? {
            return Ok(None);
        }
        // SAFETY: the event was just read; until it is acknowledged its object cannot be destroyed.
        let ours = unsafe { translate(&theirs) };
        // SAFETY: once for each event that was read.
        unsafe { (context.library().ibv_ack_async_event)(&mut theirs) };
        match ours {
            Some(event) => return Ok(Some(event)),
            None => tracing::debug!(number = theirs.event_type, "an asynchronous event that has no name here"),
        }
    }
}

/// What an event's number says that it is about.
enum About {
    QueuePair,
    CompletionQueue,
    SharedReceiveQueue,
    Port,
    Device,
}

fn kind(number: u32) -> Option<(AsyncEventKind, About)> {
    use AsyncEventKind as K;
    Some(match number {
        abi::IBV_EVENT_CQ_ERR => (K::CompletionQueueError, About::CompletionQueue),
        abi::IBV_EVENT_QP_FATAL => (K::QueuePairFatal, About::QueuePair),
        abi::IBV_EVENT_QP_REQ_ERR => (K::QueuePairRequestError, About::QueuePair),
        abi::IBV_EVENT_QP_ACCESS_ERR => (K::QueuePairAccessError, About::QueuePair),
        abi::IBV_EVENT_COMM_EST => (K::CommunicationEstablished, About::QueuePair),
        abi::IBV_EVENT_SQ_DRAINED => (K::SendQueueDrained, About::QueuePair),
        abi::IBV_EVENT_PATH_MIG => (K::PathMigrated, About::QueuePair),
        abi::IBV_EVENT_PATH_MIG_ERR => (K::PathMigrationError, About::QueuePair),
        abi::IBV_EVENT_QP_LAST_WQE_REACHED => (K::LastWorkRequestReached, About::QueuePair),
        abi::IBV_EVENT_SRQ_ERR => (K::SharedReceiveQueueError, About::SharedReceiveQueue),
        abi::IBV_EVENT_SRQ_LIMIT_REACHED => (K::SharedReceiveQueueLimitReached, About::SharedReceiveQueue),
        abi::IBV_EVENT_PORT_ACTIVE => (K::PortActive, About::Port),
        abi::IBV_EVENT_PORT_ERR => (K::PortError, About::Port),
        abi::IBV_EVENT_LID_CHANGE => (K::LidChanged, About::Port),
        abi::IBV_EVENT_PKEY_CHANGE => (K::PartitionKeyTableChanged, About::Port),
        abi::IBV_EVENT_SM_CHANGE => (K::SubnetManagerChanged, About::Port),
        abi::IBV_EVENT_CLIENT_REREGISTER => (K::ClientReregister, About::Port),
        abi::IBV_EVENT_GID_CHANGE => (K::GidTableChanged, About::Port),
        abi::IBV_EVENT_DEVICE_FATAL => (K::DeviceFatal, About::Device),
        // Work queues (IBV_EVENT_WQ_FATAL) are not made here, and newer kinds are not known.
        _ => return None,
    })
}

/// # Safety
///
/// If the event is about an object, that object is there.
unsafe fn translate(theirs: &ibv_async_event) -> Option<AsyncEvent> {
    let (kind, about) = kind(theirs.event_type)?;
    let source = match about {
        About::QueuePair => {
            // SAFETY: the caller's promise.
            let number = unsafe { (&raw const (*theirs.element.cast::<ibv_qp>()).qp_num).read() };
            EventSource::QueuePair(QueuePairNumber::new(number))
        }
        About::CompletionQueue => {
            // SAFETY: the caller's promise.
            EventSource::CompletionQueue(unsafe { (&raw const (*theirs.element.cast::<ibv_cq>()).handle).read() })
        }
        About::SharedReceiveQueue => {
            // SAFETY: the caller's promise.
            EventSource::SharedReceiveQueue(unsafe { (&raw const (*theirs.element.cast::<ibv_srq>()).handle).read() })
        }
        // SAFETY: in C a union of the pointer and an `int`, both of which any bytes are a value of.
        About::Port => EventSource::Port(unsafe { (&raw const theirs.element).cast::<i32>().read() } as u8),
        About::Device => EventSource::Device,
    };
    Some(AsyncEvent { kind, source })
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use super::*;

    fn event(event_type: u32, element: *mut c_void) -> Option<AsyncEvent> {
        // SAFETY: every test below hands in what its event is about.
        unsafe { translate(&ibv_async_event { element, event_type }) }
    }

    #[test]
    fn events_name_their_objects() {
        let mut queue_pair = ibv_qp { qp_num: 0x1234, handle: 9, ..ibv_qp::zeroed() };
        let mut completion_queue = ibv_cq { handle: 7, ..ibv_cq::zeroed() };
        let mut shared_receive_queue = ibv_srq { handle: 8, ..ibv_srq::zeroed() };
        let fatal = event(abi::IBV_EVENT_QP_FATAL, (&raw mut queue_pair).cast()).unwrap();
        assert_eq!(fatal.kind, AsyncEventKind::QueuePairFatal);
        assert_eq!(fatal.source, EventSource::QueuePair(QueuePairNumber::new(0x1234)));
        let overrun = event(abi::IBV_EVENT_CQ_ERR, (&raw mut completion_queue).cast()).unwrap();
        assert_eq!(overrun.source, EventSource::CompletionQueue(7));
        let limit = event(abi::IBV_EVENT_SRQ_LIMIT_REACHED, (&raw mut shared_receive_queue).cast()).unwrap();
        assert_eq!(limit.source, EventSource::SharedReceiveQueue(8));
        // The port's number lies in the first four of the eight bytes.
        let port = ibv_async_event { element: std::ptr::null_mut(), event_type: abi::IBV_EVENT_PORT_ERR };
        let mut port = port;
        // SAFETY: four bytes inside the field.
        unsafe { (&raw mut port.element).cast::<i32>().write(2) };
        assert_eq!(event(port.event_type, port.element).unwrap().source, EventSource::Port(2));
        assert_eq!(event(abi::IBV_EVENT_DEVICE_FATAL, std::ptr::null_mut()).unwrap().source, EventSource::Device);
    }

    #[test]
    fn every_event_but_those_of_work_queues_has_a_name() {
        let named = (0..=19).filter_map(kind).map(|(kind, _)| kind).collect::<Vec<_>>();
        assert_eq!(named.len(), 19);
        assert!(kind(abi::IBV_EVENT_WQ_FATAL).is_none());
        assert!(kind(4711).is_none());
    }
}
