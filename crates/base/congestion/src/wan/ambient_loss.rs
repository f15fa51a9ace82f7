//! The loss that a path has without congestion.
//!
//! Where the queue is short, nothing is dropped for want of room: what is lost there is lost by the path itself. Packets
//! are counted by the queueing delay that the report about them shows. They are counted apart for the states of the
//! controller that leave the queue alone and for those that drain it, and a smaller share of these counts: a queue that is
//! shorter than what counts as short is full without delay, but not while it is drained.

use std::collections::VecDeque;

use longhaul_time::{Duration, Instant};

const SLICE: Duration = Duration::from_millis(500);
const SLICES: usize = 20;
/// Fewer packets say nothing.
const PACKETS_MIN: i64 = 300;
/// More is not ambient.
const SHARE_MAX: f64 = 0.1;
/// The same for the beginning, which ends with more than the path carries.
const SHARE_MAX_BEGINNING: f64 = 0.02;
/// Phases change a few times in a round trip at most.
const PHASES_MAX: usize = 64;
/// Longer ones are those of a host that stood still, not of a queue.
const DELAY_MAX: Duration = Duration::from_secs(1);
/// Shorter delays are none.
pub(super) const DELAY_MIN: Duration = Duration::from_millis(1);

/// When packets were sent, as far as loss is concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// The bandwidth is not known yet.
    #[default]
    Beginning,
    /// Neither probing nor draining.
    Steady,
    /// The queue is drained.
    Draining,
    /// More is sent than the path carries: says nothing.
    Probing,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    packets: i64,
    /// Less than 0 when packets were found that were counted in another slice.
    lost: i64,
}

#[derive(Clone, Copy, Debug)]
struct Slice {
    begun: Instant,
    steady: Counted,
    draining: Counted,
    delay_max: Duration,
}

/// Estimates the ambient loss of a path.
#[derive(Clone, Debug, Default)]
pub(super) struct AmbientLoss {
    slices: VecDeque<Slice>,
    /// When which phase began, from that of the newest packet that was reported.
    phases: VecDeque<(Instant, Phase)>,
    /// That of the newest packet.
    phase: Phase,
    beginning: Counted,
    share: f64,
}

impl AmbientLoss {
    /// The share of packets that the path loses by itself.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// The longest queueing delay lately.
    pub(super) fn delay_max(&self) -> Duration {
        self.slices.iter().map(|slice| slice.delay_max).max().unwrap_or_default()
    }

    /// What is sent from now on is sent in this phase.
    pub(super) fn enter(&mut self, now: Instant, phase: Phase) {
        if self.phases.back().is_none_or(|(_, last)| *last != phase) {
            self.phases.push_back((now, phase));
            if self.phases.len() > PHASES_MAX {
                self.phases.pop_front();
            }
        }
    }

    /// The phase in which a packet was sent.
    fn phase_at(&mut self, sent_at: Instant) -> Phase {
        while self.phases.get(1).is_some_and(|(begun, _)| *begun <= sent_at) {
            self.phases.pop_front();
        }
        self.phases.front().map_or(Phase::Beginning, |(_, phase)| *phase)
    }

    /// A report: packets delivered and lost, when the newest was sent, and its queueing delay.
    pub(super) fn count(&mut self, now: Instant, sent_at: Instant, delivered: u64, lost: i64, delay: Duration) {
        // Losses are known one report late: what is counted was sent between the two last ones.
        let newest = self.phase_at(sent_at);
        let phase = if self.phase == newest { newest } else { Phase::Probing };
        self.phase = newest;
        if self.slices.back().is_none_or(|slice| now - slice.begun >= SLICE) {
            let (steady, draining) = (Counted::default(), Counted::default());
            self.slices.push_back(Slice { begun: now, steady, draining, delay_max: Duration::ZERO });
            if self.slices.len() > SLICES {
                self.slices.pop_front();
            }
        }
        let is_short = delay <= DELAY_MIN.max(self.delay_max() / 4);
        let Some(slice) = self.slices.back_mut() else { return };
        slice.delay_max = slice.delay_max.max(delay.min(DELAY_MAX));
        // What is found again was counted when it was missed, whatever the state was then.
        slice.steady.lost = slice.steady.lost.saturating_add(lost.min(0));
        let lost = lost.max(0);
        if !is_short {
            return;
        }
        let counted = match phase {
            Phase::Beginning => &mut self.beginning,
            Phase::Steady => &mut slice.steady,
            Phase::Draining => &mut slice.draining,
            Phase::Probing => return,
        };
        counted.packets = counted.packets.saturating_add_unsigned(delivered).saturating_add(lost);
        counted.lost = counted.lost.saturating_add(lost);
        self.estimate();
    }

    fn estimate(&mut self) {
        let sum = |of: fn(&Slice) -> Counted| {
            self.slices.iter().map(of).fold(Counted::default(), |sum, counted| Counted {
                packets: sum.packets + counted.packets,
                lost: sum.lost + counted.lost,
            })
        };
        let [steady, draining] = [sum(|slice| slice.steady), sum(|slice| slice.draining)];
        let share = |counted: Counted| counted.lost.max(0) as f64 / counted.packets as f64;
        let is_known = |counted: &Counted| counted.packets >= PACKETS_MIN;
        let known = match (Some(steady).filter(is_known), Some(draining).filter(is_known)) {
            // Few are counted while the queue is drained: that share counts only if it cannot be the same by chance.
            (Some(steady), Some(draining)) => {
                let lost = draining.lost.max(0) as f64;
                let lost_at_most = lost + 2.0 * lost.sqrt() + 2.0;
                let is_less = lost_at_most / (draining.packets as f64) < share(steady);
                Some(if is_less { share(draining) } else { share(steady) })
            }
            (steady, draining) => steady.or(draining).map(share),
        };
        // The beginning ends with more than the path carries.
        let beginning = Some(self.beginning).filter(is_known).map(|counted| share(counted).min(SHARE_MAX_BEGINNING));
        self.share = known.or(beginning).unwrap_or(self.share).clamp(0.0, SHARE_MAX);
    }
}
