//! How fast parity is computed and lost chunks are restored, compared with copying the same data and, in a build with
//! the feature `bench-isal`, with Intel's ISA-L.
//!
//! All subjects take turns in short rounds, so that other work on the machine hits all alike, and the median round
//! counts. One thread works through the message in portions, each far larger than a core's cache, one portion a round,
//! and its processor time counts: what it would do with a core for itself, also where it shares one. Several threads
//! take the whole message in each round, so that starting them does not weigh, and there wall-clock time counts.

#[cfg(feature = "bench-isal")]
mod isal;
mod subject;

use std::num::NonZeroUsize;
use std::time::Instant;

use longhaul_coding::{Code, Coder, Kernel};

use self::subject::{Buffers, PORTIONS, Subject};
use crate::error::PerfError;
use crate::processor::thread_time_used;
use crate::statistics::Sorted;

/// What is measured.
#[derive(Clone, Debug)]
pub struct CodingRequest {
    /// Codes; mds:32,8 and xor:32,8 if there are none.
    pub codes: Vec<Code>,
    /// Bytes of a chunk.
    pub chunk_bytes: usize,
    /// Bytes of the message.
    pub message_bytes: usize,
    /// Encode also on these numbers of threads; one for each processor if there are none.
    pub threads: Vec<NonZeroUsize>,
    /// Rounds of each measurement.
    pub rounds: u32,
    /// Also the slower kernels that this processor supports.
    pub kernels: bool,
}

/// All that was measured.
pub struct CodingReport {
    /// Bytes of the message.
    pub message_bytes: usize,
    /// Rounds of each measurement.
    pub rounds: u32,
    /// What was measured, in the order of the subjects.
    pub measured: Vec<Measured>,
}

/// One subject's rates, in bytes of data a second.
pub struct Measured {
    /// Name of the code; `copy` and `isal` are none of ours.
    pub code: &'static str,
    /// What it does: `encode`, `decode` or `copy`.
    pub operation: &'static str,
    /// Data and parity chunks of a submessage.
    pub counts: Option<(usize, usize)>,
    /// Chunks lost in each submessage.
    pub lost: Option<usize>,
    /// Bytes of a chunk.
    pub chunk_bytes: usize,
    /// Threads.
    pub threads: usize,
    /// Which SIMD kernel.
    pub kernel: String,
    /// The rate of each round.
    pub rates: Sorted,
}

impl Measured {
    fn new(subject: &Subject, chunk_bytes: usize, rates: Sorted) -> Measured {
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
}

impl CodingReport {
    /// The rate of the first encoder (or copier) of that name on one thread.
    fn rate(&self, code: &str) -> Option<f64> {
        let is_it =
            |measured: &&Measured| measured.code == code && measured.operation != "decode" && measured.threads == 1;
        self.measured.iter().find(is_it).map(|measured| measured.rates.median())
    }

    fn ratio(&self, code: &str, limit: &str) -> Option<f64> {
        Some(self.rate(code)? / self.rate(limit)?)
    }

    /// Our Reed-Solomon over ISA-L's; `None` if one was not measured.
    pub fn mds_over_isal(&self) -> Option<f64> {
        self.ratio("mds", "isal")
    }

    /// XOR over copying; `None` if one was not measured.
    pub fn xor_over_copy(&self) -> Option<f64> {
        self.ratio("xor", "copy")
    }
}

impl CodingRequest {
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
    fn subjects(&self, note: &mut dyn FnMut(String)) -> Vec<Subject> {
        let mut subjects = vec![Subject::copy()];
        for code in self.codes() {
            subjects.push(Subject::encode(Coder::new(code), NonZeroUsize::MIN));
            if subject::is_mds(code) {
                let slower =
                    Kernel::ALL.into_iter().filter(|kernel| kernel.is_available() && *kernel != Kernel::fastest());
                let slower = slower.filter(|_| self.kernels);
                subjects
                    .extend(slower.map(|kernel| Subject::encode(Coder::with_kernel(code, kernel), NonZeroUsize::MIN)));
                subjects.extend(self.isal(code, note));
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
    fn isal(&self, code: Code, note: &mut dyn FnMut(String)) -> Option<Subject> {
        let submessage_bytes = code.data_chunks() * self.chunk_bytes;
        if self.message_bytes.is_multiple_of(PORTIONS * submessage_bytes) {
            return Some(Subject::isal(code));
        }
        note(format!(
            "no comparison of {code} with ISA-L: it needs whole submessages, that is a message of a multiple of {PORTIONS} times \
             {submessage_bytes} bytes"
        ));
        None
    }

    #[cfg(not(feature = "bench-isal"))]
    fn isal(&self, code: Code, note: &mut dyn FnMut(String)) -> Option<Subject> {
        note(format!(
            "no comparison of {code} with ISA-L: build with --features bench-isal (which needs nasm, autoconf, automake, libtool \
             and make)"
        ));
        None
    }
}

/// Measures. `note` gets what people should know, as it happens.
pub fn measure(request: &CodingRequest, note: &mut dyn FnMut(String)) -> Result<CodingReport, PerfError> {
    let CodingRequest { chunk_bytes, message_bytes, rounds, .. } = *request;
    let mut subjects = request.subjects(note);
    let mut buffers = Buffers::new(chunk_bytes, message_bytes, &subjects).map_err(|error| {
        PerfError::Request(format!("a message of {message_bytes} MiB cannot be cut into such chunks: {error}"))
    })?;
    if cfg!(not(feature = "bench-isal")) {
        let why = "no comparison with ISA-L: build with --features bench-isal (needs nasm, autoconf, automake, libtool, make)";
        note(why.to_owned());
    }
    for subject in &mut subjects {
        subject.check(&mut buffers).map_err(PerfError::Failed)?;
    }
    let rates = rates(&mut subjects, &mut buffers, rounds)?;
    let measured = subjects.iter().zip(rates);
    let measured = measured.map(|(subject, rates)| Measured::new(subject, chunk_bytes, Sorted::new(rates))).collect();
    Ok(CodingReport { message_bytes, rounds, measured })
}

/// Each subject's rates in bytes of data a second, one for each of its rounds.
fn rates(subjects: &mut [Subject], buffers: &mut Buffers, rounds: u32) -> Result<Vec<Vec<f64>>, PerfError> {
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
pub fn encoding_bytes_per_second(code: Code) -> Result<f64, PerfError> {
    let mut subjects = [Subject::encode(Coder::new(code), NonZeroUsize::MIN)];
    let mut buffers = Buffers::new(65_536, 64 << 20, &subjects)
        .map_err(|error| PerfError::Failed(format!("64 MiB cannot be cut for {code}: {error}")))?;
    let rates = rates(&mut subjects, &mut buffers, 3 * PORTIONS as u32)?;
    let [rates] = <[Vec<f64>; 1]>::try_from(rates).expect("one subject");
    Ok(Sorted::new(rates).median())
}
