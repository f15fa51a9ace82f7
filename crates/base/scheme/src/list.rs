//! The schemes that the messages of a connection may have.

use std::fmt;
use std::str::FromStr;

use crate::name::{NamedScheme, SchemeNameError};

/// Schemes that the messages of a connection may have, such as `sr:nack,ec:mds:32,8,be`; messages that name none have the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemeList {
    first: NamedScheme,
    others: Vec<NamedScheme>,
}

impl SchemeList {
    /// That of messages that name none.
    pub fn first(&self) -> NamedScheme {
        self.first
    }

    /// The others.
    pub fn others(&self) -> &[NamedScheme] {
        &self.others
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = NamedScheme> + '_ {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }
}

impl From<NamedScheme> for SchemeList {
    fn from(first: NamedScheme) -> Self {
        SchemeList { first, others: Vec::new() }
    }
}

impl FromStr for SchemeList {
    type Err = SchemeNameError;

    fn from_str(names: &str) -> Result<Self, SchemeNameError> {
        // Names have commas, too, but after those comes a number.
        let begins_name = |(at, _): &(usize, &str)| !names[at + 1..].starts_with(|next: char| next.is_ascii_digit());
        let mut begin = 0;
        let mut list = Vec::new();
        for (comma, _) in names.match_indices(',').filter(begins_name) {
            list.push(names[begin..comma].parse()?);
            begin = comma + 1;
        }
        let last = names[begin..].parse()?;
        let mut all = list.into_iter().chain(std::iter::once(last));
        let Some(first) = all.next() else { return Err(SchemeNameError::Unknown(names.to_owned())) };
        Ok(SchemeList { first, others: all.collect() })
    }
}

impl fmt::Display for SchemeList {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(formatter)?;
        self.others.iter().try_for_each(|other| write!(formatter, ",{other}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_they_are_written() {
        for names in ["sr:nack", "ec:mds:32,8", "sr:nack,ec:mds:32,2,be", "be+ec:mds:4,2,ec:xor:4,2,sr:rto"] {
            let list: SchemeList = names.parse().expect("schemes");
            assert_eq!((list.to_string(), list.iter().count()), (names.to_owned(), 1 + list.others().len()));
        }
        let list: SchemeList = "be,ec:mds:32,8,sr:rto".parse().expect("schemes");
        assert_eq!((list.first(), list.others().len()), (NamedScheme::BestEffort(None), 2));
        for wrong in ["", ",", "be,", ",be", "be,,be", "be,8", "ec:mds:32,be", "be,maybe"] {
            assert!(wrong.parse::<SchemeList>().is_err(), "{wrong}");
        }
    }
}
