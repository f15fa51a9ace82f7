//! One case: a message over a link with a scheme, and its distribution of completion times.
//!
//! Every time is from the beginning of sending until the sender knows that all is there. With the schemes of
//! `longhaul-reliable` the receiver reports that it is done three times, 1/32 of a round trip apart, and then whenever
//! it is asked: that all of the first j reports are lost has probability pʲ, and delays the whole.

use longhaul_scheme::{Code, NamedScheme, parity};

use crate::distribution::Distribution;
use crate::erasure::Erasure;
use crate::go_back_n::GoBackN;
use crate::link::{Link, PlanError, RELIABLE_OVERHEAD_BYTES, WRITE_OVERHEAD_BYTES};
use crate::losses::ChunkChain;
use crate::scheme::{Scheme, Timers, reliable_timeout};
use crate::selective_repeat::{Delays, SelectiveRepeat};

/// A message over a link with a scheme.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// The link.
    pub link: Link,
    /// Bytes of the message.
    pub message_bytes: u64,
    /// Bytes of a chunk, which is what erasure coding codes over; the other schemes know packets only.
    pub chunk_bytes: u32,
    /// How it is brought over.
    pub scheme: Scheme,
}

/// What the model says of a case.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// How long it takes.
    pub distribution: Distribution,
    /// How long it would take with the same scheme if nothing were lost.
    pub lossless_seconds: f64,
    /// Bytes of payload that are sent beyond the message's own, as a share of these: parity and repetitions, in the
    /// mean.
    pub extra_bandwidth: f64,
}

/// The parts that a case is put together from, for the model and for its twin.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Parts {
    SelectiveRepeat(SelectiveRepeat),
    Erasure(Erasure),
    GoBackN(GoBackN),
}

impl Case {
    pub(crate) fn parts(&self) -> Result<Parts, PlanError> {
        let Case { link, message_bytes, chunk_bytes, scheme } = *self;
        let timers = Timers::new(link.round_trip_seconds);
        // A message that is shorter than a chunk has fewer packets to lose.
        let own_bytes =
            message_bytes.div_ceil(link.packet_bytes.max(1).into()).saturating_mul(link.packet_bytes.into());
        let lossy_bytes = u64::from(chunk_bytes).min(own_bytes) as u32;
        let on_connection = |shim: Option<Code>| {
            link.check(message_bytes, link.packet_bytes)?;
            let packets = message_bytes.div_ceil(link.packet_bytes.into());
            Ok(Parts::GoBackN(GoBackN {
                chain: ChunkChain::new(&link, link.packet_bytes)?,
                packets,
                packet_seconds: link.wire_seconds(message_bytes, RELIABLE_OVERHEAD_BYTES) / packets as f64,
                round_trip: link.round_trip_seconds,
                timeout: reliable_timeout(link.least_seconds(message_bytes)),
                shim,
            }))
        };
        let selective_repeat = |is_negative: bool| {
            link.check(message_bytes, chunk_bytes)?;
            let packets = message_bytes.div_ceil(link.packet_bytes.into());
            let packet_seconds = link.wire_seconds(message_bytes, WRITE_OVERHEAD_BYTES) / packets as f64;
            let delays = match is_negative {
                true => Delays::negative(&timers, packet_seconds),
                false => Delays::timeouts(&timers),
            };
            let chain = ChunkChain::new(&link, link.packet_bytes)?;
            let (round_trip, lost_share) = (link.round_trip_seconds, chain.loss);
            Ok(Parts::SelectiveRepeat(SelectiveRepeat {
                chain,
                packets,
                packet_seconds,
                delays,
                round_trip,
                lost_share,
            }))
        };
        match scheme {
            Scheme::GoBackN => on_connection(None),
            Scheme::Shim(code) => on_connection(Some(code)),
            Scheme::Reliable(NamedScheme::SelectiveRepeat) => selective_repeat(false),
            Scheme::Reliable(NamedScheme::NegativeAcknowledgements) => selective_repeat(true),
            Scheme::Reliable(name @ NamedScheme::BestEffort(_)) => Err(PlanError::BestEffort(name)),
            Scheme::Reliable(NamedScheme::Erasure(code)) => {
                link.check(message_bytes, chunk_bytes)?;
                let chunks = message_bytes.div_ceil(chunk_bytes.into());
                let packets = message_bytes.div_ceil(link.packet_bytes.into());
                let data_seconds = link.wire_seconds(message_bytes, WRITE_OVERHEAD_BYTES);
                // Parity chunks of a message that is shorter than a chunk are about as short, and those that share a
                // packet are lost together.
                let submessage_parity_bytes = parity::submessage_parity_bytes(code, message_bytes, chunk_bytes);
                let most_apart = code.parity_chunks() as u64;
                let lost_apart = (submessage_parity_bytes / u64::from(lossy_bytes)).clamp(1, most_apart);
                let parity_seconds = link.wire_seconds(submessage_parity_bytes, WRITE_OVERHEAD_BYTES);
                Ok(Parts::Erasure(Erasure {
                    chain: ChunkChain::new(&link, lossy_bytes)?,
                    code: Code::new(code.kind(), code.data_chunks(), lost_apart as usize).map_err(PlanError::Code)?,
                    chunks,
                    chunk_seconds: data_seconds / chunks as f64,
                    parity_seconds: parity_seconds / lost_apart as f64,
                    submessage_parity_bytes,
                    packet_seconds: data_seconds / packets as f64,
                    packet_loss: link.loss.mean(),
                    timers,
                }))
            }
        }
    }

    /// What the model says.
    pub fn completion(&self) -> Result<Completion, PlanError> {
        let parts = self.parts()?;
        let loss = self.link.loss.mean();
        let timers = Timers::new(self.link.round_trip_seconds);
        let reported = |distribution: Distribution| {
            let probability = |lost: u32| loss.powi(lost as i32) * (1.0 - loss);
            let delays: Vec<(f64, f64)> = (0..200)
                .map(|lost| (timers.done_delay(lost), probability(lost)))
                .take_while(|delay| delay.1 > 1e-11)
                .collect();
            distribution.delayed(&delays)
        };
        Ok(match parts {
            Parts::SelectiveRepeat(parts) => Completion {
                distribution: reported(parts.distribution()),
                lossless_seconds: parts.packets as f64 * parts.packet_seconds + parts.round_trip,
                extra_bandwidth: parts.repeated_share(),
            },
            Parts::Erasure(parts) => {
                let (distribution, repeated) = parts.distribution();
                let parity = (parts.submessages() * parts.submessage_parity_bytes) as f64;
                let packets = self.message_bytes.div_ceil(self.link.packet_bytes.into());
                let repeated = repeated * self.message_bytes as f64 / packets as f64;
                Completion {
                    distribution: reported(distribution),
                    lossless_seconds: parts.end() - parts.code.parity_chunks() as f64 * parts.parity_seconds
                        + timers.round_trip,
                    extra_bandwidth: (parity + repeated) / self.message_bytes as f64,
                }
            }
            Parts::GoBackN(parts) => {
                let lossless = Link { loss: crate::link::Loss::Independent(0.0), ..self.link };
                let lossless = Case { link: lossless, ..*self }.parts()?;
                let Parts::GoBackN(lossless) = lossless else { unreachable!("the scheme is the same") };
                Completion {
                    distribution: parts.distribution(),
                    lossless_seconds: lossless.distribution().mean(),
                    extra_bandwidth: parts.extra_packets() / parts.packets as f64,
                }
            }
        })
    }
}
