//! `wan` in its own field: 200 Mbit/s to 10 Gbit/s, 5 to 200 ms, with loss, changes, company and cross traffic.

use longhaul_congestion::ControllerName;
use longhaul_impair::{EcnMarking, Loss, Profile};
use longhaul_time::Duration;

use crate::cross_traffic::CrossTraffic;
use crate::cubic::Cubic;
use crate::row::{Bar, Report, Row, median};
use crate::simulation::{FlowPlan, Simulation, SimulationPlan};
use crate::statistics::Statistics;

/// On the wire: 4,096 bytes of payload and their headers.
const PACKET_BYTES: u32 = 4196;
const GIGABIT: u64 = 1_000_000_000;
const MINUTE: Duration = Duration::from_secs(60);

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A bottleneck with its queue as a time at its rate.
fn bottleneck(bits_per_second: u64, queue: Duration) -> Profile {
    let queue_bytes = (bits_per_second as f64 / 8.0 * queue.as_secs_f64()) as u64;
    Profile::default().with_rate_bits_per_second(bits_per_second).with_queue_limit_bytes(queue_bytes)
}

fn lossy(profile: Profile, probability: f64) -> Profile {
    match probability {
        0.0 => profile,
        _ => profile.with_loss(Loss::Independent { probability }),
    }
}

fn flow(round_trip: Duration, begins: Duration) -> FlowPlan {
    FlowPlan { controller: ControllerName::Wan, round_trip, begins, pauses: Vec::new() }
}

/// Flows that begin a little after one another, as no two programs begin at once.
fn flows(count: u64, round_trip: Duration, seed: u64) -> Vec<FlowPlan> {
    (0..count).map(|index| flow(round_trip, millis(index * 137 + seed % 7 * 11))).collect()
}

fn plan(bottleneck: Profile, flows: Vec<FlowPlan>, lasts: Duration, seed: u64) -> SimulationPlan {
    let (changes, cross_traffic) = (Vec::new(), None);
    SimulationPlan { bottleneck, changes, flows, cross_traffic, packet_bytes: PACKET_BYTES, lasts, seed }
}

/// Runs scenarios with each seed, and collects rows and checks.
struct Run<'a> {
    seeds: &'a [u64],
    progress: &'a mut dyn FnMut(&str),
    report: Report,
}

