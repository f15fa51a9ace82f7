//! What recent operations needed: how far a factor may fall at once.

use crate::rule::Digest;

/// As many operations are looked back at least, and at most.
const OPERATIONS: (f64, f64) = (64.0, 1024.0);

/// For each rank, the largest factor that one of its recent operations needed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Needs {
    window: u64,
    operations: u64,
    /// Of each rank: the largest in this window, and in the one before.
    ranks: Vec<[f64; 2]>,
}

impl Needs {
    /// Looks back at 1/target operations, in which one may be lost, and at most at twice as many.
    pub(crate) fn new(ranks: usize, target: f64) -> Needs {
        let window = (1.0 / target).clamp(OPERATIONS.0, OPERATIONS.1) as u64;
        // Nothing is known before the first window has ended.
        Needs { window, operations: 0, ranks: vec![[0.0, f64::INFINITY]; ranks] }
    }

    pub(crate) fn observe(&mut self, rank: usize, need: f64) {
        let now = &mut self.ranks[rank][0];
        *now = now.max(need);
    }

    pub(crate) fn next_operation(&mut self) {
        self.operations += 1;
        if self.operations.is_multiple_of(self.window) {
            self.ranks.iter_mut().for_each(|[now, before]| (*before, *now) = (*now, 0.0));
        }
    }

    pub(crate) fn most(&self, rank: usize) -> f64 {
        let [now, before] = self.ranks[rank];
        now.max(before)
    }

    pub(crate) fn digest(&self, digest: &mut Digest) {
        digest.word(self.operations);
        digest.numbers(self.ranks.iter().flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_need_is_kept_for_one_window_at_least_and_two_at_most() {
        let mut needs = Needs::new(2, 0.01);
        assert_eq!(needs.most(0), f64::INFINITY);
        let mut most = Vec::new();
        for operation in 0..400 {
            needs.observe(0, if operation == 150 { 5.0 } else { 1.0 });
            needs.next_operation();
            most.push(needs.most(0));
        }
        assert_eq!((most[149], most[150], most[250], most[298]), (1.0, 5.0, 5.0, 5.0));
        assert_eq!((most[98], most[99], most[299], most[399]), (f64::INFINITY, 1.0, 1.0, 1.0));
    }
}
