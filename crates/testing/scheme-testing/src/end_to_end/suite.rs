//! The suite: links × schemes × sizes, the same on every ground.

use std::sync::Arc;

use longhaul_impair::{Loss, Profile};
use longhaul_reliable::{Scheme, SchemeNameError, scheme_named};
use longhaul_time::Duration;
use thiserror::Error;

use super::case::{Case, CaseError, CaseRunner, Outcome};
use super::twice::Twice;

/// Names of the schemes that take part: every one of `longhaul-reliable`, and one that was made up here.
const SCHEMES: [&str; 6] = ["sr:rto", "sr:nack", "ec:mds:32,8", "ec:xor:32,8", "ec:mds:4,2", "twice"];

/// A link by name.
#[derive(Clone, Debug)]
pub struct Link {
    /// In names of checks.
    pub name: &'static str,
    /// What it does to packets; `None`: the ground as it is, with nothing in between.
    pub profile: Option<Profile>,
}

/// Links of a millisecond, from good to very bad.
pub fn links() -> Vec<Link> {
    let good = || {
        Profile::default().with_propagation_delay(Duration::from_micros(500)).with_rate_bits_per_second(40_000_000_000)
    };
    let loss = |probability| good().with_loss(Loss::Independent { probability });
    let link = |name, profile| Link { name, profile: Some(profile) };
    vec![
        link("perfect", good()),
        link("loss-1e-3", loss(1e-3)),
        link("loss-1e-2", loss(1e-2)),
        link("loss-1e-1", loss(1e-1)),
        link("bursts", good().with_loss(Loss::bursts(0.02, 8.0))),
        link("reordering", loss(1e-2).with_reordering(0.1, Duration::from_micros(200))),
        link("duplication", loss(1e-2).with_duplication(0.2).with_jitter(Duration::from_micros(30), false)),
    ]
}

/// The schemes that take part.
pub fn schemes() -> Vec<Arc<dyn Scheme>> {
    SCHEMES.map(|name| scheme_by_name(name).expect("a scheme of the suite has a name")).into()
}

/// A scheme by its name: those of `longhaul-reliable`, and `twice`.
pub fn scheme_by_name(name: &str) -> Result<Arc<dyn Scheme>, SchemeNameError> {
    match name {
        "twice" => Ok(Arc::new(Twice)),
        _ => Ok(scheme_named(name.parse()?)),
    }
}

/// Every case over every link with every scheme.
#[derive(Clone)]
pub struct Suite {
    /// Over these.
    pub links: Vec<Link>,
    /// With these.
    pub schemes: Vec<Arc<dyn Scheme>>,
    /// One after the other, over one connection of each link and scheme.
    pub cases: Vec<Case>,
}

/// What went wrong, and where.
#[derive(Debug, Error)]
#[error("{link}/{scheme}/{message_bytes}: {source}")]
pub struct SuiteError {
    /// Over this link.
    pub link: &'static str,
    /// With this scheme.
    pub scheme: String,
    /// In messages of this size.
    pub message_bytes: usize,
    /// What.
    pub source: CaseError,
}

/// What has been sent, and what it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Messages that arrived, and were verified.
    pub messages: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Packets of data that were sent, repeated ones included.
    pub data_packets_sent: u64,
    /// Repeated ones.
    pub data_packets_repeated: u64,
    /// Packets of parity.
    pub parity_packets_sent: u64,
    /// Chunks that were computed from parity.
    pub chunks_recovered: u64,
    /// Packets that arrived more than once.
    pub duplicate_packets: u64,
}

impl Figures {
    /// Adds the outcome of a case.
    pub fn add(&mut self, outcome: &Outcome) {
        for sent in &outcome.sent {
            self.data_packets_sent += sent.data_packets_sent;
            self.data_packets_repeated += sent.data_packets_repeated;
            self.parity_packets_sent += sent.parity_packets_sent;
        }
        for received in &outcome.received {
            self.messages += 1;
            self.bytes += received.message_bytes;
            self.chunks_recovered += received.chunks_recovered;
            self.duplicate_packets += received.duplicate_packets;
        }
    }
}

impl Suite {
    /// Sizes of the whole suite: nothing, around a packet, and up to 64 MiB.
    pub const SIZES: [usize; 10] = [0, 1, 4095, 4096, 4097, 65_536, 1 << 20, 4 << 20, 16 << 20, 64 << 20];

    /// This many messages of each size, over every link with every scheme.
    pub fn new(messages: usize, sizes: &[usize]) -> Self {
        // A minute a message is more than any of them needs.
        let limit = Duration::from_secs(60 * messages as u64);
        let case = |&bytes: &usize| Case { limit, ..Case::new(messages, bytes) };
        Suite { links: links(), schemes: schemes(), cases: sizes.iter().map(case).collect() }
    }

    /// Memory that an end needs, and no more than it can have: the largest messages go one by one.
    pub fn memory_bytes(&self) -> usize {
        let places = |case: &Case| {
            let place = case.message_bytes + case.slack_bytes;
            (place * case.in_flight).min(64 << 20).max(place)
        };
        self.cases.iter().map(places).max().unwrap_or(0).max(4096)
    }

    /// Run all of it, each link and scheme on a ground of its own that `open` makes. `done` is called for every case;
    /// what it says to an error is whether to go on with the next link and scheme.
    pub fn run<G: CaseRunner>(
        &self,
        mut open: impl FnMut(&Link, &Arc<dyn Scheme>) -> Result<G, CaseError>,
        mut done: impl FnMut(&Link, &str, &Case, Result<&Outcome, SuiteError>) -> Result<(), SuiteError>,
    ) -> Result<(), SuiteError> {
        for link in &self.links {
            for scheme in &self.schemes {
                let name = scheme.name();
                let place = |case: &Case, source| SuiteError {
                    link: link.name,
                    scheme: name.clone(),
                    message_bytes: case.message_bytes,
                    source,
                };
                let Some(first) = self.cases.first() else { continue };
                let mut ground = match open(link, scheme) {
                    Ok(ground) => ground,
                    Err(source) => {
                        done(link, &name, first, Err(place(first, source)))?;
                        continue;
                    }
                };
                for case in &self.cases {
                    match ground.run_case(case) {
                        Ok(outcome) => done(link, &name, case, Ok(&outcome))?,
                        Err(source) => {
                            done(link, &name, case, Err(place(case, source)))?;
                            break;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
