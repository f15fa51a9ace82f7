//! Forward error correction by the name that users give: a code, or that it follows the link.

use std::fmt;
use std::str::FromStr;

use longhaul_coding::CodeKind;

use longhaul_time::Duration;

use super::auto::Auto;
use crate::config::{BlockCode, BlockCodeError, Config, Lowar};

/// A report for each flow, at most.
const REPORTS_EVERY: Duration = Duration::from_millis(5);

impl Auto {
    /// The code until something was reported, a round trip: good for 1e-3 with XOR and for 1e-2 with MDS, because a loss that is not
    /// repaired costs a round trip too; or one repair packet for each block if no more is allowed.
    pub fn first_code(&self) -> BlockCode {
        let kind = self.family.unwrap_or(CodeKind::Mds);
        let (block, repair) = if kind == CodeKind::Xor { (8, 1) } else { (64, 6) };
        let (block, repair) = match f64::from(repair) <= self.overhead_max * f64::from(block) {
            true => (block, repair),
            false => ((1.0 / self.overhead_max).ceil().min(254.0) as u8, 1),
        };
        BlockCode::new(kind, block, repair).expect("at most 254 packets and few repair packets")
    }
}

impl Config {
    /// With a code that follows the link, and reports for a peer that is configured alike.
    pub fn following(auto: Auto) -> Config {
        let reports_every = Some(REPORTS_EVERY);
        Config { auto: Some(auto), reports_every, ..Config::new(auto.first_code()) }
    }

    /// With the forward error correction that a user asks for.
    pub fn of(fec: &Fec) -> Config {
        match fec {
            Fec::Fixed(Lowar(code)) => Config::new(*code),
            Fec::Auto(auto) => Config::following(*auto),
        }
    }
}

/// Forward error correction as users ask for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fec {
    /// This code.
    Fixed(Lowar),
    /// What the link needs.
    Auto(Auto),
}

/// Why there is no such forward error correction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FecError {
    /// Not a code.
    #[error(transparent)]
    Code(#[from] BlockCodeError),
    /// Not a way to follow the link.
    #[error(
        "\"{0}\" is not how a code can follow the link; use auto, auto:xor or auto:mds, with overhead=PERCENT (above 0, at most \
         100 %) and unrepaired=SHARE (such as 1e-7) behind commas if wanted, such as auto:mds,overhead=10%"
    )]
    Auto(String),
}

impl Fec {
    /// The code that is agreed on: with [`Fec::Auto`] the one to begin with.
    pub fn first_code(&self) -> BlockCode {
        match self {
            Fec::Fixed(Lowar(code)) => *code,
            Fec::Auto(auto) => auto.first_code(),
        }
    }
}

impl fmt::Display for Fec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fec::Fixed(lowar) => lowar.fmt(formatter),
            Fec::Auto(auto) => auto.fmt(formatter),
        }
    }
}

impl FromStr for Fec {
    type Err = FecError;

    fn from_str(text: &str) -> Result<Fec, FecError> {
        let Some(bounds) = text.strip_prefix("auto") else {
            return Ok(Fec::Fixed(text.parse()?));
        };
        let parsed = || {
            let mut parts = bounds.split(',');
            let family = match parts.next()? {
                "" => None,
                ":xor" => Some(CodeKind::Xor),
                ":mds" => Some(CodeKind::Mds),
                _ => return None,
            };
            let mut auto = Auto { family, ..Auto::default() };
            for part in parts {
                let (name, value) = part.split_once('=')?;
                match name {
                    "overhead" => {
                        auto.overhead_max = value.strip_suffix('%').unwrap_or(value).parse::<f64>().ok()? / 100.0;
                    }
                    "unrepaired" => auto.unrepaired_max = Some(value.parse().ok()?),
                    _ => return None,
                }
            }
            auto.is_possible().then_some(auto)
        };
        parsed().map(Fec::Auto).ok_or_else(|| FecError::Auto(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for text in ["auto", "auto:xor", "auto:mds", "auto:mds,overhead=10%", "auto,unrepaired=1e-7", "lowar:32,1"] {
            let fec: Fec = text.parse().unwrap();
            assert_eq!(fec.to_string(), text);
        }
        let both: Fec = "auto:xor,overhead=12.5,unrepaired=0.001".parse().unwrap();
        assert_eq!(both.to_string(), "auto:xor,overhead=12.5%,unrepaired=1e-3");
        for text in ["auto:rs", "automatic", "auto,overhead=0", "auto,overhead=150%", "auto,overhead=NaN", "auto,x=1"] {
            assert_eq!(text.parse::<Fec>(), Err(FecError::Auto(text.to_owned())));
        }
        for text in ["auto,unrepaired=0", "auto,unrepaired=2", "auto,", "auto:mds:64,8"] {
            assert_eq!(text.parse::<Fec>(), Err(FecError::Auto(text.to_owned())));
        }
        assert!(matches!("xor".parse::<Fec>(), Err(FecError::Code(_))));
    }

    #[test]
    fn the_first_code_keeps_to_the_bound() {
        for (text, code) in [
            ("auto", "mds:64,6"),
            ("auto:xor", "xor:8,1"),
            ("auto:mds,overhead=1%", "mds:100,1"),
            ("auto:xor,overhead=0.1%", "xor:254,1"),
        ] {
            assert_eq!(text.parse::<Fec>().unwrap().first_code().to_string(), code, "{text}");
        }
    }
}
