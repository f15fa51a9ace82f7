//! How long an operation would have taken at each rank.

/// How long an operation would have taken at a rank without a deadline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Took {
    /// Nothing was sent to the rank, as to the root of a broadcast.
    Idle,
    /// Nothing has arrived: longer than all others.
    Silent,
    /// This long.
    Nanoseconds(f64),
}

/// The median of the ranks that were sent something. Of an even number it is the lower one, so half of a group may be
/// silent; `None` if more is.
pub(crate) fn median(took: &[Took]) -> Option<f64> {
    let times = took.iter().filter_map(|took| match took {
        Took::Idle => None,
        Took::Silent => Some(f64::INFINITY),
        Took::Nanoseconds(time) => Some(*time),
    });
    let mut times: Vec<f64> = times.collect();
    times.sort_by(f64::total_cmp);
    let lower = times.len().checked_sub(1)? / 2;
    times.get(lower).copied().filter(|time| time.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_ranks_are_the_slowest_and_idle_ones_are_not_there() {
        let (idle, silent) = (Took::Idle, Took::Silent);
        let (fast, slow) = (Took::Nanoseconds(1.0), Took::Nanoseconds(3.0));
        assert_eq!(median(&[silent, fast, slow]), Some(3.0));
        assert_eq!(median(&[silent, silent, slow]), None);
        assert_eq!(median(&[silent, slow]), Some(3.0));
        assert_eq!(median(&[silent, fast, slow, silent]), Some(3.0));
        assert_eq!((median(&[silent]), median(&[])), (None, None));
        assert_eq!(median(&[idle, fast, slow, slow]), Some(3.0));
        assert_eq!(median(&[idle, idle, fast, slow]), Some(1.0));
        assert_eq!(median(&[idle, idle]), None);
    }
}
