//! Queue pairs as verbs programs see them.
#![allow(unsafe_code, reason = "implements the unsafe calls of the raw verbs layer")]

use std::sync::Arc;

use longhaul_verbs::raw;
use longhaul_verbs::{
    Capabilities, DestroyError, Gid, ModifyError, MulticastError, NotSupported, PathAttributes, PostError, QueryError,
    QueuePairAttributes, QueuePairNumber, QueuePairState, ReceiveRequest, SendRequest, Transport, WriteBurst,
};

use super::shared::{Owned, Shared};
use crate::memory::copy_inline;
use crate::nic::guard::NicGuard;
use crate::port::Route;
use crate::queue_pair::QueuePairKey;

pub(super) struct QueuePair {
    pub(super) shared: Arc<Shared>,
    pub(super) key: QueuePairKey,
    pub(super) number: QueuePairNumber,
    pub(super) transport: Transport,
}

impl Owned for QueuePair {
    fn owner(&self) -> &Arc<Shared> {
        &self.shared
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
        self.shared.lock().queue_pairs.get(self.key).map_or(QueuePairState::Error, |queue_pair| queue_pair.state())
    }

    fn modify(&self, attributes: &QueuePairAttributes) -> Result<(), ModifyError> {
        if attributes.state == Some(QueuePairState::Reset) {
            // What it owes its peer goes first, as when it is destroyed.
            self.shared.send_answer_of(&mut NicGuard::new(self.shared.lock()), self.key);
        }
        self.shared.with(|nic| nic.modify_queue_pair(self.key, attributes))
    }

    fn query(&self) -> Result<QueuePairAttributes, QueryError> {
        self.shared.lock().query_queue_pair(self.key)
    }

    fn source_port(&self, source_gid_index: u8) -> Option<u16> {
        // Neither destination nor anything else of a path changes it.
        let path = PathAttributes { source_gid_index, ..PathAttributes::to(Gid::default()) };
        let route = {
            let nic = self.shared.lock();
            let config = &nic.shared.config;
            config.addresses.get(usize::from(source_gid_index))?;
            Route::along(config, self.number.value(), &path)
        };
        self.shared.drive.source_port(&route)
    }

    unsafe fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        self.shared.with(|nic| {
            // SAFETY: only called for requests with the flag INLINE, whose entries the caller has promised to be readable.
            nic.post_send(self.key, requests, |request| unsafe { copy_inline(request.local) })
        })
    }

    unsafe fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
        self.shared.with(|nic| nic.post_receive(self.key, requests))
    }

    unsafe fn post_write_burst(&self, burst: &WriteBurst<'_>) -> Result<(), PostError> {
        self.shared.with(|nic| nic.post_write_burst(self.key, burst))
    }

    fn attach_multicast(&self, group: Gid, _lid: u16) -> Result<(), MulticastError> {
        if !self.shared.drive.capabilities().contains(Capabilities::MULTICAST) {
            return Err(NotSupported { capability: Capabilities::MULTICAST }.into());
        }
        if self.transport != Transport::UnreliableDatagram {
            return Err(MulticastError::WrongTransport);
        }
        if !group.is_multicast() {
            return Err(MulticastError::NotAGroup);
        }
        let mut nic = self.shared.lock();
        if !nic.queue_pairs.contains_key(self.key) {
            return Err(MulticastError::Gone);
        }
        let most = nic.config().multicast_memberships_max;
        let membership = (group, self.key);
        if !nic.memberships.contains(&membership) {
            if nic.memberships.len() >= most as usize {
                return Err(MulticastError::TooMany { most: most.into() });
            }
            nic.memberships.push(membership);
        }
        Ok(())
    }

    fn detach_multicast(&self, group: Gid, _lid: u16) -> Result<(), MulticastError> {
        let mut nic = self.shared.lock();
        let before = nic.memberships.len();
        nic.memberships.retain(|membership| *membership != (group, self.key));
        if nic.memberships.len() == before { Err(MulticastError::NotAttached) } else { Ok(()) }
    }

    fn destroy(&self) -> Result<(), DestroyError> {
        let was_there = self.shared.destroy_queue_pair(self.shared.lock(), self.key);
        was_there.then_some(()).ok_or(DestroyError::Gone)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        if let Ok(nic) = self.shared.nic.lock_unless_panicked() {
            self.shared.destroy_queue_pair(nic, self.key);
        }
    }
}
