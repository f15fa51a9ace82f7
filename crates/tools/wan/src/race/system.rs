//! What takes part in the race.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Ethernet's header: the link's rate counts it, and neither preamble nor check sequence.
const ETHERNET_BYTES: u32 = 14;
const IPV4_BYTES: u32 = 20;
const UDP_BYTES: u32 = 8;
/// With timestamps, which Linux sends by default.
const TCP_BYTES: u32 = 32;
/// First byte, an 8-byte connection id, a 2-byte packet number, the tag; a stream frame's type, id, offset and length.
const QUIC_BYTES: u32 = 1 + 8 + 2 + 16 + 1 + 1 + 8 + 2;
const BTH_BYTES: u32 = 12;
const RETH_BYTES: u32 = 16;
const IMMEDIATE_BYTES: u32 = 4;
const ICRC_BYTES: u32 = 4;

/// A system that carries bytes over the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum System {
    /// The kernel's TCP with cubic.
    TcpCubic,
    /// The kernel's TCP with bbr.
    TcpBbr,
    /// QUIC as quinn has it, with the congestion control of quinn that is best for the link.
    Quic,
    /// QUIC with cubic, quinn's default.
    QuicCubic,
    /// QUIC with BBR, which quinn calls experimental.
    QuicBbr,
    /// RC of the software RNIC: go-back-N, as hardware does it.
    Rc,
    /// Longhaul's `sr:nack`.
    SelectiveRepeat,
    /// Longhaul's `ec:mds`, with the code that the planner chooses.
    Erasure,
}

/// There is no such system.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown system {0:?}; use tcp-cubic, tcp-bbr, quic, quic:cubic, quic:bbr, rc, sr:nack or ec:mds")]
pub struct UnknownSystem(String);

impl System {
    /// All that run by default. (`quic` is one of `quic:cubic` and `quic:bbr`; those run if they are named.)
    pub const DEFAULT: [System; 6] =
        [System::TcpCubic, System::TcpBbr, System::Quic, System::Rc, System::SelectiveRepeat, System::Erasure];
    const ALL: [System; 8] = [
        System::TcpCubic,
        System::TcpBbr,
        System::Quic,
        System::QuicCubic,
        System::QuicBbr,
        System::Rc,
        System::SelectiveRepeat,
        System::Erasure,
    ];

    /// As people write it.
    pub const fn name(self) -> &'static str {
        match self {
            System::TcpCubic => "tcp-cubic",
            System::TcpBbr => "tcp-bbr",
            System::Quic => "quic",
            System::QuicCubic => "quic:cubic",
            System::QuicBbr => "quic:bbr",
            System::Rc => "rc",
            System::SelectiveRepeat => "sr:nack",
            System::Erasure => "ec:mds",
        }
    }

    /// What runs for it on a link with this loss. Of quinn's controllers, cubic is the best without loss; with loss it
    /// falls far behind BBR. (docs/WIDE-AREA.md has the figures.)
    pub(super) fn on_link(self, loss: f64) -> System {
        match self {
            System::Quic if loss > 0.0 => System::QuicBbr,
            System::Quic => System::QuicCubic,
            system => system,
        }
    }

    /// Whether it goes through Longhaul's library with a scheme.
    pub const fn is_longhaul(self) -> bool {
        matches!(self, System::SelectiveRepeat | System::Erasure)
    }

    /// The name of TCP's congestion control.
    pub(super) const fn tcp_congestion(self) -> Option<&'static str> {
        match self {
            System::TcpCubic => Some("cubic"),
            System::TcpBbr => Some("bbr"),
            _ => None,
        }
    }

    /// Payload of a full packet, and the bytes of its frame on the link.
    fn full_packet(self, mtu: u32) -> (u32, u32) {
        let frame = mtu + ETHERNET_BYTES;
        match self {
            System::TcpCubic | System::TcpBbr => (mtu - IPV4_BYTES - TCP_BYTES, frame),
            System::Quic | System::QuicCubic | System::QuicBbr => (mtu - IPV4_BYTES - UDP_BYTES - QUIC_BYTES, frame),
            System::Rc | System::SelectiveRepeat | System::Erasure => {
                let headers = match self {
                    // A packet in the middle of a message; each packet of the library is a WRITE of its own.
                    System::Rc => BTH_BYTES,
                    _ => BTH_BYTES + RETH_BYTES + IMMEDIATE_BYTES,
                };
                let around = IPV4_BYTES + UDP_BYTES + headers + ICRC_BYTES;
                let payload = roce_payload(mtu);
                (payload, payload + around + ETHERNET_BYTES)
            }
        }
    }

    /// Share of payload in the bytes that a full packet takes on the link.
    pub fn payload_share(self, mtu: u32) -> f64 {
        let (payload, frame) = self.full_packet(mtu);
        f64::from(payload) / f64::from(frame)
    }
}

/// Payload of RoCE's longest packet on a link: a power of two, from 256 to 4096.
pub(super) fn roce_payload(mtu: u32) -> u32 {
    let room = mtu.saturating_sub(IPV4_BYTES + UDP_BYTES + BTH_BYTES + RETH_BYTES + IMMEDIATE_BYTES + ICRC_BYTES);
    [4096, 2048, 1024, 512].into_iter().find(|payload| *payload <= room).unwrap_or(256)
}

impl fmt::Display for System {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for System {
    type Err = UnknownSystem;

    fn from_str(name: &str) -> Result<Self, UnknownSystem> {
        let known = System::ALL.into_iter().find(|system| system.name() == name);
        known.ok_or_else(|| UnknownSystem(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for system in System::ALL {
            assert_eq!(system.to_string().parse(), Ok(system));
        }
        assert!("tcp".parse::<System>().is_err_and(|error| error.to_string().contains("unknown system \"tcp\"")));
    }

    #[test]
    fn shares_are_those_of_full_packets() {
        assert_eq!(System::TcpCubic.payload_share(1500), 1448.0 / 1514.0);
        assert_eq!(System::SelectiveRepeat.payload_share(1500), 1024.0 / 1102.0);
        assert_eq!(System::Erasure.payload_share(4200), 4096.0 / 4174.0);
        assert_eq!(System::Rc.payload_share(4200), 4096.0 / 4154.0);
        assert_eq!(roce_payload(600), 512);
        assert_eq!(roce_payload(400), 256);
    }
}
