//! Which code a path gets, and why.

use std::collections::VecDeque;

use longhaul_coding::CodeKind;
use longhaul_time::{Duration, Instant};

use super::auto::Auto;
use super::change::{CodeChange, Reason};
use super::model::{Cost, Failures, PathLoss, Traffic, cost};
use super::window::{Sample, Window};
use crate::config::BlockCode;

/// Nothing is chosen from fewer packets …
const PACKETS_MIN: u64 = 2048;
/// … unless this many bursts were seen.
const BURSTS_MIN: u64 = 8;
/// A code is changed if that saves this many packets for each data packet.
const GAIN_MIN: f64 = 0.003;
/// And it must do so even if loss is this many deviations less than what was seen, or more.
const DEVIATIONS: f64 = 1.5;
/// A cheaper code comes this long after the last change, at the earliest. A safer one comes at once.
const DWELL: Duration = Duration::from_millis(50);
/// A search takes a good part of a millisecond, in the middle of packets: no more than one in this time.
const SEARCH_EVERY: Duration = Duration::from_millis(5);
/// Losses, messages and packets in flight that differ by less change nothing.
const DIFFERENCE_MIN: f64 = 0.1;
/// In flight until it was measured: a megabyte or so.
const IN_FLIGHT_FIRST: f64 = 1000.0;
/// What is in flight falls by this part with each report that has less: what counts is a flow that is busy.
const IN_FLIGHT_FALLS: f64 = 1.0 / 32.0;
/// Changes that are kept, the newest.
const CHANGES_MAX: usize = 64;
/// A code is cheaper if its overhead is less by this.
const OVERHEAD_GAIN_MIN: f64 = 0.001;
/// A target that no code meets is worth a change if that leaves no more than this part of what is unrepaired.
const UNREPAIRED_LEFT_MAX: f64 = 0.8;
/// The loss that the first code is good for, with XOR and with MDS.
const LOSS_FIRST: [f64; 2] = [1e-3, 1e-2];

/// Packets of a group of XOR.
const GROUPS: [u8; 19] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 255];
/// Groups of a block of XOR, and sums of a block of MDS.
const SUMS: [u8; 14] = [1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32];
/// Packets of a block of MDS.
const BLOCKS: [u8; 8] = [8, 16, 32, 64, 96, 128, 192, 255];

/// What a choice was made for.
#[derive(Clone, Copy, Debug)]
struct Basis {
    losses: [PathLoss; 3],
    traffic: Traffic,
}

impl Basis {
    fn differs_from(&self, other: &Basis) -> bool {
        let differ = |one: f64, other: f64| (one - other).abs() > DIFFERENCE_MIN * one.max(other);
        let losses =
            |(one, other): (&PathLoss, &PathLoss)| differ(one.begins, other.begins) || differ(one.stays, other.stays);
        self.losses.iter().zip(&other.losses).any(losses)
            || differ(self.traffic.message_packets, other.traffic.message_packets)
            || differ(self.traffic.cuts, other.traffic.cuts)
            || differ(self.traffic.in_flight, other.traffic.in_flight)
    }
}

/// Chooses the code of one path. Driven by reports.
#[derive(Debug)]
pub(crate) struct Chooser {
    auto: Auto,
    candidates: Vec<BlockCode>,
    code: BlockCode,
    window: Window,
    in_flight: Option<f64>,
    chosen_for: Option<Basis>,
    /// When a cheaper code may come that was due too early.
    waits_until: Option<Instant>,
    searched_at: Option<Instant>,
    changed_at: Option<Instant>,
    changes: VecDeque<CodeChange>,
    #[cfg(test)]
    searches: u32,
}

impl Chooser {
    /// The peer takes no more than `sums_max` sums of a block.
    pub(crate) fn new(auto: Auto, sums_max: u8) -> Chooser {
        Chooser {
            candidates: candidates(&auto, sums_max),
            code: auto.first_code(),
            auto,
            window: Window::default(),
            in_flight: None,
            chosen_for: None,
            waits_until: None,
            searched_at: None,
            changed_at: None,
            changes: VecDeque::new(),
            #[cfg(test)]
            searches: 0,
        }
    }

