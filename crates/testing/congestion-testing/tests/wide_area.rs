//! `wan` on virtual time, in short runs: `longhaul sim congestion` has the long ones.

use std::sync::{Arc, Mutex};

use longhaul_congestion::{Controller, ControllerName, PathFacts, Sample, Wan};
use longhaul_congestion_testing::{FlowPlan, Simulation, SimulationPlan, Statistics};
use longhaul_impair::{Loss, Profile};
use longhaul_time::{Duration, Instant};

const RATE: u64 = 200_000_000;
const LASTS: Duration = Duration::from_secs(20);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn plan(queue_bytes: u64, loss: f64, round_trip: Duration) -> SimulationPlan {
    let mut bottleneck = Profile::default().with_rate_bits_per_second(RATE).with_queue_limit_bytes(queue_bytes);
    if loss > 0.0 {
        bottleneck = bottleneck.with_loss(Loss::Independent { probability: loss });
    }
    let controller = ControllerName::Wan;
    SimulationPlan {
        bottleneck,
        changes: Vec::new(),
        flows: vec![FlowPlan { controller, round_trip, begins: Duration::ZERO, pauses: Vec::new() }],
        cross_traffic: None,
        packet_bytes: 1514,
        lasts: LASTS,
        seed: 7,
    }
}

/// `wan`, and the ambient loss that it has found.
#[derive(Debug)]
struct Watched {
    wan: Wan,
    ambient_loss: Arc<Mutex<f64>>,
}

impl Controller for Watched {
    fn on_sent(&mut self, now: Instant, bytes: u64, in_flight_bytes: u64) {
        self.wan.on_sent(now, bytes, in_flight_bytes);
    }

    fn on_sample(&mut self, sample: &Sample) {
        self.wan.on_sample(sample);
        *self.ambient_loss.lock().expect("nobody panicked") = self.wan.ambient_loss();
    }

    fn on_timeout(&mut self, now: Instant) {
        self.wan.on_timeout(now);
    }

    fn window_bytes(&self) -> u64 {
        self.wan.window_bytes()
    }

    fn bits_per_second(&self) -> Option<u64> {
        self.wan.bits_per_second()
    }
}

/// What a run shows, and the ambient loss that the controller has found at its end.
fn watch(plan: SimulationPlan) -> (Statistics, f64) {
    let ambient_loss = Arc::new(Mutex::new(0.0));
    let make = |_, _, facts: &PathFacts| -> Box<dyn Controller> {
        Box::new(Watched { wan: Wan::new(facts), ambient_loss: ambient_loss.clone() })
    };
    let statistics = Simulation::with_controllers(plan, make).run();
    let found = *ambient_loss.lock().expect("nobody panicked");
    (statistics, found)
}

fn goodput(statistics: &Statistics) -> f64 {
    statistics.total_bits_per_second(Duration::ZERO, LASTS) / RATE as f64
}

#[test]
fn random_loss_is_not_congestion_and_is_measured() {
    for loss in [1e-2, 5e-2] {
        let (statistics, found) = watch(plan(125_000, loss, millis(25)));
        assert!(goodput(&statistics) > 0.9 * (1.0 - loss), "{} at {loss}", goodput(&statistics));
        assert!((found / loss - 1.0).abs() < 0.3, "{found} found, {loss} set");
    }
}

#[test]
fn loss_by_the_queue_is_not_taken_for_the_paths_own() {
    // 5 ms of queue, and 0.6 ms, as a policer has: hardly more than a burst.
    for (queue_bytes, found_max, caused_max) in [(125_000, 2e-3, 0.01), (15_000, 5e-3, 0.03)] {
        let (statistics, found) = watch(plan(queue_bytes, 0.0, millis(25)));
        assert!(found < found_max, "{found} with a queue of {queue_bytes} bytes");
        let caused = statistics.loss_caused(Duration::ZERO, LASTS);
        assert!(caused < caused_max, "{caused} caused with a queue of {queue_bytes} bytes");
        assert!(goodput(&statistics) > 0.9, "{}", goodput(&statistics));
    }
}

#[test]
fn a_rate_that_falls_tenfold_is_followed_and_found_again() {
    // The rate falls tenfold for five seconds.
    let mut plan = plan(125_000, 0.0, millis(25));
    let slow = Profile::default().with_rate_bits_per_second(RATE / 10).with_queue_limit_bytes(125_000);
    plan.changes = vec![(Duration::from_secs(8), slow), (Duration::from_secs(13), plan.bottleneck.clone())];
    let (statistics, _) = watch(plan);
    let at = |from, until| {
        statistics.total_bits_per_second(Duration::from_secs(from), Duration::from_secs(until)) / RATE as f64
    };
    assert!(at(9, 13) > 0.08, "{} of the slow rate's 0.1", at(9, 13));
    assert!(at(17, 20) > 0.9, "{} when it is back", at(17, 20));
    // After two cycles the old bandwidth is forgotten.
    let caused = statistics.loss_caused(Duration::from_secs(12), Duration::from_secs(13));
    assert!(caused < 0.05, "{caused} lost once it knows the slow rate");
}

#[test]
fn a_link_that_is_cut_is_found_again_without_a_flood() {
    let mut plan = plan(125_000, 0.0, millis(25));
    let cut = plan.bottleneck.clone().with_loss(Loss::Independent { probability: 1.0 });
    plan.changes = vec![(Duration::from_secs(5), cut), (Duration::from_secs(12), plan.bottleneck.clone())];
    let (statistics, _) = watch(plan);
    let sent = |from, until| statistics.sent_packets(0, from, until);
    let second = |second| Duration::from_secs(second);
    let of_a_second = RATE / 8 / 1514;
    assert!(sent(second(6), second(12)) < of_a_second / 10, "{} packets into a cut", sent(second(6), second(12)));
    let first = sent(second(12), second(12) + millis(100));
    assert!(first < of_a_second / 10, "{first} packets in the first 100 ms");
    let back = statistics.total_bits_per_second(second(15), second(20)) / RATE as f64;
    assert!(back > 0.9, "{back} when it is back");
}

#[test]
fn messages_with_pauses_are_not_lost_to_probes() {
    // Messages of 1.1 MB, one at a time: 45 ms of sending, then the rest of a round trip of silence. A probe on an empty path sends
    // faster than the link for a whole round trip, into 5 ms of queue. Start-up has gone too far; in the 15 s after it no probe does.
    let (sending, cycle, messages) = (45, 72, 208);
    for (seed, loss) in [(0, 0.0), (1, 0.0), (2, 1e-3), (3, 1e-3), (4, 1e-2), (5, 1e-2)] {
        let mut plan = SimulationPlan { seed, packet_bytes: 1100, ..plan(125_000, loss, millis(25)) };
        plan.flows[0].pauses =
            (0..messages).map(|index| (millis(index * cycle + sending), millis((index + 1) * cycle))).collect();
        let (statistics, _) = watch(plan);
        let is_hit = |index: &u64| statistics.loss_caused(millis(index * cycle), millis((index + 1) * cycle)) > 0.0;
        let hit: Vec<u64> = (10..messages).filter(is_hit).collect();
        assert!(hit.is_empty(), "messages {hit:?} lost packets with seed {seed}, loss {loss}");
        let carried = statistics.total_bits_per_second(millis(2_000), millis(messages * cycle)) / RATE as f64;
        assert!(carried > 0.6, "{carried} with seed {seed}: the sender sends for 0.62 of the time");
    }
}

#[test]
fn one_seed_gives_one_result() {
    let run = || watch(plan(125_000, 1e-2, millis(25))).0;
    assert_eq!(run().counters, run().counters);
}
