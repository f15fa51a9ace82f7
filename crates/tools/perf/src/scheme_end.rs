//! An end of messages with a reliability scheme, as a program has it: the library's connection, and memory registered
//! with the library's endpoint.

use std::time::{Duration, Instant};

use longhaul::{Choice, ConnectError, Connection, Endpoint, Listener, Memory, Options, TransferError};
use longhaul_reliable::SchemeList;
use longhaul_verbs::Mtu;

use crate::error::PerfError;
use crate::settings::Congestion;

/// The largest chunk that an end agrees to.
pub const CHUNK_BYTES_MAX: u32 = 1 << 20;
/// How often an end that accepts looks whether the other one has gone.
const ACCEPT_LOOK: Duration = Duration::from_millis(20);

/// What is asked of a connection; everything else is as the library has it.
#[derive(Clone, Debug)]
pub(crate) struct SchemeOptions {
    /// The schemes that messages take in turn; the other end has the same.
    pub(crate) schemes: SchemeList,
    /// The largest payload of a packet.
    pub(crate) mtu: Mtu,
    /// Bytes of a chunk, a multiple of the MTU; the other end has the same. By default the library's.
    pub(crate) chunk_bytes: Option<u32>,
    /// What controls the send rate, if not what the library chooses.
    pub(crate) congestion: Congestion,
    /// What is sent at most.
    pub(crate) rate_bits_per_second: Option<u64>,
    /// Messages are sent with a checksum. The receiver verifies it in any case.
    pub(crate) checksum: bool,
}

impl SchemeOptions {
    /// In the library's words.
    pub(crate) fn for_library(&self) -> Options {
        let mut options = Options::with_schemes(&self.schemes);
        options.mtu = self.mtu;
        options.chunk_bytes = self.chunk_bytes;
        options.congestion = match self.congestion {
            Congestion::By(name) => Some(name),
            // Messages to other hosts are never without.
            Congestion::Default | Congestion::Off => None,
        };
        options.rate_bits_per_second = self.rate_bits_per_second;
        options.checksum = self.checksum;
        options
    }
}

/// An end that is connected. The library drives it.
pub(crate) struct SchemeEnd {
    pub(crate) connection: Connection,
    pub(crate) memory: Memory,
    /// What messages that this end sends have in turn.
    pub(crate) choices: Vec<Choice>,
}

impl SchemeEnd {
    /// Connects with a listener, which is named by its address or its handle.
    pub(crate) fn connect(
        endpoint: &Endpoint,
        to: &str,
        options: &SchemeOptions,
        buffer_bytes: usize,
    ) -> Result<Self, PerfError> {
        let memory = register(endpoint, buffer_bytes)?;
        let connection = endpoint.connect(to, &options.for_library()).wait().map_err(|error| match error {
            ConnectError::Path(error) => {
                let (address, udp_port) = (error.peer.ip(), error.peer.port());
                PerfError::Failed(format!(
                    "nothing comes back from {address}, UDP port {udp_port} (firewall or loss): {error}"
                ))
            }
            error => PerfError::failed("cannot connect", error),
        })?;
        let choices = options.schemes.iter().map(|scheme| Choice::scheme(scheme.to_string())).collect();
        Ok(SchemeEnd { connection, memory, choices })
    }

    /// Accepts the one that connects, until it `is_gone` or for this long.
    pub(crate) fn accept(
        endpoint: &Endpoint,
        listener: &Listener,
        buffer_bytes: usize,
        patience: Duration,
        is_gone: &dyn Fn() -> bool,
    ) -> Result<Self, PerfError> {
        let memory = register(endpoint, buffer_bytes)?;
        let begin = Instant::now();
        let mut accepting = listener.accept();
        loop {
            match accepting.wait_for(ACCEPT_LOOK) {
                Ok(accepted) => {
                    let connection =
                        accepted.map_err(|error| PerfError::failed("cannot accept a connection", error))?;
                    return Ok(SchemeEnd { connection, memory, choices: Vec::new() });
                }
                Err(waiting) => accepting = waiting,
            }
            if is_gone() {
                return Err(PerfError::peer_gone());
            }
            if begin.elapsed() > patience {
                return Err(PerfError::Failed(format!(
                    "the other end has not connected within {} s",
                    patience.as_secs()
                )));
            }
        }
    }

    /// Data packets that have come for messages that had ended, so far.
    pub(crate) fn late_packets(&self) -> u64 {
        self.connection.statistics().get("sdr.packets_late").unwrap_or(0)
    }
}

fn register(endpoint: &Endpoint, bytes: usize) -> Result<Memory, PerfError> {
    // Not zeros, of which there would be only one page.
    endpoint.register(vec![0x5a; bytes]).map_err(|error| PerfError::failed("cannot register memory", error))
}

/// Why a message was not sent or received.
pub(crate) fn message_failed(error: TransferError) -> PerfError {
    match error {
        TransferError::PeerClosed => PerfError::peer_gone(),
        error => PerfError::failed("a message has failed", error),
    }
}
