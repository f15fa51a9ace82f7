//! Losses of consecutive chunks, and what a code can do about them.
//!
//! The chain of packets (see [`crate::link`]) becomes a chain of chunks: [`ChunkChain`] has the matrices of a chunk that is whole and of one
//! that is lost. What is asked of it are numbers of losses among consecutive chunks, by the usual recursion: the vector of (losses so
//! far, state) is multiplied by `whole` where a chunk is not lost, and by `lost` one row further where it is.

use crate::link::{Link, PlanError};
use crate::matrix::Matrix;
use crate::probability::binomial_tails;
use crate::scheme::{Code, CodeKind};

/// More than this share of chunks lost, and a message hardly ever arrives.
const CHUNK_LOSS_MAX: f64 = 0.95;
/// Codes with more groups have too many sets of groups to follow each.
const GROUPS_FOLLOWED_MAX: u32 = 8;

/// Losses of chunks in a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkChain {
    pub(crate) whole: Matrix,
    pub(crate) lost: Matrix,
    /// Share of time in each state.
    pub(crate) start: [f64; 2],
    /// Share of chunks that are lost.
    pub(crate) loss: f64,
    /// The same for each chunk, whatever happened to others.
    pub(crate) is_independent: bool,
    /// What is lost together is repeated together, and is then safer together than apart: the loss that each chunk of a run would have to
    /// have on its own for the run to come through whole as often. For the first repetition, and for the later ones: what a burst takes
    /// of a run is half of it in the mean, and that again is a run, of which losing any is losing it.
    repeated_loss: [f64; 2],
}

impl ChunkChain {
    pub(crate) fn new(link: &Link, chunk_bytes: u32) -> Result<Self, PlanError> {
        let packets = u64::from(chunk_bytes / link.packet_bytes.max(1)).max(1);
        let (moves, loss, bad) = link.loss.chain();
        let keep = Matrix(moves.0.map(|[good, bad]| [good * (1.0 - loss[0]), bad * (1.0 - loss[1])]));
        let whole = keep.power(packets);
        let start = [1.0 - bad, bad];
        let is_independent = bad == 0.0;
        let loss = if is_independent {
            -f64::exp_m1(packets as f64 * (-loss[0]).ln_1p())
        } else {
            1.0 - whole.apply(start).iter().sum::<f64>()
        };
        if loss > CHUNK_LOSS_MAX {
            return Err(PlanError::Hopeless { chunk_bytes, chunk_loss: loss });
        }
        let lost = if is_independent { Matrix::IDENTITY.scaled(loss) } else { moves.power(packets) - whole };
        let whole = if is_independent { Matrix::IDENTITY.scaled(1.0 - loss) } else { whole };
        let mut chain = ChunkChain { whole, lost, start, loss, is_independent, repeated_loss: [loss; 2] };
        chain.repeated_loss = chain.loss_of_runs();
        Ok(chain)
    }

    /// Probability that a chunk is lost when the one before it was not: where a run of losses begins.
    pub(crate) fn beginning(&self) -> f64 {
        let whole = self.whole.apply(self.start);
        self.lost.apply(whole).iter().sum::<f64>() / (1.0 - self.loss)
    }

    /// Mean number of chunks lost in a row, where any is.
    pub(crate) fn mean_run(&self) -> f64 {
        match self.loss > 0.0 {
            true => self.loss / ((1.0 - self.loss) * self.beginning()),
            false => 1.0,
        }
    }

    fn loss_of_runs(&self) -> [f64; 2] {
        if self.is_independent || self.loss == 0.0 {
            return [self.loss; 2];
        }
        // The logarithm of the probability that a run comes through whole; runs need not be whole numbers of chunks.
        let ln_whole = |run: f64| {
            let count = run.floor() as u64;
            let ln_at = |count| self.whole.power(count).apply(self.start).iter().sum::<f64>().ln();
            ln_at(count) + (run - run.floor()) * (ln_at(count + 1) - ln_at(count))
        };
        let run = self.mean_run().max(1.0);
        [-f64::exp_m1(ln_whole(run) / run), -f64::exp_m1(ln_whole((run / 2.0).max(1.0)))]
    }

    /// Probability that a chunk that was lost at first is lost in each of so many repetitions.
    pub(crate) fn missing_after(&self, repetitions: u32) -> f64 {
        let [first, later] = self.repeated_loss;
        match repetitions {
            0 => 1.0,
            repetitions => first * later.powi(repetitions as i32 - 1),
        }
    }

