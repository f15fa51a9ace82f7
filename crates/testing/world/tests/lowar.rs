//! RC over a long link with forward error correction below it, next to RC alone and with a code that follows the link.

use longhaul_impair::Loss;
use longhaul_shim::{Fec, Lowar};
use longhaul_time::Duration;
use longhaul_world::lowar::{Outcome, Scenario};

fn scenario(code: Option<&str>, loss: f64) -> Scenario {
    let fec = |code: &str| match code.starts_with("auto") {
        true => code.parse().expect("bounds"),
        false => Fec::Fixed(Lowar(code.parse().expect("a code"))),
    };
    Scenario {
        round_trip: Duration::from_millis(40),
        bits_per_second: 10_000_000_000,
        loss: Loss::Independent { probability: loss },
        connections: 1,
        message_bytes: 1 << 20,
        depth: None,
        code: code.map(fec),
        later: Vec::new(),
        settles: Duration::ZERO,
        lasts: Duration::from_millis(400),
        seed: 1,
    }
}

fn run(code: Option<&str>, loss: f64) -> Outcome {
    scenario(code, loss).run()
}

#[test]
fn one_connection_at_40_ms_keeps_the_link() {
    let (plain, repaired) = (run(None, 1e-4), run(Some("xor:32,1"), 1e-4));
    let [plain_rate, rate] = [&plain, &repaired].map(|outcome| outcome.goodput_bits_per_second / 1e9);
    // An ideal model of both has 1.67 and 8.93 over a long time.
    assert!(plain_rate < 4.0, "{plain_rate} Gbit/s: {plain:?}");
    assert!(rate > 8.5, "{rate} Gbit/s, {plain_rate} without: {:?}", repaired.decoder);
    assert!((0.03..0.032).contains(&repaired.repair_share()), "{}", repaired.repair_share());
    // The flow never pauses, so that no block is cut short: packets do not wait between the shim and a full port.
    assert_eq!(repaired.encoder.flushed_blocks, 0);
    assert!(repaired.decoder.restored > 0 && plain.decoder.restored == 0);
}

#[test]
fn reed_solomon_keeps_it_at_one_percent() {
    let repaired = run(Some("mds:64,8"), 1e-2);
    let rate = repaired.goodput_bits_per_second / 1e9;
    assert!(rate > 8.0, "{rate} Gbit/s: {:?}", repaired.decoder);
}

/// Tenths of a second of the time that counts until the code has settled; the first round trip was too short to know the loss.
const SETTLING: usize = 2;

/// Gbit/s when the code has settled.
fn settled(outcome: &Outcome) -> f64 {
    let whole = &outcome.bytes_by_tenth[SETTLING..outcome.bytes_by_tenth.len() - 1];
    whole.iter().sum::<u64>() as f64 * 8.0 / 1e8 / whole.len() as f64
}

/// The rate of the adaptive form over that of the best fixed code, over the same losses.
fn share_of_best(family: &str, codes: &[&str], loss: f64, round_trip: u64, lasts: u64, seeds: u64) -> f64 {
    let mut totals = vec![[0.0; 2]; codes.len() + 1];
    let mut last = None;
    for seed in 1..=seeds {
        for (place, code) in codes.iter().chain([&family]).enumerate() {
            let lasts = Duration::from_millis(lasts);
            let round_trip = Duration::from_millis(round_trip);
            let outcome = Scenario { round_trip, lasts, seed, ..scenario(Some(code), loss) }.run();
            totals[place][0] += settled(&outcome) / seeds as f64;
            totals[place][1] += outcome.goodput_bits_per_second / 1e9 / seeds as f64;
            last = Some(outcome);
        }
    }
    let auto = totals[codes.len()];
    let (best, code) = totals.iter().zip(codes).max_by(|one, other| one.0[0].total_cmp(&other.0[0])).expect("some");
    let outcome = last.expect("some");
    println!(
        "{family} {round_trip} ms {loss:e}: {:.3} Gbit/s settled ({:.3} in all), best {:.3} ({:.3}) with {code}: {:.3}; {} \
         changes, {:.2} % overhead",
        auto[0],
        auto[1],
        best[0],
        best[1],
        auto[0] / best[0],
        outcome.changes.len(),
        outcome.repair_share() * 100.0,
    );
    for change in &outcome.changes {
        println!("    {:7.1} ms {change}", change.at.as_nanos() as f64 / 1e6);
    }
    auto[0] / best[0]
}

