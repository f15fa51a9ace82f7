//! Which scheme, with which parameters, and its timers: those of `longhaul-reliable` and of the reliable connection.

use std::fmt;
use std::str::FromStr;

use longhaul_scheme::timers::{
    self, ALPHA, BETA, DONE_REPORTS, DONE_TIMES, GAP_REPORTS, Period, REORDERING_PACKETS, SILENCE, TIMEOUT_MIN,
};
use longhaul_scheme::{Code, CodeKind, NamedScheme, ParseCodeError, SchemeNameError};

use crate::link::PlanError;

/// How a message is brought over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Scheme {
    /// A scheme of `longhaul-reliable`.
    Reliable(NamedScheme),
    /// `rc`, for comparison: a reliable connection, go-back-N.
    GoBackN,
    /// `lowar:r,c`, for comparison: go-back-N below which a shim sends `c` repair packets with each `r` packets, as an
    /// XOR code does.
    Shim(Code),
}

/// Schemes that are one kind, whatever their parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Family {
    /// With timeouts.
    SelectiveRepeat,
    /// With negative acknowledgements.
    NegativeAcknowledgements,
    /// Reed–Solomon.
    Mds,
    /// Exclusive or.
    Xor,
    /// Best effort.
    BestEffort,
    /// Reliable connection.
    GoBackN,
    /// The same over a shim.
    Shim,
}

impl Scheme {
    /// Its kind.
    pub fn family(&self) -> Family {
        match self {
            Scheme::Reliable(NamedScheme::SelectiveRepeat) => Family::SelectiveRepeat,
            Scheme::Reliable(NamedScheme::NegativeAcknowledgements) => Family::NegativeAcknowledgements,
            Scheme::Reliable(NamedScheme::Erasure(code)) => match code.kind() {
                CodeKind::Mds => Family::Mds,
                CodeKind::Xor => Family::Xor,
            },
            Scheme::Reliable(NamedScheme::BestEffort(_)) => Family::BestEffort,
            Scheme::GoBackN => Family::GoBackN,
            Scheme::Shim(_) => Family::Shim,
        }
    }

    /// Its code, if it is erasure coding.
    pub fn erasure_code(&self) -> Option<Code> {
        match *self {
            Scheme::Reliable(NamedScheme::Erasure(code)) => Some(code),
            Scheme::Reliable(NamedScheme::BestEffort(code)) => code,
            _ => None,
        }
    }

    /// Whether a connection of `longhaul-reliable` can use it; the others are there for comparison.
    pub fn is_available(&self) -> bool {
        matches!(self, Scheme::Reliable(_))
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheme::Reliable(name) => name.fmt(formatter),
            Scheme::GoBackN => formatter.write_str("rc"),
            Scheme::Shim(code) => write!(formatter, "lowar:{},{}", code.data_chunks(), code.parity_chunks()),
        }
    }
}

impl FromStr for Scheme {
    type Err = PlanError;

    fn from_str(name: &str) -> Result<Self, PlanError> {
        let refused = |error: ParseCodeError| match error {
            ParseCodeError::Code(error) => PlanError::Code(error),
            _ => PlanError::SchemeName(name.to_owned()),
        };
        match (name, name.strip_prefix("lowar:")) {
            ("rc", _) => Ok(Scheme::GoBackN),
            (_, Some(counts)) => format!("xor:{counts}").parse().map(Scheme::Shim).map_err(refused),
            _ => name.parse().map(Scheme::Reliable).map_err(|error| match error {
                SchemeNameError::Code { source, .. } => refused(source),
                _ => PlanError::SchemeName(name.to_owned()),
            }),
        }
    }
}

/// The model has a smaller minimum than the protocol, so the two differ below a round trip of 4 ms, where the protocol
/// waits for 1 ms.
const MODEL_SILENCE: Period = Period { least: GAP_REPORTS.least, ..SILENCE };
/// The packets that may overtake one before it is reported missing, and one more that shows it.
pub(crate) const OVERTAKING_PACKETS: u64 = REORDERING_PACKETS as u64 + 1;

/// What the protocols wait for, from the round trip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timers {
    pub(crate) round_trip: f64,
    /// From a packet's leaving to its repetition, with timeouts.
    pub(crate) timeout: f64,
    /// How long a gap may wait to be reported: feedback is paced.
    pub(crate) report_delay: f64,
    /// After this long without a packet, everything missing is reported.
    pub(crate) silence: f64,
    /// When nothing has come for so long, erasure coding falls back to asking.
    pub(crate) fallback: f64,
    /// The completion of a message is reported several times, this far apart.
    pub(crate) done_apart: f64,
    /// When all of them were lost, the sender asks after about so long.
    pub(crate) asking: f64,
}

impl Timers {
    pub(crate) fn new(round_trip: f64) -> Self {
        Timers {
            round_trip,
            timeout: timers::retransmission(ALPHA, TIMEOUT_MIN).seconds(round_trip),
            report_delay: GAP_REPORTS.seconds(round_trip),
            silence: MODEL_SILENCE.seconds(round_trip),
            fallback: timers::fallback(BETA, TIMEOUT_MIN).seconds(round_trip),
            done_apart: DONE_REPORTS.seconds(round_trip),
            asking: (1.5 * round_trip).max(TIMEOUT_MIN.as_secs_f64()),
        }
    }

    /// How much later than the first report the sender learns that a message is done, when the first `lost` reports
    /// were lost.
    pub(crate) fn done_delay(&self, lost: u32) -> f64 {
        match lost {
            0..DONE_TIMES => f64::from(lost) * self.done_apart,
            _ => f64::from(lost - (DONE_TIMES - 1)) * (self.asking + self.round_trip),
        }
    }
}

/// The timeout of a reliable connection: 4.096 µs times a power of two, the first that is at least twice the least time
/// of a message.
pub(crate) fn reliable_timeout(least_seconds: f64) -> f64 {
    (0..31)
        .map(|exponent| 4.096e-6 * f64::from(1_u32 << exponent))
        .find(|timeout| *timeout >= 2.0 * least_seconds)
        .unwrap_or(8796.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["sr:rto", "sr:nack", "ec:mds:32,8", "ec:xor:32,8", "rc", "lowar:64,8"] {
            assert_eq!(name.parse::<Scheme>().expect("a scheme").to_string(), name);
        }
        for wrong in ["", "sr", "ec:mds:0,1", "ec:mds:250,8", "ec:xor:2,3", "lowar:1", "ec:mds:a,b"] {
            assert!(wrong.parse::<Scheme>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_reliable_connections_timeout_is_a_power_of_two() {
        assert!((reliable_timeout(27.7e-3) - 67.1e-3).abs() < 1e-4);
        assert!((reliable_timeout(0.0) - 4.096e-6).abs() < 1e-12);
    }
}
