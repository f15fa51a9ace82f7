//! Bounded messages on UDP sockets: two software RNICs on loopback, the first with the impaired port in front of its
//! sockets. The sender paces itself at the link's rate, as a device at the end of such a link would.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use longhaul::{Bound, Deadline, Fill};
use longhaul_reliable::{NamedScheme, scheme_named};
use longhaul_runtime::with_sources;
use longhaul_softnic_udp::{Impair, UdpConfig, UdpPortChoice};
use longhaul_time::Duration;

use super::{ARRIVED_SOCKETS_BOUND, ArrivedComparison, ArrivedPoint};
use crate::end_to_end::{CaseError, LibraryGround, patient_options};
use crate::validation::virtual_time::ProtocolError;

/// Messages of a point.
const SAMPLES: usize = 12;
/// Messages that nobody counts: round trips are measured with them.
const FIRST_SAMPLES: usize = 2;
/// Round trips for a clear-to-send to arrive, lost ones included.
const SETTLING_ROUND_TRIPS: u32 = 4;
/// A message whose sender began later than this part of its deadline, or whose receive ended that much later, says more
/// of the machine than of the protocol; another takes its place, but not more often than messages count.
const LATE_PARTS: u32 = 100;
const DISTURBED_MAX: usize = SAMPLES;
/// The thread that sends wakes up this much earlier, and looks at the clock from there on.
const AWAKE: Duration = Duration::from_millis(1);
const WINDOW_BYTES: u64 = 16 << 20;
/// A message that takes longer has hung.
const LIMIT: Duration = Duration::from_secs(60);

/// Send the messages of a point, and compare. `number` keeps comparisons that run at the same time apart, by their
/// addresses. `progress` is called after each message.
pub fn on_sockets(
    point: &ArrivedPoint,
    seed: u64,
    number: u8,
    progress: impl Fn(),
) -> Result<ArrivedComparison, ProtocolError> {
    let mut options = patient_options();
    options.scheme = scheme_named(NamedScheme::BestEffort(None));
    options.chunk_bytes = Some(4096);
    options.window_bytes = Some(WINDOW_BYTES);
    options.rate_bits_per_second = Some(point.rate_bits_per_second);
    options.round_trip_guess = point.round_trip;
    let mut udp = UdpConfig::default();
    udp.udp_port = UdpPortChoice::Free;
    let addresses = [2 * number, 2 * number + 1].map(|last| IpAddr::V4(Ipv4Addr::new(127, 0, 7, last)));
    let impair = Impair { profile: point.profile(), seed };
    let ground = LibraryGround::open(addresses, &udp, Some(impair), &options, point.message_bytes as usize)?;
    for _ in 0..FIRST_SAMPLES {
        send(&ground, point)?;
        progress();
    }
    let (mut shares, mut disturbed) = (Vec::new(), 0);
    while shares.len() < SAMPLES {
        let (share, late) = send(&ground, point)?;
        // On a machine that is always busy, all of them count in the end.
        if late > point.deadline / LATE_PARTS && disturbed < DISTURBED_MAX {
            disturbed += 1;
            continue;
        }
        shares.push(share);
        progress();
    }
    // So few say nothing about one in a hundred.
    Ok(ArrivedComparison::of(point, &shares, ARRIVED_SOCKETS_BOUND, 0.0)?)
}

/// How often progress is reported.
pub const MESSAGES: usize = SAMPLES + FIRST_SAMPLES;

/// Send a message: the share of it that has arrived, and how late its sender was, or its receiver if that was later.
fn send(ground: &LibraryGround, point: &ArrivedPoint) -> Result<(f64, Duration), CaseError> {
    let failed = |error| CaseError::Failed { message: 0, why: with_sources(&error) };
    let hung = || CaseError::Hung { done: 0, messages: 1, limit: LIMIT };
    let range = 0..point.message_bytes as usize;
    let [sender, receiver] = &ground.ends;
    let begin = Instant::now() + point.round_trip * SETTLING_ROUND_TRIPS;
    let bound = Bound { deadline: receiver.connection.deadline_at(begin + point.deadline), fill: Fill::Zero };
    let receive = receiver.connection.receive_bounded_into(&receiver.memory, range.clone(), bound);
    std::thread::sleep(begin.saturating_duration_since(Instant::now()).saturating_sub(AWAKE));
    while Instant::now() < begin {
        std::hint::spin_loop();
    }
    let late = begin.elapsed();
    let deadline = Deadline::After(point.lasts());
    let write = sender.connection.write_bounded_from(&sender.memory, range, deadline);
    let received = receive.wait_for(LIMIT).map_err(|_| hung())?.map_err(failed)?;
    write.wait_for(LIMIT).map_err(|_| hung())?.map_err(failed)?;
    let report = received.report();
    Ok((1.0 - report.missing_bytes as f64 / point.message_bytes as f64, late.max(report.late)))
}
