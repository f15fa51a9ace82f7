//! How long an answer and a decision take: `cargo bench -p longhaul-plan`. Exit status 1 when a question takes 50 ms, or a decision 10 µs.
//!
//! The least of some rounds counts: whatever else the machine does only adds to a time. No benchmark harness, because there are two bounds to
//! hold and no history to keep.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use longhaul_plan::link::{Link, Loss};
use longhaul_plan::question::Question;
use longhaul_plan::table::DecisionTable;

const QUESTION_SECONDS_MAX: f64 = 50e-3;
const DECISION_SECONDS_MAX: f64 = 10e-6;
const ROUNDS: u32 = 15;
const DECISIONS: u32 = 100_000;

fn least_seconds(mut work: impl FnMut()) -> f64 {
    let mut once = || {
        let begin = Instant::now();
        work();
        begin.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(|_| once()).fold(f64::INFINITY, f64::min)
}

fn main() -> ExitCode {
    let mut is_good = true;
    let mut tell = |name: &str, seconds: f64, most: f64| {
        println!("{name:<60} {:>12.3} us, at most {:>8.0} us", seconds * 1e6, most * 1e6);
        is_good &= seconds < most;
    };
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
            let seconds = least_seconds(|| drop(black_box(question.answer().expect("an answer"))));
            tell(&format!("{name}: {what}"), seconds, QUESTION_SECONDS_MAX);
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
    let seconds = least_seconds(|| {
        for index in 0..DECISIONS {
            let loss = 10_f64.powi(-((index % 9) as i32));
            black_box(table.decide(black_box(1 << (index % 41)), black_box(loss)));
        }
    });
    tell("a decision from a prepared table", seconds / f64::from(DECISIONS), DECISION_SECONDS_MAX);
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
