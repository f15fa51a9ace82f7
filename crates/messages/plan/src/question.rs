//! A question about a link and a message, and an answer that a command can print: one row for each scheme, and a
//! recommendation.
//!
//! What is left open (the chunk, the code) is chosen for each scheme by trying: see [`CODES`] and [`CHUNK_PACKETS`].
//! The preference is the same as between schemes, see [`crate::recommendation`].

use std::fmt;
use std::str::FromStr;

use longhaul_scheme::timers::{ALPHA, BETA};
use longhaul_scheme::{Code, CodeKind, NamedScheme};

use crate::bounded::{Arrived, arrived_by};
use crate::distribution::{Distribution, Summary};
use crate::link::{Link, PlanError};
use crate::model::Case;
use crate::recommendation::{Recommendation, TAIL_SHARE, Tie, prefer, recommend};
use crate::ring::{DRAWS, RING_SITES, ring};
use crate::scheme::Scheme;

/// The codes that are tried where a code is left open: data and parity chunks.
pub const CODES: [(usize, usize); 9] = [(8, 2), (8, 4), (16, 4), (16, 8), (32, 2), (32, 4), (32, 8), (32, 16), (64, 8)];
/// The chunks that are tried where the chunk is left open, in packets.
pub const CHUNK_PACKETS: [u32; 5] = [1, 2, 4, 8, 16];
/// Every question has the same answer every time.
const RING_SEED: u64 = 1;

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The link.
    pub link: Link,
    /// Bytes of a message, or of the buffer that a ring reduces.
    pub message_bytes: u64,
    /// Bytes of a chunk; chosen for each scheme if it is left open.
    pub chunk_bytes: Option<u32>,
    /// What is compared.
    pub candidates: Vec<Candidate>,
    /// A ring all-reduce over this many sites instead of one message.
    pub ring_sites: Option<u32>,
    /// How much is done by then?
    pub deadline_seconds: Option<f64>,
    /// How fast one core codes.
    pub coding: CodingSpeed,
    /// What is to be short.
    pub objective: Objective,
}

/// A scheme, or a kind of scheme whose code is left open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Candidate {
    /// This one.
    Scheme(Scheme),
    /// Erasure coding with the best code of a kind.
    AnyCode(CodeKind),
}

impl FromStr for Candidate {
    type Err = PlanError;

    fn from_str(name: &str) -> Result<Self, PlanError> {
        match name {
            "ec:mds" => Ok(Candidate::AnyCode(CodeKind::Mds)),
            "ec:xor" => Ok(Candidate::AnyCode(CodeKind::Xor)),
            _ => name.parse().map(Candidate::Scheme),
        }
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Candidate::Scheme(scheme) => scheme.fmt(formatter),
            Candidate::AnyCode(kind) => write!(formatter, "ec:{kind}"),
        }
    }
}

/// What a recommendation makes short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Objective {
    /// The mean: throughput of many messages.
    #[default]
    Mean,
    /// What 99 of 100 messages take no longer than.
    P99,
    /// What 999 of 1000 messages take no longer than: where many wait for the slowest.
    P999,
}

impl Objective {
    pub(crate) fn of(self, summary: &Summary) -> f64 {
        match self {
            Objective::Mean => summary.mean,
            Objective::P99 => summary.p99,
            Objective::P999 => summary.p999,
        }
    }
}

/// Bytes of data that one core codes in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodingSpeed {
    /// Reed–Solomon with 8 parity chunks; the work grows with their number, from that of exclusive or on.
    pub mds_bytes_per_second: f64,
    /// Exclusive or: each byte once, whatever the number of parity chunks.
    pub xor_bytes_per_second: f64,
}

impl Default for CodingSpeed {
    /// About what one core of a current server does; measure your own.
    fn default() -> Self {
        CodingSpeed { mds_bytes_per_second: 6.8e9, xor_bytes_per_second: 12e9 }
    }
}

/// The answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// One for each candidate that can be used, in their order.
    pub rows: Vec<Row>,
    /// Candidates that cannot, each with the reason.
    pub refused: Vec<(Candidate, PlanError)>,
    /// Which one to take.
    pub recommendation: Recommendation,
    /// What has arrived at the deadline when everything is sent once; for a question with a deadline and without a
    /// ring.
    pub arrived_once: Option<Arrived>,
}

impl Answer {
    /// The row of what is recommended.
    pub fn recommended(&self) -> Option<&Row> {
        self.rows.iter().find(|row| self.is_recommended(row))
    }

    /// Whether a row is the recommended one.
    pub fn is_recommended(&self, row: &Row) -> bool {
        let Recommendation { scheme, chunk_bytes, .. } = &self.recommendation;
        (row.scheme, row.chunk_bytes) == (*scheme, *chunk_bytes)
    }
}

