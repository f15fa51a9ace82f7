//! How both ends are set up: congestion control, windows, packet lengths, sockets, deadlines.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use quinn::congestion::{BbrConfig, CubicConfig, NewRenoConfig};
use quinn::{Endpoint, EndpointConfig, MtuDiscoveryConfig, ServerConfig, TokioRuntime, TransportConfig, VarInt};

use super::error::QuicError;

/// QUIC needs datagrams of 1200 bytes; this is the least that IPv6 demands of a link.
pub const MTU_MIN: u16 = 1280;
/// The longest packet.
pub const MTU_MAX: u16 = 9000;
/// IP's and UDP's headers.
const HEADERS_IPV4_BYTES: u16 = 28;
const HEADERS_IPV6_BYTES: u16 = 48;
/// A short link needs this too, for what a receiver does not read in time.
const WINDOW_BYTES_MIN: u64 = 1 << 20;
const WINDOW_BYTES_MAX: u64 = 1 << 40;
const SOCKET_BYTES_MIN: u64 = 4 << 20;
const SOCKET_BYTES_MAX: u64 = 64 << 20;

/// Congestion control, as quinn has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Congestion {
    /// RFC 8312.
    Cubic,
    /// RFC 6582.
    NewReno,
    /// BBR, version 1; quinn calls its own experimental.
    Bbr,
}

/// What both ends are made with.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Of the sender.
    pub congestion: Congestion,
    /// Bytes of the longest IP packet that the link carries. Packets of that length are sent from the start.
    pub link_mtu: u16,
    /// Rate times round trip of the link. Receive and send windows are twice as large, so that they limit nothing.
    pub bandwidth_delay_bytes: u64,
    /// A connection ends after this long without a packet from the other end; an attempt to open one takes no longer.
    pub silence: Duration,
    /// No call takes longer.
    pub limit: Duration,
}

impl Settings {
    /// Bytes of the longest datagram towards an address like this one.
    fn datagram_bytes(&self, address: IpAddr) -> Result<u16, QuicError> {
        if !(MTU_MIN..=MTU_MAX).contains(&self.link_mtu) {
            return Err(QuicError::Mtu { got: self.link_mtu, least: MTU_MIN, most: MTU_MAX });
        }
        let headers = if address.is_ipv4() { HEADERS_IPV4_BYTES } else { HEADERS_IPV6_BYTES };
        Ok(self.link_mtu - headers)
    }

    fn window_bytes(&self) -> u64 {
        self.bandwidth_delay_bytes.saturating_mul(2).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX)
    }

    /// How packets are sent, with a socket of this address.
    pub(super) fn transport(&self, address: IpAddr) -> Result<Arc<TransportConfig>, QuicError> {
        let datagram_bytes = self.datagram_bytes(address)?;
        let window = VarInt::from_u64(self.window_bytes()).unwrap_or(VarInt::MAX);
        let silence = VarInt::from_u64(self.silence.as_millis() as u64).unwrap_or(VarInt::MAX);
        let mut discovery = MtuDiscoveryConfig::default();
        discovery.upper_bound(datagram_bytes);
        let mut transport = TransportConfig::default();
        transport
            .stream_receive_window(window)
            .receive_window(window)
            .send_window(self.window_bytes())
            .initial_mtu(datagram_bytes)
            .mtu_discovery_config(Some(discovery))
            .max_idle_timeout(Some(silence.into()))
            .congestion_controller_factory(match self.congestion {
                Congestion::Cubic => Arc::new(CubicConfig::default()),
                Congestion::NewReno => Arc::new(NewRenoConfig::default()),
                Congestion::Bbr => Arc::new(BbrConfig::default()),
            });
        Ok(Arc::new(transport))
    }

    /// An endpoint with a socket of its own. The runtime must have been entered.
    pub(super) fn endpoint(&self, address: SocketAddr, server: Option<ServerConfig>) -> Result<Endpoint, QuicError> {
        let mut config = EndpointConfig::default();
        let datagram_bytes = self.datagram_bytes(address.ip())?;
        config.max_udp_payload_size(datagram_bytes).expect("within QUIC's bounds, as the link's MTU is within ours");
        let failed = |error| QuicError::Socket(address, error);
        let socket = UdpSocket::bind(address).map_err(failed)?;
        let bytes = self.window_bytes().clamp(SOCKET_BYTES_MIN, SOCKET_BYTES_MAX) as usize;
        // Only root may have more than the system's limit; others get that limit.
        let _ =
            setsockopt(&socket, sockopt::RcvBufForce, &bytes).or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &bytes));
        let _ =
            setsockopt(&socket, sockopt::SndBufForce, &bytes).or_else(|_| setsockopt(&socket, sockopt::SndBuf, &bytes));
        Endpoint::new(config, server, socket, Arc::new(TokioRuntime)).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings {
        congestion: Congestion::Cubic,
        link_mtu: 1500,
        bandwidth_delay_bytes: 3 << 20,
        silence: Duration::from_secs(1),
        limit: Duration::from_secs(1),
    };

    #[test]
    fn datagrams_fill_the_link() {
        let (ipv4, ipv6) = ([127, 0, 0, 1].into(), [0, 0, 0, 0, 0, 0, 0, 1].into());
        let jumbo = Settings { link_mtu: 4200, ..SETTINGS };
        assert_eq!(SETTINGS.datagram_bytes(ipv4).expect("fits"), 1472);
        assert_eq!(jumbo.datagram_bytes(ipv6).expect("fits"), 4152);
        for link_mtu in [0, MTU_MIN - 1, MTU_MAX + 1] {
            let settings = Settings { link_mtu, ..SETTINGS };
            assert!(matches!(settings.transport(ipv4), Err(QuicError::Mtu { got, .. }) if got == link_mtu));
        }
    }

    #[test]
    fn windows_are_twice_what_is_in_flight() {
        assert_eq!(SETTINGS.window_bytes(), 6 << 20);
        let huge = Settings { bandwidth_delay_bytes: u64::MAX, ..SETTINGS };
        assert_eq!(huge.window_bytes(), WINDOW_BYTES_MAX);
    }
}
