//! `longhaul sim completion`: how long a message takes over a long link, with each reliability scheme.

use std::process::ExitCode;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use longhaul_testbed::completion::{Completion, CompletionOptions, CompletionScheme, Sample, Summary};
use longhaul_testbed::end_to_end::CaseError;
use longhaul_time::Duration;
use serde_json::{Value, json};

use crate::exit;

/// A run that is expected to take longer says so first.
const LONG: std::time::Duration = std::time::Duration::from_secs(120);
/// What a sample's memory may take at each end.
const SIZE_MAX: u64 = 1 << 30;

/// How long a message takes over a long link that loses packets, with each reliability scheme
///
/// The real protocol code on virtual time: two software RNICs on a simulated link, one message after the other. A slowdown is the time
/// from the send until the sender knows that the message is done, divided by the least possible (size/rate + round trip); headers, parity and
/// everything that is repeated count. Loss is in both directions, so acknowledgements are lost as data is. Several schemes and losses give a
/// table.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The link's rate, in bits a second
    #[arg(long, value_name = "RATE", default_value = "400G", value_parser = rate)]
    rate: u64,

    /// Round-trip time
    #[arg(long, value_name = "TIME", default_value = "25ms", value_parser = duration)]
    rtt: Duration,

    /// Share of packets lost, such as 1e-3; several with commas
    #[arg(long, value_name = "SHARE", default_value = "1e-3", value_delimiter = ',', value_parser = loss)]
    loss: Vec<f64>,

    /// Bytes of a message
    #[arg(long, value_name = "BYTES", default_value = "128MiB", value_parser = size)]
    size: u64,

    /// Bytes of a chunk, a multiple of the packets' 4 KiB
    #[arg(long, value_name = "BYTES", default_value = "4KiB", value_parser = size)]
    chunk: u64,

    /// sr:rto, sr:nack, ec:xor:k,m, ec:mds:k,m or rc; may be given several times
    #[arg(long, value_name = "SCHEME", default_value = "sr:rto")]
    scheme: Vec<CompletionScheme>,

    /// Messages
    #[arg(long, value_name = "NUMBER", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    samples: u32,

    /// Everything random comes from it
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,

    /// Print one line of JSON instead of a table
    #[arg(long)]
    json: bool,
}

struct Measurement {
    options: CompletionOptions,
    slowdown: Summary,
    repeated_packets: f64,
    fallbacks: f64,
}

/// Runs the scenario.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    if let Err(message) = check(arguments) {
        eprintln!("{message}");
        return ExitCode::from(exit::USAGE);
    }
    let begin = Instant::now();
    let mut measurements = Vec::new();
    for &scheme in &arguments.scheme {
        for &loss in &arguments.loss {
            let options = CompletionOptions {
                rate_bits_per_second: arguments.rate,
                round_trip: arguments.rtt,
                loss,
                message_bytes: arguments.size as usize,
                chunk_bytes: arguments.chunk as u32,
                scheme,
                seed: arguments.seed,
            };
            match measure(options, arguments.samples) {
                Ok(measurement) => measurements.push(measurement),
                Err(error) => {
                    eprintln!("{scheme} at loss {loss:e}: {error}");
                    return ExitCode::from(exit::FAILED);
                }
            }
        }
    }
    match arguments.json {
        true => println!("{}", to_json(arguments, &measurements, begin.elapsed())),
        false => print!("{}", to_table(&measurements)),
    }
    ExitCode::SUCCESS
}

fn check(arguments: &Arguments) -> Result<(), String> {
    if !(1..=SIZE_MAX).contains(&arguments.size) {
        return Err(format!("expected a size of 1 byte to 1 GiB, came {} bytes", arguments.size));
    }
    if arguments.chunk == 0 || !arguments.chunk.is_multiple_of(4096) || arguments.chunk > 1 << 30 {
        return Err(format!("expected a chunk that is a multiple of 4 KiB, came {} bytes", arguments.chunk));
    }
    if arguments.rtt < Duration::from_micros(1) {
        return Err("expected a round trip of at least 1us".to_owned());
    }
    Ok(())
}

fn measure(options: CompletionOptions, samples: u32) -> Result<Measurement, CaseError> {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}").expect("a template that is right");
    let bar = ProgressBar::with_draw_target(Some(samples.into()), ProgressDrawTarget::stderr()).with_style(style);
    bar.set_message(format!("{} at loss {:e}", options.scheme, options.loss));
    let begin = Instant::now();
    let mut completion = Completion::new(options.clone());
    let mut taken: Vec<Sample> = Vec::with_capacity(samples as usize);
    let mut has_warned = false;
    for index in 0..samples {
        taken.push(completion.sample()?);
        bar.inc(1);
        let expected = begin.elapsed() / (index + 1) * samples;
        if !has_warned && index < samples.div_ceil(10) && expected > LONG {
            has_warned = true;
            let (scheme, loss, seconds) = (options.scheme, options.loss, expected.as_secs());
            eprintln!("{scheme} at loss {loss:e}: {samples} samples will take about {seconds} s");
        }
    }
    bar.finish_and_clear();
    let least = options.least().as_secs_f64();
    let mean = |of: fn(&Sample) -> u64| taken.iter().map(|sample| of(sample) as f64).sum::<f64>() / f64::from(samples);
    Ok(Measurement {
        slowdown: Summary::of(taken.iter().map(|sample| sample.duration.as_secs_f64() / least).collect()),
        repeated_packets: mean(|sample| sample.repeated_packets),
        fallbacks: mean(|sample| sample.fallbacks),
        options,
    })
}