impl Run<'_> {
    /// Runs a scenario with each seed. `measured` is the time that goodput and fairness are of.
    fn each(
        &mut self,
        scenario: &str,
        make: impl Fn(u64) -> SimulationPlan,
        measured: std::ops::Range<Duration>,
    ) -> Vec<(Row, Statistics)> {
        (self.progress)(scenario);
        let mut runs = Vec::new();
        for &seed in self.seeds {
            let plan = make(seed);
            // Of the link as it is when it is measured.
            let changed = plan.changes.iter().rev().find(|(at, _)| *at <= measured.start).map(|(_, profile)| profile);
            let rate = changed.unwrap_or(&plan.bottleneck).rate_bits_per_second.unwrap_or(1) as f64;
            let since = plan.changes.first().map_or(Duration::ZERO, |(at, _)| *at);
            let (flows, lasts) = (plan.flows.len(), plan.lasts);
            let round_trip = plan.flows[0].round_trip;
            let statistics = Simulation::new(plan).run();
            let row = Row {
                controller: "wan",
                scenario: scenario.to_owned(),
                flows,
                seed,
                goodput_of_link: statistics.total_bits_per_second(measured.start, measured.end) / rate,
                jain: statistics.jain(measured.start, measured.end),
                queue_p99: statistics.queueing(0.99),
                loss_caused: statistics.loss_caused(Duration::ZERO, lasts),
                converged: statistics.reached(0.9 * rate, since, (2 * round_trip).max(millis(100))),
            };
            self.report.rows.push(row.clone());
            runs.push((row, statistics));
        }
        runs
    }

    fn check(&mut self, name: String, measured: f64, bar: Bar) {
        self.report.check(format!("wan, {name}"), measured, bar);
    }

    fn one_flow(&mut self) {
        for (rate, name) in [(GIGABIT, "1 Gbit/s"), (10 * GIGABIT, "10 Gbit/s")] {
            for loss in [0.0, 1e-3, 1e-2, 5e-2] {
                let scenario = format!("{name}, 100 ms, queue 20 ms, loss {loss}");
                let runs = self.each(
                    &scenario,
                    |seed| plan(lossy(bottleneck(rate, millis(20)), loss), flows(1, millis(100), seed), MINUTE, seed),
                    Duration::ZERO..MINUTE,
                );
                let worst = least_of(&runs, |row| row.goodput_of_link);
                let bar = if loss < 5e-2 { 0.9 * (1.0 - loss) } else { 0.85 };
                self.check(format!("{scenario}: goodput of the link, worst"), worst, Bar::AtLeast(bar));
            }
        }
        for round_trip in [5, 25, 200] {
            let scenario = format!("1 Gbit/s, {round_trip} ms, queue 20 ms");
            let runs = self.each(
                &scenario,
                |seed| plan(bottleneck(GIGABIT, millis(20)), flows(1, millis(round_trip), seed), MINUTE, seed),
                Duration::ZERO..MINUTE,
            );
            let worst = least_of(&runs, |row| row.goodput_of_link);
            self.check(format!("{scenario}: goodput of the link, worst"), worst, Bar::AtLeast(0.9));
        }
    }

    fn fairness(&mut self) {
        let measured = seconds(30)..seconds(90);
        for (count, median_bar) in [(2, 0.95), (4, 0.95), (16, 0.90)] {
            for queue in [10, 20, 50] {
                let scenario = format!("1 Gbit/s, {count} flows of 25 ms, queue {queue} ms");
                let runs = self.each(
                    &scenario,
                    |seed| {
                        let profile = bottleneck(GIGABIT, millis(queue));
                        plan(profile, flows(count, millis(25), seed), seconds(90), seed)
                    },
                    measured.clone(),
                );
                let middle = median(runs.iter().map(|(row, _)| row.jain));
                let worst = least_of(&runs, |row| row.jain);
                self.check(format!("{scenario}: Jain's index, median"), middle, Bar::AtLeast(median_bar));
                self.check(format!("{scenario}: Jain's index, worst"), worst, Bar::AtLeast(0.85));
            }
        }
        for queue in [20, 50] {
            let scenario = format!("1 Gbit/s, 25 ms, queue {queue} ms, a second flow joins at 20 s");
            let make = |seed| {
                let both = vec![flow(millis(25), millis(seed % 5 * 13)), flow(millis(25), seconds(20))];
                plan(bottleneck(GIGABIT, millis(queue)), both, seconds(120), seed)
            };
            let runs = self.each(&scenario, make, seconds(60)..seconds(120));
            let middle = median(runs.iter().map(|(row, _)| row.jain));
            self.check(format!("{scenario}: Jain's index 40 to 100 s later, median"), middle, Bar::AtLeast(0.95));
        }
        for (queue, bar) in [(10, 0.9), (20, 0.8), (50, 0.6)] {
            let scenario = format!("1 Gbit/s, flows of 10 and 100 ms, queue {queue} ms");
            let make = |seed| {
                let both = vec![flow(millis(10), millis(seed % 5 * 13)), flow(millis(100), millis(137))];
                plan(bottleneck(GIGABIT, millis(queue)), both, seconds(90), seed)
            };
            let runs = self.each(&scenario, make, measured.clone());
            let middle = median(runs.iter().map(|(row, _)| row.jain));
            self.check(format!("{scenario}: Jain's index, median"), middle, Bar::AtLeast(bar));
        }
    }

    fn changes(&mut self) {
        for round_trip in [5, 25, 100, 200] {
            for (factor, name) in [(0.5, "halves"), (2.0, "doubles")] {
                let scenario = format!("1 Gbit/s, {round_trip} ms, the rate {name} at 30 s");
                let rate = (GIGABIT as f64 * factor) as u64;
                let make = |seed| {
                    let mut plan =
                        plan(bottleneck(GIGABIT, millis(20)), flows(1, millis(round_trip), seed), MINUTE, seed);
                    plan.changes.push((seconds(30), bottleneck(rate, millis(20))));
                    plan
                };
                let runs = self.each(&scenario, make, seconds(30)..MINUTE);
                let reached = |statistics: &Statistics| {
                    statistics.averages(0.9 * rate as f64, seconds(30)).map_or(f64::NAN, |time| time.as_secs_f64())
                };
                let worst = worst_of(&runs, |_, statistics| reached(statistics));
                let bar = (0.06 * round_trip as f64).max(3.0);
                self.check(format!("{scenario}: seconds to 0.9 of it, worst"), worst, Bar::AtMost(bar));
                let settled = seconds(30) + Duration::from_secs_f64(bar);
                let caused = worst_of(&runs, |_, statistics| statistics.loss_caused(settled, MINUTE));
                self.check(format!("{scenario}: loss caused from then on, worst"), caused, Bar::AtMost(0.02));
            }
        }
    }

    fn short_queues(&mut self) {
        for (round_trip, count) in [(25, 1), (100, 1), (100, 16)] {
            let scenario = format!("1 Gbit/s, {count} flows of {round_trip} ms, queue of 0.1 bandwidth-delay products");
            let make = |seed| {
                let profile = bottleneck(GIGABIT, millis(round_trip) / 10);
                plan(profile, flows(count, millis(round_trip), seed), MINUTE, seed)
            };
            let runs = self.each(&scenario, make, Duration::ZERO..MINUTE);
            let worst = worst_of(&runs, |row, _| row.loss_caused);
            // Sixteen flows that begin within two seconds lose 2.4 % in a minute, nearly all of it in the first five
            // seconds: a row without a bar.
            if count == 1 {
                self.check(format!("{scenario}: loss caused, worst"), worst, Bar::AtMost(0.02));
            }
        }
    }

    /// The path of the race: 200 Mbit/s, 25 ms, 5 ms of queue.
    fn slow_path(&mut self) {
        let slow = || bottleneck(GIGABIT / 5, millis(5));
        let jittery = || slow().with_jitter(millis(3), true);
        for (name, profile) in [("", slow()), (", jitter 3 ms", jittery())] {
            let scenario = format!("200 Mbit/s, 25 ms, queue 5 ms{name}");
            let runs = self.each(
                &scenario,
                |seed| plan(profile.clone(), flows(1, millis(25), seed), MINUTE, seed),
                Duration::ZERO..MINUTE,
            );
            let goodput = least_of(&runs, |row| row.goodput_of_link);
            let caused = worst_of(&runs, |row, _| row.loss_caused);
            self.check(format!("{scenario}: goodput of the link, worst"), goodput, Bar::AtLeast(0.9));
            self.check(format!("{scenario}: loss caused, worst"), caused, Bar::AtMost(0.02));
        }
        self.next_to_cubic();
        let scenario = "200 Mbit/s, 25 ms, marks above 2 ms of queue";
        let threshold_bytes = 50_000;
        let runs = self.each(
            scenario,
            |seed| {
                let marking = bottleneck(GIGABIT / 5, millis(20)).with_ecn(EcnMarking::Step { threshold_bytes });
                plan(marking, flows(1, millis(25), seed), MINUTE, seed)
            },
            Duration::ZERO..MINUTE,
        );
        let goodput = least_of(&runs, |row| row.goodput_of_link);
        let queue = worst_of(&runs, |row, _| row.queue_p99.as_secs_f64() * 1e3);
        self.check(format!("{scenario}: goodput of the link, worst"), goodput, Bar::AtLeast(0.7));
        self.check(format!("{scenario}: milliseconds of queue at p99, worst"), queue, Bar::AtMost(10.0));
    }

    fn next_to_cubic(&mut self) {
        let scenario = "200 Mbit/s, 25 ms, queue 5 ms, next to one TCP cubic flow";
        (self.progress)(scenario);
        let rate = GIGABIT / 5;
        let mut ours = Vec::new();
        for &seed in self.seeds {
            let mut both = plan(bottleneck(rate, millis(5)), flows(2, millis(25), seed), MINUTE, seed);
            // As TCP sends them at an MTU of 1500.
            both.packet_bytes = 1514;
            let statistics = Simulation::with_controllers(both, |index, name, facts| match index {
                0 => name.controller(facts),
                _ => Box::new(Cubic::new(facts)),
            })
            .run();
            let share = |flow| statistics.bits_per_second(flow, Duration::ZERO, MINUTE) / (rate as f64 / 2.0);
            ours.push(share(0));
            // Theirs is shown and has no bar: this cubic is a simple one. The bar is on a real link with the kernel's.
            let scenario = format!("{scenario}: {:.2} and {:.2} of a fair share", share(0), share(1));
            self.report.rows.push(Row {
                controller: "wan",
                scenario,
                flows: 2,
                seed,
                goodput_of_link: statistics.total_bits_per_second(Duration::ZERO, MINUTE) / rate as f64,
                jain: statistics.jain(Duration::ZERO, MINUTE),
                queue_p99: statistics.queueing(0.99),
                loss_caused: statistics.loss_caused(Duration::ZERO, MINUTE),
                converged: None,
            });
        }
        let worst = ours.into_iter().reduce(f64::min).unwrap_or(f64::NAN);
        self.check(format!("{scenario}: ours of a fair share, worst"), worst, Bar::AtLeast(1.0 / 3.0));
    }

    fn cross_traffic(&mut self) {
        for (busy, quiet, name) in [(seconds(1), Duration::ZERO, "steady"), (millis(500), millis(500), "in bursts")] {
            let scenario = format!("1 Gbit/s, 25 ms, queue 20 ms, cross traffic of 300 Mbit/s {name}");
            let traffic = CrossTraffic { bits_per_second: 3 * GIGABIT / 10, packet_bytes: PACKET_BYTES, busy, quiet };
            let make = |seed| {
                let mut plan = plan(bottleneck(GIGABIT, millis(20)), flows(2, millis(25), seed), MINUTE, seed);
                plan.cross_traffic = Some(traffic);
                plan
            };
            let runs = self.each(&scenario, make, Duration::ZERO..MINUTE);
            let left = if quiet.is_zero() { 0.7 } else { 0.85 };
            let worst = least_of(&runs, |row| row.goodput_of_link);
            self.check(format!("{scenario}: goodput of what it leaves, worst"), worst / left, Bar::AtLeast(0.85));
        }
    }

    /// A flow that was silent for five seconds sends no faster than the path afterwards.
    fn restart(&mut self) {
        let scenario = "1 Gbit/s, 25 ms, queue 5 ms, restart after 5 s of silence";
        let make = |seed| {
            let mut plan = plan(bottleneck(GIGABIT, millis(5)), flows(1, millis(25), seed), MINUTE, seed);
            plan.flows[0].pauses.push((seconds(20), seconds(25)));
            plan
        };
        let runs = self.each(scenario, make, seconds(25)..MINUTE);
        let slice = millis(50);
        let most = GIGABIT as f64 / 8.0 * slice.as_secs_f64() / f64::from(PACKET_BYTES);
        let burst =
            |statistics: &Statistics| statistics.sent_packets(0, seconds(25), seconds(25) + slice) as f64 / most;
        let worst = worst_of(&runs, |_, statistics| burst(statistics));
        self.check(format!("{scenario}: sent in the first 50 ms, of the link, worst"), worst, Bar::AtMost(1.05));
        let caused = |statistics: &Statistics| statistics.loss_caused(seconds(25), seconds(26));
        let worst = worst_of(&runs, |_, statistics| caused(statistics));
        self.check(format!("{scenario}: loss caused in the first second, worst"), worst, Bar::AtMost(0.02));
    }
}

