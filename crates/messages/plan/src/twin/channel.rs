//! One direction of the link, packet by packet, and the loss of single control packets in the other.

use rand_chacha::ChaCha8Rng;
use rand_core::Rng;

use crate::link::{Link, RELIABLE_OVERHEAD_BYTES};
use crate::scheme::Timers;

pub(crate) struct Channel {
    random: ChaCha8Rng,
    is_bad: bool,
    /// Of the two states: leaving it, losing a packet in it.
    leaving: [Chance; 2],
    losing: [Chance; 2],
    bad_share: f64,
    /// How much of the state is left one packet later.
    memory: f64,
    mean_loss: f64,
    packet_seconds: f64,
    pub(crate) timers: Timers,
    pub(crate) packets_per_chunk: u64,
}

/// A probability, and how to draw the number of times until it comes true.
#[derive(Clone, Copy)]
struct Chance {
    probability: f64,
    /// 1 / ln(1 − probability).
    scale: f64,
}

impl Chance {
    fn new(probability: f64) -> Self {
        Chance { probability, scale: 1.0 / (-probability).ln_1p() }
    }

    /// How often it does not come true before it does.
    fn misses(self, random: &mut ChaCha8Rng) -> u64 {
        match self.probability {
            p if p <= 0.0 => u64::MAX,
            p if p >= 1.0 => 0,
            _ => (uniform(random).ln() * self.scale) as u64,
        }
    }
}

fn uniform(random: &mut ChaCha8Rng) -> f64 {
    ((random.next_u64() >> 11) as f64 + 0.5) / 9_007_199_254_740_992.0
}

impl Channel {
    pub(crate) fn new(link: &Link, chunk_bytes: u32, message_bytes: u64, random: ChaCha8Rng) -> Self {
        let (moves, loss, bad_share) = link.loss.chain();
        let packet_bytes = u64::from(link.packet_bytes);
        let packets = (u64::from(chunk_bytes) / packet_bytes).max(1).min(message_bytes.div_ceil(packet_bytes));
        Channel {
            random,
            is_bad: false,
            leaving: [moves.0[0][1], moves.0[1][0]].map(Chance::new),
            losing: loss.map(Chance::new),
            bad_share,
            memory: 1.0 - moves.0[0][1] - moves.0[1][0],
            mean_loss: link.loss.mean(),
            packet_seconds: link.wire_seconds(packet_bytes, RELIABLE_OVERHEAD_BYTES),
            timers: Timers::new(link.round_trip_seconds),
            packets_per_chunk: packets,
        }
    }

    /// A new message, long after the one before.
    pub(crate) fn forget(&mut self) {
        if self.bad_share > 0.0 {
            self.is_bad = uniform(&mut self.random) < self.bad_share;
        }
    }

    /// Nothing is sent for a while; the state goes on.
    pub(crate) fn idle(&mut self, seconds: f64) {
        if self.bad_share > 0.0 && seconds > 0.0 {
            let left = self.memory.abs().powf(seconds / self.packet_seconds);
            let bad = self.bad_share + left * (f64::from(self.is_bad) - self.bad_share);
            self.is_bad = uniform(&mut self.random) < bad;
        }
    }

    /// Send packets, and hear which are lost until the hearer has heard enough (and answers false). What was not sent
    /// then is not.
    pub(crate) fn send(&mut self, packets: u64, mut lost: impl FnMut(u64) -> bool) {
        let mut sent = 0;
        while sent < packets {
            let state = usize::from(self.is_bad);
            let stays = self.leaving[state].misses(&mut self.random);
            let until = sent.saturating_add(stays).min(packets);
            if !self.send_in_state(state, sent, until, &mut lost) {
                return;
            }
            if until < packets {
                self.is_bad = !self.is_bad;
                if !self.send_in_state(usize::from(self.is_bad), until, until + 1, &mut lost) {
                    return;
                }
            }
            sent = until + 1;
        }
    }

    fn send_in_state(&mut self, state: usize, from: u64, until: u64, lost: &mut impl FnMut(u64) -> bool) -> bool {
        let mut at = from;
        while at < until {
            at = at.saturating_add(self.losing[state].misses(&mut self.random));
            if at < until && !lost(at) {
                return false;
            }
            at = at.saturating_add(1);
        }
        true
    }

    /// The first of some packets that is lost. What follows it has not been sent.
    pub(crate) fn first_lost(&mut self, packets: u64) -> Option<u64> {
        let mut first = None;
        self.send(packets, |at| {
            first = Some(at);
            false
        });
        first
    }

    /// Send some packets, and hear how many of them are lost.
    pub(crate) fn count_lost(&mut self, packets: u64) -> u64 {
        let mut lost = 0;
        self.send(packets, |_| {
            lost += 1;
            true
        });
        lost
    }

    pub(crate) fn is_packet_lost(&mut self) -> bool {
        self.first_lost(1).is_some()
    }

    /// Whether a control packet in the reverse direction is lost.
    pub(crate) fn is_control_lost(&mut self) -> bool {
        self.mean_loss > 0.0 && uniform(&mut self.random) < self.mean_loss
    }

    /// How long after the first report the sender learns that a message is done.
    pub(crate) fn done_delay(&mut self) -> f64 {
        let mut lost = 0;
        while self.is_control_lost() {
            lost += 1;
        }
        self.timers.done_delay(lost)
    }
}

#[cfg(test)]
mod tests {
    use rand_core::SeedableRng;

    use super::*;
    use crate::link::Loss;

    #[test]
    fn as_much_is_lost_as_is_said_and_in_such_runs() {
        for (loss, burst) in [(Loss::Independent(0.05), 1.0 / 0.95), (Loss::bursts(0.05, 6.0), 6.0)] {
            let link = Link::new(1e9, 0.0, loss);
            let mut channel = Channel::new(&link, 4096, 1 << 30, ChaCha8Rng::seed_from_u64(1));
            let (mut count, mut runs, mut last) = (0.0, 0.0, u64::MAX - 1);
            channel.send(4_000_000, |at| {
                count += 1.0;
                runs += f64::from(at != last + 1);
                last = at;
                true
            });
            assert!((count / 4e6 / 0.05 - 1.0_f64).abs() < 0.02, "{count}");
            assert!((count / runs / burst - 1.0_f64).abs() < 0.02, "{count} {runs}");
        }
    }
}
