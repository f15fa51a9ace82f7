//! The configuration as a file.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use longhaul_shim::{Config, Fec, Network};
use longhaul_time::Duration;
use longhaul_wire::{aeth, bth, icrc, immediate, ipv4, ipv6, reth, udp};
use serde::Deserialize;
use thiserror::Error;

use crate::gateway::GatewayConfig;

/// Path MTUs of RDMA.
const RDMA_MTUS: [usize; 5] = [256, 512, 1024, 2048, 4096];
/// What RC and UC have around the payload of one packet, at most: a WRITE with immediate data.
const TRANSPORT_BYTES_MAX: usize = bth::HEADER_BYTES + reth::HEADER_BYTES + immediate::HEADER_BYTES + icrc::ICRC_BYTES;
const _: () = assert!(TRANSPORT_BYTES_MAX >= bth::HEADER_BYTES + aeth::HEADER_BYTES + icrc::ICRC_BYTES);

/// What a user can set, with the defaults.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The interface towards the hosts.
    pub site: String,
    /// The interface towards the other gateway.
    pub wide: String,
    /// The networks behind the other gateway.
    #[serde(deserialize_with = "networks")]
    pub peer: Vec<Network>,
    /// The code of what is sent, or that it follows the link.
    #[serde(default = "default_code", deserialize_with = "code")]
    pub code: Fec,
    /// What `longhaul gateway status` knows it by.
    #[serde(default = "default_name")]
    pub name: String,
    /// Repair packets carry a tag, and only those with the right one are used.
    #[serde(default, deserialize_with = "key")]
    pub key: Option<[u8; 16]>,
    /// Send repair packets only while the other gateway is heard.
    #[serde(default = "yes")]
    pub wait_for_peer: bool,
    /// The largest path MTU of RDMA that hosts use; 0: the largest that the MTU of the site's interface has room for.
    #[serde(default)]
    pub rdma_mtu: usize,
    /// The bridge that joins the interfaces when the process is not there; none, if empty.
    #[serde(default = "default_bridge")]
    pub bridge: String,
    /// Where metrics are served; nowhere, if empty.
    #[serde(default = "default_metrics")]
    pub metrics: String,
    /// Send acknowledgements twice.
    #[serde(default)]
    pub copies_acknowledgements: bool,
    /// The other gateway is missing when nothing of it has arrived for this long.
    #[serde(default = "default_peer_timeout_ms")]
    pub peer_timeout_ms: u32,
    /// Packets wait at most this long for one that is missing.
    #[serde(default = "default_timeout_us")]
    pub timeout_us: u32,
    /// A block that does not fill ends when its flow has been idle for this long …
    #[serde(default = "default_idle_flush_us")]
    pub idle_flush_us: u32,
    /// … and at this age in any case.
    #[serde(default = "default_block_age_us")]
    pub block_age_us: u32,
    /// How much later than its successors a packet may arrive.
    #[serde(default = "default_reordering_us")]
    pub reordering_us: u32,
    /// A flow that has been idle for this long makes room for another.
    #[serde(default = "default_flow_idle_ms")]
    pub flow_idle_ms: u32,
    /// Flows that are followed each way, two for each queue pair; and pairs of hosts.
    #[serde(default = "default_flows_max")]
    pub flows_max: usize,
    /// Coding units each way, each for one sum.
    #[serde(default = "default_units_max")]
    pub units_max: usize,
    /// Packets that wait for one that is missing.
    #[serde(default = "default_held_packets_max")]
    pub held_packets_max: usize,
}

fn default_code() -> Fec {
    "lowar:32,1".parse().expect("a code")
}
fn default_name() -> String {
    "gateway".to_owned()
}
fn default_bridge() -> String {
    "longhaul0".to_owned()
}
fn default_metrics() -> String {
    "127.0.0.1:9479".to_owned()
}
fn yes() -> bool {
    true
}
fn default_peer_timeout_ms() -> u32 {
    5_000
}
fn default_timeout_us() -> u32 {
    5_000
}
fn default_idle_flush_us() -> u32 {
    200
}
fn default_block_age_us() -> u32 {
    2_000
}
fn default_reordering_us() -> u32 {
    100
}
fn default_flow_idle_ms() -> u32 {
    1_000
}
fn default_flows_max() -> usize {
    1_024
}
fn default_units_max() -> usize {
    1_024
}
fn default_held_packets_max() -> usize {
    2_048
}

