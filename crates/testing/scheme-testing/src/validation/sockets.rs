//! The model and the protocol code on UDP sockets: two software RNICs on loopback, the first with the impaired port in
//! front of its sockets, which delays, limits the rate, and loses.
//!
//! The ends are connections of the library, as programs have them, and driven by it. Messages go one after the other,
//! each when its receive is known to the sender and nothing is in flight any more. The sender paces itself at the
//! link's rate, as a device at the end of such a link would: otherwise the message would leave for the impaired port's
//! queue at once, and a timeout would begin there and not on the wire.
//!
//! Real time has noise. Links are slow and long, so that a scheduler's milliseconds do not matter; and before and after
//! the messages that count, others go over the same link without loss. These all take the same time: as far as they do
//! not, it is the machine that is busy with something else, and the comparison is made again. A witness, a thread of
//! its own, sleeps and wakes next to the messages: one during which it was woken late does not count, and another is
//! sent instead.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use longhaul_impair::Profile;
use longhaul_plan::link::PlanError;
use longhaul_reliable::{NamedScheme, scheme_named};
use longhaul_softnic_udp::{Impair, UdpConfig, UdpPortChoice};
use longhaul_time::Duration;

use super::virtual_time::ProtocolError;
use super::{MeanComparison, Point, SOCKETS_BOUND, samples_for};
use crate::end_to_end::{CaseError, LibraryGround, patient_options};
use longhaul_runtime::with_sources;

/// How certain the protocol's mean is to be, as a share of it.
const STANDARD_ERROR: f64 = 0.035;
/// More messages take too long: they are on real time.
const SAMPLES_MAX: usize = 150;
/// Messages without loss, before and after the others.
const REFERENCE_SAMPLES: usize = 6;
/// More noise than this share says more of the machine than of the model.
const NOISE_MAX: f64 = 0.04;
/// Times that a comparison is made, while there is so much.
const ATTEMPTS_MAX: u64 = 3;
/// Messages that nobody counts: round trips are measured with them.
const FIRST_SAMPLES: usize = 3;
/// How long the witness sleeps, and how much too late it may be woken: this part of a round trip.
const WITNESS_SLEEP: Duration = Duration::from_millis(1);
const LATE_PARTS: u32 = 10;
/// What may be in flight: the sockets' buffers take that much.
const WINDOW_BYTES: u64 = 16 << 20;
/// A message that takes longer has hung.
const MESSAGE_LIMIT: Duration = Duration::from_secs(60);
/// Round trips for a clear-to-send to arrive, lost ones included, and for the last of a message to pass.
const PAUSE_ROUND_TRIPS: u32 = 3;

/// What a comparison on sockets says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SocketsComparison {
    /// Of the means.
    pub mean: MeanComparison,
    /// The same of messages over the same link without loss.
    pub lossless: MeanComparison,
    /// How much longer those without loss took than the fastest of them, in the mean and as a share: what the machine
    /// added.
    pub noise: f64,
    /// Times that the comparison was made until the machine was quiet enough, or no more was hoped for.
    pub attempts: u64,
}

/// Send the messages of a point, and compare. `number` keeps comparisons that run at the same time apart, by their
/// addresses. `progress` is called after each message.
pub fn compare(
    point: &Point,
    model_mean: f64,
    seed: u64,
    number: u8,
    progress: impl Fn(),
) -> Result<SocketsComparison, ProtocolError> {
    let lossless = Point { loss: 0.0, burst_packets: None, ..*point };
    let lossless_mean = lossless.model()?.mean();
    let mut attempts = 0;
    loop {
        let seed = seed.wrapping_add(attempts);
        attempts += 1;
        let mut reference = measure(&lossless, REFERENCE_SAMPLES, seed, number, &progress)?;
        let taken = measure(point, sample_count(point, seed)?, seed, number, &progress)?;
        reference.extend(measure(&lossless, REFERENCE_SAMPLES, seed, number, &progress)?);
        let noise = noise(&reference);
        if noise <= NOISE_MAX || attempts == ATTEMPTS_MAX {
            return Ok(SocketsComparison {
                mean: MeanComparison::of(model_mean, &taken, SOCKETS_BOUND),
                lossless: MeanComparison::of(lossless_mean, &reference, SOCKETS_BOUND),
                noise,
                attempts,
            });
        }
    }
}

/// By how much the mean is above the least.
fn noise(samples: &[f64]) -> f64 {
    let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
    samples.iter().sum::<f64>() / samples.len() as f64 / least - 1.0
}

/// How many messages count in a comparison.
pub fn sample_count(point: &Point, seed: u64) -> Result<usize, PlanError> {
    Ok(samples_for(point, STANDARD_ERROR, seed)?.min(SAMPLES_MAX))
}

/// How often progress is reported, when the first comparison is good.
pub fn message_count(point: &Point, seed: u64) -> Result<usize, PlanError> {
    Ok(sample_count(point, seed)? + 2 * REFERENCE_SAMPLES + 3 * FIRST_SAMPLES)
}

