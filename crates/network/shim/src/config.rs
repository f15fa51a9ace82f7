//! What a shim is configured with; everything that can grow has its bound here.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use longhaul_coding::CodeKind;
use longhaul_time::Duration;
use longhaul_wire::repair::CODED_PREFIX_BYTES;

/// How a shim protects packets, and what it may use for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The code of blocks that are sent. What arrives may have another.
    pub code: BlockCode,
    /// The longest datagram, from BTH to ICRC, that is protected. Longer ones pass unprotected.
    pub datagram_bytes_max: usize,
    /// Coding units, each for one sum, in each direction; shared by all queue pairs.
    pub units_max: usize,
    /// Packets, repair packets among them, that wait for one that is missing; shared by all queue pairs.
    pub held_packets_max: usize,
    /// Spaces of PSNs, two for each queue pair, that are followed in each direction.
    pub flows_max: usize,
    /// A block that does not fill ends when its flow has been idle for this long …
    pub idle_flush: Duration,
    /// … and at this age in any case.
    pub block_age_max: Duration,
    /// Packets wait at most this long for one that is missing; then the transport's own retransmission takes over. Longer than
    /// the peer's `block_age_max`.
    pub timeout: Duration,
    /// How much later than its successors a packet may arrive. So long packets wait when all repair packets have arrived and do
    /// not suffice.
    pub reordering: Duration,
    /// After a block that could not be repaired, a flow is not followed until its retransmission arrives, or for this long.
    pub stopped_max: Duration,
    /// A flow that has been idle for this long makes room for another.
    pub flow_idle: Duration,
    /// Check the ICRC of what is sent. A device of our own writes it itself; a gateway must check.
    pub checks_outgoing: bool,
    /// Send a copy of each acknowledgement: a lost one costs a timeout.
    pub copies_acknowledgements: bool,
    /// With a key, repair packets carry a tag, and only those with the right one are used.
    pub key: Option<[u8; 16]>,
    /// Repair packets are used only if they come from these networks; if there are none, from everywhere.
    pub sources: Vec<Network>,
}

impl Config {
    /// The paper's bounds, and timers for blocks of a few milliseconds.
    pub fn new(code: BlockCode) -> Config {
        Config {
            code,
            datagram_bytes_max: 4096 + 64,
            units_max: 1024,
            held_packets_max: 2048,
            flows_max: 1024,
            idle_flush: Duration::from_micros(200),
            block_age_max: Duration::from_millis(2),
            timeout: Duration::from_millis(5),
            reordering: Duration::from_micros(100),
            stopped_max: Duration::from_millis(500),
            flow_idle: Duration::from_secs(1),
            checks_outgoing: true,
            copies_acknowledgements: false,
            key: None,
            sources: Vec::new(),
        }
    }

    /// Bytes of a sum, at most.
    pub(crate) fn unit_bytes(&self) -> usize {
        CODED_PREFIX_BYTES + self.datagram_bytes_max
    }

    pub(crate) fn is_source(&self, address: IpAddr) -> bool {
        self.sources.is_empty() || self.sources.iter().any(|network| network.contains(address))
    }
}

/// The code of a block: `c` sums of at most `r` packets. Written `xor:32,1` or `mds:64,8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCode {
    kind: CodeKind,
    block_packets: u8,
    repair_packets: u8,
}

/// Why there is no such code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlockCodeError {
    /// Not of the right form.
    #[error(
        "\"{0}\" is not a code; use xor:R,C or mds:R,C with R packets and C repair packets a block, such as xor:32,1"
    )]
    Form(String),
    /// Numbers that do not go together.
    #[error(
        "a block has 1 to 255 packets and at least 1 repair packet: with XOR no more than packets, with MDS at most 255 together; \
         got {block_packets} and {repair_packets}"
    )]
    Numbers {
        /// As asked for.
        block_packets: u8,
        /// As asked for.
        repair_packets: u8,
    },
}

