//! What a shim is configured with; everything that can grow has its bound here.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use longhaul_coding::CodeKind;
use longhaul_time::Duration;
use longhaul_wire::bth;
use longhaul_wire::icrc::ICRC_BYTES;
use longhaul_wire::repair::{CODED_PREFIX_BYTES, HEADER_BYTES, TAG_BYTES};

use crate::adaptive::Auto;

/// The shortest datagram there is.
const DATAGRAM_BYTES_LEAST: usize = bth::HEADER_BYTES + ICRC_BYTES;
/// The longest of which a repair packet, with a tag, fits into a UDP datagram over IPv4.
const DATAGRAM_BYTES_MOST: usize = 65_507 - HEADER_BYTES - CODED_PREFIX_BYTES - TAG_BYTES - ICRC_BYTES;

/// How a shim protects packets, and what it may use for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The code of blocks that are sent. What arrives may have another.
    pub code: BlockCode,
    /// The code follows the link instead, from [`Auto::first_code`] on; `code` is then only for flows whose path finds no room. The peer
    /// must send reports.
    pub auto: Option<Auto>,
    /// Report to peers what was lost of their packets, this often at most for each flow.
    pub reports_every: Option<Duration>,
    /// The longest datagram, from BTH to ICRC, that is protected. Longer ones pass unprotected.
    pub datagram_bytes_max: usize,
    /// Coding units, each for one sum, in each direction; shared by all queue pairs.
    pub units_max: usize,
    /// Units of one flow, at most: repair packets of codes with more sums for each block are refused.
    pub flow_units_max: u8,
    /// Packets, repair packets among them, that wait for one that is missing; shared by all queue pairs.
    pub held_packets_max: usize,
    /// Spaces of PSNs, two for each queue pair, that are followed in each direction.
    pub flows_max: usize,
    /// A block that does not fill ends when its flow has been idle for this long, or four times as long as its packets are apart …
    pub idle_flush: Duration,
    /// … and at this age in any case.
    pub block_age_max: Duration,
    /// Packets wait at most this long for one that is missing; then the transport's own retransmission takes over. Longer than
    /// the peer's `block_age_max`.
    pub timeout: Duration,
    /// How much later than its successors a packet may arrive. So long packets wait when all repair packets have arrived and do
    /// not suffice.
    pub reordering: Duration,
    /// A flow that has been idle for this long makes room for another.
    pub flow_idle: Duration,
    /// Check the ICRC of what is sent. A device of our own writes it itself; a gateway must check.
    pub checks_outgoing: bool,
    /// Send a copy of each acknowledgement: a lost one costs a timeout.
    pub copies_acknowledgements: bool,
    /// With a key, repair packets carry a tag, and only those with the right one are used.
    pub key: Option<[u8; 16]>,
    /// The networks behind the other shim. Only packets to them are protected, and repair packets are used only if they come from
    /// them: hosts without a shim are never sent one.
    pub peers: Vec<Network>,
}

impl Config {
    /// The paper's bounds, and timers for blocks of a few milliseconds. It has no peers yet.
    pub fn new(code: BlockCode) -> Config {
        Config {
            code,
            auto: None,
            reports_every: None,
            datagram_bytes_max: 4096 + 64,
            units_max: 1024,
            flow_units_max: 32,
            held_packets_max: 2048,
            flows_max: 1024,
            idle_flush: Duration::from_micros(200),
            block_age_max: Duration::from_millis(2),
            timeout: Duration::from_millis(5),
            reordering: Duration::from_micros(100),
            flow_idle: Duration::from_secs(1),
            checks_outgoing: true,
            copies_acknowledgements: false,
            key: None,
            peers: Vec::new(),
        }
    }

