//! A prepared table gives the answers of the questions it was made from. (How fast is measured by
//! `cargo bench -p longhaul-plan`.)

use longhaul_plan::link::{Link, Loss};
use longhaul_plan::question::Question;
use longhaul_plan::table::DecisionTable;

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
