//! Forward error correction as a layer of a port: lost packets come back before the device misses them.

use longhaul_shim::{Agreement, Config, ConfigError, DecoderCounters, EncoderCounters, PathStatus, Shim};
use longhaul_time::Instant;

use super::{Direction, Layer, Onward, Packet};

/// A [`Shim`] between a device and its port. It protects the queue pairs that were [agreed](ShimLayer::agree) on, and hosts that
/// its configuration names because a gateway stands before them.
pub struct ShimLayer {
    shim: Shim,
    /// What the shim has passed on; empty between calls.
    passed: longhaul_shim::Onward,
}

impl ShimLayer {
    /// A shim with this configuration. The device writes the ICRC of what it sends itself, so that it is not checked again. After
    /// a restart the seed should be another one.
    pub fn new(config: Config, seed: u64) -> Result<ShimLayer, ConfigError> {
        let config = Config { checks_outgoing: false, ..config };
        Ok(ShimLayer { shim: Shim::new(config, seed)?, passed: longhaul_shim::Onward::default() })
    }

    /// With a deliberate mistake.
    #[cfg(feature = "mutations")]
    #[must_use]
    pub fn mutated(self, mutation: longhaul_shim::Mutation) -> ShimLayer {
        ShimLayer { shim: self.shim.mutated(mutation), ..self }
    }

    /// Protect a queue pair from now on. The other end must do so too: it is never probed.
    pub fn agree(&mut self, agreement: &Agreement) -> Result<(), ConfigError> {
        self.shim.agree(agreement)
    }

    /// Protect a queue pair no more.
    pub fn disagree(&mut self, agreement: &Agreement) {
        self.shim.disagree(agreement);
    }

    /// What was done so far, with what is sent and with what arrives.
    pub fn counters(&self) -> (EncoderCounters, DecoderCounters) {
        (self.shim.encoder().counters(), self.shim.decoder().counters())
    }

    /// How each path stands whose code follows it, with every change and its reason.
    pub fn paths(&self) -> Vec<PathStatus> {
        self.shim.encoder().paths()
    }

    fn pass_on(&mut self, onward: &mut Onward<'_>) {
        self.passed.outgoing.drain(..).for_each(|packet| onward.pass(Direction::Outgoing, packet));
        self.passed.incoming.drain(..).for_each(|packet| onward.pass(Direction::Incoming, packet));
    }
}

impl Layer for ShimLayer {
    fn handle(&mut self, direction: Direction, packet: Packet, now: Instant, onward: &mut Onward<'_>) {
        self.shim.handle(direction, packet, now, &mut self.passed);
        self.pass_on(onward);
    }

    /// What it lets go of is bounded by what it may hold, so that all of it goes on at once.
    fn poll(&mut self, now: Instant, onward: &mut Onward<'_>) {
        self.shim.poll(now, &mut self.passed);
        self.pass_on(onward);
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.shim.next_deadline()
    }

    fn close(&mut self, _now: Instant, onward: &mut Onward<'_>) {
        self.shim.close(&mut self.passed);
        self.pass_on(onward);
    }

    fn overhead_bytes(&self) -> usize {
        self.shim.overhead_bytes()
    }
}
