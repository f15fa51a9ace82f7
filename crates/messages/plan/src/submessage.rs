//! What a code can do about the losses of a submessage, and what it has to ask for when it cannot.
//!
//! Numbers of losses among its chunks come from the chain (see [`crate::losses`]). A Reed–Solomon code (MDS) recovers
//! any losses up to its parity; XOR one in each of its interleaved groups, which are followed chunk by chunk in bursts,
//! and are on their own otherwise.

use longhaul_scheme::{Code, CodeKind};

use crate::asked::Asked;
use crate::losses::ChunkChain;
use crate::matrix::Matrix;
use crate::probability::binomial_tails;

/// Codes with more groups have too many sets of groups to follow each.
const GROUPS_FOLLOWED_MAX: u32 = 8;

/// What a code makes of the losses of one submessage.
#[derive(Clone, Debug)]
pub(crate) struct Submessage {
    /// Probability that it can be computed once its data and this many of its parity chunks have been sent.
    pub(crate) computable_after: Vec<f64>,
    /// Probability that it cannot be computed after this many requests, and the mean number of data chunks that are
    /// then missing (counted only when it cannot).
    pub(crate) failure: Vec<(f64, f64)>,
    /// In bursts: probability that it can be computed without asking and the chain goes from one state to another,
    /// because a burst may reach over its end.
    pub(crate) computable: Option<Matrix>,
    /// The cases in which it cannot be, without asking. None where they are not followed.
    pub(crate) asked: Vec<Asked>,
}

const STATES: [[f64; 2]; 2] = [[1.0, 0.0], [0.0, 1.0]];

/// Asking goes on until this little is left.
const FAILURE_MIN: f64 = 1e-16;
const ROUNDS_MAX: usize = 1000;
/// Losses in a row, in the mean, from which on they are taken for bursts.
const RUN_MIN: f64 = 2.0;
/// Ways to fail that are less likely are not looked at.
const ASKED_MIN: f64 = 1e-12;

impl Submessage {
    /// Of a code with `data` chunks of data, which may be fewer than it has: the end of a message.
    pub(crate) fn new(chain: &ChunkChain, code: Code, data: u32) -> Self {
        match code.kind() {
            CodeKind::Mds => Submessage::mds(chain, data as usize, code.parity_chunks()),
            CodeKind::Xor => Submessage::xor(chain, data, code.parity_chunks() as u32),
        }
    }

    /// Any `parity` losses can be recovered. A data chunk is still missing after asking e times with π = loss^(e + 1),
    /// so with a of the data and b of the parity lost at first, it fails while P(Binomial(a, loss^e) > parity − b).
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
        let mut ways = Vec::new();
        for (missing, row) in joint.iter().enumerate() {
            let failing = row.iter().enumerate().filter(|(lost_parity, _)| missing + lost_parity > parity);
            ways.extend(failing.map(|(lost_parity, &probability)| Asked {
                missing,
                needed: missing + lost_parity - parity,
                probability,
            }));
        }
        if !chain.is_independent {
            lose_runs_again(chain, &ways, &mut failure);
        }
        let asked = asked_in(&ways, chain.missing_after(1));
        let computable = (!chain.is_independent).then(|| {
            Matrix(STATES.map(|start| {
                let counts = (0..data + parity).fold(vec![start], |counts, _| chain.step(&counts));
                counts.iter().take(parity + 1).fold([0.0; 2], |sum, row| [sum[0] + row[0], sum[1] + row[1]])
            }))
        });
        Submessage { computable_after, failure, computable, asked }
    }

    /// One loss in each group can be recovered, if it is not that of the parity and of data both. The chunks of a group
    /// are as far apart as there are groups, so that a burst that is shorter than that hits each group at most once.
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
        // What is lost of all data, and beyond that one or two in the group that fails; after asking only one, nearly
        // always.
        let missing =
            |fails: f64, lost: f64, of_group: f64| fails * (f64::from(data) * lost + of_group).min(f64::from(data));
        let mut failure = vec![(first, missing(first, chain.loss, 1.5))];
        while failure.len() < ROUNDS_MAX && failure.last().is_some_and(|last| last.0 >= FAILURE_MIN) {
            let last = failure.last().map_or(1.0, |last| last.0);
            let again = chain.missing_after(failure.len() as u32);
            let fails = group_failure(&per_group, again).min(last);
            failure.push((fails, missing(fails, chain.loss * again, 1.0)));
        }
        let is_followed = parity <= GROUPS_FOLLOWED_MAX && !chain.is_independent;
        let computable = is_followed.then(|| Matrix(STATES.map(|start| follow_groups(chain, start, data, parity).1)));
        let asked = match (chain.is_independent, is_followed) {
            _ if failure[0].0 < ASKED_MIN => Vec::new(),
            (true, _) => asked_of_groups(chain, &per_group, data, parity),
            (false, true) => {
                let ways = ways_of_bursts(chain, data, parity);
                lose_runs_again(chain, &ways, &mut failure);
                asked_in(&ways, chain.missing_after(1))
            }
            (false, false) => Vec::new(),
        };
        Submessage { computable_after, failure, computable, asked }
    }
}

