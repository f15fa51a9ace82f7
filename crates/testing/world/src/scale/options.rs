//! What is run, and where its messages lie.

use longhaul_impair::Profile;
use longhaul_softnic::PayloadMode;
use longhaul_time::Duration;
use longhaul_verbs::Transport;

use crate::world::Topology;

/// What is run.
#[derive(Clone)]
pub struct ScaleOptions {
    /// Who talks to whom, and everything else that is random.
    pub seed: u64,
    /// Software RNICs.
    pub nodes: usize,
    /// Queue pairs of each. The first is RC, the second UC, and so on.
    pub queue_pairs_per_node: usize,
    /// Messages that each queue pair sends.
    pub messages: u32,
    /// Bytes of each.
    pub message_bytes: u32,
    /// Whether messages have contents, which are then checked. The memory for them is all taken at once.
    pub payload: PayloadMode,
    /// How the nodes are joined.
    pub fabric: ScaleFabric,
    /// Each direction of each link.
    pub link: Profile,
}

/// How the nodes are joined, as large as it has to be for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScaleFabric {
    /// By one switch.
    #[default]
    Star,
    /// By two tiers of switches, as many leaves as there are nodes at each, and a spine for each node at a leaf: with
    /// as much room upwards as downwards.
    Clos,
    /// By three tiers of switches with as few ports as will do.
    FatTree,
}

impl ScaleFabric {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            ScaleFabric::Star => "star",
            ScaleFabric::Clos => "clos",
            ScaleFabric::FatTree => "fat-tree",
        }
    }

    pub(super) fn of(self, nodes: usize) -> Topology {
        match self {
            ScaleFabric::Star => Topology::Star,
            ScaleFabric::Clos => {
                let leaf_count = (1..).find(|leaves| leaves * leaves >= nodes).expect("squares grow");
                Topology::Clos { leaf_count, spine_count: nodes.div_ceil(leaf_count) }
            }
            ScaleFabric::FatTree => {
                let arity = (2..).step_by(2).find(|arity: &usize| arity.pow(3) / 4 >= nodes).expect("cubes grow");
                Topology::FatTree { arity }
            }
        }
    }
}

impl Default for ScaleOptions {
    /// Ten thousand nodes on links of 100 Gbit/s and 1 µs that lose nothing.
    fn default() -> Self {
        ScaleOptions {
            seed: 1,
            nodes: 10_000,
            queue_pairs_per_node: 4,
            messages: 8,
            message_bytes: 16 << 10,
            payload: PayloadMode::Elided,
            fabric: ScaleFabric::Star,
            link: healthy_link(),
        }
    }
}

/// 100 Gbit/s, 1 µs, and queues that take whatever comes, as with flow control in the fabric: UC cannot recover from a
/// loss.
fn healthy_link() -> Profile {
    Profile::default()
        .with_propagation_delay(Duration::from_micros(1))
        .with_rate_bits_per_second(100_000_000_000)
        .with_queue_limit_bytes(1 << 40)
}

impl ScaleOptions {
    /// Queue pairs of all nodes.
    pub fn queue_pair_count(&self) -> usize {
        self.nodes * self.queue_pairs_per_node
    }

    /// Messages of all queue pairs.
    pub fn message_count(&self) -> u64 {
        (self.queue_pair_count() as u64).saturating_mul(self.messages.into())
    }

    /// Memory that messages are sent from and received into, at all nodes; more than can be counted is the most.
    pub fn region_bytes(&self) -> u64 {
        (self.nodes as u64).saturating_mul(self.region_bytes_per_node())
    }

    pub(super) fn region_bytes_per_node(&self) -> u64 {
        let slots = match self.payload {
            PayloadMode::Carried => 2 * self.queue_pairs_per_node as u64 * u64::from(self.messages),
            PayloadMode::Elided | PayloadMode::WritesElided => 1,
        };
        slots.saturating_mul(self.message_bytes.into())
    }

    /// Where message `number` of the queue pair with this index is received. Without contents all share one place.
    pub(super) fn receive_offset(&self, index: u32, number: u32) -> usize {
        match self.payload {
            PayloadMode::Carried => (index as usize * self.messages as usize + number as usize) * self.message_length(),
            PayloadMode::Elided | PayloadMode::WritesElided => 0,
        }
    }

    /// Where it is sent from.
    pub(super) fn send_offset(&self, index: u32, number: u32) -> usize {
        match self.payload {
            PayloadMode::Carried => self.receive_offset(self.queue_pairs_per_node as u32 + index, number),
            PayloadMode::Elided | PayloadMode::WritesElided => 0,
        }
    }

    pub(super) fn message_length(&self) -> usize {
        self.message_bytes as usize
    }

    /// Receives that the messages of a queue pair consume at its peer.
    pub(super) fn receives(&self, transport: Transport) -> u32 {
        consumed_receives(transport, self.messages)
    }
}

/// Receives that the first `messages` messages consume.
pub(super) fn consumed_receives(transport: Transport, messages: u32) -> u32 {
    match transport {
        Transport::ReliableConnection => messages / 2,
        _ => messages,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fabrics_have_room_for_all() {
        assert_eq!(ScaleFabric::Clos.of(10_000), Topology::Clos { leaf_count: 100, spine_count: 100 });
        assert_eq!(ScaleFabric::Clos.of(7), Topology::Clos { leaf_count: 3, spine_count: 3 });
        assert_eq!(ScaleFabric::FatTree.of(10_000), Topology::FatTree { arity: 36 });
        assert_eq!(ScaleFabric::FatTree.of(16), Topology::FatTree { arity: 4 });
        assert_eq!(ScaleFabric::FatTree.of(17), Topology::FatTree { arity: 6 });
    }
}
