//! Both halves together, as one layer of a datagram path.

use longhaul_datagram::{Direction, Packet};
use longhaul_time::Instant;

use crate::agreements::Agreement;
use crate::config::{Config, ConfigError};
use crate::decoder::Decoder;
use crate::encoder::Encoder;
use crate::packet::Onward;

/// An [`Encoder`] for what is sent and a [`Decoder`] for what arrives.
#[derive(Debug)]
pub struct Shim {
    encoder: Encoder,
    decoder: Decoder,
}

impl Shim {
    /// A shim. The seed decides with which epochs flows begin; after a restart it should be another one.
    pub fn new(config: Config, seed: u64) -> Result<Shim, ConfigError> {
        Ok(Shim { encoder: Encoder::new(config.clone(), seed)?, decoder: Decoder::new(config)? })
    }

    /// With a deliberate mistake.
    #[cfg(feature = "mutations")]
    #[must_use]
    pub fn mutated(mut self, mutation: crate::Mutation) -> Shim {
        self.encoder.mutation = Some(mutation);
        self.decoder.mutate(mutation);
        self
    }

    /// The sending half.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// The sending half, to change its code.
    pub fn encoder_mut(&mut self) -> &mut Encoder {
        &mut self.encoder
    }

    /// The receiving half.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The receiving half, to take reports from it.
    pub fn decoder_mut(&mut self) -> &mut Decoder {
        &mut self.decoder
    }

    /// Protect a queue pair from now on. The other end must do so too: it is never probed.
    pub fn agree(&mut self, agreement: &Agreement) -> Result<(), ConfigError> {
        let &Agreement { peer, ours, theirs, code } = agreement;
        self.encoder.check_code(code)?;
        self.encoder.check_room(peer, theirs)?;
        self.decoder.check_room(peer, ours)?;
        self.encoder.agreements_mut().insert(peer, theirs, code);
        self.decoder.agreements_mut().insert(peer, ours, code);
        Ok(())
    }

    /// Protect a queue pair no more, because it ends or its number is about to mean another.
    pub fn disagree(&mut self, agreement: &Agreement) {
        let &Agreement { peer, ours, theirs, .. } = agreement;
        self.encoder.agreements_mut().remove(peer, theirs);
        self.decoder.agreements_mut().remove(peer, ours);
    }

    /// A packet passes.
    pub fn handle(&mut self, direction: Direction, packet: Packet, now: Instant, onward: &mut Onward) {
        match direction {
            Direction::Outgoing => self.encoder.handle(packet, now, &mut onward.outgoing),
            Direction::Incoming => {
                self.decoder.handle(packet, now, &mut onward.incoming);
                for (envelope, report) in self.decoder.take_reports() {
                    self.encoder.handle_report(&envelope, &report, now);
                }
                for (envelope, report) in self.decoder.take_due_reports() {
                    self.encoder.send_report(&envelope, report, &mut onward.outgoing);
                }
            }
        }
    }

    /// The deadline has come.
    pub fn poll(&mut self, now: Instant, onward: &mut Onward) {
        self.encoder.poll(now, &mut onward.outgoing);
        self.decoder.poll(now, &mut onward.incoming);
    }

    /// When [`poll`](Shim::poll) is wanted next.
    pub fn next_deadline(&self) -> Option<Instant> {
        Instant::earlier_of(self.encoder.next_deadline(), self.decoder.next_deadline())
    }

    /// The path closes: what still has to leave does so now.
    pub fn close(&mut self, onward: &mut Onward) {
        self.encoder.close(&mut onward.outgoing);
        self.decoder.close(&mut onward.incoming);
    }

    /// Bytes by which the longest repair packet is longer than the longest packet.
    pub fn overhead_bytes(&self) -> usize {
        self.encoder.overhead_bytes()
    }

    /// Flows that were not idle of late, of what is sent and of what arrives.
    pub fn flows_in_use(&self, now: Instant) -> [usize; 2] {
        [self.encoder.flows_in_use(now), self.decoder.flows_in_use(now)]
    }

    /// Bytes of memory for sums and waiting packets, at the moment.
    pub fn memory_bytes(&self) -> usize {
        self.encoder.memory_bytes() + self.decoder.memory_bytes()
    }
}
