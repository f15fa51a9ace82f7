//! How long an answer and a decision take. The bounds are those of an optimised build, with room for a busy machine; the figures are printed:
//! `cargo test -p longhaul-plan --release --test speed -- --nocapture`.

use std::time::Instant;

use longhaul_plan::link::{Link, Loss};
use longhaul_plan::question::Question;
use longhaul_plan::table::DecisionTable;

/// Time that this thread was on a core, where the system tells; others use the machine too.
fn seconds_on_core() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse::<f64>().ok().map(|nanos| nanos / 1e9)
}

/// The mean of some times. The system's count moves on in steps of some milliseconds.
fn milliseconds(times: u32, mut work: impl FnMut()) -> f64 {
    let (begin, on_core) = (Instant::now(), seconds_on_core());
    (0..times).for_each(|_| work());
    let seconds = match (on_core, seconds_on_core()) {
        (Some(begin), Some(end)) => end - begin,
        _ => begin.elapsed().as_secs_f64(),
    };
    seconds * 1e3 / f64::from(times)
}

#[test]
fn a_question_takes_less_than_50_ms() {
    let links = [
        ("1e-5", Loss::Independent(1e-5)),
        ("1e-2", Loss::Independent(1e-2)),
        ("1e-3 in bursts of 8", Loss::bursts(1e-3, 8.0)),
    ];
    for (name, loss) in links {
        let question = Question::new(Link::new(400e9, 0.025, loss), 128 << 20);
        let open = milliseconds(20, || drop(question.answer().expect("an answer")));
        let given = Question { chunk_bytes: Some(4096), ..question.clone() };
        let given_ms = milliseconds(20, || drop(given.answer().expect("an answer")));
        let large = Question { message_bytes: 2 << 40, ..question.clone() };
        let large_ms = milliseconds(20, || drop(large.answer().expect("an answer")));
        let ring = Question { ring_sites: Some(8), ..given };
        let ring_ms = milliseconds(3, || drop(ring.answer().expect("an answer")));
        println!(
            "loss {name}: all open {open:.1} ms, chunk given {given_ms:.1} ms, 2 TiB {large_ms:.1} ms, ring of 8 {ring_ms:.1} ms"
        );
        // An unoptimised build may take longer.
        for time in [open, given_ms, large_ms, ring_ms] {
            assert!(time < 250.0, "{name}: {time} ms");
        }
    }
}

#[test]
fn a_decision_takes_less_than_10_us() {
    let question =
        Question { chunk_bytes: Some(4096), ..Question::new(Link::new(400e9, 0.025, Loss::Independent(0.0)), 1) };
    let mut table = None;
    let prepared = milliseconds(1, || table = DecisionTable::prepare(&question).ok());
    let table = table.expect("a table");
    println!("prepared in {prepared:.0} ms");
    let mut margins = 0.0;
    let count = 100_000_u32;
    let time = milliseconds(10, || {
        for index in 0..count {
            let bytes = 1_u64 << (index % 41);
            margins += table.decide(bytes, 10_f64.powi(-((index % 9) as i32))).margin;
        }
    });
    println!("a decision takes {:.0} ns ({margins:.0})", time * 1e6 / f64::from(count));
    assert!(time * 1e3 / f64::from(count) < 10.0);
}

#[test]
fn a_table_says_what_a_question_says() {
    let link = Link::new(400e9, 0.025, Loss::Independent(1e-3));
    let question = Question { chunk_bytes: Some(4096), ..Question::new(link, 128 << 20) };
    let table = DecisionTable::prepare(&question).expect("a table");
    let answer = question.answer().expect("an answer");
    assert_eq!(table.decide(128 << 20, 1e-3).scheme, answer.recommendation.scheme);
    assert!(table.decide(128 << 20, 0.0).scheme.to_string().starts_with("sr"));
    for (bytes, loss) in [(0, 0.0), (1, 1.0), (u64::MAX, f64::NAN), (1 << 20, 1e-300)] {
        table.decide(bytes, loss);
    }
}
