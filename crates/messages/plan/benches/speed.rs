//! How long an answer and a decision take: `cargo bench -p longhaul-plan`. Exit status 1 when a question takes too
//! long, or a decision 10 µs.
//!
//! The aim is 50 ms for a question, on a machine that nobody else uses. What is checked is a ratio, because machines
//! are shared: each question takes turns with a fixed amount of similar work on every processor, and the median of
//! question over work must stay below [`QUESTION_OVER_REFERENCE_MAX`]. On one processor the work took 11 to 12 ms of a
//! busy machine, so the bound is looser than the aim; the least time of a question is printed next to the ratio. No
//! benchmark harness, because there are two bounds to hold and no history to keep.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use longhaul_plan::link::{Link, Loss};
use longhaul_plan::question::Question;
use longhaul_plan::table::DecisionTable;

/// 6.0 was the most that was seen, while something else used both processors.
const QUESTION_OVER_REFERENCE_MAX: f64 = 8.0;
const DECISION_SECONDS_MAX: f64 = 10e-6;
const ROUNDS: usize = 15;
/// When the median of a set of rounds is too long there is another one: whatever else the machine does mostly adds to
/// it.
const SETS_MAX: usize = 4;
const DECISIONS: u32 = 100_000;

fn seconds(work: impl FnOnce()) -> f64 {
    let begin = Instant::now();
    work();
    begin.elapsed().as_secs_f64()
}

/// Logarithms and exponentials, as in the planner's sums, on every processor, as in the planner's answers.
fn reference_work() {
    let sum = || {
        let terms = (1..400_000_u32).map(|index| (-f64::from(black_box(index)).ln().sqrt()).exp());
        black_box(terms.sum::<f64>());
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(sum))));
}

/// The least time of some work, and the median of its time over the reference's, which takes turns with it.
fn measure(mut work: impl FnMut()) -> (f64, f64) {
    let (mut least, mut ratio) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..SETS_MAX {
        let mut ratios: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let reference = seconds(reference_work);
                let own = seconds(&mut work);
                least = least.min(own);
                own / reference
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        ratio = ratio.min(ratios[ROUNDS / 2]);
        if ratio < QUESTION_OVER_REFERENCE_MAX {
            break;
        }
    }
    (least, ratio)
}

fn main() -> ExitCode {
    let mut is_good = true;
    for (name, loss) in [
        ("loss 1e-5", Loss::Independent(1e-5)),
        ("loss 1e-2", Loss::Independent(1e-2)),
        ("loss 0.1", Loss::Independent(0.1)),
        ("loss 0.3", Loss::Independent(0.3)),
        ("loss 1e-3 in bursts of 8", Loss::bursts(1e-3, 8.0)),
    ] {
        let question = Question::new(Link::new(400e9, 0.025, loss), 128 << 20);
        let given = Question { chunk_bytes: Some(4096), ..question.clone() };
        let large = Question { message_bytes: 2 << 40, ..question.clone() };
        let rings = [4, 8].map(|sites| (sites, Question { ring_sites: Some(sites), ..question.clone() }));
        let mut ask = |what: &str, question: &Question| {
            let (least, ratio) = measure(|| drop(black_box(question.answer().expect("an answer"))));
            println!(
                "{:<60} {:>8.3} ms, {ratio:>5.2} times the reference, at most {QUESTION_OVER_REFERENCE_MAX}",
                format!("{name}: {what}"),
                least * 1e3
            );
            is_good &= ratio < QUESTION_OVER_REFERENCE_MAX;
        };
        ask("128 MiB, code and chunk open", &question);
        ask("128 MiB, chunks of 4 KiB", &given);
        ask("2 TiB, code and chunk open", &large);
        for (sites, ring) in &rings {
            ask(&format!("ring of {sites}, code and chunk open"), ring);
        }
    }
    let link = Link::new(400e9, 0.025, Loss::Independent(0.0));
    let table = DecisionTable::prepare(&Question { chunk_bytes: Some(4096), ..Question::new(link, 1) });
    let table = table.expect("a table");
    let decide_all = || {
        for index in 0..DECISIONS {
            let loss = 10_f64.powi(-((index % 9) as i32));
            black_box(table.decide(black_box(1 << (index % 41)), black_box(loss)));
        }
    };
    let least = (0..ROUNDS).map(|_| seconds(decide_all)).fold(f64::INFINITY, f64::min) / f64::from(DECISIONS);
    println!(
        "{:<60} {:>8.3} us, at most {:.0} us",
        "a decision from a prepared table",
        least * 1e6,
        DECISION_SECONDS_MAX * 1e6
    );
    is_good &= least < DECISION_SECONDS_MAX;
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