/// One measurement is the object itself; several are in its `results`.
fn to_json(arguments: &Arguments, measurements: &[Measurement], elapsed: std::time::Duration) -> Value {
    let results: Vec<Value> = measurements.iter().map(result_to_json).collect();
    let mut value = json!({
        "schema": 1,
        "rate_bits_per_second": arguments.rate,
        "rtt_seconds": arguments.rtt.as_secs_f64(),
        "size_bytes": arguments.size,
        "chunk_bytes": arguments.chunk,
        "samples": arguments.samples,
        "seed": arguments.seed,
        "least_seconds": measurements[0].options.least().as_secs_f64(),
        "seconds": elapsed.as_secs_f64(),
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

fn result_to_json(measurement: &Measurement) -> Value {
    let Measurement { options, slowdown, repeated_packets, fallbacks } = measurement;
    json!({
        "scheme": options.scheme.to_string(),
        "loss": options.loss,
        "slowdown": {
            "mean": slowdown.mean,
            "p50": slowdown.p50,
            "p99": slowdown.p99,
            "p999": slowdown.p999,
        },
        "repeated_packets_mean": repeated_packets,
        "fallbacks_mean": fallbacks,
    })
}

fn to_table(measurements: &[Measurement]) -> String {
    let mut table = format!(
        "{:<14} {:>8} {:>8} {:>8} {:>8} {:>8} {:>12}\n",
        "scheme", "loss", "mean", "p50", "p99", "p99.9", "repeated"
    );
    for Measurement { options, slowdown, repeated_packets, .. } in measurements {
        let (scheme, loss) = (options.scheme.to_string(), format!("{:e}", options.loss));
        let p999 = slowdown.p999.map_or("-".to_owned(), |p999| format!("{p999:.3}"));
        let Summary { mean, p50, p99, .. } = slowdown;
        table +=
            &format!("{scheme:<14} {loss:>8} {mean:>8.3} {p50:>8.3} {p99:>8.3} {p999:>8} {repeated_packets:>12.1}\n");
    }
    table
}

fn split(text: &str) -> Result<(f64, &str), String> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number = number.parse().map_err(|_| format!("expected a number, came {text:?}"))?;
    Ok((number, unit))
}

fn rate(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "" => 1.0,
        "M" | "Mbit" => 1e6,
        "G" | "Gbit" => 1e9,
        "T" | "Tbit" => 1e12,
        _ => return Err(format!("expected a rate such as 400G, in bits a second, came {text:?}")),
    };
    let rate = number * factor;
    if (1e3..=1e13).contains(&rate) {
        Ok(rate as u64)
    } else {
        Err(format!("expected 1 kbit/s to 10 Tbit/s, came {text:?}"))
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    let nanos = match unit {
        "us" | "µs" => number * 1e3,
        "ms" => number * 1e6,
        "s" => number * 1e9,
        _ => return Err(format!("expected a time such as 25ms, came {text:?}")),
    };
    if nanos <= 1e11 {
        Ok(Duration::from_nanos(nanos as u64))
    } else {
        Err(format!("expected at most 100 s, came {text:?}"))
    }
}

fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "" | "B" => 1.0,
        "KiB" | "K" => 1024.0,
        "MiB" | "M" => 1048576.0,
        "GiB" | "G" => 1073741824.0,
        _ => return Err(format!("expected a size such as 128MiB, came {text:?}")),
    };
    Ok((number * factor) as u64)
}

fn loss(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(loss) if (0.0..1.0).contains(&loss) => Ok(loss),
        _ => Err(format!("expected a share such as 1e-3, at least 0 and less than 1, came {text:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_units() {
        assert_eq!(
            (rate("400G"), rate("2.5Gbit"), rate("1000000")),
            (Ok(400_000_000_000), Ok(2_500_000_000), Ok(1_000_000))
        );
        assert_eq!((size("128MiB"), size("1"), size("4KiB")), (Ok(128 << 20), Ok(1), Ok(4096)));
        assert_eq!(
            (duration("25ms"), duration("1.5s")),
            (Ok(Duration::from_millis(25)), Ok(Duration::from_millis(1500)))
        );
        assert_eq!((loss("1e-3"), loss("0")), (Ok(1e-3), Ok(0.0)));
        for wrong in
            [rate("400"), rate("fast"), rate("4X"), size("1TB"), duration("25").map(|_| 0), loss("1").map(|_| 0)]
        {
            assert!(wrong.is_err());
        }
    }
}