/// What a scheme does.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Which, its code chosen.
    pub scheme: Scheme,
    /// Given, or chosen.
    pub chunk_bytes: u32,
    /// Completion time, in seconds.
    pub completion: Summary,
    /// The whole of it.
    pub distribution: Distribution,
    /// Mean over the least possible on this link without loss: bytes over rate, and a round trip (of each stage).
    pub slowdown: f64,
    /// Parity and repetitions, as a share of the message's bytes.
    pub extra_bandwidth: f64,
    /// Cores that code at the link's rate.
    pub cores: f64,
    /// Bytes that must be kept until they are known to have arrived.
    pub window_bytes: f64,
    /// Share of messages done within the deadline, if there is one.
    pub within_deadline: Option<f64>,
}

impl Question {
    /// All schemes, everything else left open.
    pub fn new(link: Link, message_bytes: u64) -> Self {
        let candidates = vec![
            Candidate::Scheme(Scheme::Reliable(NamedScheme::SelectiveRepeat)),
            Candidate::Scheme(Scheme::Reliable(NamedScheme::NegativeAcknowledgements)),
            Candidate::AnyCode(CodeKind::Mds),
            Candidate::AnyCode(CodeKind::Xor),
            Candidate::Scheme(Scheme::GoBackN),
            Candidate::Scheme(Scheme::Shim(Code::xor(32, 1).expect("a code"))),
        ];
        Question {
            link,
            message_bytes,
            chunk_bytes: None,
            candidates,
            ring_sites: None,
            deadline_seconds: None,
            coding: CodingSpeed::default(),
            objective: Objective::default(),
        }
    }

    /// The answer.
    pub fn answer(&self) -> Result<Answer, PlanError> {
        self.link.check(self.message_bytes, self.chunk_bytes.unwrap_or(self.link.packet_bytes))?;
        // Here rather than for each scheme: none of them is to blame.
        if let Some(sites) = self.ring_sites.filter(|sites| !RING_SITES.contains(sites)) {
            return Err(PlanError::Ring(sites));
        }
        let (mut rows, mut refused) = (Vec::new(), Vec::new());
        for (&candidate, row) in self.candidates.iter().zip(self.rows()) {
            match row {
                Ok(row) => rows.push(row),
                Err(error) => refused.push((candidate, error)),
            }
        }
        let recommendation = recommend(self, &rows).ok_or_else(|| {
            let why = refused.first().map_or("there was none".to_owned(), |(_, error)| error.to_string());
            PlanError::NoScheme(why)
        })?;
        let arrived_once = match (self.deadline_seconds, self.ring_sites) {
            (Some(deadline), None) => Some(arrived_by(&self.link, self.message_bytes, deadline)?),
            _ => None,
        };
        Ok(Answer { rows, refused, recommendation, arrived_once })
    }

    /// One for each candidate. Rings are sampled, which takes long enough for threads to be worth it.
    fn rows(&self) -> Vec<Result<Row, PlanError>> {
        let row_of = |candidate: &Candidate| self.best_of(*candidate).and_then(|row| self.in_ring(row));
        if self.ring_sites.is_none() {
            return self.candidates.iter().map(row_of).collect();
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                self.candidates.iter().map(|candidate| scope.spawn(move || row_of(candidate))).collect();
            let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined.map(|row| row.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        })
    }

    /// Stages, one after the other; a message on its own is one.
    pub fn stages(&self) -> u32 {
        self.ring_sites.map_or(1, |sites| sites.saturating_sub(1).saturating_mul(2))
    }

    /// The least time without loss: bytes over rate, and a round trip, of each stage.
    pub fn least_seconds(&self) -> f64 {
        f64::from(self.stages()) * self.link.least_seconds(self.stage_bytes())
    }

    /// Bytes of one message: a ring sends the buffer in parts.
    pub fn stage_bytes(&self) -> u64 {
        self.message_bytes.div_ceil(self.ring_sites.unwrap_or(1).max(1).into())
    }

    /// Messages of a ring: each site sends one in each stage.
    fn ring_messages(&self) -> f64 {
        f64::from(self.ring_sites.unwrap_or(1)) * f64::from(self.stages().max(1))
    }

