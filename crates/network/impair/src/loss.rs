//! Loss models: which packets the wire swallows.

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;

use crate::chance::Chance;
use crate::profile::{ProfileError, check_probability};

/// Which packets are lost on the wire.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Loss {
    /// No packet.
    #[default]
    None,
    /// Each packet, on its own.
    Independent {
        /// Of losing a packet.
        probability: f64,
    },
    /// A chain of two states that moves once for each packet, before that packet's loss is drawn. Real paths lose
    /// in bursts; this is the usual model of them (Gilbert 1960, Elliott 1963). Starts in the good state.
    GilbertElliott {
        /// Of leaving the good state, per packet.
        p_good_to_bad: f64,
        /// Of leaving the bad state, per packet.
        p_bad_to_good: f64,
        /// Of losing a packet in the good state (Gilbert: 0).
        loss_good: f64,
        /// Of losing a packet in the bad state (Gilbert: 1).
        loss_bad: f64,
    },
    /// Bursts of one length: a lossless state that each packet leaves with a probability, and then that packet and those after
    /// it, as many as a burst has, each lost on its own. What LoWAR's figure 11 varies; in [`Loss::GilbertElliott`] the lengths are geometric.
    FixedBursts {
        /// Of a packet that no burst covers beginning one.
        p_start: f64,
        /// Packets of each burst, at least 1.
        burst_packets: u32,
        /// Of losing a packet in a burst.
        loss_in_burst: f64,
    },
    /// What was once seen on a real path, again and again.
    Replayed(LossTrace),
}

impl Loss {
    /// The Gilbert model with a given share of packets lost, in bursts of a given mean length; clean between bursts.
    ///
    /// `mean_burst_packets` below 1, or below `mean_loss` / (1 − `mean_loss`), has no such model (between two bursts at
    /// least one packet arrives), and is refused when the profile is checked. At 1 / (1 − `mean_loss`) each packet is
    /// lost on its own; below that losses avoid each other.
    pub fn bursts(mean_loss: f64, mean_burst_packets: f64) -> Self {
        let p_bad_to_good = 1.0 / mean_burst_packets;
        Loss::GilbertElliott {
            p_good_to_bad: p_bad_to_good * mean_loss / (1.0 - mean_loss),
            p_bad_to_good,
            loss_good: 0.0,
            loss_bad: 1.0,
        }
    }

    /// The share of packets lost in the long run.
    pub fn mean_loss(&self) -> f64 {
        match self {
            Loss::None => 0.0,
            Loss::Independent { probability } => *probability,
            Loss::GilbertElliott { loss_good, loss_bad, .. } => {
                let bad = self.share_of_bad_state();
                (1.0 - bad) * loss_good + bad * loss_bad
            }
            Loss::FixedBursts { p_start, burst_packets, loss_in_burst } => {
                share_in_bursts(*p_start, *burst_packets) * loss_in_burst
            }
            Loss::Replayed(trace) => trace.lost_count as f64 / trace.packet_count as f64,
        }
    }

    /// The mean number of packets lost in a row, where any is lost; `None` if nothing is ever lost, or nothing ever
    /// arrives.
    pub fn mean_burst_packets(&self) -> Option<f64> {
        // Losses divided by the starts of bursts: a kept packet followed by a lost one.
        let starts = match self {
            Loss::None => 0.0,
            Loss::Independent { probability } => (1.0 - probability) * probability,
            Loss::GilbertElliott { p_good_to_bad, p_bad_to_good, loss_good, loss_bad } => {
                let bad = self.share_of_bad_state();
                let lost_after_good = p_good_to_bad * loss_bad + (1.0 - p_good_to_bad) * loss_good;
                let lost_after_bad = p_bad_to_good * loss_good + (1.0 - p_bad_to_good) * loss_bad;
                (1.0 - bad) * (1.0 - loss_good) * lost_after_good + bad * (1.0 - loss_bad) * lost_after_bad
            }
            Loss::FixedBursts { p_start, burst_packets, loss_in_burst } => {
                // In a round, from the end of one burst to that of the next: within the burst, and where it begins, after a packet
                // that arrived: one outside, or the last of the burst before.
                let within = f64::from(*burst_packets - 1) * loss_in_burst * (1.0 - loss_in_burst);
                let begins = loss_in_burst * (1.0 - p_start * loss_in_burst);
                (within + begins) * share_in_bursts(*p_start, *burst_packets) / f64::from(*burst_packets)
            }
            Loss::Replayed(trace) => trace.burst_count() as f64 / trace.packet_count as f64,
        };
        (starts > 0.0).then(|| self.mean_loss() / starts)
    }

