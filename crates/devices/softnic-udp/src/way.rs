//! Where datagrams go, through which socket.

use std::net::SocketAddr;

use longhaul_softnic::{Envelope, Route};
use longhaul_wire::IcrcScope;

/// Where a datagram goes, and the socket that it leaves from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// With the source port that the socket really has.
    pub(crate) route: Route,
    pub(crate) sender: SenderIndex,
}

/// A socket that sends: the one in a slot of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SenderIndex {
    pub(crate) address: usize,
    pub(crate) slot: usize,
}

impl Way {
    pub(crate) fn destination(&self) -> SocketAddr {
        SocketAddr::new(self.route.destination, self.route.destination_port)
    }

    fn source(&self) -> SocketAddr {
        SocketAddr::new(self.route.source, self.route.source_port)
    }

    /// What the ICRC of its datagrams covers; `None` when the ends are of different families.
    pub(crate) fn icrc_scope(&self, is_translated: bool) -> Option<IcrcScope> {
        match is_translated {
            true => Some(IcrcScope::WITHOUT_ADDRESSES),
            false => IcrcScope::between(self.source(), self.destination()),
        }
    }

    /// What surrounds its datagrams.
    pub(crate) fn envelope(&self, identification: u16, is_translated: bool) -> Option<Envelope> {
        Some(Envelope {
            source: self.source(),
            destination: self.destination(),
            traffic_class: self.route.traffic_class,
            hop_limit: self.route.hop_limit.max(1),
            identification: Some(identification),
            icrc_scope: self.icrc_scope(is_translated)?.of_segment(identification),
            elided_bytes: 0,
        })
    }
}
