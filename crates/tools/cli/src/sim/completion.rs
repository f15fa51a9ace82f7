//! `longhaul sim completion`: how long a message takes over a long link, with each reliability scheme.

mod estimate;
mod paper;

use std::time::Instant;

use estimate::Estimate;
use indicatif::ProgressBar;
use longhaul_scheme_testing::{
    completion::{CompletionOptions, CompletionScheme, Sample, Sampling, Summary},
    end_to_end::CaseError,
};
use longhaul_time::Duration;
use serde_json::{Value, json};

use crate::progress;
use crate::stop::{self, Stop};

/// What a sample's memory may take at each end.
const SIZE_MAX: u64 = 1 << 30;
/// Longer round trips are mistakes.
const ROUND_TRIP_RANGE: std::ops::RangeInclusive<Duration> = Duration::from_micros(1)..=Duration::from_secs(100);

/// Measure how long a message takes over a long, lossy link, with each reliability scheme
///
/// Runs the real protocol code on virtual time: two software RNICs on a simulated link, one message at a time. The
/// slowdown is the time from the send until the sender knows that the message has arrived, divided by the minimum
/// (size/rate + round trip); headers, parity and retransmissions count. Packets are lost in both directions, so
/// acknowledgements are lost too. Several schemes and losses give a table. The same seed gives the same figures, on any
/// number of threads.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Link rate, in bits per second
    #[arg(long, value_name = "RATE", default_value = "400G", value_parser = longhaul_units::rate)]
    rate: u64,

    /// Round-trip time
    #[arg(long, value_name = "TIME", default_value = "25ms", value_parser = longhaul_units::duration)]
    rtt: Duration,

    /// Fraction of packets lost, such as 1e-3; several, separated by commas
    #[arg(long, value_name = "SHARE", default_value = "1e-3", value_delimiter = ',', value_parser = longhaul_units::share)]
    loss: Vec<f64>,

    /// Message size
    #[arg(long, value_name = "BYTES", default_value = "128MiB", value_parser = longhaul_units::bytes)]
    size: u64,

    /// Chunk size, a multiple of the 4 KiB packets
    #[arg(long, value_name = "BYTES", default_value = "4KiB", value_parser = longhaul_units::bytes)]
    chunk: u64,

    /// Scheme to measure: sr:rto, sr:nack, ec:xor:K,M, ec:mds:K,M or rc; repeatable
    #[arg(long, value_name = "SCHEME", default_value = "sr:rto")]
    scheme: Vec<CompletionScheme>,

    /// Run the schemes and losses of the SDR-RDMA paper, show the paper's figure in each row, and check the bounds
    ///
    /// The bounds are for the paper's link and message, which are the defaults of the other options: 400 Gbit/s, 25 ms,
    /// 128 MiB, chunks of 4 KiB. The exit status is 1 if a bound is broken.
    #[arg(long, conflicts_with_all = ["loss", "scheme"])]
    paper: bool,

    /// Messages per row
    #[arg(long, value_name = "NUMBER", default_value_t = 200, value_parser = longhaul_units::whole_number(1_u32..))]
    samples: u32,

    /// Seed of everything random
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Threads; the result does not depend on it [default: all cores]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

/// What a row of the table shows.
struct Measurement {
    sampling: Sampling,
    slowdown: Summary,
    repeated_packets: f64,
    fallbacks: f64,
}

/// Runs the scenario.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    check(arguments).map_err(Stop::Usage)?;
    let begin = Instant::now();
    let rows = rows(arguments);
    let estimate = Estimate::of(&rows).map_err(|error| Stop::Failed(error.to_string()))?;
    if let Some(notice) = estimate.notice() {
        eprintln!("{notice}");
    }
    let bar = progress_bar(rows.iter().map(|row| u64::from(row.sample_count)).sum());
    let mut measurements = Vec::new();
    for row in rows {
        let (scheme, loss) = (row.options.scheme, row.options.loss);
        bar.set_message(format!("{scheme} at loss {loss:e}"));
        let measurement = measure(row, &bar);
        measurements.push(measurement.map_err(|error| Stop::failed(format!("{scheme} at loss {loss:e}"), error))?);
    }
    bar.finish_and_clear();
    let checks = if arguments.paper { paper::checks(&measurements) } else { Vec::new() };
    let value = || {
        let mut value = to_json(arguments, &measurements);
        value["expected_seconds"] = estimate.seconds.into();
        value["seconds"] = begin.elapsed().as_secs_f64().into();
        if arguments.paper {
            value["checks"] = paper::to_json(&checks);
        }
        value
    };
    let table = || to_table(&measurements, arguments.paper) + &paper::describe(&checks);
    let broken = checks.iter().filter(|check| !check.passed).count();
    let wrong = (broken > 0).then(|| Stop::Failed(format!("number of bounds that do not hold: {broken}")));
    stop::tell(arguments.json, value, table, wrong)
}

