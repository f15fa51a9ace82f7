//! Which messages have arrived, by number, so that one that a network delivers twice counts once.

/// Messages behind the newest that are remembered. Far more than are ever in flight; what comes later still is taken
/// for one that has come already.
const REMEMBERED: u64 = 1 << 20;

/// The numbers that have arrived: a bit for each of the last ones, as a ring.
pub(crate) struct Arrivals {
    bits: Vec<u64>,
    /// One more than the highest number that has arrived.
    end: u64,
}

impl Arrivals {
    pub(crate) fn new() -> Self {
        Arrivals { bits: vec![0; (REMEMBERED / 64) as usize], end: 0 }
    }

    /// Whether this message arrives for the first time.
    pub(crate) fn is_new(&mut self, number: u64) -> bool {
        if number >= self.end {
            // What was overtaken has not arrived, whatever had its places in the ring before.
            let overtaken = (number - self.end).min(REMEMBERED);
            for skipped in number - overtaken..number {
                let (word, bit) = place(skipped);
                self.bits[word] &= !bit;
            }
            self.end = number + 1;
        } else if self.end - number > REMEMBERED {
            return false;
        } else {
            let (word, bit) = place(number);
            if self.bits[word] & bit != 0 {
                return false;
            }
        }
        let (word, bit) = place(number);
        self.bits[word] |= bit;
        true
    }
}

const fn place(number: u64) -> (usize, u64) {
    let at = number % REMEMBERED;
    ((at / 64) as usize, 1 << (at % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_counts_once() {
        let mut arrivals = Arrivals::new();
        let mut news = |number| arrivals.is_new(number);
        assert!(news(0) && news(1) && news(5), "in order, with a gap");
        assert!(!news(0) && !news(5), "twice");
        assert!(news(3) && !news(3) && news(2) && news(4), "late, but for the first time");
        // A full round of the ring later, nothing is left of the first one.
        let later = REMEMBERED + 5;
        assert!(news(later), "the place of 5, not its message");
        assert!(news(later - 3) && !news(later - 3), "the place of 2");
        assert!(!news(5), "too old to be known");
        assert!(news(10 * REMEMBERED) && news(10 * REMEMBERED - 1), "a gap longer than the ring");
    }
}