/// Sums of one block, at most: the other gateway refuses more.
const FLOW_UNITS_MAX: u8 = 32;
/// Bounds of what a file can ask for: more would be a mistake, or too much memory.
const FLOWS_MOST: usize = 1 << 16;
const PACKETS_MOST: usize = 1 << 16;
const TIME_US_MOST: u32 = 1_000_000;
/// A report of what was lost, for each flow from the other gateway, at most.
const REPORTS_EVERY: Duration = Duration::from_millis(5);
/// The other gateway greets once a second, and not every greeting arrives.
const PEER_TIMEOUT_MS_LEAST: u32 = 2_000;
const TIME_MS_MOST: u32 = 3_600_000;

/// Why a configuration cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// Not TOML, an unknown key, or a value of the wrong form.
    #[error("the configuration cannot be read; `longhaul gateway init` prints one with all keys\n{0}")]
    Form(String),
    /// Out of bounds.
    #[error("{key} is {value}, but must be {allowed}")]
    Value {
        /// The key.
        key: &'static str,
        /// As given.
        value: String,
        /// What it may be.
        allowed: String,
    },
    /// No repair packet fits.
    #[error(
        "the wide interface {wide} has MTU {wide_mtu}, but repair packets for RDMA packets with MTU {rdma_mtu} need {needed}: raise the MTU of \
         {wide} and of everything behind it to {needed}, or let the hosts use a smaller RDMA MTU and set rdma_mtu to it"
    )]
    NoRoom {
        /// The interface.
        wide: String,
        /// Its MTU.
        wide_mtu: usize,
        /// Of RDMA.
        rdma_mtu: usize,
        /// What it would have to be.
        needed: usize,
    },
    /// Frames of the site side do not fit.
    #[error(
        "{wide} has MTU {wide_mtu}, less than the {site_mtu} of {site}: longer packets would not pass; use the same MTU, or a larger one at {wide}"
    )]
    Narrow {
        /// The interface towards the hosts.
        site: String,
        /// Its MTU.
        site_mtu: usize,
        /// The other one.
        wide: String,
        /// Its MTU.
        wide_mtu: usize,
    },
}

impl Settings {
    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<Settings, SettingsError> {
        let settings: Settings = toml::from_str(text).map_err(|error| SettingsError::Form(error.to_string()))?;
        settings.check()?;
        Ok(settings)
    }

