//! Figure 13: how much longer a message takes when nothing is lost, and how long a lost packet takes to come back.
//!
//! Two witnesses stand on either side of the receiver's shim and note when each packet passes. A packet that was lost would have
//! arrived one packet time after the one before it; what it is handed on later is its recovery.

use longhaul_impair::{Loss, LossTrace};
use longhaul_softnic::ShimLayer;
use longhaul_time::{Duration, Instant};

use super::point::BITS_PER_SECOND;
use super::scenario::Scenario;
use super::scheme::Scheme;
use super::witness::Witness;

const MESSAGE_BYTES: usize = 1 << 20;
/// Of each message.
const PACKETS: usize = MESSAGE_BYTES / 1024;
const ROUND_TRIP: Duration = Duration::from_micros(20);
/// Packets from one loss to the next: a prime, so that losses are at all places of a block, and more than two blocks.
const LOSS_DISTANCE: usize = 613;
const LASTS: Duration = Duration::from_millis(400);

/// What is measured: messages of 1 MiB on a local link of 10 Gbit/s.
#[derive(Clone, Copy, Debug)]
pub struct RecoveryPoint {
    /// What protects them.
    pub scheme: Scheme,
    /// Packets lost in a row, again and again; 0 loses none.
    pub lost_packets: usize,
}

/// What it has shown.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// What was measured.
    pub point: RecoveryPoint,
    /// The time of a packet on the link.
    pub packet_time: Duration,
    /// From a message's first packet to its last, as handed to the receiver: the mean.
    pub message_time: Duration,
    /// How much later lost packets were handed on than if they had not been lost.
    pub latencies: Vec<Duration>,
    /// Lost packets that were not restored.
    pub repeated: u64,
}

impl RecoveryPoint {
    /// What figure 13 shows: several block lengths, and one loss next to a burst in one block of (128, 16).
    pub fn all() -> Vec<RecoveryPoint> {
        let point = |(name, lost_packets): (&str, usize)| {
            let scheme = name.parse().expect("a name of ours");
            RecoveryPoint { scheme, lost_packets }
        };
        let lossless = ["rc", "lowar:8,1", "lowar:32,1", "lowar:64,8", "lowar:128,16"].map(|name| (name, 0));
        let lossy = [("lowar:8,1", 1), ("lowar:16,1", 1), ("lowar:32,1", 1), ("lowar:64,1", 1), ("lowar:128,1", 1)];
        let bursts = [("lowar:128,16", 1), ("lowar:128,16", 16)];
        lossless.into_iter().chain(lossy).chain(bursts).map(point).collect()
    }

    /// Measures it.
    pub fn run(&self) -> Recovery {
        let loss = match self.lost_packets {
            0 => Loss::None,
            lost => {
                let flags = (0..LOSS_DISTANCE).map(|place| place >= LOSS_DISTANCE - lost);
                Loss::Replayed(LossTrace::from_lost_flags(flags))
            }
        };
        let scenario = Scenario {
            round_trip: ROUND_TRIP,
            bits_per_second: BITS_PER_SECOND,
            loss,
            connections: 1,
            message_bytes: MESSAGE_BYTES,
            depth: Some(4),
            code: self.scheme.fec(),
            later: Vec::new(),
            settles: Duration::ZERO,
            lasts: LASTS,
            seed: 1,
        };
        let mut world = scenario.world(true);
        scenario.run_in(&mut world);
        let (witnesses, restored) = world.with_layers(1, |stack| {
            let restored = stack.layers_mut::<ShimLayer>().next().map_or(0, |layer| layer.counters().1.restored);
            let witnesses: Vec<_> =
                stack.layers_mut::<Witness>().map(|witness| std::mem::take(&mut witness.passed)).collect();
            (witnesses, restored)
        });
        let [handed, arrived] = &witnesses[..] else { unreachable!("there are two") };
        let (latencies, lost) = latencies(arrived, handed);
        Recovery {
            point: *self,
            packet_time: packet_time(arrived),
            message_time: message_time(handed),
            latencies,
            repeated: lost.saturating_sub(restored),
        }
    }
}