    fn share_of_bad_state(&self) -> f64 {
        match self {
            Loss::GilbertElliott { p_good_to_bad, .. } if *p_good_to_bad == 0.0 => 0.0,
            Loss::GilbertElliott { p_good_to_bad, p_bad_to_good, .. } => {
                p_good_to_bad / (p_good_to_bad + p_bad_to_good)
            }
            _ => 0.0,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ProfileError> {
        match self {
            Loss::None => Ok(()),
            Loss::Independent { probability } => check_probability("loss probability", *probability),
            Loss::GilbertElliott { p_good_to_bad, p_bad_to_good, loss_good, loss_bad } => {
                check_probability("p_good_to_bad", *p_good_to_bad)?;
                check_probability("p_bad_to_good", *p_bad_to_good)?;
                check_probability("loss_good", *loss_good)?;
                check_probability("loss_bad", *loss_bad)
            }
            Loss::FixedBursts { burst_packets: 0, .. } => Err(ProfileError::EmptyBursts),
            Loss::FixedBursts { p_start, loss_in_burst, .. } => {
                check_probability("p_start", *p_start)?;
                check_probability("loss_in_burst", *loss_in_burst)
            }
            Loss::Replayed(trace) if trace.packet_count == 0 => Err(ProfileError::EmptyLossTrace),
            Loss::Replayed(_) => Ok(()),
        }
    }
}

/// Of all packets. A round is the packets up to the next burst, 1 / `p_start` − 1 in the mean, and the burst.
fn share_in_bursts(p_start: f64, burst_packets: u32) -> f64 {
    let covered = p_start * f64::from(burst_packets);
    if covered == 0.0 { 0.0 } else { covered / (1.0 - p_start + covered) }
}

/// The fate of consecutive packets, stored as run lengths and shared by all links that replay it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossTrace {
    /// Kept, lost, kept, lost …: an even number of runs, of which only the first and the last may be empty.
    runs: Arc<[u32]>,
    packet_count: u64,
    lost_count: u64,
}

impl LossTrace {
    /// From one flag a packet, `true` where it was lost.
    pub fn from_lost_flags(lost: impl IntoIterator<Item = bool>) -> Self {
        let mut runs: Vec<u32> = vec![0];
        let mut counts = [0u64; 2];
        for flag in lost {
            counts[usize::from(flag)] += 1;
            let in_lost_run = runs.len().is_multiple_of(2);
            if flag == in_lost_run && *runs.last().expect("starts with one run") < u32::MAX {
                *runs.last_mut().expect("starts with one run") += 1;
                continue;
            }
            if flag == in_lost_run {
                // The run is full: an empty run of the other kind joins it to its continuation.
                runs.push(0);
            }
            runs.push(1);
        }
        if runs.len() % 2 == 1 {
            runs.push(0);
        }
        LossTrace { runs: runs.into(), packet_count: counts[0] + counts[1], lost_count: counts[1] }
    }

    /// Bursts in one round; a burst across the end is one. None if every packet is lost.
    fn burst_count(&self) -> usize {
        let begins_after_kept = |pair: &&[u32]| pair[0] > 0 && pair[1] > 0;
        let begins_the_round = self.runs[0] == 0 && self.runs[1] > 0 && self.runs[self.runs.len() - 1] == 0;
        self.runs.chunks(2).filter(begins_after_kept).count() + usize::from(begins_the_round)
    }

    /// Packets until the trace begins again.
    pub fn packet_count(&self) -> u64 {
        self.packet_count
    }

    /// Packets lost in one round of the trace.
    pub fn lost_count(&self) -> u64 {
        self.lost_count
    }
}

/// A loss model at work.
#[derive(Clone, Debug)]
pub(crate) enum LossState {
    None,
    Independent(Chance),
    GilbertElliott { bad: bool, leave_good: Chance, leave_bad: Chance, lose_good: Chance, lose_bad: Chance },
    FixedBursts { burst_packets: u32, left: u32, start: Chance, lose: Chance },
    Replayed { trace: LossTrace, run_index: usize, left_in_run: u32 },
}

impl LossState {
    pub(crate) fn new(loss: &Loss) -> Self {
        match loss {
            Loss::None => LossState::None,
            Loss::Independent { probability } => LossState::Independent(Chance::new(*probability)),
            Loss::GilbertElliott { p_good_to_bad, p_bad_to_good, loss_good, loss_bad } => LossState::GilbertElliott {
                bad: false,
                leave_good: Chance::new(*p_good_to_bad),
                leave_bad: Chance::new(*p_bad_to_good),
                lose_good: Chance::new(*loss_good),
                lose_bad: Chance::new(*loss_bad),
            },
            Loss::FixedBursts { p_start, burst_packets, loss_in_burst } => LossState::FixedBursts {
                burst_packets: *burst_packets,
                left: 0,
                start: Chance::new(*p_start),
                lose: Chance::new(*loss_in_burst),
            },
            Loss::Replayed(trace) => {
                LossState::Replayed { trace: trace.clone(), run_index: 0, left_in_run: trace.runs[0] }
            }
        }
    }

