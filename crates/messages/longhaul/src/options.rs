//! What a connection is made with. Everything has a default.

use std::sync::Arc;

use longhaul_congestion::ControllerName;
use longhaul_reliable::{NamedScheme, Scheme, SchemeList, SchemeNameError, scheme_named};
use longhaul_sdr::QueuePairAttributes;
use longhaul_time::Duration;
use longhaul_verbs::{Capabilities, DeviceAttributes, Mtu};
use longhaul_wire::handshake::SCHEME_BYTES_MAX;
use thiserror::Error;

use crate::agreement::Agreement;
use crate::endpoint::Endpoint;

/// Without a rate, to this host: what a socket's buffer takes, since more in flight than that is only lost.
const WINDOW_BYTES_MIN: u64 = 3 << 20;
/// Without a rate, to other hosts: what is in flight is in the network, and congestion control decides how much that
/// is. Enough for 2.5 Gbit/s and 100 ms. Receives without memory cost the software RNIC nothing.
const WINDOW_BYTES_FAR: u64 = 32 << 20;
/// The same where each receive takes room in a device's queues, for each generation.
const WINDOW_BYTES_FAR_HARDWARE: u64 = 8 << 20;
const WINDOW_BYTES_MAX: u64 = 1 << 30;
/// No round trip takes longer; sums of times stay far from their end.
const ROUND_TRIP_MAX: Duration = Duration::from_secs(3600);

/// What a connection is made with. The ends must have the same schemes and, where both say something of it, chunks of
/// the same size; of the MTU, the channels and the longest message the smaller count.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// How messages are brought over whose sender chooses nothing.
    pub scheme: Arc<dyn Scheme>,
    /// What they may be brought over with as well, if their sender says so ([`crate::Connection::choose`]). The ends must have the same, in the
    /// same order; all names together have at most 256 bytes. With best effort among them, the sender may choose that for any message: one that is
    /// received with [`crate::Connection::receive`] then arrives whole or fails at both ends. With a code among them, each receive also holds memory for the longest parity that
    /// its message may have, until it is known that there is less.
    pub other_schemes: Vec<Arc<dyn Scheme>>,
    /// Bytes of a chunk, a multiple of the MTU; one packet by default ([`longhaul_sdr::default_chunk_bytes`]), because
    /// a chunk is lost with any of its packets.
    pub chunk_bytes: Option<u32>,
    /// The largest payload of a packet, if below what the path carries.
    pub mtu: Mtu,
    /// What may be in flight to us: by default 3 MiB from this host and 32 MiB from others (8 MiB on libibverbs devices),
    /// or two round trips at the rate if one is set.
    pub window_bytes: Option<u64>,
    /// How the send rate is controlled. By default nothing controls it to this host, and
    /// [`ControllerName::Wan`](longhaul_congestion::ControllerName::Wan) does to other hosts. With
    /// [`ControllerName::Credit`](longhaul_congestion::ControllerName::Credit) the peer's endpoint grants all its senders
    /// credit in turn ([`Endpoint::with_credit_rate`]); a peer that cannot is refused.
    pub congestion: Option<ControllerName>,
    /// The highest send rate, whatever congestion control says. By default there is none.
    pub rate_bits_per_second: Option<u64>,
    /// Taken for the round-trip time until it has been measured.
    pub round_trip_guess: Duration,
    /// A message that has made no progress for this long has failed; while it is queued behind others, their progress
    /// counts.
    pub message_timeout: Duration,
    /// A message that has not ended this long after it was sent, or began to arrive, has failed, whatever its progress.
    pub message_deadline: Option<Duration>,
    /// Send a checksum with every message (64 bits, XXH3), which the receiver verifies before its program gets the
    /// message; if it differs, the message has failed at both ends. It finds what the packets' own checksum cannot: a
    /// buffer that the sending program changed too early, faulty memory, wrong decoding. It is no protection against an
    /// attacker. Only the sender's option counts. A message that a scheme of your own ends with bytes missing is not
    /// verified. Off by default: both ends read every byte once more.
    pub checksum: bool,
    /// Packets in one write: 1 survives reordering; more save work where the network keeps order.
    pub packets_per_write: u32,
    /// Queue pairs side by side that data is spread over.
    pub channels: usize,
    /// Messages that wait for their turn, in each direction; more are refused.
    pub waiting_max: usize,
    /// How long connecting may take, until packets have passed in both directions.
    pub connect_timeout: Duration,
    /// Accept peers on other hosts that do not have the listener's handle ([`crate::Listener::handle`]), which has a
    /// secret token. Set this only where you trust everybody who reaches the port. Peers on this host need no token.
    pub allow_without_token: bool,
}

/// The names of the schemes do not fit into the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "the names of this end's schemes have {bytes} bytes together, with commas, and may have {SCHEME_BYTES_MAX}; name fewer schemes, or shorter ones"
)]
pub struct SchemeNamesTooLong {
    /// What they have.
    pub bytes: usize,
}

/// Where the other end of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerPlace {
    ThisHost,
    Elsewhere,
}

