//! How long a measurement waits for a sign of the other end, and what it says when none comes.

use std::net::IpAddr;
use std::time::Duration;

use crate::connection::Connection;
use crate::error::PerfError;

/// Silence of the other end for this long, over a transport that does not notice on its own, ends a run.
const UNRELIABLE: Duration = Duration::from_secs(10);
/// RC gives up on its own, after its retries; this is for timeouts that are set to never.
const RELIABLE: Duration = Duration::from_secs(60);
/// A path slower than this is not waited for: bits a second.
const SLOWEST_BITS_PER_SECOND: u64 = 1_000_000;

/// The limit for one connection, and the address that its packets go to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Silence {
    address: IpAddr,
    udp_port: u16,
    least: Duration,
    slowest_bits_per_second: u64,
}

impl Silence {
    /// For packets to this address, sent no faster than this rate, if there is one.
    pub(crate) fn new(connection: Connection, address: IpAddr, udp_port: u16, rate: Option<u64>) -> Self {
        let slowest = rate.map_or(SLOWEST_BITS_PER_SECOND, |rate| rate.clamp(1, SLOWEST_BITS_PER_SECOND));
        let least = if connection.is_reliable() { RELIABLE } else { UNRELIABLE };
        Silence { address, udp_port, least, slowest_bits_per_second: slowest }
    }

    /// The longest wait while this many bytes may have to pass before the other end has a reason to answer.
    pub(crate) fn limit(&self, bytes: u64) -> Duration {
        let seconds = bytes as f64 * 8.0 / self.slowest_bits_per_second as f64;
        let passing = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        self.least.saturating_add(passing.saturating_mul(2))
    }

    /// An error if the other end has been silent for too long.
    pub(crate) fn check(&self, silent: Duration, bytes: u64) -> Result<(), PerfError> {
        if silent > self.limit(bytes) { Err(self.error(silent)) } else { Ok(()) }
    }

    /// What to say after this much silence.
    pub(crate) fn error(&self, silent: Duration) -> PerfError {
        let Silence { address, udp_port, .. } = self;
        PerfError::Failed(format!(
            "no answer from {address}, UDP port {udp_port}, for {:.1} s, although its TCP connection works: a firewall \
             drops UDP in one direction or both, or the network loses every packet (firewall or loss)",
            silent.as_secs_f64()
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn silence(connection: Connection, rate: Option<u64>) -> Silence {
        Silence::new(connection, IpAddr::V4(Ipv4Addr::LOCALHOST), 4791, rate)
    }

    #[test]
    fn the_limit_grows_with_what_has_to_pass_first() {
        let silence = silence(Connection::Ud, None);
        assert_eq!(silence.limit(0), UNRELIABLE);
        assert_eq!(silence.limit(125_000), UNRELIABLE + Duration::from_secs(2), "a megabit");
        assert!(silence.check(UNRELIABLE, 0).is_ok());
        let error = silence.check(UNRELIABLE * 2, 0).unwrap_err().to_string();
        for words in ["127.0.0.1", "UDP port 4791", "firewall or loss", "20.0 s"] {
            assert!(error.contains(words), "{words}: {error}");
        }
    }

    #[test]
    fn a_rate_below_the_slowest_path_counts_and_one_above_does_not() {
        assert_eq!(silence(Connection::Uc, Some(1000)).limit(125), UNRELIABLE + Duration::from_secs(2));
        assert_eq!(silence(Connection::Rc, Some(u64::MAX)).limit(0), RELIABLE);
        assert!(silence(Connection::Rc, Some(0)).limit(u64::MAX) > RELIABLE, "no overflow");
    }
}