/// The largest of a figure; not a number without any, or if one is not a number.
fn worst_of(runs: &[(Row, Statistics)], figure: impl Fn(&Row, &Statistics) -> f64) -> f64 {
    runs.iter().map(|(row, statistics)| figure(row, statistics)).reduce(worse).unwrap_or(f64::NAN)
}

/// The smallest of a figure, in the same way.
fn least_of(runs: &[(Row, Statistics)], figure: impl Fn(&Row) -> f64) -> f64 {
    -worst_of(runs, |row, _| -figure(row))
}

/// The larger; what is not a number is the worst of all.
fn worse(one: f64, other: f64) -> f64 {
    if one.is_nan() || other.is_nan() { f64::NAN } else { one.max(other) }
}

/// All scenarios of `wan`, with each seed. `progress` is given each scenario's name as it begins.
pub fn wide_area(seeds: &[u64], progress: &mut dyn FnMut(&str)) -> Report {
    let mut run = Run { seeds, progress, report: Report::default() };
    run.one_flow();
    run.fairness();
    run.changes();
    run.short_queues();
    run.slow_path();
    run.cross_traffic();
    run.restart();
    run.report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_seeds_no_check_is_good() {
        let report = wide_area(&[], &mut |_| ());
        assert!(report.rows.is_empty() && report.checks.len() > 40);
        assert!(report.checks.iter().all(|check| !check.is_good()));
    }
}