    /// Decides the next packet.
    #[inline]
    pub(crate) fn is_lost(&mut self, random: &mut ChaCha8Rng) -> bool {
        match self {
            LossState::None => false,
            LossState::Independent(chance) => chance.draw(random),
            LossState::GilbertElliott { bad, leave_good, leave_bad, lose_good, lose_bad } => {
                let leave = if *bad { *leave_bad } else { *leave_good };
                *bad ^= leave.draw(random);
                let lose = if *bad { *lose_bad } else { *lose_good };
                lose.draw(random)
            }
            LossState::FixedBursts { burst_packets, left, start, lose } => {
                if *left == 0 {
                    if !start.draw(random) {
                        return false;
                    }
                    *left = *burst_packets;
                }
                *left -= 1;
                lose.draw(random)
            }
            LossState::Replayed { trace, run_index, left_in_run } => {
                // Ends: a checked trace holds at least one packet.
                while *left_in_run == 0 {
                    *run_index = (*run_index + 1) % trace.runs.len();
                    *left_in_run = trace.runs[*run_index];
                }
                *left_in_run -= 1;
                *run_index % 2 == 1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_core::SeedableRng;

    fn replay(flags: &[bool], count: usize) -> Vec<bool> {
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let mut state = LossState::new(&Loss::Replayed(LossTrace::from_lost_flags(flags.iter().copied())));
        (0..count).map(|_| state.is_lost(&mut random)).collect()
    }

    #[test]
    fn a_trace_is_replayed_in_a_circle() {
        for flags in [&[true][..], &[false], &[true, false, false], &[false, true, true, false, true]] {
            let expected: Vec<bool> = flags.iter().copied().cycle().take(37).collect();
            assert_eq!(replay(flags, 37), expected, "{flags:?}");
        }
    }

    #[test]
    fn a_trace_knows_its_mean_loss_and_burst() {
        let loss = Loss::Replayed(LossTrace::from_lost_flags([false, true, true, false, false, true, false, false]));
        assert_eq!(loss.mean_loss(), 3.0 / 8.0);
        assert_eq!(loss.mean_burst_packets(), Some(1.5));
    }

    #[test]
    fn fixed_bursts_have_one_length_and_lose_as_often_as_the_formulas_say() {
        let count = 2_000_000;
        for (p_start, burst_packets, loss_in_burst) in [(1e-3, 8, 1.0), (1e-3, 12, 0.3), (0.02, 2, 0.7), (0.3, 1, 0.5)]
        {
            let loss = Loss::FixedBursts { p_start, burst_packets, loss_in_burst };
            loss.check().expect("probabilities");
            let (mut random, mut state) = (ChaCha8Rng::seed_from_u64(7), LossState::new(&loss));
            let lost: Vec<bool> = (0..count).map(|_| state.is_lost(&mut random)).collect();
            let share = lost.iter().filter(|lost| **lost).count() as f64 / f64::from(count);
            assert!((share / loss.mean_loss() - 1.0).abs() < 0.05, "{loss:?}: {share}");
            let runs: Vec<usize> = lost.split(|lost| !lost).map(<[bool]>::len).filter(|length| *length > 0).collect();
            let mean = runs.iter().sum::<usize>() as f64 / runs.len() as f64;
            let formula = loss.mean_burst_packets().expect("loses");
            assert!((mean / formula - 1.0).abs() < 0.05, "{loss:?}: {mean} instead of {formula}");
            if loss_in_burst == 1.0 {
                // Two may meet.
                assert!(runs.iter().all(|length| length.is_multiple_of(8)), "{loss:?}");
            }
        }
        assert_eq!(Loss::FixedBursts { p_start: 0.0, burst_packets: 8, loss_in_burst: 1.0 }.mean_burst_packets(), None);
        assert!(Loss::FixedBursts { p_start: 0.1, burst_packets: 0, loss_in_burst: 1.0 }.check().is_err());
    }

    #[test]
    fn bursts_are_what_was_asked() {
        let loss = Loss::bursts(0.02, 8.0);
        assert!((loss.mean_loss() - 0.02).abs() < 1e-12);
        assert!((loss.mean_burst_packets().expect("loses") - 8.0).abs() < 1e-9);
        let unlucky = Loss::Independent { probability: 0.25 };
        assert!((unlucky.mean_burst_packets().expect("loses") - 1.0 / 0.75).abs() < 1e-12);
    }
}
