//! Schemes by their names, as users write them and as the two ends of a connection compare them.

use std::fmt;
use std::str::FromStr;

use longhaul_coding::{Code, ParseCodeError};
use thiserror::Error;

/// A scheme that a connection can have: `sr:rto`, `sr:nack`, `ec:mds:32,8`, `ec:xor:32,8`, `be`, `be+ec:mds:32,8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NamedScheme {
    /// `sr:rto`: selective repeat with timeouts.
    SelectiveRepeat,
    /// `sr:nack`: selective repeat with negative acknowledgements; the receiver also reports what is missing.
    NegativeAcknowledgements,
    /// `ec:mds:k,m` and `ec:xor:k,m`: erasure coding; what parity cannot repair is asked for.
    Erasure(Code),
    /// `be` and `be+ec:mds:k,m`: best effort; everything is sent once, and what neither arrives nor can be computed is missing.
    BestEffort(Option<Code>),
}

/// A name that stands for no scheme.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SchemeNameError {
    /// No such scheme.
    #[error(
        "unknown scheme \"{0}\"; use sr:rto, sr:nack, ec:mds:K,M, ec:xor:K,M, be or be+ec:mds:K,M, such as ec:mds:32,8"
    )]
    Unknown(String),
    /// Erasure coding, but no code.
    #[error("scheme \"{name}\": {source}")]
    Code {
        /// The whole name.
        name: String,
        /// What is wrong with it.
        source: ParseCodeError,
    },
}

impl FromStr for NamedScheme {
    type Err = SchemeNameError;

    fn from_str(name: &str) -> Result<Self, SchemeNameError> {
        match name {
            "sr:rto" => Ok(NamedScheme::SelectiveRepeat),
            "sr:nack" => Ok(NamedScheme::NegativeAcknowledgements),
            "be" => Ok(NamedScheme::BestEffort(None)),
            _ => {
                let (is_best_effort, code) = match name.strip_prefix("be+") {
                    Some(code) => (true, code),
                    None => (false, name),
                };
                match code.strip_prefix("ec:").map(str::parse::<Code>) {
                    Some(Ok(code)) if is_best_effort => Ok(NamedScheme::BestEffort(Some(code))),
                    Some(Ok(code)) => Ok(NamedScheme::Erasure(code)),
                    Some(Err(source)) => Err(SchemeNameError::Code { name: name.to_owned(), source }),
                    None => Err(SchemeNameError::Unknown(name.to_owned())),
                }
            }
        }
    }
}

impl fmt::Display for NamedScheme {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamedScheme::SelectiveRepeat => formatter.write_str("sr:rto"),
            NamedScheme::NegativeAcknowledgements => formatter.write_str("sr:nack"),
            NamedScheme::Erasure(code) => write!(formatter, "ec:{code}"),
            NamedScheme::BestEffort(None) => formatter.write_str("be"),
            NamedScheme::BestEffort(Some(code)) => write!(formatter, "be+ec:{code}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for name in ["sr:rto", "sr:nack", "ec:xor:32,8", "ec:mds:4,2", "be", "be+ec:mds:32,8", "be+ec:xor:8,2"] {
            assert_eq!(name.parse::<NamedScheme>().expect("a scheme").to_string(), name);
        }
        let error = |name: &str| name.parse::<NamedScheme>().expect_err("no scheme").to_string();
        assert_eq!(
            error("sr"),
            "unknown scheme \"sr\"; use sr:rto, sr:nack, ec:mds:K,M, ec:xor:K,M, be or be+ec:mds:K,M, such as ec:mds:32,8"
        );
        for unknown in ["be+", "be+sr:rto", "be+be", "best"] {
            assert!(error(unknown).starts_with(&format!("unknown scheme \"{unknown}\"")), "{}", error(unknown));
        }
        for wrong in ["ec:mds:300,8", "ec:mds:0,1", "ec:xor:2,3", "ec:mds:a,b", "ec:mds", "be+ec:mds:0,1"] {
            assert!(error(wrong).starts_with(&format!("scheme \"{wrong}\": ")), "{}", error(wrong));
        }
    }
}
