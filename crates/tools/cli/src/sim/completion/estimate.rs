//! How long a run will take, before it begins: a long one says so first.
//!
//! The packets of a message can be foreseen from the scheme and the loss. How many of them this machine simulates in a
//! second is measured with the same code on a message that is short enough to take no time.

use longhaul_scheme_testing::{
    completion::{Completion, CompletionOptions, CompletionScheme, Sampling},
    end_to_end::CaseError,
};
use std::time::{Duration, Instant};

/// A run that is expected to take longer says so first.
const LONG: Duration = Duration::from_secs(120);
/// The message that the speed is measured with.
const TRIAL_BYTES: usize = 4 << 20;
/// Enough messages to measure with.
const TRIAL_TIME: Duration = Duration::from_millis(20);
const TRIALS_MAX: u32 = 20;

/// How fast this machine is with a scheme.
#[derive(Clone, Copy, Debug)]
struct Speed {
    packets_per_second: f64,
    /// Setting up a link, for each byte of a message.
    setup_seconds_per_byte: f64,
}

impl Speed {
    fn measure(options: &CompletionOptions) -> Result<Speed, CaseError> {
        let options = CompletionOptions { message_bytes: options.message_bytes.min(TRIAL_BYTES), ..options.clone() };
        let begin = Instant::now();
        let mut completion = Completion::new(options.clone());
        let setup_seconds_per_byte = begin.elapsed().as_secs_f64() / options.message_bytes as f64;
        // The first one touches memory for the first time.
        completion.sample()?;
        // The fastest counts: what else the machine does at this moment is not what the run will take.
        let (begin, mut fastest) = (Instant::now(), Duration::MAX);
        for _ in 0..TRIALS_MAX {
            let trial = Instant::now();
            completion.sample()?;
            fastest = fastest.min(trial.elapsed());
            if begin.elapsed() >= TRIAL_TIME {
                break;
            }
        }
        let packets_per_second = options.expected_packets() / fastest.as_secs_f64().max(1e-9);
        Ok(Speed { packets_per_second, setup_seconds_per_byte })
    }

    fn expected_seconds(&self, sampling: &Sampling) -> f64 {
        let batches = f64::from(sampling.batch_count());
        let setup = batches * self.setup_seconds_per_byte * sampling.options.message_bytes as f64;
        let sending = f64::from(sampling.sample_count) * sampling.options.expected_packets() / self.packets_per_second;
        (setup + sending) / (sampling.thread_count as f64).min(batches)
    }
}

/// What a run will take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Estimate {
    pub(super) seconds: f64,
    packets: f64,
    messages: f64,
    threads: usize,
}

impl Estimate {
    /// Measures the speed of each scheme, and estimates how long all rows will take, one after the other.
    pub(super) fn of(rows: &[Sampling]) -> Result<Estimate, CaseError> {
        let mut speeds: Vec<(CompletionScheme, Speed)> = Vec::new();
        for row in rows {
            if speeds.iter().all(|(scheme, _)| *scheme != row.options.scheme) {
                speeds.push((row.options.scheme, Speed::measure(&row.options)?));
            }
        }
        let speed_of = |scheme| speeds.iter().find(|(known, _)| *known == scheme).map(|(_, speed)| *speed);
        Ok(Estimate::at(rows, |scheme| speed_of(scheme).expect("it was measured above")))
    }

    fn at(rows: &[Sampling], speed_of: impl Fn(CompletionScheme) -> Speed) -> Estimate {
        let samples = |row: &Sampling| f64::from(row.sample_count);
        Estimate {
            seconds: rows.iter().map(|row| speed_of(row.options.scheme).expected_seconds(row)).sum(),
            packets: rows.iter().map(|row| samples(row) * row.options.expected_packets()).sum(),
            messages: rows.iter().map(samples).sum(),
            threads: rows.iter().map(|row| row.thread_count).max().unwrap_or(1),
        }
    }

    /// What is to be said before a long run, and how to make it shorter; nothing before a short one.
    pub(super) fn notice(&self) -> Option<String> {
        let Estimate { seconds, packets, messages, threads } = *self;
        if seconds <= LONG.as_secs_f64() {
            return None;
        }
        let time = match seconds {
            ..7200.0 => format!("{:.0} minutes", seconds / 60.0),
            _ => format!("{:.1} hours", seconds / 3600.0),
        };
        let (millions, threads) =
            (packets / 1e6, if threads == 1 { "1 thread".into() } else { format!("{threads} threads") });
        Some(format!(
            "this will take about {time} on {threads}: {messages} messages, {millions:.0} million packets\n\
             fewer --samples, a smaller --size or fewer losses and schemes make it shorter"
        ))
    }
}

#[cfg(test)]
mod tests {
    use longhaul_time::Duration;

    use super::*;

    fn row(scheme: &str, sample_count: u32, thread_count: usize) -> Sampling {
        let options = CompletionOptions {
            rate_bits_per_second: 400_000_000_000,
            round_trip: Duration::from_millis(25),
            loss: 0.0,
            burst_packets: None,
            message_bytes: 4096 * 1000,
            chunk_bytes: 4096,
            scheme: scheme.parse().expect("a scheme"),
            seed: 1,
        };
        Sampling { options, sample_count, thread_count }
    }

    fn estimate(rows: &[Sampling]) -> Estimate {
        Estimate::at(rows, |_| Speed { packets_per_second: 1e5, setup_seconds_per_byte: 0.1 / 4_096_000.0 })
    }

    #[test]
    fn rows_add_up_and_threads_share_them() {
        // A sample is a hundredth of a second, and ten of them need a link, which is a tenth.
        assert!((estimate(&[row("sr:rto", 100, 1)]).seconds - 2.0).abs() < 1e-9);
        assert!((estimate(&[row("sr:rto", 100, 1), row("sr:nack", 200, 1)]).seconds - 6.0).abs() < 1e-9);
        assert!((estimate(&[row("sr:rto", 100, 4)]).seconds - 0.5).abs() < 1e-9);
        // There are no more than two batches to share.
        assert!((estimate(&[row("sr:rto", 20, 4)]).seconds - 0.2).abs() < 1e-9);
    }

    #[test]
    fn only_long_runs_are_announced() {
        assert_eq!(estimate(&[row("sr:rto", 5900, 1)]).notice(), None);
        let notice = estimate(&[row("sr:rto", 9000, 1)]).notice().expect("it takes three minutes");
        assert_eq!(
            notice.lines().next(),
            Some("this will take about 3 minutes on 1 thread: 9000 messages, 9 million packets")
        );
        assert!(notice.contains("--samples"), "{notice}");
        let notice = estimate(&[row("sr:rto", 900_000, 2)]).notice().expect("it takes hours");
        assert!(notice.starts_with("this will take about 2.5 hours on 2 threads"), "{notice}");
    }

    #[test]
    fn the_speed_is_measured() {
        let Estimate { seconds, .. } =
            Estimate::of(&[row("sr:rto", 10, 1), row("rc", 10, 1)]).expect("nothing is lost");
        assert!((1e-3..60.0).contains(&seconds), "{seconds}");
    }
}