    fn check(&self) -> Result<(), SettingsError> {
        let wrong = |key, value: &dyn ToString, allowed: &str| {
            Err(SettingsError::Value { key, value: value.to_string(), allowed: allowed.to_owned() })
        };
        let Settings { rdma_mtu, bridge, metrics, .. } = self;
        if *rdma_mtu != 0 && !RDMA_MTUS.contains(rdma_mtu) {
            return wrong(
                "rdma_mtu",
                rdma_mtu,
                "256, 512, 1024, 2048 or 4096, or 0 for what the site's interface has room for",
            );
        }
        if self.peer.is_empty() {
            return wrong("peer", &"empty", "the networks behind the other gateway, such as \"10.2.0.0/24\"");
        }
        // The kernel's limit is 15.
        let is_name =
            |name: &str| name.len() <= 15 && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if !is_name(bridge) {
            return wrong("bridge", bridge, "the name of an interface: at most 15 letters, digits, -, _ and .");
        }
        if !metrics.is_empty() && !metrics.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback()) {
            return wrong("metrics", metrics, "a loopback address with a port, such as 127.0.0.1:9479, or empty");
        }
        for (key, value, most) in [
            ("flows_max", self.flows_max, FLOWS_MOST),
            ("units_max", self.units_max, PACKETS_MOST),
            ("held_packets_max", self.held_packets_max, PACKETS_MOST),
        ] {
            if !(1..=most).contains(&value) {
                return wrong(key, &value, &format!("1 to {most}"));
            }
        }
        for (key, value) in [
            ("timeout_us", self.timeout_us),
            ("idle_flush_us", self.idle_flush_us),
            ("block_age_us", self.block_age_us),
            ("reordering_us", self.reordering_us),
        ] {
            if !(1..=TIME_US_MOST).contains(&value) {
                return wrong(key, &value, &format!("1 to {TIME_US_MOST}"));
            }
        }
        self.check_times()?;
        // As the shim would, which does not know the names of this file.
        let (repairs, allowed) = (self.code.first_code().repair_packets(), FLOW_UNITS_MAX);
        if repairs > allowed {
            return wrong("code", &self.code, &format!("a code with at most {allowed} repair packets for each block"));
        }
        if usize::from(repairs) > self.units_max {
            return wrong(
                "units_max",
                &self.units_max,
                &format!("at least {repairs}, the repair packets of one block of code"),
            );
        }
        for (key, value, least) in
            [("peer_timeout_ms", self.peer_timeout_ms, PEER_TIMEOUT_MS_LEAST), ("flow_idle_ms", self.flow_idle_ms, 1)]
        {
            if !(least..=TIME_MS_MOST).contains(&value) {
                return wrong(key, &value, &format!("{least} to {TIME_MS_MOST}"));
            }
        }
        Ok(())
    }

    /// Times that do not go together.
    fn check_times(&self) -> Result<(), SettingsError> {
        let Settings { timeout_us, block_age_us, reordering_us, .. } = *self;
        let wrong = |key, value: u32, allowed| Err(SettingsError::Value { key, value: value.to_string(), allowed });
        if timeout_us <= block_age_us {
            let allowed = format!(
                "longer than block_age_us of both gateways ({block_age_us} here): repair packets may come so late"
            );
            return wrong("timeout_us", timeout_us, allowed);
        }
        if reordering_us > timeout_us {
            return wrong(
                "reordering_us",
                reordering_us,
                format!("at most timeout_us, {timeout_us}: no packet waits longer"),
            );
        }
        Ok(())
    }

    /// How a gateway between interfaces with these MTUs behaves. Refused if repair packets have no room.
    pub fn to_config(&self, site_mtu: usize, wide_mtu: usize) -> Result<GatewayConfig, SettingsError> {
        let (site, wide) = (self.site.clone(), self.wide.clone());
        if wide_mtu < site_mtu {
            return Err(SettingsError::Narrow { site, site_mtu, wide, wide_mtu });
        }
        let has_v6 = self.peer.iter().any(|network| network.address.is_ipv6());
        let ip_bytes = if has_v6 { ipv6::HEADER_BYTES } else { ipv4::HEADER_BYTES } + udp::HEADER_BYTES;
        let rdma_mtu = match self.rdma_mtu {
            0 => {
                let fits = |mtu: &&usize| **mtu + TRANSPORT_BYTES_MAX + ip_bytes <= site_mtu;
                RDMA_MTUS.iter().rev().find(fits).copied().unwrap_or(RDMA_MTUS[0])
            }
            mtu => mtu,
        };
        let micros = |value: u32| Duration::from_micros(value.into());
        let mut shim = Config::of(&self.code);
        // The other gateway's code may follow the link, whatever this one sends.
        shim.reports_every = Some(REPORTS_EVERY);
        shim.datagram_bytes_max = rdma_mtu + TRANSPORT_BYTES_MAX;
        shim.units_max = self.units_max;
        shim.flow_units_max = FLOW_UNITS_MAX;
        shim.held_packets_max = self.held_packets_max;
        shim.flows_max = self.flows_max;
        shim.idle_flush = micros(self.idle_flush_us);
        shim.block_age_max = micros(self.block_age_us);
        shim.timeout = micros(self.timeout_us);
        shim.reordering = micros(self.reordering_us);
        shim.flow_idle = Duration::from_millis(self.flow_idle_ms.into());
        shim.copies_acknowledgements = self.copies_acknowledgements;
        shim.key = self.key;
        shim.peers = self.peer.clone();
        let mut config = GatewayConfig::new(shim);
        config.waits_for_peer = self.wait_for_peer;
        config.peer_timeout = Duration::from_millis(self.peer_timeout_ms.into());
        let needed = ip_bytes + config.shim.datagram_bytes_max + config.shim.overhead_bytes();
        if needed > wide_mtu {
            return Err(SettingsError::NoRoom { wide, wide_mtu, rdma_mtu, needed });
        }
        Ok(config)
    }
}

