//! `longhaul perf coding`: how fast parity is computed and lost chunks are restored, compared with copying the same
//! data and, in a build with the feature `bench-isal`, with Intel's ISA-L.
//!
//! All subjects take turns in short rounds, so that other work on the machine hits all alike, and the median round
//! counts. One thread works through the message in portions, each far larger than a core's cache, one portion a round,
//! and its processor time counts: what it would do with a core for itself, also where it shares one. Several threads
//! take the whole message in each round, so that starting them does not weigh, and there wall-clock time counts.

#[cfg(feature = "bench-isal")]
mod isal;
mod report;
mod subject;

use std::num::NonZeroUsize;
use std::time::Instant;

use longhaul_coding::{Code, Coder, Kernel, MessageLayout};

use self::report::{Measured, Report};
use self::subject::{Buffers, Subject};
use super::processor::thread_time_used;
use super::statistics::Sorted;
use crate::stop::Stop;

/// One thread takes this share of the message in a round.
const PORTIONS: usize = 8;

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

impl Arguments {
    fn codes(&self) -> Vec<Code> {
        match self.codes.is_empty() {
            true => [Code::mds(32, 8), Code::xor(32, 8)].into_iter().flatten().collect(),
            false => self.codes.clone(),
        }
    }

    /// More than one.
    fn several_threads(&self) -> Vec<NonZeroUsize> {
        let all = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let threads = if self.threads.is_empty() { vec![all()] } else { self.threads.clone() };
        threads.into_iter().filter(|threads| *threads > NonZeroUsize::MIN).collect()
    }

    /// What is measured, in the order of the report.
    fn subjects(&self) -> Vec<Subject> {
        let mut subjects = vec![Subject::copy()];
        for code in self.codes() {
            subjects.push(Subject::encode(Coder::new(code), NonZeroUsize::MIN));
            if subject::is_mds(code) {
                let slower =
                    Kernel::ALL.into_iter().filter(|kernel| kernel.is_available() && *kernel != Kernel::fastest());
                let slower = slower.filter(|_| self.kernels);
                subjects
                    .extend(slower.map(|kernel| Subject::encode(Coder::with_kernel(code, kernel), NonZeroUsize::MIN)));
                subjects.extend(self.isal(code));
            }
            // One loss in each submessage, and as many as the code can recover.
            subjects.push(Subject::decode(Coder::new(code), 1));
            let most = code.parity_chunks().min(code.data_chunks());
            subjects.extend((most > 1).then(|| Subject::decode(Coder::new(code), most)));
            subjects
                .extend(self.several_threads().into_iter().map(|threads| Subject::encode(Coder::new(code), threads)));
        }
        subjects
    }

    #[cfg(feature = "bench-isal")]
    fn isal(&self, code: Code) -> Option<Subject> {
        let submessage_bytes = code.data_chunks() * self.chunk as usize;
        if self.message.is_multiple_of(PORTIONS * submessage_bytes) {
            return Some(Subject::isal(code));
        }
        eprintln!(
            "no comparison of {code} with ISA-L: it needs whole submessages, that is a message of a multiple of {PORTIONS} times \
             {submessage_bytes} bytes"
        );
        None
    }

    #[cfg(not(feature = "bench-isal"))]
    fn isal(&self, code: Code) -> Option<Subject> {
        eprintln!(
            "no comparison of {code} with ISA-L: build with --features bench-isal (which needs nasm, autoconf, automake, libtool \
             and make)"
        );
        None
    }
}

/// Runs the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Stop> {
    let chunk_bytes = arguments.chunk as usize;
    let message_bytes = arguments.message;
    let mut subjects = arguments.subjects();
    let mut buffers = Buffers::new(chunk_bytes, message_bytes, &subjects).map_err(|error| {
        Stop::Usage(format!("a message of {} MiB cannot be cut into such chunks: {error}", arguments.message))
    })?;
    if cfg!(not(feature = "bench-isal")) {
        eprintln!(
            "no comparison with ISA-L: build with --features bench-isal (needs nasm, autoconf, automake, libtool, make)"
        );
    }
    for subject in &mut subjects {
        subject.check(&mut buffers).map_err(Stop::Failed)?;
    }
    let rates = measure(&mut subjects, &mut buffers, arguments.rounds)?;
    let measured = subjects.iter().zip(rates);
    let measured = measured.map(|(subject, rates)| Measured::new(subject, chunk_bytes, Sorted::new(rates))).collect();
    let report = Report { message_bytes, rounds: arguments.rounds, measured };
    match arguments.json {
        true => println!("{}", report.to_json()),
        false => print!("{}", report.to_table()),
    }
    Ok(())
}

/// Each subject's rates in bytes of data a second, one for each of its rounds.
fn measure(subjects: &mut [Subject], buffers: &mut Buffers, rounds: u32) -> Result<Vec<Vec<f64>>, Stop> {
    let mut rates = vec![Vec::new(); subjects.len()];
    for round in 0..rounds as usize {
        for (index, (subject, rates)) in subjects.iter_mut().zip(&mut rates).enumerate() {
            // Nobody takes a portion that was in the hands of another just before, and is in the cache.
            let (portion, portions) = match subject.threads() {
                NonZeroUsize::MIN => ((round + 3 * index) % PORTIONS, PORTIONS),
                _ if round % PORTIONS == 0 => (0, 1),
                _ => continue,
            };
            subject.prepare(buffers.portion(portion, portions));
            let portion = buffers.portion(portion, portions);
            let bytes = portion.data_bytes();
            let (start, time_used) = (Instant::now(), thread_time_used()?);
            subject.run(portion);
            let time = match subject.threads() {
                NonZeroUsize::MIN => thread_time_used()?.saturating_sub(time_used),
                _ => start.elapsed(),
            };
            rates.push(bytes as f64 / time.as_secs_f64().max(1e-9));
        }
    }
    Ok(rates)
}

/// Bytes of data that one thread encodes in a second, in chunks of 64 KiB: a short measurement, for those who need only
/// this.
pub(crate) fn encoding_bytes_per_second(code: Code) -> Result<f64, Stop> {
    let mut subjects = [Subject::encode(Coder::new(code), NonZeroUsize::MIN)];
    let mut buffers = Buffers::new(65_536, 64 << 20, &subjects)
        .map_err(|error| Stop::Failed(format!("64 MiB cannot be cut for {code}: {error}")))?;
    let rates = measure(&mut subjects, &mut buffers, 3 * PORTIONS as u32)?;
    let [rates] = <[Vec<f64>; 1]>::try_from(rates).expect("one subject");
    Ok(Sorted::new(rates).median())
}

/// How a part of the message is cut.
fn layout(code: Code, chunk_bytes: usize, bytes: usize) -> MessageLayout {
    MessageLayout::new(code, chunk_bytes, bytes).expect("a part of a message that could be cut like this")
}