    /// Whether a shim with this configuration can restore anything.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Config { code, units_max, flow_units_max, datagram_bytes_max, timeout, .. } = *self;
        for network in &self.peers {
            network.check()?;
        }
        if let Some(auto) = self.auto.filter(|auto| !auto.is_possible()) {
            return Err(ConfigError::Auto { auto: auto.to_string() });
        }
        for (setting, value) in [("held_packets_max", self.held_packets_max), ("flows_max", self.flows_max)] {
            if value == 0 {
                return Err(ConfigError::Zero { setting });
            }
        }
        if usize::from(code.repair_packets) > units_max {
            Err(ConfigError::Units { code, units_max })
        } else if code.repair_packets > flow_units_max {
            Err(ConfigError::FlowUnits { code, flow_units_max })
        } else if !(DATAGRAM_BYTES_LEAST..=DATAGRAM_BYTES_MOST).contains(&datagram_bytes_max) {
            Err(ConfigError::DatagramBytes { datagram_bytes_max })
        } else if timeout <= self.block_age_max {
            Err(ConfigError::Timeout { timeout, block_age_max: self.block_age_max })
        } else if timeout < self.reordering {
            Err(ConfigError::Reordering { timeout, reordering: self.reordering })
        } else {
            Ok(())
        }
    }

    /// Bytes by which a repair packet is longer than the longest packet of its block.
    pub fn overhead_bytes(&self) -> usize {
        let tag_bytes = if self.key.is_some() { TAG_BYTES } else { 0 };
        HEADER_BYTES + CODED_PREFIX_BYTES + tag_bytes + ICRC_BYTES
    }

    /// Bytes of a sum, at most.
    pub(crate) fn unit_bytes(&self) -> usize {
        CODED_PREFIX_BYTES + self.datagram_bytes_max
    }

    pub(crate) fn is_peer(&self, address: IpAddr) -> bool {
        self.network_of(address).is_some()
    }

    /// The configured network that a host is in, by its place.
    pub(crate) fn network_of(&self, address: IpAddr) -> Option<usize> {
        self.peers.iter().position(|network| network.contains(address))
    }
}

/// Why a shim cannot work with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A network that no address is in.
    #[error(
        "no address is in {address}/{prefix_bits}, because its prefix is longer than an address; use at most /32 for IPv4 and /128 \
         for IPv6 in peers"
    )]
    Prefix {
        /// As configured.
        address: IpAddr,
        /// As configured.
        prefix_bits: u8,
    },
    /// Bounds of a code that follows the link that none can keep to.
    #[error(
        "no code keeps to {auto}: the overhead must be above 0 and at most 100 %, and the unrepaired share above 0 and below 1; \
         correct overhead_max or unrepaired_max"
    )]
    Auto {
        /// As configured, in its written form.
        auto: String,
    },
    /// A bound of nothing.
    #[error("{setting} is 0, so nothing could be restored; set it to 1 or more")]
    Zero {
        /// The name of the bound.
        setting: &'static str,
    },
    /// Fewer units than one block needs.
    #[error(
        "units_max is {units_max}, and one block of {code} needs more coding units; raise units_max or use a code with fewer repair \
         packets"
    )]
    Units {
        /// As configured.
        code: BlockCode,
        /// As configured.
        units_max: usize,
    },
    /// The peer, configured alike, would refuse the code.
    #[error(
        "flow_units_max is {flow_units_max}, so the peer would refuse the repair packets of {code}; raise flow_units_max at both \
         ends or use a code with fewer repair packets"
    )]
    FlowUnits {
        /// As configured.
        code: BlockCode,
        /// As configured.
        flow_units_max: u8,
    },
    /// No datagram fits, or no repair packet does.
    #[error(
        "datagram_bytes_max is {datagram_bytes_max}, but must be {DATAGRAM_BYTES_LEAST} to {DATAGRAM_BYTES_MOST} for repair packets \
         to fit into a datagram; use the path MTU of RDMA plus 64"
    )]
    DatagramBytes {
        /// As configured.
        datagram_bytes_max: usize,
    },
    /// As many queue pairs are protected as flows can be followed.
    #[error(
        "{} queue pairs are protected already, and no more can be (two flows each, flows_max is {flows_max}); use fewer, or end the \
         protection of those that are closed", .flows_max.div_ceil(2)
    )]
    Agreements {
        /// As configured.
        flows_max: usize,
    },
    /// Packets do not wait until repair packets can arrive.
    #[error(
        "timeout is {} µs, but repair packets may follow only after block_age_max, {} µs; raise timeout or lower block_age_max",
        .timeout.as_micros(), .block_age_max.as_micros()
    )]
    Timeout {
        /// As configured.
        timeout: Duration,
        /// As configured.
        block_age_max: Duration,
    },
    /// Packets wait longer after the last repair packet than they may wait at all.
    #[error(
        "reordering is {} µs, but no packet waits longer than timeout, {} µs; lower reordering or raise timeout",
        .reordering.as_micros(), .timeout.as_micros()
    )]
    Reordering {
        /// As configured.
        timeout: Duration,
        /// As configured.
        reordering: Duration,
    },
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
    /// Not a name of a code.
    #[error(
        "\"{0}\" is no forward error correction; use lowar:R,C (XOR) or lowar:mds:R,C with R packets and C repair packets a block, \
         such as lowar:32,1"
    )]
    Name(String),
    /// Numbers that do not go together.
    #[error(
        "a block has 1 to 255 packets and at least 1 repair packet: with XOR no more than packets, with MDS at most 255 together; \
         got {block_packets} and {repair_packets}"
    )]
    Numbers {
        /// As asked for.
        block_packets: u32,
        /// As asked for.
        repair_packets: u32,
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
            let (block_packets, repair_packets) = (block_packets.into(), repair_packets.into());
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

    /// Repair packets of a block with `count` packets. Short messages are sent twice, and no more than that. A block that is neither
    /// full nor the end of a message was cut short because its flow is slow or paused. It has a full block's share, rounded up:
    /// otherwise all of a slow flow would be sent twice.
    pub fn sums_of(self, count: u8, ends_message: bool) -> u8 {
        let most = self.repair_packets.min(count);
        if !self.is_cut_short(count, ends_message) {
            return most;
        }
        let share = (u16::from(self.repair_packets) * u16::from(count)).div_ceil(self.block_packets.into());
        let share = u8::try_from(share).unwrap_or(u8::MAX).min(most);
        match self.kind {
            CodeKind::Mds => share,
            // Sums can be added up to fewer if each of those gets equally many.
            CodeKind::Xor => (1..=share).rev().find(|sums| self.repair_packets.is_multiple_of(*sums)).unwrap_or(1),
        }
    }

    /// With XOR, how many sums the packets of such a block are dealt out to; not all of them need to have any.
    pub(crate) fn groups_of(self, count: u8, ends_message: bool) -> usize {
        let is_folded = self.kind == CodeKind::Xor && self.is_cut_short(count, ends_message);
        usize::from(if is_folded { self.sums_of(count, ends_message) } else { self.repair_packets })
    }

    fn is_cut_short(self, count: u8, ends_message: bool) -> bool {
        !ends_message && count < self.block_packets
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
            let number = |digits: &str| digits.parse::<u32>().ok();
            Some((kind, number(block)?, number(repair)?))
        };
        let (kind, block_packets, repair_packets) = parts().ok_or_else(|| BlockCodeError::Form(text.to_owned()))?;
        match (u8::try_from(block_packets), u8::try_from(repair_packets)) {
            (Ok(block), Ok(repair)) => BlockCode::new(kind, block, repair),
            _ => Err(BlockCodeError::Numbers { block_packets, repair_packets }),
        }
    }
}