    fn step(&self, counts: &[[f64; 2]]) -> Vec<[f64; 2]> {
        let mut next = vec![[0.0; 2]; counts.len() + 1];
        for (lost, &row) in counts.iter().enumerate() {
            let (whole, gone) = (self.whole.apply(row), self.lost.apply(row));
            for state in 0..2 {
                next[lost][state] += whole[state];
                next[lost + 1][state] += gone[state];
            }
        }
        next
    }

    /// As if only one chunk in `apart` were looked at.
    fn thinned(&self, apart: u32) -> ChunkChain {
        let between = (self.whole + self.lost).power(u64::from(apart.saturating_sub(1)));
        match self.is_independent {
            true => *self,
            false => ChunkChain { whole: between * self.whole, lost: between * self.lost, ..*self },
        }
    }
}

/// What a code makes of the losses of one submessage.
#[derive(Clone, Debug)]
pub(crate) struct Submessage {
    /// Probability that it can be computed once its data and so many of its parity chunks have been sent.
    pub(crate) computable_after: Vec<f64>,
    /// Probability that it cannot be computed after so many times of asking, and the mean number of data chunks that are then missing
    /// (counted only when it cannot).
    pub(crate) failure: Vec<(f64, f64)>,
    /// In bursts: probability that it can be computed without asking and the chain goes from one state to another, because a burst may
    /// reach over its end.
    pub(crate) computable: Option<Matrix>,
}

const STATES: [[f64; 2]; 2] = [[1.0, 0.0], [0.0, 1.0]];

/// Asking goes on until this little is left.
const FAILURE_MIN: f64 = 1e-16;
const ROUNDS_MAX: usize = 1000;

impl Submessage {
    /// Of a code with `data` chunks of data, which may be fewer than it has: the end of a message.
    pub(crate) fn new(chain: &ChunkChain, code: Code, data: u32) -> Self {
        match code.kind {
            CodeKind::Mds => Submessage::mds(chain, data as usize, code.parity as usize),
            CodeKind::Xor => Submessage::xor(chain, data, code.parity),
        }
    }

    /// Any `parity` losses can be mended. A data chunk is still missing after asking e times with π = loss^(e + 1), so
    /// with a of the data and b of the parity lost at first, it fails while P(Binomial(a, loss^e) > parity − b).
    fn mds(chain: &ChunkChain, data: usize, parity: usize) -> Self {
        let mut counts = vec![chain.start];
        for _ in 0..data {
            counts = chain.step(&counts);
        }
        // [lost data][lost parity], by what the state was in between.
        let mut joint: Vec<Vec<f64>> = Vec::with_capacity(data + 1);
        let from_state = STATES.map(|start| {
            let mut lost_parity = vec![start];
            for _ in 0..parity {
                lost_parity = chain.step(&lost_parity);
            }
            lost_parity
        });
        for row in &counts {
            let probability = |lost: usize| {
                let of = |state: usize| row[state] * (from_state[state][lost][0] + from_state[state][lost][1]);
                of(0) + of(1)
            };
            joint.push((0..=parity).map(probability).collect());
        }
        let mut computable_after = Vec::with_capacity(parity + 1);
        for sent in 0..=parity {
            computable_after.push(counts.iter().take(sent + 1).map(|row| row[0] + row[1]).sum());
            counts = chain.step(&counts);
        }
        let mut failure = Vec::new();
        while failure.len() < ROUNDS_MAX {
            let again = chain.missing_after(failure.len() as u32);
            let tails = binomial_tails(data, again, parity);
            let (mut fails, mut missing) = (0.0, 0.0);
            for (lost_data, row) in joint.iter().enumerate() {
                for (lost_parity, probability) in row.iter().enumerate() {
                    let tail = tails[lost_data][parity - lost_parity];
                    fails += probability * tail;
                    // At least what is too many, about what is expected.
                    missing += probability * tail * (lost_data as f64 * again).max((parity - lost_parity + 1) as f64);
                }
            }
            failure.push((fails, missing));
            if fails < FAILURE_MIN {
                break;
            }
        }
        let computable = (!chain.is_independent).then(|| {
            Matrix(STATES.map(|start| {
                let counts = (0..data + parity).fold(vec![start], |counts, _| chain.step(&counts));
                counts.iter().take(parity + 1).fold([0.0; 2], |sum, row| [sum[0] + row[0], sum[1] + row[1]])
            }))
        });
        Submessage { computable_after, failure, computable }
    }

