//! What programs have set of a queue pair.

use longhaul_verbs::{Access, AttributeMask, Gid, Mtu, PathAttributes, QueuePairAttributes, QueuePairState};

/// What `modify` has set.
#[derive(Clone)]
pub(crate) struct Settings {
    /// Which of these were ever set.
    pub(crate) given: AttributeMask,
    pub(crate) access: Access,
    pub(crate) queue_key: u32,
    /// Means something once it was given.
    path: PathAttributes,
    pub(crate) destination_queue_pair: u32,
    pub(crate) rate_limit_kilobits_per_second: u32,
    pub(crate) mtu: Mtu,
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) receiver_not_ready_retry: u8,
    pub(crate) min_receiver_not_ready_timer: u8,
    pub(crate) max_read_atomic: u8,
    pub(crate) max_destination_read_atomic: u8,
    pub(crate) send_queue_drained_event: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            given: AttributeMask::empty(),
            access: Access::empty(),
            queue_key: 0,
            path: PathAttributes::to(Gid::default()),
            destination_queue_pair: 0,
            rate_limit_kilobits_per_second: 0,
            mtu: Mtu::Bytes1024,
            timeout: 0,
            retry_count: 0,
            receiver_not_ready_retry: 0,
            min_receiver_not_ready_timer: 0,
            max_read_atomic: 0,
            max_destination_read_atomic: 0,
            send_queue_drained_event: false,
        }
    }
}

impl Settings {
    /// RC, UC: the path to the peer, once it is known.
    pub(crate) fn path(&self) -> Option<&PathAttributes> {
        self.given.contains(AttributeMask::PATH).then_some(&self.path)
    }

    /// Take over what `modify` sets in the transition from one state to another.
    pub(crate) fn apply(&mut self, attributes: &QueuePairAttributes, from: QueuePairState, to: QueuePairState) {
        self.given |= attributes.mask();
        macro_rules! take {
            ($($field:ident),*) => { $(if let Some(value) = attributes.$field { self.$field = value; })* };
        }
        take!(
            access,
            queue_key,
            timeout,
            retry_count,
            receiver_not_ready_retry,
            min_receiver_not_ready_timer,
            max_read_atomic,
            max_destination_read_atomic,
            send_queue_drained_event,
            rate_limit_kilobits_per_second
        );
        if to == QueuePairState::SendQueueDrained && from != to {
            self.send_queue_drained_event = attributes.send_queue_drained_event.unwrap_or(false);
        }
        if let Some(mtu) = attributes.path_mtu {
            self.mtu = mtu;
        }
        if let Some(peer) = attributes.destination_queue_pair {
            self.destination_queue_pair = peer.value();
        }
        if let Some(path) = attributes.path {
            self.path = path;
        }
    }
}
