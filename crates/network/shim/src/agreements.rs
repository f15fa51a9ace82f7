//! With whom the shim protects packets: hosts behind a configured peer, and single queue pairs that both ends have agreed on.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::config::{BlockCode, Config};
use crate::paths::Peer;

/// A queue pair whose two ends have agreed on protection, as seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The host at the other end.
    pub peer: IpAddr,
    /// The number of the queue pair here.
    pub ours: u32,
    /// The number of the queue pair there.
    pub theirs: u32,
    /// The code of what is sent. The other end may use another.
    pub code: BlockCode,
}

/// The queue pairs of one direction that were agreed on: who is at the other end, and the queue pair that packets are addressed to.
#[derive(Debug, Default)]
pub(crate) struct Agreements(BTreeMap<(IpAddr, u32), BlockCode>);

impl Agreements {
    pub(crate) fn insert(&mut self, peer: IpAddr, queue_pair: u32, code: BlockCode) {
        self.0.insert((peer, queue_pair), code);
    }

    /// Whether there is room for another queue pair, or none is needed: each has two spaces of PSNs in each direction.
    pub(crate) fn has_room(&self, config: &Config, peer: IpAddr, queue_pair: u32) -> bool {
        self.0.len() < config.flows_max.div_ceil(2) || self.0.contains_key(&(peer, queue_pair))
    }

    pub(crate) fn remove(&mut self, peer: IpAddr, queue_pair: u32) {
        self.0.remove(&(peer, queue_pair));
    }

    /// The code for a queue pair; `None` if it is not protected.
    pub(crate) fn code(&self, config: &Config, peer: IpAddr, queue_pair: u32) -> Option<BlockCode> {
        let agreed = self.0.get(&(peer, queue_pair)).copied();
        agreed.or_else(|| config.is_peer(peer).then_some(config.code))
    }

    /// The path that packets for a queue pair take; `None` if it is not protected.
    pub(crate) fn peer(&self, config: &Config, peer: IpAddr, queue_pair: u32) -> Option<Peer> {
        match config.network_of(peer) {
            Some(network) => Some(Peer::Network(network)),
            None => self.0.contains_key(&(peer, queue_pair)).then_some(Peer::Host(peer)),
        }
    }

    /// The path to a host with which anything is protected.
    pub(crate) fn network_or_host(&self, config: &Config, peer: IpAddr) -> Option<Peer> {
        match config.network_of(peer) {
            Some(network) => Some(Peer::Network(network)),
            None => self.knows(config, peer).then_some(Peer::Host(peer)),
        }
    }

    /// Whether anything between us and a host is protected.
    pub(crate) fn knows(&self, config: &Config, peer: IpAddr) -> bool {
        config.is_peer(peer) || self.0.range((peer, 0)..=(peer, u32::MAX)).next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_agreed_on_is_protected() {
        let [peer, stranger] = ["10.0.0.2", "10.0.0.3"].map(|address| address.parse::<IpAddr>().unwrap());
        let code: BlockCode = "mds:8,2".parse().unwrap();
        let config = Config::new("xor:32,1".parse().unwrap());
        let mut agreements = Agreements::default();
        agreements.insert(peer, 17, code);
        assert_eq!(agreements.code(&config, peer, 17), Some(code));
        assert_eq!((agreements.code(&config, peer, 18), agreements.code(&config, stranger, 17)), (None, None));
        assert_eq!((agreements.knows(&config, peer), agreements.knows(&config, stranger)), (true, false));
        agreements.remove(peer, 17);
        assert_eq!((agreements.code(&config, peer, 17), agreements.knows(&config, peer)), (None, false));
    }

    #[test]
    fn hosts_behind_a_configured_peer_have_the_configured_code() {
        let config = Config { peers: crate::Network::EVERYWHERE.to_vec(), ..Config::new("xor:32,1".parse().unwrap()) };
        let agreements = Agreements::default();
        let host = "10.0.0.2".parse().unwrap();
        assert_eq!(agreements.code(&config, host, 17), Some(config.code));
    }
}