    /// One loss in each group can be mended, if it is not that of the parity and of data both. The chunks of a group are as far apart as there are
    /// groups, so that a burst that is shorter than that hits each group at most once.
    fn xor(chain: &ChunkChain, data: u32, parity: u32) -> Self {
        let thinned = chain.thinned(parity);
        let per_group: Vec<[Vec<f64>; 2]> =
            (0..parity).map(|group| group_losses(&thinned, data, parity, group)).collect();
        let computable_after = match parity <= GROUPS_FOLLOWED_MAX && !chain.is_independent {
            true => follow_groups(chain, chain.start, data, parity).0,
            false => independent_groups(&per_group),
        };
        let first = 1.0 - computable_after.last().copied().unwrap_or(1.0);
        // The complement of a sum loses digits; for groups on their own there is a better one.
        let first = if chain.is_independent { group_failure(&per_group, 1.0) } else { first.max(0.0) };
        let missing = |fails: f64| fails * (f64::from(data) * chain.loss + 1.5).min(f64::from(data));
        let mut failure = vec![(first, missing(first))];
        while failure.len() < ROUNDS_MAX && failure.last().is_some_and(|last| last.0 >= FAILURE_MIN) {
            let last = failure.last().map_or(1.0, |last| last.0);
            let again = chain.missing_after(failure.len() as u32);
            let fails = group_failure(&per_group, again).min(last);
            failure.push((fails, missing(fails)));
        }
        let is_followed = parity <= GROUPS_FOLLOWED_MAX && !chain.is_independent;
        let computable = is_followed.then(|| Matrix(STATES.map(|start| follow_groups(chain, start, data, parity).1)));
        Submessage { computable_after, failure, computable }
    }
}

/// Probability of each number of lost data chunks of a group: with its parity chunk there, and with that lost.
fn group_losses(thinned: &ChunkChain, data: u32, parity: u32, group: u32) -> [Vec<f64>; 2] {
    let size = (data.saturating_sub(group)).div_ceil(parity);
    let mut counts = vec![thinned.start];
    for _ in 0..size {
        counts = thinned.step(&counts);
    }
    let of = |matrix: Matrix| counts.iter().map(|row| matrix.apply(*row).iter().sum()).collect();
    [of(thinned.whole), of(thinned.lost)]
}

/// Probability that some group cannot be computed, when each lost data chunk is still missing with `again`.
fn group_failure(groups: &[[Vec<f64>; 2]], again: f64) -> f64 {
    let fails = |[there, gone]: &[Vec<f64>; 2]| {
        let none = |lost: usize| (1.0 - again).powi(lost as i32);
        // P(at least two) and P(at least one), without taking nearly 1 from 1.
        let at_least_one =
            |lost: usize| if again >= 1.0 { f64::from(lost > 0) } else { -f64::exp_m1(lost as f64 * (-again).ln_1p()) };
        let at_least_two = |lost: usize| match again >= 1.0 {
            true => f64::from(lost > 1),
            false if lost < 2 => 0.0,
            false => {
                // By the first two that are missing: Σ over the second's place.
                (1..lost).map(|place| place as f64 * again * again * none(place - 1)).sum::<f64>()
            }
        };
        let with = |values: &[f64], of: &dyn Fn(usize) -> f64| {
            values.iter().enumerate().map(|(lost, p)| p * of(lost)).sum::<f64>()
        };
        with(there, &at_least_two) + with(gone, &at_least_one)
    };
    let ln: f64 = groups.iter().map(|group| (-fails(group).min(1.0 - f64::EPSILON)).ln_1p()).sum();
    -f64::exp_m1(ln)
}

/// Probability that all is there or computable after so much parity, when what happens to one group says nothing of another.
fn independent_groups(groups: &[[Vec<f64>; 2]]) -> Vec<f64> {
    let whole = |[there, gone]: &[Vec<f64>; 2]| there[0] + gone[0];
    let mended = |[there, gone]: &[Vec<f64>; 2]| there[0] + gone[0] + there.get(1).copied().unwrap_or(0.0);
    let after = |sent: usize| {
        groups
            .iter()
            .enumerate()
            .map(|(index, group)| if index < sent { mended(group) } else { whole(group) })
            .product()
    };
    (0..=groups.len()).map(after).collect()
}

