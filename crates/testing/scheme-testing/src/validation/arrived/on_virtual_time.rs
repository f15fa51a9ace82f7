//! Bounded messages over a simulated link.

use longhaul_reliable::{Bound, Deadline, Fill};
use longhaul_softnic::PayloadMode;

use super::{ARRIVED_P99_MIN, ARRIVED_VIRTUAL_BOUND, ArrivedComparison, ArrivedPoint};
use crate::end_to_end::{CaseError, Ground as _, GroundOptions, VirtualGround, scheme_by_name};
use crate::validation::virtual_time::ProtocolError;

/// Messages of a point: packets are what is counted, and a message has hundreds.
const SAMPLES: usize = 100;
/// Round trips before the sender begins: clear-to-sends may be lost, and are repeated.
const SETTLING_ROUND_TRIPS: u32 = 8;
/// The ends are polled this often in a round trip, and in the time that a message takes.
const LOOKS: u32 = 400;

/// Send the messages of a point, and compare.
pub fn on_virtual_time(point: &ArrivedPoint, seed: u64) -> Result<ArrivedComparison, ProtocolError> {
    let shares = measure(point, seed)?;
    Ok(ArrivedComparison::of(point, &shares, ARRIVED_VIRTUAL_BOUND, ARRIVED_P99_MIN)?)
}

/// The share of each message that has arrived.
pub(super) fn measure(point: &ArrivedPoint, seed: u64) -> Result<Vec<f64>, CaseError> {
    let packets = (point.message_bytes / 4096) as u32;
    let looks = (point.round_trip / LOOKS).min(point.sending() / LOOKS);
    let in_a_look = u128::from(point.rate_bits_per_second) * looks.as_nanos() / 8_000_000_000;
    let mut options = GroundOptions {
        seed,
        chunk_bytes: 4096,
        receive_depth: (2 * packets).max(1024),
        generations: 2,
        grain: looks,
        // What is in front of the wire when time is up is of no use to anybody.
        egress_limit_bytes: (in_a_look as u64).max(2 * 4096),
        payload: PayloadMode::WritesElided,
        round_trip_guess: point.round_trip,
        ..GroundOptions::new(point.profile(), point.message_bytes as usize)
    };
    options.connection.message_timeout = point.lasts() * 8;
    let mut ground = VirtualGround::with_scheme(&options, scheme_by_name("be").expect("a scheme"));
    // The first message also brings over what the ends have to know of each other.
    let shares: Result<Vec<f64>, CaseError> = (0..=SAMPLES).map(|_| share(&mut ground, point)).collect();
    shares.map(|shares| shares[1..].to_vec())
}

fn share(ground: &mut VirtualGround, point: &ArrivedPoint) -> Result<f64, CaseError> {
    let failed = |why: String| CaseError::Failed { message: 0, why };
    let range = 0..point.message_bytes as usize;
    let now = ground.now();
    let begin = now + point.round_trip * SETTLING_ROUND_TRIPS;
    let bound = Bound { deadline: Deadline::At(begin + point.deadline), fill: Fill::Zero };
    let (receiver, memory) = ground.receiver();
    let receive = receiver.receive_bounded(memory, range.clone(), bound, now);
    let receive = receive.map_err(|error| failed(error.to_string()))?;
    ground.run_until(begin)?;
    let (sender, memory) = ground.sender();
    let send = sender.send_bounded(memory, range, Deadline::After(point.lasts()), begin);
    let send = send.map_err(|error| failed(error.to_string()))?;
    let limit = begin + point.lasts() * 2;
    while !(send.is_over() && receive.is_over()) {
        if ground.now() >= limit {
            return Err(CaseError::Hung { done: 0, messages: 1, limit: limit - begin });
        }
        ground.step(limit)?;
    }
    send.take().expect("it has ended").map_err(|error| failed(error.to_string()))?;
    let received = receive.take().expect("it has ended").map_err(|error| failed(error.to_string()))?;
    ground.run_until(ground.now() + point.round_trip)?;
    Ok(1.0 - received.report().missing_bytes as f64 / point.message_bytes as f64)
}
