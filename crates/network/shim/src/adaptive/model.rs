//! How often a block cannot be repaired, and what that costs: the part of the planner's model of LoWAR that a choice needs.
//!
//! Losses are a chain of two states, as in the planner: a burst begins behind a packet that arrives, and goes on behind one that is
//! lost. With MDS the losses of a block are counted along the chain. With XOR two things break a group: two bursts that both hit
//! it, or one that reaches from one of its packets to the next, which is as far as there are groups.

use longhaul_coding::CodeKind;

use crate::config::BlockCode;

/// Losses of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathLoss {
    /// Probability that a packet is lost when the one before it was not.
    pub begins: f64,
    /// Probability that a packet is lost when the one before it was.
    pub stays: f64,
}

impl PathLoss {
    /// Each packet on its own.
    pub fn independent(loss: f64) -> PathLoss {
        PathLoss { begins: loss, stays: loss }
    }

    /// The share of packets that is lost.
    pub fn share(self) -> f64 {
        if self.begins == 0.0 { 0.0 } else { self.begins / (self.begins + 1.0 - self.stays) }
    }

    /// Bursts that are hardly longer than chance makes them.
    fn is_independent(self) -> bool {
        self.stays <= 1.5 * self.begins
    }
}

/// Probability that a block with `data` packets of a code cannot be repaired.
pub fn block_failure(code: BlockCode, data: u8, loss: PathLoss) -> f64 {
    failure(code.kind(), data.into(), code.sums_of(data, true).into(), loss)
}

fn failure(kind: CodeKind, data: usize, sums: usize, loss: PathLoss) -> f64 {
    match kind {
        CodeKind::Mds if loss.is_independent() => more_than(data + sums, loss.share(), sums),
        CodeKind::Mds => more_than_in_bursts(data + sums, loss, sums),
        CodeKind::Xor => {
            let (smaller, larger) = (data / sums, data % sums);
            let share = loss.share();
            let whole = |size: usize| 1.0 - more_than(size + 1, share, 1);
            let groups = |size, count: usize| whole(size).powi(i32::try_from(count).unwrap_or(i32::MAX));
            let apart = match larger {
                // One loses digits; a sum of small numbers does not.
                _ if share < 1e-4 => {
                    (sums - larger) as f64 * more_than(smaller + 1, share, 1)
                        + larger as f64 * more_than(smaller + 2, share, 1)
                }
                0 => 1.0 - groups(smaller, sums),
                _ => 1.0 - groups(smaller, sums - larger) * groups(smaller + 1, larger),
            };
            let reaches = match loss.is_independent() {
                true => 0.0,
                false => (data + sums) as f64 * loss.begins * loss.stays.powi(sums as i32),
            };
            (apart + reaches).min(1.0)
        }
    }
}

/// Probability that more than `most` of `count` are lost, each on its own.
fn more_than(count: usize, loss: f64, most: usize) -> f64 {
    if loss <= 0.0 || count <= most {
        return 0.0;
    }
    let (count, odds) = (count as f64, loss / (1.0 - loss));
    let mut term = (count * (-loss).ln_1p()).exp();
    let (mut tail, mut head) = (0.0, term);
    for lost in 1..=count as usize {
        term *= (count - lost as f64 + 1.0) / lost as f64 * odds;
        if lost > most {
            tail += term;
            if term < tail * 1e-9 {
                break;
            }
        } else {
            head += term;
        }
    }
    // With many losses the first term may be too small to begin with.
    if head > 0.0 { tail.min(1.0) } else { 1.0 }
}

/// The same in bursts: the losses so far, and whether the last packet was lost, packet by packet.
fn more_than_in_bursts(count: usize, loss: PathLoss, most: usize) -> f64 {
    let share = loss.share();
    // By losses: [last arrived, last lost].
    let mut chances = vec![[0.0_f64; 2]; most + 1];
    chances[0] = [1.0 - share, share];
    let mut failed = 0.0;
    for _ in 0..count {
        // Of the row before.
        let mut arriving = 0.0;
        for row in &mut chances {
            let [good, bad] = *row;
            let lost = good * loss.begins + bad * loss.stays;
            *row = [good + bad - lost, arriving];
            arriving = lost;
        }
        failed += arriving;
    }
    failed.min(1.0)
}

/// Repair packets of a block whose failures are looked up; of more they are computed.
const SUMS_LOOKED_UP: usize = 32;

/// How often blocks fail on a path with this loss. With MDS, of all lengths and repair packets at once: a search asks for hundreds.
#[derive(Debug)]
pub(super) struct Failures {
    loss: PathLoss,
    /// By packets of a block, repair packets among them: the probability that more are lost than this many.
    more_than: Vec<[f64; SUMS_LOOKED_UP + 1]>,
}

