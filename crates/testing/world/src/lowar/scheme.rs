//! What protects a connection, by the name that users give it.

use std::fmt;
use std::str::FromStr;

use longhaul_shim::{BlockCode, Fec, FecError};

/// What protects a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Scheme {
    /// Nothing but RC's own go-back-N: `rc`.
    Rc,
    /// The shim below RC: `lowar:32,1` is XOR as in the paper, `lowar:mds:64,8` Reed–Solomon; with `auto` the code follows the link.
    Lowar(Fec),
}

impl Scheme {
    /// The forward error correction, if there is any.
    pub fn fec(self) -> Option<Fec> {
        match self {
            Scheme::Rc => None,
            Scheme::Lowar(fec) => Some(fec),
        }
    }

    /// The code of blocks, if there are any; where it follows the link, the one to begin with.
    pub fn code(self) -> Option<BlockCode> {
        self.fec().map(|fec| fec.first_code())
    }

    /// Several, separated by commas, which are within names as well: `rc,lowar:32,1,lowar:mds:64,8`.
    pub fn list(text: &str) -> Result<Vec<Scheme>, FecError> {
        let mut names: Vec<String> = Vec::new();
        for part in text.split(',') {
            // A number of a code, or a bound of one that follows the link.
            let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) || part.contains('=');
            match names.last_mut() {
                Some(name) if is_number => *name = format!("{name},{part}"),
                _ => names.push(part.to_owned()),
            }
        }
        names.iter().map(|name| name.parse()).collect()
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheme::Rc => formatter.write_str("rc"),
            Scheme::Lowar(fec) => fec.fmt(formatter),
        }
    }
}

impl FromStr for Scheme {
    type Err = FecError;

    /// The one place that knows the names.
    fn from_str(name: &str) -> Result<Scheme, FecError> {
        match name {
            "rc" => Ok(Scheme::Rc),
            _ => name.parse().map(Scheme::Lowar),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_commas_stand_in_lists() {
        let schemes = Scheme::list("rc,lowar:32,1,lowar:mds:64,8,auto:mds,overhead=10%,rc").expect("five names");
        let names: Vec<String> = schemes.iter().map(Scheme::to_string).collect();
        assert_eq!(names, ["rc", "lowar:32,1", "lowar:mds:64,8", "auto:mds,overhead=10%", "rc"]);
        for wrong in ["", "rc,", "32,1", "lowar:32", "lowar:32,1,2", "banana"] {
            assert!(Scheme::list(wrong).is_err(), "{wrong}");
        }
    }
}
