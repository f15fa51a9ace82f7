//! Names of nodes, and of the ports at which links end.

/// A node of one simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(crate) u32);

impl NodeId {
    /// A port of this node.
    pub fn port(self, port: usize) -> Endpoint {
        Endpoint { node: self, port }
    }

    /// Counts from zero, in the order in which nodes were added.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Which node.
    pub node: NodeId,
    /// Which of its ports.
    pub port: usize,
}
