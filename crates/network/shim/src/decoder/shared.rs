//! What all flows that are followed share, with its bounds.

use longhaul_coding::RunningCoder;

use crate::config::Config;
use crate::counters::DecoderCounters;
use crate::units::Units;

/// What a packet that waits costs besides its bytes.
const HELD_OVERHEAD_BYTES: usize = 256;

/// What all flows share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) units: Units,
    pub(super) coder: RunningCoder,
    pub(super) coded: Vec<u8>,
    /// Packets that wait, of all flows.
    pub(super) held_packets: usize,
    pub(super) held_bytes: usize,
    pub(super) counters: DecoderCounters,
    #[cfg(feature = "mutations")]
    pub(super) mutation: Option<crate::Mutation>,
}

impl Shared {
    pub(super) fn new(config: Config) -> Shared {
        Shared {
            units: Units::new(config.units_max),
            coder: RunningCoder::new(),
            coded: Vec::new(),
            held_packets: 0,
            held_bytes: 0,
            counters: DecoderCounters::default(),
            config,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }

    /// A packet of this many bytes waits.
    pub(super) fn count_held(&mut self, bytes: usize) {
        self.held_packets += 1;
        self.held_bytes += bytes + HELD_OVERHEAD_BYTES;
    }

    /// It does not wait any more.
    pub(super) fn release_held(&mut self, bytes: usize) {
        self.held_packets -= 1;
        self.held_bytes -= bytes + HELD_OVERHEAD_BYTES;
    }

    #[cfg(feature = "mutations")]
    pub(super) fn ignores_epoch(&self) -> bool {
        self.mutation == Some(crate::Mutation::IgnoreEpoch)
    }

    #[cfg(not(feature = "mutations"))]
    pub(super) fn ignores_epoch(&self) -> bool {
        false
    }

    #[cfg(feature = "mutations")]
    pub(super) fn checks_icrc(&self) -> bool {
        self.mutation != Some(crate::Mutation::SkipIcrc)
    }

    #[cfg(not(feature = "mutations"))]
    pub(super) fn checks_icrc(&self) -> bool {
        true
    }
}
