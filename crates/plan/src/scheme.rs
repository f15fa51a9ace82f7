//! Which scheme, with which parameters, and its timers: those of `longhaul-reliable` and of the reliable connection.

use std::fmt;
use std::str::FromStr;

use crate::link::PlanError;

/// How a message is brought over. Names are as in `longhaul-reliable`, and `rc` and `lowar:r,c` for comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Scheme {
    /// `sr:rto`: what is not acknowledged within three round trips is sent again.
    SelectiveRepeat,
    /// `sr:nack`: the receiver also tells what is missing.
    NegativeAcknowledgements,
    /// `ec:mds:k,m` and `ec:xor:k,m`: parity goes along; what it cannot mend is asked for.
    Erasure(Code),
    /// `rc`: a reliable connection, go-back-N.
    GoBackN,
    /// `lowar:r,c`: go-back-N below which a shim sends `c` repair packets with each `r` packets.
    Shim(Code),
}

/// An erasure code's kind and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code {
    /// Which.
    pub kind: CodeKind,
    /// Chunks of data in a submessage.
    pub data: u32,
    /// Chunks of parity for them.
    pub parity: u32,
}

/// What a code can mend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum CodeKind {
    /// Any `parity` losses among all chunks of a submessage.
    Mds,
    /// One loss in each of `parity` interleaved groups.
    Xor,
}

impl Code {
    /// If there is such a code.
    pub fn new(kind: CodeKind, data: u32, parity: u32) -> Result<Self, PlanError> {
        let fits = data > 0 && parity > 0 && data.saturating_add(parity) <= 255;
        match fits && (kind == CodeKind::Mds || parity <= data) {
            true => Ok(Code { kind, data, parity }),
            false => Err(PlanError::Code { data, parity }),
        }
    }
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
    /// Reliable connection.
    GoBackN,
    /// The same over a shim.
    Shim,
}

impl Scheme {
    /// Its kind.
    pub fn family(&self) -> Family {
        match self {
            Scheme::SelectiveRepeat => Family::SelectiveRepeat,
            Scheme::NegativeAcknowledgements => Family::NegativeAcknowledgements,
            Scheme::Erasure(Code { kind: CodeKind::Mds, .. }) => Family::Mds,
            Scheme::Erasure(Code { kind: CodeKind::Xor, .. }) => Family::Xor,
            Scheme::GoBackN => Family::GoBackN,
            Scheme::Shim(_) => Family::Shim,
        }
    }

    /// Whether a connection of `longhaul-reliable` can use it; the others are there for comparison.
    pub fn is_available(&self) -> bool {
        !matches!(self, Scheme::GoBackN | Scheme::Shim(_))
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheme::SelectiveRepeat => formatter.write_str("sr:rto"),
            Scheme::NegativeAcknowledgements => formatter.write_str("sr:nack"),
            Scheme::Erasure(Code { kind: CodeKind::Mds, data, parity }) => write!(formatter, "ec:mds:{data},{parity}"),
            Scheme::Erasure(Code { kind: CodeKind::Xor, data, parity }) => write!(formatter, "ec:xor:{data},{parity}"),
            Scheme::GoBackN => formatter.write_str("rc"),
            Scheme::Shim(Code { data, parity, .. }) => write!(formatter, "lowar:{data},{parity}"),
        }
    }
}

impl FromStr for Scheme {
    type Err = PlanError;

    fn from_str(name: &str) -> Result<Self, PlanError> {
        let unknown = || PlanError::SchemeName(name.to_owned());
        let code = |kind, text: &str| {
            let (data, parity) = text.split_once(',').ok_or_else(unknown)?;
            let number = |text: &str| text.trim().parse::<u32>().map_err(|_| unknown());
            Code::new(kind, number(data)?, number(parity)?)
        };
        match name {
            "sr:rto" => Ok(Scheme::SelectiveRepeat),
            "sr:nack" => Ok(Scheme::NegativeAcknowledgements),
            "rc" => Ok(Scheme::GoBackN),
            _ => match name.rsplit_once(':') {
                Some(("ec:mds", text)) => code(CodeKind::Mds, text).map(Scheme::Erasure),
                Some(("ec:xor", text)) => code(CodeKind::Xor, text).map(Scheme::Erasure),
                Some(("lowar", text)) => code(CodeKind::Xor, text).map(Scheme::Shim),
                _ => Err(unknown()),
            },
        }
    }
}

/// Timers of hosts are not exact; timeouts are not shorter than this.
const TIMEOUT_MIN_SECONDS: f64 = 1e-3;
/// Feedback is not more frequent than this.
const PERIOD_MIN_SECONDS: f64 = 50e-6;
/// So many packets may overtake one before it is told to be missing, and one more tells it.
pub(crate) const OVERTAKING_PACKETS: u64 = 65;

/// What the protocols wait for, from the round trip.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timers {
    pub(crate) round_trip: f64,
    /// From a packet's leaving to its repetition, with timeouts: three round trips.
    pub(crate) timeout: f64,
    /// How long a gap may wait to be told: feedback is paced.
    pub(crate) telling: f64,
    /// When nothing has come for so long, all that is missing is told.
    pub(crate) silence: f64,
    /// When nothing has come for so long, erasure coding falls back to asking.
    pub(crate) fallback: f64,
    /// That a message is done is told three times, so far apart.
    pub(crate) done_apart: f64,
    /// When all of them were lost, the sender asks after about so long.
    pub(crate) asking: f64,
}

impl Timers {
    pub(crate) fn new(round_trip: f64) -> Self {
        Timers {
            round_trip,
            timeout: (3.0 * round_trip).max(TIMEOUT_MIN_SECONDS),
            telling: (round_trip / 32.0).max(PERIOD_MIN_SECONDS),
            silence: (round_trip / 4.0).max(PERIOD_MIN_SECONDS),
            fallback: round_trip.max(TIMEOUT_MIN_SECONDS),
            done_apart: round_trip / 32.0,
            asking: (1.5 * round_trip).max(TIMEOUT_MIN_SECONDS),
        }
    }

    /// How much later than its first telling the sender hears that a message is done, when the first `lost` tellings were lost.
    pub(crate) fn done_delay(&self, lost: u32) -> f64 {
        match lost {
            0..=2 => f64::from(lost) * self.done_apart,
            _ => f64::from(lost - 2) * (self.asking + self.round_trip),
        }
    }
}

/// The timeout of a reliable connection: 4.096 µs times a power of two, the first that is at least twice the least time of a message.
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
