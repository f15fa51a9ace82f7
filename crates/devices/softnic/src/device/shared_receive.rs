//! Shared receive queues as verbs programs see them.
#![allow(unsafe_code, reason = "implements the unsafe calls of the raw verbs layer")]

use std::sync::Arc;

use longhaul_verbs::raw;
use longhaul_verbs::{
    CreateError, ModifyError, PostError, QueryError, ReceiveRequest, SharedReceiveQueueAttributes,
    SharedReceiveQueueChange,
};

use super::shared::{Owned, Shared, check_count};
use crate::memory::DomainId;
use crate::resources::{SharedReceiveQueue as Queue, SharedReceiveQueueKey};

/// Receives for many queue pairs.
pub(super) struct SharedReceiveQueue {
    shared: Arc<Shared>,
    pub(super) key: SharedReceiveQueueKey,
    pub(super) domain: DomainId,
}

impl Owned for SharedReceiveQueue {
    fn owner(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl SharedReceiveQueue {
    pub(super) fn create(
        shared: &Arc<Shared>,
        domain: DomainId,
        attributes: SharedReceiveQueueAttributes,
    ) -> Result<Self, CreateError> {
        let mut nic = shared.lock();
        let resources = &mut nic.shared;
        let config = &resources.config;
        let most = config.shared_receive_queues_max.into();
        check_count("shared receive queues", resources.shared_receive_queues.len() as u64, most)?;
        let bounds = [
            ("shared receive requests", attributes.requests, config.work_requests_max),
            ("shared receive scatter-gather entries", attributes.entries, config.scatter_gather_entries_max),
            ("limit of a shared receive queue", attributes.limit, attributes.requests),
        ];
        for (what, requested, most) in bounds {
            if requested > most {
                return Err(CreateError::TooMany { what, requested: requested.into(), most: most.into() });
            }
        }
        if attributes.requests == 0 {
            return Err(CreateError::InvalidArgument { what: "shared receive requests", expected: "at least 1" });
        }
        let key = resources.shared_receive_queues.insert(Queue::new(attributes));
        Ok(SharedReceiveQueue { shared: shared.clone(), key, domain })
    }
}

impl raw::SharedReceiveQueue for SharedReceiveQueue {
    fn handle(&self) -> u32 {
        self.key.handle()
    }

    fn modify(&self, change: SharedReceiveQueueChange) -> Result<(), ModifyError> {
        self.shared.lock().shared.modify_shared_receive_queue(self.key, change)
    }

    fn query(&self) -> Result<SharedReceiveQueueAttributes, QueryError> {
        let nic = self.shared.lock();
        nic.shared.shared_receive_queues.get(self.key).map(Queue::attributes).ok_or(QueryError::Gone)
    }

    unsafe fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        self.shared.lock().shared.post_shared_receive(self.key, requests)
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        self.shared.tidy(|nic| nic.shared.abandon_shared_receive_queue(self.key));
    }
}
