//! What was counted, of every layer in one place.

use std::fmt;

/// What was counted, in the order of the layers: `reliable.data_packets_repeated`, `sdr.packets_late`,
/// `device.sent_pkts`. More names may come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    counts: Vec<(String, u64)>,
}

impl Statistics {
    pub(crate) fn add(&mut self, name: impl Into<String>, value: u64) {
        self.counts.push((name.into(), value));
    }

    /// One of them, by its name.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.counts.iter().map(|(name, value)| (name.as_str(), *value))
    }
}

impl FromIterator<(&'static str, u64)> for Statistics {
    fn from_iter<I: IntoIterator<Item = (&'static str, u64)>>(counts: I) -> Self {
        let counts = counts.into_iter().map(|(name, value)| (name.to_owned(), value));
        Statistics { counts: counts.collect() }
    }
}

/// One line each, for people.
impl fmt::Display for Statistics {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        self.iter().try_for_each(|(name, value)| writeln!(formatter, "{name:width$}  {value}"))
    }
}