/// A code by the name that users give: `lowar:32,1` as in the paper (XOR), or `lowar:mds:64,8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lowar(pub BlockCode);

impl fmt::Display for Lowar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lowar(code) = self;
        match code.kind {
            CodeKind::Xor => write!(formatter, "lowar:{},{}", code.block_packets, code.repair_packets),
            CodeKind::Mds => write!(formatter, "lowar:{code}"),
        }
    }
}

impl FromStr for Lowar {
    type Err = BlockCodeError;

    fn from_str(text: &str) -> Result<Lowar, BlockCodeError> {
        let code = text.strip_prefix("lowar:").ok_or_else(|| BlockCodeError::Name(text.to_owned()))?;
        let has_kind = code.contains(':');
        let parsed = if has_kind { code.parse() } else { format!("xor:{code}").parse() };
        parsed.map(Lowar).map_err(|error| match error {
            BlockCodeError::Form(_) => BlockCodeError::Name(text.to_owned()),
            error => error,
        })
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
    /// Every address of both families.
    pub const EVERYWHERE: [Network; 2] = [
        Network { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), prefix_bits: 0 },
        Network { address: IpAddr::V6(Ipv6Addr::UNSPECIFIED), prefix_bits: 0 },
    ];

    fn check(&self) -> Result<(), ConfigError> {
        let Network { address, prefix_bits } = *self;
        let most = if address.is_ipv4() { Ipv4Addr::BITS } else { Ipv6Addr::BITS };
        if u32::from(prefix_bits) > most { Err(ConfigError::Prefix { address, prefix_bits }) } else { Ok(()) }
    }

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
    use crate::{Decoder, Encoder, Shim};

    #[test]
    fn codes_have_a_text_form_and_limits() {
        for text in ["xor:32,1", "xor:255,1", "mds:64,8", "mds:247,8", "xor:4,4"] {
            assert_eq!(text.parse::<BlockCode>().unwrap().to_string(), text);
        }
        for text in ["", "xor", "xor:1", "rs:8,2", "mds:8,-1"] {
            assert_eq!(text.parse::<BlockCode>(), Err(BlockCodeError::Form(text.to_owned())));
        }
        for text in ["xor:256,1", "xor:0,0", "xor:0,1", "xor:8,0", "xor:4,5", "mds:248,8"] {
            assert!(matches!(text.parse::<BlockCode>(), Err(BlockCodeError::Numbers { .. })), "{text}");
        }
    }