/// Of the chunks that come, `needed` of each way must not be lost: after the first that many if none is, and later if
/// one is.
fn asked_in(ways: &[Asked], loss: f64) -> Vec<Asked> {
    let mut asked = Vec::new();
    for &Asked { missing, needed, probability } in ways.iter().filter(|way| way.probability > ASKED_MIN) {
        let mut of_this = probability * (1.0 - loss).powi(needed as i32);
        for place in needed..=missing {
            if of_this > ASKED_MIN {
                asked.push(Asked { missing, needed: place, probability: of_this });
            }
            of_this *= loss * place as f64 / (place + 1 - needed) as f64;
        }
    }
    asked
}

/// What is asked for comes as a run, and a burst takes much of a run: the probability to fail again, and what is
/// missing then, from the numbers of losses in runs instead of those of chunks on their own. Later times of asking are
/// changed in proportion. Of chunks of several packets only what they lack must come again.
fn lose_runs_again(chain: &ChunkChain, ways: &[Asked], failure: &mut [(f64, f64)]) {
    // Single losses that only happen to be near each other are on their own again.
    if chain.mean_run() < RUN_MIN {
        return;
    }
    let longest = ways.iter().map(|way| way.missing).max().unwrap_or(0);
    let mut of_length = vec![vec![chain.start]];
    for length in 0..longest {
        of_length.push(chain.step(&of_length[length]));
    }
    let (mut fails, mut missing) = (0.0, 0.0);
    for way in ways {
        let too_many = of_length[way.missing].iter().enumerate().skip(way.missing - way.needed + 1);
        for (lost, row) in too_many {
            let probability = way.probability * (row[0] + row[1]) * chain.lacking_share;
            (fails, missing) = (fails + probability, missing + probability * lost as f64);
        }
    }
    let Some(&(fails_before, missing_before)) = failure.get(1).filter(|second| second.0 > 0.0 && second.1 > 0.0) else {
        return;
    };
    let first = failure[0].0;
    for later in &mut failure[1..] {
        *later = ((later.0 * fails / fails_before).min(first), later.1 * missing / missing_before);
    }
}