    pub(crate) fn code(&self) -> BlockCode {
        self.code
    }

    /// The newest changes, the oldest of them first.
    pub(crate) fn changes(&self) -> impl Iterator<Item = &CodeChange> {
        self.changes.iter()
    }

    /// What is known of the path.
    pub(crate) fn measured(&self) -> Sample {
        self.window.total()
    }

    /// A report has come. `in_flight` is what it leaves unseen of its flow; `message_packets` and `cuts` are as in [`Traffic`].
    /// Whether the code has changed.
    pub(crate) fn report(
        &mut self,
        sample: Sample,
        in_flight: Option<u64>,
        message_packets: f64,
        cuts: f64,
        now: Instant,
    ) -> bool {
        if let Some(seen) = in_flight.map(|packets| packets as f64) {
            let known = self.in_flight.unwrap_or(0.0);
            self.in_flight = Some(if seen > known { seen } else { known - (known - seen) * IN_FLIGHT_FALLS });
        }
        if sample.packets > 0 {
            self.window.add(sample);
        }
        let total = self.window.total();
        if total.packets < PACKETS_MIN && total.bursts < BURSTS_MIN {
            return false;
        }
        if self.searched_at.is_some_and(|at| now.saturating_since(at) < SEARCH_EVERY) {
            return false;
        }
        let basis = Basis { losses: self.window.losses(DEVIATIONS), traffic: self.traffic(message_packets, cuts) };
        let is_same = self.chosen_for.as_ref().is_some_and(|chosen_for| !chosen_for.differs_from(&basis));
        if is_same && self.waits_until.is_none_or(|at| now < at) {
            return false;
        }
        self.searched_at = Some(now);
        #[cfg(test)]
        {
            self.searches += 1;
        }
        let prices = Prices::new(&basis);
        self.chosen_for = Some(basis);
        self.waits_until = None;
        match self.choose(&prices, now) {
            Choice::Stays => false,
            Choice::WaitsUntil(at) => {
                self.waits_until = Some(at);
                false
            }
            Choice::Changes(to, reason) => {
                self.change(to, reason, &prices, total, now);
                true
            }
        }
    }

    /// The length of messages is known, and nothing was reported yet. Whether the first code has changed: if it costs more than the
    /// user allows with such messages, some of them would have no repair packets at all.
    pub(crate) fn fit_first_code(&mut self, message_packets: f64, now: Instant) -> bool {
        let traffic = self.traffic(message_packets, 0.0);
        let [xor, mds] = LOSS_FIRST;
        let loss = PathLoss::independent(if self.auto.family == Some(CodeKind::Xor) { xor } else { mds });
        let prices = Prices::new(&Basis { losses: [loss; 3], traffic });
        let [_, probable, _] = LUCK;
        if self.chosen_for.is_some() || self.changed_at.is_some() || !prices.is_beyond_bound(self.code) {
            return false;
        }
        let to = self.best(&prices, probable);
        let is_better = self.is_better(&prices, probable, to);
        if is_better {
            self.change(to, Reason::ShortMessages, &prices, Sample::default(), now);
        }
        is_better
    }

    fn traffic(&self, message_packets: f64, cuts: f64) -> Traffic {
        let in_flight = self.in_flight.unwrap_or(IN_FLIGHT_FIRST);
        Traffic { message_packets, cuts, in_flight, overhead_max: self.auto.overhead_max }
    }