    /// A candidate with what it left open chosen.
    fn best_of(&self, candidate: Candidate) -> Result<Row, PlanError> {
        let schemes: Vec<Scheme> = match candidate {
            Candidate::Scheme(scheme) => vec![scheme],
            Candidate::AnyCode(kind) => CODES
                .iter()
                .filter_map(|&(data, parity)| Code::new(kind, data, parity).ok())
                .map(|code| Scheme::Reliable(NamedScheme::Erasure(code)))
                .collect(),
        };
        let chunks: Vec<u32> = match self.chunk_bytes {
            Some(chunk_bytes) => vec![chunk_bytes],
            None => self.open_chunks(),
        };
        let mut tried = Vec::new();
        let mut error = None;
        for &scheme in &schemes {
            // What repeats packets takes the same time whatever the chunk: a packet then, as the protocol has it by
            // default.
            let has_chunks = scheme.erasure_code().is_some();
            for &chunk_bytes in if has_chunks { &chunks[..] } else { &chunks[..1] } {
                // A chunk that is longer than the message is only more parity.
                if self.chunk_bytes.is_none()
                    && has_chunks
                    && tried.len() > 1
                    && u64::from(chunk_bytes) > self.stage_bytes()
                {
                    continue;
                }
                match self.row(scheme, chunk_bytes) {
                    Ok(row) => tried.push(row),
                    Err(why) => error = Some(why),
                }
            }
        }
        // A ring is as slow as the slowest of its messages.
        let tail_share = TAIL_SHARE / self.ring_messages();
        match prefer(self, &tried, tail_share, Tie::LargerChunk) {
            Some(best) => Ok(tried.swap_remove(best)),
            None => Err(error.unwrap_or(PlanError::NoScheme("there was none".to_owned()))),
        }
    }

    /// The chunks to try. What is lost more often than not is none of them, unless a packet already is.
    fn open_chunks(&self) -> Vec<u32> {
        let bytes = |packets: u32| packets.saturating_mul(self.link.packet_bytes);
        let is_hopeful = |chunk: &u32| self.link.chunk_loss(*chunk).is_ok_and(|loss| loss <= 0.5);
        let (first, larger) = (bytes(CHUNK_PACKETS[0]), CHUNK_PACKETS[1..].iter().map(|packets| bytes(*packets)));
        std::iter::once(first).chain(larger.filter(is_hopeful)).collect()
    }

    /// One message with a scheme.
    pub(crate) fn row(&self, scheme: Scheme, chunk_bytes: u32) -> Result<Row, PlanError> {
        let message_bytes = self.stage_bytes();
        let completion = Case { link: self.link, message_bytes, chunk_bytes, scheme }.completion()?;
        let summary = completion.distribution.summary();
        let bytes_per_second = self.link.rate_bits_per_second / 8.0;
        let round_trip = self.link.round_trip_seconds;
        let cores = match scheme.erasure_code() {
            Some(code) => {
                let (data, parity) = (code.data_chunks() as f64, code.parity_chunks() as f64);
                let data_per_second = bytes_per_second * data / (data + parity);
                // However little parity there is, all data is read once, as exclusive or does.
                let xor_seconds = 1.0 / self.coding.xor_bytes_per_second;
                let mds_seconds = parity / 8.0 / self.coding.mds_bytes_per_second;
                match code.kind() {
                    CodeKind::Mds => data_per_second * mds_seconds.max(xor_seconds),
                    CodeKind::Xor => data_per_second * xor_seconds,
                }
            }
            // The shim's work is the hardware's.
            None => 0.0,
        };
        // From leaving until acknowledged when it is lost once: what a sender must be able to repeat.
        let (kept, parity_share) = match scheme {
            Scheme::Reliable(NamedScheme::SelectiveRepeat) => ((2.0 + ALPHA) * round_trip, 0.0),
            Scheme::Reliable(NamedScheme::NegativeAcknowledgements) => (2.0 * round_trip, 0.0),
            Scheme::Reliable(NamedScheme::Erasure(code)) => {
                ((2.0 + BETA) * round_trip, code.parity_chunks() as f64 / code.data_chunks() as f64)
            }
            Scheme::Reliable(NamedScheme::BestEffort(_)) | Scheme::GoBackN | Scheme::Shim(_) => (round_trip, 0.0),
        };
        let window_bytes = (kept * bytes_per_second).min(message_bytes as f64 * (1.0 + parity_share));
        Ok(Row {
            scheme,
            chunk_bytes,
            completion: summary,
            slowdown: summary.mean / self.link.least_seconds(message_bytes),
            extra_bandwidth: completion.extra_bandwidth,
            cores,
            window_bytes,
            // A ring's deadline is for all of its messages, and comes when they are put together.
            within_deadline: match self.ring_sites {
                None => self.deadline_seconds.map(|deadline| completion.distribution.cdf(deadline)),
                Some(_) => None,
            },
            distribution: completion.distribution,
        })
    }

    fn in_ring(&self, row: Row) -> Result<Row, PlanError> {
        let Some(sites) = self.ring_sites else { return Ok(row) };
        let distribution = ring(&row.distribution, sites, DRAWS, RING_SEED)?;
        let completion = distribution.summary();
        Ok(Row {
            completion,
            slowdown: completion.mean / self.least_seconds(),
            within_deadline: self.deadline_seconds.map(|deadline| distribution.cdf(deadline)),
            distribution,
            ..row
        })
    }
}