impl Failures {
    pub(super) fn new(loss: PathLoss) -> Failures {
        let share = loss.share();
        let PathLoss { begins, stays } = if loss.is_independent() { PathLoss::independent(share) } else { loss };
        // By losses: [last arrived, last lost].
        let mut chances = [[0.0_f64; 2]; SUMS_LOOKED_UP + 1];
        chances[0] = [1.0 - share, share];
        let mut failed = [0.0_f64; SUMS_LOOKED_UP + 1];
        let mut more_than = vec![failed];
        for _ in 1..=u8::MAX {
            // Of the row before.
            let mut arriving = 0.0;
            for (row, failed) in chances.iter_mut().zip(&mut failed) {
                let [good, bad] = *row;
                let lost = good * begins + bad * stays;
                *row = [good + bad - lost, arriving];
                *failed = (*failed + lost).min(1.0);
                arriving = lost;
            }
            more_than.push(failed);
        }
        Failures { loss, more_than }
    }

    fn of(&self, kind: CodeKind, data: u8, sums: u8) -> f64 {
        let (count, sums) = (usize::from(data) + usize::from(sums), usize::from(sums));
        let known = self.more_than.get(count).and_then(|row| row.get(sums)).filter(|_| kind == CodeKind::Mds);
        known.copied().unwrap_or_else(|| failure(kind, data.into(), sums, self.loss))
    }

    /// The same without any repair packet.
    fn unprotected(&self, data: u8) -> f64 {
        1.0 - (1.0 - self.loss.share()) * (1.0 - self.loss.begins).powi(i32::from(data) - 1)
    }
}

/// What a code costs on a path.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// Repair packets per data packet.
    pub(super) overhead: f64,
    /// Blocks that cannot be repaired, per data packet.
    pub(super) unrepaired: f64,
    /// Packets that are sent besides each data packet: repair packets, and what is sent again.
    pub(super) total: f64,
}

/// What a path carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Traffic {
    /// Packets of a message, in the mean.
    pub(super) message_packets: f64,
    /// Blocks that are cut short because their flow pauses, per data packet: they have only their share of repair packets.
    pub(super) cuts: f64,
    /// Packets in flight: go-back-N sends all of those again when a block cannot be repaired, and what follows in the block.
    pub(super) in_flight: f64,
    /// Repair packets per data packet that the user allows. The blocks for which nothing is left of that have none.
    pub(super) overhead_max: f64,
}

/// Lengths of blocks that are cut short, which may be any, that are looked at.
const CUTS: u16 = 8;

