//! Binomial numbers, and the normal and gamma distributions, as far as the models need them.

/// Probabilities below this are nothing.
pub(crate) const NEGLIGIBLE: f64 = 1e-15;

/// ln Γ(x), by Lanczos' approximation (g = 7, nine terms): relative error below 1e-13.
pub(crate) fn ln_gamma(x: f64) -> f64 {
    const TERMS: [f64; 8] = [
        676.520_368_121_885_1,
        -1_259.139_216_722_402_8,
        771.323_428_777_653_1,
        -176.615_029_162_140_6,
        12.507_343_278_686_905,
        -0.138_571_095_265_720_12,
        9.984_369_578_019_572e-6,
        1.505_632_735_149_311_6e-7,
    ];
    let x = x - 1.0;
    let sum = TERMS
        .iter()
        .enumerate()
        .fold(0.999_999_999_999_809_9, |sum, (index, term)| sum + term / (x + index as f64 + 1.0));
    let base = x + 7.5;
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * base.ln() - base + sum.ln()
}

/// The likely part of a binomial distribution: the first number of successes, and the probability of it and those after
/// it.
///
/// From the most likely number outwards by the ratio of neighbours, until nothing is left.
pub(crate) fn binomial(trials: u64, probability: f64) -> (u64, Vec<f64>) {
    if probability <= 0.0 || trials == 0 {
        return (0, vec![1.0]);
    }
    if probability >= 1.0 {
        return (trials, vec![1.0]);
    }
    let (n, p) = (trials as f64, probability);
    let mode = (((n + 1.0) * p) as u64).min(trials);
    let ln_choose = ln_gamma(n + 1.0) - ln_gamma(mode as f64 + 1.0) - ln_gamma(n - mode as f64 + 1.0);
    let at_mode = (ln_choose + mode as f64 * p.ln() + (n - mode as f64) * (-p).ln_1p()).exp();
    let odds = p / (1.0 - p);
    let mut below = Vec::new();
    let (mut value, mut count) = (at_mode, mode);
    while count > 0 && value > NEGLIGIBLE * at_mode {
        value *= count as f64 / ((n - count as f64 + 1.0) * odds);
        count -= 1;
        below.push(value);
    }
    let first = count;
    let mut all: Vec<f64> = below.into_iter().rev().collect();
    all.push(at_mode);
    let (mut value, mut count) = (at_mode, mode);
    while count < trials && value > NEGLIGIBLE * at_mode {
        value *= (n - count as f64) / (count as f64 + 1.0) * odds;
        count += 1;
        all.push(value);
    }
    // The logarithms of large factorials are differences of large numbers; what is lost there is given back here.
    let sum: f64 = all.iter().sum();
    all.iter_mut().for_each(|value| *value /= sum);
    (first, all)
}

/// How often something fails before `successes` successes, when each try fails with `failure`: the likely part, from 0.
pub(crate) fn failures_before(successes: u64, failure: f64) -> Vec<f64> {
    if successes == 0 || failure <= 0.0 {
        return vec![1.0];
    }
    let mut value = (successes as f64 * (-failure).ln_1p()).exp();
    let (mut all, mut sum) = (vec![value], value);
    while 1.0 - sum > 1e-13 && all.len() < 1 << 16 {
        let count = all.len() as f64;
        value *= (successes as f64 + count - 1.0) / count * failure;
        all.push(value);
        sum += value;
        if value < NEGLIGIBLE && count > successes as f64 * failure / (1.0 - failure) {
            break;
        }
    }
    all
}

/// P(X > limit) for every number of trials up to `trials` and every limit up to `limit`: `[trials][limit]`.
pub(crate) fn binomial_tails(trials: usize, probability: f64, limit: usize) -> Vec<Vec<f64>> {
    let mut tails = Vec::with_capacity(trials + 1);
    tails.push(vec![0.0; limit + 1]);
    for count in 0..trials {
        let before: &Vec<f64> = &tails[count];
        let next = (0..=limit).map(|most| {
            let if_lost = if most == 0 { 1.0 } else { before[most - 1] };
            probability * if_lost + (1.0 - probability) * before[most]
        });
        let next = next.collect();
        tails.push(next);
    }
    tails
}

/// The standard normal quantile (Acklam's rational approximation, relative error 1e-9).
pub(crate) fn normal_quantile(share: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 5] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 4] =
        [7.784_695_709_041_462e-3, 3.224_671_290_700_398e-1, 2.445_134_137_142_996, 3.754_408_661_907_416];
    let polynomial = |terms: &[f64], x: f64| terms.iter().fold(0.0, |sum, term| sum * x + term);
    let outer = |share: f64| {
        let q = (-2.0 * share.ln()).sqrt();
        polynomial(&C, q) / (polynomial(&D, q) * q + 1.0)
    };
    match share {
        share if share < 0.02425 => outer(share.max(f64::MIN_POSITIVE)),
        share if share > 1.0 - 0.02425 => -outer((1.0 - share).max(f64::MIN_POSITIVE)),
        _ => {
            let q = share - 0.5;
            let r = q * q;
            polynomial(&A, r) * q / (polynomial(&B, r) * r + 1.0)
        }
    }
}

/// A quantile of what has this mean, deviation and (positive) skewness: a shifted gamma distribution, by Wilson and
/// Hilferty's cube.
pub(crate) fn skewed_quantile(mean: f64, deviation: f64, skewness: f64, share: f64) -> f64 {
    let z = normal_quantile(share);
    if skewness < 1e-6 {
        return mean + deviation * z;
    }
    let shape = 4.0 / (skewness * skewness);
    let cube = (1.0 - 1.0 / (9.0 * shape) + z / (3.0 * shape.sqrt())).max(0.0).powi(3);
    mean + deviation * (shape * cube - shape) / shape.sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factorials() {
        for (x, factorial) in [(1.0, 1.0_f64), (5.0, 24.0), (11.0, 3_628_800.0)] {
            assert!((ln_gamma(x) - factorial.ln()).abs() < 1e-11, "{x}");
        }
    }

    #[test]
    fn binomials_have_their_mean_and_sum() {
        for (trials, probability) in [(10, 0.3), (1, 0.5), (32768, 1e-3), (500_000_000, 1e-6), (1000, 0.99)] {
            let (first, values) = binomial(trials, probability);
            let sum: f64 = values.iter().sum();
            let mean: f64 = values.iter().enumerate().map(|(index, value)| (first + index as u64) as f64 * value).sum();
            let expected = trials as f64 * probability;
            assert!(
                (sum - 1.0).abs() < 1e-9 && (mean / expected - 1.0).abs() < 1e-9,
                "{trials} {probability}: {sum} {mean}"
            );
        }
        let tails = binomial_tails(4, 0.5, 4);
        assert_eq!((tails[4][0], tails[4][3], tails[4][4], tails[0][0]), (15.0 / 16.0, 1.0 / 16.0, 0.0, 0.0));
        let failures = failures_before(3, 0.5);
        assert!((failures[0] - 0.125).abs() < 1e-12 && (failures[1] - 0.1875).abs() < 1e-12);
    }

    #[test]
    fn quantiles() {
        assert!((normal_quantile(0.999) - 3.090_232).abs() < 1e-5);
        assert!((normal_quantile(0.5)).abs() < 1e-9);
        assert!((normal_quantile(0.001) + 3.090_232).abs() < 1e-5);
        // Exponential: mean 1, deviation 1, skewness 2; the cube is within a few percent even there.
        assert!((skewed_quantile(1.0, 1.0, 2.0, 0.99) / 4.605 - 1.0).abs() < 0.03);
    }
}