/// A configuration with all keys, each with its default and what it means.
pub fn template() -> String {
    let mut text = String::from(
        "# A gateway: forward error correction for RDMA between two sites. docs/GATEWAY.md explains it.\n\
         # The keys at the top must be set; the others have their defaults here.\n\n",
    );
    let mut key = |name: &str, value: String, meaning: &str| {
        for line in meaning.lines() {
            let _ = writeln!(text, "# {line}");
        }
        let _ = writeln!(text, "{name} = {value}\n");
    };
    let quoted = |value: &str| format!("\"{value}\"");
    key("site", quoted("eth1"), "The interface towards the hosts.");
    key("wide", quoted("eth2"), "The interface towards the other gateway.");
    key(
        "peer",
        "[\"10.2.0.0/24\"]".to_owned(),
        "The networks behind the other gateway. Only packets to them are protected, and repair\npackets are used only if they come from them.",
    );
    key(
        "code",
        quoted(&default_code().to_string()),
        "What is sent: lowar:R,C (XOR) or lowar:mds:R,C, with C repair packets for each R packets; or auto,\nwhich follows the loss that the other gateway reports, with at most 25 % repair packets unless a\nbound is given (\"auto,overhead=10%\"). The other gateway may use another one.",
    );
    key("name", quoted(&default_name()), "What `longhaul gateway status --name` knows it by.");
    key(
        "key",
        quoted(""),
        "32 hexadecimal digits, the same at both gateways: repair packets carry a tag, and only\nthose with the right one are used. Empty: no tag.",
    );
    key(
        "wait_for_peer",
        yes().to_string(),
        "Send repair packets only while the other gateway is heard. false: always, for a peer that is\na software RNIC of Longhaul with error correction of its own.",
    );
    key(
        "peer_timeout_ms",
        default_peer_timeout_ms().to_string(),
        "Nothing heard for this long: the other gateway is missing.",
    );
    key(
        "rdma_mtu",
        "0".to_owned(),
        "The largest RDMA path MTU that hosts use: 256, 512, 1024, 2048 or 4096. 0: the largest that\nthe MTU of the site's interface has room for. The MTU of the wide interface must leave room for\nrepair packets, which are longer.",
    );
    key(
        "bridge",
        quoted(&default_bridge()),
        "The kernel bridge that joins both interfaces when the process is not there. It is made if\nit does not exist. Empty: none, and nothing passes without the process.",
    );
    key(
        "metrics",
        quoted(&default_metrics()),
        "Where metrics for Prometheus are served, on this host only. Empty: nowhere.",
    );
    key(
        "copies_acknowledgements",
        "false".to_owned(),
        "Send acknowledgements twice: a lost one costs the sender a timeout.",
    );
    key(
        "timeout_us",
        default_timeout_us().to_string(),
        "Packets wait at most this long for a missing one: longer than block_age_us of both gateways.",
    );
    key(
        "idle_flush_us",
        default_idle_flush_us().to_string(),
        "A block that is not full ends when its flow pauses for this long,",
    );
    key(
        "block_age_us",
        default_block_age_us().to_string(),
        "and at this age in any case. timeout_us of both gateways must be longer.",
    );
    key(
        "reordering_us",
        default_reordering_us().to_string(),
        "How much later than its successors a packet may arrive.",
    );
    key(
        "flow_idle_ms",
        default_flow_idle_ms().to_string(),
        "A flow that was idle for this long makes room for another.",
    );
    key(
        "flows_max",
        default_flows_max().to_string(),
        "Flows that are followed each way (two for each queue pair), and pairs of hosts. Packets of\nothers pass unprotected.",
    );
    key("units_max", default_units_max().to_string(), "Coding units each way, each as long as a packet.");
    key(
        "held_packets_max",
        default_held_packets_max().to_string(),
        "Packets that wait for missing ones, all together.",
    );
    text
}

// --- values ---------------------------------------------------------------------------------------------------------

fn code<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Fec, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}

fn key<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<[u8; 16]>, D::Error> {
    let text = String::deserialize(from)?;
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = || serde::de::Error::custom("a key has 32 hexadecimal digits, such as `openssl rand -hex 16` prints");
    if text.len() != 32 || !text.is_ascii() {
        return Err(wrong());
    }
    let mut key = [0; 16];
    for (byte, at) in key.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong())?;
    }
    Ok(Some(key))
}

/// One network, or a list of them.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

fn networks<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<Network>, D::Error> {
    let texts = match OneOrMore::deserialize(from)? {
        OneOrMore::One(text) => vec![text],
        OneOrMore::More(texts) => texts,
    };
    texts.iter().map(|text| network(text).map_err(serde::de::Error::custom)).collect()
}

