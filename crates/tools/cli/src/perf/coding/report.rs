//! What was measured, as a table and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::super::statistics::Sorted;
use super::subject::Subject;

/// All of it.
pub(super) struct Report {
    pub(super) message_bytes: usize,
    pub(super) rounds: u32,
    pub(super) measured: Vec<Measured>,
}

/// One subject's rates, in bytes of data a second.
pub(super) struct Measured {
    code: &'static str,
    operation: &'static str,
    counts: Option<(usize, usize)>,
    lost: Option<usize>,
    chunk_bytes: usize,
    threads: usize,
    kernel: String,
    rates: Sorted,
}

impl Measured {
    pub(super) fn new(subject: &Subject, chunk_bytes: usize, rates: Sorted) -> Measured {
        Measured {
            code: subject.code_name(),
            operation: subject.operation(),
            counts: subject.code().map(|code| (code.data_chunks(), code.parity_chunks())),
            lost: subject.lost(),
            chunk_bytes,
            threads: subject.threads().get(),
            kernel: subject.kernel(),
            rates,
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "code": self.code,
            "operation": self.operation,
            "k": self.counts.map(|(k, _)| k),
            "m": self.counts.map(|(_, m)| m),
            "lost": self.lost,
            "chunk_bytes": self.chunk_bytes,
            "threads": self.threads,
            "kernel": self.kernel,
            "bytes_per_second": self.rates.median().round(),
            "lowest_bytes_per_second": self.rates.minimum().round(),
            "highest_bytes_per_second": self.rates.maximum().round(),
        })
    }
}

impl Report {
    /// The rate of the first encoder (or copier) of that name on one thread.
    fn rate(&self, code: &str) -> Option<f64> {
        let is_it =
            |measured: &&Measured| measured.code == code && measured.operation != "decode" && measured.threads == 1;
        self.measured.iter().find(is_it).map(|measured| measured.rates.median())
    }

    fn ratio(&self, code: &str, limit: &str) -> Option<f64> {
        Some(self.rate(code)? / self.rate(limit)?)
    }

    fn mds_over_isal(&self) -> Option<f64> {
        self.ratio("mds", "isal")
    }

    fn xor_over_copy(&self) -> Option<f64> {
        self.ratio("xor", "copy")
    }

    pub(super) fn to_json(&self) -> String {
        let round = |ratio: Option<f64>| ratio.map(|ratio| (ratio * 1000.0).round() / 1000.0);
        json!({
            "schema": 1,
            "message_bytes": self.message_bytes,
            "rounds": self.rounds,
            "results": self.measured.iter().map(Measured::to_json).collect::<Vec<_>>(),
            "ratios": { "mds_over_isal": round(self.mds_over_isal()), "xor_over_copy": round(self.xor_over_copy()) },
        })
        .to_string()
    }

    pub(super) fn to_table(&self) -> String {
        let mut table = String::new();
        let chunk_bytes = self.measured.first().map_or(0, |measured| measured.chunk_bytes);
        let _ = writeln!(
            table,
            "{} MiB in chunks of {chunk_bytes} bytes, {} interleaved rounds each\n",
            self.message_bytes >> 20,
            self.rounds
        );
        let _ = writeln!(table, "{:<22} {:<12} {:>7} {:>8} {:>18}", "", "kernel", "threads", "GB/s", "lowest..highest");
        for measured in &self.measured {
            let counts = measured.counts.map_or(String::new(), |(k, m)| format!(":{k},{m}"));
            let lost = measured.lost.map_or(String::new(), |lost| format!(" {lost} lost"));
            let operation = if measured.operation == "decode" { lost } else { String::new() };
            let _ = writeln!(
                table,
                "{:<22} {:<12} {:>7} {:>8.2} {:>18}",
                format!("{}{counts}{operation}", measured.code),
                measured.kernel,
                measured.threads,
                measured.rates.median() / 1e9,
                format!("{:.1}..{:.1}", measured.rates.minimum() / 1e9, measured.rates.maximum() / 1e9),
            );
        }
        let ratio = |ratio: Option<f64>| ratio.map_or("not measured".to_owned(), |ratio| format!("{ratio:.2}"));
        let _ = writeln!(table, "\nmds_over_isal          {}", ratio(self.mds_over_isal()));
        let _ = writeln!(table, "xor_over_copy          {}", ratio(self.xor_over_copy()));
        table
    }
}
