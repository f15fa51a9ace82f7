//! A forwarder that does nothing to frames: what the link is compared with.

use longhaul_forward::clock::Clock;
use longhaul_forward::ring::{self, Unfinished};
use longhaul_forward::running::Running;
use longhaul_forward::{Arrival, Fate, Forwarding, Handler, Outbox};
use longhaul_link::LinkError;
use longhaul_link::namespaces::Side;
use longhaul_time::Instant;

use super::report::CheckError;

/// Each frame leaves by the other interface.
struct PassOn;

impl Handler for PassOn {
    fn handle(&mut self, port: usize, _: &mut Arrival<'_>, _: &mut Outbox) -> Fate {
        Fate::Forward(1 - port)
    }

    fn poll(&mut self, _: Instant, _: &mut Outbox) {}

    fn next_deadline(&self) -> Option<Instant> {
        None
    }
}

pub(crate) struct Bare {
    running: Running<PassOn, ()>,
}

impl Bare {
    pub(crate) fn start(processor: usize) -> Result<Self, CheckError> {
        let clock = Clock::start();
        let interfaces = Side::BOTH.map(|side| ring::open(side.name(), clock, Unfinished::Refuse));
        let interfaces = interfaces.into_iter().collect::<Result<Vec<_>, _>>()?;
        let forwarding = Forwarding::new(interfaces, PassOn, clock);
        let running =
            Running::start("bare", Some(processor), forwarding, (), |_, _| Ok(())).map_err(LinkError::from)?;
        Ok(Bare { running })
    }

    pub(crate) fn sent(&self) -> Result<u64, CheckError> {
        Ok(self.running.ask(|forwarding| forwarding.counters().sent).map_err(LinkError::from)?)
    }

    pub(crate) fn end(self) -> Result<(), CheckError> {
        Ok(self.running.end().map_err(LinkError::from)?)
    }
}