/// The cost of a code.
pub(super) fn cost(code: BlockCode, failures: &Failures, traffic: &Traffic) -> Cost {
    let Traffic { message_packets, cuts, in_flight, overhead_max } = *traffic;
    let block = f64::from(code.block_packets());
    let message = message_packets.max(1.0);
    let full = (message / block).floor();
    let rest = (message - full * block).round() as u8;
    let (mut repairs, mut failed, mut unprotected) = (0.0, 0.0, 0.0);
    for (blocks, count) in [(full, code.block_packets()), (1.0, rest)] {
        if blocks > 0.0 && count > 0 {
            let sums = code.sums_of(count, true);
            repairs += blocks * f64::from(sums);
            failed += blocks * failures.of(code.kind(), count, sums);
            unprotected += blocks * failures.unprotected(count);
        }
    }
    let (mut overhead, mut unrepaired, mut without) = (repairs / message, failed / message, unprotected / message);
    if cuts > 0.0 {
        let most = block.min(message) as u16;
        let weight = cuts / f64::from(CUTS);
        for part in 0..CUTS {
            let count = u8::try_from((most * (2 * part + 1)).div_ceil(2 * CUTS)).unwrap_or(u8::MAX).max(1);
            let sums = code.sums_of(count, false);
            // A share that is not a whole number is rounded up.
            let share = f64::from(count) / block * f64::from(code.repair_packets());
            overhead += weight * (f64::from(sums) - share).max(0.0);
            unrepaired += weight * failures.of(code.kind(), count, sums);
            without += weight * failures.unprotected(count);
        }
    }
    if overhead > overhead_max {
        let repaired = overhead_max / overhead;
        (overhead, unrepaired) = (overhead_max, repaired * unrepaired + (1.0 - repaired) * without);
    }
    let behind = block.min(message) * 2.0 / 3.0 + f64::from(code.repair_packets());
    Cost { overhead, unrepaired, total: overhead + unrepaired * (in_flight + behind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 Gbit/s, 40 ms, WRITEs of a mebibyte at an MTU of 1024.
    const TRAFFIC: Traffic = Traffic { message_packets: 1024.0, cuts: 0.0, in_flight: 45_000.0, overhead_max: 1.0 };

    fn failure(code: &str, loss: PathLoss) -> f64 {
        let code: BlockCode = code.parse().unwrap();
        block_failure(code, code.block_packets(), loss)
    }

    #[test]
    fn independent_losses_are_binomial() {
        let loss = PathLoss::independent(1e-3);
        let pairs = failure("xor:6,1", loss);
        assert!((pairs / 21e-6 - 1.0).abs() < 0.01, "seven packets have 21 pairs: {pairs}");
        let [xor, mds] = ["xor:6,1", "mds:6,1"].map(|code| failure(code, loss));
        assert!((xor / mds - 1.0).abs() < 1e-6, "one sum is one sum: {xor} {mds}");
        // The chain gives what the closed form gives, where both apply.
        let chain = more_than_in_bursts(72, PathLoss::independent(0.02), 8);
        assert!((chain / more_than(72, 0.02, 8) - 1.0).abs() < 1e-9);
        assert_eq!(more_than(5, 0.5, 5), 0.0);
        assert!((more_than(5, 0.5, 2) - 0.5).abs() < 1e-12);
        assert_eq!(failure("mds:64,8", PathLoss::independent(0.0)), 0.0);
    }

    #[test]
    fn bursts_break_what_is_shorter_than_they_are() {
        let bursts = PathLoss { begins: 1e-4, stays: 0.75 };
        let [one, four, eight] = ["xor:32,1", "xor:128,4", "xor:248,8"].map(|code| failure(code, bursts));
        assert!(one / 32.0 > 2.0 * four / 128.0 && four / 128.0 > 2.0 * eight / 248.0, "{one} {four} {eight}");
        let [few, many] = ["mds:64,2", "mds:64,16"].map(|code| failure(code, bursts));
        assert!(few > 10.0 * many, "{few} {many}");
    }

    #[test]
    fn costs_are_those_of_the_paper_s_link() {
        // 10 Gbit/s, 40 ms, one connection, 1e-3: the optimum for XOR is (6,1), with about 7.1 Gbit/s of 9.2.
        let total = |code: &str| {
            let loss = Failures::new(PathLoss::independent(1e-3));
            cost(code.parse().unwrap(), &loss, &TRAFFIC).total
        };
        assert!(total("xor:6,1") < total("xor:4,1") && total("xor:6,1") < total("xor:10,1"));
        assert!((9.2 / (1.0 + total("xor:6,1")) - 7.1).abs() < 0.2, "{}", total("xor:6,1"));
        let short = Traffic { message_packets: 1.0, ..TRAFFIC };
        let short = cost("xor:32,1".parse().unwrap(), &Failures::new(PathLoss::independent(1e-3)), &short);
        assert_eq!(short.overhead, 1.0, "a message of one packet is sent twice");
    }

    #[test]
    fn blocks_that_are_cut_short_are_weak() {
        let loss = Failures::new(PathLoss::independent(1e-2));
        let often = Traffic { cuts: 1e-3, ..TRAFFIC };
        let total = |code: &str, traffic: &Traffic| cost(code.parse().unwrap(), &loss, traffic).total;
        assert!(total("mds:245,10", &TRAFFIC) < total("mds:64,8", &TRAFFIC));
        assert!(total("mds:245,10", &often) > total("mds:64,8", &often));
    }

    #[test]
    fn failures_are_looked_up_as_they_are_computed() {
        for loss in [PathLoss::independent(1e-2), PathLoss { begins: 1e-4, stays: 0.75 }, PathLoss::independent(0.0)] {
            let failures = Failures::new(loss);
            for code in ["mds:8,1", "mds:64,8", "mds:223,32", "mds:215,40", "xor:32,1", "xor:255,32"] {
                let code: BlockCode = code.parse().unwrap();
                let (data, computed) = (code.block_packets(), block_failure(code, code.block_packets(), loss));
                let known = failures.of(code.kind(), data, code.repair_packets());
                assert!((known - computed).abs() <= 1e-9 * computed, "{code}: {known} {computed}");
            }
        }
    }

    #[test]
    fn messages_beyond_the_bound_go_without_repair() {
        let failures = Failures::new(PathLoss::independent(1e-2));
        let traffic = Traffic { message_packets: 16.0, cuts: 0.0, in_flight: 10_000.0, overhead_max: 0.1 };
        // Three repair packets for each message would be 18.75 %: nearly half of the messages have none.
        let [strong, weak] = ["mds:32,3", "xor:16,1"].map(|code| cost(code.parse().unwrap(), &failures, &traffic));
        assert_eq!((strong.overhead, weak.overhead), (0.1, 0.0625));
        let without = (1.0 - 0.99_f64.powi(16)) / 16.0;
        assert!((strong.unrepaired / (without * (1.0 - 0.1 / 0.1875)) - 1.0).abs() < 0.01, "{strong:?}");
        assert!(weak.total < strong.total, "{weak:?} {strong:?}");
        // Within the bound nothing is different.
        let roomy = cost("mds:32,3".parse().unwrap(), &failures, &Traffic { overhead_max: 0.2, ..traffic });
        assert!(roomy.overhead == 0.1875 && roomy.unrepaired < 1e-4, "{roomy:?}");
    }
}