/// The cases in which groups fail on their own. Nearly always it is one group: with two of its data lost, the first of
/// which is needed, or the second if that is lost again; or with one and the parity, and then that one is needed.
fn asked_of_groups(chain: &ChunkChain, groups: &[[Vec<f64>; 2]], data: u32, parity: u32) -> Vec<Asked> {
    let mut lost = vec![STATES[0]];
    for _ in 0..data {
        lost = chain.step(&lost);
    }
    let mut recovered = vec![1.0];
    for [there, gone] in groups {
        let mut next = vec![0.0; recovered.len() + 1];
        for (count, probability) in recovered.iter().enumerate() {
            next[count] += probability * (there[0] + gone[0]);
            next[count + 1] += probability * there.get(1).copied().unwrap_or(0.0);
        }
        recovered = next;
    }
    let again = chain.missing_after(1);
    let others_of_group = f64::from(data.div_ceil(parity)) - 1.0;
    let mut asked = Vec::new();
    for (missing, row) in lost.iter().enumerate().skip(1) {
        // What is taken from each other is of one size only where hardly any fail.
        let fails = (row[0] - recovered.get(missing).copied().unwrap_or(0.0)).max(0.0);
        let count = missing as f64;
        let pairs = 0.5 * count * (count - 1.0);
        let two = pairs * others_of_group / (f64::from(data) - 1.0).max(1.0);
        let parity_too = count * chain.loss;
        if fails <= ASKED_MIN {
            continue;
        }
        let [two, parity_too] = [two, parity_too].map(|share| fails * share / (two + parity_too));
        for place in 1..=missing {
            let later = (missing - place) as f64;
            // As the first of a pair, as the second when the first was lost again, and alone.
            let first = if pairs > 0.0 { later / pairs } else { 0.0 };
            let second = if pairs > 0.0 { (place - 1) as f64 / pairs } else { 0.0 };
            let probability = two * (first * (1.0 - again) + second * again) + parity_too / count;
            asked.push(Asked { missing, needed: place, probability });
        }
    }
    asked
}

/// The cases in which interleaved groups fail in bursts: what is lost of data and parity together, beyond one for each
/// group, is needed; the first of it, since the rest is computed from it.
fn ways_of_bursts(chain: &ChunkChain, data: u32, parity: u32) -> Vec<Asked> {
    let (count, groups) = (data as usize, parity as usize);
    let mut lost = vec![chain.start];
    for _ in 0..count {
        lost = chain.step(&lost);
    }
    let lost_parity = STATES.map(|start| (0..groups).fold(vec![start], |counts, _| chain.step(&counts)));
    let recovered = recovered_in_bursts(chain, data, parity);
    let mut ways = Vec::new();
    for (missing, row) in lost.iter().enumerate().skip(1) {
        for also in 0..=groups {
            let of = |state: usize| row[state] * lost_parity[state][also].iter().sum::<f64>();
            let probability = of(0) + of(1) - recovered.get(missing).map_or(0.0, |row| row[also]);
            let needed = (missing + also).saturating_sub(groups).clamp(1, missing);
            ways.push(Asked { missing, needed, probability: probability.max(0.0) });
        }
    }
    ways
}

/// Probability that all groups can be computed, by the numbers of lost data and lost parity.
fn recovered_in_bursts(chain: &ChunkChain, data: u32, parity: u32) -> Vec<Vec<f64>> {
    let sets = losses_in_different_groups(chain, chain.start, data, parity);
    let mut by_parity = vec![sets];
    for sent in 0..parity {
        let group = 1_usize << sent;
        let mut next = vec![vec![[0.0; 2]; 1 << parity]; by_parity.len() + 1];
        for (also, sets) in by_parity.iter().enumerate() {
            for (set, &row) in sets.iter().enumerate().filter(|(_, row)| row[0] + row[1] > 0.0) {
                add_to(&mut next[also][set], chain.whole.apply(row));
                if set & group == 0 {
                    add_to(&mut next[also + 1][set], chain.lost.apply(row));
                }
            }
        }
        by_parity = next;
    }
    let mut recovered = vec![vec![0.0; parity as usize + 1]; parity as usize + 1];
    for (also, sets) in by_parity.iter().enumerate() {
        for (set, row) in sets.iter().enumerate() {
            recovered[set.count_ones() as usize][also] += row[0] + row[1];
        }
    }
    recovered
}

