//! What a connection has to do with credit: its news go to the [`Granter`], and grants to its peer.

use std::sync::{Arc, Weak};

use longhaul_congestion::Standing;
use longhaul_sdr::Saying;
use longhaul_time::Instant;

use super::Shared;
use crate::granter::{Granted, Granter};

impl Shared {
    /// Who grants its peer credit, from now on.
    pub(crate) fn join_granter(self: &Arc<Self>, granter: &Arc<Granter>) {
        let own: Weak<Self> = Arc::downgrade(self);
        granter.add(self.id(), own);
        let _ = self.granter.set(granter.clone());
        if self.is_let_go() {
            granter.remove(self.id());
        }
    }

    /// When somebody must look for grants, to this connection's peer or another's.
    pub(super) fn next_grant(&self) -> Option<Instant> {
        self.granter.get().and_then(|granter| granter.next_deadline())
    }
}

impl Granted for Shared {
    fn grant_credit(&self, standing: &Standing) {
        let mut state = self.state();
        let now = self.now();
        let is_resting = state.resting_until.is_some();
        let said = state.with(|reliable| {
            reliable.queue_pair().grant_credit(standing, now);
            // An error shows again at the driver's next poll, which ends the connection.
            let is_failed = reliable.say(now, Saying::Urgent).is_err();
            (is_failed, is_resting.then(|| reliable.next_deadline(now)).flatten())
        });
        self.wake_if_too_late(state, said.ok());
    }
}