impl BlockCode {
    /// The code with blocks of at most `block_packets` packets and `repair_packets` sums.
    pub fn new(kind: CodeKind, block_packets: u8, repair_packets: u8) -> Result<BlockCode, BlockCodeError> {
        let fits = match kind {
            CodeKind::Xor => repair_packets <= block_packets,
            CodeKind::Mds => block_packets.checked_add(repair_packets).is_some(),
        };
        if !fits || block_packets == 0 || repair_packets == 0 {
            return Err(BlockCodeError::Numbers { block_packets, repair_packets });
        }
        Ok(BlockCode { kind, block_packets, repair_packets })
    }

    /// What a block can lose.
    pub fn kind(self) -> CodeKind {
        self.kind
    }

    /// `r`: most packets of a block.
    pub fn block_packets(self) -> u8 {
        self.block_packets
    }

    /// `c`: most repair packets of a block.
    pub fn repair_packets(self) -> u8 {
        self.repair_packets
    }

    /// Repair packets of a block with `count` packets: short messages are sent twice, and no more than that.
    pub fn sums_of(self, count: u8) -> u8 {
        self.repair_packets.min(count)
    }
}

impl fmt::Display for BlockCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{},{}", self.kind, self.block_packets, self.repair_packets)
    }
}

impl FromStr for BlockCode {
    type Err = BlockCodeError;

    fn from_str(text: &str) -> Result<BlockCode, BlockCodeError> {
        let parts = || {
            let (kind, counts) = text.split_once(':')?;
            let (block, repair) = counts.split_once(',')?;
            let kind = match kind {
                "xor" => CodeKind::Xor,
                "mds" => CodeKind::Mds,
                _ => return None,
            };
            Some((kind, block.parse().ok()?, repair.parse().ok()?))
        };
        let (kind, block, repair) = parts().ok_or_else(|| BlockCodeError::Form(text.to_owned()))?;
        BlockCode::new(kind, block, repair)
    }
}

/// Addresses with a common beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Any address in it.
    pub address: IpAddr,
    /// How many bits they have in common.
    pub prefix_bits: u8,
}

impl Network {
    /// Whether an address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        let differs = match (self.address, address) {
            (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
            (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
            _ => return false,
        };
        differs >= u32::from(self.prefix_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_a_text_form_and_limits() {
        for text in ["xor:32,1", "xor:255,1", "mds:64,8", "mds:247,8", "xor:4,4"] {
            assert_eq!(text.parse::<BlockCode>().unwrap().to_string(), text);
        }
        for text in ["", "xor", "xor:1", "rs:8,2", "xor:256,1", "mds:8,-1"] {
            assert_eq!(text.parse::<BlockCode>(), Err(BlockCodeError::Form(text.to_owned())));
        }
        for text in ["xor:0,0", "xor:0,1", "xor:8,0", "xor:4,5", "mds:248,8"] {
            assert!(matches!(text.parse::<BlockCode>(), Err(BlockCodeError::Numbers { .. })), "{text}");
        }
        assert_eq!("mds:64,8".parse::<BlockCode>().unwrap().sums_of(3), 3);
    }

    #[test]
    fn networks_contain_their_addresses() {
        let network = |address: &str, prefix_bits| Network { address: address.parse().unwrap(), prefix_bits };
        let contains = |network: Network, address: &str| network.contains(address.parse().unwrap());
        assert!(contains(network("10.1.0.0", 16), "10.1.255.255"));
        assert!(!contains(network("10.1.0.0", 16), "10.2.0.0"));
        assert!(contains(network("10.1.0.0", 0), "192.0.2.1"));
        assert!(contains(network("2001:db8::1", 128), "2001:db8::1"));
        assert!(!contains(network("2001:db8::1", 128), "2001:db8::2"));
        assert!(!contains(network("10.1.0.0", 0), "2001:db8::2"));
    }
}
