//! Shared receive queues.
#![allow(unsafe_code, reason = "calls libibverbs")]

use std::ffi::c_int;
use std::sync::{Arc, Mutex};

use longhaul_verbs::raw;
use longhaul_verbs::{
    Capabilities, CreateError, ModifyError, NotSupported, PostError, QueryError, ReceiveRequest,
    SharedReceiveQueueAttributes, SharedReceiveQueueChange,
};

use crate::answer::{check, check_pointer, is_not_supported};
use crate::attributes::positive;
use crate::context::Context;
use crate::domain::{Domain, check_bounds};
use crate::handle::{Handle, Owned, lock};
use crate::request_list::ReceiveList;
use longhaul_verbs_abi::{IBV_SRQ_LIMIT, IBV_SRQ_MAX_WR, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};

/// A shared receive queue as verbs programs see it.
pub(crate) struct SharedReceiveQueue {
    queue: Arc<SharedQueue>,
    posting: Mutex<SharedPosting>,
}

struct SharedPosting {
    list: ReceiveList,
    /// Its size now; it can be changed.
    requests: u32,
    entries: u32,
}

/// The queue itself; queue pairs that receive from it hold it.
pub(crate) struct SharedQueue {
    domain: Arc<Domain>,
    handle: Handle<ibv_srq>,
}

impl SharedReceiveQueue {
    /// `ibv_create_srq`
    pub(crate) fn create(domain: &Arc<Domain>, attributes: SharedReceiveQueueAttributes) -> Result<Self, CreateError> {
        let device = domain.attributes();
        if device.max_srq <= 0 {
            return Err(NotSupported { capability: Capabilities::SHARED_RECEIVE_QUEUE }.into());
        }
        check_bounds(&[
            ("shared receive requests", attributes.requests, positive(device.max_srq_wr)),
            ("shared receive scatter-gather entries", attributes.entries, positive(device.max_srq_sge)),
            ("limit of a shared receive queue", attributes.limit, attributes.requests),
        ])?;
        if attributes.requests == 0 {
            return Err(CreateError::InvalidArgument { what: "shared receive requests", expected: "at least 1" });
        }
        let mut init = ibv_srq_init_attr::zeroed();
        init.attr = ibv_srq_attr { max_wr: attributes.requests, max_sge: attributes.entries, srq_limit: 0 };
        // SAFETY: the domain is alive.
        let answer = unsafe { (domain.context().library().ibv_create_srq)(domain.as_ptr(), &mut init) };
        let handle = check_pointer(answer).map_err(|error| match is_not_supported(&error) {
            true => NotSupported { capability: Capabilities::SHARED_RECEIVE_QUEUE }.into(),
            false => CreateError::System(error),
        })?;
        let queue = SharedReceiveQueue {
            queue: Arc::new(SharedQueue { domain: domain.clone(), handle: Handle::new(handle) }),
            posting: Mutex::new(SharedPosting {
                list: ReceiveList::default(),
                requests: init.attr.max_wr,
                entries: init.attr.max_sge,
            }),
        };
        // Creation ignores the limit; it is armed like a later one.
        if attributes.limit > 0 {
            let change = SharedReceiveQueueChange { requests: None, limit: Some(attributes.limit) };
            raw::SharedReceiveQueue::modify(&queue, change).map_err(|error| match error {
                ModifyError::System(error) => CreateError::System(error),
                other => CreateError::System(std::io::Error::other(other)),
            })?;
        }
        Ok(queue)
    }

    pub(crate) fn queue(&self) -> &Arc<SharedQueue> {
        &self.queue
    }
}

impl SharedQueue {
    pub(crate) fn as_ptr(&self) -> *mut ibv_srq {
        self.handle.as_ptr()
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    fn query(&self) -> std::io::Result<ibv_srq_attr> {
        let mut attributes = ibv_srq_attr::zeroed();
        // SAFETY: alive, and there is room for the answer.
        check(unsafe { (self.domain.context().library().ibv_query_srq)(self.as_ptr(), &mut attributes) })?;
        Ok(attributes)
    }
}

impl Owned for SharedReceiveQueue {
    fn context(&self) -> &Arc<Context> {
        self.queue.domain.context()
    }
}

impl raw::SharedReceiveQueue for SharedReceiveQueue {
    fn handle(&self) -> u32 {
        // SAFETY: alive; the number does not change.
        unsafe { (*self.queue.as_ptr()).handle }
    }

    fn modify(&self, change: SharedReceiveQueueChange) -> Result<(), ModifyError> {
        // Posting waits: drivers replace the queue's memory when its size changes.
        let mut posting = lock(&self.posting);
        let most = positive(self.queue.domain.attributes().max_srq_wr);
        let requests = change.requests.unwrap_or(posting.requests);
        if requests == 0 || requests > most {
            return Err(ModifyError::InvalidArgument {
                what: "shared receive requests",
                expected: "at least 1, and at most what the device's attributes say",
            });
        }
        if change.limit.is_some_and(|limit| limit > requests) {
            return Err(ModifyError::InvalidArgument {
                what: "limit of a shared receive queue",
                expected: "at most its size",
            });
        }
        let parts = [(change.requests.is_some(), IBV_SRQ_MAX_WR), (change.limit.is_some(), IBV_SRQ_LIMIT)];
        let mask: c_int = parts.into_iter().filter(|(is_set, _)| *is_set).fold(0, |mask, (_, bit)| mask | bit);
        if mask == 0 {
            return Ok(());
        }
        let mut attributes =
            ibv_srq_attr { max_wr: requests, max_sge: posting.entries, srq_limit: change.limit.unwrap_or(0) };
        let library = self.queue.domain.context().library();
        // SAFETY: alive.
        check(unsafe { (library.ibv_modify_srq)(self.queue.as_ptr(), &mut attributes, mask) })?;
        if change.requests.is_some() {
            posting.requests = self.queue.query().map_or(requests, |now| now.max_wr);
        }
        Ok(())
    }

    fn query(&self) -> Result<SharedReceiveQueueAttributes, QueryError> {
        let attributes = self.queue.query()?;
        Ok(SharedReceiveQueueAttributes {
            requests: attributes.max_wr,
            entries: attributes.max_sge,
            limit: attributes.srq_limit,
        })
    }

    unsafe fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        let mut posting = lock(&self.posting);
        let SharedPosting { list, requests: depth, entries } = &mut *posting;
        list.post(requests, *entries, *depth, |first, bad| {
            // SAFETY: alive, and the list is linked.
            unsafe { self.queue.domain.context().post_srq_recv(self.queue.as_ptr(), first, bad) }
        })
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        // SAFETY: made in `create`; no queue pair receives from it, because each holds it.
        let answer = unsafe { (self.domain.context().library().ibv_destroy_srq)(self.handle.as_ptr()) };
        if let Err(error) = check(answer) {
            tracing::warn!(%error, "a shared receive queue stays until the device is closed");
        }
    }
}
