//! `longhaul perf hadamard`: how fast tensors are transformed, and what lost packets cost then.

use std::fmt::Write as _;

use longhaul_perf::hadamard::{self, Check, HadamardReport, HadamardRequest, Row};
use serde_json::{Value, json};

use crate::stop::{self, Stop};

/// Measure the Hadamard transform: speed compared with a memory copy, and the error when packets are lost
///
/// Tensors of f32, bf16 and f16 in several layouts (block, packet, stride, random signs). Speed: one thread encodes and
/// decodes a whole tensor; copies of the same size, in pieces or at once, are interleaved, medians count, and the
/// faster copy is compared with. Error: each packet is lost with --loss, and lost elements count as zero. Exit status 1
/// if a check fails: at block 1024 with signs and a stride, encoding at half the speed of a copy (not checked for
/// single elements of 2 bytes in packets, stride 1024); everywhere, a mean error that is the loss, and a 99.9th
/// percentile of the errors of spike blocks that is the binomial's. A spike block has one element that is not zero, so
/// that all its coefficients have the same energy; a block in one packet is lost as often as its packet is.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Size of the tensors whose speed is measured; make it much larger than the caches. Six times as much memory is
    /// used
    #[arg(long, value_name = "BYTES", default_value = "64MiB", value_parser = longhaul_units::bytes_within::<usize>(1 << 20..=4 << 30))]
    buffer: usize,

    /// Rounds of each measurement of speed
    #[arg(long, value_name = "NUMBER", default_value_t = 9, value_parser = clap::value_parser!(u32).range(3..=10_000))]
    rounds: u32,

    /// Share of the packets that are lost
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = loss)]
    loss: f64,

    /// Tensors that are decoded in each layout
    #[arg(long, value_name = "NUMBER", default_value_t = 96, value_parser = clap::value_parser!(u32).range(16..=100_000))]
    trials: u32,

    /// Draws of lost packets for the percentile of block errors
    #[arg(long, value_name = "NUMBER", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(20_000..=10_000_000))]
    samples: u32,

    /// The seed of tensors, signs and losses
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let request = HadamardRequest {
        buffer_bytes: arguments.buffer / 4 * 4,
        rounds: arguments.rounds,
        loss: arguments.loss,
        trials: arguments.trials,
        samples: arguments.samples,
        seed: arguments.seed,
    };
    let report = hadamard::measure(&request, &mut |step| eprintln!("{step}"))?;
    let failed = report.checks.iter().filter(|check| !check.passed).count();
    let stop = Stop::checks_failed(failed, report.checks.len());
    stop::tell(arguments.json, || to_json(&request, &report), || to_table(&request, &report), stop)
}

fn loss(text: &str) -> Result<f64, String> {
    let fits = longhaul_units::share(text).ok().filter(|share| (0.001..=0.5).contains(share));
    fits.ok_or_else(|| format!("expected a share from 0.1% to 50%, such as 5% or 0.05, got \"{text}\""))
}

fn to_json(request: &HadamardRequest, report: &HadamardReport) -> Value {
    let row = |row: &Row| {
        json!({
            "type": row.layout.type_name(),
            "block": row.layout.block,
            "packet": row.layout.packet,
            "stride": row.layout.stride,
            "signs": row.layout.signs,
            "packets_of_block": row.packets_of_block,
            "bytes_per_second": row.encode_bytes_per_second.round(),
            "of_copy": row.encode_of_copy,
            "decode_bytes_per_second": row.decode_bytes_per_second.round(),
            "decode_of_copy": row.decode_of_copy,
            "relative_mse": row.mean.relative,
            "relative_mse_standard_error": row.mean.standard_error,
            "block_error_tensor": "spike",
            "block_error_p999": row.blocks.p999,
            "block_error_mean": row.blocks.mean,
            "binomial_p999": row.blocks.binomial_p999,
            "noise_block_error_p999": row.blocks.noise_p999,
        })
    };
    let check =
        |check: &Check| json!({ "name": check.name, "passed": check.passed, "got": check.got, "bound": check.bound });
    json!({
        "schema": 1,
        "buffer_bytes": request.buffer_bytes,
        "rounds": request.rounds,
        "loss": request.loss,
        "trials": request.trials,
        "samples": request.samples,
        "seed": request.seed,
        "kernel": report.kernel.to_string(),
        "copy_bytes_per_second": report.copy_bytes_per_second().round(),
        "copy_pieces_bytes_per_second": report.copy_pieces_bytes_per_second.round(),
        "copy_whole_bytes_per_second": report.copy_whole_bytes_per_second.round(),
        "rows": report.rows.iter().map(row).collect::<Vec<_>>(),
        "checks": report.checks.iter().map(check).collect::<Vec<_>>(),
    })
}

fn to_table(request: &HadamardRequest, report: &HadamardReport) -> String {
    let mut table = format!(
        "tensors of {} MiB, kernel {}; {} % of packets lost\ncopy {:.2} GB/s in pieces of 1 MiB, {:.2} GB/s at once: of copy is of the faster\n\n",
        request.buffer_bytes >> 20,
        report.kernel,
        request.loss * 100.0,
        report.copy_pieces_bytes_per_second / 1e9,
        report.copy_whole_bytes_per_second / 1e9,
    );
    let _ = writeln!(
        table,
        "                                        encode           decode       relative error    99.9 % of blocks"
    );
    let _ = writeln!(
        table,
        "{:<5} {:>8} {:>6} {:>6} {:<6} {:>6} {:>7}  {:>6} {:>7}  {:>7} {:>8}  {:>6} {:>9} {:>6}",
        "type",
        "block",
        "packet",
        "stride",
        "signs",
        "GB/s",
        "of copy",
        "GB/s",
        "of copy",
        "mean",
        "±",
        "spike",
        "binomial",
        "noise"
    );
    for row in &report.rows {
        let _ = writeln!(
            table,
            "{:<5} {:>8} {:>6} {:>6} {:<6} {:>6.2} {:>7.2}  {:>6.2} {:>7.2}  {:>7.4} {:>8.4}  {:>6.3} {:>9.3} {:>6.3}",
            row.layout.type_name(),
            row.layout.block,
            row.layout.packet,
            row.layout.stride,
            if row.layout.signs { "yes" } else { "no" },
            row.encode_bytes_per_second / 1e9,
            row.encode_of_copy,
            row.decode_bytes_per_second / 1e9,
            row.decode_of_copy,
            row.mean.relative,
            row.mean.standard_error,
            row.blocks.p999,
            row.blocks.binomial_p999,
            row.blocks.noise_p999,
        );
    }
    let failed: Vec<&Check> = report.checks.iter().filter(|check| !check.passed).collect();
    let _ = writeln!(table, "\n{} of {} checks passed", report.checks.len() - failed.len(), report.checks.len());
    for check in failed {
        let _ = writeln!(table, "FAILED  {} {:.4}, got {:.4}", check.name, check.bound, check.got);
    }
    table
}