/// The same when it does: the set of groups with a loss is followed, chunk by chunk.
/// With it the state that the chain is in at the end, where all is computable.
fn follow_groups(chain: &ChunkChain, start: [f64; 2], data: u32, parity: u32) -> (Vec<f64>, [f64; 2]) {
    let mut sets = vec![[0.0; 2]; 1 << parity];
    sets[0] = start;
    let add = |to: &mut [f64; 2], from: [f64; 2]| (to[0], to[1]) = (to[0] + from[0], to[1] + from[1]);
    for chunk in 0..data {
        let group = 1_usize << (chunk % parity);
        let mut next = vec![[0.0; 2]; sets.len()];
        for (set, &row) in sets.iter().enumerate().filter(|(_, row)| row[0] + row[1] > 0.0) {
            add(&mut next[set], chain.whole.apply(row));
            if set & group == 0 {
                add(&mut next[set | group], chain.lost.apply(row));
            }
        }
        sets = next;
    }
    let total = |sets: &[[f64; 2]], unmended: usize| {
        sets.iter().enumerate().filter(|(set, _)| set & unmended == 0).map(|(_, row)| row[0] + row[1]).sum::<f64>()
    };
    let mut after = vec![total(&sets, usize::MAX)];
    for sent in 0..parity {
        let group = 1_usize << sent;
        for (set, row) in sets.iter_mut().enumerate() {
            let whole = chain.whole.apply(*row);
            let gone = if set & group == 0 { chain.lost.apply(*row) } else { [0.0; 2] };
            *row = [whole[0] + gone[0], whole[1] + gone[1]];
        }
        after.push(total(&sets, usize::MAX << (sent + 1)));
    }
    let end = sets.iter().fold([0.0; 2], |sum, row| [sum[0] + row[0], sum[1] + row[1]]);
    (after, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Loss;

    fn chain(loss: Loss, packets: u32) -> ChunkChain {
        let link = Link { packet_bytes: 1000, ..Link::new(1e9, 0.01, loss) };
        ChunkChain::new(&link, 1000 * packets).expect("a chain")
    }

    #[test]
    fn bursts_of_independent_length_are_independent_losses() {
        let (independent, bursts) = (chain(Loss::Independent(0.1), 4), chain(Loss::bursts(0.1, 1.0 / 0.9), 4));
        assert!((independent.loss - (1.0 - 0.9_f64.powi(4))).abs() < 1e-12);
        assert!((bursts.loss - independent.loss).abs() < 1e-12);
        assert!((bursts.missing_after(3) / independent.missing_after(3) - 1.0).abs() < 0.01);
        for code in [Code { kind: CodeKind::Mds, data: 6, parity: 3 }, Code { kind: CodeKind::Xor, data: 6, parity: 3 }]
        {
            let [one, other] = [independent, bursts].map(|chain| Submessage::new(&chain, code, code.data));
            for (one, other) in one.failure.iter().zip(&other.failure).take(4) {
                assert!((one.0 / other.0 - 1.0).abs() < 1e-6, "{one:?} {other:?}");
            }
            for (one, other) in one.computable_after.iter().zip(&other.computable_after) {
                assert!((one - other).abs() < 1e-9);
            }
        }
    }

    /// Appendix B of the SDR paper.
    #[test]
    fn the_papers_probabilities_of_recovery() {
        let p: f64 = 0.02;
        let chain = chain(Loss::Independent(p), 1);
        let mds = Submessage::new(&chain, Code { kind: CodeKind::Mds, data: 4, parity: 2 }, 4);
        let choose = [1.0, 6.0, 15.0];
        let expected: f64 = (0..=2).map(|i| choose[i as usize] * p.powi(i) * (1.0 - p).powi(6 - i)).sum();
        assert!((1.0 - mds.failure[0].0 - expected).abs() < 1e-12);
        assert!((mds.computable_after[2] - expected).abs() < 1e-12);
        let xor = Submessage::new(&chain, Code { kind: CodeKind::Xor, data: 4, parity: 2 }, 4);
        // Two data chunks and their parity, one of which may be lost; but a lost parity with all data there is no failure either.
        let group = (1.0 - p).powi(3) + 3.0 * p * (1.0 - p).powi(2);
        assert!((1.0 - xor.failure[0].0 - group.powi(2)).abs() < 1e-12, "{xor:?}");
    }

    #[test]
    fn bursts_pass_between_groups() {
        let bursts = chain(Loss::bursts(0.01, 2.0), 1);
        let independent = chain(Loss::Independent(0.01), 1);
        let failure =
            |chain: &ChunkChain, kind, parity| Submessage::new(chain, Code { kind, data: 32, parity }, 32).failure[0].0;
        // Interleaving helps XOR against short bursts; without, they are worse than single losses.
        assert!(failure(&bursts, CodeKind::Xor, 8) < failure(&independent, CodeKind::Xor, 8));
        assert!(failure(&bursts, CodeKind::Xor, 1) > 0.5 * failure(&independent, CodeKind::Xor, 1));
        assert!(failure(&bursts, CodeKind::Mds, 8) > 10.0 * failure(&independent, CodeKind::Mds, 8));
    }
}