#[test]
fn a_code_that_follows_the_link_is_as_good_as_the_best() {
    let share = share_of_best("auto:mds", &["mds:128,8", "mds:64,6"], 1e-2, 40, 500, 1);
    assert!(share > 0.97, "{share}");
    let share = share_of_best("auto:xor", &["xor:255,1", "xor:64,1"], 1e-5, 40, 500, 1);
    assert!(share > 0.97, "{share}");
}

#[test]
fn a_clean_link_costs_one_percent_at_most() {
    for family in ["auto", "auto:xor", "auto:mds"] {
        let outcome = run(Some(family), 0.0);
        let rate = outcome.goodput_bits_per_second / 1e9;
        // Headers take 8 %.
        assert!(rate > 9.1, "{family}: {rate} Gbit/s, {:?}", outcome.changes);
        let last = outcome.changes.last().expect("the first code is for links that lose");
        assert!(last.overhead[1] <= 0.01, "{family}: {last}");
        assert!(last.at.as_nanos() < 250_000_000, "{family}: {last}");
        assert_eq!(outcome.encoder.over_bound, 0);
    }
}

#[test]
fn it_follows_a_link_that_changes() {
    let at = Duration::from_millis;
    let loss = |probability| Loss::Independent { probability };
    let outcome = Scenario {
        later: vec![(at(400), loss(1e-2)), (at(800), loss(1e-5))],
        lasts: at(1000),
        ..scenario(Some("auto:mds"), 1e-5)
    }
    .run();
    for change in &outcome.changes {
        println!("{:7.1} ms {change}", change.at.as_nanos() as f64 / 1e6);
    }
    println!("{:?}", outcome.bytes_by_tenth);
    let overhead_at = |time: u64| {
        let before = outcome.changes.iter().take_while(|change| change.at.as_nanos() <= time * 1_000_000).last();
        before.expect("a change").overhead[1]
    };
    assert!(overhead_at(400) < 0.02, "before");
    // One round trip, and two reports.
    assert!((0.04..0.25).contains(&overhead_at(460)), "{}", overhead_at(460));
    assert!((0.04..0.25).contains(&overhead_at(799)), "no flapping");
    assert!(overhead_at(1050) < 0.02, "250 ms after the loss is gone: {}", overhead_at(1050));
    assert!(outcome.changes.len() < 16, "{}", outcome.changes.len());
}

#[test]
fn it_follows_bursts() {
    let bursts = Loss::bursts(1e-3, 4.0);
    let rate = |code| {
        let lasts = Duration::from_millis(600);
        let outcome = Scenario { loss: bursts.clone(), lasts, ..scenario(Some(code), 0.0) }.run();
        println!("{code}: {:.2} Gbit/s, {:.2} settled", outcome.goodput_bits_per_second / 1e9, settled(&outcome));
        outcome.changes.iter().for_each(|change| println!("{change}"));
        settled(&outcome)
    };
    let auto = rate("auto:mds");
    let best = ["mds:128,16", "mds:192,24"].map(rate).into_iter().fold(0.0, f64::max);
    assert!(auto > 0.97 * best, "{auto} {best}");
}

#[test]
fn bursts_as_long_as_there_are_groups_cost_nothing() {
    let scenario = |code: Option<&str>| Scenario {
        round_trip: Duration::from_millis(40),
        bits_per_second: 10_000_000_000,
        loss: Loss::FixedBursts { p_start: 1e-4, burst_packets: 8, loss_in_burst: 0.7 },
        connections: 1,
        message_bytes: 1 << 20,
        depth: None,
        code: code.map(|code| code.parse().expect("a code")),
        later: Vec::new(),
        settles: Duration::ZERO,
        lasts: Duration::from_millis(400),
        seed: 1,
    };
    let rate = scenario(Some("lowar:64,8")).run().goodput_bits_per_second / 1e9;
    assert!(rate > 7.7, "{rate} Gbit/s");
}