fn add_to(sum: &mut [f64; 2], row: [f64; 2]) {
    (sum[0], sum[1]) = (sum[0] + row[0], sum[1] + row[1]);
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

/// Probability that all is there or computable after so much parity, when what happens to one group says nothing of
/// another.
fn independent_groups(groups: &[[Vec<f64>; 2]]) -> Vec<f64> {
    let whole = |[there, gone]: &[Vec<f64>; 2]| there[0] + gone[0];
    let recovered = |[there, gone]: &[Vec<f64>; 2]| there[0] + gone[0] + there.get(1).copied().unwrap_or(0.0);
    let after = |sent: usize| {
        groups
            .iter()
            .enumerate()
            .map(|(index, group)| if index < sent { recovered(group) } else { whole(group) })
            .product()
    };
    (0..=groups.len()).map(after).collect()
}

/// Probability of each set of groups with one loss each among the data, when no group has two; and of the state after
/// that.
fn losses_in_different_groups(chain: &ChunkChain, start: [f64; 2], data: u32, parity: u32) -> Vec<[f64; 2]> {
    let mut sets = vec![[0.0; 2]; 1 << parity];
    sets[0] = start;
    for chunk in 0..data {
        let group = 1_usize << (chunk % parity);
        let mut next = vec![[0.0; 2]; sets.len()];
        for (set, &row) in sets.iter().enumerate().filter(|(_, row)| row[0] + row[1] > 0.0) {
            add_to(&mut next[set], chain.whole.apply(row));
            if set & group == 0 {
                add_to(&mut next[set | group], chain.lost.apply(row));
            }
        }
        sets = next;
    }
    sets
}

/// The same when it does: the set of groups with a loss is followed, chunk by chunk.
/// With it the state that the chain is in at the end, where all is computable.
fn follow_groups(chain: &ChunkChain, start: [f64; 2], data: u32, parity: u32) -> (Vec<f64>, [f64; 2]) {
    let mut sets = losses_in_different_groups(chain, start, data, parity);
    let total = |sets: &[[f64; 2]], unrecovered: usize| {
        sets.iter().enumerate().filter(|(set, _)| set & unrecovered == 0).map(|(_, row)| row[0] + row[1]).sum::<f64>()
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
    use crate::link::{Link, Loss};

    fn chain(loss: Loss, packets: u32) -> ChunkChain {
        let link = Link { packet_bytes: 1000, ..Link::new(1e9, 0.01, loss) };
        ChunkChain::new(&link, 1000 * packets).expect("a chain")
    }

    #[test]
    fn bursts_of_independent_length_are_independent_losses() {
        for (packets, deviation) in [(1, 1e-6), (4, 0.05)] {
            let (independent, bursts) =
                (chain(Loss::Independent(0.1), packets), chain(Loss::bursts(0.1, 1.0 / 0.9), packets));
            assert!((independent.loss - (1.0 - 0.9_f64.powi(packets as i32))).abs() < 1e-12);
            assert!((bursts.loss - independent.loss).abs() < 1e-12);
            assert!((bursts.missing_after(3) / independent.missing_after(3) - 1.0).abs() < deviation);
            for kind in [CodeKind::Mds, CodeKind::Xor] {
                let code = Code::new(kind, 6, 3).expect("a code");
                let [one, other] = [independent, bursts].map(|chain| Submessage::new(&chain, code, 6));
                for (one, other) in one.failure.iter().zip(&other.failure).take(3) {
                    assert!((one.0 / other.0 - 1.0).abs() < deviation, "{one:?} {other:?}");
                }
                for (one, other) in one.computable_after.iter().zip(&other.computable_after) {
                    assert!((one - other).abs() < 1e-9);
                }
            }
        }
    }

    /// The receiver keeps packets: of a chunk of 16, of which one was lost, one must come again.
    #[test]
    fn a_repeated_chunk_only_lacks_what_was_lost() {
        let chain = chain(Loss::Independent(0.01), 16);
        let again = (1.0 - 0.9999_f64.powi(16)) / (1.0 - 0.99_f64.powi(16));
        assert!((chain.missing_after(1) - again).abs() < 1e-12 && again < 0.011, "{again}");
        assert_eq!(chain.missing_after(0), 1.0);
        let lost_packets = 16.0 * 0.01 / (1.0 - 0.99_f64.powi(16));
        assert!((chain.lacking_after(0) - lost_packets).abs() < 1e-12 && lost_packets < 1.1, "{lost_packets}");
        assert!((1.0..1.001).contains(&chain.lacking_after(1)), "{}", chain.lacking_after(1));
    }

    /// Appendix B of the SDR paper.
    #[test]
    fn the_papers_probabilities_of_recovery() {
        let p: f64 = 0.02;
        let chain = chain(Loss::Independent(p), 1);
        let mds = Submessage::new(&chain, Code::mds(4, 2).expect("a code"), 4);
        let choose = [1.0, 6.0, 15.0];
        let expected: f64 = (0..=2).map(|i| choose[i as usize] * p.powi(i) * (1.0 - p).powi(6 - i)).sum();
        assert!((1.0 - mds.failure[0].0 - expected).abs() < 1e-12);
        assert!((mds.computable_after[2] - expected).abs() < 1e-12);
        let xor = Submessage::new(&chain, Code::xor(4, 2).expect("a code"), 4);
        // Two data chunks and their parity, one of which may be lost; but a lost parity with all data there is no
        // failure either.
        let group = (1.0 - p).powi(3) + 3.0 * p * (1.0 - p).powi(2);
        assert!((1.0 - xor.failure[0].0 - group.powi(2)).abs() < 1e-12, "{xor:?}");
    }

    #[test]
    fn bursts_pass_between_groups() {
        let bursts = chain(Loss::bursts(0.01, 2.0), 1);
        let independent = chain(Loss::Independent(0.01), 1);
        let failure = |chain: &ChunkChain, kind, parity| {
            Submessage::new(chain, Code::new(kind, 32, parity).expect("a code"), 32).failure[0].0
        };
        // Interleaving helps XOR against short bursts; without, they are worse than single losses.
        assert!(failure(&bursts, CodeKind::Xor, 8) < failure(&independent, CodeKind::Xor, 8));
        assert!(failure(&bursts, CodeKind::Xor, 1) > 0.5 * failure(&independent, CodeKind::Xor, 1));
        assert!(failure(&bursts, CodeKind::Mds, 8) > 10.0 * failure(&independent, CodeKind::Mds, 8));
    }

    /// The shim chooses codes by a short form of this model, as it stands below this crate. Ranks of codes are what matters: the
    /// two may differ by a factor where one burst breaks several groups, never by an order of magnitude.
    #[test]
    fn the_shims_model_is_this_one() {
        let losses = |share: f64, burst: f64| match burst {
            1.0 => (Loss::Independent(share), longhaul_shim::PathLoss::independent(share)),
            _ => {
                let stays = 1.0 - 1.0 / burst;
                let begins = share * (1.0 - stays) / (1.0 - share);
                (Loss::bursts(share, burst), longhaul_shim::PathLoss { begins, stays })
            }
        };
        let codes = ["xor:6,1", "xor:32,1", "xor:248,1", "xor:12,2", "xor:64,8", "mds:64,8", "mds:128,5", "mds:32,8"];
        for (share, burst) in [(1e-5, 1.0), (1e-4, 1.0), (1e-3, 1.0), (1e-2, 1.0), (1e-4, 2.0), (1e-3, 4.0)] {
            let (ours, theirs) = losses(share, burst);
            let chain = chain(ours, 1);
            for text in codes {
                let block: longhaul_shim::BlockCode = text.parse().expect("a code");
                let kind = if text.starts_with("xor") { CodeKind::Xor } else { CodeKind::Mds };
                let (data, sums) = (block.block_packets(), block.repair_packets());
                let code = Code::new(kind, data.into(), sums.into()).expect("a code");
                let planned = Submessage::new(&chain, code, data.into()).failure[0].0;
                let chosen = longhaul_shim::block_failure(block, data, theirs);
                let ratio = chosen / planned;
                let is_exact = burst == 1.0 || kind == CodeKind::Mds;
                let bounds = if is_exact { 0.999..1.001 } else { 0.5..2.5 };
                // Sums of probabilities near 1 have no more digits.
                let is_negligible = planned < 1e-12 && chosen < 1e-12;
                assert!(is_negligible || bounds.contains(&ratio), "{share} {burst} {text}: {chosen} {planned}");
            }
        }
    }
}