fn check(arguments: &Arguments) -> Result<(), String> {
    if !(1..=SIZE_MAX).contains(&arguments.size) {
        return Err(format!("--size {} bytes is out of range: use 1 byte to 1 GiB", arguments.size));
    }
    if arguments.chunk == 0 || !arguments.chunk.is_multiple_of(4096) || arguments.chunk > 1 << 30 {
        return Err(format!(
            "--chunk {} bytes is not a multiple of 4 KiB, the size of a packet: use 4KiB, 8KiB, …, 64KiB",
            arguments.chunk
        ));
    }
    if !ROUND_TRIP_RANGE.contains(&arguments.rtt) {
        return Err(format!("--rtt {:?} is out of range: use 1us to 100s", arguments.rtt));
    }
    if arguments.loss.contains(&1.0) {
        return Err("--loss 1 loses every packet, so no message would arrive: use less than 1".to_owned());
    }
    Ok(())
}

fn rows(arguments: &Arguments) -> Vec<Sampling> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (schemes, losses) = match arguments.paper {
        true => (paper::SCHEMES.map(|name| name.parse().expect("a scheme")).to_vec(), paper::LOSSES.to_vec()),
        false => (arguments.scheme.clone(), arguments.loss.clone()),
    };
    let row = |scheme, loss| Sampling {
        options: CompletionOptions {
            rate_bits_per_second: arguments.rate,
            round_trip: arguments.rtt,
            loss,
            burst_packets: None,
            message_bytes: arguments.size as usize,
            chunk_bytes: arguments.chunk as u32,
            scheme,
            seed: arguments.seed,
        },
        sample_count: arguments.samples,
        thread_count: arguments.threads.map_or(cores, usize::from),
    };
    schemes.iter().flat_map(|scheme| losses.iter().map(|loss| row(*scheme, *loss))).collect()
}

fn progress_bar(messages: u64) -> ProgressBar {
    progress::bar(messages, "{bar:30} {pos}/{len} messages, {eta} left, {msg}")
}

fn measure(sampling: Sampling, bar: &ProgressBar) -> Result<Measurement, CaseError> {
    let taken = sampling.run(|| bar.inc(1))?;
    let least = sampling.options.least().as_secs_f64();
    let mean = |of: fn(&Sample) -> u64| taken.iter().map(|sample| of(sample) as f64).sum::<f64>() / taken.len() as f64;
    Ok(Measurement {
        slowdown: Summary::of(taken.iter().map(|sample| sample.duration.as_secs_f64() / least).collect()),
        repeated_packets: mean(|sample| sample.repeated_packets),
        fallbacks: mean(|sample| sample.fallbacks),
        sampling,
    })
}

/// One measurement is the object itself; several are in its `results`.
fn to_json(arguments: &Arguments, measurements: &[Measurement]) -> Value {
    let results: Vec<Value> = measurements.iter().map(|row| result_to_json(row, arguments.paper)).collect();
    let mut value = json!({
        "schema": 1,
        "rate_bits_per_second": arguments.rate,
        "rtt_seconds": arguments.rtt.as_secs_f64(),
        "size_bytes": arguments.size,
        "chunk_bytes": arguments.chunk,
        "samples": arguments.samples,
        "seed": arguments.seed,
        "least_seconds": measurements[0].sampling.options.least().as_secs_f64(),
    });
    match &results[..] {
        [Value::Object(result)] => {
            for (key, entry) in result {
                value[key] = entry.clone();
            }
        }
        _ => value["results"] = results.into(),
    }
    value
}

fn result_to_json(measurement: &Measurement, with_paper: bool) -> Value {
    let Measurement { sampling, slowdown, repeated_packets, fallbacks } = measurement;
    let scheme = sampling.options.scheme.to_string();
    let mut value = json!({
        "scheme": scheme,
        "loss": sampling.options.loss,
        "slowdown": {
            "mean": slowdown.mean,
            "p50": slowdown.p50,
            "p99": slowdown.p99,
            "p999": slowdown.p999,
        },
        "repeated_packets_mean": repeated_packets,
        "fallbacks_mean": fallbacks,
    });
    if with_paper {
        value["paper"] = json!({
            "formula_mean": paper::formula_mean(measurement),
            "says": paper::says(&scheme, sampling.options.loss),
        });
    }
    value
}

fn to_table(measurements: &[Measurement], with_paper: bool) -> String {
    let mut table = format!(
        "{:<12} {:>6} {:>7} {:>7} {:>7} {:>7} {:>9}",
        "scheme", "loss", "mean", "p50", "p99", "p99.9", "repeated"
    );
    if with_paper {
        table += &format!(" {:>15}  the paper says", "paper's formula");
    }
    table.push('\n');
    for measurement in measurements {
        let Measurement { sampling, slowdown, repeated_packets, .. } = measurement;
        let (scheme, loss) = (sampling.options.scheme.to_string(), sampling.options.loss);
        let p999 = slowdown.p999.map_or("-".to_owned(), |p999| format!("{p999:.3}"));
        let Summary { mean, p50, p99, .. } = slowdown;
        let loss_text = match loss {
            0.0 => "0".to_owned(),
            _ => format!("{loss:e}"),
        };
        let mut row =
            format!("{scheme:<12} {loss_text:>6} {mean:>7.3} {p50:>7.3} {p99:>7.3} {p999:>7} {repeated_packets:>9.1}");
        if with_paper {
            let formula = paper::formula_mean(measurement).map_or("-".to_owned(), |mean| format!("{mean:.3}"));
            row += &format!(" {formula:>15}  {}", paper::says(&scheme, loss).unwrap_or_default());
        }
        table += row.trim_end();
        table.push('\n');
    }
    table
}