impl Default for Options {
    fn default() -> Self {
        let reliable = longhaul_reliable::Attributes::default();
        Options {
            scheme: scheme_named(NamedScheme::NegativeAcknowledgements),
            other_schemes: Vec::new(),
            chunk_bytes: None,
            mtu: Mtu::Bytes4096,
            window_bytes: None,
            congestion: None,
            rate_bits_per_second: None,
            round_trip_guess: Duration::from_millis(50),
            message_timeout: reliable.message_timeout,
            message_deadline: reliable.message_deadline,
            checksum: reliable.checksum,
            packets_per_write: 1,
            channels: 1,
            waiting_max: reliable.waiting_max,
            connect_timeout: Duration::from_secs(10),
            allow_without_token: false,
        }
    }
}

impl Options {
    /// The default, with another scheme by its name: `sr:rto`, `sr:nack`, `ec:mds:32,8`, `ec:xor:32,8`, `be`,
    /// `be+ec:mds:32,8`; or with several that messages choose from, such as `sr:nack,ec:mds:32,8,be`.
    pub fn with_scheme(names: &str) -> Result<Self, SchemeNameError> {
        Ok(Options::with_schemes(&names.parse()?))
    }

    /// The same with names that have been read.
    pub fn with_schemes(schemes: &SchemeList) -> Self {
        let other_schemes = schemes.others().iter().copied().map(scheme_named).collect();
        Options { scheme: scheme_named(schemes.first()), other_schemes, ..Options::default() }
    }

    /// The names of all its schemes.
    pub(crate) fn scheme_names(&self) -> String {
        let all = std::iter::once(&self.scheme).chain(&self.other_schemes);
        all.map(|scheme| scheme.name()).collect::<Vec<_>>().join(",")
    }

    /// Why they cannot be told to a peer.
    pub(crate) fn check_names(&self) -> Result<(), SchemeNamesTooLong> {
        let bytes = self.scheme_names().len();
        if bytes > SCHEME_BYTES_MAX { Err(SchemeNamesTooLong { bytes }) } else { Ok(()) }
    }

    /// How the send rate to a peer is controlled.
    fn congestion_to(&self, peer: PeerPlace) -> Option<ControllerName> {
        match peer {
            PeerPlace::ThisHost => self.congestion,
            // Nobody knows how fast the path is, or who shares it.
            PeerPlace::Elsewhere => Some(self.congestion.unwrap_or(ControllerName::Wan)),
        }
    }

    fn window_packets(&self, mtu: Mtu, device: &DeviceAttributes, generations: u8, peer: PeerPlace) -> u32 {
        let of_rate = |rate: u64| {
            let bits = u128::from(rate) * 2 * self.round_trip_guess.as_nanos() / 1_000_000_000;
            u64::try_from(bits / 8).unwrap_or(u64::MAX).clamp(WINDOW_BYTES_MIN, WINDOW_BYTES_MAX)
        };
        let without_rate = match peer {
            PeerPlace::ThisHost => WINDOW_BYTES_MIN,
            PeerPlace::Elsewhere if device.capabilities.contains(Capabilities::SLOTTED_REGION) => WINDOW_BYTES_FAR,
            PeerPlace::Elsewhere => WINDOW_BYTES_FAR_HARDWARE,
        };
        let bytes = self.window_bytes.unwrap_or(self.rate_bits_per_second.map_or(without_rate, of_rate));
        // As many receives for each generation, all of which complete into one queue.
        let most = device.max_work_requests.min(device.max_completion_queue_entries / u32::from(generations));
        u32::try_from(bytes / u64::from(mtu.byte_count())).unwrap_or(u32::MAX).clamp(1, most.max(1))
    }

    pub(crate) fn queue_pair(
        &self,
        endpoint: &Endpoint,
        device: &DeviceAttributes,
        agreement: &Agreement,
        peer: PeerPlace,
        random: u64,
    ) -> QueuePairAttributes {
        let mut attributes = QueuePairAttributes::new(endpoint.gid(), endpoint.udp_port(), agreement.mtu);
        attributes.path = endpoint.path_to(longhaul_verbs::Gid::default(), endpoint.udp_port());
        attributes.chunk_bytes = agreement.chunk_bytes;
        attributes.message_bytes_max = agreement.message_bytes_max;
        attributes.packets_per_write = self.packets_per_write;
        attributes.receive_depth = self.window_packets(agreement.mtu, device, attributes.generations, peer);
        attributes.send_depth = attributes.send_depth.min(device.max_work_requests.max(1));
        attributes.congestion = self.congestion_to(peer);
        attributes.grants_credit = true;
        attributes.rate_bits_per_second = self.rate_bits_per_second;
        attributes.round_trip_guess = self.round_trip_guess.min(ROUND_TRIP_MAX);
        attributes.random = random;
        attributes
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = formatter.debug_struct("Options");
        debug.field("scheme", &self.scheme_names()).field("chunk_bytes", &self.chunk_bytes).field("mtu", &self.mtu);
        debug.field("window_bytes", &self.window_bytes).field("rate_bits_per_second", &self.rate_bits_per_second);
        debug.field("congestion", &self.congestion);
        debug.finish_non_exhaustive()
    }
}
