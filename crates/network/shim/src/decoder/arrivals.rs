//! What has arrived of a flow and what has not, for reports to the sender.
//!
//! Packets are looked at as they arrive, before anything is restored. A gap counts as lost when enough packets have come behind it:
//! until then what fills it was only late.

use std::collections::VecDeque;

use longhaul_time::{Duration, Instant};
use longhaul_wire::Psn;
use longhaul_wire::repair::{BURST_CLASSES, Report, Subject, burst_class};

use crate::packet::Summary;

/// A gap is lost when this many packets have come behind it.
const LATE_MAX: u64 = 64;
/// Gaps that are not yet lost, at most. A power of two: so much memory there is.
const GAPS_MAX: usize = 64;
/// A packet that is further ahead is of another place.
const GAP_MAX: u64 = 1024;
/// This many packets one behind the other show that the flow is elsewhere.
const ASIDE_MAX: u32 = 3;
/// Packets that a report is worth: it costs one packet the other way.
const REPORT_PACKETS_MIN: u32 = 256;

/// Packets of a flow, as they arrive.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    next: Option<u64>,
    /// The next packet that begins a message may have any later number.
    is_open: bool,
    gaps: VecDeque<Gap>,
    /// What would be next if the flow had moved, and how many packets say so.
    aside: Option<(u64, u32)>,
    /// Where the flow was when packets showed that it had moved back. If that were duplicates, it goes on there.
    left: Option<u64>,
    received: u32,
    lost: u32,
    restored: u32,
    bursts: [u16; BURST_CLASSES],
    /// Packets received and lost when the last report was made, and when that was.
    reported: u32,
    reported_at: Option<Instant>,
}

#[derive(Debug)]
struct Gap {
    start: u64,
    end: u64,
    missing: u64,
}

impl Arrivals {
    /// Memory of gaps, at most.
    pub(super) const BYTES_MAX: usize = GAPS_MAX * size_of::<Gap>();

    pub(super) fn memory_bytes(&self) -> usize {
        self.gaps.capacity() * size_of::<Gap>()
    }

    /// A data packet arrives.
    pub(super) fn note(&mut self, number: u64, summary: &Summary) {
        let is_back = |left: &u64| (*left..*left + LATE_MAX).contains(&number);
        if let Some(left) = self.left.filter(is_back)
            && self.next < Some(left)
        {
            // Those were duplicates, and what is between them is no loss.
            self.next = Some(left);
            self.gaps.clear();
        }
        let next = *self.next.get_or_insert(number);
        self.left = self.left.filter(|left| next < *left);
        let is_skipped = self.is_open && summary.position().is_start();
        if number == next || number > next && (is_skipped || number - next <= GAP_MAX) {
            if number > next && !is_skipped {
                self.gaps.push_back(Gap { start: next, end: number, missing: number - next });
            }
            self.go_on(number, summary);
            return;
        }
        if let Some(gap) = self.gaps.iter_mut().find(|gap| (gap.start..gap.end).contains(&number)) {
            if gap.missing > 0 {
                gap.missing -= 1;
                self.received = self.received.wrapping_add(1);
            }
            return;
        }
        let count = self.aside.filter(|(aside, _)| *aside == number).map_or(1, |(_, count)| count + 1);
        self.aside = Some((number + 1, count));
        if count == ASIDE_MAX {
            // The sender has gone back, or much was lost.
            self.received = self.received.wrapping_add(count - 1);
            self.settle(0);
            self.left = Some(next).filter(|left| number < *left);
            self.go_on(number, summary);
        }
    }

    fn go_on(&mut self, number: u64, summary: &Summary) {
        self.received = self.received.wrapping_add(1);
        self.next = Some(number + 1);
        self.is_open = summary.leaves_next_open();
        self.aside = None;
        if !self.gaps.is_empty() {
            self.settle(LATE_MAX);
        }
    }

    /// The flow goes on elsewhere.
    pub(super) fn move_to(&mut self, next: u64) {
        if self.next.is_some_and(|known| known != next) {
            self.settle(0);
            (self.next, self.is_open, self.aside, self.left) = (Some(next), false, None, None);
        }
    }