    fn change(&mut self, to: BlockCode, reason: Reason, prices: &Prices, measured: Sample, now: Instant) {
        let costs = [self.code, to].map(|code| prices.cost(code, 1));
        if self.changes.len() == CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(CodeChange {
            at: now,
            from: self.code,
            to,
            reason,
            loss: measured.loss(),
            mean_burst_packets: measured.mean_burst(),
            sample_packets: measured.packets,
            sample_bursts: measured.bursts,
            in_flight_packets: prices.traffic.in_flight as u64,
            message_packets: prices.traffic.message_packets,
            unrepaired: costs.map(|cost| cost.unrepaired),
            overhead: costs.map(|cost| cost.overhead),
            unrepaired_max: self.auto.unrepaired_max,
        });
        self.code = to;
        self.changed_at = Some(now);
    }

    fn choose(&self, prices: &Prices, now: Instant) -> Choice {
        let [least, probable, most] = LUCK;
        let overhead_gain = |code, which| prices.cost(self.code, which).overhead - prices.cost(code, which).overhead;
        // Even if luck was bad, a stronger code is worth it.
        let if_least = self.best(prices, least);
        if overhead_gain(if_least, least) < OVERHEAD_GAIN_MIN && self.is_better(prices, least, if_least) {
            let to = self.best(prices, probable);
            return match self.is_better(prices, probable, to) {
                true => Choice::Changes(to, Reason::TooWeak),
                false => Choice::Stays,
            };
        }
        // Even if luck was good, a cheaper code suffices.
        let if_most = self.best(prices, most);
        if overhead_gain(if_most, most) > OVERHEAD_GAIN_MIN && self.is_better(prices, most, if_most) {
            return match self.changed_at.map(|changed_at| changed_at + DWELL).filter(|at| now < *at) {
                Some(at) => Choice::WaitsUntil(at),
                None => Choice::Changes(if_most, Reason::TooCostly),
            };
        }
        // Whatever the luck, the code costs more than allowed, so that some blocks go without repair, and another repairs more.
        let to = self.best(prices, probable);
        match prices.is_beyond_bound(self.code) && LUCK.into_iter().all(|which| self.is_better(prices, which, to)) {
            true => Choice::Changes(to, Reason::TooWeak),
            false => Choice::Stays,
        }
    }

    fn is_better(&self, prices: &Prices, which: usize, code: BlockCode) -> bool {
        let [old, new] = [self.code, code].map(|code| prices.cost(code, which));
        match self.auto.unrepaired_max {
            None => old.total - new.total > GAIN_MIN,
            Some(share) if old.unrepaired > share => {
                new.unrepaired <= share || new.unrepaired < UNREPAIRED_LEFT_MAX * old.unrepaired
            }
            Some(share) => new.unrepaired <= share && old.overhead - new.overhead > OVERHEAD_GAIN_MIN,
        }
    }

    /// The best code for one of the losses. Of several that are as good it is the first: XOR costs less to compute, and short blocks
    /// are repaired sooner.
    fn best(&self, prices: &Prices, which: usize) -> BlockCode {
        let mut best: Option<(BlockCode, [f64; 2])> = None;
        for &code in &self.candidates {
            let cost = prices.cost(code, which);
            let key = match self.auto.unrepaired_max {
                None => [0.0, cost.total],
                Some(share) if cost.unrepaired <= share => [0.0, cost.overhead],
                Some(_) => [1.0, cost.unrepaired],
            };
            if best.is_none_or(|(_, least)| key[0] < least[0] || key[0] == least[0] && key[1] < least[1] * 0.999) {
                best = Some((code, key));
            }
        }
        best.map_or(self.code, |(code, _)| code)
    }
}

/// The losses of a basis by their place: least, probable and most.
const LUCK: [usize; 3] = [0, 1, 2];

/// What codes cost, for one search.
struct Prices {
    failures: [Failures; 3],
    traffic: Traffic,
}

impl Prices {
    fn new(basis: &Basis) -> Prices {
        Prices { failures: basis.losses.map(Failures::new), traffic: basis.traffic }
    }

    fn cost(&self, code: BlockCode, which: usize) -> Cost {
        cost(code, &self.failures[which], &self.traffic)
    }

