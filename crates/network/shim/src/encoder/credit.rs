//! What a flow may still spend on repair packets within the user's bound of overhead.
//!
//! Each flow has its own: a flow that would spend more than the bound on short messages takes nothing from the others. Together they
//! keep to the bound if each does.

/// Repair packets that a flow may send at once. At least one block of any code must fit.
const CREDIT_MAX: f64 = 64.0;
/// What a new flow may send before it has earned anything: one block of most codes.
const CREDIT_FIRST: f64 = 8.0;
/// Sums of fractions are not exact.
const ROUNDING: f64 = 1e-6;

/// Repair packets that may be sent.
#[derive(Debug)]
pub(super) struct Credit(f64);

impl Default for Credit {
    fn default() -> Credit {
        Credit(CREDIT_FIRST)
    }
}

impl Credit {
    /// A data packet was protected, for which the user allows this share of a repair packet.
    pub(super) fn earn(&mut self, share: f64) {
        self.0 = (self.0 + share).min(CREDIT_MAX);
    }

    /// Whether repair packets may be sent: all of them or none.
    pub(super) fn spend(&mut self, repairs: u8) -> bool {
        let left = self.0 - f64::from(repairs);
        let is_enough = left >= -ROUNDING;
        if is_enough {
            self.0 = left;
        }
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_whatever_was_chosen() {
        let mut credit = Credit::default();
        let repairs = (0..10_000).filter(|_| {
            credit.earn(0.1);
            credit.spend(1)
        });
        assert_eq!(repairs.count(), 1000 + CREDIT_FIRST as usize);
    }

    #[test]
    fn full_blocks_earn_what_they_need() {
        for (block, repairs) in [(10, 1), (100, 10), (250, 25)] {
            let mut credit = Credit(0.0);
            let refused = (0..1000).filter(|_| {
                (0..block).for_each(|_| credit.earn(0.1));
                !credit.spend(repairs)
            });
            assert_eq!(refused.count(), 0);
        }
    }
}
