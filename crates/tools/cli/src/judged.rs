//! What was measured, next to the bar that it must reach.

use serde_json::{Value, json};

use crate::stop::Stop;

/// One thing that must hold.
pub(crate) struct Judged {
    pub(crate) name: String,
    pub(crate) got: f64,
    pub(crate) bar: String,
    pub(crate) is_good: bool,
}

impl Judged {
    pub(crate) fn at_least(name: String, got: f64, least: f64) -> Self {
        Judged { name, got, bar: format!("at least {least}"), is_good: got >= least }
    }

    pub(crate) fn at_most(name: String, got: f64, most: f64) -> Self {
        Judged { name, got, bar: format!("at most {most}"), is_good: got <= most }
    }

    pub(crate) fn none(name: String, got: u64) -> Self {
        Judged { name, got: got as f64, bar: "0".to_owned(), is_good: got == 0 }
    }
}

/// Why the command fails, if a bar was not reached.
pub(crate) fn wrong(judged: &[Judged]) -> Option<Stop> {
    let bad: Vec<&str> = judged.iter().filter(|judged| !judged.is_good).map(|judged| &*judged.name).collect();
    (!bad.is_empty()).then(|| Stop::Failed(format!("not reached: {}", bad.join(", "))))
}

pub(crate) fn to_json(judged: &[Judged]) -> Value {
    let check = |judged: &Judged| json!({ "name": judged.name, "got": judged.got, "bar": judged.bar, "passed": judged.is_good });
    judged.iter().map(check).collect()
}

pub(crate) fn to_table(judged: &[Judged]) -> String {
    let line = |judged: &Judged| {
        let mark = if judged.is_good { "ok    " } else { "FAILED" };
        format!("{mark} {}: {:.4} ({})\n", judged.name, judged.got, judged.bar)
    };
    judged.iter().map(line).collect()
}
