//! What all flows that are followed share, with its bounds.

use longhaul_coding::RunningCoder;

use crate::config::Config;
use crate::counters::DecoderCounters;
use crate::packet::Checked;
use crate::units::Units;

/// What a packet that waits costs besides its bytes: what is known of it, since when it waits, and its place in a map that may have
/// no other.
pub(super) const HELD_OVERHEAD_BYTES: usize = size_of::<Checked>() + 16 + 256;

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
    /// Flows that may have been invented.
    pub(super) unproven_flows: usize,
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
            unproven_flows: 0,
            counters: DecoderCounters::default(),
            config,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }

    /// Whether another packet may wait, of a flow of which this many do: no flow has more than there is left for the others, and
    /// flows that may have been invented leave half to the proven ones.
    pub(super) fn has_room(&self, held_by_flow: usize, is_proven: bool) -> bool {
        let held_max = self.config.held_packets_max;
        let part = if is_proven { held_max } else { held_max.div_ceil(2) };
        held_by_flow < part.saturating_sub(self.held_packets)
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