    #[test]
    fn blocks_that_are_cut_short_have_a_full_blocks_share_of_sums() {
        let sums = |text: &str, count, ends| text.parse::<BlockCode>().unwrap().sums_of(count, ends);
        assert_eq!([sums("mds:64,8", 3, true), sums("mds:64,8", 64, false), sums("mds:64,8", 60, true)], [3, 8, 8]);
        assert_eq!([1, 8, 9, 17, 63].map(|count| sums("mds:64,8", count, false)), [1, 1, 2, 3, 8]);
        assert_eq!([1, 8, 9, 17, 63].map(|count| sums("xor:64,8", count, false)), [1, 1, 2, 2, 8]);
        assert_eq!([sums("mds:4,8", 3, false), sums("xor:4,4", 3, false), sums("xor:5,5", 4, false)], [3, 2, 1]);
    }

    #[test]
    fn configurations_that_cannot_work_are_refused_with_a_next_step() {
        let right = Config { peers: Network::EVERYWHERE.to_vec(), ..Config::new("mds:64,8".parse().unwrap()) };
        assert_eq!(right.check(), Ok(()));
        let with = |change: fn(&mut Config)| {
            let mut config = right.clone();
            change(&mut config);
            config
        };
        let auto = |overhead_max, unrepaired_max| Some(Auto { overhead_max, unrepaired_max, ..Auto::default() });
        let wrong: [(Config, &str); 14] = [
            (Config { auto: auto(-0.1, None), ..right.clone() }, "correct overhead_max"),
            (Config { auto: auto(25.0, None), ..right.clone() }, "at most 100 %"),
            (Config { auto: auto(f64::NAN, None), ..right.clone() }, "above 0"),
            (Config { auto: auto(0.1, Some(1.0)), ..right.clone() }, "unrepaired_max"),
            (with(|config| config.peers[0].prefix_bits = 33), "at most /32"),
            (with(|config| config.peers[1].prefix_bits = 129), "/128"),
            (with(|config| config.held_packets_max = 0), "held_packets_max is 0"),
            (with(|config| config.flows_max = 0), "flows_max is 0"),
            (with(|config| config.units_max = 7), "raise units_max"),
            (with(|config| config.flow_units_max = 7), "raise flow_units_max"),
            (with(|config| config.datagram_bytes_max = 15), "path MTU"),
            (with(|config| config.datagram_bytes_max = 65_500), "path MTU"),
            (with(|config| config.timeout = config.block_age_max), "raise timeout"),
            (with(|config| config.reordering = config.timeout * 2), "lower reordering"),
        ];
        for (config, next_step) in wrong {
            let message = config.check().unwrap_err().to_string();
            assert!(message.contains(next_step), "{message}");
            assert!(Shim::new(config.clone(), 1).is_err() && Decoder::new(config).is_err(), "{message}");
        }
    }

    #[test]
    fn a_code_that_cannot_work_is_not_set() {
        let code = |text: &str| text.parse::<BlockCode>().unwrap();
        let config = Config { peers: Network::EVERYWHERE.to_vec(), ..Config::new(code("xor:32,1")) };
        let mut encoder = Encoder::new(config, 1).unwrap();
        assert_eq!(encoder.set_code(code("mds:64,8")), Ok(()));
        let refused = ConfigError::FlowUnits { code: code("mds:64,33"), flow_units_max: 32 };
        assert_eq!(encoder.set_code(code("mds:64,33")), Err(refused));
    }

    #[test]
    fn users_name_codes_as_the_paper_does() {
        for text in ["lowar:32,1", "lowar:mds:64,8"] {
            assert_eq!(text.parse::<Lowar>().unwrap().to_string(), text);
        }
        assert_eq!("lowar:xor:8,2".parse::<Lowar>().unwrap().to_string(), "lowar:8,2");
        for text in ["", "lowar", "lowar:", "lowar:32", "xor:32,1", "lowar:rs:8,2"] {
            assert_eq!(text.parse::<Lowar>(), Err(BlockCodeError::Name(text.to_owned())));
        }
        assert!(matches!("lowar:4,5".parse::<Lowar>(), Err(BlockCodeError::Numbers { .. })));
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
        for address in ["192.0.2.1", "2001:db8::2"] {
            assert!(Network::EVERYWHERE.iter().any(|network| contains(*network, address)));
        }
    }
}