    /// Packets were restored.
    pub(super) fn note_restored(&mut self, count: usize) {
        self.restored = self.restored.wrapping_add(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// Gaps are lost that are this far behind.
    fn settle(&mut self, late: u64) {
        let next = self.next.unwrap_or(0);
        while let Some(gap) = self.gaps.front() {
            if gap.end + late > next && late > 0 && self.gaps.len() < GAPS_MAX {
                return;
            }
            let length = u32::try_from(gap.missing).unwrap_or(u32::MAX);
            if length > 0 {
                self.lost = self.lost.wrapping_add(length);
                let count = &mut self.bursts[burst_class(length)];
                *count = count.wrapping_add(1);
            }
            self.gaps.pop_front();
        }
    }

    /// A report, if enough has come since the last one, and that was long enough ago.
    pub(super) fn report(&mut self, subject: Subject, epoch: u16, every: Duration, now: Instant) -> Option<Report> {
        let seen = self.received.wrapping_add(self.lost);
        let is_due = seen.wrapping_sub(self.reported) >= REPORT_PACKETS_MIN
            && self.reported_at.is_none_or(|at| now.saturating_since(at) >= every);
        let next = self.next.filter(|_| is_due)?;
        (self.reported, self.reported_at) = (seen, Some(now));
        Some(Report {
            subject,
            next_psn: Psn::new((next & 0xff_ffff) as u32),
            epoch,
            has_tag: false,
            received: self.received,
            lost: self.lost,
            restored: self.restored,
            bursts: self.bursts,
        })
    }
}

#[cfg(test)]
mod tests {
    use longhaul_wire::Opcode;

    use super::*;

    const SUBJECT: Subject = Subject { queue_pair: 17, is_responses: false };

    fn summary(opcode: Opcode) -> Summary {
        Summary { opcode: Some(opcode), subject: SUBJECT, psn: Psn::new(0), is_reliable: true }
    }

    fn counts(arrivals: &Arrivals) -> (u32, u32, [u16; 3]) {
        (arrivals.received, arrivals.lost, [arrivals.bursts[0], arrivals.bursts[1], arrivals.bursts[2]])
    }

    fn pass(arrivals: &mut Arrivals, numbers: impl IntoIterator<Item = u64>) {
        numbers.into_iter().for_each(|number| arrivals.note(number, &summary(Opcode::RcWriteMiddle)));
    }

    #[test]
    fn bursts_are_counted_by_length() {
        let mut arrivals = Arrivals::default();
        pass(&mut arrivals, (100..200).filter(|number| ![110, 120, 121, 130, 131, 132].contains(number)));
        assert_eq!(counts(&arrivals), (94, 6, [1, 1, 1]));
        pass(&mut arrivals, 201..203);
        assert_eq!(counts(&arrivals).1, 6, "200 may be late");
        pass(&mut arrivals, 203..300);
        assert_eq!(counts(&arrivals).1, 7);
    }

    #[test]
    fn what_is_late_is_not_lost() {
        let mut arrivals = Arrivals::default();
        pass(&mut arrivals, [1, 2, 5, 6, 3, 7, 4, 8]);
        pass(&mut arrivals, 9..200);
        assert_eq!(counts(&arrivals), (199, 0, [0, 0, 0]));
        // Duplicates are not received twice.
        pass(&mut arrivals, [150, 199, 199]);
        assert_eq!(counts(&arrivals).0, 199);
    }

    #[test]
    fn going_back_is_not_a_loss() {
        let mut arrivals = Arrivals::default();
        pass(&mut arrivals, 1000..2000);
        arrivals.move_to(1500);
        pass(&mut arrivals, 1500..2500);
        assert_eq!(counts(&arrivals), (2000, 0, [0, 0, 0]));
        // Without a header the packets show it.
        pass(&mut arrivals, 1700..3000);
        assert_eq!(counts(&arrivals), (3300, 0, [0, 0, 0]));
    }

    #[test]
    fn duplicates_in_a_row_are_not_a_loss() {
        let mut arrivals = Arrivals::default();
        pass(&mut arrivals, 1000..2000);
        for (index, late) in [1500..1503, 1700..1710, 1990..1995].into_iter().enumerate() {
            pass(&mut arrivals, late.clone().chain(late.end + 5..late.end + 7));
            // Once the first packet behind them is lost.
            let begin = 2000 + 100 * index as u64;
            pass(&mut arrivals, begin + u64::from(index == 1)..begin + 100);
        }
        assert_eq!(counts(&arrivals).1, 1);
        assert_eq!(counts(&arrivals).2, [1, 0, 0]);
    }

    #[test]
    fn psns_that_a_read_takes_are_not_lost() {
        let mut arrivals = Arrivals::default();
        arrivals.note(10, &summary(Opcode::RcReadRequest));
        arrivals.note(74, &summary(Opcode::RcWriteFirst));
        pass(&mut arrivals, 75..200);
        assert_eq!(counts(&arrivals), (127, 0, [0, 0, 0]));
    }

    #[test]
    fn reports_are_rare_and_numbers_wrap() {
        let mut arrivals = Arrivals { received: u32::MAX - 10, reported: u32::MAX - 10, ..Arrivals::default() };
        let every = Duration::from_millis(5);
        let at = |micros: u64| Instant::from_nanos(micros * 1000);
        pass(&mut arrivals, 0..255);
        assert_eq!(arrivals.report(SUBJECT, 3, every, at(0)), None);
        pass(&mut arrivals, 255..300);
        let report = arrivals.report(SUBJECT, 3, every, at(0)).unwrap();
        assert_eq!((report.received, report.next_psn, report.epoch), (289, Psn::new(300), 3));
        pass(&mut arrivals, 300..900);
        assert_eq!(arrivals.report(SUBJECT, 3, every, at(4999)), None);
        assert!(arrivals.report(SUBJECT, 3, every, at(5000)).is_some());
        assert_eq!(arrivals.report(SUBJECT, 3, every, at(50_000)), None, "nothing came");
    }
}