/// What messages take, in seconds.
fn measure(
    point: &Point,
    samples: usize,
    seed: u64,
    number: u8,
    progress: &impl Fn(),
) -> Result<Vec<f64>, ProtocolError> {
    let name = point.scheme.to_string();
    let name = name.parse::<NamedScheme>().map_err(|error| ProtocolError::Scheme(error.to_string()))?;
    let mut options = patient_options();
    options.scheme = scheme_named(name);
    options.chunk_bytes = Some(point.chunk_bytes);
    options.window_bytes = Some(WINDOW_BYTES);
    options.rate_bits_per_second = Some(point.rate_bits_per_second);
    options.round_trip_guess = point.round_trip;
    let mut udp = UdpConfig::default();
    udp.udp_port = UdpPortChoice::Free;
    let addresses = [2 * number, 2 * number + 1].map(|last| IpAddr::V4(Ipv4Addr::new(127, 0, 7, last)));
    let impair = Impair { profile: profile(point), seed };
    let ground = LibraryGround::open(addresses, &udp, Some(impair), &options, point.message_bytes as usize)?;
    for _ in 0..FIRST_SAMPLES {
        send(&ground, point)?;
        progress();
    }
    let witness = Witness::default();
    let late_max = point.round_trip / LATE_PARTS;
    std::thread::scope(|scope| {
        scope.spawn(|| witness.watch());
        let taken = count(&ground, point, samples, &witness, late_max, progress);
        witness.is_over.store(true, Ordering::Relaxed);
        Ok(taken?)
    })
}

fn count(
    ground: &LibraryGround,
    point: &Point,
    samples: usize,
    witness: &Witness,
    late_max: Duration,
    progress: &impl Fn(),
) -> Result<Vec<f64>, CaseError> {
    let mut taken = Vec::with_capacity(samples);
    let mut disturbed = 0;
    while taken.len() < samples {
        witness.late_nanos.store(0, Ordering::Relaxed);
        let seconds = send(ground, point)?;
        let is_disturbed = witness.late_nanos.load(Ordering::Relaxed) > late_max.as_nanos() as u64;
        // On a machine that is always busy, all of them count in the end.
        if is_disturbed && disturbed < samples {
            disturbed += 1;
            continue;
        }
        taken.push(seconds);
        progress();
    }
    Ok(taken)
}

/// Somebody who does nothing but sleep, and so knows when the machine had no time for those who do more.
#[derive(Default)]
struct Witness {
    /// By how much it was woken too late, at most, since this was last set to nothing.
    late_nanos: AtomicU64,
    is_over: AtomicBool,
}

impl Witness {
    fn watch(&self) {
        while !self.is_over.load(Ordering::Relaxed) {
            let begin = std::time::Instant::now();
            std::thread::sleep(WITNESS_SLEEP);
            let late = begin.elapsed().saturating_sub(WITNESS_SLEEP);
            self.late_nanos.fetch_max(late.as_nanos() as u64, Ordering::Relaxed);
        }
    }
}

fn profile(point: &Point) -> Profile {
    crate::completion::link(point.round_trip, point.rate_bits_per_second, point.loss, point.burst_packets)
}

/// Send a message; how long it took, in seconds.
fn send(ground: &LibraryGround, point: &Point) -> Result<f64, CaseError> {
    let failed = |error| CaseError::Failed { message: 0, why: with_sources(&error) };
    let hung = || CaseError::Hung { done: 0, messages: 1, limit: MESSAGE_LIMIT };
    let range = 0..point.message_bytes as usize;
    let [sender, receiver] = &ground.ends;
    let receive = receiver.connection.receive_into(&receiver.memory, range.clone());
    std::thread::sleep(point.round_trip * PAUSE_ROUND_TRIPS);
    let write = sender.connection.write_from(&sender.memory, range);
    let report = write.wait_for(MESSAGE_LIMIT).map_err(|_| hung())?.map_err(failed)?;
    receive.wait_for(MESSAGE_LIMIT).map_err(|_| hung())?.map_err(failed)?;
    Ok(report.duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::super::points::{Run, Way};
    use super::*;

    #[test]
    fn noise_is_what_is_above_the_least() {
        assert_eq!(noise(&[2.0, 2.0, 2.0]), 0.0);
        assert!((noise(&[2.0, 2.0, 2.3]) - 0.05).abs() < 1e-12);
    }

    /// Few messages over a short link: that they take their time through the impaired port, and more of it with loss.
    /// Medians and wide bounds: the machine may be busy.
    #[test]
    fn messages_take_their_time_on_sockets() {
        let point = |scheme: &str, loss| Way::new(0.1, 10_000, Run::Sockets).with(scheme, 128 << 10, 4, loss);
        let median = |point: &Point| {
            let mut taken = measure(point, 10, 1, 120, &|| ()).expect("they arrive");
            taken.sort_by(f64::total_cmp);
            taken[taken.len() / 2]
        };
        let lossless = point("sr:rto", 0.0);
        let least = lossless.model().expect("a case").mean();
        assert!((0.99 * least..10.0 * least).contains(&median(&lossless)), "{least}");
        // Nearly every message of 32 packets loses some, and waits for a timeout of three round trips.
        assert!(median(&point("sr:rto", 0.1)) > least + 0.025);
        assert!(matches!(compare(&point("rc", 0.0), 1.0, 1, 121, || ()), Err(ProtocolError::Scheme(_))));
    }
}
