//! Controllers by their names, as users write them.

use std::fmt;
use std::str::FromStr;

use longhaul_units::{QuantityError, rate};
use thiserror::Error;

use crate::controller::{Controller, PathFacts};
use crate::credit::Credit;
use crate::dcqcn::Dcqcn;
use crate::fixed::FixedRate;
use crate::swift::Swift;
use crate::wan::Wan;

/// A controller that a connection can have: `wan`, `dcqcn`, `swift`, `credit`, `fixed:1G`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum ControllerName {
    /// `fixed:RATE`: this rate in bits per second, whatever happens.
    Fixed(u64),
    /// `dcqcn`: for private fabrics with ECN marks and congestion notification packets.
    Dcqcn,
    /// `swift`: for private fabrics, by delay alone.
    Swift,
    /// `credit`: for fan-in to one host; the receiver grants its senders credit in turn.
    Credit,
    /// `wan`: finds the bandwidth of a path by itself, and does not take random loss for congestion.
    #[default]
    Wan,
}

/// A name that stands for no controller.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ControllerNameError {
    /// No such controller.
    #[error("unknown congestion control \"{0}\"; use wan, dcqcn, swift, credit or fixed:RATE, such as fixed:1G")]
    Unknown(String),
    /// A rate that is none.
    #[error("congestion control \"{name}\": {source}")]
    Rate {
        /// The whole name.
        name: String,
        /// What is wrong with it.
        source: QuantityError,
    },
}

impl ControllerName {
    /// A controller at its start.
    pub fn controller(self, facts: &PathFacts) -> Box<dyn Controller> {
        match self {
            ControllerName::Fixed(bits_per_second) => Box::new(FixedRate(bits_per_second)),
            ControllerName::Dcqcn => Box::new(Dcqcn::new(facts)),
            ControllerName::Swift => Box::new(Swift::new(facts)),
            ControllerName::Credit => Box::new(Credit::new(facts)),
            ControllerName::Wan => Box::new(Wan::new(facts)),
        }
    }
}

impl FromStr for ControllerName {
    type Err = ControllerNameError;

    fn from_str(name: &str) -> Result<Self, ControllerNameError> {
        match (name, name.strip_prefix("fixed:")) {
            ("dcqcn", _) => Ok(ControllerName::Dcqcn),
            ("swift", _) => Ok(ControllerName::Swift),
            ("credit", _) => Ok(ControllerName::Credit),
            ("wan", _) => Ok(ControllerName::Wan),
            (_, Some(text)) => match rate(text) {
                Ok(bits_per_second) => Ok(ControllerName::Fixed(bits_per_second)),
                Err(source) => Err(ControllerNameError::Rate { name: name.to_owned(), source }),
            },
            _ => Err(ControllerNameError::Unknown(name.to_owned())),
        }
    }
}

impl fmt::Display for ControllerName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControllerName::Fixed(bits_per_second) => write!(formatter, "fixed:{bits_per_second}"),
            ControllerName::Dcqcn => formatter.write_str("dcqcn"),
            ControllerName::Swift => formatter.write_str("swift"),
            ControllerName::Credit => formatter.write_str("credit"),
            ControllerName::Wan => formatter.write_str("wan"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["wan", "dcqcn", "swift", "credit", "fixed:1000000"] {
            assert_eq!(name.parse::<ControllerName>().expect("a controller").to_string(), name);
        }
        assert_eq!("fixed:2.5G".parse(), Ok(ControllerName::Fixed(2_500_000_000)));
        let error = |name: &str| name.parse::<ControllerName>().expect_err("no controller").to_string();
        assert!(error("cubic").starts_with("unknown congestion control \"cubic\"; use "), "{}", error("cubic"));
        for name in ["wan", "dcqcn", "swift", "credit", "fixed:RATE"] {
            assert!(error("cubic").contains(name), "{}", error("cubic"));
        }
        assert!(error("fixed:fast").starts_with("congestion control \"fixed:fast\": "), "{}", error("fixed:fast"));
    }
}
