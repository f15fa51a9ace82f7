//! Two ends on virtual time.

use std::sync::Arc;

use longhaul_conformance::DeviceEnd;
use longhaul_reliable::{Connection, Scheme};
use longhaul_sdr::Memory;
use longhaul_time::{Duration, Instant};
use longhaul_world::{World, WorldConfig};

use super::case::CaseError;
use super::end::{End, GroundOptions};
use super::ground::Ground;

/// Two ends on a simulated link.
pub struct VirtualGround {
    /// The network.
    pub world: World,
    ends: [End; 2],
    grain: Duration,
}

impl VirtualGround {
    /// Two ends that are connected, each with its scheme; they have not heard of each other yet.
    pub fn new(options: &GroundOptions, schemes: [Arc<dyn Scheme>; 2]) -> Self {
        let mut config = WorldConfig { link: options.link.clone(), seed: options.seed, ..Default::default() };
        config.egress_limit_bytes = options.egress_limit_bytes;
        config.nic.mtu = options.mtu;
        config.nic.payload = options.payload;
        let world = World::new(config);
        let mut node = 0;
        let ends = schemes.map(|scheme| {
            let at = DeviceEnd { device: world.device(node), port: 1, gid_index: 0, udp_port: 4791 };
            let end = End::create(&at, options, node, options.seed << 33 | node as u64, scheme);
            node += 1;
            end.expect("a new device has room")
        });
        End::connect(&ends).expect("both were made alike");
        VirtualGround { world, ends, grain: options.grain }
    }

    /// Two ends with the same scheme.
    pub fn with_scheme(options: &GroundOptions, scheme: Arc<dyn Scheme>) -> Self {
        VirtualGround::new(options, [scheme.clone(), scheme])
    }

    fn over_count(&self) -> u64 {
        self.ends.iter().map(|end| end.connection.over_count()).sum()
    }

    /// Let time pass.
    pub fn run_until(&mut self, end: Instant) -> Result<(), CaseError> {
        while self.now() < end {
            self.step(end)?;
        }
        Ok(())
    }
}

impl Ground for VirtualGround {
    fn now(&self) -> Instant {
        self.world.now()
    }

    fn sender(&mut self) -> (&mut Connection, &Memory) {
        (&mut self.ends[0].connection, &self.ends[0].memory)
    }

    fn receiver(&mut self) -> (&mut Connection, &Memory) {
        (&mut self.ends[1].connection, &self.ends[1].memory)
    }

    fn step(&mut self, limit: Instant) -> Result<(), CaseError> {
        self.step_with(limit, [true; 2])
    }
}

impl VirtualGround {
    /// The same with programs that stand still: only those that run are polled.
    pub fn step_with(&mut self, limit: Instant, runs: [bool; 2]) -> Result<(), CaseError> {
        let now = self.world.now();
        let mut next = Some(limit);
        let over_count = self.over_count();
        let running = self.ends.iter_mut().zip(runs).filter(|(_, runs)| *runs);
        for (End { context, connection, .. }, _) in running {
            while context.poll().map_err(|error| CaseError::Ground(error.to_string()))? > 0 {}
            connection.poll(now).map_err(|error| CaseError::Ground(error.to_string()))?;
            next = Instant::earlier_of(next, connection.next_deadline(now));
        }
        // The program has something to do.
        if self.over_count() != over_count {
            return Ok(());
        }
        let next = next.unwrap_or(limit).max(now.saturating_add_nanos(1));
        self.world.run_some(next, self.grain);
        Ok(())
    }
}
