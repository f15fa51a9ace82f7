//! Schemes by their names, as users write them.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use longhaul_coding::{Code, ParseCodeError};
use thiserror::Error;

use crate::erasure::Erasure;
use crate::scheme::Scheme;
use crate::selective_repeat::SelectiveRepeat;

/// A scheme of this crate, by the name that [`Scheme::name`] gives: `sr:rto`, `sr:nack`, `ec:mds:32,8`, `ec:xor:32,8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NamedScheme {
    /// Selective repeat with timeouts.
    SelectiveRepeat,
    /// Selective repeat with negative acknowledgements.
    NegativeAcknowledgements,
    /// Erasure coding.
    Erasure(Code),
}

/// A name that stands for no scheme.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SchemeNameError {
    /// No such scheme.
    #[error("expected sr:rto, sr:nack, ec:mds:k,m or ec:xor:k,m, came {0:?}")]
    Unknown(String),
    /// Erasure coding, but no code.
    #[error("{name:?}: {source}")]
    Code {
        /// What came.
        name: String,
        /// What is wrong with it.
        source: ParseCodeError,
    },
}

impl NamedScheme {
    /// The scheme itself, with its usual parameters.
    pub fn scheme(self) -> Arc<dyn Scheme> {
        match self {
            NamedScheme::SelectiveRepeat => Arc::new(SelectiveRepeat::default()),
            NamedScheme::NegativeAcknowledgements => Arc::new(SelectiveRepeat::with_negative_acknowledgements()),
            NamedScheme::Erasure(code) => Arc::new(Erasure::new(code)),
        }
    }
}

impl FromStr for NamedScheme {
    type Err = SchemeNameError;

    fn from_str(name: &str) -> Result<Self, SchemeNameError> {
        match name {
            "sr:rto" => Ok(NamedScheme::SelectiveRepeat),
            "sr:nack" => Ok(NamedScheme::NegativeAcknowledgements),
            _ => match name.strip_prefix("ec:").map(str::parse::<Code>) {
                Some(Ok(code)) => Ok(NamedScheme::Erasure(code)),
                Some(Err(source)) => Err(SchemeNameError::Code { name: name.to_owned(), source }),
                None => Err(SchemeNameError::Unknown(name.to_owned())),
            },
        }
    }
}

impl fmt::Display for NamedScheme {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.scheme().name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_schemes_give() {
        for name in ["sr:rto", "sr:nack", "ec:xor:32,8", "ec:mds:4,2"] {
            assert_eq!(name.parse::<NamedScheme>().expect("a scheme").to_string(), name);
        }
        let error = |name: &str| name.parse::<NamedScheme>().expect_err("no scheme").to_string();
        assert_eq!(error("sr"), "expected sr:rto, sr:nack, ec:mds:k,m or ec:xor:k,m, came \"sr\"");
        assert!(error("ec:mds:300,8").starts_with("\"ec:mds:300,8\": "), "{}", error("ec:mds:300,8"));
    }
}
