//! Which faults a seed draws, and those that are not repaired yet.

use longhaul_world::{Dice, Fault, Topology};

use crate::checker::NetworkFacts;

/// Kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// A cable is pulled.
    LinkDown,
    /// A NIC's link carries one direction only.
    OneWayCut,
    /// A link between switches is lost.
    PathLost,
    /// A host stands still.
    Pause,
    /// A host is switched off and comes back empty.
    Restart,
}

impl FaultKind {
    const ALL: [FaultKind; 5] =
        [FaultKind::LinkDown, FaultKind::OneWayCut, FaultKind::PathLost, FaultKind::Pause, FaultKind::Restart];

    pub(super) fn name(self) -> &'static str {
        match self {
            FaultKind::LinkDown => "link_down",
            FaultKind::OneWayCut => "one_way_cut",
            FaultKind::PathLost => "path_lost",
            FaultKind::Pause => "pause",
            FaultKind::Restart => "restart",
        }
    }
}

/// The faults of a seed.
#[derive(Clone, Debug, Default)]
pub(super) struct FaultPlan {
    pub(super) kinds: Vec<FaultKind>,
    /// In a thousand steps.
    pub(super) per_mille: u32,
}

impl FaultPlan {
    pub(super) fn draw(dice: &mut Dice, topology: Topology) -> FaultPlan {
        if dice.chance(50) {
            return FaultPlan::default();
        }
        let mut kinds = Vec::new();
        for kind in FaultKind::ALL {
            let is_possible = kind != FaultKind::PathLost || has_paths(topology);
            if dice.chance(40) && is_possible {
                kinds.push(kind);
            }
        }
        FaultPlan { kinds, per_mille: dice.pick(&[5, 10, 25]) }
    }

    /// What these faults add to what the network does.
    pub(super) fn add_to(&self, network: &mut NetworkFacts) {
        network.loses |= !self.kinds.is_empty();
        // Another way may be shorter.
        network.reorders |= self.kinds.contains(&FaultKind::PathLost);
        network.is_slow |= self.kinds.contains(&FaultKind::Pause);
    }
}

/// Whether there are links between switches.
fn has_paths(topology: Topology) -> bool {
    matches!(topology, Topology::Clos { .. } | Topology::FatTree { .. })
}

/// Links from one node to another, at most.
pub(super) fn hop_count(topology: Topology) -> u32 {
    match topology {
        Topology::PairOrStar | Topology::Star => 2,
        Topology::Clos { .. } => 4,
        Topology::FatTree { .. } => 6,
    }
}

/// Faults that are not repaired yet.
#[derive(Default)]
pub(super) struct ActiveFaults {
    /// What repairs them, and the step at which it happens.
    pub(super) repairs: Vec<(u64, Fault)>,
    pub(super) step: u64,
}