fn network(text: &str) -> Result<Network, String> {
    let wrong =
        || format!("\"{text}\" is no network; use an address and the length of its prefix, such as 10.2.0.0/24");
    let (address, bits) = text.split_once('/').unwrap_or((text, ""));
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let prefix_bits = if text.contains('/') { bits.parse().map_err(|_| wrong())? } else { most };
    if prefix_bits > most { Err(wrong()) } else { Ok(Network { address, prefix_bits }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: &str = "site = \"a\"\nwide = \"b\"\npeer = \"10.2.0.0/24\"\n";

    fn with(more: &str) -> Result<Settings, SettingsError> {
        Settings::parse(&format!("{LEAST}{more}\n"))
    }

    #[test]
    fn the_template_has_every_default() {
        let written = Settings::parse(&template()).expect("it can be read");
        let least = Settings { site: written.site.clone(), wide: written.wide.clone(), ..with("").expect("the least") };
        assert_eq!(written, least);
    }

    #[test]
    fn the_defaults_are_the_shims_own() {
        let config = with("").unwrap().to_config(1500, 1500).unwrap();
        let own = Config::of(&default_code());
        let datagram_bytes_max = 1024 + TRANSPORT_BYTES_MAX;
        let (reports_every, peers) = (Some(REPORTS_EVERY), config.shim.peers.clone());
        assert_eq!(config.shim, Config { datagram_bytes_max, reports_every, peers, ..own });
        let following = with("code = \"auto:mds,overhead=10%\"").unwrap().to_config(1500, 1500).unwrap().shim;
        assert_eq!(following.auto, Config::of(&"auto:mds,overhead=10%".parse().unwrap()).auto);
        assert!(following.auto.is_some());
    }

    #[test]
    fn mistakes_are_named() {
        for (more, expected) in [
            ("cod = \"lowar:32,1\"", "unknown field `cod`"),
            ("code = \"xor:32,1\"", "lowar:R,C"),
            ("code = \"auto:banana\"", "auto:xor"),
            ("key = \"00\"", "32 hexadecimal digits"),
            ("rdma_mtu = 1500", "4096"),
            ("metrics = \"0.0.0.0:9479\"", "loopback"),
            ("metrics = \"localhost\"", "loopback"),
            ("bridge = \"a name of more than one word\"", "15 letters"),
            ("flows_max = 0", "flows_max is 0"),
            ("held_packets_max = 10000000", "1 to 65536"),
            ("timeout_us = 0", "1 to 1000000"),
            ("timeout_us = 2000", "timeout_us is 2000, but must be longer than block_age_us of both gateways"),
            ("block_age_us = 5000", "timeout_us is 5000"),
            ("reordering_us = 5001", "reordering_us is 5001"),
            ("code = \"lowar:mds:64,33\"", "code is lowar:mds:64,33"),
            ("code = \"lowar:mds:64,8\"\nunits_max = 7", "units_max is 7"),
            ("peer_timeout_ms = 1999", "2000 to 3600000"),
            ("peer_timeout_ms = 3600001", "2000 to 3600000"),
            ("flow_idle_ms = 0", "1 to 3600000"),
            ("site = \"again\"", "duplicate key"),
            ("[table]", "table"),
        ] {
            let message = with(more).expect_err(more).to_string();
            assert!(message.contains(expected), "{more}: {message}");
        }
        for peer in ["\"10.2.0.0/33\"", "\"10.2\"", "[\"10.2.0.0/24\", \"x\"]", "[]", "7"] {
            let text = format!("site = \"a\"\nwide = \"b\"\npeer = {peer}\n");
            assert!(Settings::parse(&text).is_err(), "{peer}");
        }
    }

    #[test]
    fn a_wide_mtu_without_room_is_refused_with_the_number() {
        // Measured at 4200: it has room for RDMA's 4096 over IPv4, without a key.
        assert_eq!(with("").unwrap().to_config(4200, 4200).unwrap().shim.datagram_bytes_max, 4132);
        let keyed = with("key = \"000102030405060708090a0b0c0d0e0f\"").unwrap();
        let message = keyed.to_config(4200, 4200).unwrap_err().to_string();
        assert!(message.contains("MTU 4200") && message.contains("need 4204"), "{message}");
        assert!(keyed.to_config(4200, 4204).is_ok());
        let message = with("rdma_mtu = 2048").unwrap().to_config(1500, 1500).unwrap_err().to_string();
        assert!(message.contains("need 2148"), "{message}");
        assert!(with("").unwrap().to_config(1500, 1400).unwrap_err().to_string().contains("less than the 1500"));
    }
}