impl Recovery {
    /// In microseconds.
    pub fn mean_us(&self) -> Option<f64> {
        let sum: Duration = self.latencies.iter().sum();
        (!self.latencies.is_empty()).then(|| sum.as_secs_f64() / self.latencies.len() as f64 * 1e6)
    }

    /// In microseconds.
    pub fn most_us(&self) -> Option<f64> {
        self.latencies.iter().max().map(|time| time.as_secs_f64() * 1e6)
    }
}

/// The usual time between two packets: the median.
fn packet_time(arrived: &[(Option<u32>, Instant)]) -> Duration {
    let mut times: Vec<Duration> = arrived.windows(2).map(|pair| pair[1].1.saturating_since(pair[0].1)).collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// PSNs begin at 0 with the first message, and nothing is repeated where this is asked.
fn message_time(handed: &[(Option<u32>, Instant)]) -> Duration {
    let times: Vec<Duration> =
        handed.chunks_exact(PACKETS).map(|message| message[PACKETS - 1].1.saturating_since(message[0].1)).collect();
    times.iter().sum::<Duration>() / (times.len() as u32).max(1)
}

/// Of each data packet that was lost and handed on nevertheless; and the number of those lost.
fn latencies(arrived: &[(Option<u32>, Instant)], handed: &[(Option<u32>, Instant)]) -> (Vec<Duration>, u64) {
    let usual = packet_time(arrived);
    let (mut latencies, mut lost) = (Vec::new(), 0);
    // The last data packet that arrived, and the end of the gap in time after it.
    let (mut next, mut gap_from) = (0, None);
    let mut before = arrived.first().map_or(Instant::ZERO, |(_, at)| *at);
    for (psn, at) in arrived {
        if at.saturating_since(before) > usual * 3 / 2 {
            gap_from = Some(before);
        }
        before = *at;
        let Some(psn) = *psn else { continue };
        let from = gap_from.take();
        if psn < next {
            continue;
        }
        for (index, missing) in (next..psn).enumerate() {
            lost += 1;
            let would_be = from.unwrap_or(*at) + usual * (index as u32 + 1);
            // Handed on in order, so that its place is where it would be without loss.
            if let Some((_, handed_at)) = handed.get(missing as usize).filter(|(handed, _)| *handed == Some(missing)) {
                latencies.push(handed_at.saturating_since(would_be));
            }
        }
        next = psn + 1;
    }
    (latencies, lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_packet_is_late_by_what_was_sent_after_it() {
        let at = |microseconds: u64| Instant::from_nanos(microseconds * 1000);
        let arrived: Vec<_> = [(Some(0), 0), (Some(1), 1), (Some(3), 3), (None, 4), (Some(4), 5)]
            .into_iter()
            .map(|(psn, time)| (psn, at(time)))
            .collect();
        let handed: Vec<_> = [(Some(0), 0), (Some(1), 1), (Some(2), 4), (Some(3), 4), (Some(4), 5)]
            .into_iter()
            .map(|(psn, time)| (psn, at(time)))
            .collect();
        assert_eq!(latencies(&arrived, &handed), (vec![Duration::from_micros(2)], 1));
    }

    #[test]
    fn recovery_takes_as_long_as_the_rest_of_a_block() {
        let run = |name: &str| RecoveryPoint { scheme: name.parse().expect("a scheme"), lost_packets: 1 }.run();
        let (short, long) = (run("lowar:8,1"), run("lowar:32,1"));
        let most = |recovery: &Recovery| recovery.most_us().expect("packets were lost");
        assert!(most(&short) < 9.5 && most(&long) < 29.5, "{} µs, {} µs", most(&short), most(&long));
        assert!(most(&long) > 25.0 && long.repeated == 0, "{} µs, {} repeated", most(&long), long.repeated);
    }
}
