//! `longhaul perf coding`: how fast parity is computed and lost chunks are restored.

use std::fmt::Write as _;
use std::num::NonZeroUsize;

use longhaul_coding::Code;
use longhaul_perf::coding::{self, CodingReport, CodingRequest, Measured};
use serde_json::{Value, json};

use crate::stop::Stop;

/// Measure erasure coding, compared with copying the same data
///
/// Reports bytes of data (not parity) per second for one message in memory, cut into submessages of the code. The
/// measurements are interleaved in short rounds, and the median round counts: processor time for one thread, wall-clock
/// time for several. In a build with the feature bench-isal, ISA-L encodes the same data to the same parity for
/// comparison.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Code to measure: mds:K,M or xor:K,M; repeatable [default: mds:32,8 and xor:32,8]
    #[arg(long = "code", value_name = "CODE")]
    codes: Vec<Code>,

    /// Chunk size
    #[arg(long, value_name = "BYTES", default_value_t = 65_536, value_parser = longhaul_units::bytes_within::<u32>(1..=16 << 20))]
    chunk: u32,

    /// Message size; make it much larger than the caches, unless those are what you measure
    #[arg(long, value_name = "BYTES", default_value = "128MiB", value_parser = longhaul_units::bytes_within::<usize>(1 << 20..=16 << 30))]
    message: usize,

    /// Also encode on this many threads; several numbers, separated by commas [default: one thread per processor]
    #[arg(long, value_name = "NUMBER", value_delimiter = ',')]
    threads: Vec<NonZeroUsize>,

    /// Rounds per measurement
    #[arg(long, value_name = "NUMBER", default_value_t = 64, value_parser = clap::value_parser!(u32).range(3..=100_000))]
    rounds: u32,

    /// Also measure the slower kernels that this processor supports
    #[arg(long)]
    kernels: bool,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let request = CodingRequest {
        codes: arguments.codes.clone(),
        chunk_bytes: arguments.chunk as usize,
        message_bytes: arguments.message,
        threads: arguments.threads.clone(),
        rounds: arguments.rounds,
        kernels: arguments.kernels,
    };
    let report = coding::measure(&request, &mut |note| eprintln!("{note}"))?;
    match arguments.json {
        true => println!("{}", to_json(&report)),
        false => print!("{}", to_table(&report)),
    }
    Ok(())
}

fn measured_json(measured: &Measured) -> Value {
    json!({
        "code": measured.code,
        "operation": measured.operation,
        "k": measured.counts.map(|(k, _)| k),
        "m": measured.counts.map(|(_, m)| m),
        "lost": measured.lost,
        "chunk_bytes": measured.chunk_bytes,
        "threads": measured.threads,
        "kernel": measured.kernel,
        "bytes_per_second": measured.rates.median().round(),
        "lowest_bytes_per_second": measured.rates.minimum().round(),
        "highest_bytes_per_second": measured.rates.maximum().round(),
    })
}

fn to_json(report: &CodingReport) -> String {
    let round = |ratio: Option<f64>| ratio.map(|ratio| (ratio * 1000.0).round() / 1000.0);
    json!({
        "schema": 1,
        "message_bytes": report.message_bytes,
        "rounds": report.rounds,
        "results": report.measured.iter().map(measured_json).collect::<Vec<_>>(),
        "ratios": { "mds_over_isal": round(report.mds_over_isal()), "xor_over_copy": round(report.xor_over_copy()) },
    })
    .to_string()
}

fn to_table(report: &CodingReport) -> String {
    let mut table = String::new();
    let chunk_bytes = report.measured.first().map_or(0, |measured| measured.chunk_bytes);
    let _ = writeln!(
        table,
        "{} MiB in chunks of {chunk_bytes} bytes, {} interleaved rounds each\n",
        report.message_bytes >> 20,
        report.rounds
    );
    let _ = writeln!(table, "{:<22} {:<12} {:>7} {:>8} {:>18}", "", "kernel", "threads", "GB/s", "lowest..highest");
    for measured in &report.measured {
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
    let _ = writeln!(table, "\nmds_over_isal          {}", ratio(report.mds_over_isal()));
    let _ = writeln!(table, "xor_over_copy          {}", ratio(report.xor_over_copy()));
    table
}