    /// Whether some blocks go without repair packets, because those of all would be more than the user allows.
    fn is_beyond_bound(&self, code: BlockCode) -> bool {
        let unbounded = Traffic { overhead_max: f64::MAX, ..self.traffic };
        cost(code, &self.failures[0], &unbounded).overhead > self.traffic.overhead_max
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Stays,
    Changes(BlockCode, Reason),
    /// A cheaper code is due, but not before this.
    WaitsUntil(Instant),
}

/// The codes to choose from: those within the user's bound, and the first one.
fn candidates(auto: &Auto, sums_max: u8) -> Vec<BlockCode> {
    let mut codes = vec![auto.first_code()];
    let takes = |kind| auto.family.is_none_or(|family| family == kind);
    let mut add = |kind, block: u8, sums: u8| {
        let is_allowed = f64::from(sums) <= auto.overhead_max * f64::from(block) && sums <= sums_max;
        if let Some(code) = is_allowed.then(|| BlockCode::new(kind, block, sums).ok()).flatten()
            && !codes.contains(&code)
        {
            codes.push(code);
        }
    };
    for sums in SUMS {
        if takes(CodeKind::Xor) {
            GROUPS.iter().for_each(|&group| add(CodeKind::Xor, group.saturating_mul(sums), sums));
        }
        // One sum of either kind repairs the same; XOR costs less.
        if takes(CodeKind::Mds) && (sums > 1 || auto.family.is_some()) {
            BLOCKS.iter().for_each(|&block| add(CodeKind::Mds, block.min(255 - sums), sums));
        }
    }
    codes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 Gbit/s and 40 ms at an MTU of 1024.
    const IN_FLIGHT: u64 = 45_000;
    const TRAFFIC: Traffic =
        Traffic { message_packets: 1024.0, cuts: 0.0, in_flight: IN_FLIGHT as f64, overhead_max: 0.25 };
    /// Packets between two reports.
    const PART: u64 = 6000;

    struct Path {
        chooser: Chooser,
        message_packets: f64,
        in_flight: u64,
        now: Instant,
        state: u64,
    }

    impl Path {
        fn new(auto: &str) -> Path {
            let Ok(super::super::Fec::Auto(auto)) = auto.parse() else { panic!("{auto}") };
            let chooser = Chooser::new(auto, 32);
            Path { chooser, message_packets: 1024.0, in_flight: IN_FLIGHT, now: Instant::ZERO, state: 7 }
        }

        /// Reports every 5 ms with this loss, in bursts of this mean length.
        fn run(&mut self, milliseconds: u64, loss: f64, mean_burst: f64) -> BlockCode {
            for _ in 0..milliseconds / 5 {
                let mut sample = Sample { packets: PART, ..Sample::default() };
                let mut is_lost = false;
                for _ in 0..PART {
                    self.state =
                        self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let chance = (self.state >> 11) as f64 / (1_u64 << 53) as f64;
                    let stays = if mean_burst > 1.0 { 1.0 - 1.0 / mean_burst } else { loss };
                    let begins = loss * (1.0 - stays) / (1.0 - loss);
                    let was_lost = is_lost;
                    is_lost = chance < if was_lost { stays } else { begins };
                    sample.lost += u64::from(is_lost);
                    sample.bursts += u64::from(is_lost && !was_lost);
                }
                self.now += Duration::from_millis(5);
                self.chooser.report(sample, Some(self.in_flight), self.message_packets, 0.0, self.now);
            }
            self.chooser.code()
        }

        fn overhead(&self) -> f64 {
            let code = self.chooser.code();
            f64::from(code.repair_packets()) / f64::from(code.block_packets())
        }

        /// How much of the data rate is left with the code in use, relative to the best of a family.
        fn share_of_best(&self, loss: f64) -> f64 {
            let failures = Failures::new(PathLoss::independent(loss));
            let total = |code| cost(code, &failures, &TRAFFIC).total;
            let least = self.chooser.candidates.iter().map(|&code| total(code)).fold(f64::MAX, f64::min);
            (1.0 + least) / (1.0 + total(self.chooser.code()))
        }
    }

    #[test]
    fn the_code_is_near_the_best_of_its_family() {
        for (auto, losses) in [("auto:xor", &[1e-5, 1e-4, 1e-3][..]), ("auto:mds", &[1e-5, 1e-4, 1e-3, 1e-2])] {
            for &loss in losses {
                let mut path = Path::new(auto);
                for _ in 0..10 {
                    path.run(200, loss, 1.0);
                    let share = path.share_of_best(loss);
                    assert!(share > 0.97, "{auto} {loss}: {share} with {}", path.chooser.code());
                }
                assert!(path.chooser.changes.len() <= 8, "{:?}", path.chooser.changes);
            }
        }
    }

    #[test]
    fn a_clean_link_has_the_cheapest_code() {
        for auto in ["auto", "auto:xor", "auto:mds"] {
            let mut path = Path::new(auto);
            path.run(500, 0.0, 1.0);
            assert!(path.overhead() < 0.01, "{auto}: {}", path.chooser.code());
        }
    }

    #[test]
    fn it_follows_loss_up_and_down() {
        let mut path = Path::new("auto:mds");
        path.run(1000, 1e-5, 1.0);
        assert!(path.overhead() < 0.02, "{}", path.chooser.code());
        path.run(10, 1e-2, 1.0);
        assert!(path.share_of_best(1e-2) > 0.95, "two reports suffice: {}", path.chooser.code());
        path.run(1000, 1e-2, 1.0);
        let changes = path.chooser.changes.len();
        path.run(300, 1e-5, 1.0);
        assert!(path.overhead() < 0.02, "{}", path.chooser.code());
        assert!(path.chooser.changes.len() - changes <= 7, "{:?}", path.chooser.changes);
        let last = path.chooser.changes.back().unwrap();
        assert_eq!(last.reason, Reason::TooCostly);
        let text = last.to_string();
        assert!(text.contains("a cheaper code suffices") && text.contains("packets in flight"), "{text}");
    }

    #[test]
    fn bursts_get_interleaved_groups() {
        let mut path = Path::new("auto:xor");
        let single = path.run(1000, 1e-4, 1.0);
        let mut path = Path::new("auto:xor");
        let bursts = path.run(1000, 1e-4, 4.0);
        assert!(bursts.repair_packets() > single.repair_packets().max(3), "{single} {bursts}");
    }

    #[test]
    fn a_handful_of_packets_changes_nothing() {
        let mut path = Path::new("auto:mds");
        let lossy = Sample { packets: 100, lost: 7, bursts: 7 };
        assert!(!path.chooser.report(lossy, Some(IN_FLIGHT), 1024.0, 0.0, Instant::ZERO));
        let clean = Sample { packets: 500, lost: 0, bursts: 0 };
        let mut path = Path::new("auto:mds");
        assert!((0..4).all(|_| !path.chooser.report(clean, Some(IN_FLIGHT), 1024.0, 0.0, Instant::ZERO)));
    }

    #[test]
    fn whatever_is_reported_costs_no_more_than_the_bound() {
        for (auto, bound) in [("auto", 0.25), ("auto:mds,overhead=10%", 0.1), ("auto:xor,overhead=0.5%", 0.005)] {
            let mut path = Path::new(auto);
            for loss in [0.9, 0.5, 0.1, 0.01] {
                path.run(100, loss, 1.0);
                assert!(path.overhead() <= bound, "{auto}: {}", path.chooser.code());
            }
            let lie = Sample { packets: u64::from(u32::MAX), lost: u64::from(u32::MAX), bursts: 1 };
            path.chooser.report(lie, Some(u64::MAX), 1.0, 0.0, path.now);
            assert!(path.overhead() <= bound);
        }
    }

    #[test]
    fn a_target_is_met_by_the_cheapest_code() {
        let mut path = Path::new("auto:mds,unrepaired=1e-6");
        path.run(2000, 1e-3, 1.0);
        let code = path.chooser.code();
        let failures = Failures::new(PathLoss::independent(1e-3));
        let unrepaired = |code| cost(code, &failures, &TRAFFIC).unrepaired;
        assert!(unrepaired(code) <= 1.2e-6, "{code}: {}", unrepaired(code));
        assert!(path.overhead() < 0.06, "{code}");
        // More in flight makes no difference then.
        assert_eq!(path.chooser.changes.back().unwrap().unrepaired_max, Some(1e-6));
    }

    /// What such messages cost with a code, if the user allowed any overhead.
    fn overhead_of_messages(code: BlockCode, packets: f64) -> f64 {
        let traffic = Traffic { message_packets: packets, overhead_max: f64::MAX, ..TRAFFIC };
        cost(code, &Failures::new(PathLoss::independent(0.0)), &traffic).overhead
    }

    #[test]
    fn short_messages_get_a_code_that_all_of_them_can_have() {
        for (auto, bound, packets) in
            [("auto:mds,overhead=10%", 0.1, 16.0), ("auto:mds", 0.25, 8.0), ("auto", 0.25, 16.0)]
        {
            let mut path = Path::new(auto);
            (path.message_packets, path.in_flight) = (packets, 10_000);
            let code = path.run(1000, 1e-2, 1.0);
            assert!(overhead_of_messages(code, packets) <= bound, "{auto}: {code} {:?}", path.chooser.changes);
            assert!(path.chooser.changes.len() <= 4, "{:?}", path.chooser.changes);
            // Messages become short on a path that had long ones.
            let mut path = Path::new(auto);
            path.run(1000, 1e-2, 1.0);
            (path.message_packets, path.in_flight) = (packets, 10_000);
            let code = path.run(1000, 1e-2, 1.0);
            assert!(overhead_of_messages(code, packets) <= bound, "{auto}: {code} {:?}", path.chooser.changes);
        }
    }

    #[test]
    fn the_first_code_fits_short_messages_too() {
        for (packets, changes) in [(16.0, 1), (8.0, 1), (64.0, 0), (1024.0, 0)] {
            let mut path = Path::new("auto");
            assert_eq!(path.chooser.fit_first_code(packets, path.now), changes == 1, "{packets}");
            assert_eq!(path.chooser.changes.len(), changes);
            let code = path.chooser.code();
            assert!(overhead_of_messages(code, packets) <= 0.25, "{packets}: {code}");
            assert!(path.chooser.changes.iter().all(|change| change.to_string().contains("nothing reported yet")));
            assert!(!path.chooser.fit_first_code(packets, path.now), "once");
        }
    }

    #[test]
    fn searches_are_rare() {
        let mut path = Path::new("auto:mds");
        path.run(1000, 1e-2, 1.0);
        // A cheaper code is due, but not before its time.
        path.chooser.changed_at = Some(path.now);
        path.chooser.searches = 0;
        path.run(30, 1e-5, 1.0);
        assert!(path.chooser.searches <= 6, "{}", path.chooser.searches);
        // Many flows report of one path.
        let mut path = Path::new("auto:mds");
        for index in 0..1000 {
            let sample = Sample { packets: 500 + 100 * (index % 7), lost: index % 5, bursts: index % 5 };
            path.now += Duration::from_micros(50);
            path.chooser.report(sample, Some(IN_FLIGHT + 100 * index), 1024.0, 0.0, path.now);
        }
        assert!(path.chooser.searches <= 11, "{}", path.chooser.searches);
    }

    #[test]
    fn a_target_that_no_code_meets_is_not_chased() {
        let mut path = Path::new("auto:xor,unrepaired=1e-12");
        path.run(3000, 1e-2, 1.0);
        assert!(path.chooser.changes.len() <= 3, "{:?}", path.chooser.changes);
    }
}
